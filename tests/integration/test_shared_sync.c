/* SPDX-License-Identifier: MIT */
/*
 * One table for pre-forked workers, each with a sync, on a real redis-server: one of them reconciles, another takes
 * over when it is killed, and Redis is told of each token exactly once.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/limiter.h"
#include "script_client.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

enum { WORKERS = 4, KEYS = 12, BURST = 100000 };

static struct redis_server *server;
static struct node parent;
static uint64_t begun_at;

/* What workers tell, in memory of all. */
static struct {
    _Atomic uint64_t begun[KEYS], allowed[KEYS]; /* counted before a take, and after it was allowed or denied */
    _Atomic uint64_t denied[KEYS];
    _Atomic int ready, stop;
} * told;

static void set_up(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    /* a token in 9 s: next to nothing comes back during a test */
    struct weir_policy policy = node_policy(BURST / 15, NODE_DAY, BURST);

    policy.on_outage = WEIR_OUTAGE_CLOSED; /* what a fallback share admits need not be charged */
    server = redis_server_open(NULL);
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(told, MAP_FAILED);
    memset(&parent, 0, sizeof parent);
    options.max_keys = 1000;
    options.shared = 1;
    parent.hybrid = 1;
    ck_assert_int_eq(weir_open(&parent.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(parent.w, &policy, &parent.id), 0);
    begun_at = weir_now(parent.w);
}

static void tear_down(void)
{
    if (parent.w)
        node_close(&parent);
    munmap(told, sizeof *told);
    redis_server_close(server);
}

static struct weir_sync_options brisk(void)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;

    options.uri = redis_server_uri(server);
    options.interval_ms = 20;
    options.timeout_ms = 5000; /* a slice outlives two of them: one that ends while nobody has a CPU is charged whole */
    options.drain_ms = 60000;  /* longer than node_end waits: nobody's end may be waited for until then */
    return options;
}

/* T of a key of policy "p" once all are gone, who gave back what they held but for parts of a token; the burst where
 * Redis has never heard of it. */
static double total_of(const char *key)
{
    struct weir__wire_seen seen = script_client_look(server, "p", key);

    ck_assert_msg(!seen.exists || seen.reserved < 1, "%s: %g tokens were left behind", key, seen.reserved);
    return seen.exists ? seen.total : BURST;
}

/* ---- workers ----------------------------------------------------------------------------------------------------- */

static void work(unsigned seed)
{
    char key[16];

    while (!told->stop) {
        unsigned k = (unsigned)rand_r(&seed) % KEYS;
        int verdict;

        snprintf(key, sizeof key, "k%u", k);
        told->begun[k]++;
        verdict = node_take(&parent, key, NULL);
        if (verdict == WEIR_ALLOW)
            told->allowed[k]++;
        else
            told->denied[k]++;
        if (rand_r(&seed) % 8 == 0)
            usleep(200);
    }
}

