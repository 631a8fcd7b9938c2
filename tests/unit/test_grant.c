/* SPDX-License-Identifier: MIT */
/*
 * What a grant does to an entry: rounding, garbage, refill in flight, outages and other times in between.
 */
#include <check.h>
#include <math.h>

#include "support/fake_sync.h"
#include "support/suite.h"

static struct fake_sync fake;
static struct weir_result r;
static weir_policy_id id; /* 1000 a second, burst 1000, unknown: deny, q0 = 50 */

static void setup(void)
{
    fake_open(&fake, 1000);
    id = fake_policy(&fake, "p", 1000, FAKE_SECOND, 1000, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY);
    fake_attach(&fake);
    weir__seam_overdraft(fake.w, id, 50, 100, 100);
    weir__seam_fresh_until(fake.w, id, fake.now + 10 * FAKE_SECOND);
}

static void teardown(void)
{
    fake_close(&fake);
}

START_TEST(grants_are_rounded_down)
{
    struct weir__grant grant = fake_slice(&fake, 3 + 1.0 / 3, 1.0 / 3, 10.0 / 3, 900);
    ck_assert_int_eq(fake_take(&fake, id, "a", 3, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    ck_assert_double_le(fake_level(&fake, id, "a"), 1.0 / 3);
    ck_assert_double_ge(fake_level(&fake, id, "a"), 1.0 / 3 - 1e-6);
    struct weir__hot *e = fake_entry(&fake, id, "a");
    struct weir__view view;
    weir__hybrid_view(fake.w, e, e->x, fake.now, &view);
    double unit = ldexp(1, -view.k);
    ck_assert_double_le((double)view.cap * unit, 10.0 / 3);
    ck_assert_double_le((double)view.mult * unit / 281474976710656.0 * 1e9, 1.0 / 3);
    /* and what is taken back, up */
    fake_collect(&fake);
    ck_assert_int_eq(weir__seam_report(fake.w, weir__slot_of(fake.w, e), fake.now, &fake.reports[0]), 1);
    grant.level_delta = -1.0 / 3;
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    ck_assert_double_le(fake_level(&fake, id, "a"), 0);
    ck_assert_double_ge(fake_level(&fake, id, "a"), -1e-6);
}
END_TEST

/* Whatever a server says, no key has more than its policy allows, and nothing breaks. */
START_TEST(no_grant_exceeds_the_policy)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1e300, -1e300, 1e18, -1e18, 0, -0.0, 1e-300, 1000, 1001};
    const size_t n = sizeof odd / sizeof *odd;
    uint64_t seed = 4711;
    for (int i = 0; i < 3000; i++) {
        struct weir__grant grant = {.level_delta = odd[fake_random(&seed) % n],
                                    .rate = odd[fake_random(&seed) % n],
                                    .cap = odd[fake_random(&seed) % n],
                                    .low = odd[fake_random(&seed) % n],
                                    .until = fake_random(&seed) % 2 ? fake.now + FAKE_SECOND : UINT64_MAX,
                                    .hold = fake_random(&seed) % 2 ? fake.now : UINT64_MAX,
                                    .fallback_rate = odd[fake_random(&seed) % n],
                                    .fallback_cap = odd[fake_random(&seed) % n],
                                    .global = odd[fake_random(&seed) % n]};
        struct weir__hot *e;
        struct weir__view view;
        (void)fake_take(&fake, id, "a", 1 + (int64_t)(fake_random(&seed) % 1000), &r);
        ck_assert_int_ge(r.remaining, 0);
        ck_assert_int_le(r.remaining, 1000);
        e = fake_entry(&fake, id, "a");
        fake_collect(&fake);
        if (fake.n || weir__seam_report(fake.w, weir__slot_of(fake.w, e), fake.now, &fake.reports[0]))
            weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
        weir__hybrid_view(fake.w, e, e->x, fake.now, &view);
        ck_assert_int_le(view.level, INT64_C(1000) << view.k);
        ck_assert_uint_le(view.cap, UINT64_C(1000) << view.k);
        ck_assert_uint_le(view.mult, fake.w->policies[id].slot[0].mult);
        fake_pass(&fake, fake_random(&seed) % (3 * FAKE_SECOND));
    }
}
END_TEST

