/* SPDX-License-Identifier: MIT */
/*
 * The inside of strict mode, shared by strict.c (lanes, deadlines, the circuit), strict_batch.c (merging) and
 * strict_answer.c (verdicts). Nobody else includes this.
 */
#ifndef WEIR_SYNC_STRICT_STATE_H
#define WEIR_SYNC_STRICT_STATE_H

#include <uv.h>

#include "sync/probes.h"
#include "sync/store.h"
#include "sync/strict.h"

#define WEIR__STRICT_INDEX 2048u /* buckets of a batch's index: four times its keys */

/* Queries of one shard of one policy, in the order in which they came. In its policy's ready list while it holds
 * any. */
struct weir__strict_lane {
    uint32_t shard, count;
    struct weir__query *first, *last;
    struct weir__strict_lane *next;
    struct weir__wire_buf names; /* of its keys, once they have been needed */
    double epoch;                /* of the last answer; 0: none yet */
    uint64_t wrote_at;           /* machine's clock: when Redis last wrote for this node, and so kept that epoch */
    uint64_t lost_at;            /* when Redis was found to have lost its state; 0: never */
    uint8_t ready;
    uint8_t alone; /* a script of it alone failed: none of it and others until one succeeds */
};

/* The lanes of a policy. In the ready list while any of its lanes is ready. */
struct weir__strict_lanes {
    weir_policy_id id;
    uint32_t queued, ready_count; /* queries in them; those of them that are ready */
    struct weir__strict_lane *first, *last;
    struct weir__strict_lanes *next;
    uint8_t ready;
    struct weir__strict_lane lanes[]; /* one a shard */
};

/* One script's worth: of one policy, of one shard or several. `chains` are the queries of each entry, in the order in
 * which what is admitted is dealt; entries are counted over all shards. */
struct weir__strict_batch {
    struct weir__strict *owner;
    struct weir__strict_batch *prev, *next; /* on their way */
    enum weir__query_kind kind;             /* _TAKE: a strict script; _FORGET; _ALL */
    weir_policy_id id;
    struct weir__wire_buf bytes;
    struct weir__wire_strict *shards; /* _FORGET: one, its target alone */
    struct weir__wire_head *heads;    /* of their answers */
    uint32_t n_shards, n_keys, n_entries;
    struct weir__wire_all all;
    struct weir__wire_head all_head;
    struct weir__query **chains, **ends;
    uint32_t weight;
    uint64_t deadline, sent_at, sent_now; /* machine's clock, machine's, limiter's */
    size_t size;
};

struct weir__strict {
    struct weir__node *node;
    uv_timer_t expiry, window;
    struct weir__strict_lanes **lanes; /* by policy */
    uint32_t lane_room;
    struct weir__strict_lanes *ready, *last_ready;
    struct weir__strict_batch *flying;
    uint32_t flying_count, weight;                      /* of the batches on their way */
    size_t pending;                                     /* queries in lanes, and on their way */
    size_t queued;                                      /* in lanes */
    uint64_t expiry_at, answered_at;                    /* machine's clock: of the batch that is being dealt */
    uint64_t took;                                      /* ns: the last round trip; 0: none yet */
    uint64_t shortest, shortest_before, shortest_since; /* since then, and in the time before that; machine's clock */
    uint32_t failures;                                  /* in a row */
    int one_slot;         /* a cluster behind one address: a script is of one shard, or of one group */
    uint64_t apart_until; /* until then a script is of one shard: one of several had an error for an answer */
    uint8_t started, stopped, handles, window_open;
    _Atomic int up, shut;
    _Atomic uint64_t probe_at;          /* when the next query may pass a shut circuit */
    uint16_t index[WEIR__STRICT_INDEX]; /* of the batch being built: key + 1 */
    void (*alive)(void *arg, uint64_t now);
    void *alive_arg;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- strict.c ---------------------------------------------------------------------------------------------------- */

/* Takes the first query off its lane. */
struct weir__query *weir__strict_pop(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                     struct weir__strict_lane *lane);

/* Puts a query that was not executed back to where it was taken off, before all that came later. */
void weir__strict_put_back(struct weir__strict *strict, struct weir__query *query);

/* The next lane of a policy that holds anything, taken off the ready list; NULL: none. What it keeps is to be made
 * ready again. */
struct weir__strict_lane *weir__strict_next_lane(struct weir__strict_lanes *lanes);
void weir__strict_make_ready(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                             struct weir__strict_lane *lane);

/* Is there more to ask than the usual window holds? */
int weir__strict_is_backlog(const struct weir__strict *strict);

/* Ends a query by the outage policy. keep: as weir__query_answer. */
void weir__strict_fail(struct weir__strict *strict, struct weir__query *query, int keep);

/* A script's round trip, which ended now. */
void weir__strict_took(struct weir__strict *strict, uint64_t now, uint64_t took);

/* A batch was answered well, or not. */
void weir__strict_score(struct weir__strict *strict, int good);

/* ---- strict_batch.c ---------------------------------------------------------------------------------------------- */

/* What is at the head of the policy's lanes, as much as fits a script, encoded; the queries are the batch's. NULL:
 * there was nothing to send, or no memory (then what could not be sent is answered). */
struct weir__strict_batch *weir__strict_build(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                              uint64_t mono);
void weir__strict_batch_free(struct weir__strict *strict, struct weir__strict_batch *batch);

/* ---- strict_answer.c --------------------------------------------------------------------------------------------- */

/* The link's callback; arg: the batch. */
void weir__strict_on_reply(void *arg, enum weir__link_kind kind, const struct redisReply *reply);

/* Answers all queries of a batch by the outage policies; those that stay for their place keep it. */
void weir__strict_fail_batch(struct weir__strict *strict, struct weir__strict_batch *batch);

#endif
