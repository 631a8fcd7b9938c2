/* SPDX-License-Identifier: MIT */
/*
 * How a sync begins and ends: options that are refused, the caller's loop and a thread of its own, flush and close,
 * what is left behind (nothing), fork.
 */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a;
static uv_loop_t loop;

static void open_server(void)
{
    server = redis_server_open(NULL);
}

static void close_server(void)
{
    redis_server_close(server);
}

static struct weir_policy slow_policy(void)
{
    return node_policy(100, NODE_DAY, 100);
}

struct call {
    int count, status;
    uint64_t unsent;
    struct weir *close; /* weir_close it in the callback */
    pthread_t thread;
};

static void on_call(void *arg, int status, uint64_t unsent)
{
    struct call *call = arg;

    call->count++;
    call->status = status;
    call->unsent = unsent;
    call->thread = pthread_self();
    if (call->close)
        weir_close(call->close);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static long live_bytes;

static void *count_alloc(void *arg, size_t size)
{
    (void)arg;
    __atomic_add_fetch(&live_bytes, (long)size, __ATOMIC_RELAXED);
    return malloc(size);
}

static void count_release(void *arg, void *memory, size_t size)
{
    (void)arg;
    __atomic_sub_fetch(&live_bytes, (long)size, __ATOMIC_RELAXED);
    free(memory);
}

struct refused {
    struct weir_sync_options options;
    int status;
};

START_TEST(bad_options_leave_nothing)
{
    static char prefix[700];
    const size_t size = sizeof(struct weir_sync_options);
    struct refused refused[] = {
        {{.size = size, .uri = "http://localhost"}, WEIR_E_URI},
        {{.size = size, .uri = ""}, WEIR_E_URI},
        {{.size = size, .uri = "redis://localhost:99999"}, WEIR_E_URI},
        {{.size = size, .uri = "redis://host/x"}, WEIR_E_URI},
        {{.size = size, .uri = "unix://"}, WEIR_E_URI},
        {{.size = 0}, WEIR_E_INVAL},
        {{.size = 8}, WEIR_E_INVAL},
        {{.size = size, .batch_max = 513}, WEIR_E_RANGE},
        {{.size = size, .window = 257}, WEIR_E_RANGE},
        {{.size = size, .jitter_pct = 51}, WEIR_E_RANGE},
        {{.size = size, .interval_ms = 9}, WEIR_E_RANGE},
        {{.size = size, .interval_ms = 3600001}, WEIR_E_RANGE},
        {{.size = size, .timeout_ms = 60001}, WEIR_E_RANGE},
        {{.size = size, .connect_timeout_ms = 60001}, WEIR_E_RANGE},
        {{.size = size, .drain_ms = 3600001}, WEIR_E_RANGE},
        {{.size = size, .shards = 4097}, WEIR_E_RANGE},
        {{.size = size, .fleet_hint = 1000001}, WEIR_E_RANGE},
        {{.size = size, .strict_window_us = 1000001}, WEIR_E_RANGE},
        {{.size = size, .prefix = prefix}, WEIR_E_RANGE},
        {{.size = size, .uri = "redis://h", .password = NULL, .username = prefix}, WEIR_E_RANGE},
    };
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_sync *sync = (struct weir_sync *)&options;
    struct weir *w;
    long before;

    memset(prefix, 'x', sizeof prefix - 1);
    options.allocator.alloc = count_alloc;
    options.allocator.release = count_release;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    before = live_bytes;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        int status = weir_sync_start(&sync, w, NULL, &refused[i].options);

        ck_assert_msg(status == refused[i].status, "%zu: %s", i, weir_strerror(status));
        ck_assert_ptr_null(sync);
        ck_assert_int_eq(live_bytes, before);
    }
    ck_assert_int_eq(weir_sync_start(NULL, w, NULL, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_sync_start(&sync, NULL, NULL, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_sync_flush(NULL, NULL, NULL), WEIR_E_INVAL);
    ck_assert_int_eq(weir_sync_close(NULL, NULL, NULL), WEIR_E_INVAL);
    weir_close(w);
    ck_assert_int_eq(live_bytes, 0);
}
END_TEST

START_TEST(a_second_sync_is_busy)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = slow_policy();
    struct weir_sync *sync;

    options.uri = redis_server_uri(server);
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(weir_sync_start(&sync, a.w, NULL, &options), WEIR_E_BUSY);
    ck_assert_ptr_null(sync);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(weir_sync_start(&sync, a.w, &loop, &options), WEIR_E_BUSY);
    uv_run(&loop, UV_RUN_DEFAULT); /* what it had made there is closed */
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_int_eq(node_wait_many(&a, "k", 3), 3);
    node_close(&a);
}
END_TEST

/* ---- a thread of its own ----------------------------------------------------------------------------------------- */

START_TEST(a_thread_of_its_own_ends_with_its_callback)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_sync_options sync_options = WEIR_SYNC_OPTIONS_INIT;
    struct call call = {0};
    struct weir_sync *sync;
    struct weir *w;

    options.allocator.alloc = count_alloc;
    options.allocator.release = count_release;
    sync_options.uri = redis_server_uri(server);
    sync_options.drain_ms = NODE_WAIT_MS;
    for (int i = 0; i < 3; i++) {
        call.count = 0;
        ck_assert_int_eq(weir_open(&w, &options), 0);
        ck_assert_int_eq(weir_sync_start(&sync, w, NULL, &sync_options), 0);
        node_pause(i == 1 ? 0 : 30);
        ck_assert_int_eq(weir_sync_close(sync, on_call, &call), 0);
        weir_close(w); /* joins the thread */
        ck_assert_int_eq(call.count, 1);
        ck_assert_int_eq(call.status, 0);
        ck_assert_uint_eq(call.unsent, 0);
        ck_assert(!pthread_equal(call.thread, pthread_self()));
        ck_assert_int_eq(live_bytes, 0);
    }
}
END_TEST

