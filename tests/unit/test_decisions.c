/* SPDX-License-Identifier: MIT */
/*
 * Ten million random decisions, through every call that makes one, against exact rational arithmetic
 * (support/reference.h): random rates, periods, bursts and costs, clocks anywhere in five years that idle, jump, stand
 * still and go back. WEIR_DECISIONS: how many (10000000); WEIR_SEED: others.
 */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "lib/bucket.h"
#include "support/reference.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define DAY (86400 * SECOND)
#define YEAR (365 * DAY)
#define LATEST (UINT64_C(1) << 62) /* ns: 146 years */

enum { DECISIONS = 10000000, BATCHES = 10, A_POLICY = 10000, A_LIMITER = 50 };

/* Millions of times: ck_assert writes a line to a pipe each time. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            mismatch(__LINE__, #condition);                                                                            \
    } while (0)

static struct weir *w;
static weir_policy_id policy;
static struct weir_key *handle;
static struct reference ref;
static uint8_t k;
static uint64_t now, seed;
static uint64_t denied, admitted, near; /* near: within the library's resolution of the other verdict */

static _Noreturn void mismatch(int line, const char *condition)
{
    ck_abort_msg("line %d: %s (%llu every %llu ns, burst %llu, at %llu; seed %llu)", line, condition,
                 (unsigned long long)ref.limit, (unsigned long long)ref.per_ns, (unsigned long long)ref.burst,
                 (unsigned long long)now, (unsigned long long)seed);
}

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* low to high, each doubling as likely as the next. */
static uint64_t draw_between(uint64_t low, uint64_t high)
{
    unsigned from = 63 - (unsigned)__builtin_clzll(low), to = 63 - (unsigned)__builtin_clzll(high);
    unsigned bits = from + (unsigned)(draw() % (to - from + 1));
    uint64_t n = (UINT64_C(1) << bits) + draw() % (UINT64_C(1) << bits);

    return n < low ? low : n > high ? high : n;
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static void draw_policy(struct weir_policy *p)
{
    p->mode = WEIR_LOCAL;
    p->per_ns = draw_between(10, UINT64_C(1) << 53);
    p->limit = draw_between(p->per_ns / DAY + 1, p->per_ns / 10);
    p->burst = draw_between(1, WEIR_BURST_MAX);
    if (draw() % 4 == 0) /* round ones, as people write them */
        p->per_ns = (const uint64_t[]){SECOND, 60 * SECOND, 3600 * SECOND, DAY}[draw() % 4];
    if (draw() % 4 == 0)
        p->burst = draw_between(1, 1000);
    if (p->limit > p->per_ns / 10 || (weir__u128)p->limit * DAY < p->per_ns)
        p->limit = p->per_ns / DAY + 1;
    if (draw() % 32 == 0)
        p->limit = 0;
}

static void open_policy(unsigned n)
{
    struct weir_policy p = WEIR_POLICY_INIT;
    struct weir__numbers numbers;
    char name[16];

    snprintf(name, sizeof name, "p%u", n);
    p.name = name;
    draw_policy(&p);
    now = draw() % 8 ? draw_between(1, 5 * YEAR) : 0;
    ck_assert_int_eq(weir__bucket_numbers(p.limit, p.per_ns, p.burst, &numbers), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &policy), 0);
    ck_assert_int_eq(weir_key_open(w, policy, "key", 3, &handle), 0);
    k = numbers.k;
    reference_init(&ref, p.limit, p.per_ns, p.burst, now);
}

/* ---- times and costs --------------------------------------------------------------------------------------------- */

static int64_t draw_cost(void)
{
    uint64_t kind = draw() % 16;

    if (kind == 0)
        return 0;
    if (kind == 1)
        return (int64_t)draw_between(ref.burst, WEIR_BURST_MAX); /* the burst; or more, which never passes */
    return (int64_t)draw_between(1, kind < 4 || ref.burst < 8 ? ref.burst : ref.burst / 4);
}

/* ns until the reference has `cost`; 0: it has, or never will in a year. */
static uint64_t exact_wait(int64_t cost)
{
    reference_level_t missing = reference_tokens(&ref, (uint64_t)cost) - reference_level(&ref, now);

    if (missing <= 0 || ref.limit == 0 || (uint64_t)cost > ref.burst || missing / ref.limit > (reference_level_t)YEAR)
        return 0;
    return (uint64_t)((missing + ref.limit - 1) / ref.limit);
}

/* Just when the cost is there, just before; at once; some tokens later; after idling; before. */
static void step_time(int64_t cost)
{
    uint64_t kind = draw() % 32, token = ref.limit ? ref.per_ns / ref.limit + 1 : SECOND, wait;

    if (kind < 8)
        return;
    if (kind < 20 && (wait = exact_wait(cost)) != 0)
        now = (now > ref.last ? now : ref.last) + wait - draw() % 2;
    else if (kind < 28)
        now += draw() % (token * (1 + draw() % 8));
    else if (kind == 28)
        now += draw_between(1, 30 * DAY);
    else if (kind < 31)
        now -= draw() % 64 ? draw() % (now < 100 ? now + 1 : 100) : draw() % (now < DAY ? now + 1 : DAY);
}

/* ---- decisions --------------------------------------------------------------------------------------------------- */

static int decide(int64_t cost, struct weir_result *r)
{
    struct weir_request request = {.policy = policy, .key = "key", .key_len = 3, .cost = cost, .result = r};

    switch (draw() % 8) {
    case 0: return weir_take(w, policy, "key", 3, cost, r);
    case 1: return weir_key_take(handle, cost, now ? 0 : now, r);
    case 2: return weir_key_take(handle, cost, now, r);
    case 3: MUST(weir_take_many(w, &request, 1, now) == 0); return request.status;
    case 4: {
        int peeked = weir_peek(w, policy, "key", 3, cost, r);

        return peeked == WEIR_ALLOW ? weir_take(w, policy, "key", 3, cost, r) : peeked;
    }
    default: return weir_take_at(w, policy, "key", 3, cost, now, r);
    }
}

