/* SPDX-License-Identifier: MIT */
/*
 * What outlives the process that reconciles, where several share a limiter: node id, sequence numbers and the batches
 * on their way, in memory of all. Owns that memory (weir__seam_store); must not know when anything is sent.
 *
 * A batch is kept as what it was made of, not as bytes: made anew of the same it has the same bytes. So it lies where
 * its reports lie, one place a slot of the table, linked in their order; what belongs to the batch lies with its lane,
 * twice: the one that is not in force is written, then they change places by one store.
 *
 * Threads: the loop's of the process that reconciles, but for weir__persist_open and the two tickets.
 */
#ifndef WEIR_SYNC_PERSIST_H
#define WEIR_SYNC_PERSIST_H

#include <stdint.h>

#include "sync/batch.h"
#include "sync/node.h"

#define WEIR__PERSIST_SHARDS 64u /* the most that a shared limiter may have */

struct weir__persist;

/* node->persist; NULL where the limiter is not shared. WEIR_E_RANGE: too many shards; WEIR_E_MISMATCH: the limiter was
 * started with another number of them, or another prefix. */
int weir__persist_open(struct weir__node *node);

/* This process reconciles from now on: under the id that the first one had. */
void weir__persist_lead(struct weir__node *node);

/* Was anything of this policy ever sent? */
int weir__persist_knows(const struct weir__node *node, weir_policy_id id);

/* What the lane's last batch left: number, epoch, promise. */
void weir__persist_load(const struct weir__node *node, struct weir__lane *lane);

/* Before the batch is sent for the first time, or anew as another one. */
void weir__persist_batch(struct weir__node *node, const struct weir__batch *batch);

/* It has been answered, or is no longer to be sent. */
void weir__persist_done(struct weir__node *node, const struct weir__lane *lane);

/* Whole tokens of a key that Redis would not take yet. */
void weir__persist_carry(struct weir__node *node, const struct weir__kept *kept);
int64_t weir__persist_carried(const struct weir__node *node, const struct weir__kept *kept);

/* The lane's batch that another process has not seen answered. Its reports are out again; those that had been answered
 * are NULL in batch->outs. *batch NULL: there is none. 0, WEIR_E_NOMEM, or WEIR_E_CLOSED: all of them had been, and
 * only that was not written down. The batch is made all the same. */
int weir__persist_revive(struct weir__node *node, struct weir__keys *keys, struct weir__lane *lane, const char *sha,
                         struct weir__batch **batch);

/* Flushes that other processes want: the last one asked for, and the last one done. Threads: any. */
uint32_t weir__persist_ask(struct weir__node *node);
int weir__persist_is_flushed(const struct weir__node *node, uint32_t ticket);
uint32_t weir__persist_asked(const struct weir__node *node);
void weir__persist_flushed(struct weir__node *node, uint32_t ticket);

#endif
