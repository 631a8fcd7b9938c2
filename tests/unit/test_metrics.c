/* SPDX-License-Identifier: MIT */
/*
 * weir_stats_get and weir_metrics_write.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include <weir/weir.h>

#include "support/exposition.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)

static struct weir *w;
static char text[16384];

static uint64_t read_now(void *arg)
{
    (void)arg;
    return 5 * SECOND;
}

static void setup(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy p = WEIR_POLICY_INIT;
    weir_policy_id id;

    options.max_keys = 100;
    options.now_ns = read_now;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    p.name = "api";
    p.mode = WEIR_LOCAL;
    p.limit = 3;
    p.per_ns = 2 * SECOND;
    p.burst = 7;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    p.name = "a\\b\"c";
    p.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    for (int i = 0; i < 10; i++)
        weir_take(w, 0, "k", 1, 1, NULL);
    weir_take(w, 1, "k", 1, 1, NULL);
    memset(text, 'x', sizeof text);
}

static void teardown(void)
{
    weir_close(w);
}

static void has_line(const char *line)
{
    const char *found = strstr(text, line);

    ck_assert_msg(found && (found == text || found[-1] == '\n') && found[strlen(line)] == '\n', "no line \"%s\"", line);
}

START_TEST(the_lines)
{
    int n = weir_metrics_write(w, text, sizeof text);

    ck_assert_int_gt(n, 0);
    ck_assert_uint_eq(strlen(text), (size_t)n);
    has_line("weir_build_info{version=\"0.1.0\"} 1");
    has_line("weir_decisions_total{policy=\"api\",result=\"allowed\",source=\"local\"} 7");
    has_line("weir_decisions_total{policy=\"api\",result=\"denied\",source=\"local\"} 3");
    has_line("weir_decisions_total{policy=\"a\\\\b\\\"c\",result=\"allowed\",source=\"fallback\"} 1");
    has_line("weir_decisions_total{policy=\"a\\\\b\\\"c\",result=\"allowed\",source=\"local\"} 0");
    has_line("weir_policy_limit{policy=\"api\"} 1.5");
    has_line("weir_policy_burst{policy=\"api\"} 7");
    has_line("weir_buckets 2");
    has_line("weir_degraded_total 1");
    has_line("weir_store_up 0");
}
END_TEST

/* One name that is no UTF-8 must not spoil the whole text for who reads it. */
START_TEST(names_become_utf8)
{
    static const struct {
        const char *name, *shown;
    } names[] = {{"caf\xc3\xa9 \xf0\x9f\x8c\x8a", "caf\xc3\xa9 \xf0\x9f\x8c\x8a"},
                 {"\xff", "\xef\xbf\xbd"},
                 {"a\xc3", "a\xef\xbf\xbd"},
                 {"\xc0\xafz", "\xef\xbf\xbd\xef\xbf\xbdz"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}};
    struct weir_policy p = WEIR_POLICY_INIT;
    weir_policy_id id;
    char line[128];

    p.mode = WEIR_LOCAL;
    p.limit = 1;
    p.per_ns = SECOND;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        p.name = names[i].name;
        ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    }
    ck_assert_int_lt(weir_metrics_write(w, text, sizeof text), (int)sizeof text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(line, sizeof line, "weir_policy_limit{policy=\"%s\"} 1", names[i].shown);
        has_line(line);
    }
}
END_TEST

START_TEST(the_format)
{
    ck_assert_int_gt(weir_metrics_write(w, text, sizeof text), 0);
    ck_assert_uint_gt(exposition_check(text), 10);
}
END_TEST

START_TEST(short_buffers)
{
    int n = weir_metrics_write(w, NULL, 0);

    ck_assert_int_gt(n, 0);
    for (size_t len = 1; len < 500; len++) {
        memset(text, 'x', sizeof text);
        ck_assert_int_eq(weir_metrics_write(w, text, len), n);
        ck_assert_uint_eq(strlen(text), len - 1);
        ck_assert_int_eq(text[len], 'x');
    }
    ck_assert_int_eq(weir_metrics_write(w, text, (size_t)n + 1), n);
    ck_assert_uint_eq(strlen(text), (size_t)n);
    ck_assert_int_eq(weir_metrics_write(NULL, text, sizeof text), WEIR_E_INVAL);
}
END_TEST

/* A caller compiled with an earlier version has a shorter struct; with a later one, a longer. */
START_TEST(stats_of_other_sizes)
{
    struct {
        struct weir_stats known;
        uint64_t more;
    } later;
    struct weir_stats s;

    memset(&s, 0x55, sizeof s);
    s.size = offsetof(struct weir_stats, evictions);
    ck_assert_int_eq(weir_stats_get(w, &s), 0);
    ck_assert_uint_eq(s.keys, 2);
    ck_assert_uint_eq(s.evictions, UINT64_C(0x5555555555555555));
    memset(&later, 0x55, sizeof later);
    later.known.size = sizeof later;
    ck_assert_int_eq(weir_stats_get(w, &later.known), 0);
    ck_assert_uint_eq(later.known.allowed, 8);
    ck_assert_uint_eq(later.known.denied, 3);
    ck_assert_uint_eq(later.more, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("metrics");
    TCase *t = tcase_create("metrics");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, the_lines);
    tcase_add_test(t, the_format);
    tcase_add_test(t, names_become_utf8);
    tcase_add_test(t, short_buffers);
    tcase_add_test(t, stats_of_other_sizes);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
