/* SPDX-License-Identifier: MIT */
/*
 * Limits in a real Redis Cluster: keys find their masters, slots that move are followed, masters that die are mourned
 * for as long as nobody takes their place. Nothing is lost, nothing told twice.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "integration/script_client.h"
#include "support/cluster.h"
#include "support/node.h"
#include "support/port.h"
#include "support/suite.h"
#include "sync/cluster.h"

enum { KEYS_OF_ONE = 10 };

static struct cluster cluster;
static struct node a;

static void open_masters(void)
{
    cluster_open(&cluster, 0);
}

static void open_with_replica(void)
{
    cluster_open(&cluster, 1);
}

/* The cluster serves all tests of a case: each finds it empty. */
static void flush(void)
{
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        ck_assert_str_eq(redis_server_do(cluster.servers[i], "FLUSHALL", NULL), "OK");
    }
}

static void close_cluster(void)
{
    cluster_close(&cluster);
}

static struct weir_policy slow_policy(uint64_t burst)
{
    return node_policy(burst / 15 + 1, NODE_DAY, burst);
}

static struct weir__wire_target target_of(const char *key)
{
    struct weir__wire_target target = {.prefix = "weir", .policy = "p", .shards = 64};
    target.shard = weir__wire_shard(key, strlen(key), 64);
    return target;
}

static unsigned slot_of(const char *key)
{
    struct weir__wire_target target = target_of(key);
    char name[WEIR__WIRE_NAME];
    int len = weir__wire_name(&target, 'a', name);
    return weir__wire_slot(name, (size_t)len);
}

/* Tokens of a key as this server knows them; -1e300: it has none. */
static double total_at(int server, const char *key)
{
    struct weir__wire_seen seen = script_client_look(cluster.servers[server], "p", key);
    return seen.exists ? seen.total : -1e300;
}

static double total_of(const char *key)
{
    return total_at(cluster_owner(slot_of(key)), key);
}

/* A key whose slot is the server's; `n` makes another one of it. */
static const char *key_of(int server, int n)
{
    static char keys[CLUSTER_MASTERS][KEYS_OF_ONE][32];
    char *key = keys[server][n];
    ck_assert_int_lt(n, KEYS_OF_ONE);
    for (int i = 0, found = -1; found < n; i++) {
        snprintf(key, sizeof keys[0][0], "user:%d", i);
        found += cluster_owner(slot_of(key)) == server;
    }
    return key;
}

static void settle(struct node *node)
{
    node_until(node_stats(node).store_up == 1);
    node_until(node_flush(node) == 0 && node->status == 0);
}

static int is_degraded(struct node *node, const char *key)
{
    struct weir_result result;
    ck_assert_int_ge(weir_peek(node->w, node->id, key, strlen(key), 0, &result), 0);
    return (result.flags & WEIR_DEGRADED) != 0;
}

/* A script may take 150 ms, so that an outage is seen before long. What a slice held when it ended is charged: here it
 * lives for 3 s, so that none ends where the machine stands still for a moment. */
static const struct weir_sync_options *calm(void)
{
    static struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    options.timeout_ms = 150;
    options.interval_ms = 2000;
    return &options;
}

/* Until n are admitted, by slices: what they admit is told once, however long the machine stands still. A take that
 * waits for Redis is charged twice where its answer comes too late. */
static void spend(const char *key, int n)
{
    for (int i = 0; i < n; i++) {
        node_until(node_take(&a, key, NULL) == WEIR_ALLOW);
    }
}

/* Connected to each master, not to the first one that was there alone. */
static void start(const char *uri, const struct weir_sync_options *options)
{
    char line[64];
    node_start(&a, uri, options);
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        snprintf(line, sizeof line, "127.0.0.1:%d: connected", redis_server_port(cluster.servers[i]));
        node_until(node_said(&a, line));
    }
}

