/* SPDX-License-Identifier: MIT */
/*
 * What libweir calls on the caller's thread: it asks the loop's thread and waits, or doesn't. It must not know how
 * Redis is asked.
 */
#include "sync/sync.h"

#include <stdio.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <uv.h>

#include "sync/store.h"

#define WAIT_MAX_NS (365 * 86400 * WEIR__SECOND) /* who asks for longer means for ever, and no sum overflows */
#define NOBODY_WAITS_NS WEIR__SECOND             /* for a refund or a forgotten key that Redis has not taken yet */

static int is_open(struct weir_sync *sync)
{
    /* acquire: loop_thread */
    return atomic_load_explicit(&sync->accepting, memory_order_acquire);
}

static void hook_wake(void *ctx)
{
    struct weir_sync *sync = ctx;

    atomic_store_explicit(&sync->woken, 1, memory_order_relaxed);
    weir__sync_wake(sync);
}

static void hook_policy_changed(void *ctx, weir_policy_id id)
{
    struct weir_sync *sync = ctx;

    (void)id;
    atomic_store_explicit(&sync->policies_changed, 1, memory_order_relaxed);
    weir__sync_wake(sync);
}

/* ---- asking and waiting ------------------------------------------------------------------------------------------ */

static enum weir__query_kind kind_of(const struct weir_request *request)
{
    return request->cost == 0 ? WEIR__QUERY_LOOK : WEIR__QUERY_TAKE;
}

static void degrade(struct weir_sync *sync, enum weir__query_kind kind, struct weir_request *request)
{
    struct weir_result result;

    request->status = weir__strict_degrade_request(&sync->node, kind, request, &result);
    if (request->result)
        *request->result = result;
}

struct asked {
    struct weir_sync *sync;
    struct weir_request *requests;
    enum weir__query_kind kind; /* WEIR__QUERY_TAKE: by the cost */
};

static void on_answer(void *ctx, size_t i, const struct weir__query *query)
{
    struct asked *asked = ctx;
    struct weir_request *request = &asked->requests[i];

    if (!query) {
        degrade(asked->sync, asked->kind == WEIR__QUERY_TAKE ? kind_of(request) : asked->kind, request);
        return;
    }
    request->status = query->status;
    if (request->result)
        *request->result = query->result;
}

/* Pushes a query that `wait` waits for. Returns 1 where the loop must be woken. */
static int push_waiting(struct weir_sync *sync, struct weir__wait *wait, struct weir__query *query)
{
    int pushed;

    weir__wait_add(wait, query);
    if (!query)
        return 0;
    pushed = weir__queue_push(&sync->queue, &query->item);
    if (pushed < 0) {
        weir__wait_withdraw(wait);
        weir__query_free(&sync->node, query);
    }
    return pushed > 0;
}

static void ask_and_wait(struct weir_sync *sync, enum weir__query_kind kind, struct weir_request *requests, size_t n,
                         uint64_t timeout_ns)
{
    struct asked asked = {sync, requests, kind};
    struct weir__wait *wait = weir__wait_open(&sync->node, n);
    int wake = 0;

    for (size_t i = 0; i < n; i++) {
        if (!wait)
            on_answer(&asked, i, NULL);
        else
            wake |= push_waiting(sync, wait,
                                 weir__query_make(&sync->node, kind == WEIR__QUERY_TAKE ? kind_of(&requests[i]) : kind,
                                                  &requests[i], timeout_ns));
    }
    if (wake)
        weir__sync_wake(sync);
    if (wait)
        weir__wait_for(&sync->node, wait, uv_hrtime() + timeout_ns, on_answer, &asked);
}

/* The error for all of them where nobody may wait here, or 0. */
static int may_wait(struct weir_sync *sync, struct weir_request *requests, size_t n)
{
    int error = is_open(sync) && weir__sync_is_here(sync) ? WEIR_E_LOOP : 0;

    for (size_t i = 0; i < n && error; i++)
        requests[i].status = error;
    return error;
}

