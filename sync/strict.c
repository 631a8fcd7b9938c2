/* SPDX-License-Identifier: MIT */
/*
 * Lanes, deadlines and the circuit. It must not know how queries are merged (strict_batch.c) or what an answer means
 * (strict_answer.c).
 */
#include "sync/strict_state.h"

#include <string.h>

#include "sync/seen.h"

#define FAILURES_MAX 3u               /* in a row: nobody waits any more */
#define PROBE_NS (100 * WEIR__MS)     /* one query passes a shut circuit so often */
#define EXPIRY_MIN_NS (2 * WEIR__MS)  /* how often deadlines are looked at */
#define FLYING_MAX 256u               /* scripts on their way, however small: the link's line is only so long */
#define LATELY_NS (10 * WEIR__SECOND) /* for so long at least, twice at most, the shortest round trip is remembered */

/* ---- the circuit ------------------------------------------------------------------------------------------------- */

int weir__strict_passes(struct weir__strict *strict)
{
    uint64_t now, probe;

    if (!atomic_load_explicit(&strict->shut, memory_order_relaxed))
        return 1;
    if (!atomic_load_explicit(&strict->up, memory_order_relaxed))
        return 0;
    now = uv_hrtime();
    probe = atomic_load_explicit(&strict->probe_at, memory_order_relaxed);
    /* relaxed: these orders nothing; at worst two queries probe */
    return now >= probe && atomic_compare_exchange_strong_explicit(&strict->probe_at, &probe, now + PROBE_NS,
                                                                   memory_order_relaxed, memory_order_relaxed);
}

static void shut(struct weir__strict *strict, int on)
{
    if (on == atomic_load_explicit(&strict->shut, memory_order_relaxed))
        return;
    if (on)
        atomic_store_explicit(&strict->probe_at, uv_hrtime() + PROBE_NS, memory_order_relaxed);
    atomic_store_explicit(&strict->shut, on, memory_order_relaxed);
    weir__seam_log(strict->node->w, WEIR_LOG_INFO,
                   on ? "strict policies are answered by their outage policies" : "strict policies ask Redis");
}

void weir__strict_score(struct weir__strict *strict, int good)
{
    if (good) {
        strict->failures = 0;
        shut(strict, 0);
        return;
    }
    weir__count_add(&strict->node->count.sync_errors, 1);
    if (++strict->failures >= FAILURES_MAX)
        shut(strict, 1);
}

void weir__strict_link(struct weir__strict *strict, int up)
{
    strict->failures = 0;
    strict->took = strict->shortest = 0; /* it may be another server */
    atomic_store_explicit(&strict->up, up, memory_order_relaxed);
    shut(strict, !up);
}

/* ---- verdicts without Redis -------------------------------------------------------------------------------------- */

/* What the key's bucket holds, as far as Redis has said; < 0: it has not, or nobody asks. */
static double known(struct weir__node *node, const struct weir_request *request)
{
    struct weir__seam_policy policy;
    uint64_t mono = uv_hrtime();

    if (weir__seam_policy(node->w, request->policy, &policy) || policy.mode != WEIR_STRICT ||
        policy.on_outage != WEIR_OUTAGE_LOCAL || !request->key || request->key_len > WEIR_KEY_MAX)
        return -1;
    return weir__seen_level(node->seen, request->policy, weir__query_hash(node, request->key, request->key_len),
                            &policy, mono, mono);
}

int weir__strict_degrade_request(struct weir__node *node, enum weir__query_kind kind,
                                 const struct weir_request *request, struct weir_result *result)
{
    struct weir_request ask = *request;
    int status;

    memset(result, 0, sizeof *result);
    if (kind == WEIR__QUERY_GIVE || kind == WEIR__QUERY_FORGET)
        return WEIR_E_TIMEOUT;
    if (kind == WEIR__QUERY_LOOK)
        ask.cost = 0; /* it consumes nothing */
    ask.result = result;
    status = weir__seam_outage_take(node->w, &ask, known(node, &ask), result);
    if (kind == WEIR__QUERY_LOOK && status == WEIR_ALLOW && request->cost > result->remaining)
        status = WEIR_DENY;
    return status;
}

