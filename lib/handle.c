/* SPDX-License-Identifier: MIT */
/*
 * Key handles: an entry found once and pinned. Owns struct weir_key.
 */
#include <string.h>

#include "lib/take.h"

struct weir_key {
    struct weir__ask ask; /* ask.key is own */
    struct weir__hot *e;  /* pinned; NULL: of a strict policy, which has none */
    size_t size;          /* of this */
    unsigned char own[];  /* the key's bytes */
};

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
    k->e = NULL;
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

static WEIR__NOINLINE int take_slowly(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result)
{
    const struct weir__ask *ask;

    if (!key)
        return WEIR_E_INVAL;
    ask = &key->ask;
    if (!weir__load_acquire(&ask->w->gate->alive))
        return WEIR_E_FORKED;
    if (weir__load_acquire(&ask->p->mode) == WEIR_STRICT)
        return weir__take_strict(ask, cost, result);
    return weir__take_memory(ask, now_ns ? now_ns : weir__limiter_now(ask->w), cost, result);
}

int weir_key_take(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result)
{
    const struct weir__ask *ask;
    int verdict;

    if (WEIR__UNLIKELY(!key || !key->e || !weir__load_relaxed(&key->ask.w->gate->alive) ||
                       !weir__take_is_fast(key->ask.p, cost)))
        return take_slowly(key, cost, now_ns, result);
    ask = &key->ask;
    if (!now_ns)
        now_ns = weir__limiter_now(ask->w);
    verdict = weir__decide_take(ask->p, key->e, weir__load_acquire(&key->e->x), NULL, now_ns, cost, result);
    if (WEIR__UNLIKELY(verdict == WEIR__REKEYED))
        return take_slowly(key, cost, now_ns, result);
    if (result)
        result->policy = ask->policy;
    weir__stats_count(ask->w, ask->policy, verdict);
    return verdict;
}

void weir_key_close(struct weir_key *key)
{
    if (!key)
        return;
    if (key->e && weir__load_acquire(&key->ask.w->gate->alive))
        atomic_fetch_sub_explicit(&key->e->pin, 1, memory_order_release);
    weir__limiter_free(key->ask.w, key, key->size);
}
