/* SPDX-License-Identifier: MIT */
/*
 * Reconciliation of many: nodes, dirty keys and slices, on a loop that the test runs itself.
 */
#include <check.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>

#include <uv.h>

#include "script_client.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a;

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
    server = NULL;
}

/* T of a key of policy "p". */
static double total_of(const char *key)
{
    return script_client_total(server, "p", key);
}

static double seconds(void)
{
    return (double)uv_hrtime() / 1e9;
}

struct heart {
    uv_timer_t timer;
    double last, worst; /* CPU seconds of the loop's thread between two beats */
};

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void on_beat(uv_timer_t *timer)
{
    struct heart *heart = timer->data;
    double now = cpu_seconds();

    if (now - heart->last > heart->worst)
        heart->worst = now - heart->last;
    heart->last = now;
}

static void on_set(void *arg, int status, uint64_t unsent)
{
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(unsent, 0);
    ++*(int *)arg;
}

static void on_nothing(uv_timer_t *timer)
{
    (void)timer;
}

static void on_any_end(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    ++*(int *)arg;
}

enum { FIFTY = 50 };

static unsigned long all_syncs(struct node nodes[FIFTY])
{
    unsigned long least = ULONG_MAX;

    for (int i = 0; i < FIFTY; i++) {
        unsigned long syncs = (unsigned long)node_stats(&nodes[i]).syncs;

        least = syncs < least ? syncs : least;
    }
    return least;
}

/* Takes of each node in turn; how many are allowed. */
static int take_of_each(struct node nodes[FIFTY], const char *key, int times)
{
    int allowed = 0;

    for (int n = 0; n < times; n++)
        for (int i = 0; i < FIFTY; i++)
            allowed += node_take(&nodes[i], key, NULL) == WEIR_ALLOW;
    return allowed;
}

/* Whoever says of a fleet that it is one gets what the fleet can bear: the first answers tell how many there are. All
 * of them are on one loop, the test's. */
START_TEST(fifty_nodes_with_a_hint_of_one)
{
    static struct node nodes[FIFTY];
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);
    int allowed, ended = 0, flushed = 0;
    struct weir_result result = {0};
    uv_timer_t beat;
    uv_loop_t loop;

    options.uri = redis_server_uri(server);
    options.fleet_hint = 1;
    options.shards = 1;
    options.timeout_ms = 500; /* fifty nodes on a busy machine are no outage */
    options.drain_ms = NODE_WAIT_MS;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &beat);
    uv_timer_start(&beat, on_nothing, 1, 1);
    for (int i = 0; i < FIFTY; i++) {
        node_open(&nodes[i], &policy);
        ck_assert_int_eq(weir_sync_start(&nodes[i].sync, nodes[i].w, &loop, &options), 0);
    }
    while (all_syncs(nodes) < 3)
        uv_run(&loop, UV_RUN_ONCE);
    allowed = take_of_each(nodes, "k", 30);
    for (int i = 0; i < FIFTY; i++)
        ck_assert_int_eq(weir_sync_flush(nodes[i].sync, on_set, &flushed), 0);
    while (flushed < FIFTY)
        uv_run(&loop, UV_RUN_ONCE);
    allowed += take_of_each(nodes, "k", 60);
    ck_assert_msg(allowed <= 1000 + 100 + FIFTY, "%d allowed", allowed);
    /* nobody runs the loop, and nobody has heard of this key: all of them together have one bucket of it */
    for (int i = 0; i < FIFTY; i++)
        for (result.flags = 0; !(result.flags & WEIR_DEGRADED); node_pause(5))
            node_take(&nodes[i], "another", &result);
    allowed = take_of_each(nodes, "unheard of", 100);
    ck_assert_msg(allowed >= 900 && allowed <= 1000, "%d allowed", allowed);
    for (int i = 0; i < FIFTY; i++)
        ck_assert_int_eq(weir_sync_close(nodes[i].sync, on_any_end, &ended), 0);
    while (ended < FIFTY)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&beat, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    for (int i = 0; i < FIFTY; i++)
        weir_close(nodes[i].w);
}
END_TEST

/* Takes of 20,000 keys that nobody asked for before, and a flush of them. */
static void report_all(uv_loop_t *loop, struct heart *heart, int round)
{
    int flushed = 0;
    char key[32];

    for (int i = 0; i < 20000; i++) {
        int length = snprintf(key, sizeof key, "user:%d.%d", round, i);

        ck_assert_int_eq(weir_take(a.w, a.id, key, (size_t)length, 1, NULL), WEIR_ALLOW);
    }
    heart->last = cpu_seconds();
    heart->worst = 0;
    ck_assert_int_eq(weir_sync_flush(a.sync, on_set, &flushed), 0);
    while (!flushed)
        uv_run(loop, UV_RUN_ONCE);
}

