/* SPDX-License-Identifier: MIT */
/*
 * Decisions that Redis makes, through the public API on a real redis-server: exact with any number of threads, never
 * twice, in time, and by the outage policy where no answer comes.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"
#include "sync/wire.h"

static struct redis_server *server;
static struct liar *liar;
static struct node a, b;

static void open_server(void)
{
    server = redis_server_open(NULL);
    liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
}

static void close_server(void)
{
    liar_close(liar);
    redis_server_close(server);
}

/* A machine with much to do is no outage. */
static struct weir_policy strict_policy(uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = node_policy(limit, per_ns, burst);

    policy.mode = WEIR_STRICT;
    return policy;
}

static void start(struct node *node, const struct weir_policy *policy)
{
    node_open(node, policy);
    node_start(node, redis_server_uri(server), node_patient());
}

static int64_t remaining(struct node *node, const char *key)
{
    struct weir_result result;

    ck_assert_int_eq(weir_peek(node->w, node->id, key, strlen(key), 0, &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags, 0);
    return result.remaining;
}

/* The same where Redis is given little time, which a machine that stands still may use up; a look charges nothing. */
static int64_t remaining_at_last(struct node *node, const char *key)
{
    struct weir_result result;

    node_until(weir_peek(node->w, node->id, key, strlen(key), 0, &result) == WEIR_ALLOW && result.flags == 0);
    return result.remaining;
}

/* ---- one at a time ----------------------------------------------------------------------------------------------- */

/* Case 28, its first half: the scripts are gone, the caller sees nothing of it. */
START_TEST(case_28_a_flushed_script_cache_is_no_error)
{
    struct weir_policy policy = strict_policy(10, NODE_DAY, 10);
    struct weir_result result;

    start(&a, &policy);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 9);
    ck_assert_str_eq(redis_server_do(server, "SCRIPT", "FLUSH", NULL), "OK");
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 8);
    ck_assert_uint_eq(result.flags, 0);
    node_close(&a);
}
END_TEST

/* Case E6: a denial is no error, an error is no denial. */
START_TEST(case_E6_a_denial_is_no_error)
{
    struct weir_policy policy = strict_policy(2, NODE_DAY, 2), other = strict_policy(100, NODE_DAY, 100);
    struct weir_result result;
    weir_policy_id id;

    start(&a, &policy);
    other.name = "other";
    ck_assert_int_eq(weir_policy_add(a.w, &other, &id), 0);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 3, &result), WEIR_DENY);
    ck_assert_uint_eq(result.retry_after_ns, WEIR_NEVER);
    ck_assert_uint_eq(result.flags, 0);
    ck_assert_int_eq(result.remaining, 2);
    ck_assert_uint_eq(result.limit, 2);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_DENY);
    ck_assert_uint_gt(result.retry_after_ns, NODE_DAY / 2 - 60 * NODE_SECOND);
    ck_assert_uint_lt(result.retry_after_ns, NODE_DAY / 2 + NODE_SECOND);
    redis_server_kill(server);
    node_until(node_stats(&a).store_up == 0);
    ck_assert_int_eq(weir_take(a.w, id, "k", 1, 1, &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags, WEIR_DEGRADED);
    ck_assert_int_eq(result.remaining, 99); /* untouched by what Redis denied */
    redis_server_restart(server);           /* it is told at the end */
    node_close(&a);
}
END_TEST

START_TEST(a_wait_that_is_told_is_enough)
{
    struct weir_policy policy = strict_policy(20, NODE_SECOND, 1);
    struct weir_result result;

    start(&a, &policy);
    for (int i = 0; i < 5; i++) {
        while (node_take(&a, "k", &result) == WEIR_ALLOW)
            ; /* more than one: this machine slept for 50 ms */
        ck_assert_uint_gt(result.retry_after_ns, 0);
        ck_assert_uint_le(result.retry_after_ns, 50 * NODE_MS + 2000);
        usleep((useconds_t)(result.retry_after_ns / 1000 + 1));
        ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    }
    node_close(&a);
}
END_TEST

