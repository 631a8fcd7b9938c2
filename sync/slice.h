/* SPDX-License-Identifier: MIT */
/*
 * The node's arithmetic of slices: how much demand a key has, what to ask for, and what Redis' answer does to the
 * bucket in memory. Pure: time is a parameter, nothing is stored but in the caller's structs; it must not know the
 * wire, sockets or the table.
 *
 * Threads: none is assumed; every object belongs to its caller.
 */
#ifndef WEIR_SYNC_SLICE_H
#define WEIR_SYNC_SLICE_H

#include <stdint.h>

#include "lib/seam.h"

/* What a policy's numbers and the sync's options mean for its slices; s, tokens, tokens a second. */
struct weir__slice_terms {
    double rate, burst, overshoot;
    double interval; /* S: between reports of a key: min(option, max(20 ms, burst / 2 rate)) */
    double timeout;  /* of a batch */
    double lifetime; /* H = 1.5 S + 2 timeout: a slice silent for so long has expired, in Redis and here */
    double margin;   /* it ends so much earlier here */
};

void weir__slice_terms_set(struct weir__slice_terms *terms, uint64_t limit, uint64_t per_ns, uint64_t burst,
                           uint64_t overshoot, double interval, double timeout);

/* The overdraft before Redis has spoken, floor(3 E / 4 N); N: the most live nodes that any shard named. 0 for nodes
 * 0. */
double weir__slice_q0(const struct weir__slice_terms *terms, double nodes);

/* The share of a key that Redis never granted one, by the fleet's size (>= 1). */
void weir__slice_share(const struct weir__slice_terms *terms, double nodes, double *rate, double *burst);

/* The end of a slice, ns: of a request sent (for the first time) at sent_ns. */
uint64_t weir__slice_until(const struct weir__slice_terms *terms, uint64_t sent_ns);

/* ---- demand ------------------------------------------------------------------------------------------------------ */

/* Tokens asked for a second, admitted and denied: an EWMA of 0.5 s that jumps where a window is 3 sigma off, of takes
 * of the largest recent cost: three takes of 30 say as much as three of one. Zeroed: none yet. */
struct weir__demand {
    double rate;     /* of the windows that are closed */
    double attempts; /* in the open window */
    double opened;   /* when it began, s */
    double last;     /* when the last attempt was reported, s */
    double cost;     /* the largest recent one, tokens; 0: none was told */
};

/* Feeds what a report counted, tokens, and the largest cost among them; now in s. */
void weir__demand_add(struct weir__demand *demand, double now, uint64_t attempts, uint64_t cost, double interval);

/* The estimate, the open window included. */
double weir__demand_rate(const struct weir__demand *demand, double now, double interval);

/* Has nobody asked for the time of five takes (and a quarter of the interval; of takes of many tokens, ten intervals
 * at most)? Then the slice should be released. */
int weir__demand_idle(const struct weir__demand *demand, double now, double interval);

/* ---- asking ------------------------------------------------------------------------------------------------------ */

/* A round trip's estimate: jumps up, comes down slowly. */
double weir__slice_rtt(double old, double measured);

/* ... after one that took longer than `timeout`: it might have been any length, and it may be the only one. */
double weir__slice_late(double old, double timeout);

/* The level wanted: d S / 2 + 2 sqrt(d S) + 2 d rtt, at least 1, at most half of the burst; 0 where d S < 1. Never
 * under max_cost where a slice is wanted at all and the burst allows it. */
double weir__slice_want(const struct weir__slice_terms *terms, double demand, double rtt, double max_cost);

/* What was told to Redis of a key: kept until its reply. */
struct weir__slice_ask {
    double level, rate, demand, want; /* as in the record sent */
    uint64_t sent_ns;                 /* when the batch was sent for the first time */
};

/* Redis' answer, as decoded: the fields of weir__wire_grant that matter here. */
struct weir__slice_answer {
    double level, rate, cap, fallback, hold, total, free;
    int rich;
};

/* What the answer does to the bucket. The level moves by answer.level - ask.level, less what refilled since, up to
 * (ask.rate - answer.rate)+ x flight; what is more than wanted is dropped now, to be returned by the next report.
 * flight is bounded by the timeout: after it the caller had put the rate to 0. now_ns: when the reply came; rtt: the
 * estimate after it. Where nothing is held afterwards (rate and cap 0) out->until is 0. */
void weir__slice_grant(const struct weir__slice_terms *terms, const struct weir__slice_ask *ask,
                       const struct weir__slice_answer *answer, uint64_t now_ns, double rtt, struct weir__grant *out);

/* The level after the answer to a record without a slice: an overdraft is forgiven as far as the bucket covers it, or a
 * fleet would overdraw it once more with every answer. What is still owed must travel with a slice from then on. level:
 * as it was in the record; free: of the answer. */
double weir__slice_owed(double level, double free);

/* May a key be left out of reports while it is clean? Nothing held, nothing lent, nobody asking. */
int weir__slice_nothing(const struct weir__slice_ask *ask, const struct weir__slice_answer *answer);

#endif
