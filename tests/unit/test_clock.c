/* SPDX-License-Identifier: MIT */
/*
 * lib/clock.h: agreement with CLOCK_MONOTONIC, never back, and by made-up readings what drift, a suspend and a bad
 * counter do.
 */
#include <check.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "lib/clock.h"
#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

/* Between two readings of CLOCK_MONOTONIC, give or take what re-anchoring may be wrong by. */
static void agrees(struct weir__clock *clock, uint64_t slack)
{
    uint64_t before = weir__clock_monotonic();
    uint64_t now = weir__clock_now(clock);
    uint64_t after = weir__clock_monotonic();

    ck_assert_uint_ge(now + slack, before);
    ck_assert_uint_le(now, after + slack);
}

START_TEST(system_clock)
{
    struct weir__clock clock;

    weir__clock_init(&clock, 0);
    ck_assert_uint_eq(clock.source, WEIR__CLOCK_SYSTEM);
    for (int i = 0; i < 100; i++)
        agrees(&clock, 0);
}
END_TEST

START_TEST(counter_agrees)
{
    struct weir__clock clock;

    weir__clock_init(&clock, 1);
    for (int i = 0; i < 30; i++) {
        agrees(&clock, MS); /* a virtual machine's clocks may differ by some us */
        sleep_ms(5);
    }
    /* Where the machine has one it is in use by now; where not, the system's is. */
    ck_assert_uint_ne(clock.source, WEIR__CLOCK_LEARNING);
}
END_TEST

START_TEST(never_back)
{
    struct weir__clock clock;
    uint64_t last = 0, end = weir__clock_monotonic() + 400 * MS;

    weir__clock_init(&clock, 1);
    while (last < end) {
        for (int i = 0; i < 1000; i++) {
            uint64_t now = weir__clock_now(&clock);

            if (now < last)
                ck_abort_msg("%llu ns back", (unsigned long long)(last - now));
            last = now;
        }
    }
}
END_TEST

static void *read_on(void *arg)
{
    struct weir__clock *clock = arg;
    uint64_t last = 0, end = weir__clock_monotonic() + 200 * MS;

    while (last < end) {
        uint64_t now = weir__clock_now(clock);

        if (now < last)
            return (void *)1;
        last = now;
    }
    return NULL;
}

START_TEST(never_back_in_any_thread)
{
    struct weir__clock clock;
    pthread_t threads[4];

    weir__clock_init(&clock, 1);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_on, &clock), 0);
    for (int i = 0; i < 4; i++) {
        void *back;

        pthread_join(threads[i], &back);
        ck_assert_ptr_null(back);
    }
}
END_TEST

/* ---- made-up readings: a counter of 2 GHz
 * -------------------------------------------------------------------------- */

struct made_up {
    struct weir__clock clock;
    uint64_t counter, ns;
};

static void learn(struct made_up *m)
{
    memset(m, 0, sizeof *m);
    m->counter = 1000000;
    m->ns = 50 * SECOND;
    m->clock.source = WEIR__CLOCK_LEARNING;
    m->clock.seen_base = m->counter;
    m->clock.seen_ns = m->ns;
    m->counter += 20 * MS;
    m->ns += 10 * MS;
    weir__clock_check(&m->clock, m->counter, m->ns, 50);
    ck_assert_uint_eq(m->clock.source, WEIR__CLOCK_COUNTER);
}

static const struct weir__anchor *in_force(const struct made_up *m)
{
    return weir__clock_anchor(&m->clock, m->clock.seq);
}

/* What the clock says at a reading of the counter. */
static uint64_t says(const struct made_up *m)
{
    const struct weir__anchor *a = in_force(m);

    return a->ns + (uint64_t)((weir__u128)(m->counter - a->base) * a->mult >> 32);
}

/* That much later, by the counter and by the system; returns what the clock says then, before the check. */
static uint64_t go_on(struct made_up *m, uint64_t counter, uint64_t ns)
{
    uint64_t said;

    m->counter += counter;
    m->ns += ns;
    said = says(m);
    weir__clock_check(&m->clock, m->counter, m->ns, 50);
    if (m->clock.source == WEIR__CLOCK_COUNTER)
        ck_assert_uint_ge(says(m), said);
    else
        ck_assert_uint_ge(m->ns + m->clock.offset, said);
    return said;
}

START_TEST(learns_the_frequency)
{
    struct made_up m;

    learn(&m);
    ck_assert_uint_eq(in_force(&m)->mult, UINT64_C(1) << 31);
    ck_assert_uint_eq(says(&m), m.ns);
    ck_assert_uint_eq(go_on(&m, 2 * SECOND, SECOND), m.ns);
}
END_TEST

START_TEST(checks_become_rare)
{
    struct made_up m;
    uint64_t last = 0;

    learn(&m);
    for (int i = 0; i < 10; i++) {
        uint64_t span = in_force(&m)->span;

        ck_assert_uint_ge(span, last);
        last = span;
        go_on(&m, span, span / 2);
    }
    ck_assert_uint_ge(last, 2 * SECOND - 2);
    ck_assert_uint_le(last, 2 * SECOND);
}
END_TEST