START_TEST(peek_give_and_forget)
{
    struct weir_policy policy = strict_policy(10, NODE_DAY, 10);
    struct weir_result result;

    start(&a, &policy);
    ck_assert_int_eq(remaining(&a, "k"), 10);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 7, NULL), WEIR_ALLOW);
    ck_assert_int_eq(remaining(&a, "k"), 3);
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 3, &result), WEIR_ALLOW);
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 4, &result), WEIR_DENY);
    ck_assert_uint_gt(result.retry_after_ns, 0);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 3);
    ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 5), 0);
    ck_assert_int_eq(remaining(&a, "k"), 8);
    ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 500), 0);
    ck_assert_int_eq(remaining(&a, "k"), 10);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 10, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_forget(a.w, a.id, "k", 1), 0);
    ck_assert_int_eq(remaining(&a, "k"), 10);
    node_close(&a);
}
END_TEST

/* Case 36. */
START_TEST(keys_are_told_apart)
{
    struct weir_policy policy = strict_policy(1, NODE_DAY, 1);
    static char longest[2][WEIR_KEY_MAX + 1];
    const struct {
        const char *bytes;
        size_t len;
    } keys[] = {{"a:b/c", 5}, {"a/b:c", 5}, {"a b", 3},  {"a\r\nb", 4},       {"a\0b", 3},
                {"a", 1},     {"{a}b", 4},  {"%s%n", 4}, {longest[0], 65535}, {longest[1], 65535}};

    memset(longest, 'x', sizeof longest);
    longest[1][WEIR_KEY_MAX - 1] = 'y';
    start(&a, &policy);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        ck_assert_int_eq(weir_take(a.w, a.id, keys[i].bytes, keys[i].len, 1, NULL), WEIR_ALLOW);
        ck_assert_int_eq(weir_take(a.w, a.id, keys[i].bytes, keys[i].len, 1, NULL), WEIR_DENY);
    }
    ck_assert_int_eq(weir_take(a.w, a.id, "", 0, 1, NULL), WEIR_E_KEY);
    ck_assert_int_eq(weir_take(a.w, a.id, longest[0], 65536, 1, NULL), WEIR_E_KEY);
    ck_assert_int_eq(weir_take(a.w, a.id, "a", 1, -5, NULL), WEIR_E_COST);
    ck_assert_int_eq(weir_take(a.w, a.id, "a", 1, INT64_MIN, NULL), WEIR_E_COST);
    node_close(&a);
}
END_TEST

/* Case 20: full again in a tenth of a millisecond. */
START_TEST(a_fast_bucket_makes_no_errors)
{
    struct weir_policy policy = strict_policy(10000, NODE_SECOND, 1);

    start(&a, &policy);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_ge(node_take(&a, "k", NULL), 0);
    ck_assert_uint_eq(node_stats(&a).sync_errors, 0);
    ck_assert_uint_eq(node_stats(&a).strict, 1000);
    node_close(&a);
}
END_TEST

/* ---- many at once ------------------------------------------------------------------------------------------------ */

enum { THREADS = 6, TAKES = 400 };

struct taker {
    pthread_t thread;
    int keys, allowed;
};

static void *take_keys(void *arg)
{
    struct taker *taker = arg;
    char key[16];

    for (int i = 0; i < TAKES; i++) {
        struct weir_result result;
        int status;

        snprintf(key, sizeof key, "key %d", i % taker->keys);
        status = node_take(&a, key, &result);
        if (status != WEIR_ALLOW && status != WEIR_DENY)
            return NULL; /* counted as missing */
        taker->allowed += status == WEIR_ALLOW && result.flags == 0;
    }
    return taker;
}

