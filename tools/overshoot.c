/* SPDX-License-Identifier: MIT */
/* Owns the arithmetic of overshoot.h; must not know where stamps come from. */
#include "tools/overshoot.h"

#include <stdlib.h>
#include <string.h>

void overshoot_init(struct overshoot *o, uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    *o = (struct overshoot){.limit = limit, .per_ns = per_ns, .burst = burst};
}

/* The largest sum over all windows that end at an admission is a running maximum: a window that has fallen below
 * nothing is worse than one that starts now. */
void overshoot_add(struct overshoot *o, uint64_t at_ns, uint64_t tokens)
{
    o->level -= (overshoot_wide)o->limit * (at_ns - o->last_ns);
    if (o->level < 0) {
        o->level = 0;
    }
    o->last_ns = at_ns;
    o->level += (overshoot_wide)tokens * o->per_ns;
    if (o->level > o->most) {
        o->most = o->level;
    }
}

static overshoot_wide above_burst(const struct overshoot *o)
{
    return o->most - (overshoot_wide)o->burst * o->per_ns;
}

double overshoot_tokens(const struct overshoot *o)
{
    overshoot_wide above = above_burst(o);
    if (above <= 0) {
        return 0;
    }
    /* Whole tokens apart: a double would lose the fraction of a large sum. */
    uint64_t whole = (uint64_t)(above / o->per_ns);
    return (double)whole + (double)(uint64_t)(above % o->per_ns) / (double)o->per_ns;
}

int overshoot_exceeds(const struct overshoot *o, uint64_t tokens, uint64_t slack_ns)
{
    return above_burst(o) > (overshoot_wide)tokens * o->per_ns + (overshoot_wide)o->limit * slack_ns;
}

int overshoot_queue_push(struct overshoot_queue *q, uint64_t at_ns)
{
    if (q->head + q->count == q->room) {
        if (q->head > q->room / 2) {
            memmove(q->at_ns, q->at_ns + q->head, q->count * sizeof q->at_ns[0]);
            q->head = 0;
        } else {
            size_t room = q->room ? 2 * q->room : 1024;
            uint64_t *grown = realloc(q->at_ns, room * sizeof grown[0]);
            if (!grown) {
                return -1;
            }
            q->at_ns = grown;
            q->room = room;
        }
    }
    q->at_ns[q->head + q->count++] = at_ns;
    return 0;
}

void overshoot_queue_deinit(struct overshoot_queue *q)
{
    free(q->at_ns);
    *q = (struct overshoot_queue){0};
}

void overshoot_merge(struct overshoot *o, struct overshoot_queue *queues, size_t n, uint64_t before_ns)
{
    for (;;) {
        struct overshoot_queue *oldest = NULL;
        for (size_t i = 0; i < n; i++) {
            struct overshoot_queue *q = &queues[i];
            if (q->count > 0 && (!oldest || q->at_ns[q->head] < oldest->at_ns[oldest->head])) {
                oldest = q;
            }
        }
        if (!oldest || oldest->at_ns[oldest->head] >= before_ns) {
            return;
        }
        overshoot_add(o, oldest->at_ns[oldest->head], 1);
        oldest->head++;
        oldest->count--;
        if (oldest->count == 0) {
            oldest->head = 0;
        }
    }
}
