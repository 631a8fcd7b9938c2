/* SPDX-License-Identifier: MIT */
/*
 * One question to Redis, from the thread that asks to the loop's thread and back. Owns its memory and the rendezvous
 * of those that wait; knows nothing of scripts or batches.
 *
 * A query belongs to the loop's thread from weir__queue_push until weir__query_answer, which ends it: it calls back,
 * or hands it to the thread that waits, or, where that has left, just frees it. Whoever waits leaves at its deadline,
 * come what may: a loop that its owner blocks can't hold others up.
 *
 * Who writes and who reads:
 *   wait->left, abandoned, query->answered   under wait->lock
 *   query->status, result     the loop's thread before weir__query_answer; the waiting thread after it
 */
#ifndef WEIR_SYNC_QUERY_H
#define WEIR_SYNC_QUERY_H

#include <stddef.h>
#include <stdint.h>

#include "sync/node.h"
#include "sync/queue.h"

/* Kinds of items in a sync's queue. */
enum weir__query_kind {
    WEIR__ITEM_FLUSH = 0,
    WEIR__ITEM_CLOSE,
    WEIR__QUERY_TOLD, /* decided already: only to be called back */
    WEIR__QUERY_TAKE,
    WEIR__QUERY_GIVE,
    WEIR__QUERY_LOOK,
    WEIR__QUERY_FORGET,
    WEIR__QUERY_ALL /* all or none of its members */
};

struct weir__wait; /* a thread that waits for a set of queries */

struct weir__query {
    struct weir__item item;   /* kind: enum weir__query_kind */
    struct weir__query *next; /* of its lane, then of its entry in a batch */
    struct weir__wait *wait;  /* who waits, or NULL */
    weir_take_cb cb;          /* or who is called; may be NULL as well: nobody cares */
    void *arg;
    size_t size;
    uint64_t hash; /* of the key, salted: for merging */
    weir_policy_id policy;
    uint32_t shard;
    int64_t cost;
    uint64_t deadline; /* uv_hrtime */
    int status;
    uint8_t answered; /* to whoever waits or was to be called; it is kept for its place in an entry */
    uint8_t failed;   /* answered, but with nothing: who waits must help himself. Written as status is */
    struct weir_result result;
    struct weir_request *members; /* WEIR__QUERY_ALL: n, with their results and keys behind them */
    uint32_t n, key_len;
    unsigned char *key;
};

/* NULL: no memory. n queries may be added. */
struct weir__wait *weir__wait_open(struct weir__node *node, size_t n);

/* A query with a copy of the key, or NULL. WEIR__QUERY_ALL: weir__query_make_all. */
struct weir__query *weir__query_make(struct weir__node *node, enum weir__query_kind kind,
                                     const struct weir_request *request, uint64_t timeout_ns);
struct weir__query *weir__query_make_all(struct weir__node *node, const struct weir_request *requests, size_t n,
                                         uint64_t timeout_ns);

/* Of a key: salted, so that which keys meet is nobody's to choose. */
uint64_t weir__query_hash(const struct weir__node *node, const void *key, size_t len);

/* One that was never pushed, or that was answered and kept. */
void weir__query_free(struct weir__node *node, struct weir__query *query);

/* The query will be waited for; NULL: its place is taken, but nobody will answer. */
void weir__wait_add(struct weir__wait *wait, struct weir__query *query);

/* The last one could not be pushed: nobody will answer it. */
void weir__wait_withdraw(struct weir__wait *wait);

/* Waits until all are answered, or until the deadline. Then calls `each` for every query in the order in which they
 * were added, NULL for one that was not answered, and frees everything that is not the loop's any more. */
void weir__wait_for(struct weir__node *node, struct weir__wait *wait, uint64_t deadline,
                    void (*each)(void *ctx, size_t i, const struct weir__query *query), void *ctx);

/* Threads: the loop's. status and result are set. keep: one that nobody waits for stays in its batch for its
 * place there; it is answered no more, and weir__query_free is called later. */
void weir__query_answer(struct weir__node *node, struct weir__query *query, int keep);

/* Ends one that somebody waits for (query->wait): he finds it as if it had not been answered. Threads: the loop's. */
void weir__query_fail(struct weir__node *node, struct weir__query *query);

/* Has whoever waits for it left? Threads: the loop's. */
int weir__query_abandoned(struct weir__query *query);

#endif
