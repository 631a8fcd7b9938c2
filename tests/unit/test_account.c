/* SPDX-License-Identifier: MIT */
/* The fleet benchmark's account of one limit, on requests whose answer can be counted by hand. */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "benchmarks/fleet/account.h"
#include "support/suite.h"

#define MS UINT64_C(1000000)
#define NEAR(a, b) ck_assert_double_eq_tol(a, b, 1e-6)

static const struct strategy_limit ten = {10, 1000 * MS, 10}; /* a token every 100 ms */
static struct account account;
static struct record records[64];
static size_t count;

static void setup(void)
{
    memset(&account, 0, sizeof account);
    memset(records, 0, sizeof records);
    count = 0;
}

static void ask(uint64_t at_ms, uint64_t took_ms, int allowed)
{
    records[count++] =
        (struct record){.asked_ns = at_ms * MS, .took_ns = (uint32_t)(took_ms * MS), .allowed = (uint8_t)allowed};
}

static void ask_times(unsigned n, uint64_t at_ms, uint64_t took_ms, int allowed)
{
    while (n-- > 0) {
        ask(at_ms, took_ms, allowed);
    }
}

START_TEST(a_perfect_run_is_perfect)
{
    ask_times(10, 0, 0, 1);
    ask(50, 0, 0);
    ask(100, 0, 1);
    ask(150, 0, 0);
    account_add(&account, &ten, records, count);
    NEAR(account.asked, 13);
    NEAR(account.admitted, 11);
    NEAR(account.perfect, 11);
    NEAR(account.overshoot, 0);
    NEAR(account.seen, 0);
    NEAR(account.false_denied, 0);
}
END_TEST

START_TEST(what_is_over_is_over)
{
    ask_times(13, 0, 0, 1);
    ask_times(4, 200, 0, 1); /* two were refilled meanwhile */
    account_add(&account, &ten, records, count);
    NEAR(account.perfect, 12);
    NEAR(account.overshoot, 5);
    NEAR(account.seen, 5);
    NEAR(account.false_denied, 0);
}
END_TEST

/* The worst window needn't begin with the first request. */
START_TEST(an_idle_time_does_not_pay_for_what_comes_after)
{
    ask(0, 0, 1);
    ask_times(12, 60000, 0, 1);
    account_add(&account, &ten, records, count);
    NEAR(account.overshoot, 2);
}
END_TEST

/* Verdicts that arrive together may have been made as they should be: only the time of arrival says otherwise. */
START_TEST(waiting_is_no_overshoot)
{
    ask_times(10, 0, 0, 1);
    for (uint64_t i = 1; i <= 5; i++) {
        ask(100 * i, 1000 - 100 * i, 1);
    }
    account_add(&account, &ten, records, count);
    NEAR(account.overshoot, 0);
    NEAR(account.seen, 0); /* a second refills ten */
    setup();
    ask_times(20, 0, 1000, 1); /* all in one instant, or in a second: nobody knows */
    account_add(&account, &ten, records, count);
    NEAR(account.overshoot, 0);
    NEAR(account.seen, 10);
}
END_TEST

/* Against trying every window, where requests overlap at random. */
START_TEST(the_worst_window_is_found)
{
    srand((unsigned)_i);
    for (uint64_t at = 0; count < 60; at += (uint64_t)(rand() % 40)) {
        ask(at, (uint64_t)(rand() % 150), rand() % 4 != 0);
    }
    double most = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            uint64_t from = records[i].asked_ns, to = records[j].asked_ns + records[j].took_ns;
            double held = 0;
            for (size_t k = 0; k < count; k++) {
                held +=
                    records[k].allowed && records[k].asked_ns >= from && records[k].asked_ns + records[k].took_ns <= to;
            }
            double over = to >= from ? held - (double)ten.burst - (double)(to - from) * strategy_rate(&ten) : 0;
            most = over > most ? over : most;
        }
    }
    account_add(&account, &ten, records, count);
    NEAR(account.overshoot, most);
}
END_TEST

START_TEST(a_denial_for_nothing_is_counted_once)
{
    ask_times(8, 0, 0, 1);
    ask_times(5, 0, 0, 0); /* two tokens were left for the five */
    account_add(&account, &ten, records, count);
    NEAR(account.false_denied, 2);
}
END_TEST

/* The last token went to one who asked later and was answered sooner: it is nobody's fault. */
START_TEST(a_token_taken_meanwhile_is_not_held)
{
    ask_times(9, 0, 0, 1);
    ask(10, 50, 0);
    ask(20, 1, 1);
    account_add(&account, &ten, records, count);
    NEAR(account.false_denied, 0);
}
END_TEST

START_TEST(keys_are_accounts_of_their_own)
{
    ask_times(11, 0, 0, 1);
    ask_times(12, 0, 0, 1);
    for (size_t i = 0; i < count; i++) {
        records[i].key = i < 11 ? 7 : 3;
    }
    account_add_keys(&account, &ten, records, count);
    NEAR(account.admitted, 23);
    NEAR(account.perfect, 20);
    NEAR(account.overshoot, 2);
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("account");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, a_perfect_run_is_perfect);
    tcase_add_test(tcase, what_is_over_is_over);
    tcase_add_test(tcase, an_idle_time_does_not_pay_for_what_comes_after);
    tcase_add_test(tcase, waiting_is_no_overshoot);
    tcase_add_loop_test(tcase, the_worst_window_is_found, 0, 20);
    tcase_add_test(tcase, a_denial_for_nothing_is_counted_once);
    tcase_add_test(tcase, a_token_taken_meanwhile_is_not_held);
    tcase_add_test(tcase, keys_are_accounts_of_their_own);
    Suite *suite = suite_create("account");
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
