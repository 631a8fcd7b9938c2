/* SPDX-License-Identifier: MIT */
/*
 * Fleets of real processes that share one key through a real Redis. Every request and every admission leaves its time
 * stamp; what they say together is exact.
 *
 * Owns the processes and their demand. Must not know rows or goals.
 */
#ifndef WEIR_BENCH_ACCURACY_FLEET_H
#define WEIR_BENCH_ACCURACY_FLEET_H

#include <stdint.h>

#include <weir/weir.h>

enum { ACCURACY_PROCESSES = 10 };

enum accuracy_demand {
    ACCURACY_EVEN,
    ACCURACY_SKEWED, /* one process has 90 % */
    ACCURACY_MOVING, /* one process at a time, another every 2 s */
    ACCURACY_COLD    /* the first one alone: 8 requests at once for a key that nobody ever asked for, every 100 ms */
};

struct accuracy_fleet {
    const char *name; /* of the policy; fleets that run together have different ones */
    uint64_t limit, per_ns, burst, max_overshoot;
    enum accuracy_demand demand;
    double load;    /* times the limit ... */
    double asked_s; /* ... or requests a second where it is not 0 */
    int async;
    uint32_t shards, interval_ms, timeout_ms; /* 0: the library's defaults */
    const char *socket;                       /* of Redis, or of what stands before it */
};

struct accuracy_result {
    double overshoot;                /* tokens */
    double late_overshoot;           /* the same without the first second */
    double asked, admitted, perfect; /* perfect: what one bucket would have admitted */
    double saturated_error;          /* of the long-run rate: admitted / (burst + rate x time) - 1 */
    double calls_per_node;           /* batches to Redis a second and process, while it was asked */
    uint64_t degraded, sync_errors, unsent, written_off, reconnects, failed;
    double remaining; /* the key in Redis afterwards, tokens, rounded down; -1: not known */
};

/* While they run, called every 10 ms; t: s since the first request. */
typedef void (*accuracy_meanwhile)(void *arg, double t);

/* Runs n fleets of ACCURACY_PROCESSES side by side for `seconds`. Dies where that can't be done. */
void accuracy_run(const struct accuracy_fleet *fleets, struct accuracy_result *results, unsigned n, double seconds,
                  accuracy_meanwhile meanwhile, void *arg);

#endif
