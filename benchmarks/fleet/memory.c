/* SPDX-License-Identifier: MIT */
/*
 * The two that ask nobody: a token bucket a process, with the whole limit or with its part of it.
 */
#include <stdlib.h>

#include "benchmarks/fleet/buckets.h"
#include "benchmarks/fleet/strategy.h"
#include "benchmarks/harness.h"

struct memory {
    struct strategy_setup setup;
    struct buckets buckets;
};

static void *open_memory(const struct strategy *strategy, const struct strategy_setup *setup)
{
    struct memory *me = bench_alloc(sizeof *me);
    me->setup = *setup;
    int split = strategy == &strategy_static_split;
    buckets_open(&me->buckets, setup->limits, setup->limit_count, split ? 1.0 / setup->processes : 1);
    return me;
}

static void close_memory(void *self)
{
    struct memory *me = self;
    buckets_close(&me->buckets);
    free(me);
}

static void decide(void *self, struct strategy_ask *ask)
{
    struct memory *me = self;
    struct bucket *bucket = buckets_get(&me->buckets, ask->key, ask->key_len, ask->limit, bench_clock_ns());
    int allowed = bucket->level >= ask->cost;
    bucket->level -= allowed ? ask->cost : 0;
    strategy_answer(&me->setup, ask, allowed, 0);
}

static void turn(void *self)
{
    (void)self;
}

static void wait_for_nothing(void *self, struct pollfd *fd, uint64_t *until_ns)
{
    (void)self;
    (void)until_ns;
    fd->fd = -1;
}

static int always(void *self)
{
    (void)self;
    return 1;
}

/* Each process is right, and there are so many of them. */
static double claim_local(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds)
{
    return (setup->processes - 1) * ((double)limit->burst + strategy_rate(limit) * seconds * 1e9);
}

const struct strategy strategy_local = {
    .name = "local",
    .what = "a token bucket a process, each with the whole limit",
    .claim = claim_local,
    .in_memory = 1,
    .open = open_memory,
    .decide = decide,
    .turn = turn,
    .wait = wait_for_nothing,
    .connected = always,
    .close = close_memory,
};

const struct strategy strategy_static_split = {
    .name = "static-split",
    .what = "a token bucket a process, each with limit / N",
    .claim = strategy_exact,
    .in_memory = 1,
    .open = open_memory,
    .decide = decide,
    .turn = turn,
    .wait = wait_for_nothing,
    .connected = always,
    .close = close_memory,
};
