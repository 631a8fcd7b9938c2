/* SPDX-License-Identifier: MIT */
/*
 * A hybrid node in virtual time: a limiter of the library with the simulation for a clock, reconciled through the
 * seam as sync/ does it, with the arithmetic of sync/slice.c. What sync/reconcile.c, batch.c and answer.c do for many
 * keys is here done for one, in the same order.
 *
 * Owns the limiter and what a node remembers. Must not know where its demand comes from.
 */
#ifndef WEIR_TOOLS_SIMULATE_NODE_H
#define WEIR_TOOLS_SIMULATE_NODE_H

#include "tools/simulate_world.h"

/* A process starts. NULL: *status says why. */
struct simulate_node *simulate_node_open(struct simulate_world *world, uint32_t index, int *status);

/* It is gone at once. NULL is allowed. */
void simulate_node_close(struct simulate_node *node);

/* One request; async: where memory has too little, Redis is asked. The decision is accounted for, now or later. */
void simulate_node_take(struct simulate_node *node, int64_t cost, int async);

/* An event of this node. Its sync thread stands still until node's stall ends: then it sees to it. */
void simulate_node_event(struct simulate_node *node, const struct simulate_event *event);

void simulate_node_stall(struct simulate_node *node, uint64_t until);

/* Decisions of its outage policy. */
uint64_t simulate_node_degraded(struct simulate_node *node);

#endif
