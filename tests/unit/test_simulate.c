/* SPDX-License-Identifier: MIT */
/*
 * The simulator, and by it the bound: no scenario, however it is drawn, goes past what max_overshoot promises.
 *
 * WEIR_SCENARIOS draws so many scenarios of each kind, in place of 750 to 3,000.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/suite.h"
#include "tools/simulate_fleet.h"
#include "tools/simulate_world.h"

#define SECOND UINT64_C(1000000000)

enum { PARTS = 10, USUALLY = 3000, STALLED = 2000, LOST = 750 };

static struct simulate_result result;

static struct simulate_options plain(enum simulate_strategy strategy, enum simulate_workload workload, double load)
{
    return (struct simulate_options){.strategy = strategy,
                                     .workload = workload,
                                     .nodes = 10,
                                     .limit = 1000,
                                     .per_ns = SECOND,
                                     .burst = 1000,
                                     .max_overshoot = 100,
                                     .load = load,
                                     .interval_ns = SECOND / 5,
                                     .rtt_ns = SECOND / 1000,
                                     .timeout_ns = SECOND / 20,
                                     .run_ns = 5 * SECOND,
                                     .seed = 1,
                                     .cost = 1,
                                     .stall_ns = SECOND};
}

static double used(void)
{
    return result.admitted / result.perfect;
}

/* ---- the bound --------------------------------------------------------------------------------------------------- */

static double between(uint64_t *chance, double least, double most)
{
    return least * pow(most / least, simulate_draw(chance));
}

static void draw_limit(uint64_t *chance, struct simulate_options *o)
{
    double rate = between(chance, 0.5, 20000), burst, kind;

    o->limit = rate < 50 ? 1 + (uint64_t)(20 * simulate_draw(chance)) : (uint64_t)rate;
    o->per_ns = rate < 50 ? (uint64_t)((double)o->limit / rate * 1e9) : SECOND;
    burst = between(chance, 0.02, 3) * rate;
    o->burst = burst < 1 ? 1 : (uint64_t)burst;
    kind = simulate_draw(chance);
    if (kind < 0.2)
        o->max_overshoot = 0;
    else
        o->max_overshoot = kind < 0.6 ? o->burst / 10 : (uint64_t)(simulate_draw(chance) * (double)o->burst);
}

/* Anything: 1 to 50 nodes, limits from 1 in 2 s to 20,000/s, costs from 1 to the burst, nodes that die. */
static struct simulate_options draw(uint64_t seed, double least_loss, double most_loss)
{
    uint64_t chance = seed * 7919 + 13;
    struct simulate_options o = {.strategy = SIMULATE_HYBRID, .seed = seed, .on_outage = WEIR_OUTAGE_CLOSED};
    double seconds, requests;

    o.nodes = (unsigned)between(&chance, 1, 50.99);
    draw_limit(&chance, &o);
    o.load = between(&chance, 0.3, 100);
    o.interval_ns = (uint64_t)between(&chance, 2e7, 5e8);
    o.rtt_ns = (uint64_t)between(&chance, 1e5, 2e7);
    o.timeout_ns = SECOND / 20;
    o.cost = simulate_draw(&chance) < 0.5 ? 1 : (int64_t)between(&chance, 1, (double)o.burst + 0.5);
    o.async = simulate_draw(&chance) < 0.5 ? 0 : simulate_draw(&chance);
    o.workload = (enum simulate_workload)(simulate_draw(&chance) * SIMULATE_LOSS);
    o.unknown = simulate_draw(&chance) < 0.5 ? WEIR_UNKNOWN_ADMIT : WEIR_UNKNOWN_DENY;
    o.loss = least_loss + (most_loss - least_loss) * simulate_draw(&chance);
    o.crash = simulate_draw(&chance) < 0.5 ? 0 : 0.3 * simulate_draw(&chance);
    seconds = between(&chance, 1.5, 8);
    requests = o.load * (double)o.limit * 1e9 / (double)o.per_ns * seconds / (0.5 * (double)(o.cost + 1));
    if (requests > 15000)
        seconds = fmax(0.5, seconds * 15000 / requests);
    o.run_ns = (uint64_t)((seconds + (o.workload == SIMULATE_FLASH)) * 1e9);
    return o;
}

