/* SPDX-License-Identifier: MIT */
/*
 * The taker's side of shared policies: every regime, every outage policy, what results say, what wakes the sync. The
 * sync is the test itself (support/fake_sync.h).
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/table.h"
#include "support/fake_sync.h"

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

static void pass(uint64_t ns)
{
    atomic_fetch_add_explicit(&fake.now, ns, memory_order_relaxed);
}

/* 10 a second, burst 100: 100 ms a token. */
static weir_policy_id ten_a_second(enum weir_on_outage on_outage, enum weir_unknown unknown)
{
    return fake_policy(&fake, "p", 10, FAKE_SECOND, 100, on_outage, unknown);
}

/* ... with a sync that Redis answers for the next second, and that has told q0. */
static weir_policy_id attached(enum weir_on_outage on_outage, enum weir_unknown unknown, uint64_t q0)
{
    weir_policy_id id = ten_a_second(on_outage, unknown);
    fake_attach(&fake);
    weir__seam_overdraft(fake.w, id, q0, 2, 20);
    weir__seam_fresh_until(fake.w, id, fake.now + FAKE_SECOND);
    weir__seam_pace(fake.w, id, 200 * FAKE_MS, 5 * FAKE_MS);
    return id;
}

/* A wait is of whole units: of a rate far below the policy's they are some ns. */
static void assert_about(uint64_t wait, uint64_t expected)
{
    ck_assert_uint_le(wait, expected);
    ck_assert_uint_ge(wait + 8, expected);
}

/* How many takes of one token pass now. */
static int drain(weir_policy_id id, const char *key)
{
    int n = 0;
    while (fake_take(&fake, id, key, 1, &r) == WEIR_ALLOW)
        ck_assert_int_lt(n++, 100000);
    return n;
}

/* ---- without a sync ---------------------------------------------------------------------------------------------- */

START_TEST(never_attached_it_is_the_whole_bucket)
{
    weir_policy_id id = ten_a_second(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "a", 30, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 70);
    ck_assert_uint_eq(r.limit, 100);
    ck_assert_uint_eq(r.policy, id);
    ck_assert_uint_eq(r.reset_after_ns, 3 * FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 70);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
    pass(100 * FAKE_MS - 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    pass(1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "a", 101, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    pass(3600 * FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 100);
    ck_assert_uint_eq(fake.wakes, 0);
}
END_TEST

START_TEST(never_attached_open_and_closed)
{
    weir_policy_id id = ten_a_second(WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_ADMIT);
    for (int i = 0; i < 300; i++)
        ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 100);
    ck_assert_int_eq(fake_take(&fake, id, "a", 101, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);

    id = fake_policy(&fake, "closed", 10, FAKE_SECOND, 100, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 0);
    ck_assert_uint_eq(r.retry_after_ns, 200 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_DENY);

    struct weir_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_eq(stats.degraded, 302); /* not the cost that no bucket could hold */
    ck_assert_uint_eq(stats.allowed, 300);
    ck_assert_uint_eq(stats.denied, 3);
}
END_TEST

START_TEST(strict_without_a_sync_is_an_outage)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;
    policy.name = "s";
    policy.limit = 5;
    policy.per_ns = FAKE_SECOND;
    policy.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(fake.w, &policy, &id), 0);
    ck_assert_int_eq(drain(id, "a"), 5);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(weir_peek(fake.w, id, "b", 1, 5, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 5);
}
END_TEST

START_TEST(peek_makes_nothing)
{
    weir_policy_id id = ten_a_second(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT);
    struct weir_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 100, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 100);
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 101, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    fake_attach(&fake);
    weir__seam_fresh_until(fake.w, id, fake.now + FAKE_SECOND);
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 1, &r), WEIR_ALLOW); /* the token in doubt */
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 2, &r), WEIR_DENY);
    pass(2 * FAKE_SECOND); /* Redis silent: the share of a key never seen, here the whole bucket */
    ck_assert_int_eq(weir_peek(fake.w, id, "a", 1, 100, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_eq(stats.keys, 0);
    ck_assert_uint_eq(stats.degraded, 0);
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    ck_assert_uint_eq(fake.wakes, 0);
}
END_TEST

/* ---- bare -------------------------------------------------------------------------------------------------------- */

START_TEST(an_unknown_key_admits_one)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 0);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, &r), WEIR_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(r.remaining, 99);
    ck_assert_uint_eq(fake.wakes, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(r.remaining, 99);
    ck_assert_uint_eq(r.retry_after_ns, 5 * FAKE_MS); /* a round trip */
    ck_assert_int_eq(fake_take(&fake, id, "b", 1, &r), WEIR_ALLOW); /* one a key */
    ck_assert_uint_eq(fake.wakes, 1);                               /* one until the list is drained */
    ck_assert_uint_eq(fake_urgent(&fake), 2);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 1);
    ck_assert_uint_eq(fake_report(&fake, "a")->attempts, 4);
    ck_assert_uint_eq(fake_report(&fake, "a")->asked, 2);
    ck_assert_uint_eq(fake_report(&fake, "a")->regime, WEIR__BARE);
    ck_assert(fake_report(&fake, "a")->level == -1);
    ck_assert_int_eq(fake_report(&fake, "b")->spent, 1);
    /* with the report out, more denials need not wake anybody */
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(fake.wakes, 1);
}
END_TEST

