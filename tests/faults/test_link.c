/* SPDX-License-Identifier: MIT */
/*
 * sync/link.h against a server that lies: refused, silent, late, halved, garbage, reset; deadlines, writes.
 */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "support/liar.h"
#include "support/rig.h"
#include "support/suite.h"

enum { HOUR_MS = 3600 * 1000 };

static struct liar *liar;
static struct rig rig;

static void open_unix(void)
{
    liar = liar_open(NULL);
    rig_open(&rig, liar_uri(liar));
}

static void open_tcp(void)
{
    liar = liar_open(&(struct liar_options){.tcp = 1});
    rig_open(&rig, liar_uri(liar));
}

static void close_both(void)
{
    rig_close(&rig);
    liar_close(liar);
    liar = NULL;
}

static void lie(const char *command, enum liar_act act, unsigned skip, unsigned times)
{
    liar_rule(liar, &(struct liar_rule){.command = command, .act = act, .skip = skip, .times = times});
}

static void say(const char *command, const char *text, unsigned skip, unsigned times)
{
    liar_rule(liar,
              &(struct liar_rule){.command = command, .act = LIAR_REPLY, .text = text, .skip = skip, .times = times});
}

static uint64_t errors(enum weir__link_kind kind)
{
    return weir__link_errors(rig.link, kind);
}

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

