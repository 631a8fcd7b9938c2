/* SPDX-License-Identifier: MIT */
/*
 * A fleet of simulated nodes in virtual time against the scripts on a real redis-server, and an independent model: a
 * perfect token bucket a key, fed with everything that any node admitted. It knows nothing of slices.
 */
#ifndef WEIR_TESTS_SCRIPT_FLEET_H
#define WEIR_TESTS_SCRIPT_FLEET_H

#include <stdint.h>

#include "script_client.h"

struct fleet_options {
    unsigned seed;
    int nodes, keys; /* at most 12 and 6 */
    uint64_t limit, per_ns, burst, overshoot;
    double load; /* demand of the fleet on a key, times the rate (rate_floor where the rate is ~ 0) */
    double rate_floor;
    double seconds;                /* of virtual time */
    double latency;                /* one way, s */
    double lose_reply, lose_batch; /* chances */
    double crash, stall; /* chances a batch that its node dies (a new one takes its place), or stops for a while */
    double waits;        /* chance a record that requests wait with it */
    double strict;       /* part of the demand that asks strictly */
    double flush_at, outage_at; /* s: Redis forgets all; Redis answers nobody for outage_s. 0: never */
    double outage_s;
    int64_t max_cost; /* costs are 1 to this */
    int gentle;       /* only the first try of a batch may be lost: no slice ever expires */
    int fallback;     /* on_outage = local */
    int unknown;      /* a key with nothing in hand admits one token while Redis is asked */
};

struct fleet_result {
    double worst;    /* the least that any perfect bucket ever held, tokens; < 0: overshoot */
    double admitted; /* tokens, all keys */
    double perfect;  /* what perfect buckets would have admitted of the same demand */
    double in_redis; /* tokens missing in Redis at the end, all keys: sum of burst - T */
    double written;  /* tokens that Redis holds written off or admitted to requests that gave up */
    long batches, repeats, losses, denials, strict;
};

/* Runs it; checks on the way that Redis' sums are those of its slices and that no promise exceeds the bucket. */
void fleet_run(struct script_client *client, const struct fleet_options *options, struct fleet_result *result);

#endif
