/* SPDX-License-Identifier: MIT */
/*
 * Those that the client decides, step by step, and that break between the steps. Callers don't wait for each other:
 * each step of many of them leaves in one write. Without an answer they admit, as most limiters do.
 *
 * fixed-window-naive: INCRBY, and PEXPIRE by whoever came first. One who dies in between leaves the key for ever.
 * bucket-racy: HMGET, decide, HSET. Two who read before either has written spend the same token.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/fleet/pipeline.h"
#include "benchmarks/fleet/strategy.h"
#include "benchmarks/harness.h"

enum step { COUNT, READ, WRITE, EXPIRE };

struct stepwise {
    struct strategy_setup setup;
    struct pipeline pipeline;
};

static int send_words(struct stepwise *me, void *asker, enum step step, int argc, const char **argv)
{
    return pipeline_send(&me->pipeline, asker, step, argc, argv, NULL);
}

static void close_stepwise(void *self)
{
    struct stepwise *me = self;
    pipeline_close(&me->pipeline);
    free(me);
}

static void *open_stepwise(const struct strategy_setup *setup, pipeline_answer answer)
{
    struct stepwise *me = bench_alloc(sizeof *me);
    me->setup = *setup;
    pipeline_open(&me->pipeline, setup, NULL, answer, me);
    return me;
}

static void turn(void *self)
{
    pipeline_turn(&((struct stepwise *)self)->pipeline);
}

static int connected(void *self)
{
    return pipeline_idle(&((struct stepwise *)self)->pipeline);
}

static void wait_for_reply(void *self, struct pollfd *fd, uint64_t *until_ns)
{
    pipeline_wait(&((struct stepwise *)self)->pipeline, fd, until_ns);
}

/* ---- fixed-window-naive ------------------------------------------------------------------------------------------ */

static void window_key(const struct stepwise *me, const struct strategy_ask *ask, char key[64])
{
    long long window_us = (long long)(strategy_window_ns(&me->setup.limits[ask->limit]) / 1e3);
    snprintf(key, 64, "window:%.*s:%lld", (int)ask->key_len, ask->key,
             (long long)strategy_wall_us(&me->setup) / window_us);
}

static void on_count(void *self, void *asker, int step, const redisReply *reply)
{
    struct stepwise *me = self;
    struct strategy_ask *ask = asker;
    const struct strategy_limit *limit = &me->setup.limits[ask->limit];
    (void)step;
    int sound = reply && reply->type == REDIS_REPLY_INTEGER;
    if (sound && reply->integer == ask->cost) {
        char key[64], ms[24];
        const char *argv[] = {"PEXPIRE", key, ms};
        window_key(me, ask, key);
        snprintf(ms, sizeof ms, "%.0f", ceil(strategy_window_ns(limit) / 1e6));
        send_words(me, NULL, EXPIRE, 3, argv);
    }
    strategy_answer(&me->setup, ask, !sound || reply->integer <= (long long)limit->burst, !sound);
}

static void decide_window(void *self, struct strategy_ask *ask)
{
    struct stepwise *me = self;
    char key[64], cost[16];
    const char *argv[] = {"INCRBY", key, cost};
    window_key(me, ask, key);
    snprintf(cost, sizeof cost, "%u", ask->cost);
    if (send_words(me, ask, COUNT, 3, argv) != 0) {
        strategy_answer(&me->setup, ask, 1, 1);
    }
}

static void *open_window(const struct strategy *strategy, const struct strategy_setup *setup)
{
    (void)strategy;
    return open_stepwise(setup, on_count);
}

const struct strategy strategy_window_naive = {
    .name = "fixed-window-naive",
    .what = "INCRBY, then PEXPIRE by the first; the window's index in the key",
    .commands = "incrby pexpire",
    .claim = strategy_one_burst,
    .open = open_window,
    .decide = decide_window,
    .turn = turn,
    .wait = wait_for_reply,
    .connected = connected,
    .close = close_stepwise,
};

/* ---- bucket-racy ------------------------------------------------------------------------------------------------- */

static void bucket_key(const struct strategy_ask *ask, char key[64])
{
    snprintf(key, 64, "bucket:%.*s", (int)ask->key_len, ask->key);
}

static double number(const redisReply *reply, double otherwise)
{
    return reply->type == REDIS_REPLY_STRING ? strtod(reply->str, NULL) : otherwise;
}

/* The caller waits until the bucket is written: its verdict comes with the answer to the HSET. */
static void write_bucket(struct stepwise *me, struct strategy_ask *ask, double tokens, double now_us)
{
    char key[64], left[32], at[32], ms[32];
    const struct strategy_limit *limit = &me->setup.limits[ask->limit];
    const char *set[] = {"HSET", key, "tokens", left, "at", at}, *expire[] = {"PEXPIRE", key, ms};
    bucket_key(ask, key);
    snprintf(left, sizeof left, "%.17g", tokens);
    snprintf(at, sizeof at, "%.0f", now_us);
    snprintf(ms, sizeof ms, "%.0f", ceil(((double)limit->burst - tokens) / strategy_rate(limit) / 1e6) + 1);
    if (send_words(me, ask, WRITE, 6, set) != 0) {
        strategy_answer(&me->setup, ask, 1, 1);
        return;
    }
    send_words(me, NULL, EXPIRE, 3, expire);
}

static void on_bucket(void *self, void *asker, int step, const redisReply *reply)
{
    struct stepwise *me = self;
    struct strategy_ask *ask = asker;
    const struct strategy_limit *limit = &me->setup.limits[ask->limit];
    if (step == WRITE || !reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) {
        strategy_answer(&me->setup, ask, 1, !reply);
        return;
    }
    double now = (double)strategy_wall_us(&me->setup), at = number(reply->element[1], now);
    double tokens = number(reply->element[0], (double)limit->burst);
    if (now > at) {
        tokens = fmin((double)limit->burst, tokens + (now - at) * strategy_rate(limit) * 1e3);
        at = now;
    }
    if (tokens < ask->cost) {
        strategy_answer(&me->setup, ask, 0, 0);
        return;
    }
    write_bucket(me, ask, tokens - ask->cost, at);
}

static void decide_bucket(void *self, struct strategy_ask *ask)
{
    struct stepwise *me = self;
    char key[64];
    const char *argv[] = {"HMGET", key, "tokens", "at"};
    bucket_key(ask, key);
    if (send_words(me, ask, READ, 4, argv) != 0) {
        strategy_answer(&me->setup, ask, 1, 1);
    }
}

static void *open_bucket(const struct strategy *strategy, const struct strategy_setup *setup)
{
    (void)strategy;
    return open_stepwise(setup, on_bucket);
}

const struct strategy strategy_bucket_racy = {
    .name = "bucket-racy",
    .what = "a token bucket in a hash: HMGET, decide in the client, HSET",
    .commands = "hmget hset pexpire",
    .open = open_bucket,
    .decide = decide_bucket,
    .turn = turn,
    .wait = wait_for_reply,
    .connected = connected,
    .close = close_stepwise,
};
