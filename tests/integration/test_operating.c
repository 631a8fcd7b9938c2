/* SPDX-License-Identifier: MIT */
/*
 * docs/operating.md: the user that it makes in Redis is enough for all that a sync does, and may do nothing else; the
 * metrics that it names are those that are written.
 */
#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/exposition.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

enum { WORDS_MAX = 64 };

static struct redis_server *server;
static char manual[64 * 1024], text[64 * 1024];

/* A file of the tree, whole. */
static void read_source(const char *name, char *to, size_t size)
{
    const char *root = getenv("WEIR_SOURCE_DIR");
    char path[4096];
    FILE *file;
    size_t n;

    ck_assert_ptr_nonnull(root);
    snprintf(path, sizeof path, "%s/%s", root, name);
    file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    n = fread(to, 1, size - 1, file);
    ck_assert(n > 1000 && feof(file));
    to[n] = '\0';
    fclose(file);
}

static void setup(void)
{
    struct redis_server_options options = {.tcp = 1};

    read_source("docs/operating.md", manual, sizeof manual);
    server = redis_server_open(&options);
}

static void teardown(void)
{
    redis_server_close(server);
}

/* The words of the manual's ACL line, of which there is one. */
static int acl_words(char *words[WORDS_MAX])
{
    char *line = strstr(manual, "\nACL SETUSER ");
    int n = 0;

    ck_assert_ptr_nonnull(line);
    ck_assert_ptr_null(strstr(line + 1, "\nACL SETUSER "));
    *strchr(line + 1, '\n') = '\0';
    for (char *word = strtok(line + 1, " "); word; word = strtok(NULL, " ")) {
        ck_assert_int_lt(n, WORDS_MAX - 1);
        words[n++] = word;
    }
    words[n] = NULL;
    return n;
}

/* redis_server_do takes its words one by one: an ACL is made of several calls, each of a few of them. */
static void make_user(void)
{
    char *words[WORDS_MAX];
    int n = acl_words(words);

    ck_assert_int_gt(n, 10);
    for (int i = 3; i < n; i++)
        ck_assert_str_eq(redis_server_do(server, words[0], words[1], words[2], words[i], NULL), "OK");
}

static void work(struct node *node)
{
    struct weir_policy strict = node_policy(100, NODE_DAY, 100), other = strict;
    struct weir_request requests[2] = {{.key = "k", .key_len = 1, .cost = 1}, {.key = "k", .key_len = 1, .cost = 1}};
    struct weir_result result;

    strict.name = "strict";
    strict.mode = WEIR_STRICT;
    strict.group = "together";
    other.name = "other";
    other.mode = WEIR_STRICT;
    other.group = "together";
    ck_assert_int_eq(weir_policy_add(node->w, &strict, &requests[0].policy), 0);
    ck_assert_int_eq(weir_policy_add(node->w, &other, &requests[1].policy), 0);
    for (int i = 0; i < 50; i++)
        node_take(node, "k", NULL);
    ck_assert_int_eq(node_wait(node, "k2", 5, &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags & WEIR_DEGRADED, 0);
    ck_assert_int_eq(weir_take(node->w, requests[0].policy, "k", 1, 1, &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags, 0);
    ck_assert_int_eq(weir_peek(node->w, requests[0].policy, "k", 1, 1, &result), WEIR_ALLOW);
    ck_assert_int_eq(weir_give(node->w, requests[0].policy, "k", 1, 1), 0);
    ck_assert_int_eq(weir_take_all(node->w, requests, 2, &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags, 0);
    ck_assert_int_eq(weir_forget(node->w, requests[0].policy, "k", 1), 0);
    ck_assert_int_eq(weir_forget(node->w, node->id, "k", 1), 0);
    ck_assert_uint_eq(node_flush(node), 0);
}

START_TEST(the_user_is_enough)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct node node;

    make_user();
    options.username = "weir";
    options.password = "secret";
    options.timeout_ms = 5000; /* a busy machine is no outage */
    node_open(&node, &policy);
    node_start(&node, redis_server_tcp_uri(server), &options);
    work(&node);
    ck_assert_int_gt(weir_metrics_write(node.w, text, sizeof text), 0);
    ck_assert_double_eq(exposition_value(text, "weir_store_errors_total{kind=\"noperm\"}"), 0);
    ck_assert_double_eq(exposition_value(text, "weir_store_errors_total{kind=\"error\"}"), 0);
    ck_assert(!node_said(&node, "noperm") && !node_said(&node, "NOPERM") && !node_said(&node, "secret"));
    ck_assert_uint_eq(node_end(&node), 0);
    node_close(&node);
}
END_TEST

START_TEST(the_user_can_do_nothing_else)
{
    static const char *const forbidden[][4] = {
        {"GET", "weir:x", NULL},         {"KEYS", "*", NULL},          {"FLUSHALL", NULL},
        {"HGET", "other", "f", NULL},    {"CONFIG", "GET", "*", NULL}, {"DEL", "weir:x", NULL},
        {"EVAL", "return 1", "0", NULL},
    };

    make_user();
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        const char *const *f = forbidden[i];
        const char *said = redis_server_do(server, "ACL", "DRYRUN", "weir", f[0], f[1], f[1] ? f[2] : NULL,
                                           f[1] && f[2] ? f[3] : NULL, NULL);

        ck_assert_msg(strstr(said, "no permissions"), "%s: %s", f[0], said);
    }
}
END_TEST

/* The manual names those too. */
static bool is_function(const char *name)
{
    static const char *const headers[] = {"include/weir/weir.h", "include/weir/sync.h", "include/weir/http.h"};
    static char header[64 * 1024];
    char called[120];

    snprintf(called, sizeof called, " %s(", name);
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        read_source(headers[i], header, sizeof header);
        if (strstr(header, called))
            return true;
    }
    return false;
}

/* Both ways: what is written is in the table of metrics, and what is there is written. */
START_TEST(the_metrics_are_those_that_are_written)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    size_t written = 0, named = 0;
    struct node node;

    node_open(&node, &policy);
    node_start(&node, redis_server_uri(server), NULL);
    node_take(&node, "k", NULL);
    ck_assert_uint_eq(node_flush(&node), 0);
    ck_assert_int_gt(weir_metrics_write(node.w, text, sizeof text), 0);
    for (const char *at = text; (at = strstr(at, "# TYPE ")); written++) {
        char name[100], quoted[104];

        at += 7;
        ck_assert_int_eq(sscanf(at, "%99[a-z_]", name), 1);
        snprintf(quoted, sizeof quoted, "`%s", name);
        ck_assert_msg(strstr(manual, quoted), "%s is not in the manual", name);
    }
    for (const char *at = manual; (at = strstr(at, "`weir_")); named++) {
        char name[100], typed[120];
        size_t n = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz_");

        at++;
        if (at[n] != '`' && at[n] != '{')
            continue;
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        snprintf(typed, sizeof typed, "# TYPE %s ", name);
        ck_assert_msg(strstr(text, typed) || is_function(name), "%s is not written", name);
    }
    ck_assert_uint_gt(written, 15);
    ck_assert_uint_gt(named, written);
    node_close(&node);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("operating");
    TCase *t = tcase_create("manual");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, the_user_is_enough);
    tcase_add_test(t, the_user_can_do_nothing_else);
    tcase_add_test(t, the_metrics_are_those_that_are_written);
    suite_add_tcase(s, t);
    return suite_run(s);
}
