/* SPDX-License-Identifier: MIT */
/*
 * Nodes in virtual time. Each has at most one batch in flight; a batch leaves, is executed, and its answer arrives, at
 * times of their own, and either leg may be lost. What a node does with an answer is sync/slice.h's.
 */
#include "script_fleet.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sync/slice.h"

enum { NODES = 12, KEYS = 6, WAITS = 4 };

#define FOREVER 1e300
#define BEGIN 1e6 /* s: when virtual time starts */

struct key {
    double level, rate, cap, at; /* the bucket: the slice of it */
    double until, hold, low;     /* s */
    double fallback, f_level, f_at, fell_at;
    int falling, reserved; /* living on the fallback share; Redis holds something for us */
    int64_t spent, fall_spent, asked;
    uint64_t attempts;
    struct weir__demand demand;
    double total, total_at;
    int known;
    struct weir__wire_wait queue[WAITS];
    uint32_t queued;
};

struct node {
    uint8_t id[WEIR__WIRE_ID];
    uint64_t seq;
    double epoch, rtt, fresh_until, q0, q0_until, nodes;
    int hello;
    struct key keys[KEYS];
    double timer, stalled;
    /* the batch in flight */
    int flying, attempts;
    double first_sent, exec_at, reply_at, expires;
    struct weir__wire_record records[KEYS];
    struct weir__wire_grant grants[KEYS];
    struct weir__wire_wait waits[KEYS][WAITS];
    struct weir__slice_ask asks[KEYS];
    int which[KEYS];
    uint32_t count;
    struct weir__wire_head head;
};

struct fleet {
    const struct fleet_options *o;
    struct script_client *client;
    struct fleet_result *result;
    struct weir__slice_terms terms;
    struct node nodes[NODES];
    double x[KEYS], x_at[KEYS], perfect[KEYS]; /* buckets: of what was admitted, and of what was asked */
    double now, next_arrival;
    uint64_t random;
    int draining;
};

static const char *const names[KEYS] = {"k0", "k1", "k2", "k3", "k4", "k5"};

/* ---- chance ------------------------------------------------------------------------------------------------------ */

