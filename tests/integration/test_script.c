/* SPDX-License-Identifier: MIT */
/*
 * The reconcile script on a real redis-server, at times that the test says: exactly once, what is lost and found again,
 * generations, clocks, numbers that change, odd input. Slices are test_script_slices.c's, strict mode is
 * test_script_strict.c's, whole fleets are test_script_fleet.c's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script_node.h"

/* ---- exactly once ------------------------------------------------------------------------------------------------ */

START_TEST(a_batch_charges_once)
{
    NEAR(spend(&alice, "k", 5), 12);
    NEAR(spend(&bob, "k", 2), 10);
    NEAR(spend(&alice, "k", 0), 10);
    NEAR(spend(&alice, "new", 0), 17);
    ck_assert_int_eq(peek("new").exists, 0); /* nothing spent: nothing kept */
    NEAR(peek("k").total, 10);
}
END_TEST

/* The same bytes again: the same answer, bit for bit, and nothing applied; whatever happened in between. */
START_TEST(a_repeat_gets_the_same_answer)
{
    set_rate(100, SECOND, 100, 20);
    report(&alice, "k", 0, 0, 0, 50, 20);
    struct weir__wire_wait wait = {.cost = 3, .count = 2};
    alice.records[0] = spent_of("k", 4);
    alice.records[0].slice = 1;
    alice.records[0].level = 16;
    alice.records[0].demand = 50;
    alice.records[0].want = 20;
    alice.records[0].waits = &wait;
    alice.records[0].n_waits = 1;
    alice.records[1] = spent_of("other", 3);
    send_records(&alice, 2);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_APPLIED);
    ck_assert_uint_eq(wait.admitted, 2);
    struct weir__wire_grant first[2] = {alice.grants[0], alice.grants[1]};
    for (int i = 0; i < 3; i++) {
        now += i == 2 ? 25 : 0.05; /* past the life of its slice and two generations, too */
        spend(&bob, "k", 1);
        double before = peek("k").total;
        wait.admitted = 0;
        memset(alice.grants, 0, sizeof alice.grants);
        ck_assert_int_eq(resend(&alice), 0);
        ck_assert_int_eq(alice.head.status, WEIR__WIRE_REPEAT);
        ck_assert_mem_eq(alice.grants, first, sizeof first);
        ck_assert_uint_eq(wait.admitted, 2);
        NEAR(peek("k").total, before);
    }
}
END_TEST

START_TEST(a_delayed_copy_is_old)
{
    struct weir__wire_batch first;
    struct weir__wire_record record;
    spend(&alice, "k", 1);
    first = alice.batch;
    record = alice.records[0];
    first.records = &record;
    spend(&alice, "k", 2);
    first.test_now = now;
    ck_assert_int_eq(script_client_sync(&client, &first, &alice.head, alice.grants), 0);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_OLD);
    NEAR(peek("k").total, 14);
}
END_TEST

START_TEST(an_unknown_node_is_sent_back)
{
    spend(&bob, "k", 1);
    alice.hello = 0;
    alice.epoch = bob.epoch;
    alice.seq = 41;
    alice.records[0] = spent_of("k", 5);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    NEAR(peek("k").total, 16);
    NEAR(spend(&alice, "k", 5), 11); /* hello, with the epoch that the refusal named */
    ck_assert_double_eq(alice.head.recovering, 0);
}
END_TEST

/* Redis went back to an older state of itself: a node's numbers have a gap. Nobody's word of before counts any more. */
START_TEST(a_gap_applies_nothing_and_starts_an_epoch)
{
    spend(&alice, "k", 1);
    spend(&bob, "k", 1);
    double epoch = alice.epoch;
    alice.seq++;
    alice.records[0] = spent_of("k", 5);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    ck_assert_double_ne(alice.epoch, epoch);
    NEAR(peek("k").total, 15);
    bob.records[0] = spent_of("k", 2);
    send_records(&bob, 1);
    ck_assert_int_eq(bob.head.status, WEIR__WIRE_LOST);
    ck_assert_double_eq(bob.epoch, alice.epoch);
    NEAR(spend(&alice, "k", 5), 10);
    ck_assert_double_gt(alice.head.recovering, 0);
    NEAR(spend(&bob, "k", 2), 8);
}
END_TEST

