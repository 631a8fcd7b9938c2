/* SPDX-License-Identifier: MIT */
/*
 * Rows R1 to R3: strict decisions a second through weir_take_async, closed loop, against redis-benchmark sending the
 * very call that weir sends for one take, in turn within each round. The client has the first CPU, Redis the second.
 */
#include "rows.h"

#ifdef WEIR_BENCH_SYNC

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include <weir/sync.h>

#include "limiter.h"
#include "redis_load.h"
#include "redis_server.h"

#define CALLERS_MAX 8192u
#define ROUNDS 7u
#define TRIAL_NS UINT64_C(800000000)
#define KEYS 100000u
#define HOT_KEYS 1000u

/* ---- latencies: ticks, 32 steps to each doubling ----------------------------------------------------------------- */

#define STEPS 32u
struct histogram {
    uint64_t counts[64 * STEPS], total;
};

static void note(struct histogram *h, uint64_t ticks)
{
    unsigned shift = ticks >= 2 * STEPS ? 58u - (unsigned)__builtin_clzll(ticks) : 0;
    h->counts[shift * STEPS + (ticks >> shift)]++;
    h->total++;
}

static double quantile_us(const struct histogram *h, double q)
{
    uint64_t rank = (uint64_t)(q * (double)h->total), seen = 0;
    size_t i = 0;
    while (i + 1 < sizeof h->counts / sizeof h->counts[0] && seen + h->counts[i] <= rank) {
        seen += h->counts[i++];
    }
    unsigned shift = i < 2 * STEPS ? 0 : (unsigned)(i / STEPS) - 1;
    return bench_ns((double)((i - shift * STEPS) << shift)) / 1e3;
}

/* ---- callers: each asks again as soon as it is answered ---------------------------------------------------------- */

struct load;

struct caller {
    struct load *load;
    uint64_t asked;
};

struct load {
    struct bench_node node;
    struct caller callers[CALLERS_MAX];
    struct histogram latency;
    uint64_t random, done, flying, end;
    unsigned keys;
};

static void on_answer(void *arg, int status, const struct weir_result *result);

static void ask(struct caller *caller)
{
    struct load *load = caller->load;
    char key[32];
    struct weir_request request = {.policy = load->node.policy, .key = key, .cost = 1};
    unsigned number = (unsigned)bench_below(bench_random(&load->random), load->keys);
    request.key_len = (size_t)bench_key(key, number);
    caller->asked = bench_ticks();
    load->flying++;
    limiter_check(weir_take_async(load->node.w, &request, on_answer, caller), "weir_take_async");
}

static void on_answer(void *arg, int status, const struct weir_result *result)
{
    struct caller *caller = arg;
    struct load *load = caller->load;
    if (status != WEIR_ALLOW || (result->flags & WEIR_DEGRADED) != 0) {
        bench_die("a strict take gave %d, flags %u", status, (unsigned)result->flags);
    }
    note(&load->latency, bench_ticks() - caller->asked);
    load->done++;
    load->flying--;
    if (bench_clock_ns() < load->end) {
        ask(caller);
    }
}

/* Decisions a second. */
static double trial(struct load *load, unsigned callers, uint64_t ns)
{
    uint64_t begin = bench_clock_ns();
    load->done = 0;
    load->end = begin + ns;
    for (unsigned i = 0; i < callers; i++) {
        load->callers[i].load = load;
        ask(&load->callers[i]);
    }
    while (load->flying > 0) {
        uv_run(load->node.loop, UV_RUN_ONCE);
    }
    return (double)load->done / ((double)(bench_clock_ns() - begin) / 1e9);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { EACH, MERGED, HOT, SPREAD, ROWS };

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
    [MERGED] = {"R2",
                "strict, merged, 1,024 callers, random keys / redis-benchmark",
                3.5,
                1024,
                KEYS,
                {.prefix = "merged", .shards = 1}},
    [HOT] = {"R3",
             "strict, merged, 8,192 callers, 1,000 hot keys / redis-benchmark",
             6,
             8192,
             HOT_KEYS,
             {.prefix = "hot", .shards = 1}},
    /* not a row, but a detail of R2: the default number of shards, of which each has 16 of the callers */
    [SPREAD] = {"R2s", "R2 with 64 shards", 0, 1024, KEYS, {.prefix = "spread"}},
};

struct figures {
    double ratio[ROUNDS], rate[ROUNDS], server[ROUNDS], client[ROUNDS]; /* us of CPU a decision */
};

