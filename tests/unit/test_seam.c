/* SPDX-License-Identifier: MIT */
/*
 * The seam as a sync sees it: what reports say, what becomes of them, what a grant may do, coming and going.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- reports ----------------------------------------------------------------------------------------------------- */

START_TEST(a_report_says_what_happened)
{
    struct weir__grant grant = fake_slice(&fake, 52, 40, 60, 900);
    ck_assert_int_eq(fake_take(&fake, id, "key", 2, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_collect(&fake), 1);
    struct weir__report *report = fake_report(&fake, "key");
    ck_assert_uint_eq(report->policy, id);
    ck_assert_uint_eq(report->id, fake_entry(&fake, id, "key")->id[0]);
    ck_assert_uint_lt(report->slot, weir__seam_slots(fake.w));
    ck_assert_int_eq(report->spent, 2);
    ck_assert_int_eq(report->refunded, 0);
    ck_assert_int_eq(report->fallback_spent, 0);
    ck_assert(report->level == -2);
    ck_assert(report->rate == 0);
    ck_assert_uint_eq(report->attempts, 2);
    ck_assert_uint_eq(report->asked, 0);
    ck_assert_uint_eq(report->now, fake.now);
    ck_assert_uint_eq(report->until, 0);
    ck_assert_uint_eq(report->regime, WEIR__BARE);
    ck_assert_uint_eq(report->urgent, 0);
    weir__seam_apply(fake.w, report->slot, fake.now, &grant);

    fake_pass(&fake, 50 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "key", 12, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "key", 300, NULL), WEIR_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "key", 200, NULL), WEIR_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "key", 1001, NULL), WEIR_DENY); /* no demand: it could never pass */
    ck_assert_int_eq(weir_give(fake.w, id, "key", 3, 4), 0);
    ck_assert_uint_eq(fake_collect(&fake), 1);
    report = fake_report(&fake, "key");
    ck_assert_int_eq(report->spent, 12);
    ck_assert_int_eq(report->refunded, 4);
    ck_assert_double_eq_tol(report->level, 50 + 2 - 12 + 4, 1e-6);
    ck_assert_double_eq_tol(report->rate, 40, 1e-6);
    ck_assert_double_le(report->rate, 40);
    ck_assert_uint_eq(report->attempts, 512);
    ck_assert_uint_eq(report->asked, 300);
    ck_assert_uint_eq(report->until, grant.until);
    ck_assert_uint_eq(report->regime, WEIR__SLICED);
}
END_TEST

START_TEST(one_report_of_a_key_at_a_time)
{
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_collect(&fake), 1);
    uint32_t slot = fake.reports[0].slot;
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    ck_assert_int_eq(fake_take(&fake, id, "a", 3, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 1);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 3);
    for (int i = 0; i < 3; i++) {
        struct weir__report report;
        ck_assert_uint_eq(fake_collect(&fake), 0);
        ck_assert_uint_eq(fake_urgent(&fake), 0);
        ck_assert_int_eq(weir__seam_report(fake.w, slot, fake.now, &report), 0);
        ck_assert_int_eq(weir__seam_dirty(fake.w), 1);
    }
    struct weir__grant grant = fake_nothing(999);
    grant.level_delta = 1;
    weir__seam_apply(fake.w, slot, fake.now, &grant);
    ck_assert_uint_eq(fake_collect(&fake), 1);
    ck_assert_int_eq(fake.reports[0].spent, 3);
    ck_assert(fake.reports[0].level == -3);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 0);
}
END_TEST

START_TEST(a_refused_report_was_never_made)
{
    for (int i = 0; i < 20; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        ck_assert_int_eq(fake_take(&fake, id, key, i + 1, NULL), WEIR_ALLOW);
        ck_assert_int_eq(fake_take(&fake, id, key, 500 + i, NULL), WEIR_DENY);
    }
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 210);
    int64_t spent = 0;
    unsigned rounds = 0, reports = 0;
    uint64_t attempts = 0, asked = 0;
    for (fake.refuse_after = 3; fake_collect(&fake) > 0; rounds++) {
        ck_assert_uint_le(fake.n, 3);
        reports += (unsigned)fake.n;
        for (size_t i = 0; i < fake.n; i++) {
            spent += fake.reports[i].spent;
            attempts += fake.reports[i].attempts;
            asked += fake.reports[i].asked;
        }
    }
    ck_assert_uint_eq(reports, 20);
    ck_assert_uint_eq(rounds, 7);
    ck_assert_int_eq(spent, 210);
    ck_assert_uint_eq(asked, 20 * 500 + 190);
    ck_assert_uint_eq(attempts, 210 + 20 * 500 + 190);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
}
END_TEST

