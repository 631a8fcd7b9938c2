/* SPDX-License-Identifier: MIT */
/*
 * Decisions that Redis makes: strict policies, and what weir_take_async and weir_take_wait can't answer from memory.
 * Owns lanes of queries, their merging into scripts, the deadlines and the circuit; must not know sockets (link), the
 * state in Redis (wire) or who asks (query).
 *
 * At most once: what may have been executed is never sent again. A query that gets no answer in time is answered by
 * the policy's outage verdict.
 *
 * The circuit: shut while the connection is down, or after several batches in a row had no good answer; then nobody
 * waits, and now and then one query is let through to see. It is read by any thread, written by the loop's.
 *
 * Threads: the loop's, unless said otherwise. Only weir__strict_pump sends.
 */
#ifndef WEIR_SYNC_STRICT_H
#define WEIR_SYNC_STRICT_H

#include "sync/node.h"
#include "sync/query.h"

struct weir__strict;

/* alive: called whenever Redis has answered; now: the limiter's clock when that was sent. WEIR_E_NOMEM: *out NULL. */
int weir__strict_open(struct weir__strict **out, struct weir__node *node, void (*alive)(void *arg, uint64_t now),
                      void *arg);
void weir__strict_start(struct weir__strict *strict);

/* May a query go to Redis? 0: answer it by weir__strict_degrade. Threads: any. */
int weir__strict_passes(struct weir__strict *strict);

/* The outage policy's verdict. Threads: any. */
int weir__strict_degrade(struct weir__node *node, const struct weir__query *query, struct weir_result *result);
int weir__strict_degrade_request(struct weir__node *node, enum weir__query_kind kind,
                                 const struct weir_request *request, struct weir_result *result);

/* Takes a query over. */
void weir__strict_ask(struct weir__strict *strict, struct weir__query *query);

/* How many are waiting or on their way. */
size_t weir__strict_pending(const struct weir__strict *strict);

/* Commands are accepted, or no longer. */
void weir__strict_link(struct weir__strict *strict, int up);

/* Sends what can be sent: from the loop's prepare phase. */
void weir__strict_pump(struct weir__strict *strict);

/* Answers everything by the outage policies. Batches on their way must still be called back by the link. */
void weir__strict_stop(struct weir__strict *strict);

/* After weir__strict_stop and when the link is closed: closes the handles, frees all, then calls back. */
void weir__strict_close(struct weir__strict *strict, void (*cb)(void *arg), void *arg);

#endif