START_TEST(an_unknown_key_may_be_denied)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_uint_eq(r.retry_after_ns, 5 * FAKE_MS);
    ck_assert_uint_eq(fake.wakes, 1);
    ck_assert_uint_eq(fake_collect(&fake), 0); /* nothing spent ... */
    ck_assert_uint_eq(fake_urgent(&fake), 1);  /* ... but somebody wants it */
    ck_assert_int_eq(fake.reports[0].spent, 0);
    ck_assert_uint_eq(fake.reports[0].attempts, 1);
}
END_TEST

START_TEST(the_overdraft_is_the_budget)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 7);
    ck_assert_int_eq(fake_take(&fake, id, "a", 8, &r), WEIR_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "a", 4, &r), WEIR_ALLOW);
    ck_assert_int_eq(drain(id, "a"), 3); /* seven, not eight: the budget has room for the token in doubt */
    ck_assert_int_eq(r.remaining, 93);
    ck_assert(fake_level(&fake, id, "a") == -7);
}
END_TEST

START_TEST(a_hold_stops_the_overdraft)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_nothing(0);
    ck_assert_int_eq(drain(id, "a"), 3);
    fake_urgent(&fake);
    grant.level_delta = 3; /* repaid, but no more: Redis has nothing for 50 ms */
    grant.hold = fake.now + 50 * FAKE_MS;
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    unsigned wakes = fake.wakes;
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(r.retry_after_ns, 50 * FAKE_MS);
    ck_assert_int_eq(r.remaining, 0);
    ck_assert_uint_eq(fake.wakes, wakes);
    pass(50 * FAKE_MS - 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    pass(1);
    ck_assert_int_eq(drain(id, "a"), 3);
    ck_assert_uint_eq(fake.wakes, wakes + 1);
}
END_TEST

/* ---- sliced ------------------------------------------------------------------------------------------------------ */

START_TEST(a_slice_is_a_bucket)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 4, 12, 60);
    grant.hold = fake.now + 100 * FAKE_MS;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 13, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS); /* past the cap: on hold, then a round trip */
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_int_eq(r.remaining, 59);
    ck_assert_int_eq(drain(id, "a"), 9);
    ck_assert_int_eq(r.remaining, 50);
    ck_assert_uint_eq(r.retry_after_ns, 250 * FAKE_MS); /* the slice's wait, longer than the hold */
    ck_assert_uint_eq(r.reset_after_ns, 5 * FAKE_SECOND);
    pass(250 * FAKE_MS - 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    pass(1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 51); /* 60 - 11 + 2.5 */
}
END_TEST