/* Until that many of these commands have been read, and answered; the loop stands still meanwhile. */
static void wait_standing_still(const char *command, unsigned count)
{
    for (int turns = 0; liar_count(liar, command) < count; turns++) {
        ck_assert_msg(turns < RIG_WAIT_MS, "never came: %s", command);
        sleep_ms(1);
    }
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

START_TEST(refused_until_it_listens)
{
    struct rig_answer answer = {0};
    liar_refuse(liar, 1);
    rig_start(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 50, "PING", NULL), WEIR_E_NOSYNC);
    rig_wait(&rig, errors(WEIR__LINK_CONNECT) >= 3);
    ck_assert_int_eq(rig.ups + rig.downs, 0);
    liar_refuse(liar, 0);
    rig_wait(&rig, rig.up);
    ck_assert_uint_eq(weir__link_reconnects(rig.link), 0);
    ck_assert_int_eq(rig_send(&rig, &answer, 5000, "PING", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_str_eq(answer.text, "PONG");
    /* One warning an outage, however many tries. */
    const char *first = strstr(rig.log, ": connect: ");
    ck_assert_ptr_nonnull(first);
    ck_assert_int_eq(first[-1] != '\n', 1);
    ck_assert_ptr_null(strstr(first + 1, "\n1 redis"));
}
END_TEST

START_TEST(accepts_and_stays_silent)
{
    rig.config.connect_timeout_ns = 50 * RIG_MS;
    liar_deaf(liar, 1);
    rig_start(&rig);
    rig_wait(&rig, errors(WEIR__LINK_TIMEOUT) >= 2);
    ck_assert_int_eq(rig.ups, 0);
    rig.config.connect_timeout_ns = 0;
    liar_deaf(liar, 0);
    rig_wait(&rig, rig.up);
}
END_TEST

/* The time that a connect may take must not outlive the connect. */
START_TEST(connect_timeout_ends_with_the_connect)
{
    struct rig_answer answer = {0};
    rig.config.connect_timeout_ns = 500 * RIG_MS;
    liar_rule(liar, &(struct liar_rule){.command = "GET", .act = LIAR_LATE, .ms = 150});
    rig_up(&rig); /* by another try, where the machine stood still at the first */
    unsigned accepted = liar_accepted(liar);
    uint64_t timeouts = errors(WEIR__LINK_TIMEOUT);
    rig_run(&rig, 400);
    ck_assert_int_eq(rig_send(&rig, &answer, 5000, "GET", "x", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_OK);
    rig_run(&rig, 150);
    ck_assert_int_eq(rig.up, 1);
    ck_assert_int_eq(rig.downs, 0);
    ck_assert_uint_eq(liar_accepted(liar), accepted);
    ck_assert_uint_eq(errors(WEIR__LINK_TIMEOUT), timeouts);
}
END_TEST

static const char *const greeting_lies[] = {
    "+OK\r\n", "$3\r\nabc\r\n", ":1\r\n", "*0\r\n", "$-1\r\n", "$40\r\nzz23456789abcdef0123456789abcdef01234567\r\n"};

START_TEST(greeting_is_checked)
{
    static const struct weir__link_script script = {"one", "return 1", 8};
    rig.config.scripts = &script;
    rig.config.script_count = 1;
    say("SCRIPT", greeting_lies[_i], 0, 1);
    rig_up(&rig);
    ck_assert_uint_eq(errors(WEIR__LINK_PROTOCOL), 1);
    ck_assert_uint_eq(liar_accepted(liar), 2);
    ck_assert_str_eq(weir__link_sha(rig.link, 0), "0123456789abcdef0123456789abcdef01234567");
}
END_TEST

START_TEST(greeting_may_fail_by_reply)
{
    static const struct weir__link_script script = {"one", "return 1", 8};
    rig.config.scripts = &script;
    rig.config.script_count = 1;
    say("SCRIPT", "-LOADING Redis is loading the dataset in memory\r\n", 0, 2);
    say("SCRIPT", "-NOPERM no\r\n", 0, 1);
    rig_up(&rig);
    ck_assert_uint_eq(errors(WEIR__LINK_LOADING), 2);
    ck_assert_uint_eq(errors(WEIR__LINK_NOPERM), 1);
    ck_assert_ptr_nonnull(strstr(rig.log, "loading script one"));
}
END_TEST

/* A server may quote what it did not understand: the password must not reach a log. */
START_TEST(no_password_in_the_log)
{
    char last[128];
    weir__uri_login(&rig.uri, "jane", "s3cret");
    say("AUTH", "-ERR unknown command 'AUTH', with args beginning with: 'jane' 's3cret'\r\n", 0, 1);
    say("AUTH", "-WRONGPASS s3cret is not it\r\n", 0, 1);
    say("AUTH", "+s3cret\r\n", 0, 1);
    rig_up(&rig);
    ck_assert_uint_gt(liar_last(liar, "AUTH", last, sizeof last), 0);
    ck_assert_str_eq(last, "AUTH jane s3cret");
    ck_assert_uint_eq(errors(WEIR__LINK_ERROR), 1);
    ck_assert_uint_eq(errors(WEIR__LINK_WRONGPASS), 1);
    ck_assert_uint_eq(errors(WEIR__LINK_PROTOCOL), 1);
    ck_assert_msg(strstr(rig.log, "s3cret") == NULL, "%s", rig.log);
}
END_TEST

START_TEST(log_lines_are_lines)
{
    say("GET", "-READONLY a\x1b[31m\tb\r\n", 0, 1);
    struct rig_answer answer = {0};
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 5000, "GET", "x", NULL), 0);
    rig_wait(&rig, rig.ups == 2);
    ck_assert_ptr_nonnull(strstr(rig.log, "READONLY a?[31m?b"));
}
END_TEST

START_TEST(eviction_is_warned_of_once)
{
    say("INFO", "$31\r\nmaxmemory_policy:allkeys-lru\r\nx\r\n", 0, 0);
    rig_up(&rig);
    const char *warning = strstr(rig.log, "maxmemory-policy is allkeys-lru:");
    ck_assert_msg(warning != NULL, "%s", rig.log);
    liar_cut(liar);
    rig_wait(&rig, rig.ups == 2);
    ck_assert_ptr_null(strstr(warning + 1, "maxmemory-policy is"));
}
END_TEST

START_TEST(settings_may_be_secret)
{
    say("INFO", "-NOPERM this user has no permissions to run the 'info' command\r\n", 0, 0);
    rig_up(&rig);
    ck_assert_uint_eq(errors(WEIR__LINK_NOPERM), 0);
}
END_TEST

START_TEST(names_are_resolved)
{
    char uri[64];
    snprintf(uri, sizeof uri, "redis://localhost:%d", liar_port(liar));
    ck_assert_int_eq(weir__uri_parse(uri, &rig.uri), 0);
    rig.config.backoff_min_ns = RIG_HOUR; /* where ::1 comes first, the next address is tried at once */
    rig.config.backoff_max_ns = rig.config.backoff_min_ns;
    rig_up(&rig);
}
END_TEST

START_TEST(names_may_not_resolve)
{
    ck_assert_int_eq(weir__uri_parse("redis://no..host", &rig.uri), 0);
    rig_start(&rig);
    rig_wait(&rig, errors(WEIR__LINK_RESOLVE) >= 2);
    ck_assert_ptr_nonnull(strstr(rig.log, "redis no..host:6379: resolve: "));
}
END_TEST

/* ---- answers ----------------------------------------------------------------------------------------------------- */

struct broken_answer {
    enum liar_act act;
    const char *text;
    enum weir__link_kind kind;
};

static const struct broken_answer broken[] = {
    {LIAR_CLOSE, NULL, WEIR__LINK_LOST},
    {LIAR_RESET, NULL, WEIR__LINK_LOST},
    {LIAR_HALF_CLOSE, "$10\r\n0123456789\r\n", WEIR__LINK_LOST},
    {LIAR_HALF_CLOSE, "+PONG\r\n", WEIR__LINK_LOST},
    {LIAR_HALF_CLOSE, "*2\r\n:1\r\n:2\r\n", WEIR__LINK_LOST},
    {LIAR_GARBAGE, NULL, WEIR__LINK_PROTOCOL},
    {LIAR_REPLY, "*2147483647\r\n", WEIR__LINK_PROTOCOL},
    {LIAR_REPLY, "*65537\r\n", WEIR__LINK_PROTOCOL},
    {LIAR_REPLY, "*-7\r\n", WEIR__LINK_PROTOCOL},
    {LIAR_REPLY, "HTTP/1.1 400 Bad Request\r\n\r\n", WEIR__LINK_PROTOCOL},
    {LIAR_REPLY, "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", WEIR__LINK_PROTOCOL},
    {LIAR_HALF, "$10\r\n0123456789\r\n", WEIR__LINK_TIMEOUT},
    {LIAR_HANG, NULL, WEIR__LINK_TIMEOUT},
};

/* The first of three commands gets the broken answer; all three are called back once, then another connection works. */
START_TEST(broken_answers)
{
    const struct broken_answer *b = &broken[_i];
    struct rig_answer answers[3] = {{0}}, after = {0};
    liar_rule(liar, &(struct liar_rule){.command = "GET", .act = b->act, .text = b->text, .times = 1});
    rig_up(&rig);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(rig_send(&rig, &answers[i], b->kind == WEIR__LINK_TIMEOUT ? 40 : 10000, "GET", "x", NULL), 0);
    }
    rig_wait(&rig, answers[0].calls && answers[1].calls && answers[2].calls);
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(answers[i].kind == b->kind, "%s", weir__link_kind_label(answers[i].kind));
        ck_assert_int_eq(answers[i].had_reply, 0);
    }
    ck_assert_uint_eq(errors(b->kind), b->kind == WEIR__LINK_TIMEOUT ? 3 : 1);
    rig_wait(&rig, rig.ups == 2);
    ck_assert_int_eq(rig.downs, 1);
    ck_assert_uint_eq(weir__link_reconnects(rig.link), 1);
    ck_assert_uint_eq(liar_accepted(liar), 2);
    ck_assert_int_eq(rig_send(&rig, &after, 10000, "PING", NULL), 0);
    rig_wait(&rig, after.calls);
    ck_assert_str_eq(after.text, "PONG");
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(answers[i].calls, 1);
    }
}
END_TEST