/* Threads ask for keys that they share; each bucket gives just what it holds. */
static int run_takers(int keys)
{
    struct taker takers[THREADS] = {{0}};
    int allowed = 0;
    void *done;

    for (int i = 0; i < THREADS; i++) {
        takers[i].keys = keys;
        ck_assert_int_eq(pthread_create(&takers[i].thread, NULL, take_keys, &takers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(takers[i].thread, &done), 0);
        ck_assert_ptr_nonnull(done);
        allowed += takers[i].allowed;
    }
    return allowed;
}

START_TEST(threads_share_a_bucket_exactly)
{
    struct weir_policy policy = strict_policy(500, NODE_DAY, 500);

    start(&a, &policy);
    ck_assert_int_eq(run_takers(1), 500);
    ck_assert_int_eq(remaining(&a, "key 0"), 0);
    /* the first key is empty; of 400 takes a thread every other one of 7 keys gets 57 */
    ck_assert_int_eq(run_takers(7), THREADS * 6 * 57);
    ck_assert_int_eq(remaining(&a, "key 6"), 500 - THREADS * 57);
    ck_assert_uint_eq(node_stats(&a).degraded, 0);
    node_close(&a);
}
END_TEST

START_TEST(limiters_share_a_bucket_exactly)
{
    struct weir_policy policy = strict_policy(100, NODE_DAY, 100);
    int allowed = 0;

    start(&a, &policy);
    start(&b, &policy);
    for (int i = 0; i < 80; i++)
        allowed += (node_take(&a, "k", NULL) == WEIR_ALLOW) + (node_take(&b, "k", NULL) == WEIR_ALLOW);
    ck_assert_int_eq(allowed, 100);
    node_close(&a);
    node_close(&b);
}
END_TEST

START_TEST(many_are_sent_together)
{
    struct weir_policy policy = strict_policy(50, NODE_DAY, 50);
    struct weir_request requests[200];
    struct weir_result results[200];
    int allowed = 0;

    start(&a, &policy);
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < 200; i++) {
        requests[i].policy = a.id;
        requests[i].key = i % 2 ? "odd" : "even";
        requests[i].key_len = i % 2 ? 3 : 4;
        requests[i].cost = i == 7 ? -1 : i % 10 == 0 ? 2 : 1;
        requests[i].result = &results[i];
    }
    ck_assert_int_eq(weir_take_many(a.w, requests, 200, 0), WEIR_E_COST);
    ck_assert_int_eq(requests[7].status, WEIR_E_COST);
    for (int i = 0; i < 200; i++)
        if (requests[i].status == WEIR_ALLOW)
            allowed += (int)requests[i].cost;
    ck_assert_int_eq(allowed, 100);
    ck_assert_int_eq(remaining(&a, "odd"), 0);
    /* dealt in the order in which they were asked for */
    ck_assert_int_eq(requests[1].status, WEIR_ALLOW);
    ck_assert_int_eq(results[1].remaining, 49);
    ck_assert_int_eq(results[3].remaining, 48);
    ck_assert_int_eq(requests[199].status, WEIR_DENY);
    ck_assert_uint_gt(results[199].retry_after_ns, 0);
    node_close(&a);
}
END_TEST

/* ---- all or none ------------------------------------------------------------------------------------------------- */

static struct weir_request request_of(weir_policy_id id, const char *key, int64_t cost)
{
    return (struct weir_request){.policy = id, .key = key, .key_len = strlen(key), .cost = cost};
}

