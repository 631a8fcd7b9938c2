/* SPDX-License-Identifier: MIT */
/*
 * weir/quick.h: takes that are compiled into their caller decide as the library does: against a limiter that is only
 * asked by its functions, with results, at random; and what has been noted of a bucket ends with whatever changes it.
 */
#include <check.h>
#include <string.h>

#include <weir/weir.h>

#include "support/local_policy.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define SHADOW 1
#define TAKES 200000

static uint64_t now;
static weir_policy_id id;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static struct weir *open_limiter(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir *w;

    options.max_keys = 16;
    options.now_ns = read_now;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    return w;
}

static struct weir_policy numbers(uint64_t limit, uint64_t burst, int shadow)
{
    struct weir_policy p = local_policy(limit, SECOND, burst);

    p.shadow = shadow;
    return p;
}

static struct weir_key *open_key(struct weir *w, uint64_t limit, uint64_t burst)
{
    struct weir_policy p = numbers(limit, burst, 0);
    struct weir_key *key;

    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
    return key;
}

static void change(struct weir *w, uint64_t limit, uint64_t burst, int shadow)
{
    struct weir_policy p = numbers(limit, burst, shadow);

    ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
}

/* Takes until one is denied, and twice more, so that it is known to be empty. */
static unsigned drain(struct weir_key *key)
{
    unsigned n = 0;

    while (weir_key_take(key, 1, now, NULL) == WEIR_ALLOW)
        n++;
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_DENY);
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_DENY);
    return n;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

/* ---- as the library does ----------------------------------------------------------------------------------------- */

static const struct {
    uint64_t limit, burst;
} shapes[] = {{1, 1}, {10, 3}, {1000, 1000}, {3, 1000000}, {100000000, 100000000}, {5, 5}, {7777777, 20}};

/* One step of both: time passes or goes back, and the same is done to both. */
static void step(struct weir *a, struct weir_key *quick, struct weir *b, uint64_t burst)
{
    static int (*volatile called)(struct weir_key *, int64_t, uint64_t, struct weir_result *) = weir_key_take;
    static const int64_t costs[] = {1, 1, 1, 1, 2, 3, 0, -1, 100, INT64_MAX};
    int64_t cost = costs[below(sizeof costs / sizeof costs[0])];
    uint64_t at = below(3) ? now : now - below(1000);
    struct weir_result r;
    int want, got;

    if (below(4) == 0)
        now += below(4) == 0 ? below(SECOND) : below(2000);
    want = weir_take_at(b, id, "key", 3, cost, at, &r);
    switch (below(4)) {
    case 0: got = called(quick, cost, at, NULL); break;
    case 1: /* by constants the compiler makes other code */
        got = cost == 1 ? weir_key_take(quick, 1, at, NULL) : weir_key_take(quick, cost, at, NULL);
        break;
    default: got = weir_key_take(quick, cost, at, NULL);
    }
    ck_assert_int_eq(got, want);
    if (below(500) == 0) {
        int64_t tokens = (int64_t)below(burst + 2);

        ck_assert_int_eq(weir_give(a, id, "key", 3, tokens), weir_give(b, id, "key", 3, tokens));
    }
    if (below(5000) == 0)
        ck_assert_int_eq(weir_forget(a, id, "key", 3), weir_forget(b, id, "key", 3));
}

START_TEST(decides_as_the_library)
{
    struct weir *a = open_limiter(), *b = open_limiter();
    uint64_t limit = shapes[_i].limit, burst = shapes[_i].burst;
    struct weir_key *quick, *other;
    struct weir_stats seen = {.size = sizeof seen}, wanted = {.size = sizeof wanted};

    now = 1000 * SECOND;
    quick = open_key(a, limit, burst);
    other = open_key(b, limit, burst);
    for (int n = 0; n < TAKES; n++) {
        step(a, quick, b, burst);
        if (n % 20000 == 19999) {
            uint64_t new_limit = 1 + below(limit), new_burst = 1 + below(burst * 2);

            change(a, new_limit, new_burst, 0);
            change(b, new_limit, new_burst, 0);
        }
    }
    ck_assert_int_eq(weir_stats_get(a, &seen), 0);
    ck_assert_int_eq(weir_stats_get(b, &wanted), 0);
    ck_assert_uint_eq(seen.allowed, wanted.allowed);
    ck_assert_uint_eq(seen.denied, wanted.denied);
    weir_key_close(quick);
    weir_key_close(other);
    weir_close(a);
    weir_close(b);
}
END_TEST