/* All or none. Looked at first, so that hardly ever one is charged and a later one denies. */
static int degrade_all(struct weir__node *node, const struct weir__query *query, struct weir_result *result)
{
    int verdict = WEIR_ALLOW;

    for (int pass = 0; pass < 2 && verdict == WEIR_ALLOW; pass++)
        for (uint32_t i = 0; i < query->n; i++) {
            struct weir_request *member = &query->members[i];

            if (pass && verdict != WEIR_ALLOW)
                break;
            member->status =
                weir__strict_degrade_request(node, pass ? WEIR__QUERY_TAKE : WEIR__QUERY_LOOK, member, member->result);
            if (i == 0 || (member->status != WEIR_ALLOW && verdict == WEIR_ALLOW))
                *result = *member->result;
            if (member->status != WEIR_ALLOW)
                verdict = member->status;
        }
    return verdict;
}

int weir__strict_degrade(struct weir__node *node, const struct weir__query *query, struct weir_result *result)
{
    struct weir_request request = {
        .policy = query->policy, .key = query->key, .key_len = query->key_len, .cost = query->cost};

    if (query->item.kind == WEIR__QUERY_ALL)
        return degrade_all(node, query, result);
    return weir__strict_degrade_request(node, query->item.kind, &request, result);
}

void weir__strict_fail(struct weir__strict *strict, struct weir__query *query, int keep)
{
    if (!keep)
        strict->pending--;
    if (query->wait) { /* he may be leaving this moment, and answers himself then: so he always does, or both would */
        weir__query_fail(strict->node, query);
        return;
    }
    if (query->item.kind == WEIR__QUERY_GIVE)
        atomic_fetch_add_explicit(&strict->node->count.unreturned_tokens, (uint64_t)query->cost, memory_order_relaxed);
    query->status = weir__strict_degrade(strict->node, query, &query->result);
    weir__query_answer(strict->node, query, keep);
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

static struct weir__strict_lanes *make_lanes(struct weir__node *node, weir_policy_id id)
{
    struct weir__strict_lanes *lanes =
        weir__node_alloc(node, sizeof *lanes + node->shards * sizeof(struct weir__strict_lane));

    if (!lanes)
        return NULL;
    lanes->id = id;
    for (uint32_t i = 0; i < node->shards; i++) {
        lanes->lanes[i].shard = i;
        weir__wire_buf_init(&lanes->lanes[i].names, &node->mem);
    }
    return lanes;
}

static void free_lanes(struct weir__node *node, struct weir__strict_lanes *lanes)
{
    for (uint32_t i = 0; lanes && i < node->shards; i++)
        weir__wire_buf_deinit(&lanes->lanes[i].names);
    weir__node_free(node, lanes, sizeof *lanes + node->shards * sizeof(struct weir__strict_lane));
}

static struct weir__strict_lanes *lanes_of(struct weir__strict *strict, weir_policy_id id)
{
    struct weir__node *node = strict->node;

    if (id >= strict->lane_room) {
        uint32_t room = (id / 16 + 1) * 16;
        struct weir__strict_lanes **more = weir__node_alloc(node, room * sizeof(struct weir__strict_lanes *));

        if (!more)
            return NULL;
        if (strict->lane_room)
            memcpy(more, strict->lanes, strict->lane_room * sizeof(struct weir__strict_lanes *));
        weir__node_free(node, strict->lanes, strict->lane_room * sizeof(struct weir__strict_lanes *));
        strict->lanes = more;
        strict->lane_room = room;
    }
    if (!strict->lanes[id])
        strict->lanes[id] = make_lanes(node, id);
    return strict->lanes[id];
}

void weir__strict_make_ready(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                             struct weir__strict_lane *lane)
{
    if (lane->ready || !lane->first)
        return;
    lane->ready = 1;
    lane->next = NULL;
    if (lanes->last)
        lanes->last->next = lane;
    else
        lanes->first = lane;
    lanes->last = lane;
    lanes->ready_count++;
    if (lanes->ready)
        return;
    lanes->ready = 1;
    lanes->next = NULL;
    if (strict->last_ready)
        strict->last_ready->next = lanes;
    else
        strict->ready = lanes;
    strict->last_ready = lanes;
}

struct weir__strict_lane *weir__strict_next_lane(struct weir__strict_lanes *lanes)
{
    struct weir__strict_lane *lane = lanes->first;

    if (lane) {
        lanes->first = lane->next;
        if (!lanes->first)
            lanes->last = NULL;
        lanes->ready_count--;
        lane->ready = 0;
    }
    return lane;
}

/* The first policy goes to the end, where anything of it is left. */
static void turn(struct weir__strict *strict)
{
    struct weir__strict_lanes *lanes = strict->ready;

    if (lanes->first && !lanes->next)
        return;
    strict->ready = lanes->next;
    if (!strict->ready)
        strict->last_ready = NULL;
    lanes->ready = lanes->first != NULL;
    if (!lanes->ready)
        return;
    lanes->next = NULL;
    strict->last_ready->next = lanes;
    strict->last_ready = lanes;
}

struct weir__query *weir__strict_pop(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                                     struct weir__strict_lane *lane)
{
    struct weir__query *query = lane->first;

    lane->first = query->next;
    if (!lane->first)
        lane->last = NULL;
    lane->count--;
    lanes->queued--;
    strict->queued--;
    query->next = NULL;
    return query;
}

static void append(struct weir__strict *strict, struct weir__strict_lanes *lanes, struct weir__strict_lane *lane,
                   struct weir__query *query)
{
    query->next = NULL;
    if (lane->last)
        lane->last->next = query;
    else
        lane->first = query;
    lane->last = query;
    lane->count++;
    lanes->queued++;
    strict->queued++;
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

static void on_expiry(uv_timer_t *timer);

static void arm_expiry(struct weir__strict *strict, uint64_t deadline)
{
    uint64_t now = uv_hrtime();

    if (deadline >= strict->expiry_at)
        return;
    strict->expiry_at = deadline;
    if (deadline < now + EXPIRY_MIN_NS)
        deadline = now + EXPIRY_MIN_NS;
    uv_update_time(strict->node->loop);
    uv_timer_start(&strict->expiry, on_expiry, (deadline - now) / WEIR__MS + 1, 0);
}

void weir__strict_put_back(struct weir__strict *strict, struct weir__query *query)
{
    struct weir__strict_lanes *lanes = strict->lanes[query->policy];
    struct weir__strict_lane *lane = &lanes->lanes[query->shard];

    query->next = lane->first;
    lane->first = query;
    if (!lane->last)
        lane->last = query;
    lane->count++;
    lanes->queued++;
    strict->queued++;
    weir__strict_make_ready(strict, lanes, lane);
    arm_expiry(strict, query->deadline);
}

/* Those that never left end here; who waits for one has left by himself. */
static uint64_t expire_lane(struct weir__strict *strict, struct weir__strict_lanes *lanes,
                            struct weir__strict_lane *lane, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t left = lane->count; left; left--) {
        struct weir__query *query = weir__strict_pop(strict, lanes, lane);

        if (query->deadline <= now) {
            if (!atomic_load_explicit(&strict->up, memory_order_relaxed) && ++strict->failures >= FAILURES_MAX)
                shut(strict, 1);
            weir__strict_fail(strict, query, 0);
            continue;
        }
        if (query->deadline < next)
            next = query->deadline;
        append(strict, lanes, lane, query);
    }
    return next;
}

/* In a script that is on its way: nobody waits longer, but the place in the entry stays. */
static uint64_t expire_batch(struct weir__strict *strict, struct weir__strict_batch *batch, uint64_t now)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t i = 0; i < batch->n_entries; i++)
        for (struct weir__query *query = batch->chains[i]; query; query = query->next) {
            if (query->wait || query->answered)
                continue;
            if (query->deadline <= now)
                weir__strict_fail(strict, query, 1);
            else if (query->deadline < next)
                next = query->deadline;
        }
    return next;
}