static _Atomic int closed_inside;

static void on_close_inside(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    weir_close(arg);
    atomic_store_explicit(&closed_inside, 1, memory_order_release);
}

START_TEST(the_limiter_may_be_closed_in_the_callback)
{
    struct weir_policy policy = slow_policy();

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 3), 3);
    ck_assert_int_eq(weir_sync_close(a.sync, on_close_inside, a.w), 0);
    node_until(atomic_load_explicit(&closed_inside, memory_order_acquire));
    node_pause(20); /* the thread is detached, and ends now */
}
END_TEST

START_TEST(a_sync_may_be_started_again)
{
    struct weir_policy policy = slow_policy();
    struct weir_result result;

    node_open(&a, &policy);
    for (int i = 0; i < 3; i++) {
        node_start(&a, redis_server_uri(server), node_patient());
        ck_assert_int_eq(node_wait_many(&a, "k", 10), 10);
        ck_assert_uint_eq(node_end(&a), 0);
        ck_assert_int_ge(node_take(&a, "other", &result), 0);
        ck_assert_uint_eq(result.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    }
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_le(node_wait_many(&a, "k", 200), 70 + 10);
    node_close(&a);
}
END_TEST

/* ---- the caller's loop ------------------------------------------------------------------------------------------- */

static uv_timer_t host;
static long host_beats;

static void on_beat(uv_timer_t *timer)
{
    ++*(long *)timer->data;
}

/* timeout_ms: 5000: a busy machine is no outage. */
static void start_on_loop(struct weir_policy *policy, const char *uri, uint32_t timeout_ms)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    options.uri = uri;
    options.timeout_ms = timeout_ms;
    options.drain_ms = NODE_WAIT_MS;
    node_open(&a, policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(uv_timer_init(&loop, &host), 0);
    host.data = &host_beats;
    ck_assert_int_eq(uv_timer_start(&host, on_beat, 1, 1), 0);
    uv_unref((uv_handle_t *)&host);
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &loop, &options), 0);
}

static void close_loop(void)
{
    uv_close((uv_handle_t *)&host, NULL);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Turns the loop as a host does that has something to do: a sync alone keeps none turning. */
#define turn_until(condition)                                                                                          \
    do {                                                                                                               \
        uv_ref((uv_handle_t *)&host);                                                                                  \
        node_until((uv_run(&loop, UV_RUN_NOWAIT), (condition)));                                                       \
        uv_unref((uv_handle_t *)&host);                                                                                \
    } while (0)

static void end_on_loop(struct call *call)
{
    ck_assert_int_eq(weir_sync_close(a.sync, on_call, call), 0);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(call->count, 1);
    ck_assert(pthread_equal(call->thread, pthread_self()));
    close_loop();
    weir_close(a.w);
}

START_TEST(an_idle_sync_keeps_no_loop_alive)
{
    struct weir_policy policy = slow_policy();
    struct call call = {0};

    start_on_loop(&policy, redis_server_uri(server), 5000);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_alive(&loop), 0);
    end_on_loop(&call);
    ck_assert_int_eq(call.status, 0);
}
END_TEST

