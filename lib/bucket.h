/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of a bucket: exact, on integers, time passed in. Knows no memory layout, no atomics, no policy.
 *
 * A unit is 2^-k token. R(now) = (now_ns * mult) >> 48, modulo 2^64, with the two low bits cleared: they are flags in
 * x and f. mult is rounded up, so that a wait of n whole periods earns n * limit tokens to the last unit:
 * R(t + d) - R(t) >= R(d).
 */
#ifndef WEIR_LIB_BUCKET_H
#define WEIR_LIB_BUCKET_H

#include <stdint.h>

#include "lib/atomic.h"

#define WEIR__SHIFT 48
/* 64 bits surely count right for so long without a take. */
#define WEIR__HORIZON_NS (UINT64_C(5) * 365 * 86400 * 1000000000)
#define WEIR__UNITS_MAX (UINT64_C(1) << 61) /* neither a burst nor a horizon's refill is more */

#define WEIR__UNITS (~UINT64_C(3)) /* without the flags of x or f */

struct weir__numbers {
    uint64_t mult; /* units a ns << 48; 0: never refills */
    uint64_t cap;  /* units */
    uint8_t k;     /* 7 to 61 */
};

/* limit tokens every per_ns, at most burst: with the largest k that keeps both below WEIR__UNITS_MAX. WEIR_E_INVAL,
 * WEIR_E_RANGE as weir_policy_add. */
int weir__bucket_numbers(uint64_t limit, uint64_t per_ns, uint64_t burst, struct weir__numbers *out);

/* The same from doubles, for shares of a bucket: tokens a second to mult; tokens to units (a multiple of 4). Both
 * saturate. */
uint64_t weir__bucket_mult(double tokens_per_second, uint8_t k);

WEIR__INLINE int64_t weir__bucket_units(double tokens, uint8_t k)
{
    const double most = (double)WEIR__UNITS_MAX;
    double units = tokens * (double)(UINT64_C(1) << k);

    if (units != units)
        return 0;
    if (units >= most)
        return (int64_t)WEIR__UNITS_MAX;
    if (units <= -most)
        return -(int64_t)WEIR__UNITS_MAX;
    return (int64_t)units & ~INT64_C(3);
}

/* R(now). */
WEIR__INLINE uint64_t weir__bucket_refill(uint64_t now, uint64_t mult)
{
    return (uint64_t)((weir__u128)now * mult >> WEIR__SHIFT) & WEIR__UNITS;
}

/* R(now) - spent of a bucket that held cap at most at `then`, not after now. R goes round after some twenty years: of
 * what is full by then it is more than cap. */
int64_t weir__bucket_level_late(uint64_t now, uint64_t then, uint64_t mult, uint64_t cap, uint64_t spent);

WEIR__INLINE int64_t weir__bucket_level(uint64_t now, uint64_t then, uint64_t mult, uint64_t cap, uint64_t spent)
{
    if (WEIR__UNLIKELY(now - then > WEIR__HORIZON_NS))
        return weir__bucket_level_late(now, then, mult, cap, spent);
    return (int64_t)(weir__bucket_refill(now, mult) - spent);
}

/* From now until R has grown by `need` units (a multiple of 4), ns rounded up: that wait admits and 1 ns less doesn't.
 * 0 for need <= 0, WEIR_NEVER for mult 0, one less where it overflows. */
uint64_t weir__bucket_wait(uint64_t now, uint64_t mult, int64_t need);

/* units / 2^k rounded down; exact for negative numbers as well. */
WEIR__INLINE int64_t weir__bucket_tokens(int64_t units, uint8_t k)
{
    return units >> k;
}

#endif
