/* SPDX-License-Identifier: MIT */
/*
 * lib/bucket.h, and through weir_take_at the whole of a local bucket's arithmetic, against an exact rational reference:
 * rates from 1 a day to 100 million a second, uptimes up to five years, clocks that step back.
 */
#include <check.h>

#include <weir/weir.h>

#include "lib/bucket.h"
#include "support/reference.h"
#include "support/suite.h"

typedef reference_level_t i128;

/* In loops of millions: ck_assert writes a line to a pipe each time. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg("line %d: %s", __LINE__, #condition);                                                         \
    } while (0)

#define SECOND UINT64_C(1000000000)
#define DAY (86400 * SECOND)
#define YEAR (365 * DAY)

struct shape {
    uint64_t limit, per_ns, burst, cost_max;
};

static const struct shape shapes[] = {
    {1, DAY, 1, 1},
    {1, DAY, 10, 3},
    {1, DAY, 1000000000, 1000000},
    {1, 3600 * SECOND, 1, 1},
    {3, 7 * SECOND, 5, 3},
    {5, 60 * SECOND, 5, 2},
    {100, SECOND, 100, 1},
    {1000, SECOND, 1, 1},
    {99970, SECOND, 1000, 10},
    {7000000, SECOND, 1000000, 1000},
    {99999999, SECOND, 1000, 8},
    {100000000, SECOND, 1, 1},
    {100000000, SECOND, 1000000000, 1000000},
    {8640000000000, DAY, 8640000000000, 864000000000},
    {1, 10, UINT64_C(1) << 53, UINT64_C(1) << 52},
};
#define SHAPES (sizeof shapes / sizeof *shapes)

static const uint64_t uptimes[] = {0, 1, 3758770000000, YEAR, 5 * YEAR};
#define UPTIMES (sizeof uptimes / sizeof *uptimes)

static uint64_t seed;

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static struct weir *open_with(const struct shape *shape, weir_policy_id *id)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir *w;

    options.max_keys = 4000; /* so that no key makes room for another: times jump */
    policy.name = "p";
    policy.mode = WEIR_LOCAL;
    policy.limit = shape->limit;
    policy.per_ns = shape->per_ns;
    policy.burst = shape->burst;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &policy, id), 0);
    return w;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

START_TEST(numbers_fit_their_bounds)
{
    const struct shape *s = &shapes[_i];
    struct weir__numbers n;
    i128 earned;

    ck_assert_int_eq(weir__bucket_numbers(s->limit, s->per_ns, s->burst, &n), 0);
    ck_assert_uint_eq(n.cap, s->burst << n.k);
    ck_assert_uint_le(n.cap, WEIR__UNITS_MAX);
    ck_assert_uint_ge(n.k, 7);
    earned = (i128)n.mult * WEIR__HORIZON_NS >> WEIR__SHIFT;
    ck_assert(earned <= (i128)WEIR__UNITS_MAX + (WEIR__HORIZON_NS >> 47));
    /* and no finer resolution would */
    ck_assert(n.cap > WEIR__UNITS_MAX / 2 || earned * 2 > (i128)WEIR__UNITS_MAX);
    /* a period earns the limit, to the last unit, and not a resolution step more */
    ck_assert_uint_ge(weir__bucket_refill(s->per_ns, n.mult), s->limit << n.k);
    ck_assert_uint_le(weir__bucket_refill(s->per_ns, n.mult), (s->limit << n.k) + 4 + (s->per_ns >> 48));
}
END_TEST

START_TEST(numbers_are_refused)
{
    struct weir__numbers n;

    ck_assert_int_eq(weir__bucket_numbers(1, 0, 1, &n), WEIR_E_INVAL);
    ck_assert_int_eq(weir__bucket_numbers(0, SECOND, 0, &n), WEIR_E_INVAL);
    ck_assert_int_eq(weir__bucket_numbers(100000001, SECOND, 1, &n), WEIR_E_RANGE);
    ck_assert_int_eq(weir__bucket_numbers(UINT64_MAX, 1, 1, &n), WEIR_E_RANGE);
    ck_assert_int_eq(weir__bucket_numbers(1, DAY + 1, 1, &n), WEIR_E_RANGE);
    ck_assert_int_eq(weir__bucket_numbers(1, UINT64_MAX, 1, &n), WEIR_E_RANGE);
    ck_assert_int_eq(weir__bucket_numbers(1, SECOND, WEIR_BURST_MAX + 1, &n), WEIR_E_RANGE);
    ck_assert_int_eq(weir__bucket_numbers(WEIR_BURST_MAX + 1, UINT64_MAX, 0, &n), WEIR_E_RANGE);
    ck_assert_int_eq(weir__bucket_numbers(100000000, SECOND, 1, &n), 0);
    ck_assert_int_eq(weir__bucket_numbers(1, DAY, 1, &n), 0);
    ck_assert_int_eq(weir__bucket_numbers(0, SECOND, 1, &n), 0);
    ck_assert_uint_eq(n.mult, 0);
}
END_TEST

