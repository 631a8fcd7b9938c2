/* SPDX-License-Identifier: MIT */
/*
 * Whole fleets in virtual time, against an independent model of the bucket: the bound of max_overshoot and exact
 * totals, over random spending, lost replies, repeats, crashes, stalls, outages and a Redis that forgets.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "script_fleet.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)

enum { SEEDS = 3 };

static struct redis_server *server;
static struct script_client client;

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
}

static void setup(void)
{
    script_client_open(&client, server);
    script_client_twice(&client);
}

static void teardown(void)
{
    script_client_close(&client);
}

/* Five nodes, two keys of 1,000 a second, asked twice what they have. */
static struct fleet_options plain(int seed)
{
    return (struct fleet_options){.seed = (unsigned)seed + 1,
                                  .nodes = 5,
                                  .keys = 2,
                                  .limit = 1000,
                                  .per_ns = SECOND,
                                  .burst = 1000,
                                  .overshoot = 100,
                                  .load = 2,
                                  .seconds = 4,
                                  .latency = 0.0005,
                                  .max_cost = 1};
}

/* The most that a perfect bucket may ever be overdrawn: what may be lent; the rate for a round trip and, where
 * answers are lost or nodes stop, for a timeout; one token a node where plain takes are let in unasked. */
static double bound(const struct fleet_options *o)
{
    double rate = (double)o->limit * 1e9 / (double)o->per_ns;
    int late = o->lose_reply > 0 || o->lose_batch > 0 || o->stall > 0 || o->outage_at > 0;
    return (double)o->overshoot + rate * 3 * o->latency + (late ? rate * 0.05 : 0) + (o->unknown ? o->nodes : 0) + 1e-6;
}

static void run(const struct fleet_options *o, struct fleet_result *result)
{
    fleet_run(&client, o, result);
    ck_assert_msg(result->worst >= -bound(o), "seed %u: overdrawn by %g, %g allowed", o->seed, -result->worst,
                  bound(o));
    ck_assert_int_gt(result->batches, 10);
}

static double used(const struct fleet_result *result)
{
    return result->admitted / result->perfect;
}

START_TEST(under_the_limit_nobody_is_denied)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.load = 0.95;
    o.nodes = 10;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.994); /* they start at once: for three round trips they have no overdraft */
}
END_TEST

START_TEST(over_the_limit_it_is_used_up)
{
    const double loads[] = {1.2, 2, 10};
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.load = loads[_i];
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.99);
}
END_TEST

START_TEST(a_cold_flash_crowd)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.load = 100;
    o.nodes = 12;
    o.keys = 1;
    o.seconds = 1;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.98);
}
END_TEST

START_TEST(a_wide_area_network)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.latency = 0.015;
    o.load = 3;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.95);
}
END_TEST

/* Nothing may be lent at all. */
START_TEST(no_overshoot_at_all)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.overshoot = 0;
    o.load = 20;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.95);
}
END_TEST

/* Fewer tokens than nodes, asked asynchronously: all are served, none twice. */
START_TEST(fewer_tokens_than_nodes)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.nodes = 10;
    o.limit = o.burst = 5;
    o.overshoot = 0;
    o.load = 20;
    o.waits = 0.7;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.95);
    o.waits = 0;
    o.unknown = 1;
    o.load = 0.9;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.9);
}
END_TEST

START_TEST(costs_of_all_sizes)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.max_cost = 400;
    o.waits = 0.5;
    o.load = 3;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.65); /* a cost of 400 waits for what many small ones would have taken */
}
END_TEST

START_TEST(answers_and_batches_are_lost)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.lose_reply = o.lose_batch = 0.05;
    o.waits = 0.2;
    run(&o, &result);
    ck_assert_int_gt(result.repeats, 5);
    ck_assert_double_gt(used(&result), 0.98);
}
END_TEST

START_TEST(nodes_die_and_stop)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.lose_reply = 0.03;
    o.crash = o.stall = 0.03;
    o.waits = 0.2;
    run(&o, &result);
    /* What the dead had in hand is counted as spent: Redis may hold more against them than they admitted, never
     * less. */
    ck_assert_double_gt(used(&result), 0.6);
}
END_TEST

START_TEST(both_modes_on_one_state)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.strict = 0.3;
    o.lose_reply = 0.02;
    run(&o, &result);
    ck_assert_int_gt(result.strict, 100);
    ck_assert_double_gt(used(&result), 0.99);
}
END_TEST

START_TEST(redis_forgets_everything)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.flush_at = 1.5;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.97);
}
END_TEST

/* Three seconds without Redis, each node on its last share; then as if nothing had been: nobody starves. With and
 * without a Redis that comes back empty. */
START_TEST(an_outage_on_local_shares)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.fallback = 1;
    o.outage_at = 1;
    o.outage_s = 3;
    o.seconds = 7;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.97);
    o.flush_at = 3.9995;
    run(&o, &result);
    ck_assert_double_gt(used(&result), 0.97);
}
END_TEST

/* With next to no refill every token is seen: what Redis holds is what was admitted, to the last one, whatever was lost
 * and repeated. (Waiting requests that gave up before their answer came were charged: those are counted.) */
