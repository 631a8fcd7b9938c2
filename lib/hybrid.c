/* SPDX-License-Identifier: MIT */
/*
 * Decisions on entries that are shared with Redis. Owns the order of a decision: numbers in force, hold, overdraft,
 * outage policy, result. Must not know how grants arrive.
 *
 * Every load that a verdict rests on is an acquire load after that of x. A charge then proves them by its CAS of x; a
 * denial by finding x unchanged: whoever writes f or a pair {mult, cap} has changed x before, and releases
 * (memory-model.md, H). until, low and the policy's numbers may be stale by one answer of Redis: both are right. So may
 * hold, but it is never newer than the level it is held against.
 */
#include "lib/hybrid.h"

#include <string.h>

#include "lib/dirty.h"
#include "lib/intent.h"
#include "lib/table.h"

#define AGAIN (-1001) /* x has moved */

#define DEFAULT_INTERVAL UINT64_C(200000000)
#define DEFAULT_ROUND_TRIP UINT64_C(50000000)
#define BEING_TOLD UINT64_C(1)        /* bit 0 of global_at */
#define DENIED_WINDOW UINT64_C(50000) /* ns in which a thread counts one key's denials one by one ... */
#define DENIED_FEW 16u                /* ... only so often, */
#define DENIED_MANY 256u              /* and then so many at a time */

enum how { TAKE, TRY, LOOK };

struct ask {
    struct weir *w;
    struct weir__hot *e;       /* LOOK: may be NULL */
    struct weir__slice *slice; /* of e */
    struct weir__policy_state *policy;
    uint64_t now;    /* not before the last charge of the entry */
    uint64_t behind; /* ... which is so much later than the caller's clock */
    int64_t cost;
    enum how how;
    bool forced;  /* Redis did not answer: the outage policy, whatever is in hand */
    double fleet; /* what the whole bucket is known to hold; < 0: not known */
    int64_t charged;
    struct weir_result *result;
};

/* ---- numbers in force -------------------------------------------------------------------------------------------- */

WEIR__INLINE void view_of(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now, struct weir__view *view)
{
    const struct weir__slice *slice = &w->slice[weir__slot_of(w, e)];
    const struct weir__params *params;
    uint64_t until = 0;
    uint64_t touched = weir__load_acquire(&e->touched);
    int64_t level;
    unsigned s;

    view->x = x;
    view->now = now;
    view->f = weir__load_acquire(&e->f);
    view->regime = weir__load_acquire(&e->regime);
    view->k = weir__load_acquire(&e->k);
    view->mult = view->cap = 0;
    s = view->f & WEIR__SLOT;
    if (view->regime == WEIR__LOCAL) {
        params = &w->policies[weir__load_acquire(&e->policy)].slot[s];
        view->mult = weir__load_acquire(&params->mult);
        view->cap = weir__load_acquire(&params->cap);
    } else if (view->f & WEIR__FALL) {
        view->mult = weir__load_acquire(&slice->fall_mult[s]);
        view->cap = weir__load_acquire(&slice->fall_cap[s]);
    } else if (view->regime == WEIR__SLICED) {
        view->mult = weir__load_acquire(&slice->mult[s]);
        view->cap = weir__load_acquire(&slice->cap[s]);
        until = weir__load_relaxed(&slice->until);
    }
    view->ended = until && until < now;
    view->refill = weir__bucket_refill(view->ended ? until : now, view->mult);
    level = (int64_t)(view->refill - x - (view->f & WEIR__UNITS));
    if (WEIR__UNLIKELY(view->regime == WEIR__LOCAL && now > touched))
        level = weir__bucket_level(now, touched, view->mult, view->cap, x + (view->f & WEIR__UNITS));
    view->over = level > (int64_t)view->cap;
    view->level = view->over ? (int64_t)view->cap : level;
}

void weir__hybrid_view(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now, struct weir__view *view)
{
    view_of(w, e, x, now, view);
}

