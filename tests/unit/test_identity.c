/* SPDX-License-Identifier: MIT */
/*
 * lib/identity.h: the AES rounds against a second implementation, written from the standard's description byte by byte,
 * which itself must give the standard's example; what no two keys may share; and how evenly keys that look alike spread
 * over sets and tags. Where the processor has no AES all of it is tried with SipHash.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "lib/identity.h"
#include "support/suite.h"

#define LONGEST 40u

static const uint64_t secret[2] = {UINT64_C(0x0123456789abcdef), UINT64_C(0xfedcba9876543210)};

/* Of that secret: with AES where it is, and without. */
static struct weir__identity with, without;

static void set_up(void)
{
    weir__identity_init(&with, secret, weir__identity_has_aes());
    weir__identity_init(&without, secret, false);
}

/* ---- the reference: one round of AES on 16 bytes, column after column ------------------------------------------- */

static uint8_t twice(uint8_t a)
{
    return (uint8_t)(a << 1 ^ (a & 0x80 ? 0x1b : 0));
}

static uint8_t times(uint8_t a, uint8_t b)
{
    uint8_t product = 0;

    for (; b; b >>= 1, a = twice(a))
        product ^= b & 1 ? a : 0;
    return product;
}

static uint8_t substitute(uint8_t a)
{
    uint8_t inverse = 0, out = 0x63;

    for (unsigned b = 1; a && b < 256 && !inverse; b++)
        inverse = times(a, (uint8_t)b) == 1 ? (uint8_t)b : 0;
    for (unsigned by = 0; by < 5; by++)
        out ^= (uint8_t)(inverse << by | inverse >> (8 - by));
    return out;
}

static void reference_round(uint8_t state[16], const uint8_t key[16])
{
    uint8_t shifted[16];

    for (unsigned column = 0; column < 4; column++) {
        for (unsigned row = 0; row < 4; row++)
            shifted[4 * column + row] = substitute(state[4 * ((column + row) % 4) + row]);
    }
    for (unsigned column = 0; column < 4; column++) {
        const uint8_t *in = shifted + 4 * column;

        for (unsigned row = 0; row < 4; row++)
            state[4 * column + row] = (uint8_t)(times(in[row], 2) ^ times(in[(row + 1) % 4], 3) ^ in[(row + 2) % 4] ^
                                                in[(row + 3) % 4] ^ key[4 * column + row]);
    }
}

static void put_words(const uint64_t words[2], uint8_t out[16])
{
    for (unsigned i = 0; i < 16; i++)
        out[i] = (uint8_t)(words[i / 8] >> 8 * (i % 8));
}

static void reference(const struct weir__identity *is, uint32_t policy, const uint8_t *key, size_t n, uint8_t out[16])
{
    uint8_t word[16];

    memset(out, 0, 16);
    memcpy(out, key, n);
    if (n < 16)
        out[n] = 0x80;
    put_words(is->mark[policy], word);
    for (unsigned i = 0; i < 16; i++)
        out[i] ^= word[i];
    put_words(is->padded, word);
    for (unsigned i = 0; i < 16 && n < 16; i++)
        out[i] ^= word[i];
    for (unsigned round = 0; round < WEIR__IDENTITY_ROUNDS; round++) {
        put_words(is->round[round], word);
        reference_round(out, word);
    }
}

