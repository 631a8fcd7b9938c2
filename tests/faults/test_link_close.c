/* SPDX-License-Identifier: MIT */
/*
 * sync/link.h: answers that are waited for after their time, closed in every state and inside every callback, peers
 * that go with commands in flight, misuse, memory that runs out. Each test ends with a loop that is empty and closes.
 */
#include <check.h>

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

static void close_both(void)
{
    rig_close(&rig);
    liar_close(liar);
    liar = NULL;
}

static void open_liar(void)
{
    liar = liar_open(&(struct liar_options){.tcp = 1});
}

static void close_liar(void)
{
    liar_close(liar);
    liar = NULL;
}

static void lie(const char *command, enum liar_act act, unsigned skip, unsigned times)
{
    liar_rule(liar, &(struct liar_rule){.command = command, .act = act, .skip = skip, .times = times});
}

static uint64_t errors(enum weir__link_kind kind)
{
    return weir__link_errors(rig.link, kind);
}

/* ---- answers that are late and wanted ---------------------------------------------------------------------------- */

/* Who can use a late answer is told that it is late, and then what it is. */
START_TEST(late_answers_are_used)
{
    struct rig_answer late = {.patient = 1}, behind = {.patient = 1};
    rig.config.stall_ns = RIG_HOUR;
    liar_rule(liar, &(struct liar_rule){.command = "ECHO", .act = LIAR_LATE, .ms = HOUR_MS, .times = 1});
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &late, 40, "ECHO", "x", NULL), 0);
    ck_assert_int_eq(rig_send(&rig, &behind, 40, "PING", NULL), 0);
    rig_wait(&rig, late.lates && behind.lates);
    ck_assert_int_eq(late.calls + behind.calls, 0);
    ck_assert_int_eq(rig.up, 0);
    liar_release(liar);
    rig_wait(&rig, late.calls && behind.calls);
    ck_assert_int_eq(late.kind, WEIR__LINK_OK);
    ck_assert_int_eq(behind.kind, WEIR__LINK_OK);
    ck_assert_str_eq(behind.text, "PONG");
    ck_assert_int_eq(rig.up, 1);
    ck_assert_int_eq(late.lates, 1);
    ck_assert_uint_eq(weir__link_late(rig.link), 2);
    ck_assert_uint_eq(errors(WEIR__LINK_TIMEOUT), 2);
    ck_assert_uint_eq(liar_accepted(liar), 1);
}
END_TEST

/* ... but not for ever, though others are answered: stall_ns longer. */
START_TEST(late_answers_are_waited_for_so_long)
{
    struct rig_answer first = {0}, second = {.patient = 1};
    rig.config.stall_ns = 60 * RIG_MS;
    liar_rule(liar, &(struct liar_rule){.command = "GET", .act = LIAR_LATE, .ms = HOUR_MS});
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &first, 10000, "ECHO", "x", NULL), 0);
    uint64_t start = uv_hrtime();
    ck_assert_int_eq(rig_send(&rig, &second, 100, "GET", "x", NULL), 0);
    weir__link_flush(rig.link);
    while (liar_count(liar, "GET") == 0) { /* the first one is answered by then, however slow the machine */
        uv_sleep(1);
    }
    rig_wait(&rig, second.calls);
    ck_assert_int_eq(first.kind, WEIR__LINK_OK);
    ck_assert_int_eq(second.kind, WEIR__LINK_TIMEOUT);
    ck_assert_int_eq(second.lates, 1);
    ck_assert_uint_ge(second.at - start, 160 * RIG_MS);
    ck_assert_uint_eq(errors(WEIR__LINK_TIMEOUT), 1); /* one command was late */
    ck_assert_uint_eq(weir__link_late(rig.link), 0);
}
END_TEST

