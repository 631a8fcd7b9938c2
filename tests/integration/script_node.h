/* SPDX-License-Identifier: MIT */
/*
 * What the tests of single scripts share: one redis-server, one shard at a time that the test sets, and nodes that
 * remember what a node must between batches. For tests alone.
 */
#ifndef WEIR_TESTS_SCRIPT_NODE_H
#define WEIR_TESTS_SCRIPT_NODE_H

#include <check.h>

#include "script_client.h"

#define SECOND UINT64_C(1000000000)
#define DAY (86400 * SECOND)
#define NEAR(a, b) ck_assert_double_eq_tol(a, b, 1e-4)

enum { RECORDS = 8 };

struct node {
    uint8_t id[WEIR__WIRE_ID];
    uint64_t seq;
    double epoch, nodes; /* nodes: of the last answer */
    int hello;
    struct weir__wire_batch batch; /* the last one sent */
    struct weir__wire_record records[RECORDS];
    struct weir__wire_head head;
    struct weir__wire_grant grants[RECORDS];
};

extern struct redis_server *server;
extern struct script_client client;
extern struct weir__wire_target target;
extern struct weir__wire_numbers
    numbers;           /* of every batch: 17 tokens, one a day, 4 to lend, until the test changes it */
extern double now;     /* the server's clock */
extern double rtt;     /* what nodes say of their round trip, s */
extern uint32_t flags; /* of every batch, besides hello */
extern struct node alice, bob;

void node_init(struct node *node, char letter);
void set_rate(uint64_t limit, uint64_t per_ns, uint64_t burst, uint64_t overshoot);

struct weir__wire_record spent_of(const char *key, int64_t spent);

/* Sends the first n of node->records, as a new batch. */
void send_records(struct node *node, uint32_t n);

/* The last batch once more: the decoder's result, or 1 for an error of Redis'. */
int resend(struct node *node);

/* Reports that so much was spent of a key without a slice; returns what is left. */
double spend(struct node *node, const char *key, int64_t spent);

/* Reports a key with a slice. */
void report(struct node *node, const char *key, int64_t spent, double level, double rate, double demand, double want);

struct weir__wire_seen peek(const char *key);

/* The machine's clock, ms: what is left of a time to live has grown less since then. */
long long clock_ms(void);

/* Deletes 'a', 'b' or 'n' behind the scripts' back. */
void drop(char which);

/* Runs what `add` adds, each on an empty server; after each no key may live for ever. main's result. */
int script_main(const char *name, void (*add)(TCase *tcase));

#endif
