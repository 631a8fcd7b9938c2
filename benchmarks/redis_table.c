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

#define ROUNDS 3u
#define CLOSED_NS UINT64_C(200000000)
#define OPEN_NS UINT64_C(250000000)
#define KEYS 100000u
#define SAME 1.05 /* what two measurements of the same thing differ by */

enum { EACH, MERGED, MODES };

static const char *const mode_names[MODES] = {"each", "merged"};

struct figures {
    double rate[ROUNDS], p50[ROUNDS], p99[ROUNDS], p999[ROUNDS];
};

static void keep(struct figures *figures, size_t round, double rate, struct callers *callers)
{
    figures->rate[round] = rate;
    figures->p50[round] = histogram_us(&callers->latency, 0.5);
    figures->p99[round] = histogram_us(&callers->latency, 0.99);
    figures->p999[round] = histogram_us(&callers->latency, 0.999);
    callers->latency = (struct histogram){.total = 0};
}

static void detail(struct bench_row *row, const char *of, const char *what, double *values, size_t n)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s", of, what);
    bench_detail(row, name, bench_quantile(values, n, 0.5));
}

/* peer: redis-benchmark's calls a second; 0: an open loop, where the rate is what was really offered. */
static void report(const struct bench_options *options, const char *id, const char *what, struct figures *figures,
                   size_t rounds, double peer)
{
    struct bench_row row = {.id = id, .what = what, .goal = SAME, .kind = BENCH_AT_MOST};
    double ratio[ROUNDS];
    for (size_t r = 0; r < rounds; r++) {
        ratio[r] = figures[MERGED].p50[r] / figures[EACH].p50[r];
    }
    row.value = bench_quantile(ratio, rounds, 0.5);
    if (peer > 1) {
        bench_detail(&row, "redis_benchmark_rate", peer);
    }
    for (int m = MODES - 1; m >= 0; m--) {
        detail(&row, mode_names[m], peer > 0 ? "rate" : "offered", figures[m].rate, rounds);
        detail(&row, mode_names[m], "p50_us", figures[m].p50, rounds);
        detail(&row, mode_names[m], "p99_us", figures[m].p99, rounds);
        detail(&row, mode_names[m], "p999_us", figures[m].p999, rounds);
    }
    bench_report(options, &row);
}

/* So many callers, each of whom waits for his answer; redis-benchmark with as many calls on their way. */
static void closed_table(const struct bench_options *options, struct bench_redis *redis, const struct bench_call *call,
                         struct callers **callers, const char *id, const char *transport, int port)
{
    static const unsigned windows[] = {1, 4, 16, 64, 256, 1024};
    size_t rounds = options->quick ? 1 : ROUNDS;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        struct figures figures[MODES];
        char row_id[8], what[96];
        const char *why = NULL;
        double peer[ROUNDS], rough = 0;
        for (size_t r = 0; r < rounds; r++) {
            for (int m = 0; m < MODES; m++) {
                double rate = callers_closed(callers[m], windows[i], CLOSED_NS);
                keep(&figures[m], r, rate, callers[m]);
                rough = m == EACH ? rate : rough;
            }
            unsigned count = (unsigned)(rough * (double)CLOSED_NS / 1e9) + 1000;
            peer[r] = why == NULL ? bench_redis_peer(redis, call, port, windows[i], count, KEYS, &why) : 1e-9;
        }
        snprintf(row_id, sizeof row_id, "%s%c", id, (char)('a' + i));
        snprintf(what, sizeof what, "%s, %u callers: p50 merged / p50 of a script a call", transport, windows[i]);
        report(options, row_id, what, figures, rounds, bench_quantile(peer, rounds, 0.5));
    }
}

/* Questions at their own times. Past what a script a call can do its figures are those of the queue's end. */
static void open_table(const struct bench_options *options, struct callers **callers, const char *id,
                       const char *transport)
{
    static const unsigned rates[] = {10, 25, 50, 100, 200, 300, 400, 500};
    size_t rounds = options->quick ? 1 : ROUNDS;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        struct figures figures[MODES];
        char row_id[8], what[96];
        for (size_t r = 0; r < rounds; r++) {
            for (int m = 0; m < MODES; m++) {
                keep(&figures[m], r, callers_open_loop(callers[m], rates[i] * 1e3, OPEN_NS), callers[m]);
            }
        }
        snprintf(row_id, sizeof row_id, "%s%c", id, (char)('a' + i));
        snprintf(what, sizeof what, "%s, %uk/s offered: p50 merged / p50 of a script a call", transport, rates[i]);
        report(options, row_id, what, figures, rounds, 0);
    }
}

void strict_tables(const struct bench_options *options, struct bench_redis *redis, const struct bench_call *call)
{
    static const struct {
        const char *closed, *open, *transport;
    } tables[] = {{"R7", "R9", "unix socket"}, {"R8", "R10", "TCP"}};
    static const struct bench_node_options how[MODES] = {
        [EACH] = {.prefix = "each", .batch_max = 1, .window = 256, .shards = 1},
        [MERGED] = {.prefix = "merged"},
    };
    for (int tcp = 0; tcp < 2; tcp++) {
        struct callers *callers[MODES];
        int closed = bench_wanted(options, tables[tcp].closed), open = bench_wanted(options, tables[tcp].open);
        int port = tcp ? bench_redis_port(redis) : 0;
        char uri[64];
        if ((!closed && !open) || (tcp && port == 0)) {
            continue;
        }
        snprintf(uri, sizeof uri, "redis://127.0.0.1:%d", port);
        for (int m = 0; m < MODES; m++) {
            callers[m] = callers_open(tcp ? uri : redis->uri, &how[m], KEYS);
            callers_closed(callers[m], 256, CLOSED_NS); /* makes the keys */
            callers[m]->latency = (struct histogram){.total = 0};
        }
        if (closed) {
            closed_table(options, redis, call, callers, tables[tcp].closed, tables[tcp].transport, port);
        }
        if (open) {
            open_table(options, callers, tables[tcp].open, tables[tcp].transport);
        }
        for (int m = 0; m < MODES; m++) {
            callers_close(callers[m]);
        }
    }
}