START_TEST(burst_defaults_to_limit)
{
    struct weir__numbers a, b;

    ck_assert_int_eq(weir__bucket_numbers(50, SECOND, 0, &a), 0);
    ck_assert_int_eq(weir__bucket_numbers(50, SECOND, 50, &b), 0);
    ck_assert_uint_eq(a.cap, b.cap);
    ck_assert_uint_eq(a.k, b.k);
}
END_TEST

START_TEST(waits_are_exact)
{
    const struct shape *s = &shapes[_i];
    struct weir__numbers n;

    seed = UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)_i;
    ck_assert_int_eq(weir__bucket_numbers(s->limit, s->per_ns, s->burst, &n), 0);
    for (int i = 0; i < 2000; i++) {
        uint64_t now = draw() >> (1 + draw() % 60);
        uint64_t most = n.cap < UINT64_C(1) << 57 ? n.cap : UINT64_C(1) << 57;
        int64_t need = (int64_t)((draw() % most + 4) & WEIR__UNITS);
        uint64_t wait = weir__bucket_wait(now, n.mult, need);
        uint64_t before = weir__bucket_refill(now, n.mult);

        if (wait >= WEIR_NEVER - 1 || wait > UINT64_MAX - now)
            continue;
        ck_assert_uint_gt(wait, 0);
        ck_assert_int_ge((int64_t)(weir__bucket_refill(now + wait, n.mult) - before), need);
        ck_assert_int_lt((int64_t)(weir__bucket_refill(now + wait - 1, n.mult) - before), need);
    }
}
END_TEST

START_TEST(waits_at_their_ends)
{
    ck_assert_uint_eq(weir__bucket_wait(5, 7, 0), 0);
    ck_assert_uint_eq(weir__bucket_wait(5, 7, -4), 0);
    ck_assert_uint_eq(weir__bucket_wait(5, 0, 4), WEIR_NEVER);
    ck_assert_uint_eq(weir__bucket_wait(0, 1, (int64_t)WEIR__UNITS_MAX), WEIR_NEVER - 1);
}
END_TEST

START_TEST(doubles_become_units)
{
    struct weir__numbers n;

    ck_assert_int_eq(weir__bucket_numbers(1000, SECOND, 1000, &n), 0);
    ck_assert_int_eq(weir__bucket_units(1000, n.k), (int64_t)n.cap);
    ck_assert_int_eq(weir__bucket_units(-2.5, n.k), -(INT64_C(5) << (n.k - 1)));
    ck_assert_int_eq(weir__bucket_units(0.0 / 0.0, n.k), 0);
    ck_assert_int_eq(weir__bucket_units(1e300, n.k), (int64_t)WEIR__UNITS_MAX);
    ck_assert_int_eq(weir__bucket_units(-1e300, n.k), -(int64_t)WEIR__UNITS_MAX);
    ck_assert_uint_eq(weir__bucket_mult(-1, n.k), 0);
    ck_assert_uint_eq(weir__bucket_mult(0.0 / 0.0, n.k), 0);
    ck_assert_uint_eq(weir__bucket_mult(1e300, n.k), UINT64_C(1) << 63);
    ck_assert_uint_le(weir__bucket_mult(1000, n.k), n.mult);
    ck_assert_uint_ge(weir__bucket_mult(1000, n.k), n.mult - n.mult / 1000000000000);
}
END_TEST

/* ---- decisions --------------------------------------------------------------------------------------------------- */

/* Idle at times, overloaded at others, asked twice at once, asked just before and just when the reference has enough.
 * */
static uint64_t next_time(const struct shape *s, const struct reference *ref, uint64_t now, uint64_t cost)
{
    uint64_t token = s->per_ns / s->limit + 1;
    uint64_t kind = draw() % 16;
    i128 missing;

    if (kind < 4)
        return now;
    if (kind == 4 && draw() % 64 == 0)
        return now + draw() % (s->burst < 1000000 ? token * s->burst + 1 : 30 * DAY);
    if (kind == 5 && draw() % 16 == 0)
        return now - draw() % (now < 5 * SECOND ? now + 1 : 5 * SECOND);
    if (kind < 9) {
        missing = (i128)cost * s->per_ns - reference_level(ref, now);
        if (missing > 0 && missing / s->limit < (i128)(30 * DAY))
            return (now > ref->last ? now : ref->last) + (uint64_t)((missing + s->limit - 1) / s->limit) - draw() % 2;
    }
    return now + draw() % (token * (1 + s->cost_max < 100 ? 1 + s->cost_max : 100));
}

