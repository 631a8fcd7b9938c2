/* SPDX-License-Identifier: MIT */
/*
 * The limiter's own clock: nanoseconds, monotonic. Owns the time-stamp counter, its verification and its anchors; knows
 * nothing of buckets.
 *
 * ns = anchor.ns + ((counter - anchor.base) * anchor.mult >> 32). There are two anchors: a thread that re-anchors fills
 * the one that `seq` doesn't select, then steps seq; readers never wait for it. A new anchor starts at the later of
 * what the old one says and CLOCK_MONOTONIC, and is flatter where it was ahead: it never goes back.
 *
 * Suspend: CLOCK_MONOTONIC stops. A counter that goes on is kept, and the time counts; one that stops is not noticed.
 */
#ifndef WEIR_LIB_CLOCK_H
#define WEIR_LIB_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "lib/atomic.h"

struct weir__anchor {
    _Atomic uint64_t base; /* of the counter */
    _Atomic uint64_t ns;   /* what the clock says there */
    _Atomic uint64_t mult; /* ns << 32 a step of the counter */
    _Atomic uint64_t span; /* steps for which it is good; 0: ask CLOCK_MONOTONIC */
};

enum weir__clock_source {
    WEIR__CLOCK_SYSTEM = 0,   /* CLOCK_MONOTONIC + offset */
    WEIR__CLOCK_LEARNING = 1, /* the same, until the counter's frequency is known */
    WEIR__CLOCK_COUNTER = 2
};

/* A step of seq: the size of an anchor, so that the bit is its offset. */
#define WEIR__CLOCK_STEP 32u
_Static_assert(sizeof(struct weir__anchor) == WEIR__CLOCK_STEP, "see above");

struct weir__clock {
    _Alignas(64) _Atomic uint32_t seq; /* steps by WEIR__CLOCK_STEP; that bit selects the anchor */
    struct weir__anchor anchor[2];
    /* whoever holds `busy`, but for the two that CLOCK_MONOTONIC + offset needs */
    _Alignas(64) _Atomic uint32_t busy;
    _Atomic uint32_t source; /* enum weir__clock_source */
    _Atomic uint64_t offset; /* ns by which this clock is ahead of CLOCK_MONOTONIC for good */
    uint32_t wrong;          /* checks in a row that the counter failed */
    uint32_t steps;          /* checks that it passed */
    uint64_t seen_base;      /* counter and CLOCK_MONOTONIC at the last check */
    uint64_t seen_ns;
    uint64_t seen_took; /* steps of the counter between the two readings */
};

/* Non-zero use_counter: the CPU's time-stamp counter, where it is invariant and agrees with CLOCK_MONOTONIC. */
void weir__clock_init(struct weir__clock *clock, int use_counter);

/* weir__clock_now past an anchor's span: re-anchors, or asks CLOCK_MONOTONIC. */
uint64_t weir__clock_overdue(struct weir__clock *clock);

/* One step of learning or checking with the counter's and CLOCK_MONOTONIC's readings of one moment, give or take `took`
 * steps of the counter; none, as long as that is too much to learn from. Of weir__clock_overdue, apart for tests. The
 * caller holds `busy`. */
void weir__clock_check(struct weir__clock *clock, uint64_t base, uint64_t ns, uint64_t took);

WEIR__INLINE const struct weir__anchor *weir__clock_anchor(const struct weir__clock *clock, uint32_t seq)
{
    return (const struct weir__anchor *)(const void *)((const char *)clock->anchor + (seq & WEIR__CLOCK_STEP));
}

WEIR__INLINE uint64_t weir__clock_monotonic(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

WEIR__INLINE uint64_t weir__clock_counter(void)
{
#if defined(WEIR__TEST_COUNTER) /* by a test that has the source file compiled in */
    return WEIR__TEST_COUNTER;
#elif defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t v;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
    return v;
#else
    return 1;
#endif
}

/* weir__clock_now where it needn't do more than read the counter; false: it must. counter: what was just read, or 0. */
WEIR__INLINE bool weir__clock_glance(const struct weir__clock *clock, uint64_t counter, uint64_t *now)
{
    uint32_t seq = weir__load_acquire(&clock->seq);
    const struct weir__anchor *anchor = weir__clock_anchor(clock, seq);
    uint64_t gone = (counter ? counter : weir__clock_counter()) - weir__load_acquire(&anchor->base);
    uint64_t span = weir__load_acquire(&anchor->span);
    uint64_t mult = weir__load_acquire(&anchor->mult);
    uint64_t ns = weir__load_acquire(&anchor->ns);

    if (WEIR__UNLIKELY(gone >= span) || WEIR__UNLIKELY(weir__load_relaxed(&clock->seq) != seq))
        return false;
    *now = ns + (gone * mult >> 32);
    return true;
}

/* Now. Never back in a thread; between threads to within the time of a re-anchoring. Threads: any. */
WEIR__INLINE uint64_t weir__clock_now(struct weir__clock *clock)
{
    for (;;) {
        uint32_t seq = weir__load_acquire(&clock->seq);
        const struct weir__anchor *anchor = weir__clock_anchor(clock, seq);
        uint64_t span = weir__load_acquire(&anchor->span);
        uint64_t mult = weir__load_acquire(&anchor->mult);
        uint64_t ns = weir__load_acquire(&anchor->ns);
        uint64_t gone = weir__clock_counter() - weir__load_acquire(&anchor->base);

        if (WEIR__UNLIKELY(gone >= span))
            return weir__clock_overdue(clock);
        /* span is a second at most: 2^62 */
        ns += gone * mult >> 32;
        if (WEIR__LIKELY(weir__load_relaxed(&clock->seq) == seq))
            return ns;
    }
}

#endif
