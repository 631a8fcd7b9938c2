/* SPDX-License-Identifier: MIT */
/*
 * Who reconciles, who else could, and what a dead collector has left in the entries.
 */
#include "lib/workers.h"

#include "lib/dirty.h"
#include "lib/hybrid.h"
#include "lib/intent.h"
#include "lib/table.h"

#define SUSPECT 2 /* hot.urgent: nobody is pushing it; is it on the list? */

/* ---- the hand ---------------------------------------------------------------------------------------------------- */

/* A report that is complete is told by `reported`; then it stays out. */
static void untake(struct weir *w, struct weir__hot *e)
{
    struct weir__state *s = w->state;
    uint32_t slot = weir__slot_of(w, e);

    if (weir__load_relaxed(&e->reported))
        return;
    weir__store_relaxed(&w->cold[slot].base, weir__load_relaxed(&s->hand_base));
    atomic_fetch_add_explicit(&w->cold[slot].refunded, (uint64_t)weir__load_relaxed(&s->hand_refunded),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&w->slice[slot].fall_spent, weir__load_relaxed(&s->hand_fallen), memory_order_relaxed);
}

/* The lock is from a dead process. */
static void mend(struct weir *w)
{
    struct weir__state *s = w->state;
    uint32_t slot = weir__load_relaxed(&s->hand_slot);
    struct weir__hot *e = &w->hot[slot];

    switch (weir__load_acquire(&s->hand)) {
    case WEIR__HAND_EMPTY: return;
    case WEIR__HAND_TAKING: untake(w, e); break;
    case WEIR__HAND_GIVING:
        weir__store_relaxed(&w->cold[slot].base, weir__load_relaxed(&s->hand_base));
        weir__store_relaxed(&e->reported, 0);
        break;
    case WEIR__HAND_GRANTING:
        /* The old numbers may be in force and the new end told: Redis counts on the new ones. */
        if (weir__load_relaxed(&e->regime) == WEIR__SLICED)
            weir__store_relaxed(&w->slice[slot].until, 1);
        break;
    default: break;
    }
    weir__dirty_list(w, e);
    weir__hand_empty(w);
}

void weir__workers_walk(struct weir *w)
{
    if (weir__lock(&w->state->walk_lock))
        mend(w);
}

/* ---- workers ----------------------------------------------------------------------------------------------------- */

int weir__workers_join(struct weir *w)
{
    uint64_t self = weir__intent_self(w);

    for (unsigned i = 0; i < WEIR__WORKERS; i++) {
        uint64_t other = weir__load_acquire(&w->state->workers[i]);

        if (other != 0 && other != self && weir__intent_is_alive(other))
            continue;
        if (atomic_compare_exchange_strong_explicit(&w->state->workers[i], &other, self, memory_order_acq_rel,
                                                    memory_order_relaxed))
            return 0;
    }
    return WEIR_E_FULL;
}

void weir__workers_leave(struct weir *w)
{
    for (unsigned i = 0; i < WEIR__WORKERS; i++) {
        uint64_t self = weir__intent_self(w);

        atomic_compare_exchange_strong_explicit(&w->state->workers[i], &self, 0, memory_order_seq_cst,
                                                memory_order_relaxed);
    }
}

int weir__seam_closing(struct weir *w)
{
    uint64_t self;

    if (!w->state->shared)
        return 1;
    self = weir__intent_self(w);
    /* seq_cst, as the loads that follow: of two that close at once at least one finds itself the last */
    weir__workers_leave(w);
    for (unsigned i = 0; i < WEIR__WORKERS; i++) {
        uint64_t other = atomic_load_explicit(&w->state->workers[i], memory_order_seq_cst);

        if (other != 0 && other != self && weir__intent_is_alive(other))
            return 0;
    }
    return 1;
}

int weir__seam_is_shared(const struct weir *w)
{
    return w->state->shared != 0;
}

void *weir__seam_store(struct weir *w, size_t *size)
{
    *size = w->store_bytes;
    return w->store;
}

uint32_t weir__seam_changes(const struct weir *w)
{
    return weir__load_acquire(&w->state->policy_changes);
}

int weir__seam_hurries(const struct weir *w)
{
    return weir__load_relaxed(&w->state->urgent) != 0;
}

/* ---- the one that reconciles ------------------------------------------------------------------------------------- */

int weir__seam_lead(struct weir *w)
{
    struct weir__state *s = w->state;

    if (!weir__lock_try(&s->lead_lock))
        return 0;
    weir__store_release(&s->leader, weir__intent_self(w));
    weir__intent_recover(w);
    weir__workers_walk(w);
    /* What the last one had taken off the list is lost with it; weir__seam_audit finds those entries. */
    s->urgent_rest = 0;
    s->audit_slot = 0;
    weir__unlock(&s->walk_lock);
    weir__attach_again(w);
    return 1;
}