/* The same; then every verdict is to be Redis' own. */
static void start_strict(void)
{
    struct weir_result result;
    start(cluster.uri, node_patient());
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        node_until(node_wait(&a, key_of(i, 9), 0, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    }
}

/* ---- keys and masters -------------------------------------------------------------------------------------------- */

START_TEST(servers_agree_on_slots)
{
    static const char *const names[] = {"user:1", "{}user", "{user", "{{u}}", "{u}{v}", "foo{bar}", "weir:{p#7}:a"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ck_assert_int_eq(atoi(redis_server_do(cluster.servers[0], "CLUSTER", "KEYSLOT", names[i], NULL)),
                         (int)weir__wire_slot(names[i], strlen(names[i])));
    }
}
END_TEST

START_TEST(hybrid_keys_find_their_masters)
{
    struct weir_policy policy = slow_policy(1000);
    int on[CLUSTER_MASTERS] = {0};
    char key[32];
    node_open(&a, &policy);
    start(cluster.uri, node_patient());
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "user:%d", i);
        ck_assert_int_eq(node_wait_many(&a, key, 3), 3);
        on[cluster_owner(slot_of(key))]++;
    }
    ck_assert(!node_said(&a, ": moved: ") && !node_said(&a, ": crossslot: "));
    ck_assert_uint_eq(node_end(&a), 0);
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "user:%d", i);
        ck_assert_double_eq_tol(total_of(key), 997, 0.1);
    }
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        ck_assert_int_gt(on[i], 5);
    }
    node_close(&a);
}
END_TEST

/* Case 30: braces in keys and names do not lead a script to two slots. */
START_TEST(strict_keys_of_any_kind_have_one_slot)
{
    static const char *const odd[] = {"a{'1':{'i32':1}}", "{}user", "{user", "{{u}}", "{u}{v}", "foo{bar}", "}{", "}"};
    struct weir_policy policy = slow_policy(2);
    struct weir_result result;
    char key[32];
    policy.mode = WEIR_STRICT;
    node_open(&a, &policy);
    start_strict();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++) {
            snprintf(key, sizeof key, "%s%.0d", i < 8 ? odd[i] : "user:", i < 8 ? 0 : i);
            ck_assert_int_eq(node_wait(&a, key, 1, &result), round < 2 ? WEIR_ALLOW : WEIR_DENY);
            ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
        }
    }
    ck_assert(!node_said(&a, ": crossslot: "));
    node_close(&a);
}
END_TEST

START_TEST(policies_of_a_group_are_taken_together)
{
    struct weir_policy policy = slow_policy(5);
    struct weir_request requests[2] = {{.key = "k", .key_len = 1, .cost = 1},
                                       {.key = "another", .key_len = 7, .cost = 1}};
    struct weir_result result;
    weir_policy_id second;
    policy.mode = WEIR_STRICT;
    policy.group = "g";
    node_open(&a, &policy);
    policy.name = "q";
    policy.limit = policy.burst = 3;
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &second), 0);
    start_strict();
    requests[0].policy = a.id;
    requests[1].policy = second;
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(weir_take_all(a.w, requests, 2, &result), i < 3 ? WEIR_ALLOW : WEIR_DENY);
        ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
    }
    ck_assert_int_eq(node_wait(&a, "k", 0, &result), WEIR_ALLOW);
    ck_assert_int_eq((int)result.remaining, 2);
    node_close(&a);
}
END_TEST

START_TEST(one_living_node_is_enough_to_start)
{
    struct weir_policy policy = slow_policy(100);
    char uri[128];
    snprintf(uri, sizeof uri, "redis+cluster://127.0.0.1:%d,no..host,localhost:%d", port_keep(),
             redis_server_port(cluster.servers[2]));
    node_open(&a, &policy);
    start(uri, node_patient());
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        ck_assert_int_eq(node_wait_many(&a, key_of(i, 0), 4), 4);
    }
    ck_assert_uint_eq(node_end(&a), 0);
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        ck_assert_double_eq_tol(total_of(key_of(i, 0)), 96, 0.1);
    }
    node_close(&a);
}
END_TEST

/* Case 28: the script is known on one of three masters only. */
START_TEST(scripts_are_loaded_where_they_are_missing)
{
    struct weir_policy policy = slow_policy(100);
    struct weir_result result;
    policy.mode = WEIR_STRICT;
    node_open(&a, &policy);
    start_strict();
    redis_server_do(cluster.servers[1], "SCRIPT", "FLUSH", NULL);
    redis_server_do(cluster.servers[2], "SCRIPT", "FLUSH", NULL);
    for (int i = 0; i < 90; i++) {
        ck_assert_int_eq(node_wait(&a, key_of(i % 3, 1), 1, &result), WEIR_ALLOW);
        ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
    }
    node_close(&a);
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        ck_assert_double_eq_tol(total_of(key_of(i, 1)), 70, 0.1);
    }
}
END_TEST

/* ---- slots that move --------------------------------------------------------------------------------------------- */