static uint64_t how_many(uint64_t usually)
{
    const char *wanted = getenv("WEIR_SCENARIOS");

    return wanted ? strtoull(wanted, NULL, 10) : usually;
}

static void scenarios(int part, double least_loss, double most_loss)
{
    uint64_t n = how_many(USUALLY);

    for (uint64_t seed = 1 + (uint64_t)part; seed <= n; seed += PARTS) {
        struct simulate_options o = draw(seed, least_loss, most_loss);
        ck_assert_int_eq(simulate_run(&o, &result), 0);
        ck_assert_msg(result.overshoot <= result.bound + 1e-6,
                      "seed %llu: %g tokens over, %g allowed (%s, %u nodes, %llu in %g s, burst %llu, E %llu)",
                      (unsigned long long)seed, result.overshoot, result.bound, simulate_workload_name(o.workload),
                      o.nodes, (unsigned long long)o.limit, (double)o.per_ns / 1e9, (unsigned long long)o.burst,
                      (unsigned long long)o.max_overshoot);
        ck_assert(least_loss == 0 || result.lost > 0 || result.calls < 200);
    }
}

START_TEST(the_bound_holds)
{
    scenarios(_i, 0, 0);
}
END_TEST

START_TEST(the_bound_holds_with_losses)
{
    scenarios(_i, 0.03, 0.2);
}
END_TEST

/* Sync threads that stand still while takers go on, now and then or most of the time. */
START_TEST(the_bound_holds_with_stalls)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= how_many(STALLED); seed += PARTS) {
        struct simulate_options o = draw(seed, 0, 0);
        o.stall = seed % 2 ? 1.5 : 0.25;
        o.stall_ns = 2 * SECOND;
        ck_assert_int_eq(simulate_run(&o, &result), 0);
        ck_assert_msg(result.overshoot <= result.bound + 1e-6, "seed %llu: %g tokens over, %g allowed",
                      (unsigned long long)seed, result.overshoot, result.bound);
    }
}
END_TEST

/* A Redis that comes back empty gives nothing twice. */
START_TEST(the_bound_holds_with_a_state_that_is_lost)
{
    for (uint64_t seed = 1 + (uint64_t)_i; seed <= how_many(LOST); seed += PARTS) {
        struct simulate_options o = draw(seed, 0, 0);
        o.async = o.crash = 0;
        if (o.workload == SIMULATE_JOIN)
            o.workload = SIMULATE_EVEN;
        o.lose_ns = o.run_ns / 2;
        ck_assert_int_eq(simulate_run(&o, &result), 0);
        ck_assert_msg(result.overshoot <= result.bound + 1e-6, "seed %llu: %g tokens over, %g allowed",
                      (unsigned long long)seed, result.overshoot, result.bound);
    }
}
END_TEST

/* ---- what it is for ---------------------------------------------------------------------------------------------- */

START_TEST(a_flash_crowd_stays_within_max_overshoot)
{
    struct simulate_options o = plain(SIMULATE_HYBRID, SIMULATE_FLASH, 100);
    o.seed = (uint64_t)_i + 1;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_le(result.overshoot, 100);
    ck_assert_double_gt(used(), 0.99);
    ck_assert_double_lt(result.calls_per_node, 15);
}
END_TEST

START_TEST(every_workload_is_used_up)
{
    struct simulate_options o = plain(SIMULATE_HYBRID, (enum simulate_workload)_i, 2);
    o.run_ns = 20 * SECOND;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_gt(used(), 0.97);
    ck_assert_double_le(result.overshoot, 160);
    ck_assert_double_lt(result.calls_per_node, 20);
}
END_TEST

