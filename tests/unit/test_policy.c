/* SPDX-License-Identifier: MIT */
/*
 * weir_policy_add, _find, _set: what is refused, and what a change means for buckets in use.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <weir/weir.h>

#include "lib/limiter.h"
#include "support/local_policy.h"
#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define MINUTE (60 * SECOND)
#define DAY (86400 * SECOND)

static struct weir *w;
static struct weir_result r;
static uint64_t now;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return __atomic_load_n(&now, __ATOMIC_RELAXED);
}

static void setup(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = 2000;
    options.now_ns = read_now;
    now = 1000 * SECOND;
    ck_assert_int_eq(weir_open(&w, &options), 0);
}

static void teardown(void)
{
    weir_close(w);
}

static weir_policy_id add(uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = local_policy(limit, per_ns, burst);
    weir_policy_id id;

    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    return id;
}

static void set(weir_policy_id id, uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = local_policy(limit, per_ns, burst);

    ck_assert_int_eq(weir_policy_set(w, id, &policy), 0);
}

static int take(weir_policy_id id, int64_t cost)
{
    return weir_take(w, id, "key", 3, cost, &r);
}

/* ---- adding ------------------------------------------------------------------------------------------------------ */

START_TEST(bad_policies_are_refused)
{
    static char longest[65];
    struct weir_policy good = local_policy(10, SECOND, 10), p;
    weir_policy_id id;

    memset(longest, 'n', 64);
    ck_assert_int_eq(weir_policy_add(NULL, &good, &id), WEIR_E_INVAL);
    ck_assert_int_eq(weir_policy_add(w, NULL, &id), WEIR_E_INVAL);
    ck_assert_int_eq(weir_policy_add(w, &good, NULL), WEIR_E_INVAL);
#define REFUSED(member, value, error)                                                                                  \
    p = good;                                                                                                          \
    p.member = (value);                                                                                                \
    ck_assert_int_eq(weir_policy_add(w, &p, &id), error);
    REFUSED(size, 0, WEIR_E_INVAL)
    REFUSED(size, 8, WEIR_E_INVAL)
    REFUSED(name, NULL, WEIR_E_NAME)
    REFUSED(name, "", WEIR_E_NAME)
    REFUSED(name, longest, WEIR_E_NAME)
    REFUSED(name, "a{b", WEIR_E_NAME)
    REFUSED(name, "a}b", WEIR_E_NAME)
    REFUSED(name, "a\nb", WEIR_E_NAME)
    REFUSED(name, "a\x7f", WEIR_E_NAME)
    REFUSED(group, "a{b", WEIR_E_NAME)
    REFUSED(group, longest, WEIR_E_NAME)
    REFUSED(per_ns, 0, WEIR_E_INVAL)
    REFUSED(limit, 100000001, WEIR_E_RANGE)
    REFUSED(limit, UINT64_MAX, WEIR_E_RANGE)
    REFUSED(per_ns, 10 * DAY + 1, WEIR_E_RANGE)
    REFUSED(burst, WEIR_BURST_MAX + 1, WEIR_E_RANGE)
    REFUSED(burst, UINT64_MAX, WEIR_E_RANGE)
    REFUSED(mode, (enum weir_mode)3, WEIR_E_INVAL)
    REFUSED(mode, (enum weir_mode) - 1, WEIR_E_INVAL)
    REFUSED(on_outage, (enum weir_on_outage)3, WEIR_E_INVAL)
    REFUSED(unknown, (enum weir_unknown)2, WEIR_E_INVAL)
    REFUSED(max_overshoot, WEIR_BURST_MAX + 1, WEIR_E_RANGE)
#undef REFUSED
    p = local_policy(0, SECOND, 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_INVAL);
    p = local_policy(0, SECOND, 5);
    p.mode = WEIR_HYBRID;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_INVAL);
    p.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_INVAL);
    p = local_policy(1, DAY, 19); /* Redis would have to keep it for 2 x 19 + 1 + 2 days: 40 is the most */
    p.mode = WEIR_HYBRID;
    p.max_overshoot = 1;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_RANGE);
    p.burst = 18;
    p.version = (UINT64_C(1) << 53) + 1; /* a double would take it for 2^53 */
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_RANGE);
    p.version--;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    /* none of them left anything behind */
    ck_assert_uint_eq(id, 0);
}
END_TEST

