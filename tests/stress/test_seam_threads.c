/* SPDX-License-Identifier: MIT */
/*
 * Takers, givers, a collector, evictions, new numbers and outages at the same time. Whatever the schedule: what was
 * admitted is what was charged, to the token; nobody admits what nobody granted.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fake_sync.h"
#include "support/suite.h"

enum { TAKERS = 3, TAKES = 12000, KEYS = 160, MAX_KEYS = 60, MAX_COST = 3, Q0 = 4 };

static struct fake_sync fake;
static weir_policy_id id;
static _Atomic int takers_left;
static _Atomic int64_t admitted[KEYS], given[KEYS];

/* The collector's own. */
static int64_t charged[KEYS], refunded[KEYS];
static struct out {
    struct weir__report report;
    int busy;
} out[FAKE_REPORTS];

static void setup(void)
{
    fake_open(&fake, MAX_KEYS);
    id = fake_policy(&fake, "p", 1000, FAKE_SECOND, 1000, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_ADMIT);
    fake_attach(&fake);
    weir__seam_overdraft(fake.w, id, Q0, 20, 10);
    weir__seam_fresh_until(fake.w, id, UINT64_MAX);
    takers_left = TAKERS;
}

static void teardown(void)
{
    fake_close(&fake);
}

static void name_of(int key, char name[8])
{
    snprintf(name, 8, "k%03d", key);
}

static int key_of(const struct weir__report *report)
{
    char name[8] = {0};
    ck_assert_uint_eq(report->key_len, 4);
    memcpy(name, report->key, 4);
    return atoi(name + 1);
}

static void *take(void *arg)
{
    uint64_t seed = ((uintptr_t)arg + 1) * 0x9e3779b97f4a7c15u;
    struct weir_result result;
    char name[8];
    for (int i = 0; i < TAKES; i++) {
        uint64_t random = fake_random(&seed);
        /* a third of it on a few hot keys, so that threads meet */
        int key = (int)(random % 3 == 0 ? random / 3 % 4 : random / 3 % KEYS);
        int64_t amount = 1 + (int64_t)(fake_random(&seed) % MAX_COST);
        name_of(key, name);
        if (random >> 60 == 0) {
            if (weir_give(fake.w, id, name, 4, amount) == 0)
                atomic_fetch_add_explicit(&given[key], amount, memory_order_relaxed);
        } else if (weir_take(fake.w, id, name, 4, amount, random >> 59 & 1 ? &result : NULL) == WEIR_ALLOW) {
            atomic_fetch_add_explicit(&admitted[key], amount, memory_order_relaxed);
        }
    }
    atomic_fetch_sub_explicit(&takers_left, 1, memory_order_release);
    return NULL;
}

static struct weir__grant any_grant(const struct weir__report *report, uint64_t *seed)
{
    struct weir__grant grant = fake_nothing((double)(fake_random(seed) % 1000));
    grant.level_delta = report->level < 0 ? -report->level : 0;
    if (fake_random(seed) % 2) {
        grant = fake_slice(&fake, grant.level_delta + (double)(fake_random(seed) % 20),
                           (double)(fake_random(seed) % 500), (double)(fake_random(seed) % 40), grant.global);
        grant.until = fake.now + fake_random(seed) % (20 * FAKE_MS);
        grant.low = (double)(fake_random(seed) % 10);
    }
    if (fake_random(seed) % 4 == 0) {
        grant.fallback_rate = (double)(fake_random(seed) % 100);
        grant.fallback_cap = (double)(fake_random(seed) % 10);
    }
    return grant;
}

static int keep(void *ctx, const struct weir__report *report)
{
    (void)ctx;
    for (int i = 0; i < FAKE_REPORTS; i++) {
        if (!out[i].busy) {
            out[i].busy = 1;
            out[i].report = *report;
            return 1;
        }
    }
    return 0;
}

/* Answers, loses or drags out what is out. */
static void answer_some(uint64_t *seed, int all)
{
    for (int i = 0; i < FAKE_REPORTS; i++) {
        struct weir__report *report = &out[i].report;
        uint64_t what = fake_random(seed) % 8;
        if (!out[i].busy)
            continue;
        if (!all && what < 3)
            continue;
        if (!all && what == 3) {
            weir__seam_pause(fake.w, report->slot, fake.now);
            continue;
        }
        int key = key_of(report);
        out[i].busy = 0;
        if (!all && what == 4) {
            weir__seam_release(fake.w, report->slot, report->spent, report->refunded);
            continue;
        }
        charged[key] += report->spent;
        refunded[key] += report->refunded;
        ck_assert_int_ge(report->fallback_spent, 0);
        ck_assert_int_le(report->fallback_spent, report->spent > 0 ? report->spent : 0);
        struct weir__grant grant = any_grant(report, seed);
        if (all) {
            grant = fake_nothing(900);
            grant.level_delta = report->level < 0 ? -report->level : 0;
        }
        weir__seam_apply(fake.w, report->slot, fake.now, &grant);
    }
}

