/* SPDX-License-Identifier: MIT */
/*
 * Row L9: the 99.9th percentile of one take while the sync thread reconciles 100,000 keys with a Redis of our own, over
 * the same of a limiter whose sync thread has nothing to do, as is watched: what it did while keys of it were reported
 * all the same doesn't count. The takes have the first CPU, sync and Redis the second.
 * Each key is taken from once a second, in turn, and reported as often: none is asked for so often that it would hold a
 * slice, even where a report comes late and tells of two takes, and one CPU suffices for all reports. Counted are the
 * takes during which that sync thread did run: on a busy machine it doesn't all the time.
 */
#include "rows.h"

static const char what[] = "p99.9 of a take while syncing 100k keys / idle";

#ifdef WEIR_BENCH_SYNC

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weir/sync.h>

#include "limiter.h"
#include "tools/private_redis.h"

#define KEYS 100000u
#define TRIAL_NS UINT64_C(750000000)
#define PART 64u                      /* takes between two looks at whether another process got the CPU */
#define ROUND_NS UINT64_C(1000000000) /* of one take from each key */
#define IDLE_INTERVAL_MS 3600000u

/* ---- latencies --------------------------------------------------------------------------------------------------- */

/* Counts by ticks, 32 steps to each doubling: a percentile is right to 3 %. */
#define STEPS 32u
struct histogram {
    uint64_t counts[64 * STEPS];
    uint64_t total;
};

static void note(struct histogram *h, uint64_t ticks)
{
    unsigned shift = 0;
    if (ticks >= 2 * STEPS) {
        shift = 58u - (unsigned)__builtin_clzll(ticks); /* leaves STEPS to 2 * STEPS - 1 */
    }
    h->counts[shift * STEPS + (ticks >> shift)]++;
    h->total++;
}

static double quantile_ns(const struct histogram *h, double q)
{
    uint64_t rank = (uint64_t)(q * (double)h->total), seen = 0;
    size_t i = 0;
    while (i + 1 < sizeof h->counts / sizeof h->counts[0] && seen + h->counts[i] <= rank) {
        seen += h->counts[i++];
    }
    unsigned shift = i < 2 * STEPS ? 0 : (unsigned)(i / STEPS) - 1;
    return bench_ns((double)((i - shift * STEPS) << shift));
}

/* ---- limiters ---------------------------------------------------------------------------------------------------- */

struct subject {
    clockid_t cpu_time; /* of its sync thread */
    struct weir *w;
    struct weir_sync *sync;
    weir_policy_id policy;
    struct key16 *keys;
    size_t next;
    uint64_t allowed, done;
};

static void finished(void *arg, int status, uint64_t unsent)
{
    (void)unsent;
    atomic_store_explicit((_Atomic int *)arg, status == 0 ? 1 : -1, memory_order_release);
}

/* What the callback said. It comes within drain_ms and some more. */
static int wait_for(_Atomic int *flag)
{
    for (int ms = 0; atomic_load_explicit(flag, memory_order_acquire) == 0; ms++) {
        if (ms > 60000) {
            bench_die("tail: a callback never came");
        }
        usleep(1000);
    }
    return atomic_load_explicit(flag, memory_order_acquire);
}

/* The newest thread of this process: they count upwards, but for a wrap that happens once in thousands of runs, and is
 * noticed for that thread does nothing. */
