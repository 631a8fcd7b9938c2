/* SPDX-License-Identifier: MIT */
/*
 * One process of a fleet: a strategy, and what is asked of it, phase by phase as the board says.
 *
 * Owns the asking. Must not know what comes of the records.
 */
#ifndef WEIR_BENCH_FLEET_WORKER_H
#define WEIR_BENCH_FLEET_WORKER_H

#include <stdatomic.h>
#include <stdint.h>

#include "benchmarks/fleet/account.h"
#include "benchmarks/fleet/demand.h"
#include "benchmarks/fleet/strategy.h"

/* In the order in which a process passes through them. It does the work of a phase when the board has come to it, and
 * says so in its seat when it is done. */
enum phase {
    PHASE_NONE,
    PHASE_OPEN,     /* connected, and met the others */
    PHASE_PACED,    /* the workloads, each request at its own time */
    PHASE_RECOVER,  /* connected again */
    PHASE_HOT,      /* WORKER_HOT_KEYS, each asked for ten times a second by every process, for a second */
    PHASE_COLD,     /* WORKER_COLD_KEYS, each asked for once by one process */
    PHASE_SATURATE, /* WORKER_CALLERS callers a process that ask again as soon as they are answered */
    PHASE_CLOSE
};

enum { WORKER_COLD_KEYS = 10000, WORKER_HOT_KEYS = 200, WORKER_BUSY_KEYS = 100, WORKER_CALLERS = 64 };

#define WORKER_RECORDS 131072u

/* Of one process, shared with its parent, who reads a phase's numbers when the process has done it. */
struct seat {
    _Atomic uint32_t phase; /* release: all that was written in it */
    uint32_t count;
    double paced_cpu_s, busy_cpu_s;                      /* up to the end of the flash; while saturated */
    uint64_t busy_decisions, busy_denied, busy_degraded; /* while saturated */
    struct record *records;                              /* WORKER_RECORDS */
};

struct board {
    const struct strategy *strategy;
    struct strategy_setup setup;    /* but for what differs from process to process */
    uint32_t demands;               /* a bit for each workload that is asked */
    int paced_only;                 /* nothing between PHASE_PACED and PHASE_CLOSE */
    _Atomic uint32_t phase;         /* release: the times */
    uint64_t start_ns;              /* of PHASE_PACED */
    uint64_t busy_ns, busy_stop_ns; /* saturated: counted from, until */
    struct seat *seats;
};

/* The life of process `index`, from after the fork to its exit code. */
int worker_run(struct board *board, unsigned index);

#endif