/* ---- what is noted ends ------------------------------------------------------------------------------------------ */

START_TEST(an_empty_bucket_fills_at_its_moment)
{
    struct weir *w = open_limiter();
    struct weir_key *key;

    now = 1000 * SECOND;
    key = open_key(w, 3, 2);
    for (int round = 0; round < 5; round++) {
        struct weir_result r;

        drain(key);
        ck_assert_int_eq(weir_key_take(key, 1, now, &r), WEIR_DENY);
        now += r.retry_after_ns - 1;
        ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_DENY);
        now++;
        ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_ALLOW);
    }
    weir_key_close(key);
    weir_close(w);
}
END_TEST

START_TEST(gifts_and_forgetting_end_it)
{
    struct weir *w = open_limiter();
    struct weir_key *key;

    now = 1000 * SECOND;
    key = open_key(w, 1, 5);
    ck_assert_uint_eq(drain(key), 5);
    ck_assert_int_eq(weir_give(w, id, "key", 3, 2), 0);
    ck_assert_uint_eq(drain(key), 2);
    ck_assert_int_eq(weir_forget(w, id, "key", 3), 0);
    ck_assert_uint_eq(drain(key), 5);
    weir_key_close(key);
    weir_close(w);
}
END_TEST

START_TEST(changes_of_the_policy_end_it)
{
    struct weir *w = open_limiter();
    struct weir_key *key;

    now = 1000 * SECOND;
    key = open_key(w, 1, 5);
    drain(key);
    change(w, 1000, 5, 0); /* a thousand times the rate */
    now += SECOND / 1000;
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_ALLOW);
    drain(key);
    change(w, 1000, 5, SHADOW);
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_ALLOW);
    change(w, 1000, 5, 0);
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_DENY);
    now += SECOND;
    ck_assert_uint_eq(drain(key), 5);
    now += SECOND;
    ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_ALLOW);
    change(w, 1000, 2, 0); /* a smaller burst clips what a handle knew of the larger one */
    ck_assert_uint_eq(drain(key), 2);
    now += 10 * SECOND;
    ck_assert_uint_eq(drain(key), 2);
    weir_key_close(key);
    weir_close(w);
}
END_TEST

/* After decades the bucket is full, once, though it was empty and noted to be; then no sooner for the time before. */
START_TEST(a_time_far_ahead_finds_a_full_bucket)
{
    const uint64_t year = UINT64_C(365) * 86400 * SECOND;
    struct weir *w;
    struct weir_key *key;

    for (uint64_t years = 6; years <= 500; years += years < 50 ? 1 : 25) {
        w = open_limiter();
        now = 1000 * SECOND;
        key = open_key(w, 1, 5);
        ck_assert_uint_eq(drain(key), 5);
        ck_assert_int_eq(weir_key_take(key, 1, now, NULL), WEIR_DENY);
        now += years * year;
        ck_assert_uint_eq(drain(key), 5);
        now -= years * year;
        ck_assert_uint_eq(drain(key), 0);
        now += years * year + SECOND;
        ck_assert_uint_eq(drain(key), 1);
        weir_key_close(key);
        weir_close(w);
    }
}
END_TEST

START_TEST(two_handles_share_a_bucket)
{
    struct weir *w = open_limiter();
    struct weir_key *one, *two;

    now = 1000 * SECOND;
    one = open_key(w, 1, 4);
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &two), 0);
    drain(one);
    ck_assert_uint_eq(drain(two), 0);
    now += 2 * SECOND;
    ck_assert_int_eq(weir_key_take(two, 2, now, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(drain(one), 0);
    ck_assert_int_eq(weir_take(w, id, "key", 3, 1, NULL), WEIR_DENY);
    weir_key_close(one);
    ck_assert_uint_eq(drain(two), 0);
    weir_key_close(two);
    weir_close(w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("quick");
    TCase *t = tcase_create("quick");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, decides_as_the_library, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_test(t, an_empty_bucket_fills_at_its_moment);
    tcase_add_test(t, gifts_and_forgetting_end_it);
    tcase_add_test(t, changes_of_the_policy_end_it);
    tcase_add_test(t, a_time_far_ahead_finds_a_full_bucket);
    tcase_add_test(t, two_handles_share_a_bucket);
    suite_add_tcase(suite, t);
    return suite_run(suite);
}
