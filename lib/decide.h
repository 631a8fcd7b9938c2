/* SPDX-License-Identifier: MIT */
/*
 * One decision on one local bucket, and what it reports. Owns the use of {x, f}; must not know how an entry was
 * found, nor Redis.
 *
 *     level = min(cap, R(now) - x - f)
 *
 * Allowed below the cap: an 8-byte CAS of x. At the cap: a 16-byte CAS that also moves f up to what the cap cut off.
 * Denied: loads alone, and x again to see that they belong together. Whatever was read is proved by x: k, regime,
 * slot and id change under its lock bit, f together with it.
 */
#ifndef WEIR_LIB_DECIDE_H
#define WEIR_LIB_DECIDE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/limiter.h"
#include "lib/table.h"

/* What a decision read and left. */
struct weir__verdict {
    uint64_t now; /* not before the last take of this bucket */
    uint64_t mult, cap;
    uint64_t clip;  /* units: what the bucket may hold by itself: cap less what leases hold */
    int64_t level;  /* units, after the decision */
    uint64_t units; /* asked for */
    uint8_t k;
};

/* Fills everything but `policy`. now: the caller's. */
void weir__decide_report(const struct weir__verdict *verdict, int denied, uint64_t now, struct weir_result *result);

/* All leases of a bucket together hold a sixteenth of its burst at most, tokens. */
WEIR__INLINE uint64_t weir__lease_room(uint64_t cap, uint8_t k)
{
    return (cap >> k) / 16;
}

/* What is counted beyond that can't be spent: the burst was larger. */
WEIR__INLINE uint64_t weir__lease_clip(const struct weir__hot *e, uint64_t cap, uint8_t k)
{
    uint64_t leased = weir__load_acquire(&e->leased), room = weir__lease_room(cap, k);

    return cap - ((leased < room ? leased : room) << k);
}

/* level, with the numbers in force, as of x. */
WEIR__INLINE void weir__decide_read(const struct weir__policy_state *p, struct weir__hot *e, uint64_t x, uint64_t f,
                                    uint64_t now, int64_t cost, struct weir__verdict *v)
{
    const struct weir__params *params = &p->slot[f & WEIR__SLOT];
    uint64_t touched = weir__load_acquire(&e->touched);

    v->now = now > touched ? now : touched;
    v->mult = weir__load_acquire(&params->mult);
    v->cap = weir__load_acquire(&params->cap);
    v->k = weir__load_acquire(&e->k);
    /* past the burst, as it may be by now, it may not fit when shifted */
    v->units = (uint64_t)cost > v->cap >> v->k ? v->cap + 1 : (uint64_t)cost << v->k;
    /* Not proved by x, and needn't be: a lease is counted here before it is taken out of the bucket by a CAS of x. */
    v->clip = weir__lease_clip(e, v->cap, v->k);
    v->level = weir__bucket_level(v->now, touched, v->mult, v->cap, x + (f & WEIR__UNITS));
}

/* The usual case of weir__decide_take without a result: a cost below the cap, one try. Lean: no loop, nothing that
 * needs an address, so that all of it stays in registers that a leaf function may use. WEIR__REKEYED: nothing done, for
 * whatever reason; weir__decide_take knows what to do. `again`: now may well be that of the last take too. */
