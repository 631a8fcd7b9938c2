/* SPDX-License-Identifier: MIT */
/*
 * Reading what a person types: counts, times, limits. Each returns 0, or -1 where the text is not one (out untouched).
 *
 * Owns the syntax; must not print nor know what the numbers are for.
 */
#ifndef WEIR_TOOLS_ARGS_H
#define WEIR_TOOLS_ARGS_H

#include <stdint.h>

/* "1000": decimal digits, nothing else, within [least, most]. */
int args_count(const char *text, uint64_t least, uint64_t most, uint64_t *out);

/* "10", "2.5", "100ms", "1.5h": seconds where no unit follows. Units: ns us ms s m min h d. Exact: finer than 1 ns, or
 * longer than 100 years, is refused. */
int args_time(const char *text, uint64_t *out_ns);

/* "2.5": a positive decimal number up to `most`. */
int args_factor(const char *text, double most, double *out);

struct args_limit {
    uint64_t limit;
    uint64_t per_ns;
    uint64_t burst; /* 0: not given */
};

/* "1000/s", "100/10s", "5/min,burst=20": tokens, the period, perhaps the burst. Neither may be 0. */
int args_limit(const char *text, struct args_limit *out);

#endif
