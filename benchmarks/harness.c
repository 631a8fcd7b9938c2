/* SPDX-License-Identifier: MIT */
/* See harness.h. Owns the calibration and the threads of a run; knows nothing of weir. */
#define _GNU_SOURCE
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define THREADS_MAX 8u
#define TRIES_MAX 8

static double ns_per_tick;
static cpu_set_t allowed_cpus;

_Noreturn void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("weir-bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

void *bench_alloc(size_t size)
{
    void *memory = malloc(size);
    if (memory == NULL) {
        bench_die("out of memory (%zu bytes)", size);
    }
    return memory;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

uint64_t bench_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

void bench_init(void)
{
    if (sched_getaffinity(0, sizeof allowed_cpus, &allowed_cpus) != 0) {
        bench_die("sched_getaffinity failed");
    }
    bench_pin(0);
    uint64_t ns = bench_clock_ns(), ticks = bench_ticks(), end;
    do {
        end = bench_clock_ns();
    } while (end - ns < UINT64_C(50000000));
    ns_per_tick = (double)(end - ns) / (double)(bench_ticks() - ticks);
}

double bench_ns(double ticks)
{
    return ticks * ns_per_tick;
}

unsigned bench_cpus(void)
{
    return (unsigned)CPU_COUNT(&allowed_cpus);
}

void bench_pin(unsigned nth)
{
    nth %= bench_cpus();
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed_cpus) && nth-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

void bench_unpin(void)
{
    sched_setaffinity(0, sizeof allowed_cpus, &allowed_cpus);
}

/* ---- a trial ----------------------------------------------------------------------------------------------------- */

/* The helpers sleep on a semaphore between trials, so that a trial of one thread has the machine to itself; those woken
 * then meet at a spinning gate, so that they start together. */
struct team {
    unsigned size; /* threads, the caller included */
    const struct bench_side *side;
    size_t ops;
    _Alignas(128) _Atomic unsigned waiting;
    sem_t finished;
    struct member {
        _Alignas(128) sem_t wake;
        struct team *team;
        pthread_t thread;
        unsigned number;
        uint64_t begin, end, allowed;
        long preempted; /* times that another process got the CPU meanwhile */
    } members[THREADS_MAX];
};

long bench_preemptions(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

static void do_share(struct team *team, struct member *me)
{
    const struct bench_side *side = team->side;
    long preempted = bench_preemptions();
    /* release/acquire: nobody's share begins before all have arrived */
    atomic_fetch_sub_explicit(&team->waiting, 1, memory_order_acq_rel);
    for (unsigned spins = 0; atomic_load_explicit(&team->waiting, memory_order_acquire) != 0; spins++) {
        if (spins > 10000) {
            sched_yield(); /* the other may need this CPU to arrive */
        }
    }
    me->begin = bench_ticks();
    me->allowed = side->work(side->arg, me->number, team->ops);
    me->end = bench_ticks();
    me->preempted = bench_preemptions() - preempted;
}

static void *helper(void *arg)
{
    struct member *me = arg;
    struct team *team = me->team;
    bench_pin(me->number);
    for (;;) {
        while (sem_wait(&me->wake) != 0) {
        }
        if (team->side == NULL) {
            return NULL;
        }
        do_share(team, me);
        sem_post(&team->finished);
    }
}

static void team_start(struct team *team, unsigned size)
{
    if (size > THREADS_MAX) {
        bench_die("too many threads");
    }
    memset(team, 0, sizeof *team);
    team->size = size;
    sem_init(&team->finished, 0, 0);
    for (unsigned i = 1; i < size; i++) {
        struct member *m = &team->members[i];
        m->team = team;
        m->number = i;
        sem_init(&m->wake, 0, 0);
        if (pthread_create(&m->thread, NULL, helper, m) != 0) {
            bench_die("cannot start a thread");
        }
    }
}

static void team_stop(struct team *team)
{
    team->side = NULL;
    for (unsigned i = 1; i < team->size; i++) {
        sem_post(&team->members[i].wake);
        pthread_join(team->members[i].thread, NULL);
        sem_destroy(&team->members[i].wake);
    }
    sem_destroy(&team->finished);
}

/* Ticks from the first start to the last end. */
static uint64_t team_try(struct team *team, struct bench_side *side, size_t ops)
{
    team->side = side;
    team->ops = ops;
    atomic_store_explicit(&team->waiting, side->threads, memory_order_relaxed); /* sem_post publishes it */
    for (unsigned i = 1; i < side->threads; i++) {
        sem_post(&team->members[i].wake);
    }
    do_share(team, &team->members[0]);
    for (unsigned i = 1; i < side->threads; i++) {
        while (sem_wait(&team->finished) != 0) {
        }
    }
    uint64_t begin = team->members[0].begin, end = team->members[0].end;
    for (unsigned i = 0; i < side->threads; i++) {
        const struct member *m = &team->members[i];
        begin = m->begin < begin ? m->begin : begin;
        end = m->end > end ? m->end : end;
        side->allowed += m->allowed;
        side->done += ops;
    }
    return end - begin;
}

/* A trial during which another process got one of the CPUs says nothing: it is repeated, within reason. */
static uint64_t team_trial(struct team *team, struct bench_side *side, size_t ops)
{
    for (int tries = 0;; tries++) {
        uint64_t ticks = team_try(team, side, ops);
        long preempted = 0;
        for (unsigned i = 0; i < side->threads; i++) {
            preempted += team->members[i].preempted;
        }
        if (preempted == 0 || tries == TRIES_MAX) {
            return ticks;
        }
    }
}

/* Doubles ops until a trial lasts long enough to scale it, then corrects what was measured cold; warms up by that. */
static void choose_ops(struct team *team, struct bench_side *side, unsigned trial_us)
{
    double goal = trial_us * 1e3;
    size_t ops = 64;
    if (side->ops != 0) {
        team_trial(team, side, side->ops);
        return;
    }
    /* Settled more than once: what is slow when it begins, and quick before long, would stay with trials too short. */
    for (int tries = 0, settled = 0; tries < 60 && settled < 4; tries++) {
        double ns = bench_ns((double)team_trial(team, side, ops));
        if (ns < goal / 2) {
            ops *= 2;
            settled = 0;
            continue;
        }
        double better = (double)ops * goal / ns;
        settled = ns < goal * 2 ? settled + 1 : 0;
        ops = better > 64 ? (size_t)better : 64;
    }
    side->ops = ops;
}

static void check_work(const struct bench_side *side)
{
    uint64_t expected = side->expect == BENCH_ALL_ALLOWED ? side->done : 0;
    if (side->expect != BENCH_ANY && side->allowed != expected) {
        bench_die("%s: %llu of %llu were allowed, expected %llu", side->name, (unsigned long long)side->allowed,
                  (unsigned long long)side->done, (unsigned long long)expected);
    }
}

/* Where trials must be repeated, for others get the CPUs, a run makes fewer rounds rather than take minutes. */
#define ROUNDS_LEAST 31
#define RUN_NS 25e9

void bench_run(struct bench_side *sides, size_t n, size_t rounds, unsigned trial_us)
{
    struct team team;
    unsigned threads = 1;
    size_t r;
    for (size_t i = 0; i < n; i++) {
        sides[i].threads = sides[i].threads == 0 ? 1 : sides[i].threads;
        sides[i].done = sides[i].allowed = 0;
        sides[i].rounds = rounds;
        sides[i].ns = bench_alloc(rounds * sizeof(double));
        threads = sides[i].threads > threads ? sides[i].threads : threads;
    }
    team_start(&team, threads);
    for (size_t i = 0; i < n; i++) {
        choose_ops(&team, &sides[i], trial_us);
    }
    uint64_t began = bench_ticks();
    for (r = 0; r < rounds && (r < ROUNDS_LEAST || bench_ns((double)(bench_ticks() - began)) < RUN_NS); r++) {
        for (size_t i = 0; i < n; i++) {
            struct bench_side *side = &sides[(r + i) % n];
            side->ns[r] = bench_ns((double)team_trial(&team, side, side->ops)) / (double)side->ops;
        }
    }
    team_stop(&team);
    for (size_t i = 0; i < n; i++) {
        sides[i].rounds = r;
        check_work(&sides[i]);
    }
}

void bench_free(struct bench_side *sides, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(sides[i].ns);
        sides[i].ns = NULL;
    }
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof *values, compare_doubles);
    size_t i = (size_t)(q * (double)n);
    return values[i < n ? i : n - 1];
}

static double median_of(const struct bench_side *a, const struct bench_side *b, double scale)
{
    double *values = bench_alloc(a->rounds * sizeof *values);
    for (size_t r = 0; r < a->rounds; r++) {
        values[r] = scale * (b != NULL ? a->ns[r] / b->ns[r] : a->ns[r]);
    }
    double median = bench_quantile(values, a->rounds, 0.5);
    free(values);
    return median;
}

double bench_median(const struct bench_side *side)
{
    return median_of(side, NULL, 1);
}

double bench_mops(const struct bench_side *side)
{
    return 1e3 * side->threads / bench_median(side);
}

double bench_ratio(const struct bench_side *a, const struct bench_side *b)
{
    return median_of(a, b, 1);
}

double bench_speedup(const struct bench_side *a, const struct bench_side *b)
{
    return median_of(b, a, (double)a->threads / b->threads);
}

uint64_t bench_arithmetic(void *arg, unsigned thread, size_t ops)
{
    uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
    (void)arg;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        a += i, b += i, c += i, d += i, e += i, f += i;
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
    }
    bench_keep(a + b + c + d + e + f);
    return ops;
}

