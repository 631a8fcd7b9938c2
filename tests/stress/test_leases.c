/* SPDX-License-Identifier: MIT */
/*
 * Leases that are taken back from threads that go on spending from them, that pause, that end, while handles are closed
 * and policies are set: to the token, nothing is lent and nothing lost. The clock is the test's, and jumps: so leases
 * are old while they are being spent from.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/table.h"
#include "support/local_policy.h"
#include "support/no_barrier.h"
#include "support/portable_take.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define THREADS 6
#define NS_A_TOKEN 1024u          /* a power of two: earned to the unit */
#define LARGE (UINT64_C(1) << 22) /* a burst with room for as many leases as there are threads, of 97 tokens: 100 us */
#define SMALL 6400u               /* with room for four */
#define JUMP (UINT64_C(1100) * NS_A_TOKEN) /* after which all leases are old */

static struct weir *w;
static weir_policy_id id;
static uint64_t burst;
static struct weir__hot *e;
static _Atomic uint64_t now;
static _Atomic int stop, gently;
static int (*volatile called_take)(struct weir_key *, int64_t, uint64_t, struct weir_result *) = weir_key_take;

static struct worker {
    pthread_t thread;
    int way;           /* of taking */
    unsigned takes;    /* then it ends; 0: never */
    unsigned pause_us; /* now and then */
    uint64_t admitted;
} workers[THREADS];

static struct weir_key *handle;

/* While a take asks for the time another one comes first: so threads are in each other's way on one CPU as well. */
static _Thread_local struct worker *interferes;

static uint64_t read_now(void *arg)
{
    uint64_t time = atomic_load_explicit(&now, memory_order_relaxed);
    struct worker *self = interferes;

    (void)arg;
    interferes = NULL;
    if (self)
        self->admitted += weir_take_at(w, id, "key", 3, 1, time, NULL) == WEIR_ALLOW;
    return time;
}

static struct weir_policy numbers(void)
{
    return local_policy(1, NS_A_TOKEN, burst);
}

static void open_limiter(uint64_t with)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy p = numbers();

    burst = with;
    p.burst = burst;
    now = 1000 * SECOND;
    stop = gently = 0;
    options.max_keys = 16;
    options.now_ns = read_now;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &handle), 0);
    for (uint32_t slot = 0; slot < w->slots; slot++) {
        if (w->hot[slot].pin)
            e = &w->hot[slot];
    }
    ck_assert_int_eq(weir_take(w, id, "key", 3, (int64_t)(burst / 2), NULL), WEIR_ALLOW);
}

static int take(int way, int64_t cost)
{
    switch (way) {
    case 0: return weir_key_take(handle, cost, read_now(NULL), NULL);
    case 1: return portable_take(handle, cost, read_now(NULL));
    default: return called_take(handle, cost, read_now(NULL), NULL);
    }
}

static void *spend(void *arg)
{
    struct worker *self = arg;

    for (unsigned n = 1; !atomic_load_explicit(&stop, memory_order_relaxed) && n != self->takes; n++) {
        int64_t cost = 1 + n % 3;
        int way = self->way < 3 ? self->way : (int)(n % 3); /* the same lease in all ways */

        if (n % 64 == 0) { /* asks for the time: in its own way */
            interferes = self;
            self->admitted += weir_key_take(handle, 1, 0, NULL) == WEIR_ALLOW;
            interferes = NULL;
        }
        if (take(way, cost) == WEIR_ALLOW)
            self->admitted += (uint64_t)cost;
        if (self->pause_us && n % 1000 == 0)
            usleep(self->pause_us);
        if (n % 16 == 0 && atomic_load_explicit(&gently, memory_order_relaxed))
            usleep(50);
    }
    return NULL;
}

static void start(struct worker *worker)
{
    ck_assert_int_eq(pthread_create(&worker->thread, NULL, spend, worker), 0);
}

static void start_all(int way, unsigned takes, unsigned pause_us)
{
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < THREADS; i++) {
        workers[i].way = way;
        workers[i].takes = takes;
        workers[i].pause_us = pause_us;
        start(&workers[i]);
    }
}

static uint64_t clock_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int64_t remaining(void)
{
    struct weir_result r;

    ck_assert_int_eq(weir_peek(w, id, "key", 3, 0, &r), WEIR_ALLOW);
    return r.remaining;
}

/* Keeps the bucket about half full: it is never cut off. Returns what that took. */
static uint64_t keep_half(void)
{
    int64_t left = remaining();

    if (left > (int64_t)(burst / 2) && weir_take(w, id, "key", 3, left - (int64_t)(burst / 2), NULL) == WEIR_ALLOW)
        return (uint64_t)left - burst / 2;
    return 0;
}

/* Time jumps, and somebody asks for more than there is: leases that are being spent from are taken back. Returns how
 * often some came back. */
static unsigned hunt(uint64_t *admitted)
{
    uint64_t before;

    atomic_fetch_add_explicit(&now, JUMP, memory_order_relaxed);
    before = weir__load_relaxed(&e->leased);
    ck_assert_int_eq(weir_take(w, id, "key", 3, (int64_t)burst, NULL), WEIR_DENY);
    *admitted += keep_half();
    return weir__load_relaxed(&e->leased) < before;
}

