/* SPDX-License-Identifier: MIT */
/*
 * Reconciliation through the public API on a real redis-server: one limit for limiters in one process and in several,
 * each token told exactly once, flush, close, the caller's loop and a thread of its own.
 */
#include <check.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <uv.h>

#include "lib/limiter.h"
#include "lib/seam.h"
#include "script_client.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a, b, c;

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
    server = NULL;
}

/* ---- what Redis holds -------------------------------------------------------------------------------------------- */

/* T of a key of policy "p". */
static double total_of(const char *key)
{
    struct weir__wire_seen seen = script_client_look(server, "p", key);

    ck_assert_msg(seen.exists, "Redis knows nothing of %s", key);
    return seen.total;
}

/* No key of Redis lives for ever. */
static void check_mortal(void)
{
    char keys[64 * 1024], *at = NULL;

    snprintf(keys, sizeof keys, "%s", redis_server_do(server, "KEYS", "*", NULL));
    for (char *key = strtok_r(keys, "\n", &at); key; key = strtok_r(NULL, "\n", &at))
        ck_assert_msg(strtoll(redis_server_do(server, "PTTL", key, NULL), NULL, 10) > 0, "%s has no time to live", key);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- one limit --------------------------------------------------------------------------------------------------- */

/* Takes as fast as `pause_us` allows, for that long; how many were allowed. */
static long hammer(struct node *node, const char *key, double for_s, unsigned pause_us)
{
    double end = seconds() + for_s;
    long allowed = 0;

    while (seconds() < end) {
        allowed += node_take(node, key, NULL) == WEIR_ALLOW;
        if (pause_us)
            usleep(pause_us);
    }
    return allowed;
}

START_TEST(limiters_in_one_process_share_a_limit)
{
    struct weir_policy policy = node_policy(400, NODE_SECOND, 200);
    struct node *nodes[] = {&a, &b, &c};
    double begin, took;
    long allowed = 0;

    for (int i = 0; i < 3; i++) {
        node_open(nodes[i], &policy);
        node_start(nodes[i], redis_server_uri(server), NULL);
    }
    begin = seconds();
    while (seconds() < begin + 2)
        for (int i = 0; i < 3; i++) {
            allowed += node_take(nodes[i], "shared", NULL) == WEIR_ALLOW;
            usleep(300);
        }
    took = seconds() - begin;
    for (int i = 0; i < 3; i++)
        node_close(nodes[i]);
    /* max_overshoot is 10 %; a token a node for keys that nothing is known of; a round trip on a busy machine */
    ck_assert_msg(allowed <= 200 + 400 * (took + 0.02) + 20 + 3, "%ld allowed in %.3f s", allowed, took);
    ck_assert_msg(allowed >= 0.8 * 400 * took, "%ld allowed in %.3f s", allowed, took);
}
END_TEST

START_TEST(forked_processes_share_a_limit)
{
    struct weir_policy policy = node_policy(400, NODE_SECOND, 200);
    double begin = seconds(), took;
    long allowed = 0, one;
    int pipes[2];

    ck_assert_int_eq(pipe(pipes), 0);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            node_open(&a, &policy);
            node_start(&a, redis_server_uri(server), NULL);
            one = hammer(&a, "shared", 1.5, 300);
            node_close(&a);
            _exit(write(pipes[1], &one, sizeof one) != sizeof one);
        }
        ck_assert_int_gt(pid, 0);
    }
    for (int i = 0, status; i < 3; i++) {
        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
        ck_assert_int_eq(read(pipes[0], &one, sizeof one), sizeof one);
        allowed += one;
    }
    took = seconds() - begin;
    close(pipes[0]);
    close(pipes[1]);
    ck_assert_msg(allowed <= 200 + 400 * (took + 0.02) + 20 + 3, "%ld allowed in %.3f s", allowed, took);
    ck_assert_msg(allowed >= 0.8 * 400 * 1.5, "%ld allowed", allowed);
}
END_TEST

