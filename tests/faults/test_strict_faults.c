/* SPDX-License-Identifier: MIT */
/*
 * Strict mode where others' limiters were reported to fail: a peer that goes with calls in flight, a limiter that is
 * closed inside the answer, scripts that are gone, a timer that outlives what it was for, replies that are kept.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include <uv.h>

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct liar *liar;
static struct node a;
static uv_loop_t loop;
static uv_timer_t beat; /* a sync alone keeps no loop turning */

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
}

static void setup(void)
{
    liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
}

static void teardown(void)
{
    liar_close(liar);
}

struct verdict {
    int calls, status, close, refused;
    struct weir_result result;
};

static int closing, closed;

static void on_closed(void *arg, int status, uint64_t unsent)
{
    (void)arg;
    (void)status;
    (void)unsent;
    closed++;
}

static void on_verdict(void *arg, int status, const struct weir_result *result)
{
    struct verdict *verdict = arg;

    verdict->calls++;
    verdict->status = status;
    verdict->result = *result;
    if (verdict->close) {
        ck_assert_int_eq(weir_sync_close(a.sync, on_closed, NULL), 0);
        closing = 1;
    }
}

static void on_beat(uv_timer_t *timer)
{
    (void)timer;
}

/* Turns the loop until the condition holds. */
#define turn_until(condition)                                                                                          \
    do {                                                                                                               \
        while (!(condition))                                                                                           \
            uv_run(&loop, UV_RUN_ONCE);                                                                                \
    } while (0)

static void open_on_loop(uint32_t connect_timeout_ms, uint32_t timeout_ms)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);

    policy.mode = WEIR_STRICT;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    node_open(&a, &policy);
    options.uri = liar_uri(liar);
    options.connect_timeout_ms = connect_timeout_ms;
    options.timeout_ms = timeout_ms;
    options.drain_ms = 10;
    closing = closed = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(uv_timer_init(&loop, &beat), 0);
    ck_assert_int_eq(uv_timer_start(&beat, on_beat, 1, 1), 0);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
    turn_until(node_stats(&a).store_up);
}

static void close_on_loop(void)
{
    if (!closing)
        ck_assert_int_eq(weir_sync_close(a.sync, on_closed, NULL), 0);
    uv_close((uv_handle_t *)&beat, NULL);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    weir_close(a.w);
}

/* Once it closes nobody is let in: then it is no call in flight. */
static void ask(struct verdict *verdict, const char *key)
{
    struct weir_request request = {.policy = a.id, .key = key, .key_len = strlen(key), .cost = 1};
    int status = weir_take_async(a.w, &request, on_verdict, verdict);

    ck_assert(closing ? status == WEIR_E_CLOSED || status == WEIR_E_NOSYNC : status == 0);
    verdict->refused = closing;
}

/* ---- case 32 ----------------------------------------------------------------------------------------------------- */

/* Three calls in flight, each in a script of its own, and more to write; the peer goes. Each is called back once, by
 * the outage policy; in turn with the sync closed inside the first callback. The next connection is a new one. */