static const char *measure(struct bench_redis *redis, const struct bench_call *call, struct load **loads, size_t rounds,
                           struct figures *figures, double *peer, double *peer_server)
{
    const char *why = NULL;
    double rough = bench_redis_peer(redis, call, 1, 256, 50000, KEYS, &why);
    for (size_t i = 0; i < ROWS; i++) {
        trial(loads[i], plans[i].callers, TRIAL_NS);
        loads[i]->latency = (struct histogram){.total = 0};
    }
    for (size_t r = 0; r < rounds; r++) {
        unsigned count = (unsigned)(rough * (double)TRIAL_NS / 1e9) + 1000;
        double server = bench_redis_cpu(redis);
        peer[r] = why == NULL ? bench_redis_peer(redis, call, 1, 256, count, KEYS, &why) : 0;
        peer_server[r] = (bench_redis_cpu(redis) - server) * 1e6 / count;
        for (size_t i = 0; i < ROWS; i++) {
            double spent = bench_redis_cpu(redis), client = bench_cpu();
            figures[i].rate[r] = trial(loads[i], plans[i].callers, TRIAL_NS);
            figures[i].client[r] = (bench_cpu() - client) * 1e6 / (double)loads[i]->done;
            figures[i].server[r] = (bench_redis_cpu(redis) - spent) * 1e6 / (double)loads[i]->done;
            figures[i].ratio[r] = peer[r] > 0 ? figures[i].rate[r] / peer[r] : 0;
        }
    }
    return why;
}

static void report(const struct bench_options *options, const struct plan *plan, struct load *load,
                   struct figures *figures, size_t rounds, double peer, double peer_server, double spread,
                   const char *why)
{
    struct bench_row row = {.id = plan->id, .what = plan->what, .goal = plan->goal, .kind = BENCH_AT_LEAST};
    row.skipped = why;
    row.value = bench_quantile(figures->ratio, rounds, 0.5);
    bench_detail(&row, "decisions_a_second", bench_quantile(figures->rate, rounds, 0.5));
    bench_detail(&row, "redis_benchmark", peer);
    bench_detail(&row, "redis_benchmark_server_us", peer_server);
    bench_detail(&row, "server_us", bench_quantile(figures->server, rounds, 0.5));
    bench_detail(&row, "client_us", bench_quantile(figures->client, rounds, 0.5));
    bench_detail(&row, "p50_us", quantile_us(&load->latency, 0.5));
    bench_detail(&row, "p99_us", quantile_us(&load->latency, 0.99));
    bench_detail(&row, "p999_us", quantile_us(&load->latency, 0.999));
    if (plan == &plans[MERGED]) {
        bench_detail(&row, "with_64_shards", spread);
    }
    bench_report(options, &row);
}

static void strict_rows(const struct bench_options *options, struct bench_redis *redis)
{
    struct load *loads[ROWS];
    struct figures figures[ROWS];
    double peer[ROUNDS], peer_server[ROUNDS];
    size_t rounds = options->quick ? 3 : ROUNDS;
    struct bench_call call;
    bench_redis_listen(redis);
    for (size_t i = 0; i < ROWS; i++) {
        loads[i] = bench_alloc(sizeof *loads[i]);
        memset(loads[i], 0, sizeof *loads[i]);
        loads[i]->random = i + 1;
        loads[i]->keys = plans[i].keys;
        struct bench_node_options o = plans[i].options;
        o.mode = WEIR_STRICT;
        o.limit = o.burst = 100000000; /* never the limit: what is measured is admission */
        bench_node_open(&loads[i]->node, redis->uri, NULL, &o);
        if (i == EACH) {
            trial(loads[i], 1, 1);
            bench_redis_heard(redis, &call);
        }
    }
    const char *why = measure(redis, &call, loads, rounds, figures, peer, peer_server);
    double rate = bench_quantile(peer, rounds, 0.5), each = bench_quantile(peer_server, rounds, 0.5);
    for (size_t i = 0; i < ROWS; i++) {
        if (i != SPREAD) {
            report(options, &plans[i], loads[i], &figures[i], rounds, rate, each,
                   bench_quantile(figures[SPREAD].ratio, rounds, 0.5), why);
        }
        bench_node_close(&loads[i]->node);
        free(loads[i]);
    }
    bench_call_free(&call);
}

void redis_rows(const struct bench_options *options)
{
    static const char *const ids[] = {"R1", "R2", "R3", "R4", "R5a", "R5b", "R6"};
    struct bench_redis redis;
    const char *why = bench_redis_open(&redis);
    if (why != NULL) {
        for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
            struct bench_row row = {.id = ids[i], .what = "rows on Redis", .skipped = why};
            bench_report(options, &row);
        }
        return;
    }
    if (bench_wanted(options, "R1") || bench_wanted(options, "R2") || bench_wanted(options, "R3")) {
        strict_rows(options, &redis);
    }
    if (bench_wanted(options, "R4") || bench_wanted(options, "R5") || bench_wanted(options, "R6")) {
        reconcile_rows(options, &redis);
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
