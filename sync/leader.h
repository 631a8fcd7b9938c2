/* SPDX-License-Identifier: MIT */
/*
 * Processes that share a limiter each have a sync; one of them reconciles. Owns who that is: following, taking over,
 * handing over, and what followers want of the one that leads. Must not know what a batch says.
 *
 *   follows --(the leader has ended, Redis answers here)--> takes over: node id, numbers, batches --> leads
 *   leads --(closes, others are there)--> what is queued goes back, what is on its way stays for the next one
 *
 * Threads: the loop's.
 */
#ifndef WEIR_SYNC_LEADER_H
#define WEIR_SYNC_LEADER_H

#include "sync/reconcile_state.h"

/* A follower's tick: takes over where nobody leads. */
void weir__leader_follow(struct weir__reconcile *rec);

/* A leader looks often at what other processes can't tell it: urgent keys, flushes, policies; and audits. */
void weir__leader_pulse(uv_timer_t *timer);

/* A follower's flush: the leader is asked. */
void weir__leader_flush(struct weir__reconcile *rec, struct weir__flush *flush);

/* This process closes. Is anybody left to go on? */
int weir__leader_has_heirs(struct weir__reconcile *rec);

/* Nobody is: a follower that drains has to take over first. */
void weir__leader_wait(struct weir__reconcile *rec);

#endif
