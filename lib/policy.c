/* SPDX-License-Identifier: MIT */
/*
 * Policies: adding, finding, changing them under running takers.
 */
#include "lib/policy.h"

#include <string.h>

#include "lib/decide.h"
#include "lib/hybrid.h"
#include "lib/intent.h"
#include "lib/lease.h"
#include "lib/options.h"
#include "lib/table.h"
#include "lib/workers.h"

struct weir__policy_state *weir__policy_get(struct weir *w, weir_policy_id id, int *error)
{
    if (WEIR__LIKELY(id < weir__load_acquire(&w->gate->policies)))
        return &w->policies[id];
    if (!weir__load_acquire(&w->gate->alive)) {
        *error = WEIR_E_FORKED;
        return NULL;
    }
    /* Of a shared limiter, where another process has added it. */
    if (id < weir__load_acquire(&w->state->policies)) {
        weir__store_release(&w->gate->policies, weir__load_acquire(&w->state->policies));
        return &w->policies[id];
    }
    *error = WEIR_E_NOENT;
    return NULL;
}

static void tell_hooks(struct weir *w, weir_policy_id id)
{
    const struct weir__hooks *hooks = weir__hooks_enter(w);

    /* release: whoever sees it sees the policy (and other processes have no hooks of ours) */
    atomic_fetch_add_explicit(&w->state->policy_changes, 1, memory_order_release);
    if (!hooks)
        return;
    if (hooks->policy_changed)
        hooks->policy_changed(hooks->ctx, id);
    weir__hooks_leave(w);
}

static uint64_t fills_in(const struct weir_policy *policy)
{
    weir__u128 ns = (weir__u128)policy->burst * policy->per_ns;

    if (policy->limit == 0)
        return WEIR_NEVER;
    ns = (ns + policy->limit - 1) / policy->limit;
    return ns < WEIR_NEVER ? (uint64_t)ns : WEIR_NEVER;
}

/* All but the names, the slots and `current`. Takers may run: each field is right by itself. */
static void write_settings(struct weir__policy_state *p, const struct weir_policy *policy)
{
    p->limit = policy->limit;
    p->per_ns = policy->per_ns;
    p->version = policy->version;
    p->max_overshoot = policy->max_overshoot;
    weir__store_relaxed(&p->fills_in, fills_in(policy));
    weir__store_relaxed(&p->per_second, (uint64_t)((weir__u128)policy->limit * 1000000000 / policy->per_ns));
    weir__store_relaxed(&p->burst, policy->burst);
    weir__store_relaxed(&p->on_outage, (uint8_t)policy->on_outage);
    weir__store_relaxed(&p->unknown, (uint8_t)policy->unknown);
    weir__store_relaxed(&p->shadow, policy->shadow != 0);
    weir__store_release(&p->mode, (uint8_t)policy->mode);
    weir__store_release(&p->special, policy->mode != WEIR_LOCAL || policy->shadow);
}

static void write_slot(struct weir__policy_state *p, unsigned slot, const struct weir_policy *policy,
                       const struct weir__numbers *numbers)
{
    bool ordinary = policy->mode == WEIR_LOCAL && !policy->shadow;

    weir__store_release(&p->slot[slot].mult, numbers->mult);
    weir__store_release(&p->slot[slot].cap, numbers->cap);
    weir__store_release(&p->slot[slot].most, ordinary ? policy->burst : 0);
    weir__store_release(&p->slot_k[slot], numbers->k);
}

static int find_name(const struct weir *w, const char *name, weir_policy_id *out)
{
    uint32_t policies = weir__load_acquire(&w->state->policies);

    for (uint32_t id = 0; id < policies; id++) {
        if (strcmp(w->policies[id].name, name) == 0) {
            *out = id;
            return 0;
        }
    }
    return WEIR_E_NOENT;
}

int weir_policy_add(struct weir *w, const struct weir_policy *policy, weir_policy_id *out)
{
    struct weir__numbers numbers;
    struct weir__policy_state *p;
    struct weir_policy read;
    weir_policy_id id;
    int error;

    if (!w || !policy || !out)
        return WEIR_E_INVAL;
    if (!weir__load_acquire(&w->gate->alive))
        return WEIR_E_FORKED;
    error = weir__options_policy(policy, 0, &read, &numbers);
    if (error)
        return error;

    weir__lock(&w->state->policy_lock);
    if (find_name(w, read.name, &id) == 0)
        error = WEIR_E_EXIST;
    id = weir__load_relaxed(&w->state->policies);
    if (!error && id == WEIR__POLICY_MAX)
        error = WEIR_E_FULL;
    if (!error) {
        p = &w->policies[id];
        memset(p->name, 0, sizeof p->name);
        memcpy(p->name, read.name, strlen(read.name));
        memset(p->group, 0, sizeof p->group);
        if (read.group)
            memcpy(p->group, read.group, strlen(read.group));
        write_slot(p, 0, &read, &numbers);
        weir__store_relaxed(&p->k, numbers.k);
        weir__store_relaxed(&p->current, 0);
        write_settings(p, &read);
        weir__store_release(&w->state->policies, id + 1);
        weir__store_release(&w->gate->policies, id + 1);
        *out = id;
    }
    weir__unlock(&w->state->policy_lock);
    if (!error)
        tell_hooks(w, id);
    return error;
}

