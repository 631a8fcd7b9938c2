/* SPDX-License-Identifier: MIT */
/*
 * What changes under a shared entry: tokens given back, new numbers, another mode, a sync that comes or goes, keys that
 * are forgotten or dropped.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/table.h"
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

START_TEST(giving_back_raises_the_slice_and_is_reported)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 0, 10, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 8, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_give(fake.w, id, "a", 1, 3), 0);
    ck_assert(fake_level(&fake, id, "a") == 5);
    ck_assert_int_eq(weir_give(fake.w, id, "a", 1, 50), 0);
    ck_assert(fake_level(&fake, id, "a") == 10);
    ck_assert_int_eq(weir_give(fake.w, id, "b", 1, 1000), 0); /* no entry yet: still news; a bucket at most */
    ck_assert(fake_level(&fake, id, "b") == 0);
    ck_assert_uint_eq(fake_collect(&fake), 2);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 8);
    ck_assert_int_eq(fake_report(&fake, "a")->refunded, 53);
    ck_assert_int_eq(fake_report(&fake, "b")->spent, 0);
    ck_assert_int_eq(fake_report(&fake, "b")->refunded, 100);
}
END_TEST

/* Every request or none: a member that is taken back leaves no trace, in a slice or on a fallback share. */
START_TEST(taking_back_is_not_a_refund)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 0, 10, 60);
    struct weir_request all[2] = {{.policy = id, .key = "a", .key_len = 1, .cost = 6},
                                  {.policy = id, .key = "denied", .key_len = 6, .cost = 25}};
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    uint64_t x = fake_entry(&fake, id, "a")->x;
    ck_assert_int_eq(weir_take_all(fake.w, all, 2, &r), WEIR_DENY);
    ck_assert_int_eq(all[1].status, WEIR_DENY);
    ck_assert_uint_ne(fake_entry(&fake, id, "a")->x, x); /* it had been charged */
    ck_assert(fake_level(&fake, id, "a") == 10);
    ck_assert_int_eq(fake_take(&fake, id, "a", 10, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 10);
    ck_assert_int_eq(fake_report(&fake, "a")->refunded, 0);
    grant = fake_nothing(50);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);

    all[0].key = "b";
    fake_pass(&fake, 2 * FAKE_SECOND);
    ck_assert_int_eq(weir_take_all(fake.w, all, 2, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert(fake_level(&fake, id, "b") == 20);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "b")->spent, 0);
    ck_assert_int_eq(fake_report(&fake, "b")->fallback_spent, 0);
    grant = fake_slice(&fake, 10, 0, 10, 60);
    weir__seam_apply(fake.w, fake_report(&fake, "b")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "b", 5, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "b")->spent, 5);
    ck_assert_int_eq(fake_report(&fake, "b")->fallback_spent, 0);
}
END_TEST

START_TEST(an_open_admission_is_not_taken_back)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_ADMIT, 0);
    weir_policy_id closed = fake_policy(&fake, "closed", 10, FAKE_SECOND, 100, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT);
    struct weir_request all[2] = {{.policy = id, .key = "a", .key_len = 1, .cost = 6},
                                  {.policy = closed, .key = "a", .key_len = 1, .cost = 1}};
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_pass(&fake, FAKE_SECOND + 1);
    ck_assert_int_eq(weir_take_all(fake.w, all, 2, &r), WEIR_DENY);
    ck_assert_int_eq(all[0].status, WEIR_ALLOW);
    ck_assert(fake_level(&fake, id, "a") == -1);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 1);
}
END_TEST

/* ---- new numbers, another mode ----------------------------------------------------------------------------------- */

static void set(weir_policy_id id, uint64_t limit, uint64_t per_ns, uint64_t burst, enum weir_mode mode)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    policy.mode = mode;
    policy.unknown = WEIR_UNKNOWN_DENY;
    ck_assert_int_eq(weir_policy_set(fake.w, id, &policy), 0);
}