START_TEST(a_slice_saves_up_to_its_cap)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 3, 10, 5, 60);
    grant.until = fake.now + 100 * FAKE_SECOND;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    pass(10 * FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, &r), WEIR_ALLOW);
    pass(100 * FAKE_MS);
    ck_assert_int_eq(drain(id, "a"), 4);
    ck_assert_uint_eq(r.flags, WEIR_STALE); /* 10 s since the last word */
    ck_assert_int_eq(r.remaining, 100);     /* full again by now */
}
END_TEST

START_TEST(a_low_slice_wakes_the_sync_once)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 0, 10, 60);
    grant.low = 4;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    unsigned wakes = fake.wakes;
    ck_assert_int_eq(fake_take(&fake, id, "a", 6, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake.wakes, wakes); /* at the mark, not below it */
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake.wakes, wakes + 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake.wakes, wakes + 1);
    ck_assert_uint_eq(fake_urgent(&fake), 1);
    ck_assert_int_eq(fake.reports[0].spent, 8);
    ck_assert(fake.reports[0].level == 2);
    ck_assert_uint_eq(fake.reports[0].urgent, 1);
}
END_TEST

START_TEST(the_overdraft_extends_a_slice)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 5);
    struct weir__grant grant = fake_slice(&fake, 12, 1, 10, 60);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, NULL), WEIR_ALLOW);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 10);
    ck_assert_int_eq(fake_take(&fake, id, "a", 15, &r), WEIR_ALLOW); /* as one, too */
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    assert_about(r.retry_after_ns, FAKE_SECOND);
    ck_assert(fake_level(&fake, id, "a") == -5);
}
END_TEST

/* ---- outages ----------------------------------------------------------------------------------------------------- */

START_TEST(a_slice_ends_by_itself)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 0, 10, 60);
    grant.fallback_rate = 4;
    grant.fallback_cap = 8;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    weir__seam_fresh_until(fake.w, id, fake.now + 3600 * FAKE_SECOND); /* of others: not of this one */
    pass(400 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW); /* the last moment */
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, 0);
    pass(1);
    /* what is left of it is worth nothing, and what Redis promised for this case starts from there */
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 0);
    ck_assert_uint_eq(r.retry_after_ns, 250 * FAKE_MS);
    pass(250 * FAKE_MS);
    ck_assert_int_eq(drain(id, "a"), 1);
    pass(60 * FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 8);
    ck_assert_int_eq(fake_take(&fake, id, "a", 9, &r), WEIR_DENY); /* more than the share ever holds */
    ck_assert_uint_eq(r.retry_after_ns, 200 * FAKE_MS);
    /* Redis is back: the report says what the share admitted */
    fake_collect(&fake);
    struct weir__report *report = fake_report(&fake, "a");
    ck_assert_int_eq(report->spent, 10);
    ck_assert_int_eq(report->fallback_spent, 9);
    ck_assert_uint_eq(report->regime, WEIR__FALLBACK);
    ck_assert(report->level == 0);
    ck_assert(report->rate == 0);
    grant = fake_slice(&fake, 3, 1, 5, 40);
    weir__seam_apply(fake.w, report->slot, fake.now, &grant);
    ck_assert_int_eq(drain(id, "a"), 3);
    ck_assert_uint_eq(r.flags, 0);
}
END_TEST

START_TEST(a_debt_is_carried_into_the_fallback)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 4);
    struct weir__grant grant = fake_slice(&fake, 0, 0, 1, 60);
    grant.fallback_rate = 10;
    grant.fallback_cap = 50;
    ck_assert_int_eq(drain(id, "a"), 4);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == -4);
    pass(FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 0);
    ck_assert(fake_level(&fake, id, "a") == -4);
    pass(FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 6);
}
END_TEST

