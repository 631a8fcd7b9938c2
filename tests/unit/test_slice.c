/* SPDX-License-Identifier: MIT */
/*
 * sync/slice.h: what a node asks for and what an answer does to its bucket.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "support/suite.h"
#include "sync/slice.h"

#define SECOND UINT64_C(1000000000)
#define NEAR(a, b) ck_assert_double_eq_tol(a, b, 1e-9)

static struct weir__slice_terms terms;

static void setup(void)
{
    weir__slice_terms_set(&terms, 1000, SECOND, 1000, 100, 0.2, 0.05);
}

/* ---- terms ------------------------------------------------------------------------------------------------------- */

START_TEST(terms_follow_from_the_numbers)
{
    NEAR(terms.rate, 1000);
    NEAR(terms.burst, 1000);
    NEAR(terms.overshoot, 100);
    NEAR(terms.interval, 0.2);
    NEAR(terms.lifetime, 0.4);
    ck_assert_double_gt(terms.margin, 0);
    ck_assert_double_lt(terms.margin, 0.02);
    weir__slice_terms_set(&terms, 1000, SECOND, 100, 10, 0.2, 0.05);
    NEAR(terms.interval, 0.05);
    NEAR(terms.lifetime, 0.175);
    weir__slice_terms_set(&terms, 1000000, SECOND, 1, 0, 0.2, 0.05);
    NEAR(terms.interval, 0.02);
    weir__slice_terms_set(&terms, 5, 60 * SECOND, 5, 1, 0.2, 0.05);
    NEAR(terms.rate, 5.0 / 60);
    NEAR(terms.interval, 0.2);
}
END_TEST

START_TEST(overdrafts_take_three_quarters_at_most)
{
    for (int nodes = 1; nodes < 300; nodes++) {
        double q0 = weir__slice_q0(&terms, nodes);
        NEAR(q0, floor(q0));
        ck_assert_double_le(q0 * nodes, 75);
        ck_assert_double_gt((q0 + 1) * nodes, 75);
    }
    NEAR(weir__slice_q0(&terms, 0), 0);
}
END_TEST

START_TEST(shares_and_ends)
{
    double rate, burst;
    weir__slice_share(&terms, 4, &rate, &burst);
    NEAR(rate, 250);
    NEAR(burst, 250);
    weir__slice_share(&terms, 0, &rate, &burst);
    NEAR(rate, 1000);
    uint64_t until = weir__slice_until(&terms, 7 * SECOND);
    ck_assert_uint_lt(until, 7 * SECOND + SECOND * 4 / 10);
    ck_assert_uint_gt(until, 7 * SECOND + SECOND * 38 / 100);
}
END_TEST

/* ---- demand ------------------------------------------------------------------------------------------------------ */

START_TEST(steady_demand_is_found_and_kept)
{
    struct weir__demand d = {0};
    for (int i = 0; i <= 20; i++) {
        weir__demand_add(&d, 10 + 0.2 * i, 100, 1, 0.2);
        double rate = weir__demand_rate(&d, 10 + 0.2 * i, 0.2);
        ck_assert_double_gt(rate, i == 0 ? 100 : 499);
        if (i > 2) {
            ck_assert_double_eq_tol(rate, 500, 1);
        }
    }
}
END_TEST

START_TEST(a_jump_is_followed_at_once_a_ripple_slowly)
{
    struct weir__demand d = {0};
    for (int i = 0; i < 30; i++) {
        weir__demand_add(&d, 10 + 0.2 * i, 100, 1, 0.2);
    }
    struct weir__demand ripple = d, jump = d, fall = d, burst = d;
    double now = 10 + 0.2 * 30;
    weir__demand_add(&ripple, now, 110, 1, 0.2);
    ck_assert_double_gt(ripple.rate, 501);
    ck_assert_double_lt(ripple.rate, 530);
    weir__demand_add(&jump, now, 400, 1, 0.2);
    ck_assert_double_eq_tol(jump.rate, 2000, 1);
    weir__demand_add(&fall, now, 10, 1, 0.2);
    ck_assert_double_eq_tol(fall.rate, 50, 1);
    /* An early report of many: the window is short, the estimate rises without waiting for its end. */
    weir__demand_add(&burst, now - 0.2 + 0.02, 300, 1, 0.2);
    ck_assert_double_gt(weir__demand_rate(&burst, now - 0.2 + 0.02, 0.2), 1500);
}
END_TEST