static void check_decisions(const struct shape *s, uint64_t start, int decisions)
{
    struct reference ref;
    struct weir__numbers n;
    struct weir_result r;
    weir_policy_id id;
    struct weir *w = open_with(s, &id);
    uint64_t now = start;

    reference_init(&ref, s->limit, s->per_ns, s->burst, start);
    MUST(weir__bucket_numbers(s->limit, s->per_ns, s->burst, &n) == 0);
    for (int i = 0; i < decisions; i++) {
        uint64_t cost = 1 + draw() % s->cost_max;
        i128 level, slack;
        int verdict;

        now = next_time(s, &ref, now, cost);
        if (now > start + 2 * YEAR)
            break;
        level = reference_level(&ref, now);
        slack = reference_slack(&ref, now, n.k);
        verdict = weir_take_at(w, id, "k", 1, (int64_t)cost, now, &r);
        if (verdict == WEIR_ALLOW) {
            MUST(level + slack >= (i128)cost * s->per_ns);
            reference_charge(&ref, now, (int64_t)cost);
            level = reference_level(&ref, now);
            MUST(r.retry_after_ns == 0);
        } else {
            MUST(verdict == WEIR_DENY);
            MUST(level - slack < (i128)cost * s->per_ns);
            MUST(r.retry_after_ns > 0);
        }
        MUST(r.remaining >= 0);
        MUST((i128)r.remaining * s->per_ns <= (level > 0 ? level : 0) + slack);
        MUST((i128)(r.remaining + 1) * s->per_ns > level - slack);
        MUST(r.limit == s->burst);
    }
    weir_close(w);
}

START_TEST(decides_as_the_reference)
{
    seed = UINT64_C(88172645463325252) + (uint64_t)_i;
    for (size_t u = 0; u < UPTIMES; u++)
        check_decisions(&shapes[_i], uptimes[u], 16000);
}
END_TEST

/* A denial's wait, as long as it says, admits; one nanosecond less denies. It is never longer than the reference's, and
 * shorter only where less than the resolution is missing then. */
static void check_wait(struct weir *w, weir_policy_id id, const struct shape *s, uint8_t k, int i)
{
    uint64_t now = uptimes[draw() % UPTIMES], cost = 1 + draw() % s->cost_max;
    struct reference ref;
    struct weir_result r;
    i128 exact;

    reference_init(&ref, s->limit, s->per_ns, s->burst, now);
    if ((i128)cost * s->per_ns / s->limit > (i128)YEAR)
        cost = 1;
    MUST(weir_take_at(w, id, &i, sizeof i, (int64_t)s->burst, now, &r) == WEIR_ALLOW);
    reference_charge(&ref, now, (int64_t)s->burst);
    now += draw() % (cost * s->per_ns / s->limit + 1);
    exact = ((i128)cost * s->per_ns - reference_level(&ref, now) + s->limit - 1) / s->limit;
    if (exact == 0)
        return;
    if (weir_take_at(w, id, &i, sizeof i, (int64_t)cost, now, &r) == WEIR_ALLOW) {
        MUST(reference_level(&ref, now) + reference_slack(&ref, now, k) >= (i128)cost * s->per_ns);
        return;
    }
    MUST(r.retry_after_ns <= exact);
    MUST(reference_level(&ref, now + r.retry_after_ns) + reference_slack(&ref, now, k) >= (i128)cost * s->per_ns);
    MUST(weir_take_at(w, id, &i, sizeof i, (int64_t)cost, now + r.retry_after_ns - 1, NULL) == WEIR_DENY);
    MUST(weir_take_at(w, id, &i, sizeof i, (int64_t)cost, now + r.retry_after_ns, NULL) == WEIR_ALLOW);
}

START_TEST(waits_as_the_reference)
{
    const struct shape *s = &shapes[_i];
    struct weir__numbers n;
    weir_policy_id id;
    struct weir *w = open_with(s, &id);

    seed = UINT64_C(0x2545f4914f6cdd1d) + (uint64_t)_i;
    MUST(weir__bucket_numbers(s->limit, s->per_ns, s->burst, &n) == 0);
    for (int i = 0; i < 1000; i++)
        check_wait(w, id, s, n.k, i);
    weir_close(w);
}
END_TEST

/* Case E4 of rounding up: 1 token a second, asked every 10 ms for 10 s, admits 10 and not one a poll. */
START_TEST(low_rates_are_not_rounded_up)
{
    const struct shape s = {1, SECOND, 1, 1};
    weir_policy_id id;
    struct weir *w = open_with(&s, &id);
    int admitted = 0;

    ck_assert_int_eq(weir_take_at(w, id, "k", 1, 1, 0, NULL), WEIR_ALLOW);
    for (int i = 1; i <= 1000; i++)
        admitted += weir_take_at(w, id, "k", 1, 1, (uint64_t)i * 10000000, NULL) == WEIR_ALLOW;
    ck_assert_int_eq(admitted, 10);
    weir_close(w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("bucket");
    TCase *numbers = tcase_create("numbers"), *decisions = tcase_create("decisions");

    tcase_add_loop_test(numbers, numbers_fit_their_bounds, 0, SHAPES);
    tcase_add_test(numbers, numbers_are_refused);
    tcase_add_test(numbers, burst_defaults_to_limit);
    tcase_add_loop_test(numbers, waits_are_exact, 0, SHAPES);
    tcase_add_test(numbers, waits_at_their_ends);
    tcase_add_test(numbers, doubles_become_units);
    suite_add_tcase(s, numbers);
    tcase_add_loop_test(decisions, decides_as_the_reference, 0, SHAPES);
    tcase_add_loop_test(decisions, waits_as_the_reference, 0, SHAPES);
    tcase_add_test(decisions, low_rates_are_not_rounded_up);
    suite_add_tcase(s, decisions);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
