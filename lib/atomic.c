/* SPDX-License-Identifier: MIT */
/*
 * Waiting, and the 16-byte CAS of machines that have none. Knows nothing of what is in the pairs.
 */
#include "lib/atomic.h"

#include <sched.h>

void weir__backoff(unsigned *turns)
{
    if (++*turns < 64)
        weir__cpu_relax();
    else
        sched_yield();
}

#if !WEIR__CAS16_NATIVE

static struct stripe {
    _Alignas(64) atomic_flag held;
} stripes[64];

bool weir__cas16(_Atomic uint64_t *pair, uint64_t *lo, uint64_t *hi, uint64_t new_lo, uint64_t new_hi)
{
    atomic_flag *held = &stripes[((uintptr_t)pair >> 4) % (sizeof stripes / sizeof *stripes)].held;
    uint64_t found_lo, found_hi;
    unsigned turns = 0;
    bool swapped;

    while (atomic_flag_test_and_set_explicit(held, memory_order_acquire))
        weir__backoff(&turns);
    found_lo = weir__load_acquire(&pair[0]);
    found_hi = weir__load_acquire(&pair[1]);
    swapped = found_lo == *lo && found_hi == *hi;
    if (swapped) {
        /* seq_cst: no load of that order that follows moves before them (memory-model.md, C), as with one
         * instruction */
        atomic_store_explicit(&pair[0], new_lo, memory_order_seq_cst);
        atomic_store_explicit(&pair[1], new_hi, memory_order_seq_cst);
    }
    atomic_flag_clear_explicit(held, memory_order_release);
    *lo = found_lo;
    *hi = found_hi;
    return swapped;
}

#endif
