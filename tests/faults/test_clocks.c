/* SPDX-License-Identifier: MIT */
/*
 * Clocks that step while a limiter is at work. The test runs itself once more under libfaketime, which moves the
 * clocks of that process when the file that it watches changes; Redis keeps the right time.
 */
#include <check.h>
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

static void step(const char *file, const char *offset)
{
    char next[160];
    snprintf(next, sizeof next, "%s.new", file);
    FILE *stream = fopen(next, "w");
    if (!stream || fputs(offset, stream) < 0 || fclose(stream) != 0 || rename(next, file) != 0) {
        guard_fail("%s: can't write", file);
    }
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

static int take(weir_policy_id id, const char *key)
{
    return weir_take(a.w, id, key, strlen(key), 1, NULL) == WEIR_ALLOW;
}

/* Returns how many takes of "k" were admitted; fails by ending. */
static int live_through(const struct scenario *scenario, const char *uri, const char *file)
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
            step(file, scenario->offset);
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

/* ---- the test ---------------------------------------------------------------------------------------------------- */

static double taken(void)
{
    return 100000 - script_client_look(server, "p", "k").total;
}

START_TEST(clocks_step)
{
    char file[128], number[8], out[128];
    int status, allowed;
    snprintf(file, sizeof file, "%s/offset", guard_folder(guard));
    snprintf(out, sizeof out, "%s/allowed", guard_folder(guard));
    snprintf(number, sizeof number, "%d", _i);
    step(file, "+0");
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", WEIR_LIBFAKETIME, 1);
        setenv("FAKETIME_TIMESTAMP_FILE", file, 1);
        setenv("FAKETIME_NO_CACHE", "1", 1);
        setenv("FAKETIME_DONT_FAKE_MONOTONIC", scenarios[_i].monotonic_too ? "0" : "1", 1);
        setenv("CK_FORK", "no", 1);
        unsetenv("CK_TAP_LOG_FILE_NAME");
        dup2(2, 1); /* the test's own output is a protocol */
        execl("/proc/self/exe", "child", number, redis_server_uri(server), file, out, NULL);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(status == 0, "%s: status %x", scenarios[_i].name, status);
    FILE *stream = fopen(out, "r");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_eq(fscanf(stream, "%d", &allowed), 1);
    fclose(stream);
    ck_assert_msg(taken() <= allowed + 0.1 && taken() > allowed - 3, "%d admitted, %f charged", allowed, taken());
}
END_TEST

/* The child is a test program of one case, so that a failed check tells where. */
static char **child_args;

START_TEST(child)
{
    FILE *stream = fopen(child_args[4], "w");
    ck_assert_ptr_nonnull(stream);
    fprintf(stream, "%d\n", live_through(&scenarios[atoi(child_args[1])], child_args[2], child_args[3]));
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
        tcase_add_loop_test(tcase, clocks_step, 0, sizeof scenarios / sizeof scenarios[0]);
        srunner_run_all(runner, CK_ENV);
    }
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