START_TEST(new_numbers_clip_a_slice_and_keep_what_is_unreported)
{
    static const struct {
        uint64_t limit, per_ns, burst;
        double level, rate;
    } cases[] = {
        {1, 3600 * FAKE_SECOND, 5, 5, 1.0 / 3600},          /* a much larger k */
        {100000000, FAKE_SECOND, UINT64_C(1) << 40, 40, 8}, /* a much smaller one */
        {10, FAKE_SECOND, 100, 40, 8},                      /* the same */
        {8, FAKE_SECOND, 30, 30, 8},
    };
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[] = {(char)('a' + i), 0};
        struct weir__grant grant = fake_slice(&fake, 50, 8, 50, 60);
        grant.fallback_rate = 3;
        grant.fallback_cap = 40;
        set(id, 10, FAKE_SECOND, 100, WEIR_HYBRID);
        (void)fake_take(&fake, id, key, 1, NULL);
        fake_urgent(&fake);
        weir__seam_apply(fake.w, fake_report(&fake, key)->slot, fake.now, &grant);
        ck_assert_int_eq(fake_take(&fake, id, key, 10, NULL), WEIR_ALLOW);
        set(id, cases[i].limit, cases[i].per_ns, cases[i].burst, WEIR_HYBRID);
        ck_assert_double_eq_tol(fake_level(&fake, id, key), cases[i].level, 1e-6);
        fake_pass(&fake, FAKE_MS);
        fake_collect(&fake);
        struct weir__report *report = fake_report(&fake, key);
        ck_assert_int_eq(report->spent, 10);
        ck_assert_double_eq_tol(report->rate, cases[i].rate, 1e-6 * cases[i].rate);
        weir__seam_release(fake.w, report->slot, 10, 0); /* lost */
        set(id, 10, FAKE_SECOND, 100, WEIR_HYBRID);
        ck_assert_double_le(fake_level(&fake, id, key), cases[i].level + 0.01); /* nothing comes back for free */
        fake_collect(&fake);
        ck_assert_int_eq(fake_report(&fake, key)->spent, 10);
        weir__seam_release(fake.w, fake_report(&fake, key)->slot, 0, 0);
    }
}
END_TEST

START_TEST(a_report_that_is_out_survives_new_numbers)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 6);
    ck_assert_int_eq(fake_take(&fake, id, "a", 4, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    uint32_t slot = fake_report(&fake, "a")->slot;
    set(id, 1, 3600 * FAKE_SECOND, 20, WEIR_HYBRID);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, NULL), WEIR_ALLOW);
    struct weir__grant grant = fake_slice(&fake, 4 + 9, 1.0 / 3600, 10, 16);
    weir__seam_apply(fake.w, slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 7);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 2);
}
END_TEST

START_TEST(a_fall_survives_new_numbers)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 20, 0, 20, 60);
    grant.fallback_rate = 4;
    grant.fallback_cap = 8;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 5, NULL), WEIR_ALLOW);
    fake_collect(&fake); /* told: 15 in hand */
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 8); /* of the 15, what the share holds */
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 4);
    set(id, 3600, 3600 * FAKE_SECOND, 20, WEIR_HYBRID); /* 1 a second, another k: the share's 4 are too many by now */
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 1);
    grant = fake_slice(&fake, 2, 0, 20, 15);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 15 + 2 - 8 - 4 - 1);
}
END_TEST

START_TEST(a_low_mark_survives_new_numbers)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 0, 10, 60);
    grant.low = 4;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    unsigned wakes = fake.wakes;
    set(id, 1, 3600 * FAKE_SECOND, 20, WEIR_HYBRID);
    ck_assert_int_eq(fake_take(&fake, id, "a", 6, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake.wakes, wakes);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake.wakes, wakes + 1);
}
END_TEST

START_TEST(a_policy_becomes_local_and_shared_again)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 50, 0, 50, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 10, NULL), WEIR_ALLOW);
    set(id, 10, FAKE_SECOND, 100, WEIR_LOCAL);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 50); /* what the fleet had, less its own use */
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(fake_collect(&fake), 0);
    set(id, 10, FAKE_SECOND, 100, WEIR_HYBRID);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 60); /* its own, all of it, and no more */
    grant = fake_nothing(0);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 0);
}
END_TEST