START_TEST(names)
{
    static char longest[64];
    struct weir_policy p = local_policy(1, SECOND, 1);
    weir_policy_id a, b, found;

    ck_assert_int_eq(weir_policy_find(w, "p", &found), WEIR_E_NOENT);
    ck_assert_int_eq(weir_policy_add(w, &p, &a), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &b), WEIR_E_EXIST);
    memset(longest, 'n', 63);
    p.name = longest;
    ck_assert_int_eq(weir_policy_add(w, &p, &b), 0);
    memset(longest, 'x', 63); /* it was copied */
    ck_assert_int_eq(weir_policy_find(w, "p", &found), 0);
    ck_assert_uint_eq(found, a);
    memset(longest, 'n', 63);
    ck_assert_int_eq(weir_policy_find(w, longest, &found), 0);
    ck_assert_uint_eq(found, b);
    ck_assert_int_eq(weir_policy_find(NULL, "p", &found), WEIR_E_INVAL);
    ck_assert_int_eq(weir_policy_find(w, NULL, &found), WEIR_E_INVAL);
    ck_assert_int_eq(weir_policy_find(w, "p", NULL), WEIR_E_INVAL);
}
END_TEST

START_TEST(as_many_as_fit)
{
    struct weir_policy p = local_policy(1, SECOND, 1);
    weir_policy_id id;
    char name[16];

    p.name = name;
    for (unsigned i = 0; i < WEIR__POLICY_MAX; i++) {
        snprintf(name, sizeof name, "p%u", i);
        ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
        ck_assert_uint_eq(id, i);
    }
    strcpy(name, "more");
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_FULL);
    ck_assert_int_eq(weir_take(w, WEIR__POLICY_MAX - 1, "k", 1, 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(w, WEIR__POLICY_MAX, "k", 1, 1, NULL), WEIR_E_NOENT);
}
END_TEST

/* ---- changing ---------------------------------------------------------------------------------------------------- */

START_TEST(case_16_a_lowered_limit_holds_at_once)
{
    weir_policy_id id = add(100, MINUTE, 100);

    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 99);
    set(id, 10, MINUTE, 10);
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 9);
    ck_assert_uint_eq(r.limit, 10);
    ck_assert_int_eq(take(id, 9), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 6 * SECOND);
    ck_assert_int_eq(take(id, 11), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
}
END_TEST

START_TEST(a_larger_burst_fills_at_the_rate)
{
    weir_policy_id id = add(10, SECOND, 10);

    ck_assert_int_eq(take(id, 4), WEIR_ALLOW);
    set(id, 10, SECOND, 100);
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 6);
    now += SECOND;
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 16);
    ck_assert_int_eq(weir_take(w, id, "new", 3, 100, &r), WEIR_ALLOW); /* one that is not there yet is full */
    now += 100 * SECOND;
    ck_assert_int_eq(take(id, 100), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
}
END_TEST

/* An idle bucket that would have overflown many times holds the old burst, not more. */
START_TEST(idle_overflow_is_not_kept)
{
    weir_policy_id id = add(10, SECOND, 10);

    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    now += DAY;
    set(id, 10, SECOND, 1000);
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 10);
}
END_TEST

START_TEST(there_and_back_refills_nothing)
{
    weir_policy_id id = add(1, DAY, 100);

    ck_assert_int_eq(take(id, 30), WEIR_ALLOW);
    for (int i = 0; i < 100; i++) {
        set(id, 1, DAY, 1000000000); /* another resolution */
        set(id, 100000000, SECOND, 70);
        set(id, 1, DAY, 100);
        ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
        ck_assert_int_eq(r.remaining, 70);
    }
    set(id, 1, DAY, 20);
    set(id, 1, DAY, 100);
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 20);
}
END_TEST

