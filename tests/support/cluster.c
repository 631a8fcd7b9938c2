/* SPDX-License-Identifier: MIT */
/*
 * Three redis-servers that are told of each other.
 */
#include "support/cluster.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/guard.h"

enum { WAIT_MS = 20000, SLOTS = 16384 };

static const char *const ranges[CLUSTER_MASTERS][2] = {{"0", "5460"}, {"5461", "10922"}, {"10923", "16383"}};

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

static void expect_ok(const char *what, const char *answer)
{
    if (strcmp(answer, "OK") != 0) {
        guard_fail("%s: %s", what, answer);
    }
}

/* A server that stands still for a moment is not to be taken for dead: that would end in an outage of its slots, or in
 * a failover, which no test has asked for. Who wants one sets a shorter time. */
static struct redis_server *open_server(void)
{
    static const char *const args[] = {"--cluster-node-timeout",
                                       "15000",
                                       "--cluster-require-full-coverage",
                                       "no",
                                       "--cluster-replica-validity-factor",
                                       "0",
                                       "--repl-diskless-sync-delay",
                                       "0",
                                       NULL};
    return redis_server_open(&(struct redis_server_options){.tcp = 1, .cluster = 1, .args = args, .persist = 1});
}

static int field_is(const struct redis_server *server, const char *text)
{
    return strstr(redis_server_do(server, "CLUSTER", "INFO", NULL), text) != NULL;
}

static void wait_until_all(const struct cluster *cluster, const char *text)
{
    for (int ms = 0, good = 0; good < cluster->count; ms += 10) {
        good = 0;
        while (good < cluster->count && field_is(cluster->servers[good], text)) {
            good++;
        }
        if (ms > WAIT_MS) {
            guard_fail("the cluster never says %s", text);
        }
        sleep_ms(10);
    }
}

static void meet(const struct cluster *cluster)
{
    for (int i = 1; i < cluster->count; i++) {
        char port[8], bus[8];
        snprintf(port, sizeof port, "%d", redis_server_port(cluster->servers[i]));
        const char *config = redis_server_do(cluster->servers[i], "CONFIG", "GET", "cluster-port", NULL);
        snprintf(bus, sizeof bus, "%s", strchr(config, '\n') + 1);
        expect_ok("CLUSTER MEET",
                  redis_server_do(cluster->servers[0], "CLUSTER", "MEET", "127.0.0.1", port, bus, NULL));
    }
}

static void follow_first(const struct cluster *cluster, struct redis_server *replica)
{
    char id[64];
    snprintf(id, sizeof id, "%s", cluster_id(cluster, 0));
    for (int ms = 0; strcmp(redis_server_do(replica, "CLUSTER", "REPLICATE", id, NULL), "OK") != 0; ms += 20) {
        if (ms > WAIT_MS) {
            guard_fail("no replica");
        }
        sleep_ms(20);
    }
    for (int ms = 0; !strstr(redis_server_do(replica, "INFO", "replication", NULL), "master_link_status:up");
         ms += 20) {
        if (ms > WAIT_MS) {
            guard_fail("the replica does not follow");
        }
        sleep_ms(20);
    }
}

void cluster_open(struct cluster *cluster, int replicas)
{
    char known[40];
    memset(cluster, 0, sizeof *cluster);
    cluster->count = CLUSTER_MASTERS + replicas;
    for (int i = 0; i < cluster->count; i++) {
        cluster->servers[i] = open_server();
    }
    for (int i = 0; i < CLUSTER_MASTERS; i++) {
        char epoch[8];
        size_t len = strlen(cluster->uri);
        snprintf(epoch, sizeof epoch, "%d", i + 1);
        expect_ok("CLUSTER ADDSLOTSRANGE",
                  redis_server_do(cluster->servers[i], "CLUSTER", "ADDSLOTSRANGE", ranges[i][0], ranges[i][1], NULL));
        expect_ok("CLUSTER SET-CONFIG-EPOCH",
                  redis_server_do(cluster->servers[i], "CLUSTER", "SET-CONFIG-EPOCH", epoch, NULL));
        snprintf(cluster->uri + len, sizeof cluster->uri - len, "%s127.0.0.1:%d", i ? "," : "redis+cluster://",
                 redis_server_port(cluster->servers[i]));
    }
    meet(cluster);
    snprintf(known, sizeof known, "cluster_known_nodes:%d", cluster->count);
    wait_until_all(cluster, known);
    for (int i = CLUSTER_MASTERS; i < cluster->count; i++) {
        follow_first(cluster, cluster->servers[i]);
    }
    wait_until_all(cluster, "cluster_slots_assigned:16384");
    wait_until_all(cluster, "cluster_state:ok");
}

void cluster_mourn_soon(const struct cluster *cluster)
{
    for (int i = 0; i < cluster->count; i++) {
        if (redis_server_pid(cluster->servers[i]) != 0) {
            expect_ok("CONFIG SET",
                      redis_server_do(cluster->servers[i], "CONFIG", "SET", "cluster-node-timeout", "1000", NULL));
        }
    }
}

void cluster_close(struct cluster *cluster)
{
    for (int i = 0; i < cluster->count; i++) {
        redis_server_close(cluster->servers[i]);
    }
    cluster->count = 0;
}

int cluster_owner(unsigned slot)
{
    return slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2;
}

const char *cluster_id(const struct cluster *cluster, int server)
{
    static char id[64];
    snprintf(id, sizeof id, "%s", redis_server_do(cluster->servers[server], "CLUSTER", "MYID", NULL));
    return id;
}

static void set_slot(const struct cluster *cluster, int server, unsigned slot, const char *how, int other)
{
    char number[8], id[64];
    snprintf(number, sizeof number, "%u", slot);
    snprintf(id, sizeof id, "%s", cluster_id(cluster, other));
    expect_ok(how, redis_server_do(cluster->servers[server], "CLUSTER", "SETSLOT", number, how, id, NULL));
}

void cluster_begin_move(const struct cluster *cluster, unsigned slot, int from, int to)
{
    set_slot(cluster, to, slot, "IMPORTING", from);
    set_slot(cluster, from, slot, "MIGRATING", to);
}

void cluster_move_keys(const struct cluster *cluster, unsigned slot, int from, int to, unsigned most)
{
    char number[8], port[8], count[12], keys[1024];
    snprintf(number, sizeof number, "%u", slot);
    snprintf(port, sizeof port, "%d", redis_server_port(cluster->servers[to]));
    snprintf(count, sizeof count, "%u", most);
    snprintf(keys, sizeof keys, "%s",
             redis_server_do(cluster->servers[from], "CLUSTER", "GETKEYSINSLOT", number, count, NULL));
    for (char *key = strtok(keys, "\n"); key; key = strtok(NULL, "\n")) {
        expect_ok("MIGRATE",
                  redis_server_do(cluster->servers[from], "MIGRATE", "127.0.0.1", port, key, "0", "5000", NULL));
    }
}

void cluster_end_move(const struct cluster *cluster, unsigned slot, int from, int to)
{
    set_slot(cluster, to, slot, "NODE", to);
    set_slot(cluster, from, slot, "NODE", to);
}