/* A node silent for ten minutes is forgotten; hello brings it back without an epoch. */
START_TEST(a_silent_node_is_forgotten)
{
    spend(&alice, "k", 1);
    for (int i = 0; i < 70; i++) {
        now += 10;
        spend(&bob, "k", 0);
    }
    NEAR(bob.head.nodes, 1);
    alice.records[0] = spent_of("k", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    spend(&alice, "k", 1);
    ck_assert_double_eq(alice.head.recovering, 0);
    NEAR(alice.head.nodes, 2);
}
END_TEST

/* ---- lost state -------------------------------------------------------------------------------------------------- */

static void seed(struct node *node, double total)
{
    node->records[0].known = 1;
    node->records[0].seed = total;
}

/* Two nodes tell what they saw and what they spent since: the result does not depend on who comes first, or on whether
 * the one who saw more comes last. */
START_TEST(the_least_seen_counts)
{
    for (int order = 0; order < 2; order++) {
        drop('a');
        drop('b');
        drop('n');
        node_init(&alice, 'A');
        node_init(&bob, 'B');
        spend(&alice, "k", 3); /* alice last saw 14 */
        spend(&bob, "k", 5);   /* bob last saw 9 */
        drop('a');
        drop('b');
        drop('n');
        struct node *nodes[] = {order ? &bob : &alice, order ? &alice : &bob};
        for (int i = 0; i < 2; i++) {
            nodes[i]->records[0] = spent_of("k", 1);
            send_records(nodes[i], 1);
            ck_assert_int_eq(nodes[i]->head.status, WEIR__WIRE_LOST);
            nodes[i]->records[0] = spent_of("k", 1);
            seed(nodes[i], nodes[i] == &alice ? 14 : 9);
            send_records(nodes[i], 1);
            ck_assert_int_eq(nodes[i]->head.status, WEIR__WIRE_APPLIED);
            ck_assert_double_gt(nodes[i]->head.recovering, 0);
        }
        NEAR(peek("k").total, 9 - 2);
        now += 1;
        NEAR(spend(&alice, "k", 0), 7);
    }
}
END_TEST

/* A server that was a moment behind takes over: what it holds is as it was then. */
static void keep_state(void)
{
    redis_server_do(server, "EVAL",
                    "for i = 1, 3 do local d = redis.call('DUMP', KEYS[i]) redis.call('HSET', KEYS[4], i, d or '') end",
                    "4", "t:{p#0}:a", "t:{p#0}:b", "t:{p#0}:n", "t:{p#0}:kept", NULL);
}

static void restore_state(void)
{
    redis_server_do(server, "EVAL",
                    "for i = 1, 3 do local d = redis.call('HGET', KEYS[4], i) redis.call('DEL', KEYS[i]) if d ~= '' "
                    "then redis.call('RESTORE', KEYS[i], 100000, d) end end redis.call('DEL', KEYS[4])",
                    "4", "t:{p#0}:a", "t:{p#0}:b", "t:{p#0}:n", "t:{p#0}:kept", NULL);
}

START_TEST(a_failover_to_an_older_state)
{
    client.twice = 0; /* what is done here is done to one shard */
    spend(&alice, "k", 1);
    spend(&bob, "k", 1);
    keep_state();
    spend(&alice, "k", 4); /* the replica never heard of this one: 11 */
    double epoch = alice.epoch;
    restore_state();
    NEAR(peek("k").total, 15);
    alice.records[0] = spent_of("k", 2);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    ck_assert_double_ne(alice.epoch, epoch);
    alice.records[0] = spent_of("k", 2);
    seed(&alice, 11);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_APPLIED);
    NEAR(alice.grants[0].total, 9);
    ck_assert_double_gt(alice.head.recovering, 0);
    bob.records[0] = spent_of("k", 1); /* it saw more, and comes later */
    send_records(&bob, 1);
    ck_assert_int_eq(bob.head.status, WEIR__WIRE_LOST);
    bob.records[0] = spent_of("k", 1);
    seed(&bob, 15);
    send_records(&bob, 1);
    NEAR(bob.grants[0].total, 8);
}
END_TEST

