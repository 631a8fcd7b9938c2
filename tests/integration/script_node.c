/* SPDX-License-Identifier: MIT */
/*
 * Nodes and fixtures of the tests of single scripts.
 */
#include "script_node.h"
#include "support/suite.h"

#include <string.h>
#include <time.h>

struct redis_server *server;
struct script_client client;
struct weir__wire_target target;
struct weir__wire_numbers numbers;
double now, rtt;
uint32_t flags;
struct node alice, bob;

static uint64_t nonce;

void node_init(struct node *node, char letter)
{
    memset(node, 0, sizeof *node);
    memset(node->id, letter, sizeof node->id);
    node->hello = 1;
}

void set_rate(uint64_t limit, uint64_t per_ns, uint64_t burst, uint64_t overshoot)
{
    numbers.limit = limit;
    numbers.per_ns = per_ns;
    numbers.burst = burst;
    numbers.overshoot = overshoot;
}

struct weir__wire_record spent_of(const char *key, int64_t spent)
{
    return (struct weir__wire_record){.key = key, .key_len = (uint32_t)strlen(key), .spent = spent};
}

int resend(struct node *node)
{
    node->batch.test_now = now;
    return script_client_sync(&client, &node->batch, &node->head, node->grants);
}

void send_records(struct node *node, uint32_t n)
{
    nonce++;
    node->batch = (struct weir__wire_batch){.target = target,
                                            .numbers = numbers,
                                            .seq = ++node->seq,
                                            .nonce = nonce * UINT64_C(1000003),
                                            .epoch = node->epoch,
                                            .rtt = rtt,
                                            .flags = flags | (node->hello ? WEIR__WIRE_HELLO : 0),
                                            .nodes = node->nodes,
                                            .records = node->records,
                                            .count = n};
    memcpy(node->batch.node, node->id, sizeof node->id);
    ck_assert_msg(resend(node) == 0, "%s", client.reply ? client.reply : "");
    node->epoch = node->head.epoch;
    node->hello = node->head.status == WEIR__WIRE_LOST;
    if (node->head.status == WEIR__WIRE_APPLIED)
        node->nodes = node->head.nodes;
}

double spend(struct node *node, const char *key, int64_t spent)
{
    node->records[0] = spent_of(key, spent);
    send_records(node, 1);
    ck_assert_int_eq(node->head.status, WEIR__WIRE_APPLIED);
    return node->grants[0].total;
}

void report(struct node *node, const char *key, int64_t spent, double level, double rate, double demand, double want)
{
    node->records[0] = spent_of(key, spent);
    node->records[0].slice = 1;
    node->records[0].level = level;
    node->records[0].rate = rate;
    node->records[0].demand = demand;
    node->records[0].want = want;
    send_records(node, 1);
}

struct weir__wire_seen peek(const char *key)
{
    struct weir__wire_head head;
    struct weir__wire_seen seen;
    ck_assert_int_eq(script_client_peek(&client, &target, key, now, &head, &seen, NULL, 0), 0);
    return seen;
}

long long clock_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

void drop(char which)
{
    script_client_do(&client, "DEL", &target, which, NULL, NULL);
}

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
}

static void setup(void)
{
    redis_server_do(server, "FLUSHALL", NULL);
    script_client_open(&client, server);
    script_client_twice(&client);
    target = (struct weir__wire_target){.prefix = "t", .policy = "p", .shard = 0, .shards = 4};
    numbers = (struct weir__wire_numbers){.interval = 0.2, .timeout = 0.05};
    set_rate(1, DAY, 17, 4);
    now = 1000000;
    rtt = 0;
    flags = 0;
    node_init(&alice, 'A');
    node_init(&bob, 'B');
}

static void teardown(void)
{
    for (const char *which = "abn"; *which != 0; which++) {
        ck_assert_int_ne(script_client_pttl(&client, &target, *which), -1);
    }
    script_client_close(&client);
}

int script_main(const char *name, void (*add)(TCase *tcase))
{
    Suite *suite = suite_create(name);
    TCase *tcase = tcase_create(name);
    tcase_add_unchecked_fixture(tcase, open_server, close_server);
    tcase_add_checked_fixture(tcase, setup, teardown);
    add(tcase);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
