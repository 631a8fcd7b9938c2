/* SPDX-License-Identifier: MIT */
/*
 * What a handle knows of a bucket that holds tokens: takes by the limiter's clock decide as a limiter does that is told
 * the time, to the unit, and what is known ends with whatever makes it untrue. lib/handle.c is compiled in, for the
 * counter that it reads is the test's.
 */
#include <stdint.h>

static uint64_t ticks; /* at which this machine's counter stands */

#define WEIR__TEST_COUNTER ticks
#include "lib/handle.c" /* NOLINT(bugprone-suspicious-include) */

#include <check.h>

#include "support/local_policy.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define SHADOW 1
#define TAKES 200000
#define PACE (UINT64_C(1) << 31) /* of the clock: half a nanosecond a step */

static struct weir *a, *b; /* by its clock; by what it is told */
static struct weir_key *key;
static weir_policy_id id;
static uint64_t random_state, known, verdicts;

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static struct weir__clock *clock_of(struct weir *w)
{
    return &w->gate->clock;
}

/* From here on the clock goes on from `ns`, and is good for `span` steps. */
static void anchor(uint64_t ns, uint64_t pace, uint64_t span)
{
    struct weir__clock *clock = clock_of(a);
    uint32_t seq = clock->seq + WEIR__CLOCK_STEP;
    struct weir__anchor *next = &clock->anchor[seq & WEIR__CLOCK_STEP ? 1 : 0];

    next->span = span;
    next->mult = pace;
    next->ns = ns;
    next->base = ticks;
    clock->seq = seq;
}

static uint64_t time_now(void)
{
    uint64_t now;

    ck_assert(weir__clock_glance(clock_of(a), ticks, &now));
    return now;
}

static uint64_t read_now(void *arg)
{
    (void)arg;
    return a ? time_now() : 1000 * SECOND;
}

/* Where the anchor is good for no longer, a new one is. */
static void pass(uint64_t steps)
{
    struct weir__clock *clock = clock_of(a);
    const struct weir__anchor *in_force = weir__clock_anchor(clock, clock->seq);

    if (ticks + steps - in_force->base >= in_force->span) {
        uint64_t last = in_force->ns + ((in_force->span - 1) * in_force->mult >> 32);

        ticks += steps;
        anchor(last + steps + below(1000), PACE / 2 + below(PACE), SECOND + below(SECOND));
    } else {
        ticks += steps;
    }
}

/* By what the handle knows, if it knows. */
static int take_quickly(void)
{
    uint64_t unused;

    return take_known(key, &unused);
}

static struct weir_policy numbers(uint64_t limit, uint64_t per_ns, uint64_t burst, int shadow)
{
    struct weir_policy p = local_policy(limit, per_ns, burst);

    p.shadow = shadow;
    return p;
}

static void open_both(const struct weir_policy *p)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    random_state = 88172645463325252u;
    ticks = UINT64_C(1) << 50;
    known = verdicts = 0;
    options.max_keys = 16;
    options.now_ns = read_now; /* of all that is not a handle's */
    ck_assert_int_eq(weir_open(&a, &options), 0);
    ck_assert_int_eq(weir_open(&b, &options), 0);
    ck_assert_int_eq(weir_policy_add(a, p, &id), 0);
    ck_assert_int_eq(weir_policy_add(b, p, &id), 0);
    anchor(1000 * SECOND, PACE, 2 * SECOND);
    ck_assert_int_eq(weir_key_open(a, id, "key", 3, &key), 0);
}

static void close_both(void)
{
    struct weir_stats seen = {.size = sizeof seen}, wanted = {.size = sizeof wanted};

    weir_stats_get(a, &seen);
    weir_stats_get(b, &wanted);
    ck_assert_uint_eq(seen.allowed, wanted.allowed);
    ck_assert_uint_eq(seen.denied, wanted.denied);
    ck_assert_uint_eq(seen.allowed + seen.denied, verdicts);
    weir_key_close(key);
    weir_close(a);
    weir_close(b);
}

