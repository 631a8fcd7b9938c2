/* SPDX-License-Identifier: MIT */
/*
 * How a sync begins and ends while something else fails: a start that does, a descriptor that libuv refuses, a server
 * in any state, a peer that goes, a callback that closes, threads that call all there is. On the caller's loop, where
 * what is left over shows: each callback comes once, uv_run and uv_loop_close return 0, and memory and descriptors are
 * given back.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <uv.h>

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct liar *liar;
static struct weir *w;
static struct weir_sync *sync_;
static weir_policy_id strict, hybrid;
static uv_loop_t loop;
static uv_timer_t beat; /* a sync alone keeps no loop turning */
static int closed;

static void open_server(void)
{
    server = redis_server_open(NULL);
    ck_assert_int_eq(uv_loop_init(&loop), 0); /* the first one opens what libuv never closes */
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void close_server(void)
{
    redis_server_close(server);
}

/* ---- what is held ------------------------------------------------------------------------------------------------ */

static _Atomic long live_bytes, allocations;
static long fail_at; /* that allocation fails; 0: none */

static void *count_alloc(void *arg, size_t size)
{
    (void)arg;
    if (atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed) + 1 == fail_at) {
        return NULL;
    }
    atomic_fetch_add_explicit(&live_bytes, (long)size, memory_order_relaxed);
    return malloc(size);
}

static void count_release(void *arg, void *memory, size_t size)
{
    (void)arg;
    atomic_fetch_sub_explicit(&live_bytes, (long)size, memory_order_relaxed);
    free(memory);
}

static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder)) {
        n++;
    }
    closedir(folder);
    return n;
}

static int refusals; /* log lines that tell of one */

static void on_log(void *arg, enum weir_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    refusals += strstr(line, ": system: ") != NULL;
}

/* ---- the limiter, its loop --------------------------------------------------------------------------------------- */

static void open_limiter(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = node_policy(1000, NODE_DAY, 1000);
    options.allocator.alloc = count_alloc;
    options.allocator.release = count_release;
    options.log = on_log;
    options.max_keys = 1024;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &policy, &hybrid), 0);
    policy.name = "s";
    policy.mode = WEIR_STRICT;
    ck_assert_int_eq(weir_policy_add(w, &policy, &strict), 0);
}

static void on_beat(uv_timer_t *timer)
{
    (void)timer;
}

static void open_loop(void)
{
    closed = 0;
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    ck_assert_int_eq(uv_timer_init(&loop, &beat), 0);
    ck_assert_int_eq(uv_timer_start(&beat, on_beat, 1, 1), 0);
}

/* Nothing is left on it. */
static void close_loop(void)
{
    uv_close((uv_handle_t *)&beat, NULL);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void turn_for(unsigned ms)
{
    uint64_t end = uv_hrtime() + ms * NODE_MS;
    while (uv_hrtime() < end) {
        uv_run(&loop, UV_RUN_ONCE);
    }
}

/* Turns the loop until the condition holds; Check's own timeout is the end of it. */
#define turn_until(condition)                                                                                          \
    do {                                                                                                               \
        while (!(condition)) {                                                                                         \
            uv_run(&loop, UV_RUN_ONCE);                                                                                \
        }                                                                                                              \
    } while (0)

static struct weir_stats stats(void)
{
    struct weir_stats now = {.size = sizeof now};
    ck_assert_int_eq(weir_stats_get(w, &now), 0);
    return now;
}

static int start(const char *uri)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    options.uri = uri;
    options.drain_ms = 5;
    return weir_sync_start(&sync_, w, &loop, &options);
}

static void on_closed(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    closed++;
    weir_close(arg); /* NULL: not yet */
}

/* ---- starts that fail (case E11 and its like) -------------------------------------------------------------------- */

/* The limiter goes first, or the loop runs first: nothing is left in either order. */
static void expect_nothing_left(int descriptors, int limiter_first)
{
    ck_assert_ptr_null(sync_);
    if (limiter_first) {
        weir_close(w);
        close_loop();
    } else {
        close_loop();
        weir_close(w);
    }
    ck_assert_int_eq(live_bytes, 0);
    ck_assert_int_eq(count_descriptors(), descriptors);
}