START_TEST(a_refused_urgent_report_stays_urgent)
{
    ck_assert_int_eq(fake_take(&fake, id, "a", 26, NULL), WEIR_ALLOW); /* more than half of the overdraft */
    ck_assert_int_eq(fake_take(&fake, id, "b", 27, NULL), WEIR_ALLOW);
    fake.refuse_after = 1;
    ck_assert_uint_eq(fake_urgent(&fake), 1);
    int64_t first = fake.reports[0].spent;
    ck_assert_uint_eq(fake_urgent(&fake), 1);
    ck_assert_int_eq(first + fake.reports[0].spent, 53);
    ck_assert_uint_eq(fake_urgent(&fake), 0);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    /* nothing is left of it for the timer, either */
    fake.refuse_after = SIZE_MAX;
    for (int i = 0; i < 2; i++) {
        struct weir__grant grant = fake_nothing(900);
        weir__seam_apply(fake.w, weir__slot_of(fake.w, fake_entry(&fake, id, i ? "a" : "b")), fake.now, &grant);
    }
    ck_assert_uint_eq(fake_collect(&fake), 0);
}
END_TEST

static int take_one(void *ctx, const struct weir__report *report)
{
    unsigned *slots = ctx;
    slots[report->slot]++;
    return 1;
}

START_TEST(a_budget_goes_round)
{
    unsigned *slots = calloc(weir__seam_slots(fake.w), sizeof *slots);
    for (int i = 0; i < 200; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        ck_assert_int_eq(fake_take(&fake, id, key, 30, NULL), WEIR_ALLOW);
    }
    ck_assert_uint_eq(weir__seam_collect(fake.w, fake.now, 0, take_one, slots), 0);
    for (int i = 0; i < 10; i++)
        ck_assert_uint_eq(weir__seam_collect(fake.w, fake.now, 15, take_one, slots), 15);
    ck_assert_uint_eq(weir__seam_urgent(fake.w, fake.now, 20, take_one, slots), 20);
    ck_assert_uint_eq(weir__seam_urgent(fake.w, fake.now, 500, take_one, slots), 30);
    ck_assert_uint_eq(weir__seam_collect(fake.w, fake.now, 500, take_one, slots), 0);
    for (uint32_t i = 0; i < weir__seam_slots(fake.w); i++)
        ck_assert_uint_eq(slots[i], fake.w->hot[i].id[0] != 0);
    free(slots);
}
END_TEST

START_TEST(a_clean_slice_can_be_reported)
{
    struct weir__grant grant = fake_slice(&fake, 20, 0, 20, 900);
    struct weir__report report;
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    uint32_t slot = fake.reports[0].slot;
    ck_assert_uint_eq(fake_collect(&fake), 0);
    ck_assert_int_eq(weir__seam_report(fake.w, slot, fake.now, &report), 1);
    ck_assert_int_eq(report.spent, 0);
    ck_assert(report.level == 19);
    ck_assert_int_eq(weir__seam_report(fake.w, slot, fake.now, &report), 0);
    weir__seam_release(fake.w, slot, 0, 0);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    ck_assert_int_eq(weir__seam_report(fake.w, slot, fake.now, &report), 1);
    weir__seam_release(fake.w, slot, 0, 0);
    /* a slot that holds nothing */
    for (slot = 0; fake.w->hot[slot].id[0]; slot++)
        ;
    ck_assert_int_eq(weir__seam_report(fake.w, slot, fake.now, &report), 0);
    ck_assert_uint_eq(fake.w->hot[slot].pin, 0);
}
END_TEST

