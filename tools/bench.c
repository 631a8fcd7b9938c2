/* SPDX-License-Identifier: MIT */
/*
 * Owns a few seconds of work by the public interface alone, and how fast it was. What the project itself is held to is
 * measured by benchmarks/, against floors; this tells a user what his machine and his Redis do.
 */
#include "tools/bench.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weir/sync.h>
#include <weir/weir.h>

#include "tools/args.h"
#include "tools/exits.h"
#include "tools/json.h"
#include "tools/store.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define KEYS 100000u
#define KEY_LEN 16u
#define BATCH 16u
#define TURN 512u /* decisions between two looks at the clock */
#define THREADS_MOST 64
#define WINDOW 256u /* strict requests on their way */
#define RATE_MOST 100000000

static const char help[] =
    "usage: weir bench [OPTIONS]\n"
    "\n"
    "Decisions a second on this machine and, with --redis, against that Redis. A few seconds; no goals: ./run bench "
    "of\n"
    "the source tree has those.\n"
    "\n"
    "  --seconds T           of each row (default 0.5s)\n"
    "  --threads N           of the rows that say so (default: as there are CPUs, at most 64)\n" STORE_HELP
    "  --json                one JSON object\n"
    "  --help\n"
    "\n"
    "Redis is measured with a policy of its own, `bench`, whose keys are gone some minutes later. Give it a --prefix "
    "if\n"
    "somebody has a policy of that name. Exit status: 0 done, 1 failed here, 2 wrong command line, 3 Redis did not\n"
    "answer.\n"
    "\n"
    "Members of the JSON object: rows: [name, threads, decisions_per_s, ns_each (a thread's time for one), "
    "round_trip_us\n"
    "(null where there is none)].\n";

enum { OPT_SECONDS = 256, OPT_THREADS, OPT_JSON };

static const struct option options[] = {
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"threads", required_argument, NULL, OPT_THREADS},
    STORE_OPTION_LINES,
    {"json", no_argument, NULL, OPT_JSON},
    ARGS_OPTIONS_END,
};

struct bench {
    struct store_options store;
    uint64_t run_ns, threads;
    int json;
    struct weir *w;
    weir_policy_id id;
    struct weir_key *key;
    char (*keys)[KEY_LEN];
    struct json out;
};

static int set(void *out, int option, const char *text)
{
    struct bench *b = out;
    switch (option) {
    case OPT_SECONDS: return args_time(text, &b->run_ns) != 0 || b->run_ns < MS || b->run_ns > 60 * SECOND ? -1 : 0;
    case OPT_THREADS: return args_count(text, 1, THREADS_MOST, &b->threads);
    case OPT_JSON: b->json = 1; return 0;
    default: return store_set(&b->store, option, text);
    }
}

static const struct args_command command = {.name = "bench", .help = help, .options = options, .set = set};

static uint64_t clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void report(struct bench *b, const char *name, unsigned threads, double per_s, double round_trip_ns)
{
    double ns = per_s > 0 ? 1e9 * threads / per_s : 0;
    if (!b->json) {
        printf("%-44s %2u  %14.0f  %8.1f ns", name, threads, per_s, ns);
        if (round_trip_ns > 0) {
            printf("  round trip %.0f us", round_trip_ns / 1e3);
        }
        putchar('\n');
        fflush(stdout);
        return;
    }
    json_item(&b->out);
    json_text(&b->out, "name", name);
    json_count(&b->out, "threads", threads);
    json_number(&b->out, "decisions_per_s", per_s);
    json_number(&b->out, "ns_each", ns);
    json_number(&b->out, "round_trip_us", round_trip_ns > 0 ? round_trip_ns / 1e3 : NAN);
}

/* One turn: TURN decisions; returns how many of them were not allowed or failed. */
typedef unsigned (*turn_fn)(struct bench *b, uint32_t *random);

static uint32_t step(uint32_t *random)
{
    *random = *random * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*random * KEYS) >> 32);
}

static unsigned turn_handle(struct bench *b, uint32_t *random)
{
    unsigned wrong = 0;
    (void)random;
    for (unsigned i = 0; i < TURN; i++) {
        wrong += weir_key_take(b->key, 1, 0, NULL) != WEIR_ALLOW;
    }
    return wrong;
}