/* While state is gathered a node keeps what it holds; nothing new is granted, nothing that waits is admitted. */
START_TEST(nothing_is_granted_while_state_is_gathered)
{
    set_rate(100, SECOND, 100, 20);
    report(&alice, "k", 0, 0, 0, 200, 40);
    double level = alice.grants[0].level, in_force = alice.grants[0].rate;
    ck_assert_double_gt(level, 30);
    drop('a');
    drop('n');
    report(&alice, "k", 0, level, in_force, 200, 40);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    struct weir__wire_wait wait = {.cost = 1, .count = 1};
    alice.records[0].known = 1;
    alice.records[0].seed = 100;
    alice.records[0].waits = &wait;
    alice.records[0].n_waits = 1;
    alice.records[0].level = 5;
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_APPLIED);
    ck_assert_uint_eq(wait.admitted, 0);
    NEAR(alice.grants[0].level, 5);
    ck_assert_double_le(alice.grants[0].rate, in_force);
    ck_assert_double_ge(alice.grants[0].hold, alice.head.recovering - 1e-9);
    NEAR(peek("k").reserved, 5);
    bob.records[0] = spent_of("x", 0);
    bob.records[0].waits = &wait;
    bob.records[0].n_waits = 1;
    send_records(&bob, 1);
    ck_assert_uint_eq(wait.admitted, 0);
    now += 0.41;
    report(&alice, "k", 0, 5, 0, 200, 40);
    ck_assert_double_eq(alice.head.recovering, 0);
    ck_assert_double_gt(alice.grants[0].level, 20);
}
END_TEST

/* What was charged long before the loss is in what was seen: it does not count again. */
START_TEST(registering_charges_nothing_twice)
{
    report(&alice, "k", 6, 0, 0, 50, 3);
    now += 0.1;
    report(&alice, "k", 2, 1, 0, 50, 3);
    NEAR(alice.grants[0].total, 9);
    now += 1;
    drop('n');
    report(&alice, "k", 0, 0, 0, 50, 3);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    alice.records[0].known = 1;
    alice.records[0].seed = 9;
    send_records(&alice, 1);
    NEAR(alice.grants[0].total, 9);
}
END_TEST