START_TEST(nobody_asking_is_noticed)
{
    struct weir__demand d = {0};
    for (int i = 0; i < 10; i++) {
        weir__demand_add(&d, 10 + 0.2 * i, 4, 1, 0.2); /* 20 a second: 5 / d is 0.25 s */
    }
    double last = 10 + 0.2 * 9;
    ck_assert_int_eq(weir__demand_idle(&d, last + 0.24, 0.2), 0);
    ck_assert_int_eq(weir__demand_idle(&d, last + 0.26, 0.2), 1);
    weir__demand_add(&d, last + 0.26, 0, 1, 0.2);
    NEAR(weir__demand_rate(&d, last + 0.26, 0.2), 0);
    /* A fast key must still be quiet for a quarter of the interval. */
    struct weir__demand fast = {0};
    for (int i = 0; i < 10; i++) {
        weir__demand_add(&fast, 10 + 0.2 * i, 4000, 1, 0.2);
    }
    ck_assert_int_eq(weir__demand_idle(&fast, last + 0.04, 0.2), 0);
    ck_assert_int_eq(weir__demand_idle(&fast, last + 0.06, 0.2), 1);
}
END_TEST

/* Takes of 30, a third of a second apart: what no report tells of in between is no end, and no other rate. */
START_TEST(takes_of_many_tokens_are_few)
{
    struct weir__demand d = {0};
    for (int i = 0; i < 100; i++) {
        double now = 10 + 0.1 * i;
        uint64_t asked = i % 3 == 0 ? 30 : 0;
        weir__demand_add(&d, now, asked, asked, 0.2);
        ck_assert_int_eq(weir__demand_idle(&d, now, 0.2), 0);
        NEAR(d.cost, 30);
        if (i > 30) {
            ck_assert_double_eq_tol(weir__demand_rate(&d, now, 0.2), 100, 20);
        }
    }
    double last = d.last;
    for (int i = 1; 0.1 * i < 5 * 30 / d.rate - 0.1; i++) {
        weir__demand_add(&d, last + 0.1 * i, 0, 0, 0.2);
        ck_assert_double_gt(weir__demand_rate(&d, last + 0.1 * i, 0.2), 0);
    }
    weir__demand_add(&d, last + 2, 0, 0, 0.2);
    NEAR(weir__demand_rate(&d, last + 2, 0.2), 0);
    NEAR(d.cost, 0);
    /* What a single one cost, long ago, is nothing that the next take asks for. */
    struct weir__demand lone = {0};
    weir__demand_add(&lone, 10, 100, 100, 0.2);
    ck_assert_int_eq(weir__demand_idle(&lone, 11, 0.2), 0);
    ck_assert_int_eq(weir__demand_idle(&lone, 13, 0.2), 1);
    weir__demand_add(&lone, 13, 1, 1, 0.2);
    NEAR(lone.cost, 1);
    NEAR(weir__demand_rate(&lone, 13, 0.2), 5);
    /* Smaller ones say that costs are less. */
    weir__demand_add(&d, last + 2.1, 30, 30, 0.2);
    for (int i = 0; i < 40; i++) {
        weir__demand_add(&d, last + 2.2 + 0.1 * i, 10, 1, 0.2);
    }
    NEAR(d.cost, 1);
}
END_TEST

/* ---- asking ------------------------------------------------------------------------------------------------------ */

START_TEST(what_is_wanted)
{
    NEAR(weir__slice_want(&terms, 4.99, 0.001, 0), 0); /* less than one an interval: no slice */
    NEAR(weir__slice_want(&terms, 100, 0.001, 0), 10 + 2 * sqrt(20) + 0.2);
    NEAR(weir__slice_want(&terms, 1e6, 0.001, 0), 500);     /* half of the burst at most */
    NEAR(weir__slice_want(&terms, 100, 0.001, 300), 300);   /* what one request costs */
    NEAR(weir__slice_want(&terms, 100, 0.001, 5000), 1000); /* but for what can never be */
    NEAR(weir__slice_want(&terms, 0, 0.001, 300), 0);
    weir__slice_terms_set(&terms, 1000, SECOND, 1, 0, 0.2, 0.05);
    NEAR(weir__slice_want(&terms, 1000, 0.001, 0), 1);
}
END_TEST

