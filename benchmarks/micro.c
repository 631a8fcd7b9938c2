/* SPDX-License-Identifier: MIT */
/*
 * Rows L1 to L5: one decision on memory that is in the first caches, against the machine's own floors: one
 * compare-and-swap, and one that also reads the time-stamp counter. Knows weir by its public interface alone.
 */
#include <stdatomic.h>
#include <string.h>

#include "limiter.h"
#include "rows.h"

#define KEYS 1000u
#define TAKES_A_CLOCK 256u /* an event loop reads the clock once for many decisions */

static struct {
    _Alignas(128) _Atomic uint64_t word;
} floor_line;

/* ---- floors ------------------------------------------------------------------------------------------------------ */

/* A decision that only counts: load, add, compare-and-swap, on a line that nobody else wants. */
static uint64_t floor_cas(void *arg, unsigned thread, size_t ops)
{
    uint64_t swapped = 0;
    (void)arg;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        uint64_t seen = atomic_load_explicit(&floor_line.word, memory_order_relaxed);
        swapped += atomic_compare_exchange_strong_explicit(&floor_line.word, &seen, seen + 2, memory_order_acq_rel,
                                                           memory_order_acquire);
    }
    return swapped;
}

/* The same, and the time decides what is written. */
static uint64_t floor_clock_cas(void *arg, unsigned thread, size_t ops)
{
    uint64_t swapped = 0;
    (void)arg;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        uint64_t now = bench_ticks();
        uint64_t seen = atomic_load_explicit(&floor_line.word, memory_order_relaxed);
        swapped += atomic_compare_exchange_strong_explicit(&floor_line.word, &seen, seen + 2 + (now & 1),
                                                           memory_order_acq_rel, memory_order_acquire);
    }
    return swapped;
}

/* What a decision on a hot key costs at least without leases: every thread reads the time and repeats until its step is
 * the one that counts. */
static uint64_t floor_cas_loop(void *arg, unsigned thread, size_t ops)
{
    (void)arg;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        uint64_t now = bench_ticks();
        uint64_t seen = atomic_load_explicit(&floor_line.word, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&floor_line.word, &seen, seen + 2 + (now & 1),
                                                      memory_order_acq_rel, memory_order_relaxed)) {
        }
    }
    return ops;
}

/* The same without a look at the clock: threads then take the line in turns of many steps, as it happens. */
static uint64_t floor_bare_loop(void *arg, unsigned thread, size_t ops)
{
    (void)arg;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        uint64_t seen = atomic_load_explicit(&floor_line.word, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&floor_line.word, &seen, seen + 2, memory_order_acq_rel,
                                                      memory_order_relaxed)) {
        }
    }
    return ops;
}

/* Additions that don't wait for each other or for memory: what a second thread gains here is what the two CPUs give; 1
 * where they are one core's two threads. */
static uint64_t floor_arithmetic(void *arg, unsigned thread, size_t ops)
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

/* ---- weir -------------------------------------------------------------------------------------------------------- */

struct subject {
    struct weir *w;
    weir_policy_id ample, never, brim;
    struct weir_key *own, *shared, *denied, *full;
    struct key16 keys[KEYS];
};

static uint64_t handle_take(void *arg, unsigned thread, size_t ops)
{
    struct weir_key *key = ((struct subject *)arg)->own;
    uint64_t allowed = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += weir_key_take(key, 1, 0, NULL) == WEIR_ALLOW;
    }
    return allowed;
}

static uint64_t handle_take_full(void *arg, unsigned thread, size_t ops)
{
    struct weir_key *key = ((struct subject *)arg)->full;
    uint64_t allowed = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += weir_key_take(key, 1, 0, NULL) == WEIR_ALLOW;
    }
    return allowed;
}

static uint64_t handle_take_shared(void *arg, unsigned thread, size_t ops)
{
    struct weir_key *key = ((struct subject *)arg)->shared;
    uint64_t allowed = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += weir_key_take(key, 1, 0, NULL) == WEIR_ALLOW;
    }
    return allowed;
}

static uint64_t take_at(struct weir *w, struct weir_key *key, size_t ops)
{
    uint64_t allowed = 0;
    while (ops > 0) {
        uint64_t now = weir_now(w);
        size_t part = ops < TAKES_A_CLOCK ? ops : TAKES_A_CLOCK;
        for (size_t i = 0; i < part; i++) {
            allowed += weir_key_take(key, 1, now, NULL) == WEIR_ALLOW;
        }
        ops -= part;
    }
    return allowed;
}

