/* SPDX-License-Identifier: MIT */
/*
 * Merging: equal costs of one key that follow each other become one entry (cost, count), the entries of a shard one
 * script. The order of a key's queries is kept; that between keys has no meaning. It must not know what the answers
 * mean.
 */
#include "sync/strict_state.h"

#include <string.h>

static struct weir__strict_batch *make(struct weir__strict *strict, size_t extra)
{
    struct weir__strict_batch *batch = weir__node_alloc(strict->node, sizeof *batch + extra);

    if (!batch)
        return NULL;
    batch->size = sizeof *batch + extra;
    batch->owner = strict;
    batch->weight = 1;
    weir__wire_buf_init(&batch->bytes, &strict->node->mem);
    return batch;
}

void weir__strict_batch_free(struct weir__strict *strict, struct weir__strict_batch *batch)
{
    weir__wire_buf_deinit(&batch->bytes);
    weir__node_free(strict->node, batch, batch->size);
}

/* Room for what the lane holds, at most `most` keys. */
static struct weir__strict_batch *make_strict(struct weir__strict *strict, struct weir__strict_lane *lane,
                                              uint32_t most)
{
    uint32_t keys = lane->count < most ? lane->count : most;
    uint32_t entries = lane->count < WEIR__WIRE_WAITS ? lane->count : WEIR__WIRE_WAITS;
    struct weir__strict_batch *batch =
        make(strict, keys * sizeof(struct weir__wire_key) +
                         entries * (sizeof(struct weir__wire_strict_entry) + 2 * sizeof(struct weir__query *)));
    struct weir__policy *policy = weir__node_policy(strict->node, lane->id);

    if (!batch)
        return NULL;
    batch->kind = WEIR__QUERY_TAKE;
    batch->chains = (struct weir__query **)(batch + 1);
    batch->ends = batch->chains + entries;
    batch->wire.entries = (struct weir__wire_strict_entry *)(batch->ends + entries);
    batch->wire.keys = (struct weir__wire_key *)(batch->wire.entries + entries);
    weir__node_target(strict->node, policy, lane->shard, &batch->wire.target);
    batch->wire.numbers = policy->numbers;
    batch->wire.nonce = weir__node_random(strict->node);
    batch->wire.flags = policy->is.on_outage == WEIR_OUTAGE_LOCAL ? WEIR__WIRE_OUTAGE_LOCAL : 0;
    return batch;
}

/* The key's place in the batch; a new one where it has none and there is room, or -1. */
static int64_t place_of(struct weir__strict *strict, struct weir__strict_batch *batch, const struct weir__query *query,
                        uint32_t most)
{
    struct weir__wire_strict *wire = &batch->wire;
    uint32_t at = (uint32_t)query->hash % WEIR__STRICT_INDEX;

    for (; strict->index[at]; at = (at + 1) % WEIR__STRICT_INDEX) {
        const struct weir__wire_key *key = &wire->keys[strict->index[at] - 1];

        if (key->key_len == query->key_len && !memcmp(key->key, query->key, key->key_len))
            return strict->index[at] - 1;
    }
    if (wire->n_keys == most)
        return -1;
    wire->keys[wire->n_keys] = (struct weir__wire_key){.key = query->key, .key_len = query->key_len};
    strict->index[at] = (uint16_t)++wire->n_keys;
    return wire->n_keys - 1;
}

static enum weir__wire_op op_of(const struct weir__query *query)
{
    if (query->item.kind == WEIR__QUERY_GIVE)
        return WEIR__WIRE_GIVE;
    return query->item.kind == WEIR__QUERY_LOOK ? WEIR__WIRE_LOOK : WEIR__WIRE_TAKE;
}

static int merges(const struct weir__wire_strict_entry *entry, const struct weir__query *query)
{
    return entry->op == WEIR__WIRE_TAKE && query->item.kind == WEIR__QUERY_TAKE && entry->cost == query->cost &&
           entry->count < UINT32_MAX;
}

/* Adds a query about the batch's key `key`. last: by key, its last entry + 1. */
static void attach(struct weir__strict_batch *batch, struct weir__query *query, int64_t key, uint32_t *last)
{
    struct weir__wire_strict *wire = &batch->wire;
    uint32_t entry = last[key];

    query->next = NULL;
    if (entry && merges(&wire->entries[entry - 1], query)) {
        wire->entries[--entry].count++;
        batch->ends[entry]->next = query;
    } else {
        entry = wire->n_entries++;
        last[key] = entry + 1;
        wire->entries[entry] =
            (struct weir__wire_strict_entry){.key = (uint32_t)key, .op = op_of(query), .cost = query->cost, .count = 1};
        batch->chains[entry] = query;
    }
    batch->ends[entry] = query;
    if (query->deadline > batch->deadline)
        batch->deadline = query->deadline;
}

static void give_up(struct weir__strict *strict, struct weir__query *query)
{
    weir__strict_fail(strict, query, 0);
}

/* Under backlog a script takes more, for its fixed cost is then what limits; but who wants a script a key has it. */
static uint32_t most_keys(const struct weir__strict *strict)
{
    uint32_t most = strict->node->batch_max;

    if (most == 1 || strict->queued <= 2 * (size_t)most)
        return most;
    return 2 * most < WEIR__WIRE_RECORDS ? 2 * most : WEIR__WIRE_RECORDS;
}