/* One generation is evicted, or the header alone: both are noticed, and what is left is kept. */
START_TEST(partial_loss_is_noticed)
{
    spend(&alice, "k", 5);
    drop('a');
    alice.records[0] = spent_of("k", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    alice.records[0] = spent_of("k", 1);
    seed(&alice, 12);
    send_records(&alice, 1);
    NEAR(alice.grants[0].total, 11);
    now += 1;
    drop('n');
    alice.records[0] = spent_of("k", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    NEAR(spend(&alice, "k", 1), 10);
    ck_assert_double_gt(alice.head.recovering, 0);
}
END_TEST

/* Half of the life of a generation lies in the older hash: its loss is a loss, too. */
START_TEST(loss_of_the_older_generation_is_noticed)
{
    set_rate(1, SECOND, 3, 1);
    spend(&alice, "k", 3);
    now += 11;
    spend(&alice, "other", 1);
    ck_assert_int_eq(script_client_do(&client, "EXISTS", &target, 'a', NULL, NULL), 1);
    ck_assert_int_eq(script_client_do(&client, "EXISTS", &target, 'b', NULL, NULL), 1);
    drop('a');
    alice.records[0] = spent_of("third", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
}
END_TEST

/* A fresh fleet is no loss: the first node is served at once. */
START_TEST(a_first_node_is_served_at_once)
{
    set_rate(100, SECOND, 100, 20);
    report(&alice, "k", 0, 0, 0, 200, 40);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_APPLIED);
    ck_assert_double_eq(alice.head.recovering, 0);
    NEAR(alice.grants[0].level, 40);
    NEAR(alice.head.q0, 15);
    NEAR(alice.head.pool, 5);
}
END_TEST

/* ---- who is served ----------------------------------------------------------------------------------------------- */

START_TEST(a_mismatch_is_refused)
{
    client.twice = 0; /* what is done here is done to one shard */
    spend(&alice, "k", 1);
    target.shards = 8;
    alice.records[0] = spent_of("k", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_MISMATCH);
    ck_assert_uint_eq(alice.head.shards, 4);
    target.shards = 4;
    NEAR(peek("k").total, 16);
    /* A header of another format, the one before or the next, whatever follows. */
    for (uint32_t format = WEIR__WIRE_FORMAT - 1; format <= WEIR__WIRE_FORMAT + 1; format += 2) {
        char text[8];
        snprintf(text, sizeof text, "%u", (unsigned)format);
        redis_server_do(server, "EVAL", "redis.call('HSET', KEYS[1], '!', struct.pack('<d', ARGV[1]) .. 'more')", "1",
                        "t:{p#0}:n", text, NULL);
        send_records(&alice, 1);
        ck_assert_int_eq(alice.head.status, WEIR__WIRE_MISMATCH);
        ck_assert_uint_eq(alice.head.format, format);
    }
}
END_TEST

START_TEST(promises_never_exceed_their_reserve)
{
    struct node nodes[12];
    double promised[12] = {0};
    set_rate(100, SECOND, 100, 20); /* three quarters of 20 */
    for (int i = 0; i < 12; i++) {
        node_init(&nodes[i], (char)('a' + i));
    }
    for (int round = 0; round < 40; round++) {
        int live = round < 12 ? round + 1 : round < 20 ? 12 : 3;
        for (int i = 0; i < live; i++) {
            now += round < 20 ? 0.02 : 1;
            spend(&nodes[i], "k", 0);
            promised[i] = nodes[i].head.q0;
            double sum = 0;
            for (int j = 0; j < 12; j++) {
                sum += promised[j];
            }
            ck_assert_double_le(sum, 15);
            ck_assert_double_le(sum + nodes[i].head.pool, 20 + 1e-9);
        }
    }
    NEAR(nodes[0].head.nodes, 12);
    NEAR(nodes[0].head.q0, 1);
    for (int round = 0; round < 80; round++) { /* nine fell silent: after a minute they are not counted */
        for (int i = 0; i < 3; i++) {
            now += 1;
            spend(&nodes[i], "k", 0);
        }
    }
    NEAR(nodes[0].head.nodes, 3);
    NEAR(nodes[0].head.q0, 5);
    NEAR(nodes[0].head.pool, 5);
}
END_TEST

/* A promise that falls may be in use: others are promised the rest of it only after it can have been told, and what is
 * owed of it only after it is repaid. */
START_TEST(a_promise_that_falls_counts_while_it_is_in_use)
{
    const double round_s = 2 * numbers.interval;
    set_rate(100, SECOND, 100, 40);
    spend(&alice, "k", 1);
    NEAR(alice.head.q0, 30);
    spend(&bob, "k", 0);
    NEAR(bob.head.q0, 0);
    now += 0.01;
    report(&alice, "k", 29, -30, 0, 0, 0); /* before it hears of the smaller one */
    NEAR(alice.head.q0, 15);
    for (int round = 0; round < 8; round++) { /* heard, and owed for longer than it takes to tell */
        now += round_s / 2;
        spend(&bob, "k", 0);
        NEAR(bob.head.q0, 0);
        report(&alice, "k", 0, round < 4 ? -30 : -20, 0, 0, 0);
        NEAR(alice.head.q0, 15);
    }
    now += round_s / 2;
    spend(&bob, "k", 0);
    NEAR(bob.head.q0, 10); /* 30 less 20 */
    report(&alice, "k", 0, -1, 0, 0, 0);
    for (int round = 0; round < 4; round++) {
        now += round_s / 2;
        report(&alice, "k", 0, -1, 0, 0, 0);
    }
    spend(&bob, "k", 0);
    NEAR(bob.head.q0, 15);
    /* one that was silent has not told what it owes yet */
    now += 0.01;
    struct node carol;
    node_init(&carol, 'c');
    spend(&carol, "k", 0);
    NEAR(carol.head.q0, 0);
    spend(&bob, "k", 0);
    NEAR(bob.head.q0, 10);
    now += 10 * round_s;
    spend(&bob, "other", 0);
    spend(&carol, "k", 0);
    NEAR(carol.head.q0, 0);
    now += round_s / 2;
    report(&bob, "k", 0, -12, 0, 0, 0);
    now += round_s / 2 + 0.001;
    spend(&alice, "k", 0);
    NEAR(alice.head.q0, 10);
    report(&bob, "k", 0, 0, 0, 0, 0);
    spend(&carol, "k", 0);
    NEAR(carol.head.q0, 3); /* 30 less alice's 15, which may be in use still, and 12 */
}
END_TEST

/* ---- generations and clocks -------------------------------------------------------------------------------------- */

START_TEST(keys_outlive_a_flip_and_no_more_than_they_must)
{
    set_rate(1, SECOND, 3, 1);
    spend(&alice, "k", 3);
    double written = peek("k").generation;
    for (int i = 0; i < 8; i++) {
        now += 4;
        spend(&alice, "busy", 1);
        struct weir__wire_seen seen = peek("k");
        NEAR(seen.total, fmin(3, 4 * (i + 1)));
        ck_assert_int_eq(seen.exists, i < 5); /* a second flip came at 22 s */
        ck_assert_int_eq(seen.older, seen.exists && seen.generation == written + 1);
        ck_assert(seen.flip > 0 && seen.flip <= 10);
    }
    for (const char *which = "ab"; *which != 0; which++) {
        long long ttl = script_client_pttl(&client, &target, *which);
        ck_assert(ttl == -2 || (ttl > 0 && ttl <= 21000));
    }
}
END_TEST

START_TEST(a_debt_outlives_a_flip)
{
    set_rate(1, SECOND, 3, 2);
    NEAR(spend(&alice, "k", 8), -5);
    now += 9.99;
    spend(&alice, "x", 1);
    now += 0.02; /* a generation begins */
    NEAR(spend(&alice, "k", 0), fmin(3, -5 + 10.01));
    spend(&alice, "k", 5);
    now += 11;
    spend(&alice, "x", 1);
    now += 1;
    NEAR(spend(&alice, "k", 0), 3);
}
END_TEST

/* Of what is in the older hash alone, and by then all else is as usual. */
START_TEST(levels_are_found_after_a_flip)
{
    set_rate(1, SECOND, 3, 1);
    spend(&alice, "x", 1);
    now += 9.9;
    spend(&alice, "short", 3);
    spend(&alice, "long", 3);
    now += 0.2;
    spend(&alice, "x", 1);
    spend(&alice, "x", 1);
    NEAR(spend(&alice, "short", 0), 0.2);
    report(&alice, "long", 0, 0, 0, 1, 2);
    NEAR(alice.grants[0].total, 0.2);
    NEAR(spend(&alice, "absent", 1), 2);
    ck_assert(peek("short").older && !peek("long").older);
}
END_TEST

START_TEST(a_retried_batch_across_a_flip)
{
    set_rate(1, SECOND, 3, 1);
    NEAR(spend(&alice, "k", 2), 1);
    now += 9.9;
    NEAR(spend(&alice, "k", 2), 1);
    now += 0.2;
    ck_assert_int_eq(resend(&alice), 0);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_REPEAT);
    NEAR(alice.grants[0].total, 1);
    NEAR(spend(&bob, "k", 1), 0.2);
    ck_assert_int_eq(resend(&alice), 0);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_REPEAT);
    NEAR(peek("k").total, 0.2);
}
END_TEST