/* One token of both; known: by what the handle knows, if it knows. */
static int take(void)
{
    uint64_t now = time_now();
    int verdict = take_quickly();

    if (verdict == WEIR_UNDECIDED_)
        verdict = weir_key_take_one_(key);
    else
        known++;
    verdicts++;
    ck_assert_int_eq(verdict, weir_take_at(b, id, "key", 3, 1, now, NULL));
    return verdict;
}

/* Both hold the same, to the unit of what they say. */
static void compare(void)
{
    uint64_t now = time_now();
    struct weir_result seen, wanted;

    ck_assert_int_eq(weir_take_at(a, id, "key", 3, 0, now, &seen), weir_take_at(b, id, "key", 3, 0, now, &wanted));
    ck_assert_int_eq(seen.remaining, wanted.remaining);
    ck_assert_uint_eq(seen.reset_after_ns, wanted.reset_after_ns);
    ck_assert_uint_eq(seen.retry_after_ns, wanted.retry_after_ns);
}

static void set_both(const struct weir_policy *p)
{
    ck_assert_int_eq(weir_policy_set(a, id, p), 0);
    ck_assert_int_eq(weir_policy_set(b, id, p), 0);
}

/* ---- as one that is told the time -------------------------------------------------------------------------------- */

static const struct {
    uint64_t limit, per_ns, burst;
    uint64_t steps; /* of the counter, between two takes, at most */
    uint64_t least; /* so many takes of the known */
} shapes[] = {
    {1, 86400 * SECOND, 1000000, 2000, 100000},
    {1000, SECOND, 1000, 4000, 15000},
    {1000000, SECOND, 100000, 4000, 75000},
    {10000000, SECOND, 1000, 400, 13000},
    {50000000, SECOND, 100000000, 100, 60000},
    {7777777, SECOND, 333, 300, 1500},
    {3, SECOND, 50, 2000000, 0},
    {20, SECOND, 17, 200000000, 1000},
    {50000000, SECOND, 8000, 40, 20000},
};

/* Besides: whatever another thread may do to the bucket. */
static void do_besides(uint64_t burst)
{
    uint64_t now = time_now();
    int64_t tokens = (int64_t)below(burst + 2);

    switch (below(6)) {
    case 0: ck_assert_int_eq(weir_give(a, id, "key", 3, tokens), weir_give(b, id, "key", 3, tokens)); break;
    case 1: ck_assert_int_eq(weir_forget(a, id, "key", 3), weir_forget(b, id, "key", 3)); break;
    default:
        now += below(4) ? 0 : below(1000); /* by a clock of its own, which is ahead */
        tokens = 1 + tokens / 4;
        verdicts++;
        ck_assert_int_eq(weir_take_at(a, id, "key", 3, tokens, now, NULL),
                         weir_take_at(b, id, "key", 3, tokens, now, NULL));
    }
}

START_TEST(decides_as_one_that_is_told_the_time)
{
    struct weir_policy p = numbers(shapes[_i].limit, shapes[_i].per_ns, shapes[_i].burst, 0);

    open_both(&p);
    for (int n = 0; n < TAKES; n++) {
        if (below(4))
            pass(below(shapes[_i].steps));
        take();
        if (below(500) == 0)
            compare();
        if (below(5000) == 0)
            do_besides(shapes[_i].burst);
        if (below(5000) == 0)
            pass(below(2 * SECOND)); /* it fills */
        if (below(5000) == 0)
            anchor(time_now() + below(1000), PACE / 2 + below(PACE), SECOND + below(SECOND));
        if (below(20000) == 0) {
            p = numbers(1 + below(2 * shapes[_i].limit), shapes[_i].per_ns, 1 + below(2 * shapes[_i].burst), 0);
            set_both(&p);
        }
    }
    compare();
    ck_assert_uint_ge(known, shapes[_i].least);
    close_both();
}
END_TEST

