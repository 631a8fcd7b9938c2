/* SPDX-License-Identifier: MIT */
/*
 * TLS where more than one server is involved: a Redis Cluster and a Sentinel that speak nothing else, masters that die
 * and slots that move behind it; and peers that accept and never shake hands.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cluster.h"
#include "support/guard.h"
#include "support/liar.h"
#include "support/node.h"
#include "support/pem.h"
#include "support/port.h"
#include "support/redis_server.h"
#include "support/suite.h"

enum { MASTERS = 2, KEYS = 40 };

static struct guard *guard;
static struct cluster cluster; /* of MASTERS */
static struct redis_server *master, *sentinel;
static char port[MASTERS][8], bus[MASTERS][8], ca[64], other_ca[64], crt[64], key[64], uri[192];
static struct weir_sync_options options;
static struct node a;

static void path_of(char *path, const char *name)
{
    snprintf(path, sizeof ca, "%s/%s", guard_folder(guard), name);
}

static void make_files(void)
{
    guard = guard_open();
    struct pem *authority = pem_authority(guard_folder(guard), "ca");
    pem_certificate(authority, guard_folder(guard), "server", "IP:127.0.0.1");
    pem_free(authority);
    pem_free(pem_authority(guard_folder(guard), "other"));
    path_of(ca, "ca.crt");
    path_of(other_ca, "other.crt");
    path_of(crt, "server.crt");
    path_of(key, "server.key");
    options = (struct weir_sync_options)WEIR_SYNC_OPTIONS_INIT;
    options.tls_ca = ca;
    options.timeout_ms = 5000; /* a busy machine is no outage */
}

static void ok(const char *answer)
{
    ck_assert_str_eq(answer, "OK");
}

static void open_master(int i)
{
    snprintf(port[i], sizeof port[i], "%d", port_keep());
    snprintf(bus[i], sizeof bus[i], "%d", port_keep());
    const char *args[] = {"--tls-port",
                          port[i],
                          "--tls-cert-file",
                          crt,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-cluster",
                          "yes",
                          "--cluster-enabled",
                          "yes",
                          "--cluster-port",
                          bus[i],
                          "--cluster-require-full-coverage",
                          "no",
                          "--tls-auth-clients",
                          "no",
                          NULL};
    cluster.servers[i] = redis_server_open(&(struct redis_server_options){.args = args, .persist = 1});
}

static void open_cluster(void)
{
    static const char *const ranges[MASTERS][2] = {{"0", "8191"}, {"8192", "16383"}};
    make_files();
    memset(&cluster, 0, sizeof cluster);
    for (cluster.count = 0; cluster.count < MASTERS; cluster.count++) {
        int i = cluster.count;
        open_master(i);
        ok(redis_server_do(cluster.servers[i], "CLUSTER", "ADDSLOTSRANGE", ranges[i][0], ranges[i][1], NULL));
        ok(redis_server_do(cluster.servers[i], "CLUSTER", "SET-CONFIG-EPOCH", i ? "2" : "1", NULL));
    }
    ok(redis_server_do(cluster.servers[1], "CLUSTER", "MEET", "127.0.0.1", port[0], bus[0], NULL));
    for (int i = 0; i < MASTERS; i++) {
        node_until(strstr(redis_server_do(cluster.servers[i], "CLUSTER", "INFO", NULL), "slots_assigned:16384"));
        node_until(strstr(redis_server_do(cluster.servers[i], "CLUSTER", "INFO", NULL), "cluster_state:ok"));
    }
    snprintf(uri, sizeof uri, "rediss+cluster://127.0.0.1:%s", port[0]);
}

static void close_cluster(void)
{
    cluster_close(&cluster);
    guard_close(guard);
}

static void open_strict(void)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    policy.mode = WEIR_STRICT;
    node_open(&a, &policy);
}

/* Until Redis decides about the key. By looks: takes would use up the share of an outage before it is over, and be told
 * afterwards. */