static void *collect(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    while (atomic_load_explicit(&takers_left, memory_order_acquire) > 0) {
        if (fake_random(&seed) % 2)
            weir__seam_collect(fake.w, fake.now, 1 + fake_random(&seed) % 64, keep, NULL);
        else
            weir__seam_urgent(fake.w, fake.now, 1 + fake_random(&seed) % 64, keep, NULL);
        answer_some(&seed, 0);
        (void)weir__seam_unsent(fake.w);
        /* Redis silent, for keys without slices as well */
        weir__seam_fresh_until(fake.w, id, fake_random(&seed) % 4 ? UINT64_MAX : fake.now - FAKE_MS);
        atomic_fetch_add_explicit(&fake.now, fake_random(&seed) % (2 * FAKE_MS), memory_order_relaxed);
    }
    return NULL;
}

/* New numbers, some of them with another resolution. */
static void *change(void *arg)
{
    static const uint64_t limits[] = {1000, 500, 100000000, 1};
    struct weir_policy policy = WEIR_POLICY_INIT;
    uint64_t seed = (uintptr_t)arg;
    policy.per_ns = FAKE_SECOND;
    while (atomic_load_explicit(&takers_left, memory_order_acquire) > 0) {
        policy.limit = limits[fake_random(&seed) % 4];
        policy.burst = 1000 + fake_random(&seed) % 1000000;
        ck_assert_int_eq(weir_policy_set(fake.w, id, &policy), 0);
        for (unsigned i = 0, turns = 0; i < 200; i++)
            weir__backoff(&turns);
    }
    return NULL;
}

static void start_takers(pthread_t takers[TAKERS])
{
    for (int i = 0; i < TAKERS; i++)
        ck_assert_int_eq(pthread_create(&takers[i], NULL, take, (void *)(uintptr_t)i), 0);
}

static void check_totals(void)
{
    uint64_t seed = 1;
    int64_t total = 0;
    for (int round = 0; round < 4; round++) {
        weir__seam_urgent(fake.w, fake.now, SIZE_MAX, keep, NULL);
        weir__seam_collect(fake.w, fake.now, SIZE_MAX, keep, NULL);
        answer_some(&seed, 1);
    }
    ck_assert_int_eq(weir__seam_dirty(fake.w), 0);
    for (int key = 0; key < KEYS; key++) {
        ck_assert_int_eq(charged[key], admitted[key]);
        ck_assert_int_eq(refunded[key], given[key]);
        total += charged[key];
    }
    ck_assert_int_gt(total, 1000);
    for (uint32_t slot = 0; slot < weir__seam_slots(fake.w); slot++) {
        ck_assert_uint_eq(fake.w->hot[slot].pin, 0);
        ck_assert_uint_eq(fake.w->hot[slot].reported, 0);
    }
}

START_TEST(every_admission_is_charged_once)
{
    pthread_t takers[TAKERS], collector;
    struct weir_stats stats = {.size = sizeof stats};
    start_takers(takers);
    ck_assert_int_eq(pthread_create(&collector, NULL, collect, (void *)(uintptr_t)77), 0);
    for (int i = 0; i < TAKERS; i++)
        pthread_join(takers[i], NULL);
    pthread_join(collector, NULL);
    check_totals();
    ck_assert_int_eq(weir_stats_get(fake.w, &stats), 0);
    ck_assert_uint_gt(stats.evictions + stats.table_full, 0); /* it was crowded */
}
END_TEST

START_TEST(new_numbers_lose_no_token)
{
    pthread_t takers[TAKERS], collector, changer;
    start_takers(takers);
    ck_assert_int_eq(pthread_create(&collector, NULL, collect, (void *)(uintptr_t)78), 0);
    ck_assert_int_eq(pthread_create(&changer, NULL, change, (void *)(uintptr_t)79), 0);
    for (int i = 0; i < TAKERS; i++)
        pthread_join(takers[i], NULL);
    pthread_join(collector, NULL);
    pthread_join(changer, NULL);
    check_totals();
}
END_TEST

/* ---- one key ----------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 3000 };

static _Atomic int64_t all_admitted;
static _Atomic int over;

static void *take_one_key(void *arg)
{
    struct weir_result result;
    (void)arg;
    while (!atomic_load_explicit(&over, memory_order_acquire))
        if (weir_take(fake.w, id, "hot", 3, 1, &result) == WEIR_ALLOW)
            atomic_fetch_add_explicit(&all_admitted, 1, memory_order_relaxed);
    return NULL;
}

/* Takers against grants, and against grants that come when the slice has just ended: a race between takers that fall
 * back and the collector that puts the next slice in force. Without an end time stands still, so whatever the rate is
 * that comes with it, only what was granted may be admitted. */
