/* SPDX-License-Identifier: MIT */
/* Limiters with their reconciliation on the caller's loop, as the rows R1 to R10 use them. */
#ifndef WEIR_BENCH_REDIS_LOAD_H
#define WEIR_BENCH_REDIS_LOAD_H

#include <stdint.h>
#include <stdio.h>

#include <weir/weir.h>

struct uv_loop_s;
struct weir_sync;
struct bench_options;
struct bench_redis;

struct bench_node_options {
    const char *prefix;
    enum weir_mode mode;
    uint64_t limit, burst; /* a second */
    uint32_t batch_max, window, shards;
    uint32_t max_keys; /* 0: 1,024 */
};

struct bench_node {
    struct weir *w;
    struct weir_sync *sync;
    struct uv_loop_s *loop;
    int own_loop;
    weir_policy_id policy;
};

/* loop NULL: one of its own. Waits until Redis answers. Dies on an error. */
void bench_node_open(struct bench_node *node, const char *uri, struct uv_loop_s *loop,
                     const struct bench_node_options *options);
void bench_node_close(struct bench_node *node);

/* Runs the loop until everything that was spent has been acknowledged. between: called after each turn, or NULL. */
void bench_node_flush(struct bench_node *node, void (*between)(void *arg), void *arg);

/* s that the calling thread has spent. */
double bench_cpu(void);

/* "user:" and 12 digits; returns its length. */
static inline int bench_key(char key[32], unsigned number)
{
    char *at = key + 17;
    for (int i = 0; i < 12; i++, number /= 10) {
        *--at = (char)('0' + number % 10);
    }
    key[0] = 'u', key[1] = 's', key[2] = 'e', key[3] = 'r', key[4] = ':';
    return 17;
}

/* R11. */
void circuit_row(const struct bench_options *options);

/* R4 to R6. */
void reconcile_rows(const struct bench_options *options, struct bench_redis *redis);

#endif
