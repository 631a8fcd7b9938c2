/* SPDX-License-Identifier: MIT */
/*
 * In a shared limiter: which process is about to rewrite which entry, so that the others can put right what one that
 * was killed has left. Owns the list of intents and what a half-written entry becomes; must not know why it was
 * rewritten.
 *
 * Whoever is about to take an entry's lock bit, or to claim a free entry, says so first and takes it back last. An
 * entry that is locked, or claimed and not shown, while no living process says that it is at it, belonged to a dead
 * one. What was being dropped or made is dropped; what was being rewritten in place keeps its key and is empty:
 * nothing is minted.
 *
 * In a limiter of one process nothing of this costs more than a look at a flag.
 */
#ifndef WEIR_LIB_INTENT_H
#define WEIR_LIB_INTENT_H

#include <stdint.h>

#include "lib/limiter.h"

enum weir__intent {
    WEIR__INTENT_DROP = 0,   /* to drop it, or to make it: its level is as it was, or it is nobody's */
    WEIR__INTENT_REWRITE = 1 /* in place: its level can't be known */
};

void weir__intent_note(struct weir *w, uint32_t slot, enum weir__intent intent);
void weir__intent_done(struct weir *w, uint32_t slot);

/* Before the lock bit is taken, or a tag claimed; and after it was given back, or the entry was shown or freed. */
WEIR__INLINE void weir__intent_begin(struct weir *w, const struct weir__hot *e, enum weir__intent intent)
{
    if (WEIR__UNLIKELY(w->state->shared))
        weir__intent_note(w, weir__slot_of(w, e), intent);
}

WEIR__INLINE void weir__intent_end(struct weir *w, const struct weir__hot *e)
{
    if (WEIR__UNLIKELY(w->state->shared))
        weir__intent_done(w, weir__slot_of(w, e));
}

/* Puts right what dead processes have left. */
void weir__intent_recover(struct weir *w);

/* weir__backoff for whoever waits for an entry: looks for the dead every now and then. */
WEIR__INLINE void weir__intent_wait(struct weir *w, unsigned *turns)
{
    weir__backoff(turns);
    if (WEIR__UNLIKELY(*turns % 512 == 0) && w->state->shared)
        weir__intent_recover(w);
}

/* Of a shared limiter: the number of keys, counted. Killed processes may have left it wrong. */
void weir__intent_count_keys(struct weir *w);

#endif
