/* SPDX-License-Identifier: MIT */
/*
 * What happens to limits when Redis is gone, comes back, comes back empty, answers nonsense or refuses: the outage
 * policies, and that nothing is lost, nothing told twice and nothing given away.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

#include "integration/script_client.h"
#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct liar *liar; /* between the nodes and the server */
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

static struct weir_policy slow_policy(void)
{
    return node_policy(100, NODE_DAY, 100);
}

static double total_of(const char *key)
{
    return script_client_total(server, "p", key);
}

/* Takes; every verdict must say that it is the outage policy's. */
static int take_degraded(struct node *node, const char *key, int n)
{
    struct weir_result result;
    int allowed = 0;

    for (int i = 0; i < n; i++) {
        allowed += node_take(node, key, &result) == WEIR_ALLOW;
        ck_assert_msg(result.flags & WEIR_DEGRADED, "take %d says nothing of an outage", i);
    }
    return allowed;
}

/* Until what is in force has run out. Looks, and charges nothing. */
static int is_degraded(struct node *node, const char *key)
{
    struct weir_result result;

    ck_assert_int_ge(weir_peek(node->w, node->id, key, strlen(key), 0, &result), 0);
    return (result.flags & WEIR_DEGRADED) != 0;
}

static void cut(void)
{
    liar_refuse(liar, 1);
    liar_cut(liar);
}

/* Redis has what is told of now. */
static void settle(struct node *node)
{
    node_until(node_stats(node).store_up == 1);
    node_until(node_flush(node) == 0 && node->status == 0);
}

/* Until n are admitted, by slices: what they admit is told once, however long the machine stands still. A take that
 * waits for Redis is charged twice where its answer is lost. */
static void spend(struct node *node, const char *key, int n)
{
    for (int i = 0; i < n; i++)
        node_until(node_take(node, key, NULL) == WEIR_ALLOW);
}

/* Until an outage policy answers, of a node that nobody can answer any more: it has seen that, so that no late answer
 * of before brings the key back. */
static void until_degraded(struct node *node, const char *key)
{
    node_until(node_stats(node).store_up == 0);
    node_until(is_degraded(node, key));
}

/* An outage that is seen before long is none where the machine stands still for a second. */
static struct weir_sync_options unhurried(void)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    options.timeout_ms = 1000;
    return options;
}

/* Tokens that have come since, at so many a day. */
static double refill(uint64_t since, double per_day)
{
    return per_day * (double)(uv_hrtime() - since) / (double)NODE_DAY;
}

/* ---- a link that is cut ------------------------------------------------------------------------------------------ */

/* Case 24, with the slice given back before the cut, and with it in hand. */
START_TEST(what_is_pending_survives_a_cut)
{
    struct weir_policy policy = slow_policy();

    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_calm());
    spend(&a, "k", 10);
    settle(&a);
    ck_assert_double_eq_tol(total_of("k"), 90, 0.1);
    node_until(_i || script_client_look(server, "p", "k").n_slices == 0);
    cut();
    until_degraded(&a, "k");
    ck_assert_int_eq(take_degraded(&a, "k", 30), 30);
    ck_assert_int_eq(weir_sync_flush(a.sync, NULL, NULL), 0);
    ck_assert_int_eq(take_degraded(&a, "k", 5), 5);
    liar_refuse(liar, 0);
    settle(&a);
    ck_assert_double_eq_tol(total_of("k"), 55, 0.1);
    node_open(&b, &policy);
    node_start(&b, redis_server_uri(server), node_patient());
    ck_assert_int_le(node_wait_many(&b, "k", 80), 55 + 10);
    node_close(&a);
    node_close(&b);
    ck_assert_double_ge(total_of("k"), -10.1);
}
END_TEST

