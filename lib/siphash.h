/* SPDX-License-Identifier: MIT */
/*
 * SipHash-1-3 with 128 bits of output, keyed, so that nobody outside can make two inputs collide on purpose. Knows
 * nothing of tables; lib/identity.h says what is hashed.
 */
#ifndef WEIR_LIB_SIPHASH_H
#define WEIR_LIB_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/atomic.h"

WEIR__INLINE uint64_t weir__siphash_load64(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

/* The last n = 0 to 7 bytes, little-endian, without reading past them; `before` bytes lie before them. */
WEIR__INLINE uint64_t weir__siphash_tail(const unsigned char *p, size_t n, size_t before)
{
    uint64_t v = 0;

    if (WEIR__LIKELY(before))
        return weir__siphash_load64(p + n - 8) >> (56 - 8 * n) >> 8;
    if (n & 4) {
        v = (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
        p += 4;
    }
    if (n & 2) {
        v |= ((uint64_t)p[0] | (uint64_t)p[1] << 8) << (8 * (n & 4));
        p += 2;
    }
    if (n & 1)
        v |= (uint64_t)p[0] << (8 * (n & 6));
    return v;
}

WEIR__INLINE uint64_t weir__siphash_rotate(uint64_t v, int bits)
{
    return v << bits | v >> (64 - bits);
}

WEIR__INLINE void weir__siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = weir__siphash_rotate(v[1], 13) ^ v[0];
    v[3] = weir__siphash_rotate(v[3], 16) ^ v[2];
    v[0] = weir__siphash_rotate(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = weir__siphash_rotate(v[1], 17) ^ v[2];
    v[3] = weir__siphash_rotate(v[3], 21) ^ v[0];
    v[2] = weir__siphash_rotate(v[2], 32);
}

WEIR__INLINE void weir__siphash_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    weir__siphash_round(v);
    v[0] ^= word;
}

/* The state before the first byte, under the key k0, k1: made once. To exclusive-or k0 with a number, do so with v[0]
 * and v[2]. */
WEIR__INLINE void weir__siphash_start(uint64_t k0, uint64_t k1, uint64_t v[4])
{
    v[0] = k0 ^ UINT64_C(0x736f6d6570736575);
    v[1] = k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee;
    v[2] = k0 ^ UINT64_C(0x6c7967656e657261);
    v[3] = k1 ^ UINT64_C(0x7465646279746573);
}

/* The hash of n bytes, from there. */
WEIR__INLINE void weir__siphash_finish(uint64_t v[4], const void *data, size_t n, uint64_t out[2])
{
    const unsigned char *p = data;
    uint64_t last = (uint64_t)n << 56;
    size_t left;

    if (WEIR__LIKELY(n == 16)) { /* an IPv6 address, a UUID: a tenth of a take is saved by not counting */
        weir__siphash_word(v, weir__siphash_load64(p));
        weir__siphash_word(v, weir__siphash_load64(p + 8));
    } else {
        for (left = n; left >= 8; left -= 8, p += 8)
            weir__siphash_word(v, weir__siphash_load64(p));
        last |= weir__siphash_tail(p, left, n - left);
    }
    weir__siphash_word(v, last);

    v[2] ^= 0xee;
    weir__siphash_round(v);
    weir__siphash_round(v);
    weir__siphash_round(v);
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    weir__siphash_round(v);
    weir__siphash_round(v);
    weir__siphash_round(v);
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The hash of n bytes under the key k0, k1. */
WEIR__INLINE void weir__siphash_128(const void *data, size_t n, uint64_t k0, uint64_t k1, uint64_t out[2])
{
    uint64_t v[4];

    weir__siphash_start(k0, k1, v);
    weir__siphash_finish(v, data, n, out);
}

#endif
