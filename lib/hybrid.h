/* SPDX-License-Identifier: MIT */
/*
 * The taker's side of policies that are shared with Redis: slices, overdraft, hold, and what happens in an outage. Owns
 * the levels of entries whose policy is not WEIR_LOCAL; must not know sockets, Redis or how a grant came about
 * (seam.h), nor how entries are found and dropped (table).
 *
 * lib/hybrid.c decides; lib/rewrite.c is what the holder of an entry's lock bit does to it.
 *
 * An entry, its x (loaded with acquire before its id was compared) and its id come from the table. WEIR__REKEYED: the
 * entry is another key's by now, or it is locked: search again. Nothing was done then.
 *
 * Verdicts are counted by the caller; state->degraded is counted here. A shadow policy is the caller's business too.
 *
 * Levels: units in hand, negative where the overdraft is in use. Numbers in force, by regime and the flags of f:
 *
 *   regime   WEIR__FALL  {mult, cap}                    floor                        good until
 *   LOCAL    -           the policy's slot[f & 1]       0                            it is an outage: no sync yet
 *   BARE     0           {0, 0}                         -q                           policy->fresh_until
 *   SLICED   0           slice->mult, cap[f & 1]        -q, while on hold 0          slice->until or, for 0, as BARE
 *   either   1           slice->fall_mult, _cap[f & 1]  0                            the next answer from Redis
 *
 * q = the policy's overdraft, at least one token where unknown is WEIR_UNKNOWN_ADMIT.
 */
#ifndef WEIR_LIB_HYBRID_H
#define WEIR_LIB_HYBRID_H

#include <stdint.h>

#include "lib/limiter.h"

/* Takes cost tokens or none; cost 0 looks. *charged (may be NULL): the tokens that a later weir__hybrid_give with
 * `unspend` may return: 0 for a denial and for what an open outage admitted. result may be NULL; else all of it but the
 * policy's id and WEIR_SHADOW is filled in. Threads: any; lock-free but for an entry that is being rewritten. */
int weir__hybrid_take(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t cost, int64_t *charged, struct weir_result *result);

/* What weir__hybrid_take would say; changes nothing, lists nothing. e may be NULL: no entry holds the key. */
int weir__hybrid_peek(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t cost, struct weir_result *result);

/* As weir__hybrid_take, but without the token of WEIR_UNKNOWN_ADMIT, and WEIR__SEAM_ASK (nothing done, result
 * untouched) where Redis may have more than is in hand. */
int weir__hybrid_try(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                     uint64_t now, int64_t cost, struct weir_result *result);

/* The outage policy's verdict, whatever the entry still has in hand: for strict policies that Redis did not answer.
 * e may be NULL where on_outage is not WEIR_OUTAGE_LOCAL: then nothing is charged. fleet: what the whole bucket is
 * known to hold, tokens; < 0: not known. */
int weir__hybrid_outage(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                        uint64_t now, int64_t cost, double fleet, int64_t *charged, struct weir_result *result);

/* Raises the level by tokens, up to the cap in force. unspend 0: a refund, reported as one. Non-zero: the tokens were
 * charged by a take of this process and are taken back as if never spent. 0 or WEIR__REKEYED. */
int weir__hybrid_give(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t tokens, int unspend);

/* ---- lib/rewrite.c: for whoever holds the lock bit of x, or fills an entry that nobody can find yet -------------- */

/* A new entry of a policy that is not WEIR_LOCAL: sets policy, regime, k, f, base, returned, refunded and an empty
 * slice record. The entry will be published with this x, a multiple of WEIR__STEP. */
void weir__hybrid_claim(struct weir *w, uint32_t slot, weir_policy_id policy, uint64_t x, uint64_t now);

/* Does dropping it lose nothing? No slice, no debt, no hold, nothing unreported. The caller has looked at pin, dirty
 * and urgent. x without the lock bit. Without holding the lock bit: a hint. Not for WEIR__LOCAL entries: those may go
 * when they are full. */
int weir__hybrid_evictable(struct weir *w, uint32_t slot, uint64_t x, uint64_t now);

