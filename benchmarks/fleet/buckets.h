/* SPDX-License-Identifier: MIT */
/*
 * Token buckets in the memory of one thread: a hash table of fixed room with doubles in it.
 *
 * Owns the arithmetic. Knows nothing of Redis or of other processes.
 */
#ifndef WEIR_BENCH_FLEET_BUCKETS_H
#define WEIR_BENCH_FLEET_BUCKETS_H

#include <stddef.h>
#include <stdint.h>

#include "benchmarks/fleet/strategy.h"

struct bucket {
    char key[STRATEGY_KEY_MAX];
    uint32_t key_len, limit;
    double level;
    uint64_t at_ns;
    /* for one who shares it: */
    double spent; /* since it was last told */
    int listed;
};

struct buckets {
    struct bucket *slots;
    double *rates, *bursts; /* of each limit */
};

/* share: of each limit's rate and burst. */
void buckets_open(struct buckets *b, const struct strategy_limit *limits, unsigned count, double share);
void buckets_close(struct buckets *b);

/* The bucket of a key, made full where it is new, refilled up to now. Dies where there is no room left. */
struct bucket *buckets_get(struct buckets *b, const char *key, uint32_t key_len, uint32_t limit, uint64_t now_ns);

#endif