START_TEST(totals_are_exact)
{
    struct fleet_options o = plain(_i);
    struct fleet_result result;
    o.limit = 1;
    o.per_ns = 1000000 * SECOND;
    o.rate_floor = 500;
    o.burst = _i % 2 ? 4000 : 900;
    o.overshoot = 200;
    o.lose_reply = o.lose_batch = 0.15;
    o.gentle = 1;
    o.nodes = 8;
    o.load = 1;
    o.waits = 0.3;
    o.strict = _i % 3 ? 0.2 : 0;
    o.max_cost = _i % 2 ? 3 : 1;
    run(&o, &result);
    ck_assert_int_gt(result.repeats, 20);
    ck_assert_double_gt(result.admitted, 1000);
    ck_assert_double_eq_tol(result.in_redis, result.admitted + result.written, 0.01);
}
END_TEST

/* ---- anything ---------------------------------------------------------------------------------------------------- */

enum { PARTS = 5, USUALLY = 20 };

static double draw(uint64_t *seed, double least, double most)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return least + (most - least) * (double)(*seed >> 11) * 0x1p-53;
}

static struct fleet_options any(uint64_t number)
{
    uint64_t seed = number * UINT64_C(0x9E3779B97F4A7C15) + 1;
    struct fleet_options o = {.seed = (unsigned)number, .per_ns = SECOND};
    o.nodes = (int)draw(&seed, 1, 12.99);
    o.keys = (int)draw(&seed, 1, 4.99);
    o.limit = (uint64_t)pow(10, draw(&seed, 0.7, 3.5));
    o.burst = (uint64_t)fmax(1, (double)o.limit * draw(&seed, 0.05, 2));
    o.overshoot = draw(&seed, 0, 1) < 0.3 ? 0 : (uint64_t)((double)o.burst * draw(&seed, 0, 0.5));
    o.load = pow(10, draw(&seed, -0.3, 1.5));
    o.seconds = draw(&seed, 0.5, 1.5);
    o.latency = draw(&seed, 0.0002, 0.01);
    o.lose_reply = draw(&seed, 0, 1) < 0.5 ? 0 : draw(&seed, 0, 0.1);
    o.lose_batch = draw(&seed, 0, 1) < 0.5 ? 0 : draw(&seed, 0, 0.1);
    o.stall = draw(&seed, 0, 1) < 0.8 ? 0 : 0.02;
    o.waits = draw(&seed, 0, 1) < 0.5 ? 0 : draw(&seed, 0, 1);
    o.strict = draw(&seed, 0, 1) < 0.7 ? 0 : draw(&seed, 0, 0.5);
    o.max_cost = draw(&seed, 0, 1) < 0.5 ? 1 : (int64_t)draw(&seed, 1, (double)o.burst + 0.99);
    o.unknown = draw(&seed, 0, 1) < 0.5;
    return o;
}

/* Every second one with next to no refill, where nothing ever expires: what Redis holds is what was admitted. */
static void without_refill(struct fleet_options *o)
{
    o->rate_floor = (double)o->limit;
    o->limit = 1;
    o->per_ns = 1000000 * SECOND;
    o->stall = 0;
    o->gentle = 1;
    o->unknown = 0; /* what is below a debt's floor is with the nodes */
}

/* WEIR_FLEETS=200 draws so many fleets. */
START_TEST(no_fleet_passes_its_bound)
{
    const char *wanted = getenv("WEIR_FLEETS");
    int n = wanted ? atoi(wanted) : USUALLY;
    for (int i = _i; i < n; i += PARTS) {
        struct fleet_options o = any((uint64_t)i + 1);
        struct fleet_result result;
        if (i / PARTS % 2) {
            without_refill(&o);
        }
        fleet_run(&client, &o, &result);
        ck_assert_msg(result.worst >= -bound(&o), "fleet %d: overdrawn by %g, %g allowed", i + 1, -result.worst,
                      bound(&o));
        if (o.gentle) {
            ck_assert_msg(fabs(result.in_redis - result.admitted - result.written) < 0.01,
                          "fleet %d: %g admitted, %g beside, %g in Redis", i + 1, result.admitted, result.written,
                          result.in_redis);
        }
        redis_server_do(server, "FLUSHALL", NULL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("script_fleet");
    TCase *tcase = tcase_create("fleet");
    tcase_add_unchecked_fixture(tcase, open_server, close_server);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, under_the_limit_nobody_is_denied, 0, SEEDS);
    tcase_add_loop_test(tcase, over_the_limit_it_is_used_up, 0, 3);
    tcase_add_loop_test(tcase, a_cold_flash_crowd, 0, SEEDS);
    tcase_add_loop_test(tcase, a_wide_area_network, 0, SEEDS);
    tcase_add_loop_test(tcase, no_overshoot_at_all, 0, SEEDS);
    tcase_add_loop_test(tcase, fewer_tokens_than_nodes, 0, SEEDS);
    tcase_add_loop_test(tcase, costs_of_all_sizes, 0, SEEDS);
    tcase_add_loop_test(tcase, answers_and_batches_are_lost, 0, SEEDS);
    tcase_add_loop_test(tcase, nodes_die_and_stop, 0, SEEDS);
    tcase_add_loop_test(tcase, both_modes_on_one_state, 0, SEEDS);
    tcase_add_loop_test(tcase, redis_forgets_everything, 0, SEEDS);
    tcase_add_loop_test(tcase, an_outage_on_local_shares, 0, SEEDS);
    tcase_add_loop_test(tcase, totals_are_exact, 0, 6);
    tcase_add_loop_test(tcase, no_fleet_passes_its_bound, 0, PARTS);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