START_TEST(a_late_answer_stops_the_refill)
{
    struct weir__grant grant = fake_slice(&fake, 11, 100, 50, 900);
    grant.until = fake.now + FAKE_SECOND;
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    fake_pass(&fake, 100 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 5, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    weir__seam_pause(fake.w, fake.reports[0].slot, fake.now);
    ck_assert_double_eq_tol(fake_level(&fake, id, "a"), 15, 1e-6);
    fake_pass(&fake, 900 * FAKE_MS);
    ck_assert_double_eq_tol(fake_level(&fake, id, "a"), 15, 1e-6);
    ck_assert_int_eq(fake_take(&fake, id, "a", 14, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, 0);
    fake_pass(&fake, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW); /* its end stayed as well */
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    fake_collect(&fake);
    ck_assert_int_eq(fake.reports[0].spent, 15);
    ck_assert_int_eq(fake.reports[0].fallback_spent, 1);
}
END_TEST

/* A collector that was held up finds slices whose end is long past: they are worth what they were worth then, for Redis
 * has given their refill to others. */
START_TEST(a_slice_refills_nothing_past_its_end)
{
    struct weir__grant grant = fake_slice(&fake, 11, 100, 50, 900);
    grant.until = fake.now + 100 * FAKE_MS;
    for (int i = 0; i < 3; i++) {
        char key[2] = {(char)('a' + i), 0};
        ck_assert_int_eq(fake_take(&fake, id, key, 1, NULL), WEIR_ALLOW);
        fake_grant(&fake, key, &grant);
    }
    fake_pass(&fake, 50 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "b", 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "c", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_collect(&fake), 2);
    struct weir__report b = *fake_report(&fake, "b"), c = *fake_report(&fake, "c"), a;
    fake_pass(&fake, 60 * FAKE_SECOND);
    /* told late */
    ck_assert_int_eq(weir__seam_report(fake.w, weir__slot_of(fake.w, fake_entry(&fake, id, "a")), fake.now, &a), 1);
    ck_assert_double_eq_tol(a.level, 20, 1e-6);
    ck_assert(a.rate == 0);
    grant.level_delta = 0;
    weir__seam_apply(fake.w, a.slot, fake.now, &grant);
    ck_assert_double_eq_tol(fake_level(&fake, id, "a"), 20, 1e-6);
    /* told in time, heard late */
    ck_assert_double_eq_tol(b.level, 14, 1e-6);
    ck_assert(b.rate > 99);
    grant.until = fake.now + 100 * FAKE_MS;
    weir__seam_apply(fake.w, b.slot, fake.now, &grant);
    ck_assert_double_eq_tol(fake_level(&fake, id, "b"), 19, 1e-6);
    fake_pass(&fake, 10 * FAKE_MS); /* the next one grows */
    ck_assert_double_eq_tol(fake_level(&fake, id, "b"), 20, 1e-6);
    /* the answer was due 10 ms after the report */
    weir__seam_pause(fake.w, c.slot, c.now + 10 * FAKE_MS);
    ck_assert_double_eq_tol(fake_level(&fake, id, "c"), 15, 1e-6);
    grant.rate = 0;
    weir__seam_apply(fake.w, c.slot, fake.now, &grant);
    ck_assert_double_eq_tol(fake_level(&fake, id, "c"), 15, 1e-6);
}
END_TEST

/* A slice that only refills, stopped, stays one until it is answered, and leaves nothing. */
START_TEST(a_slice_of_no_cap_that_is_stopped_leaves_nothing)
{
    struct weir__grant grant = fake_slice(&fake, 1, 100, 0, 900), release = fake_nothing(900);
    struct weir__hot *e;
    struct weir__view view;
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    e = fake_entry(&fake, id, "a");
    ck_assert_int_eq(weir__seam_report(fake.w, weir__slot_of(fake.w, e), fake.now, &fake.reports[0]), 1);
    ck_assert(fake.reports[0].rate > 99 && fake.reports[0].level <= 0);
    weir__seam_pause(fake.w, fake.reports[0].slot, fake.now);
    fake_pass(&fake, 100 * FAKE_MS);
    ck_assert_int_eq(weir_give(fake.w, id, "a", 1, 3), 0); /* nothing holds it */
    ck_assert_double_le(fake_level(&fake, id, "a"), 1e-6);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, NULL), WEIR_ALLOW); /* of the overdraft */
    ck_assert_double_eq_tol(fake_level(&fake, id, "a"), -2, 1e-6);
    fake_pass(&fake, 900 * FAKE_MS);
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &release);
    weir__hybrid_view(fake.w, e, e->x, fake.now, &view);
    ck_assert_uint_eq(view.mult, 0);
    ck_assert_uint_eq(view.cap, 0);
    ck_assert_int_eq(weir__hybrid_evictable(fake.w, weir__slot_of(fake.w, e), e->x, fake.now), 0); /* it owes 2 */
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 2);
    ck_assert_int_eq(fake_report(&fake, "a")->refunded, 3);
    release.level_delta = -fake_report(&fake, "a")->level;
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &release);
    ck_assert(fake_level(&fake, id, "a") == 0);
    ck_assert_int_eq(weir__hybrid_evictable(fake.w, weir__slot_of(fake.w, e), e->x, fake.now), 1);
}
END_TEST

