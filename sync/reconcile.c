/* SPDX-License-Identifier: MIT */
/*
 * What is due, when it is reported, and which batch goes next. It must not know what an answer does (answer.c) or who
 * waits for it (flush.c).
 */
#include "sync/leader.h"
#include "sync/persist.h"
#include "sync/reconcile_state.h"

#include <math.h>
#include <string.h>

#define SLICE_OF_WORK 512u /* reports taken in one turn of the loop: well under a millisecond */
#define RIPE 64u           /* so many reports of a shard go at once, fewer when all that is due has been taken */
#define Q0_NS ((uint64_t)((WEIR__WIRE_LIVE - 10) * 1e9))

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static int is_shared(const struct weir__reconcile *rec, uint32_t id)
{
    return rec->node->policies[id]->is.mode != WEIR_LOCAL;
}

static struct weir__course *course_of(struct weir__reconcile *rec, weir_policy_id id)
{
    struct weir__node *node = rec->node;

    if (!rec->courses || id >= rec->course_room) {
        uint32_t room = (id / 16 + 1) * 16;
        struct weir__course *more = weir__node_alloc(node, room * sizeof *more);

        if (!more)
            return NULL;
        if (rec->courses)
            memcpy(more, rec->courses, rec->course_count * sizeof *more);
        weir__node_free(node, rec->courses, rec->course_room * sizeof *more);
        rec->courses = more;
        rec->course_room = room;
    }
    if (id >= rec->course_count)
        rec->course_count = id + 1;
    return &rec->courses[id];
}

/* The policy's course with its lanes; NULL: no memory. */
struct weir__course *weir__reconcile_course(struct weir__reconcile *rec, weir_policy_id id)
{
    struct weir__node *node = rec->node;
    struct weir__policy *policy = weir__node_policy(node, id);
    struct weir__course *course = policy ? course_of(rec, id) : NULL;

    if (!course || course->lanes)
        return course;
    course->lanes = weir__node_alloc(node, node->shards * sizeof *course->lanes);
    if (!course->lanes)
        return NULL;
    for (uint32_t i = 0; i < node->shards; i++) {
        course->lanes[i].policy = policy;
        course->lanes[i].id = id;
        course->lanes[i].shard = i;
        weir__persist_load(node, &course->lanes[i]);
    }
    return course;
}

void weir__reconcile_ready(struct weir__reconcile *rec, struct weir__lane *lane)
{
    uint32_t waiting = lane->queued + lane->due.count;

    if (lane->ready || lane->batch || (!waiting && !lane->presence))
        return;
    if (rec->sweeping && !lane->hurry && !lane->presence && waiting < RIPE)
        return;
    lane->ready = 1;
    lane->next = NULL;
    if (rec->last_ready)
        rec->last_ready->next = lane;
    else
        rec->ready = lane;
    rec->last_ready = lane;
}

static struct weir__lane *next_ready(struct weir__reconcile *rec)
{
    struct weir__lane *lane = rec->ready;

    if (lane) {
        rec->ready = lane->next;
        if (!rec->ready)
            rec->last_ready = NULL;
        lane->ready = 0;
    }
    return lane;
}

void weir__reconcile_settle(struct weir__reconcile *rec, struct weir__out *out)
{
    struct weir__kept *kept = out->kept;
    const struct weir__slice_terms *terms = &rec->node->policies[kept->policy]->terms;

    if (out->round != rec->round)
        rec->older--;
    weir__keys_arrive(&rec->keys, out);
    if (kept->held || kept->carried)
        weir__keys_move(&rec->keys, kept, WEIR__LIST_HELD);
    else if (kept->known && weir__keys_total(kept, terms, kept->total_at) < terms->burst)
        weir__keys_move(&rec->keys, kept, WEIR__LIST_KNOWN);
    else
        weir__keys_drop(&rec->keys, kept);
}

/* ---- work, a slice a turn ---------------------------------------------------------------------------------------- */

