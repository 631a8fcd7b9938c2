/* SPDX-License-Identifier: MIT */
/*
 * Rows R4 to R6: what reconciliation costs Redis and the client, from takes to acknowledged reports, and how long one
 * script holds the server. The client has the first CPU, Redis the second; both are asked for the time they spent.
 */
#include "rows.h"

#ifdef WEIR_BENCH_SYNC

#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "limiter.h"
#include "redis_load.h"
#include "redis_server.h"

#define NODES 10u
#define ROUNDS 5u
#define TICK_NS UINT64_C(20000000)
#define COLD_KEYS 24000u /* of a node: each is taken from about every second */
#define PLAIN_KEYS 50000u
#define PAUSE_NS UINT64_C(400000000) /* between two takes from a key that needs no slice */
#define PATIENCE_NS UINT64_C(60000000000)

/* What R6 is about: of every kind of script, how long it held the server. */
struct held {
    double largest, p99;
};

static void keep(struct held *held, struct bench_redis *redis, struct bench_row *row)
{
    double p99, largest;
    bench_redis_watched(redis, 0.99, &p99, &largest);
    bench_detail(row, "longest_script_ms", largest);
    bench_detail(row, "p99_script_ms", p99);
    held->p99 = p99 > held->p99 ? p99 : held->p99;
    held->largest = largest > held->largest ? largest : held->largest;
}

/* Reports so far; *syncs: the batches that they travelled in. */
static double reports_of(struct bench_node *nodes, unsigned n, double *syncs)
{
    double sum = 0;
    *syncs = 0;
    for (unsigned i = 0; i < n; i++) {
        struct weir_stats stats = {.size = sizeof stats};
        limiter_check(weir_stats_get(nodes[i].w, &stats), "weir_stats_get");
        if (stats.sync_errors != 0) {
            bench_die("%llu batches failed", (unsigned long long)stats.sync_errors);
        }
        sum += (double)stats.reports;
        *syncs += (double)stats.syncs;
    }
    return sum;
}

static void take(struct bench_node *node, unsigned number)
{
    char key[32];
    size_t len = (size_t)bench_key(key, number);
    if (weir_take(node->w, node->policy, key, len, 1, NULL) < 0) {
        bench_die("a hybrid take failed");
    }
}

static void turn(uv_loop_t *loop, uint64_t ns)
{
    for (uint64_t end = bench_clock_ns() + ns; bench_clock_ns() < end;) {
        uv_run(loop, UV_RUN_ONCE);
    }
}

/* ---- R4: each key spent once between two reports ----------------------------------------------------------------- */

/* Makes the keys. What a key's first take may have asked for is given back. */
static void settle(struct bench_node *node)
{
    uint64_t end = bench_clock_ns() + PATIENCE_NS;
    double before, reports = 0, syncs;
    for (unsigned i = 0; i < PLAIN_KEYS; i++) {
        take(node, i);
    }
    bench_node_flush(node);
    do {
        turn(node->loop, 3 * PAUSE_NS);
        before = reports;
        reports = reports_of(node, 1, &syncs);
    } while (reports - before > PLAIN_KEYS / 1000.0 && bench_clock_ns() < end);
}

static void plain(const struct bench_options *options, struct bench_redis *redis, struct held *held)
{
    const struct bench_node_options o = {
        .prefix = "plain", .limit = 1000000, .burst = 1000000, .max_keys = PLAIN_KEYS * 2};
    struct bench_row a = {.id = "R4a",
                          .what = "reconcile, keys without slices: million keys/s a Redis core",
                          .goal = 0.65,
                          .kind = BENCH_AT_LEAST};
    struct bench_row b = {.id = "R4b", .what = "the same: us of client CPU a key", .goal = 0.5};
    double keys[ROUNDS], client[ROUNDS], bytes[ROUNDS], batch[ROUNDS];
    struct bench_node node;
    size_t rounds = options->quick ? 3 : ROUNDS;
    bench_node_open(&node, redis->uri, NULL, &o);
    settle(&node);
    bench_redis_watch(redis);
    for (size_t r = 0; r < rounds; r++) {
        double scripts, after, before = reports_of(&node, 1, &scripts), received = bench_redis_bytes(redis);
        for (unsigned i = 0; i < PLAIN_KEYS; i++) {
            take(&node, i);
        }
        double server = bench_redis_cpu(redis), own = bench_cpu();
        bench_node_flush(&node);
        own = bench_cpu() - own;
        server = bench_redis_cpu(redis) - server;
        double reports = reports_of(&node, 1, &after) - before;
        if (reports < PLAIN_KEYS || reports > PLAIN_KEYS * 1.25) {
            bench_die("%.0f reports of %u keys", reports, PLAIN_KEYS);
        }
        keys[r] = reports / server / 1e6;
        client[r] = own * 1e6 / reports;
        batch[r] = reports / (after - scripts);
        bytes[r] = (bench_redis_bytes(redis) - received) / reports;
        turn(node.loop, PAUSE_NS);
    }
    a.value = bench_quantile(keys, rounds, 0.5);
    b.value = bench_quantile(client, rounds, 0.5);
    bench_detail(&a, "keys_a_script", bench_quantile(batch, rounds, 0.5));
    bench_detail(&a, "bytes_a_key", bench_quantile(bytes, rounds, 0.5));
    keep(held, redis, &a);
    bench_report(options, &a);
    bench_report(options, &b);
    bench_node_close(&node);
}