/* What a slice refilled while its answer flew goes back where the rate falls: what there was of it, and no more. */
START_TEST(refill_that_never_was_is_not_taken_back)
{
    struct weir__grant grant = fake_slice(&fake, 11, 100, 10, 900), release = fake_nothing(900);
    for (int i = 0; i < 3; i++) {
        char key[2] = {(char)('a' + i), 0};
        ck_assert_int_eq(fake_take(&fake, id, key, 1, NULL), WEIR_ALLOW);
        fake_grant(&fake, key, &grant);
        ck_assert_int_eq(fake_take(&fake, id, key, i == 2 ? 3 : 1, NULL), WEIR_ALLOW);
        fake_pass(&fake, 10 * FAKE_MS); /* full; the third has 8 */
        fake_collect(&fake);
        if (i == 1)
            ck_assert_int_eq(fake_take(&fake, id, key, 4, NULL), WEIR_ALLOW); /* which came back in time */
        fake_pass(&fake, 50 * FAKE_MS);
        release.level_delta = -fake_report(&fake, key)->level;
        release.refill_back = 5;
        weir__seam_apply(fake.w, fake_report(&fake, key)->slot, fake.now, &release);
        ck_assert(fake_level(&fake, id, key) == (i == 1 ? -4 : 0));
    }
    /* part of it stays where the rate is only less */
    ck_assert_int_eq(fake_take(&fake, id, "z", 1, NULL), WEIR_ALLOW);
    grant.cap = 100;
    fake_grant(&fake, "z", &grant);
    fake_collect(&fake);
    ck_assert_int_eq(
        weir__seam_report(fake.w, weir__slot_of(fake.w, fake_entry(&fake, id, "z")), fake.now, &fake.reports[0]), 1);
    fake_pass(&fake, 100 * FAKE_MS);
    grant.level_delta = 2;
    grant.rate = 40;
    grant.refill_back = 6;
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    ck_assert_double_eq_tol(fake_level(&fake, id, "z"), 10 + 10 - 6 + 2, 1e-6);
}
END_TEST

/* Doubles' last digits: a key that gave all back is not in debt, and one that owes nothing can go on. */
START_TEST(a_rounding_is_no_debt)
{
    weir_policy_id slow = fake_policy(&fake, "slow", 1, 86400 * FAKE_SECOND, 10, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT);
    uint64_t seed = 31;
    weir__seam_fresh_until(fake.w, slow, UINT64_MAX);
    for (int i = 0; i < 300; i++) {
        double level = (double)(fake_random(&seed) % 10000) / 1234.567;
        struct weir__grant grant = fake_slice(&fake, level + 1, 0, 10, 9);
        ck_assert_int_eq(fake_take(&fake, slow, "a", 1, &r), WEIR_ALLOW);
        fake_grant(&fake, "a", &grant);
        ck_assert_int_eq(weir__seam_report(fake.w, fake.reports[0].slot, fake.now, &fake.reports[0]), 1);
        grant = fake_nothing(9);
        grant.level_delta = nextafter(-fake.reports[0].level, -INFINITY);
        weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
        ck_assert(fake_level(&fake, slow, "a") == 0);
    }
}
END_TEST

/* The collector's time is a little older than the takers': what they were given in between is not given again. */
START_TEST(a_grant_as_of_an_older_time_refills_nothing_twice)
{
    struct weir__grant grant = fake_slice(&fake, 11, 100, 50, 900);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now + 50 * FAKE_MS, NULL), WEIR_ALLOW);
    grant.level_delta = 0;
    fake_grant(&fake, "a", &grant);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now + 51 * FAKE_MS, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    weir__seam_pause(fake.w, fake.reports[0].slot, fake.now);
    ck_assert_double_eq_tol(fake_level(&fake, id, "a"), 10 - 2, 1e-6); /* as of the collector's time, as told to it */
    fake_pass(&fake, 60 * FAKE_MS);
    ck_assert_double_eq_tol(fake_level(&fake, id, "a"), 10 - 2, 1e-6);
}
END_TEST

/* The answer comes when the slice has ended and the entry lives on its share: it grants what Redis counts on, less all
 * that was admitted since the report. */
START_TEST(an_answer_after_the_fall_counts_what_the_share_admitted)
{
    struct weir__grant grant = fake_slice(&fake, 21, 0, 50, 900);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    grant.fallback_rate = 100;
    grant.fallback_cap = 100;
    fake_grant(&fake, "a", &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 5, NULL), WEIR_ALLOW);
    fake_collect(&fake); /* told: 15 in hand */
    ck_assert(fake.reports[0].level == 15);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, NULL), WEIR_ALLOW);
    fake_pass(&fake, 500 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 14, NULL), WEIR_DENY); /* falls, with the 13 of its slice */
    fake_pass(&fake, 40 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 4, NULL), WEIR_ALLOW);
    grant = fake_slice(&fake, 10, 0, 50, 900);
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 15 + 10 - 2 - 4);
    fake_collect(&fake);
    ck_assert_int_eq(fake.reports[0].spent, 6);
    ck_assert_int_eq(fake.reports[0].fallback_spent, 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("grant");
    TCase *tcase = tcase_create("grant");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, grants_are_rounded_down);
    tcase_add_test(tcase, no_grant_exceeds_the_policy);
    tcase_add_test(tcase, a_late_answer_stops_the_refill);
    tcase_add_test(tcase, a_slice_refills_nothing_past_its_end);
    tcase_add_test(tcase, a_slice_of_no_cap_that_is_stopped_leaves_nothing);
    tcase_add_test(tcase, refill_that_never_was_is_not_taken_back);
    tcase_add_test(tcase, a_rounding_is_no_debt);
    tcase_add_test(tcase, a_grant_as_of_an_older_time_refills_nothing_twice);
    tcase_add_test(tcase, an_answer_after_the_fall_counts_what_the_share_admitted);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