START_TEST(a_key_never_seen_has_the_policys_share)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    ck_assert_int_eq(fake_take(&fake, id, "used", 3, NULL), WEIR_ALLOW);
    pass(FAKE_SECOND + 1);
    ck_assert_int_eq(drain(id, "new"), 20);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_uint_eq(r.retry_after_ns, 500 * FAKE_MS);
    ck_assert_int_eq(drain(id, "used"), 17);
    pass(60 * FAKE_SECOND);
    ck_assert_int_eq(drain(id, "new"), 20);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "new")->spent, 40);
    ck_assert_int_eq(fake_report(&fake, "new")->fallback_spent, 40);
    ck_assert_int_eq(fake_report(&fake, "used")->spent, 20);
    ck_assert_int_eq(fake_report(&fake, "used")->fallback_spent, 17);
}
END_TEST

START_TEST(no_share_exceeds_the_policy)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 0);
    weir__seam_overdraft(fake.w, id, 0, 1e9, 1e9);
    pass(FAKE_SECOND + 1);
    ck_assert_int_eq(drain(id, "a"), 100);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
    pass(3600 * FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 100);
}
END_TEST

/* A key that Redis knows, and that held no slice, goes on with its share of what there was. */
START_TEST(a_key_without_a_slice_has_its_share_of_what_was_there)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 2);
    struct weir__grant grant = fake_nothing(30);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_urgent(&fake);
    grant.level_delta = 1;
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_int_eq(r.remaining, 29);
    pass(2 * FAKE_SECOND);
    /* 30 + 20 by now, a fifth of it, less the one in debt */
    ck_assert_int_eq(drain(id, "a"), 9);
}
END_TEST

START_TEST(open_and_closed_outages)
{
    weir_policy_id open = attached(WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_ADMIT, 0);
    weir_policy_id closed = fake_policy(&fake, "closed", 10, FAKE_SECOND, 100, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT);
    weir__seam_fresh_until(fake.w, closed, fake.now + FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, open, "a", 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, closed, "a", 1, NULL), WEIR_ALLOW);
    pass(FAKE_SECOND + 1);
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
    weir_policy_id id = attached(WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 1, 0, 1, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    pass(FAKE_SECOND);
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
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 5);
    ck_assert_uint_eq(r.policy, id);
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, &r), WEIR_DENY);
    assert_about(r.retry_after_ns, 5 * FAKE_SECOND);
    request.cost = 101;
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    request.cost = -1;
    ck_assert_int_eq(weir__seam_outage_take(fake.w, &request, &r), WEIR_E_COST);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 15);
    ck_assert_int_eq(fake_report(&fake, "a")->fallback_spent, 15);
    struct weir_stats stats = {.size = sizeof stats};
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 1);
    ck_assert_uint_eq(stats.denied, 2);
}
END_TEST

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

START_TEST(giving_back_raises_the_slice_and_is_reported)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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
    pass(2 * FAKE_SECOND);
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
    weir_policy_id id = attached(WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_ADMIT, 0);
    weir_policy_id closed = fake_policy(&fake, "closed", 10, FAKE_SECOND, 100, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT);
    struct weir_request all[2] = {{.policy = id, .key = "a", .key_len = 1, .cost = 6},
                                  {.policy = closed, .key = "a", .key_len = 1, .cost = 1}};
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    pass(FAKE_SECOND + 1);
    ck_assert_int_eq(weir_take_all(fake.w, all, 2, &r), WEIR_DENY);
    ck_assert_int_eq(all[0].status, WEIR_ALLOW);
    ck_assert(fake_level(&fake, id, "a") == -1);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 1);
}
END_TEST

START_TEST(a_clock_that_goes_back_grants_nothing)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 10, 10, 60);
    grant.until = fake.now + 3600 * FAKE_SECOND;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    pass(11 * FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, id, "a", 3, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 7, fake.now - 9 * FAKE_SECOND, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now - 9 * FAKE_SECOND, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 9 * FAKE_SECOND + 100 * FAKE_MS);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
}
END_TEST