static uint64_t handle_take_at(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    (void)thread;
    return take_at(s->w, s->own, ops);
}

static uint64_t handle_denied_at(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    (void)thread;
    return take_at(s->w, s->denied, ops);
}

static uint64_t key_take(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    uint64_t allowed = 0;
    size_t k = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += weir_take(s->w, s->ample, &s->keys[k], sizeof s->keys[k], 1, NULL) == WEIR_ALLOW;
        k = k + 1 < KEYS ? k + 1 : 0;
    }
    return allowed;
}

static struct weir_key *open_key(struct subject *s, weir_policy_id policy, const char *name)
{
    struct weir_key *key;
    limiter_check(weir_key_open(s->w, policy, name, strlen(name), &key), "weir_key_open");
    return key;
}

static void subject_open(struct subject *s)
{
    weir_policy_id busy;
    uint64_t random = 1;
    s->w = limiter_open(4 * KEYS);
    s->ample = limiter_ample(s->w);
    s->never = limiter_policy(s->w, "never", 1, UINT64_C(86400000000000), 1);
    s->brim = limiter_policy(s->w, "brim", UINT64_C(100000000), UINT64_C(1000000000), UINT64_C(1000000000));
    s->own = open_key(s, s->ample, "own");
    /* a limit that two threads may need leases for: the bounds of a lease are 100 us of refill and shares of the
     * burst */
    busy = limiter_policy(s->w, "busy", UINT64_C(100000000), UINT64_C(1000000000), UINT64_C(1000000000000));
    s->shared = open_key(s, busy, "shared");
    s->denied = open_key(s, s->never, "denied");
    s->full = open_key(s, s->brim, "full");
    if (weir_key_take(s->denied, 1, 0, NULL) != WEIR_ALLOW) {
        bench_die("the first token of a new bucket was denied");
    }
    for (size_t i = 0; i < KEYS; i++) {
        s->keys[i] = key16_make(i);
    }
    for (size_t i = KEYS - 1; i > 0; i--) {
        size_t j = bench_below(bench_random(&random), i + 1);
        struct key16 swap = s->keys[i];
        s->keys[i] = s->keys[j];
        s->keys[j] = swap;
    }
}