/* FIPS 197, appendix B: the first two rounds. */
START_TEST(the_reference_gives_the_standards_rounds)
{
    static const uint8_t start[16] = {0x19, 0x3d, 0xe3, 0xbe, 0xa0, 0xf4, 0xe2, 0x2b,
                                      0x9a, 0xc6, 0x8d, 0x2a, 0xe9, 0xf8, 0x48, 0x08};
    static const uint8_t keys[2][16] = {
        {0xa0, 0xfa, 0xfe, 0x17, 0x88, 0x54, 0x2c, 0xb1, 0x23, 0xa3, 0x39, 0x39, 0x2a, 0x6c, 0x76, 0x05},
        {0xf2, 0xc2, 0x95, 0xf2, 0x7a, 0x96, 0xb9, 0x43, 0x59, 0x35, 0x80, 0x7a, 0x73, 0x59, 0xf6, 0x7f}};
    static const uint8_t after[2][16] = {
        {0xa4, 0x9c, 0x7f, 0xf2, 0x68, 0x9f, 0x35, 0x2b, 0x6b, 0x5b, 0xea, 0x43, 0x02, 0x6a, 0x50, 0x49},
        {0xaa, 0x8f, 0x5f, 0x03, 0x61, 0xdd, 0xe3, 0xef, 0x82, 0xd2, 0x4a, 0xd2, 0x68, 0x32, 0x46, 0x9a}};
    uint8_t state[16];

    memcpy(state, start, sizeof state);
    for (unsigned round = 0; round < 2; round++) {
        reference_round(state, keys[round]);
        ck_assert_mem_eq(state, after[round], sizeof state);
    }
}
END_TEST

/* ---- which hash it is -------------------------------------------------------------------------------------------- */

START_TEST(aes_is_used_where_it_is)
{
#if defined(__x86_64__) && WEIR__IDENTITY_AES
    unsigned a, b, c = 0, d;

    ck_assert_int_eq(__get_cpuid(1, &a, &b, &c, &d), 1);
    ck_assert_int_eq(weir__identity_has_aes(), (c & bit_AES) != 0);
#elif !WEIR__IDENTITY_AES
    ck_assert_int_eq(weir__identity_has_aes(), 0);
#endif
    ck_assert_uint_eq(with.most, weir__identity_has_aes() ? 16 : 0);
    ck_assert_uint_eq(without.most, 0);
}
END_TEST

static void check_against_references(const uint8_t *key, size_t n, uint32_t policy)
{
    uint64_t id[2], sip[2];
    uint8_t expected[16], got[16];

    weir__siphash_128(key, n, secret[0] ^ policy, secret[1], sip);
    weir__identity_of(&without, policy, key, n, id);
    ck_assert_mem_eq(id, sip, sizeof id);
    weir__identity_of(&with, policy, key, n, id);
    if (n == 0 || n > with.most) {
        ck_assert_mem_eq(id, sip, sizeof id);
        return;
    }
    reference(&with, policy, key, n, expected);
    put_words(id, got);
    if (memcmp(got, expected, sizeof got) != 0)
        ck_abort_msg("%zu bytes, policy %u", n, policy);
}

/* Every length at every alignment, in memory that ends with the key (a sanitizer would tell). */
START_TEST(equals_the_references)
{
    static const uint32_t policies[] = {0, 1, 2, WEIR__IDENTITY_MARKS - 1};

    for (size_t n = 0; n <= LONGEST; n++) {
        for (size_t shift = 0; shift < 16; shift++) {
            uint8_t *memory = malloc(n + shift + (n + shift == 0));

            ck_assert_ptr_nonnull(memory);
            for (size_t i = 0; i < n; i++)
                memory[shift + i] = (uint8_t)(i * 29 + n * 7 + shift);
            for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
                check_against_references(memory + shift, n, policies[i]);
            free(memory);
        }
    }
}
END_TEST

/* The page before the key and the one behind it can't be read. */
START_TEST(nothing_but_the_key_is_read)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *pages = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(pages, MAP_FAILED);
    memset(pages, 0xa5, 3 * page);
    ck_assert_int_eq(mprotect(pages, page, PROT_NONE), 0);
    ck_assert_int_eq(mprotect(pages + 2 * page, page, PROT_NONE), 0);
    for (size_t n = 0; n <= LONGEST; n++) {
        check_against_references(pages + page, n, 0);
        check_against_references(pages + 2 * page - n, n, 0);
    }
    ck_assert_int_eq(munmap(pages, 3 * page), 0);
}
END_TEST

/* ---- what keys may not share ------------------------------------------------------------------------------------- */

struct id {
    uint64_t word[2];
};

