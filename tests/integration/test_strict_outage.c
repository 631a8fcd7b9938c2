/* SPDX-License-Identifier: MIT */
/*
 * Strict policies whose Redis goes, and comes back with its memory or without: nobody gets a bucket twice.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include <uv.h>

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a;

static void open_server(void)
{
    server = redis_server_open(&(struct redis_server_options){.persist = 1});
}

static void close_server(void)
{
    redis_server_close(server);
}

/* How long a script may take. State is gathered for twice as long, so who waits for that has less patience. */
enum { PATIENT_MS = 5000, LOSS_MS = 2000 };

static void start(struct node *node, uint64_t limit, uint64_t per_ns, uint32_t fleet, uint32_t timeout_ms)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(limit, per_ns, limit);

    policy.mode = WEIR_STRICT;
    options.fleet_hint = fleet;
    options.timeout_ms = timeout_ms;
    options.drain_ms = 1000; /* to a Redis that is gone */
    node_open(node, &policy);
    node_start(node, redis_server_uri(server), &options);
}

/* Takes one by one until it is denied; all answers must be of that kind. */
static int drain(struct node *node, const char *key, uint32_t flags)
{
    struct weir_result result;
    int n = 0, status;

    while ((status = node_take(node, key, &result)) == WEIR_ALLOW) {
        ck_assert_uint_eq(result.flags, flags);
        n++;
    }
    ck_assert_int_eq(status, WEIR_DENY);
    ck_assert_uint_eq(result.flags, flags);
    return n;
}

static void wait_for_outage(struct node *node)
{
    redis_server_kill(server);
    node_until(node_stats(node).store_up == 0);
}

static void wait_for_redis(struct node *node)
{
    struct weir_result result;

    redis_server_restart(server);
    node_until(weir_peek(node->w, node->id, "other", 5, 0, &result) == WEIR_ALLOW && result.flags == 0);
}

/* What Redis last said of a key is where its share begins; a key that it said nothing of is full. */
START_TEST(an_outage_goes_on_from_what_was_left)
{
    start(&a, 100, NODE_DAY, 1, PATIENT_MS);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 97, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(a.w, a.id, "emptied", 7, 100, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(a.w, a.id, "forgotten", 9, 100, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_forget(a.w, a.id, "forgotten", 9), 0);
    ck_assert_int_eq(weir_take(a.w, a.id, "refunded", 8, 100, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_give(a.w, a.id, "refunded", 8, 40), 0);
    ck_assert_int_eq(weir_peek(a.w, a.id, "forgotten", 9, 0, NULL), WEIR_ALLOW); /* those two have been answered */
    ck_assert_int_eq(weir_peek(a.w, a.id, "refunded", 8, 40, NULL), WEIR_ALLOW);
    wait_for_outage(&a);
    ck_assert_int_eq(drain(&a, "k", WEIR_DEGRADED), 3);
    ck_assert_int_eq(drain(&a, "emptied", WEIR_DEGRADED), 0);
    ck_assert_int_eq(drain(&a, "forgotten", WEIR_DEGRADED), 100);
    ck_assert_int_eq(drain(&a, "refunded", WEIR_DEGRADED), 40);
    ck_assert_int_eq(drain(&a, "new", WEIR_DEGRADED), 100);
    wait_for_redis(&a);
    node_until(weir_peek(a.w, a.id, "k", 1, 1, NULL) == WEIR_DENY); /* the outage's takes are told */
    node_close(&a);
}
END_TEST

/* One of four processes has a fourth of what is left. */
START_TEST(a_share_of_what_was_left)
{
    start(&a, 100, NODE_DAY, 4, PATIENT_MS);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 60, NULL), WEIR_ALLOW);
    wait_for_outage(&a);
    ck_assert_int_eq(drain(&a, "k", WEIR_DEGRADED), 10);
    ck_assert_int_eq(drain(&a, "new", WEIR_DEGRADED), 25);
    node_close(&a);
}
END_TEST