static void check_all_or_none(const char *group)
{
    struct weir_policy small = strict_policy(3, NODE_DAY, 3), large = strict_policy(10, NODE_DAY, 10);
    struct weir_request requests[2];
    struct weir_result result;
    weir_policy_id id;

    small.group = large.group = group;
    large.name = "large";
    start(&a, &small);
    ck_assert_int_eq(weir_policy_add(a.w, &large, &id), 0);
    for (int i = 0; i < 5; i++) {
        requests[0] = request_of(id, "user", 1);
        requests[1] = request_of(a.id, "user", 1);
        ck_assert_int_eq(weir_take_all(a.w, requests, 2, &result), i < 3 ? WEIR_ALLOW : WEIR_DENY);
        ck_assert_int_eq(requests[1].status, i < 3 ? WEIR_ALLOW : WEIR_DENY);
    }
    ck_assert_uint_eq(result.policy, a.id);
    ck_assert_uint_gt(result.retry_after_ns, NODE_DAY / 3 - NODE_SECOND * 60);
    ck_assert_int_eq(remaining(&a, "user"), 0);
    a.id = id;
    node_until(remaining(&a, "user") == 7); /* a refund is not waited for */
    node_close(&a);
}

START_TEST(all_or_none_in_one_group)
{
    check_all_or_none("tenant");
}
END_TEST

START_TEST(all_or_none_apart)
{
    check_all_or_none(NULL);
}
END_TEST

/* ---- not waiting ------------------------------------------------------------------------------------------------- */

struct heard {
    _Atomic int calls;
    int allowed, degraded;
    struct weir_result results[256];
    struct node *node;
    pthread_t thread;
};

static void on_verdict(void *arg, int status, const struct weir_result *result)
{
    struct heard *heard = arg;
    int calls = atomic_load_explicit(&heard->calls, memory_order_relaxed);

    heard->results[calls % 256] = *result;
    heard->allowed += status == WEIR_ALLOW;
    heard->degraded += (result->flags & WEIR_DEGRADED) != 0;
    heard->thread = pthread_self();
    atomic_store_explicit(&heard->calls, calls + 1, memory_order_release);
}

static int calls_of(struct heard *heard)
{
    return atomic_load_explicit(&heard->calls, memory_order_acquire);
}

static void ask(struct node *node, const char *key, int64_t cost, struct heard *heard)
{
    struct weir_request request = request_of(node->id, key, cost);

    ck_assert_int_eq(weir_take_async(node->w, &request, on_verdict, heard), 0);
}

/* Case 28, its second half; and case E13: what a callback was given stays true when Redis' reply is gone. */
START_TEST(case_28_a_hundred_at_once_lose_their_script)
{
    struct weir_policy policy = strict_policy(100, NODE_DAY, 100);
    static struct heard heard;

    start(&a, &policy);
    ck_assert_str_eq(redis_server_do(server, "SCRIPT", "FLUSH", NULL), "OK");
    for (int i = 0; i < 100; i++)
        ask(&a, "k", 1, &heard);
    node_until(calls_of(&heard) == 100);
    ck_assert_int_eq(heard.allowed, 100);
    ck_assert_int_eq(heard.degraded, 0);
    ck_assert(!pthread_equal(heard.thread, pthread_self()));
    for (int i = 0; i < 100; i++) {
        ck_assert_uint_eq(heard.results[i].limit, 100);
        ck_assert_int_eq(heard.results[i].remaining, 99 - i);
    }
    ck_assert_int_eq(remaining(&a, "k"), 0);
    node_pause(20);
    ck_assert_int_eq(calls_of(&heard), 100);
    node_close(&a);
}
END_TEST

START_TEST(async_checks_what_it_is_given)
{
    struct weir_policy policy = strict_policy(1, NODE_DAY, 1);
    struct weir_request request;

    node_open(&a, &policy);
    request = request_of(a.id, "k", 1);
    ck_assert_int_eq(weir_take_async(a.w, &request, on_verdict, NULL), WEIR_E_NOSYNC);
    node_start(&a, redis_server_uri(server), NULL);
    request.cost = -1;
    ck_assert_int_eq(weir_take_async(a.w, &request, on_verdict, NULL), WEIR_E_COST);
    request = request_of(a.id, "", 1);
    ck_assert_int_eq(weir_take_async(a.w, &request, on_verdict, NULL), WEIR_E_KEY);
    request = request_of(77, "k", 1);
    ck_assert_int_eq(weir_take_async(a.w, &request, on_verdict, NULL), WEIR_E_NOENT);
    node_close(&a);
}
END_TEST