static void check_exact(enum liar_act act, unsigned times, unsigned ms)
{
    struct weir_policy policy = node_policy(7000, NODE_DAY, 100000);
    struct liar_rule rule = {.command = "EVALSHA", .skip = 3, .times = times, .act = act, .ms = ms};
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    uint64_t begun = uv_hrtime();
    long allowed = 0;
    double missing;

    options.interval_ms = 40;
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), &options);
    for (int round = 0; round < 5; round++) {
        liar_rule(liar, &rule);
        for (int i = 0; i < 300; i++) {
            allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
            usleep(200);
        }
        liar_clear(liar);
    }
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_uint_gt(node_stats(&a).allowed, 100);
    missing = 100000 - total_of("k");
    ck_assert_msg(missing <= (double)allowed && missing > (double)allowed - 2 - refill(begun, 7000),
                  "%ld admitted, %f in Redis", allowed, missing);
    node_close(&a);
}

START_TEST(a_lost_reply_charges_once)
{
    check_exact(LIAR_LOSE_REPLY, 2, 0);
}
END_TEST

START_TEST(a_lost_batch_charges_once)
{
    check_exact(LIAR_LOSE_REQUEST, 2, 0);
}
END_TEST

START_TEST(a_late_reply_charges_once)
{
    check_exact(LIAR_LATE, 2, 80);
}
END_TEST

START_TEST(a_silent_server_charges_once)
{
    check_exact(LIAR_HANG, 1, 0);
}
END_TEST

/* Answers that are always late are answers: each batch goes once. (One for which the node had no CPU all the while
 * seems to be in time.) Returns whether the connection was kept: it is given up where the machine stands still. */
static int hear_late_answers(void)
{
    struct weir_policy policy = node_policy(7000, NODE_DAY, 100000);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    unsigned connections = liar_accepted(liar), scripts = liar_count(liar, "EVALSHA");
    uint64_t begun = uv_hrtime();
    struct weir_stats stats;
    long allowed = 0;
    double missing;
    int kept;

    options.interval_ms = 200;
    options.timeout_ms = 40;
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), &options);
    node_until(node_stats(&a).syncs > 0);
    for (int i = 0; i < 500; i++) {
        allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
        usleep(500);
    }
    node_until(node_flush(&a) == 0 && a.status == 0);
    missing = 100000 - total_of("k");
    ck_assert_msg(missing <= (double)allowed + 2 && missing > (double)allowed - 2 - refill(begun, 7000),
                  "%ld admitted, %f in Redis", allowed, missing);
    stats = node_stats(&a);
    ck_assert_uint_gt(stats.sync_errors, 0);
    ck_assert_uint_gt(stats.syncs, 64);
    scripts = liar_count(liar, "EVALSHA") - scripts;
    kept = liar_accepted(liar) == connections + 1;
    ck_assert(!kept || 2 * scripts < 3 * stats.syncs); /* each twice, were they not used */
    node_close(&a);
    ck_assert_str_eq(redis_server_do(server, "FLUSHALL", NULL), "OK");
    return kept;
}

START_TEST(a_server_that_is_always_late_is_heard)
{
    liar_rule(liar, &(struct liar_rule){.command = "EVALSHA", .act = LIAR_LATE, .ms = 70});
    for (int tries = 1; !hear_late_answers(); tries++)
        ck_assert_int_lt(tries, 5);
}
END_TEST

START_TEST(garbage_keeps_the_usage)
{
    check_exact(LIAR_GARBAGE, 2, 0);
}
END_TEST

/* ---- answers that refuse ----------------------------------------------------------------------------------------- */

static const char *const refusals[] = {
    "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "-MISCONF Redis is configured to save RDB snapshots\r\n",
    "-LOADING Redis is loading the dataset in memory\r\n",
    "-BUSY Redis is busy running a script\r\n",
    "-READONLY You can't write against a read only replica.\r\n",
    "-ERR Error running script: something\r\n",
    "+OK\r\n",
    ":7\r\n",
    "$5\r\nhello\r\n",
    "*0\r\n",
};

/* The late answer says that Redis has lost its state, and the batch goes again as another one: that one's fault counts,
 * too. */
