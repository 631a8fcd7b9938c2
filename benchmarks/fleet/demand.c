/* SPDX-License-Identifier: MIT */
/* See demand.h. */
#include "benchmarks/fleet/demand.h"

#include <math.h>

#include "benchmarks/harness.h"

#define SECOND (1000 * DEMAND_MS)
#define MOVE_NS (500 * DEMAND_MS)
#define ON_NS SECOND
#define RATE 1000.0 /* a second, of every workload's limit but DEMAND_ZIPF's */

const struct strategy_limit demand_limits[LIMITS] = {
    [DEMAND_EVEN] = {1000, SECOND, 1000},
    [DEMAND_SKEWED] = {1000, SECOND, 1000},
    [DEMAND_MOVING] = {1000, SECOND, 1000},
    [DEMAND_ON_OFF] = {1000, SECOND, 1000},
    [DEMAND_ZIPF] = {20, SECOND, 20},
    [DEMAND_FLASH] = {1000, SECOND, 1000},
    [DEMAND_OUTAGE] = {1000, SECOND, 1000},
    [LIMIT_COLD] = {1, 60 * SECOND, 10}, /* nothing that is kept of these two expires while its bytes are counted */
    [LIMIT_HOT] = {8, SECOND, 1000},
    [LIMIT_AMPLE] = {1000000, SECOND, 1000000},
};

const struct demand_info demand_infos[DEMANDS] = {
    [DEMAND_EVEN] = {"even", "2 x the limit, the same from every process", 0, 5 * SECOND, 1},
    [DEMAND_SKEWED] = {"skewed", "2 x, 90 % of it from one process", 0, 5 * SECOND, 1},
    [DEMAND_MOVING] = {"moving", "2 x, from one process at a time, another every 0.5 s", 0, 5 * SECOND, 1},
    [DEMAND_ON_OFF] = {"on/off", "4 x for a second, nothing for a second", 0, 5 * SECOND, 1},
    [DEMAND_ZIPF] = {"zipf", "2,000/s over 10,000 keys of 20/s each, Zipf 1.1", 0, 5 * SECOND, 10000},
    [DEMAND_FLASH] = {"flash", "20 x at once on a cold key, for 0.5 s", DEMAND_FLASH_END - SECOND / 2, DEMAND_FLASH_END,
                      1},
    [DEMAND_OUTAGE] = {"outage", "2 x, even; Redis is killed, and is back empty after 3 s", DEMAND_OUTAGE_BEGIN,
                       DEMAND_END, 1},
};

double demand_rate(enum demand demand, unsigned process, uint64_t at_ns, uint64_t *until_ns)
{
    const double even = 2 * RATE / FLEET_PROCESSES;
    *until_ns = demand_infos[demand].end_ns;
    switch (demand) {
    case DEMAND_SKEWED: return process == 0 ? 0.9 * 2 * RATE : 0.1 * 2 * RATE / (FLEET_PROCESSES - 1);
    case DEMAND_MOVING:
        *until_ns = (at_ns / MOVE_NS + 1) * MOVE_NS;
        return at_ns / MOVE_NS % FLEET_PROCESSES == process ? 2 * RATE : 0;
    case DEMAND_ON_OFF: *until_ns = (at_ns / ON_NS + 1) * ON_NS; return at_ns / ON_NS % 2 == 0 ? 2 * even : 0;
    case DEMAND_FLASH: return 10 * even;
    default: return even;
    }
}

/* A stream without memory: what was drawn past a change of the rate is drawn again from there. */
uint64_t demand_next(enum demand demand, unsigned process, uint64_t at_ns, uint64_t *random)
{
    uint64_t at = at_ns < demand_infos[demand].begin_ns ? demand_infos[demand].begin_ns : at_ns;
    while (at < demand_infos[demand].end_ns) {
        uint64_t until;
        double rate = demand_rate(demand, process, at, &until);
        double uniform = (double)(bench_random(random) >> 11) * 0x1p-53;
        double gap_ns = rate > 0 ? -log(1 - uniform) / rate * 1e9 : INFINITY;
        if (gap_ns < (double)(until - at)) {
            return at + (uint64_t)gap_ns;
        }
        at = until;
    }
    return UINT64_MAX;
}