START_TEST(the_callers_loop_serves)
{
    struct weir_policy policy = slow_policy();
    struct call flush = {0}, call = {0};

    start_on_loop(&policy, redis_server_uri(server), 5000);
    turn_until(node_stats(&a).syncs >= 64 && host_beats > 0);
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_sync_flush(a.sync, on_call, &flush), 0);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0); /* a flush on its way keeps the loop alive, and no longer */
    ck_assert_int_eq(flush.count, 1);
    ck_assert_int_eq(flush.status, 0);
    ck_assert_uint_eq(flush.unsent, 0);
    end_on_loop(&call);
    ck_assert_uint_eq(call.unsent, 0);
}
END_TEST

struct verdicts {
    int count, allowed;
    struct weir_sync *close;
    struct call *call;
};

static void on_verdict(void *arg, int status, const struct weir_result *result)
{
    struct verdicts *verdicts = arg;

    verdicts->allowed += status == WEIR_ALLOW;
    ck_assert_int_le(result->remaining, 100);
    if (verdicts->count++ == 0 && verdicts->close)
        ck_assert_int_eq(weir_sync_close(verdicts->close, on_call, verdicts->call), 0);
}

static void ask(struct verdicts *verdicts, const char *key)
{
    struct weir_request request = {.policy = a.id, .key = key, .key_len = strlen(key), .cost = 1};

    ck_assert_int_eq(weir_take_async(a.w, &request, on_verdict, verdicts), 0);
}

/* Asked before Redis is connected to, or once it has been heard. */
START_TEST(verdicts_come_later_in_every_mode)
{
    static const enum weir_mode modes[] = {WEIR_LOCAL, WEIR_HYBRID, WEIR_STRICT};
    struct weir_policy policy = node_policy(5, NODE_DAY, 5);
    struct verdicts verdicts = {0};
    struct call call = {0};

    policy.mode = modes[_i % 3];
    start_on_loop(&policy, redis_server_uri(server), 5000);
    if (_i >= 3)
        turn_until(node_stats(&a).store_up && (policy.mode != WEIR_HYBRID || node_stats(&a).syncs >= 64));
    for (int i = 0; i < 8; i++)
        ask(&verdicts, "k");
    ck_assert_int_eq(verdicts.count, 0);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0); /* it ends once all are told */
    ck_assert_int_eq(verdicts.count, 8);
    ck_assert_int_eq(verdicts.allowed, 5);
    end_on_loop(&call);
}
END_TEST

START_TEST(a_verdicts_callback_may_close)
{
    struct weir_policy policy = slow_policy();
    struct verdicts verdicts = {0};
    struct call call = {0};

    policy.mode = WEIR_STRICT;
    start_on_loop(&policy, redis_server_uri(server), 5000);
    verdicts.close = a.sync;
    verdicts.call = &call;
    for (int i = 0; i < 10; i++)
        ask(&verdicts, "k");
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(call.count, 1);
    ck_assert_int_eq(verdicts.count, 10);
    close_loop();
    weir_close(a.w);
}
END_TEST

/* Turns of the loop, a millisecond after each, until the verdict on a take that Redis leaves unanswered. */
static int turns_until_told(struct verdicts *verdicts)
{
    int before = verdicts->count, turns = 0;

    turn_until(node_stats(&a).store_up);
    ask(verdicts, "k");
    for (; verdicts->count == before; turns++) {
        uv_run(&loop, UV_RUN_NOWAIT);
        node_pause(1);
    }
    return turns;
}

/* Case E7: Redis answers after a second; the loop beats on. A loop that waited for it, or for the deadline, would make
 * a turn or two; one on a busy machine may, but not each time. */
