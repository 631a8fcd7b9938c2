/* SPDX-License-Identifier: MIT */
/*
 * Taking over from a process that has ended, and serving those that follow.
 */
#include "sync/leader.h"

#include "sync/persist.h"

#define PULSE_MS 10
#define AUDIT_SLOTS 512u /* a pulse */

/* ---- taking over ------------------------------------------------------------------------------------------------- */

/* A batch whose answer was put in force. */
static void end_answered(struct weir__reconcile *rec, struct weir__lane *lane, struct weir__batch *batch)
{
    for (uint32_t i = 0; i < batch->wire.count; i++) {
        if (batch->outs[i])
            weir__reconcile_settle(rec, batch->outs[i]);
        weir__seam_end(rec->node->w, batch->slots[i]);
    }
    weir__persist_done(rec->node, lane);
    weir__batch_free(rec->node, batch);
}

/* Nothing was changed that a later try does not find as it was. */
static void undo(struct weir__reconcile *rec)
{
    for (uint32_t id = 0; id < rec->course_count; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && i < rec->node->shards; i++) {
            struct weir__batch *batch = rec->courses[id].lanes[i].batch;

            if (!batch)
                continue;
            for (uint32_t n = 0; n < batch->wire.count; n++)
                if (batch->outs[n]) {
                    struct weir__kept *kept = batch->outs[n]->kept;

                    weir__keys_arrive(&rec->keys, batch->outs[n]);
                    weir__keys_drop(&rec->keys, kept);
                }
            weir__batch_free(rec->node, batch);
        }
    rec->parked = NULL;
}

/* 0 or WEIR_E_NOMEM. */
static int revive(struct weir__reconcile *rec, struct weir__lane *lane, const char *sha)
{
    struct weir__batch *batch;
    int status = weir__persist_revive(rec->node, &rec->keys, lane, sha, &batch);

    if (status == WEIR_E_CLOSED) {
        end_answered(rec, lane, batch);
        return 0;
    }
    if (status || !batch)
        return status;
    for (uint32_t i = 0; i < batch->wire.count; i++)
        if (batch->outs[i]) {
            batch->outs[i]->round = rec->round;
            if (batch->outs[i]->rate > 0)
                weir__seam_pause(rec->node->w, batch->outs[i]->kept->slot, weir_now(rec->node->w));
        }
    weir__reconcile_park(rec, batch, 0);
    return 0;
}

static int revive_all(struct weir__reconcile *rec)
{
    const char *sha = weir__store_sha(rec->node->store, WEIR__WIRE_SYNC);

    for (uint32_t id = 0; id < rec->node->policy_count; id++) {
        struct weir__course *course;

        if (!weir__persist_knows(rec->node, id))
            continue;
        course = weir__reconcile_course(rec, id);
        if (!course)
            return WEIR_E_NOMEM;
        for (uint32_t i = 0; i < rec->node->shards; i++) {
            struct weir__lane *lane = &course->lanes[i];

            weir__persist_load(rec->node, lane);
            if (revive(rec, lane, sha))
                return WEIR_E_NOMEM;
        }
    }
    return 0;
}

static int is_kept(void *ctx, uint32_t slot)
{
    const struct weir__reconcile *rec = ctx;
    const struct weir__kept *kept = weir__keys_at(&rec->keys, slot);

    return kept && kept->out;
}

static void take_over(struct weir__reconcile *rec)
{
    struct weir__node *node = rec->node;

    if (!weir__seam_lead(node->w))
        return;
    weir__persist_lead(node);
    rec->changes = weir__seam_changes(node->w);
    if (weir__node_policies(node) || revive_all(rec)) {
        undo(rec);
        weir__seam_retire(node->w);
        return;
    }
    rec->follows = 0;
    weir__seam_reclaim(node->w, is_kept, rec);
    weir__seam_log(node->w, WEIR_LOG_INFO, "this process reconciles from now on");
    WEIR__PROBE1(lead, (int)uv_os_getpid());
    uv_timer_start(&rec->pulse, weir__leader_pulse, PULSE_MS, PULSE_MS);
    weir__reconcile_policies(rec);
    weir__reconcile_link(rec, rec->up);
    weir__flush_lead(rec);
}

void weir__leader_follow(struct weir__reconcile *rec)
{
    if (rec->up && !rec->stopped)
        take_over(rec);
    if (rec->follows && rec->changes != weir__seam_changes(rec->node->w)) {
        rec->changes = weir__seam_changes(rec->node->w);
        weir__node_policies(rec->node);
    }
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

int weir__leader_has_heirs(struct weir__reconcile *rec)
{
    return rec->shared && !weir__seam_closing(rec->node->w);
}

/* The last one to close reports what there is, as soon as the one that leads and closes as well has ended. */
static void on_last(uv_timer_t *timer)
{
    weir__leader_follow(timer->data);
}

void weir__leader_wait(struct weir__reconcile *rec)
{
    uv_timer_start(&rec->pulse, on_last, 0, PULSE_MS);
}

/* ---- serving followers ------------------------------------------------------------------------------------------- */

static void on_served(void *arg, int status, uint64_t unsent)
{
    struct weir__reconcile *rec = arg;

    (void)unsent;
    rec->serving = 0;
    if (status == 0)
        weir__persist_flushed(rec->node, rec->ticket);
}

static void serve(struct weir__reconcile *rec)
{
    uint32_t asked = weir__persist_asked(rec->node);

    if (rec->serving || weir__persist_is_flushed(rec->node, asked))
        return;
    rec->serving = 1;
    rec->ticket = asked;
    rec->service.cb = on_served;
    rec->service.arg = rec;
    weir__reconcile_flush(rec, &rec->service);
}

void weir__leader_pulse(uv_timer_t *timer)
{
    struct weir__reconcile *rec = timer->data;
    struct weir *w = rec->node->w;

    if (weir__seam_hurries(w))
        weir__reconcile_wake(rec);
    serve(rec);
    weir__seam_audit(w, AUDIT_SLOTS);
    if (rec->changes != weir__seam_changes(w)) {
        rec->changes = weir__seam_changes(w);
        weir__node_policies(rec->node);
        weir__reconcile_policies(rec);
    }
}

/* ---- flushes of a follower --------------------------------------------------------------------------------------- */

static void on_look(uv_timer_t *timer)
{
    struct weir__reconcile *rec = timer->data;
    struct weir__flush *flush;
    uint64_t mono = uv_hrtime();

    while ((flush = rec->waiting)) {
        int done = weir__persist_is_flushed(rec->node, flush->ticket);

        if (!done && flush->deadline > mono)
            break;
        rec->waiting = flush->next;
        if (!rec->waiting)
            rec->waiting_end = &rec->waiting;
        flush->cb(flush->arg, done ? 0 : WEIR_E_TIMEOUT, done ? 0 : weir__seam_unsent(rec->node->w));
    }
    if (!rec->waiting)
        uv_timer_stop(&rec->pulse);
}

void weir__leader_flush(struct weir__reconcile *rec, struct weir__flush *flush)
{
    flush->ticket = weir__persist_ask(rec->node);
    *rec->waiting_end = flush;
    rec->waiting_end = &flush->next;
    uv_timer_start(&rec->pulse, on_look, PULSE_MS, PULSE_MS);
}

int weir__reconcile_leads(const struct weir__reconcile *rec)
{
    return !rec->follows;
}
