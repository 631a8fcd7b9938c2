/* SPDX-License-Identifier: MIT */
/*
 * Key handles: an entry found once and pinned. Owns struct weir_key.
 */
#include <string.h>

#include "lib/lease.h"
#include "lib/take.h"

struct weir_key {
    /* what most takes need, in one line */
    struct weir__hot *e; /* pinned; of a strict policy, which has none: `no_entry` */
    struct weir__policy_state *p;
    struct weir__gate *gate;
    struct weir__count *first; /* of the policy's counts, and the bytes from it that weir__stats_step may use */
    size_t private_counts;
    _Atomic(struct weir__leases *) leases; /* NULL until threads were in each other's way */
    struct weir__ask ask;                  /* ask.key is own */
    size_t size;                           /* of this */
    unsigned char own[];                   /* the key's bytes */
};

/* Locked for ever: nothing is decided on it. */
static struct weir__hot no_entry = {.x = WEIR__LOCK};

/* A pinned entry stays the key's. The pin comes before x and id are looked at: whoever drops an entry takes the lock
 * bit of x first and then looks at the pin. */
static struct weir__hot *pin(const struct weir__ask *ask)
{
    struct weir *w = ask->w;
    unsigned turns = 0;
    uint64_t x;

    for (;; weir__backoff(&turns)) {
        struct weir__hot *e =
            weir__table_obtain(w, ask->policy, ask->key, ask->key_len, ask->id, weir__limiter_now(w), &x);

        if (!e)
            return NULL;
        if (w->state->shared) /* a process that is killed would leave it pinned for ever: it is found anew if need be */
            return e;
        atomic_fetch_add_explicit(&e->pin, 1, memory_order_seq_cst);
        x = atomic_load_explicit(&e->x, memory_order_seq_cst);
        if (weir__table_is(e, ask->id) && !(x & WEIR__LOCK))
            return e;
        atomic_fetch_sub_explicit(&e->pin, 1, memory_order_release);
    }
}

int weir_key_open(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, struct weir_key **out)
{
    struct weir__ask ask;
    struct weir_key *k;
    size_t size;
    int error;

    if (!out)
        return WEIR_E_INVAL;
    *out = NULL;
    if (!w)
        return WEIR_E_INVAL;
    error = weir__take_check(w, policy, key, key_len, &ask);
    if (error)
        return error;
    size = sizeof *k + key_len;
    k = weir__limiter_alloc(w, size);
    if (!k)
        return WEIR_E_NOMEM;
    k->ask = ask;
    k->size = size;
    memcpy(k->own, key, key_len);
    k->ask.key = k->own;
    k->e = &no_entry;
    k->p = ask.p;
    k->gate = w->gate;
    k->first = &w->counts[policy];
    k->private_counts = w->private_counts;
    atomic_init(&k->leases, NULL);
    if (weir__load_acquire(&ask.p->mode) != WEIR_STRICT) {
        k->e = pin(&k->ask);
        if (!k->e) {
            weir__limiter_free(w, k, size);
            return WEIR_E_FULL;
        }
    }
    *out = k;
    return 0;
}

/* All that weir__decide_quick leaves. */
WEIR__INLINE int take_well(struct weir_key *key, int64_t cost, uint64_t now, struct weir_result *result)
{
    const struct weir__ask *ask = &key->ask;
    const uint64_t *id = ask->w->state->shared ? ask->id : NULL; /* not pinned: is it still the key's? */
    int verdict = WEIR__REKEYED;
    uint64_t x;

    if (WEIR__UNLIKELY(!weir__load_acquire(&ask->w->gate->alive)))
        return WEIR_E_FORKED;
    if (WEIR__UNLIKELY(weir__load_acquire(&ask->p->mode) == WEIR_STRICT))
        return weir__take_strict(ask, cost, result);
    if (!now)
        now = weir__limiter_now(ask->w);
    x = weir__load_acquire(&key->e->x);
    if (WEIR__LIKELY(key->e != &no_entry) && weir__take_is_fast(ask->p, cost) &&
        (!id || WEIR__LIKELY(weir__table_is(key->e, id))))
        verdict = weir__decide_take(ask->p, key->e, x, id, now, cost, result);
    if (WEIR__UNLIKELY(verdict == WEIR__REKEYED))
        return weir__take_memory(ask, now, cost, result);
    if (result) {
        result->policy = ask->policy;
        result->limiter = ask->w;
    }
    weir__stats_count(ask->w, ask->policy, verdict);
    return verdict;
}

/* The lease of this thread, made where there is none; NULL where it can't have one. */
static struct weir__lease *own_lease(struct weir_key *key)
{
    struct weir__leases *leases = weir__load_acquire(&key->leases), *mine;
    size_t stripe = weir__stats_stripe;

    if (stripe >= key->private_counts || key->e == &no_entry)
        return NULL;
    if (!leases) {
        mine = weir__lease_open(key->ask.w);
        if (!mine)
            return NULL;
        if (atomic_compare_exchange_strong_explicit(&key->leases, &leases, mine, memory_order_acq_rel,
                                                    memory_order_acquire))
            leases = mine;
        else
            weir__lease_close(&key->ask, key->e, mine);
    }
    return weir__lease_own(leases, stripe);
}

