/* SPDX-License-Identifier: MIT */
/*
 * What every benchmark shares: ticks, pinned threads, rounds of interleaved trials, medians of ratios, rows and their
 * verdicts. Knows nothing of weir.
 *
 * A side is one piece of work. bench_run runs all of its sides in turn, again and again, and keeps each trial's time; a
 * ratio is the median over the rounds of (a / b within one round). So what disturbs the machine for longer than a round
 * disturbs both alike, and what is shorter falls out with the median.
 */
#ifndef WEIR_BENCH_HARNESS_H
#define WEIR_BENCH_HARNESS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* The cheapest clock of the machine. Not ordered against the code around it: a trial is thousands of operations. */
static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
#endif
}

/* Makes the compiler believe that value is used and that memory may have changed. */
#define bench_keep(value) __asm__ volatile("" : : "r"(value) : "memory")

/* Calibrates the ticks against CLOCK_MONOTONIC (50 ms) and pins the caller to the first CPU. Call once, first. */
void bench_init(void);

double bench_ns(double ticks);
uint64_t bench_clock_ns(void); /* CLOCK_MONOTONIC */
unsigned bench_cpus(void);     /* that this process may use */
void bench_pin(unsigned nth);  /* the calling thread to the nth of them, modulo their number */
void bench_unpin(void);        /* ... to all of them, for what it starts */

/* How often another process has got the CPU of the calling thread so far. */
long bench_preemptions(void);

/* A number generator for keys: fast, seeded, not secret. */
static inline uint64_t bench_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state;
}

/* One of n, from the high bits of a random number. */
static inline uint64_t bench_below(uint64_t random, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)random * n) >> 64);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

/* Does ops operations as thread number `thread` of the side's threads; returns how many of them were allowed. */
typedef uint64_t (*bench_work)(void *arg, unsigned thread, size_t ops);

enum bench_expect { BENCH_ALL_ALLOWED, BENCH_ALL_DENIED, BENCH_ANY };

struct bench_side {
    const char *name;
    bench_work work;
    void *arg;
    unsigned threads;         /* 1 (default) or more, each pinned to its own CPU */
    enum bench_expect expect; /* asserted over all trials */
    size_t ops;               /* of one thread in one trial; 0: as many as last about trial_us */
    /* filled in */
    double *ns; /* [rounds]: time of a trial / ops: of the slowest thread */
    size_t rounds;
    uint64_t done, allowed;
};

/* Warms each side up, then runs rounds of one trial a side, the first side moving on by one every round. Exits with a
 * message when a side did other work than it expects: a figure of wrong work is worth nothing. */
void bench_run(struct bench_side *sides, size_t n, size_t rounds, unsigned trial_us);
void bench_free(struct bench_side *sides, size_t n);

double bench_median(const struct bench_side *side); /* ns an operation and thread */
/* Operations a second of all threads together, in millions. */
double bench_mops(const struct bench_side *side);
/* Median over the rounds of a's ns / b's ns. */
double bench_ratio(const struct bench_side *a, const struct bench_side *b);
/* The same of operations a second, all threads together: a's / b's. */
double bench_speedup(const struct bench_side *a, const struct bench_side *b);

double bench_quantile(double *values, size_t n, double q); /* sorts values */

/* A bench_work that needs nothing but a CPU: additions that don't wait for each other or for memory. */
uint64_t bench_arithmetic(void *arg, unsigned thread, size_t ops);

/* How much two CPUs get done at this moment (5 ms), in times of what one did at its best: near 2, or 1.4 and less where
 * the host of a virtual machine lets both be one of its own, or others have them. */
double bench_machine(void);

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum bench_goal { BENCH_AT_MOST, BENCH_AT_LEAST };

struct bench_options {
    int json, quick;
    const char *rows;     /* "L1,L3b"; NULL: all */
    const char *pictures; /* the folder for them; NULL: none */
};

/* Is this row, or one of its parts ("L3" for "L3a"), asked for? */
int bench_wanted(const struct bench_options *options, const char *id);

struct bench_row {
    const char *id, *what;
    double value, goal;
    enum bench_goal kind;
    const char *skipped; /* why there is no value; NULL: there is one */
    char detail[4096];   /* the inside of a JSON object; built by bench_detail */
};

/* Appends a number, or a text, to the row's detail. */
void bench_detail(struct bench_row *row, const char *name, double value);
void bench_detail_text(struct bench_row *row, const char *name, const char *text);

/* Prints the row: a line of the table or one JSON object. Returns its verdict. */
int bench_report(const struct bench_options *options, const struct bench_row *row);

/* Prints a message to standard error and exits with 2. */
_Noreturn void bench_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* malloc or die. */
void *bench_alloc(size_t size);

#endif