static void take_undegraded(struct node *node, int n)
{
    struct weir_result result;

    for (int i = 0; i < n; i++) {
        ck_assert_int_ge(node_take(node, "shared", &result), 0);
        ck_assert_uint_eq(result.flags & WEIR_DEGRADED, 0);
        usleep(300);
    }
}

/* As long as Redis answers, the outage policy has no say, be the limit used up or not. Both modes share one state: a
 * switch is no outage and lends nothing. */
START_TEST(without_an_outage_nothing_is_degraded)
{
    struct weir_policy policy = node_policy(400, NODE_SECOND, 200);
    struct node *nodes[] = {&a, &b, &c};

    policy.on_outage = WEIR_OUTAGE_OPEN; /* would lend much */
    for (int i = 0; i < 3; i++) {
        node_open(nodes[i], &policy);
        node_start(nodes[i], redis_server_uri(server), node_patient());
    }
    for (int turn = 0; turn < 60; turn++) {
        if (turn >= 30 && turn % 3 == 0) {
            policy.mode = policy.mode == WEIR_STRICT ? WEIR_HYBRID : WEIR_STRICT;
            for (int i = 0; i < 3; i++)
                ck_assert_int_eq(weir_policy_set(nodes[i]->w, nodes[i]->id, &policy), 0);
        }
        take_undegraded(nodes[turn % 3], 50);
    }
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(node_stats(nodes[i]).degraded, 0);
        ck_assert_uint_gt(node_stats(nodes[i]).strict, 0);
        node_close(nodes[i]);
    }
}
END_TEST

/* Case 39's neighbour: the limit holds over keys as well, none is taken for another. */
START_TEST(many_keys_at_once)
{
    struct weir_policy policy = node_policy(5, NODE_DAY, 5);
    char key[32];
    long allowed = 0;

    node_open(&a, &policy);
    node_open(&b, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    node_start(&b, redis_server_uri(server), node_patient());
    for (int i = 0; i < 200; i++) {
        int got = 0;

        snprintf(key, sizeof key, "key %d", i);
        for (int n = 0; n < 4; n++)
            got += node_wait_many(&a, key, 1) + node_wait_many(&b, key, 1);
        ck_assert_int_le(got, 5);
        allowed += got;
    }
    ck_assert_int_eq(allowed, 1000);
    node_close(&a);
    node_close(&b);
    check_mortal();
}
END_TEST

/* ---- exactly once ------------------------------------------------------------------------------------------------ */

START_TEST(a_stopped_redis_loses_no_token)
{
    struct weir_policy policy = node_policy(7000, NODE_DAY, 100000);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    long allowed = 0;

    options.interval_ms = 40;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    for (int round = 0; round < 4; round++) {
        allowed += hammer(&a, "k", 0.1, 100);
        redis_server_pause(server);
        allowed += hammer(&a, "k", 0.1, 100);
        redis_server_resume(server);
    }
    allowed += hammer(&a, "k", 0.2, 100);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_int_gt(allowed, 1000);
    ck_assert_msg(100000 - total_of("k") <= allowed && 100000 - total_of("k") > allowed - 2,
                  "%ld admitted, %f in Redis", allowed, 100000 - total_of("k"));
    node_close(&a);
}
END_TEST

/* Takes once from each of n keys. */
static void take_each(struct node *node, int n)
{
    char key[32];

    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof key, "user:%d", i);
        ck_assert_int_eq(node_take(node, key, NULL), WEIR_ALLOW);
    }
}

static unsigned reports_out(const struct node *node)
{
    unsigned out = 0;

    for (uint32_t slot = 0; slot < node->w->slots; slot++)
        out += weir__load_relaxed(&node->w->hot[slot].reported) != 0;
    return out;
}

