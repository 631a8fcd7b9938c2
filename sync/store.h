/* SPDX-License-Identifier: MIT */
/*
 * Redis as the rest of the sync sees it: one server (link), or a cluster of them (cluster). Owns which of the two it
 * is; knows nothing of slots, sockets or what is sent.
 *
 * The contracts are link.h's, but that a command may also be refused (WEIR_E_NOSYNC) while others are accepted: then
 * the server of its keys is the one that is away.
 *
 * Threads: the loop's, unless said otherwise.
 */
#ifndef WEIR_SYNC_STORE_H
#define WEIR_SYNC_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "sync/link.h"

struct uv_loop_s;
struct weir__store;

/* As weir__link_open; config->uri->kind decides what it is. */
int weir__store_open(struct weir__store **out, struct uv_loop_s *loop, const struct weir__link_config *config);
void weir__store_start(struct weir__store *store);

/* Under which sha every server knows script i; as weir__link_sha. */
const char *weir__store_sha(const struct weir__store *store, size_t i);

/* As weir__link_command; a cluster takes EVALSHA with at least one key, all of one slot. */
int weir__store_command(struct weir__store *store, const void *bytes, size_t len, uint64_t timeout_ns, weir__link_cb cb,
                        void *arg);

/* As weir__link_command_late; of a cluster on_late is never called, and an answer that comes late is dropped: the
 * command may have to go elsewhere. */
int weir__store_command_late(struct weir__store *store, const void *bytes, size_t len, uint64_t timeout_ns,
                             weir__link_late_cb on_late, weir__link_cb cb, void *arg);

/* All keys of a command must be of one slot. */
int weir__store_is_cluster(const struct weir__store *store);

/* As weir__link_flush and _close; _fault from inside the callback that brought the answer. */
void weir__store_flush(struct weir__store *store);
void weir__store_fault(struct weir__store *store, enum weir__link_kind kind);
void weir__store_close(struct weir__store *store, void (*cb)(void *arg), void *arg);

/* As weir__link_reconnects, of all servers. Threads: any. */
uint64_t weir__store_reconnects(const struct weir__store *store);

#endif
