/* SPDX-License-Identifier: MIT */
/*
 * Whole simulated runs, batch by batch, through the scripts on a real redis-server: what the simulator's Redis answered
 * to the library's own nodes, the scripts must answer too.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "script_client.h"
#include "support/suite.h"
#include "tools/simulate_fleet.h"

#define SECOND UINT64_C(1000000000)
#define CLOSE 1e-9 /* of the larger of 1 and the value */

static struct redis_server *server;
static struct script_client client;

enum { EPOCHS = 64 };

struct replay {
    struct weir__wire_target target;
    struct weir__wire_numbers numbers;
    double epochs[EPOCHS]; /* theirs, by ours */
    uint64_t batches, takes;
    const char *what;
};

static void same(const struct replay *replay, const char *what, double ours, double theirs)
{
    ck_assert_msg(fabs(ours - theirs) <= CLOSE * fmax(1, fabs(theirs)), "%s, batch %llu: %s is %.17g here, %.17g there",
                  replay->what, (unsigned long long)replay->batches, what, ours, theirs);
}

static void on_sync(void *ctx, const struct weir__wire_batch *batch, const struct weir__wire_head *head,
                    const struct weir__wire_grant *grant)
{
    struct replay *replay = ctx;
    struct weir__wire_batch copy = *batch;
    struct weir__wire_head theirs;
    struct weir__wire_grant grants[1] = {{0}};

    copy.target = replay->target;
    copy.nonce = replay->batches + 1;
    copy.epoch = replay->epochs[(int)batch->epoch];
    ck_assert_int_eq(script_client_sync(&client, &copy, &theirs, grants), 0);
    replay->numbers = batch->numbers;
    ck_assert_double_lt(head->epoch, EPOCHS);
    replay->epochs[(int)head->epoch] = theirs.epoch;
    replay->batches++;
    ck_assert_int_eq(head->status, theirs.status);
    same(replay, "now", head->now, theirs.now);
    same(replay, "nodes", head->nodes, theirs.nodes);
    same(replay, "q0", head->q0, theirs.q0);
    same(replay, "pool", head->pool, theirs.pool);
    same(replay, "last", head->last, theirs.last);
    same(replay, "recovering", head->recovering, theirs.recovering);
    if (batch->count == 0)
        return;
    same(replay, "total", grant->total, grants[0].total);
    same(replay, "free", grant->free, grants[0].free);
    ck_assert_int_eq(grant->carried, grants[0].carried);
    if (!weir__wire_is_long(&batch->records[0]))
        return;
    same(replay, "level", grant->level, grants[0].level);
    same(replay, "rate", grant->rate, grants[0].rate);
    same(replay, "cap", grant->cap, grants[0].cap);
    same(replay, "fallback", grant->fallback, grants[0].fallback);
    same(replay, "hold", grant->hold, grants[0].hold);
    ck_assert_int_eq(grant->rich != 0, grants[0].rich != 0);
}

static void on_take(void *ctx, double now, int64_t cost, int admitted, double free)
{
    struct replay *replay = ctx;
    struct weir__wire_key key = {.key = "key", .key_len = 3};
    struct weir__wire_strict_entry entry = {.op = WEIR__WIRE_TAKE, .cost = cost, .count = 1};
    struct weir__wire_strict batch = {.target = replay->target,
                                      .numbers = replay->numbers,
                                      .nonce = 1,
                                      .flags = WEIR__WIRE_OUTAGE_LOCAL,
                                      .keys = &key,
                                      .n_keys = 1,
                                      .entries = &entry,
                                      .n_entries = 1,
                                      .test_now = now};
    struct weir__wire_head head;

    if (replay->batches == 0)
        return; /* the numbers come with the first batch */
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
    replay->takes++;
    ck_assert_msg(entry.admitted == (uint32_t)admitted, "%s, take %llu: %d here, %u there", replay->what,
                  (unsigned long long)replay->takes, admitted, entry.admitted);
    same(replay, "what is free", free, entry.free);
}

static void on_lose(void *ctx)
{
    const struct replay *replay = ctx;

    for (const char *which = "abn"; *which; which++)
        script_client_do(&client, "DEL", &replay->target, *which, NULL, NULL);
}