START_TEST(case_32_the_peer_goes_with_calls_in_flight)
{
    enum { REPEATS = 250 }; /* four ways: a thousand */

    for (int n = 0; n < REPEATS; n++) {
        static const char *const keys[] = {"one", "two", "three"};
        struct verdict verdicts[4];
        unsigned before;

        memset(verdicts, 0, sizeof verdicts);
        liar_clear(liar);
        open_on_loop(10000, 5000);
        before = liar_accepted(liar);
        liar_rule(liar, &(struct liar_rule){.command = "EVALSHA",
                                            .skip = (unsigned)n % 3,
                                            .times = 1,
                                            .act = _i & 1 ? LIAR_CLOSE : LIAR_HALF_CLOSE});
        verdicts[0].close = _i & 2;
        for (int i = 0; i < 3; i++) {
            ask(&verdicts[i], keys[i]);
            uv_run(&loop, UV_RUN_NOWAIT); /* sent */
        }
        ask(&verdicts[3], "behind them");
        for (int i = 0; i < 4; i++)
            turn_until(verdicts[i].calls || verdicts[i].refused);
        if (!(_i & 2) && n % 16 == 0) {
            struct verdict again = {.calls = 0};

            turn_until(node_stats(&a).store_up);
            ask(&again, "one");
            turn_until(again.calls);
            ck_assert_int_eq(again.status, WEIR_ALLOW);
            ck_assert_uint_eq(liar_accepted(liar), before + 1);
        }
        close_on_loop();
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(verdicts[i].calls, !verdicts[i].refused);
            ck_assert_int_eq(verdicts[i].status, verdicts[i].result.flags & WEIR_DEGRADED ? WEIR_DENY : WEIR_ALLOW);
        }
        ck_assert(verdicts[2].refused || verdicts[2].result.flags & WEIR_DEGRADED);
    }
}
END_TEST

/* ---- case 28 ----------------------------------------------------------------------------------------------------- */

static void lose_scripts(void)
{
    ck_assert_str_eq(redis_server_do(server, "SCRIPT", "FLUSH", NULL), "OK");
}

static weir_policy_id add_policy(const char *name, enum weir_mode mode, const char *group)
{
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);
    weir_policy_id id;

    policy.name = name;
    policy.mode = mode;
    policy.group = group;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &id), 0);
    return id;
}

/* Each script that there is (of decisions, of several policies at once, of reports, to forget) is missed in turn, each
 * by another call: no caller sees anything of it. */
START_TEST(case_28_every_script_is_missed)
{
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);
    struct weir_result result;
    weir_policy_id hybrid, one, two;

    node_open(&a, &policy);
    hybrid = a.id;
    one = add_policy("one", WEIR_STRICT, "g");
    two = add_policy("two", WEIR_STRICT, "g");
    node_start(&a, liar_uri(liar), node_patient());
    for (int i = 0; i < 5; i++) {
        struct weir_request both[] = {{.policy = one, .key = "k", .key_len = 1, .cost = 1},
                                      {.policy = two, .key = "k", .key_len = 1, .cost = 1}};

        lose_scripts();
        ck_assert_int_eq(weir_take(a.w, one, "k", 1, 1, &result), WEIR_ALLOW);
        ck_assert_uint_eq(result.flags & WEIR_DEGRADED, 0);
        ck_assert_uint_eq(result.remaining, 998 - 3 * (uint64_t)i + 1);
        lose_scripts();
        ck_assert_int_eq(weir_take_all(a.w, both, 2, &result), WEIR_ALLOW);
        ck_assert_uint_eq(result.flags & WEIR_DEGRADED, 0);
        lose_scripts();
        ck_assert_int_eq(weir_take_many(a.w, both, 2, 0), 0);
        ck_assert_int_eq(both[0].status, WEIR_ALLOW);
        ck_assert_int_eq(both[1].status, WEIR_ALLOW);
        lose_scripts();
        ck_assert_int_eq(weir_give(a.w, two, "k", 1, 2), 0);
        ck_assert_int_eq(weir_take(a.w, hybrid, "k", 1, 1, NULL), WEIR_ALLOW);
        ck_assert_uint_eq(node_flush(&a), 0);
        ck_assert_int_eq(a.status, 0);
        lose_scripts();
        ck_assert_int_eq(weir_forget(a.w, two, "k", 1), 0);
        node_until(weir_take(a.w, two, "k", 1, 1, &result) == WEIR_ALLOW && result.remaining == 999);
    }
    ck_assert_uint_eq(node_stats(&a).degraded, 0);
    ck_assert_uint_eq(node_end(&a), 0);
    node_close(&a);
}
END_TEST

/* A hundred calls are in flight when the scripts go, again and again: each is answered by Redis, and charged once. (A
 * call that missed them twice would be answered by the outage policy: none does.) */