/* What was seen dirty may be anything by the time its turn comes. */
START_TEST(what_is_reported_later_is_what_is_there_then)
{
    const char *keys[] = {"dirty", "clean", "out", "forgotten", "local", "urgent"};
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir__report reports[6];
    uint32_t slots[6];
    weir_policy_id other = fake_policy(&fake, "q", 10, FAKE_SECOND, 10, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT);

    ck_assert_int_eq(fake_take(&fake, id, "clean", 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "out", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_collect(&fake), 2);
    weir__seam_release(fake.w, fake_report(&fake, "clean")->slot, 0, 0);
    for (int i = 0; i < 6; i++) {
        weir_policy_id of = i == 4 ? other : id;

        if (i != 1)
            ck_assert_int_eq(fake_take(&fake, of, keys[i], i == 5 ? 27 : 1, NULL), WEIR_ALLOW);
        slots[i] = weir__slot_of(fake.w, fake_entry(&fake, of, keys[i]));
    }
    ck_assert_int_eq(weir_forget(fake.w, id, "forgotten", 9), 0);
    policy.name = "q";
    policy.limit = policy.burst = 10;
    policy.per_ns = FAKE_SECOND;
    policy.mode = WEIR_LOCAL;
    ck_assert_int_eq(weir_policy_set(fake.w, other, &policy), 0);
    ck_assert_uint_eq(fake_urgent(&fake), 1); /* taken before its turn came */
    ck_assert_int_eq(fake_take(&fake, id, "dirty", 2, NULL), WEIR_ALLOW);

    size_t n = weir__seam_later(fake.w, slots, 6, fake.now, reports);
    ck_assert_uint_ge(n, 1);
    ck_assert_uint_eq(reports[0].slot, slots[0]);
    ck_assert_int_eq(reports[0].spent, 3);
    for (size_t i = 1; i < n; i++)
        ck_assert_int_eq(reports[i].spent, 0); /* of "forgotten", at most that it was asked for */
    ck_assert_uint_eq(weir__seam_later(fake.w, slots, 6, fake.now, reports), 0);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 1); /* what was taken from "out" since: its bit is still there */
    weir__seam_release(fake.w, slots[2], 0, 0);
    ck_assert_uint_eq(weir__seam_later(fake.w, slots, 6, fake.now, reports), 1);
    ck_assert_uint_eq(reports[0].slot, slots[2]);
    ck_assert_int_eq(reports[0].spent, 1);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
}
END_TEST

static uint64_t every_other(void *ctx, uint32_t first, uint64_t mask)
{
    ck_assert_uint_eq(first % 64, 0);
    *(int *)ctx += __builtin_popcountll(mask);
    return mask & UINT64_C(0x5555555555555555);
}

static int count_even(void *ctx, const struct weir__report *report)
{
    (void)ctx;
    ck_assert_uint_eq(report->slot % 2, 0);
    return 1;
}

START_TEST(what_is_not_picked_stays_dirty)
{
    int shown = 0;
    size_t even = 0;

    for (int i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof key, "%d", i);
        ck_assert_int_eq(fake_take(&fake, id, key, 1, NULL), WEIR_ALLOW);
    }
    for (uint32_t slot = 0; slot < weir__seam_slots(fake.w); slot += 2)
        even += fake.w->hot[slot].id[0] != 0;
    ck_assert_uint_eq(weir__seam_collect_some(fake.w, fake.now, 1000, every_other, count_even, &shown), even);
    ck_assert_int_eq(shown, 100);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 100 - even);
    shown = 0;
    ck_assert_uint_eq(weir__seam_collect_some(fake.w, fake.now, 1000, every_other, count_even, &shown), 0);
    ck_assert_uint_eq((unsigned)shown, 100 - even);
    ck_assert_uint_eq(fake_collect(&fake), 100 - even);
}
END_TEST

START_TEST(what_was_not_sent_comes_back)
{
    ck_assert_int_eq(fake_take(&fake, id, "a", 7, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_give(fake.w, id, "a", 1, 2), 0);
    fake_collect(&fake);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    weir__seam_release(fake.w, fake.reports[0].slot, 7, 2);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 8);
    fake_collect(&fake);
    ck_assert_int_eq(fake.reports[0].spent, 8);
    ck_assert_int_eq(fake.reports[0].refunded, 2);
    weir__seam_release(fake.w, fake.reports[0].slot, 3, 0);
    fake_collect(&fake);
    ck_assert_int_eq(fake.reports[0].spent, 3);
    ck_assert_int_eq(fake.reports[0].refunded, 0);
    weir__seam_release(fake.w, fake.reports[0].slot, 0, 0);
    ck_assert_uint_eq(fake_collect(&fake), 0);
    ck_assert_uint_eq(fake_entry(&fake, id, "a")->pin, 0);
}
END_TEST

