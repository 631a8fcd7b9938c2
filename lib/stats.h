/* SPDX-License-Identifier: MIT */
/*
 * Counting verdicts without an atomic step: each thread owns a stripe of counters and alone writes it. Threads past
 * WEIR__STRIPES - 1, and all those of a shared limiter, share stripes and add atomically.
 */
#ifndef WEIR_LIB_STATS_H
#define WEIR_LIB_STATS_H

#include <stdint.h>

#include "lib/limiter.h"

/* This thread's stripe is weir_stripe_, given back when the thread ends; weir_count_ counts there (weir/quick.h). */

/* weir__stats_count for a thread without a stripe of its own. */
void weir__stats_count_slow(struct weir *w, weir_policy_id policy, int verdict);

/* verdict: WEIR_ALLOW or WEIR_DENY. */
WEIR__INLINE void weir__stats_count(struct weir *w, weir_policy_id policy, int verdict)
{
    size_t stripe = weir_stripe_;

    if (WEIR__UNLIKELY(stripe >= w->private_counts))
        weir__stats_count_slow(w, policy, verdict);
    else
        weir_count_((char *)&w->counts[policy], stripe, verdict);
}

/* Verdicts of one policy so far. */
uint64_t weir__stats_verdicts(const struct weir *w, weir_policy_id policy, int verdict);

#endif
