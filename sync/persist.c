/* SPDX-License-Identifier: MIT */
/*
 * The layout of what a successor finds. It must not know who that is.
 */
#include "sync/persist.h"

#include <string.h>

#include <uv.h>

#define POLICIES 1024u /* of one limiter */
#define OUT 1u         /* of lane->out: a batch is on its way ... */
#define SECOND 2u      /* ... described by head[1] */

struct flight {
    uint64_t id;   /* of the key: weir__report.id */
    uint32_t next; /* slot + 1 of the next report of the batch; 0: the last */
    uint8_t slice, known;
    uint8_t spare[2];
    int64_t spent, refunded, fallback_spent;
    int64_t carried; /* as of the last answer; part of `spent` since */
    double age, level, rate, demand, want, max_cost, seed, seed_age, fallback;
    uint64_t now;
};
_Static_assert(sizeof(struct flight) <= 128, "what weir__seam_store promises");

struct head {
    struct weir__wire_numbers numbers;
    uint64_t seq, nonce;
    double epoch, rtt, nodes;
    uint64_t now, mono; /* when it was made: limiter's and machine's clock */
    uint32_t flags, first;
};

struct lane {
    _Atomic uint32_t out;
    uint32_t spare;
    uint64_t seq, answered_at;
    double epoch, q0, nodes;
    struct head head[2];
};

struct weir__persist {
    _Atomic uint64_t settings; /* shards and prefix, hashed; 0: nobody has started yet */
    _Atomic uint32_t named, asked, done;
    uint8_t id[WEIR__WIRE_ID];
    uint8_t used[POLICIES];
    _Alignas(64) struct lane lanes[POLICIES * WEIR__PERSIST_SHARDS];
    struct flight flights[];
};
_Static_assert(sizeof(struct weir__persist) <= (size_t)24 << 20, "what weir__seam_store promises");

static struct lane *lane_at(const struct weir__node *node, const struct weir__lane *lane)
{
    return &node->persist->lanes[lane->id * WEIR__PERSIST_SHARDS + lane->shard];
}

/* ---- the node ---------------------------------------------------------------------------------------------------- */

