/* SPDX-License-Identifier: MIT */
/*
 * weir_take, weir_take_at, weir_peek, weir_give, weir_forget.
 */
#include "lib/take.h"

#include <string.h>

#include "lib/hybrid.h"
#include "lib/policy.h"
#include "lib/workers.h"

static int check_key(const void *key, size_t key_len)
{
    return WEIR__LIKELY(key && key_len - 1 < WEIR_KEY_MAX) ? 0 : WEIR_E_KEY;
}

int weir__take_check(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, struct weir__ask *ask)
{
    int error = check_key(key, key_len);

    ask->p = weir__policy_get(w, policy, &error);
    if (error)
        return error;
    ask->w = w;
    ask->policy = policy;
    ask->key = key;
    ask->key_len = key_len;
    weir__table_id(w, policy, key, key_len, ask->id);
    return 0;
}

int weir__take_check_tokens(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t tokens,
                            struct weir__ask *ask)
{
    int error = weir__take_check(w, policy, key, key_len, ask);

    return error ? error : tokens < 0 ? WEIR_E_COST : 0;
}

static bool is_local(const struct weir__policy_state *p)
{
    return weir__load_acquire(&p->mode) == WEIR_LOCAL;
}

static bool is_strict(const struct weir__policy_state *p)
{
    return weir__load_acquire(&p->mode) == WEIR_STRICT;
}

/* What is true of every verdict, whoever reached it. */
static int finish(const struct weir__ask *ask, int verdict, struct weir_result *result)
{
    bool shadowed = verdict == WEIR_DENY && weir__load_relaxed(&ask->p->shadow);

    if (result) {
        result->policy = ask->policy;
        result->limiter = ask->w;
        result->flags |= shadowed ? WEIR_SHADOW : 0;
    }
    return shadowed ? WEIR_ALLOW : verdict;
}

