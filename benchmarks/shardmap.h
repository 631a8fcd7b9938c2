/* SPDX-License-Identifier: MIT */
/*
 * What a server writer would build otherwise: 64 hash maps, each under its own mutex, a bucket of doubles a key, time
 * from clock_gettime. Written with care, so that beating it means something. Knows nothing of weir.
 */
#ifndef WEIR_BENCH_SHARDMAP_H
#define WEIR_BENCH_SHARDMAP_H

#include <stddef.h>

struct shardmap;

/* Room for `keys` without growing a bucket array; rate in tokens a second. NULL when out of memory. */
struct shardmap *shardmap_open(size_t keys, double rate, double burst);
void shardmap_close(struct shardmap *map);

/* 1: allowed, 0: denied. Threads: any. */
int shardmap_take(struct shardmap *map, const void *key, size_t len, double cost);

size_t shardmap_bytes(const struct shardmap *map); /* asked of malloc */

#endif
