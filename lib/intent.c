/* SPDX-License-Identifier: MIT */
/*
 * Intents of processes that share a limiter, and recovery from those that were killed.
 */
#include "lib/intent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/hybrid.h"
#include "lib/table.h"

/* An intent: slot + 1 in 32 bits, the process' id in 22, what it intends in 1, some bits of its start time in 9. */
#define PID_SHIFT 32
#define KIND_SHIFT 54
#define STAMP_SHIFT 55
#define PID_MASK UINT64_C(0x3fffff)
#define STAMP_MASK UINT64_C(0x1ff)

static uint32_t slot_in(uint64_t intent)
{
    return (uint32_t)intent - 1;
}

static pid_t pid_in(uint64_t intent)
{
    return (pid_t)(intent >> PID_SHIFT & PID_MASK);
}

/* Some bits of when a process began, from /proc/PID/stat; -1: there is no such process, or it is a zombie; 0 where
 * that can't be known. */
static int stamp_of(pid_t pid)
{
    char path[32], text[512], *rest;
    unsigned long long began = 0;
    ssize_t n;
    char state;
    int fd;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return kill(pid, 0) != 0 && errno == ESRCH ? -1 : 0;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    rest = strrchr(text, ')'); /* the name before it may hold anything */
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                        &state, &began) != 2)
        return 0;
    return state == 'Z' || state == 'X' ? -1 : (int)(began & STAMP_MASK);
}

static bool is_alive(uint64_t intent)
{
    int stamp = stamp_of(pid_in(intent));

    return stamp >= 0 && (stamp == 0 || (intent >> STAMP_SHIFT) == 0 || (uint64_t)stamp == intent >> STAMP_SHIFT);
}

/* This process' part of an intent; found anew after a fork. */
static uint64_t signature(struct weir *w)
{
    uint64_t known = weir__load_relaxed(&w->signature);
    pid_t self = getpid();
    int stamp;

    if (pid_in(known) == self)
        return known;
    stamp = stamp_of(self);
    known = ((uint64_t)self & PID_MASK) << PID_SHIFT | (uint64_t)(stamp > 0 ? stamp : 0) << STAMP_SHIFT;
    weir__store_relaxed(&w->signature, known);
    return known;
}

void weir__intent_note(struct weir *w, uint32_t slot, enum weir__intent intent)
{
    _Atomic uint64_t *intents = w->state->intents;
    uint64_t mine = signature(w) | (uint64_t)intent << KIND_SHIFT | (slot + 1);
    unsigned turns = 0;

    for (;; weir__intent_wait(w, &turns)) {
        for (unsigned i = 0; i < WEIR__INTENTS; i++) {
            _Atomic uint64_t *place = &intents[(slot + i) % WEIR__INTENTS];
            uint64_t none = 0;

            /* seq_cst: before the lock bit or the tag is taken */
            if (weir__load_relaxed(place) == 0 &&
                atomic_compare_exchange_strong_explicit(place, &none, mine, memory_order_seq_cst, memory_order_relaxed))
                return;
        }
    }
}

void weir__intent_done(struct weir *w, uint32_t slot)
{
    _Atomic uint64_t *intents = w->state->intents;
    pid_t self = pid_in(signature(w));

    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        _Atomic uint64_t *place = &intents[(slot + i) % WEIR__INTENTS];
        uint64_t seen = weir__load_relaxed(place);

        /* Another thread of this process may have the same: either will do. */
        if (seen != 0 && slot_in(seen) == slot && pid_in(seen) == self &&
            atomic_compare_exchange_strong_explicit(place, &seen, 0, memory_order_release, memory_order_relaxed))
            return;
    }
}

static bool somebody_is_at(struct weir *w, uint32_t slot)
{
    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        uint64_t seen = atomic_load_explicit(&w->state->intents[i], memory_order_seq_cst);

        if (seen != 0 && slot_in(seen) == slot && is_alive(seen))
            return true;
    }
    return false;
}

/* ---- what the dead have left
 * --------------------------------------------------------------------------------------- */

