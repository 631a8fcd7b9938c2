/* SPDX-License-Identifier: MIT */
/*
 * How much of a core the first two CPUs are at this moment, and which pieces of a measurement count by that. Knows
 * nothing of what is measured.
 *
 * A virtual machine's CPU is often one of a core's two threads. While somebody else runs on the other one, all takes up
 * to twice as long, and nothing that the system counts tells of it: not the steal time, not how long a process waited.
 * Arithmetic that needs all of a core's adders does. Such states last from milliseconds to minutes. So what is measured
 * is cut into pieces of some milliseconds, with 50 us of arithmetic between them, and those count that had a core to
 * themselves.
 */
#ifndef WEIR_BENCH_CORE_H
#define WEIR_BENCH_CORE_H

#include <stddef.h>
#include <stdint.h>

struct bench_row;

/* Starts what measures on the second CPU, and looks for 0.3 s for how fast both are at their best. */
void bench_core_open(void);
void bench_core_close(void);

/* ns of a piece of arithmetic on the caller's CPU: the median of five. */
double bench_core_here(void);

/* The same on the second CPU, whenever nobody else wants it: from bench_core_ask to bench_core_told, every 2 ms and
 * once more at the end, for which the latter waits. It returns the greatest. */
void bench_core_ask(void);
double bench_core_told(void);

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

#define BENCH_PIECES 4096u

struct bench_piece {
    double ns; /* of the arithmetic: the greatest */
    double done, cpu;
};

struct bench_pieces {
    size_t n, wanted, few; /* few: so many are taken though less count */
    double ns, done, cpu;  /* where the piece begins that is open */
    int open;
    struct bench_piece all[BENCH_PIECES];
};

/* A piece begins or ends. ns: of the arithmetic until then (0: it is told later); done and cpu: work and s so far.
 * An end without a beginning is none. */
void bench_pieces_begin(struct bench_pieces *pieces, double ns, double done, double cpu);
void bench_pieces_end(struct bench_pieces *pieces, double ns, double done, double cpu);

/* Are more pieces needed? */
int bench_pieces_more(const struct bench_pieces *pieces);

/* s for one: all time through all work, of the pieces that count. The row's detail says how many there are, how many
 * count, how much of a core the least of those taken had, and what all pieces give, in `unit` through s, or s through
 * `unit` where per_s is 0. Sorts them. */
double bench_pieces_sum(struct bench_pieces *pieces, struct bench_row *row, double unit, int per_s);

#endif