START_TEST(a_slot_that_moved_is_followed)
{
    const char *key = key_of(0, 2);
    unsigned slot = slot_of(key);
    struct weir_policy policy = slow_policy(100);
    struct weir_result result;
    policy.mode = WEIR_STRICT;
    node_open(&a, &policy);
    start_strict();
    ck_assert_int_eq(node_wait_many(&a, key, 10), 10);
    cluster_begin_move(&cluster, slot, 0, 1);
    cluster_move_keys(&cluster, slot, 0, 1, 100);
    cluster_end_move(&cluster, slot, 0, 1);
    for (int i = 0; i < 10; i++) { /* MOVED: no verdict is the outage policy's */
        ck_assert_int_eq(node_wait(&a, key, 1, &result), WEIR_ALLOW);
        ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
    }
    ck_assert_double_eq_tol(total_at(1, key), 80, 0.1);
    node_close(&a);
    cluster_begin_move(&cluster, slot, 1, 0);
    cluster_move_keys(&cluster, slot, 1, 0, 100);
    cluster_end_move(&cluster, slot, 1, 0);
}
END_TEST

/* While its keys are on two servers, Redis says TRYAGAIN to whoever needs them all. */
START_TEST(a_slot_on_its_way_loses_nothing)
{
    const char *key = key_of(1, 3);
    unsigned slot = slot_of(key);
    struct weir_policy policy = slow_policy(100000);
    uint64_t errors = 0;
    long allowed = 0;
    node_open(&a, &policy);
    start(cluster.uri, node_patient());
    for (int i = 0; i < 1200; i++) {
        allowed += node_take(&a, key, NULL) == WEIR_ALLOW;
        if (i == 200) {
            cluster_begin_move(&cluster, slot, 1, 2);
        }
        if (i == 400) {
            errors = node_stats(&a).sync_errors;
            cluster_move_keys(&cluster, slot, 1, 2, 1);
        }
        if (i == 800) {
            node_until(node_stats(&a).sync_errors > errors); /* it was noticed */
            cluster_move_keys(&cluster, slot, 1, 2, 100);
            cluster_end_move(&cluster, slot, 1, 2);
        }
        usleep(1000);
    }
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_double_eq_tol(total_at(2, key), 100000 - (double)allowed, 2);
    node_close(&a);
    cluster_begin_move(&cluster, slot, 2, 1);
    cluster_move_keys(&cluster, slot, 2, 1, 100);
    cluster_end_move(&cluster, slot, 2, 1);
}
END_TEST

/* A number of `INFO section` of this server, behind these words; 0: they are not there. */
static int info_of(int server, const char *section, const char *words)
{
    const char *at = strstr(redis_server_do(cluster.servers[server], "INFO", section, NULL), words);
    return at ? atoi(at + strlen(words)) : 0;
}

static int asks(int server)
{
    return info_of(server, "errorstats", "errorstat_ASK:count=");
}

static int askings(int server)
{
    return info_of(server, "commandstats", "cmdstat_asking:calls=");
}

/* The keys are over there, the slot is not yet: each decision is told ASK here, and is made there, once. */
static void ask_once_each(const char *key, unsigned slot, enum weir_mode mode)
{
    struct weir_policy policy = slow_policy(100);
    struct weir_result result;
    int told, asked, taken = 10;
    policy.mode = mode;
    node_open(&a, &policy);
    if (mode == WEIR_STRICT) {
        start_strict();
    } else {
        start(cluster.uri, node_patient());
    }
    ck_assert_int_eq(node_wait_many(&a, key, 10), 10);
    if (mode == WEIR_HYBRID) {
        settle(&a);
    }
    /* A script names three keys, and says TRYAGAIN where one of them is on neither side: here all are. */
    struct weir__wire_target target = target_of(key);
    char name[WEIR__WIRE_NAME];
    weir__wire_name(&target, 'b', name);
    redis_server_do(cluster.servers[2], "HSET", name, "x", "1", NULL);
    cluster_begin_move(&cluster, slot, 2, 0);
    cluster_move_keys(&cluster, slot, 2, 0, 100);
    told = asks(2);
    asked = askings(0);
    if (mode == WEIR_STRICT) {
        for (; taken < 30; taken++) {
            ck_assert_int_eq(node_wait(&a, key, 1, &result), WEIR_ALLOW);
            ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
        }
        ck_assert_int_eq(asks(2) - told, 20);
        ck_assert_int_eq(askings(0) - asked, 20);
    } else {
        for (int i = 0; i < 20; i++) {
            taken += node_take(&a, key, NULL) == WEIR_ALLOW;
        }
        settle(&a);
        ck_assert_int_gt(asks(2) - told, 0);
    }
    cluster_end_move(&cluster, slot, 2, 0);
    node_until(askings(0) - asked == asks(2) - told); /* no ASK is said any more, the last one may not yet be obeyed */
    ck_assert_double_eq_tol(total_at(0, key), 100 - taken, 0.1);
    ck_assert_int_eq(node_wait_many(&a, key, 5), 5);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_double_eq_tol(total_at(0, key), 95 - taken, 0.1);
    node_close(&a);
    cluster_begin_move(&cluster, slot, 0, 2);
    cluster_move_keys(&cluster, slot, 0, 2, 100);
    cluster_end_move(&cluster, slot, 0, 2);
}

