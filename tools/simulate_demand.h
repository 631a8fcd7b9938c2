/* SPDX-License-Identifier: MIT */
/*
 * Who asks when: workloads. The same seed makes the same demand, whatever the strategy.
 *
 * Must not know what becomes of a request.
 */
#ifndef WEIR_TOOLS_SIMULATE_DEMAND_H
#define WEIR_TOOLS_SIMULATE_DEMAND_H

#include "tools/simulate_world.h"

void simulate_demand_init(struct simulate_world *world);

/* Posts the node's next request. */
void simulate_demand_next(struct simulate_world *world, uint32_t node);

/* Does it live now? When does that change next for any of them? */
int simulate_demand_lives(const struct simulate_world *world, uint32_t node);
uint64_t simulate_demand_change(const struct simulate_world *world);

/* The interval that a node resolves for itself, s. */
double simulate_interval(const struct simulate_options *options);

#endif