/* An outage is lived through on shares, and what they admitted is neither charged twice nor free. */
START_TEST(an_outage_starves_nobody)
{
    struct simulate_options o = plain(SIMULATE_HYBRID, SIMULATE_OUTAGE, 2);
    o.run_ns = 20 * SECOND;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_uint_gt(result.degraded, 1000);
    ck_assert_double_gt(used(), 0.97);
    ck_assert_double_le(result.overshoot, 110);
}
END_TEST

START_TEST(stalls_end_slices)
{
    struct simulate_options o = plain(SIMULATE_HYBRID, SIMULATE_EVEN, 3);
    o.stall = 0.3;
    o.stall_ns = 5 * SECOND;
    o.on_outage = WEIR_OUTAGE_CLOSED;
    o.run_ns = 20 * SECOND;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_uint_gt(result.stalls, 10);
    ck_assert_double_le(result.overshoot, result.bound);
    ck_assert_double_gt(used(), 0.8);
}
END_TEST

START_TEST(the_same_seed_is_the_same_run)
{
    struct simulate_options o = plain(SIMULATE_HYBRID, SIMULATE_ONOFF, 2);
    static struct simulate_result first;
    o.loss = 0.05;
    o.crash = 0.1;
    ck_assert_int_eq(simulate_run(&o, &first), 0);
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_mem_eq(&first, &result, sizeof first);
    o.seed = 2;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_ne(first.asked, result.asked);
}
END_TEST

START_TEST(strategies_differ_as_they_must)
{
    struct simulate_options o = plain(SIMULATE_LOCAL, SIMULATE_FLASH, 100);
    double asked;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    asked = result.asked;
    ck_assert_double_gt(result.overshoot, 9000);
    o.strategy = SIMULATE_PUSH_PULL;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_gt(result.overshoot, 5000);
    ck_assert_double_eq(result.asked, asked);
    o.strategy = SIMULATE_STRICT;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_le(result.overshoot, 2);
    ck_assert_double_gt(result.calls_per_node, 1000);
    o = plain(SIMULATE_STATIC, SIMULATE_SKEWED, 2);
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_lt(used(), 0.5);
    ck_assert_double_eq(result.overshoot, 0);
    ck_assert_double_gt(result.false_denied, 1000);
}
END_TEST

START_TEST(a_strict_take_respects_what_is_reserved)
{
    struct simulate_options o = plain(SIMULATE_HYBRID, SIMULATE_EVEN, 5);
    o.async = 0.5;
    ck_assert_int_eq(simulate_run(&o, &result), 0);
    ck_assert_double_le(result.overshoot, result.bound);
    ck_assert_double_gt(used(), 0.99);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("simulate");
    TCase *bound = tcase_create("bound"), *tcase = tcase_create("simulate");
    tcase_set_timeout(bound, getenv("WEIR_SCENARIOS") ? 3600 : 120);
    tcase_add_loop_test(bound, the_bound_holds, 0, PARTS);
    tcase_add_loop_test(bound, the_bound_holds_with_losses, 0, PARTS);
    tcase_add_loop_test(tcase, a_flash_crowd_stays_within_max_overshoot, 0, 5);
    tcase_add_loop_test(tcase, every_workload_is_used_up, 0, SIMULATE_WORKLOADS);
    tcase_add_loop_test(bound, the_bound_holds_with_stalls, 0, PARTS);
    tcase_add_loop_test(bound, the_bound_holds_with_a_state_that_is_lost, 0, PARTS);
    tcase_add_test(tcase, an_outage_starves_nobody);
    tcase_add_test(tcase, stalls_end_slices);
    tcase_add_test(tcase, the_same_seed_is_the_same_run);
    tcase_add_test(tcase, strategies_differ_as_they_must);
    tcase_add_test(tcase, a_strict_take_respects_what_is_reserved);
    suite_add_tcase(suite, bound);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
