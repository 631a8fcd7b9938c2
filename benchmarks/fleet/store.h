/* SPDX-License-Identifier: MIT */
/*
 * The redis-server of one fleet and what it says of itself. It can die and come back empty.
 *
 * Owns the server. Knows nothing of strategies.
 */
#ifndef WEIR_BENCH_FLEET_STORE_H
#define WEIR_BENCH_FLEET_STORE_H

#include "tools/private_redis.h"

struct redisContext;

struct store {
    struct private_redis server;
    struct redisContext *control; /* NULL while it is dead */
};

void store_open(struct store *store); /* dies where it can't */
void store_close(struct store *store);
void store_kill(struct store *store);
void store_start(struct store *store); /* empty; waits until it answers */

double store_cpu_s(struct store *store);
double store_bytes(struct store *store); /* MEMORY USAGE of all keys */

/* How often it was sent one of the commands, whose names are separated by blanks; NULL: never. */
double store_calls(struct store *store, const char *commands);

#endif