START_TEST(what_was_spent_before_a_sync_is_a_debt)
{
    weir_policy_id id = fake_ten_a_second(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "old", 50, NULL), WEIR_ALLOW);
    fake_pass(&fake, 10 * FAKE_SECOND); /* full again */
    ck_assert_int_eq(fake_take(&fake, id, "old", 20, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "recent", 40, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "full", 1, NULL), WEIR_ALLOW);
    fake_pass(&fake, FAKE_SECOND);
    fake_attach(&fake);
    weir__seam_fresh_until(fake.w, id, fake.now + FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, id, "recent", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_uint_eq(fake_collect(&fake), 2);
    ck_assert_int_eq(fake_report(&fake, "old")->spent, 10);
    ck_assert_int_eq(fake_report(&fake, "recent")->spent, 30);
    ck_assert(fake_report(&fake, "recent")->level == 0);
}
END_TEST

START_TEST(a_sync_that_goes_leaves_a_bucket_of_ones_own)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_slice(&fake, 20, 0, 20, 35);
    ck_assert_int_eq(fake_take(&fake, id, "bare", 3, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "sliced", 1, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "sliced")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "sliced", 5, NULL), WEIR_ALLOW);
    weir__seam_release(fake.w, fake_report(&fake, "bare")->slot, 3, 0);
    weir__seam_detach(fake.w);
    ck_assert_int_eq(fake_drain(&fake, id, "sliced", &r), 30);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(fake_drain(&fake, id, "bare", &r), 97);
    ck_assert_int_eq(fake_drain(&fake, id, "new", &r), 100);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    /* and when another one comes: its own spending is a debt, what the fleet spent is not told twice */
    fake_attach(&fake);
    ck_assert_uint_eq(fake.joins, 1);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "sliced")->spent, 35);
    ck_assert_int_eq(fake_report(&fake, "bare")->spent, 100);
    ck_assert_int_eq(fake_report(&fake, "new")->spent, 100);
}
END_TEST

START_TEST(forgetting_starts_over)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_slice(&fake, 20, 5, 20, 35);
    ck_assert_int_eq(fake_take(&fake, id, "a", 3, NULL), WEIR_ALLOW);
    fake_urgent(&fake); /* the report is out ... */
    ck_assert_int_eq(weir_forget(fake.w, id, "a", 1), 0);
    ck_assert_uint_eq(fake.forgets, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(r.remaining, 99);
    /* ... and its answer is of the old key */
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == -1);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 1);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 19);
    ck_assert_int_eq(weir_forget(fake.w, id, "a", 1), 0);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 3);
}
END_TEST

/* ---- room -------------------------------------------------------------------------------------------------------- */

/* Fills the table with takes of other keys; says whether the key's entry is still there. */
static int survives(weir_policy_id id, const char *key)
{
    uint64_t before = fake_entry(&fake, id, key)->id[0];
    uint32_t slot = weir__slot_of(fake.w, fake_entry(&fake, id, key));
    for (int i = 0; i < 3000; i++) {
        char other[16];
        snprintf(other, sizeof other, "other %d", i);
        (void)weir_give(fake.w, id, other, strlen(other), 1);
        fake_urgent(&fake); /* of the key itself, which stays as it is */
        for (size_t n = 0; n < fake.n; n++)
            weir__seam_release(fake.w, fake.reports[n].slot, 0, 0);
        fake_collect(&fake);
        for (size_t n = 0; n < fake.n; n++) {
            struct weir__grant grant = fake_nothing(100);
            weir__seam_apply(fake.w, fake.reports[n].slot, fake.now, &grant);
        }
    }
    return fake.w->hot[slot].id[0] == before;
}

START_TEST(only_what_equals_an_absent_key_is_dropped)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_slice(&fake, 20, 5, 20, 35);
    weir__seam_fresh_until(fake.w, id, UINT64_MAX);
    ck_assert_int_eq(fake_take(&fake, id, "sliced", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "sliced", &grant);
    ck_assert_int_eq(survives(id, "sliced"), 1);
    /* released, but in debt; then on hold; then nothing */
    ck_assert_int_eq(fake_take(&fake, id, "sliced", 22, NULL), WEIR_ALLOW);
    grant = fake_nothing(12);
    fake_grant(&fake, "sliced", &grant);
    ck_assert_int_eq(survives(id, "sliced"), 1);
    (void)fake_take(&fake, id, "sliced", 100, NULL);
    ck_assert_uint_ge(fake_urgent(&fake), 1);
    grant.level_delta = 3;
    grant.hold = fake.now + FAKE_SECOND;
    weir__seam_apply(fake.w, fake_report(&fake, "sliced")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "sliced") == 0);
    ck_assert_int_eq(survives(id, "sliced"), 1);
    fake_pass(&fake, FAKE_SECOND);
    ck_assert_int_eq(survives(id, "sliced"), 0);
}
END_TEST

