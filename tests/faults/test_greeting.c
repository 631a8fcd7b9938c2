/* SPDX-License-Identifier: MIT */
/*
 * Every command that a connection begins with (of the Sentinel: where the master is; of the master: login, database,
 * role, scripts, settings) against every way to answer it wrongly: each error reply, answers of another shape, silence,
 * a halved answer, an end. Once told, the lie is counted by its kind and the server is left; another try gets there.
 * One liar is both the Sentinel and the master that it names.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "support/liar.h"
#include "support/rig.h"
#include "support/suite.h"

enum { SENTINEL, AUTH, SELECT, ROLE, SCRIPT, INFO, COMMANDS };

static const char *const names[COMMANDS] = {"SENTINEL", "AUTH", "SELECT", "ROLE", "SCRIPT", "INFO"};

static struct liar *liar;
static struct rig rig;

static void open_all(void)
{
    static const struct weir__link_script script = {"one", "return 1", 8};
    char uri[96];
    liar = liar_open(&(struct liar_options){.tcp = 1});
    snprintf(uri, sizeof uri, "redis+sentinel://jane:s3cret@127.0.0.1:%d/m/3", liar_port(liar));
    rig_open(&rig, uri);
    rig.config.connect_timeout_ns = 10000 * RIG_MS;
    rig.config.scripts = &script;
    rig.config.script_count = 1;
}

static void close_all(void)
{
    rig_close(&rig);
    liar_close(liar);
}

/* Tells the lie once; waits until all is well. */
static void greet(int command, enum liar_act act, const char *text)
{
    liar_rule(liar, &(struct liar_rule){.command = names[command], .act = act, .text = text, .ms = 50, .times = 1});
    rig_up(&rig);
    ck_assert_uint_ge(liar_count(liar, names[command]), 1);
    ck_assert_msg(!strstr(rig.log, "s3cret"), "%s", rig.log);
    ck_assert_str_eq(weir__link_sha(rig.link, 0), "0123456789abcdef0123456789abcdef01234567");
}

/* What was counted: this, and nothing else; WEIR__LINK_OK: nothing at all. */
static void expect_counted(enum weir__link_kind kind)
{
    for (int i = 1; i < WEIR__LINK_KINDS; i++) {
        ck_assert_msg(weir__link_errors(rig.link, (enum weir__link_kind)i) == (i == (int)kind), "%s: %s\n%s",
                      weir__link_kind_label((enum weir__link_kind)i), i == (int)kind ? "not counted" : "counted",
                      rig.log);
    }
}

/* Two connections are the way by the Sentinel; who failed on the way goes it again, from its start. */
static void expect_left(int command, int left)
{
    ck_assert_uint_eq(liar_accepted(liar), !left ? 2 : command == SENTINEL ? 3 : 4);
    ck_assert_int_eq(rig.ups, 1);
    ck_assert_int_eq(rig.downs, 0);
}

/* ---- error replies ----------------------------------------------------------------------------------------------- */

static const struct {
    const char *text;
    enum weir__link_kind kind;
    int drops;
} errors[] = {
#define BY_WORD(name, label, effect) {#name " some words", WEIR__LINK_##name, WEIR__LINK_##effect == WEIR__LINK_DROP},
    WEIR__LINK_REPLY_MAP(BY_WORD)
#undef BY_WORD
        {"", WEIR__LINK_ERROR, 0},
    {"ERR unknown command, with args beginning with: 'jane' 's3cret'", WEIR__LINK_ERROR, 0},
    {"ERR DB index is out of range", WEIR__LINK_ERROR, 0},
    {"ERR SELECT is not allowed in cluster mode", WEIR__LINK_ERROR, 0},
    {"ERR max number of clients reached", WEIR__LINK_ERROR, 0},
    {"ERR Error running script (call to f_0): @user_script:7: -READONLY You can't write", WEIR__LINK_READONLY, 1},
};

enum { ERRORS = sizeof errors / sizeof errors[0] };

/* May it go on with this error? Settings may be secret, a role may be a secret of this user's or unknown to the server;
 * a Sentinel that wants a login gets the master's. */
static int is_no_matter(int command, int i)
{
    switch (command) {
    case SENTINEL: return errors[i].kind == WEIR__LINK_NOAUTH;
    case ROLE: return errors[i].kind == WEIR__LINK_NOPERM || errors[i].kind == WEIR__LINK_ERROR;
    case INFO: return !errors[i].drops;
    default: return 0;
    }
}

START_TEST(an_error_is_said)
{
    int command = _i / ERRORS, i = _i % ERRORS, no_matter = is_no_matter(command, i);
    char text[128];
    snprintf(text, sizeof text, "-%s\r\n", errors[i].text);
    greet(command, LIAR_REPLY, text);
    expect_counted(no_matter ? WEIR__LINK_OK : errors[i].kind);
    expect_left(command, !no_matter);
}
END_TEST

