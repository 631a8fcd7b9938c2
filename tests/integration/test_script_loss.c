/* SPDX-License-Identifier: MIT */
/*
 * Redis comes back empty, and nodes come back to it one by one: the level is what it would be if nothing had been lost,
 * however late the last of them is, whoever of them saw least, and whatever was charged meanwhile.
 */
#include <math.h>
#include <string.h>

#include "script_node.h"

enum { NODES = 3, BURST = 1000, LENT = 100 };

static struct node nodes[NODES];
static double seen[NODES], seen_at[NODES]; /* what Redis last said to each, and when */
static double level, level_at;             /* a bucket that never forgets */
static int sliced;
static const char *name = "k";

static double rate(void)
{
    return (double)numbers.limit * 1e9 / (double)numbers.per_ns;
}

static void refill_to(double at)
{
    level = fmin(BURST, level + rate() * (at - level_at));
    level_at = at;
}

static void begin(uint64_t limit, uint64_t per_ns)
{
    set_rate(limit, per_ns, BURST, LENT);
    for (int i = 0; i < NODES; i++)
        node_init(&nodes[i], (char)('A' + i));
    level = BURST;
    level_at = now;
}

/* A report of the key, with a slice or without. */
static void make_record(struct node *node, int64_t spent)
{
    node->records[0] = spent_of(name, spent);
    if (sliced) { /* in demand, but for so little that it is asked for each time: nothing is reserved */
        node->records[0].slice = 1;
        node->records[0].demand = 5;
    }
}

static void tell(int i, int64_t spent)
{
    struct node *node = &nodes[i];

    make_record(node, spent);
    send_records(node, 1);
    if (node->head.status == WEIR__WIRE_LOST) {
        make_record(node, spent);
        node->records[0].known = seen_at[i] > 0;
        node->records[0].seed = seen[i];
        node->records[0].seed_age = now - seen_at[i];
        send_records(node, 1);
    }
    ck_assert_int_eq(node->head.status, WEIR__WIRE_APPLIED);
    refill_to(now);
    level -= (double)spent;
    seen[i] = node->grants[0].total;
    seen_at[i] = now;
}

/* The same before the loss, where Redis must agree at once. */
static void tell_before(int i, int64_t spent)
{
    tell(i, spent);
    NEAR(seen[i], level);
}

static void lose(void)
{
    drop('a');
    drop('b');
    drop('n');
}

static void check_level(void)
{
    refill_to(now);
    NEAR(peek(name).total, level);
}

static const double delays[] = {0.1, 0.5, 1, 5, 60};
static const struct {
    uint64_t limit, per_ns;
} rates[] = {{1, DAY}, {5, SECOND}, {200, SECOND}};

enum { DELAYS = sizeof delays / sizeof delays[0], RATES = sizeof rates / sizeof rates[0] };

/* Node `last` comes `delay` after the others, with so much unreported. The order of what each saw: least, most. */
static void one_straggles(int least, int last, double delay, int64_t unreported)
{
    int first = (last + 1) % NODES, second = (last + 2) % NODES;

    memset(seen_at, 0, sizeof seen_at);
    for (int i = 0; i < NODES; i++)
        tell_before(i, 0);             /* all have heard of all */
    for (int i = 0; i <= NODES; i++) { /* who speaks last sees least */
        tell_before((least + i) % NODES, 200);
        now += 0.01;
    }
    lose();
    now += 0.3;
    tell(first, 3);
    now += 0.05;
    tell(second, 4);
    for (int i = 0; i < 5; i++) { /* they go on, once they may */
        now += delay / 5;
        tell(i % 2 ? first : second, delay < 0.4 ? 0 : 20);
    }
    tell(last, unreported);
    check_level();
    now += 20;
    tell(first, 1);
    check_level();
}

START_TEST(a_straggler_is_heard)
{
    sliced = _i % 2;
    for (int r = 0; r < RATES; r++)
        for (int d = 0; d < DELAYS; d++)
            for (int least = 0; least < NODES; least++)
                for (int64_t unreported = 0; unreported <= 90; unreported += 90) {
                    lose();
                    begin(rates[r].limit, rates[r].per_ns);
                    one_straggles(least, 2, delays[d], unreported);
                }
}
END_TEST

