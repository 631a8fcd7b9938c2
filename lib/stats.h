/* SPDX-License-Identifier: MIT */
/*
 * Counting verdicts without an atomic step: each thread owns a stripe of counters and alone writes it. Threads past
 * WEIR__STRIPES - 1, and all those of a shared limiter, share stripes and add atomically.
 */
#ifndef WEIR_LIB_STATS_H
#define WEIR_LIB_STATS_H

#include <stdint.h>

#include "lib/limiter.h"

/* This thread's stripe is weir_stripe_ (weir/quick.h), given back when the thread ends. */

/* One more verdict of the policy whose count in the first stripe is `first`; the stripe is this thread's own. */
WEIR__INLINE void weir__stats_step(struct weir__count *first, size_t stripe, int verdict)
{
    struct weir__count *own = (struct weir__count *)(void *)((char *)first + stripe);

    weir__store_relaxed(&own->verdict[verdict], weir__load_relaxed(&own->verdict[verdict]) + 1);
}

/* weir__stats_count for a thread without a stripe of its own. */
void weir__stats_count_slow(struct weir *w, weir_policy_id policy, int verdict);

/* verdict: WEIR_ALLOW or WEIR_DENY. */
WEIR__INLINE void weir__stats_count(struct weir *w, weir_policy_id policy, int verdict)
{
    size_t stripe = weir_stripe_;

    if (WEIR__UNLIKELY(stripe >= w->private_counts))
        weir__stats_count_slow(w, policy, verdict);
    else
        weir__stats_step(&w->counts[policy], stripe, verdict);
}

/* Verdicts of one policy so far. */
uint64_t weir__stats_verdicts(const struct weir *w, weir_policy_id policy, int verdict);

#endif