/* ---- R5: nodes that share keys ----------------------------------------------------------------------------------- */

struct fleet {
    struct bench_node nodes[NODES];
    uv_loop_t *loop;
    unsigned hot;  /* keys that all nodes take from at each tick */
    unsigned cold; /* keys of its own that each takes from in a tick */
    unsigned next;
};

static void tick(struct fleet *fleet)
{
    for (unsigned n = 0; n < NODES; n++) {
        for (unsigned i = 0; i < fleet->hot; i++) {
            take(&fleet->nodes[n], i);
        }
        for (unsigned i = 0; i < fleet->cold; i++) {
            take(&fleet->nodes[n], 1000000 * (n + 1) + (fleet->next + i) % COLD_KEYS);
        }
    }
    fleet->next = (fleet->next + fleet->cold) % COLD_KEYS;
}

/* Returns the ticks that were made. */
static double run(struct fleet *fleet, uint64_t ns)
{
    uint64_t begin = bench_clock_ns(), next = begin;
    double ticks = 0;
    for (uint64_t now = begin; now - begin < ns; now = bench_clock_ns()) {
        if (now >= next) {
            tick(fleet);
            ticks++;
            next = next + TICK_NS > now ? next + TICK_NS : now + TICK_NS;
        }
        uv_run(fleet->loop, UV_RUN_ONCE);
    }
    return ticks;
}

/* Until slices are given where they are wanted, and given back where a first take only seemed to. */
static void settle_fleet(struct fleet *fleet)
{
    uint64_t end = bench_clock_ns() + PATIENCE_NS;
    double reports, expected, syncs;
    run(fleet, UINT64_C(2500000000));
    do {
        double before = reports_of(fleet->nodes, NODES, &syncs), ticks = run(fleet, UINT64_C(500000000));
        reports = reports_of(fleet->nodes, NODES, &syncs) - before;
        expected = NODES * (ticks * fleet->cold + 2.5 * fleet->hot);
    } while (reports > 1.5 * expected && bench_clock_ns() < end);
}

static void with_slices(const struct bench_options *options, struct bench_redis *redis, unsigned hot, unsigned cold,
                        const char *prefix, struct bench_row *row, struct held *held)
{
    const struct bench_node_options o = {
        .prefix = prefix, .limit = 1000, .burst = 1000, .max_keys = 2 * COLD_KEYS + 4096};
    struct fleet fleet = {.hot = hot, .cold = cold};
    double keys[ROUNDS], share[ROUNDS], client[ROUNDS], batch[ROUNDS];
    size_t rounds = options->quick ? 3 : ROUNDS;
    for (unsigned n = 0; n < NODES; n++) {
        bench_node_open(&fleet.nodes[n], redis->uri, n > 0 ? fleet.loop : NULL, &o);
        fleet.loop = fleet.nodes[n].loop;
    }
    settle_fleet(&fleet);
    bench_redis_watch(redis);
    for (size_t r = 0; r < rounds; r++) {
        double scripts, after, before = reports_of(fleet.nodes, NODES, &scripts);
        double server = bench_redis_cpu(redis), own = bench_cpu();
        double ticks = run(&fleet, UINT64_C(1500000000));
        double reports = reports_of(fleet.nodes, NODES, &after) - before;
        batch[r] = reports / (after - scripts);
        keys[r] = reports / (bench_redis_cpu(redis) - server) / 1e3;
        share[r] = 1 - ticks * cold * NODES / reports;
        client[r] = (bench_cpu() - own) * 1e6 / reports;
    }
    row->value = bench_quantile(keys, rounds, 0.5);
    bench_detail(row, "keys_a_script", bench_quantile(batch, rounds, 0.5));
    bench_detail(row, "share_with_slices", bench_quantile(share, rounds, 0.5));
    bench_detail(row, "client_us_a_key_with_its_takes", bench_quantile(client, rounds, 0.5));
    keep(held, redis, row);
    bench_report(options, row);
    for (unsigned n = NODES; n-- > 0;) {
        bench_node_close(&fleet.nodes[n]);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

void reconcile_rows(const struct bench_options *options, struct bench_redis *redis)
{
    struct bench_row five = {.id = "R5a",
                             .what = "reconcile, keys with slices, 10 nodes: thousand keys/s a Redis core",
                             .goal = 120,
                             .kind = BENCH_AT_LEAST};
    struct bench_row mixed = {.id = "R5b",
                              .what = "the same, 95 % of the keys without: thousand keys/s a Redis core",
                              .goal = 450,
                              .kind = BENCH_AT_LEAST};
    struct bench_row six = {
        .id = "R6", .what = "largest time one script holds the server (99 of 100 of the slow), ms", .goal = 0.6};
    struct held held = {0, 0};
    int all = bench_wanted(options, "R6");
    if (all || bench_wanted(options, "R4")) {
        plain(options, redis, &held);
    }
    if (all || bench_wanted(options, "R5a")) {
        with_slices(options, redis, 1600, 0, "slices", &five, &held);
    }
    if (all || bench_wanted(options, "R5b")) {
        with_slices(options, redis, 192, 366, "mixed", &mixed, &held);
    }
    six.value = held.p99;
    bench_detail(&six, "longest_ms", held.largest);
    if (all) {
        bench_report(options, &six);
    }
}

#endif
