/* SPDX-License-Identifier: MIT */
/*
 * The taker's side of shared policies in an outage: a slice that ends, shares, open, closed, strict policies.
 */
#include <check.h>

#include "support/fake_sync.h"
#include "support/suite.h"

static struct fake_sync fake;
static struct weir_result r;

static void setup(void)
{
    fake_open(&fake, 0);
}

static void teardown(void)
{
    fake_close(&fake);
}

/* A wait is of whole units: of a rate far below the policy's they are some ns. */
static void assert_about(uint64_t wait, uint64_t expected)
{
    ck_assert_uint_le(wait, expected);
    ck_assert_uint_ge(wait + 8, expected);
}

/* ---- outages ----------------------------------------------------------------------------------------------------- */

START_TEST(a_slice_ends_by_itself)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 0, 10, 60);
    grant.fallback_rate = 4;
    grant.fallback_cap = 8;
    grant.unheld = 50;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    weir__seam_fresh_until(fake.w, id, fake.now + 3600 * FAKE_SECOND); /* of others: not of this one */
    fake_pass(&fake, 400 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 7, &r), WEIR_ALLOW); /* the last moment */
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, 0);
    fake_pass(&fake, 1);
    /* the three that are left of it, and 8 of 100 of the 50 that nobody held */
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 7);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 0);
    ck_assert_uint_eq(r.retry_after_ns, 250 * FAKE_MS);
    fake_pass(&fake, 250 * FAKE_MS);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 1);
    fake_pass(&fake, 60 * FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 8);
    ck_assert_int_eq(fake_take(&fake, id, "a", 9, &r), WEIR_DENY); /* more than the share ever holds */
    ck_assert_uint_eq(r.retry_after_ns, 200 * FAKE_MS);
    /* Redis is back: the report says what the share admitted */
    fake_collect(&fake);
    struct weir__report *report = fake_report(&fake, "a");
    ck_assert_int_eq(report->spent, 23);
    ck_assert_int_eq(report->fallback_spent, 16);
    ck_assert_uint_eq(report->regime, WEIR__FALLBACK);
    ck_assert(report->level == 0);
    ck_assert(report->rate == 0);
    grant = fake_slice(&fake, 3, 1, 5, 40);
    weir__seam_apply(fake.w, report->slot, fake.now, &grant);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 3);
    ck_assert_uint_eq(r.flags, 0);
}
END_TEST

/* One process alone: what was spent before the link went and after, on the slice and on the share, is 45 of 100. */
START_TEST(what_a_slice_cannot_spend_the_share_does)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 10);
    struct weir__grant grant = fake_slice(&fake, 20, 0, 20, 90);
    int64_t allowed = 0;
    grant.fallback_rate = 1e-3;
    grant.fallback_cap = 100;
    grant.unheld = 70;
    for (int i = 0; i < 10; i++)
        allowed += fake_take(&fake, id, "a", 1, NULL) == WEIR_ALLOW;
    fake_urgent(&fake);
    grant.level_delta += 10;
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    for (int i = 0; i < 12; i++) /* the last moment of the slice */
        allowed += fake_take(&fake, id, "a", 1, NULL) == WEIR_ALLOW;
    fake_pass(&fake, 401 * FAKE_MS);
    for (int i = 12; i < 35; i++)
        allowed += fake_take(&fake, id, "a", 1, &r) == WEIR_ALLOW;
    ck_assert_int_eq(allowed, 45);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 35);
    ck_assert_int_eq(fake_report(&fake, "a")->fallback_spent, 23);
}
END_TEST

START_TEST(a_debt_is_carried_into_the_fallback)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 4);
    struct weir__grant grant = fake_slice(&fake, 0, 0, 1, 0);
    grant.fallback_rate = 10;
    grant.fallback_cap = 50;
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 4);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == -4);
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 0);
    ck_assert(fake_level(&fake, id, "a") == -4);
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 6);
}
END_TEST

START_TEST(a_key_never_seen_has_the_policys_share)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    ck_assert_int_eq(fake_take(&fake, id, "used", 3, NULL), WEIR_ALLOW);
    fake_pass(&fake, FAKE_SECOND + 1);
    ck_assert_int_eq(fake_drain(&fake, id, "new", &r), 20);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_uint_eq(r.retry_after_ns, 500 * FAKE_MS);
    ck_assert_int_eq(fake_drain(&fake, id, "used", &r), 17);
    fake_pass(&fake, 60 * FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "new", &r), 20);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "new")->spent, 40);
    ck_assert_int_eq(fake_report(&fake, "new")->fallback_spent, 40);
    ck_assert_int_eq(fake_report(&fake, "used")->spent, 20);
    ck_assert_int_eq(fake_report(&fake, "used")->fallback_spent, 17);
}
END_TEST