static int compare_ids(const void *a, const void *b)
{
    const struct id *left = a, *right = b;

    if (left->word[0] != right->word[0])
        return left->word[0] < right->word[0] ? -1 : 1;
    return left->word[1] < right->word[1] ? -1 : left->word[1] > right->word[1];
}

static void check_all_differ(struct id *ids, size_t n)
{
    qsort(ids, n, sizeof *ids, compare_ids);
    for (size_t i = 1; i < n; i++) {
        if (compare_ids(&ids[i - 1], &ids[i]) == 0)
            ck_abort_msg("two of %zu keys are one", n);
    }
}

/* Four rounds are a permutation: a million whole keys, alike in all but a few bits. */
START_TEST(no_two_whole_keys_are_one)
{
    enum { KEYS = 1000000 };
    struct id *ids = malloc(KEYS * sizeof *ids);

    ck_assert_ptr_nonnull(ids);
    for (uint64_t i = 0; i < KEYS; i++) {
        uint64_t key[2] = {i & 0x3ff, (i >> 10) << 54};

        weir__identity_of(&with, 0, key, sizeof key, ids[i].word);
    }
    check_all_differ(ids, KEYS);
    free(ids);
}
END_TEST

/* Keys that are one another's beginnings, or would be but for what a shorter one is filled up with: zeros, 0x80 and
 * zeros. */
START_TEST(padding_makes_no_two_keys_one)
{
    static const uint8_t firsts[] = {0, 0x80, 0xff};
    static struct id ids[3 * 2 * LONGEST];
    size_t have = 0;

    for (size_t i = 0; i < sizeof firsts; i++) {
        uint8_t zeros[LONGEST] = {firsts[i]}, marked[LONGEST] = {firsts[i], 0x80};

        for (size_t n = 1; n <= LONGEST; n++)
            weir__identity_of(&with, 0, zeros, n, ids[have++].word);
        for (size_t n = 2; n <= LONGEST; n++)
            weir__identity_of(&with, 0, marked, n, ids[have++].word);
    }
    check_all_differ(ids, have);
}
END_TEST

/* One key under all policies; and keys that differ by what the policies' numbers differ by. */
START_TEST(policies_make_one_key_many)
{
    static struct id ids[2 * WEIR__IDENTITY_MARKS];
    const size_t lengths[] = {4, 15, 16, 17};

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t have = 0;

        for (uint32_t policy = 0; policy < WEIR__IDENTITY_MARKS; policy++) {
            uint8_t key[] = "a key of all policies";

            weir__identity_of(&with, policy, key, lengths[i], ids[have++].word);
            key[0] ^= (uint8_t)policy;
            key[1] ^= (uint8_t)(policy >> 8);
            if (policy > 0)
                weir__identity_of(&with, policy, key, lengths[i], ids[have++].word);
        }
        check_all_differ(ids, have);
    }
}
END_TEST

/* Another secret makes all of them others. */
START_TEST(secrets_make_other_identities)
{
    static struct weir__identity other;
    uint64_t changed[2], a[2], b[2];

    for (unsigned bit = 0; bit < 128; bit++) {
        memcpy(changed, secret, sizeof changed);
        changed[bit / 64] ^= UINT64_C(1) << bit % 64;
        weir__identity_init(&other, changed, weir__identity_has_aes());
        for (size_t n = 15; n <= 17; n++) {
            int moved;

            weir__identity_of(&with, 0, "a key that is long enough", n, a);
            weir__identity_of(&other, 0, "a key that is long enough", n, b);
            moved = __builtin_popcountll(a[0] ^ b[0]) + __builtin_popcountll(a[1] ^ b[1]);
            ck_assert_int_gt(moved, 32);
            ck_assert_int_lt(moved, 96);
        }
    }
}
END_TEST

/* ---- how keys spread --------------------------------------------------------------------------------------------- */

/* Families of keys that differ in little. Returns the length of the n-th. */
static size_t sequential(uint32_t n, uint8_t key[16])
{
    uint64_t number = n;

    memcpy(key, &number, sizeof number);
    return sizeof number;
}

