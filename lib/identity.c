/* SPDX-License-Identifier: MIT */
/*
 * What identities are made with: is AES there, and all that follows from a limiter's secret.
 */
#include "lib/identity.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_AES
#define HWCAP_AES (1UL << 3)
#endif
#endif

bool weir__identity_has_aes(void)
{
#if !WEIR__IDENTITY_AES
    return false;
#elif defined(__x86_64__)
    return __builtin_cpu_supports("aes") != 0;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#elif defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

/* 128 bits for each number, as if drawn each for itself: what SipHash makes of it for a policy that there can't be. */
static void derive(const uint64_t secret[2], uint64_t number, uint64_t out[2])
{
    weir__siphash_128(&number, sizeof number, secret[0] ^ UINT64_C(1) << 63, secret[1], out);
}

void weir__identity_init(struct weir__identity *identity, const uint64_t secret[2], bool aes)
{
    uint64_t number = 0;

    for (size_t i = 0; i < WEIR__IDENTITY_ROUNDS; i++)
        derive(secret, number++, identity->round[i]);
    derive(secret, number++, identity->padded);
    for (size_t i = 0; i < WEIR__IDENTITY_MARKS; i++)
        derive(secret, number++, identity->mark[i]);
    weir__siphash_start(secret[0], secret[1], identity->start);
    identity->most = aes ? WEIR__IDENTITY_BLOCK : 0;
}
