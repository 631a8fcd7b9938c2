/* SPDX-License-Identifier: MIT */
/*
 * What is asked of a fleet: the limits, and for each workload how many requests a second each process makes, when.
 *
 * Owns the numbers of the workloads. Knows nothing of strategies.
 */
#ifndef WEIR_BENCH_FLEET_DEMAND_H
#define WEIR_BENCH_FLEET_DEMAND_H

#include <stdint.h>

#include "benchmarks/fleet/strategy.h"

enum { FLEET_PROCESSES = 8 };

/* The first DEMANDS limits are those of the workloads. */
enum demand {
    DEMAND_EVEN,
    DEMAND_SKEWED,
    DEMAND_MOVING,
    DEMAND_ON_OFF,
    DEMAND_ZIPF,
    DEMAND_FLASH,
    DEMAND_OUTAGE,
    DEMANDS,
    LIMIT_COLD = DEMANDS,
    LIMIT_HOT,
    LIMIT_AMPLE,
    LIMITS
};

/* Times are ns since the start, which is half a second after a full one of the wall clock: windows of a second lie to
 * every strategy's workloads alike. */
#define DEMAND_MS UINT64_C(1000000)
#define DEMAND_FLASH_END (5700 * DEMAND_MS)
#define DEMAND_OUTAGE_BEGIN (6000 * DEMAND_MS)
#define DEMAND_KILL (6750 * DEMAND_MS)
#define DEMAND_RESTART (9750 * DEMAND_MS)
#define DEMAND_END (13250 * DEMAND_MS)

extern const struct strategy_limit demand_limits[LIMITS];

struct demand_info {
    const char *name, *what;
    uint64_t begin_ns, end_ns;
    uint32_t keys;
};

extern const struct demand_info demand_infos[DEMANDS];

/* Requests a second of a process at a time; until: how long that holds. */
double demand_rate(enum demand demand, unsigned process, uint64_t at_ns, uint64_t *until_ns);

/* The time of the next request after at_ns, of a Poisson stream; UINT64_MAX: none before the workload ends. */
uint64_t demand_next(enum demand demand, unsigned process, uint64_t at_ns, uint64_t *random);

#endif