static const char *const no_tls[] = {"rediss://127.0.0.1:1", "rediss+cluster://127.0.0.1:1,127.0.0.1:2",
                                     "rediss+sentinel://127.0.0.1:1/m"};

START_TEST(case_E11_a_start_without_tls_leaves_nothing)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    int descriptors = count_descriptors();
    open_limiter();
    open_loop();
    options.uri = no_tls[_i / 2];
    options.tls_ca = "/nonexistent/ca.pem"; /* where TLS is built in */
    sync_ = (struct weir_sync *)&options;
    int status = weir_sync_start(&sync_, w, &loop, &options);
    ck_assert(status == WEIR_E_NOSUP || status == WEIR_E_SYS);
    expect_nothing_left(descriptors, _i % 2);
}
END_TEST

/* Each allocation of a start fails once. */
START_TEST(case_E11_a_start_without_memory_leaves_nothing)
{
    static const char *const uris[] = {"redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1",
                                       "redis+sentinel://127.0.0.1:1/m"};
    int failures = 0, status = WEIR_E_NOMEM, descriptors = count_descriptors();
    for (long nth = 1; status != 0; nth++) {
        open_limiter();
        open_loop();
        fail_at = allocations + nth;
        status = start(uris[_i / 2]);
        fail_at = 0;
        if (status != 0) {
            ck_assert_int_eq(status, WEIR_E_NOMEM);
            expect_nothing_left(descriptors, _i % 2);
            failures++;
        }
    }
    ck_assert_int_gt(failures, 5);
    ck_assert_int_eq(weir_sync_close(sync_, on_closed, w), 0);
    close_loop();
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(live_bytes, 0);
}
END_TEST

/* The limiter has one already: the second one, on the caller's loop, goes without a trace, though that loop runs when
 * the limiter is long gone. */
START_TEST(case_E11_a_start_too_many_leaves_nothing)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_sync *first;
    options.uri = redis_server_uri(server);
    open_limiter();
    ck_assert_int_eq(weir_sync_start(&first, w, NULL, &options), 0);
    open_loop();
    ck_assert_int_eq(start(redis_server_uri(server)), WEIR_E_BUSY);
    ck_assert_ptr_null(sync_);
    ck_assert_int_eq(weir_sync_close(first, NULL, NULL), 0);
    weir_close(w);
    close_loop();
    ck_assert_int_eq(live_bytes, 0);
}
END_TEST

/* The system gives no thread: its stack would be larger than the address space. */
START_TEST(case_E11_a_start_without_a_thread_leaves_nothing)
{
    struct rlimit before, huge;
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    int before_that = count_descriptors();
    ck_assert_int_eq(getrlimit(RLIMIT_STACK, &before), 0);
    huge = before;
    huge.rlim_cur = (rlim_t)1 << 62;
    if (before.rlim_max != RLIM_INFINITY && before.rlim_max < huge.rlim_cur) {
        huge.rlim_max = huge.rlim_cur; /* root may */
    }
    open_limiter();
    long held = live_bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_STACK, &huge), 0);
    for (int i = 0; i < 20; i++) {
        sync_ = (struct weir_sync *)&options;
        ck_assert_int_eq(weir_sync_start(&sync_, w, NULL, &options), WEIR_E_SYS);
        ck_assert_ptr_null(sync_);
        ck_assert_int_eq(live_bytes, held);
    }
    ck_assert_int_eq(setrlimit(RLIMIT_STACK, &before), 0);
    ck_assert_int_eq(count_descriptors(), before_that);
    options.uri = redis_server_uri(server);
    ck_assert_int_eq(weir_sync_start(&sync_, w, NULL, &options), 0);
    ck_assert_int_eq(weir_sync_close(sync_, NULL, NULL), 0);
    weir_close(w);
    ck_assert_int_eq(live_bytes, 0);
}
END_TEST

