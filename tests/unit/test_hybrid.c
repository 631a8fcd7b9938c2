/* SPDX-License-Identifier: MIT */
/*
 * The taker's side of shared policies: without a sync, before Redis has spoken, on a slice; what results say, what
 * wakes the sync. And all of it against a model.
 */
#include <check.h>
#include <string.h>

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

/* ---- without a sync ---------------------------------------------------------------------------------------------- */

START_TEST(never_attached_it_is_the_whole_bucket)
{
    weir_policy_id id = fake_ten_a_second(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "a", 30, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(r.remaining, 70);
    ck_assert_uint_eq(r.limit, 100);
    ck_assert_uint_eq(r.policy, id);
    ck_assert_uint_eq(r.reset_after_ns, 3 * FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 70);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
    fake_pass(&fake, 100 * FAKE_MS - 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    fake_pass(&fake, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_int_eq(fake_take(&fake, id, "a", 101, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    fake_pass(&fake, 3600 * FAKE_SECOND);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 100);
    ck_assert_uint_eq(fake.wakes, 0);
}
END_TEST

START_TEST(never_attached_open_and_closed)
{
    weir_policy_id id = fake_ten_a_second(&fake, WEIR_OUTAGE_OPEN, WEIR_UNKNOWN_ADMIT);
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
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 5);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(weir_peek(fake.w, id, "b", 1, 5, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 5);
}
END_TEST

START_TEST(peek_makes_nothing)
{
    weir_policy_id id = fake_ten_a_second(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT);
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
    fake_pass(&fake, 2 * FAKE_SECOND); /* Redis silent: the share of a key never seen, here the whole bucket */
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
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 0);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, &r), WEIR_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(r.remaining, 99);
    ck_assert_uint_eq(fake.wakes, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_UNKNOWN);
    ck_assert_int_eq(r.remaining, 99);
    ck_assert_uint_eq(r.retry_after_ns, 5 * FAKE_MS);               /* a round trip */
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
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 7);
    ck_assert_int_eq(fake_take(&fake, id, "a", 8, &r), WEIR_DENY);
    ck_assert_int_eq(fake_take(&fake, id, "a", 4, &r), WEIR_ALLOW);
    /* seven, not eight: the budget has room for the token in doubt */
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 3);
    ck_assert_int_eq(r.remaining, 93);
    ck_assert(fake_level(&fake, id, "a") == -7);
}
END_TEST

START_TEST(a_hold_stops_the_overdraft)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 3);
    struct weir__grant grant = fake_nothing(0);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 3);
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
    fake_pass(&fake, 50 * FAKE_MS - 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    fake_pass(&fake, 1);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 3);
    ck_assert_uint_eq(fake.wakes, wakes + 1);
}
END_TEST

/* ---- sliced ------------------------------------------------------------------------------------------------------ */

START_TEST(a_slice_is_a_bucket)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 9);
    ck_assert_int_eq(r.remaining, 50);
    ck_assert_uint_eq(r.retry_after_ns, 250 * FAKE_MS); /* the slice's wait, longer than the hold */
    ck_assert_uint_eq(r.reset_after_ns, 5 * FAKE_SECOND);
    fake_pass(&fake, 250 * FAKE_MS - 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    fake_pass(&fake, 1);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 51); /* 60 - 11 + 2.5 */
}
END_TEST

START_TEST(a_slice_saves_up_to_its_cap)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 3, 10, 5, 60);
    grant.until = fake.now + 100 * FAKE_SECOND;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    fake_pass(&fake, 10 * FAKE_SECOND);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, &r), WEIR_ALLOW);
    fake_pass(&fake, 100 * FAKE_MS);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 4);
    ck_assert_uint_eq(r.flags, WEIR_STALE); /* 10 s since the last word */
    ck_assert_int_eq(r.remaining, 100);     /* full again by now */
}
END_TEST

START_TEST(a_low_slice_wakes_the_sync_once)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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

