/* SPDX-License-Identifier: MIT */
/* The groups of rows: one function a file. Each prints those of its rows that the options ask for. */
#ifndef WEIR_BENCH_ROWS_H
#define WEIR_BENCH_ROWS_H

#include "harness.h"

void micro_rows(const struct bench_options *options);     /* L1 to L5 */
void keyed_rows(const struct bench_options *options);     /* L6 to L8 */
void tail_rows(const struct bench_options *options);      /* L9 */
void callgrind_rows(const struct bench_options *options); /* L10 */
void accuracy_rows(const struct bench_options *options);  /* A1 to A10 */

void redis_rows(const struct bench_options *options); /* R1 to R11 */
void fleet_rows(const struct bench_options *options); /* every strategy, and pictures */

/* Every size, distribution and number of threads: not rows with goals, but the picture that L6 and L7 are points of. */
void keyed_sweep(const struct bench_options *options);

/* What callgrind_rows runs under valgrind: `ops` operations of the work of this name, then the process ends. */
int callgrind_work(const char *name, size_t ops);

/* Runs every peer that is here against weir; a table, or one JSON object a line. */
void peers_table(const struct bench_options *options);

/* One line of that table: prints it. */
void peers_report(const struct bench_options *options, const char *peer, const char *work,
                  const struct bench_side *other, const struct bench_side *weir, unsigned threads);

/* The line of the 64-shard mutex map, 1 million keys, for each number of threads. */
void keyed_peer(const struct bench_options *options);

#endif