/* Nothing has changed since the view was taken: x is reread after its acquire loads. */
static bool unchanged(const struct ask *a, const struct weir__view *v)
{
    return !a->e || weir__load_relaxed(&a->e->x) == v->x;
}

static bool on_fallback(const struct weir__view *v)
{
    return v->regime == WEIR__LOCAL || v->f & WEIR__FALL;
}

static bool is_outage(const struct ask *a, const struct weir__view *v)
{
    uint64_t until = 0;

    /* a strict policy comes here only where Redis did not answer: what it told of others is no help */
    if (a->forced || on_fallback(v) || weir__load_relaxed(&a->policy->mode) == WEIR_STRICT)
        return true;
    if (v->regime == WEIR__SLICED)
        until = weir__load_relaxed(&a->slice->until);
    if (until == 0)
        until = weir__load_relaxed(&a->policy->fresh_until);
    return a->now > until;
}

/* q, units. */
static int64_t overdraft(const struct ask *a, uint8_t k)
{
    int64_t q = weir__load_relaxed(&a->policy->overdraft);
    int64_t most = (int64_t)(WEIR__UNITS_MAX >> k);

    if (q < 1 && a->how != TRY && weir__load_relaxed(&a->policy->unknown) == WEIR_UNKNOWN_ADMIT)
        q = 1;
    return (q > most ? most : q) << k;
}

/* The cost, units; more than any bucket holds where it can't be expressed. */
static int64_t cost_units(const struct ask *a, uint8_t k)
{
    return a->cost > (int64_t)(WEIR__UNITS_MAX >> k) ? INT64_MAX / 2 : a->cost << k;
}

/* ---- what Redis last said ---------------------------------------------------------------------------------------- */

enum weir__told weir__hybrid_fleet(const struct weir__policy_state *policy, const struct weir__slice *slice,
                                   uint64_t now, uint8_t k, int64_t *level)
{
    uint64_t at = weir__load_acquire(&slice->global_at);
    int64_t told = weir__load_acquire(&slice->global);
    uint64_t since = at & ~BEING_TOLD;

    if (at == 0)
        return WEIR__NEVER_TOLD;
    if (now > since) {
        uint64_t age = now - since < WEIR__HORIZON_NS ? now - since : WEIR__HORIZON_NS;

        told += (int64_t)weir__bucket_refill(age, weir__hybrid_mult(policy, k));
    }
    *level = told;
    /* the same time before and after, and nobody at it: `global` belongs to it */
    return at & BEING_TOLD || weir__load_relaxed(&slice->global_at) != at ? WEIR__TOLD_TORN : WEIR__TOLD;
}

void weir__hybrid_fleet_set(struct weir__slice *slice, int64_t level, uint64_t at)
{
    at = at & ~BEING_TOLD ? at & ~BEING_TOLD : 2;
    weir__store_relaxed(&slice->global_at, at | BEING_TOLD);
    /* release: whoever reads it finds BEING_TOLD afterwards, or what follows */
    weir__store_release(&slice->global, level);
    weir__store_release(&slice->global_at, at);
}

uint64_t weir__hybrid_mult(const struct weir__policy_state *policy, uint8_t k)
{
    unsigned current = weir__load_acquire(&policy->current);
    uint64_t mult = weir__load_relaxed(&policy->slot[current].mult);
    uint8_t own = weir__load_relaxed(&policy->slot_k[current]);

    /* They differ while weir_policy_set is at work: it will come to this entry, and puts right what was wrong. */
    if (own > k)
        return mult >> (own - k);
    if (own < k)
        return mult > UINT64_MAX >> (k - own) ? UINT64_MAX >> 1 : mult << (k - own);
    return mult;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static uint64_t interval(const struct ask *a)
{
    uint64_t ns = weir__load_relaxed(&a->policy->interval);

    return ns ? ns : DEFAULT_INTERVAL;
}

static uint64_t round_trip(const struct ask *a)
{
    uint64_t ns = weir__load_relaxed(&a->policy->round_trip);

    return ns ? ns : DEFAULT_ROUND_TRIP;
}

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
    if (b == WEIR_NEVER)
        return b;
    return a >= WEIR_NEVER - 1 - b ? WEIR_NEVER - 1 : a + b;
}