/* Reports the held slices of a policy that have said nothing since course->walk. */
static size_t walk_held(struct weir__reconcile *rec, weir_policy_id id, uint64_t now, size_t budget)
{
    struct weir__course *course = &rec->courses[id];
    struct weir__kept *kept;
    size_t done = 0;

    while (done < budget && (kept = weir__keys_oldest(&rec->keys, id, course->walk))) {
        struct weir__report report;

        done++;
        if (!weir__report_of(rec, kept, now, &report)) {
            weir__count_add(&rec->node->count.written_off_tokens, kept->carried > 0 ? (uint64_t)kept->carried : 0);
            weir__keys_drop(&rec->keys, kept);
        } else if (!weir__report_take(rec, &report)) {
            weir__seam_release(rec->node->w, report.slot, report.spent, report.refunded);
            break;
        }
    }
    if (done < budget && !rec->full)
        course->walk = 0;
    return done;
}

/* Tells a Redis that lost its state what it once said of keys that are not full. */
static size_t walk_recall(struct weir__reconcile *rec, weir_policy_id id, uint64_t now, size_t budget)
{
    struct weir__ring *rings = weir__keys_rings(&rec->keys, id);
    struct weir__kept *kept;
    size_t done = 0;

    for (; done < budget && !rec->full && rings && (kept = rings[WEIR__LIST_RECALL].first); done++) {
        struct weir__report report;

        if (kept->total_at >= rec->courses[id].lanes[kept->shard].lost_at)
            weir__keys_move(&rec->keys, kept, WEIR__LIST_KNOWN);
        else if (!weir__report_of(rec, kept, now, &report))
            weir__keys_drop(&rec->keys, kept);
        else if (!weir__report_take(rec, &report))
            weir__seam_release(rec->node->w, report.slot, report.spent, report.refunded);
    }
    return done;
}

void weir__reconcile_walk(struct weir__reconcile *rec, weir_policy_id id, uint64_t before)
{
    if (before > rec->courses[id].walk)
        rec->courses[id].walk = before;
    weir__reconcile_busy(rec);
}

static void tell_pending(struct weir__reconcile *rec, uint64_t tokens)
{
    atomic_store_explicit(&rec->node->count.pending_tokens, tokens, memory_order_relaxed);
}

/* Not all reports of what the last sweep found are made yet: of each of the others a token is counted at least. To look
 * at them all would hold the loop. */
static void tell_backlog(struct weir__reconcile *rec)
{
    uint64_t out = rec->keys.out_spent > 0 ? (uint64_t)rec->keys.out_spent : 0;

    if (rec->counting && rec->keys.due_count)
        tell_pending(rec, out + rec->keys.due_count);
}

/* What a sweep found is counted once its reports are made. */
static void tell_taken(struct weir__reconcile *rec)
{
    if (!rec->counting || rec->keys.due_count)
        return;
    rec->counting = 0;
    tell_pending(rec, rec->pending > 0 ? (uint64_t)rec->pending : 0);
}

/* A script by itself costs as much as some twenty records: so reports of one shard that are taken turn by turn wait for
 * each other, but for those that somebody waits for. */
static void end_sweep(struct weir__reconcile *rec)
{
    rec->sweeping = 0;
    for (uint32_t id = 0; id < rec->course_count; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && i < rec->node->shards; i++)
            weir__reconcile_ready(rec, &rec->courses[id].lanes[i]);
}

/* Slices that are due, beginning with another policy each time. Returns what is left of the budget. */
static size_t work_on_slices(struct weir__reconcile *rec, uint64_t now, size_t budget)
{
    for (uint32_t i = 0; i < rec->course_count && budget; i++) {
        uint32_t id = (rec->turn / 2 + i) % rec->course_count;

        budget -= walk_recall(rec, id, now, budget);
        if (budget && rec->courses[id].walk)
            budget -= walk_held(rec, id, now, budget);
    }
    return budget;
}

