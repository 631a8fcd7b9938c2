/* SPDX-License-Identifier: MIT */
/*
 * sync/backoff.h: bounds, growth, spread, and how many tries a fleet makes in an outage.
 */
#include <check.h>
#include <stdlib.h>

#include "support/suite.h"
#include "sync/backoff.h"

#define MS UINT64_C(1000000)

#define MIN (100 * MS)
#define MAX (5000 * MS)
#define OUTAGE (10000 * MS)

enum { NODES = 50 };

START_TEST(stays_within_its_bounds)
{
    struct weir__backoff backoff;
    uint64_t ceiling = 2 * MIN;
    weir__backoff_init(&backoff, MIN, MAX, (uint64_t)_i);
    for (int i = 0; i < 200; i++) {
        uint64_t delay = weir__backoff_next(&backoff);
        ck_assert_uint_ge(delay, MIN);
        ck_assert_uint_le(delay, ceiling);
        ceiling = ceiling * 2 > MAX ? MAX : ceiling * 2;
    }
}
END_TEST

START_TEST(a_success_starts_over)
{
    struct weir__backoff backoff;
    weir__backoff_init(&backoff, MIN, MAX, 7);
    for (int i = 0; i < 20; i++) {
        weir__backoff_next(&backoff);
    }
    weir__backoff_reset(&backoff);
    ck_assert_uint_le(weir__backoff_next(&backoff), 2 * MIN);
}
END_TEST

/* The delays under one ceiling use all of its range: every tenth of it is hit by a tenth of the draws, within 4
 * sigma. */
START_TEST(uses_the_whole_range)
{
    struct weir__backoff backoff;
    unsigned hits[10] = {0};
    const unsigned draws = 10000;
    weir__backoff_init(&backoff, MIN, MAX, 1);
    for (int i = 0; i < 10; i++) {
        weir__backoff_next(&backoff);
    }
    for (unsigned i = 0; i < draws; i++) {
        uint64_t tenth = (weir__backoff_next(&backoff) - MIN) * 10 / ((MAX - MIN));
        hits[tenth < 10 ? tenth : 9]++;
    }
    for (int i = 0; i < 10; i++) {
        ck_assert_uint_gt(hits[i], 1000 - 120);
        ck_assert_uint_lt(hits[i], 1000 + 120);
    }
}
END_TEST

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Case E8: a fleet loses its server for 10 s: 6 or 7 tries each, and no wave in one instant. The first wave is the
 * worst, 50 in 100 ms: an even spread puts one into every 2 ms. */
START_TEST(a_fleet_comes_back_one_by_one)
{
    uint64_t first[NODES];
    unsigned tries = 0;
    for (int node = 0; node < NODES; node++) {
        struct weir__backoff backoff;
        weir__backoff_init(&backoff, MIN, MAX, (uint64_t)node);
        uint64_t at = weir__backoff_next(&backoff);
        first[node] = at;
        for (; at < OUTAGE; at += weir__backoff_next(&backoff)) {
            tries++;
        }
    }
    ck_assert_uint_ge(tries / NODES, 6);
    ck_assert_uint_lt(tries / NODES, 8);
    qsort(first, NODES, sizeof first[0], by_value);
    for (int i = 0; i + 10 < NODES; i++) {
        ck_assert_msg(first[i + 10] - first[i] > 5 * MS, "11 of 50 tries within 5 ms");
    }
}
END_TEST

START_TEST(odd_bounds)
{
    struct weir__backoff backoff;
    weir__backoff_init(&backoff, MS, MS, 3); /* one fixed delay */
    ck_assert_uint_eq(weir__backoff_next(&backoff), MS);
    ck_assert_uint_eq(weir__backoff_next(&backoff), MS);
    weir__backoff_init(&backoff, UINT64_MAX / 2, UINT64_MAX, 3); /* doubling must not wrap */
    for (int i = 0; i < 100; i++) {
        ck_assert_uint_ge(weir__backoff_next(&backoff), UINT64_MAX / 2);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backoff");
    TCase *tcase = tcase_create("backoff");
    tcase_add_loop_test(tcase, stays_within_its_bounds, 0, 20);
    tcase_add_test(tcase, a_success_starts_over);
    tcase_add_test(tcase, uses_the_whole_range);
    tcase_add_test(tcase, a_fleet_comes_back_one_by_one);
    tcase_add_test(tcase, odd_bounds);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
