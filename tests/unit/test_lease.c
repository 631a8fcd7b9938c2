/* SPDX-License-Identifier: MIT */
/*
 * lib/lease.h: how large a lease may be, that bucket and leases together never hold more than the burst, and that all
 * comes back; alone and with threads on one handle.
 */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/lease.h"

#define SECOND UINT64_C(1000000000)

static struct weir *w;
static struct weir__ask ask;
static struct weir__hot *e;
static struct weir_key *key; /* pins e */
static struct weir__lease one, two;
static uint64_t now;

static bool interfere; /* another take comes first while the next one asks for the time */

static uint64_t read_now(void *arg)
{
    (void)arg;
    if (interfere) {
        interfere = false;
        ck_assert_int_eq(weir_take_at(w, ask.policy, "key", 3, 1, now, NULL), WEIR_ALLOW);
    }
    return now;
}

static struct weir_policy numbers(uint64_t limit, uint64_t burst)
{
    struct weir_policy p = WEIR_POLICY_INIT;

    p.name = "p";
    p.mode = WEIR_LOCAL;
    p.limit = limit;
    p.per_ns = SECOND;
    p.burst = burst;
    return p;
}

static void open_with(uint64_t limit, uint64_t burst)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy p = numbers(limit, burst);
    weir_policy_id id;
    uint64_t x;

    options.max_keys = 16;
    options.now_ns = read_now;
    now = 1000 * SECOND;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
    ck_assert_int_eq(weir_take(w, id, "other", 5, 1, NULL), WEIR_ALLOW);
    ck_assert_uint_lt(weir_stripe_, w->private_counts); /* from the first verdict on */
    ck_assert_int_eq(weir__take_check(w, id, "key", 3, &ask), 0);
    e = weir__table_search(w, ask.id, &x);
    ck_assert_ptr_nonnull(e);
    memset(&one, 0, sizeof one);
    memset(&two, 0, sizeof two);
}

static void close_all(void)
{
    weir_key_close(key);
    weir_close(w);
}

static bool spend(struct weir__lease *lease, int64_t cost)
{
    uint64_t counts[2] = {0, 0};
    struct weir_quick_ q = {.gate = (const struct weir_gate_ *)(const void *)w->gate,
                            .counts = (char *)counts - weir_stripe_,
                            .stripes = w->private_counts};

    return weir_take_lease_(&q, (char *)lease - weir_stripe_ / WEIR_LEASE_STEP_, cost) == WEIR_ALLOW &&
           counts[WEIR_ALLOW] == 1;
}

/* Fills a lease up to its largest: quickly spent each time. Returns what that took from the bucket besides the lease.
 * */
static uint64_t fill(struct weir__lease *lease, int times)
{
    uint64_t spent = 0;

    weir__lease_want(lease, ask.p, now);
    for (int i = 0; i < times; i++) {
        while (spend(lease, 1))
            spent++;
        if (weir__lease_fill(lease, &ask, e, now, 1) != WEIR_ALLOW)
            break;
        spent++;
    }
    return spent;
}

/* All that the bucket still gives. */
static uint64_t drain(void)
{
    uint64_t n = 0;

    while (weir_take(w, ask.policy, "key", 3, 1, NULL) == WEIR_ALLOW)
        n++;
    return n;
}

/* ---- how much ---------------------------------------------------------------------------------------------------- */

START_TEST(leases_grow_to_their_bounds)
{
    open_with(1000000, 1000000); /* 100 us of it: 100 */
    fill(&one, 1);
    ck_assert_uint_eq(one.tokens, 32);
    ck_assert_uint_eq(e->leased, 32);
    fill(&one, 10);
    ck_assert_uint_le(one.tokens, 100);
    ck_assert_uint_ge(one.tokens, 96);
    ck_assert_uint_eq(e->leased, one.held);
    close_all();
    open_with(100000000, 6400); /* 1/64 of the burst: 100 */
    fill(&one, 10);
    ck_assert_uint_eq(one.tokens, 100);
    close_all();
}
END_TEST

