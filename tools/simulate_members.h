/* SPDX-License-Identifier: MIT */
/*
 * The nodes that a simulated shard knows, and what overdraft each was promised. Owns the list; its caller frees it.
 * Threads: one at a time.
 */
#ifndef WEIR_TOOLS_SIMULATE_MEMBERS_H
#define WEIR_TOOLS_SIMULATE_MEMBERS_H

#include "tools/simulate_store.h"

#define SIMULATE_US 1e6
#define SIMULATE_LIVE (60 * SIMULATE_US)      /* a node that was silent for longer is not counted */
#define SIMULATE_REMEMBER (600 * SIMULATE_US) /* nor remembered after this */

/* NULL: none of that name. Both point into a list that adding and promising may move. */
struct simulate_member *simulate_find_member(struct simulate_store *s, const uint8_t *id);
struct simulate_member *simulate_add_member(struct simulate_store *s, const uint8_t *id);

/* is: what the shard remembers of the node, or zeros; leaves there what it will remember of its overdraft: the promise,
 * and what is reserved for it. owed: the deepest overdraft that its batch tells. */
void simulate_promise(struct simulate_store *s, struct simulate_member *is, double now, double owed);

#endif