/* All of them late, one by one: each lowers the level to what it knows. */
START_TEST(all_straggle)
{
    sliced = _i;
    begin(1, DAY);
    memset(seen_at, 0, sizeof seen_at);
    for (int i = 0; i < 2 * NODES; i++)
        tell_before(i % NODES, 50);
    lose();
    for (int i = 0; i < NODES; i++) {
        now += 7;
        tell(i, 10);
    }
    check_level();
}
END_TEST

/* What was given back meanwhile is not lost either. */
START_TEST(refunds_count_while_one_straggles)
{
    begin(1, DAY);
    sliced = 0;
    memset(seen_at, 0, sizeof seen_at);
    tell_before(0, 300);
    tell_before(1, 300);
    lose();
    tell(0, 50);
    now += 2;
    nodes[0].records[0] = spent_of("k", 0);
    nodes[0].records[0].refunded = 40;
    send_records(&nodes[0], 1);
    level += 40;
    now += 2;
    tell(1, 0);
    check_level();
}
END_TEST

static void expect_length_(long long length, int line)
{
    long long found = script_client_do(&client, "HSTRLEN", &target, 'a', "kk", NULL);
    ck_assert_msg(found == length, "line %d: %lld, not %lld", line, found, length);
}
#define expect_length(length) expect_length_(length, __LINE__)

/* Accounts are kept for stragglers until all have come, and some seconds more for all of their keys. */
START_TEST(accounts_end)
{
    begin(1, DAY);
    sliced = 0;
    memset(seen_at, 0, sizeof seen_at);
    for (int i = 0; i < 2 * NODES; i++) /* by now all have heard of three */
        tell_before(i % NODES, 10);
    expect_length(16);
    lose();
    tell(0, 1);
    tell(1, 1);
    now += 300;
    tell(0, 1);
    expect_length(112);
    tell(2, 1);
    now += 9;
    tell(0, 1);
    expect_length(112);
    now += 2;
    tell(0, 1);
    expect_length(16);
    check_level();

    for (int i = 0; i < 2 * NODES; i++)
        tell(i % NODES, 10);
    lose(); /* one never comes again */
    tell(0, 1);
    tell(1, 1);
    now += 599;
    tell(0, 1);
    expect_length(112);
    now += 2;
    tell(0, 1);
    expect_length(16);
}
END_TEST

/* A new node does not know that there was anything before: what it was granted until others come is not forgotten. */
START_TEST(a_new_node_comes_first)
{
    begin(1, DAY);
    sliced = _i;
    memset(seen_at, 0, sizeof seen_at);
    tell_before(0, 300);
    tell_before(1, 300);
    lose();
    tell(2, 50);
    now += 0.2;
    tell(2, 10);
    now += 0.2;
    tell(1, 5);
    check_level();
    now += 3;
    tell(2, 10);
    tell(0, 5);
    check_level();
}
END_TEST

/* Three seconds on fallback shares, and then an empty Redis: that use is paid by the refill of that time, which nobody
 * else gets; what is above it is charged. */
START_TEST(shares_are_paid_by_the_refill)
{
    begin(300, SECOND);
    for (int i = 0; i < NODES; i++) {
        make_record(&nodes[i], i ? 300 : 400);
        send_records(&nodes[i], 1);
    }
    lose();
    now += 3;
    flags = WEIR__WIRE_OUTAGE_LOCAL;
    for (int i = 0; i < NODES; i++) {
        struct node *node = &nodes[i];
        for (int again = 0; again < 2; again++) {
            node->records[0] = spent_of("k", i ? 300 : 310);
            node->records[0].fallback_spent = i ? 300 : 310;
            node->records[0].age = 3;
            node->records[0].slice = 1;
            node->records[0].known = 1;
            node->records[0].seed_age = 3;
            node->records[0].fallback = 100;
            send_records(node, 1);
        }
        ck_assert_int_eq(node->head.status, WEIR__WIRE_APPLIED);
    }
    NEAR(peek("k").total, -10);
}
END_TEST

/* Of three nodes that shared a rate one is back: the others live on their shares, so it is given its third of what was
 * refilled since, less what they may have used of their slices before; and everything once all are back, or after some
 * seconds. */
