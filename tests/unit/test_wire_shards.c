/* SPDX-License-Identifier: MIT */
/*
 * One strict command of several shards: what fits, and an answer that lies about how long its parts are.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "support/suite.h"
#include "sync/wire.h"

enum { HEAD = 16 };

static const char sha[] = "0123456789abcdef0123456789abcdef01234567";

static void *take(void *arg, size_t size)
{
    (void)arg;
    return malloc(size);
}

static void release(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    free(memory);
}

static const struct weir_allocator heap = {.alloc = take, .release = release};

static struct weir__wire_key keys[WEIR__WIRE_RECORDS];
static struct weir__wire_strict_entry entries[2] = {{.cost = 2, .count = 3}, {.cost = 1, .count = 2}};
static struct weir__wire_strict shards[2];
static struct weir__wire_head heads[2];

static void setup(void)
{
    for (size_t i = 0; i < WEIR__WIRE_RECORDS; i++)
        keys[i] = (struct weir__wire_key){.key = "k", .key_len = 1};
    for (uint32_t u = 0; u < 2; u++)
        shards[u] = (struct weir__wire_strict){
            .target = {.prefix = "weir", .policy = "api", .shard = u, .shards = 64},
            .numbers = {.version = 3, .limit = 1000, .per_ns = 1000000000, .burst = 500},
            .keys = &keys[u],
            .n_keys = 1,
            .entries = &entries[u],
            .n_entries = 1,
        };
}

START_TEST(shards_are_counted_together)
{
    struct weir__wire_buf out, names, plain;

    weir__wire_buf_init(&out, &heap);
    weir__wire_buf_init(&plain, &heap);
    weir__wire_buf_init(&names, &heap);
    ck_assert_int_eq(weir__wire_strict_encode_all(&plain, shards, 2, sha), 0);
    ck_assert_int_eq(memcmp(plain.data, "*13\r\n", 5), 0); /* three words, six names, two fields, and two */
    ck_assert_int_eq(weir__wire_names(&names, &shards[1].target), 0);
    shards[1].target.names = &names;
    ck_assert_int_eq(weir__wire_strict_encode_all(&out, shards, 2, sha), 0);
    ck_assert_uint_eq(out.len, plain.len);
    ck_assert_mem_eq(out.data, plain.data, out.len);
    weir__wire_buf_clear(&out);
    shards[0].n_keys = WEIR__WIRE_RECORDS;
    ck_assert_int_eq(weir__wire_strict_encode_all(&out, shards, 2, sha), WEIR_E_RANGE);
    ck_assert_int_eq(weir__wire_strict_encode_all(&out, shards, 0, sha), WEIR_E_RANGE);
    ck_assert_int_eq(weir__wire_strict_encode_all(&out, shards, WEIR__WIRE_SHARDS + 1, sha), WEIR_E_RANGE);
    ck_assert_uint_eq(out.len, 0);
    weir__wire_buf_deinit(&names);
    weir__wire_buf_deinit(&plain);
    weir__wire_buf_deinit(&out);
}
END_TEST

static int decode(const double *values, size_t bytes)
{
    uint8_t packed[(1 + HEAD + 1 + 5 + 1) * 8];

    ck_assert_uint_le(bytes, sizeof packed);
    for (size_t i = 0; i < sizeof packed; i++) {
        uint64_t bits;

        memcpy(&bits, &values[i / 8], sizeof bits);
        packed[i] = (uint8_t)(bits >> (i % 8 * 8));
    }
    return weir__wire_strict_decode_all(shards, 2, packed, bytes, heads);
}

/* Each shard's answer for itself: one refused, one in short form. Whatever is cut off or too long is no answer. */
START_TEST(replies_of_shards)
{
    const double whole[] = {
        HEAD * 8, 1, WEIR__WIRE_MISMATCH, 5e6, 7, 0, 3, 1000, 1e9, 500, 50, 1, 0, 0, 0, 9, 0, 40, 7, 99, 1234.5e6, 1,
        6,        0};
    const double wrong[] = {-8, 4, 1e9, 0.5, (HEAD - 1) * 8};
    const size_t n = 1 + HEAD + 1 + 5;
    double values[sizeof whole / sizeof whole[0]];

    ck_assert_int_eq(decode(whole, n * 8), 0);
    ck_assert_int_eq(heads[0].status, WEIR__WIRE_MISMATCH);
    ck_assert_uint_eq(heads[0].shards, 9);
    ck_assert_int_eq(heads[1].status, WEIR__WIRE_APPLIED);
    ck_assert_double_eq(heads[1].now, 1234.5);
    ck_assert_uint_eq(entries[1].admitted, 1);
    ck_assert_double_eq(keys[1].free, 6);
    for (size_t len = 0; len <= (n + 1) * 8; len++)
        if (len != n * 8)
            ck_assert_int_eq(decode(whole, len), WEIR_E_INVAL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(values, whole, sizeof whole);
        values[0] = wrong[i];
        ck_assert_int_eq(decode(values, n * 8), WEIR_E_INVAL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire_shards");
    TCase *tcase = tcase_create("shards");

    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, shards_are_counted_together);
    tcase_add_test(tcase, replies_of_shards);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
