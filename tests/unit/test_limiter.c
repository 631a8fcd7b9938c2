/* SPDX-License-Identifier: MIT */
/*
 * The public contract of a local limiter: what users of other limiters have reported as bugs, as scenarios; bad input;
 * results; refunds; handles; a full table; fork.
 */
#include <check.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weir/weir.h>

#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)

static uint64_t now; /* the limiter's clock */
static struct weir *w;
static struct weir_result r;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static void setup(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = 100;
    options.now_ns = read_now;
    now = 0;
    memset(&r, 0xff, sizeof r);
    ck_assert_int_eq(weir_open(&w, &options), 0);
}

static void teardown(void)
{
    weir_close(w);
}

static weir_policy_id add(const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id = UINT32_MAX;

    policy.name = name;
    policy.mode = WEIR_LOCAL;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    return id;
}

static int take(weir_policy_id id, int64_t cost)
{
    return weir_take(w, id, "key", 3, cost, &r);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

START_TEST(case_1_clock_steps_back)
{
    weir_policy_id id = add("p", 1, SECOND, 10);

    now = 100 * SECOND;
    ck_assert_int_eq(take(id, 3), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 7);
    now = 89 * SECOND;
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 6);
    now = 101 * SECOND;
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 6);
}
END_TEST

/* What is waited for is told by the clock that was set back. */
START_TEST(case_1_waits_while_the_clock_is_back)
{
    weir_policy_id id = add("p", 1, SECOND, 10);

    now = 100 * SECOND;
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    now = 89 * SECOND;
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 12 * SECOND);
    ck_assert_uint_eq(r.reset_after_ns, 21 * SECOND);
    now += r.retry_after_ns - 1;
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    now += 1;
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
}
END_TEST

/* A key that made room for others while the clock was ahead is not full twice. */
START_TEST(case_1_a_dropped_key_is_not_made_in_the_past)
{
    weir_policy_id id = add("p", 1, SECOND, 10);
    struct weir_stats stats = {.size = sizeof stats};

    now = 100 * SECOND;
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    now = 200 * SECOND;
    for (int i = 0; i < 2000; i++, now++) /* each is full again by the time it must go */
        weir_take(w, id, &i, sizeof i, 10, NULL), now += 10 * SECOND;
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_gt(stats.evictions, 0);
    now = 150 * SECOND;
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    now = 160 * SECOND;
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
}
END_TEST

/* A clock that began at 0 and is set right, or a key that nobody asks for: at every rate, whatever call comes first. */
START_TEST(case_1_a_clock_that_jumps_decades_ahead)
{
    static const uint64_t rates[][3] = {
        {10, 100000 * SECOND, 1}, {1, DAY, 9}, {100000000, SECOND, 1000}, {1000, SECOND, 1000}, {1, HOUR, 10}};
    const uint64_t *rate = rates[_i];
    int64_t burst = (int64_t)rate[2];
    struct weir_policy same = WEIR_POLICY_INIT;

    same.mode = WEIR_LOCAL;
    same.limit = rate[0];
    same.per_ns = rate[1];
    same.burst = rate[2];
    for (uint64_t years = 1; years < 584; years += years / 4 + 1) {
        weir_policy_id id;

        teardown();
        setup();
        id = add("p", rate[0], rate[1], rate[2]);
        now = 1;
        ck_assert_int_eq(take(id, burst), WEIR_ALLOW);
        now = years * 365 * DAY;
        if (years % 4 == 0)
            ck_assert_int_eq(weir_give(w, id, "key", 3, 1), 0);
        else if (years % 4 == 1)
            ck_assert_int_eq(weir_peek(w, id, "key", 3, burst, NULL), WEIR_ALLOW);
        else if (years % 4 == 2)
            ck_assert_int_eq(weir_policy_set(w, id, &same), 0);
        for (int64_t left = burst; left > 0; left -= burst > 20 ? burst : 1)
            ck_assert_int_eq(weir_take(w, id, "key", 3, burst > 20 ? burst : 1, NULL), WEIR_ALLOW);
        ck_assert_int_eq(take(id, 1), WEIR_DENY);
        ck_assert_uint_eq(r.retry_after_ns, (rate[1] + rate[0] - 1) / rate[0]);
    }
}
END_TEST

