/* SPDX-License-Identifier: MIT */
/*
 * What the host does to a limiter: it forks, runs out of descriptors, ends threads, blocks the loop, steps the clock,
 * closes in the midst of calls. Real Redis, real faults.
 */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uv.h>

#include "integration/script_client.h"
#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a;
static _Atomic int *said; /* by a child, to its parent */
static uint64_t begun;

static void open_server(void)
{
    said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(said, MAP_FAILED);
    server = redis_server_open(NULL);
    begun = uv_hrtime();
}

static void close_server(void)
{
    redis_server_close(server);
}

static struct weir_policy slow_policy(void)
{
    return node_policy(7000, NODE_DAY, 100000);
}

/* Tokens of key "k" of policy "p" that Redis counts as taken. */
static double taken(void)
{
    struct weir__wire_seen seen = script_client_look(server, "p", "k");
    return seen.exists ? 100000 - seen.total : 0;
}

static void settle(struct node *node)
{
    node_until(node_stats(node).store_up == 1);
    node_until(node_flush(node) == 0 && node->status == 0);
}

static void check_taken(long allowed)
{
    double charged = taken(), refill = 7000 * (double)(uv_hrtime() - begun) / (double)NODE_DAY;
    ck_assert_msg(charged <= (double)allowed + 0.1 && charged >= (double)allowed - 2 - refill,
                  "%ld admitted, %f charged", allowed, charged);
}

/* What a child found out. It ends by a signal: it can't join the threads of its parent, and an exit would be blamed for
 * that. */
static void say_and_end(int what)
{
    atomic_store_explicit(said, what, memory_order_release);
    raise(SIGKILL);
}

static int hear(pid_t child)
{
    int status;
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child ended with status %x", status);
    return atomic_exchange_explicit(said, 0, memory_order_acquire);
}

static long take_some(struct node *node, int n)
{
    long allowed = 0;
    for (int i = 0; i < n; i++) {
        allowed += node_take(node, "k", NULL) == WEIR_ALLOW;
        usleep(500);
    }
    return allowed;
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

/* A limiter that was opened before the fork is the child's own; each starts its sync. */
START_TEST(forked_before_the_start)
{
    struct weir_policy policy = slow_policy();
    node_open(&a, &policy);
    pid_t child = fork();
    node_start(&a, redis_server_uri(server), node_patient());
    long allowed = take_some(&a, 100);
    settle(&a);
    uint64_t unsent = node_end(&a);
    if (child == 0) {
        say_and_end(unsent ? -1 : (int)allowed);
    }
    ck_assert_uint_eq(unsent, 0);
    int childs = hear(child);
    ck_assert_int_gt(childs, 0);
    check_taken(allowed + childs);
    node_close(&a);
}
END_TEST

/* The host starts other programs all the time. */
START_TEST(forked_while_it_syncs)
{
    struct weir_policy policy = slow_policy();
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    long allowed = 0;
    options.interval_ms = 20;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
    for (int i = 0; i < 20; i++) {
        allowed += take_some(&a, 20);
        pid_t child = fork();
        if (child == 0) {
            say_and_end(i % 2 ? weir_take(a.w, a.id, "k", 1, 1, NULL) : WEIR_E_FORKED);
        }
        allowed += take_some(&a, 5);
        ck_assert_int_eq(hear(child), WEIR_E_FORKED);
    }
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    check_taken(allowed);
    node_close(&a);
}
END_TEST

static _Atomic int forked;

/* On the sync's own thread, in the midst of its work. */
static void fork_here(void *arg, int status, const struct weir_result *result)
{
    (void)arg;
    (void)status;
    (void)result;
    pid_t child = fork();
    if (child == 0) {
        say_and_end(1);
    }
    hear(child);
    atomic_fetch_add_explicit(&forked, 1, memory_order_release);
}

START_TEST(forked_in_a_callback)
{
    struct weir_policy policy = slow_policy();
    struct weir_request request = {.key = "k", .key_len = 1, .cost = 1};
    policy.mode = WEIR_STRICT;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(weir_take_async(a.w, &request, fork_here, NULL), 0);
        node_until(atomic_load_explicit(&forked, memory_order_acquire) > i);
        ck_assert_int_eq(node_wait(&a, "k", 1, NULL), WEIR_ALLOW);
    }
    ck_assert_uint_eq(node_end(&a), 0);
    check_taken(10);
    node_close(&a);
}
END_TEST

