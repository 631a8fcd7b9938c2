/* SPDX-License-Identifier: MIT */
/*
 * One process of a fleet as its user would write it: a limiter with one policy and a sync on a thread of its own. Every
 * call fails the test where it can't do its job.
 */
#ifndef WEIR_TESTS_NODE_H
#define WEIR_TESTS_NODE_H

#include <stdatomic.h>
#include <stdint.h>

#include <weir/sync.h>
#include <weir/weir.h>

#define NODE_MS UINT64_C(1000000)
#define NODE_SECOND UINT64_C(1000000000)
#define NODE_DAY (86400 * NODE_SECOND)

enum { NODE_WAIT_MS = 20000 }; /* far longer than anything takes */

struct node {
    struct weir *w;
    struct weir_sync *sync;
    weir_policy_id id;
    int hybrid;
    _Atomic int calls; /* of the last flush's or close's callback */
    int status;
    uint64_t unsent;
    char log[64 * 1024];
    _Atomic unsigned log_len;
};

/* A hybrid policy "p" of `limit` tokens every per_ns; burst 0: = limit. */
struct weir_policy node_policy(uint64_t limit, uint64_t per_ns, uint64_t burst);

/* The limiter with its policy; no sync yet. */
void node_open(struct node *node, const struct weir_policy *policy);

/* Its sync; options may be NULL. Returns when Redis answers and the policy's shards have been heard. */
void node_start(struct node *node, const char *uri, const struct weir_sync_options *options);

/* The same, not waiting for Redis. */
void node_launch(struct node *node, const char *uri, const struct weir_sync_options *options);

/* Options under which a busy machine is no outage: a script may take 5 s. */
const struct weir_sync_options *node_patient(void);

/* For an outage that must be seen before long: a script may take 150 ms. */
const struct weir_sync_options *node_calm(void);

/* Reports all that was spent; returns what is unsent. */
uint64_t node_flush(struct node *node);

/* Ends the sync; returns what is unsent. */
uint64_t node_end(struct node *node);

/* Ends the sync unless the test has, and the limiter. */
void node_close(struct node *node);

/* Was it logged? */
int node_said(struct node *node, const char *text);

struct weir_stats node_stats(struct node *node);

/* Waits until the condition holds; fails the test after NODE_WAIT_MS. */
#define node_until(condition)                                                                                          \
    do {                                                                                                               \
        int turns_ = 0;                                                                                                \
        while (!(condition)) {                                                                                         \
            node_pause(5);                                                                                             \
            ck_assert_msg(++turns_ < NODE_WAIT_MS / 5, "never: %s", #condition);                                       \
        }                                                                                                              \
    } while (0)
void node_pause(unsigned ms);

/* weir_take of the node's policy with a key that is text. */
int node_take(struct node *node, const char *key, struct weir_result *result);

/* weir_take_wait, the same. */
int node_wait(struct node *node, const char *key, int64_t cost, struct weir_result *result);

/* How many of n takes by node_wait are allowed. */
int node_wait_many(struct node *node, const char *key, int n);

/* Takes by node_wait until n are allowed, which there must be. Where Redis is given little time, a machine that stands
 * still may let an outage policy deny some of them; that charges nothing. */
void node_spend(struct node *node, const char *key, int n);

#endif