static struct weir__strict_batch *build_strict(struct weir__strict *strict, struct weir__strict_lane *lane)
{
    uint32_t most = most_keys(strict);
    uint32_t last[WEIR__WIRE_RECORDS] = {0};
    struct weir__strict_batch *batch = make_strict(strict, lane, most);
    struct weir__query *query;
    int64_t key;

    if (!batch) {
        give_up(strict, weir__strict_pop(strict, lane));
        return NULL;
    }
    memset(strict->index, 0, sizeof strict->index);
    while ((query = lane->first) && query->item.kind != WEIR__QUERY_FORGET && query->item.kind != WEIR__QUERY_ALL) {
        if (weir__query_abandoned(query)) {
            weir__strict_fail(strict, weir__strict_pop(strict, lane), 0);
            continue;
        }
        key = batch->wire.n_entries < WEIR__WIRE_WAITS ? place_of(strict, batch, query, most) : -1;
        if (key < 0)
            break;
        attach(batch, weir__strict_pop(strict, lane), key, last);
    }
    batch->weight = batch->wire.n_entries;
    return batch;
}

static struct weir__strict_batch *build_forget(struct weir__strict *strict, struct weir__strict_lane *lane)
{
    struct weir__strict_batch *batch = make(strict, sizeof(struct weir__query *));
    struct weir__query *query = weir__strict_pop(strict, lane);

    if (!batch) {
        give_up(strict, query);
        return NULL;
    }
    batch->kind = WEIR__QUERY_FORGET;
    batch->chains = (struct weir__query **)(batch + 1);
    batch->chains[0] = query;
    batch->wire.n_entries = 1;
    batch->deadline = query->deadline;
    weir__node_target(strict->node, weir__node_policy(strict->node, lane->id), lane->shard, &batch->wire.target);
    return batch;
}

static struct weir__strict_batch *build_all(struct weir__strict *strict, struct weir__strict_lane *lane)
{
    struct weir__query *query = weir__strict_pop(strict, lane);
    struct weir__strict_batch *batch =
        make(strict, sizeof(struct weir__query *) + query->n * sizeof(struct weir__wire_member));
    struct weir__node *node = strict->node;

    if (!batch) {
        give_up(strict, query);
        return NULL;
    }
    batch->kind = WEIR__QUERY_ALL;
    batch->chains = (struct weir__query **)(batch + 1);
    batch->chains[0] = query;
    batch->wire.n_entries = 1;
    batch->weight = query->n;
    batch->deadline = query->deadline;
    batch->all.members = (struct weir__wire_member *)(batch->chains + 1);
    batch->all.n = query->n;
    batch->all.nonce = weir__node_random(node);
    for (uint32_t i = 0; i < query->n; i++) {
        const struct weir_request *request = &query->members[i];
        struct weir__policy *policy = weir__node_policy(node, request->policy);
        struct weir__wire_member *member = &batch->all.members[i];
        uint32_t shard = weir__wire_shard(request->key, request->key_len, node->shards);

        weir__node_target(node, policy, shard, &member->target);
        member->numbers = policy->numbers;
        member->key = request->key;
        member->key_len = (uint32_t)request->key_len;
        member->flags = policy->is.on_outage == WEIR_OUTAGE_LOCAL ? WEIR__WIRE_OUTAGE_LOCAL : 0;
        member->cost = request->cost;
    }
    return batch;
}

static int encode(struct weir__strict *strict, struct weir__strict_batch *batch)
{
    const struct weir__store *store = strict->node->store;
    struct weir__wire_key key;

    if (batch->kind == WEIR__QUERY_ALL)
        return weir__wire_all_encode(&batch->bytes, &batch->all, weir__store_sha(store, WEIR__WIRE_ALL));
    if (batch->kind == WEIR__QUERY_TAKE)
        return weir__wire_strict_encode(&batch->bytes, &batch->wire, weir__store_sha(store, WEIR__WIRE_STRICT));
    key = (struct weir__wire_key){.key = batch->chains[0]->key, .key_len = batch->chains[0]->key_len};
    return weir__wire_forget_encode(&batch->bytes, &batch->wire.target, &key, 1,
                                    weir__store_sha(store, WEIR__WIRE_FORGET));
}

struct weir__strict_batch *weir__strict_build(struct weir__strict *strict, struct weir__strict_lane *lane)
{
    struct weir__strict_batch *batch;

    if (!lane->first)
        return NULL;
    if (lane->first->item.kind == WEIR__QUERY_FORGET)
        batch = build_forget(strict, lane);
    else if (lane->first->item.kind == WEIR__QUERY_ALL)
        batch = build_all(strict, lane);
    else
        batch = build_strict(strict, lane);
    if (!batch)
        return NULL;
    batch->id = lane->id;
    if (batch->wire.n_entries == 0 || encode(strict, batch)) {
        weir__strict_fail_batch(strict, batch);
        weir__strict_batch_free(strict, batch);
        return NULL;
    }
    return batch;
}