/* The numbers that new entries get. */
static const struct weir__params *current_params(const struct weir__policy_state *p, uint8_t *k)
{
    unsigned slot = weir__load_acquire(&p->current);

    *k = weir__load_acquire(&p->slot_k[slot]);
    return &p->slot[slot];
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

static int answer_full(const struct weir__ask *ask, uint64_t now, int64_t cost, struct weir_result *result)
{
    uint8_t k;
    const struct weir__params *params = current_params(ask->p, &k);
    int verdict = ask->w->on_full == WEIR_FULL_ADMIT ? WEIR_ALLOW : WEIR_DENY;

    atomic_fetch_add_explicit(&ask->w->state->table_full, 1, memory_order_relaxed);
    if (!result)
        return verdict;
    memset(result, 0, sizeof *result);
    result->limit = weir__load_relaxed(&ask->p->burst);
    result->flags = WEIR_FULL;
    if (verdict == WEIR_DENY)
        result->retry_after_ns = weir__bucket_wait(now, weir__load_acquire(&params->mult), cost << k);
    return verdict;
}

/* A cost from 1 to the burst. */
static int decide(const struct weir__ask *ask, uint64_t now, int64_t cost, int64_t *charged, struct weir_result *result)
{
    struct weir *w = ask->w;
    unsigned turns = 0;
    uint64_t x;

    for (;; weir__backoff(&turns)) {
        struct weir__hot *e = weir__table_find(w, ask->id, &x);
        int verdict;

        *charged = 0;
        if (!e)
            e = weir__table_obtain(w, ask->policy, ask->key, ask->key_len, ask->id, now, &x);
        if (!e)
            return answer_full(ask, now, cost, result);
        if (is_local(ask->p)) {
            verdict = weir__decide_take(ask->p, e, x, ask->id, now, cost, result);
            *charged = verdict == WEIR_ALLOW ? cost : 0;
            if (verdict == WEIR__REKEYED && weir__load_acquire(&e->regime) != WEIR__LOCAL)
                weir__policy_settle(w, e);
            else if (verdict == WEIR_DENY && weir__lease_reclaim(w, e, now))
                continue;
        } else if (is_strict(ask->p)) {
            verdict = weir__hybrid_outage(w, e, x, ask->id, ask->policy, now, cost, -1, charged, result);
        } else {
            verdict = weir__hybrid_take(w, e, x, ask->id, ask->policy, now, cost, charged, result);
        }
        if (verdict != WEIR__REKEYED)
            return verdict;
    }
}

static int look(const struct weir__ask *ask, uint64_t now, int64_t cost, struct weir_result *result)
{
    struct weir *w = ask->w;
    unsigned turns = 0;
    uint64_t x, burst;

    for (;; weir__backoff(&turns)) {
        struct weir__hot *e = weir__table_search(w, ask->id, &x);
        int verdict;

        if (!is_local(ask->p)) {
            verdict = weir__hybrid_peek(w, e, x, ask->id, ask->policy, now, cost, result);
        } else if (e) {
            verdict = weir__decide_peek(ask->p, e, x, ask->id, now, cost, result);
            if (verdict == WEIR__REKEYED && weir__load_acquire(&e->regime) != WEIR__LOCAL)
                weir__policy_settle(w, e);
            else if (verdict == WEIR_DENY && weir__lease_reclaim(w, e, now))
                continue;
        } else {
            burst = weir__load_relaxed(&ask->p->burst);
            verdict = (uint64_t)cost > burst ? WEIR_DENY : WEIR_ALLOW;
            memset(result, 0, sizeof *result);
            result->limit = burst;
            result->remaining = (int64_t)burst;
            result->retry_after_ns = verdict == WEIR_DENY ? WEIR_NEVER : 0;
        }
        if (verdict != WEIR__REKEYED)
            return verdict;
    }
}

int weir__take_look(const struct weir__ask *ask, uint64_t now, int64_t cost, struct weir_result *result)
{
    struct weir_result own;

    if (cost < 0)
        return WEIR_E_COST;
    if (!result)
        result = &own;
    return finish(ask, look(ask, now, cost, result), result);
}

int weir__take_charge(const struct weir__ask *ask, uint64_t now, int64_t cost, int64_t *charged,
                      struct weir_result *result)
{
    *charged = 0;
    /* No bucket need be made to say never. */
    if (cost <= 0 || (uint64_t)cost > weir__load_relaxed(&ask->p->burst))
        return weir__take_look(ask, now, cost, result);
    return finish(ask, decide(ask, now, cost, charged, result), result);
}

WEIR__NOINLINE int weir__take_memory(const struct weir__ask *ask, uint64_t now, int64_t cost,
                                     struct weir_result *result)
{
    int64_t charged;
    int verdict = weir__take_charge(ask, now, cost, &charged, result);

    if (cost > 0)
        weir__stats_count(ask->w, ask->policy, verdict);
    return verdict;
}

void weir__take_undo(const struct weir__ask *ask, uint64_t now, int64_t charged)
{
    unsigned turns = 0;
    uint64_t x;

    for (;; weir__backoff(&turns)) {
        struct weir__hot *e = weir__table_search(ask->w, ask->id, &x);
        int status;

        if (!e) /* dropped meanwhile, so it was full again */
            return;
        if (is_local(ask->p))
            status = weir__decide_give(ask->w, ask->p, e, x, ask->id, now, charged);
        else
            status = weir__hybrid_give(ask->w, e, x, ask->id, ask->policy, now, charged, 1);
        if (status == 0)
            return;
        if (is_local(ask->p) && weir__load_acquire(&e->regime) != WEIR__LOCAL)
            weir__policy_settle(ask->w, e);
    }
}

int weir__take_strict(const struct weir__ask *ask, int64_t cost, struct weir_result *result)
{
    struct weir_request request = {
        .policy = ask->policy, .key = ask->key, .key_len = ask->key_len, .cost = cost, .result = result};
    const struct weir__hooks *hooks;
    int error;

    if (cost < 0)
        return WEIR_E_COST;
    hooks = weir__hooks_enter(ask->w);
    if (!hooks)
        return weir__take_memory(ask, weir__limiter_now(ask->w), cost, result);
    if (cost == 0) {
        request.status = hooks->peek(hooks->ctx, &request);
    } else {
        error = hooks->strict(hooks->ctx, &request, 1, 0);
        if (error)
            request.status = error;
    }
    weir__hooks_leave(ask->w);
    return request.status;
}

/* All that is not the hot path. */
static WEIR__NOINLINE int take_slowly(const struct weir__ask *ask, bool timed, uint64_t now, int64_t cost,
                                      struct weir_result *result)
{
    if (is_strict(ask->p))
        return weir__take_strict(ask, cost, result);
    return weir__take_memory(ask, timed ? now : weir_now(ask->w), cost, result);
}

/* Any take. `timed`: at `now`, else now. */
static WEIR__NOINLINE int take_well(struct weir *w, weir_policy_id policy, const void *key, size_t key_len,
                                    int64_t cost, struct weir_result *result, bool timed, uint64_t now)
{
    struct weir__ask ask;
    int error = w ? weir__take_check(w, policy, key, key_len, &ask) : WEIR_E_INVAL;

    if (WEIR__UNLIKELY(error))
        return error;
    if (WEIR__UNLIKELY(!weir__take_is_fast(ask.p, cost)))
        return take_slowly(&ask, timed, now, cost, result);
    return weir__take_fast(&ask, timed ? now : weir__limiter_now(w), cost, result);
}

/* A take that asks for no result, of an ordinary local policy, whose entry is there, not full and not contended. */
WEIR__INLINE int take_quickly(struct weir *w, weir_policy_id policy, const uint64_t id[2], int64_t cost, bool timed,
                              uint64_t now)
{
    struct weir__hot *e = weir__table_aim(w, id);
    size_t stripe = weir_stripe_;
    int verdict;
    uint64_t x;

    if (WEIR__UNLIKELY(stripe >= w->private_counts))
        return WEIR__REKEYED;
    if (!timed && WEIR__UNLIKELY(!weir__clock_glance(&w->gate->clock, 0, &now)))
        return WEIR__REKEYED;
    x = weir__load_acquire(&e->x);
    if (WEIR__UNLIKELY(!weir__table_is(e, id)))
        return WEIR__REKEYED;
    verdict = weir__decide_quick(&w->policies[policy], e, x, now, cost, timed);
    if (WEIR__LIKELY(verdict != WEIR__REKEYED))
        weir_count_((char *)&w->counts[policy], stripe, verdict);
    return verdict;
}

WEIR__INLINE int take(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t cost,
                      struct weir_result *result, bool timed, uint64_t now)
{
    uint64_t id[2];
    int verdict;

    if (WEIR__UNLIKELY(!w) || WEIR__UNLIKELY(result))
        return take_well(w, policy, key, key_len, cost, result, timed, now);
    if (!check_key(key, key_len) && WEIR__LIKELY(policy < weir__load_acquire(&w->gate->policies)) &&
        WEIR__LIKELY(!weir__load_relaxed(&w->policies[policy].special))) {
        weir__table_id(w, policy, key, key_len, id);
        weir__table_prefetch_first(w, id);
        verdict = take_quickly(w, policy, id, cost, timed, now);
        if (WEIR__LIKELY(verdict != WEIR__REKEYED))
            return verdict;
    }
    return take_well(w, policy, key, key_len, cost, result, timed, now);
}

int weir_take(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t cost,
              struct weir_result *result)
{
    return take(w, policy, key, key_len, cost, result, false, 0);
}

int weir_take_at(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t cost, uint64_t now_ns,
                 struct weir_result *result)
{
    return take(w, policy, key, key_len, cost, result, true, now_ns);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static int peek_strict(const struct weir__ask *ask, int64_t cost, struct weir_result *result)
{
    struct weir_request request = {
        .policy = ask->policy, .key = ask->key, .key_len = ask->key_len, .cost = cost, .result = result};
    const struct weir__hooks *hooks = weir__hooks_enter(ask->w);
    int verdict;

    if (!hooks)
        return weir__take_look(ask, weir_now(ask->w), cost, result);
    verdict = hooks->peek(hooks->ctx, &request);
    weir__hooks_leave(ask->w);
    return verdict;
}

int weir_peek(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t cost,
              struct weir_result *result)
{
    struct weir__ask ask;
    int error;

    if (!w)
        return WEIR_E_INVAL;
    error = weir__take_check_tokens(w, policy, key, key_len, cost, &ask);
    if (error)
        return error;
    return is_strict(ask.p) ? peek_strict(&ask, cost, result) : weir__take_look(&ask, weir_now(w), cost, result);
}

/* A refund of a shared policy is news for Redis even where the key has no entry yet. */
static int give_memory(const struct weir__ask *ask, uint64_t now, int64_t tokens)
{
    struct weir *w = ask->w;
    unsigned turns = 0;
    int status;
    uint64_t x;

    for (;; weir__backoff(&turns)) {
        bool local = is_local(ask->p);
        struct weir__hot *e = local ? weir__table_search(w, ask->id, &x)
                                    : weir__table_obtain(w, ask->policy, ask->key, ask->key_len, ask->id, now, &x);

        if (!e)
            return local ? 0 : WEIR_E_FULL;
        if (local)
            status = weir__decide_give(w, ask->p, e, x, ask->id, now, tokens);
        else
            status = weir__hybrid_give(w, e, x, ask->id, ask->policy, now, tokens, 0);
        if (status != WEIR__REKEYED)
            return status;
        if (local && weir__load_acquire(&e->regime) != WEIR__LOCAL)
            weir__policy_settle(w, e);
    }
}

static int give_strict(const struct weir__ask *ask, int64_t tokens)
{
    struct weir_request request = {.policy = ask->policy, .key = ask->key, .key_len = ask->key_len, .cost = tokens};
    const struct weir__hooks *hooks = weir__hooks_enter(ask->w);
    int status;

    if (!hooks)
        return WEIR_E_NOSYNC;
    status = hooks->give(hooks->ctx, &request);
    weir__hooks_leave(ask->w);
    return status;
}

int weir_give(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t tokens)
{
    struct weir__ask ask;
    int error;

    if (!w)
        return WEIR_E_INVAL;
    error = weir__take_check_tokens(w, policy, key, key_len, tokens, &ask);
    if (error || tokens == 0)
        return error;
    return is_strict(ask.p) ? give_strict(&ask, tokens) : give_memory(&ask, weir_now(w), tokens);
}

/* Under the lock bit, which it releases: a local entry that stays, for it is pinned, full again. */
static void refill(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now)
{
    const struct weir__params *params;
    uint64_t f = weir__load_relaxed(&e->f);
    uint64_t touched = weir__load_relaxed(&e->touched);

    params = &w->policies[weir__load_relaxed(&e->policy)].slot[f & WEIR__SLOT];
    if (touched > now)
        now = touched;
    x += WEIR__STEP;
    f = ((weir__bucket_refill(now, weir__load_acquire(&params->mult)) - x - weir__load_acquire(&params->cap)) &
         WEIR__UNITS) |
        (f & ~WEIR__UNITS);
    /* release: whoever sees this f sees the lock bit, or the x that follows */
    weir__store_release(&e->f, f);
    weir__table_touch(e, now);
    weir__store_relaxed(&w->cold[weir__slot_of(w, e)].base, x);
    weir__store_relaxed(&w->cold[weir__slot_of(w, e)].returned, 0);
    weir__table_unlock(w, e, x);
}

static void forget_here(const struct weir__ask *ask, uint64_t now)
{
    struct weir *w = ask->w;
    struct weir__hot *e;
    uint64_t x;

    weir__workers_walk(w);
    e = weir__table_search(w, ask->id, &x);
    if (e && weir__table_lock(w, e, ask->id, &x)) {
        if (weir__load_relaxed(&e->regime) != WEIR__LOCAL)
            weir__table_unlock(w, e, weir__hybrid_forget(w, weir__slot_of(w, e), x, now));
        else if (!weir__table_drop(w, e, x, now))
            refill(w, e, x, now);
    }
    weir__unlock(&w->state->walk_lock);
}

int weir_forget(struct weir *w, weir_policy_id policy, const void *key, size_t key_len)
{
    const struct weir__hooks *hooks;
    struct weir__ask ask;
    int error;

    if (!w)
        return WEIR_E_INVAL;
    error = weir__take_check(w, policy, key, key_len, &ask);
    if (error)
        return error;
    forget_here(&ask, weir_now(w));
    if (is_local(ask.p))
        return 0;
    hooks = weir__hooks_enter(w);
    if (!hooks)
        return 0;
    error = hooks->forget ? hooks->forget(hooks->ctx, policy, key, key_len) : 0;
    weir__hooks_leave(w);
    return error;
}
