/* SPDX-License-Identifier: MIT */
/*
 * Reconciliation through the public API on a real redis-server: one limit for limiters in one process and in several,
 * each token told exactly once, flush, close, the caller's loop and a thread of its own.
 */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

#include "lib/limiter.h"
#include "lib/seam.h"
#include "script_client.h"
#include "support/exposition.h"
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
    return script_client_total(server, "p", key);
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
    return (double)uv_hrtime() / 1e9;
}

/* ---- one limit --------------------------------------------------------------------------------------------------- */

static long asked; /* of takes by the two below */

static int ask(struct node *node, const char *key)
{
    asked++;
    return node_take(node, key, NULL) == WEIR_ALLOW;
}

/* Takes as fast as `pause_us` allows, for that long; how many were allowed. */
static long hammer(struct node *node, const char *key, double for_s, unsigned pause_us)
{
    double end = seconds() + for_s;
    long allowed = 0;

    while (seconds() < end) {
        allowed += ask(node, key);
        if (pause_us)
            usleep(pause_us);
    }
    return allowed;
}

/* How long a node's reports have been on their way, s. */
static double waited(struct node *node)
{
    static char text[64 * 1024];

    ck_assert_uint_eq(node_flush(node), 0); /* none is now */
    ck_assert_uint_gt(weir_metrics_write(node->w, text, sizeof text), 0);
    return exposition_value(text, "weir_sync_duration_seconds_sum");
}

/* What nodes that share 400/s and a burst of 200 may allow: max_overshoot, which is 10 %; a token each for keys that
 * nothing is known of; and while a report is on its way its sender knows nothing of what changed. */
static void check_shared(long allowed, double took, double on_their_way)
{
    ck_assert_msg(allowed <= 200 + 400 * (took + on_their_way) + 20 + 3, "%ld allowed in %.3f s, %.3f on their way",
                  allowed, took, on_their_way);
}

/* Less than they must, as far as they were asked. Where all stands still it is less, but not time and again. */
static int is_short(long allowed, double took)
{
    return (double)allowed < 0.8 * fmin(400 * took, (double)asked);
}

START_TEST(limiters_in_one_process_share_a_limit)
{
    struct weir_policy policy = node_policy(400, NODE_SECOND, 200);
    struct node *nodes[] = {&a, &b, &c};
    double begin, took = 0, before = 0, after = 0;
    long allowed = 0;

    for (int i = 0; i < 3; i++) {
        node_open(nodes[i], &policy);
        node_start(nodes[i], redis_server_uri(server), node_patient());
        before += waited(nodes[i]);
    }
    begin = seconds();
    while (took < 2 || (is_short(allowed, took) && took < 20)) {
        for (int i = 0; i < 3; i++) {
            allowed += ask(nodes[i], "shared");
            usleep(300);
        }
        took = seconds() - begin;
    }
    for (int i = 0; i < 3; i++)
        after += waited(nodes[i]);
    check_shared(allowed, took, after - before);
    ck_assert_msg(!is_short(allowed, took), "%ld of %ld allowed in %.3f s", allowed, asked, took);
    for (int i = 0; i < 3; i++)
        node_close(nodes[i]);
}
END_TEST

/* Three processes and a second and a half. Returns 0 where they allowed what they must. */
static int fork_and_share(const char *key)
{
    struct weir_policy policy = node_policy(400, NODE_SECOND, 200);
    struct {
        long asked, allowed;
        double waited;
    } one = {0}, all = {0};
    double begin = seconds();
    int pipes[2];

    asked = 0;
    ck_assert_int_eq(pipe(pipes), 0);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            node_open(&a, &policy);
            node_start(&a, redis_server_uri(server), node_patient());
            one.allowed = hammer(&a, key, 1.5, 300);
            one.asked = asked;
            one.waited = waited(&a);
            node_close(&a);
            _exit(write(pipes[1], &one, sizeof one) != sizeof one);
        }
        ck_assert_int_gt(pid, 0);
    }
    for (int i = 0, status; i < 3; i++) {
        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
        ck_assert_int_eq(read(pipes[0], &one, sizeof one), sizeof one);
        all.allowed += one.allowed;
        all.asked += one.asked;
        all.waited += one.waited;
    }
    close(pipes[0]);
    close(pipes[1]);
    asked = all.asked;
    check_shared(all.allowed, seconds() - begin, all.waited);
    return is_short(all.allowed, 1.5);
}

