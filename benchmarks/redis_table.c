/* SPDX-License-Identifier: MIT */
/*
 * The tables R7 to R10: how long an answer takes at every load, merged against a script a call, which is asked in turn
 * with it. Their goal: merging makes nobody wait longer.
 */
#include <stdio.h>
#include <string.h>

#include "harness.h"
#include "redis_callers.h"
#include "redis_server.h"

#define SLICES_MAX 45u
#define WARM_NS UINT64_C(100000000)
#define WARM_CALLS (3 * KEYS) /* 19 of 20 keys */
#define BURST 1000000000u     /* Redis keeps a key for ten minutes: however fast a side is, it works on as many */
#define PEER_S 0.2
#define KEYS 100000u
#define SAME 1.05 /* what two measurements of the same thing differ by */

enum { EACH, MERGED, MODES };

static const char *const mode_names[MODES] = {"each", "merged"};

struct side {
    struct callers *callers;
    struct histogram all; /* of its slices */
    double rate[SLICES_MAX], p50[SLICES_MAX];
};

/* So many callers, each of whom waits for his answer; or, where there are none, so many questions a second. */
struct load {
    unsigned callers;
    double rate;
    size_t slices; /* of each side, in turn */
    uint64_t ns;   /* of one */
};

/* Short ones, and many, where the two sides do nearly the same; where a queue forms it must have the time to. */
static void plan(struct load *load, const struct bench_options *options)
{
    int light = load->callers > 0 ? load->callers < 64 : load->rate < 100e3;
    load->slices = light ? SLICES_MAX : 9;
    load->ns = light ? UINT64_C(20000000) : UINT64_C(100000000);
    if (options->quick) {
        load->slices /= 3;
    }
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static void run_slice(struct side *side, size_t slice, const struct load *load)
{
    struct callers *callers = side->callers;
    side->rate[slice] = load->callers > 0 ? callers_closed(callers, load->callers, load->ns)
                                          : callers_open_loop(callers, load->rate, load->ns);
    side->p50[slice] = histogram_us(&callers->latency, 0.5);
    histogram_move(&side->all, &callers->latency);
}

/* A slice of one side beside a slice of the other, each first as often: whatever else runs disturbs both. */
static void measure(struct side sides[MODES], const struct load *load)
{
    for (int m = 0; m < MODES; m++) {
        run_slice(&sides[m], 0, load);
        sides[m].all = (struct histogram){.total = 0};
    }
    for (size_t i = 0; i < load->slices; i++) {
        for (size_t m = 0; m < MODES; m++) {
            run_slice(&sides[(m + i) % MODES], i, load);
        }
    }
}

static void detail(struct bench_row *row, const char *of, const char *what, double value)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", of, what);
    bench_detail(row, name, value);
}

