/* SPDX-License-Identifier: MIT */
/*
 * Callers of weir_take_async on one loop, and how long their answers take. A closed loop: each asks again as soon as it
 * is answered. An open one: they ask at their own times, whatever the answers do. Owns the limiter that they ask.
 */
#ifndef WEIR_BENCH_REDIS_CALLERS_H
#define WEIR_BENCH_REDIS_CALLERS_H

#include <stdint.h>

#include "redis_load.h"

#define CALLERS_MAX 8192u

/* Ticks, 256 steps to each doubling: what a median says is good to 0.4 %. */
#define HISTOGRAM_STEPS 256u
struct histogram {
    uint64_t counts[64 * HISTOGRAM_STEPS], total;
};

double histogram_us(const struct histogram *h, double q);

/* Adds all of `from`, which is empty then. */
void histogram_move(struct histogram *to, struct histogram *from);

struct callers;

struct caller {
    struct callers *all;
    uint64_t asked; /* ticks: when, or when it should have */
};

struct callers {
    struct bench_node node;
    struct caller each[CALLERS_MAX];
    uint32_t idle[CALLERS_MAX], idle_count; /* open loop: those without a question */
    struct histogram latency;
    uint64_t random, done, flying, end;
    unsigned keys;
    int closed;
};

/* A limiter with a strict policy that never denies: 10^8 a second, and as many at once where options->burst is 0. */
struct callers *callers_open(const char *uri, const struct bench_node_options *options, unsigned keys);
void callers_close(struct callers *callers);

/* n of them, each asking again when it is answered, for so long. Decisions a second. */
double callers_closed(struct callers *callers, unsigned n, uint64_t ns);

/* `rate` questions a second at random times (Poisson), for so long. The time that an answer took counts from when the
 * question was due. Where CALLERS_MAX wait already, one is left out. Questions a second that were really asked. */
double callers_open_loop(struct callers *callers, double rate, uint64_t ns);

/* "R7" to "R10": both loops over unix socket and TCP, merged and a script a call. */
struct bench_call;
void strict_tables(const struct bench_options *options, struct bench_redis *redis, const struct bench_call *call);

#endif