/* Whatever a peer sends before it closes: one callback, no crash, and the next connection works. */
START_TEST(random_answers)
{
    static const char *const tokens[] = {"+",    "-",  ":",  "$", "*",  "\r\n", "\r\n", "0",    "1",     "-1", "3",
                                         "9999", "_",  ",",  "#", "!",  "=",    "(",    "%",    "~",     ">",  "|",
                                         "abc",  "\n", "\r", " ", "*2", "$3",   "inf",  "true", "NOAUTH"};
    const unsigned n = sizeof tokens / sizeof tokens[0];
    unsigned state = (unsigned)_i + 1;
    rig.config.backoff_min_ns = rig.config.backoff_max_ns = RIG_MS;
    rig_up(&rig);
    for (int round = 0; round < 60; round++) {
        struct rig_answer answer = {0};
        char text[1024] = "";
        unsigned words = 1 + round % 12;
        size_t half = 0;
        for (unsigned i = 0; i < words; i++) {
            state = state * 1103515245u + 12345u;
            const char *token = tokens[state / 65536 % n];
            memcpy(text + half, token, strlen(token));
            half += strlen(token);
        }
        memcpy(text + half, text, half); /* half of that is what is sent */
        text[2 * half] = '\0';
        liar_clear(liar);
        liar_rule(liar, &(struct liar_rule){.command = "GET", .act = LIAR_HALF_CLOSE, .text = text, .times = 1});
        int ups = rig.ups;
        ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "x", NULL), 0);
        rig_wait(&rig, answer.calls && rig.ups == ups + 1);
    }
}
END_TEST

