/* SPDX-License-Identifier: MIT */
/*
 * Rows R1 to R3: strict decisions a second through weir_take_async, closed loop, against redis-benchmark sending the
 * very call that weir sends for one take, in turn within each round. The client has the first CPU, Redis the second.
 * And which rows on Redis are run at all.
 */
#include "rows.h"

#ifdef WEIR_BENCH_SYNC

#include "redis_callers.h"
#include "redis_server.h"

#define ROUNDS 7u
#define TRIAL_NS UINT64_C(800000000)
#define KEYS 100000u
#define HOT_KEYS 1000u

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { EACH, MERGED, HOT, ALONE, ROWS };

static const struct plan {
    const char *id, *what;
    double goal;
    unsigned callers, keys;
    struct bench_node_options options;
} plans[ROWS] = {
    [EACH] = {"R1",
              "strict, a script a call, window 256 / redis-benchmark, same script",
              0.97,
              256,
              KEYS,
              {.prefix = "each", .batch_max = 1, .window = 256, .shards = 1}},
    [MERGED] =
        {"R2", "strict, merged, 1,024 callers, random keys / redis-benchmark", 3.5, 1024, KEYS, {.prefix = "merged"}},
    [HOT] =
        {"R3", "strict, merged, 8,192 callers, 1,000 hot keys / redis-benchmark", 6, 8192, HOT_KEYS, {.prefix = "hot"}},
    /* not a row, but a detail of R2 */
    [ALONE] = {"R2s", "R2 with one shard", 0, 1024, KEYS, {.prefix = "alone", .shards = 1}},
};

struct figures {
    double ratio[ROUNDS], rate[ROUNDS], server[ROUNDS], client[ROUNDS]; /* us of CPU a decision */
};

/* One trial of each in every round, the one that begins moving on by one. */
static const char *measure(struct bench_redis *redis, const struct bench_call *call, struct callers **callers,
                           size_t rounds, struct figures *figures, struct figures *peer)
{
    const char *why = NULL;
    double rough = bench_redis_peer(redis, call, 0, 256, 50000, KEYS, &why);
    for (size_t i = 0; i < ROWS; i++) {
        callers_closed(callers[i], plans[i].callers, TRIAL_NS);
        callers[i]->latency = (struct histogram){.total = 0};
    }
    for (size_t r = 0; r < rounds; r++) {
        for (size_t turn = 0; turn <= ROWS; turn++) {
            size_t i = (turn + r) % (ROWS + 1);
            double server = bench_redis_cpu(redis), client = bench_cpu(), count;
            struct figures *to = i < ROWS ? &figures[i] : peer;
            if (i < ROWS) {
                to->rate[r] = callers_closed(callers[i], plans[i].callers, TRIAL_NS);
                count = (double)callers[i]->done;
            } else {
                count = (double)(unsigned)(rough * (double)TRIAL_NS / 1e9) + 1000;
                to->rate[r] = why == NULL ? bench_redis_peer(redis, call, 0, 256, (unsigned)count, KEYS, &why) : 0;
            }
            to->client[r] = (bench_cpu() - client) * 1e6 / count;
            to->server[r] = (bench_redis_cpu(redis) - server) * 1e6 / count;
        }
        for (size_t i = 0; i < ROWS; i++) {
            figures[i].ratio[r] = peer->rate[r] > 0 ? figures[i].rate[r] / peer->rate[r] : 0;
        }
    }
    return why;
}

static void report(const struct bench_options *options, size_t i, struct callers *callers, struct figures *figures,
                   size_t rounds, struct figures *peer, const char *why)
{
    struct bench_row row = {.id = plans[i].id, .what = plans[i].what, .goal = plans[i].goal, .kind = BENCH_AT_LEAST};
    row.skipped = why;
    row.value = bench_quantile(figures[i].ratio, rounds, 0.5);
    bench_detail(&row, "decisions_a_second", bench_quantile(figures[i].rate, rounds, 0.5));
    bench_detail(&row, "redis_benchmark", bench_quantile(peer->rate, rounds, 0.5));
    bench_detail(&row, "redis_benchmark_server_us", bench_quantile(peer->server, rounds, 0.5));
    bench_detail(&row, "server_us", bench_quantile(figures[i].server, rounds, 0.5));
    bench_detail(&row, "client_us", bench_quantile(figures[i].client, rounds, 0.5));
    bench_detail(&row, "p50_us", histogram_us(&callers->latency, 0.5));
    bench_detail(&row, "p99_us", histogram_us(&callers->latency, 0.99));
    bench_detail(&row, "p999_us", histogram_us(&callers->latency, 0.999));
    if (i == MERGED) {
        bench_detail(&row, "with_one_shard", bench_quantile(figures[ALONE].ratio, rounds, 0.5));
    }
    bench_report(options, &row);
}

/* Opens the callers of a row; those of R1 first show what they send. */
static void strict_rows(const struct bench_options *options, struct bench_redis *redis, const struct bench_call *call)
{
    struct callers *callers[ROWS];
    struct figures figures[ROWS], peer;
    size_t rounds = options->quick ? 3 : ROUNDS;
    for (size_t i = 0; i < ROWS; i++) {
        callers[i] = callers_open(redis->uri, &plans[i].options, plans[i].keys);
    }
    const char *why = measure(redis, call, callers, rounds, figures, &peer);
    for (size_t i = 0; i < ROWS; i++) {
        if (i != ALONE) {
            report(options, i, callers[i], figures, rounds, &peer, why);
        }
        callers_close(callers[i]);
    }
}

/* What one take alone sends. */
static void hear(struct bench_redis *redis, struct bench_call *call)
{
    bench_redis_listen(redis);
    struct callers *callers = callers_open(redis->uri, &plans[EACH].options, KEYS);
    callers_closed(callers, 1, 1);
    bench_redis_heard(redis, call);
    callers_close(callers);
}

static int wanted(const struct bench_options *options, const char *const ids[], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bench_wanted(options, ids[i])) {
            return 1;
        }
    }
    return 0;
}

void redis_rows(const struct bench_options *options)
{
    static const char *const ids[] = {"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10", "R11"};
    struct bench_redis redis;
    struct bench_call call;
    const char *why = bench_redis_open(&redis);
    if (why != NULL) {
        for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
            struct bench_row row = {.id = ids[i], .what = "rows on Redis", .skipped = why};
            bench_report(options, &row);
        }
        return;
    }
    if (wanted(options, ids, 3) || wanted(options, ids + 6, 4)) {
        hear(&redis, &call);
        if (wanted(options, ids, 3)) {
            strict_rows(options, &redis, &call);
        }
        strict_tables(options, &redis, &call);
        bench_call_free(&call);
    }
    if (wanted(options, ids + 3, 3)) {
        reconcile_rows(options, &redis);
    }
    if (wanted(options, ids + 10, 1)) {
        circuit_row(options);
    }
    bench_redis_close(&redis);
}

#else

void redis_rows(const struct bench_options *options)
{
    struct bench_row row = {.id = "R1", .what = "rows on Redis", .skipped = "built without libweir-sync"};
    bench_report(options, &row);
}

#endif
