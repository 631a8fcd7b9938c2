/* SPDX-License-Identifier: MIT */
/*
 * tools/overshoot: the running maximum against every window of small histories, and the merging of several processes'.
 */
#include <check.h>
#include <stdlib.h>

#include "support/suite.h"
#include "tools/overshoot.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static uint64_t seed = 20240607;

static uint64_t below(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

/* Every window from one admission to another, in parts of a token. */
static overshoot_wide brute(const uint64_t *at, const uint64_t *tokens, size_t n, const struct overshoot *o)
{
    overshoot_wide most = 0;
    for (size_t i = 0; i < n; i++) {
        overshoot_wide sum = 0;
        for (size_t j = i; j < n; j++) {
            sum += (overshoot_wide)tokens[j] * o->per_ns;
            overshoot_wide above = sum - (overshoot_wide)o->limit * (at[j] - at[i]);
            most = above > most ? above : most;
        }
    }
    return most;
}

START_TEST(agrees_with_every_window)
{
    static const struct {
        uint64_t limit, per_ns, burst, step_ns, most_tokens;
    } cases[] = {
        {1000, SECOND, 100, MS, 1},       {1000, SECOND, 1, 2 * MS, 3},  {1, 86400 * SECOND, 5, 40000 * SECOND, 4},
        {100000000, SECOND, 1000, 40, 9}, {7, 3 * SECOND, 2, SECOND, 2}, {0, 1, 3, SECOND, 2},
    };
    uint64_t at[60], tokens[60];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int round = 0; round < 50; round++) {
            struct overshoot o;
            overshoot_init(&o, cases[c].limit, cases[c].per_ns, cases[c].burst);
            uint64_t now = below(2) ? below(SECOND) : UINT64_C(1) << 62; /* a machine that is up for very long */
            for (size_t i = 0; i < 60; i++) {
                now += below(4) == 0 ? 0 : below(2 * cases[c].step_ns);
                at[i] = now;
                tokens[i] = 1 + below(cases[c].most_tokens);
                overshoot_add(&o, at[i], tokens[i]);
            }
            ck_assert(o.most == brute(at, tokens, 60, &o));
        }
    }
}
END_TEST

START_TEST(a_perfect_bucket_never_goes_over)
{
    struct overshoot o;
    overshoot_init(&o, 1000, SECOND, 10);
    for (int i = 0; i < 10; i++) {
        overshoot_add(&o, 5 * SECOND, 1);
    }
    for (uint64_t i = 1; i <= 1000; i++) {
        overshoot_add(&o, 5 * SECOND + i * MS, 1);
    }
    ck_assert_double_eq(overshoot_tokens(&o), 0);
    ck_assert(!overshoot_exceeds(&o, 0, 0));
    overshoot_add(&o, 5 * SECOND + 1001 * MS - 1, 1); /* one nanosecond early */
    ck_assert(overshoot_exceeds(&o, 0, 0));
    ck_assert(!overshoot_exceeds(&o, 0, 1));
    ck_assert_double_eq_tol(overshoot_tokens(&o), 1e-6, 1e-15);
}
END_TEST

START_TEST(an_old_window_is_not_forgotten)
{
    struct overshoot o;
    overshoot_init(&o, 1, SECOND, 10);
    overshoot_add(&o, SECOND, 25);
    overshoot_add(&o, 1000 * SECOND, 3);
    ck_assert_double_eq(overshoot_tokens(&o), 15);
    ck_assert(overshoot_exceeds(&o, 14, 999999999));
    ck_assert(!overshoot_exceeds(&o, 14, SECOND));
    ck_assert(!overshoot_exceeds(&o, 15, 0));
}
END_TEST

START_TEST(none_is_none)
{
    struct overshoot o;
    overshoot_init(&o, 1, SECOND, 10);
    ck_assert_double_eq(overshoot_tokens(&o), 0);
    ck_assert(!overshoot_exceeds(&o, 0, 0));
}
END_TEST

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Three processes publish in turns; what lies before the settled time is merged, the rest waits. */
START_TEST(merging_keeps_the_order_of_time)
{
    enum { PROCESSES = 3, STAMPS = 3000 };
    struct overshoot_queue queues[PROCESSES] = {{0}};
    struct overshoot merged, sorted;
    static uint64_t all[PROCESSES * STAMPS];
    uint64_t now[PROCESSES] = {SECOND, SECOND, SECOND};
    size_t n = 0;
    overshoot_init(&merged, 1000, SECOND, 50);
    overshoot_init(&sorted, 1000, SECOND, 50);
    for (int turn = 0; turn < STAMPS / 10; turn++) {
        uint64_t settled = UINT64_MAX;
        for (int p = 0; p < PROCESSES; p++) {
            for (int i = 0; i < 10; i++) {
                now[p] += below(5 * MS);
                all[n++] = now[p];
                ck_assert_int_eq(overshoot_queue_push(&queues[p], now[p]), 0);
            }
            settled = now[p] < settled ? now[p] : settled;
        }
        overshoot_merge(&merged, queues, PROCESSES, settled);
        for (int p = 0; p < PROCESSES; p++) {
            ck_assert(queues[p].count == 0 || queues[p].at_ns[queues[p].head] >= settled);
        }
    }
    overshoot_merge(&merged, queues, PROCESSES, UINT64_MAX);
    qsort(all, n, sizeof all[0], by_time);
    for (size_t i = 0; i < n; i++) {
        overshoot_add(&sorted, all[i], 1);
    }
    ck_assert(merged.most == sorted.most);
    ck_assert(merged.most > 50 * (overshoot_wide)SECOND);
    for (int p = 0; p < PROCESSES; p++) {
        ck_assert_uint_eq(queues[p].count, 0);
        overshoot_queue_deinit(&queues[p]);
    }
}
END_TEST

/* A queue that is never empty reuses its room: the run may last for days. */
START_TEST(a_queue_does_not_grow_without_need)
{
    struct overshoot_queue q = {0};
    struct overshoot o;
    overshoot_init(&o, 1, 1, 1);
    for (uint64_t i = 1; i <= 200000; i++) {
        ck_assert_int_eq(overshoot_queue_push(&q, i), 0);
        overshoot_merge(&o, &q, 1, i > 100 ? i - 100 : 0);
    }
    ck_assert_uint_le(q.room, 4096);
    ck_assert_uint_eq(q.count, 101);
    ck_assert_uint_eq(q.at_ns[q.head], 199900);
    overshoot_queue_deinit(&q);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("overshoot");
    TCase *tcase = tcase_create("overshoot");
    tcase_add_test(tcase, agrees_with_every_window);
    tcase_add_test(tcase, a_perfect_bucket_never_goes_over);
    tcase_add_test(tcase, an_old_window_is_not_forgotten);
    tcase_add_test(tcase, none_is_none);
    tcase_add_test(tcase, merging_keeps_the_order_of_time);
    tcase_add_test(tcase, a_queue_does_not_grow_without_need);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