static void on_told(void *arg, int status, uint64_t unsent)
{
    /* release: the test finds what came before */
    atomic_store_explicit((_Atomic int *)arg, status == 0 && unsent == 0 ? 1 : -1, memory_order_release);
}

/* A flush of 6,000 keys with Redis standing still: two batches are on their way, and the others' reports are not even
 * made. What is spent meanwhile is in them, once. */
START_TEST(reports_are_made_as_they_leave)
{
    enum { KEYS = 6000, AT_ONCE = 2 * 256 };
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_sync_options options = *node_patient();
    _Atomic int told = 0;
    unsigned out;

    options.interval_ms = 60000;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    take_each(&a, KEYS);
    ck_assert_uint_eq(node_flush(&a), 0);
    take_each(&a, KEYS);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_uint_eq(reports_out(&a), 0);
    redis_server_pause(server);
    take_each(&a, KEYS);
    ck_assert_int_eq(weir_sync_flush(a.sync, on_told, (void *)&told), 0);
    node_until(reports_out(&a) > 0);
    node_pause(100);
    out = reports_out(&a);
    ck_assert_msg(out <= AT_ONCE, "%u reports at once", out);
    ck_assert_uint_eq(weir__seam_unsent(a.w) + out, KEYS);
    take_each(&a, KEYS);
    ck_assert_int_eq(weir_take(a.w, a.id, "user:17", 7, 3, NULL), WEIR_ALLOW); /* the sync is woken for it */
    redis_server_resume(server);
    node_until(atomic_load_explicit(&told, memory_order_acquire));
    ck_assert_int_eq(told, 1);
    ck_assert_double_le(total_of("user:5999"), 97.1);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_double_eq_tol(total_of("user:0"), 96, 0.1);
    ck_assert_double_eq_tol(total_of("user:17"), 93, 0.1);
    ck_assert_double_eq_tol(total_of("user:3333"), 96, 0.1);
    ck_assert_double_eq_tol(total_of("user:5999"), 96, 0.1);
    ck_assert_uint_eq(node_end(&a), 0);
    node_close(&a);
}
END_TEST

/* A mark may be left over from a report that was urgent: it is no news, and no flush waits for the next interval
 * because of it. */
START_TEST(a_flush_does_not_wait_for_what_is_no_news)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_sync_options options = *node_patient();

    options.interval_ms = 60000;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 90, NULL), WEIR_DENY); /* more than is lent: asked for at once */
    node_until(!weir__seam_dirty(a.w) && reports_out(&a) == 0);
    ck_assert_double_eq_tol(total_of("k"), 99, 0.1);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_int_eq(a.status, 0); /* no time ran out */
    ck_assert_uint_eq(node_end(&a), 0);
    node_close(&a);
}
END_TEST

/* Redis stands still, and hasn't been given up: reports that are not made yet are pending all the same. */
START_TEST(what_is_due_is_pending)
{
    enum { KEYS = 2000 };
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_sync_options options = *node_patient();

    options.timeout_ms = 60000;
    options.drain_ms = NODE_WAIT_MS;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    take_each(&a, KEYS);
    ck_assert_uint_eq(node_flush(&a), 0);
    redis_server_pause(server);
    take_each(&a, KEYS);
    node_until(node_stats(&a).pending_tokens == KEYS);
    redis_server_resume(server);
    ck_assert_uint_eq(node_flush(&a), 0);
    node_until(node_stats(&a).pending_tokens == 0);
    ck_assert_uint_eq(node_end(&a), 0);
    node_close(&a);
}
END_TEST

