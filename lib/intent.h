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
 * Who makes or drops entries also says so (weir__intent_enter) for as long as the number of keys may be wrong: once
 * somebody has died, all others are kept out for the moment in which they are counted.
 *
 * In a limiter of one process nothing of this costs more than a look at a flag.
 */
#ifndef WEIR_LIB_INTENT_H
#define WEIR_LIB_INTENT_H

#include <stdint.h>

#include "lib/limiter.h"

/* Of several dead ones at an entry the highest counts. */
enum weir__intent {
    WEIR__INTENT_DROP = 0,   /* to drop it, to make it, to pin it: its level is as it was, or it is nobody's */
    WEIR__INTENT_FALL = 1,   /* to put it on its fallback share: f is the old one or the new one */
    WEIR__INTENT_REWRITE = 2 /* in place: its level can't be known */
};

#define WEIR__NO_SLOT UINT32_MAX /* of weir__intent_enter */

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

/* Before the number of keys or the key arena are touched, and after. Intents may be begun and ended in between; nobody
 * may be waited for. */
WEIR__INLINE void weir__intent_enter(struct weir *w)
{
    if (WEIR__UNLIKELY(w->state->shared))
        weir__intent_note(w, WEIR__NO_SLOT, WEIR__INTENT_DROP);
}

WEIR__INLINE void weir__intent_leave(struct weir *w)
{
    if (WEIR__UNLIKELY(w->state->shared))
        weir__intent_done(w, WEIR__NO_SLOT);
}

/* Puts right what dead processes have left. Threads: any, without intents of its own. */
void weir__intent_recover(struct weir *w);

/* This process: its id and start time, never 0; and whether such a one still runs. */
uint64_t weir__intent_self(struct weir *w);
bool weir__intent_is_alive(uint64_t process);

/* Has a living process an intent on the entry? */
bool weir__intent_is_at(struct weir *w, uint32_t slot);

/* weir__backoff for whoever waits for an entry; of a shared limiter it looks for the dead after a while, and sleeps. */
void weir__intent_wait_long(struct weir *w, unsigned turns);

WEIR__INLINE void weir__intent_wait(struct weir *w, unsigned *turns)
{
    weir__backoff(turns);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the analyser takes a store to another field for state's */
    if (WEIR__UNLIKELY(*turns > 256) && w->state->shared)
        weir__intent_wait_long(w, *turns);
}

#endif
