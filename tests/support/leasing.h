/* SPDX-License-Identifier: MIT */
/*
 * A limiter with one key by handle, whose clock is the test's: what tests of leases look at. Knows nothing of them.
 */
#ifndef WEIR_TESTS_LEASING_H
#define WEIR_TESTS_LEASING_H

#include "lib/take.h"

#define SECOND UINT64_C(1000000000)

extern struct leasing {
    struct weir *w;
    struct weir__ask ask; /* for "key" */
    struct weir__hot *e;
    struct weir_key *key; /* pins e */
    uint64_t now;
    bool interfere;                  /* another take comes first while the next one asks for the time */
    struct weir_allocator allocator; /* of the next limiter */
} at;

/* Of a local policy, tokens a second. */
struct weir_policy leasing_numbers(uint64_t limit, uint64_t burst);

/* Fills `at`. This thread has a stripe of counters then. */
void leasing_open(uint64_t limit, uint64_t burst);
void leasing_close(void);

/* All that the bucket still gives. */
uint64_t leasing_drain(void);

#endif