static void fill_level(const struct ask *a, int64_t level, int64_t full, uint64_t mult, uint8_t k)
{
    struct weir_result *r = a->result;
    int64_t tokens = weir__bucket_tokens(level, k);

    memset(r, 0, sizeof *r);
    r->limit = weir__load_relaxed(&a->policy->burst);
    r->remaining = tokens < 0 ? 0 : tokens > (int64_t)r->limit ? (int64_t)r->limit : tokens;
    if (level < full)
        r->reset_after_ns = add_saturating(a->behind, weir__bucket_wait(a->now, mult, full - level));
}

/* v: as it is after the decision. */
static WEIR__NOINLINE void fill_result(const struct ask *a, const struct weir__view *v, uint32_t flags, uint64_t retry)
{
    int64_t burst, own = 0, level;
    enum weir__told told = WEIR__NEVER_TOLD;
    uint64_t at;

    burst = level = weir__hybrid_burst(a->policy, v->k);
    if (a->e && v->regime != WEIR__LOCAL) {
        own = weir__hybrid_unreported(a->w, weir__slot_of(a->w, a->e), v->x);
        if (weir__load_relaxed(&a->e->noted))
            told = weir__hybrid_fleet(a->policy, a->slice, a->now, v->k, &level);
        at = told == WEIR__NEVER_TOLD ? 0 : weir__load_relaxed(&a->slice->global_at);
        if (at && a->now > at && a->now - at > 2 * interval(a))
            flags |= WEIR_STALE;
    }
    if (flags & WEIR_DEGRADED && on_fallback(v))
        fill_level(a, v->level, (int64_t)v->cap, v->mult, v->k);
    else
        fill_level(a, level - own, burst, weir__hybrid_mult(a->policy, v->k), v->k);
    a->result->retry_after_ns = retry ? add_saturating(a->behind, retry) : 0;
    a->result->flags = flags;
}

WEIR__INLINE void fill(const struct ask *a, const struct weir__view *v, uint32_t flags, uint64_t retry)
{
    if (a->result)
        fill_result(a, v, flags, retry);
}

/* ---- side effects ------------------------------------------------------------------------------------------------ */

static WEIR__NOINLINE void hurry(const struct ask *a)
{
    const struct weir__hooks *hooks;

    /* with a report out the answer is on its way; if it brings too little, the next take comes here again */
    if (weir__load_relaxed(&a->e->reported) || !weir__urgent_push(a->w, a->e))
        return;
    hooks = weir__hooks_enter(a->w);
    if (hooks) {
        hooks->wake(hooks->ctx);
        weir__hooks_leave(a->w);
    }
}

static void note(const struct ask *a)
{
    if (!weir__load_relaxed(&a->e->noted))
        weir__store_relaxed(&a->e->noted, 1);
}

/* The largest cost is what a slice must have room for. Lossy. */
static void note_cost(const struct ask *a)
{
    if ((uint64_t)a->cost > weir__load_relaxed(&a->slice->asked)) {
        note(a);
        weir__store_relaxed(&a->slice->asked, (uint64_t)a->cost);
    }
}

/* Demand that was denied. Lossy on purpose: the count is no RMW, and once a thread has denied one key often within a
 * moment it adds to it only now and then, so that a flood of denials goes on scaling with the cores. */
