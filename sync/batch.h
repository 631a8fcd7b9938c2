/* SPDX-License-Identifier: MIT */
/*
 * A lane is what a node has to say to one shard of one policy; a batch is what it says at a time: built once, its bytes
 * kept until it is answered. Owns the sequence numbers and the rule that one batch a lane is on its way; must not know
 * when to send, what an answer does, or sockets.
 *
 * Threads: the loop's.
 */
#ifndef WEIR_SYNC_BATCH_H
#define WEIR_SYNC_BATCH_H

#include <stdint.h>

#include "sync/keys.h"
#include "sync/node.h"
#include "sync/wire.h"

struct weir__batch;

struct weir__lane {
    struct weir__policy *policy;
    weir_policy_id id;
    uint32_t shard;
    struct weir__due due;           /* what will be reported when the lane's turn comes */
    struct weir__out *first, *last; /* queued reports */
    uint32_t queued;
    struct weir__batch *batch; /* on its way, or parked until it can go again */
    struct weir__lane *next;   /* of the ready ones */
    uint8_t ready, presence;   /* presence: a batch without records is wanted */
    uint8_t hurry;             /* something queued should not wait for more */
    uint64_t seq;
    double epoch;         /* 0: never answered */
    uint64_t answered_at; /* when the last batch answered was sent (machine's clock); 0: never */
    uint64_t lost_at;     /* when Redis was found to have lost its state */
    double q0, nodes;     /* of the last answer */
    uint64_t settles;     /* ns: after so long without a word these two are asked for again, for they were changing */
};

struct weir__batch {
    void *owner;
    struct weir__lane *lane;
    struct weir__batch *next; /* parked */
    struct weir__wire_buf bytes;
    struct weir__wire_batch wire;
    struct weir__wire_record *records;
    struct weir__wire_grant *grants;
    struct weir__out **outs; /* NULL: answered to a process that has ended since */
    uint32_t *slots;         /* of the reports */
    size_t size;
    uint32_t weight;      /* what it costs Redis, in records without a slice */
    uint64_t made_now;    /* limiter's clock when it was made */
    uint64_t made_mono;   /* the machine's then */
    uint64_t first_now;   /* limiter's clock at the first sending; 0: never sent */
    uint64_t first_mono;  /* the machine's then */
    uint64_t sent_at;     /* the machine's at the latest one */
    uint64_t retry_at;    /* parked until then */
    unsigned tries, lost; /* lost: resent so often because Redis lost its state */
    int flying;
    int late;     /* its answer is, and may still come */
    int stranded; /* nobody has answered for so long that its keys are in an outage of their own */
};

/* Appends a report. */
void weir__lane_queue(struct weir__lane *lane, struct weir__out *out);

/* What is queued is taken off; NULL: nothing is. */
struct weir__out *weir__lane_unqueue(struct weir__lane *lane);

/* An empty batch with room for `count` records; whoever fills it makes it the lane's. NULL: no memory. */
struct weir__batch *weir__batch_make(struct weir__node *node, struct weir__lane *lane, uint32_t count);

/* What a record costs Redis, in records without a slice; slice < 0: a batch by itself. */
uint32_t weir__batch_weight(const struct weir__lane *lane, int slice);

/* A batch of what is queued, as much as fits, encoded under the lane's next number. It is the lane's. NULL: no memory;
 * all stays queued. */
struct weir__batch *weir__batch_build(struct weir__node *node, struct weir__lane *lane, uint64_t mono, uint64_t now,
                                      const char *sha);

/* The same reports under a new number, for a Redis that does not know this node: as HELLO, with what was last seen of
 * each key. last: the highest number that it knows. 0 or WEIR_E_NOMEM: then it is as it was. */
int weir__batch_again(struct weir__node *node, struct weir__batch *batch, double epoch, double last, uint64_t mono,
                      const char *sha);

/* Takes it from its lane and frees it; its reports must have been seen to. */
void weir__batch_free(struct weir__node *node, struct weir__batch *batch);

#endif
