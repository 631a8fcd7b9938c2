/* SPDX-License-Identifier: MIT */
/*
 * What becomes of a batch: its grants are put in force, or it goes again as it is until it is answered. A batch is
 * given up by nobody but weir__reconcile_stop: until then each of its tokens is told to Redis exactly once.
 */
#include "sync/persist.h"
#include "sync/reconcile_state.h"

#include <math.h>

#include <hiredis/hiredis.h>

#define PROBE_NS (100 * WEIR__MS)
#define AT_ONCE 2u /* repeats of a batch in doubt that nothing puts off: a slice outlives three times a timeout */
#define PAUSE_MAX_NS (5 * WEIR__SECOND)
#define QUIET_NS (10 * WEIR__SECOND) /* one line for all shards */
#define RUN 16u         /* entries worked on together: the next ones are on their way from memory meanwhile */
#define LOST_AT_ONCE 3u /* a Redis that loses its state more often than that in a row is asked at leisure */

/* ---- it was applied ---------------------------------------------------------------------------------------------- */

/* A debt has a floor in Redis; whole tokens below it were not taken and are reported again. */
static int64_t below_floor(const struct weir__wire_numbers *numbers, double total, int64_t spent)
{
    double bottom = -((double)numbers->burst + (double)numbers->overshoot);

    if (total >= bottom || spent <= 0)
        return 0;
    return (int64_t)fmin(floor(bottom - total), (double)spent);
}

/* s for which a key without a slice has nothing to expect. */
static double bare_hold(const struct weir__slice_terms *terms, double free)
{
    return free < 1 ? (1 - free) / terms->rate : 0;
}

/* Of what a report told, the tokens that the bucket did not have: what others spend below it is theirs. */
static uint64_t overshot(double total, int64_t spent, int64_t carried)
{
    double under = total < 0 ? fmin(-total, (double)spent) - (double)carried : 0;

    return under > 0 ? (uint64_t)llround(under) : 0; /* parts of a token: now one too many, now too few */
}

/* What is put in force of an answer, and what is kept of it. */
static void take_in(struct weir__reconcile *rec, struct weir__lane *lane, struct weir__out *out,
                    const struct weir__wire_grant *grant, const struct weir__wire_head *head, uint64_t mono,
                    uint64_t now, struct weir__grant *force)
{
    const struct weir__slice_terms *terms = &lane->policy->terms;
    struct weir__kept *kept = out->kept;
    struct weir__slice_ask ask = {
        .level = out->level, .rate = out->rate, .demand = out->demand, .want = out->want, .sent_ns = out->now};
    struct weir__slice_answer answer = {.level = out->slice ? grant->level : weir__slice_owed(out->level, grant->free),
                                        .rate = grant->rate,
                                        .cap = grant->cap,
                                        .fallback = out->slice ? grant->fallback : -1,
                                        .hold = out->slice ? grant->hold : bare_hold(terms, grant->free),
                                        .total = grant->total,
                                        .free = grant->free,
                                        .rich = grant->rich};

    weir__slice_grant(terms, &ask, &answer, now, rec->node->rtt, force);
    if (force->rate <= 0 && force->cap <= 0)
        force->until = 0; /* no slice that could end */
    kept->carried = below_floor(&head->numbers, grant->total, out->spent);
    if (grant->total < 0)
        weir__seam_overshoot(rec->node->w, lane->id, overshot(grant->total, out->spent, kept->carried));
    weir__persist_carry(rec->node, kept); /* first: once it is applied nobody asks again */
    kept->known = 1;
    kept->total = grant->total;
    if (out->slice)
        kept->fallback = grant->fallback;
    kept->total_at = mono;
    kept->held = out->slice ? !weir__slice_nothing(&ask, &answer) : answer.level < 0;
    if (rec->draining && answer.rate <= 0 && answer.level < 1e-9)
        kept->held = 0; /* a debt, at most: there is nothing to give back */
}

