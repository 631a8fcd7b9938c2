/* SPDX-License-Identifier: MIT */
/*
 * The inside of reconciliation, shared by reconcile.c (what is due, what is sent), presence.c (who must hear from this
 * node), answer.c (what Redis said) and flush.c (who waits for it). Nobody else includes this.
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
    struct weir__slice_terms base; /* of what has no slice */
    uint64_t tick_ns;
    uint64_t mono;        /* machine's clock: of the reports that are being taken */
    uint64_t collect_at;  /* machine's clock */
    uint64_t answered_at; /* the last answer to anything */
    uint64_t fresh;       /* limiter's clock: what has no slice is good until then */
    uint64_t fresh_told;
    uint8_t up, urgent, collect, alive_due, draining, started, stopped, full;
    uint8_t handles; /* to be closed */
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

/* ---- presence.c -------------------------------------------------------------------------------------------------- */

/* Marks the lanes whose shards must hear from this node, and makes ready what waits. mono: machine's clock. */
void weir__presence_keep(struct weir__reconcile *rec, uint64_t mono);

/* Where nothing else will be answered soon, one shard is asked. */
void weir__presence_ask(struct weir__reconcile *rec, uint64_t mono);

/* ---- answer.c ---------------------------------------------------------------------------------------------------- */

/* The link's callback; arg: the batch. */
void weir__answer_batch(void *arg, enum weir__link_kind kind, const struct redisReply *reply);

/* ---- flush.c ----------------------------------------------------------------------------------------------------- */

/* A sweep is complete, or a report has ended. */
void weir__flush_advance(struct weir__reconcile *rec);

/* Whole tokens that Redis has not acknowledged. */
uint64_t weir__flush_unsent(struct weir__reconcile *rec);

void weir__flush_on_deadline(uv_timer_t *timer);

/* Calls everyone back who still waits. */
void weir__flush_abort(struct weir__reconcile *rec, int status, uint64_t unsent);

#endif