/* Case E2. What the loop's thread computes between two beats is measured, not what a busy machine makes of it. */
START_TEST(twenty_thousand_dirty_keys_do_not_hold_the_loop)
{
    struct weir_policy policy = node_policy(3, NODE_DAY, 3);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct heart heart = {.last = cpu_seconds()};
    int rounds, closed = 0;
    uv_loop_t loop;

    options.uri = redis_server_uri(server);
    options.timeout_ms = 5000;
    options.drain_ms = 20000;
    node_open(&a, &policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &heart.timer);
    heart.timer.data = &heart;
    uv_timer_start(&heart.timer, on_beat, 0, 1);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
    while (node_stats(&a).syncs < 64)
        uv_run(&loop, UV_RUN_ONCE);
    /* a machine that counts its own pauses as ours does not do so each time */
    for (rounds = 0; rounds < 3 && (!rounds || heart.worst >= 0.05); rounds++)
        report_all(&loop, &heart, rounds);
    ck_assert_msg(heart.worst < 0.05, "the loop was held for %.3f s", heart.worst);
    ck_assert_double_eq_tol(total_of("user:0.0"), 2, 0.01);
    ck_assert_double_eq_tol(total_of("user:0.7777"), 2, 0.01);
    ck_assert_double_eq_tol(total_of("user:0.19999"), 2, 0.01);
    uv_close((uv_handle_t *)&heart.timer, NULL);
    ck_assert_int_eq(weir_sync_close(a.sync, on_set, &closed), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    weir_close(a.w);
}
END_TEST

static void on_end(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    *(int *)arg = 1;
}

/* More keys hold slices than reports may be on their way, and each is due again before Redis has heard of the last: one
 * that was asked for once, and holds none, has its turn all the same. */
START_TEST(slices_do_not_keep_others_from_reporting)
{
    enum { HELD = 40000, ASK_MS = 100, OUT_AT_ONCE = 32768 };
    struct weir_policy policy = node_policy(1000, NODE_SECOND, 2000);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    double begin, asked = 0, pause = 0, quiet = 0, told = 0;
    uint64_t reports = 0;
    int closed = 0;
    uv_loop_t loop;
    uv_timer_t beat;
    struct heart heart = {.last = cpu_seconds()};
    char key[32];

    options.uri = redis_server_uri(server);
    options.timeout_ms = 20000; /* a slow build's turn of takes is no outage */
    options.interval_ms = 100;
    options.drain_ms = 1;
    node_open(&a, &policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &beat);
    beat.data = &heart;
    uv_timer_start(&beat, on_beat, 0, 1);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
    while (node_stats(&a).syncs < 64)
        uv_run(&loop, UV_RUN_ONCE);
    begin = seconds();
    while (!told && seconds() < begin + 90 && (!quiet || node_stats(&a).reports < reports + 4 * OUT_AT_ONCE)) {
        if (seconds() > asked + pause) {
            double from = seconds();

            for (int i = 0; i < HELD; i++) {
                int length = snprintf(key, sizeof key, "hot:%d", i);

                for (int j = 0; j < 20; j++)
                    weir_take(a.w, a.id, key, (size_t)length, 1, NULL);
            }
            asked = seconds();
            /* the loop of a slow build has its time, too */
            pause = asked - from > ASK_MS / 1e3 ? asked - from : ASK_MS / 1e3;
        }
        uv_run(&loop, UV_RUN_ONCE);
        if (!quiet && seconds() > begin + 2) {
            ck_assert_int_eq(node_take(&a, "quiet", NULL), WEIR_ALLOW);
            quiet = seconds();
            reports = node_stats(&a).reports;
        }
        if (quiet && script_client_look(server, "p", "quiet").exists)
            told = seconds() - quiet;
    }
    reports = node_stats(&a).reports - reports;
    ck_assert_msg(told > 0 && reports <= 2 * OUT_AT_ONCE, "told after %.3f s (0: never) and %llu other reports", told,
                  (unsigned long long)reports);
    uv_close((uv_handle_t *)&beat, NULL);
    ck_assert_int_eq(weir_sync_close(a.sync, on_end, &closed), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    weir_close(a.w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sync_many");
    TCase *tcase = tcase_create("many");

    tcase_set_timeout(tcase, 120); /* a sanitizer takes its time over 40,000 slices */
    tcase_add_checked_fixture(tcase, open_server, close_server);
    tcase_add_test(tcase, fifty_nodes_with_a_hint_of_one);
    tcase_add_test(tcase, twenty_thousand_dirty_keys_do_not_hold_the_loop);
    tcase_add_test(tcase, slices_do_not_keep_others_from_reporting);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