/* A callback may take: from memory at once, from Redis without waiting. */
static void on_chain(void *arg, int status, const struct weir_result *result)
{
    struct heard *heard = arg;
    struct weir_request request = request_of(heard->node->id, "k", 1);

    heard->allowed += status == WEIR_ALLOW;
    (void)result;
    if (weir_take(heard->node->w, heard->node->id, "k", 1, 1, NULL) != WEIR_E_LOOP ||
        weir_take_wait(heard->node->w, &request, 0, NULL) != WEIR_E_LOOP)
        heard->degraded++;
    if (calls_of(heard) < 9 && weir_take_async(heard->node->w, &request, on_chain, heard))
        heard->degraded++;
    atomic_fetch_add_explicit(&heard->calls, 1, memory_order_release);
}

START_TEST(a_callback_may_ask_but_not_wait)
{
    struct weir_policy policy = strict_policy(5, NODE_DAY, 5);
    static struct heard heard;
    struct weir_request request;

    start(&a, &policy);
    heard.node = &a;
    request = request_of(a.id, "k", 1);
    ck_assert_int_eq(weir_take_async(a.w, &request, on_chain, &heard), 0);
    node_until(calls_of(&heard) == 10);
    ck_assert_int_eq(heard.allowed, 5);
    ck_assert_int_eq(heard.degraded, 0);
    node_close(&a);
}
END_TEST

/* ---- without an answer ------------------------------------------------------------------------------------------- */

/* A silent server: the deadline, then the circuit. Nothing that may have run is sent again. */
START_TEST(no_answer_is_the_outage_policys)
{
    struct weir_policy policy = strict_policy(1000, NODE_DAY, 1000);
    struct weir_result result;
    static struct heard heard;
    uint64_t began;
    int64_t left, probes;

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), NULL);
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_flush(&a), 0); /* of what an outage policy may have charged already */
    left = remaining_at_last(&a, "k");
    redis_server_pause(server);
    began = uv_hrtime();
    for (int i = 0; i < 300; i++) {
        ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
        ck_assert_uint_eq(result.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    }
    for (int i = 0; i < 50; i++)
        ask(&a, "k", 1, &heard);
    node_until(calls_of(&heard) == 50);
    ck_assert_int_eq(heard.degraded, 50);
    probes = 4 + (int64_t)((uv_hrtime() - began) / (100 * NODE_MS)); /* three, then one each 100 ms */
    redis_server_resume(server);
    node_until(node_take(&a, "other", &result) == WEIR_ALLOW && result.flags == 0);
    /* those that were on their way may have run, each once; what the outage policy charged is told as well */
    ck_assert_int_eq(node_flush(&a), 0);
    ck_assert_int_le(remaining_at_last(&a, "k"), left);
    ck_assert_int_ge(remaining_at_last(&a, "k"), left - 350 - probes);
    node_close(&a);
}
END_TEST

START_TEST(a_lost_answer_is_not_asked_again)
{
    struct weir_policy policy = strict_policy(100, NODE_DAY, 100);
    struct liar_rule rule = {.command = "EVALSHA", .times = 1, .act = LIAR_LOSE_REPLY};
    struct weir_result result;

    policy.on_outage = WEIR_OUTAGE_OPEN; /* uncharged, so that Redis' count is that of what ran */
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_patient()); /* that it is lost is seen at once */
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    liar_rule(liar, &rule);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_uint_eq(result.flags, WEIR_DEGRADED);
    node_until(node_take(&a, "other", &result) == WEIR_ALLOW && result.flags == 0);
    ck_assert_int_eq(remaining(&a, "k"), 98);
    node_close(&a);
}
END_TEST

enum { SPREAD = 40 };

