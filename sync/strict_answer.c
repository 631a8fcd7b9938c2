/* SPDX-License-Identifier: MIT */
/*
 * From Redis' answers to verdicts: what was admitted is dealt in the order in which it was asked for. It must not know
 * how batches are made.
 */
#include "sync/strict_state.h"

#include <math.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "sync/seen.h"

#define APART_NS WEIR__SECOND /* no script of several shards for so long after one that failed */
#define TICK_NS 1000          /* of Redis' clock: a wait is rounded up to the next, and one more for where it begins */

/* ns until `tokens` are earned. */
static uint64_t time_for(const struct weir__wire_numbers *numbers, double tokens)
{
    double ns;

    if (tokens <= 0)
        return 0;
    ns = tokens * (double)numbers->per_ns / (double)numbers->limit;
    if (ns >= 9e18)
        return WEIR_NEVER - 1;
    return ((uint64_t)(ns / TICK_NS) + 2) * TICK_NS;
}

/* total: of the fleet; free: of it, what nobody has reserved; both right after the decision. */
static void fill(struct weir_result *result, const struct weir__wire_head *head, weir_policy_id id, int status,
                 int64_t cost, double total, double free)
{
    const struct weir__wire_numbers *numbers = &head->numbers;

    memset(result, 0, sizeof *result);
    result->policy = id;
    result->limit = numbers->burst;
    result->remaining = free > 0 ? (int64_t)floor(free + 1e-9) : 0;
    if ((double)numbers->burst - total > 1e-9) /* less is a rounding */
        result->reset_after_ns = time_for(numbers, (double)numbers->burst - total);
    if (status != WEIR_DENY)
        return;
    if ((uint64_t)cost > numbers->burst) {
        result->retry_after_ns = WEIR_NEVER;
        return;
    }
    result->retry_after_ns = time_for(numbers, fmax((double)cost - free, 1e-9));
    if (head->recovering > 0 && result->retry_after_ns < (uint64_t)(head->recovering * 1e9))
        result->retry_after_ns = (uint64_t)(head->recovering * 1e9);
}

static void settle(struct weir__strict *strict, struct weir__query *query, int status)
{
    struct weir__node *node = strict->node;
    struct weir__policy *policy = weir__node_policy(node, query->policy);

    if (query->item.kind != WEIR__QUERY_LOOK) {
        weir__seam_count(node->w, query->policy, status);
        weir__count_add(&node->count.strict, 1);
    }
    if (status == WEIR_DENY && policy->is.shadow) {
        query->result.flags |= WEIR_SHADOW;
        status = WEIR_ALLOW;
    }
    query->status = status;
    strict->pending--;
    weir__query_answer(node, query, 0);
}

/* Entry i of a shard; query: its first. */
static void deal(struct weir__strict *strict, const struct weir__wire_strict *shard, const struct weir__wire_head *head,
                 uint32_t i, struct weir__query *query, uint64_t lost_at)
{
    const struct weir__wire_strict_entry *entry = &shard->entries[i];
    const struct weir__wire_key *key = &shard->keys[entry->key];
    struct weir__query *next;
    uint32_t left = entry->op == WEIR__WIRE_TAKE ? entry->admitted : 0;
    double reserved = key->total - key->free; /* as it was when this entry's turn came */

    if (query)
        weir__seen_note(strict->node->seen, query->policy, query->hash, entry->free + reserved, strict->answered_at,
                        lost_at);
    for (; query; query = next) {
        double later = 0; /* what those after this one were given */
        int status = WEIR_DENY;

        next = query->next;
        if (query->answered) { /* its place in the queue was kept; it was told something else long ago */
            left -= left > 0;
            strict->pending--;
            weir__query_free(strict->node, query);
            continue;
        }
        if (entry->op == WEIR__WIRE_TAKE && left > 0) {
            later = (double)--left * (double)entry->cost;
            status = WEIR_ALLOW;
        } else if (entry->op == WEIR__WIRE_GIVE ||
                   (entry->op == WEIR__WIRE_LOOK && (query->cost == 0 || entry->free + 1e-9 >= (double)query->cost))) {
            status = WEIR_ALLOW;
        }
        fill(&query->result, head, query->policy, status, query->cost, entry->free + reserved + later,
             entry->free + later);
        query->result.limiter = strict->node->w;
        if (entry->op == WEIR__WIRE_GIVE) {
            query->status = 0;
            strict->pending--;
            weir__query_answer(strict->node, query, 0);
        } else {
            settle(strict, query, status);
        }
    }
}

