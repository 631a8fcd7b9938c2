/* SPDX-License-Identifier: MIT */
/*
 * A simulated fleet: nodes that ask for one key in virtual time, and a Redis behind a network that delays and loses.
 * What they admit is held against a perfect token bucket, exactly.
 *
 * Owns time, chance, the network, demand and the account. Must not know how a hybrid node works (simulate_node.h), nor
 * what is printed.
 */
#ifndef WEIR_TOOLS_SIMULATE_FLEET_H
#define WEIR_TOOLS_SIMULATE_FLEET_H

#include <stdint.h>

#include <weir/weir.h>

enum { SIMULATE_NODES_MAX = 256, SIMULATE_BINS = 240 };

enum simulate_strategy {
    SIMULATE_LOCAL,     /* each node alone, with the whole limit */
    SIMULATE_STATIC,    /* each node alone, with 1/N of it */
    SIMULATE_PUSH_PULL, /* a whole bucket each; every interval the use is pushed and the total pulled */
    SIMULATE_HYBRID,
    SIMULATE_STRICT,
    SIMULATE_STRATEGIES
};

enum simulate_workload {
    SIMULATE_EVEN,
    SIMULATE_SKEWED, /* one node has 90 % */
    SIMULATE_MOVING, /* one node at a time, another every 2.5 s */
    SIMULATE_FLASH,  /* nothing, then all of it on a cold key after 1 s */
    SIMULATE_ONOFF,  /* each node asks for 0.5 s of 2 on average, four times as much */
    SIMULATE_STEP,   /* half of the limit, the load, half of it, the load: a quarter of the time each */
    SIMULATE_JOIN,   /* half of the nodes; the others join after a third; the first half dies after two thirds */
    SIMULATE_LOSS,   /* even, and a twentieth of all messages is lost, each way */
    SIMULATE_OUTAGE, /* even, and nobody reaches Redis for a quarter of the time */
    SIMULATE_WORKLOADS
};

struct weir__wire_batch;
struct weir__wire_head;
struct weir__wire_grant;

/* Sees all that reaches the simulated Redis, with its answer; times are in the batch, or given (s). */
struct simulate_watch {
    void *ctx;
    void (*sync)(void *ctx, const struct weir__wire_batch *batch, const struct weir__wire_head *head,
                 const struct weir__wire_grant *grant);
    void (*take)(void *ctx, double now, int64_t cost, int admitted, double free);
    void (*lose)(void *ctx); /* it has lost its state */
};

struct simulate_options {
    enum simulate_strategy strategy;
    enum simulate_workload workload;
    unsigned nodes;
    uint64_t limit, per_ns, burst, max_overshoot; /* resolved */
    double load;                                  /* of the limit, all nodes together */
    uint64_t interval_ns, rtt_ns, timeout_ns, run_ns;
    double loss; /* of requests, and again of answers */
    uint64_t seed;
    int64_t cost;        /* costs are 1 to this, evenly */
    double async;        /* the part of takes that asks Redis where memory has too little (hybrid) */
    double crash, stall; /* a second and node: it dies and another takes its place; its sync thread stands still */
    uint64_t stall_ns;   /* at most */
    uint64_t lose_ns;    /* Redis loses its state once so much time has passed; 0: never */
    enum weir_on_outage on_outage;
    enum weir_unknown unknown;
    const struct simulate_watch *watch; /* NULL: nobody */
};

struct simulate_result {
    double overshoot;                /* tokens: the most that any window admitted above burst + rate x window */
    double bound;                    /* what it may be in hybrid mode, by its contract */
    double asked, admitted, perfect; /* tokens; perfect: what one bucket would have admitted of the same demand */
    double false_denied; /* tokens denied though a bucket that had admitted the same held them and 5 % more */
    uint64_t calls;      /* to Redis */
    uint64_t lost, repeats, degraded, crashes, stalls;
    double calls_per_node; /* a second, of nodes while they live */
    double allowed_at[SIMULATE_BINS + 1], admitted_at[SIMULATE_BINS + 1], perfect_at[SIMULATE_BINS + 1]; /* so far */
};

/* Runs it. 0, or a negative status of the library with nothing left to free. */
int simulate_run(const struct simulate_options *options, struct simulate_result *result);

/* Names as on the command line; NULL past the last. */
const char *simulate_strategy_name(enum simulate_strategy strategy);
const char *simulate_workload_name(enum simulate_workload workload);

#endif
