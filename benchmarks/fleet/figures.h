/* SPDX-License-Identifier: MIT */
/*
 * One strategy's figures, made from what happened to its fleet.
 *
 * Owns the definitions. Must not know how they are shown.
 */
#ifndef WEIR_BENCH_FLEET_FIGURES_H
#define WEIR_BENCH_FLEET_FIGURES_H

#include "benchmarks/fleet/fleet.h"

enum { FIGURES_QUANTILES = 41, FIGURES_STEPS = 240 };

/* Admitted by all, and by a perfect bucket, up to the end of each step of a workload. */
struct series {
    double step_s;
    unsigned steps;
    double admitted[FIGURES_STEPS], perfect[FIGURES_STEPS];
};

struct figures {
    const struct strategy *strategy;
    struct account accounts[DEMANDS];
    double decisions_s, client_us, redis_us;    /* saturated: of the fleet; CPU a decision */
    double busy_denied, busy_degraded;          /* shares of those, which should be 0: the limit is ample */
    double p50_us, p99_us, p999_us, longest_us; /* of a decision in the steady workloads */
    double quantile_us[FIGURES_QUANTILES];      /* at 1 - 10^-(i / 10) */
    double late_p99_us;                         /* requests, after they were due */
    double calls, paced_us;                     /* a decision of the workloads up to the outage: to Redis; CPU of all */
    double false_denied;                        /* share of what was asked in them */
    double rate_error;                          /* even, its last 3 s: admitted / what the rate allows - 1 */
    double fairness;                            /* even: the least that one process was admitted / the most */
    double cold_bytes, hot_bytes;               /* in Redis, a key */
    double claimed;                             /* worst overshoot / what its kind may be held to; 0: no claim */
    double worst_overshoot;                     /* over burst, of all workloads but the outage */
    double down_admitted;                       /* while Redis is dead: admitted / what the rate allows */
    double down_degraded, down_p99_us, down_longest_us; /* share flagged; of a decision */
    double recovered_ms; /* after Redis is back: the last decision without it; 0: none, or not known to the strategy */
    struct series flash, outage;
};

/* Sorts and consumes the records. */
void figures_make(struct figures *figures, const struct strategy *strategy, struct fleet_data *data);

/* Of a run of one workload. */
struct account figures_account(struct fleet_data *data, enum demand demand);

#endif
