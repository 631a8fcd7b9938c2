/* SPDX-License-Identifier: MIT */
/*
 * The fleet's pictures: data files and gnuplot's work, in a folder.
 *
 * Owns the files. Must not know how figures came about.
 */
#ifndef WEIR_BENCH_FLEET_PICTURES_H
#define WEIR_BENCH_FLEET_PICTURES_H

#include "benchmarks/fleet/figures.h"

enum { PICTURES_INTERVALS = 5 };

/* Overshoot of a flash crowd, in tokens, by the interval of the timer. */
struct by_interval {
    uint32_t interval_ms[PICTURES_INTERVALS];
    double push_pull[PICTURES_INTERVALS], hybrid[PICTURES_INTERVALS];
};

/* Writes fleet-admitted, fleet-latency and fleet-interval as .svg and .png, and their data as .dat, to the folder,
 * which it makes. by_interval NULL: without the third. 0, or -1 with a message on standard error. */
int pictures_make(const char *folder, const struct figures *figures, size_t n, const struct by_interval *by_interval);

#endif
