/* SPDX-License-Identifier: MIT */
/*
 * Processes that share a limiter, as far as reconciling goes: who has a sync, which of them reconciles, and what the
 * last one left half done. Owns lead_lock, the list of workers and the hand: a note of what the collector is doing to
 * one entry. Must not know what a batch is.
 *
 * The hand is written and read under walk_lock. Whoever gets that lock from a dead process first undoes or completes
 * what it says, so that each token is in one place: unreported in the entry, or told by its report.
 */
#ifndef WEIR_LIB_WORKERS_H
#define WEIR_LIB_WORKERS_H

#include "lib/limiter.h"

enum weir__hand {
    WEIR__HAND_EMPTY = 0,
    WEIR__HAND_LOOKING = 1, /* its report is being made: marks are taken off, nothing of its spending yet */
    WEIR__HAND_TAKING = 2,  /* the spending is going over to the report; hand_base: base as it was */
    WEIR__HAND_GIVING = 3,  /* it is coming back; hand_base: base as it shall be */
    WEIR__HAND_GRANTING = 4 /* an answer is being put in force */
};

/* release: what is done next comes after. A limiter of one process has no successor that would read it. */
WEIR__INLINE void weir__hand_take(struct weir *w, uint32_t slot, enum weir__hand hand, uint64_t base)
{
    if (!w->state->shared)
        return;
    weir__store_relaxed(&w->state->hand_slot, slot);
    weir__store_relaxed(&w->state->hand_base, base);
    weir__store_relaxed(&w->state->hand_refunded, 0);
    weir__store_relaxed(&w->state->hand_fallen, 0);
    atomic_exchange_explicit(&w->state->hand, hand, memory_order_acq_rel);
}

WEIR__INLINE void weir__hand_empty(struct weir *w)
{
    weir__store_release(&w->state->hand, WEIR__HAND_EMPTY);
}

/* Takes walk_lock. */
void weir__workers_walk(struct weir *w);

/* This process has a sync, or no longer. join: 0 or WEIR_E_FULL. */
int weir__workers_join(struct weir *w);
void weir__workers_leave(struct weir *w);

#endif