int weir_policy_find(struct weir *w, const char *name, weir_policy_id *out)
{
    if (!w || !name || !out)
        return WEIR_E_INVAL;
    if (!weir__load_acquire(&w->gate->alive))
        return WEIR_E_FORKED;
    return find_name(w, name, out);
}

/* ---- changing numbers under running takers
 * ------------------------------------------------------------------------- */

/* What an entry holds when its numbers become those of the policy's current slot. */
struct move {
    uint64_t new_x, new_f;
    uint8_t new_k;
};

static void plan_move(const struct weir__policy_state *p, const struct weir__hot *e, uint64_t x, uint64_t f,
                      uint64_t now, struct move *move)
{
    const struct weir__params *old = &p->slot[f & WEIR__SLOT];
    unsigned slot = weir__load_acquire(&p->current);
    int64_t old_cap = (int64_t)weir__load_acquire(&old->cap);
    int64_t cap = (int64_t)weir__load_acquire(&p->slot[slot].cap);
    uint8_t old_k = weir__load_acquire(&e->k);
    uint64_t touched = weir__load_relaxed(&e->touched);
    int64_t level;

    if (touched > now)
        now = touched;
    level = weir__bucket_level(now, touched, weir__load_acquire(&old->mult), (uint64_t)old_cap, x + (f & WEIR__UNITS));
    old_cap = (int64_t)weir__lease_clip(e, (uint64_t)old_cap, old_k);
    if (level > old_cap)
        level = old_cap;
    move->new_k = weir__load_acquire(&p->slot_k[slot]);
    if (move->new_k < old_k)
        level >>= old_k - move->new_k;
    else if (level >= cap >> (move->new_k - old_k))
        level = cap;
    else
        level = level * (INT64_C(1) << (move->new_k - old_k));
    if (level > cap)
        level = cap;
    move->new_x = x + WEIR__STEP;
    move->new_f = (weir__bucket_refill(now, weir__load_acquire(&p->slot[slot].mult)) - move->new_x - (uint64_t)level) &
                  WEIR__UNITS;
    move->new_f |= slot;
}

/* A step of x that is no spending. */
static void count_step(struct weir *w, struct weir__hot *e)
{
    atomic_fetch_add_explicit(&w->cold[weir__slot_of(w, e)].returned, WEIR__STEP, memory_order_relaxed);
}

/* Under the lock bit, of an entry that stays local. Returns the x to unlock with. */
static uint64_t move_locked(struct weir *w, const struct weir__policy_state *p, struct weir__hot *e, uint64_t x,
                            uint64_t now)
{
    uint64_t f = weir__load_relaxed(&e->f);
    struct move move;

    if ((f & WEIR__SLOT) == weir__load_acquire(&p->current)) {
        weir__store_release(&e->f, ((f & WEIR__UNITS) - WEIR__STEP) | (f & ~WEIR__UNITS));
        count_step(w, e);
        return x + WEIR__STEP;
    }
    plan_move(p, e, x, f, now, &move);
    /* release: whoever sees this f or k sees the lock bit, or the x that follows */
    weir__store_release(&e->f, move.new_f);
    weir__store_release(&e->k, move.new_k);
    weir__table_touch(e, now);
    count_step(w, e);
    return move.new_x;
}

/* An entry that stays local. False: it has changed meanwhile, look again. */
static bool move_local(struct weir *w, const struct weir__policy_state *p, struct weir__hot *e, uint64_t x,
                       uint64_t now)
{
    uint64_t f = weir__load_acquire(&e->f);
    struct move move;

    if ((f & WEIR__SLOT) == weir__load_acquire(&p->current))
        return weir__load_acquire(&e->x) == x;
    if (weir__load_acquire(&e->k) == weir__load_acquire(&p->slot_k[weir__load_acquire(&p->current)])) {
        plan_move(p, e, x, f, now, &move);
        if (!weir__cas16_state(&e->x, &x, &f, move.new_x, move.new_f))
            return false;
        weir__table_touch(e, now);
        count_step(w, e);
        return true;
    }
    weir__intent_begin(w, e, WEIR__INTENT_REWRITE);
    if (!atomic_compare_exchange_strong_explicit(&e->x, &x, x | WEIR__LOCK, memory_order_acq_rel,
                                                 memory_order_relaxed)) {
        weir__intent_end(w, e);
        return false;
    }
    weir__table_unlock(w, e, move_locked(w, p, e, x, now));
    return true;
}