/* When the member's shard was found to have lost its state; 0: never, or nobody asked for it by itself. */
static uint64_t lost_at(const struct weir__strict *strict, const struct weir_request *member)
{
    const struct weir__strict_lanes *lanes = member->policy < strict->lane_room ? strict->lanes[member->policy] : NULL;

    return lanes ? lanes->lanes[weir__wire_shard(member->key, member->key_len, strict->node->shards)].lost_at : 0;
}

/* What all members together ask of the bucket of member i: it may be named more than once. */
static int64_t asked_of(const struct weir__query *query, uint32_t i)
{
    const struct weir_request *one = &query->members[i], *other;
    int64_t sum = 0;

    for (other = query->members; other < query->members + query->n; other++)
        if (other->policy == one->policy && other->key_len == one->key_len &&
            memcmp(other->key, one->key, one->key_len) == 0)
            sum = other->cost > INT64_MAX - sum ? INT64_MAX : sum + other->cost;
    return sum;
}

/* The one that denied, with the longest wait of all; or the one that has least left. */
static void deal_all(struct weir__strict *strict, struct weir__strict_batch *batch, const struct weir__wire_head *head)
{
    struct weir__query *query = batch->chains[0];
    int verdict = batch->all.admitted ? WEIR_ALLOW : WEIR_DENY;
    uint64_t longest = 0;
    int named = 0, nobody = 1; /* while state is gathered nobody is to blame, and all are denied */

    for (uint32_t i = 0; i < batch->all.n; i++)
        nobody &= !batch->all.members[i].denied;
    for (uint32_t i = 0; i < batch->all.n && !query->answered; i++) {
        const struct weir__wire_member *member = &batch->all.members[i];
        struct weir_request *request = &query->members[i];
        struct weir__wire_head own = *head;

        own.numbers = member->numbers;
        request->status = verdict == WEIR_DENY && (member->denied || nobody) ? WEIR_DENY : WEIR_ALLOW;
        fill(request->result, &own, request->policy, request->status,
             request->status == WEIR_DENY ? asked_of(query, i) : member->cost, member->total, member->free);
        request->result->limiter = strict->node->w;
        weir__seen_note(strict->node->seen, request->policy,
                        weir__query_hash(strict->node, request->key, request->key_len), member->total,
                        strict->answered_at, lost_at(strict, request));
        if (request->result->retry_after_ns > longest)
            longest = request->result->retry_after_ns;
        if (i == 0 || (request->status == WEIR_DENY && !named) ||
            (!named && request->result->remaining < query->result.remaining))
            query->result = *request->result;
        named |= request->status == WEIR_DENY;
        if (verdict == WEIR_ALLOW || request->status == WEIR_DENY)
            weir__seam_count(strict->node->w, request->policy, verdict);
    }
    strict->pending--;
    if (query->answered) {
        weir__query_free(strict->node, query);
        return;
    }
    query->result.retry_after_ns = longest;
    query->status = verdict;
    weir__count_add(&strict->node->count.strict, batch->all.n);
    weir__query_answer(strict->node, query, 0);
}

static void fail_chain(struct weir__strict *strict, struct weir__query *query)
{
    for (struct weir__query *next; query; query = next) {
        next = query->next;
        if (query->answered) {
            strict->pending--;
            weir__query_free(strict->node, query);
        } else {
            weir__strict_fail(strict, query, 0);
        }
    }
}