/* What Redis said of a key is not said of the next one in its place. */
START_TEST(a_new_key_inherits_nothing)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_slice(&fake, 20, 5, 20, 35);
    uint64_t hash[2], x;
    grant.low = 15;
    grant.hold = fake.now + FAKE_SECOND;
    grant.fallback_rate = 1;
    grant.fallback_cap = 5;
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    (void)fake_take(&fake, id, "a", 50, NULL);
    grant = fake_nothing(20);
    grant.level_delta = -30;
    fake_collect(&fake);
    ck_assert_int_eq(
        weir__seam_report(fake.w, weir__slot_of(fake.w, fake_entry(&fake, id, "a")), fake.now, &fake.reports[0]), 1);
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    uint32_t slot = fake.reports[0].slot;
    int landed = 0;
    for (int i = 0; i < 20000 && !landed; i++) {
        char key[16] = "a";
        if (i > 0)
            snprintf(key, sizeof key, "key %d", i);
        struct weir__hot *e;
        if (i > 0)
            ck_assert_int_eq(fake_take(&fake, id, key, 1, &r), WEIR_ALLOW);
        e = fake_entry(&fake, id, key);
        landed = i > 0 && weir__slot_of(fake.w, e) == slot;
        if (!landed) {
            weir__table_id(fake.w, id, key, strlen(key), hash);
            ck_assert(weir__table_lock(fake.w, e, hash, &x));
            ck_assert(weir__table_drop(fake.w, e, x, fake.now));
        }
    }
    ck_assert_int_eq(landed, 1);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(r.remaining, 99);
    ck_assert(fake.w->slice[slot].denied == 0 && fake.w->slice[slot].fall_mult[0] == 0);
    fake_pass(&fake, FAKE_SECOND + 1);
    struct weir__hot *e = &fake.w->hot[slot];
    ck_assert_int_eq(
        weir_take(fake.w, id, weir__table_key(fake.w, &fake.w->cold[slot]), fake.w->cold[slot].key_len, 19, &r),
        WEIR_ALLOW); /* the policy's share of a key never seen */
    ck_assert_uint_eq(e->noted, 1);
}
END_TEST

START_TEST(a_report_that_is_out_keeps_the_entry)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    weir__seam_fresh_until(fake.w, id, UINT64_MAX);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    struct weir__report report = *fake_report(&fake, "a");
    struct weir__grant grant = fake_nothing(99);
    ck_assert_int_eq(survives(id, "a"), 1);
    ck_assert_mem_eq(report.key, "a", 1);
    grant.level_delta = 1;
    weir__seam_apply(fake.w, report.slot, fake.now, &grant);
    ck_assert_int_eq(survives(id, "a"), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rewrite");
    TCase *tcase = tcase_create("rewrite");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, giving_back_raises_the_slice_and_is_reported);
    tcase_add_test(tcase, taking_back_is_not_a_refund);
    tcase_add_test(tcase, an_open_admission_is_not_taken_back);
    tcase_add_test(tcase, new_numbers_clip_a_slice_and_keep_what_is_unreported);
    tcase_add_test(tcase, a_report_that_is_out_survives_new_numbers);
    tcase_add_test(tcase, a_fall_survives_new_numbers);
    tcase_add_test(tcase, a_low_mark_survives_new_numbers);
    tcase_add_test(tcase, a_policy_becomes_local_and_shared_again);
    tcase_add_test(tcase, what_was_spent_before_a_sync_is_a_debt);
    tcase_add_test(tcase, a_sync_that_goes_leaves_a_bucket_of_ones_own);
    tcase_add_test(tcase, forgetting_starts_over);
    tcase_add_test(tcase, only_what_equals_an_absent_key_is_dropped);
    tcase_add_test(tcase, a_new_key_inherits_nothing);
    tcase_add_test(tcase, a_report_that_is_out_keeps_the_entry);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