START_TEST(each_fault_counts_after_a_late_answer)
{
    struct weir_policy policy = slow_policy();
    struct weir_sync_options options = *node_calm();
    struct weir_result result;
    uint64_t errors;

    options.interval_ms = 60000;
    options.shards = 1; /* no other batch takes what is meant for this one */
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), &options);
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    node_until(node_flush(&a) == 0 && a.status == 0);
    redis_server_do(server, "FLUSHDB", NULL);
    redis_server_pause(server); /* until the answer is late */
    errors = node_stats(&a).sync_errors;
    liar_rule(liar,
              &(struct liar_rule){.command = "EVALSHA", .skip = 1, .times = 1, .act = LIAR_REPLY, .text = refusals[0]});
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_sync_flush(a.sync, NULL, NULL), 0);
    node_until(node_stats(&a).sync_errors > errors);
    redis_server_resume(server);
    node_until(node_flush(&a) == 0 && a.status == 0);
    ck_assert_uint_ge(node_stats(&a).sync_errors, errors + 2);
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 98);
    node_close(&a);
}
END_TEST

START_TEST(refusals_keep_the_usage)
{
    struct liar_rule rule = {.command = "EVALSHA", .times = 3, .act = LIAR_REPLY, .text = refusals[_i]};
    struct weir_policy policy = slow_policy();
    uint64_t errors;

    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 10), 10);
    settle(&a);
    errors = node_stats(&a).sync_errors;
    liar_rule(liar, &rule);
    node_take(&a, "k", NULL);
    node_until(node_stats(&a).sync_errors > errors);
    settle(&a);
    ck_assert_double_eq_tol(total_of("k"), 100 - (double)node_stats(&a).allowed, 0.1);
    node_close(&a);
}
END_TEST

/* Case E3: something else lives at a key of ours. The shard is out of order, the others are not. */
START_TEST(a_key_of_another_type_is_an_outage_of_its_shard)
{
    struct weir_policy policy = slow_policy();
    char name[64], other[32] = "";

    snprintf(name, sizeof name, "weir:{p#%u}:n", weir__wire_shard("k", 1, 64));
    for (int i = 0; !other[0] || weir__wire_shard(other, strlen(other), 64) == weir__wire_shard("k", 1, 64); i++)
        snprintf(other, sizeof other, "other %d", i);
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_patient());
    ck_assert_str_eq(redis_server_do(server, "SET", name, "hello", NULL), "OK");
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    node_until(node_stats(&a).sync_errors > 2);
    ck_assert_int_eq(node_wait_many(&a, other, 10), 10);
    ck_assert_str_eq(redis_server_do(server, "DEL", name, NULL), "1");
    settle(&a);
    ck_assert_double_eq_tol(total_of("k"), 99, 0.1);
    ck_assert_double_eq_tol(total_of(other), 90, 0.1);
    node_close(&a);
}
END_TEST

START_TEST(another_shard_count_is_an_error_not_another_limit)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = slow_policy();

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_calm());
    node_open(&b, &policy);
    options.shards = 16;
    options.drain_ms = 100;
    node_launch(&b, redis_server_uri(server), &options);
    node_until(node_stats(&b).store_up);
    node_until(node_said(&b, weir_strerror(WEIR_E_MISMATCH)));
    take_degraded(&b, "k", 3);
    node_until(node_stats(&b).sync_errors > 0);
    ck_assert_uint_eq(node_end(&b), 3);
    node_close(&b);
    node_close(&a);
}
END_TEST

/* ---- a Redis that dies ------------------------------------------------------------------------------------------- */

