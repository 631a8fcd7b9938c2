/* SPDX-License-Identifier: MIT */
/*
 * The inside of the stats socket, shared by watch.c (the socket, who is connected, what is sampled) and watch_say.c
 * (what is said). Nobody else includes this.
 */
#ifndef WEIR_SYNC_WATCH_STATE_H
#define WEIR_SYNC_WATCH_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "sync/watch.h"

#define WEIR__WATCH_KEYS 100u /* the most that are told */

/* A key that is asked for. */
struct weir__watched {
    uint32_t slot;
    weir_policy_id policy;
    uint64_t id;
    double per_s;
};

/* An answer, in memory of the node's; NULL: there is none. *size: of the memory; *len: of the text. */
char *weir__watch_say_top(struct weir__node *node, uint64_t uptime_ns, const struct weir__watched *keys, size_t n,
                          size_t *size, size_t *len);
char *weir__watch_say_metrics(struct weir__node *node, size_t *size, size_t *len);

#endif