/* What never refills doesn't refill in decades either. */
START_TEST(case_1_decades_are_not_for_ever)
{
    weir_policy_id never = add("never", 0, SECOND, 5), slow = add("slow", 1, DAY, 1000000);

    ck_assert_int_eq(take(never, 3), WEIR_ALLOW);
    ck_assert_int_eq(take(slow, 1000000), WEIR_ALLOW);
    now = 100 * 365 * DAY;
    ck_assert_int_eq(take(never, 3), WEIR_DENY);
    ck_assert_int_eq(r.remaining, 2);
    ck_assert_int_eq(take(slow, 36500), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 0);
}
END_TEST

START_TEST(case_4_the_first_take_is_allowed)
{
    static const uint64_t starts[] = {3758770000000, 0, 1, INT64_MAX - 10 * SECOND};
    weir_policy_id id = add("p", 10, 100000 * SECOND, 1);

    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        teardown();
        setup();
        id = add("p", 10, 100000 * SECOND, 1); /* 0.0001 a second */
        now = starts[i];
        ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
        ck_assert_uint_eq(r.retry_after_ns, 0);
        ck_assert_int_eq(take(id, 1), WEIR_DENY);
        ck_assert_uint_eq(r.retry_after_ns, 10000 * SECOND);
    }
}
END_TEST

/* ---- range and precision ----------------------------------------------------------------------------------------- */