START_TEST(the_rate_of_those_away_is_kept)
{
    begin(300, SECOND);
    sliced = 0;
    memset(seen_at, 0, sizeof seen_at);
    for (int i = 0; i < 2 * NODES; i++)
        tell(i % NODES, i < NODES ? 0 : i == NODES ? 1000 : 0);
    lose();
    tell(0, 0);
    now += 1;
    report(&nodes[0], "k", 0, 0, 0, 600, 500);
    ck_assert_double_le(nodes[0].grants[0].level + nodes[0].grants[0].rate * 0.2, 100 + LENT + 20);
    ck_assert_double_le(nodes[0].grants[0].rate, 100 + 1e-6);
    ck_assert_double_gt(nodes[0].grants[0].level, 10);
    if (_i == 0) {
        now += 0.1;
        tell(1, 10);
        tell(2, 10);
    } else {
        now += 6;
    }
    report(&nodes[0], "k", (int64_t)nodes[0].grants[0].level, 0, 0, 600, 500);
    ck_assert_double_gt(nodes[0].grants[0].rate + nodes[0].grants[0].level, 150);
}
END_TEST

/* A report with a slice, and once more with what was seen where the state is lost. */
static void report_slice(int i, int64_t spent)
{
    struct node *node = &nodes[i];

    report(node, name, spent, 0, 0, 600, 500);
    if (node->head.status == WEIR__WIRE_LOST) {
        node->records[0] = spent_of(name, spent);
        node->records[0].slice = 1;
        node->records[0].demand = 600;
        node->records[0].want = 500;
        node->records[0].known = 1;
        node->records[0].seed = seen[i];
        node->records[0].seed_age = now - seen_at[i];
        send_records(node, 1);
    }
    ck_assert_int_eq(node->head.status, WEIR__WIRE_APPLIED);
    seen[i] = node->grants[0].total;
    seen_at[i] = now;
}

/* Three nodes use all that is refilled when the state is lost. What the first one that is back saw tells nothing of
 * what the others had used of their slices and not told, nor do they before they come: that is not given away. */
START_TEST(what_those_away_had_not_told_is_kept)
{
    int64_t granted;

    begin(300, SECOND);
    for (int i = 0; i < NODES; i++)
        report_slice(i, i ? 0 : 1000);
    for (int i = 0; i < NODES; i++)
        report_slice(i, 0);
    lose();
    now += 0.4; /* each on its slice */
    report_slice(0, 40);
    now += 0.45; /* the others on their shares */
    report_slice(0, 0);
    granted = (int64_t)nodes[0].grants[0].level;
    ck_assert_int_gt(granted, 40);
    report_slice(0, granted);
    report_slice(1, 85);
    report_slice(2, 85);
    ck_assert_double_ge(peek(name).total, -(LENT / 4.0) - 1);
}
END_TEST

/* ---- strict ------------------------------------------------------------------------------------------------------ */

/* Node i asks strictly for so much, having seen what it saw. Returns how many it gets, and what is left by then. */
static uint32_t ask(int i, double *epoch, int64_t cost, uint32_t count)
{
    static struct weir__wire_head head;
    static uint64_t nonce;
    struct weir__wire_key key = {.key = name, .key_len = 1};
    struct weir__wire_strict_entry entries[2];
    struct weir__wire_strict batch = {.target = target,
                                      .numbers = numbers,
                                      .epoch = *epoch,
                                      .keys = &key,
                                      .n_keys = 1,
                                      .entries = entries,
                                      .n_entries = 1,
                                      .test_now = now};

    batch.nonce = ++nonce;
    entries[0] = (struct weir__wire_strict_entry){.op = WEIR__WIRE_TAKE, .cost = cost, .count = count};
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
    if (head.status == WEIR__WIRE_LOST) {
        entries[1] = entries[0];
        entries[0] = (struct weir__wire_strict_entry){.op = WEIR__WIRE_SEEN,
                                                      .cost = (int64_t)floor(seen[i]),
                                                      .count = (uint32_t)(1000 * (now - seen_at[i]) + 0.5)};
        batch.n_entries = 2;
        batch.epoch = head.epoch;
        batch.nonce = ++nonce;
        ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
    }
    ck_assert_int_eq(head.status, WEIR__WIRE_APPLIED);
    *epoch = head.epoch;
    seen[i] = key.total;
    seen_at[i] = now;
    refill_to(now);
    level -= (double)cost * entries[batch.n_entries - 1].admitted;
    return entries[batch.n_entries - 1].admitted;
}

