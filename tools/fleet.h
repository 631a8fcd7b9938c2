/* SPDX-License-Identifier: MIT */
/*
 * The fleet of a demo: worker processes that share one policy, seen from their parent. What they admit is merged into
 * one account of overshoot while they run.
 *
 * Owns the board (memory shared with the workers), the processes, by pid, and the merging. Must not know the limiter
 * (worker.c does), nor what is drawn.
 */
#ifndef WEIR_TOOLS_FLEET_H
#define WEIR_TOOLS_FLEET_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include <weir/weir.h>

#include "tools/overshoot.h"

#define FLEET_PROCESSES_MAX 64u
#define FLEET_RING (UINT64_C(1) << 16) /* stamps of one worker that the parent has not read yet */
#define FLEET_TIMEOUT_MS 50u /* of a batch to Redis: the library's default, said here since a bound needs it */

struct fleet_options {
    unsigned processes;
    uint64_t limit, per_ns, burst, max_overshoot; /* max_overshoot: resolved, 0 is none */
    enum weir_mode mode;
    double load;     /* offered by all together, as a multiple of the limit */
    uint64_t run_ns; /* 0: until told to stop */
    char uri[128];   /* of Redis; "" in local mode */
};

enum fleet_phase {
    FLEET_HOLD,  /* workers connect and wait */
    FLEET_RUN,   /* from start_ns to stop_ns they ask */
    FLEET_CLOSE, /* all have flushed: they close */
    FLEET_END
};

enum fleet_worker_state {
    FLEET_WORKER_STARTING,
    FLEET_WORKER_READY,   /* connected, or tired of waiting for it */
    FLEET_WORKER_FLUSHED, /* asks no more, and Redis knows all that it admitted (or is not there) */
    FLEET_WORKER_DONE,
    FLEET_WORKER_FAILED /* `error` says why */
};

/*  field            writer    readers
 *  state..unsent    worker    parent      state: release, acquire: what was written before it is seen
 *  written, stamps  worker    parent      written: release, acquire: publishes the stamps before it
 *  read             parent    worker      release, acquire: gives the room back
 */
struct fleet_worker {
    _Atomic uint32_t state;
    _Atomic uint32_t store_up;
    char error[160];
    _Atomic uint64_t admitted, denied, failed;
    _Atomic uint64_t degraded, lent; /* decisions by the outage policy; those of them that admitted in strict mode */
    _Atomic uint64_t watermark_ns;   /* no stamp published from now on is older */
    _Atomic uint64_t longest_ns;     /* the longest that one call took */
    _Atomic uint64_t round_trip_ns;  /* the longest strict call that Redis answered */
    _Atomic uint64_t last_sync_ns, syncs, sync_errors, written_off, unsent;
    _Atomic uint64_t written;
    _Atomic uint64_t read; /* stored a few times a second: it may share a line */
    uint64_t stamps[FLEET_RING];
};

struct fleet_board {
    struct fleet_options options; /* written before the fork */
    pid_t parent;
    _Atomic uint32_t phase;
    _Atomic uint32_t mode; /* enum weir_mode wanted now */
    _Atomic uint64_t start_ns, stop_ns;
    struct fleet_worker workers[]; /* one more than there are: the parent's, when it asks as they do */
};

struct fleet {
    struct fleet_board *board;
    size_t board_size;
    unsigned processes;
    pid_t pids[FLEET_PROCESSES_MAX]; /* 0: ended */
    struct overshoot_queue queues[FLEET_PROCESSES_MAX];
    struct overshoot overshoot;
    char error[200];
};

/* CLOCK_MONOTONIC, ns: the clock of every stamp, and of the workers' limiters. */
uint64_t fleet_now(void);

/* Forks the workers. 0, or -1 with `error` set and nothing left to free. */
int fleet_open(struct fleet *f, const struct fleet_options *options);

/* Waits until every worker is ready, then lets them all start at one moment. 0, or -1 with `error` set. */
int fleet_start(struct fleet *f, int timeout_ms);

/* Reads and merges what was published. -1, with `error` set, once a worker has failed or died or memory ran out. */
int fleet_poll(struct fleet *f);

/* Ends the run now, unless it has ended. */
void fleet_stop(struct fleet *f);

/* Waits until every worker has flushed, closed and ended, and merges the rest. 0, or -1 with `error` set. The counters
 * stay readable. */
int fleet_finish(struct fleet *f, int timeout_ms);

/* Ends what still runs and frees everything. */
void fleet_close(struct fleet *f);

#endif