/* Whoever is told that his answer is late may close the link. */
START_TEST(late_and_closed)
{
    struct rig_answer late = {.patient = 1, .close_late = 1}, other = {.patient = 1};
    rig.config.stall_ns = RIG_HOUR;
    lie("GET", LIAR_HANG, 0, 1);
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &late, 30, "GET", "x", NULL), 0);
    ck_assert_int_eq(rig_send(&rig, &other, 30, "PING", NULL), 0);
    rig_wait(&rig, rig.closed);
    ck_assert_int_eq(late.kind, WEIR__LINK_CLOSED);
    ck_assert_int_eq(other.kind, WEIR__LINK_CLOSED);
    ck_assert_int_eq(late.calls + other.calls, 2);
    ck_assert_int_eq(late.lates, 1);
    ck_assert_int_eq(other.lates, 0);
}
END_TEST

/* ---- a peer that has gone when a time is over -------------------------------------------------------------------- */

/* The loop stood still meanwhile: its timer comes first in a turn, finds the end of the connection by reading, and must
 * let the turn go on to where that end is told. Of a command, and of the greeting. */
START_TEST(gone_when_the_time_is_over)
{
    struct rig_answer answer = {0};
    lie(_i ? "INFO" : "GET", LIAR_SILENT, 0, 1);
    rig.config.connect_timeout_ns = _i ? 300 * RIG_MS : RIG_HOUR;
    rig_start(&rig);
    if (!_i) {
        rig_wait(&rig, rig.up);
        ck_assert_int_eq(rig_send(&rig, &answer, 300, "GET", "x", NULL), 0);
    }
    rig_wait(&rig, liar_count(liar, _i ? "INFO" : "GET") > 0);
    liar_cut(liar);
    uv_sleep(400);
    rig_wait(&rig, _i ? rig.ups == 1 : answer.calls && rig.ups >= 2);
    ck_assert_uint_ge(liar_accepted(liar), 2);
}
END_TEST

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Case 32, 1,000 times: three in flight, the socket readable and writable, the peer goes. In turn: with and without
 * an answer before, with and without the link closed inside the first callback. */
START_TEST(peer_goes_with_three_in_flight)
{
    enum { REPEATS = 250 };
    int one_answered = _i & 1, close_inside = _i & 2;
    for (int n = 0; n < REPEATS; n++) {
        struct rig_answer answers[3] = {{0}};
        rig_open(&rig, liar_uri(liar));
        liar_clear(liar);
        lie("GET", n % 2 ? LIAR_CLOSE : LIAR_RESET, (unsigned)one_answered, 1);
        rig_up(&rig);
        answers[0].close_link = close_inside;
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(rig_send(&rig, &answers[i], 10000, "GET", "x", NULL), 0);
        }
        rig_wait(&rig, answers[0].calls);
        rig_wait(&rig, answers[1].calls && answers[2].calls);
        ck_assert_int_eq(answers[0].kind, one_answered ? WEIR__LINK_OK : WEIR__LINK_LOST);
        ck_assert_int_eq(answers[2].kind, close_inside ? WEIR__LINK_CLOSED : WEIR__LINK_LOST);
        if (!close_inside) {
            rig_wait(&rig, rig.ups == 2);
        }
        rig_close(&rig);
    }
}
END_TEST

START_TEST(closed_before_it_starts)
{
    ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), 0);
}
END_TEST

/* After 0, 1, 2, ... turns of the loop: whatever state that is. */
START_TEST(closed_at_any_turn)
{
    rig_start(&rig);
    for (int i = 0; i < _i; i++) {
        uv_run(&rig.loop, UV_RUN_NOWAIT);
    }
}
END_TEST

START_TEST(closed_while_waiting)
{
    rig.config.backoff_min_ns = rig.config.backoff_max_ns = RIG_HOUR;
    liar_refuse(liar, 1);
    rig_start(&rig);
    rig_wait(&rig, errors(WEIR__LINK_CONNECT) == 1);
    rig_run(&rig, 5);
}
END_TEST

