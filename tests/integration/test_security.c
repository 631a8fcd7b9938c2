/* SPDX-License-Identifier: MIT */
/*
 * What docs/security.md promises: keys and names are data, memory has a bound, chosen keys are no weapon, and the
 * rights that it lists are enough, each of them needed.
 */
#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/limiter.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a;

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
}

static void settle(struct node *node)
{
    node_until(node_stats(node).store_up == 1);
    node_until(node_flush(node) == 0 && node->status == 0);
}

/* ---- keys and names ---------------------------------------------------------------------------------------------- */

#define KEY(text)                                                                                                      \
    {                                                                                                                  \
        (text), sizeof(text) - 1                                                                                       \
    }

static const struct {
    const char *bytes;
    size_t len;
} odd_keys[] = {
    KEY("{"),
    KEY("}"),
    KEY("{}"),
    KEY("}{"),
    KEY("{other}"),
    KEY("a{b}c{d}"),
    KEY("\0"),
    KEY("a\0b"),
    KEY("a\0c"),
    KEY("\r\n"),
    KEY("x\r\nFLUSHALL\r\n"),
    KEY("*1\r\n$8\r\nFLUSHALL\r\n"),
    KEY("%s%n%x"),
    KEY("%d%%%"),
    KEY("!"),
    KEY("k"),
    KEY("kk"),
    KEY("\1"),
    KEY("\2node"),
    KEY("'..redis.call('FLUSHALL')..'"),
    KEY("]]redis.call[["),
    KEY("\xff\xfe"),
    KEY("\xe2\x80\xae"),
    KEY(" "),
    KEY("../../etc"),
    KEY("*"),
    KEY("?"),
    KEY("[a-z]"),
};
enum { ODD = sizeof odd_keys / sizeof odd_keys[0] };

static const char *const odd_names[] = {"p", "{p}", "p}#1", "%s%n", "a:b", "..", "\xc3\xbc"};

/* Each key has a bucket of its own, and nobody else's is touched: of two policies, hybrid and strict. */
START_TEST(keys_and_names_are_data)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(2, NODE_DAY, 2);
    char text[256 * 1024];
    policy.name = odd_names[_i % 7];
    policy.mode = _i < 7 ? WEIR_STRICT : WEIR_HYBRID;
    options.prefix = "pre{fix}\r\nFLUSHALL";
    options.timeout_ms = 5000; /* a busy machine is no outage */
    ck_assert_str_eq(redis_server_do(server, "SET", "canary", "alive", NULL), "OK");
    memset(&a, 0, sizeof a);
    ck_assert_int_eq(weir_open(&a.w, NULL), 0);
    if (weir_policy_add(a.w, &policy, &a.id) != 0) { /* a name that is refused harms nobody */
        weir_close(a.w);
        return;
    }
    a.hybrid = policy.mode == WEIR_HYBRID;
    node_start(&a, redis_server_uri(server), &options);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ODD; i++) {
            struct weir_request request = {
                .policy = a.id, .key = odd_keys[i].bytes, .key_len = odd_keys[i].len, .cost = 1};
            struct weir_result result;
            ck_assert_int_eq(weir_take_wait(a.w, &request, 10 * NODE_SECOND, &result),
                             round < 2 ? WEIR_ALLOW : WEIR_DENY);
        }
    }
    settle(&a);
    ck_assert_str_eq(redis_server_do(server, "GET", "canary", NULL), "alive");
    snprintf(text, sizeof text, "%s\n", redis_server_do(server, "KEYS", "*", NULL));
    for (char *name = strtok(text, "\n"); name; name = strtok(NULL, "\n")) {
        ck_assert_msg(strcmp(name, "canary") == 0 || strncmp(name, "pre%7Bfix%7D%0D%0AFLUSHALL:{", 28) == 0, "%s",
                      name);
    }
    node_close(&a);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static _Atomic long held, most;

