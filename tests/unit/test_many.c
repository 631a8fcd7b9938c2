/* SPDX-License-Identifier: MIT */
/*
 * weir_take_many against the same takes one by one, and weir_take_all: every policy or none.
 */
#include <check.h>
#include <pthread.h>
#include <string.h>

#include <weir/weir.h>

#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define HOUR (3600 * SECOND)

static struct weir *w;
static struct weir_result r;
static uint64_t now;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return __atomic_load_n(&now, __ATOMIC_RELAXED);
}

static struct weir *open_one(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir *one;

    options.max_keys = 1000;
    options.now_ns = read_now;
    ck_assert_int_eq(weir_open(&one, &options), 0);
    return one;
}

static void setup(void)
{
    now = 1000 * SECOND;
    w = open_one();
}

static void teardown(void)
{
    weir_close(w);
}

static weir_policy_id add_to(struct weir *to, const char *name, uint64_t limit, uint64_t per_ns, enum weir_mode mode,
                             int shadow)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;

    policy.name = name;
    policy.mode = mode;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.shadow = shadow;
    ck_assert_int_eq(weir_policy_add(to, &policy, &id), 0);
    return id;
}

static weir_policy_id add(const char *name, uint64_t limit, uint64_t per_ns)
{
    return add_to(w, name, limit, per_ns, WEIR_LOCAL, 0);
}

static int64_t left(weir_policy_id id, const char *key)
{
    ck_assert_int_eq(weir_take(w, id, key, strlen(key), 0, &r), WEIR_ALLOW);
    return r.remaining;
}

static struct weir_request request(weir_policy_id id, const char *key, int64_t cost)
{
    return (struct weir_request){.policy = id, .status = 77, .key = key, .key_len = strlen(key), .cost = cost};
}

/* ---- many -------------------------------------------------------------------------------------------------------- */

static void same(const struct weir_result *a, const struct weir_result *b)
{
    ck_assert_uint_eq(a->limit, b->limit);
    ck_assert_int_eq(a->remaining, b->remaining);
    ck_assert_uint_eq(a->retry_after_ns, b->retry_after_ns);
    ck_assert_uint_eq(a->reset_after_ns, b->reset_after_ns);
    ck_assert_uint_eq(a->flags, b->flags);
    ck_assert_uint_eq(a->policy, b->policy);
}

/* Policies of every mode, keys again and again, costs of every kind, lists of every length. */
START_TEST(many_are_as_one_by_one)
{
    enum { MOST = 100 };
    struct weir *other = open_one();
    weir_policy_id ids[4];
    struct weir_request list[MOST];
    struct weir_result results[MOST];
    unsigned keys[MOST];
    uint64_t random = 88172645463325252;

    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"local", "shadow", "hybrid", "strict"};
        enum weir_mode mode = i < 2 ? WEIR_LOCAL : i == 2 ? WEIR_HYBRID : WEIR_STRICT;

        ids[i] = add_to(w, names[i], 10, SECOND, mode, i == 1);
        ck_assert_uint_eq(add_to(other, names[i], 10, SECOND, mode, i == 1), ids[i]);
    }
    for (size_t n = 0; n <= MOST; n++) {
        for (size_t i = 0; i < n; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            keys[i] = (unsigned)(random % 40);
            list[i] = (struct weir_request){.policy = ids[random >> 20 & 3],
                                            .key = &keys[i],
                                            .key_len = sizeof keys[i],
                                            .cost = (int64_t)(random >> 30 & 15) - 1,
                                            .result = random >> 40 & 1 ? &results[i] : NULL};
            if ((random >> 50 & 31) == 0)
                list[i].policy = 99;
            if ((random >> 50 & 31) == 1)
                list[i].key_len = 0;
        }
        now += SECOND / 10;
        weir_take_many(w, list, n, n % 2 ? now : 0);
        /* the strict ones come last, in their order */
        for (int strict = 0; strict < 2; strict++) {
            for (size_t i = 0; i < n; i++) {
                int status;

                if ((list[i].policy == ids[3]) != strict)
                    continue;
                status = weir_take(other, list[i].policy, list[i].key, list[i].key_len, list[i].cost, &r);
                ck_assert_int_eq(list[i].status, status);
                if (list[i].result && status >= 0)
                    same(list[i].result, &r);
            }
        }
    }
    weir_close(other);
}
END_TEST

START_TEST(many_tell_the_first_error)
{
    weir_policy_id id = add("p", 2, HOUR);
    struct weir_request list[4] = {request(id, "a", 1), request(99, "a", 1), request(id, "a", -1), request(id, "a", 1)};

    ck_assert_int_eq(weir_take_many(w, list, 4, 0), WEIR_E_NOENT);
    ck_assert_int_eq(list[0].status, WEIR_ALLOW);
    ck_assert_int_eq(list[1].status, WEIR_E_NOENT);
    ck_assert_int_eq(list[2].status, WEIR_E_COST);
    ck_assert_int_eq(list[3].status, WEIR_ALLOW);
    ck_assert_int_eq(left(id, "a"), 0);
}
END_TEST

