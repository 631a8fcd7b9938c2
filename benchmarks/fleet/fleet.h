/* SPDX-License-Identifier: MIT */
/*
 * Runs one strategy in FLEET_PROCESSES processes with a redis-server of their own, through all workloads and phases,
 * and gives back what happened: every request, and what was counted.
 *
 * Owns the processes and the time table. Must not know what is made of the records.
 */
#ifndef WEIR_BENCH_FLEET_FLEET_H
#define WEIR_BENCH_FLEET_FLEET_H

#include <stddef.h>
#include <stdint.h>

#include "benchmarks/fleet/account.h"
#include "benchmarks/fleet/demand.h"
#include "benchmarks/fleet/strategy.h"

struct fleet_data {
    struct strategy_setup setup; /* but for what differs from process to process */
    struct record *records;      /* of all processes, one after the other */
    size_t count;
    double paced_calls, paced_redis_cpu_s, paced_cpu_s; /* up to the end of the flash; cpu: of all processes */
    double cold_bytes, hot_bytes;                       /* in Redis, a key */
    double busy_s, busy_decisions, busy_denied, busy_degraded, busy_cpu_s, busy_redis_cpu_s; /* saturated */
};

/* The whole of it. Dies where a process does not do its work. */
void fleet_run(const struct strategy *strategy, struct fleet_data *data);

/* One workload alone, without an outage and what comes after it. */
void fleet_run_one(const struct strategy *strategy, enum demand demand, uint32_t interval_ms, struct fleet_data *data);

void fleet_free(struct fleet_data *data);

#endif