/* ---- ends, whatever the server does (case 34 and its like) ------------------------------------------------------- */

enum way { BY_SOCKET, BY_TCP, BY_CLUSTER, BY_SENTINEL };

static const struct state {
    enum way way;
    const char *command; /* what is answered by `act` */
    enum liar_act act;
    int refuse, deaf, up; /* up: it is, before the rule is made */
} states[] = {
    {.way = BY_SOCKET, .refuse = 1},
    {.way = BY_TCP, .refuse = 1},
    {.way = BY_CLUSTER, .refuse = 1},
    {.way = BY_SENTINEL, .refuse = 1},
    {.way = BY_SOCKET, .deaf = 1},
    {.way = BY_CLUSTER, .deaf = 1},
    {.way = BY_SENTINEL, .deaf = 1},
    {.way = BY_TCP, .command = "SCRIPT", .act = LIAR_HANG},
    {.way = BY_TCP, .command = "INFO", .act = LIAR_CLOSE},
    {.way = BY_CLUSTER, .command = "CLUSTER", .act = LIAR_HANG},
    {.way = BY_CLUSTER, .command = "CLUSTER", .act = LIAR_CLOSE},
    {.way = BY_SENTINEL, .command = "SENTINEL", .act = LIAR_HANG},
    {.way = BY_SENTINEL, .command = "ROLE", .act = LIAR_HANG},
    {.way = BY_SOCKET, .command = "EVALSHA", .act = LIAR_HANG, .up = 1},
    {.way = BY_SOCKET, .command = "EVALSHA", .act = LIAR_CLOSE, .up = 1},
    {.way = BY_TCP, .command = "EVALSHA", .act = LIAR_RESET, .up = 1},
    {.way = BY_SOCKET, .command = "EVALSHA", .act = LIAR_SILENT, .up = 1},
    {.way = BY_SOCKET, .command = "EVALSHA", .act = LIAR_LATE, .up = 1},
    {.way = BY_SOCKET, .command = "EVALSHA", .act = LIAR_HALF, .up = 1},
    {.way = BY_SENTINEL, .command = "EVALSHA", .act = LIAR_LOSE_REPLY, .up = 1},
};

enum { STATES = sizeof states / sizeof states[0] };

static void open_way(enum way way, char *uri, size_t size)
{
    static const char *const forms[] = {[BY_TCP] = "redis://127.0.0.1:%d",
                                        [BY_CLUSTER] = "redis+cluster://127.0.0.1:%d",
                                        [BY_SENTINEL] = "redis+sentinel://127.0.0.1:%d/m"};
    liar = liar_open(&(struct liar_options){
        .tcp = way != BY_SOCKET,
        .upstream = way == BY_SENTINEL || way == BY_CLUSTER ? NULL : redis_server_socket(server)});
    if (way == BY_SOCKET) {
        snprintf(uri, size, "unix://%s", liar_socket(liar));
    } else {
        snprintf(uri, size, forms[way], liar_port(liar));
    }
}

struct call {
    int asked, calls, status, flags, close;
};

/* A call's answer may close the sync. */
static void end_by(struct call *call)
{
    call->calls++;
    if (call->close) {
        call->close = 0;
        ck_assert_int_eq(weir_sync_close(sync_, on_closed, NULL), 0);
    }
}

static void on_verdict(void *arg, int status, const struct weir_result *result)
{
    struct call *call = arg;
    call->status = status;
    call->flags = (int)result->flags;
    end_by(call);
}

static void on_flushed(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    end_by(arg);
}

static struct weir_request request_of(weir_policy_id id, const char *key)
{
    return (struct weir_request){.policy = id, .key = key, .key_len = strlen(key), .cost = 1};
}

