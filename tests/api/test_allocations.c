/* SPDX-License-Identifier: MIT */
/*
 * Every allocation fails once: a scenario is run again and again, and in run n the n-th request for memory is refused.
 * Whatever call meets the refusal says so, changes nothing and leaves nothing behind; the last run meets none. Knows
 * nothing of what the library allocates.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <check.h>

#include <weir/sync.h>
#include <weir/weir.h>

#include "support/redis_server.h"
#include "support/suite.h"

#define TURNS_MOST 100000      /* of 0.2 ms at least: longer than anything takes */
#define MOST_ALLOCATIONS 2000u /* a scenario that asks more often never ends */

/* Memory that counts itself. Blocks are touched in full, so that a size told wrongly shows under a sanitizer. */
struct memory {
    _Atomic uint64_t requests;
    _Atomic uint64_t refused;
    _Atomic int64_t bytes;
    uint64_t refuse; /* which request, from 0 */
};

static void *memory_alloc(void *arg, size_t size)
{
    struct memory *memory = arg;
    if (atomic_fetch_add_explicit(&memory->requests, 1, memory_order_relaxed) == memory->refuse) {
        atomic_fetch_add_explicit(&memory->refused, 1, memory_order_relaxed);
        return NULL;
    }
    atomic_fetch_add_explicit(&memory->bytes, (int64_t)size, memory_order_relaxed);
    void *block = malloc(size);
    ck_assert_ptr_nonnull(block);
    return memset(block, 0xa5, size);
}

static void memory_release(void *arg, void *block, size_t size)
{
    struct memory *memory = arg;
    atomic_fetch_sub_explicit(&memory->bytes, (int64_t)size, memory_order_relaxed);
    memset(block, 0x5a, size);
    free(block);
}

static struct weir_allocator memory_allocator(struct memory *memory)
{
    return (struct weir_allocator){memory_alloc, memory_release, memory};
}

/* Runs the scenario with each of its requests refused in turn, of which there are so many at least. It returns 0 where
 * it met no refusal. */
static void fail_each(int (*scenario)(struct memory *memory), unsigned least)
{
    uint64_t n;
    for (n = 0; n < MOST_ALLOCATIONS; n++) {
        struct memory memory = {.refuse = n};
        int met = scenario(&memory);
        uint64_t refused = atomic_load_explicit(&memory.refused, memory_order_relaxed);
        int64_t left = atomic_load_explicit(&memory.bytes, memory_order_relaxed);
        ck_assert_msg(left == 0, "request %u refused: %lld bytes are left", (unsigned)n, (long long)left);
        ck_assert_msg(!met || refused, "request %u: a call failed although nothing was refused", (unsigned)n);
        if (!refused)
            break;
    }
    ck_assert_msg(n >= least, "the scenario asked for memory %u times", (unsigned)n);
    ck_assert_msg(n < MOST_ALLOCATIONS, "the scenario never stops asking for memory");
}

static struct weir_policy policy_named(const char *name, enum weir_mode mode)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    policy.name = name;
    policy.limit = 10;
    policy.per_ns = UINT64_C(86400000000000);
    policy.mode = mode;
    return policy;
}

/* 1 where the call was refused memory, 0 where it passed; anything else fails the test. */
static int refused(int status)
{
    ck_assert_msg(status == 0 || status == WEIR_E_NOMEM, "%d: %s", status, weir_strerror(status));
    return status != 0;
}

static int open_limiter(struct weir **w, struct memory *memory)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    options.max_keys = 64;
    options.allocator = memory_allocator(memory);
    *w = (struct weir *)memory; /* what a failure must overwrite */
    int met = refused(weir_open(w, &options));
    ck_assert_msg(!met || !*w, "a failed weir_open left a limiter");
    return met;
}

/* A policy that could not be added is not there, and may be added again. */
static int add_policy(struct weir *w, const struct weir_policy *policy, weir_policy_id *id)
{
    int met = refused(weir_policy_add(w, policy, id));
    if (met) {
        ck_assert_int_eq(weir_policy_find(w, policy->name, id), WEIR_E_NOENT);
        ck_assert_int_eq(weir_policy_add(w, policy, id), 0);
    }
    return met;
}

