/* SPDX-License-Identifier: MIT */
/*
 * Batches without a record: to shards that must hear that this node lives, and to one where nothing else would tell
 * that Redis does. It must not know what is reported, nor what an answer does.
 */
#include "sync/reconcile_state.h"

#define EAGER_LANES 4096u
#define PRESENCE_NS (25 * WEIR__SECOND)
#define IN_USE_NS ((uint64_t)(WEIR__WIRE_LIVE * 1e9))

/* Few policies introduce themselves to all their shards at once, so that q0 is there for the first key. */
static int is_eager(const struct weir__reconcile *rec)
{
    uint32_t lanes = 0;

    for (uint32_t id = 0; id < rec->course_count; id++)
        if (rec->courses[id].lanes && weir__reconcile_is_hybrid(rec, id))
            lanes += rec->node->shards;
    return lanes <= EAGER_LANES;
}

/* Shards must hear from this node now and then, or it is not counted and its q0 is void; and while what they answer is
 * changing, ever less often: whoever came first was promised more, and others get theirs only once it has told that it
 * heard of less. */
static int wants_presence(const struct weir__course *course, const struct weir__lane *lane, uint64_t mono, int eager)
{
    int in_use = course->used_at && mono - course->used_at < IN_USE_NS;

    if (!lane->answered_at)
        return eager || in_use;
    if (lane->settles < PRESENCE_NS)
        return (eager || in_use) && mono - lane->answered_at > lane->settles;
    return in_use && mono - lane->answered_at > PRESENCE_NS;
}

void weir__presence_keep(struct weir__reconcile *rec, uint64_t mono)
{
    int eager = is_eager(rec);

    for (uint32_t id = 0; id < rec->course_count && !rec->draining; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && i < rec->node->shards; i++) {
            struct weir__lane *lane = &rec->courses[id].lanes[i];

            if (weir__reconcile_is_hybrid(rec, id) && wants_presence(&rec->courses[id], lane, mono, eager))
                lane->presence = 1;
            weir__reconcile_ready(rec, lane);
        }
}

int weir__presence_is_working(const struct weir__reconcile *rec)
{
    for (uint32_t id = 0; id < rec->course_count; id++)
        if (rec->courses[id].walk)
            return 1;
    return rec->collect;
}

/* Where nothing else will be answered soon, somebody is asked: what has no slice is good only while Redis answers. */
void weir__presence_ask(struct weir__reconcile *rec, uint64_t mono)
{
    struct weir__lane *chosen = NULL;
    int hybrid = 0;

    if (weir__presence_is_working(rec))
        return;
    rec->alive_due = 0;
    if (rec->draining || rec->ready || rec->flying || mono - rec->answered_at < rec->node->interval_ns / 4 * 3)
        return;
    for (uint32_t id = 0; id < rec->course_count; id++)
        for (uint32_t i = 0; rec->courses[id].lanes && weir__reconcile_is_hybrid(rec, id) && i < rec->node->shards;
             i++) {
            struct weir__lane *lane = &rec->courses[id].lanes[i];

            hybrid = 1;
            /* the stalest; where some don't answer, the one that answered last: its server is there */
            if (!lane->batch && (!chosen || (lane->answered_at < chosen->answered_at) == !rec->parked))
                chosen = lane;
        }
    if (!hybrid) /* who becomes it goes on from here: as long as the connection is there, so is Redis */
        weir__reconcile_alive(rec, weir_now(rec->node->w));
    if (!chosen)
        return;
    chosen->presence = 1;
    weir__reconcile_ready(rec, chosen);
}