/* All of it was touched when the batch left; but whoever had the CPU since may have pushed it out of the caches.
 * Fetched in two steps, for one leads to the other. */
static void fetch(const struct weir__reconcile *rec, const struct weir__batch *batch, uint32_t i)
{
    if (i + RUN < batch->wire.count)
        weir__keys_prefetch(batch->outs[i + RUN]);
    if (i < batch->wire.count && batch->outs[i]) {
        weir__seam_prefetch(rec->node->w, batch->slots[i]);
        weir__keys_prefetch(batch->outs[i]->kept);
    }
}

/* A run at a time, for the table is taken hold of once a run. */
static void take_all_in(struct weir__reconcile *rec, struct weir__batch *batch, const struct weir__wire_head *head,
                        uint64_t mono, uint64_t now)
{
    struct weir__out *outs[RUN];
    struct weir__grant force[RUN];
    uint32_t slots[RUN], run;

    for (uint32_t i = 0; i < RUN; i++)
        fetch(rec, batch, i);
    for (uint32_t i = 0; i < batch->wire.count;) {
        for (run = 0; i < batch->wire.count && run < RUN; i++) {
            fetch(rec, batch, i + RUN);
            if (!batch->outs[i])
                continue;
            take_in(rec, batch->lane, batch->outs[i], &batch->grants[i], head, mono, now, &force[run]);
            slots[run] = batch->slots[i];
            outs[run++] = batch->outs[i];
        }
        weir__seam_apply_all(rec->node->w, slots, run, now, force);
        for (uint32_t j = 0; j < run; j++)
            weir__reconcile_settle(rec, outs[j]);
    }
}

static void applied(struct weir__reconcile *rec, struct weir__batch *batch, const struct weir__wire_head *head)
{
    struct weir__node *node = rec->node;
    struct weir__lane *lane = batch->lane;
    struct weir__course *course = &rec->courses[lane->id];
    uint64_t mono = uv_hrtime(), now = weir_now(node->w);

    weir__measure_add(&node->count.sync_took, mono - batch->sent_at);
    WEIR__PROBE4(batch_done, lane->id, lane->shard, batch->wire.count, mono - batch->sent_at);
    if (batch->tries == 0)
        node->rtt = weir__slice_rtt(node->rtt, (double)(mono - batch->sent_at) / 1e9);
    weir__node_learn(node, lane->id, head);
    lane->epoch = head->epoch;
    lane->answered_at = batch->first_mono;
    /* a fleet that starts or grows: what this node was promised is not yet its share */
    lane->settles = lane->q0 != head->q0 || lane->nodes != head->nodes || !lane->settles ? node->interval_ns / 2
                                                                                         : 2 * lane->settles;
    lane->q0 = head->q0;
    lane->nodes = head->nodes;
    course->news = 1;
    if (batch->tries) /* late: what it granted may have run out already */
        weir__reconcile_walk(rec, lane->id, batch->first_mono + 1);
    if (head->healed > 0)
        weir__seam_log(node->w, WEIR_LOG_WARN, "policy %s: %.0f values in Redis made no sense and were replaced",
                       lane->policy->is.name, head->healed);
    weir__reconcile_alive(rec, batch->first_now);
    take_all_in(rec, batch, head, mono, now);
    weir__count_add(&node->count.reports, batch->wire.count);
    /* A successor that finds one of them ended knows that all were answered. */
    for (uint32_t i = 0; node->persist && i < batch->wire.count; i++)
        weir__seam_end(node->w, batch->slots[i]);
    weir__persist_done(node, lane);
    weir__batch_free(node, batch);
    weir__reconcile_ready(rec, lane);
    weir__count_add(&node->count.syncs, 1);
    atomic_store_explicit(&node->count.last_sync_ns, now, memory_order_relaxed);
    if (rec->collect || course->walk)
        weir__reconcile_busy(rec);
}

/* ---- it was not -------------------------------------------------------------------------------------------------- */