/* Time enough for the bucket not to run dry goes by itself. */
static void let_earn(uint64_t *admitted)
{
    if (remaining() < (int64_t)(burst / 4))
        atomic_fetch_add_explicit(&now, burst / 8 * NS_A_TOKEN, memory_order_relaxed);
    *admitted += keep_half();
}

static void join_all(void)
{
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
}

/* Threads have ended: no lease is left though no handle was closed. */
static void check_all(uint64_t begun, uint64_t admitted)
{
    uint64_t earned = (now - begun) / NS_A_TOKEN;

    ck_assert_uint_eq(e->leased, 0);
    for (int i = 0; i < THREADS; i++)
        admitted += workers[i].admitted;
    ck_assert_uint_eq(admitted + (uint64_t)remaining(), burst / 2 + earned);
    weir_key_close(handle);
    ck_assert_uint_eq(e->pin, 0);
    weir_close(w);
}

START_TEST(taken_back_while_spent_from)
{
    uint64_t begun, admitted = 0, end, late;
    unsigned back = 0;

    open_limiter(_i < 4 ? LARGE : SMALL);
    begun = now;
    start_all(_i % 4, 0, 0);
    end = clock_ms() + 150;
    for (late = end + 10000; clock_ms() < end || (back == 0 && clock_ms() < late);) {
        back += hunt(&admitted);
        let_earn(&admitted);
        /* where all share a processor, those that spend leave nothing in a small bucket, nor in a lease, to find */
        if (clock_ms() >= end)
            atomic_store_explicit(&gently, 1, memory_order_relaxed);
    }
    join_all();
    check_all(begun, admitted);
    ck_assert_uint_gt(back, 0);
}
END_TEST

/* Nor can leases be taken back, for the system refuses the barrier by now: they stay their threads', who are spending
 * from them while they are reached for. */
START_TEST(reached_for_and_not_taken_back)
{
    uint64_t begun, admitted = 0, end;

    open_limiter(SMALL);
    refuse_barriers(EINVAL);
    begun = now;
    start_all(_i, 0, 0);
    for (end = clock_ms() + 150; clock_ms() < end;) {
        hunt(&admitted);
        let_earn(&admitted);
    }
    join_all();
    check_all(begun, admitted);
}
END_TEST

/* Threads pause with leases, end with them, and others get their stripes. */
START_TEST(taken_back_from_threads_that_pause_and_end)
{
    uint64_t begun, admitted = 0, end;
    unsigned turn = 0;

    open_limiter(_i < 4 ? LARGE : SMALL);
    begun = now;
    start_all(_i % 4, 20000, 200);
    for (end = clock_ms() + 150; clock_ms() < end; turn++) {
        struct worker *worker = &workers[turn % THREADS];

        hunt(&admitted);
        let_earn(&admitted);
        if (turn % 32 == 0) {
            ck_assert_int_eq(pthread_join(worker->thread, NULL), 0);
            start(worker);
        }
    }
    join_all();
    check_all(begun, admitted);
}
END_TEST

/* What they had when the same numbers were set again comes back too. */
START_TEST(taken_back_by_changes)
{
    uint64_t begun, admitted = 0, end;
    struct weir_policy p;

    open_limiter(_i < 4 ? LARGE : SMALL);
    p = numbers();
    begun = now;
    start_all(_i % 4, 0, 0);
    for (end = clock_ms() + 150; clock_ms() < end;) {
        ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
        atomic_fetch_add_explicit(&now, 16 * NS_A_TOKEN, memory_order_relaxed);
        let_earn(&admitted);
    }
    join_all();
    check_all(begun, admitted);
}
END_TEST

static void *lease_and_end(void *arg)
{
    struct worker *self = arg;

    for (int i = 0; i < 3; i++) {
        interferes = self;
        self->admitted += weir_key_take(handle, 1, 0, NULL) == WEIR_ALLOW;
        interferes = NULL;
        self->admitted += weir_key_take(handle, 1, read_now(NULL), NULL) == WEIR_ALLOW;
    }
    atomic_fetch_add_explicit(&stop, 1, memory_order_release);
    return NULL;
}

/* A handle, or all of the limiter, is closed while the threads that took by it end. */
START_TEST(handles_are_closed_while_threads_end)
{
    for (int round = 0; round < 200; round++) {
        uint64_t admitted = 0;

        open_limiter(LARGE);
        memset(workers, 0, sizeof workers);
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, lease_and_end, &workers[i]), 0);
        while (atomic_load_explicit(&stop, memory_order_acquire) < THREADS) {
        }
        weir_key_close(handle);
        ck_assert_uint_eq(e->leased, 0);
        for (int i = 0; i < THREADS; i++)
            admitted += workers[i].admitted;
        ck_assert_uint_eq(admitted + (uint64_t)remaining(), burst / 2);
        weir_close(w);
        for (int i = 0; i < THREADS; i++)
            ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("leases");
    TCase *t = tcase_create("leases"), *filtered = tcase_create("no barrier");

    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, taken_back_while_spent_from, 0, 8);
    tcase_add_loop_test(t, taken_back_from_threads_that_pause_and_end, 0, 8);
    tcase_add_loop_test(t, taken_back_by_changes, 0, 8);
    tcase_add_test(t, handles_are_closed_while_threads_end);
    suite_add_tcase(s, t);
    tcase_set_timeout(filtered, 60);
    tcase_set_tags(filtered, "seccomp");
    tcase_add_loop_test(filtered, reached_for_and_not_taken_back, 0, 4);
    suite_add_tcase(s, filtered);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
