/* SPDX-License-Identifier: MIT */
/*
 * Decisions on a local bucket: all but the hot path.
 */
#include "lib/decide.h"

#include <string.h>

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
    if (b == WEIR_NEVER)
        return b;
    return a >= WEIR_NEVER - 1 - b ? WEIR_NEVER - 1 : a + b;
}

/* Far beyond the times for which a bucket counts right it may be any number. */
static int64_t missing(uint64_t wanted, int64_t level)
{
    return (int64_t)(wanted - (uint64_t)level);
}

void weir__decide_report(const struct weir__verdict *v, int denied, uint64_t now, struct weir_result *result)
{
    uint64_t behind = v->now - now; /* the caller's clock is by so much */
    int64_t tokens = weir__bucket_tokens(v->level, v->k);

    memset(result, 0, sizeof *result);
    result->limit = v->cap >> v->k;
    result->remaining = tokens > 0 ? tokens : 0;
    if (denied)
        result->retry_after_ns =
            v->units > v->cap ? WEIR_NEVER
                              : add_saturating(behind, weir__bucket_wait(v->now, v->mult, missing(v->units, v->level)));
    if (v->level < (int64_t)v->cap)
        result->reset_after_ns = add_saturating(behind, weir__bucket_wait(v->now, v->mult, missing(v->cap, v->level)));
}

int weir__decide_peek(const struct weir__policy_state *p, struct weir__hot *e, uint64_t x, const uint64_t *id,
                      uint64_t now, int64_t cost, struct weir_result *result)
{
    for (;;) {
        struct weir__verdict v;
        int denied;

        if (x & WEIR__LOCK || weir__load_acquire(&e->regime) != WEIR__LOCAL)
            return WEIR__REKEYED;
        weir__decide_read(p, e, x, weir__load_acquire(&e->f), now, 0, &v);
        /* a cost past the burst may not fit when shifted */
        v.units = (uint64_t)cost > v.cap >> v.k ? v.cap + 1 : (uint64_t)cost << v.k;
        if (v.level > (int64_t)v.clip)
            v.level = (int64_t)v.clip;
        denied = cost > 0 && v.level < (int64_t)v.units;
        if (weir__load_acquire(&e->x) == x) {
            if (result)
                weir__decide_report(&v, denied, now, result);
            return denied ? WEIR_DENY : WEIR_ALLOW;
        }
        x = weir__load_acquire(&e->x);
        if (id && !weir__table_is(e, id))
            return WEIR__REKEYED;
    }
}

int weir__decide_give(struct weir *w, const struct weir__policy_state *p, struct weir__hot *e, uint64_t x,
                      const uint64_t *id, uint64_t now, int64_t tokens)
{
    for (;;) {
        uint64_t f = weir__load_acquire(&e->f), seen = x, refill;
        struct weir__verdict v;

        if (x & WEIR__LOCK || weir__load_acquire(&e->regime) != WEIR__LOCAL)
            return WEIR__REKEYED;
        weir__decide_read(p, e, x, f, now, 0, &v);
        v.units = (uint64_t)tokens > v.cap >> v.k ? v.cap : (uint64_t)tokens << v.k;
        if (v.level > (int64_t)(v.cap - v.units))
            v.level = (int64_t)v.cap;
        else
            v.level += (int64_t)v.units;
        if (v.level > (int64_t)v.clip)
            v.level = (int64_t)v.clip;
        refill = weir__bucket_refill(v.now, v.mult);
        if (weir__cas16_state(&e->x, &seen, &f, x + WEIR__STEP,
                              ((refill - (x + WEIR__STEP) - (uint64_t)v.level) & WEIR__UNITS) | (f & ~WEIR__UNITS))) {
            weir__store_relaxed(&e->touched, v.now);
            atomic_fetch_add_explicit(&w->cold[weir__slot_of(w, e)].returned, WEIR__STEP, memory_order_relaxed);
            return 0;
        }
        x = seen;
        if (id && !weir__table_is(e, id))
            return WEIR__REKEYED;
    }
}