/* ---- what is known ends ------------------------------------------------------------------------------------------ */

/* Takes until the handle knows that there are tokens, and shows that it does. */
static void come_to_know(void)
{
    for (int turns = 0; take_quickly() != WEIR_ALLOW; turns++) {
        ck_assert_int_lt(turns, 10);
        pass(2 * KNOWN_NS);
        ck_assert_int_eq(weir_key_take_one_(key), WEIR_ALLOW);
        ck_assert_int_eq(weir_key_take_one_(key), WEIR_ALLOW);
    }
}

static void open_slow(void)
{
    struct weir_policy p = numbers(1, 86400 * SECOND, 1000, 0);

    open_both(&p);
    come_to_know();
}

static unsigned drain(void)
{
    unsigned n = 0;

    while (weir_key_take_one_(key) == WEIR_ALLOW)
        n++;
    return n;
}

static void close_slow(void)
{
    weir_key_close(key);
    weir_close(a);
    weir_close(b);
}

START_TEST(a_burst_is_given_to_the_token)
{
    struct weir_stats stats = {.size = sizeof stats};

    open_slow();
    drain();
    weir_stats_get(a, &stats);
    ck_assert_uint_eq(stats.allowed, 1000);
    ck_assert_int_eq(weir_give(a, id, "key", 3, 100), 0);
    ck_assert_uint_eq(drain(), 100);
    ck_assert_int_eq(weir_forget(a, id, "key", 3), 0);
    ck_assert_uint_eq(drain(), 1000);
    close_slow();
}
END_TEST

START_TEST(changes_of_the_policy_end_it)
{
    struct weir_policy p = numbers(1, 86400 * SECOND, 20, 0);

    open_slow();
    ck_assert_int_eq(weir_policy_set(a, id, &p), 0);
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    ck_assert_uint_eq(drain(), 20);
    p = numbers(1, 86400 * SECOND, 20, SHADOW);
    ck_assert_int_eq(weir_policy_set(a, id, &p), 0);
    ck_assert_int_eq(weir_key_take_one_(key), WEIR_ALLOW);
    p = numbers(1, 86400 * SECOND, 1000, 0);
    ck_assert_int_eq(weir_policy_set(a, id, &p), 0);
    ck_assert_int_eq(weir_forget(a, id, "key", 3), 0);
    come_to_know();
    p.shadow = SHADOW; /* the same numbers */
    ck_assert_int_eq(weir_policy_set(a, id, &p), 0);
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    close_slow();
}
END_TEST

START_TEST(it_ends_with_its_time)
{
    open_slow();
    ticks = key->known.first - 1; /* of a CPU whose counter is behind */
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    ticks = key->known.first + key->known.span - 1;
    ck_assert_int_eq(take_quickly(), WEIR_ALLOW);
    ticks++;
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    close_slow();
}
END_TEST

/* Some of it may be old and some new: a taker asks the library. */
START_TEST(what_is_being_written_is_not_known)
{
    struct weir_stats stats = {.size = sizeof stats};

    open_slow();
    weir_stats_get(a, &stats);
    key->known.begun++;
    for (int i = 0; i < 3; i++) {
        pass(2 * KNOWN_NS);
        ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
        ck_assert_int_eq(weir_key_take_one_(key), WEIR_ALLOW);
    }
    ck_assert_uint_eq(drain(), 1000 - stats.allowed - 3);
    close_slow();
}
END_TEST

/* As after a suspend, or in a machine that was moved: what was known by the old one's steps is not true of the new. */
START_TEST(a_counter_that_begins_anew_ends_it)
{
    const uint64_t now = 1000 * SECOND;
    struct weir__clock *clock;
    uint64_t first;

    open_slow();
    clock = clock_of(a);
    first = key->known.first;
    clock->source = WEIR__CLOCK_COUNTER;
    clock->seen_base = first - 1000;
    clock->seen_ns = now;
    weir__clock_check(clock, 1 << 30, now + 7200 * SECOND, 0);
    ticks = first + key->known.span / 2;
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    close_slow();
}
END_TEST

