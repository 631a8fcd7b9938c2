/* SPDX-License-Identifier: MIT */
/*
 * Builds batches. It must not know when they are sent, nor what their answers do.
 */
#include "sync/batch.h"

#include <math.h>
#include <string.h>

#include "sync/persist.h"

/* A record with a slice costs Redis as much as so many without, and one more for every so many nodes that may hold one
 * of the same key: they are in one value, which is read and written whole. */
#define LONG_WEIGHT 4u
#define NODES_WEIGHT 8
#define EMPTY_WEIGHT 16u /* a script by itself, twice over: a fleet that starts at once sends many */

void weir__lane_queue(struct weir__lane *lane, struct weir__out *out)
{
    out->next = NULL;
    if (lane->last)
        lane->last->next = out;
    else
        lane->first = out;
    lane->last = out;
    lane->queued++;
}

struct weir__out *weir__lane_unqueue(struct weir__lane *lane)
{
    struct weir__out *out = lane->first;

    if (!out)
        return NULL;
    lane->first = out->next;
    if (!lane->first)
        lane->last = NULL;
    lane->queued--;
    return out;
}

uint32_t weir__batch_weight(const struct weir__lane *lane, int slice)
{
    if (slice <= 0)
        return slice < 0 ? EMPTY_WEIGHT : 1;
    return LONG_WEIGHT + (uint32_t)(fmin(fmax(lane->nodes, 0), 1000) / NODES_WEIGHT);
}

/* How many of the queued reports one batch carries. */
static uint32_t count_fitting(const struct weir__node *node, const struct weir__lane *lane, uint32_t *weight)
{
    uint32_t count = 0;

    *weight = 0;
    for (const struct weir__out *out = lane->first; out && count < WEIR__WIRE_RECORDS; out = out->next) {
        uint32_t more = weir__batch_weight(lane, out->slice);

        if (count && *weight + more > node->batch_max)
            break;
        *weight += more;
        count++;
    }
    *weight += EMPTY_WEIGHT;
    return count;
}

struct weir__batch *weir__batch_make(struct weir__node *node, struct weir__lane *lane, uint32_t count)
{
    size_t each = sizeof(struct weir__wire_record) + sizeof(struct weir__wire_grant) + sizeof(struct weir__out *) +
                  sizeof(uint32_t);
    size_t size = sizeof(struct weir__batch) + count * each;
    struct weir__batch *batch = weir__seam_alloc(node->w, size);

    if (!batch)
        return NULL;
    memset(batch, 0, sizeof *batch); /* the rest is filled by whoever asked for it */
    batch->size = size;
    batch->lane = lane;
    batch->records = (struct weir__wire_record *)(batch + 1);
    batch->grants = (struct weir__wire_grant *)(batch->records + count);
    batch->outs = (struct weir__out **)(batch->grants + count);
    batch->slots = (uint32_t *)(batch->outs + count);
    batch->wire.records = batch->records;
    batch->wire.count = count;
    weir__wire_buf_init(&batch->bytes, &node->mem);
    return batch;
}

static void fill_record(struct weir__wire_record *record, const struct weir__out *out)
{
    record->key = out->key;
    record->key_len = out->key_len;
    record->spent = out->spent;
    record->refunded = out->refunded;
    record->fallback_spent = out->fallback_spent;
    record->age = out->age;
    record->slice = out->slice;
    record->level = out->level;
    record->rate = out->rate;
    record->demand = out->demand;
    record->want = out->want;
    record->max_cost = out->max_cost;
    record->known = 0;
    record->seed = record->seed_age = record->fallback = 0;
    record->waits = NULL;
    record->n_waits = 0;
}

/* Was the key's total told before Redis lost its state, and by nobody since? */
static int remembers(const struct weir__lane *lane, const struct weir__kept *kept)
{
    return kept->known && kept->total_at < lane->lost_at;
}

/* What the key's share refilled in an outage. */
static double fallback_of(const struct weir__lane *lane, const struct weir__kept *kept)
{
    double rate, burst;

    weir__slice_share(&lane->policy->terms, lane->nodes, &rate, &burst);
    return kept->fallback > 0 ? kept->fallback : rate;
}

/* Says hello where Redis need not know this node any more, or where it must be told what it once said of a key. What it
 * said since holds in any case, and would be charged for twice. */