/* Whoever makes a key immortal: a batch that touches the shard a tenth of a second later makes it mortal again. */
START_TEST(nothing_stays_immortal)
{
    set_rate(1, SECOND, 3, 1);
    spend(&alice, "k", 1);
    now += 11;
    spend(&alice, "j", 1);
    for (const char *which = "abn"; *which != 0; which++) {
        script_client_do(&client, "PERSIST", &target, *which, NULL, NULL);
        ck_assert_int_eq(script_client_pttl(&client, &target, *which), -1);
    }
    now += 0.2;
    spend(&bob, "other", 0);
    for (const char *which = "abn"; *which != 0; which++) {
        ck_assert_int_gt(script_client_pttl(&client, &target, *which), 0);
    }
}
END_TEST

/* The slowest policy that is allowed, and the fastest: every time to live is a positive integer. */
START_TEST(times_to_live_of_extreme_policies)
{
    set_rate(1, DAY, 19, 0);
    long long began = clock_ms();
    spend(&alice, "k", 1);
    long long ttl = script_client_pttl(&client, &target, 'a');
    ck_assert_int_gt(ttl + clock_ms() - began, 2 * 3456000LL * 1000);
    ck_assert_int_lt(ttl, 2 * 3456000LL * 1000 + 2000);
    drop('a');
    drop('n');
    node_init(&alice, 'A');
    set_rate(100000000, SECOND, 1, 0);
    for (int i = 0; i < 5; i++) {
        now += 1e-6;
        spend(&alice, "k", 1);
        ttl = script_client_pttl(&client, &target, 'a');
        ck_assert_int_gt(ttl, 10000);
        ck_assert_int_lt(ttl, 22000);
    }
}
END_TEST

