/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of waiting. Owns no clock and no timer.
 */
#include "sync/backoff.h"

/* SplitMix64: any seed will do, 0 included, and neighbouring seeds give unlike numbers. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t doubled(uint64_t value, uint64_t max)
{
    return value > max / 2 ? max : value * 2;
}

void weir__backoff_init(struct weir__backoff *backoff, uint64_t min_ns, uint64_t max_ns, uint64_t seed)
{
    backoff->min_ns = min_ns;
    backoff->max_ns = max_ns;
    backoff->random = seed;
    weir__backoff_reset(backoff);
}

uint64_t weir__backoff_next(struct weir__backoff *backoff)
{
    /* 53 random bits as a fraction: the same draw for every range, no modulo and its bias. */
    double fraction = (double)(next_random(&backoff->random) >> 11) * 0x1p-53;
    uint64_t span = backoff->ceiling_ns - backoff->min_ns;
    backoff->ceiling_ns = doubled(backoff->ceiling_ns, backoff->max_ns);
    return backoff->min_ns + (uint64_t)(fraction * (double)span);
}

void weir__backoff_reset(struct weir__backoff *backoff)
{
    backoff->ceiling_ns = doubled(backoff->min_ns, backoff->max_ns);
}
