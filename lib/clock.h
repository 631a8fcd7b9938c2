/* SPDX-License-Identifier: MIT */
/*
 * The limiter's own clock: nanoseconds, monotonic. Owns the time-stamp counter, its verification and its anchors; knows
 * nothing of buckets.
 *
 * The counter is read as ns = anchor.ns + (counter - anchor.counter) * anchor.mult >> 32. Two anchors: a re-anchoring
 * thread fills the one that `seq` doesn't select, then steps seq; readers never wait for it. The new anchor starts
 * where the old one is by then and is steeper or flatter, so that it meets CLOCK_MONOTONIC a second later: it never goes
 * back.
 */
#ifndef WEIR_LIB_CLOCK_H
#define WEIR_LIB_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "lib/atomic.h"

struct weir__anchor {
    _Atomic uint64_t counter; /* when it began */
    _Atomic uint64_t ns;      /* what the clock said then */
    _Atomic uint64_t mult;    /* ns << 32 a step of the counter */
    _Atomic uint64_t span;    /* steps after which somebody should re-anchor; UINT64_MAX: not a counter, see offset */
};

struct weir__clock {
    _Alignas(64) _Atomic uint32_t seq; /* bit 0 selects the anchor */
    _Atomic uint32_t busy;             /* a thread is re-anchoring */
    _Atomic uint32_t counter;          /* non-zero: the counter is in use; 0: CLOCK_MONOTONIC + offset */
    _Atomic uint32_t bad;              /* checks in a row that failed */
    _Atomic uint64_t offset;           /* ns: what a given-up counter was ahead by */
    _Atomic uint64_t steps;            /* re-anchorings so far */
    _Alignas(64) struct weir__anchor anchor[2];
};

/* Non-zero use_counter: the time-stamp counter, where it is verified. */
void weir__clock_init(struct weir__clock *clock, int use_counter);

/* Monotonic in a thread; between threads to within some ns. Threads: any. */
uint64_t weir__clock_now(struct weir__clock *clock);

/* What weir__clock_now calls when an anchor is older than its span; returns the time. */
uint64_t weir__clock_overdue(struct weir__clock *clock);

WEIR__INLINE uint64_t weir__clock_monotonic(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

#endif
