/* SPDX-License-Identifier: MIT */
/*
 * Those that make each decision by one EVALSHA: what differs is the script and its arguments. Decisions of many callers
 * leave in one write. Without an answer they admit, as most limiters do.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/fleet/pipeline.h"
#include "benchmarks/fleet/scripts.h"
#include "benchmarks/fleet/strategy.h"
#include "benchmarks/harness.h"

/* The first argument: tokens a microsecond, or the length of a window; the second is the burst, the third the cost. */
enum first { RATE, WINDOW_MS, WINDOW_US };

struct script {
    const char *text, *prefix;
    enum first first;
    int index_in_key, own_time;
};

struct words {
    char first[32], burst[32];
};

struct scripted {
    struct strategy_setup setup;
    const struct script *script;
    struct pipeline pipeline;
    struct words *words; /* of each limit */
};

static void on_reply(void *self, void *asker, int step, const redisReply *reply)
{
    struct scripted *me = self;
    (void)step;
    int sound = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                reply->element[0]->type == REDIS_REPLY_INTEGER;
    strategy_answer(&me->setup, asker, !sound || reply->element[0]->integer == 1, !sound);
}

static void spell(const struct scripted *me, const struct strategy_limit *limit, struct words *words)
{
    switch (me->script->first) {
    case RATE: snprintf(words->first, sizeof words->first, "%.17g", strategy_rate(limit) * 1e3); break;
    case WINDOW_MS: snprintf(words->first, sizeof words->first, "%.0f", ceil(strategy_window_ns(limit) / 1e6)); break;
    case WINDOW_US: snprintf(words->first, sizeof words->first, "%.17g", strategy_window_ns(limit) / 1e3); break;
    }
    snprintf(words->burst, sizeof words->burst, "%llu", (unsigned long long)limit->burst);
}

static void *open_scripted(const struct strategy *strategy, const struct strategy_setup *setup)
{
    struct scripted *me = bench_alloc(sizeof *me);
    me->setup = *setup;
    me->script = strategy->detail;
    me->words = bench_alloc(setup->limit_count * sizeof me->words[0]);
    for (unsigned i = 0; i < setup->limit_count; i++) {
        spell(me, &setup->limits[i], &me->words[i]);
    }
    pipeline_open(&me->pipeline, setup, me->script->text, on_reply, me);
    return me;
}

static void close_scripted(void *self)
{
    struct scripted *me = self;
    pipeline_close(&me->pipeline);
    free(me->words);
    free(me);
}

static void decide(void *self, struct strategy_ask *ask)
{
    struct scripted *me = self;
    const struct words *words = &me->words[ask->limit];
    char key[64], cost[16], now[24];
    const char *argv[] = {words->first, words->burst, cost, now};
    long long index = 0;
    if (me->script->index_in_key || me->script->own_time) {
        index = strategy_wall_us(&me->setup);
        snprintf(now, sizeof now, "%lld", index);
        index /= (long long)(strategy_window_ns(&me->setup.limits[ask->limit]) / 1e3);
    }
    int key_len = snprintf(key, sizeof key, me->script->index_in_key ? "%s:%.*s:%lld" : "%s:%.*s", me->script->prefix,
                           (int)ask->key_len, ask->key, index);
    snprintf(cost, sizeof cost, "%u", ask->cost);
    int argc = me->script->own_time ? 4 : 3;
    size_t lens[] = {strlen(words->first), strlen(words->burst), strlen(cost), argc == 4 ? strlen(now) : 0};
    if (pipeline_call(&me->pipeline, ask, key, (size_t)key_len, argc, argv, lens) != 0) {
        strategy_answer(&me->setup, ask, 1, 1);
    }
}

static void turn(void *self)
{
    pipeline_turn(&((struct scripted *)self)->pipeline);
}

static int connected(void *self)
{
    return pipeline_idle(&((struct scripted *)self)->pipeline);
}

static void wait_for_reply(void *self, struct pollfd *fd, uint64_t *until_ns)
{
    pipeline_wait(&((struct scripted *)self)->pipeline, fd, until_ns);
}

/* The stamp never goes back, so what the clocks differ by is refilled once. */
static double claim_skewed(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds)
{
    (void)setup;
    (void)seconds;
    return fmin((double)limit->burst, strategy_rate(limit) * 4e9);
}

#define SCRIPTED                                                                                                       \
    .commands = "evalsha", .open = open_scripted, .decide = decide, .turn = turn, .wait = wait_for_reply,              \
    .connected = connected, .close = close_scripted

static const struct script window = {FLEET_SCRIPT_FIXED_WINDOW, "window", WINDOW_MS, 1, 0};
static const struct script bucket = {FLEET_SCRIPT_BUCKET, "bucket", RATE, 0, 0};
static const struct script bucket_timed = {FLEET_SCRIPT_BUCKET, "bucket", RATE, 0, 1};
static const struct script sliding = {FLEET_SCRIPT_SLIDING_WINDOW, "sliding", WINDOW_US, 0, 0};
static const struct script gcra = {FLEET_SCRIPT_GCRA, "gcra", RATE, 0, 0};

const struct strategy strategy_window_lua = {
    .name = "fixed-window-lua",
    .what = "INCRBY and PEXPIRE in one script, the window's index in the key",
    .claim = strategy_one_burst,
    .detail = &window,
    SCRIPTED,
};

const struct strategy strategy_bucket_lua = {
    .name = "bucket-lua-hash",
    .what = "a token bucket in one hash, one script, the server's clock",
    .claim = strategy_exact,
    .detail = &bucket,
    SCRIPTED,
};

const struct strategy strategy_bucket_app_clock = {
    .name = "bucket-lua-app-clock",
    .what = "the same with the caller's clock",
    .claim = strategy_exact,
    .detail = &bucket_timed,
    SCRIPTED,
};

const struct strategy strategy_bucket_skewed = {
    .name = "bucket-lua-app-clock-skewed",
    .what = "the same, every other process' clock 2 s ahead, the rest 2 s behind",
    .claim = claim_skewed,
    .skewed = 1,
    .detail = &bucket_timed,
    SCRIPTED,
};

const struct strategy strategy_sliding_window = {
    .name = "sliding-window-counter",
    .what = "two windows, the older one weighted, one script",
    .claim = strategy_exact,
    .detail = &sliding,
    SCRIPTED,
};

const struct strategy strategy_gcra = {
    .name = "gcra-lua",
    .what = "one number a key, one script",
    .claim = strategy_exact,
    .detail = &gcra,
    SCRIPTED,
};
