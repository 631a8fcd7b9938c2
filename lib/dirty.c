/* SPDX-License-Identifier: MIT */
/*
 * The dirty bitmap and the urgent list. Must not know what an entry's spending means.
 */
#include "lib/dirty.h"

#include "lib/intent.h"

void weir__dirty_list(struct weir *w, struct weir__hot *e)
{
    uint32_t slot = weir__slot_of(w, e);

    /* One thread of many sets the bit. seq_cst: its place between the collector's clear and the next one is what the
     * argument in docs/memory-model.md rests on. */
    if (atomic_exchange_explicit(&e->dirty, 1, memory_order_seq_cst))
        return;
    /* release: who finds the bit finds the flag that came before it, so a clear that follows is not lost */
    atomic_fetch_or_explicit(&w->dirty[slot / 64], UINT64_C(1) << slot % 64, memory_order_release);
}

uint64_t weir__dirty_take(struct weir *w, size_t word, uint64_t mask)
{
    if (!(weir__load_relaxed(&w->dirty[word]) & mask))
        return 0;
    /* acquire: pairs with the release of weir__dirty_list */
    return atomic_fetch_and_explicit(&w->dirty[word], ~mask, memory_order_acquire) & mask;
}

void weir__dirty_put_back(struct weir *w, size_t word, uint64_t mask)
{
    if (mask)
        atomic_fetch_or_explicit(&w->dirty[word], mask, memory_order_release);
}

void weir__dirty_clear(struct weir__hot *e)
{
    /* seq_cst: before the collector's load of x, in the order that takers' flag loads are part of */
    atomic_store_explicit(&e->dirty, 0, memory_order_seq_cst);
}

size_t weir__dirty_words(const struct weir *w)
{
    return ((size_t)w->slots + 63) / 64;
}

int weir__dirty_any(struct weir *w)
{
    size_t n = weir__dirty_words(w);

    for (size_t i = 0; i < n; i++)
        for (uint64_t mask = weir__load_acquire(&w->dirty[i]); mask; mask &= mask - 1)
            if (weir__dirty_is(&w->hot[i * 64 + (unsigned)__builtin_ctzll(mask)]))
                return 1;
    return 0;
}

int weir__urgent_push(struct weir *w, struct weir__hot *e)
{
    uint8_t no = 0;
    uint32_t head;

    /* Read first: a flood of denials on one key shares the line instead of fighting for it. */
    if (weir__load_relaxed(&e->urgent))
        return 0;
    weir__intent_begin(w, e, WEIR__INTENT_DROP); /* one that is killed may have set the flag and not listed it */
    /* acq_rel: the winner's link is written after the collector's read of the link that stood there before (it clears
     * the flag after that). */
    if (!atomic_compare_exchange_strong_explicit(&e->urgent, &no, 1, memory_order_acq_rel, memory_order_relaxed)) {
        weir__intent_end(w, e);
        return 0;
    }
    head = weir__load_relaxed(&w->state->urgent);
    do
        weir__store_relaxed(&e->urgent_next, head);
    /* release: publishes the link, and what the taker did to x before */
    while (!atomic_compare_exchange_weak_explicit(&w->state->urgent, &head, weir__slot_of(w, e) + 1,
                                                  memory_order_release, memory_order_relaxed));
    weir__intent_end(w, e);
    return head == 0;
}

uint32_t weir__urgent_drain(struct weir *w)
{
    /* Taken whole, so no pop races with a push: no ABA. acquire: pairs with the release of every push on the list (each
     * is an RMW, so they form one release sequence). No look first: an RMW reads the latest push, a load need not, and
     * the push that it missed would wake nobody again. */
    return atomic_exchange_explicit(&w->state->urgent, 0, memory_order_acquire);
}

uint32_t weir__urgent_pop(struct weir *w, uint32_t *list)
{
    uint32_t slot = *list - 1;
    struct weir__hot *e = &w->hot[slot];

    *list = weir__load_relaxed(&e->urgent_next);
    /* release: the link is read before another push may overwrite it */
    weir__store_release(&e->urgent, 0);
    return slot;
}
