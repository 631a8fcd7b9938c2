/* SPDX-License-Identifier: MIT */
/*
 * One worker process of the demo: a limiter, its reconciliation on a thread of its own, and an even stream of requests.
 *
 * Owns everything that calls the library. Knows its parent only through the board.
 */
#ifndef WEIR_TOOLS_WORKER_H
#define WEIR_TOOLS_WORKER_H

#include "tools/fleet.h"

/* The policy of worker `index` of them all. Local mode shares nothing, so there each enforces its part of the limit:
 * parts of the burst that differ by one at most, and the rate divided exactly. */
void worker_policy(const struct fleet_options *options, enum weir_mode mode, unsigned index, struct weir_policy *out);

/* Would the library take the policy? 0, or its status. */
int worker_try_policy(const struct fleet_options *options);

/* What Redis holds for the key that the workers share, asked in strict mode by the parent once they have all closed. 0,
 * or -1 where Redis does not answer. */
int worker_look(struct fleet_board *board, uint64_t *tokens);

/* The life of a worker, from after the fork to its exit code. */
int worker_run(struct fleet_board *board, unsigned index);

#endif
