/* SPDX-License-Identifier: MIT */
/*
 * The identity of a key: 128 bits of its policy and its bytes, by which buckets are told apart. Owns the choice between
 * two hashes, and what both are keyed with. Knows nothing of tables.
 *
 * Up to 16 bytes, where the processor has instructions for AES: the key is one block, a shorter one with a byte 0x80
 * and zeros behind it. Exclusive-ored with the policy's mark, and a shorter one also with `padded`, it goes through
 * four rounds of AES. Longer keys, and all of them elsewhere: SipHash-1-3-128. Everything that goes in besides the key
 * is secret. docs/security.md says why that is enough.
 *
 * An identity means nothing outside the processes that share a limiter, and must not be seen there: four rounds keep no
 * secret from who knows what comes out.
 */
#ifndef WEIR_LIB_IDENTITY_H
#define WEIR_LIB_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/atomic.h"
#include "lib/siphash.h"

/* -DWEIR_PORTABLE_HASH: SipHash for all. */
#if defined(WEIR_PORTABLE_HASH) || !defined(__GNUC__)
#define WEIR__IDENTITY_AES 0
#elif defined(__x86_64__) || (defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
#define WEIR__IDENTITY_AES 1
#else
#define WEIR__IDENTITY_AES 0
#endif

#define WEIR__IDENTITY_ROUNDS 4
#define WEIR__IDENTITY_BLOCK 16u   /* bytes */
#define WEIR__IDENTITY_MARKS 1024u /* policies */

struct weir__identity {
    _Alignas(64) uint64_t round[WEIR__IDENTITY_ROUNDS][2]; /* AES: each round's key */
    uint64_t padded[2];
    uint64_t start[4]; /* SipHash: before the first byte */
    size_t most;       /* bytes of a key that AES is for; 0: none */
    _Alignas(64) uint64_t mark[WEIR__IDENTITY_MARKS][2];
};

/* Has this processor instructions for AES, and was this compiled to use them? */
bool weir__identity_has_aes(void);

/* All of it, from a secret. aes: what weir__identity_has_aes says, or false. */
void weir__identity_init(struct weir__identity *identity, const uint64_t secret[2], bool aes);

#if WEIR__IDENTITY_AES

typedef uint64_t weir__block __attribute__((vector_size(16), may_alias));

/* Assembly: a function that a compiler lets use these instructions can't be inlined into one where it doesn't. */

WEIR__INLINE weir__block weir__identity_rounds(weir__block block, weir__block mark, const struct weir__identity *is)
{
#if defined(__x86_64__)
    block ^= mark;
    for (int i = 0; i < WEIR__IDENTITY_ROUNDS; i++) {
        const weir__block *key = (const weir__block *)(const void *)is->round[i];
#if defined(__AVX__)
        __asm__("vaesenc %1, %0, %0" : "+x"(block) : "m"(*key));
#else
        __asm__("aesenc %1, %0" : "+x"(block) : "m"(*key));
#endif
    }
    return block;
#else
    /* This one begins with the exclusive-or that the other ends with. */
    for (int i = 0; i < WEIR__IDENTITY_ROUNDS; i++) {
        __asm__(".arch_extension aes\n\t"
                "aese %0.16b, %1.16b\n\t"
                "aesmc %0.16b, %0.16b"
                : "+w"(block)
                : "w"(mark));
        mark = *(const weir__block *)(const void *)is->round[i];
    }
    return block ^ mark;
#endif
}

/* 16 bytes. Two loads on x86-64: a key is often put together just before, from words of 8 bytes, and one load of 16
 * would wait until they have left the store buffer. Compilers know better than to leave it at two. */
WEIR__INLINE weir__block weir__identity_whole(const unsigned char *p)
{
    weir__block block;

#if defined(__x86_64__)
    block = (weir__block){weir__siphash_load64(p), 0};
#if defined(__AVX__)
    __asm__("vmovhps %1, %0, %0" : "+x"(block) : "m"(*(const unsigned char(*)[8])(p + 8)));
#else
    __asm__("movhps %1, %0" : "+x"(block) : "m"(*(const unsigned char(*)[8])(p + 8)));
#endif
#else
    memcpy(&block, p, sizeof block);
#endif
    return block;
}

/* n = 1 to 15 bytes, and the end. Nothing before or behind them is read. */
WEIR__INLINE weir__block weir__identity_pad(const unsigned char *p, size_t n)
{
    if (n < 8)
        return (weir__block){weir__siphash_tail(p, n, 0) | UINT64_C(0x80) << 8 * (n & 7), 0};
    return (weir__block){weir__siphash_load64(p), weir__siphash_tail(p + 8, n - 8, 8) | UINT64_C(0x80) << 8 * (n & 7)};
}

#endif

/* The identity of n bytes. policy < WEIR__IDENTITY_MARKS */
WEIR__INLINE void weir__identity_of(const struct weir__identity *is, uint32_t policy, const void *key, size_t n,
                                    uint64_t id[2])
{
    uint64_t v[4];

#if WEIR__IDENTITY_AES
    if (WEIR__LIKELY(n - 1 < is->most)) {
        weir__block mark = *(const weir__block *)(const void *)is->mark[policy], block;

        if (WEIR__LIKELY(n == WEIR__IDENTITY_BLOCK)) {
            block = weir__identity_whole(key);
        } else {
            block = weir__identity_pad(key, n);
            mark ^= *(const weir__block *)(const void *)is->padded;
        }
        block = weir__identity_rounds(block, mark, is);
        id[0] = block[0];
        id[1] = block[1];
        return;
    }
#endif
    v[0] = is->start[0] ^ policy;
    v[1] = is->start[1];
    v[2] = is->start[2] ^ policy;
    v[3] = is->start[3];
    weir__siphash_finish(v, key, n, id);
}

#endif
