/* SPDX-License-Identifier: MIT */
/*
 * Queries and those who wait for them. It must not know what is asked.
 */
#include "sync/query.h"

#include <string.h>

#include <uv.h>

struct weir__wait {
    uv_mutex_t lock;
    uv_cond_t answered;
    size_t left;   /* queries that the loop's thread still owns */
    int abandoned; /* the thread has left: the last answer frees this */
    size_t count, room, size;
    struct weir__query *queries[];
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

/* FNV-1a, salted */
uint64_t weir__query_hash(const struct weir__node *node, const void *key, size_t len)
{
    const unsigned char *bytes = key;
    uint64_t hash = node->salt;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 29;
}

struct weir__query *weir__query_make(struct weir__node *node, enum weir__query_kind kind,
                                     const struct weir_request *request, uint64_t timeout_ns)
{
    size_t size = sizeof(struct weir__query) + request->key_len;
    struct weir__query *query = weir__node_alloc(node, size);

    if (!query)
        return NULL;
    query->item.kind = kind;
    query->size = size;
    query->policy = request->policy;
    query->cost = request->cost;
    query->deadline = uv_hrtime() + timeout_ns;
    query->key = (unsigned char *)(query + 1);
    query->key_len = (uint32_t)request->key_len;
    memcpy(query->key, request->key, request->key_len);
    query->hash = weir__query_hash(node, query->key, query->key_len);
    query->shard = weir__wire_shard(query->key, query->key_len, node->shards);
    return query;
}

struct weir__query *weir__query_make_all(struct weir__node *node, const struct weir_request *requests, size_t n,
                                         uint64_t timeout_ns)
{
    size_t size = sizeof(struct weir__query) + n * (sizeof(struct weir_request) + sizeof(struct weir_result));
    struct weir__query *query;
    struct weir_result *results;
    unsigned char *at;

    for (size_t i = 0; i < n; i++)
        size += requests[i].key_len;
    query = weir__node_alloc(node, size);
    if (!query)
        return NULL;
    query->item.kind = WEIR__QUERY_ALL;
    query->size = size;
    query->policy = requests[0].policy;
    query->deadline = uv_hrtime() + timeout_ns;
    query->members = (struct weir_request *)(query + 1);
    query->n = (uint32_t)n;
    results = (struct weir_result *)(query->members + n);
    at = (unsigned char *)(results + n);
    for (size_t i = 0; i < n; i++) {
        query->members[i] = requests[i];
        query->members[i].key = memcpy(at, requests[i].key, requests[i].key_len);
        query->members[i].result = &results[i];
        at += requests[i].key_len;
    }
    return query;
}

void weir__query_free(struct weir__node *node, struct weir__query *query)
{
    weir__node_free(node, query, query->size);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

struct weir__wait *weir__wait_open(struct weir__node *node, size_t n)
{
    size_t size = sizeof(struct weir__wait) + n * sizeof(struct weir__query *);
    struct weir__wait *wait = weir__node_alloc(node, size);

    if (!wait)
        return NULL;
    wait->size = size;
    wait->room = n;
    if (uv_mutex_init(&wait->lock))
        goto free_memory;
    if (uv_cond_init(&wait->answered))
        goto destroy_lock;
    return wait;

destroy_lock:
    uv_mutex_destroy(&wait->lock);
free_memory:
    weir__node_free(node, wait, size);
    return NULL;
}

static void close_wait(struct weir__node *node, struct weir__wait *wait)
{
    uv_cond_destroy(&wait->answered);
    uv_mutex_destroy(&wait->lock);
    weir__node_free(node, wait, wait->size);
}

void weir__wait_add(struct weir__wait *wait, struct weir__query *query)
{
    uv_mutex_lock(&wait->lock);
    wait->queries[wait->count++] = query;
    if (query) {
        query->wait = wait;
        wait->left++;
    }
    uv_mutex_unlock(&wait->lock);
}

void weir__wait_withdraw(struct weir__wait *wait)
{
    uv_mutex_lock(&wait->lock);
    wait->left--;
    wait->queries[wait->count - 1] = NULL;
    uv_mutex_unlock(&wait->lock);
}

void weir__wait_for(struct weir__node *node, struct weir__wait *wait, uint64_t deadline,
                    void (*each)(void *ctx, size_t i, const struct weir__query *query), void *ctx)
{
    uint64_t now;
    size_t left;

    uv_mutex_lock(&wait->lock);
    while (wait->left && (now = uv_hrtime()) < deadline)
        uv_cond_timedwait(&wait->answered, &wait->lock, deadline - now);
    for (size_t i = 0; i < wait->count; i++) {
        struct weir__query *query = wait->queries[i];

        each(ctx, i, query && query->answered && !query->failed ? query : NULL);
        if (query && query->answered)
            weir__query_free(node, query);
    }
    left = wait->left;
    wait->abandoned = left != 0;
    uv_mutex_unlock(&wait->lock);
    if (!left)
        close_wait(node, wait);
}

/* ---- answering --------------------------------------------------------------------------------------------------- */

/* Hands it to whoever waits. Returns 1 where nobody does any more: it is the loop's to free. */
static int hand_over(struct weir__node *node, struct weir__query *query)
{
    struct weir__wait *wait = query->wait;
    int abandoned;
    size_t left;

    uv_mutex_lock(&wait->lock);
    query->answered = 1;
    left = --wait->left;
    abandoned = wait->abandoned;
    if (!abandoned && !left)
        uv_cond_signal(&wait->answered);
    uv_mutex_unlock(&wait->lock);
    if (abandoned && !left)
        close_wait(node, wait);
    return abandoned;
}

void weir__query_answer(struct weir__node *node, struct weir__query *query, int keep)
{
    if (query->wait) {
        if (hand_over(node, query))
            weir__query_free(node, query);
        return;
    }
    if (!query->answered && query->cb)
        query->cb(query->arg, query->status, &query->result);
    query->answered = 1;
    if (!keep)
        weir__query_free(node, query);
}

void weir__query_fail(struct weir__node *node, struct weir__query *query)
{
    query->failed = 1;
    if (hand_over(node, query))
        weir__query_free(node, query);
}

int weir__query_abandoned(struct weir__query *query)
{
    int abandoned;

    if (!query->wait)
        return 0;
    uv_mutex_lock(&query->wait->lock);
    abandoned = query->wait->abandoned;
    uv_mutex_unlock(&query->wait->lock);
    return abandoned;
}