/* hiredis' async layer asserts here, which ends the host. */
START_TEST(answers_nobody_asked_for)
{
    struct rig_answer answer = {0};
    say("GET", "+one\r\n+two\r\n", 0, 1);
    say("GET", "+one\r\n-ERR max number of clients reached\r\n", 0, 1);
    rig_up(&rig);
    for (int i = 1; i <= 2; i++) {
        ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "x", NULL), 0);
        rig_wait(&rig, rig.ups == 1 + i);
        ck_assert_int_eq(answer.calls, 1);
        ck_assert_str_eq(answer.text, "one");
    }
    ck_assert_uint_eq(errors(WEIR__LINK_PROTOCOL), 1);
    ck_assert_uint_eq(errors(WEIR__LINK_ERROR), 1);
    ck_assert_ptr_nonnull(strstr(rig.log, "max number of clients reached"));
}
END_TEST

/* Only the owner can see that a well-formed answer makes no sense. */
START_TEST(owner_finds_a_fault)
{
    rig_up(&rig);
    weir__link_fault(rig.link, WEIR__LINK_WRONGTYPE);
    ck_assert_int_eq(weir__link_is_up(rig.link), 1);
    weir__link_fault(rig.link, WEIR__LINK_PROTOCOL);
    ck_assert_int_eq(weir__link_is_up(rig.link), 0);
    ck_assert_int_eq(rig.up, 1); /* told from the loop, not from inside */
    rig_wait(&rig, rig.ups == 2);
    ck_assert_uint_eq(errors(WEIR__LINK_WRONGTYPE), 1);
    ck_assert_uint_eq(errors(WEIR__LINK_PROTOCOL), 1);
}
END_TEST

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

/* Writes go on while the server hangs: they must not push the deadline out. */
START_TEST(deadline_under_steady_traffic)
{
    struct rig_answer first = {0}, others[64] = {{0}};
    int sent = 0;
    rig.config.stall_ns = RIG_HOUR;
    lie("GET", LIAR_HANG, 0, 1);
    rig_up(&rig);
    uint64_t start = uv_hrtime();
    ck_assert_int_eq(rig_send(&rig, &first, 60, "GET", "x", NULL), 0);
    for (; sent < 2; sent++) { /* at once: the machine may stand still till the deadline */
        ck_assert_int_eq(rig_send(&rig, &others[sent], 5000, "PING", NULL), 0);
    }
    while (!first.calls && sent < 64) {
        if (rig_send(&rig, &others[sent], 5000, "PING", NULL) == 0) {
            sent++;
        }
        rig_run(&rig, 2);
    }
    ck_assert_int_eq(first.calls, 1);
    ck_assert_int_eq(first.kind, WEIR__LINK_TIMEOUT);
    ck_assert_uint_ge(first.at - start, 60 * RIG_MS);
    ck_assert_int_gt(sent, 1);
    /* It stalls: nothing more is accepted, and the others wait for their own deadlines. */
    ck_assert_int_eq(rig.up, 0);
    ck_assert_int_eq(rig.why, WEIR__LINK_TIMEOUT);
    ck_assert_int_eq(rig_send(&rig, &others[63], 50, "PING", NULL), WEIR_E_NOSYNC);
    ck_assert_int_eq(others[0].calls, 0);
    rig_close_link(&rig);
    rig_wait(&rig, rig.closed);
    for (int i = 0; i < sent; i++) {
        ck_assert_int_eq(others[i].calls, 1);
        ck_assert_int_eq(others[i].kind, WEIR__LINK_CLOSED);
    }
}
END_TEST