/* A caller's clock that is far ahead ends the slice, and takes from the share at that time; an answer puts it right. */
START_TEST(a_clock_far_ahead_does_no_lasting_harm)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 10, 10, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now + 3600 * FAKE_SECOND, &r), WEIR_DENY);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now + 7200 * FAKE_SECOND, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    pass(FAKE_MS);
    grant = fake_slice(&fake, 5, 10, 10, 60);
    fake_grant(&fake, "a", &grant);
    pass(200 * FAKE_MS);
    ck_assert_int_eq(drain(id, "a"), 7);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
}
END_TEST

/* Whatever its grant says of an end: a key without a slice is as good as the policy's others. */
START_TEST(a_key_without_a_slice_does_not_expire_by_itself)
{
    weir_policy_id id = attached(WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT, 0);
    struct weir__grant grant = fake_nothing(50);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    grant.level_delta = 1;
    grant.until = fake.now + FAKE_MS;
    fake_grant(&fake, "a", &grant);
    pass(500 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, 0);
}
END_TEST

START_TEST(a_shadow_policy_never_denies)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    policy.limit = 10;
    policy.per_ns = FAKE_SECOND;
    policy.burst = 100;
    policy.unknown = WEIR_UNKNOWN_DENY;
    policy.shadow = 1;
    ck_assert_int_eq(weir_policy_set(fake.w, id, &policy), 0);
    ck_assert_uint_eq(fake.policy_changes, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW | WEIR_UNKNOWN);
    struct weir_request request = {.policy = id, .key = "a", .key_len = 1, .cost = 1};
    struct weir__grant grant = fake_nothing(0);
    grant.hold = fake.now + FAKE_SECOND;
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(weir__seam_try(fake.w, &request, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW);
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
        {1, 3600 * FAKE_SECOND, 5, 5, 1.0 / 3600},             /* a much larger k */
        {100000000, FAKE_SECOND, UINT64_C(1) << 40, 40, 8},    /* a much smaller one */
        {10, FAKE_SECOND, 100, 40, 8},                         /* the same */
        {8, FAKE_SECOND, 30, 30, 8},
    };
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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
        pass(FAKE_MS);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 6);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 20, 0, 20, 60);
    grant.fallback_rate = 4;
    grant.fallback_cap = 8;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 5, NULL), WEIR_ALLOW);
    fake_collect(&fake); /* told: 15 in hand */
    pass(FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 0);
    pass(FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 4);
    set(id, 3600, 3600 * FAKE_SECOND, 20, WEIR_HYBRID); /* 1 a second, another k: the share's 4 are too many by now */
    pass(FAKE_SECOND);
    ck_assert_int_eq(drain(id, "a"), 1);
    grant = fake_slice(&fake, 2, 0, 20, 15);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 15 + 2 - 4 - 1);
}
END_TEST

START_TEST(a_low_mark_survives_new_numbers)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 50, 0, 50, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "a", 10, NULL), WEIR_ALLOW);
    set(id, 10, FAKE_SECOND, 100, WEIR_LOCAL);
    ck_assert_int_eq(drain(id, "a"), 50); /* what the fleet had, less its own use */
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(fake_collect(&fake), 0);
    set(id, 10, FAKE_SECOND, 100, WEIR_HYBRID);
    fake_collect(&fake);
    ck_assert_int_eq(fake_report(&fake, "a")->spent, 60); /* its own, all of it, and no more */
    grant = fake_nothing(0);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(drain(id, "a"), 0);
}
END_TEST

