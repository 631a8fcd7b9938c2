/* SPDX-License-Identifier: MIT */
/*
 * Rows R4 to R6: what reconciliation costs Redis and the client, from takes to acknowledged reports, and how long one
 * script holds the server. The client has the first CPU, Redis the second; both are asked for the time they spent.
 */
#include "rows.h"

#ifdef WEIR_BENCH_SYNC

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <uv.h>

#include "core.h"
#include "limiter.h"
#include "redis_load.h"
#include "redis_server.h"

#define NODES 10u
#define WATCHES 3u  /* of R6, that count ... */
#define PATIENT 10u /* ... and at most */
#define BOTH 1.9    /* a machine that gives both CPUs */
#define TICK_NS UINT64_C(20000000)
#define COLD_KEYS 24000u /* of a node: each is taken from about every second */
#define PLAIN_KEYS 50000u
#define PART_NS UINT64_C(4000000)    /* a piece of a flush */
#define PAUSE_NS UINT64_C(400000000) /* between two takes from a key that needs no slice */
#define WATCH_NS UINT64_C(500000000)
#define PATIENCE_NS UINT64_C(60000000000)
#define ROW_NS UINT64_C(24000000000) /* of measuring, at most; a fourth with --quick */

/* Pieces that are enough. */
enum { FLUSHES = 7, PARTS = 60, TICKS = 200 };

/* ---- R6 ---------------------------------------------------------------------------------------------------------- */

/* Of every kind of script, how long it held the server. */
struct held {
    double largest, p99, waited;
};

struct watched {
    double machine; /* bench_machine before or after it, the lesser */
    struct held held;
};

static int by_machine(const void *a, const void *b)
{
    double x = ((const struct watched *)a)->machine, y = ((const struct watched *)b)->machine;
    return (x < y) - (x > y);
}

static double median_of(const struct watched *watched, size_t n, size_t offset)
{
    double values[PATIENT];
    for (size_t i = 0; i < n; i++) {
        memcpy(&values[i], (const char *)&watched[i].held + offset, sizeof values[i]);
    }
    return bench_quantile(values, n, 0.5);
}

/* Watches what `work` makes the server do: until three watches count, for the machine gave both CPUs. Where none does,
 * the three that came nearest are taken. */