/* Late, but it answers: the answer is dropped, the connection is kept. */
START_TEST(late_answers)
{
    struct rig_answer late = {0}, after = {0};
    rig.config.stall_ns = RIG_HOUR;
    liar_rule(liar, &(struct liar_rule){.command = "GET", .act = LIAR_LATE, .ms = HOUR_MS, .times = 1});
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &late, 40, "GET", "x", NULL), 0);
    rig_wait(&rig, late.calls);
    ck_assert_int_eq(late.kind, WEIR__LINK_TIMEOUT);
    ck_assert_int_eq(rig.up, 0);
    liar_release(liar);
    rig_wait(&rig, rig.up);
    ck_assert_int_eq(rig.ups, 2);
    ck_assert_uint_eq(weir__link_late(rig.link), 1);
    ck_assert_uint_eq(liar_accepted(liar), 1);
    ck_assert_uint_eq(weir__link_reconnects(rig.link), 0);
    ck_assert_int_eq(rig_send(&rig, &after, 10000, "PING", NULL), 0);
    rig_wait(&rig, after.calls);
    ck_assert_str_eq(after.text, "PONG");
    ck_assert_int_eq(late.calls, 1);
}
END_TEST

/* Nothing answers any more: the connection goes, after stall_ns. */
START_TEST(hung_server_is_left)
{
    struct rig_answer answer = {0};
    rig.config.stall_ns = 50 * RIG_MS;
    lie("GET", LIAR_HANG, 0, 1);
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 30, "GET", "x", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_uint_eq(liar_accepted(liar), 1);
    rig_wait(&rig, rig.ups == 2);
    ck_assert_int_eq(rig.downs, 1);
    ck_assert_uint_eq(liar_accepted(liar), 2);
    ck_assert_uint_eq(errors(WEIR__LINK_TIMEOUT), 1);
}
END_TEST

/* Case E15: what hiredis has only since 1.0, or means otherwise since then (timeouts of its adapter, flags, who frees a
 * context and who is told), is not relied on: with any of them each connection ends once, however it does, the command
 * in flight is called back once, and the next connection is a new one. */
START_TEST(ends_are_told_once_by_any_hiredis)
{
    static const enum liar_act acts[] = {LIAR_CLOSE, LIAR_RESET, LIAR_HALF_CLOSE, LIAR_GARBAGE, LIAR_HANG};
    const int n = sizeof acts / sizeof acts[0];
    ck_assert(HIREDIS_MAJOR > 0 || (HIREDIS_MINOR == 14 && HIREDIS_PATCH >= 1));
    rig.config.stall_ns = 20 * RIG_MS;
    for (int i = 0; i < n; i++) {
        lie("GET", acts[i], 0, 1);
    }
    rig_up(&rig);
    for (int i = 0; i < n; i++) {
        struct rig_answer answer = {0};
        ck_assert_int_eq(rig_send(&rig, &answer, acts[i] == LIAR_HANG ? 20 : 10000, "GET", "x", NULL), 0);
        rig_wait(&rig, answer.calls == 1 && rig.ups == i + 2);
        ck_assert_int_eq(rig.downs, i + 1);
        ck_assert_uint_eq(liar_accepted(liar), (unsigned)i + 2);
    }
    liar_refuse(liar, 1); /* and those that never began: no end is told */
    liar_cut(liar);
    rig_wait(&rig, errors(WEIR__LINK_CONNECT) >= 3);
    ck_assert_int_eq(rig.downs, n + 1);
    liar_refuse(liar, 0);
    rig_wait(&rig, rig.ups == n + 2);
}
END_TEST

/* A slow answer to one command, while others get theirs, which the loop finds no later than the deadline: no stall. */
START_TEST(slow_is_not_hung)
{
    struct rig_answer first = {0}, second = {0};
    rig.config.stall_ns = RIG_HOUR;
    rig_up(&rig);
    liar_rule(liar, &(struct liar_rule){.command = "GET", .act = LIAR_LATE, .ms = HOUR_MS});
    ck_assert_int_eq(rig_send(&rig, &first, 10000, "ECHO", "x", NULL), 0);
    ck_assert_int_eq(rig_send(&rig, &second, 60, "GET", "x", NULL), 0);
    weir__link_flush(rig.link);
    wait_standing_still("GET", 1);
    rig_wait(&rig, second.calls);
    ck_assert_int_eq(first.kind, WEIR__LINK_OK);
    ck_assert_int_eq(second.kind, WEIR__LINK_TIMEOUT);
    ck_assert_int_eq(rig.downs, 0);
    liar_release(liar);
    rig_wait(&rig, weir__link_late(rig.link) == 1);
}
END_TEST