/* Most keys are asked for once. Of those that aren't, the second take asks early, or the first that is large. */
START_TEST(a_key_that_is_asked_for_once_waits_for_the_timer)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 10);
    ck_assert_int_eq(fake_take(&fake, id, "once", 5, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_urgent(&fake), 0);
    ck_assert_int_eq(fake_take(&fake, id, "large", 6, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_urgent(&fake), 1);
    ck_assert_int_eq(fake_report(&fake, "large")->spent, 6);
    ck_assert_int_eq(fake_take(&fake, id, "twice", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_urgent(&fake), 0);
    ck_assert_int_eq(fake_take(&fake, id, "twice", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_urgent(&fake), 1);
    ck_assert_int_eq(fake_report(&fake, "twice")->spent, 2);
    ck_assert_uint_eq(fake_collect(&fake), 1);
    struct weir__grant grant = fake_nothing(50);
    grant.level_delta = 5; /* Redis had them: nothing is owed, and the next take is a first one again */
    weir__seam_apply(fake.w, fake_report(&fake, "once")->slot, fake.now, &grant);
    ck_assert_int_eq(fake_take(&fake, id, "once", 5, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(fake_urgent(&fake), 0);
}
END_TEST

START_TEST(the_overdraft_extends_a_slice)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, 5);
    struct weir__grant grant = fake_slice(&fake, 12, 1, 10, 60);
    ck_assert_int_eq(fake_take(&fake, id, "a", 2, NULL), WEIR_ALLOW);
    fake_collect(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert(fake_level(&fake, id, "a") == 10);
    ck_assert_int_eq(fake_take(&fake, id, "a", 15, &r), WEIR_ALLOW); /* as one, too */
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_DENY);
    assert_about(r.retry_after_ns, FAKE_SECOND);
    ck_assert(fake_level(&fake, id, "a") == -5);
}
END_TEST

/* ---- time, and the rest ------------------------------------------------------------------------------------------ */

START_TEST(a_clock_that_goes_back_grants_nothing)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 10, 10, 60);
    grant.until = fake.now + 3600 * FAKE_SECOND;
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    fake_pass(&fake, 11 * FAKE_SECOND);
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
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
    struct weir__grant grant = fake_slice(&fake, 10, 10, 10, 60);
    (void)fake_take(&fake, id, "a", 1, NULL);
    fake_urgent(&fake);
    weir__seam_apply(fake.w, fake_report(&fake, "a")->slot, fake.now, &grant);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 10, fake.now + 3600 * FAKE_SECOND, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED); /* what was left of the slice */
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now + 3600 * FAKE_SECOND, &r), WEIR_DENY);
    ck_assert_int_eq(weir_take_at(fake.w, id, "a", 1, 1, fake.now + 7200 * FAKE_SECOND, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    fake_pass(&fake, FAKE_MS);
    grant = fake_slice(&fake, 5, 10, 10, 60);
    fake_grant(&fake, "a", &grant);
    fake_pass(&fake, 200 * FAKE_MS);
    ck_assert_int_eq(fake_drain(&fake, id, "a", &r), 7);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(r.retry_after_ns, 100 * FAKE_MS);
}
END_TEST

/* Whatever its grant says of an end: a key without a slice is as good as the policy's others. */
START_TEST(a_key_without_a_slice_does_not_expire_by_itself)
{
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_CLOSED, WEIR_UNKNOWN_ADMIT, 0);
    struct weir__grant grant = fake_nothing(50);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, NULL), WEIR_ALLOW);
    grant.level_delta = 1;
    grant.until = fake.now + FAKE_MS;
    fake_grant(&fake, "a", &grant);
    fake_pass(&fake, 500 * FAKE_MS);
    ck_assert_int_eq(fake_take(&fake, id, "a", 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags & WEIR_DEGRADED, 0);
}
END_TEST

START_TEST(a_shadow_policy_never_denies)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY, 0);
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

/* ---- against a model --------------------------------------------------------------------------------------------- */

/* One key, in plain floating point. */
struct model {
    long double level, rate, cap, fall_rate, fall_cap, unreported, fallen_spent, unheld;
    uint64_t at, until, hold;
    long double sent_level;
    int fallen, told, out;
};

static void refill(struct model *m, uint64_t now)
{
    long double rate = m->fallen ? m->fall_rate : m->rate, cap = m->fallen ? m->fall_cap : m->cap;
    /* past its end a slice is worth no more */
    uint64_t end = m->told && !m->fallen && m->until < now ? m->until : now;
    if (end > m->at)
        m->level += rate * (long double)(end - m->at) / 1e9L;
    if (m->level > cap)
        m->level = cap;
    m->at = now;
}

static void model_fall(struct model *m)
{
    if (m->fall_rate == 0) {
        m->fall_rate = 2;
        m->fall_cap = 20;
    }
    /* the test's grants always come with a slice: what is left of it as of its end, and the share of what nobody
     * held */
    m->level = (m->told || m->level < 0 ? m->level : 0) + (m->told ? m->unheld : 100) * m->fall_cap / 100;
    m->level = m->level > m->fall_cap ? m->fall_cap : m->level;
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
    m->unheld = grant->unheld;
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
        grant.unheld = (double)(fake_random(seed) % 80);
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
    if (!m->told || m->fallen || fake.now <= m->until) /* past its end nobody looks at a slice but who reports it */
        ck_assert_double_eq_tol(fake_level(&fake, id, "k"), (double)m->level, 1e-5);
}

static void agree(uint64_t seed)
{
    uint64_t admitted = 0;
    weir_policy_id id = fake_attached(&fake, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT, MODEL_Q);
    uint64_t fresh_until = fake.now + 300 * FAKE_MS;
    struct model m = {.at = fake.now};
    int64_t handed = 0, fallen = 0;
    weir__seam_fresh_until(fake.w, id, fresh_until);
    for (int step = 0; step < MODEL_STEPS; step++) {
        fake_pass(&fake, fake_random(&seed) % (40 * FAKE_MS));
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
    tcase_add_test(tcase, a_key_that_is_asked_for_once_waits_for_the_timer);
    tcase_add_test(tcase, the_overdraft_extends_a_slice);
    tcase_add_test(tcase, a_clock_that_goes_back_grants_nothing);
    tcase_add_test(tcase, a_clock_far_ahead_does_no_lasting_harm);
    tcase_add_test(tcase, a_key_without_a_slice_does_not_expire_by_itself);
    tcase_add_test(tcase, a_shadow_policy_never_denies);
    tcase = new_case(suite, "model");
    tcase_add_loop_test(tcase, random_grants_and_takes_agree_with_a_model, 0, MODEL_LOOPS);
    return suite_run(suite);
}
