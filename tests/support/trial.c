/* SPDX-License-Identifier: MIT */
/*
 * One limiter, three policies, one proxy.
 */
#include "support/trial.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include <uv.h>

#include "integration/script_client.h"

enum { LARGE = 100000, SMALL = 200, OVERSHOOT = SMALL / 10 };

/* What a slice held when it expired counts as spent, where its node was not heard in time. One node that takes at most
 * once a millisecond, d = 1000 a second, and reports every S = 50 ms, is given d S/2 + 2 sqrt(d S) = 39 at most; of
 * that it has spent some by then, and what it tells of that later is not charged again. */
enum { EXPIRED = 32 };

/* Tokens that Redis counts as taken of a policy's only key. */
static double taken_of(const struct trial *trial, const char *policy, double burst)
{
    struct weir__wire_seen seen = script_client_look_in(trial->server, trial->db, policy, "k");
    return seen.exists ? burst - seen.total : 0;
}

static int take_of(struct trial *trial, weir_policy_id id, struct weir_result *result)
{
    return weir_take(trial->node.w, id, "k", 1, 1, result);
}

static void take_strict(struct trial *trial)
{
    struct weir_request request = {.policy = trial->strict, .key = "k", .key_len = 1, .cost = 1};
    struct weir_result result;
    int status = weir_take_wait(trial->node.w, &request, 0, &result);
    ck_assert_msg(status == WEIR_ALLOW || status == WEIR_DENY, "%s", weir_strerror(status));
    trial->doubtful += (result.flags & WEIR_DEGRADED) != 0;
    trial->certain += status == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED);
}

static void take_hybrid(struct trial *trial)
{
    struct weir_result result;
    trial->p += take_of(trial, trial->node.id, &result) == WEIR_ALLOW;
    trial->degraded += (result.flags & WEIR_DEGRADED) != 0;
    trial->q += take_of(trial, trial->small, NULL) == WEIR_ALLOW;
}

static void take_all(struct trial *trial, int strict)
{
    if (trial->only != TRIAL_STRICT) {
        take_hybrid(trial);
    }
    if (strict && trial->only != TRIAL_HYBRID) {
        take_strict(trial);
    }
}

void trial_settle(struct trial *trial)
{
    node_until(node_stats(&trial->node).store_up == 1);
    node_until(node_flush(&trial->node) == 0 && trial->node.status == 0);
}

/* Redis, the proxy, a Sentinel where one is wanted, and the way to them. */
static void open_servers(struct trial *trial, const struct trial_options *options, char *uri, size_t size)
{
    static const char *const args[] = {"--enable-debug-command", "yes", NULL};
    const char *login = options->login ? options->login : "";
    trial->db = options->db;
    trial->server = redis_server_open(&(struct redis_server_options){.persist = options->persist, .args = args});
    redis_server_do(trial->server, "ACL", "SETUSER", "jane", "on", ">s3cret", "~*", "+@all", NULL);
    trial->liar =
        liar_open(&(struct liar_options){.tcp = options->sentinel, .upstream = redis_server_socket(trial->server)});
    if (options->sentinel) {
        trial->sentinel = liar_open(&(struct liar_options){.tcp = 1});
        liar_name_master(trial->sentinel, liar_port(trial->liar), 0, 0);
        /* Asked twice at each connect before there is a pause: what is refused once is tried again at once. */
        snprintf(uri, size, "redis+sentinel://%s127.0.0.1:%d,127.0.0.1:%d/m/%u", login, liar_port(trial->sentinel),
                 liar_port(trial->sentinel), trial->db);
    } else {
        snprintf(uri, size, "unix://%s%s?db=%u", login, liar_socket(trial->liar), trial->db);
    }
}