double bench_machine(void)
{
    static double alone; /* ns of an operation: the best so far */
    struct bench_side sides[] = {
        {.name = "arithmetic, 1 thread", .work = bench_arithmetic},
        {.name = "arithmetic, 2 threads", .work = bench_arithmetic, .threads = 2},
    };
    bench_run(sides, 2, 9, 200);
    double one = bench_median(&sides[0]), two = bench_median(&sides[1]);
    bench_free(sides, 2);
    alone = alone == 0 || one < alone ? one : alone;
    return 2 * alone / two;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

int bench_wanted(const struct bench_options *options, const char *id)
{
    const char *p = options->rows;
    if (p == NULL) {
        return 1;
    }
    while (*p != '\0') {
        size_t len = strcspn(p, ","), id_len = strlen(id);
        size_t common = len < id_len ? len : id_len;
        /* "L3" names "L3a" and the row that computes "L3a" is asked as "L3", but "L1" is not "L10" */
        int rest_is_letter = len == id_len || (len < id_len ? id[len] >= 'a' : p[id_len] >= 'a');
        if (common > 0 && strncmp(p, id, common) == 0 && rest_is_letter) {
            return 1;
        }
        p += len + (p[len] == ',');
    }
    return 0;
}

static void append(struct bench_row *row, const char *name, const char *value)
{
    size_t used = strlen(row->detail);
    int n = snprintf(row->detail + used, sizeof row->detail - used, "%s\"%s\":%s", used != 0 ? "," : "", name, value);
    if (n < 0 || (size_t)n >= sizeof row->detail - used) {
        bench_die("detail of %s is too long", row->id);
    }
}

void bench_detail(struct bench_row *row, const char *name, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    if (value >= 1e4 || value == (double)(long long)value) {
        snprintf(text, sizeof text, "%.0f", value);
    }
    append(row, name, text);
}

void bench_detail_text(struct bench_row *row, const char *name, const char *text)
{
    char quoted[256];
    size_t n = 0;
    quoted[n++] = '"';
    for (; *text != '\0' && n + 3 < sizeof quoted; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            quoted[n++] = '\\';
        }
        quoted[n++] = c < 0x20 ? ' ' : (char)c;
    }
    quoted[n++] = '"';
    quoted[n] = '\0';
    append(row, name, quoted);
}