static void on_expiry(uv_timer_t *timer)
{
    struct weir__strict *strict = timer->data;
    uint64_t now = uv_hrtime(), next = UINT64_MAX, at;

    strict->expiry_at = UINT64_MAX;
    for (struct weir__strict_lanes *lanes = strict->ready; lanes; lanes = lanes->next)
        for (struct weir__strict_lane *lane = lanes->first; lane; lane = lane->next)
            if ((at = expire_lane(strict, lanes, lane, now)) < next)
                next = at;
    for (struct weir__strict_batch *batch = strict->flying; batch; batch = batch->next)
        if ((at = expire_batch(strict, batch, now)) < next)
            next = at;
    arm_expiry(strict, next);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static void on_window(uv_timer_t *timer)
{
    struct weir__strict *strict = timer->data;

    strict->window_open = 0; /* the pump follows in this turn */
}

void weir__strict_ask(struct weir__strict *strict, struct weir__query *query)
{
    struct weir__node *node = strict->node;
    struct weir__policy *policy = weir__node_policy(node, query->policy);
    struct weir__strict_lanes *lanes = policy ? lanes_of(strict, query->policy) : NULL;

    strict->pending++;
    if (!lanes || strict->stopped) {
        weir__strict_fail(strict, query, 0);
        return;
    }
    append(strict, lanes, &lanes->lanes[query->shard], query);
    weir__strict_make_ready(strict, lanes, &lanes->lanes[query->shard]);
    arm_expiry(strict, query->deadline);
    if (node->strict_window_ns && strict->queued == 1 && !strict->window_open) {
        strict->window_open = 1;
        uv_update_time(node->loop);
        uv_timer_start(&strict->window, on_window, (node->strict_window_ns + WEIR__MS - 1) / WEIR__MS, 0);
    }
}

size_t weir__strict_pending(const struct weir__strict *strict)
{
    return strict->pending;
}

static void send_batch(struct weir__strict *strict, struct weir__strict_batch *batch, uint64_t mono)
{
    uint64_t timeout = batch->deadline > mono + WEIR__MS ? batch->deadline - mono : WEIR__MS;

    batch->sent_at = mono;
    WEIR__PROBE2(strict_send, batch->id, batch->bytes.len);
    batch->sent_now = weir_now(strict->node->w);
    if (weir__store_command(strict->node->store, batch->bytes.data, batch->bytes.len, timeout, weir__strict_on_reply,
                            batch)) {
        weir__strict_fail_batch(strict, batch);
        weir__strict_batch_free(strict, batch);
        return;
    }
    batch->next = strict->flying;
    if (strict->flying)
        strict->flying->prev = batch;
    strict->flying = batch;
    strict->flying_count++;
    strict->weight += batch->weight;
}

int weir__strict_is_backlog(const struct weir__strict *strict)
{
    const struct weir__node *node = strict->node;

    return node->batch_max > 1 && strict->queued + strict->weight > (size_t)node->window * node->batch_max;
}

void weir__strict_took(struct weir__strict *strict, uint64_t now, uint64_t took)
{
    strict->took = took;
    if (!strict->shortest || now - strict->shortest_since > LATELY_NS) {
        strict->shortest_before = strict->shortest ? strict->shortest : took;
        strict->shortest = took;
        strict->shortest_since = now;
    } else if (took < strict->shortest) {
        strict->shortest = took;
    }
}

/* Scripts queue up where a round trip takes twice what it took at best. What is sent then waits there; what is kept
 * here meanwhile is merged, and so shortens the queue. Where they don't queue, keeping any is only a wait, on a long
 * line a long one. In a cluster the scripts on their way are of many servers, and one may be slow alone. */
static int is_behind(const struct weir__strict *strict)
{
    uint64_t shortest = strict->shortest < strict->shortest_before ? strict->shortest : strict->shortest_before;

    return strict->took > 2 * shortest && !strict->one_slot && !weir__store_is_cluster(strict->node->store);
}

/* Full batches fill the window; small ones share it. Under backlog it is four times as wide: twice as many batches of
 * twice the size. A queue at Redis is never of more batches than that, small ones included. */
static int has_room(const struct weir__strict *strict)
{
    uint32_t limit = strict->node->window * strict->node->batch_max;
    uint32_t flying = is_behind(strict) ? 2 * strict->node->window : FLYING_MAX;

    if (weir__strict_is_backlog(strict))
        limit *= 4;
    return strict->weight < limit && strict->flying_count < (flying < FLYING_MAX ? flying : FLYING_MAX);
}

void weir__strict_pump(struct weir__strict *strict)
{
    uint64_t mono;

    if (!strict->ready || strict->stopped || strict->window_open ||
        !atomic_load_explicit(&strict->up, memory_order_relaxed))
        return;
    mono = uv_hrtime();
    while (strict->ready && has_room(strict)) {
        struct weir__strict_batch *batch = weir__strict_build(strict, strict->ready, mono);

        turn(strict);
        if (batch)
            send_batch(strict, batch, mono);
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int weir__strict_open(struct weir__strict **out, struct weir__node *node, void (*alive)(void *arg, uint64_t now),
                      void *arg)
{
    struct weir__strict *strict = weir__node_alloc(node, sizeof *strict);

    *out = strict;
    if (!strict)
        return WEIR_E_NOMEM;
    strict->node = node;
    node->seen = weir__seen_open(node);
    if (!node->seen) {
        weir__node_free(node, strict, sizeof *strict);
        *out = NULL;
        return WEIR_E_NOMEM;
    }
    strict->alive = alive;
    strict->alive_arg = arg;
    strict->expiry_at = UINT64_MAX;
    return 0;
}

void weir__strict_start(struct weir__strict *strict)
{
    uv_timer_init(strict->node->loop, &strict->expiry);
    uv_timer_init(strict->node->loop, &strict->window);
    strict->expiry.data = strict->window.data = strict;
    uv_unref((uv_handle_t *)&strict->expiry);
    uv_unref((uv_handle_t *)&strict->window);
    strict->handles = 2;
    strict->started = 1;
}

void weir__strict_stop(struct weir__strict *strict)
{
    strict->stopped = 1;
    atomic_store_explicit(&strict->shut, 1, memory_order_relaxed);
    atomic_store_explicit(&strict->up, 0, memory_order_relaxed);
    if (!strict->started)
        return;
    uv_timer_stop(&strict->expiry);
    uv_timer_stop(&strict->window);
    for (; strict->ready; turn(strict))
        for (struct weir__strict_lane *lane; (lane = weir__strict_next_lane(strict->ready));)
            while (lane->first)
                weir__strict_fail(strict, weir__strict_pop(strict, strict->ready, lane), 0);
    for (struct weir__strict_batch *batch = strict->flying; batch; batch = batch->next) {
        weir__strict_fail_batch(strict, batch);
        batch->n_entries = batch->n_shards = 0;
    }
}

static void deinit(struct weir__strict *strict)
{
    struct weir__node *node = strict->node;
    void (*closed)(void *arg) = strict->closed;
    void *arg = strict->closed_arg;

    weir__seen_close(node, node->seen);
    node->seen = NULL;
    for (uint32_t id = 0; id < strict->lane_room; id++)
        free_lanes(node, strict->lanes[id]);
    weir__node_free(node, strict->lanes, strict->lane_room * sizeof(struct weir__strict_lanes *));
    weir__node_free(node, strict, sizeof *strict);
    if (closed)
        closed(arg);
}

static void on_closed(uv_handle_t *handle)
{
    struct weir__strict *strict = handle->data;

    if (--strict->handles == 0)
        deinit(strict);
}

void weir__strict_close(struct weir__strict *strict, void (*cb)(void *arg), void *arg)
{
    strict->closed = cb;
    strict->closed_arg = arg;
    if (!strict->started) {
        deinit(strict);
        return;
    }
    uv_close((uv_handle_t *)&strict->expiry, on_closed);
    uv_close((uv_handle_t *)&strict->window, on_closed);
}
