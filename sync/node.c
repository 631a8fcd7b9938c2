/* SPDX-License-Identifier: MIT */
/*
 * The sync's view of itself and of the limiter's policies. It must not know what is sent or when.
 */
#include "sync/node.h"

#include <string.h>

#include <uv.h>

int weir__node_init(struct weir__node *node)
{
    node->mem = weir__seam_allocator(node->w);
    if (uv_random(NULL, NULL, node->id, sizeof node->id, 0, NULL) ||
        uv_random(NULL, NULL, &node->random, sizeof node->random, 0, NULL))
        return WEIR_E_SYS;
    node->salt = weir__node_random(node);
    return 0;
}

void weir__node_deinit(struct weir__node *node)
{
    for (uint32_t i = 0; i < node->policy_count; i++)
        weir__node_free(node, node->policies[i], sizeof **node->policies);
    weir__node_free(node, node->policies, node->policy_room * sizeof(struct weir__policy *));
    node->policies = NULL;
    node->policy_count = node->policy_room = 0;
}

void *weir__node_alloc(struct weir__node *node, size_t size)
{
    void *memory = node->mem.alloc(node->mem.arg, size);

    return memory ? memset(memory, 0, size) : NULL;
}

void weir__node_free(struct weir__node *node, void *memory, size_t size)
{
    if (memory)
        node->mem.release(node->mem.arg, memory, size);
}

/* splitmix64 */
uint64_t weir__node_random(struct weir__node *node)
{
    uint64_t z = node->random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void set_terms(struct weir__node *node, struct weir__policy *policy, const struct weir__wire_numbers *numbers)
{
    weir__slice_terms_set(&policy->terms, numbers->limit, numbers->per_ns, numbers->burst, numbers->overshoot,
                          (double)node->interval_ns / 1e9, (double)node->timeout_ns / 1e9);
}

static void describe(struct weir__node *node, struct weir__policy *policy, const struct weir__seam_policy *is)
{
    struct weir__wire_numbers numbers = {.version = is->version,
                                         .limit = is->limit,
                                         .per_ns = is->per_ns,
                                         .burst = is->burst,
                                         .overshoot = is->max_overshoot,
                                         .timeout = (double)node->timeout_ns / 1e9};

    if (is->mode != WEIR_LOCAL) {
        set_terms(node, policy, &numbers);
        numbers.interval = policy->terms.interval;
        if (weir__wire_generation(is->limit, is->per_ns, is->burst, is->max_overshoot) == 0)
            weir__seam_log(node->w, WEIR_LOG_WARN, "policy %s: takes longer to fill up than Redis remembers it",
                           is->name);
    }
    policy->is = *is;
    policy->numbers = numbers;
    policy->foreign = 0;
}

static int same(const struct weir__seam_policy *a, const struct weir__seam_policy *b)
{
    return a->limit == b->limit && a->per_ns == b->per_ns && a->burst == b->burst && a->version == b->version &&
           a->max_overshoot == b->max_overshoot && a->mode == b->mode && a->on_outage == b->on_outage &&
           a->unknown == b->unknown && a->shadow == b->shadow && a->name == b->name && a->group == b->group;
}

static int add_policy(struct weir__node *node, const struct weir__seam_policy *is)
{
    struct weir__policy *policy;

    if (node->policy_count == node->policy_room) {
        uint32_t room = node->policy_room ? node->policy_room * 2 : 16;
        struct weir__policy **more = weir__node_alloc(node, room * sizeof(struct weir__policy *));

        if (!more)
            return WEIR_E_NOMEM;
        if (node->policy_count)
            memcpy(more, node->policies, node->policy_count * sizeof(struct weir__policy *));
        weir__node_free(node, node->policies, node->policy_room * sizeof(struct weir__policy *));
        node->policies = more;
        node->policy_room = room;
    }
    policy = weir__node_alloc(node, sizeof *policy);
    if (!policy)
        return WEIR_E_NOMEM;
    describe(node, policy, is);
    node->policies[node->policy_count++] = policy;
    return 0;
}

int weir__node_policies(struct weir__node *node)
{
    struct weir__seam_policy is;
    weir_policy_id id = 0;
    int status = 0;

    for (; !status && weir__seam_policy(node->w, id, &is) == 0; id++) {
        if (id == node->policy_count)
            status = add_policy(node, &is);
        else if (!same(&node->policies[id]->is, &is))
            describe(node, node->policies[id], &is);
    }
    return status;
}

struct weir__policy *weir__node_policy(struct weir__node *node, weir_policy_id id)
{
    if (id >= node->policy_count)
        weir__node_policies(node);
    return id < node->policy_count ? node->policies[id] : NULL;
}

int weir__node_learn(struct weir__node *node, weir_policy_id id, const struct weir__wire_head *head)
{
    struct weir__policy *policy = node->policies[id];
    uint64_t foreign = head->numbers.version > policy->numbers.version ? head->numbers.version : 0;

    if (foreign == policy->foreign)
        return 0;
    policy->foreign = foreign;
    set_terms(node, policy, foreign ? &head->numbers : &policy->numbers);
    if (foreign)
        weir__seam_log(
            node->w, WEIR_LOG_WARN,
            "policy %s: version %llu here, but %llu is in force in Redis: its numbers apply to what is shared",
            policy->is.name, (unsigned long long)policy->numbers.version, (unsigned long long)foreign);
    return 1;
}

void weir__node_target(const struct weir__node *node, const struct weir__policy *policy, uint32_t shard,
                       struct weir__wire_target *out)
{
    *out = (struct weir__wire_target){.prefix = node->prefix,
                                      .policy = policy->is.name,
                                      .group = policy->is.group,
                                      .shard = shard,
                                      .shards = node->shards};
}