START_TEST(what_a_share_admitted_comes_back_with_it)
{
    fake_pass(&fake, 11 * FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, id, "a", 30, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    fake_collect(&fake);
    ck_assert_int_eq(fake.reports[0].fallback_spent, 30);
    weir__seam_release(fake.w, fake.reports[0].slot, 30, 0);
    ck_assert_int_eq(fake_take(&fake, id, "a", 4, &r), WEIR_ALLOW);
    fake_collect(&fake);
    ck_assert_int_eq(fake.reports[0].spent, 34);
    ck_assert_int_eq(fake.reports[0].fallback_spent, 34);
    /* an outage ends with an answer: without one the entry is listed again and again */
    weir__seam_release(fake.w, fake.reports[0].slot, 0, 0);
    ck_assert_uint_eq(fake_collect(&fake), 1);
    ck_assert_int_eq(fake.reports[0].spent, 0);
    ck_assert_uint_eq(fake.reports[0].regime, WEIR__FALLBACK);
    struct weir__grant grant = fake_nothing(800);
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    ck_assert_uint_eq(fake_collect(&fake), 0);
}
END_TEST

START_TEST(remaining_is_steady_while_a_report_is_out)
{
    struct weir__grant grant = fake_nothing(500);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_grant(&fake, "a", &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 9, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 491);
    ck_assert_int_eq(weir_give(fake.w, id, "a", 1, 4), 0);
    fake_collect(&fake);
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 0, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 495);
    weir__seam_release(fake.w, fake.reports[0].slot, 9, 4);
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 0, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 491);
    fake_collect(&fake);
    grant.global = 470;
    weir__seam_apply(fake.w, fake.reports[0].slot, fake.now, &grant);
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 0, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 470);
}
END_TEST

/* ---- keys -------------------------------------------------------------------------------------------------------- */

START_TEST(long_keys_are_reported_whole)
{
    static char keys[3][70000];
    static const size_t lengths[3] = {36, 37, 5000};
    for (int i = 0; i < 3; i++) {
        memset(keys[i], 'a' + i, sizeof keys[i]);
        keys[i][lengths[i] - 1] = '!';
        ck_assert_int_eq(weir_take(fake.w, id, keys[i], lengths[i], 1, NULL), WEIR_ALLOW);
    }
    ck_assert_uint_eq(fake_collect(&fake), 3);
    for (size_t i = 0; i < 3; i++) {
        size_t which = (size_t)(((const char *)fake.reports[i].key)[0] - 'a');
        ck_assert_uint_eq(fake.reports[i].key_len, lengths[which]);
        ck_assert_mem_eq(fake.reports[i].key, keys[which], lengths[which]);
    }
}
END_TEST

START_TEST(only_shared_policies_are_reported)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id local;
    policy.name = "local";
    policy.limit = 5;
    policy.per_ns = FAKE_SECOND;
    policy.mode = WEIR_LOCAL;
    ck_assert_int_eq(weir_policy_add(fake.w, &policy, &local), 0);
    ck_assert_int_eq(fake_take(&fake, local, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_collect(&fake), 0);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 0);
}
END_TEST

/* ---- asking ------------------------------------------------------------------------------------------------------ */

START_TEST(trying_uses_what_is_in_hand_and_no_more)
{
    weir_policy_id admits = fake_policy(&fake, "admits", 10, FAKE_SECOND, 100, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT);
    struct weir_request request = {.policy = admits, .key = "a", .key_len = 1, .cost = 1};
    struct weir_stats stats = {.size = sizeof stats};
    weir__seam_fresh_until(fake.w, admits, fake.now + FAKE_SECOND);
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR__SEAM_ASK);
    request.cost = 101;
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    request.cost = -1;
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_E_COST);
    request.cost = 0;
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_ALLOW);
    request.key_len = 0;
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_E_KEY);

    request = (struct weir_request){.policy = id, .key = "a", .key_len = 1, .cost = 50};
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_ALLOW); /* q0 is in hand */
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR__SEAM_ASK);
    ck_assert_uint_eq(fake.wakes, 1); /* for the debt; asking is its own message */
    fake_urgent(&fake);
    ck_assert_uint_eq(fake_report(&fake, "a")->attempts, 100);
    struct weir__grant grant = fake_nothing(0);
    grant.level_delta = 50;
    grant.hold = fake.now + FAKE_SECOND;
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    request.cost = 1;
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_DENY); /* on hold: Redis has said that it has none */
    ck_assert_uint_eq(r.retry_after_ns, FAKE_SECOND);
    fake_pass(&fake, FAKE_SECOND + 1);
    request.policy = admits;
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_DENY); /* an outage, closed */
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 1);
    ck_assert_uint_eq(stats.denied, 3);
    weir__seam_count(fake.w, id, WEIR_ALLOW);
    weir__seam_count(fake.w, id, WEIR_DENY);
    weir__seam_count(fake.w, id, WEIR_E_TIMEOUT);
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 2);
    ck_assert_uint_eq(stats.denied, 4);
}
END_TEST