START_TEST(closed_while_greeting)
{
    liar_deaf(liar, 1);
    rig_start(&rig);
    rig_run(&rig, 10);
}
END_TEST

START_TEST(closed_while_resolving)
{
    ck_assert_int_eq(weir__uri_parse("redis://localhost:1", &rig.uri), 0);
    rig_start(&rig);
    for (int i = 0; i < _i; i++) {
        uv_run(&rig.loop, UV_RUN_NOWAIT);
    }
}
END_TEST

START_TEST(closed_while_stalled)
{
    struct rig_answer answers[2] = {{0}};
    rig.config.stall_ns = RIG_HOUR;
    lie("GET", LIAR_HANG, 0, 0);
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answers[0], 20, "GET", "x", NULL), 0);
    answers[1].close_link = 1;
    ck_assert_int_eq(rig_send(&rig, &answers[1], 40, "GET", "x", NULL), 0);
    rig_wait(&rig, rig.closed);
    ck_assert_int_eq(answers[0].calls + answers[1].calls, 2);
}
END_TEST

START_TEST(closed_inside_on_state)
{
    struct rig_answer answer = {0};
    rig.close_on = _i;
    rig_start(&rig);
    if (_i == 2) {
        rig_wait(&rig, rig.up);
        lie("GET", LIAR_CLOSE, 0, 0);
        ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "x", NULL), 0);
    }
    rig_wait(&rig, rig.closed);
    ck_assert_int_eq(answer.calls, _i == 2);
    ck_assert_int_eq(rig.ups, 1);
}
END_TEST

START_TEST(closed_with_commands_in_flight)
{
    struct rig_answer answers[5] = {{0}}, refused = {0};
    lie("GET", LIAR_HANG, 0, 0);
    rig_up(&rig);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(rig_send(&rig, &answers[i], 10000, "GET", "x", NULL), 0);
    }
    rig_run(&rig, 5);
    rig_close_link(&rig);
    ck_assert_int_eq(rig_send(&rig, &refused, 10000, "GET", "x", NULL), WEIR_E_CLOSED);
    rig_wait(&rig, rig.closed);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(answers[i].calls, 1);
        ck_assert_int_eq(answers[i].kind, WEIR__LINK_CLOSED);
    }
    ck_assert_int_eq(rig.downs, 0);
}
END_TEST

/* A link alone keeps no loop alive. */
START_TEST(keeps_no_loop_alive)
{
    struct rig_answer answer = {0};
    rig_up(&rig);
    lie("GET", LIAR_HANG, 0, 0);
    uv_unref((uv_handle_t *)&rig.tick);
    ck_assert_int_eq(uv_run(&rig.loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "x", NULL), 0);
    ck_assert_int_eq(uv_run(&rig.loop, UV_RUN_DEFAULT), 0);
    uv_ref((uv_handle_t *)&rig.tick);
    ck_assert_int_eq(rig.up, 1);
    rig_close_link(&rig);
    rig_wait(&rig, answer.calls && rig.closed);
}
END_TEST

/* ---- misuse, memory ---------------------------------------------------------------------------------------------- */

START_TEST(configs_are_checked)
{
    struct weir__link *link = (struct weir__link *)&rig;
    struct weir__link_config config = rig.config;
    config.uri = NULL;
    ck_assert_int_eq(weir__link_open(&link, &rig.loop, &config), WEIR_E_INVAL);
    ck_assert_ptr_null(link);
    config = rig.config;
    config.script_count = WEIR__LINK_SCRIPTS_MAX + 1;
    ck_assert_int_eq(weir__link_open(&link, &rig.loop, &config), WEIR_E_INVAL);
    config = rig.config;
    config.allocator.release = NULL;
    ck_assert_int_eq(weir__link_open(&link, &rig.loop, &config), WEIR_E_INVAL);
    config = rig.config;
    config.backoff_min_ns = 2;
    config.backoff_max_ns = 1;
    ck_assert_int_eq(weir__link_open(&link, &rig.loop, &config), WEIR_E_INVAL);
    rig.config.backoff_min_ns = 0; /* then the default must not be more than the maximum */
    rig.config.backoff_max_ns = 2 * RIG_MS;
    liar_refuse(liar, 1);
    rig_start(&rig);
    rig_wait(&rig, errors(WEIR__LINK_CONNECT) >= 5);
    liar_refuse(liar, 0);
    weir__link_start(rig.link); /* does nothing */
    rig_wait(&rig, rig.up);
    ck_assert_uint_eq(liar_accepted(liar), 1);
}
END_TEST

