/* SPDX-License-Identifier: MIT */
/*
 * Durations as the loop's thread counts them and anyone reads them. Knows nothing of what took so long.
 */
#ifndef WEIR_SYNC_MEASURE_H
#define WEIR_SYNC_MEASURE_H

#include <stdatomic.h>
#include <stdint.h>

#include "lib/seam.h"

struct weir__measure {
    _Atomic uint64_t count[WEIR__SEAM_BOUNDS + 1];
    _Atomic uint64_t sum_ns;
};

/* Threads: the loop's. */
static inline void weir__measure_add(struct weir__measure *m, uint64_t ns)
{
    static const uint64_t bounds[WEIR__SEAM_BOUNDS] = WEIR__SEAM_BOUNDS_NS;
    unsigned i = 0;

    while (i < WEIR__SEAM_BOUNDS && ns > bounds[i])
        i++;
    atomic_store_explicit(&m->count[i], atomic_load_explicit(&m->count[i], memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&m->sum_ns, atomic_load_explicit(&m->sum_ns, memory_order_relaxed) + ns,
                          memory_order_relaxed);
}

/* Threads: any. */
static inline void weir__measure_read(const struct weir__measure *m, struct weir__seam_durations *out)
{
    for (unsigned i = 0; i <= WEIR__SEAM_BOUNDS; i++)
        out->count[i] = atomic_load_explicit(&m->count[i], memory_order_relaxed);
    out->sum_ns = atomic_load_explicit(&m->sum_ns, memory_order_relaxed);
}

#endif