static void race(int expire)
{
    pthread_t takers[TAKERS];
    struct weir__report report;
    int64_t granted = 0;
    uint64_t seed = 4242;
    uint32_t slot;

    id = fake_policy(&fake, "hot", 1000, FAKE_SECOND, 1000000, WEIR_OUTAGE_LOCAL, WEIR_UNKNOWN_DENY);
    weir__seam_fresh_until(fake.w, id, UINT64_MAX);
    ck_assert_int_eq(fake_take(&fake, id, "hot", 1, NULL), WEIR_DENY);
    slot = weir__slot_of(fake.w, fake_entry(&fake, id, "hot"));
    for (int i = 0; i < TAKERS; i++)
        ck_assert_int_eq(pthread_create(&takers[i], NULL, take_one_key, NULL), 0);
    /* on a busy machine until the takers had their share of it */
    for (int i = 0; i < ROUNDS || all_admitted < ROUNDS / 10; i++) {
        struct weir__grant grant = fake_slice(&fake, (double)(fake_random(&seed) % 9),
                                              expire ? 0 : (double)(fake_random(&seed) % 1000), 1000000, 0);
        grant.fallback_rate = 1e-9; /* a share, so that nobody starts with the policy's; it never makes a token */
        grant.fallback_cap = 1;
        grant.until = expire ? fake.now + 1000 : UINT64_MAX;
        ck_assert_int_eq(weir__seam_report(fake.w, slot, fake.now, &report), 1);
        if (expire && i % 3 == 0) {
            atomic_fetch_add_explicit(&fake.now, 1001, memory_order_relaxed); /* ends while the report is out */
            grant.until = fake.now + 1000;
        }
        weir__seam_apply(fake.w, slot, fake.now, &grant);
        granted += (int64_t)grant.level_delta;
        if (expire && i % 3 == 1)
            atomic_fetch_add_explicit(&fake.now, 1001, memory_order_relaxed);
        if (i % 16 == 0) {
            unsigned turns = 1000;
            weir__backoff(&turns);
        }
    }
    atomic_store_explicit(&over, 1, memory_order_release);
    for (int i = 0; i < TAKERS; i++)
        pthread_join(takers[i], NULL);
    if (expire)
        ck_assert_int_le(all_admitted, granted);
    else
        ck_assert_double_eq((double)all_admitted + fake_level(&fake, id, "hot"), (double)granted);
}

START_TEST(nothing_is_admitted_that_was_not_granted)
{
    race(0);
}
END_TEST

START_TEST(nothing_is_admitted_twice_over_a_fall)
{
    race(1);
}
END_TEST

/* ---- a sync that comes and goes ---------------------------------------------------------------------------------- */

START_TEST(attaching_and_detaching_under_takers)
{
    pthread_t takers[TAKERS];
    uint64_t seed = 5;
    start_takers(takers);
    while (atomic_load_explicit(&takers_left, memory_order_acquire) > 0) {
        weir__seam_fresh_until(fake.w, id, fake.now + FAKE_SECOND);
        for (int i = 0; i < 3; i++) {
            weir__seam_collect(fake.w, fake.now, 64, keep, NULL);
            weir__seam_urgent(fake.w, fake.now, 64, keep, NULL);
            answer_some(&seed, i == 2);
        }
        weir__seam_detach(fake.w);
        ck_assert_int_eq(weir__seam_attach(fake.w, &fake.hooks), 0);
    }
    for (int i = 0; i < TAKERS; i++)
        pthread_join(takers[i], NULL);
    weir__seam_detach(fake.w);
    for (uint32_t slot = 0; slot < weir__seam_slots(fake.w); slot++) {
        if (!fake.w->hot[slot].id[0])
            continue;
        ck_assert_uint_eq(fake.w->hot[slot].regime, WEIR__LOCAL);
        ck_assert_uint_eq(fake.w->hot[slot].pin, 0);
    }
    ck_assert_uint_eq(fake.w->state->urgent, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("seam_threads");
    TCase *tcase = tcase_create("seam_threads");
    tcase_set_timeout(tcase, 100);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, every_admission_is_charged_once);
    tcase_add_test(tcase, new_numbers_lose_no_token);
    tcase_add_test(tcase, nothing_is_admitted_that_was_not_granted);
    tcase_add_test(tcase, nothing_is_admitted_twice_over_a_fall);
    tcase_add_test(tcase, attaching_and_detaching_under_takers);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