/* Keys without a slice. */
static size_t work_on_others(struct weir__reconcile *rec, uint64_t now, size_t budget)
{
    size_t done;

    if (!rec->collect || !budget || rec->full)
        return budget;
    rec->found = 0;
    done = weir__seam_collect_some(rec->node->w, now, budget, weir__report_pick, weir__report_take, rec);
    if (done < budget && !rec->full && rec->found < WEIR__DUE_AT_ONCE) {
        rec->collect = 0;
        tell_backlog(rec);
        rec->pending = rec->keys.out_spent;
        rec->counting = 1;
    }
    return budget - done;
}

/* Where either would take all the room that there is, they have it by turns. */
static void work(struct weir__reconcile *rec)
{
    uint64_t now = weir_now(rec->node->w);
    size_t budget = SLICE_OF_WORK;

    rec->sweeping = 1;
    rec->full = 0;
    rec->mono = uv_hrtime();
    if (rec->turn++ % 2) {
        budget = work_on_others(rec, now, budget);
        budget = rec->full ? budget : work_on_slices(rec, now, budget);
    } else {
        budget = work_on_slices(rec, now, budget);
        budget = work_on_others(rec, now, budget);
    }
    if (rec->full || (budget && !weir__presence_is_working(rec))) {
        uv_idle_stop(&rec->busy);
        end_sweep(rec);
    }
    tell_taken(rec);
    weir__flush_advance(rec);
}

static void on_busy(uv_idle_t *idle)
{
    work(idle->data);
}

void weir__reconcile_busy(struct weir__reconcile *rec)
{
    if (rec->started && rec->up && !rec->stopped && !rec->follows)
        uv_idle_start(&rec->busy, on_busy);
}

/* ---- what every answer changes ----------------------------------------------------------------------------------- */

/* q0 holds while every shard's promise does; the share of an unknown key follows the fleet's size. A strict policy has
 * no q0, for it lends nothing. */
static void tell_overdraft(struct weir__reconcile *rec, uint32_t id, uint64_t mono)
{
    struct weir__course *course = &rec->courses[id];
    struct weir__node *node = rec->node;
    const struct weir__slice_terms *terms = &node->policies[id]->terms;
    double q0 = weir__reconcile_is_hybrid(rec, id) && !rec->draining && course->lanes ? INFINITY : 0,
           nodes = node->fleet_hint, rate, burst;

    for (uint32_t i = 0; course->lanes && i < node->shards; i++) {
        const struct weir__lane *lane = &course->lanes[i];

        q0 = !lane->answered_at || mono - lane->answered_at > Q0_NS ? 0 : fmin(q0, lane->q0);
        nodes = fmax(nodes, lane->nodes);
    }
    course->news = 0;
    weir__slice_share(terms, nodes, &rate, &burst);
    if (course->told && q0 == course->told_q0 && rate == course->told_rate && burst == course->told_burst)
        return;
    if (course->told && q0 < course->told_q0) { /* others are promised what this node may have in use: it tells now */
        rec->collect = 1;
        weir__reconcile_busy(rec);
    }
    course->told = 1;
    course->told_q0 = q0;
    course->told_rate = rate;
    course->told_burst = burst;
    weir__seam_overdraft(node->w, id, (uint64_t)q0, rate, burst);
}

/* Strict policies too: one that becomes hybrid goes on from the moment of the change. */
static void tell_fresh(struct weir__reconcile *rec)
{
    if (rec->fresh == rec->fresh_told || rec->draining)
        return;
    rec->fresh_told = rec->fresh;
    for (uint32_t id = 0; id < rec->node->policy_count; id++)
        if (is_shared(rec, id))
            weir__seam_fresh_until(rec->node->w, id, rec->fresh);
}

void weir__reconcile_alive(struct weir__reconcile *rec, uint64_t now)
{
    uint64_t until = weir__slice_until(&rec->base, now);

    if (rec->follows)
        return;
    rec->answered_at = uv_hrtime();
    if (until > rec->fresh)
        rec->fresh = until;
    if (rec->fresh > rec->fresh_told + rec->node->interval_ns / 8) /* strict answers alone make no pump */
        tell_fresh(rec);
}

