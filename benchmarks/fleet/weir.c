/* SPDX-License-Identifier: MIT */
/*
 * weir's two shared modes, by the public interface alone. Hybrid has its sync on a thread of its own and decides by
 * weir_take; strict has it on this thread's loop and decides by weir_take_async, whose requests of one turn merge.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <uv.h>

#include <weir/sync.h>
#include <weir/weir.h>

#include "benchmarks/fleet/strategy.h"
#include "benchmarks/harness.h"

#define POLICIES 16
#define MAX_KEYS 65536

struct limiter {
    struct strategy_setup setup;
    struct weir *w;
    struct weir_sync *sync;
    uv_loop_t loop;
    uv_async_t server; /* stands for what else a server has on its loop: weir's handles don't keep it running */
    int strict;
    weir_policy_id policies[POLICIES];
    _Atomic int closed;
};

static void must(int status, const char *what)
{
    if (status < 0) {
        bench_die("%s: %s", what, weir_strerror(status));
    }
}

static void add_policies(struct limiter *me)
{
    if (me->setup.limit_count > POLICIES) {
        bench_die("too many limits");
    }
    for (unsigned i = 0; i < me->setup.limit_count; i++) {
        struct weir_policy policy = WEIR_POLICY_INIT;
        char name[16];
        snprintf(name, sizeof name, "limit%u", i);
        policy.name = name;
        policy.limit = me->setup.limits[i].tokens;
        policy.per_ns = me->setup.limits[i].per_ns;
        policy.burst = me->setup.limits[i].burst;
        policy.mode = me->strict ? WEIR_STRICT : WEIR_HYBRID;
        must(weir_policy_add(me->w, &policy, &me->policies[i]), "weir_policy_add");
    }
}

static int connected(void *self)
{
    struct limiter *me = self;
    struct weir_stats stats = {.size = sizeof stats};
    must(weir_stats_get(me->w, &stats), "weir_stats_get");
    return stats.store_up == 1;
}

static void turn(void *self)
{
    struct limiter *me = self;
    if (me->strict) {
        uv_run(&me->loop, UV_RUN_NOWAIT);
    }
}

static void await_redis(struct limiter *me)
{
    for (int ms = 0; !connected(me); ms++) {
        if (ms == 5000) {
            bench_die("Redis does not answer");
        }
        turn(me);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void *open_limiter(const struct strategy *strategy, const struct strategy_setup *setup)
{
    struct limiter *me = bench_alloc(sizeof *me);
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    char uri[128];
    memset(me, 0, sizeof *me);
    me->setup = *setup;
    me->strict = strategy == &strategy_strict;
    options.max_keys = MAX_KEYS;
    must(weir_open(&me->w, &options), "weir_open");
    add_policies(me);
    snprintf(uri, sizeof uri, "unix://%s", setup->socket);
    sync.uri = uri;
    sync.interval_ms = setup->interval_ms;
    sync.timeout_ms = setup->timeout_ms;
    sync.fleet_hint = setup->processes;
    if (me->strict && (uv_loop_init(&me->loop) != 0 || uv_async_init(&me->loop, &me->server, NULL) != 0)) {
        bench_die("no loop");
    }
    must(weir_sync_start(&me->sync, me->w, me->strict ? &me->loop : NULL, &sync), "weir_sync_start");
    await_redis(me);
    return me;
}

static void on_closed(void *arg, int status, uint64_t unsent)
{
    struct limiter *me = arg;
    (void)status;
    (void)unsent;
    atomic_store_explicit(&me->closed, 1, memory_order_release);
}

static void close_limiter(void *self)
{
    struct limiter *me = self;
    must(weir_sync_close(me->sync, on_closed, me), "weir_sync_close");
    /* acquire: what the thread did before it called back */
    for (int ms = 0; ms < 5000 && !atomic_load_explicit(&me->closed, memory_order_acquire); ms++) {
        turn(me);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (!atomic_load_explicit(&me->closed, memory_order_acquire)) {
        bench_die("a sync does not call back");
    }
    weir_close(me->w);
    if (me->strict) {
        uv_close((uv_handle_t *)&me->server, NULL);
        uv_run(&me->loop, UV_RUN_DEFAULT);
        uv_loop_close(&me->loop);
    }
    free(me);
}

static void decide_hybrid(void *self, struct strategy_ask *ask)
{
    struct limiter *me = self;
    struct weir_result result;
    int status = weir_take(me->w, me->policies[ask->limit], ask->key, ask->key_len, ask->cost, &result);
    must(status, "weir_take");
    strategy_answer(&me->setup, ask, status == WEIR_ALLOW, (result.flags & WEIR_DEGRADED) != 0);
}

static void on_strict(void *arg, int status, const struct weir_result *result)
{
    struct strategy_ask *ask = arg;
    struct limiter *me = ask->strategy;
    must(status, "weir_take_async");
    strategy_answer(&me->setup, ask, status == WEIR_ALLOW, (result->flags & WEIR_DEGRADED) != 0);
}

static void decide_strict(void *self, struct strategy_ask *ask)
{
    struct limiter *me = self;
    struct weir_request request = {
        .policy = me->policies[ask->limit], .key = ask->key, .key_len = ask->key_len, .cost = ask->cost};
    ask->strategy = me;
    must(weir_take_async(me->w, &request, on_strict, ask), "weir_take_async");
}

static void wait_for_loop(void *self, struct pollfd *fd, uint64_t *until_ns)
{
    struct limiter *me = self;
    fd->fd = -1;
    if (me->strict) {
        int ms = uv_backend_timeout(&me->loop);
        uint64_t until = ms < 0 ? UINT64_MAX : bench_clock_ns() + (uint64_t)ms * 1000000;
        *fd = (struct pollfd){.fd = uv_backend_fd(&me->loop), .events = POLLIN};
        *until_ns = until < *until_ns ? until : *until_ns;
    }
}

/* What the library promises: max_overshoot (a tenth of the burst), the rate times a round trip, which is over after the
 * timeout, and a token a process where max_overshoot holds less than one for each. */
static double claim_hybrid(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds)
{
    double lent = (double)limit->burst / 10;
    (void)seconds;
    return lent + strategy_rate(limit) * (double)strategy_timeout_ns(setup) +
           (lent < setup->processes ? setup->processes : 0);
}

const struct strategy strategy_hybrid = {
    .name = "hybrid",
    .what = "weir: slices of one bucket, decided in memory, reconciled by a timer",
    .commands = "evalsha",
    .claim = claim_hybrid,
    .in_memory = 1,
    .settle_ms = 2000,
    .open = open_limiter,
    .decide = decide_hybrid,
    .turn = turn,
    .wait = wait_for_loop,
    .connected = connected,
    .close = close_limiter,
};

const struct strategy strategy_strict = {
    .name = "strict",
    .what = "weir: decided in Redis, the requests of a turn merged into one script",
    .commands = "evalsha",
    .claim = strategy_exact,
    .settle_ms = 2000,
    .open = open_limiter,
    .decide = decide_strict,
    .turn = turn,
    .wait = wait_for_loop,
    .connected = connected,
    .close = close_limiter,
};