START_TEST(round_trips_rise_fast_and_fall_slowly)
{
    NEAR(weir__slice_rtt(0, 0.003), 0.003);
    NEAR(weir__slice_rtt(0.003, 0.010), 0.010);
    NEAR(weir__slice_rtt(0.010, 0.000001), 0.0090001);
    NEAR(weir__slice_rtt(0.010, 0), 0.010);
    NEAR(weir__slice_rtt(0.010, -1), 0.010);
}
END_TEST

START_TEST(an_answer_that_is_late_lengthens_them_a_little)
{
    double rtt = 0.001;
    NEAR(weir__slice_late(0, 0.050), 0.050);
    NEAR(weir__slice_late(0.001, 0.050), 0.0059);
    NEAR(weir__slice_late(0.070, 0.050), 0.070);
    for (int i = 0; i < 40; i++) {
        rtt = weir__slice_late(rtt, 0.050);
    }
    ck_assert_double_gt(rtt, 0.049); /* where all are */
    ck_assert_double_le(rtt, 0.050);
}
END_TEST

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static struct weir__grant grant_of(const struct weir__slice_ask *ask, const struct weir__slice_answer *answer,
                                   uint64_t now)
{
    struct weir__grant grant;
    memset(&grant, 0x5a, sizeof grant);
    weir__slice_grant(&terms, ask, answer, now, 0.002, &grant);
    return grant;
}

START_TEST(an_answer_is_absolute)
{
    const uint64_t sent = 50 * SECOND, now = sent + SECOND / 1000;
    struct weir__slice_ask ask = {.level = 10, .rate = 100, .demand = 200, .want = 40, .sent_ns = sent};
    struct weir__slice_answer answer = {.level = 35, .rate = 150, .cap = 40, .fallback = 300, .total = 700, .rich = 1};
    struct weir__grant grant = grant_of(&ask, &answer, now);
    NEAR(grant.level_delta, 25);
    NEAR(grant.refill_back, 0); /* a rate that grows has nothing to be taken back for */
    NEAR(grant.rate, 150);
    NEAR(grant.cap, 40);
    NEAR(grant.global, 700);
    NEAR(grant.fallback_rate, 300);
    NEAR(grant.fallback_cap, 300);
    NEAR(grant.low, 8.75);
    ck_assert_uint_eq(grant.until, weir__slice_until(&terms, sent));
    ck_assert_uint_eq(grant.hold, 0);
}
END_TEST

/* A rate that falls was too high while the request flew; after the timeout it was 0 already. */
START_TEST(flight_at_the_old_rate_is_taken_back)
{
    const uint64_t sent = 50 * SECOND;
    struct weir__slice_ask ask = {.level = 10, .rate = 100, .demand = 200, .want = 40, .sent_ns = sent};
    struct weir__slice_answer answer = {.level = 20, .rate = 60, .cap = 40};
    NEAR(grant_of(&ask, &answer, sent).level_delta, 10);
    NEAR(grant_of(&ask, &answer, sent).refill_back, 0);
    NEAR(grant_of(&ask, &answer, sent + SECOND / 100).level_delta, 10);
    NEAR(grant_of(&ask, &answer, sent + SECOND / 100).refill_back, 40 * 0.01);
    NEAR(grant_of(&ask, &answer, sent + SECOND / 5).refill_back, 40 * 0.05);
    NEAR(grant_of(&ask, &answer, sent - SECOND).level_delta, 10); /* a clock that went back */
    NEAR(grant_of(&ask, &answer, sent - SECOND).refill_back, 0);
}
END_TEST

/* More than is wanted goes back: dropped here now, told by the next report. A fraction that can't grow goes too. */
START_TEST(a_surplus_is_dropped)
{
    const uint64_t sent = 50 * SECOND;
    struct weir__slice_ask ask = {.level = 90, .rate = 0, .demand = 50, .want = 20, .sent_ns = sent};
    struct weir__slice_answer answer = {.level = 90, .rate = 25, .cap = 90};
    struct weir__grant grant = grant_of(&ask, &answer, sent);
    NEAR(grant.level_delta, -70);
    ask.want = 0;
    answer.rate = 0;
    grant = grant_of(&ask, &answer, sent);
    NEAR(grant.level_delta, -90);
    NEAR(grant.cap, 0);
    ck_assert_uint_eq(grant.until, 0); /* nothing held that could end */
    ask = (struct weir__slice_ask){.level = 0.4, .want = 20, .demand = 50, .sent_ns = sent};
    answer = (struct weir__slice_answer){.level = 0.4, .cap = 0.4};
    grant = grant_of(&ask, &answer, sent);
    NEAR(grant.level_delta, -0.4);
    ck_assert_uint_eq(grant.until, 0);
    answer.rate = 1; /* ... but one that grows stays */
    NEAR(grant_of(&ask, &answer, sent).level_delta, 0);
}
END_TEST