START_TEST(trying_other_modes)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_request request = {.key = "a", .key_len = 1, .cost = 5};
    policy.name = "local";
    policy.limit = 5;
    policy.per_ns = FAKE_SECOND;
    policy.mode = WEIR_LOCAL;
    ck_assert_int_eq(weir_policy_add(fake.w, &policy, &request.policy), 0);
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_DENY);
    ck_assert_uint_eq(r.policy, request.policy);
    policy.name = "strict";
    policy.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(fake.w, &policy, &request.policy), 0);
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR__SEAM_ASK);
}
END_TEST

/* ---- coming and going -------------------------------------------------------------------------------------------- */

START_TEST(one_sync_at_a_time)
{
    struct weir__hooks other = fake.hooks;
    ck_assert_int_eq(weir__seam_attach(fake.w, &other), WEIR_E_BUSY);
    ck_assert_uint_eq(fake.joins, 0);
    weir__seam_detach(fake.w);
    ck_assert_uint_eq(fake.joins, 0);
    ck_assert_int_eq(weir__seam_attach(fake.w, &other), 0);
    ck_assert_uint_eq(fake.joins, 1); /* the first one's */
    weir__seam_detach(fake.w);
    weir_close(fake.w);
    ck_assert_uint_eq(fake.joins, 2);
    fake_open(&fake, 0);
}
END_TEST

static _Atomic int inside, may_leave, detached;

static void slow_wake(void *ctx)
{
    unsigned turns = 0;
    (void)ctx;
    inside = 1;
    while (!may_leave)
        weir__backoff(&turns);
    ck_assert_int_eq(detached, 0);
    inside = 0;
}

static void *take_once(void *arg)
{
    (void)arg;
    (void)fake_take(&fake, id, "a", 30, NULL);
    return NULL;
}

static void *detach(void *arg)
{
    (void)arg;
    weir__seam_detach(fake.w);
    ck_assert_int_eq(inside, 0);
    detached = 1;
    return NULL;
}

START_TEST(detaching_waits_for_whoever_is_inside)
{
    pthread_t taker, leaver;
    unsigned turns = 0;
    fake.hooks.wake = slow_wake;
    ck_assert_int_eq(pthread_create(&taker, NULL, take_once, NULL), 0);
    while (!inside)
        weir__backoff(&turns);
    ck_assert_int_eq(pthread_create(&leaver, NULL, detach, NULL), 0);
    /* nothing to wait for but its patience: it must be waiting whenever we look */
    for (int i = 0; i < 100; i++) {
        weir__backoff(&turns);
        ck_assert_int_eq(detached, 0);
    }
    may_leave = 1;
    pthread_join(taker, NULL);
    pthread_join(leaver, NULL);
    ck_assert_int_eq(detached, 1);
}
END_TEST

