/* SPDX-License-Identifier: MIT */
/*
 * The inside of reconciliation, shared by reconcile.c (what is due, what is sent), report.c (what is said of a key and
 * when), presence.c (who must hear from this node), answer.c (what Redis said) and flush.c (who waits for it). Nobody
 * else includes this.
 */
#ifndef WEIR_SYNC_RECONCILE_STATE_H
#define WEIR_SYNC_RECONCILE_STATE_H

#include <uv.h>

#include "sync/batch.h"
#include "sync/keys.h"
#include "sync/node.h"
#include "sync/probes.h"
#include "sync/reconcile.h"
#include "sync/store.h"

/* How a policy goes along. */
struct weir__course {
    struct weir__lane *lanes; /* one a shard */
    uint64_t due_at;          /* machine's clock: when held slices report again */
    uint64_t walk;            /* held slices that have said nothing since then are being reported; 0: none */
    uint64_t used_at;         /* the last report */
    uint64_t lost_at;         /* when a shard was last found to have lost its state */
    double told_q0, told_rate, told_burst;
    uint8_t news; /* an answer may have changed the overdraft */
    uint8_t told; /* told_* hold */
};

enum weir__stage {
    WEIR__FLUSH_IDLE = 0,
    WEIR__FLUSH_SWEEP,  /* taking reports of all that is dirty */
    WEIR__FLUSH_WAIT,   /* for those and all before them */
    WEIR__FLUSH_SWEEP2, /* keys whose report was out at the first sweep had more to say */
    WEIR__FLUSH_WAIT2
};