/* peer: redis-benchmark's calls a second, 0: it was not run. */
static void report(const struct bench_options *options, struct bench_row *row, struct side sides[MODES],
                   const struct load *load, double peer)
{
    size_t slices = load->slices;
    double ratio[SLICES_MAX];
    for (size_t i = 0; i < load->slices; i++) {
        ratio[i] = sides[MERGED].p50[i] / sides[EACH].p50[i];
    }
    row->value = bench_quantile(ratio, slices, 0.5);
    row->goal = SAME;
    row->kind = BENCH_AT_MOST;
    bench_detail(row, "lower_quartile", bench_quantile(ratio, slices, 0.25));
    bench_detail(row, "upper_quartile", bench_quantile(ratio, slices, 0.75));
    if (peer > 0) {
        bench_detail(row, "redis_benchmark_rate", peer);
    }
    for (int m = MODES - 1; m >= 0; m--) {
        struct side *side = &sides[m];
        detail(row, mode_names[m], load->callers > 0 ? "rate" : "offered", bench_quantile(side->rate, slices, 0.5));
        detail(row, mode_names[m], "p50_us", histogram_us(&side->all, 0.5));
        detail(row, mode_names[m], "p99_us", histogram_us(&side->all, 0.99));
        detail(row, mode_names[m], "p999_us", histogram_us(&side->all, 0.999));
    }
    bench_report(options, row);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* redis-benchmark with as many calls on their way. */
static void closed_table(const struct bench_options *options, struct bench_redis *redis, const struct bench_call *call,
                         struct side sides[MODES], const char *id, const char *transport, int port)
{
    static const unsigned windows[] = {1, 4, 16, 64, 256, 1024};
    const char *why = NULL;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        struct load load = {.callers = windows[i]};
        char row_id[8], what[96];
        struct bench_row row = {.id = row_id, .what = what};
        double peer = 0;
        snprintf(row_id, sizeof row_id, "%s%c", id, (char)('a' + i));
        snprintf(what, sizeof what, "%s, %u callers: p50 merged / p50 of a script a call", transport, windows[i]);
        if (!bench_wanted(options, row_id)) {
            continue;
        }
        plan(&load, options);
        measure(sides, &load);
        if (why == NULL) {
            unsigned count = (unsigned)(bench_quantile(sides[EACH].rate, load.slices, 0.5) * PEER_S) + 1000;
            peer = bench_redis_peer(redis, call, port, windows[i], count, KEYS, &why);
        }
        report(options, &row, sides, &load, peer);
    }
}

/* Questions at their own times. Past what a script a call can do its figures are those of the queue's end. */
static void open_table(const struct bench_options *options, struct side sides[MODES], const char *id,
                       const char *transport)
{
    static const unsigned rates[] = {10, 25, 50, 100, 200, 300, 400, 500};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct load load = {.rate = rates[i] * 1e3};
        char row_id[8], what[96];
        struct bench_row row = {.id = row_id, .what = what};
        snprintf(row_id, sizeof row_id, "%s%c", id, (char)('a' + i));
        snprintf(what, sizeof what, "%s, %uk/s offered: p50 merged / p50 of a script a call", transport, rates[i]);
        if (bench_wanted(options, row_id)) {
            plan(&load, options);
            measure(sides, &load);
            report(options, &row, sides, &load, 0);
        }
    }
}

void strict_tables(const struct bench_options *options, struct bench_redis *redis, const struct bench_call *call)
{
    static const struct {
        const char *closed, *open, *transport;
    } tables[] = {{"R7", "R9", "unix socket"}, {"R8", "R10", "TCP"}};
    static const struct bench_node_options how[MODES] = {
        [EACH] = {.prefix = "apart", .batch_max = 1, .window = 256, .burst = BURST}, /* all else is the same */
        [MERGED] = {.prefix = "together", .burst = BURST},
    };
    for (int tcp = 0; tcp < 2; tcp++) {
        static struct side sides[MODES];
        int closed = bench_wanted(options, tables[tcp].closed), open = bench_wanted(options, tables[tcp].open);
        int port = tcp ? bench_redis_port(redis) : 0;
        char uri[64];
        if ((!closed && !open) || (tcp && port == 0)) {
            continue;
        }
        snprintf(uri, sizeof uri, "redis://127.0.0.1:%d", port);
        for (int m = 0; m < MODES; m++) {
            sides[m].callers = callers_open(tcp ? uri : redis->uri, &how[m], KEYS);
            for (uint64_t calls = 0; calls < WARM_CALLS; calls += sides[m].callers->done) {
                callers_closed(sides[m].callers, 256, WARM_NS);
            }
            sides[m].callers->latency = (struct histogram){.total = 0};
        }
        if (closed) {
            closed_table(options, redis, call, sides, tables[tcp].closed, tables[tcp].transport, port);
        }
        if (open) {
            open_table(options, sides, tables[tcp].open, tables[tcp].transport);
        }
        for (int m = 0; m < MODES; m++) {
            callers_close(sides[m].callers);
        }
    }
}