/* ---- the timer --------------------------------------------------------------------------------------------------- */

/* What Redis said of keys is forgotten once they are full again. */
static void forget_full(struct weir__reconcile *rec, uint64_t mono)
{
    for (uint32_t id = 0; id < rec->keys.ring_count && id < rec->node->policy_count; id++) {
        struct weir__ring *ring = &rec->keys.rings[id][WEIR__LIST_KNOWN];
        const struct weir__slice_terms *terms = &rec->node->policies[id]->terms;

        for (uint32_t i = ring->count < 256 ? ring->count : 256; i; i--) {
            struct weir__kept *kept = ring->first;

            if (weir__keys_total(kept, terms, mono) < terms->burst)
                weir__keys_move(&rec->keys, kept, WEIR__LIST_KNOWN);
            else
                weir__keys_drop(&rec->keys, kept);
        }
    }
}

/* Keys with a slice are due once an interval, best when the others are: then they share their scripts. Of two ticks an
 * interval the one that takes the others takes all but those that have just spoken; the second one what is late. */
static void mark_due(struct weir__reconcile *rec, uint64_t mono)
{
    int collecting = mono + rec->tick_ns / 2 >= rec->collect_at;

    for (uint32_t id = 0; id < rec->course_count; id++) {
        struct weir__course *course = &rec->courses[id];
        uint64_t interval;

        if (!course->lanes || mono + rec->tick_ns / 2 < course->due_at)
            continue;
        interval = (uint64_t)(rec->node->policies[id]->terms.interval * 1e9);
        course->due_at = mono + interval / 2;
        weir__reconcile_walk(rec, id, mono - interval / 8 * (collecting ? 3 : 6));
        if (!weir__reconcile_is_hybrid(rec, id))
            continue;
        tell_overdraft(rec, id, mono);
        weir__seam_pace(rec->node->w, id, interval,
                        rec->node->rtt > 0 ? (uint64_t)(rec->node->rtt * 1e9) : rec->node->timeout_ns);
    }
    if (collecting) {
        rec->collect_at = mono + rec->node->interval_ns;
        rec->collect |= !rec->draining;
        if (!rec->up) /* else it is known when all that is dirty has been taken */
            tell_pending(rec, weir__flush_unsent(rec));
    }
}

static void on_tick(uv_timer_t *timer);

static void arm_tick(struct weir__reconcile *rec, int first)
{
    struct weir__node *node = rec->node;
    uint64_t tick = node->interval_ns / 2, half;
    double jitter = (double)node->jitter_pct / 100 * (2 * ((double)(weir__node_random(node) >> 11) * 0x1p-53) - 1);

    for (uint32_t id = 0; id < rec->course_count; id++) {
        half = (uint64_t)(node->policies[id]->terms.interval * 5e8);
        if (rec->courses[id].lanes && half < tick)
            tick = half;
    }
    rec->tick_ns = tick;
    /* a random phase at first: the nodes of a fleet that starts at once don't report at once */
    if (first)
        jitter = -(double)(weir__node_random(node) >> 11) * 0x1p-53;
    uv_update_time(node->loop);
    uv_timer_start(&rec->tick, on_tick, (uint64_t)(fmax(1, (double)tick * (1 + jitter) / 1e6)), 0);
}