START_TEST(a_policy_as_the_sync_sees_it)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir__seam_policy seen;
    weir_policy_id other;
    policy.name = "other";
    policy.group = "group";
    policy.limit = 5;
    policy.per_ns = 7;
    policy.per_ns = 7 * FAKE_SECOND;
    policy.burst = 300;
    policy.mode = WEIR_STRICT;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    policy.version = 9;
    ck_assert_int_eq(weir_policy_add(fake.w, &policy, &other), 0);
    ck_assert_int_eq(weir__seam_policy(fake.w, other, &seen), 0);
    ck_assert_str_eq(seen.name, "other");
    ck_assert_str_eq(seen.group, "group");
    ck_assert_uint_eq(seen.limit, 5);
    ck_assert_uint_eq(seen.per_ns, 7 * FAKE_SECOND);
    ck_assert_uint_eq(seen.burst, 300);
    ck_assert_uint_eq(seen.max_overshoot, 30);
    ck_assert_uint_eq(seen.version, 9);
    ck_assert_int_eq(seen.mode, WEIR_STRICT);
    ck_assert_int_eq(seen.on_outage, WEIR_OUTAGE_CLOSED);
    ck_assert_int_eq(weir__seam_policy(fake.w, id, &seen), 0);
    ck_assert_ptr_null(seen.group);
    ck_assert_int_eq(weir__seam_policy(fake.w, other + 1, &seen), WEIR_E_NOENT);
}
END_TEST

static char logged[1024];

static void keep_log(void *arg, enum weir_log_level level, const char *line)
{
    (void)arg;
    snprintf(logged, sizeof logged, "%d %s", (int)level, line);
}

START_TEST(log_and_memory_are_the_limiters)
{
    char longer[2000];
    void *memory = weir__seam_alloc(fake.w, 1000);
    ck_assert_ptr_nonnull(memory);
    memset(memory, 1, 1000);
    weir__seam_free(fake.w, memory, 1000);
    weir__seam_free(fake.w, NULL, 0);
    weir__seam_log(fake.w, WEIR_LOG_INFO, "nobody %s", "listens");
    fake.w->log = keep_log;
    weir__seam_log(fake.w, WEIR_LOG_WARN, "%s %d", "lost", 3);
    ck_assert_str_eq(logged, "1 lost 3");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    weir__seam_log(fake.w, WEIR_LOG_WARN, "%s", longer);
    ck_assert_uint_eq(strlen(logged), 2 + 511);
}
END_TEST

/* ---- a store that loses replies ---------------------------------------------------------------------------------- */

enum { KEYS = 12, STORE_LOOPS = 4, STORE_SEEDS = 10, STORE_STEPS = 1500 };

struct store {
    int64_t charged[KEYS], refunded[KEYS], admitted[KEYS], given[KEYS];
    struct weir__report out[KEYS];
    int is_out[KEYS], lost[KEYS];
};

static int key_of(const struct weir__report *report)
{
    int key = ((const char *)report->key)[1] - 'a';
    ck_assert_int_eq(report->key_len, 2);
    ck_assert(key >= 0 && key < KEYS);
    return key;
}

/* Half of the replies are lost: the store has charged, the sync asks again and is told the same. */
static void answer(struct store *store, int key, uint64_t *seed)
{
    struct weir__report *report = &store->out[key];
    struct weir__grant grant = fake_nothing((double)(fake_random(seed) % 1000));
    if (!store->lost[key]) {
        if (fake_random(seed) % 8 == 0) { /* never sent */
            weir__seam_release(fake.w, report->slot, report->spent, report->refunded);
            store->is_out[key] = 0;
            return;
        }
        store->charged[key] += report->spent;
        store->refunded[key] += report->refunded;
        store->lost[key] = 1;
    }
    if (fake_random(seed) % 2) {
        weir__seam_pause(fake.w, report->slot, fake.now);
        return;
    }
    if (fake_random(seed) % 3)
        grant = fake_slice(&fake, (double)(fake_random(seed) % 40), (double)(fake_random(seed) % 100),
                           (double)(fake_random(seed) % 60), grant.global);
    else
        grant.level_delta = report->level < 0 ? -report->level : 0;
    grant.fallback_rate = (double)(fake_random(seed) % 50);
    grant.fallback_cap = (double)(fake_random(seed) % 50);
    grant.hold = fake_random(seed) % 3 ? 0 : fake.now + fake_random(seed) % (50 * FAKE_MS);
    weir__seam_apply(fake.w, report->slot, fake.now, &grant);
    store->is_out[key] = store->lost[key] = 0;
}

static void keep_reports(struct store *store)
{
    for (size_t i = 0; i < fake.n; i++) {
        int key = key_of(&fake.reports[i]);
        ck_assert_int_eq(store->is_out[key], 0);
        store->out[key] = fake.reports[i];
        store->is_out[key] = 1;
    }
}

