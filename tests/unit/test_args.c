/* SPDX-License-Identifier: MIT */
/*
 * tools/args: what a person may type, and what is refused.
 */
#include <check.h>
#include <string.h>

#include "support/suite.h"
#include "tools/args.h"

#define SECOND UINT64_C(1000000000)
#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))

START_TEST(counts)
{
    uint64_t n = 99;
    ck_assert_int_eq(args_count("0", 0, 10, &n), 0);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(args_count("18446744073709551615", 0, UINT64_MAX, &n), 0);
    ck_assert_uint_eq(n, UINT64_MAX);
    static const char *const wrong[] = {
        "", "-1", "+1", " 1", "1 ", "1.0", "0x10", "1e3", "x", "11", "18446744073709551616", "99999999999999999999999"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        n = 99;
        ck_assert_msg(args_count(wrong[i], 0, 10, &n) == -1, "'%s' was taken for a count", wrong[i]);
        ck_assert_uint_eq(n, 99);
    }
    ck_assert_int_eq(args_count("18446744073709551616", 0, UINT64_MAX, &n), -1);
    ck_assert_int_eq(args_count("4", 5, 10, &n), -1);
}
END_TEST

START_TEST(times)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } right[] = {
        {"0", 0},
        {"10", 10 * SECOND},
        {"2.5", 2500000000},
        {"0.000000001", 1},
        {"1.0000000000000", SECOND},
        {"100ms", 100000000},
        {"1.5h", 5400 * SECOND},
        {"7us", 7000},
        {"3ns", 3},
        {"2m", 120 * SECOND},
        {"2min", 120 * SECOND},
        {"1d", 86400 * SECOND},
        {"0.25s", 250000000},
        {"36500d", SECOND * 86400 * 36500},
    };
    for (size_t i = 0; i < COUNT_OF(right); i++) {
        uint64_t ns = 99;
        ck_assert_msg(args_time(right[i].text, &ns) == 0, "'%s' was refused", right[i].text);
        ck_assert_uint_eq(ns, right[i].ns);
    }
    static const char *const wrong[] = {"",    "-1",  ".5",     "1.",       "1,5",
                                        "1 s", "s",   "1x",     "1.5ns",    "0.0000000001",
                                        "1e3", "1s ", "36501d", "36500.5d", "99999999999999999999s"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        uint64_t ns = 99;
        ck_assert_msg(args_time(wrong[i], &ns) == -1, "'%s' was taken for a time", wrong[i]);
        ck_assert_uint_eq(ns, 99);
    }
}
END_TEST

START_TEST(factors)
{
    double n = 99;
    ck_assert_int_eq(args_factor("2.5", 10, &n), 0);
    ck_assert_double_eq(n, 2.5);
    static const char *const wrong[] = {"", "0", "-1", "inf", "nan", "0x2", "1e3", " 1", "1.2.3", ".", "10.5"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        ck_assert_msg(args_factor(wrong[i], 10, &n) == -1, "'%s' was taken for a factor", wrong[i]);
        ck_assert_double_eq(n, 2.5);
    }
}
END_TEST

START_TEST(limits)
{
    static const struct {
        const char *text;
        struct args_limit limit;
    } right[] = {
        {"1000/s", {1000, SECOND, 0}},
        {"1000/1s", {1000, SECOND, 0}},
        {"100/10s,burst=20", {100, 10 * SECOND, 20}},
        {"5/min", {5, 60 * SECOND, 0}},
        {"1/d", {1, 86400 * SECOND, 0}},
        {"3/250ms", {3, 250000000, 0}},
        {"1/ns,burst=18446744073709551615", {1, 1, UINT64_MAX}},
    };
    for (size_t i = 0; i < COUNT_OF(right); i++) {
        struct args_limit l = {9, 9, 9};
        ck_assert_msg(args_limit(right[i].text, &l) == 0, "'%s' was refused", right[i].text);
        ck_assert_uint_eq(l.limit, right[i].limit.limit);
        ck_assert_uint_eq(l.per_ns, right[i].limit.per_ns);
        ck_assert_uint_eq(l.burst, right[i].limit.burst);
    }
    static const char *const wrong[] = {"",           "1000",        "/s",           "1000/",          "0/s",
                                        "1/0s",       "1/10",        "1/x",          "1/s,",           "1/s,burst",
                                        "1/s,burst=", "1/s,burst=0", "1/s,burst=1,", "1/s, burst=1",   "1/s,b=1",
                                        "-1/s",       "1.5/s",       "1/1.5s",       "1/99999999999d", "1/s "};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct args_limit l = {9, 9, 9};
        ck_assert_msg(args_limit(wrong[i], &l) == -1, "'%s' was taken for a limit", wrong[i]);
        ck_assert(l.limit == 9 && l.per_ns == 9 && l.burst == 9);
    }
}
END_TEST

