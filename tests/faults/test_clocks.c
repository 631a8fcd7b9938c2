/* SPDX-License-Identifier: MIT */
/*
 * Clocks that step while a limiter is at work. The test runs itself once more under libfaketime, which moves the
 * clocks of that process when the file that it watches changes; Redis keeps the right time.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "integration/script_client.h"
#include "support/guard.h"
#include "support/node.h"
#include "support/redis_server.h"

static struct redis_server *server;
static struct guard *guard;
static struct node a;
static char file[128], out[128]; /* the offset of the process' clocks; what it was admitted */

static void open_server(void)
{
    server = redis_server_open(NULL);
    guard = guard_open();
}

static void close_server(void)
{
    guard_close(guard);
    redis_server_close(server);
}

static void step(const char *path, const char *offset)
{
    char next[160];
    snprintf(next, sizeof next, "%s.new", path);
    FILE *stream = fopen(next, "w");
    if (!stream || fputs(offset, stream) < 0 || fclose(stream) != 0 || rename(next, path) != 0) {
        guard_fail("%s: can't write", path);
    }
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * NODE_SECOND + (uint64_t)ts.tv_nsec;
}

/* ---- the process whose clocks step ------------------------------------------------------------------------------- */

struct scenario {
    const char *name, *offset;
    int monotonic_too;     /* else the wall clock alone */
    enum weir_clock clock; /* of the limiter */
    int earns;             /* what an hour's limit of 1 has earned by the step: 1 or 0; -1: either */
};

static const struct scenario scenarios[] = {
    {"the_wall_clock_goes_back", "-1h", 0, WEIR_CLOCK_MONOTONIC, 0},
    {"the_wall_clock_goes_forward", "+10h", 0, WEIR_CLOCK_MONOTONIC, 0},
    {"the_wall_clock_goes_back_beside_the_counter", "-1h", 0, WEIR_CLOCK_AUTO, 0},
    {"asleep_for_10_hours_and_the_clock_counts_them", "+10h", 1, WEIR_CLOCK_MONOTONIC, 1},
    {"asleep_for_10_hours_and_the_counter_stops", "+10h", 1, WEIR_CLOCK_AUTO, -1},
};

enum { SLEEPY = 1000, ASLEEP = -1 };

static int take(weir_policy_id id, const char *key)
{
    return weir_take(a.w, id, key, strlen(key), 1, NULL) == WEIR_ALLOW;
}

/* Returns how many takes of "k" were admitted; fails by ending. */
static int live_through(const struct scenario *scenario, const char *uri, const char *offset_file)
{
    struct weir_policy policy = node_policy(10000, NODE_DAY, 100000);
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    weir_policy_id hourly, shared;
    int allowed = 0, earned;

    memset(&a, 0, sizeof a);
    options.clock = scenario->clock;
    a.hybrid = 1;
    if (weir_open(&a.w, &options) || weir_policy_add(a.w, &policy, &a.id)) {
        guard_fail("no limiter");
    }
    policy.name = "hourly";
    policy.limit = policy.burst = 1;
    policy.per_ns = 3600 * NODE_SECOND;
    policy.mode = WEIR_LOCAL;
    weir_policy_add(a.w, &policy, &hourly);
    policy.name = "shared";
    policy.mode = WEIR_HYBRID;
    weir_policy_add(a.w, &policy, &shared);
    sync.interval_ms = 50;
    node_start(&a, uri, &sync);
    for (int i = 0; i < 600; i++) {
        allowed += take(a.id, "k");
        if (i == 200) {
            ck_assert_int_eq(take(hourly, "k"), 1);
            ck_assert_int_eq(take(hourly, "k"), 0);
            time_t before = time(NULL);
            step(offset_file, scenario->offset);
            usleep(20000);
            ck_assert_int_gt(labs((long)(time(NULL) - before)), 3000);
            earned = take(hourly, "k");
            ck_assert_msg(scenario->earns < 0 || earned == scenario->earns, "%d earned", earned);
        }
        usleep(1000);
    }
    earned = 0; /* case 3: however long it slept, one is the most */
    for (int i = 0; i < 50; i++) {
        earned += take(hourly, "k");
        usleep(1000);
    }
    ck_assert_int_le(earned, scenario->earns < 0);
    earned = 0;
    for (int i = 0; i < 200; i++) {
        earned += take(shared, "k");
        usleep(1000);
    }
    ck_assert_int_le(earned, 2); /* and one in doubt */
    node_until(node_flush(&a) == 0 && a.status == 0);
    ck_assert_uint_eq(node_end(&a), 0);
    weir_close(a.w);
    return allowed;
}

