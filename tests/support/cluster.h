/* SPDX-License-Identifier: MIT */
/*
 * A Redis Cluster of the test's own: three masters that share the slots evenly, and replicas of the first where asked
 * for. Every call aborts the test where it can't do its job.
 */
#ifndef WEIR_TESTS_CLUSTER_H
#define WEIR_TESTS_CLUSTER_H

#include "support/redis_server.h"

enum { CLUSTER_MASTERS = 3, CLUSTER_REPLICAS_MAX = 1 };

struct cluster {
    struct redis_server *servers[CLUSTER_MASTERS + CLUSTER_REPLICAS_MAX]; /* masters first */
    int count;
    char uri[160]; /* of all masters */
};

/* Starts one and waits until it serves. replicas: 0 or 1. */
void cluster_open(struct cluster *cluster, int replicas);
void cluster_close(struct cluster *cluster);

/* Who is silent for a second is dead from now on, to those that run; until then it is 15 s. */
void cluster_mourn_soon(const struct cluster *cluster);

/* Which server has the slot by the even split. */
int cluster_owner(unsigned slot);

/* Its id in the cluster; a static buffer. */
const char *cluster_id(const struct cluster *cluster, int server);

/* The first half of a migration: keys of `slot` are asked for at both from now on. Then its keys go over, `most` of
 * them. */
void cluster_begin_move(const struct cluster *cluster, unsigned slot, int from, int to);
void cluster_move_keys(const struct cluster *cluster, unsigned slot, int from, int to, unsigned most);

/* The slot is the other's. Those two are told, the third one learns of it by gossip. */
void cluster_end_move(const struct cluster *cluster, unsigned slot, int from, int to);

#endif
