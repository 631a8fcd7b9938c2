/* SPDX-License-Identifier: MIT */
/*
 * Push the delta, pull the total: each process decides from a bucket of its own with the whole limit. A timer tells
 * Redis what was spent of each key that was asked for since, and takes what is left for its own level; a debt is paid
 * off. All keys of one tick leave in one write. Without Redis it goes on by itself.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/fleet/buckets.h"
#include "benchmarks/fleet/pipeline.h"
#include "benchmarks/fleet/scripts.h"
#include "benchmarks/fleet/strategy.h"
#include "benchmarks/harness.h"

#define ROOM 65536u

/* What was told of a bucket, until Redis has answered. */
struct told {
    struct bucket *bucket;
    double spent; /* since the question left, the answer doesn't know of it: bucket->spent */
};

struct push_pull {
    struct strategy_setup setup;
    struct buckets buckets;
    struct pipeline pipeline;
    struct bucket **list; /* asked for since the last tick */
    struct told *told;    /* those of the tick that is on its way */
    unsigned listed, telling;
    uint64_t interval_ns, tick_ns;
};

static void on_level(void *self, void *asker, int step, const redisReply *reply)
{
    struct push_pull *me = self;
    struct told *told = asker;
    struct bucket *bucket = told->bucket;
    (void)step;
    me->telling--;
    if (!reply || reply->type != REDIS_REPLY_STRING) {
        bucket->spent += told->spent; /* again with the next tick; twice, if Redis had heard it */
        return;
    }
    bucket->level = strtod(reply->str, NULL) - bucket->spent;
    bucket->at_ns = bench_clock_ns();
}

static void *open_push_pull(const struct strategy *strategy, const struct strategy_setup *setup)
{
    struct push_pull *me = bench_alloc(sizeof *me);
    (void)strategy;
    *me = (struct push_pull){.setup = *setup};
    me->interval_ns = strategy_interval_ns(setup);
    /* the processes' timers interleave */
    me->tick_ns = bench_clock_ns() + me->interval_ns * (setup->index + 1) / setup->processes;
    me->list = bench_alloc(ROOM * sizeof me->list[0]);
    me->told = bench_alloc(ROOM * sizeof me->told[0]);
    buckets_open(&me->buckets, setup->limits, setup->limit_count, 1);
    pipeline_open(&me->pipeline, setup, FLEET_SCRIPT_PUSH_PULL, on_level, me);
    return me;
}

static void close_push_pull(void *self)
{
    struct push_pull *me = self;
    pipeline_close(&me->pipeline);
    buckets_close(&me->buckets);
    free(me->list);
    free(me->told);
    free(me);
}

static void decide(void *self, struct strategy_ask *ask)
{
    struct push_pull *me = self;
    struct bucket *bucket = buckets_get(&me->buckets, ask->key, ask->key_len, ask->limit, bench_clock_ns());
    int allowed = bucket->level >= ask->cost;
    if (allowed) {
        bucket->level -= ask->cost;
        bucket->spent += ask->cost;
    }
    if (!bucket->listed) {
        bucket->listed = 1;
        me->list[me->listed++] = bucket;
    }
    strategy_answer(&me->setup, ask, allowed, 0);
}

static void tell(struct push_pull *me, struct bucket *bucket, struct told *told)
{
    char key[64], rate[32], burst[32], spent[32];
    const struct strategy_limit *limit = &me->setup.limits[bucket->limit];
    const char *argv[] = {rate, burst, spent};
    int key_len = snprintf(key, sizeof key, "total:%.*s", (int)bucket->key_len, bucket->key);
    size_t lens[] = {(size_t)snprintf(rate, sizeof rate, "%.17g", strategy_rate(limit) * 1e3),
                     (size_t)snprintf(burst, sizeof burst, "%llu", (unsigned long long)limit->burst),
                     (size_t)snprintf(spent, sizeof spent, "%.0f", bucket->spent)};
    *told = (struct told){bucket, bucket->spent};
    bucket->spent = 0;
    me->telling++;
    if (pipeline_call(&me->pipeline, told, key, (size_t)key_len, 3, argv, lens) != 0) {
        on_level(me, told, 0, NULL);
    }
}

/* A tick that is not answered yet delays the next one: a bucket is told of once at a time. */
static void turn(void *self)
{
    struct push_pull *me = self;
    uint64_t now = bench_clock_ns();
    if (now >= me->tick_ns && me->telling == 0) {
        unsigned n = me->listed;
        me->listed = 0;
        for (unsigned i = 0; i < n; i++) {
            me->list[i]->listed = 0;
            tell(me, me->list[i], &me->told[i]);
        }
        me->tick_ns += (now - me->tick_ns) / me->interval_ns * me->interval_ns + me->interval_ns;
    }
    pipeline_turn(&me->pipeline);
}

static int connected(void *self)
{
    return pipeline_idle(&((struct push_pull *)self)->pipeline);
}

static void wait_for_tick(void *self, struct pollfd *fd, uint64_t *until_ns)
{
    struct push_pull *me = self;
    pipeline_wait(&me->pipeline, fd, until_ns);
    if (me->telling == 0 && me->tick_ns < *until_ns) {
        *until_ns = me->tick_ns;
    }
}

/* Each may spend a burst, and refill, before it hears of the others. */
static double claim(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds)
{
    double interval_ns = (double)(strategy_interval_ns(setup) + strategy_timeout_ns(setup));
    (void)seconds;
    return (setup->processes - 1) * ((double)limit->burst + strategy_rate(limit) * interval_ns);
}

const struct strategy strategy_push_pull = {
    .name = "push-pull",
    .what = "a bucket a process; a timer pushes what it spent and pulls the total",
    .commands = "evalsha",
    .claim = claim,
    .in_memory = 1,
    .open = open_push_pull,
    .decide = decide,
    .turn = turn,
    .wait = wait_for_tick,
    .connected = connected,
    .close = close_push_pull,
};
