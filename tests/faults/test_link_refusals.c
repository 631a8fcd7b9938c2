/* SPDX-License-Identifier: MIT */
/*
 * sync/link.h and a server that serves nobody: each error reply by its kind, those that will never pass, and how often
 * it is tried again.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "support/liar.h"
#include "support/rig.h"
#include "support/suite.h"

static struct liar *liar;
static struct rig rig;

static void open_both(void)
{
    liar = liar_open(NULL);
    rig_open(&rig, liar_uri(liar));
}

static void close_both(void)
{
    rig_close(&rig);
    liar_close(liar);
}

static void say(const char *command, const char *text, unsigned skip, unsigned times)
{
    liar_rule(liar,
              &(struct liar_rule){.command = command, .act = LIAR_REPLY, .text = text, .skip = skip, .times = times});
}

/* ---- errors by kind ---------------------------------------------------------------------------------------------- */

struct error_reply {
    const char *text;
    enum weir__link_kind kind;
    int drops;
};

static const struct error_reply error_replies[] = {
#define BY_WORD(name, label, effect) {#name " some words", WEIR__LINK_##name, WEIR__LINK_##effect == WEIR__LINK_DROP},
    WEIR__LINK_REPLY_MAP(BY_WORD)
#undef BY_WORD
        {"READONLY", WEIR__LINK_READONLY, 1},
    {"READONLYx", WEIR__LINK_ERROR, 0},
    {"readonly x", WEIR__LINK_ERROR, 0},
    {"", WEIR__LINK_ERROR, 0},
    {"ERR unknown command", WEIR__LINK_ERROR, 0},
    {"ERR the word READONLY in the middle: READONLY x", WEIR__LINK_ERROR, 0},
    {"ERR Error running script (call to f_a): @user_script:1: -READONLY You can't write", WEIR__LINK_READONLY, 1},
    {"ERR Error running script (call to f_a): @user_script:7: OOM command not allowed", WEIR__LINK_OOM, 0},
    {"ERR Error running script (call to f_a): @user_script: 7: WRONGTYPE Operation", WEIR__LINK_WRONGTYPE, 0},
    {"ERR Error running script (call to f_a): @user_script:7: nothing known", WEIR__LINK_ERROR, 0},
    {"ERR Error running script", WEIR__LINK_ERROR, 0},
    {"ERR Error running script: -", WEIR__LINK_ERROR, 0},
};

START_TEST(errors_have_kinds)
{
    const struct error_reply *e = &error_replies[_i];
    struct rig_answer first = {0}, second = {0};
    char text[256];
    ck_assert_int_eq(weir__link_classify(e->text, strlen(e->text)), e->kind);
    if (e->kind == WEIR__LINK_NOSCRIPT) {
        return; /* has tests of its own */
    }
    snprintf(text, sizeof text, "-%s\r\n", e->text);
    say("GET", text, 0, 1);
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &first, 10000, "GET", "x", NULL), 0);
    ck_assert_int_eq(rig_send(&rig, &second, 10000, "PING", NULL), 0);
    rig_wait(&rig, first.calls && second.calls);
    ck_assert_int_eq(first.kind, e->kind);
    ck_assert_int_eq(first.had_reply, 1);
    ck_assert_str_eq(first.text, e->text);
    ck_assert_uint_eq(weir__link_errors(rig.link, e->kind), 1);
    ck_assert_int_eq(second.kind, e->drops ? WEIR__LINK_LOST : WEIR__LINK_OK);
    ck_assert_int_eq(weir__link_is_up(rig.link), !e->drops);
    rig_wait(&rig, rig.ups == 1 + e->drops && rig.up);
    ck_assert_uint_eq(liar_accepted(liar), 1 + (unsigned)e->drops);
}
END_TEST

/* Case E12 and its like: what servers say that will never run our scripts, at a script or at loading one. */
static const char *const hopeless[] = {
    "ERR Error running script (call to f_a): @user_script: 9: Write commands not allowed after non deterministic ones",
    "ERR Error running script (call to f_a): @user_script: 9: Unknown Redis command called from Lua script",
    "ERR Unknown Redis command called from script script: a, on @user_script:9.",
    "ERR This Redis command is not allowed from script script: a, on @user_script:9.",
    "ERR ACL failure in script: User jane has no permissions to run the 'time' command script: a, on @user_script:9.",
    "ERR The user executing the script can't run this command or subcommand script: a, on @user_script:9.",
    "ERR user_script:9: Script attempted to access nonexistent global variable 'struct' script: a, on @user_script:9.",
    "ERR Error compiling script (new function): user_script:9: '=' expected near 'x'",
    "ERR unknown command 'EVALSHA', with args beginning with: 'a' '1'",
    "ERR unknown command `evalsha`, with args beginning with: `a`, `1`, ",
    "ERR Unknown subcommand or wrong number of arguments for 'LOAD'. Try SCRIPT HELP.",
    "ERR unknown subcommand 'LOAD'. Try SCRIPT HELP.",
    "ERR command 'EVALSHA' is disabled",
    "ERR EVALSHA is not supported by this proxy",
    "NOPERM this user has no permissions to run the 'evalsha' command",
};

enum { HOPELESS = sizeof hopeless / sizeof hopeless[0] };