/* What is told in whole tokens errs to the safe side. */
static void check_near_level(void)
{
    double total = peek(name).total;

    refill_to(now);
    ck_assert_msg(total > level - 1 && total < level + 1e-4, "%g in Redis, not %g", total, level);
}

/* Who asks strictly tells what it saw of a key when it next asks for it; that may be late. */
START_TEST(a_strict_straggler_is_heard)
{
    for (int r = 0; r < RATES; r++)
        for (int d = 0; d < DELAYS; d++)
            for (int least = 0; least < NODES; least++) {
                double epochs[NODES] = {0};

                lose();
                begin(rates[r].limit, rates[r].per_ns);
                for (int i = 1; i <= NODES; i++) {
                    ck_assert_uint_eq(ask((least + i) % NODES, &epochs[(least + i) % NODES], 1, 200), 200);
                    now += 0.01;
                }
                lose();
                now += 0.3;
                ck_assert_uint_eq(ask(0, &epochs[0], 1, 5), 0); /* state is gathered */
                ck_assert_uint_eq(ask(1, &epochs[1], 1, 5), 0);
                now += delays[d];
                ask(0, &epochs[0], 3, 20);
                ask(1, &epochs[1], 1, 400);
                ask(2, &epochs[2], 1, 1);
                check_near_level();
                now += 30;
                ask(2, &epochs[2], 1, 10);
                check_near_level();
            }
}
END_TEST

/* A node that knows the new epoch takes from a key that it never saw, and that another one remembers. */
START_TEST(a_key_that_one_remembers)
{
    double first = 0, second = 0;

    begin(1, DAY);
    ck_assert_uint_eq(ask(0, &first, 1, 1), 1);
    name = "m";
    level = BURST;
    ck_assert_uint_eq(ask(1, &second, 1, 600), 600);
    lose();
    name = "k";
    ask(0, &first, 1, 1);
    now += 1;
    ask(0, &first, 1, 1);
    name = "m";
    level = BURST - 600;
    ck_assert_uint_eq(ask(0, &first, 1, 100), 100);
    now += 1;
    ck_assert_uint_eq(ask(1, &second, 1, 10), 10);
    check_near_level();
    name = "k";
}
END_TEST

/* A hybrid node and a strict one on one key. */
START_TEST(modes_straggle_together)
{
    double epoch = 0;

    begin(1, DAY);
    sliced = _i;
    memset(seen_at, 0, sizeof seen_at);
    tell_before(0, 300);
    ck_assert_uint_eq(ask(1, &epoch, 1, 200), 200);
    tell_before(2, 100);
    lose();
    tell(0, 10);
    now += 1;
    tell(0, 10);
    now += 20;
    ask(1, &epoch, 1, 10);
    now += 20;
    tell(2, 10);
    check_near_level();
}
END_TEST

static void add(TCase *tcase)
{
    tcase_set_timeout(tcase, 30);
    tcase_add_loop_test(tcase, a_straggler_is_heard, 0, 2);
    tcase_add_loop_test(tcase, all_straggle, 0, 2);
    tcase_add_test(tcase, refunds_count_while_one_straggles);
    tcase_add_test(tcase, accounts_end);
    tcase_add_loop_test(tcase, a_new_node_comes_first, 0, 2);
    tcase_add_test(tcase, shares_are_paid_by_the_refill);
    tcase_add_loop_test(tcase, the_rate_of_those_away_is_kept, 0, 2);
    tcase_add_test(tcase, what_those_away_had_not_told_is_kept);
    tcase_add_test(tcase, a_strict_straggler_is_heard);
    tcase_add_test(tcase, a_key_that_one_remembers);
    tcase_add_loop_test(tcase, modes_straggle_together, 0, 2);
}

int main(void)
{
    return script_main("script_loss", add);
}
