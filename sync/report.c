/* SPDX-License-Identifier: MIT */
/*
 * What a report says, and when it is made. It must not know which batch goes next, nor what an answer does.
 *
 * A key that holds a slice, or that somebody waits for, is reported at once, and so is one that was never reported
 * before. Of others only the slot is noted, as due in its lane, and the report is made when the lane's batch is about
 * to leave: then what a report touches (700 bytes, all over memory) is still in the caches when its answer comes.
 */
#include "sync/persist.h"
#include "sync/reconcile_state.h"

#define OUTS_MAX 32768u /* reports on their way: more wait in the table, but for those that can't leave */
#define RUN 16u         /* entries worked on together: the next ones are on their way from memory meanwhile */

/* ---- what it says ------------------------------------------------------------------------------------------------ */

/* What to ask for: a slice for a key in demand, nothing for one that idles. */
static void plan(struct weir__reconcile *rec, const struct weir__policy *policy, struct weir__out *out,
                 const struct weir__report *report)
{
    struct weir__kept *kept = out->kept;
    double now = (double)rec->mono / 1e9, interval = policy->terms.interval;

    weir__demand_add(&kept->demand, now, report->attempts, report->asked, interval);
    if (policy->is.mode == WEIR_HYBRID && !rec->draining && !weir__demand_idle(&kept->demand, now, interval)) {
        out->demand = weir__demand_rate(&kept->demand, now, interval);
        out->want = weir__slice_want(&policy->terms, out->demand, rec->node->rtt, kept->demand.cost);
    }
    out->max_cost = kept->demand.cost;
    out->slice = (uint8_t)(out->want > 0 || kept->held || report->rate > 0);
    if (report->until && report->until < report->now)
        out->age = (double)(report->now - report->until) / 1e9;
    else if (!report->until && rec->fresh && rec->fresh < report->now)
        out->age = (double)(report->now - rec->fresh) / 1e9;
}

/* A key that is new here, but need not be new to Redis. */
static void inherit(struct weir__reconcile *rec, struct weir__kept *kept, const struct weir__report *report)
{
    kept->carried = weir__persist_carried(rec->node, kept);
    kept->held |= report->until != 0;
}

/* What can't leave is out all the same, for that puts its key into its outage; it must not keep others from leaving.
 * There is one a key at most. */
static int is_full(const struct weir__reconcile *rec)
{
    return rec->keys.out_count - rec->keys.stranded_count >= OUTS_MAX;
}

/* A report goes to its lane. older: somebody who flushes waits for it already. 0: no room for it now. */
static int accept_report(struct weir__reconcile *rec, const struct weir__report *report, uint32_t older)
{
    int known = report->policy < rec->course_count && rec->courses[report->policy].lanes;
    struct weir__course *course = known ? &rec->courses[report->policy] : weir__reconcile_course(rec, report->policy);
    struct weir__kept *kept = course ? weir__keys_find(&rec->keys, report) : NULL;
    struct weir__out *out = kept ? weir__keys_depart(&rec->keys, kept, report, rec->mono) : NULL;

    if (!out) {
        rec->full = 1;
        return 0;
    }
    /* The process before this one may have known it. */
    if (rec->shared && kept->list == WEIR__LIST_NONE && !kept->known)
        inherit(rec, kept, report);
    plan(rec, rec->node->policies[report->policy], out, report);
    weir__keys_move(&rec->keys, kept, WEIR__LIST_NONE);
    out->round = rec->round - older;
    weir__keys_carry(&rec->keys, out);
    rec->pending += out->spent;
    course->used_at = kept->reported_at;
    if (course->lanes[kept->shard].batch && course->lanes[kept->shard].batch->stranded) {
        weir__keys_strand(&rec->keys, out);
        weir__seam_strand(rec->node->w, kept->slot, report->now);
    }
    weir__lane_queue(&course->lanes[kept->shard], out);
    course->lanes[kept->shard].hurry |= rec->hurry;
    weir__reconcile_ready(rec, &course->lanes[kept->shard]);
    return 1;
}

int weir__report_take(void *ctx, const struct weir__report *report)
{
    struct weir__reconcile *rec = ctx;
    uint32_t due = weir__keys_is_due(&rec->keys, report->slot);

    if (is_full(rec)) {
        rec->full = 1;
        return 0;
    }
    if (!accept_report(rec, report, due))
        return 0;
    rec->older += due; /* who waits for what is due finds nothing there any more */
    return 1;
}

/* A timer takes keys without a slice; those with one have their own times, but for a flush. */
static int is_wanted(const struct weir__reconcile *rec, uint32_t slot)
{
    return !weir__keys_is_held(&rec->keys, slot) || rec->stage == WEIR__FLUSH_SWEEP || rec->stage == WEIR__FLUSH_SWEEP2;
}