/* The fraction of a token is carried too, to the resolution of the coarser numbers. */
START_TEST(fractions_are_carried)
{
    weir_policy_id id = add(1, SECOND, 10);

    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    now += 250 * MS;
    set(id, 100, SECOND, 10);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 7500000);
    set(id, 1, MINUTE, 10);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    ck_assert_uint_ge(r.retry_after_ns, 45 * SECOND);
    ck_assert_uint_le(r.retry_after_ns, 45 * SECOND + 10 * MS);
}
END_TEST

/* A token every 1,024 ns leaves no fraction of a unit: the bucket then holds to the last one what is asked for. Of what
 * a take compares, bits that tell which numbers are in force must not count. */
START_TEST(a_whole_token_is_one_after_any_change)
{
    weir_policy_id id = add(1, 1024, 8);

    for (uint64_t burst = 8; burst < 16; burst++) {
        if (burst > 8)
            set(id, 1, 1024, burst);
        now += 1024 * 100;
        ck_assert_int_eq(take(id, (int64_t)burst), WEIR_ALLOW);
        for (int64_t cost = 1; cost <= 3; cost++) {
            uint64_t wait = 1024 * (uint64_t)cost;

            ck_assert_int_eq(weir_take_at(w, id, "key", 3, cost, now + wait - 1, NULL), WEIR_DENY);
            ck_assert_int_eq(weir_take_at(w, id, "key", 3, cost, now + wait, NULL), WEIR_ALLOW);
            ck_assert_int_eq(weir_take_at(w, id, "key", 3, 1, now + wait, NULL), WEIR_DENY);
            now += wait;
        }
    }
}
END_TEST

START_TEST(every_entry_is_reached)
{
    weir_policy_id id = add(100, SECOND, 100), other;
    struct weir_policy p = local_policy(100, SECOND, 100);

    p.name = "other";
    ck_assert_int_eq(weir_policy_add(w, &p, &other), 0);
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 1 + i % 90, NULL), WEIR_ALLOW);
        ck_assert_int_eq(weir_take(w, other, &i, sizeof i, 1 + i % 90, NULL), WEIR_ALLOW);
    }
    for (int round = 0; round < 4; round++) {
        uint64_t burst = round % 2 ? 50 : UINT64_C(1) << 50;

        set(id, 100, SECOND, burst);
        for (int i = 0; i < 1000; i++) {
            int64_t left = 99 - i % 90;

            ck_assert_int_eq(weir_take(w, other, &i, sizeof i, 0, &r), WEIR_ALLOW);
            ck_assert_int_eq(r.remaining, left);
            ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 0, &r), WEIR_ALLOW);
            ck_assert_int_eq(r.remaining, left > 50 && round > 0 ? 50 : left);
            ck_assert_uint_eq(r.limit, burst);
        }
    }
}
END_TEST

