/* SPDX-License-Identifier: MIT */
/*
 * weir/http.h: status codes and header fields.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <weir/http.h>

#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define DAY (86400 * SECOND)

static struct weir *w;
static uint64_t now;
static struct weir_result r;
static char text[2048];

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static void setup(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = 15;
    options.now_ns = read_now;
    now = 1000 * SECOND;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    memset(&r, 0x55, sizeof r);
    memset(text, 'x', sizeof text);
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

static weir_policy_id add_policy(struct weir_policy p)
{
    weir_policy_id id;

    p.size = sizeof p;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    return id;
}

static int take(weir_policy_id id, int64_t cost)
{
    return weir_take(w, id, "k", 1, cost, &r);
}

static void headers_are(int style, const char *expected)
{
    int n = weir_http_headers(text, sizeof text, &r, style);

    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(n, (int)strlen(expected));
}

static void value_is(const struct weir_result *results, size_t n, enum weir_http_field field, const char *expected)
{
    int length = weir_http_value(text, sizeof text, results, n, field);

    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(length, (int)strlen(expected));
}

/* ---- status ------------------------------------------------------------------------------------------------------ */

START_TEST(a_denial_is_429)
{
    weir_policy_id id = add("p", 1, SECOND, 1);

    ck_assert_int_eq(weir_http_status(take(id, 1), &r), 200);
    ck_assert_int_eq(weir_http_status(take(id, 1), &r), 429);
    ck_assert_int_eq(weir_http_status(take(id, 2), &r), 429);
    ck_assert_int_eq(weir_http_status(WEIR_DENY, NULL), 429);
    ck_assert_int_eq(weir_http_status(WEIR_ALLOW, NULL), 200);
}
END_TEST

/* Without a sync the outage policies answer, in both shared modes. */
START_TEST(failing_closed_is_503_and_a_denied_share_is_429)
{
    static const enum weir_mode modes[] = {WEIR_HYBRID, WEIR_STRICT};
    struct weir_policy p = {.limit = 1, .per_ns = SECOND};
    char name[8] = "a";

    for (int i = 0; i < 2; i++) {
        weir_policy_id id;

        p.mode = modes[i];
        p.name = name;
        p.on_outage = WEIR_OUTAGE_CLOSED;
        id = add_policy(p);
        name[0]++;
        ck_assert_int_eq(weir_http_status(take(id, 1), &r), 503);
        ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
        ck_assert_uint_gt(r.retry_after_ns, 0);
        /* too much for the policy in any case */
        ck_assert_int_eq(weir_http_status(take(id, 2), &r), 429);
        p.on_outage = WEIR_OUTAGE_LOCAL;
        id = add_policy(p);
        name[0]++;
        ck_assert_int_eq(weir_http_status(take(id, 1), &r), 200);
        ck_assert_int_eq(weir_http_status(take(id, 1), &r), 429);
        ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
        p.on_outage = WEIR_OUTAGE_OPEN;
        id = add_policy(p);
        name[0]++;
        for (int j = 0; j < 3; j++)
            ck_assert_int_eq(weir_http_status(take(id, 1), &r), 200);
        ck_assert_uint_eq(r.flags, WEIR_DEGRADED);
    }
}
END_TEST

START_TEST(all_or_none_keeps_429_and_503_apart)
{
    struct weir_policy p = {.name = "closed", .limit = 1, .per_ns = SECOND, .on_outage = WEIR_OUTAGE_CLOSED};
    struct weir_request requests[2] = {{.policy = add("own", 1, SECOND, 1), .key = "k", .key_len = 1, .cost = 1},
                                       {.policy = add_policy(p), .key = "k", .key_len = 1, .cost = 1}};

    ck_assert_int_eq(weir_http_status(weir_take_all(w, requests, 2, &r), &r), 503);
    ck_assert_int_eq(take(requests[0].policy, 1), WEIR_ALLOW); /* it was not charged */
    ck_assert_int_eq(weir_http_status(weir_take_all(w, requests, 2, &r), &r), 429);
}
END_TEST

