/* SPDX-License-Identifier: MIT */
/* Owns the samples; must not know what is counted. */
#include "tools/meter.h"

void meter_add(struct meter *m, uint64_t at_ns, uint64_t count)
{
    m->samples[m->taken % METER_SAMPLES].at_ns = at_ns;
    m->samples[m->taken % METER_SAMPLES].count = count;
    m->taken++;
}

double meter_rate(const struct meter *m)
{
    if (m->taken < 2) {
        return 0;
    }
    unsigned newest = (m->taken - 1) % METER_SAMPLES;
    unsigned oldest = m->taken > METER_SAMPLES ? m->taken % METER_SAMPLES : 0;
    uint64_t gone = m->samples[newest].at_ns - m->samples[oldest].at_ns;
    return gone > 0 ? (double)(m->samples[newest].count - m->samples[oldest].count) * 1e9 / (double)gone : 0;
}