/* What was left grows at the rate, as it does in Redis. */
START_TEST(what_was_left_grows)
{
    uint64_t began = uv_hrtime();
    int n;

    start(&a, 100, 10 * NODE_SECOND, 1, PATIENT_MS);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 100, NULL), WEIR_ALLOW);
    wait_for_outage(&a);
    node_pause(500);
    n = drain(&a, "k", WEIR_DEGRADED);
    ck_assert_int_ge(n, 4);
    ck_assert_uint_le(n, (uv_hrtime() - began) / (NODE_SECOND / 10) + 1);
    node_close(&a);
}
END_TEST

/* ---- a Redis without its memory ---------------------------------------------------------------------------------- */

enum { MORE = 50 }; /* turns, after what there must be */

/* How many takes are allowed, by both in turn: n at least, once state has been gathered. */
static int allowed_in_a_while(struct node *one, struct node *other, const char *key, int n)
{
    struct weir_result result;
    int allowed = 0;

    for (int i = 0, more = MORE; more; i++, more -= allowed >= n) {
        struct node *node = i % 2 ? other : one;
        int status = node_take(node, key, &result);

        ck_assert_int_ge(status, 0);
        ck_assert_uint_eq(result.flags, 0);
        allowed += status == WEIR_ALLOW;
        ck_assert_int_lt(i, NODE_WAIT_MS / 10);
        node_pause(10);
    }
    return allowed;
}

/* Emptied behind our backs, while the connection stays: as eviction or FLUSHALL do. */
START_TEST(an_emptied_redis_gives_nothing_twice)
{
    static struct node b;

    start(&a, 100, NODE_DAY, 1, LOSS_MS);
    start(&b, 100, NODE_DAY, 1, LOSS_MS);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 60, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(b.w, b.id, "k", 1, 37, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(b.w, b.id, "untouched", 9, 50, NULL), WEIR_ALLOW);
    ck_assert_str_eq(redis_server_do(server, "FLUSHALL", NULL), "OK");
    ck_assert_int_eq(allowed_in_a_while(&a, &b, "k", 3), 3);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 1, NULL), WEIR_DENY);
    /* of another shard; what b saw of it counts though it comes late */
    node_until(weir_take(b.w, b.id, "untouched", 9, 51, NULL) == WEIR_DENY);
    node_until(weir_take(b.w, b.id, "untouched", 9, 50, NULL) == WEIR_ALLOW);
    ck_assert_int_eq(weir_take(b.w, b.id, "untouched", 9, 1, NULL), WEIR_DENY);
    node_close(&a);
    node_close(&b);
}
END_TEST

/* Requests that meet, of many keys and shards: each is answered once, and as the bucket says. */
START_TEST(merged_requests_survive_a_loss)
{
    enum { KEYS = 60 };
    struct weir_request requests[KEYS];
    char keys[KEYS][8];
    int allowed = 0;

    start(&a, 2, NODE_DAY, 1, LOSS_MS);
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < KEYS; i++) {
        requests[i].policy = a.id;
        requests[i].key = keys[i];
        requests[i].key_len = (size_t)snprintf(keys[i], sizeof keys[i], "%d", i);
        requests[i].cost = 1 + i % 2;
    }
    ck_assert_int_eq(weir_take_many(a.w, requests, KEYS, 0), 0);
    ck_assert_str_eq(redis_server_do(server, "FLUSHALL", NULL), "OK");
    for (int round = 0, more = MORE; more; round++, more -= allowed >= KEYS / 2) {
        for (int i = 0; i < KEYS; i++)
            requests[i].cost = 1;
        ck_assert_int_eq(weir_take_many(a.w, requests, KEYS, 0), 0);
        for (int i = 0; i < KEYS; i++) {
            ck_assert_int_ge(requests[i].status, 0);
            allowed += requests[i].status == WEIR_ALLOW;
        }
        ck_assert_int_lt(round, NODE_WAIT_MS / 10);
        node_pause(10);
    }
    ck_assert_int_eq(allowed, KEYS / 2);
    ck_assert_uint_eq(node_stats(&a).degraded, 0);
    node_close(&a);
}
END_TEST

