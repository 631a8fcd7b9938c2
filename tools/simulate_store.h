/* SPDX-License-Identifier: MIT */
/*
 * Redis as simulated nodes see it: what sync/lua does for one shard with one key, in C, in virtual time. A test replays
 * traces through it and through the scripts on a real redis-server; both must agree (tests/integration/test_replay.c).
 *
 * Owns the state of the shard and of the key. Must not know nodes, the network or who asks; numbers never change, no
 * value is ever damaged, and nothing waits within a batch, for the product never sends that.
 */
#ifndef WEIR_TOOLS_SIMULATE_STORE_H
#define WEIR_TOOLS_SIMULATE_STORE_H

#include <stdint.h>

#include "sync/wire.h"

enum { SIMULATE_SLICES = 1024 }; /* of the key, those of the dead included */

/* Times are microseconds and rates tokens a microsecond, as in the scripts. */
struct simulate_slice {
    uint8_t node[8];
    double at, reserved;
    float rate, cap, demand, fallback, use, credit; /* demand < 0: expired, `reserved` was written off */
};

enum simulate_form { SIMULATE_ABSENT, SIMULATE_PLAIN, SIMULATE_SLICED };

struct simulate_value {
    enum simulate_form form;
    double level, at, expected, reserved, rates, fallbacks, demands, caps, holders, sweep, use, unseen, outage_end,
        charged;
    uint32_t count;
    struct simulate_slice slices[SIMULATE_SLICES];
};

struct simulate_member {
    uint8_t id[WEIR__WIRE_ID];
    double seq, said, counted, q0, told, till;
    struct weir__wire_head head; /* the answer to its last batch */
    struct weir__wire_grant grant;
    uint32_t count;
};

struct simulate_store {
    /* the header */
    int exists;
    struct weir__wire_numbers numbers;
    double rate, burst, over, interval, timeout, life, length;
    double epoch, high, offset, recover, settled, began, came, expected, created, flip, nodes, promised, reserve,
        promisable, raised, swept;
    uint64_t generation, key_generation;
    int has_current, has_previous;
    struct simulate_member *members;
    uint32_t member_count, member_room;
    /* the key, and where a script works on it */
    struct simulate_value key, scratch;
};

void simulate_store_init(struct simulate_store *store);
void simulate_store_deinit(struct simulate_store *store);

/* All is lost: an empty Redis. The epoch will be another. */
void simulate_store_forget(struct simulate_store *store);

/* reconcile.lua with at most one record; batch->test_now is the time. 0, or -1 when out of memory or of slices. */
int simulate_store_sync(struct simulate_store *s, const struct weir__wire_batch *batch, struct weir__wire_head *head,
                        struct weir__wire_grant *out);

/* strict.lua with one take: is it admitted? *free: what was there after it. flags: WEIR__WIRE_OUTAGE_LOCAL or 0. */
int simulate_store_take(struct simulate_store *s, const struct weir__wire_numbers *numbers, uint32_t flags, double at,
                        int64_t cost, double *free);

/* The fleet's level now, and what of it is not reserved. */
void simulate_store_look(struct simulate_store *s, double at, double *total, double *free);

#endif