START_TEST(forked_processes_share_a_limit)
{
    static const char *const keys[] = {"one", "two", "three", "four"};
    int tries = 0;

    while (fork_and_share(keys[tries]))
        ck_assert_int_lt(++tries, 4);
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

/* The same where nobody asked anything for longer than an answer is good for. */
START_TEST(a_switch_after_a_while_is_no_outage)
{
    struct weir_policy policy = node_policy(400, NODE_SECOND, 200);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    options.timeout_ms = 500; /* good for 1.3 s */
    policy.mode = WEIR_STRICT;
    policy.on_outage = WEIR_OUTAGE_OPEN;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    ck_assert_int_eq(node_take(&a, "shared", NULL), WEIR_ALLOW);
    node_pause(3000);
    policy.mode = WEIR_HYBRID;
    ck_assert_int_eq(weir_policy_set(a.w, a.id, &policy), 0);
    take_undegraded(&a, 1);
    node_close(&a);
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
    double begin = seconds(), spent;
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
    ck_assert_int_gt(allowed, 100);
    spent = 100000 - total_of("k");
    ck_assert_double_le(spent, (double)allowed);
    ck_assert_double_gt(spent, (double)allowed - 7000.0 / 86400 * (seconds() - begin) - 0.5);
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
    do { /* until none is being made */
        out = reports_out(&a);
        node_pause(100);
    } while (reports_out(&a) != out || weir__seam_unsent(a.w) + out != KEYS);
    ck_assert_msg(out <= AT_ONCE, "%u reports at once", out);
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
    node_until(script_client_look(server, "p", "k").exists);             /* its report is out, or was */
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
    ck_assert_double_eq_tol(total_of("k"), 79, 0.5);
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 79);
    node_open(&b, &policy);
    node_start(&b, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait(&b, "k", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_flush(&b), 0);
    ck_assert_double_eq_tol(total_of("k"), 78, 0.5);
    node_close(&a);
    node_close(&b);
    ck_assert_double_eq_tol(total_of("k"), 78, 0.5);
}
END_TEST

START_TEST(denials_are_not_charged)
{
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 50), 10);
    ck_assert_uint_eq(node_flush(&a), 0);
    ck_assert_double_eq_tol(total_of("k"), 0, 0.5);
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
    for (int n = 0; n < 100 || (allowed < 50 && n < 5000); n++) /* longer, where Redis stands still */
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

/* Takes for three seconds. Returns how many more a bucket of 2/s and a burst of one would have allowed. */
static int missed_in_a_while(int *allowed)
{
    double begin = seconds(), now, level = 0, at = begin;
    int missed = 0, ok;

    while ((now = seconds()) < begin + 3) {
        level = fmin(1, level + 2 * (now - at));
        at = now;
        if (level >= 1) {
            level -= 1;
            missed++;
        }
        ok = ask(&a, "k");
        *allowed += ok;
        missed -= ok;
        usleep(10000);
    }
    return missed;
}

/* Case E4: what a tick earns is not rounded up to a token; nor is it lost, but where all stands still. */
START_TEST(a_slow_rate_is_not_rounded_up)
{
    struct weir_policy policy = node_policy(2, NODE_SECOND, 1);
    struct weir_sync_options options = *node_patient();
    int allowed = 0, tries = 0;
    double begin, took;

    options.interval_ms = 50;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    begin = seconds();
    while (missed_in_a_while(&allowed) > 1)
        ck_assert_int_lt(++tries, 5);
    took = seconds() - begin;
    ck_assert_msg((double)allowed <= 1 + 2 * took + 1, "%d allowed in %.3f s", allowed, took);
    node_close(&a);
}
END_TEST

static int allowed_of_twelve(int64_t cost)
{
    int allowed = 0;

    for (int i = 0; i < 12; i++, usleep(330 * 1000))
        allowed += weir_take(a.w, a.id, "k", 1, cost, NULL) == WEIR_ALLOW;
    return allowed;
}

/* Costs of a third and of 60 % of the burst, more than the overdraft bears, a third of a second apart, which is within
 * the rate: the slice that Redis grants after the first is there for those that follow. It is late each time on a
 * machine that stands still, which it does not for ever. */
START_TEST(costs_of_many_tokens_find_a_slice)
{
    const uint64_t cost = _i ? 60 : 30;
    struct weir_policy policy = node_policy(cost * 10 / 3, NODE_SECOND, 100);
    int allowed = 0;

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    for (int i = 0; i < 4 && allowed < 6; i++)
        allowed = allowed_of_twelve((int64_t)cost);
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

static Suite *suite(void)
{
    Suite *s = suite_create("sync");
    TCase *limit = tcase_create("one limit"), *once = tcase_create("exactly once");

    tcase_add_checked_fixture(limit, open_server, close_server);
    tcase_add_test(limit, limiters_in_one_process_share_a_limit);
    tcase_add_test(limit, forked_processes_share_a_limit);
    tcase_add_test(limit, without_an_outage_nothing_is_degraded);
    tcase_add_test(limit, a_switch_after_a_while_is_no_outage);
    tcase_add_test(limit, many_keys_at_once);
    suite_add_tcase(s, limit);
    tcase_add_checked_fixture(once, open_server, close_server);
    tcase_add_test(once, a_stopped_redis_loses_no_token);
    tcase_add_test(once, reports_are_made_as_they_leave);
    tcase_add_test(once, a_flush_does_not_wait_for_what_is_no_news);
    tcase_add_test(once, what_is_due_is_pending);
    tcase_add_test(once, nothing_is_counted_twice);
    tcase_add_test(once, denials_are_not_charged);
    tcase_add_test(once, what_is_lent_is_bounded);
    tcase_add_test(once, a_slow_rate_is_not_rounded_up);
    tcase_add_loop_test(once, costs_of_many_tokens_find_a_slice, 0, 2);
    tcase_add_test(once, refunds_come_back_once);
    tcase_add_test(once, what_was_given_back_is_spent_again);
    tcase_add_test(once, keys_in_redis_end);
    suite_add_tcase(s, once);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
