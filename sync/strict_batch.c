/* SPDX-License-Identifier: MIT */
/*
 * Merging: equal costs of one key that follow each other become one entry (cost, count), the entries of a shard and
 * those of its policy's other shards one script. The order of a key's queries is kept; that between keys has no
 * meaning. It must not know what the answers mean.
 */
#include "sync/strict_state.h"

#include <math.h>
#include <string.h>

#include "sync/seen.h"

/* Redis forgets a shard that nobody wrote for some ten minutes: that is no loss. */
#define KNOWN_NS (UINT64_C(300) * WEIR__SECOND)

/* Only the batch itself is zeroed: what follows it is written before it is read. */
static struct weir__strict_batch *make(struct weir__strict *strict, size_t extra)
{
    size_t size = sizeof(struct weir__strict_batch) + extra;
    struct weir__strict_batch *batch = weir__seam_alloc(strict->node->w, size);

    if (!batch)
        return NULL;
    memset(batch, 0, sizeof *batch);
    batch->size = size;
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

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How many shards one script may touch: in a cluster those of a group, which are in one slot. */
static uint32_t most_shards(const struct weir__strict *strict, const struct weir__policy *policy, uint64_t mono)
{
    if (((strict->one_slot || weir__store_is_cluster(strict->node->store)) && !policy->is.group) ||
        mono < strict->apart_until)
        return 1;
    return WEIR__WIRE_SHARDS;
}

/* Room for what the policy's lanes hold. */
static struct weir__strict_batch *make_strict(struct weir__strict *strict, const struct weir__strict_lanes *lanes,
                                              uint32_t most, uint32_t shards)
{
    uint32_t keys = least(lanes->queued, most), entries = least(lanes->queued + keys, WEIR__WIRE_WAITS);
    struct weir__strict_batch *batch =
        make(strict, entries * (2 * sizeof(struct weir__query *) + sizeof(struct weir__wire_strict_entry)) +
                         shards * (sizeof(struct weir__wire_strict) + sizeof(struct weir__wire_head)) +
                         keys * sizeof(struct weir__wire_key));

    if (!batch)
        return NULL;
    batch->kind = WEIR__QUERY_TAKE;
    batch->chains = (struct weir__query **)(batch + 1);
    batch->ends = batch->chains + entries;
    batch->shards = (struct weir__wire_strict *)(batch->ends + entries);
    batch->heads = (struct weir__wire_head *)(batch->shards + shards);
    batch->shards[0].entries = (struct weir__wire_strict_entry *)(batch->heads + shards);
    batch->shards[0].keys = (struct weir__wire_key *)(batch->shards[0].entries + entries);
    return batch;
}

/* The names of a shard's keys are made once: they are half of what there is to write. */
static void aim(struct weir__strict *strict, const struct weir__policy *policy, struct weir__strict_lane *lane,
                struct weir__wire_target *target)
{
    weir__node_target(strict->node, policy, lane->shard, target);
    if (lane->names.len || !weir__wire_names(&lane->names, target))
        target->names = &lane->names;
}

/* Begins with another shard. */
static struct weir__wire_strict *add_shard(struct weir__strict *strict, struct weir__strict_batch *batch,
                                           const struct weir__policy *policy, struct weir__strict_lane *lane)
{
    struct weir__wire_strict *shard = &batch->shards[batch->n_shards++];
    struct weir__wire_strict_entry *entries = batch->shards[0].entries + batch->n_entries;
    struct weir__wire_key *keys = batch->shards[0].keys + batch->n_keys;

    *shard =
        (struct weir__wire_strict){.numbers = policy->numbers,
                                   .nonce = weir__node_random(strict->node),
                                   .epoch = uv_hrtime() - lane->wrote_at < KNOWN_NS ? lane->epoch : 0,
                                   .flags = policy->is.on_outage == WEIR_OUTAGE_LOCAL ? WEIR__WIRE_OUTAGE_LOCAL : 0,
                                   .keys = keys,
                                   .entries = entries};
    aim(strict, policy, lane, &shard->target);
    return shard;
}

/* The key's place in the shard; a new one where it has none and there is room, or -1. The index is the batch's: keys of
 * other shards are other keys. */
static int64_t place_of(struct weir__strict *strict, struct weir__strict_batch *batch, struct weir__wire_strict *shard,
                        const struct weir__query *query, uint32_t most)
{
    struct weir__wire_key *keys = batch->shards[0].keys;
    uint32_t at = (uint32_t)query->hash % WEIR__STRICT_INDEX;

    for (; strict->index[at]; at = (at + 1) % WEIR__STRICT_INDEX) {
        const struct weir__wire_key *key = &keys[strict->index[at] - 1];

        if (key->key_len == query->key_len && !memcmp(key->key, query->key, key->key_len))
            return key - shard->keys;
    }
    if (batch->n_keys == most)
        return -1;
    keys[batch->n_keys] = (struct weir__wire_key){.key = query->key, .key_len = query->key_len};
    strict->index[at] = (uint16_t)++batch->n_keys;
    return shard->n_keys++;
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

/* Adds a query about the shard's key `key`. last: that key's last entry in the batch + 1, or 0. */
static void attach(struct weir__strict_batch *batch, struct weir__wire_strict *shard, struct weir__query *query,
                   int64_t key, uint32_t *last)
{
    struct weir__wire_strict_entry *entries = batch->shards[0].entries;
    uint32_t entry = *last;

    query->next = NULL;
    if (entry && merges(&entries[entry - 1], query)) {
        entries[--entry].count++;
        batch->ends[entry]->next = query;
    } else {
        entry = batch->n_entries++;
        shard->n_entries++;
        *last = entry + 1;
        entries[entry] =
            (struct weir__wire_strict_entry){.key = (uint32_t)key, .op = op_of(query), .cost = query->cost, .count = 1};
        batch->chains[entry] = query;
    }
    batch->ends[entry] = query;
    if (query->deadline > batch->deadline)
        batch->deadline = query->deadline;
}

/* Redis lost its state since it last spoke of this key: it is told what that was. */
static void tell_seen(struct weir__strict *strict, struct weir__strict_batch *batch, struct weir__wire_strict *shard,
                      const struct weir__strict_lane *lane, const struct weir__query *query, int64_t key)
{
    const struct weir__seam_policy *is = &weir__node_policy(strict->node, query->policy)->is;
    uint64_t age;
    double level;

    if (!lane->lost_at || batch->n_entries + 1 >= WEIR__WIRE_WAITS)
        return;
    if (!weir__seen_last(strict->node->seen, query->policy, query->hash, uv_hrtime(), lane->lost_at, &level, &age))
        return;
    /* who may write in Redis may have set any level: no debt is larger than this */
    level = fmax(level, -((double)is->burst + (double)is->max_overshoot));
    /* both rounded down: rather less is left than more */
    age = age / WEIR__MS < UINT32_MAX ? age / WEIR__MS : UINT32_MAX;
    batch->shards[0].entries[batch->n_entries] = (struct weir__wire_strict_entry){
        .key = (uint32_t)key, .op = WEIR__WIRE_SEEN, .cost = (int64_t)floor(level), .count = (uint32_t)age};
    batch->chains[batch->n_entries++] = NULL;
    shard->n_entries++;
}

static void give_up(struct weir__strict *strict, struct weir__query *query)
{
    weir__strict_fail(strict, query, 0);
}

/* Under backlog a script takes more, for its fixed cost is then what limits; but who wants a script a key has it. */
static uint32_t most_keys(const struct weir__strict *strict)
{
    uint32_t most = strict->node->batch_max;

    return weir__strict_is_backlog(strict) ? least(2 * most, WEIR__WIRE_RECORDS) : most;
}

static int is_strict(const struct weir__query *query)
{
    return query->item.kind != WEIR__QUERY_FORGET && query->item.kind != WEIR__QUERY_ALL;
}

/* Takes from the lane what fits; it may keep some. last: by the batch's keys. Returns 0 when the batch is full. */
static int fill_shard(struct weir__strict *strict, struct weir__strict_batch *batch, struct weir__strict_lanes *lanes,
                      struct weir__strict_lane *lane, uint32_t most, uint32_t *last)
{
    struct weir__wire_strict *shard = add_shard(strict, batch, weir__node_policy(strict->node, lanes->id), lane);
    struct weir__query *query;
    uint32_t *of_key;
    int64_t key = 0;

    while (key >= 0 && (query = lane->first) && is_strict(query)) {
        if (weir__query_abandoned(query)) {
            weir__strict_fail(strict, weir__strict_pop(strict, lanes, lane), 0);
            continue;
        }
        key = batch->n_entries < WEIR__WIRE_WAITS ? place_of(strict, batch, shard, query, most) : -1;
        if (key < 0)
            break;
        of_key = &last[shard->keys - batch->shards[0].keys + key];
        if (!*of_key)
            tell_seen(strict, batch, shard, lane, query, key);
        attach(batch, shard, weir__strict_pop(strict, lanes, lane), key, of_key);
    }
    if (!shard->n_entries)
        batch->n_shards--; /* all of them have left, or there was no room for one */
    return key >= 0;
}

/* May the policy's next lane join a batch? */
static int may_join(const struct weir__strict_lanes *lanes, const struct weir__strict_batch *batch)
{
    const struct weir__strict_lane *lane = lanes->first;

    return lane && (!lane->first || is_strict(lane->first)) && (!lane->alone || !batch->n_shards);
}

/* Whole lanes while there is room for them; the last one may be cut. */
static struct weir__strict_batch *build_strict(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                               uint64_t mono)
{
    const struct weir__policy *policy = weir__node_policy(strict->node, lanes->id);
    uint32_t most = most_keys(strict), shards = least(lanes->ready_count, most_shards(strict, policy, mono));
    uint32_t last[WEIR__WIRE_RECORDS];
    struct weir__strict_batch *batch = make_strict(strict, lanes, most, shards);
    struct weir__strict_lane *lane;
    int more = 1;

    if (!batch) {
        lane = weir__strict_next_lane(lanes);
        give_up(strict, weir__strict_pop(strict, lanes, lane));
        weir__strict_make_ready(strict, lanes, lane);
        return NULL;
    }
    memset(last, 0, least(lanes->queued, most) * sizeof *last);
    memset(strict->index, 0, sizeof strict->index);
    while (more && shards-- && may_join(lanes, batch)) {
        lane = weir__strict_next_lane(lanes);
        more = fill_shard(strict, batch, lanes, lane, most, last) && !lane->alone;
        weir__strict_make_ready(strict, lanes, lane);
    }
    batch->weight = batch->n_entries;
    return batch;
}

static struct weir__strict_batch *build_forget(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                               struct weir__strict_lane *lane)
{
    struct weir__strict_batch *batch = make(strict, sizeof(struct weir__query *) + sizeof(struct weir__wire_strict));
    struct weir__query *query = weir__strict_pop(strict, lanes, lane);

    if (!batch) {
        give_up(strict, query);
        return NULL;
    }
    batch->kind = WEIR__QUERY_FORGET;
    batch->chains = (struct weir__query **)(batch + 1);
    batch->chains[0] = query;
    batch->n_entries = 1;
    batch->deadline = query->deadline;
    batch->shards = (struct weir__wire_strict *)(batch->chains + 1);
    aim(strict, weir__node_policy(strict->node, lanes->id), lane, &batch->shards[0].target);
    return batch;
}

static struct weir__strict_batch *build_all(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                            struct weir__strict_lane *lane)
{
    struct weir__query *query = weir__strict_pop(strict, lanes, lane);
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
    batch->n_entries = 1;
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
        return weir__wire_strict_encode_all(&batch->bytes, batch->shards, batch->n_shards,
                                            weir__store_sha(store, WEIR__WIRE_STRICT));
    key = (struct weir__wire_key){.key = batch->chains[0]->key, .key_len = batch->chains[0]->key_len};
    return weir__wire_forget_encode(&batch->bytes, &batch->shards[0].target, &key, 1,
                                    weir__store_sha(store, WEIR__WIRE_FORGET));
}

/* One that is not merged. */
static struct weir__strict_batch *build_single(struct weir__strict *strict, struct weir__strict_lanes *lanes)
{
    struct weir__strict_lane *lane = weir__strict_next_lane(lanes);
    struct weir__strict_batch *batch = lane->first->item.kind == WEIR__QUERY_FORGET ? build_forget(strict, lanes, lane)
                                                                                    : build_all(strict, lanes, lane);

    weir__strict_make_ready(strict, lanes, lane);
    return batch;
}

struct weir__strict_batch *weir__strict_build(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                              uint64_t mono)
{
    struct weir__strict_batch *batch;

    while (lanes->first && !lanes->first->first)
        weir__strict_next_lane(lanes); /* all of it has left meanwhile */
    if (!lanes->first)
        return NULL;
    batch = is_strict(lanes->first->first) ? build_strict(strict, lanes, mono) : build_single(strict, lanes);
    if (!batch)
        return NULL;
    batch->id = lanes->id;
    if (batch->n_entries == 0 || encode(strict, batch)) {
        weir__strict_fail_batch(strict, batch);
        weir__strict_batch_free(strict, batch);
        return NULL;
    }
    return batch;
}
