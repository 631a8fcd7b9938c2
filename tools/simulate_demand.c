/* SPDX-License-Identifier: MIT */
/* See simulate_demand.h. */
#include "tools/simulate_demand.h"

#include <math.h>
#include <stddef.h>

#include "sync/slice.h"

#define SECOND UINT64_C(1000000000)
#define MOVES_EVERY (SECOND * 5 / 2)

const char *simulate_workload_name(enum simulate_workload workload)
{
    static const char *const names[] = {"even", "skewed", "moving", "flash", "onoff", "step", "join", "loss", "outage"};
    return workload < SIMULATE_WORKLOADS ? names[workload] : NULL;
}

double simulate_interval(const struct simulate_options *o)
{
    struct weir__slice_terms terms;

    weir__slice_terms_set(&terms, o->limit, o->per_ns, o->burst, o->max_overshoot, (double)o->interval_ns / 1e9,
                          (double)o->timeout_ns / 1e9);
    return terms.interval;
}

static double exponential(uint64_t *chance, double mean)
{
    return -log(1 - simulate_draw(chance)) * mean;
}

void simulate_demand_init(struct simulate_world *world)
{
    for (uint32_t i = 0; i < world->o->nodes; i++) {
        struct simulate_seat *seat = &world->seats[i];

        seat->chance = world->o->seed * UINT64_C(1000003) + i * UINT64_C(7919) + 17;
        seat->on = simulate_draw(&seat->chance) < 0.25;
        seat->switch_at =
            SIMULATE_START + (uint64_t)(exponential(&seat->chance, seat->on ? 0.5 : 1.5) * (double)SECOND);
    }
}

static uint32_t half_of(const struct simulate_world *world)
{
    return world->o->nodes / 2 ? world->o->nodes / 2 : 1;
}

int simulate_demand_lives(const struct simulate_world *world, uint32_t node)
{
    uint64_t t = world->now - SIMULATE_START, third = world->o->run_ns / 3;

    if (world->o->workload != SIMULATE_JOIN || world->o->nodes < 2)
        return 1;
    return node < half_of(world) ? t < 2 * third : t >= third;
}

uint64_t simulate_demand_change(const struct simulate_world *world)
{
    uint64_t t = world->now - SIMULATE_START, third = world->o->run_ns / 3;

    if (world->o->workload != SIMULATE_JOIN || world->o->nodes < 2 || t >= 2 * third)
        return SIMULATE_NEVER;
    return SIMULATE_START + (t < third ? third : 2 * third);
}

/* On/off: brings the node's switch to time t. */
static void turn(struct simulate_seat *seat, uint64_t t)
{
    while (seat->switch_at <= t) {
        seat->on = !seat->on;
        seat->switch_at += 1 + (uint64_t)(exponential(&seat->chance, seat->on ? 0.5 : 1.5) * (double)SECOND);
    }
}

/* Tokens a second that the node asks for at time t, and until when. */
static double demand_at(struct simulate_world *world, uint32_t node, uint64_t at, uint64_t *until)
{
    const struct simulate_options *o = world->o;
    struct simulate_seat *seat = &world->seats[node];
    double all = o->load * world->rate, nodes = o->nodes;
    uint64_t t = at - SIMULATE_START, quarter = o->run_ns / 4 + 1, third = o->run_ns / 3;

    *until = SIMULATE_NEVER;
    switch (o->workload) {
    case SIMULATE_SKEWED:
        if (o->nodes == 1)
            return all;
        return node == 0 ? 0.9 * all : 0.1 * all / (nodes - 1);
    case SIMULATE_MOVING:
        *until = SIMULATE_START + (t / MOVES_EVERY + 1) * MOVES_EVERY;
        return t / MOVES_EVERY % o->nodes == node ? all : 0;
    case SIMULATE_FLASH:
        *until = t < SECOND ? SIMULATE_START + SECOND : SIMULATE_NEVER;
        return t < SECOND ? 0 : all / nodes;
    case SIMULATE_ONOFF:
        turn(seat, at);
        *until = seat->switch_at;
        return seat->on ? 4 * all / nodes : 0;
    case SIMULATE_STEP:
        *until = SIMULATE_START + (t / quarter + 1) * quarter;
        return (t / quarter % 2 ? all : 0.5 * world->rate) / nodes;
    case SIMULATE_JOIN:
        if (o->nodes < 2)
            return all;
        if (t < third)
            *until = SIMULATE_START + third;
        else if (t < 2 * third)
            *until = SIMULATE_START + 2 * third;
        return t < third ? all / half_of(world) : t < 2 * third ? all / nodes : all / (nodes - half_of(world));
    default: return all / nodes;
    }
}

void simulate_demand_next(struct simulate_world *world, uint32_t node)
{
    struct simulate_seat *seat = &world->seats[node];
    double mean_cost = 0.5 * (double)(world->o->cost + 1);
    uint64_t at = world->now > seat->from ? world->now : seat->from, until;

    while (at < world->end) {
        double demand = demand_at(world, node, at, &until), wait = INFINITY;

        if (demand > 0)
            wait = exponential(&seat->chance, mean_cost / demand) * (double)SECOND;
        if (wait < (double)(until - at)) {
            at += (uint64_t)wait;
            simulate_post(world, at, SIMULATE_ARRIVAL, node, 0,
                          1 + (int64_t)(simulate_draw(&seat->chance) * (double)world->o->cost));
            return;
        }
        at = until;
    }
}
