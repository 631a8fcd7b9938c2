/* SPDX-License-Identifier: MIT */
/*
 * The nodes' part of sync/lua/batch.lua in C. It must not know keys.
 */
#include "tools/simulate_members.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define US SIMULATE_US
#define LIVE SIMULATE_LIVE
#define REMEMBER SIMULATE_REMEMBER

struct simulate_member *simulate_find_member(struct simulate_store *s, const uint8_t *id)
{
    for (uint32_t i = 0; i < s->member_count; i++)
        if (memcmp(s->members[i].id, id, WEIR__WIRE_ID) == 0)
            return &s->members[i];
    return NULL;
}

struct simulate_member *simulate_add_member(struct simulate_store *s, const uint8_t *id)
{
    if (s->member_count == s->member_room) {
        uint32_t room = s->member_room ? 2 * s->member_room : 16;
        struct simulate_member *more = realloc(s->members, room * sizeof *more);
        if (!more)
            return NULL;
        s->members = more;
        s->member_room = room;
    }
    struct simulate_member *member = &s->members[s->member_count++];
    memset(member, 0, sizeof *member);
    memcpy(member->id, id, WEIR__WIRE_ID);
    return member;
}

static void count_nodes(struct simulate_store *s, double now)
{
    uint32_t kept = 0;

    s->nodes = s->promised = 0;
    s->swept = now;
    for (uint32_t i = 0; i < s->member_count; i++) {
        const struct simulate_member *member = &s->members[i];
        if (member->said >= now - LIVE) {
            s->nodes++;
            s->promised += member->counted;
        }
        if (member->said >= now - REMEMBER)
            s->members[kept++] = *member;
    }
    s->member_count = kept;
}

void simulate_promise(struct simulate_store *s, struct simulate_member *is, double now, double owed)
{
    double heard = is->q0, others, round = 2 * s->interval;

    if (now >= s->swept + 10 * US)
        count_nodes(s, now);
    others = s->promised;
    if (is->seq > 0 && is->said >= s->swept - LIVE)
        others -= is->counted;
    else
        s->nodes++;
    double each = floor(0.75 * s->over / s->nodes + 1e-9), want = each * s->nodes;
    if (s->raised == 0) {
        s->reserve = want;
        s->raised = now;
        s->promisable = s->recover == 0 ? want : 0;
    } else if (want > s->reserve) {
        s->reserve = want;
        s->raised = now;
    } else if (now >= s->raised + s->length) {
        s->promisable = s->reserve;
    }
    is->q0 = fmax(0, fmin(each, floor(s->promisable - others + 1e-9)));
    if (is->said < now - LIVE)
        is->counted = heard = is->told = is->till = 0;
    if (owed <= 1)
        owed = 0;
    if (heard > is->q0)
        is->till = now + 2 * round;
    else if (is->till > 0 && is->said < now - round)
        is->till = -fmax(is->till, now + round);
    is->told = fmax(is->told, owed);
    if (now < fabs(is->till)) {
        is->counted = fmax(fmax(is->counted, is->q0), owed);
    } else {
        is->counted = fmax(is->q0, is->told);
        is->told = owed;
        is->till = -(now + round);
    }
    if (is->counted <= is->q0)
        is->told = is->till = 0;
    s->promised = others + is->counted;
    if (want < s->reserve && s->promised <= want)
        s->reserve = want;
    s->promisable = fmin(s->promisable, s->reserve);
}