/* The host holds the loop up for longer than the deadline; the answer came in time, and timers run before poll. */
START_TEST(loop_was_held_up)
{
    struct rig_answer answer = {0};
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 100, "PING", NULL), 0);
    weir__link_flush(rig.link);
    wait_standing_still("PING", 1);
    sleep_ms(200);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_OK);
    ck_assert_uint_eq(errors(WEIR__LINK_TIMEOUT), 0);
}
END_TEST

/* The same while it connects, and while it greets. */
START_TEST(connect_was_held_up)
{
    rig.config.connect_timeout_ns = 60 * RIG_MS;
    rig_start(&rig);
    sleep_ms(80);
    uv_run(&rig.loop, UV_RUN_NOWAIT);
    wait_standing_still("INFO", 1);
    sleep_ms(80);
    rig_wait(&rig, rig.up);
    ck_assert_uint_eq(errors(WEIR__LINK_TIMEOUT), 0);
    ck_assert_uint_eq(liar_accepted(liar), 1);
}
END_TEST

static uint64_t last_beat, largest_gap;

static void on_beat(uv_timer_t *timer)
{
    uint64_t now = uv_hrtime();
    (void)timer;
    if (now - last_beat > largest_gap) {
        largest_gap = now - last_beat;
    }
    last_beat = now;
}

/* A slow Redis must not hold up the host's loop: a heartbeat of 10 ms beats on, from the first command by its deadline,
 * the stall and the loss to the next connection. The bound is generous; on a machine that holds the process up by
 * itself, one quiet run of many is enough. */
START_TEST(slow_redis_blocks_nobody)
{
    static uv_timer_t heart;
    rig.config.stall_ns = 150 * RIG_MS;
    liar_rule(liar, &(struct liar_rule){.command = "GET", .act = LIAR_LATE, .ms = HOUR_MS});
    rig_up(&rig);
    uv_timer_init(&rig.loop, &heart);
    for (int i = 1; i <= 40; i++) {
        struct rig_answer answers[8] = {{0}};
        largest_gap = 0;
        uv_update_time(&rig.loop);
        last_beat = uv_hrtime();
        uv_timer_start(&heart, on_beat, 10, 10);
        for (int j = 0; j < 8; j++) {
            ck_assert_int_eq(rig_send(&rig, &answers[j], 50, "GET", "x", NULL), 0);
        }
        rig_wait(&rig, rig.ups == 1 + i);
        uv_timer_stop(&heart);
        for (int j = 0; j < 8; j++) {
            ck_assert_int_eq(answers[j].calls, 1);
            ck_assert_int_eq(answers[j].kind, WEIR__LINK_TIMEOUT);
        }
        if (largest_gap < 50 * RIG_MS) {
            break;
        }
    }
    uv_close((uv_handle_t *)&heart, NULL);
    ck_assert_uint_gt(largest_gap, 0);
    ck_assert_uint_lt(largest_gap, 50 * RIG_MS);
}
END_TEST

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void nothing(int signal)
{
    (void)signal;
}

/* The peer has gone and this side does not know: the write must not kill the host, nor leave a signal behind, nor
 * eat one that was there before. */
START_TEST(sigpipe_is_nobodys)
{
    struct rig_answer answer = {0};
    sigset_t pipe_only, before, pending;
    int blocked = _i & 1, pending_before = _i & 2;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    signal(SIGPIPE, SIG_DFL);
    if (blocked) {
        pthread_sigmask(SIG_BLOCK, &pipe_only, NULL);
    }
    if (blocked && pending_before) {
        signal(SIGPIPE, nothing);
        raise(SIGPIPE);
    }
    rig_up(&rig);
    liar_cut(liar);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "PING", NULL), 0);
    weir__link_flush(rig.link);
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    ck_assert_int_eq(sigismember(&before, SIGPIPE), blocked);
    sigpending(&pending);
    ck_assert_int_eq(sigismember(&pending, SIGPIPE), blocked && pending_before);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_LOST);
    rig_wait(&rig, rig.ups == 2);
}
END_TEST