/* Case 23: what was told is not told again. */
START_TEST(nothing_is_counted_twice)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_result result;

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW); /* from memory, the others from wherever */
        ck_assert_int_eq(node_wait_many(&a, "k", 9), 9);
        ck_assert_uint_eq(node_flush(&a), 0);
    }
    ck_assert_int_eq(node_wait(&a, "k", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_double_eq_tol(total_of("k"), 79, 0.01);
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 79);
    node_open(&b, &policy);
    node_start(&b, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait(&b, "k", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_flush(&b), 0);
    ck_assert_double_eq_tol(total_of("k"), 78, 0.01);
    node_close(&a);
    node_close(&b);
    ck_assert_double_eq_tol(total_of("k"), 78, 0.01);
}
END_TEST

START_TEST(denials_are_not_charged)
{
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 50), 10);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_double_eq_tol(total_of("k"), 0, 0.01);
    node_close(&a);
}
END_TEST

/* Case E10: between two ticks each process may lend, but all of them together no more than max_overshoot and a token
 * each; what was lent is repaid. */
START_TEST(what_is_lent_is_bounded)
{
    struct weir_policy policy = node_policy(60, NODE_DAY, 60);
    struct node *nodes[] = {&a, &b, &c};
    int allowed = 0;

    for (int i = 0; i < 3; i++) {
        node_open(nodes[i], &policy);
        node_start(nodes[i], redis_server_uri(server), node_patient());
    }
    for (int n = 0; n < 100; n++)
        for (int i = 0; i < 3; i++) {
            allowed += node_take(nodes[i], "k", NULL) == WEIR_ALLOW;
            usleep(n < 10 ? 0 : 1000);
        }
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(node_flush(nodes[i]), 0);
    ck_assert_msg(allowed >= 50 && allowed <= 60 + 6 + 3, "%d allowed", allowed);
    ck_assert_double_eq_tol(total_of("k"), 60 - allowed, 0.1);
    for (int i = 0; i < 3; i++)
        node_close(nodes[i]);
}
END_TEST

/* Case E4: what a tick earns is not rounded up to a token. */
START_TEST(a_slow_rate_is_not_rounded_up)
{
    struct weir_policy policy = node_policy(2, NODE_SECOND, 1);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    double begin, took;
    long allowed;

    options.interval_ms = 50;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    begin = seconds();
    allowed = hammer(&a, "k", 3, 10000);
    took = seconds() - begin;
    ck_assert_msg(allowed >= 5 && (double)allowed <= 1 + 2 * took + 1, "%ld allowed in %.3f s", allowed, took);
    node_close(&a);
}
END_TEST

/* Costs of a third and of 60 % of the burst, more than the overdraft bears, a third of a second apart, which is within
 * the rate: the slice that Redis grants after the first is there for those that follow. */
START_TEST(costs_of_many_tokens_find_a_slice)
{
    const uint64_t cost = _i ? 60 : 30;
    struct weir_policy policy = node_policy(cost * 10 / 3, NODE_SECOND, 100);
    int allowed = 0;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    for (int i = 0; i < 12; i++, usleep(330 * 1000))
        allowed += weir_take(a.w, a.id, "k", 1, (int64_t)cost, NULL) == WEIR_ALLOW;
    ck_assert_int_ge(allowed, 6); /* 11, where nothing is in the way */
    node_close(&a);
}
END_TEST

START_TEST(refunds_come_back_once)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 50), 50);
    ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 20), 0);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_double_eq_tol(total_of("k"), 70, 0.1);
    ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 1000), 0);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_double_eq_tol(total_of("k"), 100, 0.001);
    node_close(&a);
}
END_TEST

