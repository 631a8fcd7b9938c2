/* SPDX-License-Identifier: MIT */
/*
 * Leases: how much, when, and back. Spending is weir/quick.h's.
 */
#include "lib/lease.h"

#include <string.h>

#define WINDOW_NS UINT64_C(100000) /* a lease is for so long */
#define FIRST_CHUNK 16u            /* tokens; less is not worth a lease */

#define LEASES (WEIR__STRIPES - 1)
#define LINE 64u /* each has one of its own; where they begin is kept in the line before */

struct weir__lease *weir__lease_open(struct weir *w)
{
    const size_t size = (LEASES + 2) * LINE;
    char *memory = weir__limiter_alloc(w, size), *first;

    if (!memory)
        return NULL;
    memset(memory, 0, size);
    first = memory + 2 * LINE - ((uintptr_t)memory & (LINE - 1));
    memcpy(first - sizeof memory, &memory, sizeof memory);
    return (struct weir__lease *)(void *)first;
}

/* Has more come than fits beside the leases? Or it can't be told. */
static bool is_over(const struct weir__policy_state *p, struct weir__hot *e, uint64_t now)
{
    struct weir__verdict v;
    uint64_t x;

    do {
        x = weir__load_acquire(&e->x);
        weir__decide_read(p, e, x, weir__load_acquire(&e->f), now, 0, &v);
    } while (weir__load_acquire(&e->x) != x);
    return x & WEIR__LOCK || v.level > (int64_t)v.clip;
}

static void give_back(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now)
{
    if (lease->held == 0)
        return;
    /* The bucket takes back what fits beside the leases. What else has come while this one was counted is cut off even
     * where nothing is left of it: it would fit as soon as that is counted off, besides what was spent. */
    if (lease->tokens > 0 || is_over(ask->p, e, now))
        weir__take_undo(ask, now, (int64_t)lease->tokens);
    atomic_fetch_sub_explicit(&e->leased, lease->held, memory_order_release);
    lease->tokens = lease->held = 0;
}

void weir__lease_close(const struct weir__ask *ask, struct weir__hot *e, struct weir__lease *leases)
{
    char *memory;

    if (!leases)
        return;
    for (size_t i = 0; e && i < LEASES; i++)
        give_back(&leases[i], ask, e, weir__limiter_now(ask->w));
    memcpy(&memory, (char *)leases - sizeof memory, sizeof memory);
    weir__limiter_free(ask->w, memory, (LEASES + 2) * LINE);
}

uint64_t weir__lease_most(const struct weir__policy_state *p)
{
    unsigned slot = weir__load_acquire(&p->current);
    uint8_t k = weir__load_acquire(&p->slot_k[slot]);
    uint64_t refill = weir__bucket_refill(WINDOW_NS, weir__load_acquire(&p->slot[slot].mult)) >> k;
    uint64_t share = (weir__load_acquire(&p->slot[slot].cap) >> k) / 64;

    if (refill > share)
        refill = share;
    return refill < FIRST_CHUNK || weir__load_relaxed(&p->special) ? 0 : refill;
}

void weir__lease_want(struct weir__lease *lease, const struct weir__policy_state *p, uint64_t now)
{
    if (weir__lease_most(p) == 0)
        return;
    lease->chunk = FIRST_CHUNK;
    lease->since = now;
}

/* By how fast the last one was spent. */
static void adapt(struct weir__lease *lease, uint64_t most, uint64_t now)
{
    if (now - lease->since < WINDOW_NS)
        lease->chunk *= 2;
    else
        lease->chunk /= 2;
    if (lease->chunk > most)
        lease->chunk = most;
    if (lease->chunk < FIRST_CHUNK)
        lease->chunk = 0;
    lease->since = now;
}

/* As much as may be leased from what there is besides cost; and from the room that all leases have. */
static uint64_t affordable(const struct weir__lease *lease, const struct weir__policy_state *p, struct weir__hot *e,
                           uint64_t now, int64_t cost, uint64_t *room)
{
    uint64_t x = weir__load_acquire(&e->x), leased = weir__load_relaxed(&e->leased), want = lease->chunk, free;
    struct weir__verdict v;
    int64_t left;

    weir__decide_read(p, e, x, weir__load_acquire(&e->f), now, cost, &v);
    if (v.level > (int64_t)v.clip)
        v.level = (int64_t)v.clip;
    left = weir__bucket_tokens(v.level, v.k) - cost;
    *room = weir__lease_room(v.cap, v.k);
    free = *room > leased ? *room - leased : 0;
    if (left < 0)
        return 0;
    if (want > (uint64_t)left / 4)
        want = (uint64_t)left / 4;
    if (want > free)
        want = free;
    return want;
}

/* weir__decide_take for a lease that is counted already, and doesn't stand in its own way. */
static bool charge(const struct weir__policy_state *p, struct weir__hot *e, uint64_t now, int64_t cost, uint64_t want)
{
    for (;;) {
        uint64_t x = weir__load_acquire(&e->x), f = weir__load_acquire(&e->f), full;
        struct weir__verdict v;

        weir__decide_read(p, e, x, f, now, cost + (int64_t)want, &v);
        if (x & WEIR__LOCK || weir__load_acquire(&e->regime) != WEIR__LOCAL)
            return false;
        v.clip += want << v.k;
        if (v.clip > v.cap)
            v.clip = v.cap;
        full = weir__bucket_refill(v.now, v.mult) - v.clip - x;
        if ((v.level < (int64_t)v.clip ? v.level : (int64_t)v.clip) < (int64_t)v.units)
            return false;
        if (v.level <= (int64_t)v.clip
                ? atomic_compare_exchange_strong_explicit(&e->x, &x, x + v.units, memory_order_acq_rel,
                                                          memory_order_relaxed)
                : weir__cas16_state(&e->x, &x, &f, x + v.units, (full & WEIR__UNITS) | (f & ~WEIR__UNITS))) {
            weir__store_relaxed(&e->touched, v.now);
            return true;
        }
    }
}

int weir__lease_fill(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now,
                     int64_t cost)
{
    const struct weir__policy_state *p = ask->p;
    uint64_t want, room, others;

    give_back(lease, ask, e, now);
    lease->changes = weir__load_acquire(&ask->w->gate->changes);
    adapt(lease, weir__lease_most(p), now);
    if (lease->chunk == 0 || !weir__take_is_fast(p, cost))
        return WEIR__REKEYED;
    want = affordable(lease, p, e, now, cost, &room);
    if (want < FIRST_CHUNK)
        return WEIR__REKEYED;
    /* Counted first: whoever meets the bucket meanwhile clips it too early, not too late. Others who saw the same room
     * may have counted theirs. */
    others = atomic_fetch_add_explicit(&e->leased, want, memory_order_acq_rel);
    if (others + want > room || !charge(p, e, now, cost, want)) {
        atomic_fetch_sub_explicit(&e->leased, want, memory_order_relaxed);
        return WEIR__REKEYED;
    }
    lease->tokens = lease->held = want;
    return WEIR_ALLOW;
}