/* One of each kind that calls back, and what calls nobody back. */
static void call_all(struct call *strictly, struct call *hybridly, struct call *flush)
{
    struct weir_request one = request_of(strict, "one"), two = request_of(hybrid, "two");
    strictly->asked = weir_take_async(w, &one, on_verdict, strictly) == 0;
    hybridly->asked = weir_take_async(w, &two, on_verdict, hybridly) == 0;
    weir_take(w, hybrid, "three", 5, 1, NULL);
    flush->asked = weir_sync_flush(sync_, on_flushed, flush) == 0;
    weir_forget(w, hybrid, "four", 4);
    weir_forget(w, strict, "five", 4);
}

static void expect_once(const struct call *call)
{
    ck_assert_int_eq(call->calls, call->asked);
}

static _Atomic int refusing;

/* libuv asks whether it can watch a descriptor by adding it: while `refusing`, TCP's can't be. Here, and not by numbers
 * that libuv believes it watches, since the server's thread would be given some of those. */
__attribute__((visibility("default"))) int epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
    int domain = 0;
    socklen_t len = sizeof domain;
    if (atomic_load_explicit(&refusing, memory_order_relaxed) && op == EPOLL_CTL_ADD &&
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_INET) {
        errno = ENOSPC; /* as where the user watches too many */
        return -1;
    }
    return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

/* libuv refuses the descriptors of every connection, in each kind of way to a server, while calls are in flight; then
 * it is closed, or it takes them again. */
START_TEST(case_E11_refused_descriptors_are_no_end)
{
    static const char *const forms[] = {"redis://127.0.0.1:%d", "redis+cluster://127.0.0.1:%d",
                                        "redis+sentinel://127.0.0.1:%d/m"};
    struct call calls[3] = {{0}};
    int recovers = _i % 2;
    char uri[64];
    liar = liar_open(&(struct liar_options){.tcp = 1});
    liar_rule(liar, &(struct liar_rule){.command = "CLUSTER", .act = LIAR_REPLY, .text = "-ERR no cluster\r\n"});
    snprintf(uri, sizeof uri, forms[_i / 2], liar_port(liar));
    open_limiter();
    open_loop();
    atomic_store_explicit(&refusing, 1, memory_order_relaxed);
    ck_assert_int_eq(start(uri), 0);
    call_all(&calls[0], &calls[1], &calls[2]);
    turn_until(refusals >= 2);
    ck_assert_uint_eq(liar_count(liar, NULL), 0);
    atomic_store_explicit(&refusing, !recovers, memory_order_relaxed);
    turn_until(!recovers || liar_count(liar, "INFO") > 0);
    ck_assert_int_eq(weir_sync_close(sync_, on_closed, w), 0);
    turn_until(closed);
    for (int i = 0; i < 3; i++) {
        expect_once(&calls[i]);
    }
    close_loop();
    ck_assert_int_eq(live_bytes, 0);
    liar_close(liar);
}
END_TEST

/* In each state it is closed at once, or some turns later; with calls in flight, or without. */
START_TEST(case_34_ended_in_any_state)
{
    const struct state *state = &states[_i / 2];
    int busy = _i % 2;
    struct call calls[3] = {{0}};
    char uri[128];
    open_way(state->way, uri, sizeof uri);
    for (unsigned turns = 0; turns < 40; turns += 19) {
        liar_clear(liar);
        liar_refuse(liar, state->refuse);
        liar_deaf(liar, state->deaf);
        memset(calls, 0, sizeof calls);
        open_limiter();
        open_loop();
        if (state->command && !state->up) {
            liar_rule(liar, &(struct liar_rule){.command = state->command, .act = state->act});
        }
        ck_assert_int_eq(start(uri), 0);
        if (state->up) {
            turn_until(stats().store_up);
            liar_rule(liar, &(struct liar_rule){.command = state->command, .act = state->act, .ms = 100});
        }
        if (busy) {
            call_all(&calls[0], &calls[1], &calls[2]);
        }
        for (unsigned i = 0; i < turns; i++) {
            uv_run(&loop, UV_RUN_ONCE);
        }
        ck_assert_int_eq(weir_sync_close(sync_, on_closed, w), 0);
        ck_assert_int_eq(weir_sync_close(sync_, on_closed, w), WEIR_E_CLOSED);
        close_loop();
        ck_assert_int_eq(closed, 1);
        for (int i = 0; i < 3; i++) {
            expect_once(&calls[i]);
        }
        ck_assert_int_eq(live_bytes, 0);
    }
    liar_close(liar);
}
END_TEST

