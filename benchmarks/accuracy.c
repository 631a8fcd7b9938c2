/* SPDX-License-Identifier: MIT */
/*
 * Rows A1 to A10: how far over its limit a fleet of ten processes goes, and how much of it it uses, exact from the time
 * stamp of every request. Each group of rows has a redis-server of its own on a unix socket in a temporary folder.
 */
#include "rows.h"

#ifdef WEIR_BENCH_SYNC

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "accuracy_fleet.h"
#include "accuracy_proxy.h"
#include "tools/private_redis.h"

#define SECOND UINT64_C(1000000000)
#define LOSS 0.05
#define LATE_MS 70 /* nobody waits for longer than 50 */

/* 1000/s, burst 1000, max_overshoot 100. */
static struct accuracy_fleet plain(const char *name, enum accuracy_demand demand, double load, const char *socket)
{
    return (struct accuracy_fleet){.name = name,
                                   .limit = 1000,
                                   .per_ns = SECOND,
                                   .burst = 1000,
                                   .max_overshoot = 100,
                                   .demand = demand,
                                   .load = load,
                                   .socket = socket};
}

/* 5 of burst 5; 5 a minute at twelve times the speed. */
static struct accuracy_fleet low(const char *name, double load, int async, const char *socket)
{
    return (struct accuracy_fleet){.name = name,
                                   .limit = 5,
                                   .per_ns = SECOND,
                                   .burst = 5,
                                   .demand = ACCURACY_EVEN,
                                   .load = load,
                                   .async = async,
                                   .socket = socket};
}