START_TEST(forked_after_the_end)
{
    struct weir_policy policy = slow_policy();
    long allowed;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    allowed = take_some(&a, 50);
    ck_assert_uint_eq(node_end(&a), 0);
    pid_t child = fork();
    if (child == 0) {
        int status = weir_take(a.w, a.id, "k", 1, 1, NULL);
        say_and_end(status == WEIR_E_FORKED || status == WEIR_ALLOW ? 1 : 2); /* it has no sync any more */
    }
    ck_assert_int_eq(hear(child), 1);
    check_taken(allowed);
    node_close(&a);
}
END_TEST

/* ---- signals and descriptors ------------------------------------------------------------------------------------- */

struct host {
    uv_loop_t loop;
    uv_timer_t tick;
    struct liar *liar;
    int turns, closed;
};

static void on_tick(uv_timer_t *timer)
{
    struct host *host = timer->data;
    host->turns++;
    if (host->liar) {
        liar_cut(host->liar);
    }
    node_take(&a, "k", NULL);
}

static void on_closed(void *arg, int status, uint64_t unsent)
{
    (void)status;
    (void)unsent;
    ((struct host *)arg)->closed++;
}

static void open_host(struct host *host, const char *uri)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    memset(host, 0, sizeof *host);
    options.uri = uri;
    ck_assert_int_eq(uv_loop_init(&host->loop), 0);
    uv_timer_init(&host->loop, &host->tick);
    host->tick.data = host;
    ck_assert_int_eq(weir_sync_start(&a.sync, a.w, &host->loop, &options), 0);
}

static void close_host(struct host *host)
{
    uv_close((uv_handle_t *)&host->tick, NULL);
    ck_assert_int_eq(weir_sync_close(a.sync, on_closed, host), 0);
    uv_run(&host->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(host->closed, 1);
    ck_assert_int_eq(uv_loop_close(&host->loop), 0);
    weir_close(a.w);
}

/* On the caller's loop, whose thread dies of SIGPIPE by default. */
START_TEST(a_dead_peer_raises_no_signal)
{
    struct weir_policy policy = slow_policy();
    struct host host;
    signal(SIGPIPE, SIG_DFL);
    node_open(&a, &policy);
    struct liar *liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    open_host(&host, liar_uri(liar));
    host.liar = liar;
    uv_timer_start(&host.tick, on_tick, 5, 5);
    while (host.turns < 100) {
        uv_run(&host.loop, UV_RUN_ONCE);
    }
    host.liar = NULL;
    close_host(&host);
    liar_close(liar);
}
END_TEST

/* The link is about to try, and fails; its socket's number is free for a moment each time. */
static void take_descriptors(int fds[], int *n, int most)
{
    while (*n < most && (fds[*n] = dup(0)) >= 0) {
        ++*n;
    }
}

/* Takes every descriptor there is, runs `during`, gives them back. */
static void without_descriptors(void (*before_that)(void), void (*during)(void))
{
    int taken_fds[256], n = 0;
    struct rlimit before, less;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    less = before;
    less.rlim_cur = 128;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &less), 0);
    before_that();
    for (int i = 0; i < 50; i++) {
        take_descriptors(taken_fds, &n, 256);
        usleep(2000);
    }
    during();
    while (n > 0) {
        close(taken_fds[--n]);
    }
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static long during_allowed;

static void lose_the_server(void)
{
    redis_server_kill(server);
    node_until(node_stats(&a).store_up == 0);
}

static void go_on(void)
{
    during_allowed = take_some(&a, 1000);
    node_until(node_said(&a, "Too many open files"));
}

START_TEST(no_descriptor_is_left_to_reconnect)
{
    struct weir_policy policy = slow_policy();
    long allowed;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), NULL);
    allowed = take_some(&a, 50);
    settle(&a);
    without_descriptors(lose_the_server, go_on);
    redis_server_restart(server);
    settle(&a);
    allowed += during_allowed + take_some(&a, 50);
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    check_taken(allowed);
    node_close(&a);
}
END_TEST

static void do_nothing(void) {}

static void start_in_vain(void)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_sync *sync = (void *)1;
    options.uri = redis_server_uri(server);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(weir_sync_start(&sync, a.w, NULL, &options), WEIR_E_SYS);
        ck_assert_ptr_null(sync);
    }
}

START_TEST(no_descriptor_is_left_to_start)
{
    struct weir_policy policy = slow_policy();
    node_open(&a, &policy);
    without_descriptors(do_nothing, start_in_vain);
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW); /* the limiter is as it was */
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 10), 10);
    ck_assert_uint_eq(node_end(&a), 0);
    check_taken(11);
    node_close(&a);
}
END_TEST

/* ---- room -------------------------------------------------------------------------------------------------------- */