/* ---- a peer that goes (case 32 and its like) --------------------------------------------------------------------- */

static const enum liar_act ways_to_go[] = {LIAR_CLOSE, LIAR_RESET, LIAR_HALF_CLOSE, LIAR_GARBAGE, LIAR_LOSE_REPLY};

enum { WAYS_TO_GO = sizeof ways_to_go / sizeof ways_to_go[0] };

/* It goes with decisions, a report and a flush on their way; in turn the first, second or third callback closes, or
 * nobody before it is up again. */
START_TEST(case_32_the_peer_goes_and_a_callback_closes)
{
    enum { ROUNDS = 12 }; /* who closes, and at which script it goes: each with each */
    char uri[128];
    open_way(_i % 2 ? BY_TCP : BY_SOCKET, uri, sizeof uri);
    for (int round = 0; round < ROUNDS; round++) {
        struct call calls[3] = {{0}};
        int closer = round % 4;
        liar_clear(liar);
        open_limiter();
        open_loop();
        ck_assert_int_eq(start(uri), 0);
        turn_until(stats().store_up);
        liar_rule(liar, &(struct liar_rule){
                            .command = "EVALSHA", .skip = (unsigned)round % 3, .times = 1, .act = ways_to_go[_i]});
        if (closer < 3) {
            calls[closer].close = 1;
        }
        call_all(&calls[0], &calls[1], &calls[2]);
        weir_give(w, hybrid, "three", 5, 1);
        turn_until(calls[0].calls && calls[1].calls && calls[2].calls);
        if (closer == 3) {
            turn_until(stats().store_up);
            ck_assert_int_eq(weir_sync_close(sync_, on_closed, NULL), 0);
        }
        turn_until(closed);
        weir_close(w);
        close_loop();
        ck_assert_int_eq(closed, 1);
        for (int i = 0; i < 3; i++) {
            ck_assert_int_eq(calls[i].calls, 1);
        }
        ck_assert(calls[0].flags & WEIR_DEGRADED ? calls[0].status == WEIR_DENY : calls[0].status == WEIR_ALLOW);
        ck_assert_int_eq(live_bytes, 0);
    }
    liar_close(liar);
}
END_TEST

/* ---- threads that call all there is (case 34 and its like) ------------------------------------------------------- */

static _Atomic int stop;
static _Atomic long asked, answered;
static long flushes_asked, flushes_answered; /* the loop's */

static void count_verdict(void *arg, int status, const struct weir_result *result)
{
    (void)arg;
    (void)status;
    (void)result;
    atomic_fetch_add_explicit(&answered, 1, memory_order_relaxed);
}

static void call_each(unsigned n)
{
    char text[256];
    struct weir_request requests[] = {request_of(hybrid, "a"), request_of(strict, "b"), request_of(hybrid, "c")};
    struct weir_policy policy = node_policy(1000 + n % 2, NODE_DAY, 1000);
    struct weir_result result;
    switch (n % 9) {
    case 0: weir_take(w, strict, "k", 1, 1, &result); break;
    case 1: weir_take_many(w, requests, 3, 0); break;
    case 2: weir_take_all(w, requests, 2, &result); break;
    case 3: weir_take_wait(w, &requests[n % 3], NODE_MS, &result); break;
    case 4:
        if (weir_take_async(w, &requests[n % 3], count_verdict, NULL) == 0) {
            atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
        }
        break;
    case 5: weir_give(w, n % 2 ? hybrid : strict, "k", 1, 1); break;
    case 6: weir_forget(w, n % 2 ? hybrid : strict, "k", 1); break;
    case 7:
        policy.on_outage = WEIR_OUTAGE_CLOSED;
        weir_policy_set(w, hybrid, &policy);
        break;
    default: weir_metrics_write(w, text, sizeof text); break;
    }
    weir_take(w, hybrid, "k", 1, 1, n % 2 ? NULL : &result);
}