/* Ten nodes of which much is asked for 4 s. */
static struct simulate_options plain(enum simulate_workload workload)
{
    return (struct simulate_options){.strategy = SIMULATE_HYBRID,
                                     .workload = workload,
                                     .nodes = 10,
                                     .limit = 1000,
                                     .per_ns = SECOND,
                                     .burst = 1000,
                                     .max_overshoot = 100,
                                     .load = 3,
                                     .interval_ns = SECOND / 5,
                                     .rtt_ns = SECOND / 1000,
                                     .timeout_ns = SECOND / 20,
                                     .run_ns = 4 * SECOND,
                                     .seed = 1,
                                     .cost = 1,
                                     .stall_ns = SECOND};
}

static void replay_run(struct simulate_options *o, const char *what)
{
    static struct simulate_result result;
    struct replay replay = {
        .target = {.prefix = "replay", .policy = "p", .shards = 1}, .what = what, .batches = 0, .takes = 0};
    struct simulate_watch watch = {.ctx = &replay, .sync = on_sync, .take = on_take, .lose = on_lose};

    on_lose(&replay); /* another run's */
    o->watch = &watch;
    ck_assert_int_eq(simulate_run(o, &result), 0);
    o->watch = NULL;
    ck_assert_uint_gt(replay.batches, 50);
    ck_assert(o->async == 0 || replay.takes > 20);
}

START_TEST(every_workload)
{
    struct simulate_options o = plain((enum simulate_workload)_i);
    replay_run(&o, simulate_workload_name(o.workload));
}
END_TEST

START_TEST(takes_that_ask_redis)
{
    struct simulate_options o = plain(SIMULATE_EVEN);
    o.async = 0.5;
    o.cost = 40;
    replay_run(&o, "asking, costs to 40");
}
END_TEST

/* Debts past their floor, tombstones, shares that nobody can have. */
START_TEST(small_bursts_and_misfortunes)
{
    struct simulate_options o = plain(SIMULATE_ONOFF);
    o.seed = (uint64_t)_i + 1;
    o.limit = 20;
    o.burst = 1 + (uint64_t)_i;
    o.max_overshoot = (uint64_t)_i % 3;
    o.nodes = 25;
    o.load = 20;
    o.loss = 0.1;
    o.crash = 0.3;
    o.stall = 0.3;
    o.run_ns = 6 * SECOND;
    replay_run(&o, "small bursts");
}
END_TEST

/* Redis comes back empty. */
START_TEST(state_is_lost)
{
    struct simulate_options o = plain((enum simulate_workload)_i);
    o.lose_ns = 2 * SECOND;
    o.async = 0.5;
    o.cost = 40;
    o.load = 8;
    replay_run(&o, "state is lost");
    o.async = 0;
    o.cost = 1;
    o.loss = 0.1;
    o.load = 0.5;
    o.seed = 3;
    replay_run(&o, "state is lost, and answers");
}
END_TEST

/* Longer than two generations, so that they flip and promises follow. */
START_TEST(over_generations)
{
    struct simulate_options o = plain(SIMULATE_JOIN);
    o.limit = 2000;
    o.load = 0.3;
    o.run_ns = 45 * SECOND;
    o.on_outage = WEIR_OUTAGE_CLOSED;
    o.async = 0;
    replay_run(&o, "generations");
}
END_TEST

static void setup(void)
{
    server = redis_server_open(NULL);
    script_client_open(&client, server);
    script_client_twice(&client);
}

static void teardown(void)
{
    script_client_close(&client);
    redis_server_close(server);
}

int main(void)
{
    Suite *suite = suite_create("replay");
    TCase *tcase = tcase_create("replay");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, every_workload, 0, SIMULATE_WORKLOADS);
    tcase_add_test(tcase, takes_that_ask_redis);
    tcase_add_loop_test(tcase, small_bursts_and_misfortunes, 0, 5);
    tcase_add_loop_test(tcase, state_is_lost, 0, SIMULATE_WORKLOADS);
    tcase_add_test(tcase, over_generations);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
