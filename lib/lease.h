/* SPDX-License-Identifier: MIT */
/*
 * Leases: where several threads take from one bucket by a handle, each takes a few tokens at once and spends them
 * without an atomic step. Owns struct weir__lease and when one is taken; must not know handles.
 *
 * Exact all the same: what leases hold is counted in the entry (leased) and the bucket by itself holds so much less
 * than its cap, so bucket and leases together never hold more than the burst, however long a lease is kept. A lease
 * is counted before it is taken out of the bucket, and counted off after the last of it was spent or has gone back.
 *
 * A lease holds at most a quarter of what was left, 100 us of refill and 1/64 of the burst; all leases of a bucket at
 * most 1/16. So limits below some 160,000 a second and bursts below 1,024 are never leased, and what a thread that
 * has gone elsewhere holds back is little; but a cost of more than 15/16 of the burst may be denied for so long.
 * Spending is weir/quick.h's.
 *
 * There is one for each stripe of counters (stats.h), of a handle: a thread that owns the stripe owns the lease, and
 * who gets the stripe after it goes on with the lease. Closing the handle gives all of them back.
 */
#ifndef WEIR_LIB_LEASE_H
#define WEIR_LIB_LEASE_H

#include "lib/stats.h"
#include "lib/take.h"

/* Written by its thread alone; how it begins is weir/quick.h's. */
struct weir__lease {
    _Alignas(64) uint64_t tokens; /* left to spend */
    uint64_t changes;             /* of the gate when it was filled */
    uint64_t held;                /* counted in entry->leased for it */
    uint64_t since;               /* ns: when it was last filled */
    uint64_t chunk;               /* tokens wanted at a time; 0: no lease is wanted */
};
_Static_assert(sizeof(struct weir__lease) == sizeof(struct weir_lease_) &&
                   offsetof(struct weir__lease, changes) == offsetof(struct weir_lease_, changes),
               "one begins like the other");

/* One for each stripe that a thread can own. NULL when out of memory. */
struct weir__lease *weir__lease_open(struct weir *w);

/* Gives back what they hold, if the entry is still there (e not NULL). Threads: none may be taking. leases may be
 * NULL. */
void weir__lease_close(const struct weir__ask *ask, struct weir__hot *e, struct weir__lease *leases);

WEIR__INLINE struct weir__lease *weir__lease_own(struct weir__lease *leases, size_t stripe)
{
    return &leases[stripe / WEIR__STRIPE_BYTES];
}

/* The most tokens that one may hold, by the policy's numbers alone. 0: none is made. */
uint64_t weir__lease_most(const struct weir__policy_state *p);

/* Others are taking from the bucket as well: from now on leases are wanted, where the policy's numbers allow. */
void weir__lease_want(struct weir__lease *lease, const struct weir__policy_state *p, uint64_t now);

/* Gives back what is left, then takes cost and a new lease from the bucket, whose entry is pinned. WEIR_ALLOW; or
 * WEIR__REKEYED: decide without a lease. */
int weir__lease_fill(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now,
                     int64_t cost);

#endif