/* All that this node knows of the policy's keys is told again. */
static void recall(struct weir__reconcile *rec, weir_policy_id id)
{
    struct weir__ring *rings = weir__keys_rings(&rec->keys, id);

    while (rings && rings[WEIR__LIST_KNOWN].first)
        weir__keys_move(&rec->keys, rings[WEIR__LIST_KNOWN].first, WEIR__LIST_RECALL);
    weir__reconcile_walk(rec, id, uv_hrtime());
}

/* The others of the policy's shards are likely to have lost theirs: each must hear soon from all whom it knew, for it
 * keeps accounts for them until then. */
static void greet_all(struct weir__reconcile *rec, const struct weir__course *course, uint64_t mono)
{
    for (uint32_t i = 0; i < rec->node->shards; i++) {
        struct weir__lane *lane = &course->lanes[i];

        if (!lane->answered_at || (lane->lost_at && mono - lane->lost_at < QUIET_NS))
            continue;
        lane->presence = 1;
        weir__reconcile_ready(rec, lane);
    }
}

static void state_lost(struct weir__reconcile *rec, struct weir__batch *batch, const struct weir__wire_head *head)
{
    struct weir__node *node = rec->node;
    struct weir__lane *lane = batch->lane;
    struct weir__course *course = &rec->courses[lane->id];
    uint64_t mono = uv_hrtime();

    if (!course->lost_at || mono - course->lost_at > QUIET_NS)
        weir__seam_log(node->w, WEIR_LOG_WARN, "policy %s: Redis has lost its state and is told again (shard %u first)",
                       lane->policy->is.name, lane->shard);
    WEIR__PROBE2(state_lost, lane->id, lane->shard);
    lane->lost_at = mono;
    if (!course->lost_at || mono - course->lost_at > QUIET_NS)
        greet_all(rec, course, mono);
    course->lost_at = mono;
    recall(rec, lane->id);
    batch->lost++;
    if (weir__batch_again(node, batch, head->epoch, head->last, mono, weir__store_sha(node->store, WEIR__WIRE_SYNC)))
        weir__reconcile_park(rec, batch, mono + PROBE_NS);
    else
        weir__reconcile_park(rec, batch, batch->lost > LOST_AT_ONCE ? mono + WEIR__SECOND : mono);
}

static void mismatch(struct weir__reconcile *rec, struct weir__batch *batch, const struct weir__wire_head *head)
{
    struct weir__node *node = rec->node;
    struct weir__lane *lane = batch->lane;

    if (!lane->policy->mismatched)
        weir__seam_log(node->w, WEIR_LOG_ERROR, "policy %s: %s: format %u and %u shards, not %d and %u",
                       lane->policy->is.name, weir_strerror(WEIR_E_MISMATCH), head->format, head->shards,
                       WEIR__WIRE_FORMAT, node->shards);
    lane->policy->mismatched = 1;
    weir__count_add(&node->count.sync_errors, 1);
    weir__reconcile_park(rec, batch, uv_hrtime() + WEIR__SECOND);
}

/* Slices whose answer is late grow no more, as of when it was due: Redis may have given what they would grow by to
 * others. */
static void pause_slices(struct weir__reconcile *rec, struct weir__batch *batch)
{
    uint64_t now = weir_now(rec->node->w), due = batch->sent_at + rec->node->timeout_ns, mono = uv_hrtime();

    now -= mono > due && mono - due < now ? mono - due : 0;
    for (uint32_t i = 0; i < batch->wire.count; i++)
        if (batch->outs[i] && batch->outs[i]->rate > 0)
            weir__seam_pause(rec->node->w, batch->outs[i]->kept->slot, now);
}

static void strand(struct weir__reconcile *rec, struct weir__out *out, uint64_t now)
{
    weir__keys_strand(&rec->keys, out);
    weir__seam_strand(rec->node->w, out->kept->slot, now);
}