START_TEST(case_E12_what_never_works_is_said_so)
{
    static const struct weir__link_script script = {"one", "return 1", 8};
    const char *advice = "what weir needs: Redis 5, the rights in docs/security.md";
    struct rig_answer answer = {0};
    char text[256];
    snprintf(text, sizeof text, "-%s\r\n", hopeless[_i / 2]);
    rig.config.scripts = &script;
    rig.config.script_count = 1;
    say(_i % 2 ? "SCRIPT" : "GET", text, 0, 1);
    rig_up(&rig);
    ck_assert(!strstr(rig.log, advice) == !(_i % 2));
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "x", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_msg(strstr(rig.log, advice) != NULL, "%s", rig.log);
}
END_TEST

/* ... and what will pass is not. */
START_TEST(case_E12_what_passes_is_not)
{
    static const char *const passing[] = {
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script.",
        "MISCONF Commands that may modify the data set are disabled, because of errors during writes",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "NOREPLICAS Not enough good replicas to write.",
        "ERR max number of clients reached"};
    char text[256];
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++) {
        snprintf(text, sizeof text, "-%s\r\n", passing[i]);
        say("GET", text, 0, 1);
    }
    rig_up(&rig);
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++) {
        struct rig_answer answer = {0};
        ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "x", NULL), 0);
        rig_wait(&rig, answer.calls);
        ck_assert_int_eq(answer.had_reply, 1);
    }
    ck_assert_msg(!strstr(rig.log, "what weir needs"), "%s", rig.log);
}
END_TEST

START_TEST(kinds_have_labels)
{
    ck_assert_str_eq(weir__link_kind_label(WEIR__LINK_OK), "ok");
    ck_assert_str_eq(weir__link_kind_label(WEIR__LINK_KINDS), "unknown");
    for (int i = 0; i < WEIR__LINK_KINDS; i++) {
        for (int j = 0; j < i; j++) {
            ck_assert_str_ne(weir__link_kind_label((enum weir__link_kind)i),
                             weir__link_kind_label((enum weir__link_kind)j));
        }
    }
}
END_TEST

/* ---- tried again ------------------------------------------------------------------------------------------------- */

/* How often all of them have failed. */
static uint64_t storm_tries(struct weir__link *const *links, int n)
{
    uint64_t tries = 0;
    for (int i = 0; i < n; i++) {
        for (int kind = 1; kind < WEIR__LINK_KINDS; kind++) {
            tries += weir__link_errors(links[i], (enum weir__link_kind)kind);
        }
    }
    return tries;
}

/* Case E8 and its like: an outage of 10 s at a twentieth of the time. Whatever the peer does instead of serving, each
 * of them tries 6 or 7 times, give or take what a busy machine eats. */
static const struct {
    const char *command; /* NULL: nobody listens */
    enum liar_act act;
    const char *text;
} storms[] = {
    {NULL, LIAR_CLOSE, NULL},
    {"INFO", LIAR_CLOSE, NULL},
    {"INFO", LIAR_GARBAGE, NULL},
    {"AUTH", LIAR_REPLY, "-WRONGPASS no\r\n"},
    {"AUTH", LIAR_REPLY, "-LOADING Redis is loading the dataset in memory\r\n"},
    {"INFO", LIAR_REPLY, "-READONLY no\r\n"},
    {"INFO", LIAR_HALF_CLOSE, "+all of it\r\n+all of it\r\n"}, /* up, and gone at once */
};

START_TEST(case_E8_reconnects_with_backoff)
{
    enum { LINKS = 20 };
    struct weir__link *links[LINKS];
    int closed = 0, ups = 0;
    rig.config.backoff_min_ns = 5 * RIG_MS;
    rig.config.backoff_max_ns = 250 * RIG_MS;
    rig.config.on_state = NULL;
    weir__uri_login(&rig.uri, "jane", "s3cret");
    if (storms[_i].command) {
        liar_rule(liar,
                  &(struct liar_rule){.command = storms[_i].command, .act = storms[_i].act, .text = storms[_i].text});
    } else {
        liar_refuse(liar, 1);
    }
    rig_start(&rig);
    uint64_t began = uv_hrtime();
    for (int i = 0; i < LINKS; i++) {
        rig.config.seed = (uint64_t)i + 1;
        ck_assert_int_eq(weir__link_open(&links[i], &rig.loop, &rig.config), 0);
        weir__link_start(links[i]);
    }
    rig_run(&rig, 500);
    uint64_t failed = storm_tries(links, LINKS), extra = (uv_hrtime() - began) / RIG_MS - 500;
    ck_assert_uint_lt(failed / LINKS, 10 + extra / 50); /* the first was no reconnect */
    rig_wait(&rig, storm_tries(links, LINKS) >= 4 * LINKS);
    liar_clear(liar);
    liar_refuse(liar, 0);
    while (ups < LINKS) {
        rig_run(&rig, 1);
        ups = 0;
        for (int i = 0; i < LINKS; i++) {
            ups += weir__link_is_up(links[i]);
        }
    }
    for (int i = 0; i < LINKS; i++) {
        weir__link_close(links[i], NULL, &closed);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("link_refusals");
    TCase *tcase = tcase_create("refusals");
    tcase_add_checked_fixture(tcase, open_both, close_both);
    tcase_add_loop_test(tcase, errors_have_kinds, 0, sizeof error_replies / sizeof error_replies[0]);
    tcase_add_test(tcase, kinds_have_labels);
    tcase_add_loop_test(tcase, case_E12_what_never_works_is_said_so, 0, 2 * HOPELESS);
    tcase_add_test(tcase, case_E12_what_passes_is_not);
    tcase_add_loop_test(tcase, case_E8_reconnects_with_backoff, 0, sizeof storms / sizeof storms[0]);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