START_TEST(bad_changes_change_nothing)
{
    weir_policy_id id = add(10, SECOND, 10);
    struct weir_policy p = local_policy(5, SECOND, 5);

    ck_assert_int_eq(weir_policy_set(NULL, id, &p), WEIR_E_INVAL);
    ck_assert_int_eq(weir_policy_set(w, id, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_policy_set(w, id + 1, &p), WEIR_E_NOENT);
    p.name = "q";
    ck_assert_int_eq(weir_policy_set(w, id, &p), WEIR_E_INVAL);
    p.name = NULL;
    p.per_ns = 0;
    ck_assert_int_eq(weir_policy_set(w, id, &p), WEIR_E_INVAL);
    p.per_ns = SECOND;
    p.group = "g";
    ck_assert_int_eq(weir_policy_set(w, id, &p), WEIR_E_INVAL);
    p.group = NULL;
    p.burst = UINT64_MAX;
    ck_assert_int_eq(weir_policy_set(w, id, &p), WEIR_E_RANGE);
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_uint_eq(r.limit, 10);
    p.burst = 5;
    ck_assert_int_eq(weir_policy_set(w, id, &p), 0); /* without a name: it stays */
    ck_assert_int_eq(weir_policy_find(w, "p", &id), 0);
}
END_TEST

START_TEST(a_handle_sees_the_change)
{
    weir_policy_id id = add(10, SECOND, 10);
    struct weir_policy p = local_policy(10, SECOND, 10);
    struct weir_key *key;

    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
    set(id, 1, DAY, 3);
    ck_assert_int_eq(weir_key_take(key, 4, 0, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(weir_key_take(key, 4, 0, NULL), WEIR_DENY);
    ck_assert_int_eq(weir_key_take(key, 3, 0, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_DENY);
    p.shadow = 1;
    ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
    ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(key, 11, 0, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW);
    p.shadow = 0;
    ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
    ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_DENY);
    weir_key_close(key);
}
END_TEST

/* Local, shared without a Redis, local again: what is left is carried, and never grows. */
START_TEST(modes_change)
{
    static const enum weir_mode modes[] = {WEIR_HYBRID, WEIR_LOCAL, WEIR_STRICT, WEIR_LOCAL, WEIR_HYBRID, WEIR_STRICT};
    weir_policy_id id = add(1, MINUTE, 100);
    struct weir_key *key;
    int64_t left = 100;

    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
    for (size_t i = 0; i < 3 * sizeof modes / sizeof *modes; i++) {
        struct weir_policy p = local_policy(1, MINUTE, 100);

        ck_assert_int_eq(weir_key_take(key, 2, 0, NULL), WEIR_ALLOW);
        ck_assert_int_eq(take(id, 3), WEIR_ALLOW);
        left -= 5;
        p.mode = modes[i % 6];
        ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
        ck_assert_int_eq(weir_take(w, id, "key", 3, 0, &r), WEIR_ALLOW);
        ck_assert_int_eq(r.remaining, left);
        ck_assert_uint_eq(r.flags, p.mode == WEIR_LOCAL ? 0 : WEIR_DEGRADED);
    }
    weir_key_close(key);
}
END_TEST

/* ---- under running takers ---------------------------------------------------------------------------------------- */

static _Atomic int stop;
static _Atomic uint64_t admitted;

static void *take_on(void *arg)
{
    weir_policy_id id = *(weir_policy_id *)arg;

    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (unsigned i = 0; i < 8; i++) {
            if (weir_take(w, id, &i, sizeof i, 1, NULL) == WEIR_ALLOW)
                atomic_fetch_add_explicit(&admitted, 1, memory_order_relaxed);
        }
    }
    return NULL;
}

/* Rates, bursts and resolutions change as fast as they can while the clock stands still. The bursts never pass 1,000
 * while keys are made, so that 8 buckets admit 8,000 in all: not one more, though the limits go up and down, and not
 * one less, for the bursts never go below what is left. */
START_TEST(changes_mint_nothing)
{
    weir_policy_id id = add(1, DAY, 1000);
    pthread_t threads[3];

    for (unsigned i = 0; i < 8; i++)
        ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 1, NULL), WEIR_ALLOW);
    admitted = 8;
    stop = 0;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_on, &id), 0);
    for (int i = 0; i < 300; i++) {
        set(id, i % 3 ? 1 : 100000000, i % 3 ? DAY : SECOND, 1000);
        set(id, 1, DAY, i % 2 ? 1000000000 : 5000);
    }
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 8; i++) {
        ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 0, &r), WEIR_ALLOW);
        admitted += (uint64_t)r.remaining;
    }
    ck_assert_uint_eq(admitted, 8 * 1000);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("policy");
    TCase *t = tcase_create("policy");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, bad_policies_are_refused);
    tcase_add_test(t, names);
    tcase_add_test(t, as_many_as_fit);
    tcase_add_test(t, case_16_a_lowered_limit_holds_at_once);
    tcase_add_test(t, a_larger_burst_fills_at_the_rate);
    tcase_add_test(t, idle_overflow_is_not_kept);
    tcase_add_test(t, there_and_back_refills_nothing);
    tcase_add_test(t, fractions_are_carried);
    tcase_add_test(t, a_whole_token_is_one_after_any_change);
    tcase_add_test(t, every_entry_is_reached);
    tcase_add_test(t, bad_changes_change_nothing);
    tcase_add_test(t, a_handle_sees_the_change);
    tcase_add_test(t, modes_change);
    tcase_add_test(t, changes_mint_nothing);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
