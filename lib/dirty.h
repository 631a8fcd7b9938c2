/* SPDX-License-Identifier: MIT */
/*
 * Which entries have news for the collector: a bit an entry (every spend after the last report), and a list of those
 * that can't wait for the timer (urgent). Owns weir->dirty, state->urgent, the members dirty, urgent and urgent_next of
 * the entries; knows nothing of buckets, policies or Redis.
 *
 * Both belong to the slot, not to the key in it: re-keying an entry never clears them. A mark that outlives its key
 * costs one needless look.
 */
#ifndef WEIR_LIB_DIRTY_H
#define WEIR_LIB_DIRTY_H

#include <stddef.h>
#include <stdint.h>

#include "lib/limiter.h"

/* Lists the entry as dirty. */
void weir__dirty_list(struct weir *w, struct weir__hot *e);

/* After a CAS of x (seq_cst), never before it: the collector will read this x or a later one. One load where the entry
 * is listed already. Threads: any. */
WEIR__INLINE void weir__dirty_mark(struct weir *w, struct weir__hot *e)
{
    /* seq_cst: ordered after the CAS of x and, through the single order of such operations, against the collector's
     * clearing of the flag before it reads x (docs/memory-model.md, D) */
    if (WEIR__UNLIKELY(!atomic_load_explicit(&e->dirty, memory_order_seq_cst)))
        weir__dirty_list(w, e);
}

/* The collector takes up to 64 entries, those of `mask` in bitmap word `word`, off the bitmap: bit i is slot
 * word * 64 + i. Returns those that were there. Their flags are still set: weir__dirty_clear each one, pinned, before
 * reading its x, or weir__dirty_put_back. */
uint64_t weir__dirty_take(struct weir *w, size_t word, uint64_t mask);
void weir__dirty_put_back(struct weir *w, size_t word, uint64_t mask);
void weir__dirty_clear(struct weir__hot *e);

size_t weir__dirty_words(const struct weir *w);

/* A bit whose entry is not dirty is left over from a mark that was cleared through the urgent list: no news. */
WEIR__INLINE bool weir__dirty_is(const struct weir__hot *e)
{
    return atomic_load_explicit(&e->dirty, memory_order_seq_cst);
}

/* Is any entry dirty? A hint while takers run. */
int weir__dirty_any(struct weir *w);

/* Puts the entry on the urgent list unless it is there. Returns 1 where the list was empty: then the sync must be
 * woken, and won't be again before weir__urgent_drain. Lock-free. Threads: any. */
int weir__urgent_push(struct weir *w, struct weir__hot *e);

/* Takes the whole list: its first entry as index + 1, 0 for none. Threads: the collector. */
uint32_t weir__urgent_drain(struct weir *w);

/* Takes the first entry off a drained list and lets it be pushed again. Returns its slot; *list goes on to the next. */
uint32_t weir__urgent_pop(struct weir *w, uint32_t *list);

#endif