START_TEST(a_quarter_of_what_is_left)
{
    open_with(100000000, 1000000);
    ck_assert_int_eq(weir_take(w, ask.policy, "key", 3, 1000000 - 201, NULL), WEIR_ALLOW);
    weir__lease_want(&one, ask.p, now);
    for (int i = 0; i < 10; i++)
        one.chunk = 1000;
    ck_assert_int_eq(weir__lease_fill(&one, &ask, e, now, 1), WEIR_ALLOW);
    ck_assert_uint_eq(one.tokens, 50);
    ck_assert_int_eq(weir_take(w, ask.policy, "key", 3, 100, NULL), WEIR_ALLOW);
    two.chunk = 1000;
    ck_assert_int_eq(weir__lease_fill(&two, &ask, e, now, 1), WEIR__REKEYED); /* 12 would not be worth it */
    ck_assert_uint_eq(e->leased, 50);
    close_all();
}
END_TEST

START_TEST(a_sixteenth_in_all)
{
    struct weir__lease many[20];

    memset(many, 0, sizeof many);
    open_with(100000000, 6400);
    for (int i = 0; i < 20; i++)
        fill(&many[i], 10);
    ck_assert_uint_le(e->leased, 400);
    ck_assert_uint_ge(e->leased, 400 - 16);
    close_all();
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
        ck_assert_uint_eq(e->leased, 0);
        close_all();
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
            now += 10000;
        (void)weir__lease_fill(&one, &ask, e, now, 1);
    }
    ck_assert_uint_eq(one.chunk, 0);
    ck_assert_uint_eq(one.tokens, 0);
    ck_assert_uint_eq(e->leased, 0);
    close_all();
}
END_TEST

/* ---- exactly ----------------------------------------------------------------------------------------------------- */

START_TEST(a_kept_lease_is_part_of_the_burst)
{
    uint64_t spent;

    open_with(1000000, 100000);
    spent = fill(&one, 10) + fill(&two, 3);
    ck_assert_uint_eq(spent + one.tokens + two.tokens + drain(), 100000);
    now += 3600 * SECOND; /* full again, but for what they hold */
    ck_assert_uint_eq(one.tokens + two.tokens + drain(), 100000);
    now += 10000; /* ten tokens' time */
    ck_assert_uint_eq(drain(), 10);
    close_all();
}
END_TEST

/* An idle bucket fills up only as far as the lease lets it: not further once that is spent and counted off. */
START_TEST(a_spent_lease_leaves_no_room_behind)
{
    uint64_t spent = 0;

    open_with(1000000, 100000);
    fill(&one, 10);
    fill(&two, 10);
    now += SECOND;
    for (int i = 0; i < 2; i++) {
        struct weir__lease *lease = i ? &two : &one;

        while (spend(lease, 1))
            spent++;
        ck_assert_uint_gt(spent, 0);
        spent += weir__lease_fill(lease, &ask, e, now, 1) == WEIR_ALLOW;
    }
    ck_assert_uint_eq(spent + one.tokens + two.tokens + drain(), 100000);
    close_all();
}
END_TEST

START_TEST(what_is_given_back_fits)
{
    uint64_t spent;

    open_with(1000000, 100000);
    fill(&one, 10);
    now += SECOND;
    one.chunk = 0;
    (void)weir__lease_fill(&one, &ask, e, now, 1);
    ck_assert_uint_eq(e->leased, 0);
    ck_assert_uint_eq(one.held, 0);
    now += SECOND;
    ck_assert_uint_eq(drain(), 100000);
    now += SECOND;
    spent = fill(&one, 10);
    one.chunk = 0;
    (void)weir__lease_fill(&one, &ask, e, now, 1);
    ck_assert_uint_eq(spent + drain(), 100000); /* at once: nothing is lost on the way */
    close_all();
}
END_TEST