/* One take each of SPREAD keys, which are of many shards; returns how many Redis allowed. results: of all. */
static int take_spread(struct node *node, struct weir_result results[SPREAD])
{
    struct weir_request requests[SPREAD];
    char keys[SPREAD][8];
    int allowed = 0;

    memset(requests, 0, sizeof requests);
    memset(results, 0, SPREAD * sizeof *results);
    for (int i = 0; i < SPREAD; i++) {
        requests[i].policy = node->id;
        requests[i].key = keys[i];
        requests[i].key_len = (size_t)snprintf(keys[i], sizeof keys[i], "k%d", i);
        requests[i].cost = 1;
        requests[i].result = &results[i];
    }
    ck_assert_int_eq(weir_take_many(node->w, requests, SPREAD, 0), 0);
    for (int i = 0; i < SPREAD; i++)
        allowed += requests[i].status == WEIR_ALLOW && results[i].flags == 0;
    return allowed;
}

static unsigned long scripts_run(void)
{
    const char *at = strstr(redis_server_do(server, "INFO", "commandstats", NULL), "cmdstat_evalsha:calls=");

    return at ? strtoul(at + sizeof "cmdstat_evalsha:calls=" - 1, NULL, 10) : 0;
}

/* What meets travels together, of however many shards. */
START_TEST(shards_share_a_script)
{
    struct weir_policy policy = strict_policy(10, NODE_DAY, 10);
    struct weir_result results[SPREAD];
    int together = 0;

    start(&a, &policy);
    for (int round = 1; round <= 10; round++) {
        unsigned long before = scripts_run();

        ck_assert_int_eq(take_spread(&a, results), SPREAD);
        together += scripts_run() - before == 1;
        for (int i = 0; i < SPREAD; i++)
            ck_assert_int_eq(results[i].remaining, 10 - round);
    }
    ck_assert_int_eq(take_spread(&a, results), 0);
    ck_assert_int_ge(together, 5); /* all ten, were it not for the loop's turns */
    node_close(&a);
}
END_TEST

static unsigned long refused_for_slots(void)
{
    const char *at = strstr(redis_server_do(server, "INFO", "errorstats", NULL), "errorstat_CROSSSLOT:count=");

    return at ? strtoul(at + sizeof "errorstat_CROSSSLOT:count=" - 1, NULL, 10) : 0;
}

/* A cluster's node under a plain address: it refuses keys of several slots, and runs nothing then. Once that is known
 * no script is of several: before the first answer more than one may have left, if a turn of the loop fell between. */
