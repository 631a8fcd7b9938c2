/* SPDX-License-Identifier: MIT */
/*
 * The strategies of the fleet benchmark on a real redis-server: what is wrong with the two that are known to be wrong,
 * shown each time; and that all of them hold a limit as far as their kind can.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "benchmarks/fleet/strategy.h"
#include "benchmarks/harness.h"
#include "support/redis_server.h"
#include "support/suite.h"

#define DAY_NS UINT64_C(86400000000000)
#define MS UINT64_C(1000000)
#define ASKS 32

static const struct strategy_limit limits[] = {{1, DAY_NS, 1}, {5, DAY_NS, 5}};
enum { ONE, FIVE };

static struct redis_server *server;
static unsigned verdicts, admitted, degraded;

static void setup(void)
{
    server = redis_server_open(NULL);
    verdicts = admitted = degraded = 0;
    signal(SIGPIPE, SIG_IGN);
}

static void teardown(void)
{
    redis_server_close(server);
}

static void on_verdict(struct strategy_ask *ask)
{
    verdicts++;
    admitted += ask->allowed != 0;
    degraded += ask->degraded != 0;
}

static void *open_one(const struct strategy *strategy, unsigned index, void (*on)(struct strategy_ask *ask))
{
    static struct strategy_setup own;
    own = (struct strategy_setup){.socket = redis_server_socket(server),
                                  .limits = limits,
                                  .limit_count = 2,
                                  .processes = 1,
                                  .index = index,
                                  .interval_ms = 20,
                                  .timeout_ms = 5000, /* that a process waits for a CPU is no outage */
                                  .on_verdict = on};
    return strategy->open(strategy, &own);
}

static void decide(const struct strategy *strategy, void *self, struct strategy_ask *ask, uint32_t limit)
{
    *ask = (struct strategy_ask){.key = "key", .key_len = 3, .limit = limit, .cost = 1};
    strategy->decide(self, ask);
}

/* Until what it waits for has come, or for `ms`. */
static void wait_once(const struct strategy *strategy, void *self, int ms)
{
    struct pollfd fd = {.fd = -1};
    uint64_t until = UINT64_MAX;
    strategy->wait(self, &fd, &until);
    poll(&fd, fd.fd >= 0 ? 1 : 0, ms);
}

static void await_verdicts(const struct strategy *strategy, void *self, unsigned n)
{
    for (uint64_t end = bench_clock_ns() + 10000 * MS; verdicts < n && bench_clock_ns() < end;) {
        strategy->turn(self);
        if (verdicts < n) {
            wait_once(strategy, self, 1);
        }
    }
    ck_assert_uint_eq(verdicts, n);
}

/* Timers may run. */
static void idle(const struct strategy *strategy, void *self, uint64_t ms)
{
    for (uint64_t end = bench_clock_ns() + ms * MS; bench_clock_ns() < end;) {
        strategy->turn(self);
        wait_once(strategy, self, 1);
    }
}

/* ---- two on one token -------------------------------------------------------------------------------------------- */

/* Both have asked Redis, and both have an answer waiting, before either looks at it. */
static void interleave(const struct strategy *strategy)
{
    struct strategy_ask asks[2];
    void *both[2] = {open_one(strategy, 0, on_verdict), open_one(strategy, 1, on_verdict)};
    for (int i = 0; i < 2; i++) {
        while (!strategy->connected(both[i])) {
            strategy->turn(both[i]);
            wait_once(strategy, both[i], 10);
        }
    }
    for (int i = 0; i < 2; i++) {
        struct pollfd fd = {.fd = -1};
        uint64_t until = UINT64_MAX;
        decide(strategy, both[i], &asks[i], ONE);
        redis_server_pause(server); /* the answer can't be there when the question is sent */
        strategy->turn(both[i]);
        redis_server_resume(server);
        strategy->wait(both[i], &fd, &until);
        ck_assert_int_eq(poll(&fd, 1, 5000), 1);
    }
    ck_assert_uint_eq(verdicts, 0);
    for (int i = 0; i < 2; i++) {
        await_verdicts(strategy, both[i], (unsigned)i + 1);
        strategy->close(both[i]);
    }
    ck_assert_uint_eq(degraded, 0);
}

START_TEST(a_racy_bucket_allows_two_on_one_token)
{
    interleave(&strategy_bucket_racy);
    ck_assert_uint_eq(admitted, 2);
}
END_TEST

static const struct strategy *const scripted[] = {&strategy_window_lua, &strategy_bucket_lua,
                                                  &strategy_bucket_app_clock, &strategy_sliding_window, &strategy_gcra};

START_TEST(a_script_allows_one_on_one_token)
{
    interleave(scripted[_i]);
    ck_assert_uint_eq(admitted, 1);
}
END_TEST

