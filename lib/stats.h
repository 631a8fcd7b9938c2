/* SPDX-License-Identifier: MIT */
/*
 * Counting verdicts without an atomic step: each thread owns a stripe of counters and alone writes it. Threads past
 * WEIR__STRIPES - 1, and all those of a shared limiter, share stripes and add atomically.
 */
#ifndef WEIR_LIB_STATS_H
#define WEIR_LIB_STATS_H

#include <stdint.h>

#include "lib/limiter.h"

#if defined(__ELF__)
#define WEIR__TLS_MODEL __attribute__((tls_model("initial-exec")))
#else
#define WEIR__TLS_MODEL
#endif

/* This thread's stripe; UINT32_MAX: it has none yet. Given back when the thread ends. */
extern _Thread_local uint32_t weir__stats_stripe WEIR__TLS_MODEL;

/* weir__stats_count for a thread without a stripe of its own. */
void weir__stats_count_slow(struct weir *w, weir_policy_id policy, int verdict);

/* verdict: WEIR_ALLOW or WEIR_DENY. */
WEIR__INLINE void weir__stats_count(struct weir *w, weir_policy_id policy, int verdict)
{
    uint32_t stripe = weir__stats_stripe;
    _Atomic uint64_t *count;

    if (WEIR__UNLIKELY(stripe >= w->private_stripes)) {
        weir__stats_count_slow(w, policy, verdict);
        return;
    }
    count = &w->counts[stripe * WEIR__POLICY_MAX + policy].verdict[verdict];
    weir__store_relaxed(count, weir__load_relaxed(count) + 1);
}

/* Verdicts of one policy so far. */
uint64_t weir__stats_verdicts(const struct weir *w, weir_policy_id policy, int verdict);

#endif