START_TEST(no_share_exceeds_the_policy)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 0);
    weir__seam_overdraft(fake.w, id, 0, 1e9, 1e9);
    fake_pass(&fake, FAKE_SECOND + 1);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 100);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
    fake_pass(&fake, 3600 * FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 100);
}
END_TEST

/* A key that Redis knows, and that held no slice, goes on with its share of what there was. */
START_TEST(a_key_without_a_slice_has_its_share_of_what_was_there)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 2);
    struct weir__grant grant = fake_nothing(30);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    grant.level_delta = 1;
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_int_eq(r.remaining, 29);
    fake_pass(&fake, 2 * FAKE_SECOND);
    /* 30 + 20 by now, a fifth of it, less the one in debt */
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 9);
}
END_TEST

START_TEST(open_and_closed_outages)
{
    weir_policy_id open = fake_attached(&fake, WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_ADMIT, 0);
    weir_policy_id closed = fake_policy(&fake, "closed", 10, FAKE_SECOND, 100, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT);
    weir__seam_fresh_until(fake.w, closed, fake.now + FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, open, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, closed, "a", 1, NULL), WEIR_ALLOW);
    fake_pass(&fake, FAKE_SECOND + 1);
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(fake_take(&fake, open, "a", 7, &r), WEIR_ALLOW);
        ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
        ck_assert_int_eq(fake_take(&fake, closed, "a", 1, &r), WEIR_DENY);
        ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    }
    ck_assert_uint_eq(fake_collect(&fake), 2);
    ck_assert_int_eq(fake.reports[0].spent, 1); /* the fifty were not charged */
    ck_assert_int_eq(fake.reports[1].spent, 1);
    ck_assert_int_eq(fake.reports[0].fallback_spent, 0);
    /* Redis is back */
    weir__seam_fresh_until(fake.w, open, fake.now + FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, open, "b", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
}
END_TEST

START_TEST(an_expired_slice_is_listed_for_renewal)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 1, 0, 1, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    ck_assert_int_eq(fake_take(&fake, id, "a", 5, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 1);
}
END_TEST

START_TEST(a_strict_outage_lives_on_the_share)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;
    policy.name = "s";
    policy.limit = 10;
    policy.per_ns = FAKE_SECOND;
    policy.burst = 100;
    policy.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(fake.w, &policy, &id), 0);
    fake_attach(&fake);
    weir__seam_overdraft(fake.w, id, 50, 2, 20);
    weir__seam_fresh_until(fake.w, id, fake.now + FAKE_SECOND); /* it is Redis' silence to this request that counts */
    struct weir_request request = {.policy = id, .key = "a", .key_len = 1, .cost = 15};
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, -1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 5);
    ck_assert_uint_eq(r.policy, id);
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, -1, &r), WEIR_DENY);
    assert_about(r.retry_after_ns, 5 * FAKE_SECOND);
    request.cost = 101;
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, -1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    request.cost = -1;
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, -1, &r), WEIR_E_COST);
    /* a share of what is left of the whole: a fifth of 30; of nothing; and never more than the share */
    request.cost = 6;
    for (int i = 0; i < 3; i++) {
        static const double left[] = {30, 0, 1e9};
        request.key = i == 0 ? "b" : i == 1 ? "c" : "d";
        ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, left[i], &r), i == 1 ? WEIR_DENY : WEIR_ALLOW);
        ck_assert_int_eq(r.remaining, i == 2 ? 14 : 0);
        /* it is known once: from then on the share counts */
        ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, 100, &r), i == 2 ? WEIR_ALLOW : WEIR_DENY);
    }
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 15);
    ck_assert_int_eq(fake_report(&fake, "a")->fallback_spent, 15);
    ck_assert_int_eq(fake_report(&fake, "b")->fallback_spent, 6);
    struct weir_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 4);
    ck_assert_uint_eq(stats.denied, 5);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("outage");
    TCase *tcase = tcase_create("outage");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_slice_ends_by_itself);
    tcase_add_test(tcase, what_a_slice_cannot_spend_the_share_does);
    tcase_add_test(tcase, a_debt_is_carried_into_the_fallback);
    tcase_add_test(tcase, a_key_never_seen_has_the_policys_share);
    tcase_add_test(tcase, no_share_exceeds_the_policy);
    tcase_add_test(tcase, a_key_without_a_slice_has_its_share_of_what_was_there);
    tcase_add_test(tcase, open_and_closed_outages);
    tcase_add_test(tcase, an_expired_slice_is_listed_for_renewal);
    tcase_add_test(tcase, a_strict_outage_lives_on_the_share);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
