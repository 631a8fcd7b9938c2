/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait for Redis while it is killed and started again: each call returns once and by its deadline, and
 * what Redis counted is what was admitted, but for calls that had no answer: each of those was executed at most once.
 *
 * WEIR_RESTARTS=5 WEIR_TAKES=100000 make it the long one.
 */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

enum { THREADS = 8, KEYS = 4 };

#define BURST UINT64_C(2000000)
#define PER_DAY UINT64_C(110000) /* full again within forty days, as it must be */
#define TIMEOUT (50 * NODE_MS)
#define LATE (20 * NODE_MS)

static struct redis_server *server;
static struct node a;

static unsigned long number(const char *name, unsigned long preset)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : preset;
}

static uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NODE_SECOND + (uint64_t)t.tv_nsec;
}

static const char *const keys[KEYS] = {"a", "b", "c", "d"};

struct taker {
    pthread_t thread;
    unsigned number;
    unsigned long returned, admitted, unsure, wrong, late; /* unsure: no answer, so charged once or not */
    uint64_t worst;                                        /* ns past the deadline */
};

/* ns that the calling thread was ready to run and had no CPU; 0 where the system does not say. */
static uint64_t unscheduled(int fd)
{
    char text[96];
    ssize_t len = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : 0;
    char *at = text;

    text[len > 0 ? len : 0] = '\0';
    (void)strtoull(at, &at, 10); /* ran */
    return strtoull(at, NULL, 10);
}

static unsigned long takes; /* so many at least, and until Redis was restarted for the last time */
static _Atomic unsigned long asked;
static _Atomic int restarted, over;

static void *take(void *arg)
{
    struct taker *taker = arg;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY);

    for (unsigned long i = 0; i < takes || !atomic_load_explicit(&restarted, memory_order_relaxed); i++) {
        const char *key = keys[(i + taker->number) % KEYS];
        struct weir_request request = {.policy = a.id, .key = key, .key_len = 1, .cost = 1};
        struct weir_result result;
        uint64_t waited = unscheduled(fd), begin = clock_ns(), took;
        int status = weir_take_wait(a.w, &request, TIMEOUT, &result);

        took = clock_ns() - begin;
        waited = unscheduled(fd) - waited; /* no call can return to a thread that has no CPU */
        took = took > waited ? took - waited : 0;
        taker->returned++;
        atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
        if (took > TIMEOUT && took - TIMEOUT > taker->worst)
            taker->worst = took - TIMEOUT;
        taker->late += took > TIMEOUT + LATE;
        if (status != WEIR_ALLOW || (result.flags & ~WEIR_DEGRADED))
            taker->wrong++;
        else if (result.flags)
            taker->unsure++;
        else
            taker->admitted++;
        if (result.flags)
            node_pause(1); /* an open circuit answers at once: leave something for when Redis is back */
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

/* How late this machine wakes a thread that sleeps until a time: nobody's deadline can be kept better. */
static void *oversleep(void *arg)
{
    uint64_t *worst = arg;

    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        uint64_t due = clock_ns() + 5 * NODE_MS, now;

        node_pause(5);
        now = clock_ns();
        if (now > due && now - due > *worst)
            *worst = now - due;
    }
    return NULL;
}

/* What Redis has charged to all keys; the refill since `begin` is what it can't tell. */
static double charged(uint64_t begin, double *refill)
{
    double sum = 0;

    for (int i = 0; i < KEYS; i++) {
        struct weir_result result;

        /* from Redis, however long this machine stands still: a look charges nothing */
        node_until(weir_peek(a.w, a.id, keys[i], 1, 0, &result) == WEIR_ALLOW && result.flags == 0);
        sum += (double)BURST - (double)result.remaining;
    }
    *refill = KEYS * (1 + (double)(clock_ns() - begin) / (double)NODE_DAY * (double)PER_DAY);
    return sum;
}

static void start(void)
{
    struct weir_policy policy = node_policy(PER_DAY, NODE_DAY, BURST);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    server = redis_server_open(&(struct redis_server_options){.persist = 1});
    policy.mode = WEIR_STRICT;
    policy.on_outage = WEIR_OUTAGE_OPEN; /* uncharged: Redis' count is that of what it executed */
    options.timeout_ms = TIMEOUT / NODE_MS;
    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), &options);
}

START_TEST(each_wait_returns_once_though_redis_is_restarted)
{
    unsigned long restarts = number("WEIR_RESTARTS", 2), all = 0, admitted = 0, unsure = 0, late = 0;
    struct taker takers[THREADS];
    uint64_t begin = clock_ns(), worst = 0, machine = 0;
    pthread_t sleeper;
    double count, refill;

    takes = number("WEIR_TAKES", 1500);
    memset(takers, 0, sizeof takers);
    start();
    ck_assert_int_eq(pthread_create(&sleeper, NULL, oversleep, &machine), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        takers[i].number = i;
        ck_assert_int_eq(pthread_create(&takers[i].thread, NULL, take, &takers[i]), 0);
    }
    for (unsigned long i = 1; i <= restarts; i++) {
        while (atomic_load_explicit(&asked, memory_order_relaxed) < THREADS * takes / (restarts + 1) * i)
            node_pause(1);
        redis_server_kill(server);
        node_pause(30);
        redis_server_restart(server);
    }
    atomic_store_explicit(&restarted, 1, memory_order_relaxed);
    for (unsigned i = 0; i < THREADS; i++) {
        ck_assert_int_eq(pthread_join(takers[i].thread, NULL), 0);
        ck_assert_uint_ge(takers[i].returned, takes);
        all += takers[i].returned;
        ck_assert_uint_eq(takers[i].wrong, 0);
        admitted += takers[i].admitted;
        unsure += takers[i].unsure;
        late += takers[i].late;
        worst = takers[i].worst > worst ? takers[i].worst : worst;
    }
    atomic_store_explicit(&over, 1, memory_order_relaxed);
    ck_assert_int_eq(pthread_join(sleeper, NULL), 0);
    node_until(node_take(&a, "other", NULL) == WEIR_ALLOW && node_stats(&a).store_up);
    node_pause(200);
    count = charged(begin, &refill);
    if (getenv("WEIR_TAKES"))
        fprintf(
            stderr,
            "%lu returned, %lu admitted, %lu without an answer, %.0f charged (%.0f may have refilled); %lu later than"
            " 20 ms, worst %.1f ms past the deadline, a sleeper %.1f ms\n",
            all, admitted, unsure, count, refill, late, (double)worst / 1e6, (double)machine / 1e6);
    ck_assert_uint_gt(admitted, 0);
    ck_assert_uint_gt(unsure, 0);
    ck_assert_double_ge(count + refill, (double)admitted);
    ck_assert_double_le(count, (double)(admitted + unsure));
    /* the short one, beside other tests: that nobody was forgotten */
    ck_assert_msg(worst <= (getenv("WEIR_TAKES") ? LATE : NODE_SECOND) + 2 * machine,
                  "%.1f ms past the deadline, where a sleeper is %.1f ms late", (double)worst / 1e6,
                  (double)machine / 1e6);
    node_close(&a);
    redis_server_close(server);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strict_restart");
    TCase *tcase = tcase_create("restart");

    tcase_set_timeout(tcase, getenv("WEIR_TAKES") ? 3600 : 120);
    tcase_add_test(tcase, each_wait_returns_once_though_redis_is_restarted);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