START_TEST(what_was_spent_before_a_sync_is_a_debt)
{
    weir_policy_id id = ten_a_second(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "old", 50, NULL), WEIR_ALLOW);
    pass(10 * FAKE_SECOND); /* full again */
    ck_assert_int_eq(fake_take(&fake, id, "old", 20, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "recent", 40, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "full", 1, NULL), WEIR_ALLOW);
    pass(FAKE_SECOND);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_slice(&fake, 20, 0, 20, 35);
    ck_assert_int_eq(fake_take(&fake, id, "bare", 3, NULL), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "sliced", 1, NULL), WEIR_ALLOW);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "sliced")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "sliced", 5, NULL), WEIR_ALLOW);
    weir__seam_release(fake.w, fake_report(&fake, "bare")->slot, 3, 0);
    weir__seam_detach(fake.w);
    ck_assert_int_eq(drain(id, "sliced"), 30);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(drain(id, "bare"), 97);
    ck_assert_int_eq(drain(id, "new"), 100);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
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
    ck_assert_int_eq(drain(id, "a"), 3);
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
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
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
    pass(FAKE_SECOND);
    ck_assert_int_eq(survives(id, "sliced"), 0);
}
END_TEST

/* What Redis said of a key is not said of the next one in its place. */
START_TEST(a_new_key_inherits_nothing)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
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
    ck_assert_int_eq(weir__seam_report(fake.w, weir__slot_of(fake.w, fake_entry(&fake, id, "a")), fake.now,
                                       &fake.reports[0]), 1);
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
    pass(FAKE_SECOND + 1);
    struct weir__hot *e = &fake.w->hot[slot];
    ck_assert_int_eq(weir_take(fake.w, id, weir__table_key(fake.w, &fake.w->cold[slot]), fake.w->cold[slot].key_len, 19,
                               &r), WEIR_ALLOW); /* the policy's share of a key never seen */
    ck_assert_uint_eq(e->noted, 1);
}
END_TEST

START_TEST(a_report_that_is_out_keeps_the_entry)
{
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    weir__seam_fresh_until(fake.w, id, UINT64_MAX);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    fake_urgent(&fake);
    struct weir__report report = *fake_report(&fake, "a");
    struct weir__grant grant = fake_nothing(99);
    ck_assert_int_eq(survives(id, "a"), 1);
    ck_assert_mem_eq(report.key, "a", 1);
    grant.level_delta = 1;
    weir__seam_apply(fake.w, report.slot, fake.now, &grant);
    ck_assert_int_eq(survives(id, "a"), 0);
}
END_TEST

/* ---- against a model --------------------------------------------------------------------------------------------- */

/* One key, in plain floating point. */
struct model {
    long double level, rate, cap, fall_rate, fall_cap, unreported, fallen_spent;
    uint64_t at, until, hold;
    long double sent_level;
    int fallen, told, out;
};

static void refill(struct model *m, uint64_t now)
{
    long double rate = m->fallen ? m->fall_rate : m->rate, cap = m->fallen ? m->fall_cap : m->cap;
    m->level += rate * (long double)(now - m->at) / 1e9L;
    if (m->level > cap)
        m->level = cap;
    m->at = now;
}

static void model_fall(struct model *m)
{
    /* the test's grants always come with a slice, so once told the share starts from nothing */
    long double share = m->told ? 0 : 20;
    if (m->fall_rate == 0) {
        m->fall_rate = 2;
        m->fall_cap = 20;
    }
    m->level = share + (m->level < 0 ? m->level : 0);
    m->fallen = 1;
}

static void model_apply(struct model *m, const struct weir__grant *grant)
{
    long double base = m->fallen ? m->sent_level - m->unreported : m->level;
    m->level = base + grant->level_delta;
    if (m->level > grant->cap)
        m->level = grant->cap;
    m->rate = grant->rate;
    m->cap = grant->cap;
    m->until = grant->until;
    m->hold = grant->hold;
    m->fall_rate = grant->fallback_rate;
    m->fall_cap = grant->fallback_cap;
    m->fallen = 0;
    m->told = 1;
    m->out = 0;
}

