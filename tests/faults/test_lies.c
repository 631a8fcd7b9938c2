/* SPDX-License-Identifier: MIT */
/*
 * A network or a server that lies to a limiter under load, in every way that we could think of; each is a trial
 * (support/trial.h) of its own.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "support/suite.h"
#include "support/trial.h"

static struct trial trial;

static void open_trial(void)
{
    trial_open(&trial, &(struct trial_options){.login = "jane:s3cret@"});
}

/* With all that a connection may begin with. */
static void open_found(void)
{
    trial_open(&trial, &(struct trial_options){.login = "jane:s3cret@", .db = 3, .sentinel = 1});
}

static void close_trial(void)
{
    trial_close(&trial);
}

static void lie(const struct liar_rule *rule, unsigned ms)
{
    liar_rule(trial.liar, rule);
    trial_load(&trial, ms, NULL);
    liar_clear(trial.liar);
    trial_load(&trial, 50, NULL);
    trial_recover(&trial, 0);
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

static void cut(void)
{
    liar_cut(trial.liar);
}

START_TEST(refuses)
{
    liar_refuse(trial.liar, 1);
    cut();
    trial_load(&trial, 400, NULL);
    trial_load_until_degraded(&trial);
    liar_refuse(trial.liar, 0);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(accepts_and_stays_silent)
{
    liar_deaf(trial.liar, 1);
    cut();
    trial_load(&trial, 400, NULL);
    trial_load_until_degraded(&trial);
    liar_deaf(trial.liar, 0);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(closes_every_20_ms)
{
    trial_load(&trial, 300, cut);
    trial_recover(&trial, 0);
}
END_TEST

#define LIE(name, ...)                                                                                                 \
    START_TEST(name)                                                                                                   \
    {                                                                                                                  \
        lie(&(struct liar_rule){.command = "EVALSHA", __VA_ARGS__}, 200);                                              \
    }                                                                                                                  \
    END_TEST

LIE(answers_late, .act = LIAR_LATE, .ms = 70, .times = 3)
LIE(answers_later_and_later, .act = LIAR_LATE, .ms = 300, .times = 2)
LIE(is_always_slow, .act = LIAR_LATE, .ms = 30)
LIE(swallows_one_command, .act = LIAR_SILENT, .times = 1)
LIE(hangs, .act = LIAR_HANG, .times = 1)
LIE(halves_a_reply, .act = LIAR_HALF, .times = 1)
LIE(halves_a_reply_and_closes, .act = LIAR_HALF_CLOSE, .times = 3)
LIE(sends_garbage, .act = LIAR_GARBAGE, .times = 3)
LIE(closes_instead_of_a_reply, .act = LIAR_CLOSE, .times = 3)
LIE(resets, .act = LIAR_RESET, .times = 3)
LIE(loses_the_request, .act = LIAR_LOSE_REQUEST, .times = 3)
LIE(runs_the_script_and_loses_the_reply, .act = LIAR_LOSE_REPLY, .times = 3)
LIE(loses_every_third_reply, .act = LIAR_LOSE_REPLY, .skip = 2)
LIE(answers_another_type, .act = LIAR_REPLY, .text = ":7\r\n", .times = 3)
LIE(answers_nil, .act = LIAR_REPLY, .text = "$-1\r\n", .times = 3)
LIE(answers_an_empty_string, .act = LIAR_REPLY, .text = "$0\r\n\r\n", .times = 3)
LIE(answers_a_short_string, .act = LIAR_REPLY, .text = "$8\r\n01234567\r\n", .times = 3)
LIE(answers_twice, .act = LIAR_REPLY, .text = "+OK\r\n+OK\r\n", .times = 2)
LIE(promises_a_huge_array, .act = LIAR_REPLY, .text = "*2147483647\r\n", .times = 2)
LIE(nests_without_end, .act = LIAR_REPLY, .text = "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    .times = 2)

/* ---- every error reply, at every step, in both modes ------------------------------------------------------------- */

struct step {
    const char *command;
    unsigned times;       /* of a script: once, and to its repeats as well */
    int again;            /* the step comes at a connect only; 2: where a script is gone */
    enum trial_mode only; /* who takes meanwhile; a connection is for both modes */
};

static const struct step steps[] = {{"AUTH", 1, 1, TRIAL_BOTH},      {"SELECT", 1, 1, TRIAL_BOTH},
                                    {"ROLE", 1, 1, TRIAL_BOTH},      {"SCRIPT", 1, 1, TRIAL_BOTH},
                                    {"INFO", 1, 1, TRIAL_BOTH},      {"SCRIPT", 1, 2, TRIAL_BOTH},
                                    {"EVALSHA", 1, 0, TRIAL_HYBRID}, {"EVALSHA", 2, 0, TRIAL_HYBRID},
                                    {"EVALSHA", 1, 0, TRIAL_STRICT}, {"EVALSHA", 2, 0, TRIAL_STRICT}};

/* Case 28: loaded again, which is refused. */
static void lose_script(void)
{
    liar_rule(trial.liar,
              &(struct liar_rule){
                  .command = "EVALSHA", .act = LIAR_REPLY, .text = "-NOSCRIPT No matching script.\r\n", .times = 1});
}

static void answer_step(const struct step *step, const char *text)
{
    unsigned before = liar_count(trial.liar, step->command);
    trial.only = step->only;
    liar_rule(trial.liar,
              &(struct liar_rule){.command = step->command, .act = LIAR_REPLY, .text = text, .times = step->times});
    if (step->again == 1) {
        cut();
    }
    for (int turns = 0; liar_count(trial.liar, step->command) < before + step->times; turns++) {
        ck_assert_msg(turns < 1000, "%s was never sent", step->command);
        if (step->again == 2 && turns % 50 == 0) {
            lose_script(); /* once more, where that was told to one whose time was over: nobody loads it for him */
        }
        trial_load(&trial, 10, NULL);
    }
    liar_clear(trial.liar);
    trial_settle(&trial); /* so that the next step waits as short as this one did before it connects again */
}

/* The lie is told: to each step in turn under load, then to what is told at the end. */
static void answer(const char *text)
{
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        answer_step(&steps[i], text);
    }
    trial_check(&trial, 0);
    unsigned before = liar_count(trial.liar, "EVALSHA");
    liar_rule(trial.liar, &(struct liar_rule){.command = "EVALSHA", .act = LIAR_REPLY, .text = text, .times = 1});
    trial.only = TRIAL_HYBRID;
    trial_load(&trial, 5, NULL);
    trial_end(&trial);
    ck_assert_uint_gt(liar_count(trial.liar, "EVALSHA"), before + 1);
    ck_assert_msg(!strstr(trial.node.log, "s3cret"), "%.2000s", trial.node.log);
}

#define ERROR(name, text)                                                                                              \
    START_TEST(name)                                                                                                   \
    {                                                                                                                  \
        answer("-" text "\r\n");                                                                                       \
    }                                                                                                                  \
    END_TEST

ERROR(says_noscript, "NOSCRIPT No matching script. Please use EVAL.")
ERROR(says_readonly, "READONLY You can't write against a read only replica.")
ERROR(says_loading, "LOADING Redis is loading the dataset in memory")
ERROR(says_masterdown, "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.")
ERROR(says_clusterdown, "CLUSTERDOWN The cluster is down")
ERROR(says_tryagain, "TRYAGAIN Multiple keys request during rehashing of slot")
ERROR(says_busy, "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.")
ERROR(says_oom, "OOM command not allowed when used memory > 'maxmemory'.")
ERROR(says_misconf, "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist on disk.")
ERROR(says_noreplicas, "NOREPLICAS Not enough good replicas to write.")
ERROR(says_noauth, "NOAUTH Authentication required.")
ERROR(says_wrongpass, "WRONGPASS invalid username-password pair or user is disabled.")
ERROR(says_noperm, "NOPERM this user has no permissions to run the 'evalsha' command")
ERROR(says_moved, "MOVED 3999 127.0.0.1:6381")
ERROR(says_ask, "ASK 3999 127.0.0.1:6381")
ERROR(says_crossslot, "CROSSSLOT Keys in request don't hash to the same slot")
ERROR(says_wrongtype, "WRONGTYPE Operation against a key holding the wrong kind of value")
ERROR(says_error, "ERR something that no version has said yet")
ERROR(wants_no_time_in_scripts, "ERR Error running script: Write commands not allowed after non deterministic commands")
ERROR(says_it_of_the_script, "ERR Error running script (call to f_0): @user_script:7: -READONLY You can't write")
ERROR(says_nothing, "")
ERROR(quotes_the_password, "ERR unknown command, with args beginning with: 'jane' 's3cret'")

static Suite *suite(void)
{
    Suite *s = suite_create("lies");
    TCase *network = tcase_create("network"), *errors = tcase_create("errors");
    tcase_add_checked_fixture(network, open_trial, close_trial);
    tcase_add_test(network, refuses);
    tcase_add_test(network, accepts_and_stays_silent);
    tcase_add_test(network, closes_every_20_ms);
    tcase_add_test(network, answers_late);
    tcase_add_test(network, answers_later_and_later);
    tcase_add_test(network, is_always_slow);
    tcase_add_test(network, swallows_one_command);
    tcase_add_test(network, hangs);
    tcase_add_test(network, halves_a_reply);
    tcase_add_test(network, halves_a_reply_and_closes);
    tcase_add_test(network, sends_garbage);
    tcase_add_test(network, closes_instead_of_a_reply);
    tcase_add_test(network, resets);
    tcase_add_test(network, loses_the_request);
    tcase_add_test(network, runs_the_script_and_loses_the_reply);
    tcase_add_test(network, loses_every_third_reply);
    tcase_add_test(network, answers_another_type);
    tcase_add_test(network, answers_nil);
    tcase_add_test(network, answers_an_empty_string);
    tcase_add_test(network, answers_a_short_string);
    tcase_add_test(network, answers_twice);
    tcase_add_test(network, promises_a_huge_array);
    tcase_add_test(network, nests_without_end);
    suite_add_tcase(s, network);
    tcase_add_checked_fixture(errors, open_found, close_trial);
    tcase_add_test(errors, says_noscript);
    tcase_add_test(errors, says_readonly);
    tcase_add_test(errors, says_loading);
    tcase_add_test(errors, says_masterdown);
    tcase_add_test(errors, says_clusterdown);
    tcase_add_test(errors, says_tryagain);
    tcase_add_test(errors, says_busy);
    tcase_add_test(errors, says_oom);
    tcase_add_test(errors, says_misconf);
    tcase_add_test(errors, says_noreplicas);
    tcase_add_test(errors, says_noauth);
    tcase_add_test(errors, says_wrongpass);
    tcase_add_test(errors, says_noperm);
    tcase_add_test(errors, says_moved);
    tcase_add_test(errors, says_ask);
    tcase_add_test(errors, says_crossslot);
    tcase_add_test(errors, says_wrongtype);
    tcase_add_test(errors, says_error);
    tcase_add_test(errors, wants_no_time_in_scripts);
    tcase_add_test(errors, says_it_of_the_script);
    tcase_add_test(errors, says_nothing);
    tcase_add_test(errors, quotes_the_password);
    suite_add_tcase(s, errors);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