/* ---- other answers ----------------------------------------------------------------------------------------------- */

/* Of no shape that any of these commands is answered with, but INFO's, of which nothing is wanted. */
static const char *const shapes[] = {
    ":1\r\n",
    "*0\r\n",
    "*-1\r\n",
    "$-1\r\n",
    "$0\r\n\r\n",
    "+\r\n",
    "+O\r\n",
    "+OKAY\r\n",
    "+master\r\n",
    "$6\r\nmaster\r\n",
    "$39\r\n0123456789abcdef0123456789abcdef0123456\r\n",
    "$40\r\n0123456789abcdef0123456789abcdef0123456g\r\n",
    "$41\r\n0123456789abcdef0123456789abcdef012345678\r\n",
    "*1\r\n:7\r\n",
    "*1\r\n$-1\r\n",
    "*1\r\n*1\r\n$6\r\nmaster\r\n",
};

enum { SHAPES = sizeof shapes / sizeof shapes[0] };

START_TEST(an_answer_has_another_shape)
{
    int command = _i / SHAPES;
    greet(command, LIAR_REPLY, shapes[_i % SHAPES]);
    expect_counted(command == SENTINEL ? WEIR__LINK_RESOLVE : command == INFO ? WEIR__LINK_OK : WEIR__LINK_PROTOCOL);
    expect_left(command, command != INFO);
}
END_TEST

static const char *const roles[] = {
    "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
    "*1\r\n+master\r\n",
    "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:7\r\n",
    "*2\r\n$8\r\nsentinel\r\n*0\r\n",
    "*1\r\n$0\r\n\r\n",
    "*1\r\n$5\r\nmaste\r\n",
    "*1\r\n$7\r\nmasters\r\n",
    "*1\r\n$6\r\nMASTER\r\n",
};

START_TEST(a_role_is_told)
{
    int is_master = _i < 2;
    greet(ROLE, LIAR_REPLY, roles[_i]);
    expect_counted(is_master ? WEIR__LINK_OK : WEIR__LINK_READONLY);
    expect_left(ROLE, !is_master);
}
END_TEST

/* ---- no answer --------------------------------------------------------------------------------------------------- */

static const struct {
    enum liar_act act;
    enum weir__link_kind kind;
} ends[] = {
    {LIAR_LATE, WEIR__LINK_OK},    {LIAR_HALF_CLOSE, WEIR__LINK_LOST},  {LIAR_CLOSE, WEIR__LINK_LOST},
    {LIAR_RESET, WEIR__LINK_LOST}, {LIAR_GARBAGE, WEIR__LINK_PROTOCOL},
};

enum { ENDS = sizeof ends / sizeof ends[0] };

START_TEST(an_answer_is_late_broken_or_none)
{
    int command = _i / ENDS, i = _i % ENDS;
    greet(command, ends[i].act, NULL);
    expect_counted(ends[i].kind);
    expect_left(command, ends[i].kind != WEIR__LINK_OK);
}
END_TEST

/* The time that a greeting may take is over; how often, a busy machine decides. */
START_TEST(a_greeting_stands_still)
{
    rig.config.connect_timeout_ns = 100 * RIG_MS;
    greet(_i / 2, _i % 2 ? LIAR_HALF : LIAR_HANG, NULL);
    ck_assert_uint_ge(weir__link_errors(rig.link, WEIR__LINK_TIMEOUT), 1);
    ck_assert_int_eq(rig.ups, 1);
}
END_TEST

/* The answers behind it come one too early, and the first of them does not fit: that ends it at once. Behind a
 * Sentinel's and INFO's there are none: these are waited for in vain. */
START_TEST(one_answer_is_left_out)
{
    int waits = _i == SENTINEL || _i == INFO;
    if (waits) {
        rig.config.connect_timeout_ns = 100 * RIG_MS;
    }
    greet(_i, LIAR_SILENT, NULL);
    ck_assert_uint_ge(weir__link_errors(rig.link, waits ? WEIR__LINK_TIMEOUT : WEIR__LINK_PROTOCOL), 1);
    ck_assert_int_eq(rig.ups, 1);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("greeting");
    TCase *tcase = tcase_create("greeting");
    tcase_add_checked_fixture(tcase, open_all, close_all);
    tcase_add_loop_test(tcase, an_error_is_said, 0, COMMANDS * ERRORS);
    tcase_add_loop_test(tcase, an_answer_has_another_shape, 0, COMMANDS * SHAPES);
    tcase_add_loop_test(tcase, a_role_is_told, 0, sizeof roles / sizeof roles[0]);
    tcase_add_loop_test(tcase, an_answer_is_late_broken_or_none, 0, COMMANDS * ENDS);
    tcase_add_loop_test(tcase, a_greeting_stands_still, 0, 2 * COMMANDS);
    tcase_add_loop_test(tcase, one_answer_is_left_out, 0, COMMANDS);
    suite_add_tcase(s, tcase);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
