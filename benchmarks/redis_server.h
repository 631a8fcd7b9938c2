/* SPDX-License-Identifier: MIT */
/*
 * A redis-server for benchmarks, on the second CPU: what it spends, how long scripts hold it, what it is sent, and
 * Debian's redis-benchmark beside it. Knows nothing of weir.
 */
#ifndef WEIR_BENCH_REDIS_SERVER_H
#define WEIR_BENCH_REDIS_SERVER_H

#include <stddef.h>

#include "tools/private_redis.h"

struct redisContext;

struct bench_redis {
    struct private_redis server;
    struct redisContext *control;
    struct redisContext *monitor;
    char uri[128];
    double waited; /* when the watch began */
};

/* NULL, or why there is none (then nothing is left to close). */
const char *bench_redis_open(struct bench_redis *redis);
void bench_redis_close(struct bench_redis *redis);

/* Lets it listen on a free port of 127.0.0.1 as well. 0: this server can't while it runs. */
int bench_redis_port(struct bench_redis *redis);

double bench_redis_cpu(struct bench_redis *redis);   /* s that the server has spent */
double bench_redis_bytes(struct bench_redis *redis); /* that it has received */

/* Notes scripts from now on; ends that: the quantile and the largest of those that took 50 us or more, in ms, and for
 * how long the server wanted a CPU meanwhile and got none, which its clock counts as a script's time (0 where the
 * system doesn't tell). */
void bench_redis_watch(struct bench_redis *redis);
void bench_redis_watched(struct bench_redis *redis, double q, double *quantile, double *largest, double *waited);

/* One call of a script as Redis got it: the script and what was passed. */
struct bench_call {
    char *script, *key[3], *field, *last;
    size_t last_len;
};

/* Between the two somebody connects, loads his scripts and calls one of them for one field. Dies where nobody does. */
void bench_redis_listen(struct bench_redis *redis);
void bench_redis_heard(struct bench_redis *redis, struct bench_call *call);
void bench_call_free(struct bench_call *call);

/* redis-benchmark making the same call: about `count` times over one connection (port 0: the unix socket), so many on
 * their way, the field being "kuser:" and 12 digits below `keys`. It can't pass an argument that holds a NUL, so the
 * script begins by assigning the last one, in place of a text of the same length. Calls a second; 0 with why set. */
double bench_redis_peer(struct bench_redis *redis, const struct bench_call *call, int port, unsigned pipeline,
                        unsigned count, unsigned keys, const char **why);

#endif