START_TEST(no_room_is_503)
{
    weir_policy_id id = add("p", 1, DAY, 1);
    int full = 0;

    for (unsigned char c = 0; c < 100; c++) {
        int status = weir_take(w, id, &c, 1, 1, &r);

        if (r.flags & WEIR_FULL) {
            full++;
            ck_assert_int_eq(weir_http_status(status, &r), 503);
        } else {
            ck_assert_int_eq(weir_http_status(status, &r), 200);
        }
    }
    ck_assert_int_gt(full, 0);
}
END_TEST

START_TEST(errors_are_503_where_nobody_could_decide_and_500_where_the_caller_erred)
{
    static const int nobody[] = {WEIR_E_TIMEOUT, WEIR_E_NOSYNC, WEIR_E_CLOSED, WEIR_E_FULL, WEIR_E_NOMEM};
    static const int erred[] = {WEIR_E_INVAL, WEIR_E_KEY, WEIR_E_COST, WEIR_E_NOENT, WEIR_E_LOOP, WEIR_E_FORKED, -1000};

    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++)
        ck_assert_int_eq(weir_http_status(nobody[i], NULL), 503);
    for (size_t i = 0; i < sizeof erred / sizeof *erred; i++)
        ck_assert_int_eq(weir_http_status(erred[i], NULL), 500);
}
END_TEST

/* ---- header fields ----------------------------------------------------------------------------------------------- */

START_TEST(the_draft)
{
    weir_policy_id id = add("burst", 100, 60 * SECOND, 100);

    ck_assert_int_eq(take(id, 50), WEIR_ALLOW);
    headers_are(WEIR_HTTP_DRAFT, "RateLimit: \"burst\";r=50;t=30\r\nRateLimit-Policy: \"burst\";q=100;w=60\r\n");
    ck_assert_int_eq(take(id, 60), WEIR_DENY);
    headers_are(WEIR_HTTP_DRAFT, "Retry-After: 6\r\nRateLimit: \"burst\";r=50;t=6\r\n"
                                 "RateLimit-Policy: \"burst\";q=100;w=60\r\n");
    headers_are(WEIR_HTTP_RETRY, "Retry-After: 6\r\n");
}
END_TEST

START_TEST(legacy)
{
    weir_policy_id id = add("burst", 100, 60 * SECOND, 100);

    ck_assert_int_eq(take(id, 50), WEIR_ALLOW);
    headers_are(WEIR_HTTP_LEGACY, "X-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 50\r\nX-RateLimit-Reset: 30\r\n");
    ck_assert_int_eq(take(id, 51), WEIR_DENY);
    headers_are(WEIR_HTTP_LEGACY, "Retry-After: 1\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 50\r\n"
                                  "X-RateLimit-Reset: 1\r\n");
    headers_are(WEIR_HTTP_BOTH, "Retry-After: 1\r\nRateLimit: \"burst\";r=50;t=1\r\n"
                                "RateLimit-Policy: \"burst\";q=100;w=60\r\nX-RateLimit-Limit: 100\r\n"
                                "X-RateLimit-Remaining: 50\r\nX-RateLimit-Reset: 1\r\n");
}
END_TEST