START_TEST(a_redis_that_comes_back_empty_gives_nothing_away)
{
    struct weir_sync_options options = unhurried();
    struct weir_policy policy = slow_policy();
    int allowed = 60;

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    spend(&a, "k", allowed);
    settle(&a);
    redis_server_kill(server);
    until_degraded(&a, "k");
    allowed += take_degraded(&a, "k", 20);
    redis_server_restart(server);
    settle(&a);
    /* for a slice's lifetime it only gathers what it had told */
    for (int i = 0; i < 300 || (allowed < 100 && i < 1000); i++) {
        allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
        allowed += node_wait(&a, "k", 1, NULL) == WEIR_ALLOW;
        usleep(10000);
    }
    settle(&a);
    ck_assert_msg(allowed >= 100 && allowed <= 100 + 10 + 1, "%d allowed", allowed);
    ck_assert_double_eq_tol(total_of("k"), 100 - allowed, 0.1);
    node_close(&a);
}
END_TEST

/* Redis forgets all under load, while slices are out. */
START_TEST(a_flushed_redis_gives_nothing_away)
{
    struct weir_sync_options options = unhurried();
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);
    int allowed = 0;

    node_open(&a, &policy);
    node_open(&b, &policy);
    node_start(&a, redis_server_uri(server), &options);
    node_start(&b, redis_server_uri(server), &options);
    for (int i = 0; i < 10000 || (allowed < 900 && i < 40000); i++) {
        allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
        allowed += node_take(&b, "k", NULL) == WEIR_ALLOW;
        if (i == 1200)
            ck_assert_str_eq(redis_server_do(server, "FLUSHALL", NULL), "OK");
        usleep(300);
    }
    /* max_overshoot, a token each for an unknown key, and what a node may spend of a slice that Redis forgot */
    ck_assert_msg(allowed <= 1000 + 100 + 2, "%d allowed", allowed);
    ck_assert_int_ge(allowed, 900);
    node_close(&a);
    node_close(&b);
}
END_TEST

START_TEST(open_admits)
{
    struct weir_policy policy = slow_policy();
    struct weir_result result;
    unsigned accepted;

    policy.on_outage = WEIR_OUTAGE_OPEN;
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), node_calm());
    for (int i = 0; i < 10; i++) /* charged: none that a pause of the machine lets in */
        node_until(node_take(&a, "k", &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    settle(&a);
    redis_server_pause(server);
    accepted = liar_accepted(liar);
    node_until(liar_accepted(liar) > accepted); /* no answer of before is on its way any more */
    node_until(is_degraded(&a, "k"));
    ck_assert_int_eq(take_degraded(&a, "k", 500), 500);
    redis_server_resume(server);
    node_until(!is_degraded(&a, "k"));
    settle(&a);
    ck_assert_double_eq_tol(total_of("k"), 90, 0.1); /* uncharged */
    ck_assert_uint_ge(node_stats(&a).degraded, 500);
    node_close(&a);
}
END_TEST

START_TEST(closed_denies)
{
    struct weir_sync_options options = *node_calm();
    struct weir_policy policy = slow_policy();
    struct weir_result result;

    options.drain_ms = 100;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    spend(&a, "k", 10);
    settle(&a);
    redis_server_kill(server);
    until_degraded(&a, "k");
    ck_assert_int_eq(take_degraded(&a, "k", 50), 0);
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_DENY);
    ck_assert_uint_gt(result.retry_after_ns, 0);
    ck_assert_uint_lt(result.retry_after_ns, NODE_DAY);
    node_close(&a);
}
END_TEST

/* The share of two processes is half of it each. */
START_TEST(local_enforces_a_share)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = slow_policy();

    options.fleet_hint = 2;
    options.drain_ms = 100;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    redis_server_kill(server);
    until_degraded(&a, "new");
    ck_assert_int_eq(take_degraded(&a, "new", 200), 50);
    node_close(&a);
}
END_TEST

START_TEST(a_redis_that_is_down_at_first_is_told_later)
{
    struct weir_policy policy = slow_policy();

    redis_server_kill(server);
    node_open(&a, &policy);
    node_launch(&a, redis_server_uri(server), node_calm());
    ck_assert_int_eq(take_degraded(&a, "k", 30), 30);
    ck_assert_int_eq(node_stats(&a).store_up, 0);
    redis_server_restart(server);
    settle(&a);
    ck_assert_double_eq_tol(total_of("k"), 70, 0.1);
    node_until(!is_degraded(&a, "k"));
    spend(&a, "k", 10);
    settle(&a);
    node_close(&a);
    ck_assert_double_eq_tol(total_of("k"), 60, 0.1);
}
END_TEST

