/* SPDX-License-Identifier: MIT */
/*
 * The stats socket: what `weir top` sees of a process (docs/stats-socket.md). Owns the socket, those who are connected,
 * and the samples that tell which keys are asked for most; it must not know how anything is decided or reconciled.
 *
 *   nobody connected: nothing is done at all
 *   "top N": the table is walked, a piece a turn of the loop; a second walk, 200 ms to 5 s later, tells the rates
 *
 * Threads: the loop's.
 */
#ifndef WEIR_SYNC_WATCH_H
#define WEIR_SYNC_WATCH_H

#include "sync/node.h"

struct weir__reconcile;
struct weir__watch;

/* path NULL: *out is NULL, which every function here takes for nothing to do. WEIR_E_RANGE (path), WEIR_E_NOMEM. */
int weir__watch_open(struct weir__watch **out, struct weir__node *node, const struct weir__reconcile *rec,
                     const char *path);

/* Listens, at once or as soon as it can. */
void weir__watch_start(struct weir__watch *watch);

/* Nobody gets in any more, and the path is gone. */
void weir__watch_stop(struct weir__watch *watch);

/* After weir__watch_stop, or without a start: frees all, then calls back (at once where there is nothing to close). */
void weir__watch_close(struct weir__watch *watch, void (*cb)(void *arg), void *arg);

#endif