/* ---- all or none ------------------------------------------------------------------------------------------------- */

START_TEST(all_are_charged)
{
    weir_policy_id a = add("a", 10, HOUR), b = add("b", 5, HOUR);
    struct weir_result own;
    struct weir_request list[2] = {request(a, "x", 2), request(b, "x", 3)};

    list[0].result = &own;
    ck_assert_int_eq(weir_take_all(w, list, 2, &r), WEIR_ALLOW);
    ck_assert_int_eq(list[0].status, WEIR_ALLOW);
    ck_assert_int_eq(list[1].status, WEIR_ALLOW);
    ck_assert_uint_eq(r.policy, b); /* which has the least left */
    ck_assert_int_eq(r.remaining, 2);
    ck_assert_uint_eq(r.retry_after_ns, 0);
    ck_assert_uint_eq(own.policy, a);
    ck_assert_int_eq(own.remaining, 8);
    ck_assert_int_eq(left(a, "x"), 8);
    ck_assert_int_eq(left(b, "x"), 2);
}
END_TEST

START_TEST(or_none)
{
    weir_policy_id a = add("a", 10, HOUR), b = add("b", 5, HOUR), c = add("c", 1, 2 * HOUR);
    struct weir_stats stats = {.size = sizeof stats};
    struct weir_request list[3] = {request(a, "x", 2), request(b, "x", 3), request(c, "x", 1)};

    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_DENY);
    ck_assert_int_eq(list[0].status, WEIR_ALLOW);
    ck_assert_int_eq(list[1].status, WEIR_DENY);
    ck_assert_int_eq(list[2].status, WEIR_DENY);
    ck_assert_uint_eq(r.policy, b);
    ck_assert_uint_eq(r.retry_after_ns, 2 * HOUR); /* the longest: c's */
    ck_assert_int_eq(left(a, "x"), 8);
    ck_assert_int_eq(left(b, "x"), 2);
    ck_assert_int_eq(left(c, "x"), 0);
    /* with what it says waited out, it passes */
    now += 2 * HOUR - 1;
    ck_assert_int_eq(weir_take_all(w, list, 3, NULL), WEIR_DENY);
    now += 1;
    ck_assert_int_eq(weir_take_all(w, list, 3, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 6);
    ck_assert_uint_eq(stats.denied, 3);
}
END_TEST

START_TEST(the_longest_wait_admits)
{
    weir_policy_id a = add("a", 1, 1000), b = add("b", 1, 7000), c = add("c", 3, 100000);
    struct weir_request list[3] = {request(a, "x", 1), request(b, "x", 1), request(c, "x", 1)};

    for (int i = 0; i < 200; i++) {
        int verdict = weir_take_all(w, list, 3, &r);

        if (verdict == WEIR_ALLOW)
            continue;
        ck_assert_int_eq(verdict, WEIR_DENY);
        now += r.retry_after_ns - 1;
        ck_assert_int_eq(weir_take_all(w, list, 3, NULL), WEIR_DENY);
        now += 1;
        ck_assert_int_eq(weir_take_all(w, list, 3, NULL), WEIR_ALLOW);
    }
}
END_TEST

/* Twice the same bucket: each would pass alone. */
START_TEST(one_bucket_twice)
{
    weir_policy_id a = add("a", 10, HOUR), b = add("b", 10, HOUR);
    struct weir_request list[3] = {request(b, "x", 1), request(a, "x", 6), request(a, "x", 6)};

    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_DENY);
    ck_assert_uint_eq(r.policy, a);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER); /* 12 are more than it ever holds */
    ck_assert_int_eq(list[1].status, WEIR_ALLOW);
    ck_assert_int_eq(list[2].status, WEIR_DENY);
    ck_assert_int_eq(left(a, "x"), 10);
    ck_assert_int_eq(left(b, "x"), 10);
    list[2].cost = 4;
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_ALLOW);
    ck_assert_int_eq(left(a, "x"), 0);
    ck_assert_int_eq(left(b, "x"), 9);
}
END_TEST