static double used(const struct accuracy_result *r)
{
    return r->perfect > 0 ? r->admitted / r->perfect : 1;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void detail(struct bench_row *row, const struct accuracy_result *r)
{
    bench_detail(row, "overshoot_tokens", r->overshoot);
    bench_detail(row, "asked", r->asked);
    bench_detail(row, "admitted", r->admitted);
    bench_detail(row, "perfect", r->perfect);
    bench_detail(row, "calls_per_second_and_node", r->calls_per_node);
    bench_detail(row, "degraded", (double)r->degraded);
    bench_detail(row, "sync_errors", (double)r->sync_errors);
}

static void report(const struct bench_options *options, const char *id, const char *what, double value, double goal,
                   enum bench_goal kind, const struct accuracy_result *r)
{
    struct bench_row row = {.id = id, .what = what, .value = value, .goal = goal, .kind = kind};
    if (r->failed > 0) {
        bench_die("%s: %llu takes failed", id, (unsigned long long)r->failed);
    }
    detail(&row, r);
    bench_report(options, &row);
}

/* The worst of n fleets, in overshoot and in utilisation. */
static void report_pair(const struct bench_options *options, const char *id, const char *const what[2],
                        const struct accuracy_result *results, unsigned n, double burst, const double goals[2])
{
    const struct accuracy_result *over = results, *under = results;
    char a[8], b[8];
    for (unsigned i = 1; i < n; i++) {
        over = results[i].overshoot > over->overshoot ? &results[i] : over;
        under = used(&results[i]) < used(under) ? &results[i] : under;
    }
    snprintf(a, sizeof a, "%sa", id);
    snprintf(b, sizeof b, "%sb", id);
    report(options, a, what[0], over->overshoot / burst, goals[0], BENCH_AT_MOST, over);
    report(options, b, what[1], used(under), goals[1], BENCH_AT_LEAST, under);
}

/* ---- groups: what runs at the same time -------------------------------------------------------------------------- */

static void below_the_limit(const struct bench_options *options, struct private_redis *redis)
{
    static const char *const what[] = {"0.95 x: even, skewed, moving: overshoot / burst", "... utilisation"};
    const struct accuracy_fleet fleets[] = {plain("even", ACCURACY_EVEN, 0.95, redis->socket),
                                            plain("skewed", ACCURACY_SKEWED, 0.95, redis->socket),
                                            plain("moving", ACCURACY_MOVING, 0.95, redis->socket)};
    struct accuracy_result results[3];
    accuracy_run(fleets, results, 3, 12, NULL, NULL);
    report_pair(options, "A1", what, results, 3, 1000, (double[]){0.001, 0.999});
}

/* A minute: what is saturated, and low limits beside it. */
static void minute(const struct bench_options *options, struct private_redis *redis, struct accuracy_result *twice,
                   struct accuracy_result slow[3])
{
    struct accuracy_fleet fleets[] = {plain("twice", ACCURACY_EVEN, 2, redis->socket),
                                      low("low-async", 100, 1, redis->socket), low("low-below", 0.9, 0, redis->socket),
                                      low("low-above", 100, 0, redis->socket)};
    struct accuracy_result results[4];
    fleets[1].timeout_ms = 500; /* that a process waits for a CPU is no outage */
    fleets[0].shards = 1;       /* A7 counts what a hot key costs, not that a node shows up in each shard every 25 s */
    accuracy_run(fleets, results, 4, options->quick ? 15 : 60, NULL, NULL);
    *twice = results[0];
    memcpy(slow, results + 1, 3 * sizeof *slow);
}

static void ten_times(const struct bench_options *options, struct private_redis *redis,
                      const struct accuracy_result *twice)
{
    static const char *const what[] = {"2 x and 10 x, even: overshoot / burst", "... utilisation"};
    const struct accuracy_fleet fleet = plain("ten", ACCURACY_EVEN, 10, redis->socket);
    struct accuracy_result results[2] = {*twice};
    accuracy_run(&fleet, &results[1], 1, 10, NULL, NULL);
    report_pair(options, "A2", what, results, 2, 1000, (double[]){0.11, 0.995});
}

static void flash(const struct bench_options *options, struct private_redis *redis)
{
    static const char *const what[] = {"100 x on a cold key: overshoot / burst", "... utilisation"};
    const struct accuracy_fleet fleet = plain("flash", ACCURACY_EVEN, 100, redis->socket);
    struct accuracy_result result;
    accuracy_run(&fleet, &result, 1, 5, NULL, NULL);
    report_pair(options, "A3", what, &result, 1, 1000, (double[]){0.11, 0.99});
}

static void low_async(const struct bench_options *options, const struct accuracy_result *r)
{
    static const char *const what[] = {"5 of burst 5, asked 100 x, async: overshoot / burst", "... utilisation"};
    report_pair(options, "A4", what, r, 1, 5, (double[]){0.02, 0.99});
}

static void low_plain(const struct bench_options *options, const struct accuracy_result r[2])
{
    static const char *const what[] = {"5 of burst 5, 0.9 x and 100 x, plain take: overshoot, tokens",
                                       "... utilisation"};
    report_pair(options, "A10", what, r, 2, 1, (double[]){10.5, 0.95});
}

struct outage {
    struct private_redis *redis;
    int stage;
};

static void on_time(void *arg, double t)
{
    struct outage *outage = arg;
    if (outage->stage == 0 && t >= 3) {
        private_redis_freeze(outage->redis);
        outage->stage = 1;
    } else if (outage->stage == 1 && t >= 8) {
        private_redis_thaw(outage->redis);
        outage->stage = 2;
    }
}

static void outage(const struct bench_options *options, struct private_redis *redis)
{
    static const char *const what[] = {"Redis stands still for 5 s of 14, 2 x, local: overshoot / burst",
                                       "... utilisation"};
    const struct accuracy_fleet fleet = plain("outage", ACCURACY_EVEN, 2, redis->socket);
    struct outage state = {redis, 0};
    struct accuracy_result result;
    accuracy_run(&fleet, &result, 1, 14, on_time, &state);
    if (result.degraded == 0) {
        bench_die("A5: no take was answered by the outage policy");
    }
    report_pair(options, "A5", what, &result, 1, 1000, (double[]){0.11, 0.97});
}

/* c: with next to no refill every token counts: what Redis holds is what was admitted, whatever was lost and
 * repeated. */
static void losses(const struct bench_options *options, struct private_redis *redis)
{
    static const char *const what[] = {"5 % of batches and 5 % of answers lost, 2 x: overshoot / burst",
                                       "... utilisation"};
    struct accuracy_proxy proxy;
    accuracy_proxy_open(&proxy, redis->socket, LOSS, LATE_MS);
    struct accuracy_fleet fleets[] = {plain("lossy", ACCURACY_EVEN, 2, proxy.socket),
                                      plain("exact", ACCURACY_EVEN, 0, proxy.socket)};
    fleets[1].limit = 1;
    fleets[1].per_ns = 400 * SECOND;
    fleets[1].burst = 4000;
    fleets[1].max_overshoot = 400;
    fleets[1].asked_s = 250;
    fleets[1].interval_ms = 1000; /* a slice lives for 1.6 s: none expires for a few losses in a row */
    struct accuracy_result results[2];
    accuracy_run(fleets, results, 2, 14, NULL, NULL);
    uint64_t lost[] = {atomic_load_explicit(&proxy.lost[0], memory_order_relaxed),
                       atomic_load_explicit(&proxy.lost[1], memory_order_relaxed)};
    accuracy_proxy_close(&proxy);
    if (lost[0] < 5 || lost[1] < 5) {
        bench_die("A6: only %llu batches and %llu answers were lost", (unsigned long long)lost[0],
                  (unsigned long long)lost[1]);
    }
    report_pair(options, "A6", what, results, 1, 1000, (double[]){0.16, 0.99});
    struct bench_row row = {.id = "A6c", .what = "... Redis' total less what was admitted, tokens", .goal = 0};
    row.value = fabs((double)fleets[1].burst - results[1].remaining - results[1].admitted);
    if (results[1].remaining < 0) {
        row.skipped = "the key could not be read afterwards";
    }
    detail(&row, &results[1]);
    bench_detail(&row, "in_redis", (double)fleets[1].burst - results[1].remaining);
    bench_detail(&row, "batches_lost", (double)lost[0]);
    bench_detail(&row, "answers_lost", (double)lost[1]);
    bench_detail(&row, "unsent", (double)results[1].unsent);
    bench_report(options, &row);
}

static void calls(const struct bench_options *options, const struct accuracy_result *twice)
{
    report(options, "A7", "calls to Redis a second, node and hot key, 2 x", twice->calls_per_node, 8, BENCH_AT_MOST,
           twice);
}

static void long_run(const struct bench_options *options, const struct accuracy_result *twice)
{
    report(options, "A8", "long-run rate error, saturated", fabs(twice->saturated_error), 0.001, BENCH_AT_MOST, twice);
}

static void cold(const struct bench_options *options, struct private_redis *redis)
{
    struct accuracy_fleet fleets[] = {plain("cold", ACCURACY_COLD, 0, redis->socket),
                                      plain("cold-async", ACCURACY_COLD, 0, redis->socket)};
    struct accuracy_result results[2];
    fleets[0].asked_s = fleets[1].asked_s = 800;
    fleets[1].async = 1;
    accuracy_run(fleets, results, 2, 5, NULL, NULL);
    report(options, "A9a", "8 takes at once of a cold key, nobody else: share denied",
           1 - results[0].admitted / results[0].asked, 0.13, BENCH_AT_MOST, &results[0]);
    report(options, "A9b", "... async", 1 - results[1].admitted / results[1].asked, 0, BENCH_AT_MOST, &results[1]);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void open_redis(struct private_redis *redis)
{
    if (private_redis_open(redis) != 0) {
        bench_die("%s", redis->error);
    }
    if (private_redis_start(redis) != 0 || private_redis_wait(redis, 10000) != 0) {
        char error[sizeof redis->error];
        memcpy(error, redis->error, sizeof error);
        private_redis_close(redis);
        bench_die("%s", error);
    }
}

static void with_redis(const struct bench_options *options,
                       void (*group)(const struct bench_options *options, struct private_redis *redis))
{
    struct private_redis redis;
    open_redis(&redis);
    group(options, &redis);
    private_redis_close(&redis);
}

/* The rows that share the minute, in the order of their ids; A3 comes between. */
static void in_a_minute(const struct bench_options *options, struct private_redis *redis)
{
    struct accuracy_result twice, slow[3];
    minute(options, redis, &twice, slow);
    if (bench_wanted(options, "A2")) {
        ten_times(options, redis, &twice);
    }
    low_async(options, &slow[0]);
    calls(options, &twice);
    long_run(options, &twice);
    low_plain(options, &slow[1]);
}

void accuracy_rows(const struct bench_options *options)
{
    static const struct {
        const char *ids[6];
        void (*run)(const struct bench_options *options, struct private_redis *redis);
    } groups[] = {
        {{"A1"}, below_the_limit}, {{"A2", "A4", "A7", "A8", "A10"}, in_a_minute},
        {{"A3"}, flash},           {{"A5"}, outage},
        {{"A6"}, losses},          {{"A9"}, cold},
    };
    bench_unpin();
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        int wanted = 0;
        for (size_t j = 0; groups[i].ids[j]; j++) {
            wanted |= bench_wanted(options, groups[i].ids[j]);
        }
        if (wanted) {
            with_redis(options, groups[i].run);
        }
    }
}

#else

#include <stddef.h>

void accuracy_rows(const struct bench_options *options)
{
    static const char *const ids[] = {"A1a", "A1b", "A2a", "A2b", "A3a", "A3b", "A4a", "A4b",  "A5a", "A5b",
                                      "A6a", "A6b", "A6c", "A7",  "A8",  "A9a", "A9b", "A10a", "A10b"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        struct bench_row row = {.id = ids[i], .what = "accuracy", .skipped = "built without libweir-sync"};
        bench_report(options, &row);
    }
}

#endif
