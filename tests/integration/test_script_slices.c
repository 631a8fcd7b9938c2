/* SPDX-License-Identifier: MIT */
/*
 * Slices in the reconcile script: what is granted and reserved, expires, waits, is given back, and what an outage
 * leaves; and what idle nodes leave of the overdraft.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "script_node.h"

/* ---- slices ------------------------------------------------------------------------------------------------------ */

/* What is reserved is nobody else's; a slice that fell silent counts as spent, and its late report is charged once. */
START_TEST(an_expired_slice_is_charged_once)
{
    set_rate(1, DAY, 19, 0);
    report(&alice, "k", 0, 0, 0, 50, 8);
    NEAR(alice.grants[0].level, 8);
    struct weir__wire_seen seen = peek("k");
    NEAR(seen.total, 19);
    NEAR(seen.reserved, 8);
    NEAR(seen.free, 11);
    now += 0.3; /* bob keeps the key in use, so that no outage is suspected */
    report(&bob, "k", 0, 0, 0, 0, 0);
    now += 0.3;
    report(&bob, "k", 0, 0, 0, 0, 0);
    NEAR(peek("k").total, 11);
    NEAR(peek("k").reserved, 0);
    report(&alice, "k", 5, 0, 0, 0, 0); /* it spent 5 of the 8: those are paid, the rest is gone */
    NEAR(alice.grants[0].total, 11);
    report(&alice, "k", 5, 0, 0, 0, 0);
    NEAR(alice.grants[0].total, 6);
}
END_TEST

START_TEST(a_late_report_beyond_its_slice_pays_the_rest)
{
    set_rate(1, DAY, 19, 0);
    report(&alice, "k", 0, 0, 0, 50, 8);
    now += 0.3;
    report(&bob, "k", 0, 0, 0, 0, 0);
    now += 0.3;
    report(&bob, "k", 0, 0, 0, 0, 0);
    NEAR(spend(&alice, "k", 10), 9); /* in short form, for it holds nothing any more */
}
END_TEST

START_TEST(a_release_gives_everything_back)
{
    set_rate(100, SECOND, 100, 0);
    report(&alice, "k", 0, 0, 0, 50, 20);
    report(&alice, "k", 2, 0, 0, 0, 0);
    struct weir__wire_seen seen = peek("k");
    NEAR(seen.total, 98);
    NEAR(seen.reserved, 0);
    ck_assert_uint_eq(seen.n_slices, 0);
    ck_assert_int_eq(script_client_do(&client, "HSTRLEN", &target, 'a', "kk", NULL), 16);
}
END_TEST

/* Rates, fallback shares and caps of a crowd never sum to more than there is. */
START_TEST(shares_sum_to_no_more_than_the_bucket)
{
    struct node nodes[10];
    struct weir__wire_seen_slice slices[10];
    struct weir__wire_seen seen;
    struct weir__wire_head head;
    set_rate(1000, SECOND, 300, 30);
    for (int i = 0; i < 10; i++) {
        node_init(&nodes[i], (char)('a' + i));
        report(&nodes[i], "k", 0, 0, 0, 900, 100);
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 10; i++) {
            now += 0.02;
            struct weir__wire_grant g = nodes[i].grants[0];
            report(&nodes[i], "k", (int64_t)fmax(0, g.level), g.level - fmax(0, floor(g.level)), g.rate, 900, 100);
        }
    }
    ck_assert_int_eq(script_client_peek(&client, &target, "k", now, &head, &seen, slices, 10), 0);
    ck_assert_uint_eq(seen.n_slices, 10);
    double rates = 0, fallbacks = 0, caps = 0;
    for (int i = 0; i < 10; i++) {
        rates += slices[i].rate;
        fallbacks += slices[i].fallback;
        caps += slices[i].cap;
        ck_assert_double_gt(slices[i].rate, 0);
        ck_assert_double_gt(slices[i].fallback, 50);
    }
    ck_assert_double_le(rates, 1000.01);
    ck_assert_double_le(fallbacks, 1000.01);
    ck_assert_double_le(caps, 300.01);
    ck_assert_double_gt(fallbacks, 990);
    ck_assert_double_le(seen.reserved, seen.total + 30);
}
END_TEST