START_TEST(decisions_of_a_slot_on_its_way_are_asked_for_once)
{
    const char *key = key_of(2, 6);
    ask_once_each(key, slot_of(key), WEIR_STRICT);
}
END_TEST

START_TEST(reports_to_a_slot_on_its_way_are_asked_for_once)
{
    const char *key = key_of(2, 7);
    ask_once_each(key, slot_of(key), WEIR_HYBRID);
}
END_TEST

/* The one that imports dies before the slot is its own: an outage of that slot. Back again, all is told. */
START_TEST(the_importing_master_dies)
{
    const char *key = key_of(2, 8);
    unsigned slot = slot_of(key);
    struct weir_policy policy = slow_policy(100000);
    long allowed = 0;
    node_open(&a, &policy);
    start(cluster.uri, calm());
    spend(key, 10);
    settle(&a);
    struct weir__wire_target target = target_of(key);
    char name[WEIR__WIRE_NAME];
    weir__wire_name(&target, 'b', name);
    redis_server_do(cluster.servers[2], "HSET", name, "x", "1", NULL);
    cluster_begin_move(&cluster, slot, 2, 0);
    cluster_move_keys(&cluster, slot, 2, 0, 100);
    redis_server_kill(cluster.servers[0]);
    for (int i = 0; i < 300; i++) {
        allowed += node_take(&a, key, NULL) == WEIR_ALLOW;
        usleep(1000);
    }
    ck_assert_int_gt(allowed, 0);
    redis_server_restart(cluster.servers[0]);
    node_until(strstr(redis_server_do(cluster.servers[0], "CLUSTER", "INFO", NULL), "cluster_state:ok"));
    cluster_end_move(&cluster, slot, 2, 0);
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_double_eq_tol(total_at(0, key), 100000 - 10 - (double)allowed, 2);
    node_close(&a);
    cluster_begin_move(&cluster, slot, 0, 2);
    cluster_move_keys(&cluster, slot, 0, 2, 100);
    cluster_end_move(&cluster, slot, 0, 2);
}
END_TEST

/* ---- masters that die -------------------------------------------------------------------------------------------- */

