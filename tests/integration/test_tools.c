/* SPDX-License-Identifier: MIT */
/*
 * `weir check` and `weir inspect` from their command lines to their exit codes, beside processes that use the library.
 * (`weir demo` has a test of its own.)
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cluster.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"
#include "support/tool.h"

static struct redis_server *server;
static const char *uri;
#define PATIENT "--timeout", "20s", "--redis" /* a busy machine is no outage */

static struct tool_run run;

static void start_redis(void)
{
    static const char *const args[] = {"--enable-debug-command", "yes", NULL};
    const struct redis_server_options options = {.args = args};
    server = redis_server_open(&options);
    uri = redis_server_uri(server);
}

static void end_redis(void)
{
    redis_server_close(server);
}

/* ---- check ------------------------------------------------------------------------------------------------------- */

START_TEST(check_decides)
{
    for (int left = 2; left >= 0; left--) {
        tool_run(&run, "check", "api=1/h,burst=3", "bob", "--json", PATIENT, uri, NULL);
        ck_assert_int_eq(run.code, 0);
        ck_assert_double_eq(tool_number(&run, "allowed"), 1);
        ck_assert_double_eq(tool_number(&run, "remaining"), left);
        ck_assert_double_eq(tool_number(&run, "limit"), 3);
        ck_assert_double_eq(tool_number(&run, "retry_after_s"), 0);
    }
    tool_run(&run, "check", "api=1/h,burst=3", "bob", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 1);
    ck_assert_double_eq(tool_number(&run, "allowed"), 0);
    double retry = tool_number(&run, "retry_after_s");
    ck_assert_msg(retry > 3500 && retry <= 3600, "%s", run.out);
    tool_run(&run, "check", "api=1/h,burst=3", "bob", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 1);
    ck_assert_ptr_nonnull(strstr(run.out, "denied: 0 of 3 left"));
    tool_run(&run, "check", "api=1/h,burst=3", "alice", "2", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    ck_assert_str_eq(run.out, "allowed: 1 of 3 left\n");
    tool_run(&run, "check", "api=1/h,burst=3", "alice", "4", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 1);
    ck_assert_double_nan(tool_number(&run, "retry_after_s")); /* never */
}
END_TEST

START_TEST(check_asks_without_taking)
{
    for (int i = 0; i < 2; i++) {
        tool_run(&run, "check", "api=1/h,burst=3", "bob", "0", "--json", PATIENT, uri, NULL);
        ck_assert_int_eq(run.code, 0);
        ck_assert_double_eq(tool_number(&run, "remaining"), 3);
    }
}
END_TEST

START_TEST(check_finds_the_numbers_in_force)
{
    tool_run(&run, "check", "api", "bob", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 3);
    ck_assert_ptr_nonnull(strstr(run.err, "does not know this policy"));
    tool_run(&run, "check", "api=1/h,burst=7", "bob", "--shards", "16", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    tool_run(&run, "check", "api", "bob", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    ck_assert_double_eq(tool_number(&run, "remaining"), 5);
    tool_run(&run, "check", "api", "a key of another shard", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    ck_assert_double_eq(tool_number(&run, "remaining"), 6);
}
END_TEST

START_TEST(check_shares_the_bucket_with_processes)
{
    struct weir_policy policy = node_policy(1, 3600 * NODE_SECOND, 10);
    struct weir_result result;
    struct node node;
    policy.mode = WEIR_STRICT;
    node_open(&node, &policy);
    node_start(&node, uri, node_patient());
    ck_assert_int_eq(node_take(&node, "k", &result), WEIR_ALLOW);
    tool_run(&run, "check", "p", "k", "8", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    ck_assert_double_eq(tool_number(&run, "remaining"), 1);
    ck_assert_int_eq(node_take(&node, "k", &result), WEIR_ALLOW);
    ck_assert_int_eq(node_take(&node, "k", &result), WEIR_DENY);
    node_close(&node);
}
END_TEST

START_TEST(nobody_answers)
{
    tool_run(&run, "check", "api=1/s", "k", "--redis", "unix:///nonexistent/socket", "--timeout", "100ms", NULL);
    ck_assert_int_eq(run.code, 3);
    ck_assert_str_eq(run.out, "");
    ck_assert_ptr_nonnull(strstr(run.err, "nothing was decided"));
    tool_run(&run, "inspect", "api", "k", "--redis", "unix:///nonexistent/socket", "--timeout", "100ms", NULL);
    ck_assert_int_eq(run.code, 3);
    ck_assert_ptr_nonnull(strstr(run.err, "No such file"));
    tool_run(&run, "bench", "--seconds", "1ms", "--redis", "unix:///nonexistent/socket", "--timeout", "100ms", NULL);
    ck_assert_int_eq(run.code, 3);
    redis_server_pause(server);
    tool_run(&run, "check", "api=1/s", "k", "--redis", uri, "--timeout", "100ms", NULL);
    ck_assert_int_eq(run.code, 3);
    tool_run(&run, "inspect", "api", "k", "--redis", uri, "--timeout", "100ms", NULL);
    ck_assert_int_eq(run.code, 3);
    redis_server_resume(server);
}
END_TEST

START_TEST(wrong_lines)
{
    static const char *const lines[][4] = {
        {"check"},
        {"check", "api=1/s"},
        {"check", "api=1/s", "k", "-1"},
        {"check", "api=1/s", "k", "x"},
        {"check", "api=0/s", "k"},
        {"check", "=1/s", "k"},
        {"check", "api=1/s", ""},
        {"check", "a{b=1/s", "k"},
        {"check", "api=1/s", "k", "--redis=x"},
        {"inspect", "api"},
        {"inspect", "api", ""},
        {"inspect", "api", "k", "more"},
        {"inspect", "api", "k", "--shards=0"},
        {"inspect", "api", "k", "--timeout=0"},
        {"inspect", "api", "k", "--redis=http://localhost"},
        {"check", "api=1/h", "k", "--redis=redis://localhost:99999"},
        {"top"},
        {"top", "socket", "more"},
        {"top", "socket", "--keys=101"},
        {"top", "socket", "--interval=1ms"},
        {"bench", "x"},
        {"bench", "--seconds=0"},
        {"bench", "--threads=0"},
        {"nothing"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        tool_run(&run, lines[i][0], lines[i][1], lines[i][2], lines[i][3], NULL);
        ck_assert_msg(run.code == 2, "%s %s: %d, %s", lines[i][0], lines[i][1], run.code, run.err);
        ck_assert_str_eq(run.out, "");
        ck_assert_str_ne(run.err, "");
    }
}
END_TEST

START_TEST(every_command_answers_help)
{
    static const char *const commands[] = {"bench", "check", "demo", "inspect", "simulate", "top"};
    char text[64];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        tool_run(&run, commands[i], "--help", NULL);
        snprintf(text, sizeof text, "usage: weir %s", commands[i]);
        ck_assert_int_eq(run.code, 0);
        ck_assert_msg(strncmp(run.out, text, strlen(text)) == 0, "%s", run.out);
        ck_assert_ptr_nonnull(strstr(run.out, "--json"));
        ck_assert_ptr_nonnull(strstr(run.out, "Exit status"));
        ck_assert_str_eq(run.err, "");
        tool_run(&run, "--help", NULL);
        ck_assert_ptr_nonnull(strstr(run.out, commands[i]));
    }
}
END_TEST

/* ---- bench ------------------------------------------------------------------------------------------------------- */

static int count_of(const char *text)
{
    int n = 0;
    for (const char *at = run.out; (at = strstr(at, text)) != NULL; at++) {
        n++;
    }
    return n;
}

START_TEST(bench_measures_memory_and_redis)
{
    static const char *const rows[] = {"key handle\"", "16 at once\"", "hybrid, ", "strict, "};
    tool_run(&run, "bench", "--seconds", "100ms", "--threads", "2", "--json", "--redis", uri, "--timeout", "5s", NULL);
    ck_assert_msg(run.code == 0, "%d: %s", run.code, run.err);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_msg(strstr(run.out, rows[i]) != NULL, "no row %s in %s", rows[i], run.out);
    }
    ck_assert_int_eq(count_of("\"decisions_per_s\": "), 7);
    ck_assert_int_eq(count_of("\"decisions_per_s\": 0,"), 0);
    ck_assert_int_eq(count_of("\"round_trip_us\": null"), 6);
    /* all of it is in Redis for a while only */
    ck_assert_str_ne(redis_server_do(server, "DBSIZE", NULL), "0");
    const char *immortal = redis_server_do(
        server, "EVAL",
        "for _, k in ipairs(redis.call('KEYS', '*')) do if redis.call('PTTL', k) < 0 then return k end end", "0", NULL);
    ck_assert_str_eq(immortal, "(nil)");
}
END_TEST

/* ---- inspect ----------------------------------------------------------------------------------------------------- */

START_TEST(inspect_shows_a_bucket)
{
    tool_run(&run, "inspect", "api", "bob", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 1);
    ck_assert_ptr_nonnull(strstr(run.out, "knows no policy 'api'"));
    tool_run(&run, "check", "api=1/h,burst=30", "bob", "7", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    tool_run(&run, "inspect", "api", "bob", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    ck_assert_double_eq_tol(tool_number(&run, "level"), 23, 0.01);
    ck_assert_double_eq(tool_number(&run, "exists"), 1);
    ck_assert_double_eq(tool_number(&run, "burst"), 30);
    ck_assert_double_eq(tool_number(&run, "debt"), 0);
    ck_assert_double_eq(tool_number(&run, "in_older"), 0);
    ck_assert_double_gt(tool_number(&run, "ttl_s"), 86400);
    ck_assert_double_gt(tool_number(&run, "flip_s"), 3600);
    ck_assert_ptr_nonnull(strstr(run.out, "\"slices\": []"));
    tool_run(&run, "inspect", "api", "alice", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 1);
    ck_assert_double_eq(tool_number(&run, "exists"), 0);
    ck_assert_double_eq(tool_number(&run, "level"), 30);
    ck_assert_double_nan(tool_number(&run, "ttl_s"));
    tool_run(&run, "inspect", "api", "\xc3\xa9\xff\x01\"", "--json", PATIENT, uri, NULL); /* JSON is UTF-8 */
    ck_assert_int_eq(run.code, 1);
    ck_assert_ptr_nonnull(strstr(run.out, "\"key\": \"\xc3\xa9\\ufffd\\u0001\\\"\""));
}
END_TEST

/* What inspect says of a key that both are taking of. format: NULL: text. */
static int inspect_says(struct node nodes[2], const char *text, const char *format)
{
    for (int i = 0; i < 10; i++) {
        node_take(&nodes[i % 2], "k", NULL);
    }
    tool_run(&run, "inspect", "p", "k", PATIENT, uri, format, NULL);
    return strstr(run.out, text) != NULL;
}

START_TEST(inspect_shows_slices_by_node)
{
    struct weir_policy policy = node_policy(2, NODE_SECOND, 1000);
    struct node nodes[2];
    for (int i = 0; i < 2; i++) {
        node_open(&nodes[i], &policy);
        node_start(&nodes[i], uri, node_patient());
    }
    node_until(inspect_says(nodes, "}, {", "--json"));
    ck_assert_double_eq(tool_number(&run, "nodes"), 2);
    ck_assert_double_gt(tool_number(&run, "reserved"), 0);
    ck_assert_double_lt(tool_number(&run, "level"), 1000);
    node_until(inspect_says(nodes, "slices      2", NULL));
    ck_assert_int_eq(run.code, 0);
    node_close(&nodes[0]);
    node_close(&nodes[1]);
}
END_TEST

START_TEST(inspect_shows_debt)
{
    /* a process alone may overdraw: what Redis is told then is below zero */
    struct weir_policy policy = node_policy(1, 3600 * NODE_SECOND, 10);
    struct node node;
    policy.max_overshoot = 8;
    node_open(&node, &policy);
    node_start(&node, uri, node_patient());
    tool_run(&run, "check", "p", "k", "10", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    int took = 0;
    while (node_take(&node, "k", NULL) == WEIR_ALLOW) {
        took++;
    }
    ck_assert_int_ge(took, 1);
    ck_assert_uint_eq(node_flush(&node), 0);
    tool_run(&run, "inspect", "p", "k", "--json", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 0);
    ck_assert_double_eq_tol(tool_number(&run, "debt"), took, 0.1);
    ck_assert_double_eq_tol(tool_number(&run, "level"), -took, 0.1);
    node_close(&node);
}
END_TEST

/* Another user may read and run scripts, and nothing that writes; and nothing has changed then. */
START_TEST(inspect_writes_nothing)
{
    char before[128], reader[512];
    tool_run(&run, "check", "api=1/h,burst=30", "bob", PATIENT, uri, NULL);
    ck_assert_str_eq(redis_server_do(server, "ACL", "SETUSER", "reader", "on", ">x", "~*", "+@all", "-@write", NULL),
                     "OK");
    snprintf(reader, sizeof reader, "unix://reader:x@%s", redis_server_socket(server));
    snprintf(before, sizeof before, "%s", redis_server_do(server, "DEBUG", "DIGEST", NULL));
    for (int i = 0; i < 3; i++) {
        tool_run(&run, "inspect", i == 1 ? "none" : "api", i == 2 ? "alice" : "bob", PATIENT, reader, NULL);
        ck_assert_msg(run.code == (i == 0 ? 0 : 1), "%d: %s", run.code, run.err);
        ck_assert_str_eq(redis_server_do(server, "DEBUG", "DIGEST", NULL), before);
    }
    tool_run(&run, "check", "api=1/h,burst=30", "bob", "--redis", reader, "--timeout", "200ms", NULL);
    ck_assert_int_eq(run.code, 3); /* that user can't decide: it was no empty test */
}
END_TEST

START_TEST(inspect_is_not_fooled_by_another_format)
{
    tool_run(&run, "check", "api=1/h,burst=30", "bob", "--shards", "1", PATIENT, uri, NULL);
    redis_server_do(server, "HSET", "weir:{api#0}:n", "!", "garbage", NULL);
    tool_run(&run, "inspect", "api", "bob", PATIENT, uri, NULL);
    ck_assert_int_eq(run.code, 3);
    ck_assert_str_eq(run.out, "");
    ck_assert_ptr_nonnull(strstr(run.err, "in the place of weir's"));
}
END_TEST

/* ---- a cluster --------------------------------------------------------------------------------------------------- */

/* Shards are in different slots; the first one asked knows nothing of the policy. */
START_TEST(check_and_inspect_in_a_cluster)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f"};
    struct cluster cluster;
    cluster_open(&cluster, 0);
    tool_run(&run, "check", "api=1/h,burst=3", "first", "--shards", "16", "--json", PATIENT, cluster.uri, NULL);
    ck_assert_msg(run.code == 0, "%d: %s", run.code, run.err);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        tool_run(&run, "check", "api", keys[i], "2", "--json", PATIENT, cluster.uri, NULL);
        ck_assert_msg(run.code == 0, "%s: %d: %s", keys[i], run.code, run.err);
        ck_assert_double_eq(tool_number(&run, "remaining"), 1);
        tool_run(&run, "inspect", "api", keys[i], "--json", PATIENT, cluster.uri, NULL);
        ck_assert_msg(run.code == 0, "%s: %d: %s", keys[i], run.code, run.err);
        ck_assert_double_eq_tol(tool_number(&run, "level"), 1, 0.1);
        ck_assert_double_eq(tool_number(&run, "shards"), 16);
    }
    tool_run(&run, "inspect", "none", "k", PATIENT, cluster.uri, NULL);
    ck_assert_int_eq(run.code, 1);
    cluster_close(&cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools");
    TCase *lines = tcase_create("lines"), *tcase = tcase_create("redis"), *cluster = tcase_create("cluster");
    TCase *paced = tcase_create("paced");
    tcase_add_test(lines, wrong_lines);
    tcase_add_test(lines, every_command_answers_help);
    suite_add_tcase(suite, lines);
    tcase_add_checked_fixture(tcase, start_redis, end_redis);
    tcase_add_test(tcase, check_decides);
    tcase_add_test(tcase, check_asks_without_taking);
    tcase_add_test(tcase, check_finds_the_numbers_in_force);
    tcase_add_test(tcase, check_shares_the_bucket_with_processes);
    tcase_add_test(tcase, nobody_answers);
    tcase_add_test(tcase, bench_measures_memory_and_redis);
    tcase_add_test(tcase, inspect_shows_a_bucket);
    tcase_add_test(tcase, inspect_shows_debt);
    tcase_add_test(tcase, inspect_writes_nothing);
    tcase_add_test(tcase, inspect_is_not_fooled_by_another_format);
    suite_add_tcase(suite, tcase);
    tcase_set_tags(paced, "pace"); /* two processes hold slices at once */
    tcase_add_checked_fixture(paced, start_redis, end_redis);
    tcase_add_test(paced, inspect_shows_slices_by_node);
    suite_add_tcase(suite, paced);
    tcase_set_tags(cluster, "pace"); /* dozens of answers within the deadline of each */
    tcase_add_test(cluster, check_and_inspect_in_a_cluster);
    suite_add_tcase(suite, cluster);
    return suite_run(suite);
}
