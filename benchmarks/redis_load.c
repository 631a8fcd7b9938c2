/* SPDX-License-Identifier: MIT */
/* A limiter and its sync on a loop that the benchmark turns itself. */
#include "redis_load.h"

#include <stdlib.h>

#include <uv.h>

#include <weir/sync.h>

#include "harness.h"
#include "limiter.h"

double bench_cpu(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void on_beat(uv_timer_t *timer)
{
    (void)timer; /* keeps the loop alive, whose other handles don't */
}

static void on_done(void *arg, int status, uint64_t unsent)
{
    if (status != 0 || unsent != 0) {
        bench_die("%s, %llu tokens unsent", weir_strerror(status), (unsigned long long)unsent);
    }
    *(int *)arg = 1;
}

static void turn_until(struct bench_node *node, const int *done, const char *doing, void (*between)(void *arg),
                       void *arg)
{
    uint64_t end = bench_clock_ns() + UINT64_C(70000000000);
    while (*done == 0 && bench_clock_ns() < end) {
        uv_run(node->loop, UV_RUN_ONCE);
        if (between != NULL) {
            between(arg);
        }
    }
    if (*done != 1) {
        bench_die("%s did not succeed", doing);
    }
}

static uv_loop_t *make_loop(void)
{
    uv_loop_t *loop = bench_alloc(sizeof *loop);
    uv_timer_t *beat = bench_alloc(sizeof *beat);
    if (uv_loop_init(loop) != 0 || uv_timer_init(loop, beat) != 0 || uv_timer_start(beat, on_beat, 1, 1) != 0) {
        bench_die("no loop");
    }
    loop->data = beat;
    return loop;
}

static void end_loop(uv_loop_t *loop)
{
    uv_timer_t *beat = loop->data;
    uv_close((uv_handle_t *)beat, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    if (uv_loop_close(loop) != 0) {
        bench_die("a loop has handles left");
    }
    free(beat);
    free(loop);
}

static int store_up(struct weir *w)
{
    struct weir_stats stats = {.size = sizeof stats};
    limiter_check(weir_stats_get(w, &stats), "weir_stats_get");
    return stats.store_up;
}

void bench_node_open(struct bench_node *node, const char *uri, struct uv_loop_s *loop,
                     const struct bench_node_options *options)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    int up = 0;
    node->own_loop = loop == NULL;
    node->loop = loop != NULL ? loop : make_loop();
    node->w = limiter_open(options->max_keys != 0 ? options->max_keys : 1024);
    policy.name = "p";
    policy.mode = options->mode;
    policy.limit = options->limit;
    policy.per_ns = UINT64_C(1000000000);
    policy.burst = options->burst;
    limiter_check(weir_policy_add(node->w, &policy, &node->policy), "weir_policy_add");
    sync.uri = uri;
    sync.prefix = options->prefix;
    sync.batch_max = options->batch_max;
    sync.window = options->window;
    sync.shards = options->shards;
    sync.timeout_ms = 10000; /* a machine that others use too is no outage */
    sync.drain_ms = 60000;
    limiter_check(weir_sync_start(&node->sync, node->w, node->loop, &sync), "weir_sync_start");
    for (uint64_t end = bench_clock_ns() + UINT64_C(10000000000); !up && bench_clock_ns() < end;) {
        uv_run(node->loop, UV_RUN_ONCE);
        up = store_up(node->w);
    }
    if (!up) {
        bench_die("no connection to redis-server");
    }
}

void bench_node_flush(struct bench_node *node, void (*between)(void *arg), void *arg)
{
    int done = 0;
    limiter_check(weir_sync_flush(node->sync, on_done, &done), "weir_sync_flush");
    turn_until(node, &done, "a flush", between, arg);
}

void bench_node_close(struct bench_node *node)
{
    int done = 0;
    limiter_check(weir_sync_close(node->sync, on_done, &done), "weir_sync_close");
    turn_until(node, &done, "closing", NULL, NULL);
    if (node->own_loop) {
        end_loop(node->loop);
    }
    weir_close(node->w);
}
