/* SPDX-License-Identifier: MIT */
/*
 * docs/migration.md: the numbers that it gives for other limiters are the same limit. The others' arithmetic is written
 * here from what they document.
 */
#include <check.h>

#include <weir/weir.h>

#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static struct weir *w;
static uint64_t now;
static uint32_t seed;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static void setup(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.now_ns = read_now;
    options.max_keys = 15;
    now = 5000 * SECOND;
    seed = 1;
    ck_assert_int_eq(weir_open(&w, &options), 0);
}

static void teardown(void)
{
    weir_close(w);
}

static weir_policy_id add(const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy p = WEIR_POLICY_INIT;
    weir_policy_id id;

    p.name = name;
    p.limit = limit;
    p.per_ns = per_ns;
    p.burst = burst;
    p.mode = WEIR_LOCAL;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    return id;
}

static uint32_t chance(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

/* limit_req's leaky bucket: excess in thousandths of a request, drained by rate a millisecond. */
struct limit_req {
    int64_t excess, last_ms;
    int known;
};

static int limit_req_take(struct limit_req *zone, int64_t rate, int64_t burst, int64_t ms)
{
    int64_t excess = zone->known ? zone->excess - rate * (ms - zone->last_ms) + 1000 : 0;

    if (excess < 0)
        excess = 0;
    if (excess > burst * 1000)
        return WEIR_DENY;
    *zone = (struct limit_req){excess, ms, 1};
    return WEIR_ALLOW;
}

START_TEST(limit_req_of_the_same_numbers)
{
    static const struct {
        int64_t rate, burst;
    } zones[] = {{10, 20}, {10, 0}, {1, 5}, {1000, 100}, {50, 1}};

    for (size_t i = 0; i < sizeof zones / sizeof *zones; i++) {
        char name[2] = {(char)('a' + i), 0};
        weir_policy_id id = add(name, (uint64_t)zones[i].rate, SECOND, (uint64_t)zones[i].burst + 1);
        struct limit_req zone = {0, 0, 0};
        int denied = 0;

        for (int n = 0; n < 20000; n++) {
            int verdict;

            now += chance(2) * chance((uint32_t)(2400 / zones[i].rate) + 2) * MS;
            verdict = limit_req_take(&zone, zones[i].rate, zones[i].burst, (int64_t)(now / MS));
            ck_assert_int_eq(weir_take(w, id, "k", 1, 1, NULL), verdict);
            denied += verdict == WEIR_DENY;
        }
        ck_assert_int_gt(denied, 1000);
        ck_assert_int_lt(denied, 19000);
    }
}
END_TEST

/* GCRA, as redis-cell has it: a theoretical arrival time, max_burst on top of the request itself. */
START_TEST(gcra_of_the_same_numbers)
{
    const int64_t max_burst = 15, count = 30, period = 60;
    const int64_t emission = period * (int64_t)SECOND / count, tolerance = emission * (max_burst + 1);
    weir_policy_id id = add("gcra", (uint64_t)count, (uint64_t)period * SECOND, (uint64_t)max_burst + 1);
    int64_t tat = 0, denied = 0;

    for (int n = 0; n < 20000; n++) {
        int64_t quantity = 1 + chance(3), at, next;
        struct weir_result r;
        int verdict;

        now += (uint64_t)chance(4000) * MS + chance(1000);
        at = (int64_t)now;
        next = (tat > at ? tat : at) + emission * quantity;
        verdict = next - at > tolerance ? WEIR_DENY : WEIR_ALLOW;
        if (verdict == WEIR_ALLOW)
            tat = next;
        ck_assert_int_eq(weir_take(w, id, "k", 1, quantity, &r), verdict);
        ck_assert_int_eq(r.remaining, (tolerance - (tat > at ? tat - at : 0)) / emission);
        if (verdict == WEIR_DENY) {
            ck_assert_int_eq((int64_t)r.retry_after_ns, next - at - tolerance);
            denied++;
        }
    }
    ck_assert_int_gt(denied, 1000);
}
END_TEST

/* A fixed window's edge lets 2 N pass in an instant; a bucket never more than N at once, nor 2 N in a window. */
START_TEST(a_fixed_window_of_the_same_numbers)
{
    enum { N = 50, STEPS = 4000 };
    static uint64_t admitted[STEPS * 4];
    weir_policy_id id = add("window", N, 10 * SECOND, N);
    size_t count = 0, first = 0;
    int at_once = 0;

    for (int step = 0; step < STEPS; step++) {
        now += chance(40) * MS;
        for (at_once = 0; count < sizeof admitted / sizeof *admitted && weir_take(w, id, "k", 1, 1, NULL) == WEIR_ALLOW;
             at_once++)
            admitted[count++] = now;
        ck_assert_int_le(at_once, N);
        while (admitted[first] + 10 * SECOND <= now)
            first++;
        ck_assert_uint_le(count - first, 2 * N);
    }
    ck_assert_uint_gt(count, 2 * N);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("migration");
    TCase *t = tcase_create("migration");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, limit_req_of_the_same_numbers);
    tcase_add_test(t, gcra_of_the_same_numbers);
    tcase_add_test(t, a_fixed_window_of_the_same_numbers);
    suite_add_tcase(s, t);
    return suite_run(s);
}