START_TEST(a_clock_that_goes_back_grants_nothing)
{
    set_rate(1, SECOND, 10, 1);
    NEAR(spend(&alice, "k", 3), 7);
    double told = alice.head.now;
    now -= 3600;
    NEAR(spend(&alice, "k", 1), 6);
    ck_assert_double_ge(alice.head.now, told);
    now += 2;
    NEAR(spend(&alice, "k", 0), 8); /* it goes on from where it was */
    ck_assert_double_eq_tol(alice.head.now, told + 2, 1e-3);
    now -= 7200;
    NEAR(spend(&alice, "k", 0), 8);
    now += 9000; /* a step forward is time, as far as anyone can tell */
    NEAR(spend(&alice, "k", 0), 10);
}
END_TEST

/* ---- numbers that change ----------------------------------------------------------------------------------------- */

START_TEST(the_newest_version_rules)
{
    numbers.version = 5;
    set_rate(1, DAY, 10, 2);
    spend(&alice, "k", 1);
    numbers.version = 4;
    set_rate(1, DAY, 19, 0);
    NEAR(spend(&bob, "k", 1), 8); /* an older node: applied, by the numbers in force, which it is told */
    ck_assert_uint_eq(bob.head.numbers.version, 5);
    ck_assert_uint_eq(bob.head.numbers.burst, 10);
    ck_assert_uint_eq(bob.head.numbers.limit, 1);
    ck_assert_uint_eq(bob.head.numbers.per_ns, DAY);
    ck_assert_uint_eq(bob.head.numbers.overshoot, 2);
    NEAR(spend(&bob, "fresh", 1), 9);
    numbers.version = 6;
    set_rate(1, DAY, 5, 1);
    NEAR(spend(&bob, "k", 0), 5); /* a smaller burst clips */
    numbers.version = 6;
    set_rate(1, DAY, 4, 1);
    NEAR(spend(&alice, "k", 0), 4); /* the same version: the last who spoke */
}
END_TEST

/* A larger burst fills at the rate: a key that is there, one that is not, and both at the old rate until the change. */
START_TEST(a_larger_burst_is_not_free)
{
    set_rate(1, SECOND, 4, 0);
    NEAR(spend(&alice, "k", 4), 0);
    now += 3;
    set_rate(10, SECOND, 100, 0);
    NEAR(spend(&alice, "other", 1), 3); /* was full to 4 */
    NEAR(spend(&alice, "k", 0), 3);     /* three seconds at one a second */
    now += 2;
    NEAR(spend(&alice, "k", 0), 23);
    NEAR(spend(&alice, "third", 0), 24);
    now += 100;
    NEAR(spend(&alice, "fourth", 0), 100);
}
END_TEST

/* The old numbers' debt needs longer to be repaid at the new rate than a generation of the new numbers lasts. */
START_TEST(a_slower_rate_keeps_keys_longer)
{
    set_rate(100, SECOND, 400, 0);
    NEAR(spend(&alice, "k", 400), 0);
    set_rate(1, SECOND, 4, 0);
    spend(&alice, "x", 1);
    now += 1;
    NEAR(spend(&alice, "k", 300), -299);
    ck_assert_int_eq(alice.grants[0].carried, 295);
    ck_assert_int_gt(script_client_pttl(&client, &target, 'a'), 100000);
}
END_TEST