static void greet(struct weir__batch *batch, uint64_t mono)
{
    const struct weir__lane *lane = batch->lane;
    int hello = lane->epoch == 0 || mono - lane->answered_at > (uint64_t)(WEIR__WIRE_REMEMBER / 2 * 1e9);

    for (uint32_t i = 0; i < batch->wire.count && lane->lost_at; i++) {
        const struct weir__kept *kept = batch->outs[i]->kept;

        batch->records[i].known = remembers(lane, kept);
        if (batch->records[i].known) {
            batch->records[i].seed = kept->total;
            batch->records[i].seed_age = (double)(mono - kept->total_at) / 1e9;
            batch->records[i].fallback = fallback_of(lane, kept);
            hello = 1;
        }
    }
    if (hello) {
        batch->wire.flags |= WEIR__WIRE_HELLO;
        batch->wire.nodes = lane->nodes;
    }
}

struct weir__batch *weir__batch_build(struct weir__node *node, struct weir__lane *lane, uint64_t mono, uint64_t now,
                                      const char *sha)
{
    uint32_t weight, count = count_fitting(node, lane, &weight);
    uint64_t oldest = now;
    struct weir__batch *batch = weir__batch_make(node, lane, count);
    struct weir__out *out = lane->first;

    if (!batch)
        return NULL;
    batch->weight = weight;
    batch->made_now = now;
    batch->made_mono = mono;
    for (uint32_t i = 0; i < count; i++, out = out->next) {
        batch->outs[i] = out;
        batch->slots[i] = out->slot;
        fill_record(&batch->records[i], out);
        oldest = out->now < oldest ? out->now : oldest;
    }
    weir__node_target(node, lane->policy, lane->shard, &batch->wire.target);
    batch->wire.numbers = lane->policy->numbers;
    memcpy(batch->wire.node, node->id, sizeof node->id);
    batch->wire.seq = lane->seq + 1;
    batch->wire.nonce = weir__node_random(node);
    batch->wire.epoch = lane->epoch;
    /* the round trip that Redis must allow for: some reports waited before they left */
    batch->wire.rtt = node->rtt + (double)(now - oldest) / 1e9;
    if (lane->policy->is.on_outage == WEIR_OUTAGE_LOCAL)
        batch->wire.flags |= WEIR__WIRE_OUTAGE_LOCAL;
    greet(batch, mono);
    if (weir__wire_sync_encode(&batch->bytes, &batch->wire, sha)) {
        weir__wire_buf_deinit(&batch->bytes);
        weir__node_free(node, batch, batch->size);
        return NULL;
    }
    lane->first = out;
    if (!out)
        lane->last = NULL;
    lane->queued -= count;
    lane->seq++;
    lane->presence = lane->hurry = 0;
    lane->batch = batch;
    weir__persist_batch(node, batch);
    return batch;
}

/* What was answered to a process that has ended since is not told again. */
static void leave_out_answered(struct weir__node *node, struct weir__batch *batch)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < batch->wire.count; i++) {
        if (!batch->outs[i]) {
            weir__seam_end(node->w, batch->slots[i]);
            continue;
        }
        batch->outs[count] = batch->outs[i];
        batch->slots[count] = batch->slots[i];
        batch->records[count++] = batch->records[i];
    }
    batch->wire.count = count;
}

int weir__batch_again(struct weir__node *node, struct weir__batch *batch, double epoch, double last, uint64_t mono,
                      const char *sha)
{
    struct weir__lane *lane = batch->lane;
    struct weir__wire_batch before = batch->wire;
    struct weir__wire_buf bytes;

    leave_out_answered(node, batch);
    batch->wire.epoch = epoch;
    batch->wire.seq = lane->seq + 1;
    if (last >= (double)batch->wire.seq)
        batch->wire.seq = (uint64_t)last + 1;
    batch->wire.flags |= WEIR__WIRE_HELLO;
    greet(batch, mono);
    weir__wire_buf_init(&bytes, &node->mem);
    if (weir__wire_sync_encode(&bytes, &batch->wire, sha)) {
        weir__wire_buf_deinit(&bytes);
        before.count = batch->wire.count;
        batch->wire = before;
        return WEIR_E_NOMEM;
    }
    weir__wire_buf_deinit(&batch->bytes);
    batch->bytes = bytes;
    lane->seq = batch->wire.seq;
    lane->epoch = epoch;
    weir__persist_batch(node, batch);
    return 0;
}

void weir__batch_free(struct weir__node *node, struct weir__batch *batch)
{
    batch->lane->batch = NULL;
    weir__wire_buf_deinit(&batch->bytes);
    weir__node_free(node, batch, batch->size);
}
