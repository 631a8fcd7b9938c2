/* SPDX-License-Identifier: MIT */
/* See buckets.h. */
#include "benchmarks/fleet/buckets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/harness.h"

#define ROOM 65536u /* a power of two */

void buckets_open(struct buckets *b, const struct strategy_limit *limits, unsigned count, double share)
{
    b->slots = bench_alloc(ROOM * sizeof b->slots[0]);
    memset(b->slots, 0, ROOM * sizeof b->slots[0]);
    b->rates = bench_alloc(count * sizeof b->rates[0]);
    b->bursts = bench_alloc(count * sizeof b->bursts[0]);
    for (unsigned i = 0; i < count; i++) {
        b->rates[i] = strategy_rate(&limits[i]) * share;
        b->bursts[i] = (double)limits[i].burst * share;
    }
}

void buckets_close(struct buckets *b)
{
    free(b->slots);
    free(b->rates);
    free(b->bursts);
}

static uint64_t hash(const char *key, uint32_t len)
{
    uint64_t sum = len;
    for (uint32_t i = 0; i < len; i++) {
        sum = (sum ^ (unsigned char)key[i]) * UINT64_C(0x9e3779b97f4a7c15);
        sum ^= sum >> 29;
    }
    return sum;
}

struct bucket *buckets_get(struct buckets *b, const char *key, uint32_t key_len, uint32_t limit, uint64_t now_ns)
{
    uint64_t at = hash(key, key_len);
    for (unsigned tries = 0; tries < ROOM; tries++, at++) {
        struct bucket *bucket = &b->slots[at % ROOM];
        if (bucket->key_len == 0) {
            memcpy(bucket->key, key, key_len);
            bucket->key_len = key_len;
            bucket->limit = limit;
            bucket->level = b->bursts[limit];
            bucket->at_ns = now_ns;
            return bucket;
        }
        if (bucket->key_len == key_len && memcmp(bucket->key, key, key_len) == 0) {
            bucket->level = fmin(b->bursts[limit], bucket->level + (double)(now_ns - bucket->at_ns) * b->rates[limit]);
            bucket->at_ns = now_ns;
            return bucket;
        }
    }
    bench_die("no room for another bucket");
}