/* The wait that a denial tells, to the nanosecond. */
static void check_wait(int64_t cost, const struct weir_result *r)
{
    uint64_t then = now;

    if ((uint64_t)cost > ref.burst || ref.limit == 0) {
        MUST(r->retry_after_ns == WEIR_NEVER);
        return;
    }
    MUST(r->retry_after_ns > 0);
    if (r->retry_after_ns > YEAR)
        return;
    now = then + r->retry_after_ns;
    MUST(weir_peek(w, policy, "key", 3, cost, NULL) == WEIR_ALLOW);
    MUST(reference_level(&ref, now) + reference_slack(&ref, now, k) >= reference_tokens(&ref, (uint64_t)cost));
    now--;
    MUST(weir_peek(w, policy, "key", 3, cost, NULL) == WEIR_DENY);
    now = then;
}

static void check_result(int verdict, int64_t cost, const struct weir_result *r)
{
    reference_level_t level = reference_level(&ref, now), slack = reference_slack(&ref, now, k), then;

    MUST(r->limit == ref.burst);
    MUST(r->remaining >= 0);
    MUST(reference_tokens(&ref, (uint64_t)r->remaining) <= level + slack);
    MUST(reference_tokens(&ref, (uint64_t)r->remaining + 1) > level - slack);
    MUST(r->flags == 0);
    if (verdict == WEIR_DENY)
        check_wait(cost, r);
    else
        MUST(r->retry_after_ns == 0);
    if (r->reset_after_ns < YEAR) {
        then = reference_level(&ref, now + r->reset_after_ns);
        MUST(then + reference_slack(&ref, now + r->reset_after_ns, k) >= reference_cap(&ref));
        if (r->reset_after_ns > 0) {
            then = reference_level(&ref, now + r->reset_after_ns - 1);
            MUST(then - reference_slack(&ref, now + r->reset_after_ns, k) < reference_cap(&ref));
        }
    } else {
        MUST(level - slack < reference_cap(&ref));
    }
}

static void check_decision(void)
{
    int64_t cost = draw_cost();
    struct weir_result r;
    bool wants_result = draw() % 2;
    reference_level_t spare, slack;
    int verdict;

    step_time(cost);
    spare = reference_level(&ref, now) - reference_tokens(&ref, (uint64_t)cost);
    slack = reference_slack(&ref, now, k);
    verdict = decide(cost, wants_result ? &r : NULL);
    MUST(verdict == WEIR_ALLOW || verdict == WEIR_DENY);
    MUST(verdict == WEIR_ALLOW ? spare + slack >= 0 : spare - slack < 0 && cost > 0);
    near += (verdict == WEIR_ALLOW) != (spare >= 0);
    if (verdict == WEIR_ALLOW && cost > 0)
        reference_charge(&ref, now, cost);
    if (wants_result)
        check_result(verdict, cost, &r);
    admitted += verdict == WEIR_ALLOW && cost > 0;
    denied += verdict == WEIR_DENY;
}

static void give_back(void)
{
    int64_t tokens = (int64_t)draw_between(1, ref.burst);

    MUST(weir_give(w, policy, "key", 3, tokens) == 0);
    reference_charge(&ref, now, -tokens);
}

static void check_absurd(void)
{
    struct weir_result r;

    MUST(weir_take_at(w, policy, "key", 3, -draw_cost() - 1, now, NULL) == WEIR_E_COST);
    MUST(weir_take_at(w, policy, "key", 3, INT64_MIN, now, NULL) == WEIR_E_COST);
    MUST(weir_take_at(w, policy, "key", 3, INT64_MAX, now, &r) == WEIR_DENY);
    MUST(r.retry_after_ns == WEIR_NEVER);
    MUST(weir_give(w, policy, "key", 3, -1) == WEIR_E_COST);
}

static void check_policy(unsigned n, int decisions)
{
    open_policy(n);
    for (int i = 0; i < decisions && now < LATEST; i++) {
        check_decision();
        if (draw() % 64 == 0)
            give_back();
        if (draw() % 256 == 0)
            check_absurd();
    }
    weir_key_close(handle);
}

static void check_limiter(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = 4 * A_LIMITER; /* so that no key makes room for another: times jump */
    options.now_ns = read_now;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    for (unsigned n = 0; n < A_LIMITER; n++)
        check_policy(n, A_POLICY);
    weir_close(w);
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

START_TEST(decides_as_exact_arithmetic)
{
    uint64_t wanted = number_from("WEIR_DECISIONS", DECISIONS) / BATCHES;

    seed = UINT64_C(0x9e3779b97f4a7c15) * (2 * (uint64_t)_i + 1) + 2 * number_from("WEIR_SEED", 0);
    while (admitted + denied < wanted)
        check_limiter();
    /* the random numbers do what they are for */
    ck_assert_uint_gt(admitted, wanted / 5);
    ck_assert_uint_gt(denied, wanted / 5);
    if (getenv("WEIR_DECISIONS"))
        printf("# %llu admitted, %llu denied, %llu of them within the resolution of 2^-k token\n",
               (unsigned long long)admitted, (unsigned long long)denied, (unsigned long long)near);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("decisions");
    TCase *t = tcase_create("decisions");

    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, decides_as_exact_arithmetic, 0, BATCHES);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