/* Give and spend again, by the same process and by another: a token that came back is spent once more, not twice. */
START_TEST(what_was_given_back_is_spent_again)
{
    enum { LENT = 10 }; /* a tenth of the burst */
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct node *nodes[] = {&a, &b};
    int allowed = 0, given = 0;

    for (int i = 0; i < 2; i++) {
        node_open(nodes[i], &policy);
        node_start(nodes[i], redis_server_uri(server), node_patient());
    }
    allowed += node_wait_many(&a, "k", 130);
    ck_assert_int_le(allowed, 100 + LENT);
    for (int round = 0; round < 6; round++) {
        struct node *giver = nodes[round % 2], *spender = nodes[round / 2 % 2];
        int back = 5 + 3 * round;

        ck_assert_int_eq(weir_give(giver->w, giver->id, "k", 1, back), 0);
        given += back;
        ck_assert_uint_eq(node_flush(giver), 0);
        allowed += node_wait_many(spender, "k", back + 20);
        ck_assert_int_le(allowed, 100 + LENT + given);
    }
    /* what one has in hand comes to the other, or is spent by itself, before long */
    for (int i = 0; i < 100 && allowed < 100 + given; i++) {
        node_pause(50);
        allowed += node_wait_many(nodes[i % 2], "k", 5);
    }
    ck_assert_int_ge(allowed, 100 + given - 2); /* a part of a token in each hand */
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_uint_eq(node_flush(&b), 0);
    ck_assert_double_eq_tol(total_of("k"), 100 + given - allowed, 0.1);
    for (int i = 0; i < 2; i++)
        node_close(nodes[i]);
}
END_TEST

/* Cases 18 and 20: no key without an end, no time to live that rounds to nothing. */
START_TEST(keys_in_redis_end)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy slow = node_policy(1, NODE_SECOND, 60), fast = node_policy(10000, NODE_SECOND, 1);
    weir_policy_id id;

    options.timeout_ms = 5000; /* an error would be Redis', not a busy machine's */
    fast.name = "fast";
    node_open(&a, &slow);
    ck_assert_int_eq(weir_policy_add(a.w, &fast, &id), 0);
    node_start(&a, redis_server_uri(server), &options);
    ck_assert_int_eq(node_wait_many(&a, "k", 30), 30);
    for (int i = 0; i < 200; i++) {
        weir_take(a.w, id, "k", 1, 1, NULL);
        usleep(200);
    }
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_uint_eq(node_stats(&a).sync_errors, 0);
    node_close(&a);
    check_mortal();
}
END_TEST

/* ---- many dirty keys --------------------------------------------------------------------------------------------- */

struct heart {
    uv_timer_t timer;
    double last, worst; /* CPU seconds of the loop's thread between two beats */
};

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void on_beat(uv_timer_t *timer)
{
    struct heart *heart = timer->data;
    double now = cpu_seconds();

    if (now - heart->last > heart->worst)
        heart->worst = now - heart->last;
    heart->last = now;
}

static void on_set(void *arg, int status, uint64_t unsent)
{
    ck_assert_int_eq(status, 0);
    ck_assert_uint_eq(unsent, 0);
    ++*(int *)arg;
}

static void on_nothing(uv_timer_t *timer)
{
    (void)timer;
}

static void on_any_end(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    ++*(int *)arg;
}

enum { FIFTY = 50 };

static unsigned long all_syncs(struct node nodes[FIFTY])
{
    unsigned long least = ULONG_MAX;

    for (int i = 0; i < FIFTY; i++) {
        unsigned long syncs = (unsigned long)node_stats(&nodes[i]).syncs;

        least = syncs < least ? syncs : least;
    }
    return least;
}

/* Takes of each node in turn; how many are allowed. */
static int take_of_each(struct node nodes[FIFTY], const char *key, int times)
{
    int allowed = 0;

    for (int n = 0; n < times; n++)
        for (int i = 0; i < FIFTY; i++)
            allowed += node_take(&nodes[i], key, NULL) == WEIR_ALLOW;
    return allowed;
}

/* Whoever says of a fleet that it is one gets what the fleet can bear: the first answers tell how many there are. All
 * of them are on one loop, the test's. */