/* weir_policy_set changed the policy's numbers, k or mode (slot[current] holds the new ones; the slot of a WEIR__LOCAL
 * entry still its old ones): brings the entry along. What is unreported stays, to the token; the level shrinks to the
 * new burst and never grows. Caller: also holds state->walk_lock, unless it is weir__hybrid_settle. Returns the x to
 * unlock with. */
uint64_t weir__hybrid_convert(struct weir *w, uint32_t slot, uint64_t x, uint64_t now);

/* weir_forget: as if never seen; what is unreported is dropped, a report that is out will be ignored. Caller: also
 * holds state->walk_lock. Returns the x to unlock with. */
uint64_t weir__hybrid_forget(struct weir *w, uint32_t slot, uint64_t x, uint64_t now);

/* Brings an entry's regime in line with state->attached. Attached, WEIR__LOCAL becomes WEIR__BARE: what its full bucket
 * lacks, and this process spent, is unreported from now on. Detached, the other way round. Takes the lock bit itself,
 * waits where it is taken; does nothing to an entry that is in line. Threads: any. */
void weir__hybrid_settle(struct weir *w, struct weir__hot *e, uint64_t now);

/* Is it out of line? */
WEIR__INLINE bool weir__hybrid_unsettled(const struct weir *w, const struct weir__hot *e)
{
    bool local = weir__load_relaxed(&e->regime) == WEIR__LOCAL;

    return local == (atomic_load_explicit(&w->state->attached, memory_order_seq_cst) != 0);
}

/* ---- both files, and lib/seam.c ---------------------------------------------------------------------------------- */

/* The numbers in force of an entry, read after x; worth something only if a CAS of x then succeeds, or x is found
 * unchanged, or was locked all the time. */
struct weir__view {
    uint64_t x, f;
    uint64_t now;
    uint64_t mult, cap;
    uint64_t refill; /* R(now); a slice that has ended: R(its end), for Redis holds no refill for it since then */
    int64_t level;   /* min(cap, refill - x - f) */
    bool over;       /* cap was the lesser */
    bool ended;
    uint8_t k, regime;
};
void weir__hybrid_view(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now, struct weir__view *view);

/* The f that makes `level` of x at R(now) = refill; flags: WEIR__SLOT, WEIR__FALL. */
WEIR__INLINE uint64_t weir__hybrid_f(uint64_t refill, uint64_t x, int64_t level, uint64_t flags)
{
    return ((refill - x - (uint64_t)level) & WEIR__UNITS) | flags;
}

/* The fleet's level by now as Redis last told it, without what was spent here since; units of k, may be past the burst.
 * Torn: the collector is telling it just now; *level is neither this nor that. Never told: *level is left alone. */
enum weir__told { WEIR__NEVER_TOLD, WEIR__TOLD_TORN, WEIR__TOLD };
enum weir__told weir__hybrid_fleet(const struct weir__policy_state *policy, const struct weir__slice *slice,
                                   uint64_t now, uint8_t k, int64_t *level);
void weir__hybrid_fleet_set(struct weir__slice *slice, int64_t level, uint64_t at);

/* The policy's rate and burst in units of k. */
uint64_t weir__hybrid_mult(const struct weir__policy_state *policy, uint8_t k);

WEIR__INLINE int64_t weir__hybrid_burst(const struct weir__policy_state *policy, uint8_t k)
{
    uint64_t burst = weir__load_relaxed(&policy->burst);

    return (int64_t)(burst > WEIR__UNITS_MAX >> k ? WEIR__UNITS_MAX : burst << k);
}

/* Units spent and not yet handed to the collector. */
WEIR__INLINE int64_t weir__hybrid_unreported(struct weir *w, uint32_t slot, uint64_t x)
{
    struct weir__cold *cold = &w->cold[slot];

    return (int64_t)(x - weir__load_acquire(&cold->returned) - weir__load_relaxed(&cold->base));
}

/* ... in tokens. To the nearest: spending is whole tokens; a step of x that a thread is just adding to `returned` must
 * not turn it into one less. */
WEIR__INLINE int64_t weir__hybrid_whole(int64_t units, uint8_t k)
{
    return (units + (INT64_C(1) << (k - 1))) >> k;
}

#endif