static void *count_alloc(void *arg, size_t size)
{
    (void)arg;
    long now = atomic_fetch_add_explicit(&held, (long)size, memory_order_relaxed) + (long)size;
    if (now > atomic_load_explicit(&most, memory_order_relaxed)) {
        atomic_store_explicit(&most, now, memory_order_relaxed);
    }
    return malloc(size);
}

static void count_release(void *arg, void *memory, size_t size)
{
    (void)arg;
    atomic_fetch_sub_explicit(&held, (long)size, memory_order_relaxed);
    free(memory);
}

static void flood(int from, int to)
{
    char key[24];
    int wrong = 0; /* Check writes down where it is with every assertion: a million are its time, not ours */
    for (int i = from; i < to; i++) {
        int n = snprintf(key, sizeof key, "visitor:%d", i);
        wrong += weir_take(a.w, a.id, key, (size_t)n, 1, NULL) < 0;
        if (i % 2000 == 0) {
            usleep(1000);
        }
    }
    ck_assert_int_eq(wrong, 0);
}

/* New keys without end, far more than the table holds: what the first ones took is all that is ever taken. */
START_TEST(a_flood_of_new_keys_takes_no_memory)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = node_policy(100, NODE_SECOND, 100);
    long before;
    options.max_keys = 10000;
    options.allocator.alloc = count_alloc;
    options.allocator.release = count_release;
    policy.mode = _i ? WEIR_HYBRID : WEIR_LOCAL;
    memset(&a, 0, sizeof a);
    ck_assert_int_eq(weir_open(&a.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &a.id), 0);
    a.hybrid = _i;
    if (_i) {
        node_start(&a, redis_server_uri(server), NULL);
    }
    flood(0, 200000);
    if (_i) { /* its thread may have had no CPU yet: all that can be on its way at once has been, then */
        node_flush(&a);
    }
    before = atomic_load_explicit(&most, memory_order_relaxed);
    flood(200000, 800000);
    ck_assert_int_le(atomic_load_explicit(&most, memory_order_relaxed), before + before / 4);
    ck_assert_int_lt(before, 32 * 1024 * 1024);
    if (_i) {
        node_end(&a);
    }
    weir_close(a.w);
    ck_assert_int_eq(atomic_load_explicit(&held, memory_order_relaxed), 0);
}
END_TEST

/* A million keys that are one to a hash of 31 (h * 31 + c), the one that most tables of strings have used: "Aa", "BB"
 * and "C#" are the same to it, and ">" and 0xbe. A table that could be chosen against would be full for them long
 * before it is. 40 bytes of two such pairs each, or 16 bytes of eight: the hash of long keys, that of short ones, and
 * that of short ones where the processor has no AES. */
START_TEST(a_million_chosen_keys_are_like_any_other)
{
    enum { BITS = 20, LONG = 2 * BITS, SHORT = 16 };
    const size_t size = _i == 0 ? LONG : SHORT;
    const unsigned bits = _i == 0 ? 1 : 3; /* of the key's number, for each pair of bytes */
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = node_policy(1, NODE_DAY, 1);
    struct weir_stats stats = {.size = sizeof stats};
    options.max_keys = 1 << BITS;
    policy.mode = WEIR_LOCAL;
    memset(&a, 0, sizeof a);
    ck_assert_int_eq(weir_open(&a.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &a.id), 0);
    if (_i == 2)
        weir__identity_init(&a.w->identity, a.w->state->secret, false);
    for (int round = 0; round < 2; round++) {
        unsigned wrong = 0; /* as above */
        for (unsigned n = 0; n < 1000000; n++) {
            struct weir_result result;
            unsigned char key[LONG];
            for (size_t i = 0; i < size / 2; i++) {
                key[2 * i] = (unsigned char)(61 + (n >> bits * i & ((1u << bits) - 1)));
                key[2 * i + 1] = (unsigned char)(2112 - 31 * key[2 * i]);
            }
            wrong += weir_take(a.w, a.id, key, size, 1, &result) != (round ? WEIR_DENY : WEIR_ALLOW) ||
                     result.flags & WEIR_FULL;
        }
        ck_assert_uint_le(wrong, 2); /* by one secret of ten thousand a key finds all sets full that it may live in */
    }
    ck_assert_int_eq(weir_stats_get(a.w, &stats), 0);
    ck_assert_uint_ge(stats.keys, 1000000 - 2);
    weir_close(a.w);
}
END_TEST