/* The machine sleeps while a slice is in hand, and the clock with it. Returns how many takes were admitted. */
static int sleep_with_a_slice(const char *uri)
{
    struct weir_policy policy = node_policy(SLEEPY / 10, NODE_DAY, SLEEPY);
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    struct weir_result result = {.flags = 0};
    int allowed = 0;

    memset(&a, 0, sizeof a);
    options.clock = WEIR_CLOCK_MONOTONIC;
    a.hybrid = 1;
    if (weir_open(&a.w, &options) || weir_policy_add(a.w, &policy, &a.id)) {
        guard_fail("no limiter");
    }
    sync.interval_ms = 100;
    node_start(&a, uri, &sync);
    for (int i = 0; i < 300; i++) {
        allowed += take(a.id, "k");
        usleep(500);
    }
    raise(SIGSTOP);
    for (int i = 0; i < 1000; i++) {
        allowed += node_take(&a, "k", &result) == WEIR_ALLOW;
        ck_assert_uint_le(result.remaining, SLEEPY);
        usleep(i < 500 ? 0 : 500); /* at first what is in hand, before anything is heard */
    }
    node_until(node_flush(&a) == 0 && a.status == 0);
    ck_assert_uint_eq(node_end(&a), 0);
    weir_close(a.w);
    return allowed;
}

/* ---- the test ---------------------------------------------------------------------------------------------------- */

static double taken(void)
{
    return 100000 - script_client_look(server, "p", "k").total;
}

/* Starts the process of a scenario, or of sleep_with_a_slice (ASLEEP). */
static pid_t start(int scenario, int monotonic_too)
{
    char number[8];
    snprintf(file, sizeof file, "%s/offset", guard_folder(guard));
    snprintf(out, sizeof out, "%s/allowed", guard_folder(guard));
    snprintf(number, sizeof number, "%d", scenario);
    step(file, "+0");
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", WEIR_LIBFAKETIME, 1);
        setenv("FAKETIME_TIMESTAMP_FILE", file, 1);
        setenv("FAKETIME_NO_CACHE", "1", 1);
        setenv("FAKETIME_DONT_FAKE_MONOTONIC", monotonic_too ? "0" : "1", 1);
        setenv("CK_FORK", "no", 1);
        unsetenv("CK_TAP_LOG_FILE_NAME");
        dup2(2, 1); /* the test's own output is a protocol */
        execl("/proc/self/exe", "child", number, redis_server_uri(server), file, out, NULL);
        _exit(127);
    }
    ck_assert_int_gt(child, 0);
    return child;
}

/* How many takes it was admitted. */
static int end(pid_t child, const char *name)
{
    int status, allowed;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status == 0, "%s: status %x", name, status);
    FILE *stream = fopen(out, "r");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_eq(fscanf(stream, "%d", &allowed), 1);
    fclose(stream);
    return allowed;
}

START_TEST(clocks_step)
{
    int allowed = end(start(_i, scenarios[_i].monotonic_too), scenarios[_i].name);
    ck_assert_msg(taken() <= allowed + 0.1 && taken() > allowed - 3, "%d admitted, %f charged", allowed, taken());
}
END_TEST

/* Case 3 and its like: what a sleeper holds when it wakes was charged while it slept, and goes to nobody else as well;
 * nor does anything that it is told then lift its bucket above the burst. */
START_TEST(case_3_asleep_with_a_slice_and_its_clock_too)
{
    struct weir_policy policy = node_policy(SLEEPY / 10, NODE_DAY, SLEEPY);
    char offset[32];
    int status, verdict = WEIR_ALLOW, allowed = 0;
    pid_t child = start(ASLEEP, 1);
    ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
    ck_assert(WIFSTOPPED(status));
    uint64_t fell_asleep = now_ns();
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    while (verdict == WEIR_ALLOW || now_ns() - fell_asleep < 2 * NODE_SECOND) { /* it takes all there is */
        verdict = node_wait(&a, "k", 1, NULL);
        allowed += verdict == WEIR_ALLOW;
    }
    snprintf(offset, sizeof offset, "-%.3f", (double)(now_ns() - fell_asleep) / 1e9);
    step(file, offset);
    ck_assert_int_eq(kill(child, SIGCONT), 0);
    allowed += end(child, "asleep");
    allowed += node_wait_many(&a, "k", 20);
    ck_assert_uint_eq(node_end(&a), 0);
    node_close(&a);
    ck_assert_msg(allowed <= SLEEPY + SLEEPY / 10 + 3 && allowed > SLEEPY / 2, "%d admitted of %d", allowed, SLEEPY);
    double charged = SLEEPY - script_client_look(server, "p", "k").total;
    ck_assert_msg(charged >= allowed - 1.5, "%d admitted, %f charged", allowed, charged);
}
END_TEST

/* The child is a test program of one case, so that a failed check tells where. */
static char **child_args;

START_TEST(child)
{
    FILE *stream = fopen(child_args[4], "w");
    ck_assert_ptr_nonnull(stream);
    int scenario = atoi(child_args[1]);
    fprintf(stream, "%d\n",
            scenario == ASLEEP ? sleep_with_a_slice(child_args[2])
                               : live_through(&scenarios[scenario], child_args[2], child_args[3]));
    fclose(stream);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("clocks");
    TCase *tcase = tcase_create("clocks");
    suite_add_tcase(s, tcase);
    SRunner *runner = srunner_create(s);
    if (argc == 5) {
        child_args = argv;
        tcase_add_test(tcase, child);
        srunner_run_all(runner, CK_NORMAL);
    } else {
        tcase_add_checked_fixture(tcase, open_server, close_server);
        tcase_add_test(tcase, case_3_asleep_with_a_slice_and_its_clock_too);
        tcase_add_loop_test(tcase, clocks_step, 0, sizeof scenarios / sizeof scenarios[0]);
        srunner_run_all(runner, CK_ENV);
    }
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