struct weir__reconcile {
    struct weir__node *node;
    uv_timer_t tick, deadline, pulse;
    uv_idle_t busy; /* runs while reports wait to be taken: a slice of work a turn of the loop */
    struct weir__keys keys;
    struct weir__course *courses; /* by policy */
    uint32_t course_count, course_room;
    struct weir__lane *ready, *last_ready;
    struct weir__batch *parked;
    uint32_t flying;               /* the weight of the batches on their way */
    uint32_t found;                /* keys that this turn found due */
    int64_t pending;               /* whole tokens that Redis had not been told when a sweep had found all ... */
    uint8_t counting;              /* ... as far as reports have been made of it by now */
    struct weir__slice_terms base; /* of what has no slice */
    uint64_t tick_ns;
    uint32_t turn;        /* of work: who is first */
    uint64_t mono;        /* machine's clock: of the reports that are being taken */
    uint64_t collect_at;  /* machine's clock */
    uint64_t answered_at; /* the last answer to anything */
    uint64_t down_at;     /* machine's clock: when the connection was last lost, or hung */
    uint64_t fresh;       /* limiter's clock: what has no slice is good until then */
    uint64_t fresh_told;
    uint8_t up, urgent, collect, alive_due, draining, started, stopped, full;
    uint8_t sweeping; /* what is due is being taken, a part each turn of the loop */
    uint8_t hurry;    /* what is taken now, somebody waits for */
    uint8_t handles;  /* to be closed */
    /* leader.c */
    uint8_t shared;  /* other processes share the limiter */
    uint8_t follows; /* ... and another one of them reconciles */
    uint8_t heirs;   /* this one closes, and others go on */
    uint8_t serving; /* service is under way, for the followers' flushes up to `ticket` */
    uint32_t ticket;
    uint32_t changes; /* weir__seam_changes when the policies were last read */
    struct weir__flush service;
    /* flush.c */
    enum weir__stage stage;
    uint32_t round, older; /* reports of earlier rounds that are still out */
    struct weir__flush *waiting, **waiting_end, *active, **active_end;
    void (*drained)(void *arg);
    void *drained_arg;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- reconcile.c ------------------------------------------------------------------------------------------------- */

/* The policy's course with its lanes; NULL: no memory. */
struct weir__course *weir__reconcile_course(struct weir__reconcile *rec, weir_policy_id id);

/* Reports are wanted: the loop takes them, a slice of work a turn. */
void weir__reconcile_busy(struct weir__reconcile *rec);

/* Slices of the policy that have said nothing since `before` (machine's clock) are to be reported. */
void weir__reconcile_walk(struct weir__reconcile *rec, weir_policy_id id, uint64_t before);

/* The lane goes when its turn comes, unless it has nothing to say or a batch out. */
void weir__reconcile_ready(struct weir__reconcile *rec, struct weir__lane *lane);

/* The batch goes again, as it is, after retry_at (machine's clock). */
void weir__reconcile_park(struct weir__reconcile *rec, struct weir__batch *batch, uint64_t retry_at);

/* A report has come to its end: its key goes to the list where it belongs. */
void weir__reconcile_settle(struct weir__reconcile *rec, struct weir__out *out);

static inline int weir__reconcile_is_hybrid(const struct weir__reconcile *rec, uint32_t id)
{
    return rec->node->policies[id]->is.mode == WEIR_HYBRID;
}

/* ---- report.c ---------------------------------------------------------------------------------------------------- */

#define WEIR__DUE_AT_ONCE 8192u /* keys found due in one turn of the loop: well under a millisecond */

/* Of dirty keys, those to be reported at once. Others are noted as due in their lanes, until rec->found says that it is
 * enough for one turn. ctx: the reconciler. */
uint64_t weir__report_pick(void *ctx, uint32_t first, uint64_t mask);

/* A report goes to its lane. 0: no room for it now; rec->full says so. ctx: the reconciler. */
int weir__report_take(void *ctx, const struct weir__report *report);

/* Makes reports of what is due in a lane: as many as a batch carries. Its place among the ready ones must be kept. */
void weir__report_due(struct weir__reconcile *rec, struct weir__lane *lane, uint64_t now);

/* Nothing is due in the lane any more; all of it is dirty still. */
void weir__report_forget(struct weir__reconcile *rec, struct weir__lane *lane);

/* A report of what is kept, dirty or not. 0: one is out already, or another key is there by now. That one's report is
 * its own, and goes back. */
int weir__report_of(struct weir__reconcile *rec, const struct weir__kept *kept, uint64_t now,
                    struct weir__report *report);

/* ---- presence.c -------------------------------------------------------------------------------------------------- */

/* Marks the lanes whose shards must hear from this node, and makes ready what waits. mono: machine's clock. */
void weir__presence_keep(struct weir__reconcile *rec, uint64_t mono);

/* Are reports still to be taken of what is due? */
int weir__presence_is_working(const struct weir__reconcile *rec);

/* Where nothing else will be answered soon, one shard is asked. */
void weir__presence_ask(struct weir__reconcile *rec, uint64_t mono);

/* ---- answer.c ---------------------------------------------------------------------------------------------------- */

/* The link's callbacks; arg: the batch. */
void weir__answer_batch(void *arg, enum weir__link_kind kind, const struct redisReply *reply);
void weir__answer_late(void *arg);

/* A shard that does not answer while others do (its master is away, its keys are on their way to another one) is an
 * outage of its keys: those without a slice go on no longer than those with one. */
void weir__answer_strand(struct weir__reconcile *rec, struct weir__batch *batch, uint64_t now);

/* ---- flush.c ----------------------------------------------------------------------------------------------------- */

/* A sweep is complete, or a report has ended. */
void weir__flush_advance(struct weir__reconcile *rec);

/* What was taken, or noted as due, has gone back to the table: whoever waits for it waits for another sweep. */
void weir__flush_resweep(struct weir__reconcile *rec);

/* It leads from now on: the flushes, and the drain, that waited for the one that led before are its own work. */
void weir__flush_lead(struct weir__reconcile *rec);

/* Whole tokens that Redis has not acknowledged. */
uint64_t weir__flush_unsent(struct weir__reconcile *rec);

void weir__flush_on_deadline(uv_timer_t *timer);

/* Calls everyone back who still waits. */
void weir__flush_abort(struct weir__reconcile *rec, int status, uint64_t unsent);

#endif