START_TEST(a_cluster_gets_one_slot_a_script)
{
    struct weir_policy policy = strict_policy(10, NODE_DAY, 10), grouped = policy;
    struct weir_result results[SPREAD];
    unsigned long refused = 0;

    redis_server_close(server);
    server = redis_server_open(&(struct redis_server_options){.tcp = 1, .cluster = 1});
    ck_assert_str_eq(redis_server_do(server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383", NULL), "OK");
    node_until(strstr(redis_server_do(server, "CLUSTER", "INFO", NULL), "cluster_state:ok"));
    start(&a, &policy);
    for (int round = 1; round <= 3; round++) {
        ck_assert_int_eq(take_spread(&a, results), SPREAD);
        for (int i = 0; i < SPREAD; i++)
            ck_assert_int_eq(results[i].remaining, 10 - round);
        if (round == 1)
            refused = refused_for_slots();
        if (round == 2)
            node_pause(1100); /* for a second no script is of several shards after any that failed */
    }
    ck_assert_uint_eq(node_stats(&a).degraded, 0);
    ck_assert_uint_ge(refused, 1);
    ck_assert_uint_eq(refused_for_slots(), refused);
    grouped.name = "grouped";
    grouped.group = "g";
    ck_assert_int_eq(weir_policy_add(a.w, &grouped, &a.id), 0);
    ck_assert_int_eq(take_spread(&a, results), SPREAD);
    node_close(&a);
}
END_TEST

/* One shard holds what no script can use. The others' takes are not held up by it but once. */
START_TEST(a_broken_shard_is_alone)
{
    struct weir_policy policy = strict_policy(1000, NODE_DAY, 1000);
    struct weir_result results[SPREAD];
    char name[32];
    int broken = 0;

    policy.on_outage = WEIR_OUTAGE_OPEN;
    start(&a, &policy);
    snprintf(name, sizeof name, "weir:{p#%u}:a", (unsigned)weir__wire_shard("k0", 2, 64));
    for (int i = 0; i < SPREAD; i++) {
        char key[8];

        broken +=
            weir__wire_shard(key, (size_t)snprintf(key, sizeof key, "k%d", i), 64) == weir__wire_shard("k0", 2, 64);
    }
    ck_assert_int_eq(take_spread(&a, results), SPREAD);
    ck_assert_str_eq(redis_server_do(server, "RENAME", name, "aside", NULL), "OK");
    redis_server_do(server, "RPUSH", name, "x", NULL);
    ck_assert_int_lt(take_spread(&a, results), SPREAD);
    node_until(take_spread(&a, results) == SPREAD - broken);
    node_pause(1100);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(take_spread(&a, results), SPREAD - broken);
    ck_assert_uint_eq(results[0].flags, WEIR_DEGRADED);
    ck_assert_str_eq(redis_server_do(server, "RENAME", "aside", name, NULL), "OK");
    node_until(take_spread(&a, results) == SPREAD);
    node_close(&a);
}
END_TEST

static const char *const nonsense[] = {"+OK\r\n",          ":3\r\n",  "$3\r\nabc\r\n",
                                       "*1\r\n:1\r\n",     "$-1\r\n", "-OOM command not allowed\r\n",
                                       "-ERR whatever\r\n"};

START_TEST(nonsense_is_an_outage)
{
    struct weir_policy policy = strict_policy(100, NODE_DAY, 100);
    struct liar_rule rule = {.command = "EVALSHA", .times = 1, .act = LIAR_REPLY, .text = nonsense[_i]};
    struct weir_result result;

    policy.on_outage = WEIR_OUTAGE_CLOSED;
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_patient());
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    liar_rule(liar, &rule);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_DENY);
    ck_assert_uint_eq(result.flags, WEIR_DEGRADED);
    ck_assert_uint_gt(node_stats(&a).sync_errors, 0);
    node_until(node_take(&a, "k", &result) == WEIR_ALLOW);
    ck_assert_int_eq(remaining(&a, "k"), 98);
    node_close(&a);
}
END_TEST

static void *take_until_closed(void *arg)
{
    struct taker *taker = arg;
    struct weir_result result;

    do {
        int status = node_take(&a, "k", &result);

        if (status != WEIR_ALLOW && status != WEIR_DENY)
            return NULL;
        taker->allowed++;
    } while (!(result.flags & WEIR_DEGRADED));
    return taker;
}

/* Case 34 for those who wait: all return, the last ones by the outage policy. */
START_TEST(closing_answers_those_who_wait)
{
    struct weir_policy policy = strict_policy(1000000, NODE_SECOND, 1000000);
    struct taker takers[THREADS] = {{0}};
    static struct heard heard;
    void *done;

    for (int round = 0; round < 5; round++) {
        int asked = calls_of(&heard);

        start(&a, &policy);
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&takers[i].thread, NULL, take_until_closed, &takers[i]), 0);
        node_pause(20);
        for (int i = 0; i < 20; i++)
            ask(&a, "k", 1, &heard);
        node_end(&a);
        ck_assert_int_eq(calls_of(&heard), asked + 20);
        for (int i = 0; i < THREADS; i++) {
            ck_assert_int_eq(pthread_join(takers[i].thread, &done), 0);
            ck_assert_ptr_nonnull(done);
        }
        node_close(&a);
    }
}
END_TEST

