/* SPDX-License-Identifier: MIT */
/* See simulate_node.h. One key, so one report and one batch at a time; one shard. */
#include "tools/simulate_node.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/seam.h"
#include "sync/slice.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define PROBE_NS (100 * MS)
#define AT_ONCE 2u
#define PRESENCE_NS (25 * SECOND)
#define Q0_NS ((uint64_t)((WEIR__WIRE_LIVE - 10) * 1e9))
#define TRIES 8u /* answers that are remembered: a late one's try is long over */

static const char key[] = "key";

/* The report that is on its way. */
struct out {
    int64_t spent, fallback_spent, refunded;
    double level, rate, demand, want, age;
    uint64_t now;
    int slice;
};

struct simulate_node {
    struct simulate_world *world;
    uint32_t index;
    struct weir *w;
    weir_policy_id policy;
    struct weir__hooks hooks;
    struct weir__slice_terms terms, base;
    int woken, attached;
    uint64_t stalled; /* until */
    /* the key between reports */
    uint32_t slot;
    int held, known;
    int64_t carried;
    double total, fallback;
    uint64_t total_at, reported_at;
    struct weir__demand demand;
    /* its report; queued: not in a batch yet */
    int is_out, queued;
    struct out out;
    /* the lane */
    int presence, flying, waiting; /* waiting: to be sent again */
    uint64_t seq, answered_at, lost_at;
    double epoch, q0, nodes;
    struct weir__wire_batch wire;
    struct weir__wire_record record;
    uint64_t first, sent_at;
    uint32_t try, tries;
    struct weir__wire_head heads[TRIES];
    struct weir__wire_grant grants[TRIES];
    /* the course */
    double rtt;
    uint64_t fresh, due_at, collect_at;
    double told_q0, told_nodes;
};

static uint64_t clock_of(void *arg)
{
    const struct simulate_world *world = arg;
    return world->now;
}