static double charged_of(struct script_client *client, const char *key)
{
    struct weir__wire_target target = {.prefix = "weir", .policy = "p", .shards = 64};
    struct weir__wire_seen_slice slices[16];
    struct weir__wire_seen seen;
    struct weir__wire_head head;
    target.shard = weir__wire_shard(key, strlen(key), 64);
    ck_assert_int_eq(script_client_peek(client, &target, key, 0, &head, &seen, slices, 16), 0);
    return seen.exists ? 10000 - seen.total : 0;
}

enum { ROOM_KEYS = 1500 };

static void crowd(int *allowed, int takes, unsigned *random)
{
    char key[16];
    for (int i = 0; i < takes; i++) {
        *random = *random * 1103515245u + 12345u;
        int k = (int)(*random / 65536 % ROOM_KEYS);
        snprintf(key, sizeof key, "key %d", k);
        for (unsigned n = 0; n < 1 + *random / 256 % 8; n += 2) {
            allowed[k] += node_take(&a, key, NULL) == WEIR_ALLOW;
        }
        if (i % 10 == 0) {
            usleep(500);
        }
    }
}

/* Far more keys than the table holds: they drop each other, some while they hold slices; each token is told all the
 * same. */
START_TEST(a_table_that_makes_room_loses_nothing)
{
    static int allowed[ROOM_KEYS];
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = node_policy(1000, NODE_DAY, 10000);
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    struct script_client client;
    char key[16];
    unsigned random = 1;
    memset(&a, 0, sizeof a);
    options.max_keys = 1000;
    ck_assert_int_eq(weir_open(&a.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(a.w, &policy, &a.id), 0);
    a.hybrid = 1;
    sync.interval_ms = 30;
    node_start(&a, redis_server_uri(server), &sync);
    crowd(allowed, 60000, &random);
    while (node_stats(&a).evictions <= 1000) { /* a slow machine's keys are told of later */
        crowd(allowed, 1000, &random);
    }
    settle(&a);
    ck_assert_uint_eq(node_end(&a), 0);
    script_client_open(&client, server);
    for (int k = 0; k < ROOM_KEYS; k++) {
        snprintf(key, sizeof key, "key %d", k);
        double charged = charged_of(&client, key);
        ck_assert_msg(charged > allowed[k] - 2, "%s: %d admitted, %f charged", key, allowed[k], charged);
    }
    script_client_close(&client);
    node_close(&a);
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static struct weir_key *handle;

static void *take_by_handle(void *arg)
{
    long *allowed = arg;
    for (int i = 0; i < 20000; i++) {
        *allowed += weir_key_take(handle, 1, 0, NULL) == WEIR_ALLOW;
    }
    return NULL;
}

/* What they had leased is not lost with them: it goes back, though the handle stays open. */
START_TEST(threads_end_with_leases)
{
    enum { ROUNDS = 10, THREADS = 6, BURST = 1000000 };
    struct weir_policy policy = node_policy(1, NODE_DAY, BURST);
    struct weir_result result;
    long allowed = 0;
    policy.mode = WEIR_LOCAL;
    policy.limit = BURST; /* leases are for fast ones */
    policy.per_ns = NODE_SECOND;
    node_open(&a, &policy);
    ck_assert_int_eq(weir_key_open(a.w, a.id, "k", 1, &handle), 0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        long each[THREADS] = {0};
        for (int i = 0; i < THREADS; i++) {
            ck_assert_int_eq(pthread_create(&threads[i], NULL, take_by_handle, &each[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            allowed += each[i];
        }
    }
    node_pause(1100); /* by now it is full: a token that a dead thread kept would be missing */
    ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 0, &result), WEIR_ALLOW);
    ck_assert_int_eq(result.remaining, BURST);
    ck_assert_int_gt(allowed, BURST / 10);
    weir_key_close(handle);
    weir_close(a.w);
}
END_TEST

struct caller {
    struct weir *w;
    weir_policy_id id;
    _Atomic int stop;
    _Atomic long answered, asked;
};

static void count_answer(void *arg, int status, const struct weir_result *result)
{
    struct caller *caller = arg;
    (void)status;
    (void)result;
    atomic_fetch_add_explicit(&caller->answered, 1, memory_order_relaxed);
}

static void *call_on(void *arg)
{
    struct caller *caller = arg;
    struct weir_request request = {.policy = caller->id, .key = "k", .key_len = 1, .cost = 1};
    struct weir_result result;
    while (!atomic_load_explicit(&caller->stop, memory_order_relaxed)) {
        weir_take(caller->w, caller->id, "k", 1, 1, NULL);
        if (weir_take_async(caller->w, &request, count_answer, caller) == 0) {
            atomic_fetch_add_explicit(&caller->asked, 1, memory_order_relaxed);
        }
        weir_take_wait(caller->w, &request, NODE_MS, &result);
        usleep(200);
    }
    return NULL;
}

/* Case 34: eight threads take, wait and ask; the sync is closed among them; 100 times on the caller's loop, 100 times
 * on a thread of its own. */
START_TEST(closed_with_calls_in_flight)
{
    enum { THREADS = 8, ROUNDS = 100 };
    struct weir_policy policy = slow_policy();
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct caller caller = {.w = NULL};
    pthread_t threads[THREADS];
    options.uri = redis_server_uri(server);
    options.drain_ms = 20;
    policy.mode = _i ? WEIR_STRICT : WEIR_HYBRID;
    node_open(&a, &policy);
    caller.w = a.w;
    caller.id = a.id;
    for (int i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_create(&threads[i], NULL, call_on, &caller), 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct host host;
        if (round % 2) {
            node_launch(&a, redis_server_uri(server), &options);
            usleep(2000);
            node_end(&a);
            continue;
        }
        open_host(&host, redis_server_uri(server));
        for (int i = 0; i < 20; i++) {
            uv_run(&host.loop, UV_RUN_NOWAIT);
            usleep(100);
        }
        uv_close((uv_handle_t *)&host.tick, NULL);
        ck_assert_int_eq(weir_sync_close(a.sync, on_closed, &host), 0);
        ck_assert_int_eq(uv_run(&host.loop, UV_RUN_DEFAULT), 0);
        ck_assert_int_eq(host.closed, 1);
        ck_assert_int_eq(uv_loop_close(&host.loop), 0);
        a.sync = NULL;
    }
    atomic_store_explicit(&caller.stop, 1, memory_order_relaxed);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    ck_assert_int_eq(caller.answered, caller.asked); /* each once, whatever happened */
    weir_close(a.w);
}
END_TEST

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static void block(uv_timer_t *timer)
{
    ((struct host *)timer->data)->turns++;
    sleep(5);
}

static void *take_beside(void *arg)
{
    struct weir_result result;
    long *counts = arg; /* allowed, of these degraded */
    for (int i = 0; i < 4500; i++) {
        counts[0] += node_take(&a, "k", &result) == WEIR_ALLOW;
        counts[1] += (result.flags & WEIR_DEGRADED) != 0;
        usleep(1000);
    }
    return NULL;
}

static int is_degraded(void)
{
    struct weir_result result;
    ck_assert_int_ge(weir_peek(a.w, a.id, "k", 1, 0, &result), 0);
    return (result.flags & WEIR_DEGRADED) != 0;
}

/* A callback of the host's holds the loop for 5 s: takes go on without it, by the outage policy before long. */
START_TEST(the_loop_is_blocked_for_5_s)
{
    struct weir_policy policy = node_policy(2000, NODE_SECOND, 2000);
    long counts[2] = {0, 0};
    pthread_t thread;
    struct host host;
    node_open(&a, &policy);
    open_host(&host, redis_server_uri(server));
    uv_timer_start(&host.tick, block, 600, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, take_beside, counts), 0);
    while (!host.turns) {
        uv_run(&host.loop, UV_RUN_ONCE);
    }
    pthread_join(thread, NULL);
    ck_assert_int_gt(counts[0], 4000);
    ck_assert_int_gt(counts[1], 1000);
    uv_timer_start(&host.tick, on_tick, 10, 10);
    for (host.turns = 0; host.turns < 100 || is_degraded();) {
        ck_assert_int_lt(host.turns, 1000);
        uv_run(&host.loop, UV_RUN_ONCE);
    }
    close_host(&host);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("host");
    TCase *forks = tcase_create("fork"), *limits = tcase_create("limits"), *threads = tcase_create("threads");
    tcase_set_tags(forks, "wipe_on_fork");
    tcase_add_checked_fixture(forks, open_server, close_server);
    tcase_add_test(forks, forked_before_the_start);
    tcase_add_test(forks, forked_while_it_syncs);
    tcase_add_test(forks, forked_in_a_callback);
    tcase_add_test(forks, forked_after_the_end);
    suite_add_tcase(s, forks);
    tcase_add_checked_fixture(limits, open_server, close_server);
    tcase_add_test(limits, a_dead_peer_raises_no_signal);
    tcase_add_test(limits, no_descriptor_is_left_to_reconnect);
    tcase_add_test(limits, no_descriptor_is_left_to_start);
    tcase_add_test(limits, a_table_that_makes_room_loses_nothing);
    suite_add_tcase(s, limits);
    tcase_add_checked_fixture(threads, open_server, close_server);
    tcase_add_test(threads, threads_end_with_leases);
    tcase_add_loop_test(threads, closed_with_calls_in_flight, 0, 2);
    tcase_add_test(threads, the_loop_is_blocked_for_5_s);
    suite_add_tcase(s, threads);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