static void count_denied(const struct ask *a)
{
    static _Thread_local struct {
        const void *entry;
        uint64_t since, tokens;
        unsigned times;
    } recent;
    uint64_t cost = (uint64_t)a->cost;

    if (recent.entry != a->e) {
        recent.entry = a->e;
        recent.since = a->now;
        recent.tokens = recent.times = 0;
    } else if (a->now - recent.since >= DENIED_WINDOW) {
        recent.since = a->now;
        recent.times = 0;
    }
    recent.tokens += cost;
    if (recent.times++ < DENIED_FEW || recent.times % DENIED_MANY == 0) {
        note(a);
        weir__store_relaxed(&a->slice->denied, weir__load_relaxed(&a->slice->denied) + recent.tokens);
        recent.tokens = 0;
    }
    note_cost(a);
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

/* Takes the cost from what the view shows, which is enough. v is then as it is afterwards. */
WEIR__INLINE int charge(struct ask *a, struct weir__view *v, int64_t cost)
{
    uint64_t x = v->x, f = v->f, new_x = x + (uint64_t)cost;

    if (a->how == LOOK || cost == 0)
        return unchanged(a, v) ? WEIR_ALLOW : AGAIN;
    /* seq_cst: before the load of the dirty flag (memory-model.md, D) */
    if (v->over) {
        uint64_t new_f = weir__hybrid_f(v->refill, x, v->level, f & ~WEIR__UNITS);

        if (!weir__cas16_state(&a->e->x, &x, &f, new_x, new_f))
            return AGAIN;
    } else if (!atomic_compare_exchange_strong_explicit(&a->e->x, &x, new_x, memory_order_seq_cst,
                                                        memory_order_relaxed)) {
        return AGAIN;
    }
    /* Late, or overtaken by another thread's, it is only too early, and grants less. */
    weir__store_relaxed(&a->e->touched, a->now);
    v->x = new_x;
    v->level -= cost;
    a->charged = a->cost;
    if (v->regime != WEIR__LOCAL)
        weir__dirty_mark(a->w, a->e);
    return WEIR_ALLOW;
}

static WEIR__NOINLINE int deny_never(struct ask *a, const struct weir__view *v, uint32_t flags)
{
    if (!unchanged(a, v))
        return AGAIN;
    fill(a, v, flags, WEIR_NEVER);
    return WEIR_DENY;
}

/* Not enough in hand, in spite of the overdraft q. */
static WEIR__NOINLINE int deny_slice(struct ask *a, const struct weir__view *v, int64_t cost, int64_t q, uint64_t hold,
                                     uint32_t flags)
{
    uint64_t held = hold > a->now ? hold - a->now : 0;
    uint64_t wait;

    if (!unchanged(a, v))
        return AGAIN;
    if (a->how != LOOK)
        count_denied(a);
    if (a->how == TRY && held == 0)
        return WEIR__SEAM_ASK;
    if (a->how == TAKE && held == 0)
        hurry(a);
    if (v->mult && cost - q <= (int64_t)v->cap)
        wait = weir__bucket_wait(a->now, v->mult, cost - q - v->level);
    else
        wait = cost - q <= v->level ? 0 : round_trip(a); /* only Redis can tell; it is being asked */
    fill(a, v, flags, wait > held ? wait : held);
    return WEIR_DENY;
}

/* After a charge: is Redis to be asked before the timer does? */
WEIR__INLINE bool runs_short(const struct weir__view *v, int64_t cost, int64_t q, int64_t low)
{
    if (v->level >= 0)
        return v->level < low;
    /* Most keys are asked for once and not again for a while. If nothing is held of it, and the overdraft bears it
     * easily, the first take after a report waits for the timer; the second one is demand. */
    return v->mult || v->cap || v->level + cost < 0 || v->level < -(q / 2);
}

WEIR__INLINE int decide_slice(struct ask *a, struct weir__view *v)
{
    int64_t cost = cost_units(a, v->k), q = overdraft(a, v->k), low = INT64_MIN;
    uint32_t flags = v->regime == WEIR__BARE ? WEIR_UNKNOWN : 0;
    uint64_t hold = 0;
    int verdict;

    if (a->cost > (int64_t)weir__load_relaxed(&a->policy->burst))
        return deny_never(a, v, flags);
    if (v->regime == WEIR__SLICED) {
        hold = weir__load_acquire(&a->slice->hold);
        low = weir__load_relaxed(&a->slice->low);
    }
    if (cost > 0 && v->level - cost < (a->now >= hold ? -q : 0))
        return deny_slice(a, v, cost, q, hold, flags);
    verdict = charge(a, v, cost);
    if (verdict == AGAIN)
        return AGAIN;
    if (a->charged > 1 && v->regime == WEIR__SLICED)
        note_cost(a);
    if (a->charged && a->now >= hold && runs_short(v, cost, q, low))
        hurry(a);
    fill(a, v, flags, 0);
    return verdict;
}

/* ---- outages ----------------------------------------------------------------------------------------------------- */

/* What the caller knows of the whole bucket, where the entry was told nothing or more. */
static int64_t known_fleet(const struct ask *a, uint8_t k, enum weir__told *told, int64_t fleet)
{
    int64_t known = weir__bucket_units(a->fleet, k);

    if (*told == WEIR__TOLD && fleet < known)
        return fleet;
    *told = WEIR__TOLD;
    return known;
}

/* What an entry falls back to: {mult, cap} and the level it starts with. v must not be a fallback itself. */
static void fallback_of(const struct ask *a, const struct weir__view *v, struct weir__view *out)
{
    double burst = weir__load_relaxed(&a->policy->fall_burst);
    int64_t whole = weir__hybrid_burst(a->policy, v->k), level, fleet = 0;
    enum weir__told told = WEIR__NEVER_TOLD;
    unsigned s = v->f & WEIR__SLOT;
    bool noted = a->e && weir__load_relaxed(&a->e->noted);

    *out = *v;
    out->mult = noted ? weir__load_acquire(&a->slice->fall_mult[s]) : 0;
    out->cap = noted ? weir__load_acquire(&a->slice->fall_cap[s]) : 0;
    if (out->mult == 0 && burst > 0) {
        out->mult = weir__bucket_mult(weir__load_relaxed(&a->policy->fall_rate), v->k);
        out->cap = (uint64_t)weir__bucket_units(burst, v->k);
    } else if (out->mult == 0) {
        out->mult = UINT64_MAX;
        out->cap = UINT64_MAX;
    }
    if (out->mult > weir__hybrid_mult(a->policy, v->k))
        out->mult = weir__hybrid_mult(a->policy, v->k);
    if (out->cap > (uint64_t)whole)
        out->cap = (uint64_t)whole;

    /* The share is of what nobody held when Redis last spoke, and what is left of the slice as of its end goes with it:
     * Redis writes that off. Without a slice nobody need hold any: of what the whole bucket has by now, or of a full
     * one where Redis never spoke. What is overdrawn is owed either way. */
    if (v->mult || v->cap) {
        level = v->level;
        fleet = weir__load_relaxed(&a->slice->unheld);
    } else {
        level = v->level < 0 ? v->level : 0;
        if (noted)
            told = weir__hybrid_fleet(a->policy, a->slice, a->now, v->k, &fleet);
        if (a->fleet >= 0 && told != WEIR__TOLD_TORN)
            fleet = known_fleet(a, v->k, &told, fleet);
        if (told == WEIR__NEVER_TOLD)
            fleet = whole;
        else if (told == WEIR__TOLD_TORN)
            fleet = 0;
    }
    fleet = fleet < 0 ? 0 : fleet > whole ? whole : fleet;
    level += (int64_t)((weir__u128)fleet * out->cap / (uint64_t)whole) & ~INT64_C(3);
    out->level = level < (int64_t)out->cap ? level : (int64_t)out->cap;
    out->over = false;
    out->f |= WEIR__FALL;
}

/* Puts the entry on its fallback share, under the lock bit of x: takers write the fallback pair of the slot in force,
 * which the collector never touches. */
static int fall(struct ask *a, const struct weir__view *v)
{
    struct weir__view to;
    uint64_t x = v->x, s = v->f & WEIR__SLOT;

    /* acq_rel: all that the view read is proved current, and what follows stays after it */
    weir__intent_begin(a->w, a->e, WEIR__INTENT_FALL);
    if (!atomic_compare_exchange_strong_explicit(&a->e->x, &x, x | WEIR__LOCK, memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        weir__intent_end(a->w, a->e);
        return AGAIN;
    }
    fallback_of(a, v, &to);
    note(a);
    weir__store_release(&a->slice->fall_mult[s], to.mult);
    weir__store_release(&a->slice->fall_cap[s], to.cap);
    x += WEIR__STEP;
    /* release: whoever sees this f sees the lock bit, or the x that follows */
    weir__store_release(&a->e->f, weir__hybrid_f(weir__bucket_refill(a->now, to.mult), x, to.level, s | WEIR__FALL));
    atomic_fetch_add_explicit(&a->w->cold[weir__slot_of(a->w, a->e)].returned, WEIR__STEP, memory_order_release);
    weir__table_unlock(a->w, a->e, x);
    return AGAIN;
}

/* The verdict of a bucket of one's own: the fallback share, or the whole one before a sync was ever attached. */
static int decide_share(struct ask *a, struct weir__view *v)
{
    int64_t cost = cost_units(a, v->k);
    uint64_t wait;
    int verdict;

    if (v->level < cost && cost > 0) {
        if (!unchanged(a, v))
            return AGAIN;
        if (a->how != LOOK && v->regime != WEIR__LOCAL)
            count_denied(a);
        wait = interval(a); /* more than the share ever holds: Redis may be back by then */
        if (v->mult && cost <= (int64_t)v->cap)
            wait = weir__bucket_wait(a->now, v->mult, cost - v->level);
        fill(a, v, WEIR_DEGRADED, wait);
        return WEIR_DENY;
    }
    verdict = charge(a, v, cost);
    if (verdict == AGAIN)
        return AGAIN;
    if (a->charged && v->regime != WEIR__LOCAL)
        atomic_fetch_add_explicit(&a->slice->fall_spent, a->cost, memory_order_relaxed);
    fill(a, v, WEIR_DEGRADED, 0);
    return verdict;
}

static WEIR__NOINLINE int decide_outage(struct ask *a, struct weir__view *v)
{
    int on_outage = weir__load_relaxed(&a->policy->on_outage);
    int verdict;

    if (a->cost > (int64_t)weir__load_relaxed(&a->policy->burst)) {
        verdict = deny_never(a, v, WEIR_DEGRADED);
    } else if (on_outage == WEIR_OUTAGE_LOCAL) {
        if (!on_fallback(v)) {
            struct weir__view to;

            if (a->how != LOOK)
                return fall(a, v);
            fallback_of(a, v, &to);
            *v = to;
        }
        verdict = decide_share(a, v);
    } else if (!unchanged(a, v)) {
        return AGAIN;
    } else {
        verdict = on_outage == WEIR_OUTAGE_OPEN ? WEIR_ALLOW : WEIR_DENY;
        fill(a, v, WEIR_DEGRADED, verdict == WEIR_DENY ? interval(a) : 0);
        if (verdict == WEIR_DENY && a->result)
            a->result->remaining = 0;
    }
    if (verdict != AGAIN && a->how != LOOK) {
        int told = verdict == WEIR_DENY && weir__load_relaxed(&a->policy->shadow) ? WEIR_ALLOW : verdict;

        atomic_fetch_add_explicit(&a->w->state->degraded, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&a->policy->by_fallback[told], 1, memory_order_relaxed);
        /* only an answer of Redis brings a new slice or ends life on a share, and only a report brings an answer */
        if (v->regime == WEIR__SLICED || v->f & WEIR__FALL)
            weir__dirty_mark(a->w, a->e);
    }
    return verdict;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */

static int decide(struct ask *a, uint64_t x, const uint64_t id[2])
{
    uint64_t now = a->now;

    for (;;) {
        uint64_t touched = weir__load_acquire(&a->e->touched);
        struct weir__view v;
        int verdict;

        if (x & WEIR__LOCK)
            return WEIR__REKEYED;
        a->now = now > touched ? now : touched;
        a->behind = a->now - now;
        view_of(a->w, a->e, x, a->now, &v);
        if (WEIR__UNLIKELY(a->how != LOOK &&
                           (v.regime == WEIR__LOCAL || !weir__load_relaxed(&a->policy->fresh_until)) &&
                           weir__hybrid_unsettled(a->w, a->e))) {
            weir__hybrid_settle(a->w, a->e, a->now);
            if (weir__hybrid_unsettled(a->w, a->e))
                return WEIR__REKEYED; /* the policy is a local one by now: not for this file */
            verdict = AGAIN;
        } else {
            verdict = is_outage(a, &v) ? decide_outage(a, &v) : decide_slice(a, &v);
        }
        if (verdict != AGAIN)
            return verdict;
        x = weir__load_acquire(&a->e->x);
        if (!weir__table_is(a->e, id))
            return WEIR__REKEYED;
    }
}

static struct ask ask_of(struct weir *w, struct weir__hot *e, weir_policy_id policy, uint64_t now, int64_t cost,
                         struct weir_result *result)
{
    return (struct ask){.w = w,
                        .e = e,
                        .slice = e ? &w->slice[weir__slot_of(w, e)] : NULL,
                        .policy = &w->policies[policy],
                        .now = now,
                        .cost = cost,
                        .fleet = -1,
                        .result = result};
}

int weir__hybrid_take(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t cost, int64_t *charged, struct weir_result *result)
{
    struct ask a = ask_of(w, e, policy, now, cost, result);
    int verdict = decide(&a, x, id);

    if (charged)
        *charged = a.charged;
    return verdict;
}

int weir__hybrid_try(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                     uint64_t now, int64_t cost, struct weir_result *result)
{
    struct ask a = ask_of(w, e, policy, now, cost, result);

    a.how = TRY;
    return decide(&a, x, id);
}

/* A look at a key that has no entry: what weir__hybrid_claim would make. */
static int decide_absent(struct ask *a)
{
    unsigned current = weir__load_acquire(&a->policy->current);
    struct weir__view v = {.k = weir__load_relaxed(&a->policy->slot_k[current]), .regime = WEIR__BARE};

    if (!atomic_load_explicit(&a->w->state->attached, memory_order_seq_cst)) {
        v.regime = WEIR__LOCAL;
        v.mult = weir__hybrid_mult(a->policy, v.k);
        v.level = weir__hybrid_burst(a->policy, v.k);
        v.cap = (uint64_t)v.level;
    }
    return is_outage(a, &v) ? decide_outage(a, &v) : decide_slice(a, &v);
}

int weir__hybrid_outage(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                        uint64_t now, int64_t cost, double fleet, int64_t *charged, struct weir_result *result)
{
    struct ask a = ask_of(w, e, policy, now, cost, result);
    int verdict;

    a.forced = true;
    a.fleet = fleet;
    if (e) {
        verdict = decide(&a, x, id);
    } else {
        a.how = LOOK;
        verdict = decide_absent(&a);
        atomic_fetch_add_explicit(&w->state->degraded, 1, memory_order_relaxed);
    }
    if (charged)
        *charged = a.charged;
    return verdict;
}

int weir__hybrid_peek(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t cost, struct weir_result *result)
{
    struct ask a = ask_of(w, e, policy, now, cost, result);

    a.how = LOOK;
    return e ? decide(&a, x, id) : decide_absent(&a);
}

/* f for x + WEIR__STEP with so many tokens more. What is past the cap is cut off by whoever looks. */
static uint64_t raised_f(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now, int64_t tokens, uint64_t *f)
{
    uint64_t touched = weir__load_acquire(&e->touched);
    struct weir__view v;
    int64_t more;

    weir__hybrid_view(w, e, x, now > touched ? now : touched, &v);
    more = tokens > (int64_t)(WEIR__UNITS_MAX >> v.k) ? (int64_t)WEIR__UNITS_MAX : tokens << v.k;
    *f = v.f;
    return weir__hybrid_f(v.refill, x + WEIR__STEP, v.level + more, v.f & ~WEIR__UNITS);
}

/* What the cold line must know of a level that was raised; the entry is pinned or locked. */
static void credit(struct weir *w, struct weir__hot *e, int64_t tokens, int unspend)
{
    struct weir__cold *cold = &w->cold[weir__slot_of(w, e)];
    struct weir__slice *slice = &w->slice[weir__slot_of(w, e)];
    uint64_t back = WEIR__STEP;

    if (unspend) {
        back += (uint64_t)tokens << weir__load_relaxed(&e->k);
        if (weir__load_relaxed(&e->f) & WEIR__FALL)
            atomic_fetch_sub_explicit(&slice->fall_spent, tokens, memory_order_relaxed);
    } else if (weir__load_relaxed(&e->regime) != WEIR__LOCAL) {
        /* seq_cst: before the load of the dirty flag that follows (memory-model.md, D) */
        atomic_fetch_add_explicit(&cold->refunded, (uint64_t)tokens, memory_order_seq_cst);
    }
    /* release: a collector that counts it counts the x that it belongs to */
    atomic_fetch_add_explicit(&cold->returned, back, memory_order_release);
}

/* Of a shared limiter: a pin would outlive a process that is killed. Killed under the lock bit, it has given back
 * nothing, or raised the level and told nobody (then Redis is told of more than was used). */
static int give_locked(struct weir *w, struct weir__hot *e, const uint64_t id[2], uint64_t now, int64_t tokens,
                       int unspend)
{
    uint64_t x = weir__load_acquire(&e->x), f;

    weir__intent_begin(w, e, WEIR__INTENT_DROP);
    if (x & WEIR__LOCK || !weir__table_is(e, id) ||
        !atomic_compare_exchange_strong_explicit(&e->x, &x, x | WEIR__LOCK, memory_order_seq_cst,
                                                 memory_order_relaxed)) {
        weir__intent_end(w, e);
        return WEIR__REKEYED;
    }
    f = raised_f(w, e, x, now, tokens, &f);
    /* release: whoever sees this f sees the lock bit, or the x that follows */
    weir__store_release(&e->f, f);
    credit(w, e, tokens, unspend);
    weir__table_unlock(w, e, x + WEIR__STEP);
    return 0;
}

static int give_pinned(struct weir *w, struct weir__hot *e, const uint64_t id[2], uint64_t now, int64_t tokens,
                       int unspend)
{
    int status = WEIR__REKEYED;
    uint64_t x, f, new_f;

    /* Pinned, so that it is still this key's when the cold line is written. seq_cst, and x loaded after it: whoever
     * drops an entry takes the lock bit first and then looks at the pin. */
    atomic_fetch_add_explicit(&e->pin, 1, memory_order_seq_cst);
    do {
        x = atomic_load_explicit(&e->x, memory_order_seq_cst);
        if (x & WEIR__LOCK || !weir__table_is(e, id))
            goto unpin;
        new_f = raised_f(w, e, x, now, tokens, &f);
    } while (!weir__cas16_state(&e->x, &x, &f, x + WEIR__STEP, new_f));
    status = 0;
    credit(w, e, tokens, unspend);
    if (weir__load_relaxed(&e->regime) != WEIR__LOCAL)
        weir__dirty_mark(w, e);
unpin:
    atomic_fetch_sub_explicit(&e->pin, 1, memory_order_release);
    return status;
}

int weir__hybrid_give(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t tokens, int unspend)
{
    int64_t burst = (int64_t)weir__load_relaxed(&w->policies[policy].burst);
    int status;

    (void)x;
    if (tokens > burst)
        tokens = burst;
    if (!w->state->shared)
        return give_pinned(w, e, id, now, tokens, unspend);
    status = give_locked(w, e, id, now, tokens, unspend);
    if (status == 0 && weir__load_relaxed(&e->regime) != WEIR__LOCAL)
        weir__dirty_mark(w, e);
    return status;
}