static void watch(struct held *held, struct bench_redis *redis, struct bench_row *row, void (*work)(void *), void *arg)
{
    struct watched watched[PATIENT] = {{.machine = 0}};
    size_t n = 0, counted = 0;
    for (double before = bench_machine(), after; n < PATIENT && counted < WATCHES; before = after, n++) {
        struct held *now = &watched[n].held;
        bench_redis_watch(redis);
        work(arg);
        bench_redis_watched(redis, 0.99, &now->p99, &now->largest, &now->waited);
        after = bench_machine();
        watched[n].machine = before < after ? before : after;
        counted += watched[n].machine >= BOTH;
    }
    qsort(watched, n, sizeof *watched, by_machine);
    n = counted > 0 ? counted : WATCHES;
    double p99 = median_of(watched, n, offsetof(struct held, p99));
    double largest = median_of(watched, n, offsetof(struct held, largest));
    double waited = median_of(watched, n, offsetof(struct held, waited));
    bench_detail(row, "longest_script_ms", largest);
    bench_detail(row, "p99_script_ms", p99);
    bench_detail(row, "server_waited_ms", waited);
    held->p99 = p99 > held->p99 ? p99 : held->p99;
    held->largest = largest > held->largest ? largest : held->largest;
    held->waited += waited;
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

/* ---- who else is here -------------------------------------------------------------------------------------------- */

/* s of CPU that all processes of the system have spent, as far as it tells; < 0: it doesn't. */
static double spent_by_all(void)
{
    unsigned long long user, nice, kernel;
    double s = -1;
    FILE *file = fopen("/proc/stat", "r");
    if (file != NULL && fscanf(file, "cpu %llu %llu %llu", &user, &nice, &kernel) == 3) {
        s = (double)(user + nice + kernel) / (double)sysconf(_SC_CLK_TCK);
    }
    if (file != NULL) {
        fclose(file);
    }
    return s;
}

static double spent_by_us(struct bench_redis *redis)
{
    struct timespec own;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    return (double)own.tv_sec + (double)own.tv_nsec / 1e9 + bench_redis_cpu(redis);
}

struct since {
    uint64_t ns;
    double all, us;
};

static struct since since_now(struct bench_redis *redis)
{
    return (struct since){bench_clock_ns(), spent_by_all(), spent_by_us(redis)};
}

/* CPUs that other processes had meanwhile, of all that there are. */
static void tell_others(struct bench_row *row, struct bench_redis *redis, const struct since *since)
{
    double s = (double)(bench_clock_ns() - since->ns) / 1e9, all = spent_by_all() - since->all;
    if (since->all >= 0) {
        double others = (all - (spent_by_us(redis) - since->us)) / s;
        bench_detail(row, "cpus_of_others", others > 0 ? others : 0);
    }
}

/* ---- R4: each key spent once between two reports ----------------------------------------------------------------- */

static void take_all(struct bench_node *node)
{
    for (unsigned i = 0; i < PLAIN_KEYS; i++) {
        take(node, i);
    }
}

/* Makes the keys. What a key's first take may have asked for is given back. */
static void settle(struct bench_node *node)
{
    uint64_t end = bench_clock_ns() + PATIENCE_NS;
    double before, reports = 0, syncs;
    take_all(node);
    bench_node_flush(node, NULL, NULL);
    do {
        turn(node->loop, 3 * PAUSE_NS);
        before = reports;
        reports = reports_of(node, 1, &syncs);
    } while (reports - before > PLAIN_KEYS / 1000.0 && bench_clock_ns() < end);
}

static void flush_once(void *arg)
{
    struct bench_node *node = arg;
    take_all(node);
    bench_node_flush(node, NULL, NULL);
    turn(node->loop, PAUSE_NS);
}

/* A flush is cut into parts: what the client spends in each, by its own CPU. */
struct parts {
    struct bench_node *node;
    struct bench_pieces *pieces;
    uint64_t begun;
};

static void cut(struct parts *parts)
{
    double cpu = bench_cpu(), syncs, done = reports_of(parts->node, 1, &syncs), ns = bench_core_here();
    bench_pieces_end(parts->pieces, ns, done, cpu);
    parts->begun = bench_clock_ns();
    bench_pieces_begin(parts->pieces, ns, done, bench_cpu());
}

static void cut_when_due(void *arg)
{
    struct parts *parts = arg;
    if (bench_clock_ns() - parts->begun >= PART_NS) {
        cut(parts);
    }
}

static void flush_in_parts(struct bench_redis *redis, struct parts *parts, struct bench_pieces *flushes)
{
    double syncs, before = reports_of(parts->node, 1, &syncs);
    take_all(parts->node);
    bench_core_ask();
    bench_pieces_begin(flushes, 0, before, bench_redis_cpu(redis));
    cut(parts);
    bench_node_flush(parts->node, cut_when_due, parts);
    cut(parts);
    parts->pieces->open = 0;
    double after = reports_of(parts->node, 1, &syncs), server = bench_redis_cpu(redis);
    bench_pieces_end(flushes, bench_core_told(), after, server);
    if (after - before < PLAIN_KEYS || after - before > PLAIN_KEYS * 1.25) {
        bench_die("%.0f reports of %u keys", after - before, PLAIN_KEYS);
    }
}

static void plain(const struct bench_options *options, struct bench_redis *redis, struct held *held)
{
    const struct bench_node_options o = {
        .prefix = "plain", .limit = 1000000, .burst = 1000000, .max_keys = PLAIN_KEYS * 2};
    static struct bench_pieces flushes, pieces;
    struct bench_row a = {.id = "R4a",
                          .what = "reconcile, keys without slices: million keys/s a Redis core",
                          .goal = 0.65,
                          .kind = BENCH_AT_LEAST};
    struct bench_row b = {.id = "R4b", .what = "the same: us of client CPU a key", .goal = 0.5};
    struct bench_node node;
    struct parts parts = {.node = &node, .pieces = &pieces};
    flushes = (struct bench_pieces){.wanted = options->quick ? 3 : FLUSHES, .few = 3};
    pieces = (struct bench_pieces){.wanted = options->quick ? PARTS / 3 : PARTS, .few = PARTS / 6};
    bench_node_open(&node, redis->uri, NULL, &o);
    settle(&node);
    double syncs_before, syncs, bytes = bench_redis_bytes(redis), reports = reports_of(&node, 1, &syncs_before);
    uint64_t end = bench_clock_ns() + (options->quick ? ROW_NS / 4 : ROW_NS);
    struct since since = since_now(redis);
    do {
        flush_in_parts(redis, &parts, &flushes);
        turn(node.loop, PAUSE_NS);
    } while ((bench_pieces_more(&flushes) || bench_pieces_more(&pieces)) && bench_clock_ns() < end);
    reports = reports_of(&node, 1, &syncs) - reports;
    bytes = bench_redis_bytes(redis) - bytes;
    a.value = 1 / bench_pieces_sum(&flushes, &a, 1e6, 1) / 1e6;
    b.value = bench_pieces_sum(&pieces, &b, 1e6, 0) * 1e6;
    tell_others(&b, redis, &since);
    bench_detail(&a, "keys_a_script", reports / (syncs - syncs_before));
    bench_detail(&a, "bytes_a_key", bytes / reports);
    watch(held, redis, &a, flush_once, &node);
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

/* Ends a piece, and begins the next: while takes are made the server comes to rest. What it has answered by then is
 * read before it is counted. */
static void tick_between(struct fleet *fleet, struct bench_redis *redis, struct bench_pieces *pieces)
{
    tick(fleet);
    double ns = bench_core_told(), cpu = bench_redis_cpu(redis), syncs;
    uv_run(fleet->loop, UV_RUN_NOWAIT);
    double done = reports_of(fleet->nodes, NODES, &syncs);
    bench_pieces_end(pieces, ns, done, cpu);
    bench_pieces_begin(pieces, 0, done, cpu);
    bench_core_ask();
}

/* Returns the ticks that were made. With pieces: until there are enough of them, each from one tick to the next. */
static double run(struct fleet *fleet, uint64_t ns, struct bench_redis *redis, struct bench_pieces *pieces)
{
    uint64_t begin = bench_clock_ns(), next = begin;
    double ticks = 0;
    if (pieces != NULL) {
        bench_core_ask();
    }
    for (uint64_t now = begin; now - begin < ns; now = bench_clock_ns()) {
        if (now >= next) {
            if (pieces != NULL && !bench_pieces_more(pieces)) {
                break;
            }
            if (pieces != NULL) {
                tick_between(fleet, redis, pieces);
            } else {
                tick(fleet);
            }
            ticks++;
            next = next + TICK_NS > now ? next + TICK_NS : now + TICK_NS;
        }
        uv_run(fleet->loop, UV_RUN_ONCE);
    }
    if (pieces != NULL) {
        bench_core_told();
    }
    return ticks;
}

/* Until slices are given where they are wanted, and given back where a first take only seemed to. */
static void settle_fleet(struct fleet *fleet)
{
    uint64_t end = bench_clock_ns() + PATIENCE_NS;
    double reports, expected, syncs;
    run(fleet, UINT64_C(2500000000), NULL, NULL);
    do {
        double before = reports_of(fleet->nodes, NODES, &syncs), ticks = run(fleet, UINT64_C(500000000), NULL, NULL);
        reports = reports_of(fleet->nodes, NODES, &syncs) - before;
        expected = NODES * (ticks * fleet->cold + 2.5 * fleet->hot);
    } while (reports > 1.5 * expected && bench_clock_ns() < end);
}

static void run_on(void *arg)
{
    (void)run(arg, WATCH_NS, NULL, NULL);
}

static void with_slices(const struct bench_options *options, struct bench_redis *redis, unsigned hot, unsigned cold,
                        const char *prefix, struct bench_row *row, struct held *held)
{
    const struct bench_node_options o = {
        .prefix = prefix, .limit = 1000, .burst = 1000, .max_keys = 2 * COLD_KEYS + 4096};
    static struct bench_pieces pieces;
    struct fleet fleet = {.hot = hot, .cold = cold};
    pieces = (struct bench_pieces){.wanted = options->quick ? TICKS / 3 : TICKS, .few = TICKS / 8};
    for (unsigned n = 0; n < NODES; n++) {
        bench_node_open(&fleet.nodes[n], redis->uri, n > 0 ? fleet.loop : NULL, &o);
        fleet.loop = fleet.nodes[n].loop;
    }
    settle_fleet(&fleet);
    double syncs_before, syncs, own = bench_cpu(), reports = reports_of(fleet.nodes, NODES, &syncs_before);
    struct since since = since_now(redis);
    double ticks = run(&fleet, options->quick ? ROW_NS / 4 : ROW_NS, redis, &pieces);
    own = bench_cpu() - own;
    reports = reports_of(fleet.nodes, NODES, &syncs) - reports;
    row->value = 1 / bench_pieces_sum(&pieces, row, 1e3, 1) / 1e3;
    tell_others(row, redis, &since);
    bench_detail(row, "keys_a_script", reports / (syncs - syncs_before));
    bench_detail(row, "share_with_slices", 1 - ticks * cold * NODES / reports);
    bench_detail(row, "client_us_a_key_with_its_takes", own * 1e6 / reports);
    watch(held, redis, row, run_on, &fleet);
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
    struct held held = {0, 0, 0};
    int all = bench_wanted(options, "R6");
    bench_core_open();
    if (all || bench_wanted(options, "R4")) {
        plain(options, redis, &held);
    }
    if (all || bench_wanted(options, "R5a")) {
        with_slices(options, redis, 1600, 0, "slices", &five, &held);
    }
    if (all || bench_wanted(options, "R5b")) {
        with_slices(options, redis, 192, 366, "mixed", &mixed, &held);
    }
    bench_core_close();
    six.value = held.p99;
    bench_detail(&six, "longest_ms", held.largest);
    bench_detail(&six, "server_waited_ms", held.waited);
    if (all) {
        bench_report(options, &six);
    }
}

#endif