/* Every allocation of the link's own fails once. */
START_TEST(allocations_fail)
{
    struct rig_answer answer = {0};
    rig.fail_at = _i;
    if (_i == 1) {
        ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_NOMEM);
        ck_assert_ptr_null(rig.link);
    }
    rig_up(&rig); /* the greeting's commands: another try gets them */
    ck_assert_uint_eq(errors(WEIR__LINK_SYSTEM), _i == 2);
    rig.fail_at = rig.allocations + 1;
    struct rig_answer others[2] = {{0}};
    ck_assert_int_eq(rig_send(&rig, &others[0], 10000, "PING", NULL), 0); /* in the greeting's memory */
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "PING", NULL), WEIR_E_NOMEM);
    ck_assert_int_eq(weir__link_is_up(rig.link), 1);
    ck_assert_int_eq(rig_send(&rig, &others[1], 10000, "PING", NULL), 0);
    rig_wait(&rig, others[0].calls && others[1].calls);
    ck_assert_int_eq(rig.downs, 0);
}
END_TEST

#ifndef WEIR_TLS
START_TEST(tls_is_said_to_be_missing)
{
    ck_assert_int_eq(weir__uri_parse("rediss://127.0.0.1:1", &rig.uri), 0);
    ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_NOSUP);
    ck_assert_ptr_null(rig.link);
    ck_assert_int_eq(weir__uri_parse("redis://127.0.0.1:1", &rig.uri), 0);
    rig_start(&rig);
}
END_TEST
#endif

static void add_closing(TCase *tcase)
{
    tcase_add_test(tcase, closed_before_it_starts);
    tcase_add_loop_test(tcase, closed_at_any_turn, 0, 12);
    tcase_add_test(tcase, closed_while_waiting);
    tcase_add_test(tcase, closed_while_greeting);
    tcase_add_loop_test(tcase, closed_while_resolving, 0, 4);
    tcase_add_test(tcase, closed_while_stalled);
    tcase_add_loop_test(tcase, closed_inside_on_state, 1, 3);
    tcase_add_test(tcase, closed_with_commands_in_flight);
    tcase_add_test(tcase, keeps_no_loop_alive);
}

static void add_late(TCase *tcase)
{
    tcase_add_test(tcase, late_answers_are_used);
    tcase_add_test(tcase, late_answers_are_waited_for_so_long);
    tcase_add_test(tcase, late_and_closed);
    tcase_add_loop_test(tcase, gone_when_the_time_is_over, 0, 2);
}

static void add_misuse(TCase *tcase)
{
    tcase_add_test(tcase, configs_are_checked);
    tcase_add_loop_test(tcase, allocations_fail, 1, 3);
#ifndef WEIR_TLS
    tcase_add_test(tcase, tls_is_said_to_be_missing);
#endif
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
    Suite *suite = suite_create("link_close");
    add_case(suite, "late", add_late, open_unix);
    add_case(suite, "closing", add_closing, open_unix);
    add_case(suite, "misuse", add_misuse, open_unix);
    TCase *tcase = tcase_create("peer goes");
    tcase_add_checked_fixture(tcase, open_liar, close_liar);
    tcase_add_loop_test(tcase, peer_goes_with_three_in_flight, 0, 4);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
