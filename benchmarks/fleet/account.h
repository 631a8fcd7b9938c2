/* SPDX-License-Identifier: MIT */
/*
 * What a fleet's requests say together about one limit: admitted, what a perfect bucket would have admitted, how far
 * over, what was denied for nothing. Exact, from the time of every request and of every verdict.
 *
 * Owns the arithmetic. Knows nothing of processes or strategies.
 */
#ifndef WEIR_BENCH_FLEET_ACCOUNT_H
#define WEIR_BENCH_FLEET_ACCOUNT_H

#include <stddef.h>
#include <stdint.h>

#include "benchmarks/fleet/strategy.h"

/* One request of one token. */
struct record {
    uint64_t asked_ns; /* since the start */
    uint32_t took_ns, late_ns;
    uint32_t key;
    uint8_t demand, process, allowed, degraded;
};

struct account {
    double asked, admitted, degraded;
    double perfect; /* what one perfect bucket admits of the same requests */
    /* Tokens over burst + rate x window in the worst window, of those admissions alone whose request and verdict both
     * lie in it: so nobody's waiting counts as overshoot. */
    double overshoot;
    double seen; /* the same by the time of the verdict */
    /* Denied, though a bucket that is charged with all that was admitted, and with each false denial before, held a
     * token all the while from request to verdict: what more could be had. */
    double false_denied;
};

/* Adds the requests for one key, which it sorts by the time they were asked. Overshoots: the larger one stays. */
void account_add(struct account *account, const struct strategy_limit *limit, struct record *records, size_t n);

/* The same for records of many keys, which it sorts by key. */
void account_add_keys(struct account *account, const struct strategy_limit *limit, struct record *records, size_t n);

#endif
