/* SPDX-License-Identifier: MIT */
/*
 * Leases: where several threads take from one bucket by a handle, each takes a few tokens at once and spends them
 * without an atomic step. Owns struct weir__lease, when one is taken and when it ends; must not know handles.
 *
 * Exact all the same: what leases hold is counted in the entry (leased) and the bucket by itself holds so much less
 * than its cap, so bucket and leases together never hold more than the burst, however long a lease is kept. A lease
 * is counted before it is taken out of the bucket, and counted off after the last of it was spent or has gone back.
 *
 * A lease holds at most a quarter of what was left, 100 us of refill and 1/64 of the burst; all leases of a bucket at
 * most 1/16. So limits below some 160,000 a second and bursts below 1,024 are never leased. Spending is weir/quick.h's.
 *
 * There is one for each stripe of counters (stats.h), of a handle: a thread that owns the stripe owns the lease. It
 * goes back at its thread's next fill, when its thread ends, when its handle is closed, when its policy is changed;
 * and, without a step of its thread's, when somebody is denied that bucket's tokens and it was filled more than
 * WEIR__LEASE_STALE_NS ago. They are looked for each WEIR__LEASE_LOOK_NS at most: so nothing is denied while a lease
 * that is older than both together holds what was missing, but for one whose thread is just at it.
 *
 * That needs a barrier which all threads pass (fence.h): where the system has none no leases are taken.
 */
#ifndef WEIR_LIB_LEASE_H
#define WEIR_LIB_LEASE_H

#include "lib/limiter.h"

#define WEIR__LEASE_STALE_NS UINT64_C(1000000)
#define WEIR__LEASE_LOOK_NS UINT64_C(100000)

struct weir__ask;

/* How it begins is weir/quick.h's. Who writes: its thread; whoever holds `lock`, in the way that docs/memory-model.md
 * says (E). */
struct weir__lease {
    _Alignas(64) _Atomic int64_t tokens; /* left to spend; or WEIR_LEASE_GONE_ */
    uint64_t changes;                    /* of the gate when it was filled: its thread's alone */
    _Atomic uint64_t busy;               /* its thread is spending, where that is several steps */
    _Atomic uint64_t held;               /* counted in entry->leased for it */
    _Atomic uint64_t since;              /* ns: when it was last filled */
    uint64_t chunk;                      /* tokens wanted at a time; 0: no lease is wanted. Its thread's alone */
    int64_t aside;                       /* what it was when tokens was last GONE. Whoever holds `lock` */
    _Atomic uint32_t lock;               /* filling, or taking it back. Nobody waits for it */
};
_Static_assert(sizeof(struct weir__lease) == sizeof(struct weir_lease_) &&
                   offsetof(struct weir__lease, changes) == offsetof(struct weir_lease_, changes) &&
                   offsetof(struct weir__lease, busy) == offsetof(struct weir_lease_, busy),
               "one begins like the other");

/* Before the process' first lease; may be called again. */
void weir__lease_prepare(void);

/* One for each stripe that a thread can own; ask and e, which is pinned, outlive them. NULL: out of memory, none are to
 * be had here, or try again. */
struct weir__lease *weir__lease_open(const struct weir__ask *ask, struct weir__hot *e);

/* Gives back what they hold, if the entry is still there (present). leases may be NULL. Threads: none may be taking;
 * they may be ending. */
void weir__lease_close(struct weir__lease *leases, bool present);

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

/* Takes back, from whatever thread, what stale leases of the bucket hold. True: something came back. */
bool weir__lease_hunt(struct weir *w, struct weir__hot *e, uint64_t now);

/* A take was denied at now: true where it should be decided again, for stale leases have gone back. */
WEIR__INLINE bool weir__lease_reclaim(struct weir *w, struct weir__hot *e, uint64_t now)
{
    return WEIR__UNLIKELY(weir__load_acquire(&e->leased) != 0) && weir__lease_hunt(w, e, now);
}

/* Takes back what all leases of a policy hold that nobody may spend any more: `changes` has moved on. */
void weir__lease_end_policy(struct weir *w, weir_policy_id policy, uint64_t now);

/* The calling thread ends, which owned the stripe: all that it leased goes back. */
void weir__lease_end_thread(size_t stripe);

/* The limiter is closed: whatever handles of it were not, nobody looks at their leases again. */
void weir__lease_end_limiter(const struct weir *w);

#endif