static clockid_t newest_threads_clock(void)
{
    DIR *tasks = opendir("/proc/self/task");
    long newest = 0;
    for (struct dirent *task = tasks ? readdir(tasks) : NULL; task != NULL; task = readdir(tasks)) {
        long id = strtol(task->d_name, NULL, 10);
        newest = id > newest ? id : newest;
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return (clockid_t)(~(unsigned)newest << 3 | 6); /* as pthread_getcpuclockid makes it on Linux */
}

static uint64_t sync_cpu_ns(const struct subject *s)
{
    struct timespec t;
    if (clock_gettime(s->cpu_time, &t) != 0) {
        bench_die("tail: no CPU clock of the sync thread");
    }
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int take_and_flush(struct subject *s)
{
    _Atomic int flushed = 0;
    for (size_t i = 0; i < KEYS; i++) {
        weir_take(s->w, s->policy, &s->keys[i], sizeof s->keys[i], 1, NULL);
    }
    limiter_check(weir_sync_flush(s->sync, finished, &flushed), "weir_sync_flush");
    return wait_for(&flushed) == 1;
}

/* All keys are known to Redis then. Where they are reported once an hour the second take asks for a share and the third
 * has it, so that nothing is left to do. Returns 0 where a reconciliation took longer than drain_ms. */
static int open_subject(struct subject *s, const char *socket, const char *prefix, uint32_t interval_ms)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    char uri[128];
    snprintf(uri, sizeof uri, "unix://%s", socket);
    options.uri = uri;
    options.prefix = prefix;
    options.interval_ms = interval_ms;
    options.timeout_ms = 5000; /* a sync thread that waits for a CPU makes no outage: those cost a take more */
    options.drain_ms = 20000;
    options.fleet_hint = 1;
    s->w = limiter_open(2 * KEYS);
    policy.name = "tail";
    policy.limit = 1000000;
    policy.per_ns = UINT64_C(1000000000);
    policy.burst = 1000000000;
    limiter_check(weir_policy_add(s->w, &policy, &s->policy), "weir_policy_add");
    bench_pin(1); /* the sync thread inherits it */
    limiter_check(weir_sync_start(&s->sync, s->w, NULL, &options), "weir_sync_start");
    bench_pin(0);
    s->cpu_time = newest_threads_clock();
    int done = 1;
    for (int i = 0; i < (interval_ms == IDLE_INTERVAL_MS ? 3 : 1) && done; i++) {
        done = take_and_flush(s);
    }
    return done;
}

static void close_subject(struct subject *s)
{
    _Atomic int closed = 0;
    limiter_check(weir_sync_close(s->sync, finished, &closed), "weir_sync_close");
    wait_for(&closed);
    weir_close(s->w);
}

static struct weir_stats stats_of(const struct subject *s)
{
    struct weir_stats stats = {.size = sizeof stats};
    limiter_check(weir_stats_get(s->w, &stats), "weir_stats_get");
    return stats;
}

/* Takes from the keys in turn for TRIAL_NS, each when its time has come; what it takes is added to h. Not so where
 * another process got the CPU meanwhile (it was not the sync thread, which has the other one), nor, where busy, if that
 * thread did nothing meanwhile. */
static void trial(struct subject *s, struct histogram *h, int busy)
{
    double gap = (double)ROUND_NS / KEYS / bench_ns(1); /* ticks */
    uint64_t start = bench_ticks(), takes = TRIAL_NS / (ROUND_NS / KEYS), ticks[PART];
    for (uint64_t first = 0; first < takes; first += PART) {
        uint64_t ran = sync_cpu_ns(s);
        long preempted = bench_preemptions();
        for (uint64_t i = 0; i < PART; i++) {
            const struct key16 *key = &s->keys[s->next];
            uint64_t due = start + (uint64_t)(gap * (double)(first + i)), begin;
            s->next = s->next + 1 < KEYS ? s->next + 1 : 0;
            do {
                begin = bench_ticks();
            } while ((int64_t)(begin - due) < 0);
            s->allowed += weir_take(s->w, s->policy, key, sizeof *key, 1, NULL) == WEIR_ALLOW;
            ticks[i] = bench_ticks() - begin;
        }
        preempted -= bench_preemptions();
        ran = sync_cpu_ns(s) - ran;
        for (uint64_t i = 0; i < PART && preempted == 0 && (!busy || ran > 0); i++) {
            note(h, ticks[i]);
        }
        s->done += PART;
    }
}

/* ---- rest -------------------------------------------------------------------------------------------------------- */

#define REST_NS UINT64_C(200000000)
#define REST_LATEST_NS UINT64_C(20000000000)
#define LATEST_NS UINT64_C(90000000000) /* of the whole row, where it doesn't rest */

/* What a sync thread has done so far. */
struct activity {
    uint64_t reports, batches, cpu_ns, at;
};

static struct activity activity_of(const struct subject *s)
{
    struct weir_stats stats = stats_of(s);
    return (struct activity){stats.reports, stats.syncs + stats.sync_errors, sync_cpu_ns(s), bench_clock_ns()};
}

/* It has sent nothing since, and hardly had a CPU. */
static int has_rested(const struct subject *s, const struct activity *since)
{
    struct activity now = activity_of(s);
    return now.reports == since->reports && now.batches == since->batches &&
           now.cpu_ns - since->cpu_ns < (now.at - since->at) / 100;
}

/* 0: it does not come to rest. */
static int wait_for_rest(const struct subject *s)
{
    uint64_t late = bench_clock_ns() + REST_LATEST_NS;
    while (bench_clock_ns() < late) {
        struct activity since = activity_of(s);
        usleep(REST_NS / 1000);
        if (has_rested(s, &since)) {
            return 1;
        }
    }
    return 0;
}

/* A trial of the limiter at rest; 0, and nothing is added to h, where it was not: takes can ask for a share early. */
static int trial_at_rest(struct subject *s, struct histogram *h)
{
    static struct histogram takes;
    struct activity since;
    memset(&takes, 0, sizeof takes);
    since = activity_of(s);
    trial(s, &takes, 0);
    if (!has_rested(s, &since)) {
        return 0;
    }
    for (size_t i = 0; i < sizeof takes.counts / sizeof takes.counts[0]; i++) {
        h->counts[i] += takes.counts[i];
    }
    h->total += takes.total;
    return 1;
}

/* ---- row --------------------------------------------------------------------------------------------------------- */

static void measure(const struct bench_options *options, struct subject *busy, struct subject *idle,
                    struct bench_row *row)
{
    enum { ROUNDS_MAX = 15, TRIALS_MAX = 25, ENOUGH = 2500 /* takes: a round has as many trials as that needs */ };
    double ratios[ROUNDS_MAX], busy_ns[ROUNDS_MAX], idle_ns[ROUNDS_MAX], busy_p50[ROUNDS_MAX];
    static struct histogram busy_takes, idle_takes;
    size_t rounds = options->quick ? 7 : ROUNDS_MAX, trials = 0, good = 0, restless = 0;
    uint64_t reports = 0, degraded = stats_of(busy).degraded + stats_of(idle).degraded, counted = 0;
    const uint64_t late = bench_clock_ns() + LATEST_NS;
    trial(idle, &idle_takes, 0);
    trial(busy, &busy_takes, 1);
    memset(&idle_takes, 0, sizeof idle_takes);
    memset(&busy_takes, 0, sizeof busy_takes);
    for (; good < rounds && trials + restless < TRIALS_MAX; trials++) {
        while (!wait_for_rest(idle) || !trial_at_rest(idle, &idle_takes)) {
            if (++restless + trials >= TRIALS_MAX || bench_clock_ns() > late) {
                row->skipped = "the idle limiter's keys were being synced: nothing to compare with";
                bench_detail(row, "idle_trials_not_at_rest", (double)restless);
                return;
            }
        }
        uint64_t before = stats_of(busy).reports;
        trial(busy, &busy_takes, 1);
        reports += stats_of(busy).reports - before;
        if (idle_takes.total < ENOUGH || busy_takes.total < ENOUGH) {
            continue;
        }
        idle_ns[good] = quantile_ns(&idle_takes, 0.999);
        busy_ns[good] = quantile_ns(&busy_takes, 0.999);
        busy_p50[good] = quantile_ns(&busy_takes, 0.5);
        ratios[good] = busy_ns[good] / idle_ns[good];
        counted += busy_takes.total;
        good++;
        memset(&idle_takes, 0, sizeof idle_takes);
        memset(&busy_takes, 0, sizeof busy_takes);
    }
    degraded = stats_of(busy).degraded + stats_of(idle).degraded - degraded;
    if (degraded == 0 && (busy->allowed != busy->done || idle->allowed != idle->done)) {
        bench_die("tail: %llu of %llu and %llu of %llu allowed", (unsigned long long)busy->allowed,
                  (unsigned long long)busy->done, (unsigned long long)idle->allowed, (unsigned long long)idle->done);
    }
    if (good < rounds / 3 || degraded > 0) {
        row->skipped = "other processes had the CPUs most of the time";
        return;
    }
    if (reports < counted / 2) {
        bench_die("tail: %llu reports of %llu takes", (unsigned long long)reports, (unsigned long long)counted);
    }
    row->value = bench_quantile(ratios, good, 0.5);
    bench_detail(row, "p999_ns", bench_quantile(busy_ns, good, 0.5));
    bench_detail(row, "idle_p999_ns", bench_quantile(idle_ns, good, 0.5));
    bench_detail(row, "p50_ns", bench_quantile(busy_p50, good, 0.5));
    bench_detail(row, "rounds", (double)good);
    bench_detail(row, "takes_counted", (double)counted);
    bench_detail(row, "idle_trials_not_at_rest", (double)restless);
    bench_detail(row, "reports_a_second", (double)reports / ((double)trials * (double)TRIAL_NS / 1e9));
}

static void with_redis(const struct bench_options *options, const char *socket, struct bench_row *row)
{
    struct subject busy = {.w = NULL}, idle = {.w = NULL};
    struct key16 *keys = bench_alloc(KEYS * sizeof *keys);
    for (size_t i = 0; i < KEYS; i++) {
        keys[i] = key16_make(i); /* their entries lie in no order */
    }
    busy.keys = idle.keys = keys;
    row->skipped = "the first reconciliation took longer than 20 s";
    if (open_subject(&idle, socket, "idle", IDLE_INTERVAL_MS)) {
        if (open_subject(&busy, socket, "busy", 200)) {
            row->skipped = NULL;
            measure(options, &busy, &idle, row);
        }
        close_subject(&busy);
    }
    close_subject(&idle);
    free(keys);
}

void tail_rows(const struct bench_options *options)
{
    struct bench_row row = {.id = "L9", .what = what, .goal = 1.2};
    struct private_redis redis;
    if (!bench_wanted(options, "L9")) {
        return;
    }
    if (bench_cpus() < 2) {
        row.skipped = "needs two CPUs";
    } else if (private_redis_open(&redis) != 0) {
        row.skipped = redis.error;
    } else {
        bench_pin(1);
        int up = private_redis_start(&redis) == 0 && private_redis_wait(&redis, 10000) == 0;
        bench_pin(0);
        if (up) {
            with_redis(options, redis.socket, &row);
        } else {
            row.skipped = redis.error;
        }
        private_redis_close(&redis);
    }
    bench_report(options, &row);
}

#else

void tail_rows(const struct bench_options *options)
{
    struct bench_row row = {.id = "L9", .what = what, .goal = 1.2, .skipped = "built without libweir-sync"};
    if (bench_wanted(options, "L9")) {
        bench_report(options, &row);
    }
}

#endif