/* ---- a crash between two steps ----------------------------------------------------------------------------------- */

static void die(struct strategy_ask *ask)
{
    (void)ask;
    raise(SIGKILL);
}

/* A process dies as soon as it has its verdict. What is left: the time to live of the only key, as text. */
static const char *after_a_crash(const struct strategy *strategy)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct strategy_ask ask;
        void *self = open_one(strategy, 0, die);
        decide(strategy, self, &ask, FIVE);
        for (;;) {
            strategy->turn(self);
            wait_once(strategy, self, 10);
        }
    }
    ck_assert_int_gt(pid, 0);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    char key[128];
    strncpy(key, redis_server_do(server, "KEYS", "*", (char *)NULL), sizeof key - 1);
    key[sizeof key - 1] = '\0';
    ck_assert_str_ne(key, "");
    ck_assert_str_eq(redis_server_do(server, "GET", key, (char *)NULL), "1");
    return redis_server_do(server, "PTTL", key, (char *)NULL);
}

START_TEST(a_crash_between_count_and_expiry_leaves_a_key_for_ever)
{
    ck_assert_str_eq(after_a_crash(&strategy_window_naive), "-1");
}
END_TEST

START_TEST(a_crash_leaves_a_script_s_key_its_expiry)
{
    long long ms = atoll(after_a_crash(&strategy_window_lua));
    ck_assert_int_gt(ms, 0);
    ck_assert_int_le(ms, (long long)(DAY_NS / MS));
}
END_TEST

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* One process that asks on and on is admitted the burst; hybrid, one more, for a token is less than it may lend. */
START_TEST(each_admits_its_burst)
{
    const struct strategy *strategy = strategies[_i];
    static struct strategy_ask asks[ASKS];
    void *self = open_one(strategy, 0, on_verdict);
    idle(strategy, self, strategy->settle_ms / 5);
    for (unsigned i = 0; i < ASKS || (admitted < 5 && i < 10 * ASKS); i++) { /* timers of a busy machine come late */
        decide(strategy, self, &asks[i % ASKS], FIVE);
        await_verdicts(strategy, self, i + 1);
        idle(strategy, self, strategy->in_memory ? 20 : 0);
    }
    ck_assert_uint_ge(admitted, 5);
    ck_assert_uint_le(admitted, strategy == &strategy_hybrid ? 6 : 5);
    ck_assert_uint_eq(degraded, 0);
    strategy->close(self);
}
END_TEST

START_TEST(each_is_found_by_its_name)
{
    unsigned n = 0;
    for (; strategies[n]; n++) {
        ck_assert_ptr_eq(strategy_find(strategies[n]->name), strategies[n]);
    }
    ck_assert_uint_eq(n, 13); /* twelve kinds, one of them with two kinds of clocks */
    ck_assert_ptr_null(strategy_find("none"));
}
END_TEST

/* Those that ask Redis each time admit without it, say so, and find it again. */
START_TEST(without_redis_it_admits)
{
    const struct strategy *strategy = strategy_find(_i == 0 ? "fixed-window-naive" : "gcra-lua");
    struct strategy_ask ask;
    void *self = open_one(strategy, 0, on_verdict);
    redis_server_kill(server);
    for (unsigned i = 1; i <= 3; i++) {
        decide(strategy, self, &ask, ONE);
        await_verdicts(strategy, self, i);
    }
    ck_assert_uint_eq(admitted, 3);
    ck_assert_uint_eq(degraded, 3);
    redis_server_restart(server);
    for (uint64_t end = bench_clock_ns() + 20000 * MS; !strategy->connected(self) && bench_clock_ns() < end;) {
        strategy->turn(self);
        wait_once(strategy, self, 10);
    }
    for (unsigned i = 4; i <= 5; i++) {
        decide(strategy, self, &ask, ONE);
        await_verdicts(strategy, self, i);
    }
    ck_assert_uint_eq(admitted, 4);
    ck_assert_uint_eq(degraded, 3);
    strategy->close(self);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("fleet");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_racy_bucket_allows_two_on_one_token);
    tcase_add_loop_test(tcase, a_script_allows_one_on_one_token, 0, sizeof scripted / sizeof scripted[0]);
    tcase_add_test(tcase, a_crash_between_count_and_expiry_leaves_a_key_for_ever);
    tcase_add_test(tcase, a_crash_leaves_a_script_s_key_its_expiry);
    tcase_add_loop_test(tcase, each_admits_its_burst, 0, 13);
    tcase_add_test(tcase, each_is_found_by_its_name);
    tcase_add_loop_test(tcase, without_redis_it_admits, 0, 2);
    Suite *suite = suite_create("fleet");
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