static unsigned turn_keys(struct bench *b, uint32_t *random)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < TURN; i++) {
        wrong += weir_take(b->w, b->id, b->keys[step(random)], KEY_LEN, 1, NULL) != WEIR_ALLOW;
    }
    return wrong;
}

/* A process that has just joined may be denied what the others were promised: a decision all the same. */
static unsigned turn_shared(struct bench *b, uint32_t *random)
{
    unsigned wrong = 0;
    for (unsigned i = 0; i < TURN; i++) {
        wrong += weir_take(b->w, b->id, b->keys[step(random)], KEY_LEN, 1, NULL) < 0;
    }
    return wrong;
}

static unsigned turn_many(struct bench *b, uint32_t *random)
{
    struct weir_request requests[BATCH];
    unsigned wrong = 0;
    memset(requests, 0, sizeof requests);
    for (unsigned i = 0; i < TURN; i += BATCH) {
        for (unsigned j = 0; j < BATCH; j++) {
            requests[j].policy = b->id;
            requests[j].key = b->keys[step(random)];
            requests[j].key_len = KEY_LEN;
            requests[j].cost = 1;
        }
        weir_take_many(b->w, requests, BATCH, 0);
        for (unsigned j = 0; j < BATCH; j++) {
            wrong += requests[j].status != WEIR_ALLOW;
        }
    }
    return wrong;
}

struct worker {
    struct bench *b;
    turn_fn turn;
    pthread_t thread;
    uint64_t end, done, wrong, took;
    uint32_t random;
};

static void *work(void *arg)
{
    struct worker *me = arg;
    uint64_t began = clock_ns(), now;
    do { /* once at least: it may have had no CPU until now */
        me->wrong += me->turn(me->b, &me->random);
        me->done += TURN;
        now = clock_ns();
    } while (now < me->end);
    me->took = now - began;
    return NULL;
}

/* 0, or -1 where decisions came out otherwise than they had to, or no thread could be made: a figure of wrong work is
 * worth nothing. */
static int measure(struct bench *b, const char *name, unsigned threads, turn_fn turn)
{
    static struct worker workers[THREADS_MOST];
    uint64_t wrong = 0;
    double per_s = 0;
    unsigned started = 0;
    for (unsigned i = 0; i < threads; i++) {
        workers[i] = (struct worker){.b = b, .turn = turn, .end = clock_ns() + b->run_ns, .random = i * 977};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            break;
        }
        started++;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(workers[i].thread, NULL);
        wrong += workers[i].wrong;
        per_s += (double)workers[i].done * 1e9 / (double)workers[i].took;
    }
    if (started < threads || wrong > 0) {
        fprintf(stderr, "weir bench: %s: %s\n", name,
                wrong ? "decisions that should be allowed were not" : "no thread");
        return -1;
    }
    report(b, name, threads, per_s, 0);
    return 0;
}

/* ---- in memory --------------------------------------------------------------------------------------------------- */

/* A limit that nothing here reaches. */
static struct weir_policy policy_of(const struct bench *b, enum weir_mode mode)
{
    struct weir_policy p = WEIR_POLICY_INIT;
    p.name = "bench";
    p.group = mode == WEIR_STRICT ? b->store.group : NULL;
    p.limit = RATE_MOST;
    p.per_ns = SECOND;
    p.burst = UINT64_C(100) * RATE_MOST;
    p.mode = mode;
    return p;
}

static int open_limiter(struct bench *b, enum weir_mode mode)
{
    struct weir_options o = WEIR_OPTIONS_INIT;
    struct weir_policy p = policy_of(b, mode);
    o.max_keys = 2 * KEYS;
    int status = weir_open(&b->w, &o);
    if (status == 0) {
        status = weir_policy_add(b->w, &p, &b->id);
    }
    if (status < 0) {
        fprintf(stderr, "weir bench: %s\n", weir_strerror(status));
        weir_close(b->w);
        b->w = NULL;
        return EXIT_NO;
    }
    return EXIT_DONE;
}

/* Every key once: its memory is there, and a shared one is known to Redis soon. */
static void warm_up(struct bench *b)
{
    for (unsigned i = 0; i < KEYS; i++) {
        weir_take(b->w, b->id, b->keys[i], KEY_LEN, 1, NULL);
    }
}