static double draw(struct fleet *f)
{
    uint64_t z = f->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static double one_way(struct fleet *f)
{
    return f->o->latency * (0.5 + draw(f));
}

static double use_rate(const struct fleet *f)
{
    return f->terms.rate > f->o->rate_floor ? f->terms.rate : f->o->rate_floor;
}

static void target_of(struct weir__wire_target *target)
{
    *target = (struct weir__wire_target){.prefix = "fleet", .policy = "p", .shard = 0, .shards = 1};
}

static void numbers_of(const struct fleet *f, struct weir__wire_numbers *numbers)
{
    *numbers = (struct weir__wire_numbers){
        .limit = f->o->limit,
        .per_ns = f->o->per_ns,
        .burst = f->o->burst,
        .overshoot = f->o->overshoot,
        .interval = f->terms.interval,
        .timeout = f->terms.timeout,
    };
}

/* ---- the model: one perfect bucket a key ------------------------------------------------------------------------- */

static void refill_model(struct fleet *f, int k)
{
    double gain = f->terms.rate * (f->now - f->x_at[k]);
    f->x[k] = fmin(f->terms.burst, f->x[k] + gain);
    f->perfect[k] = fmin(f->terms.burst, f->perfect[k] + gain);
    f->x_at[k] = f->now;
}

static void model_asked(struct fleet *f, int k, double cost)
{
    refill_model(f, k);
    if (f->perfect[k] >= cost) {
        f->perfect[k] -= cost;
        f->result->perfect += cost;
    }
}

static void model_admitted(struct fleet *f, int k, double cost)
{
    refill_model(f, k);
    f->x[k] -= cost;
    f->result->admitted += cost;
    f->result->worst = fmin(f->result->worst, f->x[k]);
}

/* ---- a node's buckets -------------------------------------------------------------------------------------------- */

static void node_begin(struct fleet *f, struct node *n)
{
    memset(n, 0, sizeof *n);
    for (int i = 0; i < WEIR__WIRE_ID; i++) {
        n->id[i] = (uint8_t)(draw(f) * 256);
    }
    n->hello = 1;
    n->rtt = f->o->latency * 2;
    n->timer = f->now + f->terms.interval * draw(f);
    n->exec_at = n->reply_at = n->expires = FOREVER;
    n->fresh_until = f->now + f->terms.lifetime;
    for (int k = 0; k < KEYS; k++) {
        n->keys[k].at = f->now;
        n->keys[k].low = -1;
    }
}

static void refill(struct fleet *f, struct key *key)
{
    double end = fmin(f->now, key->until);
    if (end > key->at && key->rate > 0) {
        key->level = fmin(fmax(key->cap, key->level), key->level + key->rate * (end - key->at));
    }
    key->at = f->now;
}

/* Redis did not answer a batch nor its first repeat, or the slice's time is over. */
static int lapsed(const struct fleet *f, const struct node *n, const struct key *key)
{
    return n->attempts > 2 || f->now > (key->until > 0 ? key->until : n->fresh_until);
}

/* The outage policy: nothing, or the fallback share. */
static int take_lapsed(struct fleet *f, struct key *key, int64_t cost)
{
    double rate = key->fallback > 0 ? key->fallback : f->terms.rate / f->o->nodes;
    double cap = f->terms.burst * rate / f->terms.rate;
    if (!f->o->fallback) {
        return 0;
    }
    if (!key->falling) {
        key->falling = 1;
        key->f_level = fmin(cap, fmax(0, key->level));
        key->f_at = key->fell_at = f->now;
    }
    key->f_level = fmin(cap, key->f_level + rate * (f->now - key->f_at));
    key->f_at = f->now;
    if (key->f_level < (double)cost) {
        return 0;
    }
    key->f_level -= (double)cost;
    key->fall_spent += cost;
    return 1;
}

static int take(struct fleet *f, struct node *n, struct key *key, int64_t cost)
{
    refill(f, key);
    if (lapsed(f, n, key)) {
        return take_lapsed(f, key, cost);
    }
    double q0 = f->now > n->q0_until ? 0 : n->q0;
    if (f->o->unknown && q0 < 1) {
        q0 = 1;
    }
    if (f->now < key->hold) {
        q0 = 0;
    }
    if (key->level - (double)cost < -q0 - 1e-9) {
        return 0;
    }
    key->level -= (double)cost;
    return 1;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static void fill_record(struct fleet *f, struct node *n, int k)
{
    struct key *key = &n->keys[k];
    struct weir__wire_record *r = &n->records[n->count];
    struct weir__slice_ask *ask = &n->asks[n->count];
    weir__demand_add(&key->demand, f->now, key->attempts, (uint64_t)key->asked, f->terms.interval);
    key->attempts = 0;
    refill(f, key);
    if (lapsed(f, n, key)) {
        key->level = fmin(0, key->level);
        key->rate = 0;
    }
    ask->demand = weir__demand_rate(&key->demand, f->now, f->terms.interval);
    ask->want = weir__slice_want(&f->terms, ask->demand, n->rtt, (double)key->asked);
    ask->level = key->level;
    ask->rate = key->rate;
    ask->sent_ns = (uint64_t)(f->now * 1e9);
    int held = key->reserved || key->rate > 0 || fabs(key->level) > 1e-9;
    if (!held && ask->want <= 0 && key->spent == 0 && key->queued == 0 && !n->hello) {
        return;
    }
    *r = (struct weir__wire_record){
        .key = names[k],
        .key_len = 2,
        .spent = key->spent,
        .fallback_spent = key->fall_spent,
        .slice = held || ask->want > 0,
        .level = ask->level,
        .rate = ask->rate,
        .demand = ask->want > 0 ? ask->demand : 0,
        .want = ask->want,
        .max_cost = (double)key->asked,
        .known = key->known,
        .seed = key->total,
        .seed_age = f->now - key->total_at,
        .fallback = key->fallback > 0 ? key->fallback : f->terms.rate / f->o->nodes,
        .age = key->falling ? f->now - key->fell_at : 0,
        .waits = n->waits[n->count],
        .n_waits = key->queued,
    };
    memcpy(n->waits[n->count], key->queue, sizeof key->queue);
    key->queued = 0;
    key->spent = key->fall_spent = 0;
    key->asked = 0;
    n->which[n->count++] = k;
}

static int may_lose(const struct fleet *f, const struct node *n)
{
    return !f->draining && (!f->o->gentle || n->attempts <= 1);
}

/* One more try of the batch that is made. */
static void launch(struct fleet *f, struct node *n)
{
    n->attempts++;
    int lost = may_lose(f, n) && draw(f) < f->o->lose_batch;
    n->reply_at = FOREVER;
    n->exec_at = lost ? FOREVER : f->now + one_way(f);
    n->expires = f->now + (n->attempts == 1 ? f->terms.timeout : 0.1);
    f->result->losses += lost;
    f->result->repeats += n->attempts > 1;
}

static void send_batch(struct fleet *f, struct node *n)
{
    n->timer = f->now + f->terms.interval * (n->flying ? 0.25 : 0.9 + 0.2 * draw(f));
    if (n->flying) {
        return;
    }
    n->count = 0;
    for (int k = 0; k < f->o->keys; k++) {
        fill_record(f, n, k);
    }
    n->seq++;
    n->flying = 1;
    n->attempts = 0;
    n->first_sent = f->now;
    launch(f, n);
    f->result->batches++;
}

static int in_outage(const struct fleet *f)
{
    double at = f->now - BEGIN;
    return f->o->outage_at > 0 && at >= f->o->outage_at && at < f->o->outage_at + f->o->outage_s;
}

/* What Redis says of a key must agree with itself. */
static void check_key(struct fleet *f, int k)
{
    struct weir__wire_target target;
    struct weir__wire_head head;
    struct weir__wire_seen seen;
    static struct weir__wire_seen_slice s[512];
    double reserved = 0, rates = 0, caps = 0, fallbacks = 0, demands = 0;
    target_of(&target);
    ck_assert_int_eq(script_client_peek(f->client, &target, names[k], f->now, &head, &seen, s, 512), 0);
    ck_assert_uint_le(seen.n_slices, 512);
    for (unsigned i = 0; i < seen.n_slices; i++) {
        if (!s[i].expired) {
            reserved += s[i].reserved;
            rates += s[i].rate;
            caps += s[i].cap;
            fallbacks += s[i].fallback;
            demands += s[i].demand;
        }
    }
    double slack = 1e-5 * (f->terms.burst + f->terms.rate);
    ck_assert_double_eq_tol(seen.rates, rates, slack);
    ck_assert_double_eq_tol(seen.caps, caps, slack);
    ck_assert_double_eq_tol(seen.fallbacks, fallbacks, slack);
    ck_assert_double_eq_tol(seen.demands, demands, slack + 1e-6 * demands);
    ck_assert_double_ge(seen.reserved, reserved - slack); /* the dead grow on in the sum until they are swept */
    ck_assert_double_le(rates, f->terms.rate + slack);
    ck_assert_double_le(fallbacks, f->terms.rate + slack);
    ck_assert_double_le(seen.total, f->terms.burst + slack);
}

/* The batch reaches Redis. */
static void execute(struct fleet *f, struct node *n)
{
    struct weir__wire_batch batch = {
        .seq = n->seq,
        .nonce = (uint64_t)(draw(f) * 1e15),
        .epoch = n->epoch,
        .rtt = n->rtt,
        .nodes = n->nodes,
        .flags = (n->hello ? WEIR__WIRE_HELLO : 0) | (f->o->fallback ? WEIR__WIRE_OUTAGE_LOCAL : 0),
        .records = n->records,
        .count = n->count,
        .test_now = f->now,
    };
    n->exec_at = FOREVER;
    if (in_outage(f)) {
        return;
    }
    target_of(&batch.target);
    numbers_of(f, &batch.numbers);
    memcpy(batch.node, n->id, sizeof batch.node);
    int rc = script_client_sync(f->client, &batch, &n->head, n->grants);
    ck_assert_msg(rc == 0, "batch: %s", f->client->error ? f->client->reply : "not decoded");
    if (n->count > 0 && draw(f) < 0.1) {
        check_key(f, n->which[0]);
    }
    int lost = may_lose(f, n) && draw(f) < f->o->lose_reply;
    f->result->losses += lost;
    n->reply_at = lost ? FOREVER : f->now + one_way(f);
}

/* What waited was admitted; if its time was up it is gone all the same. */
static void serve_waits(struct fleet *f, struct node *n, uint32_t i, int late)
{
    struct weir__wire_record *r = &n->records[i];
    for (uint32_t j = 0; j < r->n_waits; j++) {
        double tokens = (double)r->waits[j].cost * r->waits[j].admitted;
        if (tokens <= 0) {
            continue;
        }
        if (late) {
            f->result->written += tokens;
        } else {
            model_admitted(f, n->which[i], tokens);
        }
    }
}

static void apply(struct fleet *f, struct node *n, uint32_t i, int late)
{
    struct key *key = &n->keys[n->which[i]];
    struct weir__wire_grant *g = &n->grants[i];
    struct weir__slice_answer answer = {
        .level = g->level,
        .rate = g->rate,
        .cap = g->cap,
        .fallback = g->fallback,
        .hold = g->hold,
        .total = g->total,
        .rich = g->rich,
    };
    struct weir__grant out;
    serve_waits(f, n, i, late);
    key->spent += g->carried;
    key->total = g->total;
    key->total_at = f->now;
    key->known = 1;
    if (!n->records[i].slice) {
        return;
    }
    refill(f, key);
    weir__slice_grant(&f->terms, &n->asks[i], &answer, (uint64_t)(f->now * 1e9), n->rtt, &out);
    key->level += out.level_delta - out.refill_back;
    key->rate = out.rate;
    key->cap = out.cap;
    key->low = out.low;
    key->until = (double)out.until / 1e9;
    key->hold = (double)out.hold / 1e9;
    key->fallback = out.fallback_rate;
    key->falling = 0;
    key->reserved = !weir__slice_nothing(&n->asks[i], &answer);
}

/* Redis does not know us: what the batch told goes back, and is told again with what was seen. */
static void register_again(struct fleet *f, struct node *n)
{
    for (uint32_t i = 0; i < n->count; i++) {
        struct key *key = &n->keys[n->which[i]];
        key->spent += n->records[i].spent;
        key->fall_spent += n->records[i].fallback_spent;
    }
    n->hello = 1;
    send_batch(f, n);
}

static void receive(struct fleet *f, struct node *n)
{
    int late = n->attempts > 1;
    n->flying = n->attempts = 0;
    n->reply_at = n->expires = FOREVER;
    ck_assert_int_ne(n->head.status, WEIR__WIRE_MISMATCH);
    ck_assert_int_ne(n->head.status, WEIR__WIRE_OLD);
    n->epoch = n->head.epoch;
    if (n->head.status == WEIR__WIRE_LOST) {
        register_again(f, n);
        return;
    }
    n->hello = 0;
    n->nodes = n->head.nodes;
    n->rtt = weir__slice_rtt(n->rtt, late ? 0 : f->now - n->first_sent);
    n->fresh_until = (double)weir__slice_until(&f->terms, (uint64_t)(n->first_sent * 1e9)) / 1e9;
    n->q0 = n->head.q0;
    n->q0_until = n->first_sent + WEIR__WIRE_LIVE - 10;
    for (uint32_t i = 0; i < n->count; i++) {
        apply(f, n, i, late);
    }
    if (!f->draining && draw(f) < f->o->crash) {
        node_begin(f, n);
    } else if (!f->draining && draw(f) < f->o->stall) {
        n->stalled = f->now + 2 * draw(f) * f->terms.lifetime;
    }
}

/* The answer is late: what is held grows no more, and the same bytes go again. */
static void expire(struct fleet *f, struct node *n)
{
    for (int k = 0; k < f->o->keys; k++) {
        refill(f, &n->keys[k]);
        n->keys[k].rate = 0;
    }
    launch(f, n);
}

/* ---- demand ------------------------------------------------------------------------------------------------------ */

static void ask_strictly(struct fleet *f, int k, int64_t cost)
{
    struct weir__wire_key key = {.key = names[k], .key_len = 2};
    struct weir__wire_strict_entry entry = {.key = 0, .op = WEIR__WIRE_TAKE, .cost = cost, .count = 1};
    struct weir__wire_strict batch = {
        .keys = &key,
        .n_keys = 1,
        .entries = &entry,
        .n_entries = 1,
        .test_now = f->now,
        .flags = f->o->fallback ? WEIR__WIRE_OUTAGE_LOCAL : 0,
    };
    struct weir__wire_head head;
    target_of(&batch.target);
    numbers_of(f, &batch.numbers);
    if (in_outage(f)) {
        return;
    }
    ck_assert_int_eq(script_client_strict(f->client, &batch, &head), 0);
    f->result->strict += entry.admitted;
    if (entry.admitted > 0) {
        model_admitted(f, k, (double)cost);
    }
}

static void arrive(struct fleet *f)
{
    struct node *n = &f->nodes[(int)(draw(f) * f->o->nodes)];
    int k = (int)(draw(f) * f->o->keys);
    int64_t cost = 1 + (int64_t)(draw(f) * (double)f->o->max_cost);
    struct key *key = &n->keys[k];
    double mean = 0.5 * (double)(f->o->max_cost + 1);
    f->next_arrival = f->now - log(1 - draw(f)) * mean / (use_rate(f) * f->o->load * f->o->keys);
    if (f->now < n->stalled) {
        return;
    }
    model_asked(f, k, (double)cost);
    if (draw(f) < f->o->strict) {
        ask_strictly(f, k, cost);
        return;
    }
    key->attempts += (uint64_t)cost;
    if (take(f, n, key, cost)) {
        key->spent += cost;
        model_admitted(f, k, (double)cost);
    } else {
        f->result->denials++;
        key->asked = cost > key->asked ? cost : key->asked;
        if (draw(f) < f->o->waits && key->queued < WAITS && !lapsed(f, n, key)) {
            key->queue[key->queued++] = (struct weir__wire_wait){.cost = cost, .count = 1};
        }
    }
    int soon = key->level < key->low || key->level < 1;
    if (soon && f->now >= key->hold && !n->flying) {
        send_batch(f, n);
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

enum what { ARRIVAL, TIMER, EXECUTE, RECEIVE, EXPIRE };

/* The next thing that happens, and to whom. A stalled node does nothing; what it sent goes its way. */
static enum what next_event(const struct fleet *f, int *who, double *at)
{
    enum what what = ARRIVAL;
    *at = f->draining ? FOREVER : f->next_arrival;
    for (int i = 0; i < f->o->nodes; i++) {
        const struct node *n = &f->nodes[i];
        const double times[] = {FOREVER, fmax(n->timer, n->stalled), n->exec_at, fmax(n->reply_at, n->stalled),
                                fmax(n->expires, n->stalled)};
        for (int j = TIMER; j <= EXPIRE; j++) {
            if (times[j] < *at) {
                *at = times[j];
                *who = i;
                what = (enum what)j;
            }
        }
    }
    return what;
}

static void step(struct fleet *f, double end)
{
    int who = 0;
    double at;
    enum what what = next_event(f, &who, &at);
    struct node *n = &f->nodes[who];
    f->now = fmin(fmax(at, f->now), end);
    if (at >= end) {
        return;
    }
    switch (what) {
    case ARRIVAL: arrive(f); break;
    case TIMER: send_batch(f, n); break;
    case EXECUTE: execute(f, n); break;
    case RECEIVE: receive(f, n); break;
    case EXPIRE: expire(f, n); break;
    }
}

static void run_until(struct fleet *f, double end)
{
    while (f->now < end) {
        step(f, end);
    }
}

static void sum_up(struct fleet *f)
{
    struct weir__wire_target target;
    struct weir__wire_head head;
    struct weir__wire_seen seen;
    target_of(&target);
    for (int k = 0; k < f->o->keys; k++) {
        ck_assert_int_eq(script_client_peek(f->client, &target, names[k], f->now, &head, &seen, NULL, 0), 0);
        f->result->in_redis += f->terms.burst - seen.total;
        check_key(f, k);
    }
}

void fleet_run(struct script_client *client, const struct fleet_options *options, struct fleet_result *result)
{
    static struct fleet fleet;
    struct fleet *f = &fleet;
    struct weir__wire_target target;
    memset(f, 0, sizeof *f);
    memset(result, 0, sizeof *result);
    ck_assert_int_le(options->nodes, NODES);
    ck_assert_int_le(options->keys, KEYS);
    f->o = options;
    f->client = client;
    f->result = result;
    f->random = options->seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    f->now = f->next_arrival = BEGIN;
    weir__slice_terms_set(&f->terms, options->limit, options->per_ns, options->burst, options->overshoot, 0.2, 0.05);
    target_of(&target);
    for (const char *which = "abn"; *which != 0; which++) {
        script_client_do(client, "DEL", &target, *which, NULL, NULL);
    }
    result->worst = f->terms.burst;
    for (int k = 0; k < KEYS; k++) {
        f->x[k] = f->perfect[k] = f->terms.burst;
        f->x_at[k] = BEGIN;
    }
    for (int i = 0; i < options->nodes; i++) {
        node_begin(f, &f->nodes[i]);
    }
    if (options->flush_at > 0) {
        run_until(f, BEGIN + options->flush_at);
        for (const char *which = "abn"; *which != 0; which++) {
            script_client_do(client, "DEL", &target, *which, NULL, NULL);
        }
    }
    run_until(f, BEGIN + options->seconds);
    f->draining = 1;
    run_until(f, BEGIN + options->seconds + 3);
    sum_up(f);
}