/* An empty bucket whose refill one node has: who comes next gets no rate, for there is none, and nothing in advance. */
START_TEST(a_rate_is_given_once)
{
    set_rate(1000, SECOND, 1000, 0);
    report(&alice, "k", 1000, 0, 0, 2000, 500);
    ck_assert_double_eq_tol(alice.grants[0].rate, 1000, 0.01);
    now += 0.001;
    report(&bob, "k", 0, 0, 0, 2000, 500);
    NEAR(bob.grants[0].rate, 0);
    NEAR(bob.grants[0].level, 0);
    ck_assert_double_gt(bob.grants[0].hold, 0);
    ck_assert_double_le(peek("k").rates, 1000.01);
    now += 0.1;
    report(&alice, "k", 100, 0, 1000, 2000, 500); /* its share is half now: bob gets the rest */
    report(&bob, "k", 0, 0, 0, 2000, 500);
    ck_assert_double_gt(bob.grants[0].rate, 400);
    ck_assert_double_le(peek("k").rates, 1000.01);
}
END_TEST

/* Nodes that come one after the other, before those there have heard of them: what all may hold is still one burst. */
START_TEST(caps_sum_to_the_burst)
{
    struct node nodes[9];
    struct weir__wire_seen seen;
    set_rate(1000, SECOND, 1000, 400);
    for (int i = 0; i < 9; i++) {
        node_init(&nodes[i], (char)('a' + i));
        report(&nodes[i], "k", 0, 0, 0, 900, 500);
        seen = peek("k");
        ck_assert_double_le(seen.caps, 1000.01);
        ck_assert_double_le(seen.reserved, seen.total + 400);
    }
    ck_assert_double_gt(seen.caps, 990);
}
END_TEST

/* What is refilled while a request flies is reserved with the rest. */
START_TEST(the_flight_is_reserved)
{
    set_rate(1000, SECOND, 1000, 0);
    report(&alice, "k", 0, 0, 0, 900, 100);
    rtt = 0.02;
    report(&alice, "k", 0, 30, 250, 900, 100);
    NEAR(peek("k").reserved, alice.grants[0].level + 250 * 0.02);
}
END_TEST

START_TEST(refunds_end_at_the_burst)
{
    set_rate(1, DAY, 10, 0);
    spend(&alice, "k", 6);
    alice.records[0] = spent_of("k", 0);
    alice.records[0].refunded = 2;
    send_records(&alice, 1);
    NEAR(alice.grants[0].total, 6);
    alice.records[0] = spent_of("k", 1);
    alice.records[0].refunded = 50;
    send_records(&alice, 1);
    NEAR(alice.grants[0].total, 10);
}
END_TEST

/* What waits is admitted in order, whole costs, from what is nobody's, never from what may be lent. */
START_TEST(waiting_requests_get_what_is_proven_free)
{
    struct weir__wire_wait waits[] = {
        {.cost = 4, .count = 2}, {.cost = 3, .count = 5}, {.cost = 1, .count = 9}, {.cost = 0, .count = 7}};
    set_rate(1, DAY, 14, 4);
    report(&bob, "k", 0, 0, 0, 50, 3);
    NEAR(bob.grants[0].level, 3);
    alice.records[0] = spent_of("k", 0);
    alice.records[0].waits = waits;
    alice.records[0].n_waits = 4;
    send_records(&alice, 1);
    ck_assert_uint_eq(waits[0].admitted, 2);
    ck_assert_uint_eq(waits[1].admitted, 1);
    ck_assert_uint_eq(waits[2].admitted, 0);
    ck_assert_uint_eq(waits[3].admitted, 7);
    NEAR(alice.grants[0].total, 3);
    NEAR(alice.grants[0].free, 0);
}
END_TEST

/* Nodes that say nothing but that they live, twice in a minute, or now and then a little, owe nothing. */
START_TEST(a_promise_that_falls_is_given_to_others_by_nodes_that_are_idle)
{
    for (int quiet = 0; quiet < 2; quiet++) {
        redis_server_do(server, "FLUSHALL", NULL);
        node_init(&alice, (char)('a' + 2 * quiet));
        node_init(&bob, (char)('b' + 2 * quiet));
        set_rate(100, SECOND, 100, 40);
        spend(&alice, "k", 1);
        NEAR(alice.head.q0, 30);
        spend(&bob, "k", 0);
        NEAR(bob.head.q0, 0);
        for (int round = 0; round < 6; round++) {
            now += quiet ? 25 : 3 * numbers.interval;
            if (quiet)
                send_records(&alice, 0);
            else
                spend(&alice, "k", 1);
            NEAR(alice.head.q0, 15);
            now += 0.01;
            send_records(&bob, 0);
        }
        NEAR(bob.head.q0, 15);
    }
}
END_TEST

/* ---- Redis' clock ------------------------------------------------------------------------------------------------ */