/* One that finds another thread in its way asks for a lease from the next time on. */
static WEIR__NOINLINE int take_silently(struct weir_key *key, int64_t cost, uint64_t now)
{
    uint64_t before = weir__load_relaxed(&key->e->x);
    int verdict = take_well(key, cost, now, NULL);
    uint8_t k = weir__load_relaxed(&key->e->k);

    if (verdict == WEIR_ALLOW && cost > 0 && weir__load_relaxed(&key->e->x) - before > (uint64_t)cost << k) {
        struct weir__lease *lease = own_lease(key);

        if (lease && lease->chunk == 0)
            weir__lease_want(lease, key->p, now ? now : weir__limiter_now(key->ask.w));
    }
    return verdict;
}

static WEIR__NOINLINE int take_and_report(struct weir_key *key, int64_t cost, uint64_t now, struct weir_result *result)
{
    return key ? take_well(key, cost, now, result) : WEIR_E_INVAL;
}

/* `asked`: the time that the caller gave. What is not quickly decided starts again: every call here is the last thing
 * done, so that no register need be saved. */
WEIR__INLINE int take_quickly(struct weir_key *key, int64_t cost, uint64_t now, uint64_t asked)
{
    struct weir__policy_state *p = key->p;
    struct weir__hot *e = key->e;
    size_t stripe = weir__stats_stripe;
    int verdict;

    if (WEIR__UNLIKELY(stripe >= key->private_counts))
        return take_silently(key, cost, asked);
    verdict = weir__decide_quick(p, e, weir__load_acquire(&e->x), now, cost, asked != 0);
    if (WEIR__LIKELY(verdict == WEIR_ALLOW)) {
        weir__stats_step(key->first, stripe, WEIR_ALLOW);
        return WEIR_ALLOW;
    }
    if (WEIR__LIKELY(verdict == WEIR_DENY)) {
        weir__stats_step(key->first, stripe, WEIR_DENY);
        return WEIR_DENY;
    }
    return take_silently(key, cost, asked);
}

/* A clock that has been wiped by fork, like one that isn't the counter, has nothing to glance at. */
WEIR__INLINE int take_now(struct weir_key *key, int64_t cost)
{
    uint64_t now;

    return WEIR__LIKELY(weir__clock_glance(&key->gate->clock, &now)) ? take_quickly(key, cost, now, 0)
                                                                     : take_silently(key, cost, 0);
}

static WEIR__NOINLINE int take_at(struct weir_key *key, int64_t cost, uint64_t now)
{
    if (WEIR__UNLIKELY(!weir__load_relaxed(&key->gate->alive)))
        return WEIR_E_FORKED;
    return take_quickly(key, cost, now, now);
}

/* The lease is used up. */
static WEIR__NOINLINE int take_and_lease(struct weir_key *key, struct weir__lease *lease, int64_t cost, uint64_t now)
{
    uint64_t at = now ? now : weir__limiter_now(key->ask.w);

    if (weir__lease_fill(lease, &key->ask, key->e, at, cost) == WEIR_ALLOW) {
        weir__stats_count(key->ask.w, key->ask.policy, WEIR_ALLOW);
        return WEIR_ALLOW;
    }
    return take_silently(key, cost, now);
}

/* Of a key that threads have been in each other's way for. */
static WEIR__NOINLINE int take_leased(struct weir_key *key, struct weir__leases *leases, int64_t cost, uint64_t now)
{
    size_t stripe = weir__stats_stripe;
    struct weir__lease *lease;

    if (WEIR__LIKELY(stripe < key->private_counts) && WEIR__LIKELY(weir__load_relaxed(&key->gate->alive))) {
        lease = weir__lease_own(leases, stripe);
        if (WEIR__LIKELY(weir__lease_spend(lease, key->p, cost))) {
            weir__stats_step(key->first, stripe, WEIR_ALLOW);
            return WEIR_ALLOW;
        }
        if (lease->chunk != 0 || lease->held != 0)
            return take_and_lease(key, lease, cost, now);
    }
    return now ? take_at(key, cost, now) : take_now(key, cost);
}

int weir_key_take(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result)
{
    struct weir__leases *leases;

    if (WEIR__UNLIKELY(!key || result))
        return take_and_report(key, cost, now_ns, result);
    leases = weir__load_acquire(&key->leases);
    if (WEIR__UNLIKELY(leases != NULL))
        return take_leased(key, leases, cost, now_ns);
    return now_ns ? take_at(key, cost, now_ns) : take_now(key, cost);
}

void weir_key_close(struct weir_key *key)
{
    bool pinned;

    if (!key)
        return;
    /* not in a child of fork: what it sees of the entry is its parent's, or nobody's */
    pinned = key->e != &no_entry && weir__load_acquire(&key->gate->alive);
    weir__lease_close(&key->ask, pinned ? key->e : NULL, weir__load_acquire(&key->leases));
    if (pinned && !key->ask.w->state->shared)
        atomic_fetch_sub_explicit(&key->e->pin, 1, memory_order_release);
    weir__limiter_free(key->ask.w, key, key->size);
}