static void on_tick(uv_timer_t *timer)
{
    struct weir__reconcile *rec = timer->data;
    uint64_t mono = uv_hrtime();

    if (rec->follows) {
        weir__leader_follow(rec);
        arm_tick(rec, 0);
        return;
    }
    mark_due(rec, mono);
    forget_full(rec, mono);
    weir__presence_keep(rec, mono);
    rec->alive_due = 1;
    weir__reconcile_busy(rec);
    arm_tick(rec, 0);
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

void weir__reconcile_park(struct weir__reconcile *rec, struct weir__batch *batch, uint64_t retry_at)
{
    batch->retry_at = retry_at;
    batch->next = rec->parked;
    rec->parked = batch;
}

static void send_batch(struct weir__reconcile *rec, struct weir__batch *batch, uint64_t mono, uint64_t now)
{
    struct weir__node *node = rec->node;

    batch->owner = rec;
    batch->late = 0; /* an answer that came too late may have sent it again */
    if (weir__store_command_late(node->store, batch->bytes.data, batch->bytes.len, node->timeout_ns, weir__answer_late,
                                 weir__answer_batch, batch)) {
        weir__reconcile_park(rec, batch, mono + 20 * WEIR__MS);
        return;
    }
    if (!batch->first_now) {
        batch->first_now = now;
        batch->first_mono = mono;
    }
    batch->sent_at = mono;
    batch->flying = 1;
    rec->flying += batch->weight;
    WEIR__PROBE4(batch_send, batch->lane->id, batch->lane->shard, batch->wire.count, batch->bytes.len);
}

/* Full batches fill the window; small ones share it, so that many shards go at once. */
static int has_room(const struct weir__reconcile *rec)
{
    return rec->flying < rec->node->window * rec->node->batch_max;
}

static void resend_parked(struct weir__reconcile *rec, uint64_t mono, uint64_t now)
{
    struct weir__batch *list = rec->parked, *batch;

    rec->parked = NULL;
    while ((batch = list)) {
        list = batch->next;
        if (!batch->stranded && weir__slice_until(&rec->base, batch->made_now) < now)
            weir__answer_strand(rec, batch, now);
        if (batch->retry_at > mono || !has_room(rec))
            weir__reconcile_park(rec, batch, batch->retry_at);
        else
            send_batch(rec, batch, mono, now);
    }
}

void weir__reconcile_pump(struct weir__reconcile *rec)
{
    struct weir__node *node = rec->node;
    const char *sha = weir__store_sha(node->store, WEIR__WIRE_SYNC);
    uint64_t mono, now;
    struct weir__lane *lane;

    if (!rec->up || rec->stopped || rec->follows)
        return;
    mono = rec->mono = uv_hrtime();
    now = weir_now(node->w);
    if (rec->urgent) {
        rec->full = 0;
        rec->hurry = 1;
        rec->urgent =
            weir__seam_urgent(node->w, now, SLICE_OF_WORK, weir__report_take, rec) == SLICE_OF_WORK || rec->full;
        rec->hurry = 0;
        if (rec->urgent && !rec->full)
            weir__reconcile_busy(rec);
    }
    resend_parked(rec, mono, now);
    if (rec->alive_due)
        weir__presence_ask(rec, mono);
    while (has_room(rec) && rec->ready) {
        struct weir__batch *batch;

        weir__report_due(rec, rec->ready, now);
        lane = next_ready(rec);
        if (!lane->queued && !lane->presence)
            continue; /* nothing of it was news */
        batch = weir__batch_build(node, lane, mono, now, sha);
        if (!batch) {
            weir__count_add(&node->count.sync_errors, 1);
            break; /* out of memory: the next tick makes it ready again */
        }
        send_batch(rec, batch, mono, now);
    }
    weir__flush_advance(rec); /* what it waits for may all have been no news */
    tell_taken(rec);
    for (uint32_t id = 0; id < rec->course_count; id++)
        if (rec->courses[id].news && is_shared(rec, id))
            tell_overdraft(rec, id, mono);
    tell_fresh(rec);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

void weir__reconcile_wake(struct weir__reconcile *rec)
{
    rec->urgent = 1;
}

/* As if it had never been reported. */
static void give_back(struct weir__reconcile *rec, struct weir__out *out)
{
    weir__seam_release(rec->node->w, out->kept->slot, out->spent - out->carried, out->refunded);
    out->kept->carried = out->carried;
    weir__reconcile_settle(rec, out);
}

/* What waits in lanes would grow stale: it goes back to the table, and is reported as it is then. */
static void return_queued(struct weir__reconcile *rec)
{
    for (uint32_t id = 0; id < rec->course_count; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && i < rec->node->shards; i++) {
            struct weir__lane *lane = &rec->courses[id].lanes[i];
            struct weir__out *out;

            while ((out = weir__lane_unqueue(lane)))
                give_back(rec, out);
            weir__report_forget(rec, lane);
        }
    weir__flush_resweep(rec);
}

void weir__reconcile_link(struct weir__reconcile *rec, int up)
{
    uint64_t mono = uv_hrtime();

    rec->up = (uint8_t)up;
    if (rec->stopped)
        return;
    if (rec->follows) {
        weir__leader_follow(rec); /* comes back here where it leads from now on */
        return;
    }
    if (!up) {
        rec->down_at = mono;
        uv_idle_stop(&rec->busy);
        return_queued(rec);
        return;
    }
    rec->urgent = 1;
    rec->collect = 1;
    /* A pause that is shorter than a report is old at most is none that slices need to hear of sooner. */
    for (uint32_t id = 0; id < rec->course_count; id++)
        if (mono - rec->down_at > (uint64_t)(rec->node->policies[id]->terms.interval * 1e9))
            weir__reconcile_walk(rec, id, mono);
    rec->answered_at = 0; /* somebody must be asked at once */
    rec->alive_due = 1;
    weir__presence_keep(rec, mono);
    weir__reconcile_busy(rec);
}

void weir__reconcile_policies(struct weir__reconcile *rec)
{
    if (rec->follows)
        return;
    for (uint32_t id = 0; id < rec->node->policy_count; id++) {
        struct weir__course *course = NULL;

        if (weir__reconcile_is_hybrid(rec, id))
            course = weir__reconcile_course(rec, id);
        else if (is_shared(rec, id) || id < rec->course_count)
            course = course_of(rec, id);
        if (!course)
            continue;
        course->told = 0;
        course->news = 1;
        weir__reconcile_walk(rec, id, uv_hrtime()); /* who has become strict or local gives its slices back */
        if (!is_shared(rec, id))
            weir__seam_fresh_until(rec->node->w, id, 0);
    }
    rec->fresh_told = 0;
    if (!rec->started || rec->stopped)
        return;
    weir__presence_keep(rec, uv_hrtime());
    weir__reconcile_busy(rec);
    arm_tick(rec, 0);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int weir__reconcile_open(struct weir__reconcile **out, struct weir__node *node)
{
    struct weir__reconcile *rec = weir__node_alloc(node, sizeof *rec);

    *out = NULL;
    if (!rec)
        return WEIR_E_NOMEM;
    rec->node = node;
    rec->waiting_end = &rec->waiting;
    rec->active_end = &rec->active;
    /* a bucket so slow that only the option bounds the interval: how long an answer is good for what has no slice */
    weir__slice_terms_set(&rec->base, 1, WEIR__SECOND, WEIR_BURST_MAX, 0, (double)node->interval_ns / 1e9,
                          (double)node->timeout_ns / 1e9);
    if (weir__keys_init(&rec->keys, node)) {
        weir__node_free(node, rec, sizeof *rec);
        return WEIR_E_NOMEM;
    }
    *out = rec;
    return 0;
}

void weir__reconcile_start(struct weir__reconcile *rec)
{
    uv_handle_t *handles[] = {(uv_handle_t *)&rec->tick, (uv_handle_t *)&rec->deadline, (uv_handle_t *)&rec->busy,
                              (uv_handle_t *)&rec->pulse};

    uv_timer_init(rec->node->loop, &rec->tick);
    uv_timer_init(rec->node->loop, &rec->deadline);
    uv_timer_init(rec->node->loop, &rec->pulse);
    uv_idle_init(rec->node->loop, &rec->busy);
    for (int i = 0; i < 4; i++) {
        handles[i]->data = rec;
        uv_unref(handles[i]);
    }
    rec->handles = 4;
    rec->started = 1;
    rec->shared = rec->follows = rec->node->persist != NULL;
    weir__reconcile_policies(rec);
    arm_tick(rec, 1);
}

/* Ends the reports of a batch that will not be answered. Returns tokens that Redis may or may not have been told of. */
static uint64_t abandon(struct weir__reconcile *rec, struct weir__batch *batch)
{
    uint64_t doubtful = 0;

    for (uint32_t i = 0; i < batch->wire.count; i++) {
        struct weir__out *out = batch->outs[i];

        if (!out) {
            weir__seam_end(rec->node->w, batch->slots[i]);
            continue;
        }
        if (!batch->first_now) {
            give_back(rec, out);
            continue;
        }
        weir__seam_release(rec->node->w, out->kept->slot, 0, 0);
        doubtful += out->spent > 0 ? (uint64_t)out->spent : 0;
        weir__persist_carry(rec->node, out->kept);
        weir__reconcile_settle(rec, out);
    }
    batch->wire.count = 0;
    weir__persist_done(rec->node, batch->lane);
    return doubtful;
}

uint64_t weir__reconcile_stop(struct weir__reconcile *rec)
{
    uint64_t doubtful = 0, unsent;
    struct weir__batch *batch;
    uint32_t slices;

    rec->stopped = 1;
    uv_timer_stop(&rec->tick);
    uv_timer_stop(&rec->deadline);
    uv_timer_stop(&rec->pulse);
    uv_idle_stop(&rec->busy);
    return_queued(rec);
    /* with heirs, what is on its way is theirs */
    for (uint32_t id = 0; id < rec->course_count && !rec->heirs; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && i < rec->node->shards; i++)
            if (rec->courses[id].lanes[i].batch)
                doubtful += abandon(rec, rec->courses[id].lanes[i].batch);
    while ((batch = rec->parked)) {
        rec->parked = batch->next;
        weir__batch_free(rec->node, batch);
    }
    weir__count_add(&rec->node->count.written_off_tokens, doubtful);
    unsent = rec->heirs ? 0 : doubtful + weir__seam_unsent(rec->node->w) + weir__keys_carried(&rec->keys, &slices);
    tell_pending(rec, 0);
    weir__flush_abort(rec, WEIR_E_CLOSED, unsent);
    return unsent;
}

void weir__reconcile_leave(struct weir__reconcile *rec)
{
    if (rec->heirs || rec->follows)
        weir__seam_leave(rec->node->w);
    else
        weir__seam_detach(rec->node->w);
    if (rec->shared && !rec->follows)
        weir__seam_retire(rec->node->w);
}

static void deinit(struct weir__reconcile *rec)
{
    struct weir__node *node = rec->node;
    void (*closed)(void *arg) = rec->closed;
    void *arg = rec->closed_arg;

    for (uint32_t id = 0; id < rec->course_count; id++)
        weir__node_free(node, rec->courses[id].lanes, node->shards * sizeof(struct weir__lane));
    weir__node_free(node, rec->courses, rec->course_room * sizeof *rec->courses);
    weir__keys_deinit(&rec->keys);
    weir__node_free(node, rec, sizeof *rec);
    if (closed)
        closed(arg);
}

static void on_closed(uv_handle_t *handle)
{
    struct weir__reconcile *rec = handle->data;

    if (--rec->handles == 0)
        deinit(rec);
}

void weir__reconcile_close(struct weir__reconcile *rec, void (*cb)(void *arg), void *arg)
{
    rec->closed = cb;
    rec->closed_arg = arg;
    if (!rec->started) {
        deinit(rec);
        return;
    }
    uv_close((uv_handle_t *)&rec->tick, on_closed);
    uv_close((uv_handle_t *)&rec->deadline, on_closed);
    uv_close((uv_handle_t *)&rec->busy, on_closed);
    uv_close((uv_handle_t *)&rec->pulse, on_closed);
}