/* The detail for people: no quotes, a blank after each comma. */
static void print_plain(const char *json)
{
    for (; *json != '\0'; json++) {
        if (*json == ',') {
            fputs(", ", stdout);
        } else if (*json == ':') {
            fputc(' ', stdout);
        } else if (*json != '"') {
            fputc(*json, stdout);
        }
    }
}

int bench_report(const struct bench_options *options, const struct bench_row *row)
{
    if (!bench_wanted(options, row->id)) {
        return 1; /* computed along with one that is */
    }
    int ok = row->skipped == NULL && (row->kind == BENCH_AT_MOST ? row->value <= row->goal : row->value >= row->goal);
    struct bench_row copy = *row;
    if (row->skipped != NULL) {
        bench_detail_text(&copy, "skipped", row->skipped);
    }
    if (options->json) {
        char value[32] = "null";
        if (row->skipped == NULL) {
            snprintf(value, sizeof value, "%.4g", row->value);
        }
        printf("{\"id\":\"%s\",\"what\":\"%s\",\"value\":%s,\"goal\":%g,\"ok\":%s,\"detail\":{%s}}\n", row->id,
               row->what, value, row->goal, ok ? "true" : "false", copy.detail);
    } else {
        char value[32] = "-";
        if (row->skipped == NULL) {
            snprintf(value, sizeof value, "%.3g", row->value);
        }
        printf("%-4s %-66s %8s %s %-5g %s\n     ", row->id, row->what, value,
               row->kind == BENCH_AT_MOST ? "<=" : ">=", row->goal,
               row->skipped != NULL ? "skipped"
               : ok                 ? "reached"
                                    : "MISSED");
        print_plain(copy.detail);
        fputs("\n", stdout);
    }
    fflush(stdout);
    return ok;
}