void trial_open(struct trial *trial, const struct trial_options *options)
{
    static const struct trial_options defaults;
    struct weir_policy policy = node_policy(LARGE / 10, NODE_DAY, LARGE);
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    char uri[192];
    memset(trial, 0, sizeof *trial);
    trial->begun = uv_hrtime();
    open_servers(trial, options ? options : &defaults, uri, sizeof uri);
    node_open(&trial->node, &policy);
    policy.name = "q";
    policy.limit = SMALL / 10;
    policy.burst = SMALL;
    ck_assert_int_eq(weir_policy_add(trial->node.w, &policy, &trial->small), 0);
    policy.name = "s";
    policy.limit = LARGE / 10;
    policy.burst = LARGE;
    policy.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(trial->node.w, &policy, &trial->strict), 0);
    sync.interval_ms = 50;
    sync.connect_timeout_ms = 100;
    sync.drain_ms = 10000; /* a test may refuse what is told at the end, a few times */
    node_start(&trial->node, uri, &sync);
    for (int i = 0; i < 100; i++) {
        take_all(trial, i % 10 == 0);
        node_pause(1);
    }
    for (int i = 0; trial->certain == 0; i++) { /* a busy machine may take its time */
        ck_assert_int_lt(i, NODE_WAIT_MS);
        take_all(trial, 1);
        node_pause(1);
    }
    trial_settle(trial);
    ck_assert_int_gt(trial->p, 0);
}

void trial_load(struct trial *trial, unsigned ms, void (*often)(void))
{
    uint64_t began = uv_hrtime(), turn = 0;
    for (unsigned i = 0; i == 0 || uv_hrtime() - began < ms * NODE_MS; i++) {
        if (often && uv_hrtime() - began >= turn * 20 * NODE_MS) {
            turn++;
            often();
        }
        take_all(trial, i % 8 == 0);
        node_pause(1);
    }
}

void trial_load_until_said(struct trial *trial, const char *text)
{
    for (int turns = 0; !node_said(&trial->node, text); turns++) {
        ck_assert_msg(turns < 1000, "%s was never said: %.2000s", text, trial->node.log); /* Check takes no more */
        trial_load(trial, 10, NULL);
    }
}

void trial_load_until_degraded(struct trial *trial)
{
    for (int turns = 0; trial->degraded == 0; turns++) {
        ck_assert_msg(turns < 1000, "the outage policy never answers");
        trial_load(trial, 10, NULL);
    }
}

/* The least that may be charged where so much was admitted: tokens come all the while. */
static double least_of(const struct trial *trial, long admitted)
{
    return (double)admitted - 2 - (double)LARGE / 10 * (double)(uv_hrtime() - trial->begun) / (double)NODE_DAY;
}

/* What was admitted is charged, as exactly as can be. */
static void look(const struct trial *trial, int forgets)
{
    double taken = taken_of(trial, "p", LARGE);
    ck_assert_msg(taken <= (double)trial->p + EXPIRED && taken >= least_of(trial, trial->p), "%ld admitted, %f charged",
                  trial->p, taken);
    taken = taken_of(trial, "s", LARGE);
    ck_assert_msg(taken <= (double)(trial->certain + 2 * trial->doubtful) + 0.1, "%ld + %ld answered, %f charged",
                  trial->certain, trial->doubtful, taken);
    ck_assert_msg(forgets || taken >= least_of(trial, trial->certain), "%ld admitted, %f charged", trial->certain,
                  taken);
}

void trial_check(struct trial *trial, int forgets)
{
    long certain;
    trial_settle(trial);
    for (int i = 0; i < SMALL; i++) { /* now the small one is empty for sure */
        trial->q += take_of(trial, trial->small, NULL) == WEIR_ALLOW;
    }
    certain = trial->certain;
    for (int i = 0; trial->certain < certain + 10; i++) {
        ck_assert_msg(i < NODE_WAIT_MS, "strict verdicts never come from Redis again");
        take_strict(trial);
        node_pause(1);
    }
    trial_settle(trial);
    ck_assert_msg(trial->q <= SMALL + OVERSHOOT + 1, "%ld let in of %d", trial->q, SMALL);
    /* a Redis that lost its state is told again of the key at the node's next look, which a flush needn't wait for */
    for (int i = 0; i < 100 && taken_of(trial, "p", LARGE) < least_of(trial, trial->p); i++) {
        node_pause(20);
        trial_settle(trial);
    }
    look(trial, forgets);
}

void trial_end(struct trial *trial)
{
    ck_assert_uint_eq(node_end(&trial->node), 0);
    look(trial, 1);
}

void trial_recover(struct trial *trial, int forgets)
{
    trial_check(trial, forgets);
    trial_end(trial);
}

void trial_close(struct trial *trial)
{
    node_close(&trial->node);
    liar_close(trial->sentinel);
    liar_close(trial->liar);
    redis_server_close(trial->server);
}