/* ---- who answers ------------------------------------------------------------------------------------------------- */

enum { WAITING = 6 };

static void *wait_once(void *arg)
{
    long *allowed = arg;

    *allowed = weir_take(a.w, a.id, "k", 1, 1, NULL) == WEIR_ALLOW;
    return NULL;
}

/* Redis accepts and says nothing. The time is over for those who wait in the same moment as for the loop that has
 * their queries: each take is answered by the outage policy once, by one of the two. */
START_TEST(who_waits_is_answered_once)
{
    struct weir_policy policy = slow_policy();
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_request request = {.key = "k", .key_len = 1, .cost = 1};

    policy.mode = WEIR_STRICT;
    options.timeout_ms = 4;
    options.drain_ms = 1;
    liar_deaf(liar, 1);
    for (int round = 0; round < 120; round++) {
        pthread_t threads[WAITING];
        long allowed[WAITING], sum = 0;

        node_open(&a, &policy);
        request.policy = a.id;
        node_launch(&a, liar_uri(liar), &options);
        node_pause(1);
        for (int i = 0; i < WAITING; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, wait_once, &allowed[i]), 0);
        sum += weir_take_wait(a.w, &request, 0, NULL) == WEIR_ALLOW;
        for (int i = 0; i < WAITING; i++) {
            pthread_join(threads[i], NULL);
            sum += allowed[i];
        }
        node_end(&a);
        liar_cut(liar); /* who is deaf never hears that they have gone */
        ck_assert_int_eq((long)node_stats(&a).allowed, sum);
        ck_assert_int_eq((long)node_stats(&a).degraded, WAITING + 1);
        node_close(&a);
    }
}
END_TEST

/* ---- no memory --------------------------------------------------------------------------------------------------- */

static _Atomic unsigned scarce; /* every third request for memory is refused */

static void *scarce_alloc(void *arg, size_t size)
{
    static _Atomic unsigned requests;

    (void)arg;
    if (atomic_load_explicit(&scarce, memory_order_relaxed) &&
        atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed) % 3 == 0)
        return NULL;
    return malloc(size);
}

static void scarce_release(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    free(memory);
}

START_TEST(no_memory_for_a_while_loses_nothing)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = node_policy(7000, NODE_DAY, 100000);
    uint64_t begun = uv_hrtime();
    struct weir_result result;
    long allowed = 0, doubtful = 0;
    double missing;

    memset(&a, 0, sizeof a);
    options.allocator.alloc = scarce_alloc;
    options.allocator.release = scarce_release;
    ck_assert_int_eq(weir_open(&a.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &a.id), 0);
    a.hybrid = 1;
    node_start(&a, redis_server_uri(server), node_calm());
    for (int i = 0; i < 3000; i++) {
        atomic_store_explicit(&scarce, i > 500 && i < 2500, memory_order_relaxed);
        allowed += node_take(&a, "k", &result) == WEIR_ALLOW;
        result.flags = 0;
        if (i % 100 == 0) { /* from memory, from Redis, or by what there is where it can't be asked */
            allowed += node_wait(&a, "k", 1, &result) == WEIR_ALLOW;
            doubtful += (result.flags & WEIR_DEGRADED) != 0; /* asked and not heard: charged twice */
        }
        usleep(200);
    }
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    missing = 100000 - total_of("k");
    ck_assert_msg(missing <= (double)(allowed + doubtful) && missing > (double)allowed - 2 - refill(begun, 7000),
                  "%ld admitted, of %ld in doubt, %f in Redis", allowed, doubtful, missing);
    node_close(&a);
}
END_TEST