/* Locked, its numbers half written. It keeps its key and what is pinned of it, and holds nothing. */
static void empty(struct weir *w, struct weir__hot *e, uint64_t x)
{
    uint32_t slot = weir__slot_of(w, e);
    const struct weir__policy_state *p = &w->policies[weir__load_relaxed(&e->policy)];
    unsigned current = weir__load_acquire(&p->current);
    uint64_t now = weir_now(w), touched = weir__load_relaxed(&e->touched), next = (x & ~WEIR__LOCK) + WEIR__STEP;

    if (now < touched)
        now = touched;
    if (weir__load_acquire(&p->mode) != WEIR_LOCAL && atomic_load_explicit(&w->state->attached, memory_order_seq_cst)) {
        next = weir__hybrid_forget(w, slot, x & ~WEIR__LOCK, now);
    } else {
        weir__store_release(&e->regime, WEIR__LOCAL);
        weir__store_release(&e->k, weir__load_acquire(&p->slot_k[current]));
        weir__store_release(
            &e->f,
            ((weir__bucket_refill(now, weir__load_acquire(&p->slot[current].mult)) - next) & WEIR__UNITS) | current);
        weir__store_relaxed(&w->cold[slot].base, next);
        weir__store_relaxed(&w->cold[slot].returned, 0);
        weir__store_relaxed(&w->cold[slot].refunded, 0);
    }
    weir__store_release(&e->x, next & ~WEIR__LOCK);
}

/* Returns false where a living process is at it, or comes to it just now. */
static bool put_right(struct weir *w, uint64_t intent)
{
    uint32_t slot = slot_in(intent);
    struct weir__hot *e = &w->hot[slot];
    const struct weir__tags *tags = &w->tags[slot / WEIR__WAYS];
    uint64_t word[2], x = atomic_load_explicit(&e->x, memory_order_seq_cst), id0;
    uint8_t tag;

    word[0] = atomic_load_explicit(&tags->word[0], memory_order_seq_cst);
    word[1] = atomic_load_explicit(&tags->word[1], memory_order_seq_cst);
    id0 = weir__load_acquire(&e->id[0]);
    tag = (uint8_t)(word[slot % WEIR__WAYS >> 3] >> 8 * (slot % WEIR__WAYS & 7));
    /* Who holds it said so before and takes it back after: nobody says so now, and nothing has changed meanwhile (x
     * and the tag line's version never go back), so who held it is dead. */
    if (somebody_is_at(w, slot) || atomic_load_explicit(&e->x, memory_order_seq_cst) != x ||
        atomic_load_explicit(&tags->word[0], memory_order_seq_cst) != word[0] ||
        atomic_load_explicit(&tags->word[1], memory_order_seq_cst) != word[1])
        return false;
    if (tag != 0 && id0 == 0)
        weir__table_abandon(w, e);
    else if (x & WEIR__LOCK && (intent >> KIND_SHIFT & 1) == WEIR__INTENT_DROP)
        weir__table_step(w, e, x);
    else if (x & WEIR__LOCK)
        empty(w, e, x);
    return true;
}

void weir__intent_recover(struct weir *w)
{
    bool any = false;

    weir__lock(&w->state->recover_lock);
    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        uint64_t seen = weir__load_acquire(&w->state->intents[i]);

        if (seen == 0 || is_alive(seen) || !put_right(w, seen))
            continue;
        any = true;
        atomic_compare_exchange_strong_explicit(&w->state->intents[i], &seen, 0, memory_order_release,
                                                memory_order_relaxed);
    }
    if (any)
        weir__intent_count_keys(w);
    weir__unlock(&w->state->recover_lock);
}

void weir__intent_count_keys(struct weir *w)
{
    uint64_t counted = 0, known = weir__load_relaxed(&w->state->keys);

    for (uint64_t set = 0; set < w->sets; set++) {
        for (unsigned way = 0; way < WEIR__WAYS; way++)
            counted += (uint8_t)(weir__load_relaxed(&w->tags[set].word[way >> 3]) >> 8 * (way & 7)) != 0;
    }
    /* As a difference: what others add and subtract meanwhile is not lost. */
    atomic_fetch_add_explicit(&w->state->keys, counted - known, memory_order_relaxed);
}
