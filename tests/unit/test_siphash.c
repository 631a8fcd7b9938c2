/* SPDX-License-Identifier: MIT */
/*
 * lib/siphash.h against a second implementation, written from the algorithm's description byte by byte, which itself
 * must give the published values of SipHash-2-4.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "lib/siphash.h"
#include "support/suite.h"

/* ---- the reference: c rounds a word, d rounds at the end; 64 or 128 bits
 * ------------------------------------------- */

static uint64_t spin(uint64_t v, unsigned by)
{
    return (v << by) | (v >> (64 - by));
}

static void sip_round(uint64_t *a, uint64_t *b, uint64_t *c, uint64_t *d)
{
    *a += *b;
    *b = spin(*b, 13);
    *b ^= *a;
    *a = spin(*a, 32);
    *c += *d;
    *d = spin(*d, 16);
    *d ^= *c;
    *a += *d;
    *d = spin(*d, 21);
    *d ^= *a;
    *c += *b;
    *b = spin(*b, 17);
    *b ^= *c;
    *c = spin(*c, 32);
}

static uint64_t little_endian(const unsigned char *p)
{
    uint64_t v = 0;

    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static void reference(const unsigned char *in, size_t n, const unsigned char key[16], int c, int d, int wide,
                      unsigned char *out)
{
    uint64_t k0 = little_endian(key), k1 = little_endian(key + 8);
    uint64_t a = k0 ^ 0x736f6d6570736575, b = k1 ^ 0x646f72616e646f6d;
    uint64_t e = k0 ^ 0x6c7967656e657261, f = k1 ^ 0x7465646279746573;
    unsigned char padded[8];
    size_t words = n / 8 + 1;

    if (wide)
        b ^= 0xee;
    for (size_t i = 0; i < words; i++) {
        uint64_t word;

        memset(padded, 0, sizeof padded);
        memcpy(padded, in + 8 * i, i + 1 < words ? 8 : n % 8);
        if (i + 1 == words)
            padded[7] = (unsigned char)n;
        word = little_endian(padded);
        f ^= word;
        for (int r = 0; r < c; r++)
            sip_round(&a, &b, &e, &f);
        a ^= word;
    }
    e ^= wide ? 0xee : 0xff;
    for (int half = 0; half <= wide; half++) {
        uint64_t word;

        if (half == 1)
            b ^= 0xdd;
        for (int r = 0; r < d; r++)
            sip_round(&a, &b, &e, &f);
        word = a ^ b ^ e ^ f;
        for (int i = 0; i < 8; i++)
            out[8 * half + i] = (unsigned char)(word >> (8 * i));
    }
}

static void count_up(unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)i;
}

START_TEST(the_reference_gives_published_values)
{
    static const unsigned char empty_64[8] = {0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72};
    static const unsigned char fifteen_64[8] = {0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1};
    static const unsigned char empty_128[16] = {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6,
                                                0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93};
    static const unsigned char one_128[16] = {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44,
                                              0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45};
    unsigned char key[16], in[16], out[16];

    count_up(key, sizeof key);
    count_up(in, sizeof in);
    reference(in, 0, key, 2, 4, 0, out);
    ck_assert_mem_eq(out, empty_64, 8);
    reference(in, 15, key, 2, 4, 0, out);
    ck_assert_mem_eq(out, fifteen_64, 8);
    reference(in, 0, key, 2, 4, 1, out);
    ck_assert_mem_eq(out, empty_128, 16);
    reference(in, 1, key, 2, 4, 1, out);
    ck_assert_mem_eq(out, one_128, 16);
}
END_TEST

/* Every length to beyond a few words, at every alignment; no byte past the key is read (a sanitizer would tell). */
START_TEST(equals_the_reference)
{
    unsigned char key[16], expected[16];

    count_up(key, sizeof key);
    for (size_t n = 0; n <= 80; n++) {
        for (size_t shift = 0; shift < 8; shift++) {
            unsigned char *memory = malloc(n + shift + (n + shift == 0));
            uint64_t out[2];

            ck_assert_ptr_nonnull(memory);
            for (size_t i = 0; i < n; i++)
                memory[shift + i] = (unsigned char)(i * 7 + n);
            reference(memory + shift, n, key, 1, 3, 1, expected);
            weir__siphash_128(memory + shift, n, little_endian(key), little_endian(key + 8), out);
            if (out[0] != little_endian(expected) || out[1] != little_endian(expected + 8))
                ck_abort_msg("%zu bytes, shifted by %zu", n, shift);
            free(memory);
        }
    }
}
END_TEST

START_TEST(equals_the_reference_for_long_keys)
{
    static unsigned char bytes[65535];
    static const size_t lengths[] = {255, 256, 257, 4095, 65535};
    unsigned char key[16], expected[16];
    uint64_t out[2];

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i ^ i >> 8);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t j = 0; j < sizeof key; j++)
            key[j] = (unsigned char)(0xa5 + 31 * i * j);
        reference(bytes, lengths[i], key, 1, 3, 1, expected);
        weir__siphash_128(bytes, lengths[i], little_endian(key), little_endian(key + 8), out);
        ck_assert_uint_eq(out[0], little_endian(expected));
        ck_assert_uint_eq(out[1], little_endian(expected + 8));
    }
}
END_TEST

/* Every bit of key and input moves about half of the output. */
START_TEST(every_bit_counts)
{
    unsigned char in[24];
    uint64_t plain[2], changed[2];

    count_up(in, sizeof in);
    weir__siphash_128(in, sizeof in, 1, 2, plain);
    for (unsigned bit = 0; bit < 8 * sizeof in + 128; bit++) {
        uint64_t k0 = 1, k1 = 2;
        int moved;

        count_up(in, sizeof in);
        if (bit < 8 * sizeof in)
            in[bit / 8] ^= (unsigned char)(1u << bit % 8);
        else if (bit < 8 * sizeof in + 64)
            k0 ^= UINT64_C(1) << (bit - 8 * sizeof in);
        else
            k1 ^= UINT64_C(1) << (bit - 8 * sizeof in - 64);
        weir__siphash_128(in, sizeof in, k0, k1, changed);
        moved = __builtin_popcountll(plain[0] ^ changed[0]) + __builtin_popcountll(plain[1] ^ changed[1]);
        ck_assert_int_gt(moved, 32);
        ck_assert_int_lt(moved, 96);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("siphash");
    TCase *t = tcase_create("siphash");

    tcase_add_test(t, the_reference_gives_published_values);
    tcase_add_test(t, equals_the_reference);
    tcase_add_test(t, equals_the_reference_for_long_keys);
    tcase_add_test(t, every_bit_counts);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