enum { MODEL_LOOPS = 5, MODEL_SEEDS = 30, MODEL_STEPS = 400, MODEL_Q = 3 };

static void model_take(struct model *m, weir_policy_id id, uint64_t fresh_until, uint64_t *seed, uint64_t *admitted)
{
    int64_t cost = 1 + (int64_t)(fake_random(seed) % 4);
    uint64_t now = fake.now;
    int outage = m->fallen || now > (m->told ? m->until : fresh_until);
    refill(m, now);
    if (outage && !m->fallen)
        model_fall(m);
    long double floor = m->fallen || now < m->hold ? 0 : -MODEL_Q, left = m->level - (long double)cost - floor;
    int verdict = fake_take(&fake, id, "k", cost, &r);
    if (left > 1e-6L)
        ck_assert_int_eq(verdict, WEIR_ALLOW);
    if (left < -1e-6L)
        ck_assert_int_eq(verdict, WEIR_DENY);
    ck_assert_int_eq((r.flags & WEIR_DEGRADED) != 0, outage);
    ck_assert_int_eq((r.flags & WEIR_UNKNOWN) != 0, !outage && !m->told);
    if (verdict == WEIR_ALLOW) {
        m->level -= cost;
        m->unreported += cost;
        m->fallen_spent += m->fallen ? cost : 0;
        *admitted += (uint64_t)cost;
    } else {
        ck_assert_uint_gt(r.retry_after_ns, 0);
    }
    ck_assert_double_eq_tol(fake_level(&fake, id, "k"), (double)m->level, 1e-5);
    ck_assert_double_ge(fake_level(&fake, id, "k"), -MODEL_Q - 1e-9);
}

static void model_sync(struct model *m, weir_policy_id id, uint64_t *seed, int64_t *handed, int64_t *fallen)
{
    static struct weir__report out;
    refill(m, fake.now);
    if (!m->out) {
        if (!fake_collect(&fake))
            return;
        out = *fake_report(&fake, "k");
        ck_assert_double_eq_tol((double)out.spent, (double)m->unreported, 1e-9);
        ck_assert_double_eq_tol((double)out.fallback_spent, (double)m->fallen_spent, 1e-9);
        ck_assert_double_eq_tol(out.level, (double)(m->fallen && m->level > 0 ? 0 : m->level), 1e-5);
        m->sent_level = out.level;
        m->unreported = m->fallen_spent = 0;
        m->out = 1;
    } else if (fake_random(seed) % 4 == 0) {
        weir__seam_release(fake.w, out.slot, out.spent, out.refunded);
        m->unreported += out.spent;
        m->fallen_spent += out.fallback_spent;
        m->out = 0;
    } else {
        struct weir__grant grant = fake_slice(&fake, (double)(fake_random(seed) % 30) - 4,
                                              (double)(fake_random(seed) % 10), (double)(fake_random(seed) % 25), 50);
        grant.until = fake.now + fake_random(seed) % (400 * FAKE_MS);
        grant.hold = fake_random(seed) % 2 ? fake.now + fake_random(seed) % (100 * FAKE_MS) : 0;
        grant.fallback_rate = 1 + (double)(fake_random(seed) % 5);
        grant.fallback_cap = 1 + (double)(fake_random(seed) % 20);
        if (grant.rate == 0 && grant.cap == 0)
            grant.cap = 1;
        /* never under the floor: what Redis takes back it takes from what is there */
        long double base = m->fallen ? m->sent_level - m->unreported : m->level;
        if (base + grant.level_delta < -MODEL_Q)
            grant.level_delta = (double)(-MODEL_Q - base) + 1e-6;
        *handed += out.spent;
        *fallen += out.fallback_spent;
        weir__seam_apply(fake.w, out.slot, fake.now, &grant);
        model_apply(m, &grant);
    }
    ck_assert_double_eq_tol(fake_level(&fake, id, "k"), (double)m->level, 1e-5);
}