/* Whatever it lacks: what is told is the wait until all of them pass, and 1 ns less is not enough. */
START_TEST(waits_for_one_bucket_add_up)
{
    weir_policy_id a = add("a", 10, HOUR);
    struct weir_request list[4] = {request(a, "x", 3), request(a, "y", 9), request(a, "x", 0), request(a, "x", 5)};

    for (int spent = 1; spent <= 10; spent++) {
        now += 2 * HOUR;
        ck_assert_int_eq(weir_take(w, a, "x", 1, spent, NULL), WEIR_ALLOW);
        if (spent <= 2)
            continue;
        ck_assert_int_eq(weir_take_all(w, list, 4, &r), WEIR_DENY);
        ck_assert_uint_eq(r.retry_after_ns, (uint64_t)(spent - 2) * (HOUR / 10));
        now += r.retry_after_ns - 1;
        ck_assert_int_eq(weir_take_all(w, list, 4, NULL), WEIR_DENY);
        now += 1;
        ck_assert_int_eq(weir_take_all(w, list, 4, NULL), WEIR_ALLOW);
    }
    list[0].cost = list[3].cost = INT64_MAX;
    ck_assert_int_eq(weir_take_all(w, list, 4, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
}
END_TEST

START_TEST(errors_charge_nothing)
{
    weir_policy_id a = add("a", 10, HOUR);
    struct weir_request list[2] = {request(a, "x", 1), request(99, "x", 1)};

    memset(&r, 0x55, sizeof r);
    ck_assert_int_eq(weir_take_all(w, list, 2, &r), WEIR_E_NOENT);
    ck_assert_uint_eq(r.limit, UINT64_C(0x5555555555555555));
    ck_assert_int_eq(list[1].status, WEIR_E_NOENT);
    list[1] = request(a, "y", INT64_MIN);
    ck_assert_int_eq(weir_take_all(w, list, 2, &r), WEIR_E_COST);
    list[1] = request(a, "", 1);
    ck_assert_int_eq(weir_take_all(w, list, 2, &r), WEIR_E_KEY);
    ck_assert_int_eq(left(a, "x"), 10);
    list[1] = request(a, "y", 11);
    ck_assert_int_eq(weir_take_all(w, list, 2, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(left(a, "x"), 10);
}
END_TEST

START_TEST(members_that_peek_or_shadow)
{
    weir_policy_id a = add("a", 10, HOUR), s = add_to(w, "s", 1, HOUR, WEIR_LOCAL, 1);
    struct weir_request list[3] = {request(a, "x", 1), request(a, "y", 0), request(s, "x", 1)};

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_ALLOW);
    ck_assert_int_eq(left(a, "x"), 7);
    ck_assert_int_eq(left(a, "y"), 10);
    ck_assert_int_eq(left(s, "x"), 0);
    list[1] = request(a, "x", 8);
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_DENY);
    ck_assert_uint_eq(r.policy, a);
    ck_assert_uint_eq(r.retry_after_ns, 2 * (HOUR / 10)); /* a shadow's own wait is nobody's */
}
END_TEST

/* Without a Redis: shared members are charged to what their outage policies give them, and put back. */
START_TEST(shared_members_without_a_sync)
{
    weir_policy_id a = add("a", 10, HOUR), h = add_to(w, "h", 5, HOUR, WEIR_HYBRID, 0);
    weir_policy_id s = add_to(w, "s", 3, HOUR, WEIR_STRICT, 0);
    struct weir_request list[3] = {request(s, "x", 1), request(h, "x", 1), request(a, "x", 1)};

    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_ALLOW);
        ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    }
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_DENY);
    ck_assert_uint_eq(r.policy, s);
    ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    ck_assert_int_eq(left(a, "x"), 7);
    ck_assert_int_eq(left(h, "x"), 2);
    list[0].cost = 0;
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_all(w, list, 3, &r), WEIR_DENY);
    ck_assert_uint_eq(r.policy, h);
    ck_assert_int_eq(left(a, "x"), 5);
}
END_TEST

struct racer {
    weir_policy_id a, b;
    uint64_t both, only_a;
};

/* Half of the time a and b together (b is what runs out), half of the time a alone. */
static void *race(void *arg)
{
    struct racer *racer = arg;
    struct weir_request list[2] = {request(racer->a, "x", 1), request(racer->b, "x", 1)};

    for (int i = 0; i < 4000; i++) {
        if (i % 2)
            racer->both += weir_take_all(w, list, 2, NULL) == WEIR_ALLOW;
        else
            racer->only_a += weir_take(w, racer->a, "x", 1, 1, NULL) == WEIR_ALLOW;
    }
    return NULL;
}

/* No token is lost or lent, whichever of two threads put it back when. */
START_TEST(putting_back_loses_nothing)
{
    struct racer racers[4];
    pthread_t threads[4];
    weir_policy_id a = add("a", 1000000, 24 * HOUR), b = add("b", 3000, 24 * HOUR);
    uint64_t both = 0, only_a = 0;

    for (int i = 0; i < 4; i++) {
        racers[i] = (struct racer){.a = a, .b = b};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        both += racers[i].both;
        only_a += racers[i].only_a;
    }
    ck_assert_uint_eq(both, 3000);
    ck_assert_uint_eq(only_a, 8000);
    ck_assert_int_eq(left(a, "x"), 1000000 - 11000);
    ck_assert_int_eq(left(b, "x"), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("many");
    TCase *many = tcase_create("many"), *all = tcase_create("all");

    tcase_add_checked_fixture(many, setup, teardown);
    tcase_add_test(many, many_are_as_one_by_one);
    tcase_add_test(many, many_tell_the_first_error);
    suite_add_tcase(s, many);
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, all_are_charged);
    tcase_add_test(all, or_none);
    tcase_add_test(all, the_longest_wait_admits);
    tcase_add_test(all, one_bucket_twice);
    tcase_add_test(all, waits_for_one_bucket_add_up);
    tcase_add_test(all, errors_charge_nothing);
    tcase_add_test(all, members_that_peek_or_shadow);
    tcase_add_test(all, shared_members_without_a_sync);
    tcase_add_test(all, putting_back_loses_nothing);
    suite_add_tcase(s, all);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