/* ---- odd input --------------------------------------------------------------------------------------------------- */

START_TEST(a_debt_has_a_floor)
{
    set_rate(1, DAY, 10, 2);
    NEAR(spend(&alice, "k", 100), -90);
    ck_assert_int_eq(alice.grants[0].carried, 78);
    NEAR(peek("k").total, -12);
    now += 86400;
    NEAR(spend(&alice, "k", 78), -89);
    ck_assert_int_eq(alice.grants[0].carried, 77);
}
END_TEST

/* Values that no script wrote count for nothing and are replaced; a key of another type is an error, not a crash. */
START_TEST(garbage_is_healed_or_refused)
{
    client.twice = 0; /* what is done here is done to one shard */
    const char *garbage[] = {"", "hello", "0123456789abcde\xff",
                             "\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f"};
    spend(&alice, "x", 1);
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        script_client_do(&client, "HSET", &target, 'a', "kk", garbage[i]);
        double total = spend(&alice, "k", 1);
        ck_assert(isfinite(total));
        ck_assert_double_le(total, 17);
        script_client_do(&client, "HSET", &target, 'a', "kk", garbage[i]);
        report(&bob, "k", 1, 0, 0, 50, 5);
        ck_assert(isfinite(bob.grants[0].total));
        ck_assert_double_le(bob.grants[0].level, 5);
    }
    ck_assert_double_ge(bob.head.healed, 0);
    script_client_do(&client, "HSET", &target, 'n', "!", "nonsense of no length");
    alice.records[0] = spent_of("k", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    spend(&alice, "k", 1);
    for (const char *which = "an"; *which != 0; which++) {
        drop(*which);
        script_client_do(&client, "RPUSH", &target, *which, "x", NULL);
        alice.batch.seq = ++alice.seq;
        ck_assert_int_eq(resend(&alice), 1);
        ck_assert_ptr_nonnull(strstr(client.reply, "WRONGTYPE"));
        drop(*which);
    }
}
END_TEST

/* Any bytes, up to 65,535 of them; two different keys never share a bucket. */
START_TEST(keys_are_any_bytes)
{
    static char big[65535];
    memset(big, 'x', sizeof big);
    set_rate(1, DAY, 19, 0);
    alice.records[0] = (struct weir__wire_record){.key = "a\0b", .key_len = 3, .spent = 1};
    alice.records[1] = (struct weir__wire_record){.key = "a", .key_len = 1, .spent = 2};
    alice.records[2] = (struct weir__wire_record){.key = "a\r\nb}{", .key_len = 6, .spent = 3};
    alice.records[3] = (struct weir__wire_record){.key = big, .key_len = sizeof big, .spent = 4};
    alice.records[4] = (struct weir__wire_record){.key = "!", .key_len = 1, .spent = 5};
    send_records(&alice, 5);
    for (int i = 0; i < 5; i++) {
        NEAR(alice.grants[i].total, 18 - i);
    }
    big[sizeof big - 1] = 'y';
    send_records(&alice, 5);
    for (int i = 0; i < 5; i++) {
        NEAR(alice.grants[i].total, i == 3 ? 15 : 17 - 2 * i);
    }
}
END_TEST