void weir__strict_fail_batch(struct weir__strict *strict, struct weir__strict_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_entries; i++)
        fail_chain(strict, batch->chains[i]);
}

/* What the answer says: 0 where it is one. */
static int decode(struct weir__strict_batch *batch, const struct redisReply *reply)
{
    if (batch->kind == WEIR__QUERY_FORGET)
        return reply->type == REDIS_REPLY_INTEGER ? 0 : WEIR_E_INVAL;
    if (reply->type != REDIS_REPLY_STRING)
        return WEIR_E_INVAL;
    if (batch->kind == WEIR__QUERY_ALL)
        return weir__wire_all_decode(&batch->all, reply->str, reply->len, &batch->all_head);
    return weir__wire_strict_decode_all(batch->shards, batch->n_shards, reply->str, reply->len, batch->heads);
}

static void refused(struct weir__strict *strict, const struct weir__strict_batch *batch,
                    const struct weir__wire_head *head)
{
    struct weir__node *node = strict->node;

    if (!weir__node_policy(node, batch->id)->mismatched)
        weir__seam_log(node->w, WEIR_LOG_ERROR, "policy %s: %s: format %u and %u shards, not %d and %u",
                       node->policies[batch->id]->is.name, weir_strerror(WEIR_E_MISMATCH), head->format, head->shards,
                       WEIR__WIRE_FORMAT, node->shards);
    node->policies[batch->id]->mismatched = 1;
}

static int is_refused(const struct weir__wire_head *head)
{
    return head->status != WEIR__WIRE_APPLIED && head->status != WEIR__WIRE_LOST;
}

static int all_refused(const struct weir__strict_batch *batch)
{
    if (batch->kind == WEIR__QUERY_ALL)
        return batch->all_head.status != WEIR__WIRE_APPLIED;
    for (uint32_t u = 0; u < batch->n_shards; u++)
        if (!is_refused(&batch->heads[u]))
            return 0;
    return batch->n_shards > 0;
}

/* Back to where they were: none of these was executed. */
static void put_back(struct weir__strict *strict, struct weir__query **chains, uint32_t n)
{
    while (n-- > 0) {
        struct weir__query *reversed = NULL, *next;

        for (struct weir__query *query = chains[n]; query; query = next) {
            next = query->next;
            query->next = reversed;
            reversed = query;
        }
        for (; reversed; reversed = next) {
            next = reversed->next;
            if (reversed->answered) {
                strict->pending--;
                weir__query_free(strict->node, reversed);
            } else {
                weir__strict_put_back(strict, reversed);
            }
        }
    }
}

static int wrote(const struct weir__wire_strict *shard)
{
    for (uint32_t i = 0; i < shard->n_entries; i++)
        if (shard->entries[i].op == WEIR__WIRE_GIVE ||
            (shard->entries[i].op == WEIR__WIRE_TAKE && shard->entries[i].admitted && shard->entries[i].cost))
            return 1;
    return 0;
}

static void deal_shard(struct weir__strict *strict, struct weir__strict_batch *batch, uint32_t u,
                       struct weir__query **chains)
{
    const struct weir__wire_strict *shard = &batch->shards[u];
    const struct weir__wire_head *head = &batch->heads[u];
    struct weir__strict_lane *lane = &strict->lanes[batch->id]->lanes[shard->target.shard];

    if (is_refused(head)) {
        refused(strict, batch, head);
        for (uint32_t i = 0; i < shard->n_entries; i++)
            fail_chain(strict, chains[i]);
        return;
    }
    if (head->status == WEIR__WIRE_LOST && head->epoch != lane->epoch)
        lane->lost_at = uv_hrtime();
    lane->epoch = head->epoch;
    if (head->status == WEIR__WIRE_LOST) {
        put_back(strict, chains, shard->n_entries);
        return;
    }
    if (wrote(shard))
        lane->wrote_at = batch->sent_at;
    weir__node_learn(strict->node, batch->id, head);
    for (uint32_t i = 0; i < shard->n_entries; i++)
        deal(strict, shard, head, i, chains[i], lane->lost_at);
}