/* Open case 15: whole seconds are rounded up and never 0 on a denial; partial refill counts. */
START_TEST(case_15_seconds_round_up)
{
    weir_policy_id slow = add("slow", 2, 5 * SECOND, 1), second = add("second", 1, SECOND, 1);
    uint64_t start = now;

    ck_assert_int_eq(take(slow, 1), WEIR_ALLOW);
    ck_assert_uint_eq(r.reset_after_ns, 2500 * MS);
    headers_are(WEIR_HTTP_DRAFT, "RateLimit: \"slow\";r=0;t=3\r\nRateLimit-Policy: \"slow\";q=1;w=3\r\n");
    now = start + 200 * MS;
    ck_assert_int_eq(take(slow, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 2300 * MS);
    value_is(&r, 1, WEIR_HTTP_RETRY_AFTER, "3");
    now = start + 2200 * MS;
    ck_assert_int_eq(take(slow, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 300 * MS);
    value_is(&r, 1, WEIR_HTTP_RETRY_AFTER, "1");
    now = start + 2500 * MS;
    ck_assert_int_eq(take(slow, 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RETRY_AFTER, "");

    start = now;
    ck_assert_int_eq(take(second, 1), WEIR_ALLOW);
    now = start + 999999500;
    ck_assert_int_eq(take(second, 1), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, 500);
    headers_are(WEIR_HTTP_BOTH, "Retry-After: 1\r\nRateLimit: \"second\";r=0;t=1\r\n"
                                "RateLimit-Policy: \"second\";q=1;w=1\r\nX-RateLimit-Limit: 1\r\n"
                                "X-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 1\r\n");
}
END_TEST

/* A client that waits as told is admitted, and t never lies past Retry-After. */
START_TEST(case_15_waiting_as_told_admits)
{
    static const uint64_t periods[] = {7 * MS, 333333333, SECOND, 1700 * MS, 61 * SECOND};

    for (size_t i = 0; i < sizeof periods / sizeof *periods; i++) {
        char name[2] = {(char)('a' + i), 0};
        weir_policy_id id = add(name, 3, periods[i], 5);

        for (int64_t cost = 1; cost <= 5; cost++) {
            unsigned long retry, t;

            while (take(id, cost) == WEIR_ALLOW)
                now += periods[i] / 11;
            ck_assert_int_gt(weir_http_value(text, sizeof text, &r, 1, WEIR_HTTP_RETRY_AFTER), 0);
            retry = strtoul(text, NULL, 10);
            ck_assert_int_gt(weir_http_value(text, sizeof text, &r, 1, WEIR_HTTP_RATELIMIT), 0);
            ck_assert_ptr_nonnull(strstr(text, ";t="));
            t = strtoul(strstr(text, ";t=") + 3, NULL, 10);
            ck_assert_uint_ge(retry, 1);
            ck_assert_uint_ge(retry, t);
            now += retry * SECOND;
            ck_assert_int_eq(take(id, cost), WEIR_ALLOW);
        }
    }
}
END_TEST

START_TEST(a_wait_that_never_ends_is_not_told)
{
    weir_policy_id id = add("p", 10, 60 * SECOND, 10), once = add("once", 0, SECOND, 2);

    ck_assert_int_eq(take(id, 5), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 100), WEIR_DENY);
    ck_assert_uint_eq(r.retry_after_ns, WEIR_NEVER);
    headers_are(WEIR_HTTP_BOTH, "RateLimit: \"p\";r=5;t=30\r\nRateLimit-Policy: \"p\";q=10;w=60\r\n"
                                "X-RateLimit-Limit: 10\r\nX-RateLimit-Remaining: 5\r\nX-RateLimit-Reset: 30\r\n");
    ck_assert_int_eq(take(once, 2), WEIR_ALLOW);
    ck_assert_int_eq(take(once, 1), WEIR_DENY);
    headers_are(WEIR_HTTP_BOTH, "RateLimit: \"once\";r=0\r\nRateLimit-Policy: \"once\";q=2\r\n"
                                "X-RateLimit-Limit: 2\r\nX-RateLimit-Remaining: 0\r\n");
}
END_TEST

/* A window is at least a second; a bucket that fills up sooner tells what it grants a second. */
START_TEST(short_windows)
{
    ck_assert_int_eq(take(add("a", 1000, SECOND, 200), 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT_POLICY, "\"a\";q=1000;w=1");
    value_is(&r, 1, WEIR_HTTP_RATELIMIT, "\"a\";r=199;t=1");
    ck_assert_int_eq(take(add("b", 3, SECOND, 1), 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT_POLICY, "\"b\";q=3;w=1");
    ck_assert_int_eq(take(add("c", 10, SECOND, 100), 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT_POLICY, "\"c\";q=100;w=10");
    ck_assert_int_eq(take(add("d", 3, 2 * SECOND, 1), 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT_POLICY, "\"d\";q=1;w=1");
}
END_TEST

/* Integers of structured fields have 15 digits. */
START_TEST(large_numbers_are_capped)
{
    ck_assert_int_eq(take(add("p", 1, SECOND, WEIR_BURST_MAX), 1), WEIR_ALLOW);
    ck_assert_uint_eq(r.limit, WEIR_BURST_MAX);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT_POLICY, "\"p\";q=999999999999999");
}
END_TEST

START_TEST(numbers_follow_a_change)
{
    struct weir_policy p = {.size = sizeof p, .limit = 10, .per_ns = 60 * SECOND, .mode = WEIR_LOCAL};
    weir_policy_id id = add("p", 100, 60 * SECOND, 100);

    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    headers_are(WEIR_HTTP_DRAFT, "RateLimit: \"p\";r=9;t=6\r\nRateLimit-Policy: \"p\";q=10;w=60\r\n");
}
END_TEST

START_TEST(a_shadow_asks_nobody_to_wait)
{
    struct weir_policy p = {.name = "p", .limit = 1, .per_ns = 10 * SECOND, .mode = WEIR_LOCAL, .shadow = 1};
    weir_policy_id id = add_policy(p);

    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
    ck_assert_uint_eq(r.flags, WEIR_SHADOW);
    ck_assert_uint_gt(r.retry_after_ns, 0);
    headers_are(WEIR_HTTP_DRAFT, "RateLimit: \"p\";r=0;t=10\r\nRateLimit-Policy: \"p\";q=1;w=10\r\n");
}
END_TEST

START_TEST(what_is_not_known_is_not_told)
{
    struct weir_policy p = {
        .name = "p", .limit = 100, .per_ns = 60 * SECOND, .mode = WEIR_STRICT, .on_outage = WEIR_OUTAGE_CLOSED};

    ck_assert_int_eq(take(add_policy(p), 1), WEIR_DENY);
    ck_assert_uint_lt(r.retry_after_ns, SECOND);
    headers_are(WEIR_HTTP_BOTH, "Retry-After: 1\r\nRateLimit-Policy: \"p\";q=100;w=60\r\n");
}
END_TEST

/* ---- several policies -------------------------------------------------------------------------------------------- */

START_TEST(several_policies)
{
    struct weir_result results[3];
    struct weir_request requests[3] = {
        {.policy = add("burst", 5, 10 * SECOND, 5), .key = "k", .key_len = 1, .cost = 2, .result = &results[0]},
        {.policy = add("hour", 10, 3600 * SECOND, 10), .key = "k", .key_len = 1, .cost = 2, .result = &results[1]},
        {.policy = add("day", 9, DAY, 9), .key = "k", .key_len = 1, .cost = 2, .result = &results[2]}};

    ck_assert_int_eq(weir_take_all(w, requests, 3, &r), WEIR_ALLOW);
    ck_assert_int_gt(weir_http_headers_many(text, sizeof text, results, 3, WEIR_HTTP_BOTH), 0);
    ck_assert_str_eq(text, "RateLimit: \"burst\";r=3;t=4, \"hour\";r=8;t=720, \"day\";r=7;t=19200\r\n"
                           "RateLimit-Policy: \"burst\";q=5;w=10, \"hour\";q=10;w=3600, \"day\";q=9;w=86400\r\n"
                           "X-RateLimit-Limit: 5\r\nX-RateLimit-Remaining: 3\r\nX-RateLimit-Reset: 4\r\n");

    /* two deny: the longer wait is told, and no t lies past it */
    for (int i = 0; i < 3; i++)
        requests[i].cost = i == 2 ? 1 : 9;
    requests[0].cost = 5;
    ck_assert_int_eq(weir_take_many(w, requests, 3, 0), 0);
    ck_assert_int_eq(requests[0].status, WEIR_DENY);
    ck_assert_int_eq(requests[1].status, WEIR_DENY);
    ck_assert_int_eq(requests[2].status, WEIR_ALLOW);
    ck_assert_int_gt(weir_http_headers_many(text, sizeof text, results, 3, WEIR_HTTP_BOTH), 0);
    ck_assert_str_eq(text, "Retry-After: 360\r\n"
                           "RateLimit: \"burst\";r=3;t=4, \"hour\";r=8;t=360, \"day\";r=6\r\n"
                           "RateLimit-Policy: \"burst\";q=5;w=10, \"hour\";q=10;w=3600, \"day\";q=9;w=86400\r\n"
                           "X-RateLimit-Limit: 10\r\nX-RateLimit-Remaining: 8\r\nX-RateLimit-Reset: 360\r\n");

    /* one of them will never do */
    requests[0].cost = 6;
    ck_assert_int_eq(weir_take_many(w, requests, 3, 0), 0);
    value_is(results, 3, WEIR_HTTP_RETRY_AFTER, "");
}
END_TEST

START_TEST(results_that_were_not_filled_are_passed_over)
{
    struct weir_result results[3];

    memset(results, 0, sizeof results);
    ck_assert_int_eq(weir_http_headers_many(text, sizeof text, results, 3, WEIR_HTTP_BOTH), 0);
    ck_assert_str_eq(text, "");
    ck_assert_int_eq(weir_take(w, add("p", 1, SECOND, 1), "k", 1, 1, &results[1]), WEIR_ALLOW);
    value_is(results, 3, WEIR_HTTP_RATELIMIT, "\"p\";r=0;t=1");
    value_is(results, 3, WEIR_HTTP_RATELIMIT_POLICY, "\"p\";q=1;w=1");
}
END_TEST

/* A result of the caller's own making, whatever is in it, makes a header. */
START_TEST(results_without_a_limiter)
{
    memset(&r, 0, sizeof r);
    r.limit = 100;
    r.remaining = 50;
    r.reset_after_ns = 30 * SECOND;
    headers_are(WEIR_HTTP_DRAFT, "RateLimit: \"default\";r=50;t=30\r\nRateLimit-Policy: \"default\";q=100\r\n");
    memset(&r, 0xff, sizeof r);
    r.limiter = NULL;
    r.flags = 0;
    headers_are(WEIR_HTTP_BOTH, "RateLimit: \"default\";r=0\r\nRateLimit-Policy: \"default\";q=999999999999999\r\n"
                                "X-RateLimit-Limit: 18446744073709551615\r\nX-RateLimit-Remaining: 0\r\n");
    r.retry_after_ns = r.reset_after_ns = WEIR_NEVER - 1;
    value_is(&r, 1, WEIR_HTTP_RETRY_AFTER, "18446744074");
}
END_TEST

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Quotes, backslashes and bytes past ASCII may be in a name; control characters may not. */
START_TEST(names_inject_nothing)
{
    struct weir_policy p = {.name = "a\r\nSet-Cookie: x", .limit = 1, .per_ns = SECOND, .mode = WEIR_LOCAL};
    weir_policy_id id;

    p.size = sizeof p;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), WEIR_E_NAME);
    ck_assert_int_eq(take(add("a\";r=9, \"b\\", 1, SECOND, 1), 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT, "\"a\\\";r=9, \\\"b\\\\\";r=0;t=1");
    ck_assert_int_eq(take(add("caf\xc3\xa9", 1, SECOND, 1), 1), WEIR_ALLOW);
    value_is(&r, 1, WEIR_HTTP_RATELIMIT_POLICY, "\"caf%C3%A9\";q=1;w=1");
}
END_TEST

/* The longest name and numbers fit where the header says that they do. */
START_TEST(the_longest)
{
    char name[WEIR_NAME_MAX + 1];

    memset(name, 0xe9, sizeof name - 1);
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(take(add(name, 1, DAY, 1000000), 1), WEIR_ALLOW);
    r.remaining = INT64_MAX;
    r.limit = UINT64_MAX;
    r.retry_after_ns = r.reset_after_ns = WEIR_NEVER - 1;
    ck_assert_int_gt(weir_http_headers(text, sizeof text, &r, WEIR_HTTP_BOTH), 0);
    ck_assert_uint_lt(strlen(text), WEIR_HTTP_HEADERS_MAX);
}
END_TEST

/* What is cut is a whole field, so that the rest of the answer's header stays what it is. */
START_TEST(short_buffers)
{
    static char whole[WEIR_HTTP_HEADERS_MAX];
    weir_policy_id id = add("p", 1, 10 * SECOND, 1);
    int n;

    take(id, 1);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    n = weir_http_headers(whole, sizeof whole, &r, WEIR_HTTP_BOTH);
    ck_assert_int_eq(n, (int)strlen(whole));
    ck_assert_int_eq(weir_http_headers(NULL, 0, &r, WEIR_HTTP_BOTH), n);
    ck_assert_int_eq(weir_http_headers(NULL, 100, &r, WEIR_HTTP_BOTH), n);
    ck_assert_int_eq(weir_http_headers(text, 0, &r, WEIR_HTTP_BOTH), n);
    ck_assert_int_eq(text[0], 'x');
    for (size_t len = 1; len <= (size_t)n + 1; len++) {
        size_t have;

        memset(text, 'x', sizeof text);
        ck_assert_int_eq(weir_http_headers(text, len, &r, WEIR_HTTP_BOTH), n);
        have = strlen(text);
        ck_assert_uint_lt(have, len);
        ck_assert_int_eq(strncmp(text, whole, have), 0);
        ck_assert(have == 0 || text[have - 1] == '\n');
        ck_assert_int_eq(text[len], 'x');
        /* nothing that would have fit was left out */
        ck_assert(have == (size_t)n || (size_t)(strchr(whole + have, '\n') - whole) + 1 >= len);
    }
    ck_assert_str_eq(text, whole);
}
END_TEST

START_TEST(short_buffers_for_values)
{
    const char *whole = "\"p\";r=0;t=1";
    int n = (int)strlen(whole);

    ck_assert_int_eq(take(add("p", 1, SECOND, 1), 1), WEIR_ALLOW);
    for (size_t len = 0; len <= (size_t)n + 1; len++) {
        memset(text, 'x', sizeof text);
        ck_assert_int_eq(weir_http_value(text, len, &r, 1, WEIR_HTTP_RATELIMIT), n);
        ck_assert_int_eq(text[len], 'x');
        if (len > 0)
            ck_assert_str_eq(text, len > (size_t)n ? whole : "");
    }
}
END_TEST

START_TEST(bad_arguments)
{
    ck_assert_int_eq(take(add("p", 1, SECOND, 1), 1), WEIR_ALLOW);
    for (int style = -2; style <= 5; style++) {
        text[0] = 'x';
        if (style >= WEIR_HTTP_DRAFT && style <= WEIR_HTTP_RETRY)
            continue;
        ck_assert_int_eq(weir_http_headers(text, sizeof text, &r, style), WEIR_E_INVAL);
        ck_assert_str_eq(text, "");
    }
    ck_assert_int_eq(weir_http_headers(text, sizeof text, NULL, WEIR_HTTP_DRAFT), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_headers_many(text, sizeof text, &r, 0, WEIR_HTTP_DRAFT), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_value(text, sizeof text, NULL, 1, WEIR_HTTP_RATELIMIT), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_value(text, sizeof text, &r, 1, WEIR_HTTP_FIELDS), WEIR_E_INVAL);
    ck_assert_str_eq(weir_http_field_name(WEIR_HTTP_RETRY_AFTER), "Retry-After");
    ck_assert_str_eq(weir_http_field_name(WEIR_HTTP_X_RESET), "X-RateLimit-Reset");
    ck_assert_ptr_null(weir_http_field_name(WEIR_HTTP_FIELDS));
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("http");
    TCase *status = tcase_create("status"), *fields = tcase_create("fields");

    tcase_add_checked_fixture(status, setup, teardown);
    tcase_add_test(status, a_denial_is_429);
    tcase_add_test(status, failing_closed_is_503_and_a_denied_share_is_429);
    tcase_add_test(status, all_or_none_keeps_429_and_503_apart);
    tcase_add_test(status, no_room_is_503);
    tcase_add_test(status, errors_are_503_where_nobody_could_decide_and_500_where_the_caller_erred);
    suite_add_tcase(s, status);
    tcase_add_checked_fixture(fields, setup, teardown);
    tcase_add_test(fields, the_draft);
    tcase_add_test(fields, legacy);
    tcase_add_test(fields, case_15_seconds_round_up);
    tcase_add_test(fields, case_15_waiting_as_told_admits);
    tcase_add_test(fields, a_wait_that_never_ends_is_not_told);
    tcase_add_test(fields, short_windows);
    tcase_add_test(fields, large_numbers_are_capped);
    tcase_add_test(fields, numbers_follow_a_change);
    tcase_add_test(fields, a_shadow_asks_nobody_to_wait);
    tcase_add_test(fields, what_is_not_known_is_not_told);
    tcase_add_test(fields, several_policies);
    tcase_add_test(fields, results_that_were_not_filled_are_passed_over);
    tcase_add_test(fields, results_without_a_limiter);
    tcase_add_test(fields, names_inject_nothing);
    tcase_add_test(fields, the_longest);
    tcase_add_test(fields, short_buffers);
    tcase_add_test(fields, short_buffers_for_values);
    tcase_add_test(fields, bad_arguments);
    suite_add_tcase(s, fields);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