static int scenario_local(struct memory *memory)
{
    struct weir *w;
    if (open_limiter(&w, memory))
        return 1;

    struct weir_policy first = policy_named("first", WEIR_LOCAL), second = policy_named("second", WEIR_LOCAL);
    weir_policy_id ids[2];
    int met = add_policy(w, &first, &ids[0]);
    met |= add_policy(w, &second, &ids[1]);
    second.limit = 20;
    met |= refused(weir_policy_set(w, ids[1], &second));

    struct weir_key *key = NULL;
    int key_met = refused(weir_key_open(w, ids[0], "handle", 6, &key));
    if (key_met)
        ck_assert_int_eq(weir_key_open(w, ids[0], "handle", 6, &key), 0);
    ck_assert_int_eq(weir_key_take(key, 10, 0, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_DENY);

    /* Decisions ask for no memory: they do not fail. */
    uint64_t before = atomic_load_explicit(&memory->requests, memory_order_relaxed);
    struct weir_result result;
    struct weir_request requests[2] = {{.policy = ids[0], .key = "a", .key_len = 1, .cost = 4},
                                       {.policy = ids[1], .key = "b", .key_len = 1, .cost = 4}};
    ck_assert_int_eq(weir_take(w, ids[0], "a", 1, 3, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_all(w, requests, 2, &result), WEIR_ALLOW);
    ck_assert_int_eq(weir_take_many(w, requests, 2, 0), 0);
    ck_assert_int_eq(requests[0].status, WEIR_DENY);
    ck_assert_int_eq(weir_give(w, ids[0], "a", 1, 1), 0);
    ck_assert_int_eq(weir_peek(w, ids[0], "a", 1, 4, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(w, ids[0], "a", 1, 5, NULL), WEIR_DENY);
    ck_assert_uint_eq(atomic_load_explicit(&memory->requests, memory_order_relaxed), before);

    weir_key_close(key);
    weir_close(w);
    return met | key_met;
}

START_TEST(test_local)
{
    fail_each(scenario_local, 3);
}
END_TEST

static struct redis_server *server;

static void server_setup(void)
{
    server = redis_server_open(NULL);
}

static void server_teardown(void)
{
    redis_server_close(server);
}

static void count_down(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    atomic_store_explicit((_Atomic int *)arg, 1, memory_order_release);
}

static void wait_for(_Atomic int *done)
{
    struct timespec pause = {0, 200000};
    for (int i = 0; i < TURNS_MOST && !atomic_load_explicit(done, memory_order_acquire); i++)
        nanosleep(&pause, NULL);
    ck_assert_int_eq(atomic_load_explicit(done, memory_order_acquire), 1);
}

/* A decision is a verdict whatever happens; one that needs memory to ask Redis may say that it had none. */
static int decision(int status)
{
    ck_assert_msg(status == WEIR_ALLOW || status == WEIR_DENY || status == WEIR_E_NOMEM, "%d: %s", status,
                  weir_strerror(status));
    return status == WEIR_E_NOMEM;
}

/* What was refused while it connected is tried again. */
static void wait_until_up(struct weir *w)
{
    struct timespec pause = {0, 200000};
    struct weir_stats stats = {.size = sizeof stats};
    for (int i = 0; i < TURNS_MOST && !stats.store_up; i++) {
        nanosleep(&pause, NULL);
        ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    }
    ck_assert_int_eq(stats.store_up, 1);
}

static void count_answer(void *arg, int status, const struct weir_result *result)
{
    (void)result;
    ck_assert_msg(status == WEIR_ALLOW || status == WEIR_DENY, "%d: %s", status, weir_strerror(status));
    atomic_fetch_add_explicit((_Atomic int *)arg, 1, memory_order_release);
}

/* Every other way to ask Redis: each says that it had no memory, or is answered, once. */
static int ask_in_all_ways(struct weir *w, const weir_policy_id *ids)
{
    struct weir_request one = {.policy = ids[1], .key = "x", .key_len = 1, .cost = 1};
    struct weir_request together[2] = {one, {.policy = ids[2], .key = "y", .key_len = 1, .cost = 1}};
    struct weir_request apart[2] = {one, {.policy = ids[0], .key = "z", .key_len = 1, .cost = 1}};
    struct weir_request many[3] = {one, together[1], apart[1]};
    struct weir_result result;
    static _Atomic int answers; /* static: a late answer finds it */
    int asked = 0, status, met = 0;
    atomic_store_explicit(&answers, 0, memory_order_relaxed);
    for (int i = 0; i < 2; i++) {
        one.policy = ids[i];
        status = weir_take_async(w, &one, count_answer, &answers);
        met |= decision(status);
        asked += status == 0;
        met |= decision(weir_take_wait(w, &one, 0, &result));
        met |= decision(weir_peek(w, ids[i], "x", 1, 1, &result));
    }
    met |= decision(weir_take_all(w, together, 2, &result));
    met |= decision(weir_take_all(w, apart, 2, &result));
    status = weir_take_many(w, many, 3, 0);
    met |=
        status == 0 ? decision(many[0].status) | decision(many[1].status) | decision(many[2].status) : decision(status);
    for (int i = 0; i < 2; i++) { /* nobody waits for these: an outage is an error */
        status = weir_give(w, ids[i], "x", 1, 1);
        met |= status == WEIR_E_TIMEOUT ? 1 : decision(status);
        status = weir_forget(w, ids[i], "x", 1);
        met |= status == WEIR_E_TIMEOUT ? 1 : decision(status);
    }
    for (int i = 0; i < TURNS_MOST && atomic_load_explicit(&answers, memory_order_acquire) < asked; i++)
        nanosleep(&(struct timespec){0, 200000}, NULL);
    ck_assert_int_eq(atomic_load_explicit(&answers, memory_order_acquire), asked);
    return met;
}

static int scenario_shared(struct memory *memory)
{
    struct weir *w;
    if (open_limiter(&w, memory))
        return 1;
    struct weir_policy hybrid = policy_named("hybrid", WEIR_HYBRID), strict = policy_named("strict", WEIR_STRICT);
    hybrid.limit = strict.limit = 1000000; /* all runs share one Redis */
    strict.group = "group";
    weir_policy_id ids[3];
    int met = add_policy(w, &hybrid, &ids[0]);
    met |= add_policy(w, &strict, &ids[1]);
    strict.name = "another";
    met |= add_policy(w, &strict, &ids[2]);

    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_sync *sync = NULL;
    options.uri = redis_server_uri(server);
    options.interval_ms = 20;
    options.shards = 2;
    options.drain_ms = 200;
    options.timeout_ms = 5000; /* a busy machine is no outage */
    char path[128];
    snprintf(path, sizeof path, "%s/stats", redis_server_folder(server));
    options.stats_socket = path;
    int start_met = refused(weir_sync_start(&sync, w, NULL, &options));
    if (start_met)
        ck_assert_int_eq(weir_sync_start(&sync, w, NULL, &options), 0);

    _Atomic int flushed = 0, closed = 0;
    for (int i = 0; i < 3; i++) {
        char key[2] = {'k', (char)('a' + i)};
        met |= decision(weir_take(w, ids[0], key, sizeof key, 1, NULL));
        met |= decision(weir_take(w, ids[1], key, sizeof key, 1, NULL));
    }
    wait_until_up(w);
    met |= ask_in_all_ways(w, ids);
    int flush_met = refused(weir_sync_flush(sync, count_down, &flushed));
    if (!flush_met)
        wait_for(&flushed);
    /* Closing must not need what may be refused. */
    ck_assert_int_eq(weir_sync_close(sync, count_down, &closed), 0);
    wait_for(&closed);
    weir_close(w);
    return met | start_met | flush_met;
}

START_TEST(test_shared)
{
    fail_each(scenario_shared, 60);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("allocations");
    TCase *local = tcase_create("local"), *shared = tcase_create("shared");

    tcase_add_test(local, test_local);
    suite_add_tcase(suite, local);
    tcase_set_timeout(shared, 60);
    tcase_add_checked_fixture(shared, server_setup, server_teardown);
    tcase_add_test(shared, test_shared);
    suite_add_tcase(suite, shared);

    return suite_run(suite);
}