/* More than the socket takes at once. */
START_TEST(partial_writes)
{
    enum { SIZE = 4 * 1024 * 1024 };
    struct rig_answer big = {0}, after = {0};
    char *value = malloc(SIZE + 1);
    ck_assert_ptr_nonnull(value);
    memset(value, 'x', SIZE);
    value[SIZE] = '\0';
    rig_up(&rig);
    liar_deaf(liar, 1);
    ck_assert_int_eq(rig_send(&rig, &big, 15000, "SET", "k", value, NULL), 0);
    rig_run(&rig, 20);
    ck_assert_int_eq(rig_send(&rig, &after, 15000, "PING", NULL), 0);
    rig_run(&rig, 20);
    liar_deaf(liar, 0);
    rig_wait(&rig, big.calls && after.calls);
    ck_assert_str_eq(big.text, "OK");
    ck_assert_str_eq(after.text, "PONG");
    ck_assert_uint_eq(liar_last(liar, "SET", NULL, 0), 0);
    ck_assert_uint_eq(liar_last(liar, "SET", value, SIZE), 6 + SIZE);
    free(value);
}
END_TEST

START_TEST(line_has_an_end)
{
    enum { LINE = 1024 };
    struct rig_answer *answers = calloc(LINE + 1, sizeof *answers);
    ck_assert_ptr_nonnull(answers);
    rig_up(&rig);
    for (int i = 0; i < LINE; i++) {
        ck_assert_int_eq(rig_send(&rig, &answers[i], 10000, "PING", NULL), 0);
    }
    ck_assert_int_eq(rig_send(&rig, &answers[LINE], 10000, "PING", NULL), WEIR_E_FULL);
    rig_wait(&rig, answers[LINE - 1].calls);
    for (int i = 0; i < LINE; i++) {
        ck_assert_int_eq(answers[i].calls, 1);
        ck_assert_int_eq(answers[i].kind, WEIR__LINK_OK);
    }
    ck_assert_int_eq(rig_send(&rig, &answers[0], 10000, "PING", NULL), 0);
    rig_wait(&rig, answers[0].calls);
    free(answers);
}
END_TEST

static void add_connecting(TCase *tcase)
{
    const int lies = (int)(sizeof greeting_lies / sizeof greeting_lies[0]);
    tcase_add_test(tcase, refused_until_it_listens);
    tcase_add_test(tcase, accepts_and_stays_silent);
    tcase_add_test(tcase, connect_timeout_ends_with_the_connect);
    tcase_add_loop_test(tcase, greeting_is_checked, 0, lies);
    tcase_add_test(tcase, greeting_may_fail_by_reply);
    tcase_add_test(tcase, no_password_in_the_log);
    tcase_add_test(tcase, log_lines_are_lines);
    tcase_add_test(tcase, eviction_is_warned_of_once);
    tcase_add_test(tcase, settings_may_be_secret);
}

static void add_answers(TCase *tcase)
{
    tcase_add_test(tcase, answers_nobody_asked_for);
    tcase_add_loop_test(tcase, random_answers, 0, 5);
    tcase_add_test(tcase, owner_finds_a_fault);
    tcase_add_loop_test(tcase, sigpipe_is_nobodys, 0, 4);
    tcase_add_test(tcase, partial_writes);
    tcase_add_test(tcase, line_has_an_end);
}

static void add_deadlines(TCase *tcase)
{
    tcase_add_test(tcase, deadline_under_steady_traffic);
    tcase_add_test(tcase, late_answers);
    tcase_add_test(tcase, hung_server_is_left);
    tcase_add_test(tcase, ends_are_told_once_by_any_hiredis);
    tcase_add_test(tcase, slow_is_not_hung);
    tcase_add_test(tcase, loop_was_held_up);
    tcase_add_test(tcase, connect_was_held_up);
    tcase_add_test(tcase, slow_redis_blocks_nobody);
}

static void add_tcp_only(TCase *tcase)
{
    tcase_add_test(tcase, names_are_resolved);
    tcase_add_test(tcase, names_may_not_resolve);
    tcase_add_loop_test(tcase, broken_answers, 0, (int)(sizeof broken / sizeof broken[0]));
}

static void add_case(Suite *suite, const char *name, void (*add)(TCase *), void (*open)(void))
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, open, close_both);
    add(tcase);
    suite_add_tcase(suite, tcase);
}

int main(void)
{
    Suite *suite = suite_create("link");
    add_case(suite, "connecting", add_connecting, open_unix);
    add_case(suite, "answers", add_answers, open_unix);
    add_case(suite, "deadlines", add_deadlines, open_unix);
    add_case(suite, "tcp", add_tcp_only, open_tcp);
    add_case(suite, "connecting by tcp", add_connecting, open_tcp);
    return suite_run(suite);
}