/* A counter that runs fast by 100 millionths: followed, and what it was ahead by is slewed away. */
START_TEST(drift_is_followed)
{
    struct made_up m;

    learn(&m);
    for (int i = 0; i < 20; i++)
        go_on(&m, 2 * SECOND + 200000, SECOND);
    ck_assert_uint_le(says(&m), m.ns + 1000);
    ck_assert_uint_ge(says(&m) + 1000, m.ns);
}
END_TEST

START_TEST(one_that_is_behind_jumps_ahead)
{
    struct made_up m;

    learn(&m);
    go_on(&m, 2 * SECOND - 4000, SECOND);
    ck_assert_uint_eq(says(&m), m.ns);
}
END_TEST

/* The counter went on, CLOCK_MONOTONIC didn't: one hour counts, then all is as before. */
START_TEST(a_suspend_counts)
{
    struct made_up m;

    learn(&m);
    go_on(&m, 2 * SECOND, SECOND);
    go_on(&m, 2 * 3600 * SECOND, SECOND / 2);
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_COUNTER);
    ck_assert_uint_eq(m.clock.offset, 3600 * SECOND - SECOND / 2);
    for (int i = 0; i < 5; i++)
        go_on(&m, 2 * SECOND, SECOND);
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_COUNTER);
    ck_assert_uint_eq(says(&m), m.ns + m.clock.offset);
}
END_TEST

/* A counter that runs ahead again and again is no clock. */
START_TEST(a_bad_counter_is_given_up)
{
    struct made_up m;
    uint64_t said = 0;
    int checks = 0;

    learn(&m);
    for (uint64_t factor = 2; m.clock.source == WEIR__CLOCK_COUNTER && checks < 100; factor *= 2, checks++)
        said = go_on(&m, 2 * SECOND * factor, SECOND);
    ck_assert_int_le(checks, 3);
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_SYSTEM);
    ck_assert_uint_eq(in_force(&m)->span, 0);
    ck_assert_uint_ge(weir__clock_now(&m.clock) + m.ns, said); /* goes on with the system's, by the same offset */
}
END_TEST

START_TEST(a_counter_that_stands_is_given_up)
{
    struct made_up m;

    learn(&m);
    m.ns += SECOND;
    m.clock.seen_took = 0; /* as it would find */
    weir__clock_check(&m.clock, m.counter, m.ns, 0);
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_SYSTEM);
}
END_TEST

/* After a suspend, or in a machine that was moved: by then as many steps have gone backward as 64 bits hold. */
START_TEST(a_counter_that_begins_anew_is_given_up)
{
    static const uint64_t later[] = {SECOND, 7200 * SECOND};
    struct made_up m;
    uint64_t said;

    learn(&m);
    said = says(&m);
    m.ns += later[_i];
    m.counter = 1000;
    m.clock.seen_took = 0;
    weir__clock_check(&m.clock, m.counter, m.ns, 0);
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_SYSTEM);
    ck_assert_uint_ge(m.ns + m.clock.offset, said); /* the system's goes on, not before */
}
END_TEST

/* A thread that is stopped between the two readings, each time: by a debugger that goes instruction by instruction. */
START_TEST(what_is_read_too_far_apart_says_nothing)
{
    const uint64_t late = 2 * MS;
    struct made_up m;
    uint64_t before, base;

    memset(&m, 0, sizeof m);
    m.clock.source = WEIR__CLOCK_LEARNING;
    weir__clock_check(&m.clock, 20 * MS, 10 * MS + late, 2 * late);
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_LEARNING);
    weir__clock_check(&m.clock, 60 * SECOND, 30 * SECOND + late, 2 * late); /* little, in so long a time */
    ck_assert_uint_eq(m.clock.source, WEIR__CLOCK_COUNTER);

    learn(&m);
    go_on(&m, 2 * SECOND, SECOND);
    base = in_force(&m)->base;
    m.counter += 2 * SECOND;
    m.ns += SECOND;
    before = says(&m);
    weir__clock_check(&m.clock, m.counter, m.ns + late, 2 * late);
    ck_assert_uint_eq(says(&m), before);
    ck_assert_uint_eq(in_force(&m)->base, base);
    weir__clock_check(&m.clock, m.counter, m.ns, 50);
    ck_assert_uint_eq(in_force(&m)->base, m.counter);
    ck_assert_uint_eq(says(&m), before);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("clock");
    TCase *real = tcase_create("real"), *made_up = tcase_create("made_up");

    tcase_add_test(real, system_clock);
    tcase_add_test(real, counter_agrees);
    tcase_add_test(real, never_back);
    tcase_add_test(real, never_back_in_any_thread);
    suite_add_tcase(s, real);
    tcase_add_test(made_up, learns_the_frequency);
    tcase_add_test(made_up, checks_become_rare);
    tcase_add_test(made_up, drift_is_followed);
    tcase_add_test(made_up, one_that_is_behind_jumps_ahead);
    tcase_add_test(made_up, a_suspend_counts);
    tcase_add_test(made_up, a_bad_counter_is_given_up);
    tcase_add_test(made_up, a_counter_that_stands_is_given_up);
    tcase_add_loop_test(made_up, a_counter_that_begins_anew_is_given_up, 0, 2);
    tcase_add_test(made_up, what_is_read_too_far_apart_says_nothing);
    suite_add_tcase(s, made_up);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
