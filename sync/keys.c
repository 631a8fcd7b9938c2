/* SPDX-License-Identifier: MIT */
/*
 * Pools of fixed-size objects in chunks, and lists through them. It must not know what a report leads to.
 */
#include "sync/keys.h"

#include <string.h>

#include <uv.h>

#define CHUNK 256u /* objects */
#define LINE 64u

#define SHARD_BITS 12 /* of spot->lane, below the policy + 1 */
#define PART 27u      /* slots: two cache lines */

struct weir__part {
    struct weir__part *next;
    uint32_t self, taken, count;
    uint32_t slots[PART];
};
_Static_assert(sizeof(struct weir__part) <= 2 * LINE, "two lines");

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static int grow_pool(struct weir__node *node, struct weir__pool *pool)
{
    char *chunk;

    if (pool->chunk_count == pool->chunk_room) {
        uint32_t room = pool->chunk_room ? pool->chunk_room * 2 : 16;
        void **more = weir__node_alloc(node, room * sizeof(void *));

        if (!more)
            return -1;
        if (pool->chunk_count)
            memcpy(more, pool->chunks, pool->chunk_count * sizeof(void *));
        weir__node_free(node, pool->chunks, pool->chunk_room * sizeof(void *));
        pool->chunks = more;
        pool->chunk_room = room;
    }
    chunk = weir__node_alloc(node, CHUNK * pool->size + LINE);
    if (!chunk)
        return -1;
    pool->chunks[pool->chunk_count++] = chunk;
    return 0;
}

static void *object_at(const struct weir__pool *pool, uint32_t index)
{
    char *chunk = pool->chunks[index / CHUNK];

    return chunk + (-(uintptr_t)chunk & (LINE - 1)) + (index % CHUNK) * pool->size;
}

/* A zeroed object; *index is its place. */
static void *take_object(struct weir__node *node, struct weir__pool *pool, uint32_t *index)
{
    if (pool->free) {
        void *object = pool->free;

        memcpy(&pool->free, object, sizeof(void *));
        weir__keys_prefetch(pool->free);
        memcpy(index, (char *)object + sizeof(void *), sizeof *index);
        return memset(object, 0, pool->size);
    }
    if (pool->used == pool->chunk_count * CHUNK && grow_pool(node, pool))
        return NULL;
    *index = pool->used++;
    return object_at(pool, *index);
}

static void give_object(struct weir__pool *pool, void *object, uint32_t index)
{
    memcpy(object, &pool->free, sizeof(void *));
    memcpy((char *)object + sizeof(void *), &index, sizeof index);
    pool->free = object;
}

