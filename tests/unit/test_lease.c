/* SPDX-License-Identifier: MIT */
/*
 * lib/lease.h: how large a lease may be, that bucket and leases together never hold more than the burst, and that all
 * comes back; alone and with threads on one handle.
 */
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "lib/lease.h"
#include "support/leasing.h"
#include "support/suite.h"

static struct weir__lease one, two;

static void open_with(uint64_t limit, uint64_t burst)
{
    leasing_open(limit, burst);
    memset(&one, 0, sizeof one);
    memset(&two, 0, sizeof two);
}

static bool spend(struct weir__lease *lease, int64_t cost)
{
    uint64_t counts[2] = {0, 0};
    struct weir_quick_ q = {.gate = (const struct weir_gate_ *)(const void *)at.w->gate,
                            .counts = (char *)counts - weir_stripe_,
                            .stripes = at.w->private_counts};

    return weir_take_lease_(&q, (char *)lease - weir_stripe_ / WEIR_LEASE_STEP_, cost) == WEIR_ALLOW &&
           counts[WEIR_ALLOW] == 1;
}

/* Fills a lease up to its largest: quickly spent each time. Returns what that took from the bucket besides the lease.
 * */
static uint64_t fill(struct weir__lease *lease, int times)
{
    uint64_t spent = 0;

    weir__lease_want(lease, at.ask.p, at.now);
    for (int i = 0; i < times; i++) {
        while (spend(lease, 1))
            spent++;
        if (weir__lease_fill(lease, &at.ask, at.e, at.now, 1) != WEIR_ALLOW)
            break;
        spent++;
    }
    return spent;
}

/* ---- how much ---------------------------------------------------------------------------------------------------- */

START_TEST(leases_grow_to_their_bounds)
{
    open_with(1000000, 1000000); /* 100 us of it: 100 */
    fill(&one, 1);
    ck_assert_uint_eq(one.tokens, 32);
    ck_assert_uint_eq(at.e->leased, 32);
    fill(&one, 10);
    ck_assert_uint_le(one.tokens, 100);
    ck_assert_uint_ge(one.tokens, 96);
    ck_assert_uint_eq(at.e->leased, one.held);
    leasing_close();
    open_with(100000000, 6400); /* 1/64 of the burst: 100 */
    fill(&one, 10);
    ck_assert_uint_eq(one.tokens, 100);
    leasing_close();
}
END_TEST

START_TEST(a_quarter_of_what_is_left)
{
    open_with(100000000, 1000000);
    ck_assert_int_eq(weir_take(at.w, at.ask.policy, "key", 3, 1000000 - 201, NULL), WEIR_ALLOW);
    weir__lease_want(&one, at.ask.p, at.now);
    for (int i = 0; i < 10; i++)
        one.chunk = 1000;
    ck_assert_int_eq(weir__lease_fill(&one, &at.ask, at.e, at.now, 1), WEIR_ALLOW);
    ck_assert_uint_eq(one.tokens, 50);
    ck_assert_int_eq(weir_take(at.w, at.ask.policy, "key", 3, 100, NULL), WEIR_ALLOW);
    two.chunk = 1000;
    ck_assert_int_eq(weir__lease_fill(&two, &at.ask, at.e, at.now, 1), WEIR__REKEYED); /* 12 would not be worth it */
    ck_assert_uint_eq(at.e->leased, 50);
    leasing_close();
}
END_TEST

START_TEST(a_sixteenth_in_all)
{
    struct weir__lease many[20];

    memset(many, 0, sizeof many);
    open_with(100000000, 6400);
    for (int i = 0; i < 20; i++)
        fill(&many[i], 10);
    ck_assert_uint_le(at.e->leased, 400);
    ck_assert_uint_ge(at.e->leased, 400 - 16);
    leasing_close();
}
END_TEST

START_TEST(small_limits_are_not_leased)
{
    static const struct {
        uint64_t limit, burst;
    } shapes[] = {{100000, 1000000}, {150000, 1000000000}, {100000000, 1000}, {1, 1}, {0, 1000000}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        open_with(shapes[i].limit, shapes[i].burst);
        fill(&one, 3);
        ck_assert_uint_eq(one.chunk, 0);
        ck_assert_uint_eq(at.e->leased, 0);
        leasing_close();
    }
}
END_TEST

/* Spent in more than 100 us each: they shrink, and end. */
START_TEST(slow_takers_lose_their_lease)
{
    open_with(1000000, 1000000);
    fill(&one, 4);
    ck_assert_uint_gt(one.tokens, 60);
    for (int i = 0; i < 4 && one.chunk; i++) {
        while (spend(&one, 1))
            at.now += 10000;
        (void)weir__lease_fill(&one, &at.ask, at.e, at.now, 1);
    }
    ck_assert_uint_eq(one.chunk, 0);
    ck_assert_uint_eq(one.tokens, 0);
    ck_assert_uint_eq(at.e->leased, 0);
    leasing_close();
}
END_TEST

/* ---- exactly ----------------------------------------------------------------------------------------------------- */