/* What a node has in hand in `s` seconds of a slice it was given. */
static double spend_all(struct node *node, double s)
{
    const struct weir__wire_grant *grant = &node->grants[0];
    double level = grant->level + grant->rate * s, whole;
    level = level > grant->cap && grant->level <= grant->cap ? grant->cap : level;
    whole = level > 0 ? floor(level) : 0;
    report(node, "k", (int64_t)whole, level - whole, grant->rate, 100, 60);
    return whole;
}

/* Two nodes that spend all they are given, and Redis' clock makes a step: back, it gives nothing twice and takes
 * nobody's slice; ahead, it is time, as far as anyone can tell, and fills the bucket once at most. */
START_TEST(a_step_of_redis_clock)
{
    const double steps[] = {1, -1, 20, -20, 3600, -3600};
    double step = steps[_i], begin, admitted = 0, elapsed, told = 0;
    set_rate(100, SECOND, 100, 0);
    report(&alice, "k", 0, 0, 0, 100, 60);
    report(&bob, "k", 0, 0, 0, 100, 60);
    begin = now;
    for (int round = 0; round < 40; round++) {
        if (round == 20) {
            now += step;
        }
        now += 0.05;
        admitted += spend_all(&alice, 0.1);
        ck_assert_double_ge(alice.head.now, told);
        now += 0.05;
        admitted += spend_all(&bob, 0.1);
        ck_assert_double_ge(bob.head.now, alice.head.now);
        told = bob.head.now;
    }
    elapsed = now - begin - step;
    NEAR(elapsed, 4);
    ck_assert_double_le(admitted, 100 + 100 * elapsed + (step > 0 ? fmin(100, 100 * step) : 0) + 1e-6);
    ck_assert_double_ge(admitted, 0.9 * (100 + 100 * elapsed) - 60);
    /* it never stands still for longer than the first batch after a step back */
    double true_time = step > 0 ? now : now - step;
    ck_assert_double_le(told, true_time + 1e-4);
    ck_assert_double_ge(told, true_time - (step > 0 ? 0 : 0.05) - 1e-4);
}
END_TEST

/* ---- outages ----------------------------------------------------------------------------------------------------- */

static void report_outage(struct node *node, const char *key, int64_t spent, int64_t fallback)
{
    node->records[0] = spent_of(key, spent);
    node->records[0].fallback_spent = fallback;
    node->records[0].slice = 1;
    node->records[0].demand = 300;
    node->records[0].want = 30;
    node->batch.flags |= WEIR__WIRE_OUTAGE_LOCAL;
    node->batch.seq = ++node->seq;
    node->batch.epoch = node->epoch;
    node->batch.count = 1;
    ck_assert_int_eq(resend(node), 0);
    ck_assert_int_eq(node->head.status, WEIR__WIRE_APPLIED);
}

/* Five seconds without Redis: what the fallback shares admitted was paid by the refill of that time, whether a node
 * tells it in one report or its first report tells nothing of it. */
START_TEST(an_outage_is_paid_by_its_refill)
{
    set_rate(100, SECOND, 100, 0);
    report(&alice, "k", 90, 0, 0, 300, 30);
    report(&bob, "k", 0, 0, 0, 300, 30);
    double shares = alice.grants[0].fallback + bob.grants[0].fallback;
    ck_assert_double_eq_tol(shares, 100, 1e-3);
    double before = peek("k").total;
    now += 5;
    report_outage(&alice, "k", 0, 0);
    ck_assert_double_le(alice.grants[0].total, before + 0.2 * 100);
    report_outage(&alice, "k", 480, 480);
    report_outage(&bob, "k", 3, 0);
    ck_assert_double_ge(bob.grants[0].total, before - 3 - 1e-6);
    ck_assert_double_le(bob.grants[0].total, before + 0.2 * 100);
    /* More than its share: that is charged. Later still: all of it. */
    double left = bob.grants[0].total;
    report_outage(&alice, "k", 50, 50);
    ck_assert_double_le(alice.grants[0].total, left - 30);
    for (int i = 0; i < 4; i++) {
        now += 0.3;
        report_outage(&bob, "k", 0, 0);
    }
    left = bob.grants[0].total;
    report_outage(&bob, "k", 20, 20);
    NEAR(bob.grants[0].total, left - 20);
}
END_TEST