static size_t decimal(uint32_t n, uint8_t key[16])
{
    size_t digits = 0;

    memcpy(key, "user:", 5);
    for (uint32_t rest = 10000000 + n; rest > 0; rest /= 10)
        key[5 + digits++] = (uint8_t)('0' + rest % 10);
    return 5 + digits;
}

static size_t address(uint32_t n, uint8_t key[16])
{
    key[0] = 10;
    key[1] = (uint8_t)(n >> 16);
    key[2] = (uint8_t)(n >> 8);
    key[3] = (uint8_t)n;
    return 4;
}

static size_t whole_low(uint32_t n, uint8_t key[16])
{
    memset(key, 0, 16);
    memcpy(key, &n, sizeof n);
    return 16;
}

static size_t whole_high(uint32_t n, uint8_t key[16])
{
    memset(key, 0xff, 16);
    memcpy(key + 12, &n, sizeof n);
    return 16;
}

/* One bit of each byte. */
static size_t sparse(uint32_t n, uint8_t key[16])
{
    for (unsigned i = 0; i < 16; i++)
        key[i] = n >> i & 1 ? (uint8_t)(1u << i % 8) : 0;
    return 16;
}

#define FAMILIES 6

static size_t (*const families[FAMILIES])(uint32_t, uint8_t[16]) = {sequential, decimal,    address,
                                                                    whole_low,  whole_high, sparse};

/* Chi-square over equal bins: by chance as many as there are bins, with a variance of twice that. */
static void check_even(const unsigned *count, unsigned bins, double n)
{
    double sum = 0, expected = n / bins;

    for (unsigned i = 0; i < bins; i++)
        sum += (count[i] - expected) * (count[i] - expected) / expected;
    /* six deviations, root-free */
    ck_assert_double_lt((sum - bins) * (sum - bins), 36.0 * 2 * bins);
}

/* The bits that choose the set, the tag, and some of both. */
START_TEST(families_spread_over_sets_and_tags)
{
    enum { KEYS = 65536, SETS = 1000, TAGS = 256 };
    static unsigned sets[SETS], tags[TAGS], both[256];
    const struct weir__identity *is = _i < FAMILIES ? &with : &without;

    memset(sets, 0, sizeof sets);
    memset(tags, 0, sizeof tags);
    memset(both, 0, sizeof both);
    for (uint32_t n = 0; n < KEYS; n++) {
        uint8_t key[16] = {0};
        size_t len = families[_i % FAMILIES](n, key);
        uint64_t id[2];

        weir__identity_of(is, 0, key, len, id);
        sets[(uint64_t)((weir__u128)id[0] * SETS >> 64)]++;
        tags[(uint8_t)id[0]]++;
        both[id[0] >> 60 << 4 | (id[0] & 15)]++;
    }
    check_even(sets, SETS, KEYS);
    check_even(tags, TAGS, KEYS);
    check_even(both, 256, KEYS);
}
END_TEST

/* Every bit of a key moves every bit of its identity half of the times. */
START_TEST(every_bit_moves_every_bit)
{
    enum { KEYS = 400 };
    static unsigned moved[128][128];

    memset(moved, 0, sizeof moved);
    for (uint32_t n = 0; n < KEYS; n++) {
        uint64_t key[2] = {n, UINT64_C(0x6b65790000000000) | n}, plain[2], changed[2];

        weir__identity_of(&with, 0, key, sizeof key, plain);
        for (unsigned in = 0; in < 128; in++) {
            key[in / 64] ^= UINT64_C(1) << in % 64;
            weir__identity_of(&with, 0, key, sizeof key, changed);
            key[in / 64] ^= UINT64_C(1) << in % 64;
            for (unsigned out = 0; out < 128; out++)
                moved[in][out] += (plain[out / 64] ^ changed[out / 64]) >> out % 64 & 1;
        }
    }
    /* 16,384 draws of a binomial with a deviation of 10: beyond 6.5 of them once in 10^6 runs */
    for (unsigned in = 0; in < 128; in++) {
        for (unsigned out = 0; out < 128; out++) {
            ck_assert_uint_gt(moved[in][out], KEYS / 2 - 65);
            ck_assert_uint_lt(moved[in][out], KEYS / 2 + 65);
        }
    }
}
END_TEST

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void draw_secrets(struct weir__identity *is, uint64_t *random)
{
    for (unsigned i = 0; i < WEIR__IDENTITY_ROUNDS; i++) {
        is->round[i][0] = next_random(random);
        is->round[i][1] = next_random(random);
    }
    is->padded[0] = next_random(random);
    is->padded[1] = next_random(random);
    is->mark[0][0] = next_random(random);
    is->mark[0][1] = next_random(random);
    weir__siphash_start(next_random(random), next_random(random), is->start);
}