START_TEST(a_change_of_the_policy_ends_a_lease)
{
    struct weir_policy p = numbers(1000000, 50000);
    uint64_t before;

    open_with(1000000, 100000);
    before = fill(&one, 10) + one.tokens;
    ck_assert_int_eq(weir_policy_set(w, ask.policy, &p), 0);
    ck_assert(!spend(&one, 1));
    before -= one.tokens;
    (void)weir__lease_fill(&one, &ask, e, now, 1);
    ck_assert_uint_gt(before, 0);
    ck_assert_uint_le(one.tokens + drain(), 50000);
    now += SECOND;
    ck_assert_uint_eq(one.tokens + drain(), 50000);
    p.mode = WEIR_HYBRID;
    ck_assert_int_eq(weir_policy_set(w, ask.policy, &p), 0);
    ck_assert(!spend(&one, 1));
    ck_assert_int_eq(weir__lease_fill(&one, &ask, e, now, 1), WEIR__REKEYED);
    ck_assert_uint_eq(e->leased, 0);
    close_all();
}
END_TEST

/* What a thread keeps that takes no more must not weigh on a much smaller bucket. */
START_TEST(a_lease_of_a_larger_burst_leaves_the_smaller)
{
    struct weir_policy p = numbers(100000000, 1600);

    open_with(100000000, 1000000);
    fill(&one, 20);
    ck_assert_uint_gt(e->leased, 1600);
    ck_assert_int_eq(weir_policy_set(w, ask.policy, &p), 0);
    ck_assert(!spend(&one, 1));
    ck_assert_uint_ge(drain(), 1500); /* all but a sixteenth */
    now += SECOND;
    ck_assert_uint_ge(drain(), 1500);
    one.chunk = 0;
    (void)weir__lease_fill(&one, &ask, e, now, 1);
    ck_assert_uint_eq(e->leased, 0);
    now += SECOND;
    ck_assert_uint_eq(drain(), 1600);
    close_all();
}
END_TEST

START_TEST(a_forgotten_key_is_full_but_for_leases)
{
    open_with(1000000, 100000);
    fill(&one, 10);
    ck_assert_int_eq(weir_take(w, ask.policy, "key", 3, 50000, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_forget(w, ask.policy, "key", 3), 0);
    ck_assert_uint_eq(one.tokens + drain(), 100000);
    close_all();
}
END_TEST

/* ---- through a handle -------------------------------------------------------------------------------------------- */

/* What a handle has learned before there were leases doesn't hold once another one has the first. */
START_TEST(a_handle_allows_for_the_leases_of_another)
{
    struct weir_key *other;
    uint64_t n = 0;

    open_with(1000000, 100000);
    ck_assert_int_eq(weir_key_open(w, ask.policy, "key", 3, &other), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(weir_key_take(other, 1, now, NULL), WEIR_ALLOW);
    interfere = true;
    ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_ALLOW);
    ck_assert_uint_ge(e->leased, 16);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(weir_key_take(other, 1, now, NULL), WEIR_ALLOW);
    drain();
    now += 99999 * 1000; /* one token is missing, or what leases hold */
    while (weir_key_take(other, 1, now, NULL) == WEIR_ALLOW)
        n++;
    ck_assert_uint_le(n, 100000 - e->leased);
    weir_key_close(other);
    close_all();
}
END_TEST

static _Atomic uint64_t admitted;
static _Atomic uint64_t leased_takes;

static void *take_all(void *arg)
{
    uint64_t n = 0;

    (void)arg;
    for (int denied = 0; denied < 100;) {
        if (weir_key_take(key, 1 + (int64_t)(n % 3), now, NULL) == WEIR_ALLOW) {
            n++;
            if (weir__load_relaxed(&e->leased) > 0)
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
        ck_assert_int_eq(weir_take(w, ask.policy, "key", 3, (int64_t)(burst / 8), NULL), WEIR_ALLOW);
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, take_all, NULL), 0);
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(weir_stats_get(w, &stats), 0);
        ck_assert_uint_eq(stats.denied, 800);
        weir_key_close(key); /* what threads held when they ended */
        key = NULL;
        ck_assert_uint_eq(e->leased, 0);
        ck_assert_uint_eq(e->pin, 0);
        ck_assert_uint_eq(admitted + drain(), burst);
        close_all();
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
    tcase_add_test(t, a_forgotten_key_is_full_but_for_leases);
    tcase_add_test(t, a_handle_allows_for_the_leases_of_another);
    tcase_add_test(t, threads_take_the_burst_exactly);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    SRunner *runner = srunner_create(suite());
    int failed;

    srunner_run_all(runner, CK_ENV);
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