START_TEST(a_debt_is_never_dropped)
{
    struct weir__slice_ask ask = {.level = -5, .want = 0, .sent_ns = SECOND};
    struct weir__slice_answer answer = {.level = -5};
    NEAR(grant_of(&ask, &answer, SECOND).level_delta, 0);
    answer.level = -2;
    NEAR(grant_of(&ask, &answer, SECOND).level_delta, 3);
}
END_TEST

START_TEST(holds_and_low_marks)
{
    const uint64_t sent = 50 * SECOND, now = sent + 5;
    struct weir__slice_ask ask = {.level = 0, .demand = 1000, .want = 300, .sent_ns = sent};
    struct weir__slice_answer answer = {.level = 4, .rate = 100, .cap = 20, .hold = 0.25, .rich = 1};
    struct weir__grant grant = grant_of(&ask, &answer, now);
    ck_assert_uint_eq(grant.hold, now + SECOND / 4);
    NEAR(grant.low, 2.4); /* 1.5 d rtt would be 3: no more than 0.6 of the level */
    answer.rich = 0;
    ck_assert_double_lt(grant_of(&ask, &answer, now).low, 0);
    answer.hold = 1e18; /* absurd, but a number: must not overflow */
    ck_assert_uint_gt(grant_of(&ask, &answer, now).hold, now);
}
END_TEST

START_TEST(when_a_key_need_not_report)
{
    struct weir__slice_ask ask = {0};
    struct weir__slice_answer answer = {0};
    ck_assert_int_eq(weir__slice_nothing(&ask, &answer), 1);
    answer.level = 0.3;
    ck_assert_int_eq(weir__slice_nothing(&ask, &answer), 0);
    answer.level = -1;
    ck_assert_int_eq(weir__slice_nothing(&ask, &answer), 0);
    answer = (struct weir__slice_answer){.rate = 1};
    ck_assert_int_eq(weir__slice_nothing(&ask, &answer), 0);
    answer.rate = 0;
    ask.demand = 1;
    ck_assert_int_eq(weir__slice_nothing(&ask, &answer), 0);
}
END_TEST

/* An overdraft without a slice is forgiven as far as the bucket covers it, never more, and nothing is given. */
START_TEST(what_is_owed_stays_owed)
{
    ck_assert_double_eq(weir__slice_owed(-1, 3), 0);
    ck_assert_double_eq(weir__slice_owed(-1, 0), 0);
    ck_assert_double_eq(weir__slice_owed(-1, -0.25), -0.25);
    ck_assert_double_eq(weir__slice_owed(-1, -7), -1);
    ck_assert_double_eq(weir__slice_owed(-7, -2), -2);
    ck_assert_double_eq(weir__slice_owed(0, 5), 0);
    ck_assert_double_eq(weir__slice_owed(2, -5), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slice");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, terms_follow_from_the_numbers);
    tcase_add_test(tcase, overdrafts_take_three_quarters_at_most);
    tcase_add_test(tcase, shares_and_ends);
    tcase_add_test(tcase, steady_demand_is_found_and_kept);
    tcase_add_test(tcase, a_jump_is_followed_at_once_a_ripple_slowly);
    tcase_add_test(tcase, nobody_asking_is_noticed);
    tcase_add_test(tcase, takes_of_many_tokens_are_few);
    tcase_add_test(tcase, what_is_wanted);
    tcase_add_test(tcase, round_trips_rise_fast_and_fall_slowly);
    tcase_add_test(tcase, an_answer_that_is_late_lengthens_them_a_little);
    tcase_add_test(tcase, an_answer_is_absolute);
    tcase_add_test(tcase, flight_at_the_old_rate_is_taken_back);
    tcase_add_test(tcase, a_surplus_is_dropped);
    tcase_add_test(tcase, a_debt_is_never_dropped);
    tcase_add_test(tcase, holds_and_low_marks);
    tcase_add_test(tcase, when_a_key_need_not_report);
    tcase_add_test(tcase, what_is_owed_stays_owed);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
