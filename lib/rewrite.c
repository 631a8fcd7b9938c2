/* SPDX-License-Identifier: MIT */
/*
 * What the holder of an entry's lock bit does to one that is or becomes shared with Redis: making, dropping, forgetting
 * it, new numbers, another mode, a sync that comes or goes. Must not know how decisions use the result.
 *
 * Nobody can charge a locked entry, so plain stores do; they are release stores where a reader may still find them next
 * to an x that it loaded before the lock: it then sees the lock bit, or what follows, when it rereads x.
 */
#include "lib/hybrid.h"

#include "lib/dirty.h"
#include "lib/intent.h"
#include "lib/table.h"

/* What an entry shall be. */
struct next {
    enum weir__regime regime;
    uint8_t k;
    uint64_t flags;     /* of f */
    uint64_t refill;    /* R(now) by the numbers in force from now on */
    int64_t level;      /* units of k */
    int64_t unreported; /* units of k */
};

/* Returns the x to unlock with. */
static uint64_t write_entry(struct weir *w, uint32_t slot, uint64_t x, const struct next *next)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__cold *cold = &w->cold[slot];

    x += WEIR__STEP;
    weir__store_release(&e->regime, (uint8_t)next->regime);
    weir__store_release(&e->k, next->k);
    weir__store_release(&e->f, weir__hybrid_f(next->refill, x, next->level, next->flags));
    /* `returned` stays: a thread that is just giving back adds to it after its CAS of x */
    weir__store_relaxed(&cold->base, x - weir__load_acquire(&cold->returned) - (uint64_t)next->unreported);
    return x;
}

static void wipe_slice(struct weir *w, uint32_t slot)
{
    struct weir__slice *slice = &w->slice[slot];

    if (!weir__load_relaxed(&w->hot[slot].noted))
        return;
    for (int s = 0; s < 2; s++) {
        weir__store_release(&slice->mult[s], 0);
        weir__store_release(&slice->cap[s], 0);
        weir__store_release(&slice->fall_mult[s], 0);
        weir__store_release(&slice->fall_cap[s], 0);
    }
    weir__store_relaxed(&slice->until, 0);
    weir__store_relaxed(&slice->hold, 0);
    weir__store_relaxed(&slice->low, 0);
    weir__store_relaxed(&slice->denied, 0);
    weir__store_relaxed(&slice->fall_spent, 0);
    weir__store_relaxed(&slice->asked, 0);
    weir__store_relaxed(&slice->global_at, 0);
    weir__store_relaxed(&slice->global, 0);
    slice->denied_told = 0;
    slice->sent_level = 0;
    slice->sent_fall = 0;
    weir__store_relaxed(&w->hot[slot].noted, 0);
}

/* Units of `from` as units of `to`: rounded down, at most WEIR__UNITS_MAX either way. */
static int64_t rescale(int64_t units, uint8_t from, uint8_t to)
{
    const int64_t most = (int64_t)WEIR__UNITS_MAX;

    if (from >= to)
        return (units >> (from - to)) & ~INT64_C(3);
    if (units > most >> (to - from))
        return most;
    if (units < -(most >> (to - from)))
        return -most;
    return units * (INT64_C(1) << (to - from));
}

