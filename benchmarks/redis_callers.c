/* SPDX-License-Identifier: MIT */
/* Callers on the benchmark's own loop, whose CPU is theirs alone. */
#include "redis_callers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include <weir/sync.h>

#include "harness.h"
#include "limiter.h"

/* ---- latencies --------------------------------------------------------------------------------------------------- */

static void note(struct histogram *h, uint64_t ticks)
{
    unsigned shift = ticks >= 2 * HISTOGRAM_STEPS ? 55u - (unsigned)__builtin_clzll(ticks) : 0;
    h->counts[shift * HISTOGRAM_STEPS + (ticks >> shift)]++;
    h->total++;
}

double histogram_us(const struct histogram *h, double q)
{
    uint64_t rank = (uint64_t)(q * (double)h->total), seen = 0;
    size_t i = 0;
    while (i + 1 < sizeof h->counts / sizeof h->counts[0] && seen + h->counts[i] <= rank) {
        seen += h->counts[i++];
    }
    unsigned shift = i < 2 * HISTOGRAM_STEPS ? 0 : (unsigned)(i / HISTOGRAM_STEPS) - 1;
    return bench_ns((double)((i - shift * HISTOGRAM_STEPS) << shift)) / 1e3;
}

void histogram_move(struct histogram *to, struct histogram *from)
{
    for (size_t i = 0; i < sizeof to->counts / sizeof to->counts[0]; i++) {
        to->counts[i] += from->counts[i];
    }
    to->total += from->total;
    memset(from, 0, sizeof *from);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static void on_answer(void *arg, int status, const struct weir_result *result);

static void ask(struct caller *caller, uint64_t due)
{
    struct callers *all = caller->all;
    char key[32];
    struct weir_request request = {.policy = all->node.policy, .key = key, .cost = 1};
    request.key_len = (size_t)bench_key(key, (unsigned)bench_below(bench_random(&all->random), all->keys));
    caller->asked = due;
    all->flying++;
    limiter_check(weir_take_async(all->node.w, &request, on_answer, caller), "weir_take_async");
}

static void on_answer(void *arg, int status, const struct weir_result *result)
{
    struct caller *caller = arg;
    struct callers *all = caller->all;
    uint64_t now = bench_ticks();
    if (status != WEIR_ALLOW || (result->flags & WEIR_DEGRADED) != 0) {
        bench_die("a strict take gave %d, flags %u", status, (unsigned)result->flags);
    }
    note(&all->latency, now > caller->asked ? now - caller->asked : 0);
    all->done++;
    all->flying--;
    if (!all->closed) {
        all->idle[all->idle_count++] = (uint32_t)(caller - all->each);
    } else if (bench_clock_ns() < all->end) {
        ask(caller, bench_ticks());
    }
}

double callers_closed(struct callers *callers, unsigned n, uint64_t ns)
{
    uint64_t begin = bench_clock_ns();
    callers->closed = 1;
    callers->done = 0;
    callers->end = begin + ns;
    for (unsigned i = 0; i < n; i++) {
        ask(&callers->each[i], bench_ticks());
    }
    while (callers->flying > 0) {
        uv_run(callers->node.loop, UV_RUN_ONCE);
    }
    return (double)callers->done / ((double)(bench_clock_ns() - begin) / 1e9);
}

/* Ticks until the next question. */
static double pause_of(struct callers *callers, double mean)
{
    double uniform = ((double)(bench_random(&callers->random) >> 11) + 1) / 9007199254740993.0;
    return -mean * log(uniform);
}

double callers_open_loop(struct callers *callers, double rate, uint64_t ns)
{
    double tick = bench_ns(1e6) / 1e6, mean = 1e9 / rate / tick;
    uint64_t begin = bench_ticks(), end = begin + (uint64_t)((double)ns / tick), asked = 0;
    double due = (double)begin + pause_of(callers, mean);
    callers->closed = 0;
    callers->done = 0;
    callers->idle_count = CALLERS_MAX;
    for (uint32_t i = 0; i < CALLERS_MAX; i++) {
        callers->idle[i] = i;
    }
    for (uint64_t now = begin; now < end; now = bench_ticks()) {
        while (due <= (double)now) {
            if (callers->idle_count > 0) {
                ask(&callers->each[callers->idle[--callers->idle_count]], (uint64_t)due);
                asked++;
            }
            due += pause_of(callers, mean);
        }
        uv_run(callers->node.loop, UV_RUN_NOWAIT);
    }
    while (callers->flying > 0) {
        uv_run(callers->node.loop, UV_RUN_ONCE);
    }
    return (double)asked / ((double)ns / 1e9);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

struct callers *callers_open(const char *uri, const struct bench_node_options *options, unsigned keys)
{
    struct bench_node_options own = *options;
    struct callers *callers = bench_alloc(sizeof *callers);
    memset(callers, 0, sizeof *callers);
    callers->random = keys + own.batch_max + 1;
    callers->keys = keys;
    for (unsigned i = 0; i < CALLERS_MAX; i++) {
        callers->each[i].all = callers;
    }
    own.mode = WEIR_STRICT;
    own.limit = 100000000; /* never the limit: what is measured is admission */
    own.burst = options->burst != 0 ? options->burst : own.limit;
    bench_node_open(&callers->node, uri, NULL, &own);
    return callers;
}

void callers_close(struct callers *callers)
{
    bench_node_close(&callers->node);
    free(callers);
}
