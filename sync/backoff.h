/* SPDX-License-Identifier: MIT */
/*
 * How long to wait before trying again: a ceiling that doubles from 2 x min to max, and a delay drawn evenly from
 * [min, ceiling], so that many processes that lost one server don't come back in the same instant. Pure arithmetic.
 */
#ifndef WEIR_SYNC_BACKOFF_H
#define WEIR_SYNC_BACKOFF_H

#include <stdint.h>

struct weir__backoff {
    uint64_t min_ns, max_ns;
    uint64_t ceiling_ns; /* of the next delay */
    uint64_t random;     /* state of the generator */
};

/* min_ns <= max_ns. seed: any; different ones in different processes. */
void weir__backoff_init(struct weir__backoff *backoff, uint64_t min_ns, uint64_t max_ns, uint64_t seed);

/* The next delay, ns. */
uint64_t weir__backoff_next(struct weir__backoff *backoff);

/* It worked: the next delay is a short one again. */
void weir__backoff_reset(struct weir__backoff *backoff);

#endif
