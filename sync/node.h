/* SPDX-License-Identifier: MIT */
/*
 * What one sync is to the fleet, shared by the files that make it up: its id, options, connection, counters, and the
 * policies as Redis is told of them. Owns no protocol: reconcile and strict do.
 *
 * Two clocks: the limiter's (weir_now: all that goes through the seam as a time; the caller may have injected it, so it
 * may stand still) and the machine's (uv_hrtime: deadlines, round trips, what is due).
 *
 * Threads: the loop's, but for the counters, which anyone reads.
 */
#ifndef WEIR_SYNC_NODE_H
#define WEIR_SYNC_NODE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/sync.h>
#include <weir/weir.h>

#include "lib/seam.h"
#include "sync/link.h"
#include "sync/measure.h"
#include "sync/slice.h"
#include "sync/wire.h"

struct uv_loop_s;
struct weir__store;
struct weir__persist;
struct weir__seen;

#define WEIR__MS UINT64_C(1000000)
#define WEIR__SECOND UINT64_C(1000000000)

/* A policy as the loop's thread knows it. */
struct weir__policy {
    struct weir__seam_policy is;
    struct weir__wire_numbers numbers; /* what is told to Redis */
    struct weir__slice_terms terms;    /* of the numbers in force, which may be a newer version of another node's */
    uint64_t foreign;                  /* the version in force where it is not ours; 0: ours */
    int mismatched;                    /* said so already */
};

struct weir__counters {
    _Atomic uint64_t syncs, sync_errors, reports, strict, pending_tokens, written_off_tokens, last_sync_ns;
    _Atomic uint64_t unreturned_tokens; /* any thread adds */
    _Atomic int store_up;
    struct weir__measure sync_took, strict_took;
    _Atomic uint64_t errors[WEIR__LINK_KINDS]; /* of all servers, by kind */
};

struct weir__node {
    struct weir *w;
    struct uv_loop_s *loop;
    struct weir__store *store;
    struct weir_allocator mem;     /* the limiter's */
    struct weir__persist *persist; /* of a shared limiter: what a successor finds; else NULL */
    struct weir__seen *seen;       /* what Redis last said of keys that it decides for */
    const char *prefix;
    uint8_t id[WEIR__WIRE_ID];
    uint32_t shards, batch_max, window, jitter_pct, fleet_hint;
    uint64_t interval_ns, timeout_ns, drain_ns, strict_window_ns;
    struct weir__policy **policies; /* by id */
    uint32_t policy_count, policy_room;
    uint64_t random, salt;
    double rtt; /* s; 0: not measured yet */
    struct weir__counters count;
};

/* 0, or WEIR_E_SYS where the system has no random bytes. w, loop, prefix and the options must be set; store not yet. */
int weir__node_init(struct weir__node *node);
void weir__node_deinit(struct weir__node *node);

/* Reads every policy of the limiter again. WEIR_E_NOMEM: some are as they were, or missing. */
int weir__node_policies(struct weir__node *node);

/* The policy, read from the limiter where it is new; NULL: there is none, or no memory. */
struct weir__policy *weir__node_policy(struct weir__node *node, weir_policy_id id);

/* What every reply says of the numbers in force. Returns 1 where terms changed. */
int weir__node_learn(struct weir__node *node, weir_policy_id id, const struct weir__wire_head *head);

/* Where a key's record goes. */
void weir__node_target(const struct weir__node *node, const struct weir__policy *policy, uint32_t shard,
                       struct weir__wire_target *out);

/* Random bits for nonces, jitter and phases. */
uint64_t weir__node_random(struct weir__node *node);

void *weir__node_alloc(struct weir__node *node, size_t size); /* zeroed */
void weir__node_free(struct weir__node *node, void *memory, size_t size);

/* Adds to a counter that only the loop's thread writes. */
static inline void weir__count_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

#endif
