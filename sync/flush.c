/* SPDX-License-Identifier: MIT */
/*
 * Who waits until Redis knows everything: flushes, and the drain before the end. It must not know what a report says.
 *
 * One cycle serves all that wait when it begins. It takes reports of all that is dirty and waits for them and for
 * those that were out before; then once more, for the keys that were in those and could not be reported twice at a
 * time. So all that was spent before the cycle is in the first sweep's reports, in those before it, or in the
 * second's.
 */
#include "sync/leader.h"
#include "sync/reconcile_state.h"

uint64_t weir__flush_unsent(struct weir__reconcile *rec)
{
    uint64_t unsent = weir__seam_unsent(rec->node->w);

    return rec->keys.out_spent > 0 ? unsent + (uint64_t)rec->keys.out_spent : unsent;
}

static void sweep(struct weir__reconcile *rec, enum weir__stage stage)
{
    rec->stage = stage;
    rec->collect = 1;
    if (rec->draining)
        for (uint32_t i = 0; i < rec->course_count; i++)
            weir__reconcile_walk(rec, i, uv_hrtime());
    weir__reconcile_busy(rec);
}

static int is_sweeping(const struct weir__reconcile *rec)
{
    if (rec->collect)
        return 1;
    for (uint32_t i = 0; rec->draining && i < rec->course_count; i++)
        if (rec->courses[i].walk)
            return 1;
    return 0;
}

static int any_held(struct weir__reconcile *rec)
{
    for (uint32_t i = 0; i < rec->keys.ring_count; i++)
        if (rec->keys.held[i].count)
            return 1;
    return 0;
}

int weir__reconcile_is_idle(struct weir__reconcile *rec)
{
    rec->heirs = (uint8_t)weir__leader_has_heirs(rec);
    if (rec->heirs)
        return 1; /* what there is to report is theirs */
    if (rec->follows)
        return 0;
    return !rec->keys.out_count && !any_held(rec) && !weir__seam_dirty(rec->node->w);
}

static void begin(struct weir__reconcile *rec)
{
    if (!rec->waiting && !rec->drained)
        return;
    rec->active = rec->waiting;
    rec->active_end = rec->waiting ? rec->waiting_end : &rec->active;
    rec->waiting = NULL;
    rec->waiting_end = &rec->waiting;
    sweep(rec, WEIR__FLUSH_SWEEP);
}

static void finish(struct weir__reconcile *rec)
{
    struct weir__flush *done = rec->active;
    uint32_t slices;
    uint64_t carried = weir__keys_carried(&rec->keys, &slices);

    rec->active = NULL;
    rec->active_end = &rec->active;
    rec->stage = WEIR__FLUSH_IDLE;
    while (done) {
        struct weir__flush *next = done->next;

        done->cb(done->arg, 0, carried);
        done = next;
    }
    /* a debt below the floor is not waited for: that may take days */
    if (rec->drained && !rec->waiting && !slices && !rec->keys.out_count) {
        void (*drained)(void *arg) = rec->drained;

        rec->drained = NULL;
        drained(rec->drained_arg);
        return;
    }
    begin(rec);
}

/* The reports that are out now, or due, are those to wait for; later ones belong to the next round. */
static void wait_for_reports(struct weir__reconcile *rec, enum weir__stage stage)
{
    rec->stage = stage;
    rec->round++;
    rec->older = rec->keys.out_count + rec->keys.due_count;
    for (uint32_t id = 0; id < rec->course_count; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && i < rec->node->shards; i++)
            rec->courses[id].lanes[i].due.older = rec->courses[id].lanes[i].due.count;
}

void weir__flush_resweep(struct weir__reconcile *rec)
{
    rec->collect = 1;
    if (rec->stage == WEIR__FLUSH_WAIT)
        rec->stage = WEIR__FLUSH_SWEEP;
    else if (rec->stage == WEIR__FLUSH_WAIT2)
        rec->stage = WEIR__FLUSH_SWEEP2;
}

void weir__flush_advance(struct weir__reconcile *rec)
{
    if ((rec->stage == WEIR__FLUSH_SWEEP || rec->stage == WEIR__FLUSH_SWEEP2) && !is_sweeping(rec))
        wait_for_reports(rec, rec->stage == WEIR__FLUSH_SWEEP ? WEIR__FLUSH_WAIT : WEIR__FLUSH_WAIT2);
    if (rec->older)
        return;
    if (rec->stage == WEIR__FLUSH_WAIT)
        sweep(rec, WEIR__FLUSH_SWEEP2);
    else if (rec->stage == WEIR__FLUSH_WAIT2)
        finish(rec);
}

static void arm_deadline(struct weir__reconcile *rec)
{
    struct weir__flush *first = rec->active ? rec->active : rec->waiting;
    uint64_t now = uv_hrtime();

    if (!first) {
        uv_timer_stop(&rec->deadline);
        return;
    }
    uv_update_time(rec->node->loop);
    uv_timer_start(&rec->deadline, weir__flush_on_deadline,
                   first->deadline > now ? (first->deadline - now) / WEIR__MS + 1 : 0, 0);
}

/* All of them wait for the same time, so the first is the first to end. */
static struct weir__flush *take_expired(struct weir__flush **list, struct weir__flush ***end, uint64_t mono)
{
    struct weir__flush *flush = *list;

    if (!flush || flush->deadline > mono)
        return NULL;
    *list = flush->next;
    if (!*list)
        *end = list;
    return flush;
}

void weir__flush_on_deadline(uv_timer_t *timer)
{
    struct weir__reconcile *rec = timer->data;
    uint64_t unsent = weir__flush_unsent(rec), mono = uv_hrtime();
    struct weir__flush *flush;

    while ((flush = take_expired(&rec->active, &rec->active_end, mono)) ||
           (flush = take_expired(&rec->waiting, &rec->waiting_end, mono)))
        flush->cb(flush->arg, WEIR_E_TIMEOUT, unsent);
    arm_deadline(rec);
}

void weir__reconcile_flush(struct weir__reconcile *rec, struct weir__flush *flush)
{
    flush->next = NULL;
    flush->deadline = uv_hrtime() + rec->node->drain_ns;
    if (rec->follows) {
        weir__leader_flush(rec, flush);
        return;
    }
    *rec->waiting_end = flush;
    rec->waiting_end = &flush->next;
    weir__flush_lead(rec);
}

void weir__flush_lead(struct weir__reconcile *rec)
{
    if (rec->stage == WEIR__FLUSH_IDLE)
        begin(rec);
    arm_deadline(rec);
}

void weir__reconcile_drain(struct weir__reconcile *rec, void (*cb)(void *arg), void *arg)
{
    rec->draining = 1;
    rec->drained = cb;
    rec->drained_arg = arg;
    if (rec->follows) {
        weir__leader_wait(rec);
        return;
    }
    if (rec->stage == WEIR__FLUSH_IDLE)
        begin(rec);
}

void weir__flush_abort(struct weir__reconcile *rec, int status, uint64_t unsent)
{
    struct weir__flush *lists[] = {rec->active, rec->waiting};

    rec->active = rec->waiting = NULL;
    rec->active_end = &rec->active;
    rec->waiting_end = &rec->waiting;
    rec->drained = NULL;
    for (int i = 0; i < 2; i++)
        for (struct weir__flush *flush = lists[i], *next; flush; flush = next) {
            next = flush->next;
            flush->cb(flush->arg, status, unsent);
        }
}