/* A dirty key is noted as due in its lane, and reported when the lane's turn comes. 0: that can't wait. */
static int note_due(struct weir__reconcile *rec, uint32_t slot)
{
    struct weir__lane *lane;
    weir_policy_id id;
    uint32_t shard;

    if (!weir__keys_lane(&rec->keys, slot, &id, &shard))
        return 0; /* only its entry tells whose it is */
    lane = &rec->courses[id].lanes[shard];
    if ((lane->batch && lane->batch->stranded) || !weir__keys_due(&rec->keys, &lane->due, slot))
        return 0;
    rec->found++;
    weir__reconcile_ready(rec, lane);
    return 1;
}

/* Of dirty keys, those that are to be reported at once. */
uint64_t weir__report_pick(void *ctx, uint32_t first, uint64_t mask)
{
    struct weir__reconcile *rec = ctx;
    uint64_t now = 0;

    for (mask &= ~rec->keys.due[first / 64]; mask && rec->found < WEIR__DUE_AT_ONCE; mask &= mask - 1) {
        uint32_t slot = first + (uint32_t)__builtin_ctzll(mask);

        if (is_wanted(rec, slot) && !note_due(rec, slot))
            now |= mask & -mask;
    }
    return now;
}

static void fetch(const struct weir__reconcile *rec, uint32_t slot)
{
    weir__seam_prefetch(rec->node->w, slot);
    weir__keys_prefetch(weir__keys_at(&rec->keys, slot));
}

/* Makes reports of the first n that are due in a lane, as far as there is still something to tell. */
static void report_due(struct weir__reconcile *rec, struct weir__lane *lane, uint64_t now, uint32_t n)
{
    uint32_t slots[WEIR__WIRE_RECORDS], older;
    struct weir__report reports[RUN];
    struct weir *w = rec->node->w;

    n = weir__keys_take_due(&rec->keys, &lane->due, slots, n);
    older = n < lane->due.older ? n : lane->due.older;
    lane->due.older -= older;
    for (uint32_t i = 0; i < n && i < 2 * RUN; i++)
        __builtin_prefetch(&rec->keys.spots[slots[i]], 1, 3);
    for (uint32_t i = 0; i < n && i < RUN; i++)
        fetch(rec, slots[i]);
    for (uint32_t i = 0; i < n; i += RUN) {
        size_t left = weir__seam_later(w, slots + i, n - i < RUN ? n - i : RUN, now, reports);
        const struct weir__report *report = reports;

        for (uint32_t j = i; j < n && j < i + RUN; j++) {
            if (j + 2 * RUN < n)
                __builtin_prefetch(&rec->keys.spots[slots[j + 2 * RUN]], 1, 3);
            if (j + RUN < n)
                fetch(rec, slots[j + RUN]);
            if (!left || report->slot != slots[j]) {
                rec->older -= j < older;
                continue;
            }
            if (!accept_report(rec, report, j < older)) {
                weir__seam_release(w, report->slot, report->spent, report->refunded);
                rec->older -= j < older;
                weir__flush_resweep(rec);
            }
            report++;
            left--;
        }
    }
}

/* As many reports as a batch can carry; where those of slices fill it time and again, still some. */
void weir__report_due(struct weir__reconcile *rec, struct weir__lane *lane, uint64_t now)
{
    uint32_t most = rec->node->batch_max < WEIR__WIRE_RECORDS ? rec->node->batch_max : WEIR__WIRE_RECORDS;
    uint32_t room = lane->queued < most ? most - lane->queued : 0;

    do { /* what is no news any more makes no batch */
        if (!lane->due.count || is_full(rec))
            return;
        report_due(rec, lane, now, room > most / 4 ? room : most / 4 + 1);
    } while (!lane->queued);
}

/* 0: the entry is out already, or it holds another key by now. That one's report is its own, and goes back. */
int weir__report_of(struct weir__reconcile *rec, const struct weir__kept *kept, uint64_t now,
                    struct weir__report *report)
{
    if (!weir__seam_report(rec->node->w, kept->slot, now, report))
        return 0;
    if (report->id == kept->id)
        return 1;
    weir__seam_release(rec->node->w, report->slot, report->spent, report->refunded);
    return 0;
}

/* What is due is still dirty. */
void weir__report_forget(struct weir__reconcile *rec, struct weir__lane *lane)
{
    uint32_t slots[WEIR__WIRE_RECORDS];

    while (weir__keys_take_due(&rec->keys, &lane->due, slots, WEIR__WIRE_RECORDS))
        continue;
    rec->older -= lane->due.older;
    lane->due.older = 0;
}