static int ask(struct weir_sync *sync, enum weir__query_kind kind, struct weir_request *requests, size_t n,
               uint64_t timeout_ns)
{
    int error = may_wait(sync, requests, n);

    if (error)
        return error;
    if (timeout_ns == 0)
        timeout_ns = sync->node.timeout_ns;
    else if (timeout_ns > WAIT_MAX_NS)
        timeout_ns = WAIT_MAX_NS;
    if (is_open(sync) && weir__strict_passes(sync->strict)) {
        ask_and_wait(sync, kind, requests, n, timeout_ns);
    } else {
        for (size_t i = 0; i < n; i++)
            degrade(sync, kind == WEIR__QUERY_TAKE ? kind_of(&requests[i]) : kind, &requests[i]);
    }
    return 0;
}

static int hook_strict(void *ctx, struct weir_request *requests, size_t n, uint64_t timeout_ns)
{
    return ask(ctx, WEIR__QUERY_TAKE, requests, n, timeout_ns);
}

static int hook_peek(void *ctx, const struct weir_request *request)
{
    struct weir_request own = *request;
    int error = ask(ctx, WEIR__QUERY_LOOK, &own, 1, 0);

    return error ? error : own.status;
}

static int hook_wait(void *ctx, const struct weir_request *request, uint64_t timeout_ns, struct weir_result *result)
{
    struct weir_sync *sync = ctx;
    struct weir_request own = *request;
    int status = may_wait(sync, &own, 1);

    if (status)
        return status;
    status = weir__seam_try(sync->node.w, request, result);
    if (status != WEIR__SEAM_ASK)
        return status;
    own.result = result;
    status = ask(sync, WEIR__QUERY_TAKE, &own, 1, timeout_ns);
    return status ? status : own.status;
}

/* ---- all or none ------------------------------------------------------------------------------------------------- */

/* Can one script decide them? The policies of one group share a slot; so do the keys of one shard. */
static int share_a_script(struct weir_sync *sync, const struct weir_request *requests, size_t n)
{
    struct weir__seam_policy first, other;
    uint32_t shards = sync->node.shards, shard;

    if (weir__seam_policy(sync->node.w, requests[0].policy, &first) || first.shadow)
        return 0;
    shard = weir__wire_shard(requests[0].key, requests[0].key_len, shards);
    for (size_t i = 1; i < n; i++) {
        if (weir__seam_policy(sync->node.w, requests[i].policy, &other) || other.shadow)
            return 0;
        if (first.group ? !other.group || strcmp(first.group, other.group) != 0
                        : requests[i].policy != requests[0].policy ||
                              weir__wire_shard(requests[i].key, requests[i].key_len, shards) != shard)
            return 0;
    }
    return 1;
}

struct asked_all {
    struct weir_sync *sync;
    struct weir_request *requests;
    struct weir_result *result;
    size_t n;
    int verdict;
};

static void take_members(struct asked_all *all, const struct weir__query *query)
{
    for (size_t i = 0; i < all->n; i++) {
        all->requests[i].status = query->members[i].status;
        if (all->requests[i].result)
            *all->requests[i].result = *query->members[i].result;
    }
}

static void on_answer_all(void *ctx, size_t i, const struct weir__query *query)
{
    struct asked_all *all = ctx;

    (void)i;
    if (!query)
        return;
    all->verdict = query->status;
    *all->result = query->result;
    take_members(all, query);
}