START_TEST(a_kept_lease_is_part_of_the_burst)
{
    uint64_t spent;

    open_with(1000000, 100000);
    spent = fill(&one, 10) + fill(&two, 3);
    ck_assert_uint_eq(spent + one.tokens + two.tokens + leasing_drain(), 100000);
    at.now += 3600 * SECOND; /* full again, but for what they hold */
    ck_assert_uint_eq(one.tokens + two.tokens + leasing_drain(), 100000);
    at.now += 10000; /* ten tokens' time */
    ck_assert_uint_eq(leasing_drain(), 10);
    leasing_close();
}
END_TEST

/* An idle bucket fills up only as far as the lease lets it: not further once that is spent and counted off. */
START_TEST(a_spent_lease_leaves_no_room_behind)
{
    uint64_t spent = 0;

    open_with(1000000, 100000);
    fill(&one, 10);
    fill(&two, 10);
    at.now += SECOND;
    for (int i = 0; i < 2; i++) {
        struct weir__lease *lease = i ? &two : &one;

        while (spend(lease, 1))
            spent++;
        ck_assert_uint_gt(spent, 0);
        spent += weir__lease_fill(lease, &at.ask, at.e, at.now, 1) == WEIR_ALLOW;
    }
    ck_assert_uint_eq(spent + one.tokens + two.tokens + leasing_drain(), 100000);
    leasing_close();
}
END_TEST

START_TEST(what_is_given_back_fits)
{
    uint64_t spent;

    open_with(1000000, 100000);
    fill(&one, 10);
    at.now += SECOND;
    one.chunk = 0;
    (void)weir__lease_fill(&one, &at.ask, at.e, at.now, 1);
    ck_assert_uint_eq(at.e->leased, 0);
    ck_assert_uint_eq(one.held, 0);
    at.now += SECOND;
    ck_assert_uint_eq(leasing_drain(), 100000);
    at.now += SECOND;
    spent = fill(&one, 10);
    one.chunk = 0;
    (void)weir__lease_fill(&one, &at.ask, at.e, at.now, 1);
    ck_assert_uint_eq(spent + leasing_drain(), 100000); /* at once: nothing is lost on the way */
    leasing_close();
}
END_TEST

START_TEST(a_change_of_the_policy_ends_a_lease)
{
    struct weir_policy p = leasing_numbers(1000000, 50000);
    uint64_t before;

    open_with(1000000, 100000);
    before = fill(&one, 10) + one.tokens;
    ck_assert_int_eq(weir_policy_set(at.w, at.ask.policy, &p), 0);
    ck_assert(!spend(&one, 1));
    before -= one.tokens;
    (void)weir__lease_fill(&one, &at.ask, at.e, at.now, 1);
    ck_assert_uint_gt(before, 0);
    ck_assert_uint_le(one.tokens + leasing_drain(), 50000);
    at.now += SECOND;
    ck_assert_uint_eq(one.tokens + leasing_drain(), 50000);
    p.mode = WEIR_HYBRID;
    ck_assert_int_eq(weir_policy_set(at.w, at.ask.policy, &p), 0);
    ck_assert(!spend(&one, 1));
    ck_assert_int_eq(weir__lease_fill(&one, &at.ask, at.e, at.now, 1), WEIR__REKEYED);
    ck_assert_uint_eq(at.e->leased, 0);
    leasing_close();
}
END_TEST

/* What a thread keeps that takes no more must not weigh on a much smaller bucket. */
START_TEST(a_lease_of_a_larger_burst_leaves_the_smaller)
{
    struct weir_policy p = leasing_numbers(100000000, 1600);

    open_with(100000000, 1000000);
    fill(&one, 20);
    ck_assert_uint_gt(at.e->leased, 1600);
    ck_assert_int_eq(weir_policy_set(at.w, at.ask.policy, &p), 0);
    ck_assert(!spend(&one, 1));
    ck_assert_uint_ge(leasing_drain(), 1500); /* all but a sixteenth */
    at.now += SECOND;
    ck_assert_uint_ge(leasing_drain(), 1500);
    one.chunk = 0;
    (void)weir__lease_fill(&one, &at.ask, at.e, at.now, 1);
    ck_assert_uint_eq(at.e->leased, 0);
    at.now += SECOND;
    ck_assert_uint_eq(leasing_drain(), 1600);
    leasing_close();
}
END_TEST

/* Nor is what it keeps more than its part of the smaller one when it comes back. */
START_TEST(what_a_larger_burst_leased_is_cut_off)
{
    struct weir_policy p = leasing_numbers(100000000, 1600);
    uint64_t n;

    open_with(100000000, 1000000);
    fill(&one, 20);
    fill(&two, 20);
    ck_assert_uint_gt(one.held, 1600);
    ck_assert_uint_gt(two.held, 1600);
    ck_assert_int_eq(weir_policy_set(at.w, at.ask.policy, &p), 0);
    n = leasing_drain();
    one.chunk = two.chunk = 0;
    (void)weir__lease_fill(&one, &at.ask, at.e, at.now, 1);
    n += leasing_drain();
    ck_assert_uint_eq(n, 1500);
    (void)weir__lease_fill(&two, &at.ask, at.e, at.now, 1);
    ck_assert_uint_eq(at.e->leased, 0);
    ck_assert_uint_eq(n + leasing_drain(), 1600);
    leasing_close();
}
END_TEST

