/* SPDX-License-Identifier: MIT */
/*
 * How far admissions went over a limit: the most that any window admitted above burst + rate x window, exact, from the
 * time stamp of every admission.
 *
 * Owns the arithmetic and the merging of several processes' stamps. Knows nothing of limiters, processes or clocks.
 */
#ifndef WEIR_TOOLS_OVERSHOOT_H
#define WEIR_TOOLS_OVERSHOOT_H

#include <stddef.h>
#include <stdint.h>

__extension__ typedef __int128 overshoot_wide;

/* Everything is counted in parts of a token, per_ns parts each, so that a nanosecond refills exactly `limit` parts. */
struct overshoot {
    uint64_t limit, per_ns, burst;
    uint64_t last_ns;
    overshoot_wide level; /* what the worst window that ends now holds above rate x window */
    overshoot_wide most;  /* its maximum so far */
};

/* per_ns must not be 0. */
void overshoot_init(struct overshoot *o, uint64_t limit, uint64_t per_ns, uint64_t burst);

/* `tokens` were admitted at at_ns. Times must not go back from one call to the next. */
void overshoot_add(struct overshoot *o, uint64_t at_ns, uint64_t tokens);

/* Tokens above burst + rate x window in the worst window so far; 0 where none went over. */
double overshoot_tokens(const struct overshoot *o);

/* Is it more than `tokens` + rate x slack_ns? Exact. */
int overshoot_exceeds(const struct overshoot *o, uint64_t tokens, uint64_t slack_ns);

/* One process' stamps, oldest first, waiting for those of the others. All zeroes is an empty queue. */
struct overshoot_queue {
    uint64_t *at_ns;
    size_t head, count, room;
};

/* 0, or -1 when out of memory. */
int overshoot_queue_push(struct overshoot_queue *q, uint64_t at_ns);
void overshoot_queue_deinit(struct overshoot_queue *q);

/* Adds, in the order of time, every stamp of n queues that is older than before_ns; the others stay. */
void overshoot_merge(struct overshoot *o, struct overshoot_queue *queues, size_t n, uint64_t before_ns);

#endif