static void deal_shards(struct weir__strict *strict, struct weir__strict_batch *batch)
{
    for (uint32_t u = 0, at = 0; u < batch->n_shards; at += batch->shards[u++].n_entries)
        deal_shard(strict, batch, u, batch->chains + at);
}

static void answered(struct weir__strict *strict, struct weir__strict_batch *batch)
{
    struct weir__counters *count = &strict->node->count;
    uint64_t took;

    strict->answered_at = uv_hrtime();
    took = strict->answered_at - batch->sent_at;
    weir__strict_took(strict, strict->answered_at, took);
    weir__strict_score(strict, !all_refused(batch));
    strict->alive(strict->alive_arg, batch->sent_now);
    weir__measure_add(&count->strict_took, took);
    WEIR__PROBE2(strict_done, batch->id, took);
    weir__count_add(&count->syncs, 1);
    atomic_store_explicit(&count->last_sync_ns, weir_now(strict->node->w), memory_order_relaxed);
    if (batch->kind != WEIR__QUERY_ALL) {
        deal_shards(strict, batch);
    } else if (all_refused(batch)) {
        refused(strict, batch, &batch->all_head);
        weir__strict_fail_batch(strict, batch);
    } else {
        deal_all(strict, batch, &batch->all_head);
    }
}

static void forgotten(struct weir__strict *strict, struct weir__strict_batch *batch)
{
    struct weir__query *query = batch->chains[0];

    weir__strict_score(strict, 1);
    strict->alive(strict->alive_arg, batch->sent_now);
    weir__seen_forget(strict->node->seen, query->policy, query->hash);
    query->status = 0;
    strict->pending--;
    weir__query_answer(strict->node, query, 0);
}

/* One shard's trouble must not be that of all: after a script of several that Redis would not run, or not to its end,
 * each goes by itself for a while, and the one that fails then stays alone. A cluster says that it would not run it. */
static int split(struct weir__strict *strict, struct weir__strict_batch *batch, enum weir__link_kind kind)
{
    struct weir__strict_lanes *lanes = strict->lanes[batch->id];

    if (batch->kind != WEIR__QUERY_TAKE)
        return 0;
    if (batch->n_shards < 2) {
        lanes->lanes[batch->shards[0].target.shard].alone = kind != WEIR__LINK_OK;
        return 0;
    }
    if (kind == WEIR__LINK_OK)
        return 0;
    strict->apart_until = uv_hrtime() + APART_NS;
    if (kind != WEIR__LINK_CROSSSLOT)
        return 0;
    strict->one_slot = 1;
    put_back(strict, batch->chains, batch->n_entries);
    return 1;
}

void weir__strict_on_reply(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct weir__strict_batch *batch = arg;
    struct weir__strict *strict = batch->owner;

    if (batch->prev)
        batch->prev->next = batch->next;
    else
        strict->flying = batch->next;
    if (batch->next)
        batch->next->prev = batch->prev;
    strict->flying_count--;
    strict->weight -= batch->weight;
    if (kind == WEIR__LINK_OK && decode(batch, reply)) {
        weir__store_fault(strict->node->store, WEIR__LINK_PROTOCOL);
        kind = WEIR__LINK_PROTOCOL;
    }
    if (reply && split(strict, batch, kind)) {
        /* on their way again */
    } else if (kind != WEIR__LINK_OK) {
        weir__strict_score(strict, 0);
        weir__strict_fail_batch(strict, batch);
    } else if (batch->kind == WEIR__QUERY_FORGET) {
        forgotten(strict, batch);
    } else {
        answered(strict, batch);
    }
    weir__strict_batch_free(strict, batch);
}