static void deinit_pool(struct weir__node *node, struct weir__pool *pool)
{
    for (uint32_t i = 0; i < pool->chunk_count; i++)
        weir__node_free(node, pool->chunks[i], CHUNK * pool->size + LINE);
    weir__node_free(node, pool->chunks, pool->chunk_room * sizeof(void *));
    memset(pool, 0, sizeof *pool);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

int weir__keys_init(struct weir__keys *keys, struct weir__node *node)
{
    memset(keys, 0, sizeof *keys);
    keys->node = node;
    keys->slots = weir__seam_slots(node->w);
    keys->kept.size = keys->outs.size = keys->parts.size = 2 * LINE;
    keys->spots = weir__node_alloc(node, keys->slots * sizeof *keys->spots);
    keys->due = weir__node_alloc(node, (keys->slots + 63) / 64 * sizeof *keys->due);
    if (keys->spots && keys->due)
        return 0;
    weir__keys_deinit(keys);
    return WEIR_E_NOMEM;
}

void weir__keys_deinit(struct weir__keys *keys)
{
    deinit_pool(keys->node, &keys->kept);
    deinit_pool(keys->node, &keys->outs);
    deinit_pool(keys->node, &keys->parts);
    for (uint32_t id = 0; id < keys->ring_count; id++)
        weir__node_free(keys->node, keys->held[id].shards, keys->node->shards * sizeof(struct weir__ring));
    weir__node_free(keys->node, keys->held, keys->ring_count * sizeof *keys->held);
    weir__node_free(keys->node, keys->rings, keys->ring_count * sizeof *keys->rings);
    weir__node_free(keys->node, keys->spots, keys->slots * sizeof *keys->spots);
    weir__node_free(keys->node, keys->due, (keys->slots + 63) / 64 * sizeof *keys->due);
    memset(keys, 0, sizeof *keys);
}

static int make_room(struct weir__keys *keys, uint32_t count)
{
    struct weir__ring(*rings)[WEIR__LISTS] = weir__node_alloc(keys->node, count * sizeof *rings);
    struct weir__held *held = weir__node_alloc(keys->node, count * sizeof *held);

    if (!rings || !held) {
        weir__node_free(keys->node, rings, count * sizeof *rings);
        weir__node_free(keys->node, held, count * sizeof *held);
        return 0;
    }
    if (keys->ring_count) {
        memcpy(rings, keys->rings, keys->ring_count * sizeof *rings);
        memcpy(held, keys->held, keys->ring_count * sizeof *held);
    }
    weir__node_free(keys->node, keys->rings, keys->ring_count * sizeof *rings);
    weir__node_free(keys->node, keys->held, keys->ring_count * sizeof *held);
    keys->rings = rings;
    keys->held = held;
    keys->ring_count = count;
    return 1;
}

struct weir__ring *weir__keys_rings(struct weir__keys *keys, weir_policy_id id)
{
    if (id >= keys->ring_count && !make_room(keys, (id / 16 + 1) * 16))
        return NULL;
    if (!keys->held[id].shards)
        keys->held[id].shards = weir__node_alloc(keys->node, keys->node->shards * sizeof(struct weir__ring));
    return keys->held[id].shards ? keys->rings[id] : NULL;
}

struct weir__kept *weir__keys_at(const struct weir__keys *keys, uint32_t slot)
{
    uint32_t index = keys->spots[slot].kept;

    return index ? object_at(&keys->kept, index - 1) : NULL;
}

struct weir__kept *weir__keys_find(struct weir__keys *keys, const struct weir__report *report)
{
    struct weir__kept *kept = weir__keys_at(keys, report->slot);
    struct weir__spot *spot = &keys->spots[report->slot];
    uint32_t index;

    if (kept) {
        if (kept->id == report->id && kept->policy == report->policy)
            return kept;
        if (kept->out)
            return NULL; /* pinned, so it can't be; never free what a report refers to */
        weir__keys_drop(keys, kept);
    }
    if (!weir__keys_rings(keys, report->policy))
        return NULL;
    kept = take_object(keys->node, &keys->kept, &index);
    if (!kept)
        return NULL;
    kept->self = index;
    kept->id = report->id;
    kept->slot = report->slot;
    kept->policy = report->policy;
    kept->shard = weir__wire_shard(report->key, report->key_len, keys->node->shards);
    spot->kept = index + 1;
    spot->lane = (report->policy + 1) << SHARD_BITS | kept->shard;
    return kept;
}

static struct weir__ring *ring_for(struct weir__keys *keys, const struct weir__kept *kept, unsigned list)
{
    return list == WEIR__LIST_HELD ? &keys->held[kept->policy].shards[kept->shard] : &keys->rings[kept->policy][list];
}

static void unlink_kept(struct weir__keys *keys, struct weir__kept *kept)
{
    struct weir__ring *ring = ring_for(keys, kept, kept->list);

    if (kept->list == WEIR__LIST_NONE)
        return;
    if (kept->list == WEIR__LIST_HELD) {
        keys->held[kept->policy].count--;
        keys->spots[kept->slot].lane &= ~WEIR__SPOT_HELD;
    }
    if (kept->prev)
        kept->prev->next = kept->next;
    else
        ring->first = kept->next;
    if (kept->next)
        kept->next->prev = kept->prev;
    else
        ring->last = kept->prev;
    ring->count--;
    kept->prev = kept->next = NULL;
    kept->list = WEIR__LIST_NONE;
}

/* Where a key that holds a slice belongs: the list is in the order of the last reports. Mostly at its end; what an
 * outage held up, at its front. */
static struct weir__kept *last_before(const struct weir__ring *ring, const struct weir__kept *kept)
{
    struct weir__kept *before = ring->last;

    if (ring->first && ring->first->reported_at >= kept->reported_at)
        return NULL;
    while (before && before->reported_at > kept->reported_at)
        before = before->prev;
    return before;
}

struct weir__kept *weir__keys_oldest(struct weir__keys *keys, weir_policy_id id, uint64_t before)
{
    struct weir__held *held;

    if (!weir__keys_rings(keys, id))
        return NULL;
    held = &keys->held[id];
    for (uint32_t i = 0; i < keys->node->shards; i++) {
        struct weir__kept *first = held->shards[held->at].first;

        if (first && first->reported_at < before)
            return first;
        held->at = held->at + 1 < keys->node->shards ? held->at + 1 : 0;
    }
    return NULL;
}

void weir__keys_move(struct weir__keys *keys, struct weir__kept *kept, enum weir__list list)
{
    struct weir__ring *ring = ring_for(keys, kept, list);

    unlink_kept(keys, kept);
    if (list == WEIR__LIST_NONE)
        return;
    if (list == WEIR__LIST_HELD) {
        keys->held[kept->policy].count++;
        keys->spots[kept->slot].lane |= WEIR__SPOT_HELD;
    }
    kept->list = (uint8_t)list;
    kept->prev = list == WEIR__LIST_HELD ? last_before(ring, kept) : ring->last;
    kept->next = kept->prev ? kept->prev->next : ring->first;
    if (kept->prev)
        kept->prev->next = kept;
    else
        ring->first = kept;
    if (kept->next)
        kept->next->prev = kept;
    else
        ring->last = kept;
    ring->count++;
}

void weir__keys_drop(struct weir__keys *keys, struct weir__kept *kept)
{
    unlink_kept(keys, kept);
    keys->spots[kept->slot].kept = 0;
    give_object(&keys->kept, kept, kept->self);
}

/* ---- what is due ------------------------------------------------------------------------------------------------- */

int weir__keys_lane(const struct weir__keys *keys, uint32_t slot, weir_policy_id *policy, uint32_t *shard)
{
    uint32_t lane = keys->spots[slot].lane & ~WEIR__SPOT_HELD;

    *policy = (lane >> SHARD_BITS) - 1;
    *shard = lane & ((1u << SHARD_BITS) - 1);
    return lane != 0;
}

int weir__keys_due(struct weir__keys *keys, struct weir__due *due, uint32_t slot)
{
    struct weir__part *part = due->last;
    uint32_t index;

    if (!part || part->count == PART) {
        part = take_object(keys->node, &keys->parts, &index);
        if (!part)
            return 0;
        part->self = index;
        if (due->last)
            due->last->next = part;
        else
            due->first = part;
        due->last = part;
    }
    part->slots[part->count++] = slot;
    keys->due[slot / 64] |= UINT64_C(1) << slot % 64;
    due->count++;
    keys->due_count++;
    return 1;
}

uint32_t weir__keys_take_due(struct weir__keys *keys, struct weir__due *due, uint32_t *slots, uint32_t n)
{
    struct weir__part *part;
    uint32_t taken = 0;

    while (taken < n && (part = due->first)) {
        uint32_t slot = part->slots[part->taken++];

        keys->due[slot / 64] &= ~(UINT64_C(1) << slot % 64);
        slots[taken++] = slot;
        due->count--;
        if (part->taken < part->count)
            continue;
        due->first = part->next;
        if (!due->first)
            due->last = NULL;
        give_object(&keys->parts, part, part->self);
    }
    keys->due_count -= taken;
    return taken;
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

struct weir__out *weir__keys_depart(struct weir__keys *keys, struct weir__kept *kept, const struct weir__report *report,
                                    uint64_t mono)
{
    uint32_t index;
    struct weir__out *out = take_object(keys->node, &keys->outs, &index);

    if (!out)
        return NULL;
    out->self = index;
    out->kept = kept;
    out->key = report->key;
    out->key_len = (uint16_t)report->key_len;
    out->slot = report->slot;
    out->spent = report->spent;
    out->refunded = report->refunded;
    out->fallback_spent = report->fallback_spent;
    out->level = report->level;
    out->rate = report->rate;
    out->now = report->now;
    kept->out = 1;
    kept->reported_at = mono;
    keys->out_count++;
    keys->out_spent += out->spent;
    return out;
}

void weir__keys_arrive(struct weir__keys *keys, struct weir__out *out)
{
    out->kept->out = 0;
    keys->out_count--;
    keys->stranded_count -= out->stranded;
    keys->out_spent -= out->spent;
    keys->out_carried -= out->carried;
    give_object(&keys->outs, out, out->self);
}

void weir__keys_strand(struct weir__keys *keys, struct weir__out *out)
{
    keys->stranded_count += !out->stranded;
    out->stranded = 1;
}

double weir__keys_total(const struct weir__kept *kept, const struct weir__slice_terms *terms, uint64_t mono)
{
    double total = kept->total + terms->rate * ((double)(mono - kept->total_at) / 1e9);

    return total < terms->burst ? total : terms->burst;
}

void weir__keys_carry(struct weir__keys *keys, struct weir__out *out)
{
    struct weir__kept *kept = out->kept;

    out->carried = kept->carried;
    out->spent += kept->carried;
    keys->out_spent += kept->carried;
    keys->out_carried += kept->carried;
    kept->carried = 0;
}

uint64_t weir__keys_carried(const struct weir__keys *keys, uint32_t *slices)
{
    uint64_t carried = keys->out_carried > 0 ? (uint64_t)keys->out_carried : 0;

    *slices = 0;
    for (uint32_t id = 0; id < keys->ring_count; id++)
        for (uint32_t i = 0; keys->held[id].shards && i < keys->node->shards; i++)
            for (const struct weir__kept *kept = keys->held[id].shards[i].first; kept; kept = kept->next) {
                *slices += kept->held != 0;
                carried += kept->carried > 0 ? (uint64_t)kept->carried : 0;
            }
    return carried;
}
