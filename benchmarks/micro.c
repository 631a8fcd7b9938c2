/* SPDX-License-Identifier: MIT */
/*
 * Rows L1 to L5: one decision on memory that is in the first caches, against the machine's own floors: one
 * compare-and-swap, and one that also reads the time-stamp counter. Knows weir by its public interface alone.
 */
#include <stdatomic.h>
#include <stdlib.h>
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

/* ---- two threads ------------------------------------------------------------------------------------------------- */

/* A slice is one trial of each side, 1.5 ms in all. It counts where two threads of pure arithmetic got as much done in
 * it as two of the machine's CPUs do: on a virtual machine the host decides, from one moment to the next. */
enum { ADD_1, ADD_2, DENIED_1, DENIED_2, CAS_LOOP, BARE_LOOP, SHARED, SIDES };

#define BLOCK 101u         /* slices between two looks at how many there are */
#define SLICES_MAX 30300u  /* 45 s of them */
#define SLICES_LEAST 31u   /* that count */
#define MACHINE_LEAST 1.95 /* times what one thread does */

struct slices {
    size_t n, counted;
    double alone; /* ns of an operation of ADD_1: the median of the best block */
    double (*ns)[SIDES];
};

static double machine_of(const struct slices *slices, size_t i)
{
    return 2 * slices->alone / slices->ns[i][ADD_2];
}

static void run_block(struct slices *slices, struct bench_side *sides)
{
    bench_run(sides, SIDES, BLOCK, 200);
    for (size_t r = 0; r < sides[0].rounds; r++, slices->n++) {
        for (size_t i = 0; i < SIDES; i++) {
            slices->ns[slices->n][i] = sides[i].ns[r];
        }
    }
    double alone = bench_median(&sides[ADD_1]);
    if (slices->alone == 0 || alone < slices->alone) {
        slices->alone = alone;
    }
    slices->counted = 0;
    for (size_t i = 0; i < slices->n; i++) {
        slices->counted += machine_of(slices, i) >= MACHINE_LEAST;
    }
    bench_free(sides, SIDES);
}

/* Median over the slices that count: operations a second, over those of the base where there is one, else in
 * millions. */
static double speed_of(const struct slices *slices, const struct bench_side *sides, int side, int base)
{
    double *values = bench_alloc(slices->counted * sizeof *values), median;
    size_t n = 0;
    for (size_t i = 0; i < slices->n; i++) {
        const double *ns = slices->ns[i];
        double speed = sides[side].threads / ns[side];
        if (machine_of(slices, i) >= MACHINE_LEAST) {
            values[n++] = base >= 0 ? speed / (sides[base].threads / ns[base]) : 1e3 * speed;
        }
    }
    median = bench_quantile(values, n, 0.5);
    free(values);
    return median;
}

static void tell_machine(const struct slices *slices, struct bench_row *row)
{
    double *values = bench_alloc(slices->n * sizeof *values);
    for (size_t i = 0; i < slices->n; i++) {
        values[i] = machine_of(slices, i);
    }
    bench_detail(row, "slices", (double)slices->n);
    bench_detail(row, "slices_counted", (double)slices->counted);
    bench_detail(row, "machine", bench_quantile(values, slices->n, 0.5));
    free(values);
}

static void two_threads(const struct bench_options *options, struct subject *s, struct bench_row *rows)
{
    struct bench_side sides[SIDES] = {
        [ADD_1] = {.name = "arithmetic, 1 thread", .work = bench_arithmetic},
        [ADD_2] = {.name = "arithmetic, 2 threads", .work = bench_arithmetic, .threads = 2},
        [DENIED_1] = {.name = "denied, 1 thread", .work = handle_denied_at, .arg = s, .expect = BENCH_ALL_DENIED},
        [DENIED_2] =
            {.name = "denied, 2 threads", .work = handle_denied_at, .arg = s, .threads = 2, .expect = BENCH_ALL_DENIED},
        [CAS_LOOP] = {.name = "time stamp and compare-and-swap loop", .work = floor_cas_loop, .threads = 2},
        [BARE_LOOP] = {.name = "compare-and-swap loop", .work = floor_bare_loop, .threads = 2},
        [SHARED] = {.name = "one hot key", .work = handle_take_shared, .arg = s, .threads = 2},
    };
    struct slices slices = {.ns = bench_alloc((SLICES_MAX + BLOCK) * sizeof *slices.ns)};
    size_t wanted = options->quick ? BLOCK : 1001;
    uint64_t end = bench_clock_ns() + (options->quick ? UINT64_C(10000000000) : UINT64_C(45000000000));
    if (bench_cpus() < 2) {
        rows[L3B].skipped = rows[L4].skipped = "needs two CPUs";
        free(slices.ns);
        return;
    }
    do {
        run_block(&slices, sides);
    } while (slices.counted < wanted && slices.n < SLICES_MAX && bench_clock_ns() < end);
    tell_machine(&slices, &rows[L3B]);
    tell_machine(&slices, &rows[L4]);
    if (slices.counted < SLICES_LEAST) {
        rows[L3B].skipped = rows[L4].skipped = "the machine hardly ever ran two threads at once";
    } else {
        rows[L3B].value = speed_of(&slices, sides, DENIED_2, DENIED_1);
        bench_detail(&rows[L3B], "mops_1", speed_of(&slices, sides, DENIED_1, -1));
        bench_detail(&rows[L3B], "mops_2", speed_of(&slices, sides, DENIED_2, -1));
        rows[L4].value = speed_of(&slices, sides, SHARED, CAS_LOOP);
        bench_detail(&rows[L4], "mops", speed_of(&slices, sides, SHARED, -1));
        bench_detail(&rows[L4], "loop_mops", speed_of(&slices, sides, CAS_LOOP, -1));
        bench_detail(&rows[L4], "bare_loop_mops", speed_of(&slices, sides, BARE_LOOP, -1));
    }
    free(slices.ns);
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
