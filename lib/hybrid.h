/* SPDX-License-Identifier: MIT */
/*
 * The taker's side of policies that are shared with Redis: slices, overdraft, hold, and what happens in an outage. Owns
 * the levels of entries whose policy is not WEIR_LOCAL; must not know sockets, Redis or how a grant came about (seam.h),
 * nor how entries are found and dropped (table).
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

/* The outage policy's verdict, whatever the entry still has in hand: for strict policies that Redis did not answer. */
int weir__hybrid_outage(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                        uint64_t now, int64_t cost, int64_t *charged, struct weir_result *result);

/* Raises the level by tokens, up to the cap in force. unspend 0: a refund, reported as one. Non-zero: the tokens were
 * charged by a take of this process and are taken back as if never spent. 0 or WEIR__REKEYED. */
int weir__hybrid_give(struct weir *w, struct weir__hot *e, uint64_t x, const uint64_t id[2], weir_policy_id policy,
                      uint64_t now, int64_t tokens, int unspend);

/* ---- for whoever holds the lock bit of x (or fills an entry that nobody can find yet) ----------------------------- */

/* A new entry of a policy that is not WEIR_LOCAL: sets regime, k, f, base, returned, refunded and an empty slice record.
 * The entry will be published with this x, a multiple of WEIR__STEP. */
void weir__hybrid_claim(struct weir *w, uint32_t slot, weir_policy_id policy, uint64_t x, uint64_t now);

/* Does dropping it lose nothing? No slice, no debt, no hold, nothing unreported, no report out. x without the lock bit.
 * Without the lock bit: a hint. Not for WEIR__LOCAL entries. */
int weir__hybrid_evictable(struct weir *w, uint32_t slot, uint64_t x, uint64_t now);

/* weir_policy_set changed the policy's numbers, k or mode: brings the entry along, whatever its regime, if it or the
 * policy is not WEIR_LOCAL. Holds what is unreported to the token; the level shrinks to the new burst at most, and never
 * grows. Caller: also holds state->walk_lock. Returns the x to unlock with. */
uint64_t weir__hybrid_convert(struct weir *w, uint32_t slot, uint64_t x, uint64_t now);

/* weir_forget: as if never seen; what is unreported is dropped, a report that is out will be ignored. Caller: also holds
 * state->walk_lock. Returns the x to unlock with. */
uint64_t weir__hybrid_forget(struct weir *w, uint32_t slot, uint64_t x, uint64_t now);

/* ---- for lib/seam.c ------------------------------------------------------------------------------------------------ */

/* The numbers in force of an entry, as read with x and f; worth something only if a CAS of x then succeeds or x is found
 * unchanged. */
struct weir__view {
    uint64_t x, f;
    uint64_t mult, cap;
    int64_t level;   /* min(cap, R(now) - x - f) */
    uint64_t refill; /* R(now) */
    uint8_t k, regime;
};
void weir__hybrid_view(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now, struct weir__view *view);

/* Turns an entry that was made before a sync was attached into WEIR__BARE: what its full bucket lacks is unreported
 * spending now. Does nothing to other entries. Waits where the entry is locked. */
void weir__hybrid_adopt(struct weir *w, struct weir__hot *e, uint64_t now);

/* Units spent and not yet handed to the collector. */
int64_t weir__hybrid_unreported(struct weir *w, uint32_t slot, uint64_t x);

#endif
