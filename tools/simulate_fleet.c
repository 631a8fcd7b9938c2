/* SPDX-License-Identifier: MIT */
/* See simulate_fleet.h: time, chance, the network, the account, and the strategies that need no node of their own. */
#include "tools/simulate_fleet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simulate_demand.h"
#include "tools/simulate_node.h"
#include "tools/simulate_world.h"

static const char key[] = "key";

const char *simulate_strategy_name(enum simulate_strategy strategy)
{
    static const char *const names[] = {"local", "static-split", "push-pull", "hybrid", "strict"};
    return strategy < SIMULATE_STRATEGIES ? names[strategy] : NULL;
}

/* ---- chance and events ------------------------------------------------------------------------------------------- */

double simulate_draw(uint64_t *chance)
{
    uint64_t z = *chance += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int is_before(const struct simulate_event *a, const struct simulate_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void simulate_post(struct simulate_world *world, uint64_t at, enum simulate_event_kind kind, uint32_t node,
                   uint32_t tag, int64_t cost)
{
    struct simulate_event event = {at, world->order++, kind, node, world->seats[node].life, tag, cost};
    size_t i = world->event_count;

    if (at >= world->end)
        return;
    if (i == world->event_room) {
        size_t room = i ? 2 * i : 1024;
        struct simulate_event *more = realloc(world->events, room * sizeof *more);
        if (!more) {
            world->status = WEIR_E_NOMEM;
            return;
        }
        world->events = more;
        world->event_room = room;
    }
    world->event_count++;
    for (; i > 0 && is_before(&event, &world->events[(i - 1) / 2]); i = (i - 1) / 2)
        world->events[i] = world->events[(i - 1) / 2];
    world->events[i] = event;
}

static struct simulate_event next_event(struct simulate_world *world)
{
    struct simulate_event first = world->events[0], last = world->events[--world->event_count];
    size_t i = 0, child, n = world->event_count;

    while ((child = 2 * i + 1) < n) {
        if (child + 1 < n && is_before(&world->events[child + 1], &world->events[child]))
            child++;
        if (!is_before(&world->events[child], &last))
            break;
        world->events[i] = world->events[child];
        i = child;
    }
    world->events[i] = last;
    return first;
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

uint64_t simulate_delay(struct simulate_world *world)
{
    return (uint64_t)((double)world->o->rtt_ns / 2 * (0.8 + 0.4 * simulate_draw(&world->chance)));
}

int simulate_is_lost(struct simulate_world *world, uint64_t at)
{
    double loss = world->o->loss + (world->o->workload == SIMULATE_LOSS ? 0.05 : 0);
    int lost = loss > 0 && simulate_draw(&world->chance) < loss;

    if (world->o->workload == SIMULATE_OUTAGE) {
        uint64_t began = SIMULATE_START + world->o->run_ns * 2 / 5;
        lost |= at >= began && at < began + world->o->run_ns / 4;
    }
    world->result->lost += (uint64_t)lost;
    return lost;
}

/* ---- the account ------------------------------------------------------------------------------------------------- */

static void refill(double *level, double *at, const struct simulate_world *world)
{
    double now = (double)(world->now - SIMULATE_START) / 1e9;

    *level = fmin((double)world->o->burst, *level + world->rate * (now - *at));
    *at = now;
}

static size_t bin_of(const struct simulate_world *world)
{
    return (size_t)((double)(world->now - SIMULATE_START) / (double)world->o->run_ns * SIMULATE_BINS);
}

static void asked(struct simulate_world *world, int64_t cost)
{
    refill(&world->perfect, &world->perfect_at, world);
    world->result->asked += (double)cost;
    if (world->perfect >= (double)cost) {
        world->perfect -= (double)cost;
        world->result->perfect += (double)cost;
        world->result->perfect_at[bin_of(world) + 1] += (double)cost;
    }
}

void simulate_admitted(struct simulate_world *world, int64_t cost)
{
    refill(&world->x, &world->x_at, world);
    world->x -= (double)cost;
    world->result->admitted += (double)cost;
    world->result->admitted_at[bin_of(world) + 1] += (double)cost;
    overshoot_add(&world->over, world->now, (uint64_t)cost);
}

void simulate_denied(struct simulate_world *world, int64_t cost)
{
    refill(&world->x, &world->x_at, world);
    if (world->x >= (double)cost + (double)world->o->burst / 20)
        world->result->false_denied += (double)cost;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static int open_alone(struct simulate_world *world, struct simulate_seat *seat);

static void start(struct simulate_world *world, uint32_t i)
{
    struct simulate_seat *seat = &world->seats[i];
    int status = 0;

    seat->alive = 1;
    seat->from = world->now + 2 * world->o->rtt_ns;
    world->processes++;
    switch (world->o->strategy) {
    case SIMULATE_LOCAL:
    case SIMULATE_STATIC: status = open_alone(world, seat); break;
    case SIMULATE_HYBRID: seat->hybrid = simulate_node_open(world, i, &status); break;
    case SIMULATE_PUSH_PULL:
        seat->level = (double)world->o->burst;
        seat->refilled = (double)(world->now - SIMULATE_START) / 1e9;
        seat->unsent = seat->sent = 0;
        seat->flying = 0;
        simulate_post(world, world->now + (uint64_t)((double)world->o->interval_ns * simulate_draw(&world->chance)),
                      SIMULATE_TICK, i, 0, 0);
        break;
    default: break;
    }
    if (status != 0)
        world->status = status;
}

static void stop(struct simulate_world *world, uint32_t i)
{
    struct simulate_seat *seat = &world->seats[i];

    if (seat->hybrid)
        world->result->degraded += simulate_node_degraded(seat->hybrid);
    simulate_node_close(seat->hybrid);
    weir_close(seat->alone);
    seat->hybrid = NULL;
    seat->alone = NULL;
    seat->life++;
    seat->alive = 0;
}

/* The next time that it happens to this node. */
static void plan_misfortune(struct simulate_world *world, uint32_t i, enum simulate_event_kind kind)
{
    double often = kind == SIMULATE_CRASH ? world->o->crash : world->o->stall;

    if (often > 0)
        simulate_post(world, world->now + (uint64_t)(-log(1 - simulate_draw(&world->chance)) / often * 1e9), kind, i, 0,
                      0);
}

static void crash(struct simulate_world *world, uint32_t i)
{
    world->result->crashes++;
    stop(world, i);
    start(world, i);
    if (world->status == 0) {
        plan_misfortune(world, i, SIMULATE_CRASH);
        plan_misfortune(world, i, SIMULATE_STALL);
        simulate_demand_next(world, i);
    }
}

static void stall(struct simulate_world *world, uint32_t i)
{
    world->result->stalls++;
    if (world->seats[i].hybrid)
        simulate_node_stall(world->seats[i].hybrid,
                            world->now + (uint64_t)(simulate_draw(&world->chance) * (double)world->o->stall_ns));
    plan_misfortune(world, i, SIMULATE_STALL);
}

/* ---- local, static split ----------------------------------------------------------------------------------------- */

static uint64_t clock_of(void *arg)
{
    const struct simulate_world *world = arg;
    return world->now;
}

static int open_alone(struct simulate_world *world, struct simulate_seat *seat)
{
    const struct simulate_options *o = world->o;
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;
    uint64_t parts = o->strategy == SIMULATE_STATIC ? o->nodes : 1;
    int status;

    options.max_keys = 1;
    options.now_ns = clock_of;
    options.now_arg = world;
    status = weir_open(&seat->alone, &options);
    if (status != 0)
        return status;
    policy.name = "simulated";
    policy.mode = WEIR_LOCAL;
    policy.limit = o->limit;
    policy.per_ns = o->per_ns * parts;
    policy.burst = o->burst / parts ? o->burst / parts : 1;
    return weir_policy_add(seat->alone, &policy, &id);
}

static void take_alone(struct simulate_world *world, struct simulate_seat *seat, int64_t cost)
{
    int verdict = weir_take(seat->alone, 0, key, sizeof key - 1, cost, NULL);

    if (verdict == WEIR_ALLOW)
        simulate_admitted(world, cost);
    else if (verdict == WEIR_DENY)
        simulate_denied(world, cost);
    else
        world->status = verdict;
}

/* ---- push and pull ----------------------------------------------------------------------------------------------- */

/* Redis holds the total; strategies without slices use the key's level alone. */
static void store_refill(struct simulate_world *world)
{
    struct simulate_value *value = &world->store.key;
    double now = (double)(world->now - SIMULATE_START) / 1e9;

    value->level = fmin((double)world->o->burst, value->level + world->rate * (now - value->at));
    value->at = now;
}

static void seat_refill(const struct simulate_world *world, struct simulate_seat *seat)
{
    double now = (double)(world->now - SIMULATE_START) / 1e9;

    seat->level = fmin((double)world->o->burst, seat->level + world->rate * (now - seat->refilled));
    seat->refilled = now;
}

static void take_pushing(struct simulate_world *world, struct simulate_seat *seat, int64_t cost)
{
    seat_refill(world, seat);
    if (seat->level < (double)cost) {
        simulate_denied(world, cost);
        return;
    }
    seat->level -= (double)cost;
    seat->unsent += (double)cost;
    simulate_admitted(world, cost);
}

/* A push that is lost is made again with the next one. The total comes back in the event's tag: its place in `cost`. */
static void push(struct simulate_world *world, uint32_t i, const struct simulate_event *event)
{
    struct simulate_seat *seat = &world->seats[i];
    uint64_t arrives = world->now + simulate_delay(world);

    switch (event->kind) {
    case SIMULATE_TICK:
        simulate_post(world, world->now + world->o->interval_ns, SIMULATE_TICK, i, 0, 0);
        if (seat->flying)
            return;
        seat->flying = 1;
        seat->sent = seat->unsent;
        world->result->calls++;
        simulate_post(world, world->now + world->o->timeout_ns, SIMULATE_EXPIRE, i, 0, 0);
        if (!simulate_is_lost(world, arrives))
            simulate_post(world, arrives, SIMULATE_EXECUTE, i, 0, 0);
        break;
    case SIMULATE_EXECUTE:
        store_refill(world);
        world->store.key.level -= seat->sent;
        seat->unsent -= seat->sent;
        seat->sent = 0;
        if (!simulate_is_lost(world, arrives))
            simulate_post(world, arrives, SIMULATE_RECEIVE, i, 0, (int64_t)floor(world->store.key.level * 1e3));
        break;
    case SIMULATE_RECEIVE:
        seat_refill(world, seat);
        seat->level = (double)event->cost / 1e3 - seat->unsent;
        seat->flying = 0;
        break;
    default: seat->flying = 0; break;
    }
}

/* ---- strict, and takes that ask Redis ---------------------------------------------------------------------------- */

static void ask(struct simulate_world *world, uint32_t i, int64_t cost)
{
    uint64_t arrives = world->now + simulate_delay(world);

    world->result->calls++;
    if (simulate_is_lost(world, arrives))
        simulate_post(world, world->now + world->o->timeout_ns, SIMULATE_VERDICT, i, 0, cost);
    else
        simulate_post(world, arrives, SIMULATE_QUERY, i, 0, cost);
}

void simulate_arrive(struct simulate_world *world)
{
    if (!world->o->lose_ns || world->has_lost || world->now < SIMULATE_START + world->o->lose_ns)
        return;
    world->has_lost = 1;
    simulate_store_forget(&world->store);
    if (world->o->watch)
        world->o->watch->lose(world->o->watch->ctx);
}

/* What was admitted there and got lost on its way back is denied: the caller has gone. */
static void query(struct simulate_world *world, uint32_t i, int64_t cost)
{
    uint64_t back = world->now + simulate_delay(world);
    double free;
    uint32_t flags = world->o->on_outage == WEIR_OUTAGE_LOCAL ? WEIR__WIRE_OUTAGE_LOCAL : 0;
    int admitted;

    simulate_arrive(world);
    admitted = simulate_store_take(&world->store, &world->numbers, flags, (double)world->now / 1e9, cost, &free);

    if (world->o->watch)
        world->o->watch->take(world->o->watch->ctx, (double)world->now / 1e9, cost, admitted, free);
    if (simulate_is_lost(world, back))
        admitted = 0;
    simulate_post(world, back, SIMULATE_VERDICT, i, (uint32_t)admitted, cost);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static void arrive(struct simulate_world *world, uint32_t i, int64_t cost)
{
    struct simulate_seat *seat = &world->seats[i];

    asked(world, cost);
    switch (world->o->strategy) {
    case SIMULATE_PUSH_PULL: take_pushing(world, seat, cost); break;
    case SIMULATE_HYBRID:
        simulate_node_take(seat->hybrid, cost, world->o->async > 0 && simulate_draw(&world->chance) < world->o->async);
        break;
    case SIMULATE_STRICT: ask(world, i, cost); break;
    default: take_alone(world, seat, cost); break;
    }
    simulate_demand_next(world, i);
}

static void happen(struct simulate_world *world, const struct simulate_event *event)
{
    struct simulate_seat *seat = &world->seats[event->node];

    switch (event->kind) {
    case SIMULATE_ARRIVAL: arrive(world, event->node, event->cost); break;
    case SIMULATE_QUERY: query(world, event->node, event->cost); break;
    case SIMULATE_VERDICT: (event->tag ? simulate_admitted : simulate_denied)(world, event->cost); break;
    case SIMULATE_CRASH: crash(world, event->node); break;
    case SIMULATE_STALL: stall(world, event->node); break;
    default:
        if (seat->hybrid)
            simulate_node_event(seat->hybrid, event);
        else
            push(world, event->node, event);
        break;
    }
}

/* Nodes join and leave as the workload says. */
static void attend(struct simulate_world *world)
{
    for (uint32_t i = 0; i < world->o->nodes && world->status == 0; i++) {
        int wanted = simulate_demand_lives(world, i);

        if (wanted && !world->seats[i].alive) {
            start(world, i);
            plan_misfortune(world, i, SIMULATE_CRASH);
            plan_misfortune(world, i, SIMULATE_STALL);
            simulate_demand_next(world, i);
        } else if (!wanted && world->seats[i].alive) {
            stop(world, i);
        }
    }
}

static void count_alive(struct simulate_world *world, uint64_t ns)
{
    for (uint32_t i = 0; i < world->o->nodes; i++)
        world->alive_ns += world->seats[i].alive ? ns : 0;
}

static void run(struct simulate_world *world)
{
    attend(world);
    while (world->status == 0) {
        uint64_t change = simulate_demand_change(world);
        int events = world->event_count > 0 && world->events[0].at < change;
        uint64_t at = events ? world->events[0].at : change;

        if (at >= world->end)
            break;
        if (world->o->workload == SIMULATE_JOIN)
            count_alive(world, at - world->now);
        world->now = at;
        if (events) {
            struct simulate_event event = next_event(world);
            if (event.life == world->seats[event.node].life)
                happen(world, &event);
        } else {
            attend(world);
        }
    }
    if (world->o->workload != SIMULATE_JOIN)
        world->alive_ns = world->o->run_ns * world->o->nodes;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The contract: what may be lent, and the rate for the longest round trip; for a timeout where answers are lost, or a
 * slice's lifetime where a sync thread stands still; one token a process where the budget holds less than that, or the
 * fleet grows: a new process has no part of it before the others have given one back. */
static double bound_of(const struct simulate_world *world)
{
    const struct simulate_options *o = world->o;
    double tokens = (double)o->max_overshoot + world->rate * 1.2 * (double)o->rtt_ns / 1e9;
    int grows = o->workload == SIMULATE_JOIN || world->processes > o->nodes;

    if (world->result->stalls > 0) /* nobody pauses its slice before it ends */
        tokens += world->rate * (1.5 * simulate_interval(o) + 2 * (double)o->timeout_ns / 1e9);
    else if (world->result->lost > 0)
        tokens += world->rate * (double)o->timeout_ns / 1e9;
    if (o->unknown == WEIR_UNKNOWN_ADMIT && (grows || 0.75 * (double)o->max_overshoot < (double)world->processes))
        tokens += (double)world->processes;
    return tokens;
}

static void sum_up(struct simulate_world *world)
{
    struct simulate_result *r = world->result;

    for (size_t i = 0; i <= SIMULATE_BINS; i++) {
        double t = (double)i / SIMULATE_BINS * (double)world->o->run_ns / 1e9;
        r->allowed_at[i] = (double)world->o->burst + world->rate * t;
        r->admitted_at[i] += i ? r->admitted_at[i - 1] : 0;
        r->perfect_at[i] += i ? r->perfect_at[i - 1] : 0;
    }
    r->overshoot = overshoot_tokens(&world->over);
    r->bound = bound_of(world);
    r->calls_per_node = world->alive_ns ? (double)r->calls / ((double)world->alive_ns / 1e9) : 0;
}

int simulate_run(const struct simulate_options *o, struct simulate_result *result)
{
    struct simulate_world *world = calloc(1, sizeof *world);
    int status;

    if (!world)
        return WEIR_E_NOMEM;
    memset(result, 0, sizeof *result);
    world->o = o;
    world->result = result;
    world->now = SIMULATE_START;
    world->end = SIMULATE_START + o->run_ns;
    world->chance = o->seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    world->rate = (double)o->limit * 1e9 / (double)o->per_ns;
    world->x = world->perfect = (double)o->burst;
    overshoot_init(&world->over, o->limit, o->per_ns, o->burst);
    simulate_store_init(&world->store);
    world->numbers = (struct weir__wire_numbers){.limit = o->limit,
                                                 .per_ns = o->per_ns,
                                                 .burst = o->burst,
                                                 .overshoot = o->max_overshoot,
                                                 .interval = simulate_interval(o),
                                                 .timeout = (double)o->timeout_ns / 1e9};
    if (o->strategy == SIMULATE_PUSH_PULL)
        world->store.key.level = (double)o->burst;
    simulate_demand_init(world);
    run(world);
    for (uint32_t i = 0; i < o->nodes; i++)
        stop(world, i);
    sum_up(world);
    status = world->status;
    simulate_store_deinit(&world->store);
    free(world->events);
    free(world);
    return status;
}