START_TEST(case_E7_a_slow_redis_holds_no_loop)
{
    struct liar *liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    struct liar_rule rule = {.command = "EVALSHA", .act = LIAR_LATE, .ms = 1000};
    struct weir_policy policy = slow_policy();
    struct verdicts verdicts = {0};
    struct call call = {0};
    int asked = 0, most = 0;

    policy.mode = WEIR_STRICT;
    start_on_loop(&policy, liar_uri(liar), 300);
    turn_until(node_stats(&a).store_up);
    liar_rule(liar, &rule);
    for (; asked < 20 && (asked < 3 || most < 30); asked++) {
        int turns = turns_until_told(&verdicts);

        most = turns > most ? turns : most;
    }
    ck_assert_msg(most >= 30, "the loop was held: it made %d turns in the 300 ms that a take has", most);
    ask(&verdicts, "k");
    liar_clear(liar); /* what the outage policy let in is to be told at the end */
    end_on_loop(&call);
    ck_assert_int_eq(verdicts.count, asked + 1);
    liar_close(liar);
}
END_TEST

/* ---- flush and close --------------------------------------------------------------------------------------------- */

/* Case E5. */
START_TEST(close_drains)
{
    struct weir_sync_options options = *node_patient();
    struct weir_policy policy = slow_policy(), strict = slow_policy();
    struct weir_result result;

    options.interval_ms = 10000; /* no tick comes to help */
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(node_wait(&a, "k", 1, NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_end(&a), 0);
    node_close(&a);
    strict.mode = WEIR_STRICT;
    node_open(&a, &strict);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, 93);
    node_close(&a);
}
END_TEST

/* The same without Redis: it gives up after drain_ms and says what it could not tell. */
static long scripts_run(void)
{
    const char *calls = strstr(redis_server_do(server, "INFO", "commandstats", NULL), "cmdstat_evalsha:calls=");

    return calls ? strtol(strchr(calls, '=') + 1, NULL, 10) : 0;
}

/* Two admitted one each of a bucket of one that takes a day to fill: nobody waits for that, nor asks over and over. */
START_TEST(close_leaves_a_debt_behind)
{
    struct weir_policy policy = node_policy(1, NODE_DAY, 1);
    struct weir_sync_options options = *node_patient();
    struct node b;
    uint64_t begin;
    double took;
    long before;

    options.drain_ms = 3 * NODE_WAIT_MS; /* node_end waits for less */
    options.shards = 1; /* a tick in between says to each shard that the node lives, which is not what is counted */
    options.interval_ms = 5000;
    node_open(&a, &policy);
    node_open(&b, &policy);
    node_start(&a, redis_server_uri(server), &options);
    node_start(&b, redis_server_uri(server), &options);
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(node_take(&b, "k", NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_flush(&a) + node_flush(&b), 0);
    before = scripts_run();
    begin = uv_hrtime();
    ck_assert_uint_eq(node_end(&a) + node_end(&b), 0);
    took = (double)(uv_hrtime() - begin) / 1e9;
    ck_assert_int_lt(scripts_run() - before, 20 + (long)took); /* ticks of a machine that stands still */
    node_close(&a);
    node_close(&b);
}
END_TEST

/* Four admitted one each: Redis takes a debt of one and parts of a token. The whole one beyond that is carried until
 * there is room for it, not waited for, and told of. */
START_TEST(a_debt_that_is_too_deep_is_unsent)
{
    struct weir_policy policy = node_policy(1, NODE_DAY, 1);
    struct weir_sync_options options = *node_patient();
    struct node nodes[4];
    uint64_t unsent = 0;

    policy.max_overshoot = WEIR_NONE;
    options.drain_ms = 3 * NODE_WAIT_MS; /* node_end waits for less: nobody waits for it to be over */
    for (int i = 0; i < 4; i++) {
        node_open(&nodes[i], &policy);
        node_start(&nodes[i], redis_server_uri(server), &options);
    }
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(node_take(&nodes[i], "k", NULL), WEIR_ALLOW);
    for (int i = 0; i < 4; i++)
        unsent += node_flush(&nodes[i]);
    ck_assert_uint_eq(unsent, 1);
    for (int i = 0; i < 4; i++)
        unsent += node_end(&nodes[i]);
    ck_assert_uint_eq(unsent, 2);
    for (int i = 0; i < 4; i++)
        node_close(&nodes[i]);
}
END_TEST

START_TEST(close_says_what_is_unsent)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = slow_policy();
    struct call flush = {0};
    uint64_t begin;

    options.drain_ms = 300;
    redis_server_kill(server);
    node_open(&a, &policy);
    node_launch(&a, redis_server_uri(server), &options);
    for (int i = 0; i < 7; i++)
        ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_uint_eq(node_flush(&a), 7);
    ck_assert_int_eq(a.status, WEIR_E_TIMEOUT);
    ck_assert_int_eq(weir_sync_flush(a.sync, on_call, &flush), 0);
    begin = uv_hrtime();
    ck_assert_uint_eq(node_end(&a), 7);
    ck_assert_uint_ge(uv_hrtime() - begin, 250 * NODE_MS);
    ck_assert_int_eq(flush.count, 1);
    ck_assert_int_lt(flush.status, 0);
    ck_assert_uint_eq(flush.unsent, 7);
    node_close(&a);
}
END_TEST