static int bench_local(struct bench *b)
{
    unsigned threads = (unsigned)b->threads;
    if (open_limiter(b, WEIR_LOCAL) != EXIT_DONE) {
        return EXIT_NO;
    }
    warm_up(b);
    int failed = weir_key_open(b->w, b->id, "hot", 3, &b->key) != 0 ||
                 measure(b, "in memory, key handle", 1, turn_handle) ||
                 (threads > 1 && measure(b, "in memory, key handle, all threads the same", threads, turn_handle)) ||
                 measure(b, "in memory, 100,000 keys", 1, turn_keys) ||
                 (threads > 1 && measure(b, "in memory, 100,000 keys", threads, turn_keys)) ||
                 measure(b, "in memory, 100,000 keys, 16 at once", 1, turn_many);
    weir_key_close(b->key);
    weir_close(b->w);
    return failed ? EXIT_NO : EXIT_DONE;
}

/* ---- Redis ------------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t answered, degraded, on_their_way;
static _Atomic int asking;

struct asker {
    struct bench *b;
    uint32_t random;
};

static void ask(struct asker *asker);

static void on_answer(void *arg, int status, const struct weir_result *result)
{
    atomic_fetch_add_explicit(&answered, 1, memory_order_relaxed);
    if (status != WEIR_ALLOW || (result && result->flags & WEIR_DEGRADED)) {
        atomic_fetch_add_explicit(&degraded, 1, memory_order_relaxed);
    }
    atomic_fetch_sub_explicit(&on_their_way, 1, memory_order_release);
    if (atomic_load_explicit(&asking, memory_order_relaxed)) {
        ask(arg);
    }
}

static void ask(struct asker *asker)
{
    struct bench *b = asker->b;
    struct weir_request request = {
        .policy = b->id, .key = b->keys[step(&asker->random)], .key_len = KEY_LEN, .cost = 1};
    atomic_fetch_add_explicit(&on_their_way, 1, memory_order_relaxed);
    if (weir_take_async(b->w, &request, on_answer, asker) != 0) {
        atomic_fetch_sub_explicit(&on_their_way, 1, memory_order_release);
        atomic_fetch_add_explicit(&degraded, 1, memory_order_relaxed);
    }
}

static void pause_ns(uint64_t ns)
{
    struct timespec ts = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
    nanosleep(&ts, NULL);
}

/* One at a time: its median. */
static double round_trip(struct bench *b)
{
    double best[101] = {0};
    unsigned n = 0;
    for (; n < 101; n++) {
        struct weir_request request = {.policy = b->id, .key = b->keys[n], .key_len = KEY_LEN, .cost = 1};
        uint64_t began = clock_ns();
        struct weir_result result;
        if (weir_take_wait(b->w, &request, 0, &result) != WEIR_ALLOW || result.flags & WEIR_DEGRADED) {
            return -1;
        }
        double took = (double)(clock_ns() - began);
        unsigned i = n;
        for (; i > 0 && best[i - 1] > took; i--) {
            best[i] = best[i - 1];
        }
        best[i] = took;
    }
    return best[n / 2];
}

static int measure_strict(struct bench *b)
{
    static struct asker askers[WINDOW];
    double trip = round_trip(b);
    if (trip < 0) {
        return -1;
    }
    atomic_store_explicit(&asking, 1, memory_order_relaxed);
    uint64_t began = clock_ns();
    for (unsigned i = 0; i < WINDOW; i++) {
        askers[i] = (struct asker){.b = b, .random = i * 7919};
        ask(&askers[i]);
    }
    uint64_t done;
    pause_ns(b->run_ns);
    while ((done = atomic_load_explicit(&answered, memory_order_relaxed)) == 0 &&
           atomic_load_explicit(&on_their_way, memory_order_relaxed) > 0) {
        pause_ns(MS); /* it comes: at the latest by its timeout */
    }
    uint64_t took = clock_ns() - began;
    atomic_store_explicit(&asking, 0, memory_order_relaxed);
    /* each is called back, at the latest by its timeout */
    while (atomic_load_explicit(&on_their_way, memory_order_acquire) > 0) {
        pause_ns(MS);
    }
    if (atomic_load_explicit(&degraded, memory_order_relaxed) > 0) {
        fprintf(stderr, "weir bench: Redis did not answer all of it\n");
        return -1;
    }
    report(b, "strict, 256 on their way, 100,000 keys", 1, (double)done * 1e9 / (double)took, trip);
    return 0;
}