static void *call_on(void *arg)
{
    unsigned n = (unsigned)(uintptr_t)arg;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        call_each(n++);
        usleep(100);
    }
    return NULL;
}

static void count_flush(void *arg, int status, uint64_t unsent)
{
    (void)arg;
    (void)status;
    (void)unsent;
    flushes_answered++;
}

/* They never stop while syncs begin and end on the caller's loop: each call returns, each that calls back does so once,
 * and each end is one. */
START_TEST(case_34_every_call_while_syncs_begin_and_end)
{
    enum { THREADS = 8, ROUNDS = 30 };
    pthread_t threads[THREADS];
    open_limiter();
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, call_on, (void *)(uintptr_t)i), 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        open_loop();
        ck_assert_int_eq(start(redis_server_uri(server)), 0);
        for (int i = 0; i < round; i++) {
            uv_run(&loop, UV_RUN_ONCE);
        }
        flushes_asked += weir_sync_flush(sync_, count_flush, NULL) == 0;
        ck_assert_int_eq(weir_sync_close(sync_, on_closed, NULL), 0);
        ck_assert_int_eq(weir_sync_flush(sync_, count_flush, NULL), WEIR_E_CLOSED);
        close_loop();
        ck_assert_int_eq(closed, 1);
    }
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_eq(answered, asked);
    ck_assert_int_eq(flushes_answered, flushes_asked);
    weir_close(w);
    ck_assert_int_eq(live_bytes, 0);
}
END_TEST

static void *close_too(void *arg)
{
    return (void *)(intptr_t)weir_sync_close(arg, on_closed, NULL);
}

/* Whoever is first closes; the loop does not turn before both have called. */
START_TEST(case_34_two_threads_close)
{
    for (int round = 0; round < 20; round++) {
        pthread_t other;
        void *theirs;
        open_limiter();
        open_loop();
        ck_assert_int_eq(start(redis_server_uri(server)), 0);
        turn_for((unsigned)round % 3);
        ck_assert_int_eq(pthread_create(&other, NULL, close_too, sync_), 0);
        int ours = weir_sync_close(sync_, on_closed, NULL);
        pthread_join(other, &theirs);
        ck_assert(ours == 0 ? (intptr_t)theirs == WEIR_E_CLOSED : ours == WEIR_E_CLOSED && theirs == NULL);
        close_loop();
        ck_assert_int_eq(closed, 1);
        weir_close(w);
        ck_assert_int_eq(live_bytes, 0);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("start_end");
    TCase *starts = tcase_create("starts"), *threads = tcase_create("no thread"), *ends = tcase_create("ends");
    tcase_add_unchecked_fixture(starts, open_server, close_server);
    tcase_add_loop_test(starts, case_E11_a_start_without_tls_leaves_nothing, 0, 6);
    tcase_add_loop_test(starts, case_E11_a_start_without_memory_leaves_nothing, 0, 6);
    tcase_add_test(starts, case_E11_a_start_too_many_leaves_nothing);
    tcase_add_loop_test(starts, case_E11_refused_descriptors_are_no_end, 0, 6);
    suite_add_tcase(s, starts);
    tcase_set_tags(threads, "stack_limit");
    tcase_add_unchecked_fixture(threads, open_server, close_server);
    tcase_add_test(threads, case_E11_a_start_without_a_thread_leaves_nothing);
    suite_add_tcase(s, threads);
    tcase_add_unchecked_fixture(ends, open_server, close_server);
    tcase_add_loop_test(ends, case_34_ended_in_any_state, 0, 2 * STATES);
    tcase_add_loop_test(ends, case_32_the_peer_goes_and_a_callback_closes, 0, WAYS_TO_GO);
    tcase_add_test(ends, case_34_every_call_while_syncs_begin_and_end);
    tcase_add_test(ends, case_34_two_threads_close);
    suite_add_tcase(s, ends);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