static void store_step(struct store *store, uint64_t *seed)
{
    int key = (int)(fake_random(seed) % KEYS);
    char name[3] = {'k', (char)('a' + key), 0};
    int64_t cost = 1 + (int64_t)(fake_random(seed) % 20);
    fake_pass(&fake, fake_random(seed) % (20 * FAKE_MS));
    switch (fake_random(seed) % 12) {
    case 0:
        fake_collect(&fake);
        keep_reports(store);
        break;
    case 1:
        fake_urgent(&fake);
        keep_reports(store);
        break;
    case 2:
    case 3:
        if (store->is_out[key])
            answer(store, key, seed);
        break;
    case 4:
        ck_assert_int_eq(weir_give(fake.w, id, name, 2, cost), 0);
        store->given[key] += cost;
        break;
    default:
        if (fake_take(&fake, id, name, cost, &r) == WEIR_ALLOW) {
            store->admitted[key] += cost;
            ck_assert_double_ge(fake_level(&fake, id, name), r.flags & WEIR_DEGRADED ? -1e-9 : -50 - 1e-9);
        }
        ck_assert_int_ge(r.remaining, 0);
    }
}

static void charge_once(uint64_t seed)
{
    struct store store = {0};
    weir__seam_fresh_until(fake.w, id, fake.now + STORE_STEPS * 5 * FAKE_MS); /* an outage in the second half */
    for (int step = 0; step < STORE_STEPS; step++)
        store_step(&store, &seed);
    for (int round = 0; round < 200; round++) {
        for (int key = 0; key < KEYS; key++)
            if (store.is_out[key])
                answer(&store, key, &seed);
        fake_collect(&fake);
        keep_reports(&store);
    }
    int64_t spent = 0;
    for (int key = 0; key < KEYS; key++) {
        int64_t left = store.is_out[key] && !store.lost[key] ? store.out[key].spent : 0;
        ck_assert_int_eq(store.charged[key] + left, store.admitted[key]);
        left = store.is_out[key] && !store.lost[key] ? store.out[key].refunded : 0;
        ck_assert_int_eq(store.refunded[key] + left, store.given[key]);
        spent += store.admitted[key];
    }
    ck_assert_int_gt(spent, 1000);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), 0);
}

START_TEST(every_token_is_charged_once)
{
    for (int i = 0; i < STORE_SEEDS; i++) {
        charge_once((uint64_t)(_i * STORE_SEEDS + i) * 2654435761u + 99);
        teardown();
        setup();
    }
}
END_TEST

static TCase *new_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, setup, teardown);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static void add_reports(Suite *suite)
{
    TCase *tcase = new_case(suite, "reports");
    tcase_add_test(tcase, a_report_says_what_happened);
    tcase_add_test(tcase, one_report_of_a_key_at_a_time);
    tcase_add_test(tcase, a_refused_report_was_never_made);
    tcase_add_test(tcase, a_refused_urgent_report_stays_urgent);
    tcase_add_test(tcase, a_budget_goes_round);
    tcase_add_test(tcase, a_clean_slice_can_be_reported);
    tcase_add_test(tcase, what_is_reported_later_is_what_is_there_then);
    tcase_add_test(tcase, what_is_not_picked_stays_dirty);
    tcase_add_test(tcase, what_was_not_sent_comes_back);
    tcase_add_test(tcase, what_a_share_admitted_comes_back_with_it);
    tcase_add_test(tcase, remaining_is_steady_while_a_report_is_out);
    tcase_add_test(tcase, long_keys_are_reported_whole);
    tcase_add_test(tcase, only_shared_policies_are_reported);
}

int main(void)
{
    Suite *suite = suite_create("seam");
    add_reports(suite);
    TCase *tcase = new_case(suite, "asking");
    tcase_add_test(tcase, trying_uses_what_is_in_hand_and_no_more);
    tcase_add_test(tcase, trying_other_modes);
    tcase = new_case(suite, "coming and going");
    tcase_add_test(tcase, one_sync_at_a_time);
    tcase_add_test(tcase, detaching_waits_for_whoever_is_inside);
    tcase_add_test(tcase, a_policy_as_the_sync_sees_it);
    tcase_add_test(tcase, log_and_memory_are_the_limiters);
    tcase = new_case(suite, "store");
    tcase_add_loop_test(tcase, every_token_is_charged_once, 0, STORE_LOOPS);
    return suite_run(suite);
}
