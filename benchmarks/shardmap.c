/* SPDX-License-Identifier: MIT */
/* See shardmap.h. Chained: an array of heads a shard and one allocation a key, with the key inside it. */
#include "shardmap.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHARDS 64u

struct node {
    struct node *next;
    uint64_t hash;
    double tokens;
    uint64_t last_ns;
    size_t len;
    unsigned char key[];
};

struct shard {
    _Alignas(64) pthread_mutex_t mutex;
    struct node **heads;
    size_t mask, count, bytes;
};

struct shardmap {
    struct shard shards[SHARDS];
    double per_ns, burst;
};

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

/* Eight bytes a multiplication, the halves of the product folded: fast, and good enough for keys that one trusts. */
static uint64_t hash_key(const unsigned char *key, size_t len)
{
    uint64_t h = len * UINT64_C(0x9e3779b97f4a7c15);
    for (; len >= 8; key += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, key, 8);
        unsigned __int128 product = (unsigned __int128)(h ^ word) * UINT64_C(0xd6e8feb86659fd93);
        h = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    uint64_t rest = 0;
    if (len > 0) {
        memcpy(&rest, key, len);
    }
    unsigned __int128 product = (unsigned __int128)(h ^ rest) * UINT64_C(0xd6e8feb86659fd93);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

struct shardmap *shardmap_open(size_t keys, double rate, double burst)
{
    struct shardmap *map = aligned_alloc(64, sizeof *map);
    size_t heads = 16;
    while (heads * SHARDS < keys) {
        heads *= 2;
    }
    if (map == NULL) {
        return NULL;
    }
    memset(map, 0, sizeof *map);
    map->per_ns = rate / 1e9;
    map->burst = burst;
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &map->shards[i];
        pthread_mutex_init(&s->mutex, NULL);
        s->mask = heads - 1;
        s->heads = calloc(heads, sizeof(struct node *));
        s->bytes = heads * sizeof(struct node *);
        if (s->heads == NULL) {
            shardmap_close(map);
            return NULL;
        }
    }
    return map;
}

void shardmap_close(struct shardmap *map)
{
    for (size_t i = 0; i < SHARDS; i++) {
        struct shard *s = &map->shards[i];
        for (size_t h = 0; s->heads != NULL && h <= s->mask; h++) {
            for (struct node *n = s->heads[h], *next; n != NULL; n = next) {
                next = n->next;
                free(n);
            }
        }
        free(s->heads);
    }
    free(map);
}

static struct node *find_or_add(struct shardmap *map, struct shard *s, uint64_t hash, const void *key, size_t len,
                                uint64_t now)
{
    struct node **head = &s->heads[(hash >> 6) & s->mask];
    for (struct node *n = *head; n != NULL; n = n->next) {
        if (n->hash == hash && n->len == len && memcmp(n->key, key, len) == 0) {
            return n;
        }
    }
    struct node *n = malloc(sizeof *n + len);
    if (n == NULL) {
        return NULL;
    }
    n->next = *head;
    n->hash = hash;
    n->tokens = map->burst;
    n->last_ns = now;
    n->len = len;
    memcpy(n->key, key, len);
    *head = n;
    s->count++;
    s->bytes += sizeof *n + len;
    return n;
}

int shardmap_take(struct shardmap *map, const void *key, size_t len, double cost)
{
    uint64_t hash = hash_key(key, len), now = now_ns();
    struct shard *s = &map->shards[hash % SHARDS];
    int allowed = 0;
    pthread_mutex_lock(&s->mutex);
    struct node *n = find_or_add(map, s, hash, key, len, now);
    if (n != NULL) {
        if (now > n->last_ns) {
            n->tokens += (double)(now - n->last_ns) * map->per_ns;
            n->tokens = n->tokens > map->burst ? map->burst : n->tokens;
            n->last_ns = now;
        }
        allowed = n->tokens >= cost;
        n->tokens -= allowed ? cost : 0;
    }
    pthread_mutex_unlock(&s->mutex);
    return allowed;
}

size_t shardmap_bytes(const struct shardmap *map)
{
    size_t bytes = sizeof *map;
    for (size_t i = 0; i < SHARDS; i++) {
        bytes += map->shards[i].bytes;
    }
    return bytes;
}
