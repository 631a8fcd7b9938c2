/* SPDX-License-Identifier: MIT */
/*
 * Leases: how much, when, and back.
 */
#include "lib/lease.h"

#include <string.h>

#define WINDOW_NS UINT64_C(100000) /* a lease is for so long */
#define FIRST_CHUNK 16u            /* tokens; less is not worth a lease */

struct weir__leases *weir__lease_open(struct weir *w)
{
    const size_t size = sizeof(struct weir__leases) + WEIR__STRIPES * sizeof(struct weir__lease);
    struct weir__leases *leases = weir__limiter_alloc(w, size);

    if (!leases)
        return NULL;
    memset(leases, 0, size);
    /* a line each: one is left over for that */
    leases->of = (struct weir__lease *)(((uintptr_t)(leases + 1) + 63) & ~(uintptr_t)63);
    return leases;
}

static void give_back(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now)
{
    /* The bucket takes back what fits beside the leases; then this one is counted off. */
    if (lease->tokens > 0)
        weir__take_undo(ask, now, (int64_t)lease->tokens);
    if (lease->held > 0)
        atomic_fetch_sub_explicit(&e->leased, lease->held, memory_order_release);
    lease->tokens = lease->held = 0;
}

void weir__lease_close(const struct weir__ask *ask, struct weir__hot *e, struct weir__leases *leases)
{
    if (!leases)
        return;
    for (size_t i = 0; e && i < WEIR__STRIPES - 1; i++)
        give_back(&leases->of[i], ask, e, weir__limiter_now(ask->w));
    weir__limiter_free(ask->w, leases, sizeof *leases + WEIR__STRIPES * sizeof(struct weir__lease));
}

/* The largest lease by the policy's numbers alone. */
static uint64_t most_of(const struct weir__policy_state *p)
{
    unsigned slot = weir__load_acquire(&p->current);
    uint8_t k = weir__load_acquire(&p->slot_k[slot]);
    uint64_t refill = weir__bucket_refill(WINDOW_NS, weir__load_acquire(&p->slot[slot].mult)) >> k;
    uint64_t share = (weir__load_acquire(&p->slot[slot].cap) >> k) / 64;

    return refill < share ? refill : share;
}

void weir__lease_want(struct weir__lease *lease, const struct weir__policy_state *p, uint64_t now)
{
    if (most_of(p) < FIRST_CHUNK)
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

/* As much as may be leased from what there is besides cost. */
static uint64_t affordable(const struct weir__lease *lease, const struct weir__policy_state *p, struct weir__hot *e,
                           uint64_t now, int64_t cost)
{
    uint64_t x = weir__load_acquire(&e->x), leased = weir__load_relaxed(&e->leased), want = lease->chunk, room;
    struct weir__verdict v;
    int64_t left;

    weir__decide_read(p, e, x, weir__load_acquire(&e->f), now, cost, &v);
    if (v.level > (int64_t)v.clip)
        v.level = (int64_t)v.clip;
    left = weir__bucket_tokens(v.level, v.k) - cost;
    room = (v.cap >> v.k) / 16;
    room = room > leased ? room - leased : 0;
    if (left < 0)
        return 0;
    if (want > (uint64_t)left / 4)
        want = (uint64_t)left / 4;
    if (want > room)
        want = room;
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
    uint64_t want;

    give_back(lease, ask, e, now);
    lease->changes = weir__load_acquire(&p->changes);
    adapt(lease, most_of(p), now);
    if (lease->chunk == 0 || !weir__take_is_fast(p, cost))
        return WEIR__REKEYED;
    want = affordable(lease, p, e, now, cost);
    if (want < FIRST_CHUNK)
        return WEIR__REKEYED;
    /* counted first: whoever meets the bucket meanwhile clips it too early, not too late */
    atomic_fetch_add_explicit(&e->leased, want, memory_order_acq_rel);
    if (!charge(p, e, now, cost, want)) {
        atomic_fetch_sub_explicit(&e->leased, want, memory_order_relaxed);
        return WEIR__REKEYED;
    }
    lease->tokens = lease->held = want;
    return WEIR_ALLOW;
}