static int ask_together(struct weir_sync *sync, struct weir_request *requests, size_t n, struct weir_result *result)
{
    struct asked_all all = {sync, requests, result, n, WEIR_E_TIMEOUT};
    struct weir__node *node = &sync->node;
    struct weir__query *query = weir__query_make_all(node, requests, n, node->timeout_ns);
    struct weir__wait *wait;

    if (!query)
        return WEIR_E_NOMEM;
    if (is_open(sync) && weir__strict_passes(sync->strict) && (wait = weir__wait_open(node, 1))) {
        if (push_waiting(sync, wait, query))
            weir__sync_wake(sync);
        weir__wait_for(node, wait, uv_hrtime() + node->timeout_ns, on_answer_all, &all);
        if (all.verdict != WEIR_E_TIMEOUT)
            return all.verdict;
        query = weir__query_make_all(node, requests, n, node->timeout_ns);
        if (!query)
            return WEIR_E_NOMEM;
    }
    all.verdict = weir__strict_degrade(node, query, result);
    take_members(&all, query);
    weir__query_free(node, query);
    return all.verdict;
}

/* What may have been charged and what was not are told the same: who gives back both makes tokens of nothing. */
static void give_back(struct weir_sync *sync, const struct weir_request *request)
{
    if (request->status != WEIR_ALLOW || request->cost == 0 || (request->result->flags & WEIR_SHADOW))
        return;
    if ((request->result->flags & WEIR_DEGRADED) || sync->hooks.give(sync, request))
        atomic_fetch_add_explicit(&sync->node.count.unreturned_tokens, (uint64_t)request->cost, memory_order_relaxed);
}

/* One by one, but sent together; what was given is given back when another one denies. A crash in between leaves a
 * charge (counted in Redis as any other). */
static int ask_apart(struct weir_sync *sync, struct weir_request *requests, size_t n, struct weir_result *result)
{
    int error = ask(sync, WEIR__QUERY_TAKE, requests, n, 0), verdict = WEIR_ALLOW;
    uint64_t longest = 0;

    for (size_t i = 0; i < n && !error; i++) {
        const struct weir_result *one = requests[i].result;

        if (requests[i].status < 0)
            error = requests[i].status;
        if (requests[i].status == WEIR_DENY && one->retry_after_ns > longest)
            longest = one->retry_after_ns;
        if (i == 0 || (requests[i].status == WEIR_DENY && verdict == WEIR_ALLOW))
            *result = *one;
        if (requests[i].status == WEIR_DENY)
            verdict = WEIR_DENY;
    }
    if (verdict == WEIR_ALLOW && !error)
        return verdict;
    for (size_t i = 0; i < n; i++)
        give_back(sync, &requests[i]);
    result->retry_after_ns = longest;
    return error ? error : verdict;
}

static int hook_strict_all(void *ctx, struct weir_request *requests, size_t n, struct weir_result *result)
{
    struct weir_sync *sync = ctx;
    struct weir_result own[WEIR__WIRE_MEMBERS];
    int error = may_wait(sync, requests, n);

    if (error)
        return error;
    for (size_t i = 0; i < n; i++) {
        memset(&own[i], 0, sizeof own[i]);
        if (!requests[i].result)
            requests[i].result = &own[i];
    }
    memset(result, 0, sizeof *result);
    return share_a_script(sync, requests, n) ? ask_together(sync, requests, n, result)
                                             : ask_apart(sync, requests, n, result);
}

/* ---- not waiting ------------------------------------------------------------------------------------------------- */

/* Hands a query over; it is freed where that fails. */
static int push(struct weir_sync *sync, struct weir__query *query)
{
    int pushed = weir__queue_push(&sync->queue, &query->item);

    if (pushed < 0) {
        weir__query_free(&sync->node, query);
        return WEIR_E_CLOSED;
    }
    if (weir__sync_is_here(sync))
        weir__sync_reference(sync);
    if (pushed)
        weir__sync_wake(sync);
    return 0;
}

static int push_unheard(struct weir_sync *sync, enum weir__query_kind kind, const struct weir_request *request)
{
    struct weir__query *query;

    if (!is_open(sync))
        return WEIR_E_CLOSED;
    if (!weir__strict_passes(sync->strict))
        return WEIR_E_TIMEOUT;
    query = weir__query_make(&sync->node, kind, request, NOBODY_WAITS_NS);
    return query ? push(sync, query) : WEIR_E_NOMEM;
}