int weir__persist_open(struct weir__node *node)
{
    uint64_t settings = (UINT64_C(0xcbf29ce484222325) ^ node->shards) * UINT64_C(0x100000001b3), none = 0;
    size_t size;

    node->persist = weir__seam_store(node->w, &size);
    if (!node->persist)
        return 0;
    if (node->shards > WEIR__PERSIST_SHARDS)
        return WEIR_E_RANGE;
    for (const char *at = node->prefix; *at; at++)
        settings = (settings ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    settings |= 1;
    if (atomic_compare_exchange_strong_explicit(&node->persist->settings, &none, settings, memory_order_relaxed,
                                                memory_order_relaxed))
        return 0;
    return none == settings ? 0 : WEIR_E_MISMATCH;
}

void weir__persist_lead(struct weir__node *node)
{
    struct weir__persist *persist = node->persist;

    /* killed before it was named, the first one has sent nothing under its id */
    if (!atomic_load_explicit(&persist->named, memory_order_acquire)) {
        memcpy(persist->id, node->id, sizeof persist->id);
        atomic_store_explicit(&persist->named, 1, memory_order_release);
    }
    memcpy(node->id, persist->id, sizeof node->id);
}

int weir__persist_knows(const struct weir__node *node, weir_policy_id id)
{
    return node->persist && node->persist->used[id];
}

void weir__persist_load(const struct weir__node *node, struct weir__lane *lane)
{
    const struct lane *kept;

    if (!weir__persist_knows(node, lane->id))
        return;
    kept = lane_at(node, lane);
    lane->seq = kept->seq;
    lane->epoch = kept->epoch;
    lane->answered_at = kept->answered_at;
    lane->q0 = kept->q0;
    lane->nodes = kept->nodes;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static void keep_record(struct flight *flight, const struct weir__wire_record *record, const struct weir__out *out)
{
    if (flight->id != out->kept->id) {
        flight->id = out->kept->id;
        flight->carried = 0;
    }
    flight->slice = record->slice != 0;
    flight->known = record->known != 0;
    flight->spent = record->spent;
    flight->refunded = record->refunded;
    flight->fallback_spent = record->fallback_spent;
    flight->age = record->age;
    flight->level = record->level;
    flight->rate = record->rate;
    flight->demand = record->demand;
    flight->want = record->want;
    flight->max_cost = record->max_cost;
    flight->seed = record->seed;
    flight->seed_age = record->seed_age;
    flight->fallback = record->fallback;
    flight->now = out->now;
    flight->next = 0;
}

void weir__persist_batch(struct weir__node *node, const struct weir__batch *batch)
{
    const struct weir__wire_batch *wire = &batch->wire;
    struct lane *lane;
    uint32_t out, second, *link;
    struct head *head;

    if (!node->persist)
        return;
    node->persist->used[batch->lane->id] = 1;
    lane = lane_at(node, batch->lane);
    out = atomic_load_explicit(&lane->out, memory_order_relaxed);
    second = out & OUT ? ~out & SECOND : 0;
    head = &lane->head[second != 0];
    *head = (struct head){.numbers = wire->numbers,
                          .seq = wire->seq,
                          .nonce = wire->nonce,
                          .epoch = wire->epoch,
                          .rtt = wire->rtt,
                          .nodes = wire->nodes,
                          .now = batch->made_now,
                          .mono = batch->made_mono,
                          .flags = wire->flags};
    link = &head->first;
    for (uint32_t i = 0; i < wire->count; i++) {
        uint32_t slot = batch->outs[i]->kept->slot;
        struct flight *flight = &node->persist->flights[slot];

        keep_record(flight, &batch->records[i], batch->outs[i]);
        *link = slot + 1;
        link = &flight->next;
    }
    /* release: from here on a successor sends it */
    atomic_store_explicit(&lane->out, OUT | second, memory_order_release);
}

void weir__persist_done(struct weir__node *node, const struct weir__lane *lane)
{
    struct lane *kept;

    if (!node->persist)
        return;
    kept = lane_at(node, lane);
    kept->seq = lane->seq;
    kept->epoch = lane->epoch;
    kept->answered_at = lane->answered_at;
    kept->q0 = lane->q0;
    kept->nodes = lane->nodes;
    /* release: the number is there before the batch is gone */
    atomic_store_explicit(&kept->out, 0, memory_order_release);
}

void weir__persist_carry(struct weir__node *node, const struct weir__kept *kept)
{
    if (node->persist && node->persist->flights[kept->slot].id == kept->id)
        node->persist->flights[kept->slot].carried = kept->carried;
}

int64_t weir__persist_carried(const struct weir__node *node, const struct weir__kept *kept)
{
    if (!node->persist || node->persist->flights[kept->slot].id != kept->id)
        return 0;
    return node->persist->flights[kept->slot].carried;
}

/* ---- a successor ------------------------------------------------------------------------------------------------- */

static void fill_record(struct weir__wire_record *record, const struct flight *flight)
{
    *record = (struct weir__wire_record){.key = "",
                                         .spent = flight->spent,
                                         .refunded = flight->refunded,
                                         .fallback_spent = flight->fallback_spent,
                                         .age = flight->age,
                                         .slice = flight->slice,
                                         .level = flight->level,
                                         .rate = flight->rate,
                                         .demand = flight->demand,
                                         .want = flight->want,
                                         .max_cost = flight->max_cost,
                                         .known = flight->known,
                                         .seed = flight->seed,
                                         .seed_age = flight->seed_age,
                                         .fallback = flight->fallback};
}

/* The report goes on as it was. NULL: it has been answered; or *status: WEIR_E_CLOSED: and ended, as all of this batch
 * are to be; or WEIR_E_NOMEM. */
static struct weir__out *depart(struct weir__node *node, struct weir__keys *keys, uint32_t slot,
                                const struct flight *flight, struct weir__wire_record *record, int *status)
{
    struct weir__report report;
    struct weir__kept *kept;
    struct weir__out *out;
    int is_out = weir__seam_out(node->w, slot, &report);

    if (!is_out || report.id != flight->id) {
        *status = WEIR_E_CLOSED;
        return NULL;
    }
    record->key = report.key;
    record->key_len = report.key_len;
    if (is_out == WEIR__SEAM_ANSWERED)
        return NULL;
    report.level = flight->level;
    report.rate = flight->rate;
    report.now = flight->now;
    report.spent = flight->spent;
    kept = weir__keys_find(keys, &report);
    out = kept ? weir__keys_depart(keys, kept, &report, uv_hrtime()) : NULL;
    if (!out) {
        *status = WEIR_E_NOMEM;
        return NULL;
    }
    kept->held = flight->slice;
    kept->demand.cost = flight->max_cost;
    out->demand = flight->demand;
    out->want = flight->want;
    out->age = flight->age;
    out->slice = flight->slice;
    return out;
}

static uint32_t count_flights(const struct weir__persist *persist, const struct head *head)
{
    uint32_t count = 0;

    for (uint32_t next = head->first; next && count < WEIR__WIRE_RECORDS; next = persist->flights[next - 1].next)
        count++;
    return count;
}

static void describe(struct weir__node *node, struct weir__batch *batch, const struct head *head)
{
    struct weir__lane *lane = batch->lane;

    weir__node_target(node, lane->policy, lane->shard, &batch->wire.target);
    batch->wire.numbers = head->numbers;
    memcpy(batch->wire.node, node->id, sizeof node->id);
    batch->wire.seq = lane->seq = head->seq;
    batch->wire.nonce = head->nonce;
    batch->wire.epoch = lane->epoch = head->epoch;
    batch->wire.rtt = head->rtt;
    batch->wire.nodes = head->nodes;
    batch->wire.flags = head->flags;
    batch->made_now = batch->first_now = head->now;
    batch->made_mono = batch->first_mono = head->mono;
    batch->tries = 1; /* it may have been sent */
}

int weir__persist_revive(struct weir__node *node, struct weir__keys *keys, struct weir__lane *lane, const char *sha,
                         struct weir__batch **batch)
{
    struct lane *kept = lane_at(node, lane);
    uint32_t out = atomic_load_explicit(&kept->out, memory_order_acquire), next;
    const struct head *head = &kept->head[(out & SECOND) != 0];
    struct weir__batch *made;
    int status = 0;

    *batch = NULL;
    if (!(out & OUT))
        return 0;
    made = weir__batch_make(node, lane, count_flights(node->persist, head));
    if (!made)
        return WEIR_E_NOMEM;
    lane->batch = made;
    next = head->first;
    for (uint32_t i = 0; i < made->wire.count; i++) {
        const struct flight *flight = &node->persist->flights[next - 1];

        fill_record(&made->records[i], flight);
        made->slots[i] = next - 1;
        made->outs[i] = depart(node, keys, next - 1, flight, &made->records[i], &status);
        made->weight += weir__batch_weight(lane, flight->slice);
        next = flight->next;
    }
    made->weight += weir__batch_weight(lane, -1);
    describe(node, made, head);
    if (!status)
        status = weir__wire_sync_encode(&made->bytes, &made->wire, sha);
    *batch = made;
    return status;
}

/* ---- flushes ----------------------------------------------------------------------------------------------------- */

uint32_t weir__persist_ask(struct weir__node *node)
{
    return atomic_fetch_add_explicit(&node->persist->asked, 1, memory_order_acq_rel) + 1;
}

uint32_t weir__persist_asked(const struct weir__node *node)
{
    return atomic_load_explicit(&node->persist->asked, memory_order_acquire);
}

int weir__persist_is_flushed(const struct weir__node *node, uint32_t ticket)
{
    return (int32_t)(atomic_load_explicit(&node->persist->done, memory_order_acquire) - ticket) >= 0;
}

void weir__persist_flushed(struct weir__node *node, uint32_t ticket)
{
    atomic_store_explicit(&node->persist->done, ticket, memory_order_release);
}