static void on_wake(void *ctx)
{
    struct simulate_node *n = ctx;
    n->woken = 1;
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* ---- reports: reconcile.c ---------------------------------------------------------------------------------------- */

static void plan(struct simulate_node *n, const struct weir__report *report)
{
    struct out *out = &n->out;
    double now = seconds(n->world->now), interval = n->terms.interval;

    weir__demand_add(&n->demand, now, report->attempts, report->asked, interval);
    if (!weir__demand_idle(&n->demand, now, interval)) {
        out->demand = weir__demand_rate(&n->demand, now, interval);
        out->want = weir__slice_want(&n->terms, out->demand, n->rtt, n->demand.cost);
    }
    out->slice = out->want > 0 || n->held || report->rate > 0;
    if (report->until && report->until < report->now)
        out->age = seconds(report->now - report->until);
    else if (!report->until && n->fresh && n->fresh < report->now)
        out->age = seconds(report->now - n->fresh);
}

static int on_report(void *ctx, const struct weir__report *report)
{
    struct simulate_node *n = ctx;

    n->slot = report->slot;
    n->is_out = n->queued = 1;
    n->reported_at = n->world->now;
    n->out = (struct out){.spent = report->spent + n->carried,
                          .fallback_spent = report->fallback_spent,
                          .refunded = report->refunded,
                          .level = report->level,
                          .rate = report->rate,
                          .now = report->now};
    n->carried = 0;
    plan(n, report);
    return 1;
}

static void settle(struct simulate_node *n)
{
    n->is_out = 0;
    if (!n->held && !n->carried && !(n->known && n->total < n->terms.burst)) {
        n->demand = (struct weir__demand){0};
        n->known = 0;
    }
}

/* ---- batches: batch.c -------------------------------------------------------------------------------------------- */

static void greet(struct simulate_node *n)
{
    int hello = n->epoch == 0 || n->world->now - n->answered_at > (uint64_t)(WEIR__WIRE_REMEMBER / 2 * 1e9);

    if (n->wire.count) {
        n->record.known = n->known && n->total_at < n->lost_at;
        if (n->record.known) {
            n->record.seed = n->total;
            n->record.seed_age = seconds(n->world->now - n->total_at);
            n->record.fallback = n->fallback > 0 ? n->fallback : n->terms.rate / fmax(1, n->nodes);
            hello = 1;
        }
    }
    if (hello) {
        n->wire.flags |= WEIR__WIRE_HELLO;
        n->wire.nodes = n->nodes;
    }
}

static void launch(struct simulate_node *n)
{
    struct simulate_world *world = n->world;
    uint64_t arrives = world->now + simulate_delay(world);

    n->waiting = 0;
    n->sent_at = world->now;
    n->try++;
    world->result->calls++;
    world->result->repeats += n->tries > 0;
    simulate_post(world, world->now + world->o->timeout_ns, SIMULATE_EXPIRE, n->index, n->try, 0);
    if (!simulate_is_lost(world, arrives))
        simulate_post(world, arrives, SIMULATE_EXECUTE, n->index, n->try, 0);
}

static void send_batch(struct simulate_node *n)
{
    const struct out *out = &n->out;
    double waited = n->queued ? seconds(n->world->now - out->now) : 0;

    n->record = (struct weir__wire_record){.key = key,
                                           .key_len = sizeof key - 1,
                                           .spent = out->spent,
                                           .refunded = out->refunded,
                                           .fallback_spent = out->fallback_spent,
                                           .age = out->age,
                                           .slice = out->slice,
                                           .level = out->level,
                                           .rate = out->rate,
                                           .demand = out->demand,
                                           .want = out->want,
                                           .max_cost = n->demand.cost};
    n->wire.records = &n->record;
    n->wire.count = n->queued ? 1 : 0;
    n->wire.numbers = n->world->numbers;
    n->wire.seq = ++n->seq;
    n->wire.epoch = n->epoch;
    n->wire.rtt = n->rtt + waited;
    n->wire.flags = n->world->o->on_outage == WEIR_OUTAGE_LOCAL ? WEIR__WIRE_OUTAGE_LOCAL : 0;
    greet(n);
    n->queued = n->presence = 0;
    n->flying = 1;
    n->tries = 0;
    n->first = n->world->now;
    launch(n);
}

/* ---- answers: answer.c ------------------------------------------------------------------------------------------- */

static void tell_overdraft(struct simulate_node *n)
{
    uint64_t now = n->world->now;
    double q0 = !n->answered_at || now - n->answered_at > Q0_NS ? 0 : n->q0, rate, burst;
    double nodes = fmax(n->world->o->nodes, n->nodes);

    if (q0 == n->told_q0 && nodes == n->told_nodes)
        return;
    if (q0 < n->told_q0 && !n->held && !n->carried) /* others are promised what may be in use here: it is told now */
        weir__seam_collect(n->w, now, 1, on_report, n);
    n->told_q0 = q0;
    n->told_nodes = nodes;
    weir__slice_share(&n->terms, nodes, &rate, &burst);
    weir__seam_overdraft(n->w, n->policy, (uint64_t)q0, rate, burst);
}

static void tell_fresh(struct simulate_node *n, uint64_t sent)
{
    uint64_t until = weir__slice_until(&n->base, sent);

    if (until > n->fresh)
        n->fresh = until;
    weir__seam_fresh_until(n->w, n->policy, n->fresh);
}

static void apply(struct simulate_node *n, const struct weir__wire_grant *grant)
{
    const struct out *out = &n->out;
    uint64_t now = n->world->now;
    double bare_hold = grant->free < 1 ? (1 - grant->free) / n->terms.rate : 0;
    struct weir__slice_ask ask = {
        .level = out->level, .rate = out->rate, .demand = out->demand, .want = out->want, .sent_ns = out->now};
    struct weir__slice_answer answer = {.level = out->slice ? grant->level : weir__slice_owed(out->level, grant->free),
                                        .rate = grant->rate,
                                        .cap = grant->cap,
                                        .fallback = out->slice ? grant->fallback : -1,
                                        .hold = out->slice ? grant->hold : bare_hold,
                                        .total = grant->total,
                                        .free = grant->free,
                                        .rich = grant->rich};
    struct weir__grant force;

    weir__slice_grant(&n->terms, &ask, &answer, now, n->rtt, &force);
    if (force.rate <= 0 && force.cap <= 0)
        force.until = 0;
    weir__seam_apply(n->w, n->slot, now, &force);
    n->known = 1;
    n->total = grant->total;
    if (out->slice)
        n->fallback = grant->fallback;
    n->total_at = now;
    n->held = out->slice ? !weir__slice_nothing(&ask, &answer) : answer.level < 0;
    n->carried = grant->carried < out->spent ? grant->carried : out->spent > 0 ? out->spent : 0;
    settle(n);
}

static void again(struct simulate_node *n, const struct weir__wire_head *head)
{
    n->lost_at = n->world->now;
    n->wire.epoch = n->epoch = head->epoch;
    n->wire.seq = n->seq + 1;
    if (head->last >= (double)n->wire.seq)
        n->wire.seq = (uint64_t)head->last + 1;
    n->seq = n->wire.seq;
    n->wire.flags |= WEIR__WIRE_HELLO;
    greet(n);
    launch(n);
}

static void receive(struct simulate_node *n, uint32_t try)
{
    const struct weir__wire_head *head = &n->heads[try % TRIES];

    if (head->status == WEIR__WIRE_LOST || head->status == WEIR__WIRE_OLD) {
        again(n, head);
        return;
    }
    if (n->tries == 0)
        n->rtt = weir__slice_rtt(n->rtt, seconds(n->world->now - n->sent_at));
    n->flying = 0;
    n->epoch = head->epoch;
    n->answered_at = n->first;
    n->q0 = head->q0;
    n->nodes = head->nodes;
    tell_fresh(n, n->first);
    if (n->wire.count)
        apply(n, &n->grants[try % TRIES]);
    tell_overdraft(n);
}

/* The answer is late: what is held grows no more, and the same bytes go again. */
static void fail(struct simulate_node *n)
{
    uint64_t pause = n->tries < AT_ONCE ? 0 : PROBE_NS;

    if (n->tries == 0 && n->wire.count && n->out.rate > 0)
        weir__seam_pause(n->w, n->slot, n->sent_at + n->world->o->timeout_ns);
    if (n->tries == 0)
        n->rtt = weir__slice_late(n->rtt, seconds(n->world->o->timeout_ns));
    n->tries++;
    n->waiting = 1;
    simulate_post(n->world, n->world->now + pause, SIMULATE_SEND, n->index, n->try, 0);
}

/* ---- what happens ------------------------------------------------------------------------------------------------ */

static int is_stalled(const struct simulate_node *n)
{
    return n->world->now < n->stalled;
}

static void pump(struct simulate_node *n)
{
    if (is_stalled(n))
        return;
    if (n->woken) {
        n->woken = 0;
        weir__seam_urgent(n->w, n->world->now, 1, on_report, n);
    }
    if (!n->flying && (n->queued || n->presence))
        send_batch(n);
}

/* What is due: a held slice has its own times, the rest goes with the node's interval. */
static void report_due(struct simulate_node *n, uint64_t tick)
{
    uint64_t now = n->world->now, interval = (uint64_t)(n->terms.interval * 1e9);
    int holds = n->held || n->carried;
    struct weir__report report;

    if (now + tick / 2 >= n->due_at) {
        n->due_at = now + interval / 2;
        tell_overdraft(n);
        weir__seam_pace(n->w, n->policy, interval, n->rtt > 0 ? (uint64_t)(n->rtt * 1e9) : n->world->o->timeout_ns);
        if (holds && !n->is_out && n->reported_at < now - interval / 4 * 3 &&
            weir__seam_report(n->w, n->slot, now, &report))
            on_report(n, &report);
    }
    if (now + tick / 2 >= n->collect_at) {
        n->collect_at = now + n->world->o->interval_ns;
        if (!holds)
            weir__seam_collect(n->w, now, 1, on_report, n);
    }
}

static void tick(struct simulate_node *n)
{
    struct simulate_world *world = n->world;
    double jitter = 0.1 * (2 * simulate_draw(&world->chance) - 1);
    uint64_t tick = (uint64_t)(n->terms.interval * 5e8);

    report_due(n, tick);
    if (!n->answered_at || world->now - n->answered_at > PRESENCE_NS ||
        (!n->flying && !n->queued && world->now - n->answered_at > world->o->interval_ns / 4 * 3))
        n->presence = 1;
    simulate_post(world, world->now + (uint64_t)((double)tick * (1 + jitter)), SIMULATE_TICK, n->index, 0, 0);
}

static void execute(struct simulate_node *n, uint32_t try)
{
    struct simulate_world *world = n->world;
    uint64_t back = world->now + simulate_delay(world);

    simulate_arrive(world);
    n->wire.test_now = seconds(world->now);
    if (simulate_store_sync(&world->store, &n->wire, &n->heads[try % TRIES], &n->grants[try % TRIES]) != 0)
        world->status = WEIR_E_NOMEM;
    if (world->o->watch)
        world->o->watch->sync(world->o->watch->ctx, &n->wire, &n->heads[try % TRIES], &n->grants[try % TRIES]);
    if (!simulate_is_lost(world, back))
        simulate_post(world, back, SIMULATE_RECEIVE, n->index, try, 0);
}

void simulate_node_event(struct simulate_node *n, const struct simulate_event *event)
{
    struct simulate_event later = *event;

    if (event->kind == SIMULATE_EXECUTE) {
        if (n->flying) /* an older try's copy holds the same bytes */
            execute(n, event->tag);
        return;
    }
    if (is_stalled(n)) {
        simulate_post(n->world, n->stalled, later.kind, later.node, later.tag, later.cost);
        return;
    }
    switch (event->kind) {
    case SIMULATE_TICK: tick(n); break;
    case SIMULATE_SEND:
        if (n->flying && n->waiting && event->tag == n->try)
            launch(n);
        break;
    case SIMULATE_RECEIVE:
        if (n->flying && !n->waiting && event->tag == n->try)
            receive(n, event->tag);
        break;
    case SIMULATE_EXPIRE:
        if (n->flying && !n->waiting && event->tag == n->try)
            fail(n);
        break;
    default: break;
    }
    pump(n);
}

void simulate_node_stall(struct simulate_node *n, uint64_t until)
{
    n->stalled = until;
}

/* ---- takes ------------------------------------------------------------------------------------------------------- */

void simulate_node_take(struct simulate_node *n, int64_t cost, int async)
{
    struct weir_request request = {.policy = n->policy, .key = key, .key_len = sizeof key - 1, .cost = cost};
    struct simulate_world *world = n->world;
    struct weir_result result;
    int verdict =
        async ? weir__seam_try(n->w, &request, &result) : weir_take(n->w, n->policy, key, sizeof key - 1, cost, NULL);

    if (verdict == WEIR_ALLOW) {
        simulate_admitted(world, cost);
    } else if (verdict == WEIR__SEAM_ASK) {
        uint64_t arrives = world->now + simulate_delay(world);
        world->result->calls++;
        if (!simulate_is_lost(world, arrives))
            simulate_post(world, arrives, SIMULATE_QUERY, n->index, 0, cost);
        else
            simulate_post(world, world->now + world->o->timeout_ns, SIMULATE_VERDICT, n->index, 0, cost);
    } else if (verdict == WEIR_DENY) {
        simulate_denied(world, cost);
    } else {
        world->status = verdict;
    }
    if (n->woken)
        pump(n);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static int open_limiter(struct simulate_node *n)
{
    const struct simulate_options *o = n->world->o;
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
    int status;

    options.max_keys = 1;
    options.now_ns = clock_of;
    options.now_arg = n->world;
    status = weir_open(&n->w, &options);
    if (status != 0)
        return status;
    policy.name = "simulated";
    policy.limit = o->limit;
    policy.per_ns = o->per_ns;
    policy.burst = o->burst;
    policy.max_overshoot = o->max_overshoot ? o->max_overshoot : WEIR_NONE;
    policy.on_outage = o->on_outage;
    policy.unknown = o->unknown;
    status = weir_policy_add(n->w, &policy, &n->policy);
    if (status != 0)
        return status;
    n->hooks = (struct weir__hooks){.ctx = n, .wake = on_wake};
    status = weir__seam_attach(n->w, &n->hooks);
    n->attached = status == 0;
    return status;
}

struct simulate_node *simulate_node_open(struct simulate_world *world, uint32_t index, int *status)
{
    const struct simulate_options *o = world->o;
    struct simulate_node *n = calloc(1, sizeof *n);

    *status = WEIR_E_NOMEM;
    if (!n)
        return NULL;
    n->world = world;
    n->index = index;
    n->told_q0 = -1;
    for (size_t i = 0; i < sizeof n->wire.node; i++)
        n->wire.node[i] = (uint8_t)(256 * simulate_draw(&world->chance));
    n->wire.target = (struct weir__wire_target){.prefix = "simulated", .policy = "simulated", .shards = 1};
    weir__slice_terms_set(&n->terms, o->limit, o->per_ns, o->burst, o->max_overshoot, seconds(o->interval_ns),
                          seconds(o->timeout_ns));
    weir__slice_terms_set(&n->base, 1, SECOND, WEIR_BURST_MAX, 0, seconds(o->interval_ns), seconds(o->timeout_ns));
    *status = open_limiter(n);
    if (*status != 0) {
        simulate_node_close(n);
        return NULL;
    }
    n->presence = 1;
    simulate_post(world, world->now + (uint64_t)(n->terms.interval * 5e8 * simulate_draw(&world->chance)),
                  SIMULATE_TICK, index, 0, 0);
    pump(n);
    return n;
}

void simulate_node_close(struct simulate_node *n)
{
    if (!n)
        return;
    if (n->attached)
        weir__seam_detach(n->w);
    weir_close(n->w);
    free(n);
}

uint64_t simulate_node_degraded(struct simulate_node *n)
{
    struct weir_stats stats = {.size = sizeof stats};
    return weir_stats_get(n->w, &stats) == 0 ? stats.degraded : 0;
}