/* Of two policies, one empty. The other one's refund is lost; or its take has no answer, and may have been charged or
 * not: it is not given back. Either way nothing is made of nothing, and what may be missing is counted. */
START_TEST(what_a_denied_take_all_leaves_charged_is_counted)
{
    struct liar *liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    struct weir_policy policy = node_policy(10, NODE_DAY, 10), empty = node_policy(1, NODE_DAY, 1);
    struct liar_rule rule = {.command = "EVALSHA", .times = 1};
    struct weir_request requests[2];
    struct weir_result result;
    weir_policy_id id;

    policy.mode = empty.mode = WEIR_STRICT;
    policy.on_outage = WEIR_OUTAGE_OPEN;
    empty.name = "empty";
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_patient());
    ck_assert_int_eq(weir_policy_add(a.w, &empty, &id), 0);
    ck_assert_int_eq(weir_take(a.w, id, "user", 4, 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(node_take(&a, "user", NULL), WEIR_ALLOW);
    rule.skip = _i ? 1 : 2;
    rule.act = _i ? LIAR_LOSE_REPLY : LIAR_LOSE_REQUEST;
    liar_rule(liar, &rule);
    requests[0] = (struct weir_request){.policy = id, .key = "user", .key_len = 4, .cost = 1};
    requests[1] = (struct weir_request){.policy = a.id, .key = "user", .key_len = 4, .cost = 2};
    ck_assert_int_eq(weir_take_all(a.w, requests, 2, &result), WEIR_DENY);
    ck_assert_uint_eq(result.policy, id);
    node_until(node_stats(&a).unreturned_tokens == 2);
    node_until(node_take(&a, "other", &result) == WEIR_ALLOW && result.flags == 0);
    ck_assert_int_eq(weir_peek(a.w, a.id, "user", 4, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 7);
    ck_assert_uint_eq(node_stats(&a).unreturned_tokens, 2);
    node_close(&a);
    liar_close(liar);
}
END_TEST

/* ---- when it is said --------------------------------------------------------------------------------------------- */

static _Atomic int asked; /* how often strict policies went back to Redis; < 0: it was said to be there before */

static void on_line(void *arg, enum weir_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    if (strstr(line, "strict policies ask Redis"))
        asked = node_stats(&a).store_up ? -100 : asked + 1;
}

/* Whoever sees that Redis is there again is answered by it. */
START_TEST(redis_is_there_once_it_is_asked)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);
    struct weir_result result;

    policy.mode = WEIR_STRICT;
    options.log = on_line;
    memset(&a, 0, sizeof a);
    ck_assert_int_eq(weir_open(&a.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &a.id), 0);
    node_start(&a, redis_server_uri(server), node_patient());
    wait_for_outage(&a);
    redis_server_restart(server);
    node_until(node_stats(&a).store_up == 1);
    ck_assert_int_eq(asked, 1);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags, 0);
    node_close(&a);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strict_outage");
    TCase *tcase = tcase_create("outage");

    tcase_add_checked_fixture(tcase, open_server, close_server);
    tcase_add_test(tcase, an_outage_goes_on_from_what_was_left);
    tcase_add_test(tcase, a_share_of_what_was_left);
    tcase_add_test(tcase, what_was_left_grows);
    tcase_add_test(tcase, an_emptied_redis_gives_nothing_twice);
    tcase_add_test(tcase, merged_requests_survive_a_loss);
    tcase_add_loop_test(tcase, what_a_denied_take_all_leaves_charged_is_counted, 0, 2);
    tcase_add_test(tcase, redis_is_there_once_it_is_asked);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
