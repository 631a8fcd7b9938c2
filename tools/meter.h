/* SPDX-License-Identifier: MIT */
/*
 * Rates over the last second, from counters that only grow.
 *
 * Owns the samples; must not know what is counted.
 */
#ifndef WEIR_TOOLS_METER_H
#define WEIR_TOOLS_METER_H

#include <stdint.h>

#define METER_SAMPLES 11 /* one each 100 ms */

struct meter {
    struct {
        uint64_t at_ns, count;
    } samples[METER_SAMPLES];
    unsigned taken;
};

void meter_add(struct meter *m, uint64_t at_ns, uint64_t count);

/* A second, over the samples held; 0 before the second sample. */
double meter_rate(const struct meter *m);

#endif