/* ---- the other mode ---------------------------------------------------------------------------------------------- */

START_TEST(modes_share_one_state)
{
    struct weir_policy hybrid = node_policy(100, NODE_DAY, 100), strict = strict_policy(100, NODE_DAY, 100);

    node_open(&a, &hybrid);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 30), 30);
    ck_assert_int_eq(weir_policy_set(a.w, a.id, &strict), 0);
    ck_assert_uint_eq(node_flush(&a), 0);
    node_until(remaining(&a, "k") == 70); /* its slice was given back */
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(remaining(&a, "k"), 50);
    ck_assert_int_eq(weir_policy_set(a.w, a.id, &hybrid), 0);
    ck_assert_int_eq(node_wait_many(&a, "k", 40), 40);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_int_eq(weir_policy_set(a.w, a.id, &strict), 0);
    ck_assert_uint_eq(node_flush(&a), 0);
    node_until(remaining(&a, "k") == 10);
    node_close(&a);
}
END_TEST

/* One node strict, the other hybrid: what the other holds is not given twice. */
START_TEST(strict_respects_slices)
{
    struct weir_policy hybrid = node_policy(200, NODE_DAY, 200), strict = strict_policy(200, NODE_DAY, 200);
    int allowed = 0;

    node_open(&a, &hybrid);
    node_start(&a, redis_server_uri(server), node_patient());
    start(&b, &strict);
    for (int i = 0; i < 600 || (allowed < 180 && i < 10000); i++) { /* a slice may be long on its way */
        allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
        allowed += node_take(&b, "k", NULL) == WEIR_ALLOW;
        if (i >= 600)
            node_pause(1);
    }
    ck_assert_msg(allowed >= 180 && allowed <= 200 + 20 + 1, "%d allowed", allowed);
    node_close(&a);
    node_close(&b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("strict");
    TCase *one = tcase_create("one at a time"), *many = tcase_create("many"), *no = tcase_create("no answer");

    tcase_add_checked_fixture(one, open_server, close_server);
    tcase_add_test(one, case_28_a_flushed_script_cache_is_no_error);
    tcase_add_test(one, case_E6_a_denial_is_no_error);
    tcase_add_test(one, a_wait_that_is_told_is_enough);
    tcase_add_test(one, peek_give_and_forget);
    tcase_add_test(one, keys_are_told_apart);
    tcase_add_test(one, a_fast_bucket_makes_no_errors);
    tcase_add_test(one, modes_share_one_state);
    tcase_add_test(one, strict_respects_slices);
    suite_add_tcase(s, one);
    tcase_add_checked_fixture(many, open_server, close_server);
    tcase_add_test(many, threads_share_a_bucket_exactly);
    tcase_add_test(many, limiters_share_a_bucket_exactly);
    tcase_add_test(many, many_are_sent_together);
    tcase_add_test(many, shards_share_a_script);
    tcase_add_test(many, a_cluster_gets_one_slot_a_script);
    tcase_add_test(many, all_or_none_in_one_group);
    tcase_add_test(many, all_or_none_apart);
    tcase_add_test(many, case_28_a_hundred_at_once_lose_their_script);
    tcase_add_test(many, async_checks_what_it_is_given);
    tcase_add_test(many, a_callback_may_ask_but_not_wait);
    suite_add_tcase(s, many);
    tcase_add_checked_fixture(no, open_server, close_server);
    tcase_add_test(no, no_answer_is_the_outage_policys);
    tcase_add_test(no, a_lost_answer_is_not_asked_again);
    tcase_add_test(no, a_broken_shard_is_alone);
    tcase_add_loop_test(no, nonsense_is_an_outage, 0, sizeof nonsense / sizeof nonsense[0]);
    tcase_add_test(no, closing_answers_those_who_wait);
    suite_add_tcase(s, no);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