static int hook_give(void *ctx, const struct weir_request *request)
{
    return push_unheard(ctx, WEIR__QUERY_GIVE, request);
}

static int hook_forget(void *ctx, weir_policy_id id, const void *key, size_t key_len)
{
    struct weir_request request = {.policy = id, .key = key, .key_len = key_len};

    return push_unheard(ctx, WEIR__QUERY_FORGET, &request);
}

static int hook_async(void *ctx, const struct weir_request *request, weir_take_cb cb, void *arg)
{
    struct weir_sync *sync = ctx;
    struct weir__query *query;
    int status;

    if (!is_open(sync))
        return WEIR_E_CLOSED;
    query = weir__query_make(&sync->node, kind_of(request), request, sync->node.timeout_ns);
    if (!query)
        return WEIR_E_NOMEM;
    query->cb = cb;
    query->arg = arg;
    status = weir__seam_try(sync->node.w, request, &query->result);
    if (status < 0) {
        weir__query_free(&sync->node, query);
        return status;
    }
    if (status == WEIR__SEAM_ASK && !weir__strict_passes(sync->strict))
        status = weir__strict_degrade(&sync->node, query, &query->result);
    if (status != WEIR__SEAM_ASK) {
        query->status = status;
        query->item.kind = WEIR__QUERY_TOLD;
    }
    return push(sync, query);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static void hook_stats(void *ctx, struct weir_stats *stats)
{
    struct weir_sync *sync = ctx;
    struct weir__counters *count = &sync->node.count;

    stats->syncs = atomic_load_explicit(&count->syncs, memory_order_relaxed);
    stats->reports = atomic_load_explicit(&count->reports, memory_order_relaxed);
    stats->sync_errors = atomic_load_explicit(&count->sync_errors, memory_order_relaxed);
    stats->strict = atomic_load_explicit(&count->strict, memory_order_relaxed);
    stats->pending_tokens = atomic_load_explicit(&count->pending_tokens, memory_order_relaxed);
    stats->written_off_tokens = atomic_load_explicit(&count->written_off_tokens, memory_order_relaxed);
    stats->unreturned_tokens = atomic_load_explicit(&count->unreturned_tokens, memory_order_relaxed);
    stats->last_sync_ns = atomic_load_explicit(&count->last_sync_ns, memory_order_relaxed);
    stats->store_up = atomic_load_explicit(&count->store_up, memory_order_acquire);
    if (is_open(sync))
        stats->reconnects = weir__store_reconnects(sync->node.store);
}

_Static_assert(WEIR__LINK_KINDS <= WEIR__SEAM_KINDS_MAX, "a line each");

static void hook_metrics(void *ctx, struct weir__seam_metrics *out)
{
    struct weir_sync *sync = ctx;
    struct weir__counters *count = &sync->node.count;

    weir__measure_read(&count->sync_took, &out->sync);
    weir__measure_read(&count->strict_took, &out->strict);
    out->kinds = 0;
    for (int kind = WEIR__LINK_OK + 1; kind < WEIR__LINK_KINDS; kind++) {
        out->errors[out->kinds].kind = weir__link_kind_label((enum weir__link_kind)kind);
        out->errors[out->kinds++].count = atomic_load_explicit(&count->errors[kind], memory_order_relaxed);
    }
    snprintf(out->hiredis, sizeof out->hiredis, "%d.%d.%d", HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
    snprintf(out->libuv, sizeof out->libuv, "%s", uv_version_string());
}

void weir__sync_hooks(struct weir_sync *sync, struct weir__hooks *hooks)
{
    *hooks = (struct weir__hooks){.ctx = sync,
                                  .wake = hook_wake,
                                  .strict = hook_strict,
                                  .strict_all = hook_strict_all,
                                  .peek = hook_peek,
                                  .give = hook_give,
                                  .async = hook_async,
                                  .wait = hook_wait,
                                  .forget = hook_forget,
                                  .policy_changed = hook_policy_changed,
                                  .stats = hook_stats,
                                  .metrics = hook_metrics};
}