static void subject_close(struct subject *s)
{
    weir_key_close(s->own);
    weir_key_close(s->shared);
    weir_key_close(s->denied);
    weir_key_close(s->full);
    weir_close(s->w);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { L1, L2, L3A, L3B, L4, L5, ROWS };

static void set_ratio(struct bench_row *row, const struct bench_side *side, const struct bench_side *base)
{
    row->value = bench_ratio(side, base);
    bench_detail(row, "ns", bench_median(side));
    bench_detail(row, "floor_ns", bench_median(base));
}

static void one_thread(const struct bench_options *options, struct subject *s, struct bench_row *rows)
{
    enum { CAS, CLOCK_CAS, HANDLE, HANDLE_AT, DENIED_AT, FULL, SIDES };
    struct bench_side sides[SIDES] = {
        [CAS] = {.name = "compare-and-swap", .work = floor_cas},
        [CLOCK_CAS] = {.name = "time stamp and compare-and-swap", .work = floor_clock_cas},
        [HANDLE] = {.name = "handle take", .work = handle_take, .arg = s},
        [HANDLE_AT] = {.name = "handle take, caller's clock", .work = handle_take_at, .arg = s},
        [DENIED_AT] = {.name = "denied, caller's clock",
                       .work = handle_denied_at,
                       .arg = s,
                       .expect = BENCH_ALL_DENIED},
        [FULL] = {.name = "handle take, bucket full", .work = handle_take_full, .arg = s},
    };
    bench_run(sides, SIDES, options->quick ? 101 : 1001, 200);
    set_ratio(&rows[L1], &sides[HANDLE], &sides[CLOCK_CAS]);
    bench_detail(&rows[L1], "full_bucket_ns", bench_median(&sides[FULL]));
    set_ratio(&rows[L2], &sides[HANDLE_AT], &sides[CAS]);
    set_ratio(&rows[L3A], &sides[DENIED_AT], &sides[CAS]);
    bench_free(sides, SIDES);
}

/* Longer trials: each begins by bringing 1,000 entries back into the nearest cache. */
static void keys(const struct bench_options *options, struct subject *s, struct bench_row *row)
{
    struct bench_side sides[] = {
        {.name = "time stamp and compare-and-swap", .work = floor_clock_cas},
        {.name = "16-byte key", .work = key_take, .arg = s},
    };
    bench_run(sides, 2, options->quick ? 51 : 501, 1000);
    set_ratio(row, &sides[1], &sides[0]);
    bench_free(sides, 2);
}

static void two_threads(const struct bench_options *options, struct subject *s, struct bench_row *rows)
{
    enum { ADD_1, ADD_2, DENIED_1, DENIED_2, CAS_LOOP, BARE_LOOP, SHARED, SIDES };
    struct bench_side sides[SIDES] = {
        [ADD_1] = {.name = "arithmetic, 1 thread", .work = floor_arithmetic},
        [ADD_2] = {.name = "arithmetic, 2 threads", .work = floor_arithmetic, .threads = 2},
        [DENIED_1] = {.name = "denied, 1 thread", .work = handle_denied_at, .arg = s, .expect = BENCH_ALL_DENIED},
        [DENIED_2] =
            {.name = "denied, 2 threads", .work = handle_denied_at, .arg = s, .threads = 2, .expect = BENCH_ALL_DENIED},
        [CAS_LOOP] = {.name = "time stamp and compare-and-swap loop", .work = floor_cas_loop, .threads = 2},
        [BARE_LOOP] = {.name = "compare-and-swap loop", .work = floor_bare_loop, .threads = 2},
        [SHARED] = {.name = "one hot key", .work = handle_take_shared, .arg = s, .threads = 2},
    };
    if (bench_cpus() < 2) {
        rows[L3B].skipped = rows[L4].skipped = "needs two CPUs";
        return;
    }
    bench_run(sides, SIDES, options->quick ? 101 : 1001, 200);
    rows[L3B].value = bench_speedup(&sides[DENIED_2], &sides[DENIED_1]);
    bench_detail(&rows[L3B], "machine", bench_speedup(&sides[ADD_2], &sides[ADD_1]));
    bench_detail(&rows[L3B], "mops_1", bench_mops(&sides[DENIED_1]));
    bench_detail(&rows[L3B], "mops_2", bench_mops(&sides[DENIED_2]));
    rows[L4].value = bench_speedup(&sides[SHARED], &sides[CAS_LOOP]);
    bench_detail(&rows[L4], "mops", bench_mops(&sides[SHARED]));
    bench_detail(&rows[L4], "loop_mops", bench_mops(&sides[CAS_LOOP]));
    bench_detail(&rows[L4], "bare_loop_mops", bench_mops(&sides[BARE_LOOP]));
    bench_free(sides, SIDES);
}

void micro_rows(const struct bench_options *options)
{
    struct bench_row rows[ROWS] = {
        [L1] = {.id = "L1", .what = "handle take / (time stamp + load + CAS)", .goal = 1.10},
        [L2] = {.id = "L2", .what = "handle take, caller's clock / CAS", .goal = 1.3},
        [L3A] = {.id = "L3a", .what = "denied, caller's clock / CAS", .goal = 0.4},
        [L3B] = {.id = "L3b",
                 .what = "denied, 2 threads / 1 thread, decisions a second",
                 .goal = 1.9,
                 .kind = BENCH_AT_LEAST},
        [L4] = {.id = "L4",
                .what = "one hot key, 2 threads / (time stamp + CAS loop), decisions a second",
                .goal = 20,
                .kind = BENCH_AT_LEAST},
        [L5] = {.id = "L5", .what = "16-byte key of 1,000 / (time stamp + load + CAS)", .goal = 2.0},
    };
    int one = bench_wanted(options, "L1") || bench_wanted(options, "L2") || bench_wanted(options, "L3a");
    int two = bench_wanted(options, "L3b") || bench_wanted(options, "L4");
    static struct subject s;
    int five = bench_wanted(options, "L5");
    if (!one && !two && !five) {
        return;
    }
    subject_open(&s);
    if (one) {
        one_thread(options, &s, rows);
    }
    if (two) {
        two_threads(options, &s, rows);
    }
    if (five) {
        keys(options, &s, &rows[L5]);
    }
    subject_close(&s);
    for (size_t i = 0; i < ROWS; i++) {
        bench_report(options, &rows[i]);
    }
}