static void until_decided(const char *name)
{
    struct weir_result result;
    node_until(node_wait(&a, name, 0, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
}

/* A take of each key, decided by Redis, once each server is connected to: the first one that is makes the sync "up". */
static void take_each(void)
{
    struct weir_result result;
    char name[16];
    for (int i = 0; i < KEYS; i++) {
        snprintf(name, sizeof name, "user:%d", i);
        until_decided(name);
    }
    for (int i = 0; i < KEYS; i++) {
        snprintf(name, sizeof name, "user:%d", i);
        ck_assert_int_eq(node_wait(&a, name, 1, &result), WEIR_ALLOW);
        ck_assert_msg(!(result.flags & WEIR_DEGRADED), "%.2000s", a.log);
    }
}

START_TEST(a_cluster_is_reached_by_tls)
{
    open_strict();
    node_start(&a, uri, &options);
    take_each();
    for (int i = 0; i < MASTERS; i++) {
        ck_assert_int_gt(atoi(redis_server_do(cluster.servers[i], "DBSIZE", NULL)), 0);
    }
    node_close(&a);
}
END_TEST

/* All that the second one holds goes to the first one, by TLS as well. */
static void move_all_keys(void)
{
    char keys[8192], *next = keys;
    snprintf(keys, sizeof keys, "%s", redis_server_do(cluster.servers[1], "KEYS", "*", NULL));
    for (char *name; (name = strsep(&next, "\n"));) {
        unsigned slot = (unsigned)atoi(redis_server_do(cluster.servers[1], "CLUSTER", "KEYSLOT", name, NULL));
        cluster_begin_move(&cluster, slot, 1, 0);
        ok(redis_server_do(cluster.servers[1], "MIGRATE", "127.0.0.1", port[0], name, "0", "5000", NULL));
    }
    snprintf(keys, sizeof keys, "%s", redis_server_do(cluster.servers[0], "KEYS", "*", NULL));
    next = keys;
    for (char *name; (name = strsep(&next, "\n"));) {
        unsigned slot = (unsigned)atoi(redis_server_do(cluster.servers[1], "CLUSTER", "KEYSLOT", name, NULL));
        if (slot >= 8192) {
            cluster_end_move(&cluster, slot, 1, 0);
        }
    }
}

/* One master dies and comes back; then all of its slots go over to the other one, and the map is known to be old. */
START_TEST(a_cluster_by_tls_changes)
{
    open_strict();
    node_start(&a, uri, &options);
    take_each();
    redis_server_restart(cluster.servers[1]);
    node_until(strstr(redis_server_do(cluster.servers[1], "CLUSTER", "INFO", NULL), "cluster_state:ok"));
    take_each();
    ck_assert_uint_ge(node_stats(&a).reconnects, 1);
    move_all_keys(); /* MOVED from the one, served by the other */
    take_each();
    node_close(&a);
}
END_TEST

START_TEST(a_cluster_that_nobody_vouches_for)
{
    struct weir_result result;
    struct weir_sync_options doubt = options;
    char login[192];
    snprintf(login, sizeof login, "rediss+cluster://jane:s3cret@127.0.0.1:%s", port[0]);
    doubt.tls_ca = other_ca;
    doubt.timeout_ms = 20;
    doubt.drain_ms = 100; /* nobody is ever told of the take */
    open_strict();
    node_launch(&a, login, &doubt);
    node_until(node_said(&a, ": tls: "));
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_int_ne(result.flags & WEIR_DEGRADED, 0);
    ck_assert_int_eq(node_stats(&a).store_up, 0);
    ck_assert(!node_said(&a, "s3cret"));
    node_close(&a);
}
END_TEST

/* ---- Sentinel ---------------------------------------------------------------------------------------------------- */

static void open_sentinel(void)
{
    char lines[1024];
    make_files();
    snprintf(port[0], sizeof port[0], "%d", port_keep());
    snprintf(port[1], sizeof port[1], "%d", port_keep());
    const char *args[] = {"--tls-port",
                          port[0],
                          "--tls-cert-file",
                          crt,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          "no",
                          NULL};
    master = redis_server_open(&(struct redis_server_options){.args = args, .persist = 1});
    snprintf(lines, sizeof lines,
             "tls-port %s\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients no\n"
             "tls-replication yes\nsentinel monitor m 127.0.0.1 %s 1\nsentinel down-after-milliseconds m 60000\n",
             port[1], crt, key, ca, port[0]);
    sentinel = redis_server_open(&(struct redis_server_options){.sentinel = lines});
    snprintf(uri, sizeof uri, "rediss+sentinel://127.0.0.1:%s/m", port[1]);
}

static void close_sentinel(void)
{
    redis_server_close(sentinel);
    redis_server_close(master);
    guard_close(guard);
}

/* The Sentinel and the master that it names both speak TLS alone. */
START_TEST(a_sentinel_is_asked_by_tls)
{
    open_strict();
    node_start(&a, uri, &options);
    take_each();
    redis_server_restart(master);
    take_each();
    ck_assert_uint_ge(node_stats(&a).reconnects, 1);
    ck_assert_int_gt(atoi(redis_server_do(master, "DBSIZE", NULL)), 0);
    node_close(&a);
}
END_TEST

START_TEST(a_sentinel_that_nobody_vouches_for)
{
    struct weir_sync_options doubt = options;
    doubt.tls_ca = other_ca;
    open_strict();
    node_launch(&a, uri, &doubt);
    node_until(node_said(&a, ": tls: "));
    ck_assert_int_eq(node_stats(&a).store_up, 0);
    node_close(&a);
}
END_TEST

/* ---- no handshake ------------------------------------------------------------------------------------------------ */

static void open_files(void)
{
    make_files();
}

static void close_files(void)
{
    guard_close(guard);
}

/* Accepts and is silent; closes at once; is one, then the other: the attempt ends in time, each time, and so does the
 * sync. */
static const char *const ways[] = {"rediss", "rediss+cluster", "rediss+sentinel"};

START_TEST(no_handshake_ever)
{
    struct liar *liar = liar_open(&(struct liar_options){.tcp = 1});
    struct weir_sync_options hasty = options;
    struct weir_result result;
    snprintf(uri, sizeof uri, "%s://jane:s3cret@127.0.0.1:%d%s", ways[_i], liar_port(liar), _i == 2 ? "/m" : "");
    hasty.connect_timeout_ms = 50;
    hasty.timeout_ms = 20;
    hasty.drain_ms = 100;
    liar_deaf(liar, 1);
    open_strict();
    node_launch(&a, uri, &hasty);
    node_until(liar_accepted(liar) >= 2); /* it was given up, and tried again */
    ck_assert(node_said(&a, ": timeout: "));
    liar_deaf(liar, 0); /* who is no TLS server closes at the first byte */
    liar_cut(liar);
    unsigned accepted = liar_accepted(liar);
    node_until(liar_accepted(liar) >= accepted + 2);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_int_ne(result.flags & WEIR_DEGRADED, 0);
    ck_assert(!node_said(&a, "s3cret"));
    liar_deaf(liar, 1);
    liar_cut(liar);
    accepted = liar_accepted(liar);
    node_until(liar_accepted(liar) > accepted);
    node_close(&a); /* in the midst of a handshake */
    liar_close(liar);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tls_fleet");
    TCase *of_cluster = tcase_create("cluster"), *of_sentinel = tcase_create("sentinel"), *none = tcase_create("none");
    tcase_add_checked_fixture(of_cluster, open_cluster, close_cluster);
    tcase_add_test(of_cluster, a_cluster_is_reached_by_tls);
    tcase_add_test(of_cluster, a_cluster_by_tls_changes);
    tcase_add_test(of_cluster, a_cluster_that_nobody_vouches_for);
    suite_add_tcase(s, of_cluster);
    tcase_add_checked_fixture(of_sentinel, open_sentinel, close_sentinel);
    tcase_add_test(of_sentinel, a_sentinel_is_asked_by_tls);
    tcase_add_test(of_sentinel, a_sentinel_that_nobody_vouches_for);
    suite_add_tcase(s, of_sentinel);
    tcase_add_checked_fixture(none, open_files, close_files);
    tcase_add_loop_test(none, no_handshake_ever, 0, 3);
    suite_add_tcase(s, none);
    return suite_run(s);
}