/* Under the lock bit, which it releases: an entry that is or becomes shared with Redis. */
static void convert(struct weir *w, const struct weir__policy_state *p, struct weir__hot *e, uint64_t x, uint64_t now)
{
    uint32_t slot = weir__slot_of(w, e);
    uint64_t new_x;

    /* One whose key was not kept can't be reported: its next take makes it anew. */
    if (weir__load_relaxed(&p->mode) == WEIR_HYBRID && !weir__table_key(w, &w->cold[slot]) &&
        weir__table_drop(w, e, x, now))
        return;
    new_x = weir__hybrid_convert(w, slot, x, now);
    if (new_x == x)
        new_x = move_locked(w, p, e, x, now);
    weir__table_unlock(w, e, new_x);
}

/* Brings the entry along if it is this policy's. The walk_lock is held. */
static void settle(struct weir *w, weir_policy_id id, uint32_t slot, uint64_t now)
{
    const struct weir__tags *tags = &w->tags[slot / WEIR__WAYS];
    const struct weir__policy_state *p = &w->policies[id];
    struct weir__hot *e = &w->hot[slot];
    unsigned shift = 8 * (slot % WEIR__WAYS & 7), turns = 0;

    for (;; weir__intent_wait(w, &turns)) {
        /* seq_cst: `current` was stored before; an entry claimed before this load is waited for, a later claim sees
         * it */
        uint64_t word = atomic_load_explicit(&tags->word[slot % WEIR__WAYS >> 3], memory_order_seq_cst);
        uint64_t x = weir__load_acquire(&e->x);

        if ((uint8_t)(word >> shift) == 0)
            return;
        if (weir__load_acquire(&e->id[0]) == 0 || x & WEIR__LOCK)
            continue;
        if (weir__load_acquire(&e->policy) != id) {
            if (weir__load_acquire(&e->x) == x)
                return;
            continue;
        }
        if (weir__load_acquire(&p->mode) == WEIR_LOCAL && weir__load_acquire(&e->regime) == WEIR__LOCAL) {
            if (move_local(w, p, e, x, now))
                return;
            continue;
        }
        weir__intent_begin(w, e, WEIR__INTENT_REWRITE);
        if (atomic_compare_exchange_strong_explicit(&e->x, &x, x | WEIR__LOCK, memory_order_seq_cst,
                                                    memory_order_relaxed)) {
            convert(w, p, e, x, now);
            return;
        }
        weir__intent_end(w, e);
    }
}

void weir__policy_settle(struct weir *w, struct weir__hot *e)
{
    weir__workers_walk(w);
    settle(w, weir__load_acquire(&e->policy), weir__slot_of(w, e), weir_now(w));
    weir__unlock(&w->state->walk_lock);
}

/* Visits all entries of the policy whose numbers were changed last, if that has not been done: by this call, or by a
 * process that was killed in it. */
static void finish_walk(struct weir *w, uint64_t now)
{
    if (w->state->walking == 0)
        return;
    for (uint32_t slot = 0; slot < w->slots; slot++)
        settle(w, w->state->walking - 1, slot, now);
    w->state->walking = 0;
}

/* Names are read without a lock: they stay. */
static int check_change(const struct weir__policy_state *p, const struct weir_policy *read)
{
    if ((read->name && strcmp(read->name, p->name) != 0) || (read->group && strcmp(read->group, p->group) != 0))
        return WEIR_E_INVAL;
    return 0;
}

int weir_policy_set(struct weir *w, weir_policy_id id, const struct weir_policy *policy)
{
    struct weir__policy_state *p;
    struct weir__numbers numbers;
    struct weir_policy read;
    unsigned spare;
    uint64_t now;
    int error = WEIR_E_NOENT;

    if (!w || !policy)
        return WEIR_E_INVAL;
    p = weir__policy_get(w, id, &error);
    if (!p)
        return error;
    error = weir__options_policy(policy, 1, &read, &numbers);
    if (!error)
        error = check_change(p, &read);
    if (error)
        return error;

    weir__lock(&w->state->policy_lock);
    weir__workers_walk(w);
    now = weir_now(w);
    finish_walk(w, now);
    /* Odd before anything else is stored, and release stores follow: whoever sees one of them sees this too. */
    atomic_fetch_add_explicit(&w->gate->changes, 1, memory_order_acq_rel);
    spare = weir__load_relaxed(&p->current) ^ 1u;
    write_slot(p, spare, &read, &numbers);
    write_settings(p, &read);
    weir__store_release(&p->k, numbers.k);
    w->state->walking = id + 1;
    atomic_store_explicit(&p->current, (uint8_t)spare, memory_order_seq_cst);
    finish_walk(w, now);
    atomic_fetch_add_explicit(&w->gate->changes, 1, memory_order_release);
    weir__unlock(&w->state->walk_lock);
    weir__unlock(&w->state->policy_lock);
    weir__lease_end_policy(w, id, now);
    tell_hooks(w, id);
    return 0;
}