static uint64_t rescale_mult(uint64_t mult, uint8_t from, uint8_t to)
{
    if (from >= to)
        return mult >> (from - to);
    return mult > UINT64_MAX >> (to - from) ? UINT64_MAX : mult << (to - from);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool is_attached(const struct weir *w)
{
    return atomic_load_explicit(&w->state->attached, memory_order_seq_cst) != 0;
}

/* ---- coming and going -------------------------------------------------------------------------------------------- */

/* As if nobody had ever asked for the key. */
static struct next untouched(struct weir *w, uint32_t slot, uint64_t now)
{
    const struct weir__policy_state *policy = &w->policies[weir__load_relaxed(&w->hot[slot].policy)];
    unsigned current = weir__load_acquire(&policy->current);
    struct next next = {.regime = WEIR__BARE, .k = weir__load_acquire(&policy->slot_k[current])};

    if (!is_attached(w)) {
        next.regime = WEIR__LOCAL;
        next.flags = current;
        next.level = (int64_t)weir__load_acquire(&policy->slot[current].cap);
        next.refill = weir__bucket_refill(now, weir__load_acquire(&policy->slot[current].mult));
    }
    return next;
}

void weir__hybrid_claim(struct weir *w, uint32_t slot, weir_policy_id policy, uint64_t x, uint64_t now)
{
    struct weir__cold *cold = &w->cold[slot];
    struct next next;

    weir__store_relaxed(&w->hot[slot].policy, (uint16_t)policy);
    next = untouched(w, slot, now);
    wipe_slice(w, slot);
    weir__store_relaxed(&w->hot[slot].reported, 0);
    weir__store_relaxed(&cold->returned, 0);
    weir__store_relaxed(&cold->refunded, 0);
    (void)write_entry(w, slot, x - WEIR__STEP, &next);
}

uint64_t weir__hybrid_forget(struct weir *w, uint32_t slot, uint64_t x, uint64_t now)
{
    struct next next = untouched(w, slot, now);

    wipe_slice(w, slot);
    if (weir__load_relaxed(&w->hot[slot].reported) == 1)
        weir__store_relaxed(&w->hot[slot].reported, 2);
    weir__store_relaxed(&w->cold[slot].refunded, 0);
    return write_entry(w, slot, x, &next);
}

int weir__hybrid_evictable(struct weir *w, uint32_t slot, uint64_t x, uint64_t now)
{
    struct weir__hot *e = &w->hot[slot];
    uint64_t touched = weir__load_relaxed(&e->touched);
    struct weir__view v;

    weir__hybrid_view(w, e, x, now > touched ? now : touched, &v);
    if (weir__hybrid_whole(weir__hybrid_unreported(w, slot, x), v.k) != 0 ||
        weir__load_acquire(&w->cold[slot].refunded) != 0)
        return 0;
    if (v.f & WEIR__FALL)
        return v.level >= (int64_t)v.cap;
    if (v.mult != 0 || v.cap != 0 || v.level < 0)
        return 0;
    return v.regime == WEIR__BARE || weir__load_relaxed(&w->slice[slot].hold) <= now;
}

/* ---- from one regime to another ---------------------------------------------------------------------------------- */

/* From a bucket of this process to one that Redis knows. What the bucket lacks is reported as spent, as far as this
 * process spent it and the new burst can lack it. */
static struct next to_shared(struct weir *w, uint32_t slot, const struct weir__view *v, uint8_t k, int64_t burst)
{
    int64_t old = (int64_t)v->cap, lack = rescale(burst, k, v->k);
    int64_t spent = weir__hybrid_unreported(w, slot, v->x);

    if (lack > old)
        lack = old;
    lack -= least(v->level, lack);
    if (lack > spent)
        lack = spent > 0 ? spent : 0;
    return (struct next){.regime = WEIR__BARE, .k = k, .unreported = rescale(lack, v->k, k)};
}

/* The other way round. It starts with what Redis last said, less what was spent since; full, if it never said. */
static struct next to_local(struct weir *w, uint32_t slot, const struct weir__view *v, uint64_t now)
{
    const struct weir__policy_state *policy = &w->policies[weir__load_relaxed(&w->hot[slot].policy)];
    unsigned current = weir__load_acquire(&policy->current);
    uint8_t k = weir__load_acquire(&policy->slot_k[current]);
    int64_t burst = (int64_t)weir__load_acquire(&policy->slot[current].cap);
    int64_t unreported = weir__hybrid_unreported(w, slot, v->x), level;
    struct next next = {.regime = WEIR__LOCAL, .k = k, .flags = current};

    if (v->regime == WEIR__LOCAL || v->f & WEIR__FALL) {
        level = rescale(v->level, v->k, k);
    } else if (weir__load_relaxed(&w->hot[slot].noted) &&
               weir__hybrid_fleet(policy, &w->slice[slot], now, v->k, &level) != WEIR__NEVER_TOLD) {
        level = rescale(level - unreported, v->k, k);
        level = level < 0 ? 0 : level;
    } else {
        level = burst + rescale(least(v->level, 0), v->k, k);
    }
    next.level = least(level, burst);
    next.unreported = rescale(unreported, v->k, k);
    next.refill = weir__bucket_refill(now, weir__load_acquire(&policy->slot[current].mult));
    return next;
}

/* Shared before and after, but new numbers: nothing may be more than they allow. */
static struct next to_numbers(struct weir *w, uint32_t slot, const struct weir__view *v, uint8_t k, int64_t burst,
                              uint64_t mult, uint64_t now)
{
    struct weir__slice *slice = &w->slice[slot];
    struct next next = {.regime = v->regime, .k = k, .flags = v->f & ~WEIR__UNITS, .level = rescale(v->level, v->k, k)};
    _Atomic uint64_t *mults[2] = {slice->mult, slice->fall_mult}, *caps[2] = {slice->cap, slice->fall_cap};
    bool fallen = v->f & WEIR__FALL;
    uint64_t new_mult, at;
    int64_t new_cap, low;

    next.unreported = rescale(weir__hybrid_unreported(w, slot, v->x), v->k, k);
    if (!weir__load_relaxed(&w->hot[slot].noted))
        return next;
    for (int pair = 0; pair < 4; pair++) {
        int kind = pair / 2, s = pair % 2;

        new_mult = rescale_mult(weir__load_relaxed(&mults[kind][s]), v->k, k);
        new_cap = least(rescale((int64_t)weir__load_relaxed(&caps[kind][s]), v->k, k), burst);
        if (new_mult > mult)
            new_mult = mult;
        weir__store_release(&mults[kind][s], new_mult);
        weir__store_release(&caps[kind][s], (uint64_t)new_cap);
        if (kind == fallen && s == (int)(v->f & WEIR__SLOT) && (fallen || v->regime == WEIR__SLICED))
            next.refill = weir__bucket_refill(v->ended ? weir__load_relaxed(&slice->until) : now, new_mult);
    }
    low = weir__load_relaxed(&slice->low);
    if (low != INT64_MIN)
        weir__store_relaxed(&slice->low, rescale(low, v->k, k));
    at = weir__load_relaxed(&slice->global_at);
    if (at)
        weir__hybrid_fleet_set(slice, least(rescale(weir__load_relaxed(&slice->global), v->k, k), burst), at);
    slice->sent_level = rescale(slice->sent_level, v->k, k);
    return next;
}

uint64_t weir__hybrid_convert(struct weir *w, uint32_t slot, uint64_t x, uint64_t now)
{
    struct weir__hot *e = &w->hot[slot];
    const struct weir__policy_state *policy = &w->policies[weir__load_relaxed(&e->policy)];
    unsigned current = weir__load_acquire(&policy->current);
    uint8_t k = weir__load_acquire(&policy->slot_k[current]);
    int64_t burst = (int64_t)weir__load_acquire(&policy->slot[current].cap);
    uint64_t touched = weir__load_relaxed(&e->touched);
    struct weir__view v;
    struct next next;

    if (touched > now)
        now = touched;
    weir__hybrid_view(w, e, x, now, &v);
    if (weir__load_acquire(&policy->mode) == WEIR_LOCAL || !is_attached(w)) {
        next = to_local(w, slot, &v, now);
        wipe_slice(w, slot);
    } else if (v.regime == WEIR__LOCAL) {
        next = to_shared(w, slot, &v, k, burst);
        wipe_slice(w, slot);
        weir__store_relaxed(&w->cold[slot].refunded, 0);
    } else {
        next = to_numbers(w, slot, &v, k, burst, weir__load_acquire(&policy->slot[current].mult), now);
    }
    x = write_entry(w, slot, x, &next);
    weir__table_touch(e, now);
    if (next.regime != WEIR__LOCAL && weir__hybrid_whole(next.unreported, next.k) != 0)
        weir__dirty_list(w, e);
    return x;
}

void weir__hybrid_settle(struct weir *w, struct weir__hot *e, uint64_t now)
{
    uint64_t x;

    for (unsigned turns = 0;; weir__intent_wait(w, &turns)) {
        x = weir__load_acquire(&e->x);
        if (x & WEIR__LOCK)
            continue;
        /* a slot without a key is being filled without the lock bit: keep off */
        if (weir__load_acquire(&e->id[0]) == 0 ||
            weir__load_acquire(&w->policies[weir__load_acquire(&e->policy)].mode) == WEIR_LOCAL ||
            !weir__hybrid_unsettled(w, e))
            return;
        /* seq_cst: before the load of `attached` that decides; id was read after x, so it is still there */
        weir__intent_begin(w, e, WEIR__INTENT_REWRITE);
        if (atomic_compare_exchange_strong_explicit(&e->x, &x, x | WEIR__LOCK, memory_order_seq_cst,
                                                    memory_order_relaxed))
            break;
        weir__intent_end(w, e);
    }
    weir__table_unlock(w, e, weir__hybrid_convert(w, weir__slot_of(w, e), x, now));
}