/* Nobody takes its place: its keys are answered by the outage policy, the others as ever; back again, it is told. */
START_TEST(a_dead_master_is_an_outage_of_its_keys_alone)
{
    const char *lost = key_of(0, 4), *fresh = key_of(0, 5), *kept = key_of(1, 4);
    struct weir_policy policy = slow_policy(1000);
    struct weir_result result;
    int allowed;
    node_open(&a, &policy);
    start(cluster.uri, calm());
    spend(lost, 10);
    settle(&a);
    redis_server_kill(cluster.servers[0]);
    do { /* what is in hand, then the outage policy */
        node_take(&a, lost, NULL);
        node_take(&a, fresh, NULL);
        usleep(10000);
    } while (!is_degraded(&a, lost) || !is_degraded(&a, fresh));
    ck_assert_int_eq(node_take(&a, fresh, &result), WEIR_ALLOW);
    for (int i = 0; i < 200; i++) { /* more than may be overdrawn */
        node_until(node_take(&a, kept, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    }
    redis_server_restart(cluster.servers[0]);
    node_until(!is_degraded(&a, lost));
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    allowed = (int)node_stats(&a).allowed;
    ck_assert_double_eq_tol(3000 - total_of(lost) - total_of(fresh) - total_of(kept), allowed, 0.5);
    node_close(&a);
}
END_TEST

/* More keys of a dead master than reports may be on their way: all of them go into their outage, and the others'
 * reports go out as ever; back again, it is told of all. */
START_TEST(reports_of_a_dead_master_leave_room_for_others)
{
    enum { KEYS = 110000, LEAST = 34000 }; /* each master's third is more than 32,768 */
    static uint8_t owners[KEYS];
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = slow_policy(1000);
    long counts[CLUSTER_MASTERS] = {0};
    uint64_t reports;
    char key[16];
    memset(&a, 0, sizeof a);
    a.hybrid = 1;
    options.max_keys = 4 * KEYS;
    ck_assert_int_eq(weir_open(&a.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &a.id), 0);
    node_start(&a, cluster.uri, node_calm());
    settle(&a);
    redis_server_kill(cluster.servers[0]);
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "%d", i);
        owners[i] = (uint8_t)cluster_owner(slot_of(key));
        counts[owners[i]]++;
        if (owners[i] == 0) {
            node_take(&a, key, NULL);
        }
    }
    ck_assert_int_gt(counts[0], LEAST);
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "%d", i);
        node_until(owners[i] != 0 || is_degraded(&a, key));
    }
    reports = node_stats(&a).reports;
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "%d", i);
        if (owners[i] != 0) {
            ck_assert_int_eq(node_take(&a, key, NULL), WEIR_ALLOW);
        }
    }
    for (uint64_t last, now = reports; now < reports + (uint64_t)(counts[1] + counts[2]);) { /* it goes on */
        last = now;
        node_until((now = node_stats(&a).reports) > last);
    }
    redis_server_restart(cluster.servers[0]);
    settle(&a);
    ck_assert_uint_eq(node_stats(&a).pending_tokens, 0);
    ck_assert_uint_eq(node_end(&a), 0);
    for (int i = 0; i < 9; i++) {
        snprintf(key, sizeof key, "%d", i * KEYS / 9);
        ck_assert_double_eq_tol(total_of(key), 999, 0.1);
    }
    node_close(&a);
}
END_TEST

START_TEST(a_replica_takes_over)
{
    const char *key = key_of(0, 0);
    struct weir_policy policy = slow_policy(2000);
    struct weir_result result;
    long allowed = 0;
    node_open(&a, &policy);
    start(cluster.uri, calm());
    spend(key, 100);
    settle(&a);
    ck_assert_int_eq(atoi(redis_server_do(cluster.servers[0], "WAIT", "1", "5000", NULL)), 1);
    redis_server_kill(cluster.servers[0]);
    cluster_mourn_soon(&cluster);
    node_until(strstr(redis_server_do(cluster.servers[3], "ROLE", NULL), "master") ==
               redis_server_do(cluster.servers[3], "ROLE", NULL));
    allowed = (long)node_stats(&a).allowed;
    node_until(node_take(&a, key, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    spend(key, 50);
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    allowed = (long)node_stats(&a).allowed;
    ck_assert_double_eq_tol(total_at(3, key), 2000 - (double)allowed, 0.5);
    node_close(&a);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cluster");
    TCase *keys = tcase_create("keys"), *failover = tcase_create("failover");
    tcase_add_unchecked_fixture(keys, open_masters, close_cluster);
    tcase_add_checked_fixture(keys, flush, NULL);
    tcase_add_test(keys, servers_agree_on_slots);
    tcase_add_test(keys, hybrid_keys_find_their_masters);
    tcase_add_test(keys, strict_keys_of_any_kind_have_one_slot);
    tcase_add_test(keys, policies_of_a_group_are_taken_together);
    tcase_add_test(keys, one_living_node_is_enough_to_start);
    tcase_add_test(keys, scripts_are_loaded_where_they_are_missing);
    tcase_add_test(keys, a_slot_that_moved_is_followed);
    tcase_add_test(keys, a_slot_on_its_way_loses_nothing);
    tcase_add_test(keys, decisions_of_a_slot_on_its_way_are_asked_for_once);
    tcase_add_test(keys, reports_to_a_slot_on_its_way_are_asked_for_once);
    tcase_add_test(keys, the_importing_master_dies);
    tcase_add_test(keys, a_dead_master_is_an_outage_of_its_keys_alone);
    tcase_add_test(keys, reports_of_a_dead_master_leave_room_for_others);
    suite_add_tcase(s, keys);
    tcase_add_unchecked_fixture(failover, open_with_replica, close_cluster);
    tcase_add_test(failover, a_replica_takes_over);
    suite_add_tcase(s, failover);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