START_TEST(a_locked_bucket_is_not_taken_from)
{
    uint64_t x;

    open_slow();
    x = atomic_fetch_or_explicit(&key->e->x, WEIR__LOCK, memory_order_relaxed);
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    key->e->x = x;
    ck_assert_int_eq(take_quickly(), WEIR_ALLOW);
    close_slow();
}
END_TEST

/* Another caller's clock is ahead: for the key it stays as late as that. */
START_TEST(a_later_take_stays_the_last_one)
{
    uint64_t later;

    open_slow();
    pass(1000);
    later = time_now();
    ck_assert_int_eq(take_quickly(), WEIR_ALLOW);
    ck_assert_uint_eq(key->e->touched, later);
    later += SECOND;
    ck_assert_int_eq(weir_take_at(a, id, "key", 3, 1, later, NULL), WEIR_ALLOW);
    ck_assert_int_eq(take_quickly(), WEIR_ALLOW);
    ck_assert_uint_eq(key->e->touched, later);
    close_slow();
}
END_TEST

/* Up to the last step nothing is taken of what the bucket would have forfeited by then; and that is not much sooner
 * than it must be. */
START_TEST(it_ends_where_the_bucket_is_full)
{
    struct weir_policy p = numbers(1000000, SECOND, 1000, 0);
    struct weir_result r;

    open_both(&p);
    ck_assert_int_eq(weir_take_at(a, id, "key", 3, 400, time_now(), NULL), WEIR_ALLOW);
    come_to_know();
    ticks = key->known.first + key->known.span - 1;
    ck_assert_int_eq(weir_take_at(a, id, "key", 3, 0, time_now(), &r), WEIR_ALLOW);
    ck_assert_uint_le(r.reset_after_ns, 1010); /* a token's time: one was taken since */
    ck_assert_int_eq(take_quickly(), WEIR_ALLOW);
    ticks++;
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    ticks += 2 * SECOND / 1000;
    ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
    ck_assert_int_eq(weir_key_take_one_(key), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_at(a, id, "key", 3, 0, time_now(), &r), WEIR_ALLOW);
    ck_assert_int_eq(r.remaining, 999);
    close_slow();
}
END_TEST

START_TEST(a_bucket_that_holds_little_is_not_noted)
{
    struct weir_policy p = numbers(1, 86400 * SECOND, KNOWN_TAKES - 1, 0);

    open_both(&p);
    for (unsigned n = 0; n < KNOWN_TAKES - 1; n++) {
        ck_assert_int_eq(take_quickly(), WEIR_UNDECIDED_);
        ck_assert_int_eq(weir_key_take_one_(key), WEIR_ALLOW);
        pass(2 * KNOWN_NS);
    }
    ck_assert_int_eq(weir_key_take_one_(key), WEIR_DENY);
    close_slow();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("known");
    TCase *t = tcase_create("known");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, decides_as_one_that_is_told_the_time, 0, sizeof shapes / sizeof shapes[0]);
    tcase_add_test(t, a_burst_is_given_to_the_token);
    tcase_add_test(t, changes_of_the_policy_end_it);
    tcase_add_test(t, it_ends_with_its_time);
    tcase_add_test(t, what_is_being_written_is_not_known);
    tcase_add_test(t, a_counter_that_begins_anew_ends_it);
    tcase_add_test(t, a_locked_bucket_is_not_taken_from);
    tcase_add_test(t, a_later_take_stays_the_last_one);
    tcase_add_test(t, it_ends_where_the_bucket_is_full);
    tcase_add_test(t, a_bucket_that_holds_little_is_not_noted);
    suite_add_tcase(suite, t);
    return suite_run(suite);
}