void weir__seam_retire(struct weir *w)
{
    weir__store_release(&w->state->leader, 0);
    weir__unlock(&w->state->lead_lock);
}

int weir__seam_out(struct weir *w, uint32_t slot, struct weir__report *report)
{
    struct weir__hot *e = &w->hot[slot];
    const struct weir__slice *slice = &w->slice[slot];

    if (!weir__load_acquire(&e->reported))
        return 0;
    /* pinned, so the key's */
    *report = (struct weir__report){.slot = slot,
                                    .id = weir__load_relaxed(&e->id[0]),
                                    .policy = weir__load_relaxed(&e->policy),
                                    .key = weir__table_key(w, &w->cold[slot]),
                                    .key_len = w->cold[slot].key_len,
                                    .spent = slice->sent_spent,
                                    .refunded = slice->sent_refunded,
                                    .fallback_spent = slice->sent_fall};
    return weir__load_relaxed(&e->reported);
}

void weir__seam_reclaim(struct weir *w, weir__keep_fn keep, void *ctx)
{
    struct weir__report report;
    int out;

    for (uint32_t slot = 0; slot < w->slots; slot++) {
        struct weir__hot *e = &w->hot[slot];

        if (weir__load_relaxed(&e->regime) == WEIR__LOCAL && !weir__load_relaxed(&e->reported))
            continue;
        out = weir__seam_out(w, slot, &report);
        if (out != 0 && out != WEIR__SEAM_ANSWERED && !keep(ctx, slot))
            weir__seam_release(w, slot, report.spent, report.refunded);
        /* what holds a slice must be renewed by somebody who doesn't know of it */
        if (weir__load_relaxed(&e->noted) && weir__load_acquire(&e->id[0]) != 0)
            weir__dirty_list(w, e);
    }
}

/* ---- marks that somebody died over ------------------------------------------------------------------------------- */

/* A list's entry is taken off it by its pop alone. One that nobody is pushing, and that is not on the list although all
 * that was on it has been taken, is on no list. */
static void audit_urgent(struct weir *w, struct weir__hot *e)
{
    uint8_t urgent = weir__load_relaxed(&e->urgent);

    if (urgent == SUSPECT && w->state->audit_pass & 1) {
        if (atomic_compare_exchange_strong_explicit(&e->urgent, &urgent, 0, memory_order_acq_rel, memory_order_relaxed))
            weir__dirty_list(w, e);
    } else if (urgent == 1 && !(w->state->audit_pass & 1) && !weir__intent_is_at(w, weir__slot_of(w, e))) {
        atomic_compare_exchange_strong_explicit(&e->urgent, &urgent, SUSPECT, memory_order_acq_rel,
                                                memory_order_relaxed);
    }
}

/* Marks may be set twice: then there is one look too many. */
static void audit_dirty(struct weir *w, struct weir__hot *e)
{
    uint32_t slot = weir__slot_of(w, e);
    uint64_t bit = UINT64_C(1) << slot % 64, x = weir__load_acquire(&e->x);

    if (weir__dirty_is(e)) {
        if (!(weir__load_relaxed(&w->dirty[slot / 64]) & bit))
            weir__dirty_put_back(w, slot / 64, bit);
    } else if (weir__load_acquire(&e->id[0]) != 0 && !(x & WEIR__LOCK) &&
               (weir__hybrid_whole(weir__hybrid_unreported(w, slot, x), weir__load_relaxed(&e->k)) != 0 ||
                weir__load_relaxed(&w->cold[slot].refunded) != 0)) {
        weir__dirty_list(w, e);
    }
}

void weir__seam_audit(struct weir *w, size_t budget)
{
    struct weir__state *s = w->state;

    for (; budget > 0; budget--) {
        struct weir__hot *e = &w->hot[s->audit_slot];
        uint32_t pins = weir__load_relaxed(&e->reported) != 0;

        audit_urgent(w, e);
        if (weir__load_relaxed(&e->regime) != WEIR__LOCAL)
            audit_dirty(w, e);
        /* of a shared limiter nobody pins but the collector: its reports */
        if (weir__load_relaxed(&e->pin) != pins)
            weir__store_release(&e->pin, pins);
        if (++s->audit_slot < w->slots)
            continue;
        /* acquire: pairs with the release of every push */
        if (s->urgent_rest != 0 || weir__load_acquire(&s->urgent) != 0) {
            s->audit_slot--; /* not before the list was empty */
            return;
        }
        s->audit_slot = 0;
        s->audit_pass++;
    }
}