/* The largest batch of everything: 512 records with slices, 2,048 that wait, in both generations. And 20,000 keys. */
START_TEST(large_batches)
{
    static struct weir__wire_record records[WEIR__WIRE_RECORDS];
    static struct weir__wire_grant grants[WEIR__WIRE_RECORDS];
    static struct weir__wire_wait waits[WEIR__WIRE_WAITS];
    static char keys[20000][8];
    set_rate(1, SECOND, 3, 1);
    for (int i = 0; i < 20000; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
    }
    struct weir__wire_batch batch = {.target = target, .numbers = numbers, .records = records, .node = "large"};
    struct weir__wire_head head;
    for (int done = 0; done < 20000; done += (int)batch.count) {
        batch.count = 20000 - done < 512 ? (uint32_t)(20000 - done) : 512;
        for (uint32_t i = 0; i < batch.count; i++) {
            records[i] = spent_of(keys[done + (int)i], 1);
        }
        batch.flags = batch.seq++ == 0 ? WEIR__WIRE_HELLO : 0;
        batch.test_now = now;
        ck_assert_int_eq(script_client_sync(&client, &batch, &head, grants), 0);
        ck_assert_int_eq(head.status, WEIR__WIRE_APPLIED);
        batch.epoch = head.epoch;
    }
    ck_assert_int_eq(script_client_do(&client, "HLEN", &target, 'a', NULL, NULL), 20001);
    now += 11;
    for (uint32_t i = 0; i < WEIR__WIRE_RECORDS; i++) {
        records[i] = spent_of(keys[i], 1);
        records[i].slice = 1;
        records[i].demand = 10;
        records[i].want = 1;
        records[i].waits = &waits[4 * i];
        records[i].n_waits = 4;
        for (int j = 0; j < 4; j++) {
            waits[4 * i + (uint32_t)j] = (struct weir__wire_wait){.cost = 1, .count = 1};
        }
    }
    batch.seq++;
    batch.count = WEIR__WIRE_RECORDS;
    batch.test_now = now;
    ck_assert_msg(script_client_sync(&client, &batch, &head, grants) == 0, "%s", client.error ? client.reply : "");
    for (uint32_t i = 0; i < WEIR__WIRE_RECORDS; i++) {
        NEAR(grants[i].total, 0); /* full after 11 s, one spent, two admitted */
        ck_assert_uint_eq(waits[4 * i].admitted + waits[4 * i + 1].admitted, 2);
        ck_assert_uint_eq(waits[4 * i + 2].admitted + waits[4 * i + 3].admitted, 0);
    }
}
END_TEST

static void add_all(TCase *tcase)
{
    tcase_add_test(tcase, a_batch_charges_once);
    tcase_add_test(tcase, a_repeat_gets_the_same_answer);
    tcase_add_test(tcase, a_delayed_copy_is_old);
    tcase_add_test(tcase, an_unknown_node_is_sent_back);
    tcase_add_test(tcase, a_gap_applies_nothing_and_starts_an_epoch);
    tcase_add_test(tcase, a_failover_to_an_older_state);
    tcase_add_test(tcase, a_silent_node_is_forgotten);
    tcase_add_test(tcase, the_least_seen_counts);
    tcase_add_test(tcase, nothing_is_granted_while_state_is_gathered);
    tcase_add_test(tcase, registering_charges_nothing_twice);
    tcase_add_test(tcase, partial_loss_is_noticed);
    tcase_add_test(tcase, loss_of_the_older_generation_is_noticed);
    tcase_add_test(tcase, a_first_node_is_served_at_once);
    tcase_add_test(tcase, a_mismatch_is_refused);
    tcase_add_test(tcase, promises_never_exceed_their_reserve);
    tcase_add_test(tcase, a_promise_that_falls_counts_while_it_is_in_use);
    tcase_add_test(tcase, keys_outlive_a_flip_and_no_more_than_they_must);
    tcase_add_test(tcase, a_debt_outlives_a_flip);
    tcase_add_test(tcase, levels_are_found_after_a_flip);
    tcase_add_test(tcase, a_retried_batch_across_a_flip);
    tcase_add_test(tcase, nothing_stays_immortal);
    tcase_add_test(tcase, times_to_live_of_extreme_policies);
    tcase_add_test(tcase, a_clock_that_goes_back_grants_nothing);
    tcase_add_test(tcase, the_newest_version_rules);
    tcase_add_test(tcase, a_larger_burst_is_not_free);
    tcase_add_test(tcase, a_slower_rate_keeps_keys_longer);
    tcase_add_test(tcase, a_debt_has_a_floor);
    tcase_add_test(tcase, garbage_is_healed_or_refused);
    tcase_add_test(tcase, keys_are_any_bytes);
    tcase_add_test(tcase, large_batches);
}

int main(void)
{
    return script_main("script", add_all);
}