START_TEST(case_6_the_retry_moment_is_exact)
{
    weir_policy_id hourly = add("hourly", 1, HOUR, 1), daily = add("daily", 1, DAY, 1);

    ck_assert_int_eq(take(hourly, 1), WEIR_ALLOW);
    ck_assert_int_eq(take(daily, 1), WEIR_ALLOW);
    now = SECOND;
    ck_assert_int_eq(take(daily, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 86399 * SECOND);
    now = UINT64_C(1979657712173);
    ck_assert_int_eq(take(hourly, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, UINT64_C(1620342287827));
    now = HOUR - 1;
    ck_assert_int_eq(take(hourly, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 1);
    now = HOUR;
    ck_assert_int_eq(take(hourly, 1), WEIR_ALLOW);
    now = DAY - 1;
    ck_assert_int_eq(take(daily, 1), WEIR_DENY);
    now = DAY;
    ck_assert_int_eq(take(daily, 1), WEIR_ALLOW);
}
END_TEST

/* The same, many hours in a row and at a large uptime: nothing is lost or gained. */
START_TEST(case_6_again_and_again)
{
    weir_policy_id id = add("p", 1, HOUR, 1);

    now = 5 * 365 * DAY + 12345;
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    for (int i = 0; i < 1000; i++) {
        now += HOUR - 1;
        ck_assert_int_eq(take(id, 1), WEIR_DENY);
        now += 1;
        ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    }
}
END_TEST

static int allowed_of(weir_policy_id id, int takes)
{
    int allowed = 0;

    for (int i = 0; i < takes; i++)
        allowed += take(id, 1) == WEIR_ALLOW;
    return allowed;
}

START_TEST(case_9_rates_above_one_a_millisecond)
{
    weir_policy_id a = add("a", 6000, SECOND, 6000), b = add("b", 1500, SECOND, 20);
    weir_policy_id c = add("c", 10000000, SECOND, 1), d = add("d", 2000, SECOND, 1);
    int allowed = 0;

    now = 1000 * SECOND;
    ck_assert_int_eq(allowed_of(a, 6001), 6000);
    ck_assert_uint_eq(r.retry_after_ns, 166667);
    ck_assert_int_eq(allowed_of(b, 21), 20);
    ck_assert_uint_eq(r.retry_after_ns, 666667);
    ck_assert_int_eq(allowed_of(c, 2), 1);
    ck_assert_uint_eq(r.retry_after_ns, 100);
    ck_assert_int_eq(allowed_of(d, 2), 1);
    for (int i = 0; i < 10000; i++) {
        now += 100000;
        allowed += take(d, 1) == WEIR_ALLOW;
    }
    ck_assert_int_eq(allowed, 2000);
}
END_TEST

/* ---- parameters and costs ---------------------------------------------------------------------------------------- */

START_TEST(case_11_cost_above_the_burst)
{
    weir_policy_id id = add("p", 10, 60 * SECOND, 10);

    ck_assert_int_eq(take(id, 5), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 5);
    ck_assert_int_eq(take(id, 100), WEIR_DENY);
    ck_assert_int_eq(r.remaining, 5);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(take(id, INT64_MAX), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(take(id, 5), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 0);
}
END_TEST

START_TEST(case_12_negative_cost)
{
    weir_policy_id id = add("p", 1, HOUR, 10);
    struct weir_request both[2] = {{.policy = id, .key = "key", .key_len = 3, .cost = 1},
                                   {.policy = id, .key = "other", .key_len = 5, .cost = -1}};

    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(take(id, -5), WEIR_E_COST);
    ck_assert_int_eq(take(id, INT64_MIN), WEIR_E_COST);
    ck_assert_int_eq(weir_give(w, id, "key", 3, -1), WEIR_E_COST);
    ck_assert_int_eq(weir_peek(w, id, "key", 3, -1, &r), WEIR_E_COST);
    ck_assert_int_eq(weir_take_all(w, both, 2, &r), WEIR_E_COST);
    ck_assert_int_eq(weir_take_many(w, both, 2, 0), WEIR_E_COST);
    ck_assert_int_eq(both[0].status, WEIR_DENY);
    ck_assert_int_eq(both[1].status, WEIR_E_COST);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    ck_assert_int_eq(r.remaining, 0);
}
END_TEST

START_TEST(case_12_cost_zero_peeks)
{
    weir_policy_id id = add("p", 1, HOUR, 10);
    struct weir_stats stats = {.size = sizeof stats};

    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 10);
    ck_assert_int_eq(weir_peek(w, id, "key", 3, 10, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_peek(w, id, "key", 3, 11, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(take(id, 11), WEIR_DENY);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.keys, 0);
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 0);
    ck_assert_int_eq(weir_peek(w, id, "key", 3, 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, HOUR);
    ck_assert_int_eq(weir_peek(w, id, "key", 3, 0, NULL), WEIR_ALLOW);
}
END_TEST

/* ---- what is reported -------------------------------------------------------------------------------------------- */

START_TEST(case_15_waits_are_rounded_up)
{
    weir_policy_id slow = add("slow", 2, 5 * SECOND, 1), fast = add("fast", 1, SECOND, 1);

    ck_assert_int_eq(take(slow, 1), WEIR_ALLOW);
    ck_assert_uint_eq(r.reset_after_ns, 2500 * MS);
    ck_assert_int_eq(take(fast, 1), WEIR_ALLOW);
    now = 200 * MS;
    ck_assert_int_eq(take(slow, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 2300 * MS);
    now = 999999500;
    ck_assert_int_eq(take(fast, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 500);
    now = 2200 * MS;
    ck_assert_int_eq(take(slow, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 300 * MS);
    now = 2500 * MS;
    ck_assert_int_eq(take(slow, 1), WEIR_ALLOW);
}
END_TEST

START_TEST(results_are_filled)
{
    weir_policy_id other = add("other", 1, SECOND, 1), id = add("p", 10, SECOND, 20);

    (void)other;
    ck_assert_int_eq(take(id, 15), WEIR_ALLOW);
    ck_assert_uint_eq(r.limit, 20);
    ck_assert_int_eq(r.remaining, 5);
    ck_assert_uint_eq(r.retry_after_ns, 0);
    ck_assert_uint_eq(r.reset_after_ns, 1500 * MS);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_uint_eq(r.policy, id);
    ck_assert_ptr_eq(r.limiter, w);
    ck_assert_uint_eq(r.reserved[0], 0);
    now = 50 * MS;
    ck_assert_int_eq(take(id, 8), WEIR_DENY);
    ck_assert_int_eq(r.remaining, 5); /* 5.5 */
    ck_assert_uint_eq(r.retry_after_ns, 250 * MS);
    ck_assert_uint_eq(r.reset_after_ns, 1450 * MS);
}
END_TEST

START_TEST(limit_0_is_the_burst_once)
{
    weir_policy_id id = add("p", 0, SECOND, 3);

    ck_assert_int_eq(allowed_of(id, 5), 3);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_uint_eq(r.reset_after_ns, WEIR_NEVER);
    now = 5 * 365 * DAY;
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
}
END_TEST

/* ---- keys -------------------------------------------------------------------------------------------------------- */

START_TEST(case_36_key_identity)
{
    static char longest[65536], changed[65536];
    const struct {
        const char *policy;
        const void *key;
        size_t len;
    } keys[] = {{"a:b", "c", 1},  {"a", "b:c", 3}, {"a", "a b", 3},       {"a", "a\r\nb", 4},
                {"a", "a\0b", 3}, {"a", "a", 1},   {"a", longest, 65535}, {"a", changed, 65535}};
    weir_policy_id id, ids[2] = {add("a:b", 1, DAY, 1), add("a", 1, DAY, 1)};
    int allowed = 0, denied = 0;

    memset(longest, 'x', sizeof longest);
    memset(changed, 'x', sizeof changed);
    changed[65534] = 'y';
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            int verdict;

            ck_assert_int_eq(weir_policy_find(w, keys[i].policy, &id), 0);
            verdict = weir_take(w, id, keys[i].key, keys[i].len, 1, NULL);
            allowed += verdict == WEIR_ALLOW;
            denied += verdict == WEIR_DENY;
        }
    }
    ck_assert_int_eq(allowed, 8);
    ck_assert_int_eq(denied, 8);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(weir_take(w, ids[i], "", 0, 1, NULL), WEIR_E_KEY);
        ck_assert_int_eq(weir_take(w, ids[i], longest, 65536, 1, NULL), WEIR_E_KEY);
        ck_assert_int_eq(weir_take(w, ids[i], longest, SIZE_MAX, 1, NULL), WEIR_E_KEY);
        ck_assert_int_eq(weir_take(w, ids[i], NULL, 1, 1, NULL), WEIR_E_KEY);
    }
}
END_TEST

START_TEST(every_call_checks_its_key_and_policy)
{
    weir_policy_id id = add("p", 1, SECOND, 1);
    struct weir_request bad = {.policy = id, .key = "", .key_len = 0, .cost = 1};
    struct weir_key *key = (struct weir_key *)&bad;

    ck_assert_int_eq(weir_take_at(w, id, "", 0, 1, 0, NULL), WEIR_E_KEY);
    ck_assert_int_eq(weir_peek(w, id, "", 0, 1, NULL), WEIR_E_KEY);
    ck_assert_int_eq(weir_give(w, id, "", 0, 1), WEIR_E_KEY);
    ck_assert_int_eq(weir_forget(w, id, "", 0), WEIR_E_KEY);
    ck_assert_int_eq(weir_key_open(w, id, "", 0, &key), WEIR_E_KEY);
    ck_assert_ptr_null(key);
    ck_assert_int_eq(weir_take_many(w, &bad, 1, 0), WEIR_E_KEY);
    ck_assert_int_eq(bad.status, WEIR_E_KEY);
    ck_assert_int_eq(weir_take_all(w, &bad, 1, NULL), WEIR_E_KEY);
    ck_assert_int_eq(weir_take_wait(w, &bad, 0, NULL), WEIR_E_KEY);
    bad = (struct weir_request){.policy = id + 1, .key = "k", .key_len = 1, .cost = 1};
    ck_assert_int_eq(weir_take(w, id + 1, "k", 1, 1, NULL), WEIR_E_NOENT);
    ck_assert_int_eq(weir_take(w, UINT32_MAX, "k", 1, 1, NULL), WEIR_E_NOENT);
    ck_assert_int_eq(weir_peek(w, id + 1, "k", 1, 1, NULL), WEIR_E_NOENT);
    ck_assert_int_eq(weir_give(w, id + 1, "k", 1, 1), WEIR_E_NOENT);
    ck_assert_int_eq(weir_forget(w, id + 1, "k", 1), WEIR_E_NOENT);
    ck_assert_int_eq(weir_key_open(w, id + 1, "k", 1, &key), WEIR_E_NOENT);
    ck_assert_int_eq(weir_take_many(w, &bad, 1, 0), WEIR_E_NOENT);
    ck_assert_int_eq(weir_take_all(w, &bad, 1, NULL), WEIR_E_NOENT);
    ck_assert_int_eq(weir_take(NULL, id, "k", 1, 1, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_peek(NULL, id, "k", 1, 1, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_give(NULL, id, "k", 1, 1), WEIR_E_INVAL);
    ck_assert_int_eq(weir_forget(NULL, id, "k", 1), WEIR_E_INVAL);
    ck_assert_int_eq(weir_key_open(NULL, id, "k", 1, &key), WEIR_E_INVAL);
    ck_assert_int_eq(weir_key_open(w, id, "k", 1, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_key_take(NULL, 1, 0, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_take_many(NULL, &bad, 1, 0), WEIR_E_INVAL);
    ck_assert_int_eq(weir_take_many(w, NULL, 1, 0), WEIR_E_INVAL);
    ck_assert_int_eq(weir_take_many(w, NULL, 0, 0), 0);
    ck_assert_int_eq(weir_take_all(w, &bad, 0, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_take_all(w, &bad, 65, NULL), WEIR_E_RANGE);
    ck_assert_int_eq(weir_take_async(w, &bad, NULL, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_stats_get(w, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_stats_get(NULL, &(struct weir_stats){.size = sizeof(struct weir_stats)}), WEIR_E_INVAL);
    ck_assert_int_eq(weir_stats_get(w, &(struct weir_stats){0}), WEIR_E_INVAL);
    weir_key_close(NULL);
    weir_close(NULL);
}
END_TEST

static void never_called(void *arg, int status, const struct weir_result *result)
{
    (void)arg;
    (void)status;
    (void)result;
    ck_abort_msg("called back without a sync");
}

START_TEST(asking_redis_needs_a_sync)
{
    weir_policy_id id = add("p", 1, SECOND, 1);
    struct weir_request request = {.policy = id, .key = "k", .key_len = 1, .cost = 1};

    ck_assert_int_eq(weir_take_async(w, &request, never_called, NULL), WEIR_E_NOSYNC);
    ck_assert_int_eq(weir_take_wait(w, &request, 0, &r), WEIR_ALLOW); /* nobody needs to be asked */
    ck_assert_int_eq(weir_take_wait(w, &request, 0, &r), WEIR_DENY);
}
END_TEST

/* ---- refunds, forgetting, handles -------------------------------------------------------------------------------- */

START_TEST(gifts_are_clamped_at_the_burst)
{
    weir_policy_id id = add("p", 1, HOUR, 10);

    ck_assert_int_eq(weir_give(w, id, "key", 3, 5), 0); /* of a key that nobody took from: full already */
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(weir_give(w, id, "key", 3, 4), 0);
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 4);
    ck_assert_int_eq(weir_give(w, id, "key", 3, 0), 0);
    ck_assert_int_eq(weir_give(w, id, "key", 3, 7), 0);
    ck_assert_int_eq(take(id, 0), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 10);
    ck_assert_int_eq(weir_give(w, id, "key", 3, INT64_MAX), 0);
    now = 5 * HOUR; /* what was given past the burst isn't kept either */
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(weir_give(w, id, "key", 3, INT64_MAX), 0);
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
}
END_TEST

START_TEST(a_gift_keeps_the_fraction)
{
    weir_policy_id id = add("p", 1, SECOND, 10);

    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    now = 400 * MS;
    ck_assert_int_eq(weir_give(w, id, "key", 3, 2), 0);
    ck_assert_int_eq(take(id, 3), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 600 * MS);
}
END_TEST

START_TEST(a_forgotten_key_is_full)
{
    weir_policy_id id = add("p", 1, DAY, 10);
    struct weir_stats stats = {.size = sizeof stats};

    ck_assert_int_eq(weir_forget(w, id, "key", 3), 0);
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(weir_forget(w, id, "key", 3), 0);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.keys, 0);
    ck_assert_int_eq(take(id, 10), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
}
END_TEST

START_TEST(handles)
{
    weir_policy_id id = add("p", 1, SECOND, 10);
    struct weir_key *a, *b;

    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &a), 0);
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &b), 0);
    ck_assert_int_eq(weir_key_take(a, 4, 0, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 6);
    ck_assert_uint_eq(r.policy, id);
    ck_assert_int_eq(weir_key_take(b, 4, 0, &r), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 1);
    ck_assert_int_eq(weir_key_take(a, 2, 0, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, SECOND);
    ck_assert_int_eq(weir_key_take(a, 2, SECOND, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(a, 0, SECOND, &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 0);
    ck_assert_int_eq(weir_key_take(a, -1, SECOND, &r), WEIR_E_COST);
    ck_assert_int_eq(weir_key_take(a, 11, SECOND, &r), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(weir_forget(w, id, "key", 3), 0); /* pinned: stays, and is full */
    ck_assert_int_eq(weir_key_take(a, 10, SECOND, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(b, 1, SECOND, &r), WEIR_DENY);
    weir_key_close(a);
    ck_assert_int_eq(weir_key_take(b, 1, 2 * SECOND, NULL), WEIR_ALLOW);
    weir_key_close(b);
}
END_TEST

START_TEST(shadow_policies_never_deny)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_stats stats = {.size = sizeof stats};
    weir_policy_id id;

    policy.name = "p";
    policy.mode = WEIR_LOCAL;
    policy.limit = 1;
    policy.per_ns = HOUR;
    policy.shadow = 1;
    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, 0);
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW);
    ck_assert_uint_eq(r.retry_after_ns, HOUR);
    ck_assert_int_eq(take(id, 2), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(weir_peek(w, id, "key", 3, 1, &r), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 3); /* what the caller got */
    ck_assert_uint_eq(stats.denied, 0);
}
END_TEST

/* ---- shared policies without Redis ------------------------------------------------------------------------------- */

static weir_policy_id add_shared(enum weir_mode mode, enum weir_on_outage on_outage)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;

    policy.name = "shared";
    policy.mode = mode;
    policy.on_outage = on_outage;
    policy.limit = 5;
    policy.per_ns = HOUR;
    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    return id;
}

START_TEST(without_a_sync_the_outage_policy_answers)
{
    static const enum weir_mode modes[] = {WEIR_HYBRID, WEIR_STRICT};
    struct weir_stats stats = {.size = sizeof stats};
    weir_policy_id id = add_shared(modes[_i / 3], (enum weir_on_outage)(_i % 3));
    static const int expected[] = {5, 8, 0};
    int allowed = 0;

    for (int i = 0; i < 8; i++) {
        allowed += take(id, 1) == WEIR_ALLOW;
        ck_assert_uint_eq(r.flags & WEIR_DEGRADED, WEIR_DEGRADED);
        ck_assert_uint_eq(r.policy, id);
        ck_assert_uint_eq(r.limit, 5);
    }
    ck_assert_int_eq(allowed, expected[_i % 3]);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.degraded, 8);
    ck_assert_uint_eq(stats.allowed + stats.denied, 8);
    ck_assert_int_eq(take(id, 6), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    ck_assert_int_eq(take(id, -1), WEIR_E_COST);
    ck_assert_int_ge(take(id, 0), WEIR_ALLOW);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("limiter");
    TCase *t;

    t = tcase_create("time");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, case_1_clock_steps_back);
    tcase_add_test(t, case_1_waits_while_the_clock_is_back);
    tcase_add_test(t, case_1_a_dropped_key_is_not_made_in_the_past);
    tcase_add_loop_test(t, case_1_a_clock_that_jumps_decades_ahead, 0, 5);
    tcase_add_test(t, case_1_decades_are_not_for_ever);
    tcase_add_test(t, case_4_the_first_take_is_allowed);
    suite_add_tcase(s, t);

    t = tcase_create("range_and_precision");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, case_6_the_retry_moment_is_exact);
    tcase_add_test(t, case_6_again_and_again);
    tcase_add_test(t, case_9_rates_above_one_a_millisecond);
    suite_add_tcase(s, t);

    t = tcase_create("parameters_and_costs");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, case_11_cost_above_the_burst);
    tcase_add_test(t, case_12_negative_cost);
    tcase_add_test(t, case_12_cost_zero_peeks);
    suite_add_tcase(s, t);

    t = tcase_create("what_is_reported");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, case_15_waits_are_rounded_up);
    tcase_add_test(t, results_are_filled);
    tcase_add_test(t, limit_0_is_the_burst_once);
    suite_add_tcase(s, t);

    t = tcase_create("keys");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, case_36_key_identity);
    tcase_add_test(t, every_call_checks_its_key_and_policy);
    tcase_add_test(t, asking_redis_needs_a_sync);
    suite_add_tcase(s, t);

    t = tcase_create("refunds_forgetting_handles");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, gifts_are_clamped_at_the_burst);
    tcase_add_test(t, a_gift_keeps_the_fraction);
    tcase_add_test(t, a_forgotten_key_is_full);
    tcase_add_test(t, handles);
    tcase_add_test(t, shadow_policies_never_deny);
    suite_add_tcase(s, t);

    t = tcase_create("shared_policies_without_Redis");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, without_a_sync_the_outage_policy_answers, 0, 6);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