START_TEST(nobody_is_let_in_after_close)
{
    struct weir_policy policy = slow_policy();
    struct weir_request request = {.key = "k", .key_len = 1, .cost = 1};
    struct weir_sync *sync;

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), NULL);
    sync = a.sync;
    redis_server_pause(server); /* so that it takes a while */
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_sync_close(sync, NULL, NULL), 0);
    ck_assert_int_eq(weir_sync_close(sync, NULL, NULL), WEIR_E_CLOSED);
    ck_assert_int_eq(weir_sync_flush(sync, NULL, NULL), WEIR_E_CLOSED);
    ck_assert_int_eq(weir_take_async(a.w, &request, on_verdict, NULL), WEIR_E_CLOSED);
    redis_server_resume(server);
    weir_close(a.w);
}
END_TEST

/* ---- fork -------------------------------------------------------------------------------------------------------- */

START_TEST(a_child_is_told)
{
    struct weir_policy policy = slow_policy();
    struct weir_request request = {.key = "k", .key_len = 1, .cost = 1};
    int status;
    pid_t pid;

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait(&a, "k", 1, NULL), WEIR_ALLOW);
    pid = fork();
    if (pid == 0) {
        int wrong = weir_take(a.w, a.id, "k", 1, 1, NULL) != WEIR_E_FORKED;

        wrong |= weir_take_wait(a.w, &request, 0, NULL) != WEIR_E_FORKED;
        wrong |= weir_take_async(a.w, &request, on_verdict, NULL) != WEIR_E_FORKED;
        wrong |= weir_sync_flush(a.sync, NULL, NULL) != WEIR_E_FORKED;
        wrong |= weir_sync_close(a.sync, NULL, NULL) != WEIR_E_FORKED;
        _exit(wrong);
    }
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(node_wait(&a, "k", 1, NULL), WEIR_ALLOW);
    node_close(&a);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("life");
    TCase *start = tcase_create("start"), *callers = tcase_create("the caller's loop"), *end = tcase_create("end");
    TCase *forked = tcase_create("fork");

    tcase_add_checked_fixture(start, open_server, close_server);
    tcase_add_test(start, bad_options_leave_nothing);
    tcase_add_test(start, a_second_sync_is_busy);
    tcase_add_test(start, a_thread_of_its_own_ends_with_its_callback);
    tcase_add_test(start, the_limiter_may_be_closed_in_the_callback);
    tcase_add_test(start, a_sync_may_be_started_again);
    suite_add_tcase(s, start);
    tcase_set_tags(forked, "wipe_on_fork");
    tcase_add_checked_fixture(forked, open_server, close_server);
    tcase_add_test(forked, a_child_is_told);
    suite_add_tcase(s, forked);
    tcase_add_checked_fixture(callers, open_server, close_server);
    tcase_add_test(callers, an_idle_sync_keeps_no_loop_alive);
    tcase_add_test(callers, the_callers_loop_serves);
    tcase_add_loop_test(callers, verdicts_come_later_in_every_mode, 0, 6);
    tcase_add_test(callers, a_verdicts_callback_may_close);
    tcase_add_test(callers, case_E7_a_slow_redis_holds_no_loop);
    suite_add_tcase(s, callers);
    tcase_add_checked_fixture(end, open_server, close_server);
    tcase_add_test(end, close_drains);
    tcase_add_test(end, close_leaves_a_debt_behind);
    tcase_add_test(end, a_debt_that_is_too_deep_is_unsent);
    tcase_add_test(end, close_says_what_is_unsent);
    tcase_add_test(end, nobody_is_let_in_after_close);
    suite_add_tcase(s, end);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