/* ---- a loop that stands still ------------------------------------------------------------------------------------ */

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

static void on_end(void *arg, int status, uint64_t unsent)
{
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(unsent, 0);
    ++*(int *)arg;
}

START_TEST(a_loop_that_stands_still_ends_its_slices)
{
    struct weir_policy policy = node_policy(1000, NODE_SECOND, 1000);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    uv_timer_t host; /* a sync alone keeps no loop turning */
    int closed = 0, allowed = 0;
    uv_loop_t loop;

    options.uri = redis_server_uri(server);
    options.drain_ms = 10000;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    node_open(&a, &policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &host);
    uv_timer_start(&host, on_tick, 1000, 1000);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
    while (node_stats(&a).syncs < 64 || is_degraded(&a, "k")) {
        uv_run(&loop, UV_RUN_NOWAIT);
        node_pause(1);
    }
    for (int i = 0; i < 300 || is_degraded(&a, "k"); i++) { /* at the end it holds a slice, if but for a moment */
        ck_assert_int_lt(i, 5000);
        node_take(&a, "k", NULL);
        uv_run(&loop, UV_RUN_NOWAIT);
        usleep(500);
    }
    for (uint64_t end = uv_hrtime() + 5 * NODE_SECOND; uv_hrtime() < end; usleep(200)) /* nobody runs the loop */
        allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
    ck_assert_int_le(allowed, 1000); /* what a slice may hold and refill before its end; 5,000 were refilled in all */
    ck_assert(is_degraded(&a, "k") && is_degraded(&a, "another"));
    for (int i = 0; is_degraded(&a, "k"); i++) {
        ck_assert_int_lt(i, 1000);
        node_take(&a, "k", NULL);
        uv_run(&loop, UV_RUN_NOWAIT);
        node_pause(5);
    }
    uv_close((uv_handle_t *)&host, NULL);
    ck_assert_int_eq(weir_sync_close(a.sync, on_end, &closed), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    weir_close(a.w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("outage");
    TCase *cuts = tcase_create("cuts"), *refuse = tcase_create("refusals"), *death = tcase_create("death");

    tcase_add_checked_fixture(cuts, open_server, close_server);
    tcase_add_loop_test(cuts, what_is_pending_survives_a_cut, 0, 2);
    tcase_add_test(cuts, a_lost_reply_charges_once);
    tcase_add_test(cuts, a_lost_batch_charges_once);
    tcase_add_test(cuts, a_late_reply_charges_once);
    tcase_add_test(cuts, a_silent_server_charges_once);
    tcase_add_test(cuts, a_server_that_is_always_late_is_heard);
    tcase_add_test(cuts, garbage_keeps_the_usage);
    suite_add_tcase(s, cuts);
    tcase_add_checked_fixture(refuse, open_server, close_server);
    tcase_add_test(refuse, each_fault_counts_after_a_late_answer);
    tcase_add_loop_test(refuse, refusals_keep_the_usage, 0, sizeof refusals / sizeof refusals[0]);
    tcase_add_test(refuse, a_key_of_another_type_is_an_outage_of_its_shard);
    tcase_add_test(refuse, another_shard_count_is_an_error_not_another_limit);
    suite_add_tcase(s, refuse);
    tcase_add_checked_fixture(death, open_server, close_server);
    tcase_add_test(death, a_redis_that_comes_back_empty_gives_nothing_away);
    tcase_add_test(death, a_flushed_redis_gives_nothing_away);
    tcase_add_test(death, open_admits);
    tcase_add_test(death, closed_denies);
    tcase_add_test(death, local_enforces_a_share);
    tcase_add_test(death, a_redis_that_is_down_at_first_is_told_later);
    tcase_add_test(death, who_waits_is_answered_once);
    tcase_add_test(death, no_memory_for_a_while_loses_nothing);
    tcase_add_test(death, a_loop_that_stands_still_ends_its_slices);
    suite_add_tcase(s, death);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