/* ---- rights ------------------------------------------------------------------------------------------------------ */

/* The user of docs/security.md. */
static void make_user(void)
{
    ck_assert_str_eq(redis_server_do(server, "ACL", "SETUSER", "limiter", "reset", "on", ">s3cret", "~weir:*",
                                     "+evalsha", "+script|load", "+hget", "+hmget", "+hset", "+hdel", "+hkeys",
                                     "+pexpire", "+pttl", "+time", "+unlink", NULL),
                     "OK");
}

static void start_as_user(enum weir_mode mode)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    policy.mode = mode;
    policy.group = "g";
    options.username = "limiter";
    options.password = "s3cret";
    options.timeout_ms = 5000; /* a busy machine is no outage */
    node_open(&a, &policy);
    node_launch(&a, redis_server_uri(server), &options);
}

START_TEST(the_documented_rights_are_enough)
{
    struct weir_result result;
    make_user();
    start_as_user(_i ? WEIR_STRICT : WEIR_HYBRID);
    struct weir_request requests[2] = {{.policy = a.id, .key = "x", .key_len = 1, .cost = 1},
                                       {.policy = a.id, .key = "y", .key_len = 1, .cost = 1}};
    node_until(node_stats(&a).store_up == 1);
    ck_assert_int_eq(node_wait_many(&a, "k", 10), 10);
    if (_i) {
        ck_assert_int_eq(weir_take_all(a.w, requests, 2, &result), WEIR_ALLOW);
        ck_assert_uint_eq(result.flags & WEIR_DEGRADED, 0);
    }
    ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 1), 0);
    ck_assert_int_eq(weir_forget(a.w, a.id, "k", 1), 0);
    settle(&a);
    ck_assert_uint_eq(node_stats(&a).sync_errors, 0);
    ck_assert_msg(!node_said(&a, "noperm") && !node_said(&a, "error"), "%.2000s", a.log);
    ck_assert(!node_said(&a, "s3cret"));
    node_close(&a);
}
END_TEST

static const char *const needed[] = {"-evalsha", "-script|load", "-hget", "-hmget", "-hset", "-time", "resetkeys"};

START_TEST(each_right_is_needed)
{
    make_user();
    ck_assert_str_eq(redis_server_do(server, "ACL", "SETUSER", "limiter", needed[_i], NULL), "OK");
    start_as_user(WEIR_HYBRID);
    node_until(node_said(&a, "docs/security.md") || node_said(&a, ": noperm: "));
    ck_assert_int_eq(redis_server_do(server, "ACL", "SETUSER", "limiter", "+@all", "~weir:*", NULL)[0], 'O');
    ck_assert_int_eq(node_wait(&a, "k", 1, NULL), WEIR_ALLOW);
    settle(&a);
    node_close(&a);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("security");
    TCase *data = tcase_create("data"), *memory = tcase_create("memory"), *rights = tcase_create("rights");
    tcase_add_checked_fixture(data, open_server, close_server);
    tcase_add_loop_test(data, keys_and_names_are_data, 0, 14);
    suite_add_tcase(s, data);
    tcase_add_checked_fixture(memory, open_server, close_server);
    tcase_set_timeout(memory, 120);
    tcase_add_loop_test(memory, a_flood_of_new_keys_takes_no_memory, 0, 2);
    tcase_add_loop_test(memory, a_million_chosen_keys_are_like_any_other, 0, 3);
    suite_add_tcase(s, memory);
    tcase_add_checked_fixture(rights, open_server, close_server);
    tcase_add_loop_test(rights, the_documented_rights_are_enough, 0, 2);
    tcase_add_loop_test(rights, each_right_is_needed, 0, sizeof needed / sizeof needed[0]);
    suite_add_tcase(s, rights);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
