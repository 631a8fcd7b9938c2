/* SPDX-License-Identifier: MIT */
/*
 * What a server may answer: the decoders of the scripts' replies, and what a cluster says of its slots. The first bytes
 * say which and for what question, the rest is the answer.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sync/cluster.h"
#include "sync/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEYS = 8, REPLIES = 64 };

static void must(int holds)
{
    if (!holds) {
        abort();
    }
}

static void fuzz_sync(uint8_t shape, const uint8_t *reply, size_t len)
{
    struct weir__wire_record records[KEYS];
    struct weir__wire_wait waits[KEYS];
    struct weir__wire_grant grants[KEYS];
    struct weir__wire_batch batch = {.records = records, .count = shape % (KEYS + 1)};
    struct weir__wire_head head;
    memset(records, 0, sizeof records);
    for (unsigned i = 0; i < KEYS; i++) {
        waits[i] = (struct weir__wire_wait){.cost = i, .count = 1 + i};
        records[i].key = "k";
        records[i].key_len = 1;
        records[i].slice = shape >> (i % 4 + 4) & 1;
        records[i].waits = &waits[i];
        records[i].n_waits = i % 2;
    }
    if (weir__wire_sync_decode(&batch, reply, len, &head, grants) == 0 && head.status <= WEIR__WIRE_REPEAT) {
        for (unsigned i = 0; i < batch.count; i++) {
            must(isfinite(grants[i].total) && isfinite(grants[i].level) && isfinite(grants[i].rate));
            must(records[i].n_waits == 0 || waits[i].admitted <= waits[i].count);
        }
    }
}

static void fuzz_strict(uint8_t shape, const uint8_t *reply, size_t len)
{
    struct weir__wire_key keys[KEYS];
    struct weir__wire_strict_entry entries[KEYS];
    struct weir__wire_strict batch = {
        .keys = keys, .n_keys = 1 + shape % 4, .entries = entries, .n_entries = 1 + shape % KEYS};
    struct weir__wire_head head;
    memset(keys, 0, sizeof keys);
    for (unsigned i = 0; i < KEYS; i++) {
        entries[i] = (struct weir__wire_strict_entry){
            .key = i % batch.n_keys, .op = (enum weir__wire_op)((shape >> 4) % 3), .cost = i, .count = 1 + i};
    }
    if (weir__wire_strict_decode(&batch, reply, len, &head) == 0 && head.status == WEIR__WIRE_APPLIED) {
        for (unsigned i = 0; i < batch.n_entries; i++) {
            must(entries[i].op != WEIR__WIRE_TAKE || entries[i].admitted <= entries[i].count);
        }
    }
}

static void fuzz_all(uint8_t shape, const uint8_t *reply, size_t len)
{
    struct weir__wire_member members[KEYS];
    struct weir__wire_all all = {.members = members, .n = 1 + shape % KEYS};
    struct weir__wire_head head;
    memset(members, 0, sizeof members);
    for (unsigned i = 0; i < KEYS; i++) {
        members[i].target = (struct weir__wire_target){.prefix = "w", .policy = "p", .shard = i & shape, .shards = 64};
    }
    weir__wire_all_decode(&all, reply, len, &head);
}

static void fuzz_peek(const uint8_t *reply, size_t len)
{
    struct weir__wire_seen_slice slices[4];
    struct weir__wire_seen seen;
    struct weir__wire_head head;
    weir__wire_peek_decode(reply, len, &head, &seen, slices, 4);
}

static void fuzz_text(const char *text, size_t len)
{
    struct weir__uri_host host;
    unsigned slot;
    int of_command = weir__slots_of_command(text, len);
    must(of_command >= -1 && of_command < WEIR__CLUSTER_SLOTS);
    if (weir__slots_redirection(text, len, &slot, &host) == 0) {
        must(slot < WEIR__CLUSTER_SLOTS && host.port > 0 && memchr(host.host, '\0', sizeof host.host) != NULL);
    }
    must((unsigned)weir__link_classify(text, len) < WEIR__LINK_KINDS);
}

/* A reply of any shape, from a few bytes. */
struct pool {
    redisReply replies[REPLIES];
    redisReply *elements[REPLIES][4];
    unsigned used;
    const uint8_t *at, *end;
};

static redisReply *build(struct pool *pool, int depth)
{
    if (pool->used == REPLIES || pool->at == pool->end) {
        return NULL;
    }
    unsigned mine = pool->used++;
    redisReply *reply = &pool->replies[mine];
    uint8_t what = *pool->at++;
    size_t left = (size_t)(pool->end - pool->at);
    memset(reply, 0, sizeof *reply);
    switch (what % 4) {
    case 0:
        reply->type = REDIS_REPLY_INTEGER;
        memcpy(&reply->integer, pool->at, left < 3 ? left : 3);
        pool->at += left < 3 ? left : 3;
        break;
    case 1:
        reply->type = REDIS_REPLY_STRING;
        reply->str = (char *)(uintptr_t)pool->at;
        reply->len = (size_t)(what / 4) % 32 < left ? what / 4 % 32 : (unsigned)left;
        pool->at += reply->len;
        break;
    case 2: reply->type = REDIS_REPLY_NIL; break;
    default:
        reply->type = REDIS_REPLY_ARRAY;
        reply->element = pool->elements[mine];
        for (unsigned i = 0; i < what / 4 % 5U && i < 4 && depth < 4; i++) {
            redisReply *element = build(pool, depth + 1);
            if (!element) {
                break;
            }
            reply->element[reply->elements++] = element;
        }
        break;
    }
    return reply;
}

static void fuzz_range(const uint8_t *bytes, size_t len)
{
    static struct pool pool;
    struct weir__slots_range range;
    pool.used = 0;
    pool.at = bytes;
    pool.end = bytes + len;
    const redisReply *reply = build(&pool, 0);
    if (reply && weir__slots_range(reply, &range) == 0) {
        must(range.first <= range.last && range.last < WEIR__CLUSTER_SLOTS && range.master.port > 0);
        must(memchr(range.master.host, '\0', sizeof range.master.host) != NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    switch (data[0] % 6) {
    case 0: fuzz_sync(data[1], data + 2, size - 2); break;
    case 1: fuzz_strict(data[1], data + 2, size - 2); break;
    case 2: fuzz_all(data[1], data + 2, size - 2); break;
    case 3: fuzz_peek(data + 2, size - 2); break;
    case 4: fuzz_text((const char *)data + 2, size - 2); break;
    default: fuzz_range(data + 2, size - 2); break;
    }
    return 0;
}