/* Pairs that somebody chose before the secret was drawn: one bit, one byte, one diagonal, one column, the last of a
 * shorter one's padding, the words swapped. How often do they fall into one of 256 sets, have one tag? */
START_TEST(chosen_pairs_meet_as_often_as_others)
{
    static const struct {
        size_t n[2];
        uint8_t key[2][16];
    } pairs[] = {
        {{16, 16}, {{0}, {1}}},
        {{16, 16}, {{0}, {[15] = 0x80}}},
        {{16, 16}, {{0}, {[0] = 0x53, [5] = 0x53, [10] = 0x53, [15] = 0x53}}},
        {{16, 16}, {{0}, {[0] = 0xff, [1] = 0xff, [2] = 0xff, [3] = 0xff}}},
        {{16, 16}, {{0}, {[4] = 2, [9] = 1, [14] = 1, [3] = 3}}},
        {{16, 16}, {{[0] = 1, [8] = 2}, {[0] = 2, [8] = 1}}},
        {{15, 16}, {{7}, {[0] = 7, [15] = 0x80}}},
        {{15, 16}, {{7}, {[0] = 7}}},
        {{8, 7}, {{7, 0, 0, 0, 0, 0, 0, 0x80}, {7}}},
        {{4, 4}, {{10, 0, 0, 1}, {10, 0, 0, 2}}},
    };
    enum { DRAWS = 100000 };
    static struct weir__identity is;
    uint64_t random = 1 + (uint64_t)_i, a[2], b[2];
    unsigned sets = 0, tags = 0;

    ck_assert_uint_lt((size_t)_i, sizeof pairs / sizeof *pairs);
    is.most = with.most;
    for (unsigned i = 0; i < DRAWS; i++) {
        draw_secrets(&is, &random);
        weir__identity_of(&is, 0, pairs[_i].key[0], pairs[_i].n[0], a);
        weir__identity_of(&is, 0, pairs[_i].key[1], pairs[_i].n[1], b);
        sets += a[0] >> 56 == b[0] >> 56;
        tags += (uint8_t)a[0] == (uint8_t)b[0];
        ck_assert(a[0] != b[0] || a[1] != b[1]);
    }
    /* 391 expected, with a deviation of 20 */
    ck_assert_uint_gt(sets, 391 - 6 * 20);
    ck_assert_uint_lt(sets, 391 + 6 * 20);
    ck_assert_uint_gt(tags, 391 - 6 * 20);
    ck_assert_uint_lt(tags, 391 + 6 * 20);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("identity");
    TCase *t = tcase_create("identity");

    tcase_add_unchecked_fixture(t, set_up, NULL);
    tcase_add_test(t, the_reference_gives_the_standards_rounds);
    tcase_add_test(t, aes_is_used_where_it_is);
    tcase_add_test(t, equals_the_references);
    tcase_add_test(t, nothing_but_the_key_is_read);
    tcase_add_test(t, no_two_whole_keys_are_one);
    tcase_add_test(t, padding_makes_no_two_keys_one);
    tcase_add_test(t, policies_make_one_key_many);
    tcase_add_test(t, secrets_make_other_identities);
    tcase_add_loop_test(t, families_spread_over_sets_and_tags, 0, 2 * FAMILIES);
    tcase_add_test(t, every_bit_moves_every_bit);
    tcase_add_loop_test(t, chosen_pairs_meet_as_often_as_others, 0, 10);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