START_TEST(fifty_nodes_with_a_hint_of_one)
{
    static struct node nodes[FIFTY];
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);
    int allowed, ended = 0, flushed = 0;
    struct weir_result result = {0};
    uv_timer_t beat;
    uv_loop_t loop;

    options.uri = redis_server_uri(server);
    options.fleet_hint = 1;
    options.shards = 1;
    options.timeout_ms = 500; /* fifty nodes on a busy machine are no outage */
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &beat);
    uv_timer_start(&beat, on_nothing, 1, 1);
    for (int i = 0; i < FIFTY; i++) {
        node_open(&nodes[i], &policy);
        ck_assert_int_eq(weir_sync_start(&nodes[i].sync, nodes[i].w, &loop, &options), 0);
    }
    while (all_syncs(nodes) < 3)
        uv_run(&loop, UV_RUN_ONCE);
    allowed = take_of_each(nodes, "k", 30);
    for (int i = 0; i < FIFTY; i++)
        ck_assert_int_eq(weir_sync_flush(nodes[i].sync, on_set, &flushed), 0);
    while (flushed < FIFTY)
        uv_run(&loop, UV_RUN_ONCE);
    allowed += take_of_each(nodes, "k", 60);
    ck_assert_msg(allowed <= 1000 + 100 + FIFTY, "%d allowed", allowed);
    /* nobody runs the loop, and nobody has heard of this key: all of them together have one bucket of it */
    for (int i = 0; i < FIFTY; i++)
        for (result.flags = 0; !(result.flags & WEIR_DEGRADED); node_pause(5))
            node_take(&nodes[i], "another", &result);
    allowed = take_of_each(nodes, "unheard of", 100);
    ck_assert_msg(allowed >= 900 && allowed <= 1000, "%d allowed", allowed);
    for (int i = 0; i < FIFTY; i++)
        ck_assert_int_eq(weir_sync_close(nodes[i].sync, on_any_end, &ended), 0);
    while (ended < FIFTY)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&beat, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    for (int i = 0; i < FIFTY; i++)
        weir_close(nodes[i].w);
}
END_TEST