WEIR__INLINE int weir__decide_quick(const struct weir__policy_state *p, struct weir__hot *e, uint64_t x, uint64_t now,
                                    int64_t cost, bool again)
{
    uint64_t f = weir__load_acquire(&e->f), cap, units;
    const struct weir__params *params = &p->slot[f & WEIR__SLOT];
    /* Its two lowest bits are noise, of up to 3 units either way; what it is compared with has none. */
    int64_t level = (int64_t)((uint64_t)((weir__u128)now * weir__load_acquire(&params->mult) >> WEIR__SHIFT) - x - f);
    unsigned k = weir__load_acquire(&e->k);

    cap = weir__load_acquire(&params->cap);
    if (WEIR__UNLIKELY(level > (int64_t)cap) ||
        WEIR__UNLIKELY((uint64_t)cost - 1 >= weir__load_acquire(&params->most)) ||
        WEIR__UNLIKELY(now < weir__load_acquire(&e->touched)) ||
        WEIR__UNLIKELY(weir__load_acquire(&e->regime) != WEIR__LOCAL) || WEIR__UNLIKELY(x & WEIR__LOCK) ||
        WEIR__UNLIKELY(weir__load_acquire(&e->leased) != 0))
        return WEIR__REKEYED;
    units = (uint64_t)cost << k;
    if (WEIR__UNLIKELY(level < (int64_t)units))
        return level < (int64_t)units - 3 && now - weir__load_acquire(&e->touched) <= WEIR__HORIZON_NS &&
                       weir__load_acquire(&e->x) == x
                   ? WEIR_DENY
                   : WEIR__REKEYED;
    if (WEIR__UNLIKELY(
            !atomic_compare_exchange_strong_explicit(&e->x, &x, x + units, memory_order_acq_rel, memory_order_relaxed)))
        return WEIR__REKEYED;
    if (!again || now != weir__load_relaxed(&e->touched))
        weir__store_relaxed(&e->touched, now);
    return WEIR_ALLOW;
}

/* Takes cost (1 to the burst) for an entry of a local policy. x was loaded with acquire before the id was compared;
 * id NULL: the entry is pinned, so that it stays the key's. WEIR__REKEYED: another key's, locked, or not local:
 * nothing done. */
WEIR__INLINE int weir__decide_take(const struct weir__policy_state *p, struct weir__hot *e, uint64_t x,
                                   const uint64_t *id, uint64_t now, int64_t cost, struct weir_result *result)
{
    for (;;) {
        struct weir__verdict v;
        uint64_t f, seen = x;

        if (WEIR__UNLIKELY(x & WEIR__LOCK))
            return WEIR__REKEYED;
        f = weir__load_acquire(&e->f);
        weir__decide_read(p, e, x, f, now, cost, &v);
        if (WEIR__UNLIKELY(weir__load_acquire(&e->regime) != WEIR__LOCAL))
            return WEIR__REKEYED;

        if (WEIR__LIKELY(v.level <= (int64_t)v.clip)) {
            if (WEIR__UNLIKELY(v.level < (int64_t)v.units)) {
                seen = weir__load_acquire(&e->x);
                if (WEIR__LIKELY(seen == x)) {
                    if (result)
                        weir__decide_report(&v, 1, now, result);
                    return WEIR_DENY;
                }
            } else if (WEIR__LIKELY(atomic_compare_exchange_strong_explicit(
                           &e->x, &seen, x + v.units, memory_order_acq_rel, memory_order_acquire))) {
                goto allowed;
            }
        } else {
            v.level = (int64_t)v.clip;
            if (WEIR__UNLIKELY(v.clip < v.units)) {
                seen = weir__load_acquire(&e->x);
                if (seen == x) {
                    if (result)
                        weir__decide_report(&v, 1, now, result);
                    return WEIR_DENY;
                }
            } else {
                uint64_t full = weir__bucket_refill(v.now, v.mult) - v.clip - x;

                if (WEIR__LIKELY(
                        weir__cas16_state(&e->x, &seen, &f, x + v.units, (full & WEIR__UNITS) | (f & ~WEIR__UNITS))))
                    goto allowed;
            }
        }
        x = seen;
        if (id && WEIR__UNLIKELY(!weir__table_is(e, id)))
            return WEIR__REKEYED;
        continue;
    allowed:
        /* Late or overtaken by another thread's it is only too early, and grants less. */
        weir__store_relaxed(&e->touched, v.now);
        v.level -= (int64_t)v.units;
        if (result)
            weir__decide_report(&v, 0, now, result);
        return WEIR_ALLOW;
    }
}

/* Would cost (0 or more) pass? WEIR__REKEYED as above. */
int weir__decide_peek(const struct weir__policy_state *p, struct weir__hot *e, uint64_t x, const uint64_t *id,
                      uint64_t now, int64_t cost, struct weir_result *result);

/* Puts tokens (1 to the burst) back, up to the cap. 0 or WEIR__REKEYED. */
int weir__decide_give(struct weir *w, const struct weir__policy_state *p, struct weir__hot *e, uint64_t x,
                      const uint64_t *id, uint64_t now, int64_t tokens);

#endif
