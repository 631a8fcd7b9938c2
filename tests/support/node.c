/* SPDX-License-Identifier: MIT */
/*
 * A limiter, its sync and what they said.
 */
#include "support/node.h"

#include <check.h>
#include <string.h>
#include <time.h>

void node_pause(unsigned ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

/* Only the sync's thread logs. */
static void on_log(void *arg, enum weir_log_level level, const char *line)
{
    struct node *node = arg;
    unsigned len = atomic_load_explicit(&node->log_len, memory_order_relaxed);
    size_t more = strlen(line);

    (void)level;
    if (len + more + 2 > sizeof node->log)
        return;
    memcpy(node->log + len, line, more);
    node->log[len + more] = '\n';
    node->log[len + more + 1] = '\0';
    atomic_store_explicit(&node->log_len, len + (unsigned)more + 1, memory_order_release);
}

int node_said(struct node *node, const char *text)
{
    unsigned len = atomic_load_explicit(&node->log_len, memory_order_acquire);
    size_t want = strlen(text);

    for (size_t i = 0; i + want <= len; i++)
        if (!memcmp(node->log + i, text, want))
            return 1;
    return 0;
}

struct weir_policy node_policy(uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = WEIR_POLICY_INIT;

    policy.name = "p";
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    return policy;
}

void node_open(struct node *node, const struct weir_policy *policy)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    memset(node, 0, sizeof *node);
    options.log = on_log;
    options.log_arg = node;
    node->hybrid = policy->mode == WEIR_HYBRID;
    ck_assert_int_eq(weir_open(&node->w, &options), 0);
    ck_assert_int_eq(weir_policy_add(node->w, policy, &node->id), 0);
}

const struct weir_sync_options *node_patient(void)
{
    static struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    options.timeout_ms = 5000;
    return &options;
}

const struct weir_sync_options *node_calm(void)
{
    static struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    options.timeout_ms = 150;
    return &options;
}

void node_launch(struct node *node, const char *uri, const struct weir_sync_options *options)
{
    struct weir_sync_options own = WEIR_SYNC_OPTIONS_INIT;

    if (options)
        own = *options;
    own.uri = uri;
    if (!own.drain_ms)
        own.drain_ms = 10000; /* the same at the end */
    ck_assert_int_eq(weir_sync_start(&node->sync, node->w, NULL, &own), 0);
    ck_assert_ptr_nonnull(node->sync);
}

void node_start(struct node *node, const char *uri, const struct weir_sync_options *options)
{
    uint32_t shards = options && options->shards ? options->shards : 64;

    node_launch(node, uri, options);
    node_until(node_stats(node).store_up == 1);
    if (node->hybrid)
        node_until(node_stats(node).syncs >= shards);
}

static void on_done(void *arg, int status, uint64_t unsent)
{
    struct node *node = arg;

    node->status = status;
    node->unsent = unsent;
    atomic_fetch_add_explicit(&node->calls, 1, memory_order_release);
}

static uint64_t wait_for_call(struct node *node)
{
    node_until(atomic_load_explicit(&node->calls, memory_order_acquire) > 0);
    ck_assert_int_eq(node->calls, 1);
    node->calls = 0;
    return node->unsent;
}

uint64_t node_flush(struct node *node)
{
    ck_assert_int_eq(weir_sync_flush(node->sync, on_done, node), 0);
    return wait_for_call(node);
}

uint64_t node_end(struct node *node)
{
    ck_assert_int_eq(weir_sync_close(node->sync, on_done, node), 0);
    node->sync = NULL;
    return wait_for_call(node);
}

void node_close(struct node *node)
{
    if (node->sync)
        node_end(node);
    weir_close(node->w);
    node->w = NULL;
}

struct weir_stats node_stats(struct node *node)
{
    struct weir_stats stats = {.size = sizeof stats};

    ck_assert_int_eq(weir_stats_get(node->w, &stats), 0);
    return stats;
}

int node_take(struct node *node, const char *key, struct weir_result *result)
{
    return weir_take(node->w, node->id, key, strlen(key), 1, result);
}

int node_wait(struct node *node, const char *key, int64_t cost, struct weir_result *result)
{
    struct weir_request request = {.policy = node->id, .key = key, .key_len = strlen(key), .cost = cost};

    return weir_take_wait(node->w, &request, 5 * NODE_SECOND, result);
}

int node_wait_many(struct node *node, const char *key, int n)
{
    int allowed = 0;

    for (int i = 0; i < n; i++) {
        int status = node_wait(node, key, 1, NULL);

        ck_assert_msg(status == WEIR_ALLOW || status == WEIR_DENY, "%s", weir_strerror(status));
        allowed += status == WEIR_ALLOW;
    }
    return allowed;
}

void node_spend(struct node *node, const char *key, int n)
{
    for (int i = 0; i < n; i++)
        node_until(node_wait(node, key, 1, NULL) == WEIR_ALLOW);
}