/* Waits until Redis takes commands. */
static int wait_for_store(struct bench *b)
{
    struct weir_stats stats = {.size = sizeof stats};
    uint64_t began = clock_ns();
    while (weir_stats_get(b->w, &stats) == 0 && !stats.store_up) {
        if (clock_ns() - began > b->store.timeout_ms * MS) {
            return -1;
        }
        pause_ns(MS);
    }
    return 0;
}

static void on_flushed(void *arg, int status, uint64_t unsent)
{
    (void)unsent;
    atomic_store_explicit((_Atomic int *)arg, status == 0 ? 1 : -1, memory_order_release);
}

/* Every key has been told to Redis, and Redis has told what may be lent. */
static int measure_hybrid(struct bench *b, struct weir_sync *sync)
{
    _Atomic int flushed = 0;
    warm_up(b);
    if (weir_sync_flush(sync, on_flushed, &flushed) != 0) {
        return EXIT_UNREACHED;
    }
    while (atomic_load_explicit(&flushed, memory_order_acquire) == 0) {
        pause_ns(MS);
    }
    if (atomic_load_explicit(&flushed, memory_order_acquire) < 0) {
        fprintf(stderr, "weir bench: Redis did not answer all of it\n");
        return EXIT_UNREACHED;
    }
    return measure(b, "hybrid, 100,000 keys reported to Redis", 1, turn_shared) == 0 ? EXIT_DONE : EXIT_NO;
}

static int with_redis(struct bench *b, enum weir_mode mode)
{
    struct weir_sync_options o = WEIR_SYNC_OPTIONS_INIT;
    struct weir_sync *sync;
    if (open_limiter(b, mode) != EXIT_DONE) {
        return EXIT_NO;
    }
    o.uri = b->store.uri;
    o.prefix = b->store.prefix;
    o.shards = b->store.shards;
    o.timeout_ms = b->store.timeout_ms;
    o.drain_ms = 10 * b->store.timeout_ms; /* how long a flush may take */
    int code = EXIT_UNREACHED, status = weir_sync_start(&sync, b->w, NULL, &o);
    if (status < 0) {
        args_wrong(&command, "%s", weir_strerror(status));
        weir_close(b->w);
        return EXIT_USAGE;
    }
    if (wait_for_store(b) != 0) {
        fprintf(stderr, "weir bench: no answer from Redis\n");
    } else if (mode == WEIR_STRICT) {
        code = measure_strict(b) == 0 ? EXIT_DONE : EXIT_UNREACHED;
    } else {
        code = measure_hybrid(b, sync);
    }
    weir_sync_close(sync, NULL, NULL);
    weir_close(b->w);
    return code;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int run(struct bench *b)
{
    int code = bench_local(b);
    if (code == EXIT_DONE && b->store.uri) {
        code = with_redis(b, WEIR_HYBRID);
    }
    if (code == EXIT_DONE && b->store.uri) {
        code = with_redis(b, WEIR_STRICT);
    }
    return code;
}

int bench_main(int argc, char **argv)
{
    static struct bench b = {.store = STORE_DEFAULTS, .run_ns = SECOND / 2};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    b.threads = cpus < 1 ? 1 : cpus > THREADS_MOST ? THREADS_MOST : (uint64_t)cpus;
    int first = args_options(&command, argc, argv, &b);
    if (first <= 0) {
        return first == 0 ? EXIT_DONE : EXIT_USAGE;
    }
    b.keys = malloc(KEYS * sizeof *b.keys);
    if (!b.keys) {
        return EXIT_NO;
    }
    for (unsigned i = 0; i < KEYS; i++) {
        char text[KEY_LEN + 1];
        snprintf(text, sizeof text, "user:%011u", i);
        memcpy(b.keys[i], text, KEY_LEN);
    }
    if (b.json) {
        json_open(&b.out, stdout);
        json_list_begin(&b.out, "rows");
    } else {
        printf("%-44s %2s  %14s  %11s\n", "", "n", "decisions/s", "each");
    }
    int code = run(&b);
    if (b.json) {
        json_list_end(&b.out);
        json_close(&b.out);
    }
    free(b.keys);
    return code;
}