START_TEST(a_forgotten_key_is_full_but_for_leases)
{
    open_with(1000000, 100000);
    fill(&one, 10);
    ck_assert_int_eq(weir_take(at.w, at.ask.policy, "key", 3, 50000, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_forget(at.w, at.ask.policy, "key", 3), 0);
    ck_assert_uint_eq(one.tokens + leasing_drain(), 100000);
    leasing_close();
}
END_TEST

/* ---- through a handle -------------------------------------------------------------------------------------------- */

/* What a handle has learned before there were leases doesn't hold once another one has the first. */
START_TEST(a_handle_allows_for_the_leases_of_another)
{
    struct weir_key *other;
    uint64_t n = 0;

    open_with(1000000, 100000);
    ck_assert_int_eq(weir_key_open(at.w, at.ask.policy, "key", 3, &other), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(weir_key_take(other, 1, at.now, NULL), WEIR_ALLOW);
    at.interfere = true;
    ck_assert_int_eq(weir_key_take(at.key, 1, 0, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(at.key, 1, at.now, NULL), WEIR_ALLOW);
    ck_assert_uint_ge(at.e->leased, 16);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(weir_key_take(other, 1, at.now, NULL), WEIR_ALLOW);
    leasing_drain();
    at.now += 99999 * 1000; /* one token is missing, or what leases hold */
    while (weir_key_take(other, 1, at.now, NULL) == WEIR_ALLOW)
        n++;
    ck_assert_uint_le(n, 100000 - at.e->leased);
    weir_key_close(other);
    leasing_close();
}
END_TEST

static _Atomic uint64_t admitted;
static _Atomic uint64_t leased_takes;

static void *take_all(void *arg)
{
    uint64_t n = 0;

    (void)arg;
    for (int denied = 0; denied < 100;) {
        if (weir_key_take(at.key, 1 + (int64_t)(n % 3), at.now, NULL) == WEIR_ALLOW) {
            n++;
            if (weir__load_relaxed(&at.e->leased) > 0)
                atomic_fetch_add_explicit(&leased_takes, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&admitted, 1 + (n - 1) % 3, memory_order_relaxed);
        } else {
            denied++;
        }
    }
    return NULL;
}

/* The clock stands: threads on one handle, leasing from each other, take the burst and not a token more or less. */
START_TEST(threads_take_the_burst_exactly)
{
    const uint64_t burst = 1000000;
    struct weir_stats stats = {.size = sizeof stats};
    pthread_t threads[8];

    /* Threads that a busy machine never runs at the same time are never in each other's way: more rounds then. */
    for (int round = 0; round < 3 || (leased_takes == 0 && round < 2000); round++) {
        open_with(100000000, burst);
        /* Not full: what a lease that is just being counted cuts off a full bucket is lost. */
        admitted = burst / 8;
        ck_assert_int_eq(weir_take(at.w, at.ask.policy, "key", 3, (int64_t)(burst / 8), NULL), WEIR_ALLOW);
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, take_all, NULL), 0);
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(weir_stats_get(at.w, &stats), 0);
        ck_assert_uint_eq(stats.denied, 800);
        weir_key_close(at.key); /* what threads held when they ended */
        at.key = NULL;
        ck_assert_uint_eq(at.e->leased, 0);
        ck_assert_uint_eq(at.e->pin, 0);
        ck_assert_uint_eq(admitted + leasing_drain(), burst);
        leasing_close();
    }
    /* one CPU alone never has two threads in one bucket */
    ck_assert(leased_takes > 0 || sysconf(_SC_NPROCESSORS_ONLN) < 2);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("lease");
    TCase *t = tcase_create("lease");

    tcase_add_test(t, leases_grow_to_their_bounds);
    tcase_add_test(t, a_quarter_of_what_is_left);
    tcase_add_test(t, a_sixteenth_in_all);
    tcase_add_test(t, small_limits_are_not_leased);
    tcase_add_test(t, slow_takers_lose_their_lease);
    tcase_add_test(t, a_kept_lease_is_part_of_the_burst);
    tcase_add_test(t, a_spent_lease_leaves_no_room_behind);
    tcase_add_test(t, what_is_given_back_fits);
    tcase_add_test(t, a_change_of_the_policy_ends_a_lease);
    tcase_add_test(t, a_lease_of_a_larger_burst_leaves_the_smaller);
    tcase_add_test(t, what_a_larger_burst_leased_is_cut_off);
    tcase_add_test(t, a_forgotten_key_is_full_but_for_leases);
    tcase_add_test(t, a_handle_allows_for_the_leases_of_another);
    tcase_add_test(t, threads_take_the_burst_exactly);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