static pid_t start_worker(unsigned seed)
{
    struct weir_sync_options options = brisk();
    pid_t pid = fork();

    if (pid == 0) {
        if (weir_sync_start(&parent.sync, parent.w, NULL, &options))
            _exit(1);
        told->ready++;
        work(seed);
        node_close(&parent);
        _exit(0);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

static pid_t leader(void)
{
    return (pid_t)(parent.w->state->leader >> 42);
}

static void wait_for_leader(pid_t dead)
{
    node_until(leader() != 0 && leader() != dead);
}

/* The most that came back of a key since the test began. */
static double refilled(void)
{
    return (double)(weir_now(parent.w) - begun_at) / 1e9 * BURST / 15 / 86400;
}

static uint64_t allowed_so_far(void)
{
    uint64_t all = 0;

    for (unsigned k = 0; k < KEYS; k++)
        all += told->allowed[k];
    return all;
}

/* Ends all that still work, one after the other, once they have had some work. */
static void end_workers(pid_t *workers)
{
    int status;

    node_until(allowed_so_far() > 1000);
    told->stop = 1;
    for (int i = 0; i < WORKERS; i++) {
        ck_assert_int_eq(waitpid(workers[i], &status, 0), workers[i]);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "worker %d: status %x", i, status);
    }
}

/* Every token that was admitted is in Redis; of the takes that were killed nobody knows. */
static void check_totals(void)
{
    char key[16];

    for (unsigned k = 0; k < KEYS; k++) {
        uint64_t least = told->allowed[k], most = told->begun[k] - told->denied[k];
        double spent;

        snprintf(key, sizeof key, "k%u", k);
        spent = BURST - total_of(key);
        ck_assert_msg(spent > (double)least - refilled() - 0.01 && spent < (double)most + 0.01,
                      "%s: %.3f in Redis, from %llu to %llu admitted", key, spent, (unsigned long long)least,
                      (unsigned long long)most);
    }
    ck_assert_uint_gt(allowed_so_far(), 1000);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

START_TEST(one_of_them_reconciles_for_all)
{
    pid_t workers[WORKERS];

    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker((unsigned)i + 1);
    node_until(told->ready == WORKERS);
    wait_for_leader(0);
    node_pause(500);
    end_workers(workers);
    ck_assert_int_eq((int)leader(), 0);
    check_totals();
}
END_TEST

START_TEST(the_one_that_reconciles_is_killed)
{
    const char *wanted = getenv("WEIR_KILLS");
    int kills = wanted ? atoi(wanted) / 100 + 1 : 12;
    pid_t workers[WORKERS];
    unsigned seed = 7;

    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker((unsigned)i + 1);
    node_until(told->ready == WORKERS);
    for (int kill_no = 0; kill_no < kills; kill_no++) {
        pid_t victim;

        wait_for_leader(0);
        victim = kill_no % 3 ? leader() : workers[rand_r(&seed) % WORKERS]; /* or any */
        usleep((unsigned)rand_r(&seed) % 150000);
        for (int i = 0; i < WORKERS; i++)
            if (workers[i] == victim) {
                kill(victim, SIGKILL);
                ck_assert_int_eq(waitpid(victim, NULL, 0), victim);
                wait_for_leader(victim);
                workers[i] = start_worker((unsigned)kill_no + 100);
            }
    }
    node_pause(200);
    end_workers(workers);
    check_totals();
    for (uint32_t slot = 0; slot < parent.w->slots; slot++)
        ck_assert_uint_eq(parent.w->hot[slot].pin, 0);
}
END_TEST

/* The same with answers that are late or lost: batches are on their way when their process dies. */
START_TEST(batches_outlive_their_process)
{
    pid_t workers[WORKERS];

    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker((unsigned)i + 1);
    node_until(told->ready == WORKERS);
    for (int round = 0; round < 4; round++) {
        pid_t victim;

        wait_for_leader(0);
        victim = leader();
        node_pause(100);
        redis_server_pause(server);
        node_pause(60); /* batches are sent, and not answered */
        for (int i = 0; i < WORKERS; i++)
            if (workers[i] == victim) {
                kill(victim, SIGKILL);
                ck_assert_int_eq(waitpid(victim, NULL, 0), victim);
                redis_server_resume(server);
                wait_for_leader(victim);
                workers[i] = start_worker((unsigned)round + 100);
            }
        redis_server_resume(server);
    }
    node_pause(200);
    end_workers(workers);
    check_totals();
}
END_TEST

static void on_flushed(void *arg, int status, uint64_t unsent)
{
    (void)unsent;
    *(_Atomic int *)arg = status == 0 ? 1 : -1;
}

/* A follower's flush is the leader's work. */
START_TEST(a_follower_flushes)
{
    struct weir_sync_options options = brisk();
    pid_t workers[WORKERS];
    _Atomic int flushed = 0;
    double mine_left;
    int mine = 0;

    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker((unsigned)i + 1);
    node_until(told->ready == WORKERS);
    wait_for_leader(0);
    ck_assert_int_eq(weir_sync_start(&parent.sync, parent.w, NULL, &options), 0);
    for (; mine < 100; mine++)
        node_until(node_take(&parent, "mine", NULL) == WEIR_ALLOW);
    ck_assert_int_eq(weir_sync_flush(parent.sync, on_flushed, (void *)&flushed), 0);
    node_until(flushed != 0);
    ck_assert_int_eq(flushed, 1);
    mine_left = script_client_look(server, "p", "mine").total;
    ck_assert_double_ge(mine_left, BURST - 100 - 0.01);
    ck_assert_double_le(mine_left, BURST - 100 + refilled() + 0.01);
    end_workers(workers);
    /* now it is this one's turn, and the last one's */
    ck_assert_uint_eq(node_end(&parent), 0);
    check_totals();
}
END_TEST

/* The one that led is gone before it has served the flush: it is the follower's own work now, as is the end. */
START_TEST(a_follower_that_comes_to_lead_flushes)
{
    struct weir_sync_options options = brisk();
    _Atomic int flushed = 0;
    pid_t worker = start_worker(1);

    node_until(told->ready == 1);
    wait_for_leader(0);
    ck_assert_int_eq(weir_sync_start(&parent.sync, parent.w, NULL, &options), 0);
    node_until(node_stats(&parent).store_up == 1);
    for (int mine = 0; mine < 100; mine++)
        node_until(node_take(&parent, "mine", NULL) == WEIR_ALLOW);
    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    ck_assert_int_eq(weir_sync_flush(parent.sync, on_flushed, (void *)&flushed), 0);
    node_pause(30); /* so that it waits */
    ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
    node_until(flushed != 0);
    ck_assert_int_eq(flushed, 1);
    ck_assert_uint_eq(node_end(&parent), 0);
    ck_assert_double_ge(total_of("mine"), BURST - 100 - 0.01);
    ck_assert_double_le(total_of("mine"), BURST - 100 + refilled() + 0.01);
}
END_TEST

/* A sync that was started before the fork is its process' alone. */
START_TEST(a_sync_does_not_survive_a_fork)
{
    struct weir_sync_options options = brisk();
    struct weir_sync *second;
    int status;
    pid_t pid;

    ck_assert_int_eq(weir_sync_start(&parent.sync, parent.w, NULL, &options), 0);
    ck_assert_int_eq(weir_sync_start(&second, parent.w, NULL, &options), WEIR_E_BUSY);
    pid = fork();
    if (pid == 0)
        _exit(node_take(&parent, "k", NULL) == WEIR_E_FORKED ? 0 : 1);
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* Under ThreadSanitizer, or where the machine has no such instruction, the portable swap is built. */
START_TEST(nothing_is_shared_without_a_16_byte_swap)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.shared = 1;
    ck_assert_int_eq(weir_open(&parent.w, &options), WEIR_E_NOSUP);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("shared_sync");
    TCase *t = tcase_create("shared");

    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    if (!WEIR__CAS16_NATIVE) {
        tcase_add_test(t, nothing_is_shared_without_a_16_byte_swap);
        return s;
    }
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, one_of_them_reconciles_for_all);
    tcase_add_test(t, the_one_that_reconciles_is_killed);
    tcase_add_test(t, batches_outlive_their_process);
    tcase_add_test(t, a_follower_flushes);
    tcase_add_test(t, a_follower_that_comes_to_lead_flushes);
    tcase_add_test(t, a_sync_does_not_survive_a_fork);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
