/* SPDX-License-Identifier: MIT */
/*
 * Decisions by key, for those who ask for many, for all or none, or by handle. Owns the order: checks, mode, entry,
 * verdict, count. Must not know bucket arithmetic.
 */
#ifndef WEIR_LIB_TAKE_H
#define WEIR_LIB_TAKE_H

#include "lib/decide.h"
#include "lib/lease.h"
#include "lib/limiter.h"
#include "lib/stats.h"
#include "lib/table.h"

/* A key of a policy, checked and hashed. */
struct weir__ask {
    struct weir *w;
    struct weir__policy_state *p;
    weir_policy_id policy;
    const void *key;
    size_t key_len;
    uint64_t id[2];
};

/* Fills all of ask. 0, or WEIR_E_NOENT, WEIR_E_FORKED, WEIR_E_KEY. */
int weir__take_check(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, struct weir__ask *ask);

/* The same, and WEIR_E_COST for a negative number of tokens. */
int weir__take_check_tokens(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, int64_t tokens,
                            struct weir__ask *ask);

/* A verdict of any cost from memory; of a strict policy, its outage policy's. *charged: the tokens that
 * weir__take_undo gives back. Or WEIR_E_COST. Not counted. */
int weir__take_charge(const struct weir__ask *ask, uint64_t now, int64_t cost, int64_t *charged,
                      struct weir_result *result);

/* The same, counted: what weir_take says where it needn't ask Redis. */
int weir__take_memory(const struct weir__ask *ask, uint64_t now, int64_t cost, struct weir_result *result);

/* What it would say; nothing is charged, made or counted. */
int weir__take_look(const struct weir__ask *ask, uint64_t now, int64_t cost, struct weir_result *result);

/* Takes back what weir__take_memory charged, as if never spent. */
void weir__take_undo(const struct weir__ask *ask, uint64_t now, int64_t charged);

/* Asks Redis, or the outage policy where none is attached. Blocks. */
int weir__take_strict(const struct weir__ask *ask, int64_t cost, struct weir_result *result);

/* The hot path: a cost from 1 to the burst of an ordinary local policy whose entry is quickly found. */
WEIR__INLINE int weir__take_fast(const struct weir__ask *ask, uint64_t now, int64_t cost, struct weir_result *result)
{
    struct weir *w = ask->w;
    int verdict = WEIR__REKEYED;
    uint64_t x;
    struct weir__hot *e = weir__table_find(w, ask->id, &x);

    if (WEIR__LIKELY(e != NULL)) {
        if (!result)
            verdict = weir__decide_quick(ask->p, e, x, now, cost, true);
        if (verdict == WEIR__REKEYED)
            verdict = weir__decide_take(ask->p, e, x, ask->id, now, cost, result);
        if (verdict == WEIR_DENY && weir__lease_reclaim(w, e, now))
            verdict = WEIR__REKEYED;
        if (WEIR__LIKELY(verdict != WEIR__REKEYED)) {
            if (result) {
                result->policy = ask->policy;
                result->limiter = ask->w;
            }
            weir__stats_count(w, ask->policy, verdict);
            return verdict;
        }
    }
    return weir__take_memory(ask, now, cost, result);
}

/* Neither a look nor more than the bucket holds, of an ordinary local policy. */
WEIR__INLINE bool weir__take_is_fast(const struct weir__policy_state *p, int64_t cost)
{
    return WEIR__LIKELY((uint64_t)cost - 1 < weir__load_relaxed(&p->burst)) &&
           WEIR__LIKELY(!weir__load_relaxed(&p->special));
}

#endif