/* Old spending of a partition: what the bucket would have refilled since is not charged. */
START_TEST(old_spending_has_been_refilled)
{
    set_rate(10, SECOND, 100, 0);
    spend(&alice, "k", 20);
    now += 30;
    bob.records[0] = spent_of("k", 70);
    bob.records[0].age = 5;
    send_records(&bob, 1);
    NEAR(bob.grants[0].total, 80); /* full 5 s ago, 70 spent, 50 refilled */
    alice.records[0] = spent_of("k", 70);
    alice.records[0].age = 5; /* the key was written just now: nothing is known of 5 s ago */
    send_records(&alice, 1);
    NEAR(alice.grants[0].total, 10);
}
END_TEST

/* Five nodes, each one token in debt to a bucket of one: what its floor won't take stays reserved for whoever spent it,
 * or debts would pay for one another. */
START_TEST(a_debt_past_its_floor_stays_reserved)
{
    struct node nodes[5];
    int64_t carried[5] = {0};
    set_rate(1, DAY, 1, 0);
    for (int i = 0; i < 5; i++) {
        node_init(&nodes[i], (char)('a' + i));
    }
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 5; i++) {
            report(&nodes[i], "k", carried[i] + (round == 0), -1, 0, 100, 1);
            carried[i] = nodes[i].grants[0].carried;
            ck_assert_int_ge(carried[i], 0);
            NEAR(nodes[i].grants[0].level, -1);
            now += 0.001;
        }
    }
    int64_t all = 0, reserved = 0;
    for (int i = 0; i < 5; i++) {
        all += carried[i];
        reserved += carried[i] > 0 ? carried[i] : -1;
    }
    ck_assert_int_ge(all, 2);
    NEAR(peek("k").total, 1 - 5 + (double)all);
    NEAR(peek("k").reserved, (double)reserved);
}
END_TEST

/* What a dead node was yet to tell can't be charged while the debt is at its floor: until then it stays reserved. */
START_TEST(a_dead_debt_past_its_floor_stays_reserved)
{
    set_rate(1, 10 * SECOND, 1, 0);
    NEAR(spend(&alice, "k", 1), 0);
    report(&bob, "k", 3, -1, 0, 100, 1);
    ck_assert_int_eq(bob.grants[0].carried, 2);
    for (int i = 0; i < 4; i++) {
        now += 1;
        report(&alice, "k", 0, 0, 0, 100, 1);
        NEAR(alice.grants[0].level, 0);
    }
    NEAR(peek("k").reserved, 2);
    now += 12; /* a token's worth of refill: still not enough for two */
    report(&alice, "k", 0, 0, 0, 100, 1);
    NEAR(alice.grants[0].level, 0);
}
END_TEST

/* The same without slices: the record is as short as before, and what was carried is told again. */
START_TEST(a_short_debt_past_its_floor_stays_reserved)
{
    set_rate(1, DAY, 1, 0);
    NEAR(spend(&alice, "k", 1), 0);
    NEAR(spend(&bob, "k", 3), -3);
    ck_assert_int_eq(bob.grants[0].carried, 2);
    NEAR(peek("k").reserved, 2);
    report(&alice, "k", 0, 0, 0, 100, 1);
    NEAR(alice.grants[0].level, 0);
    spend(&bob, "k", 2);
    ck_assert_int_eq(bob.grants[0].carried, 2);
    NEAR(peek("k").reserved, 2);
    NEAR(peek("k").total, -1);
}
END_TEST

static void add_all(TCase *tcase)
{
    tcase_add_test(tcase, an_expired_slice_is_charged_once);
    tcase_add_test(tcase, a_late_report_beyond_its_slice_pays_the_rest);
    tcase_add_test(tcase, a_release_gives_everything_back);
    tcase_add_test(tcase, shares_sum_to_no_more_than_the_bucket);
    tcase_add_test(tcase, a_rate_is_given_once);
    tcase_add_test(tcase, caps_sum_to_the_burst);
    tcase_add_test(tcase, the_flight_is_reserved);
    tcase_add_test(tcase, refunds_end_at_the_burst);
    tcase_add_test(tcase, waiting_requests_get_what_is_proven_free);
    tcase_add_test(tcase, a_promise_that_falls_is_given_to_others_by_nodes_that_are_idle);
    tcase_add_loop_test(tcase, a_step_of_redis_clock, 0, 6);
    tcase_add_test(tcase, an_outage_is_paid_by_its_refill);
    tcase_add_test(tcase, old_spending_has_been_refilled);
    tcase_add_test(tcase, a_debt_past_its_floor_stays_reserved);
    tcase_add_test(tcase, a_dead_debt_past_its_floor_stays_reserved);
    tcase_add_test(tcase, a_short_debt_past_its_floor_stays_reserved);
}

int main(void)
{
    return script_main("script_slices", add_all);
}