START_TEST(case_28_scripts_go_under_load)
{
    enum { KEYS = 100, ROUNDS = 5 };
    static struct verdict verdicts[ROUNDS][KEYS];
    char key[8];

    open_on_loop(10000, 5000);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KEYS; i++) {
            snprintf(key, sizeof key, "%d", i);
            ask(&verdicts[round][i], key);
            if (i == KEYS / 2) {
                uv_run(&loop, UV_RUN_NOWAIT); /* half of them is on its way, half is not */
                lose_scripts();
            }
        }
        for (int i = 0; i < KEYS; i++) {
            struct verdict *verdict = &verdicts[round][i];

            turn_until(verdict->calls);
            ck_assert_int_eq(verdict->status, WEIR_ALLOW);
            ck_assert_uint_eq(verdict->result.flags & WEIR_DEGRADED, 0);
        }
    }
    for (int i = 0; i < KEYS; i++) {
        struct verdict last = {.calls = 0};

        snprintf(key, sizeof key, "%d", i);
        ask(&last, key);
        turn_until(last.calls);
        ck_assert_uint_eq(last.result.remaining, 1000 - ROUNDS - 1);
    }
    close_on_loop();
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < KEYS; i++)
            ck_assert_int_eq(verdicts[round][i].calls, 1);
}
END_TEST

/* ---- case E1 ----------------------------------------------------------------------------------------------------- */

/* Connected long before its timeout, asked shortly before it, answered after it. */
START_TEST(case_E1_the_connect_timeout_ends_with_the_connect)
{
    struct verdict verdict = {.calls = 0};
    uint64_t begin = uv_hrtime();

    open_on_loop(2000, 10000);
    liar_rule(liar, &(struct liar_rule){.command = "EVALSHA", .act = LIAR_LATE, .ms = 1000});
    turn_until(uv_hrtime() >= begin + 1500 * NODE_MS);
    ask(&verdict, "k");
    turn_until(verdict.calls);
    ck_assert_uint_gt(uv_hrtime(), begin + 2400 * NODE_MS);
    ck_assert_int_eq(verdict.status, WEIR_ALLOW);
    ck_assert_uint_eq(verdict.result.flags, 0);
    ck_assert_uint_eq(liar_accepted(liar), 1);
    ck_assert_uint_eq(node_stats(&a).reconnects, 0);
    close_on_loop();
}
END_TEST

/* ---- case E13 ---------------------------------------------------------------------------------------------------- */

/* What a callback was given is the caller's copy: it stays true when the reply it came in is long gone, and many more
 * have taken its place in memory. */
START_TEST(case_E13_results_outlive_their_replies)
{
    enum { MANY = 400 };
    static struct verdict verdicts[MANY];

    open_on_loop(10000, 5000);
    for (int i = 0; i < MANY; i++) {
        ask(&verdicts[i], "kept");
        if (i % 7 == 0)
            uv_run(&loop, UV_RUN_NOWAIT);
    }
    turn_until(verdicts[MANY - 1].calls);
    liar_cut(liar);
    close_on_loop();
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_eq(verdicts[i].calls, 1);
        ck_assert_int_eq(verdicts[i].status, WEIR_ALLOW);
        ck_assert_int_eq(verdicts[i].result.remaining, 999 - i);
        ck_assert_uint_eq(verdicts[i].result.limit, 1000);
        ck_assert_uint_eq(verdicts[i].result.flags, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strict_faults");
    TCase *tcase = tcase_create("strict");

    tcase_add_unchecked_fixture(tcase, open_server, close_server);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, case_32_the_peer_goes_with_calls_in_flight, 0, 4);
    tcase_add_test(tcase, case_28_every_script_is_missed);
    tcase_add_test(tcase, case_28_scripts_go_under_load);
    tcase_add_test(tcase, case_E1_the_connect_timeout_ends_with_the_connect);
    tcase_add_test(tcase, case_E13_results_outlive_their_replies);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
