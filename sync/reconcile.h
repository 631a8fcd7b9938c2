/* SPDX-License-Identifier: MIT */
/*
 * Reconciliation: what hybrid policies spend is reported to Redis exactly once, and what it grants is put in force.
 * Owns the timer, the lanes and their batches; must not know sockets (link), the state in Redis (wire) or how the sync
 * is started and ended (sync).
 *
 *   dirty keys --> noted in their lane, reported as its batch leaves
 *                                 v
 *   keys with slices, urgent, new --> queued in their lane --> batch on its way --> answered: grants applied
 *                                 |                     |      ^
 *                                 | connection lost     v      | it is back, or the time to retry has come
 *                                 v                    parked, as it is: the same bytes go again
 *                       given back to the entry
 *
 * In an outage nothing is done: slices and what else is in force run out by themselves (lib/hybrid.h).
 *
 * Threads: the loop's. Only weir__reconcile_pump sends.
 */
#ifndef WEIR_SYNC_RECONCILE_H
#define WEIR_SYNC_RECONCILE_H

#include <stdint.h>

#include <weir/sync.h>

#include "sync/node.h"

struct weir__reconcile;

/* WEIR_E_NOMEM: *out is NULL. The handles begin with weir__reconcile_start. */
int weir__reconcile_open(struct weir__reconcile **out, struct weir__node *node);
void weir__reconcile_start(struct weir__reconcile *rec);

/* Keys wait that can't wait for the timer. */
void weir__reconcile_wake(struct weir__reconcile *rec);

/* node->policies has changed. */
void weir__reconcile_policies(struct weir__reconcile *rec);

/* Commands are accepted, or no longer. */
void weir__reconcile_link(struct weir__reconcile *rec, int up);

/* Redis answered something else, sent at `now` (limiter's clock): what has no slice is good for longer. */
void weir__reconcile_alive(struct weir__reconcile *rec, uint64_t now);

/* Sends what can be sent: from the loop's prepare phase. */
void weir__reconcile_pump(struct weir__reconcile *rec);

/* Calls back when all that was spent before is acknowledged, or after drain_ms. It is the caller's memory, and the
 * caller's again in the callback. */
struct weir__flush {
    struct weir__flush *next;
    weir_sync_cb cb;
    void *arg;
    uint64_t deadline; /* set by weir__reconcile_flush */
    uint32_t ticket;   /* of a follower's: leader.h */
};
void weir__reconcile_flush(struct weir__reconcile *rec, struct weir__flush *flush);

/* Of the processes that share the limiter: is it this one that reconciles? Else 1. */
int weir__reconcile_leads(const struct weir__reconcile *rec);

/* Is there nothing to report, and no slice to give back? */
int weir__reconcile_is_idle(struct weir__reconcile *rec);

/* From now on slices are given back, not renewed; calls back as soon as nothing is left to report, at most once. */
void weir__reconcile_drain(struct weir__reconcile *rec, void (*cb)(void *arg), void *arg);

/* Stops: what was never sent is unreported again, what is in doubt is written off. Flushes are called back. Returns
 * whole tokens that Redis was not told of, or may not have been. The batches on their way must still be called back by
 * the link. */
uint64_t weir__reconcile_stop(struct weir__reconcile *rec);

/* After weir__reconcile_stop: this process takes no longer part; the last one that did detaches the sync. */
void weir__reconcile_leave(struct weir__reconcile *rec);

/* After weir__reconcile_stop and when the link is closed: closes the handles, frees all, then calls back. */
void weir__reconcile_close(struct weir__reconcile *rec, void (*cb)(void *arg), void *arg);

#endif