/* Case E2. What the loop's thread computes between two beats is measured, not what a busy machine makes of it. */
START_TEST(twenty_thousand_dirty_keys_do_not_hold_the_loop)
{
    struct weir_policy policy = node_policy(3, NODE_DAY, 3);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct heart heart = {.last = cpu_seconds()};
    int flushed = 0, closed = 0;
    uv_loop_t loop;
    char key[32];

    options.uri = redis_server_uri(server);
    options.timeout_ms = 1000;
    options.drain_ms = 20000;
    node_open(&a, &policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &heart.timer);
    heart.timer.data = &heart;
    uv_timer_start(&heart.timer, on_beat, 0, 1);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
    while (node_stats(&a).syncs < 64)
        uv_run(&loop, UV_RUN_ONCE);
    for (int i = 0; i < 20000; i++) {
        int length = snprintf(key, sizeof key, "user:%d", i);

        ck_assert_int_eq(weir_take(a.w, a.id, key, (size_t)length, 1, NULL), WEIR_ALLOW);
    }
    heart.last = cpu_seconds();
    heart.worst = 0;
    ck_assert_int_eq(weir_sync_flush(a.sync, on_set, &flushed), 0);
    while (!flushed)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_msg(heart.worst < 0.05, "the loop was held for %.3f s", heart.worst);
    ck_assert_double_eq_tol(total_of("user:0"), 2, 0.01);
    ck_assert_double_eq_tol(total_of("user:7777"), 2, 0.01);
    ck_assert_double_eq_tol(total_of("user:19999"), 2, 0.01);
    uv_close((uv_handle_t *)&heart.timer, NULL);
    ck_assert_int_eq(weir_sync_close(a.sync, on_set, &closed), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    weir_close(a.w);
}
END_TEST

static void on_end(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    *(int *)arg = 1;
}

/* More keys hold slices than reports may be on their way, and each is due again before Redis has heard of the last: one
 * that was asked for once, and holds none, has its turn all the same. */
START_TEST(slices_do_not_keep_others_from_reporting)
{
    enum { HELD = 40000, ASK_MS = 100, OUT_AT_ONCE = 32768 };
    struct weir_policy policy = node_policy(1000, NODE_SECOND, 2000);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    double begin, asked = 0, pause = 0, quiet = 0, told = 0;
    uint64_t reports = 0;
    int closed = 0;
    uv_loop_t loop;
    uv_timer_t beat;
    struct heart heart = {.last = cpu_seconds()};
    char key[32];

    options.uri = redis_server_uri(server);
    options.timeout_ms = 5000;
    options.interval_ms = 100;
    options.drain_ms = 1;
    node_open(&a, &policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    uv_timer_init(&loop, &beat);
    beat.data = &heart;
    uv_timer_start(&beat, on_beat, 0, 1);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
    while (node_stats(&a).syncs < 64)
        uv_run(&loop, UV_RUN_ONCE);
    begin = seconds();
    while (!told && seconds() < begin + 90 && (!quiet || node_stats(&a).reports < reports + 4 * OUT_AT_ONCE)) {
        if (seconds() > asked + pause) {
            double from = seconds();

            for (int i = 0; i < HELD; i++) {
                int length = snprintf(key, sizeof key, "hot:%d", i);

                for (int j = 0; j < 20; j++)
                    weir_take(a.w, a.id, key, (size_t)length, 1, NULL);
            }
            asked = seconds();
            /* the loop of a slow build has its time, too */
            pause = asked - from > ASK_MS / 1e3 ? asked - from : ASK_MS / 1e3;
        }
        uv_run(&loop, UV_RUN_ONCE);
        if (!quiet && seconds() > begin + 2) {
            ck_assert_int_eq(node_take(&a, "quiet", NULL), WEIR_ALLOW);
            quiet = seconds();
            reports = node_stats(&a).reports;
        }
        if (quiet && script_client_look(server, "p", "quiet").exists)
            told = seconds() - quiet;
    }
    reports = node_stats(&a).reports - reports;
    ck_assert_msg(told > 0 && reports <= 2 * OUT_AT_ONCE, "told after %.3f s (0: never) and %llu other reports", told,
                  (unsigned long long)reports);
    uv_close((uv_handle_t *)&beat, NULL);
    ck_assert_int_eq(weir_sync_close(a.sync, on_end, &closed), 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    weir_close(a.w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sync");
    TCase *limit = tcase_create("one limit"), *once = tcase_create("exactly once");

    tcase_add_checked_fixture(limit, open_server, close_server);
    tcase_add_test(limit, limiters_in_one_process_share_a_limit);
    tcase_add_test(limit, forked_processes_share_a_limit);
    tcase_add_test(limit, without_an_outage_nothing_is_degraded);
    tcase_add_test(limit, many_keys_at_once);
    suite_add_tcase(s, limit);
    tcase_set_timeout(once, 120); /* a sanitizer takes its time over 40,000 slices */
    tcase_add_checked_fixture(once, open_server, close_server);
    tcase_add_test(once, a_stopped_redis_loses_no_token);
    tcase_add_test(once, reports_are_made_as_they_leave);
    tcase_add_test(once, a_flush_does_not_wait_for_what_is_no_news);
    tcase_add_test(once, what_is_due_is_pending);
    tcase_add_test(once, nothing_is_counted_twice);
    tcase_add_test(once, slices_do_not_keep_others_from_reporting);
    tcase_add_test(once, denials_are_not_charged);
    tcase_add_test(once, what_is_lent_is_bounded);
    tcase_add_test(once, fifty_nodes_with_a_hint_of_one);
    tcase_add_test(once, a_slow_rate_is_not_rounded_up);
    tcase_add_loop_test(once, costs_of_many_tokens_find_a_slice, 0, 2);
    tcase_add_test(once, refunds_come_back_once);
    tcase_add_test(once, what_was_given_back_is_spent_again);
    tcase_add_test(once, keys_in_redis_end);
    tcase_add_test(once, twenty_thousand_dirty_keys_do_not_hold_the_loop);
    suite_add_tcase(s, once);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
