/* SPDX-License-Identifier: MIT */
/*
 * Numbers of a bucket: from a policy to {mult, cap, k}, and from missing units to a wait. Pure.
 */
#include "lib/bucket.h"

#include <weir/weir.h>

#define NS_A_DAY (UINT64_C(86400) * 1000000000)

/* 2^61 >= burst * 2^k and >= what WEIR__HORIZON_NS earns: the largest such k. The bounds on rate and burst keep it >=
 * 7: a token is a multiple of 4 units. */
static uint8_t choose_k(uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    weir__u128 earned = (weir__u128)WEIR__HORIZON_NS * limit; /* times per_ns */
    uint8_t k = 61;

    while (k > 0 && (burst > WEIR__UNITS_MAX >> k || earned > (weir__u128)per_ns * (WEIR__UNITS_MAX >> k)))
        k--;
    return k;
}

int weir__bucket_numbers(uint64_t limit, uint64_t per_ns, uint64_t burst, struct weir__numbers *out)
{
    weir__u128 scaled;

    if (per_ns == 0 || (limit == 0 && burst == 0))
        return WEIR_E_INVAL;
    if (burst == 0)
        burst = limit;
    if (burst > WEIR_BURST_MAX)
        return WEIR_E_RANGE;
    if (limit != 0 && ((weir__u128)limit * 10 > per_ns || (weir__u128)limit * NS_A_DAY < per_ns))
        return WEIR_E_RANGE;

    out->k = choose_k(limit, per_ns, burst);
    out->cap = burst << out->k;
    /* limit * 2^k * horizon <= 2^61 * per_ns, so limit * 2^k < 2^4 * per_ns: with 48 bits more it fits 116 bits. */
    scaled = (weir__u128)limit << (out->k + WEIR__SHIFT);
    out->mult = (uint64_t)((scaled + per_ns - 1) / per_ns);
    return 0;
}

uint64_t weir__bucket_mult(double tokens_per_second, uint8_t k)
{
    const double most = 9223372036854775808.0; /* 2^63 */
    double mult = tokens_per_second * (double)(UINT64_C(1) << k) * (281474976710656.0 / 1e9);

    if (!(mult > 0))
        return 0;
    return mult >= most ? UINT64_C(1) << 63 : (uint64_t)mult;
}

int64_t weir__bucket_level_late(uint64_t now, uint64_t then, uint64_t mult, uint64_t cap, uint64_t spent)
{
    int64_t before = (int64_t)(weir__bucket_refill(then, mult) - spent);
    weir__u128 earned = (weir__u128)(now - then) * mult >> WEIR__SHIFT;

    /* Else another thread has moved `spent` on, and is just about to say when: 64 bits will do. */
    if (before >= 0 && before <= (int64_t)cap && earned > cap - (uint64_t)before)
        return (int64_t)(cap + 4);
    return (int64_t)(weir__bucket_refill(now, mult) - spent);
}

uint64_t weir__bucket_wait(uint64_t now, uint64_t mult, int64_t need)
{
    weir__u128 target, when;

    if (need <= 0)
        return 0;
    if (mult == 0)
        return WEIR_NEVER;
    /* R without its modulus: the least `when` with when * mult >> 48 >= target. Nothing is lost to the cleared bits,
     * for target is a multiple of 4. */
    target = ((weir__u128)now * mult >> WEIR__SHIFT & ~(weir__u128)3) + (uint64_t)need;
    when = ((target << WEIR__SHIFT) + mult - 1) / mult;
    if (when - now >= WEIR_NEVER)
        return WEIR_NEVER - 1;
    return (uint64_t)(when - now);
}