void weir__answer_strand(struct weir__reconcile *rec, struct weir__batch *batch, uint64_t now)
{
    struct weir__lane *lane = batch->lane;

    batch->stranded = 1;
    for (uint32_t i = 0; i < batch->wire.count; i++)
        if (batch->outs[i])
            strand(rec, batch->outs[i], now);
    for (struct weir__out *out = lane->first; out; out = out->next)
        strand(rec, out, now);
    if (!lane->due.count)
        return;
    weir__report_forget(rec, lane); /* found again, they don't wait for the lane's turn: some each turn of the loop */
    weir__flush_resweep(rec);
    weir__reconcile_busy(rec);
}

/* Its slices grow no more, and it counts as one that failed, whatever still comes of it. */
static void doubt(struct weir__reconcile *rec, struct weir__batch *batch, enum weir__link_kind kind, int replied)
{
    if (batch->tries == 0) {
        pause_slices(rec, batch);
        if (!replied) /* it took so long at least, and the next ones may: Redis reserves what refills meanwhile */
            rec->node->rtt = weir__slice_late(rec->node->rtt, (double)rec->node->timeout_ns / 1e9);
        weir__seam_log(rec->node->w, WEIR_LOG_DEBUG,
                       "policy %s, shard %u: %s: goes again if it stays without an answer",
                       batch->lane->policy->is.name, batch->lane->shard, weir__link_kind_label(kind));
    }
    WEIR__PROBE4(batch_fail, batch->lane->id, batch->lane->shard, weir__link_kind_label(kind), batch->tries);
    batch->tries++;
    weir__count_add(&rec->node->count.sync_errors, 1);
}

/* Answers come in the order of the commands: while this one may come, a repeat would only be answered after it. */
void weir__answer_late(void *arg)
{
    struct weir__batch *batch = arg;
    struct weir__reconcile *rec = batch->owner;

    batch->late = 1;
    if (!rec->stopped)
        doubt(rec, batch, WEIR__LINK_TIMEOUT, 0);
}

/* In doubt or refused: the same bytes go again. At once where nothing came back in time, for a repeat is harmless; an
 * error reply would be the same again. */
static void failed(struct weir__reconcile *rec, struct weir__batch *batch, enum weir__link_kind kind, int replied)
{
    unsigned before = batch->late ? batch->tries - 1 : batch->tries;
    uint64_t pause = PROBE_NS << (before < 6 ? before : 6);

    if (!batch->late)
        doubt(rec, batch, kind, replied);
    if (!replied || batch->late)
        pause = before < AT_ONCE ? 0 : PROBE_NS;
    weir__reconcile_park(rec, batch, uv_hrtime() + (pause < PAUSE_MAX_NS ? pause : PAUSE_MAX_NS));
}

void weir__answer_batch(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct weir__batch *batch = arg;
    struct weir__reconcile *rec = batch->owner;
    struct weir__wire_head head;

    batch->flying = 0;
    rec->flying -= batch->weight;
    if (rec->stopped) {
        weir__batch_free(rec->node, batch);
        return;
    }
    if (kind != WEIR__LINK_OK) {
        failed(rec, batch, kind, reply != NULL);
        return;
    }
    if (reply->type != REDIS_REPLY_STRING ||
        weir__wire_sync_decode(&batch->wire, reply->str, reply->len, &head, batch->grants)) {
        weir__seam_log(rec->node->w, WEIR_LOG_ERROR, "policy %s: Redis answers what is no answer",
                       batch->lane->policy->is.name);
        failed(rec, batch, WEIR__LINK_PROTOCOL, 1);
        weir__store_fault(rec->node->store, WEIR__LINK_PROTOCOL);
        return;
    }
    switch (head.status) {
    case WEIR__WIRE_APPLIED:
    case WEIR__WIRE_REPEAT: applied(rec, batch, &head); break;
    case WEIR__WIRE_LOST:
    case WEIR__WIRE_OLD: state_lost(rec, batch, &head); break;
    case WEIR__WIRE_MISMATCH: mismatch(rec, batch, &head); break;
    }
    weir__flush_advance(rec);
}