START_TEST(policies)
{
    struct args_policy p;
    ck_assert_int_eq(args_policy("api=100/10s,burst=20", &p), 0);
    ck_assert_str_eq(p.name, "api");
    ck_assert_uint_eq(p.limit.limit, 100);
    ck_assert_uint_eq(p.limit.per_ns, 10 * SECOND);
    ck_assert_uint_eq(p.limit.burst, 20);
    ck_assert_int_eq(args_policy("a b:c", &p), 0);
    ck_assert_str_eq(p.name, "a b:c");
    ck_assert_uint_eq(p.limit.limit, 0);
    static const char *const wrong[] = {
        "",        "=1/s",     "api=",        "api=1",
        "api=0/s", "api=1/s,", "api=1/s=2/s", "0123456789012345678901234567890123456789012345678901234567890123=1/s"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        ck_assert_msg(args_policy(wrong[i], &p) == -1, "'%s' was taken for a policy", wrong[i]);
        ck_assert_str_eq(p.name, "a b:c");
    }
}
END_TEST

START_TEST(words)
{
    static const char *const list[] = {"local", "open", NULL};
    ck_assert_int_eq(args_word("local", list), 0);
    ck_assert_int_eq(args_word("open", list), 1);
    ck_assert_int_eq(args_word("", list), -1);
    ck_assert_int_eq(args_word("ope", list), -1);
}
END_TEST

/* ---- the options of a command ------------------------------------------------------------------------------------ */

static int set_option(void *out, int option, const char *text)
{
    uint64_t *given = out;
    if (option == 'j') {
        given[1]++;
        return text ? -1 : 0;
    }
    return args_count(text, 1, 9, &given[0]);
}

static const struct option some_options[] = {
    {"count", required_argument, NULL, 'c'},
    {"json", no_argument, NULL, 'j'},
    ARGS_OPTIONS_END,
};

static const struct args_command some_command = {
    .name = "some", .help = "", .options = some_options, .set = set_option, .least = 1, .most = 2};

static int parse(uint64_t given[2], char *a, char *b, char *c, char *d)
{
    char *argv[] = {"weir some", a, b, c, d, NULL};
    int argc = 0;
    while (argv[argc]) {
        argc++;
    }
    given[0] = given[1] = 0;
    optind = 0; /* from the start again */
    opterr = 0;
    int first = args_options(&some_command, argc, argv, given);
    ck_assert(first <= 0 || strcmp(argv[first], "operand") == 0);
    return first;
}

START_TEST(options)
{
    uint64_t given[2];
    ck_assert_int_eq(parse(given, "operand", NULL, NULL, NULL), 1);
    ck_assert_int_eq(parse(given, "operand", "--count", "3", "--json"), 4); /* operands go to the end */
    ck_assert_uint_eq(given[0], 3);
    ck_assert_uint_eq(given[1], 1);
    ck_assert_int_eq(parse(given, "--", "operand", "--json", NULL), 2);
    ck_assert_uint_eq(given[1], 0);
    ck_assert_int_eq(parse(given, "--help", NULL, NULL, NULL), 0);
    ck_assert_int_eq(parse(given, NULL, NULL, NULL, NULL), -1);
    ck_assert_int_eq(parse(given, "--json", NULL, NULL, NULL), -1);
    ck_assert_int_eq(parse(given, "operand", "b", "c", NULL), -1);
    ck_assert_int_eq(parse(given, "operand", "--count", "10", NULL), -1);
    ck_assert_int_eq(parse(given, "operand", "--count", NULL, NULL), -1);
    ck_assert_int_eq(parse(given, "operand", "--bogus", NULL, NULL), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("args");
    TCase *tcase = tcase_create("args");
    tcase_add_test(tcase, counts);
    tcase_add_test(tcase, times);
    tcase_add_test(tcase, factors);
    tcase_add_test(tcase, limits);
    tcase_add_test(tcase, policies);
    tcase_add_test(tcase, words);
    tcase_add_test(tcase, options);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
