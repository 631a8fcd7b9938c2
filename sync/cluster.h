/* SPDX-License-Identifier: MIT */
/*
 * A Redis Cluster: a link to each master, and the map that says whose a slot is. Owns the map and the redirections;
 * knows nothing of limiters, nor of sockets but through link.h.
 *
 *   command -> slot of its first key -> master -> answer
 *                      ^                   |  MOVED: the map is put right, the command goes to the right one
 *                      '--- CLUSTER SLOTS -'  ASK: the command goes there, behind ASKING, this once
 *
 * The map is read when the first of the URI's nodes answers, then now and then, and soon after anything that hints at
 * a change: a redirection, a lost master, CLUSTERDOWN. A master that the map no longer names is left.
 *
 * The contracts are store.h's. Threads: the loop's, unless said otherwise.
 */
#ifndef WEIR_SYNC_CLUSTER_H
#define WEIR_SYNC_CLUSTER_H

#include <stddef.h>
#include <stdint.h>

#include "sync/link.h"

#define WEIR__CLUSTER_SLOTS 16384

struct uv_loop_s;
struct weir__cluster;

/* config->uri names the nodes to ask first; config->allocator must be set. */
int weir__cluster_open(struct weir__cluster **out, struct uv_loop_s *loop, const struct weir__link_config *config);
void weir__cluster_start(struct weir__cluster *cluster);
const char *weir__cluster_sha(const struct weir__cluster *cluster, size_t i);
int weir__cluster_command(struct weir__cluster *cluster, const void *bytes, size_t len, uint64_t timeout_ns,
                          weir__link_cb cb, void *arg);
void weir__cluster_flush(struct weir__cluster *cluster);
void weir__cluster_fault(struct weir__cluster *cluster, enum weir__link_kind kind);
void weir__cluster_close(struct weir__cluster *cluster, void (*cb)(void *arg), void *arg);
uint64_t weir__cluster_reconnects(const struct weir__cluster *cluster); /* Threads: any */

/* ---- slots.c: what travels, pure --------------------------------------------------------------------------------- */

/* The slot of the first key of an EVALSHA in RESP; -1: that is none. */
int weir__slots_of_command(const void *bytes, size_t len);

/* "MOVED 3999 127.0.0.1:6381", "ASK ...": 0, or -1 where it is neither. A host that the server does not know is "". */
int weir__slots_redirection(const char *text, size_t len, unsigned *slot, struct weir__uri_host *to);

/* One range of CLUSTER SLOTS' answer: 0, or -1 where it makes no sense. */
struct weir__slots_range {
    unsigned first, last;
    struct weir__uri_host master;
};
int weir__slots_range(const struct redisReply *reply, struct weir__slots_range *out);

#endif