static void agree(uint64_t seed)
{
    uint64_t admitted = 0;
    weir_policy_id id = attached(WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, MODEL_Q);
    uint64_t fresh_until = fake.now + 300 * FAKE_MS;
    struct model m = {.at = fake.now};
    int64_t handed = 0, fallen = 0;
    weir__seam_fresh_until(fake.w, id, fresh_until);
    for (int step = 0; step < MODEL_STEPS; step++) {
        pass(fake_random(&seed) % (40 * FAKE_MS));
        if (fake_random(&seed) % 5)
            model_take(&m, id, fresh_until, &seed, &admitted);
        else
            model_sync(&m, id, &seed, &handed, &fallen);
    }
    /* what was handed over and what is left is what was admitted */
    ck_assert_double_eq((double)handed + (double)m.unreported + (m.out ? (double)fake.reports[0].spent : 0),
                        (double)admitted);
    ck_assert_uint_eq(weir__seam_unsent(fake.w), (uint64_t)m.unreported);
}

START_TEST(random_grants_and_takes_agree_with_a_model)
{
    for (int i = 0; i < MODEL_SEEDS; i++) {
        agree((uint64_t)(_i * MODEL_SEEDS + i) * 2654435761u + 12345);
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

static void add_outages(Suite *suite)
{
    TCase *tcase = new_case(suite, "outages");
    tcase_add_test(tcase, a_slice_ends_by_itself);
    tcase_add_test(tcase, a_debt_is_carried_into_the_fallback);
    tcase_add_test(tcase, a_key_never_seen_has_the_policys_share);
    tcase_add_test(tcase, no_share_exceeds_the_policy);
    tcase_add_test(tcase, a_key_without_a_slice_has_its_share_of_what_was_there);
    tcase_add_test(tcase, open_and_closed_outages);
    tcase_add_test(tcase, an_expired_slice_is_listed_for_renewal);
    tcase_add_test(tcase, a_strict_outage_lives_on_the_share);
}

static void add_changes(Suite *suite)
{
    TCase *tcase = new_case(suite, "changes");
    tcase_add_test(tcase, giving_back_raises_the_slice_and_is_reported);
    tcase_add_test(tcase, taking_back_is_not_a_refund);
    tcase_add_test(tcase, an_open_admission_is_not_taken_back);
    tcase_add_test(tcase, a_clock_that_goes_back_grants_nothing);
    tcase_add_test(tcase, a_clock_far_ahead_does_no_lasting_harm);
    tcase_add_test(tcase, a_key_without_a_slice_does_not_expire_by_itself);
    tcase_add_test(tcase, a_shadow_policy_never_denies);
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
}

int main(void)
{
    Suite *suite = suite_create("hybrid");
    TCase *tcase = new_case(suite, "alone");
    tcase_add_test(tcase, never_attached_it_is_the_whole_bucket);
    tcase_add_test(tcase, never_attached_open_and_closed);
    tcase_add_test(tcase, strict_without_a_sync_is_an_outage);
    tcase_add_test(tcase, peek_makes_nothing);
    tcase = new_case(suite, "slices");
    tcase_add_test(tcase, an_unknown_key_admits_one);
    tcase_add_test(tcase, an_unknown_key_may_be_denied);
    tcase_add_test(tcase, the_overdraft_is_the_budget);
    tcase_add_test(tcase, a_hold_stops_the_overdraft);
    tcase_add_test(tcase, a_slice_is_a_bucket);
    tcase_add_test(tcase, a_slice_saves_up_to_its_cap);
    tcase_add_test(tcase, a_low_slice_wakes_the_sync_once);
    tcase_add_test(tcase, the_overdraft_extends_a_slice);
    add_outages(suite);
    add_changes(suite);
    tcase = new_case(suite, "model");
    tcase_add_loop_test(tcase, random_grants_and_takes_agree_with_a_model, 0, MODEL_LOOPS);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
