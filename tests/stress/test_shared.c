/* SPDX-License-Identifier: MIT */
/*
 * One table for several processes (option `shared`): they share buckets and policies, and one that is killed wherever
 * it stands leaves no key stuck and mints nothing. WEIR_KILLS: how many are killed (1000).
 */
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

#include "lib/intent.h"
#include "lib/limiter.h"
#include "lib/table.h"
#include "support/local_policy.h"
#include "support/suite.h"
#include "support/whole.h"

#define SECOND UINT64_C(1000000000)
#define DAY (86400 * SECOND)

enum { WORKERS = 4, PLACES = 60, KEYS = 400, HOT = 20, BURST = 5, RATE = 1000 };

static struct weir *w;
static weir_policy_id policy, passing;

static struct weir_policy numbers(uint64_t limit, uint64_t burst)
{
    return local_policy(limit, SECOND, burst);
}

/* So slow that nothing is earned, however long the machine stands still between two calls. */
static struct weir_policy slow_numbers(uint64_t burst)
{
    struct weir_policy p = numbers(10, burst);

    p.per_ns = DAY;
    return p;
}

static void open_with(size_t max_keys, struct weir_policy p)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = max_keys;
    options.shared = 1;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &policy), 0);
}

static void open_slow(void)
{
    open_with(100, slow_numbers(100));
}

static void sleep_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};

    nanosleep(&t, NULL);
}

static uint64_t next(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* ---- sharing ----------------------------------------------------------------------------------------------------- */

START_TEST(processes_share_buckets_and_policies)
{
    struct weir_stats stats = {.size = sizeof stats};
    struct weir_policy p = slow_numbers(30);
    weir_policy_id other;
    int allowed = 0, status, down[2], up[2];
    pid_t child;
    char c;

    open_slow();
    ck_assert_int_eq(pipe(down), 0);
    ck_assert_int_eq(pipe(up), 0);
    child = fork();
    if (child == 0) {
        for (int i = 0; i < 60; i++)
            allowed += weir_take(w, policy, "key", 3, 1, NULL) == WEIR_ALLOW;
        p.name = "other";
        if (allowed != 60 || weir_policy_add(w, &p, &other) != 0 || write(up[1], "x", 1) != 1)
            _exit(1);
        /* the parent has lowered the burst */
        if (read(down[0], &c, 1) != 1)
            _exit(2);
        for (int i = 0; i < 60; i++)
            allowed += weir_take(w, policy, "key", 3, 1, NULL) == WEIR_ALLOW;
        _exit(allowed == 90 ? 0 : 3);
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(read(up[0], &c, 1), 1);
    ck_assert_int_eq(weir_policy_find(w, "other", &other), 0);
    ck_assert_int_eq(weir_take(w, other, "key", 3, 30, NULL), WEIR_ALLOW);
    ck_assert_int_eq(
        weir_policy_set(
            w, policy,
            &(struct weir_policy){.size = sizeof p, .limit = 10, .per_ns = DAY, .burst = 30, .mode = WEIR_LOCAL}),
        0);
    ck_assert_int_eq(write(down[1], "x", 1), 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(weir_take(w, policy, "key", 3, 5, NULL), WEIR_DENY);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 90 + 1);
    ck_assert_uint_eq(stats.denied, 30 + 1);
    weir_close(w);
}
END_TEST

/* ---- dead at a known place --------------------------------------------------------------------------------------- */

enum stage { LOCKED_TO_DROP, HIDDEN, LOCKED_TO_REWRITE, HALF_REWRITTEN, CLAIMED, STAGES };

/* In a child: begins what it will never end. */
static void leave(enum stage stage, const uint64_t id[2])
{
    uint64_t x, seen[2];
    struct weir__hot *e;

    if (stage == CLAIMED) {
        e = weir__table_first(w, id[0]);
        weir__intent_begin(w, e, WEIR__INTENT_DROP);
        seen[0] = seen[1] = 0;
        x = (uint64_t)weir__table_tag(id[0]) << 8 * (weir__slot_of(w, e) % WEIR__WAYS & 7);
        if (!weir__cas16(w->tags[weir__slot_of(w, e) / WEIR__WAYS].word, &seen[0], &seen[1],
                         weir__slot_of(w, e) % WEIR__WAYS < 8 ? x : 0, weir__slot_of(w, e) % WEIR__WAYS < 8 ? 0 : x))
            _exit(1);
    } else {
        e = weir__table_search(w, id, &x);
        weir__intent_begin(w, e, stage <= HIDDEN ? WEIR__INTENT_DROP : WEIR__INTENT_REWRITE);
        if (!atomic_compare_exchange_strong_explicit(&e->x, &x, x | WEIR__LOCK, memory_order_seq_cst,
                                                     memory_order_relaxed))
            _exit(2);
        if (stage == HIDDEN)
            weir__store_release(&e->id[0], 0);
        if (stage == HALF_REWRITTEN) {
            weir__store_release(&e->f, 0); /* would be tokens without end */
            weir__store_release(&e->k, 7);
        }
    }
    kill(getpid(), SIGKILL);
}

START_TEST(what_a_dead_process_left_is_put_right)
{
    const enum stage stage = (enum stage)_i;
    struct weir_result r;
    uint64_t id[2], intents = 0;
    struct weir_key *handle = NULL;
    int status;
    pid_t child;

    open_slow();
    weir__table_id(w, policy, "key", 3, id);
    if (stage != CLAIMED)
        ck_assert_int_eq(weir_take(w, policy, "key", 3, 10, NULL), WEIR_ALLOW);
    if (stage == HALF_REWRITTEN)
        ck_assert_int_eq(weir_key_open(w, policy, "key", 3, &handle), 0);
    child = fork();
    if (child == 0) {
        leave(stage, id);
        _exit(3);
    }
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    /* comes back at all; and with no more than there can be */
    ck_assert_int_ge(weir_take(w, policy, "key", 3, 1, &r), WEIR_ALLOW);
    if (stage == LOCKED_TO_DROP)
        ck_assert_int_eq(r.remaining, 89);
    else if (stage == HIDDEN || stage == CLAIMED)
        ck_assert_int_eq(r.remaining, 99); /* it was being dropped, so it was full; or it was new */
    else
        ck_assert_int_eq(r.remaining, 0);
    if (handle) {
        ck_assert_int_eq(weir_key_take(handle, 1, 0, NULL), WEIR_DENY);
        ck_assert_int_eq(weir_key_take(handle, 1, weir_now(w) + DAY, NULL), WEIR_ALLOW);
    }
    weir_key_close(handle);
    for (unsigned i = 0; i < WEIR__INTENTS; i++)
        intents += w->state->intents[i].process;
    ck_assert_uint_eq(intents, 0);
    ck_assert_uint_eq(w->state->keys, 1);
    weir_close(w);
}
END_TEST

/* A living process that is slow is not taken for dead. */
START_TEST(the_living_are_waited_for)
{
    uint64_t id[2], x;
    struct weir__hot *e;
    int status;
    pid_t child;

    open_slow();
    ck_assert_int_eq(weir_take(w, policy, "key", 3, 10, NULL), WEIR_ALLOW);
    weir__table_id(w, policy, "key", 3, id);
    e = weir__table_search(w, id, &x);
    ck_assert(weir__table_lock(w, e, id, &x));
    child = fork();
    if (child == 0)
        _exit(weir_take(w, policy, "key", 3, 1, NULL) == WEIR_ALLOW ? 0 : 1);
    ck_assert_int_gt(child, 0);
    sleep_us(50000);
    ck_assert_int_eq(waitpid(child, &status, WNOHANG), 0);
    ck_assert_uint_eq(e->x, x | WEIR__LOCK);
    weir__table_unlock(w, e, x + WEIR__STEP);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    weir_close(w);
}
END_TEST

/* Killed in weir_policy_set, with half of the entries moved: the next change finishes that first. */
START_TEST(a_walk_that_was_cut_short)
{
    struct weir_policy p = slow_numbers(50);
    struct weir_result r;
    uint64_t id[2], x;
    int key = 7;

    open_slow();
    for (int i = 0; i < 40; i++)
        ck_assert_int_eq(weir_take(w, policy, &i, sizeof i, 1, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_policy_set(w, policy, &p), 0);
    /* as if this entry had not been reached: it selects the other slot, whose numbers are another burst's */
    weir__table_id(w, policy, &key, sizeof key, id);
    weir__table_search(w, id, &x)->f ^= WEIR__SLOT;
    w->state->walking = policy + 1;
    p = slow_numbers(20);
    ck_assert_int_eq(weir_policy_set(w, policy, &p), 0);
    ck_assert_uint_eq(w->state->walking, 0);
    for (int i = 0; i < 40; i++) {
        ck_assert_int_eq(weir_take(w, policy, &i, sizeof i, 0, &r), WEIR_ALLOW);
        ck_assert_uint_eq(r.limit, 20);
        ck_assert_int_le(r.remaining, 20);
    }
    weir_close(w);
}
END_TEST

/* ---- dead anywhere ----------------------------------------------------------------------------------------------- */

/* What was admitted, in memory of all. Counted after the verdict: one that is killed in between is missed. */
static _Atomic uint32_t *admitted;

static void work(uint64_t random)
{
    for (;;) {
        uint64_t r = next(&random);
        uint32_t hot = (uint32_t)(r >> 16) % HOT, key = (uint32_t)(r >> 16) % KEYS;
        struct weir_policy p = numbers(r >> 8 & 3 ? RATE : RATE / 10, BURST);

        if (r >> 50 == 0) /* now and then slower, and of another resolution */
            weir_policy_set(w, policy, &p);
        else if (r % 4) /* of these, one makes room for the other all the time */
            weir_take(w, passing, &key, sizeof key, 1, NULL);
        else if (weir_take(w, policy, &hot, sizeof hot, 1, NULL) == WEIR_ALLOW)
            atomic_fetch_add_explicit(&admitted[hot], 1, memory_order_relaxed);
    }
}

static pid_t start(uint64_t random)
{
    pid_t pid = fork();

    if (pid == 0) {
        work(random);
        _exit(0);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

/* Every key can be asked; the table is whole. */
static void check_table(void)
{
    for (uint32_t key = 0; key < KEYS; key++) {
        ck_assert_int_ge(weir_take(w, policy, &key, sizeof key, 1, NULL), WEIR_ALLOW);
        ck_assert_int_ge(weir_take(w, passing, &key, sizeof key, 1, NULL), WEIR_ALLOW);
    }
    whole_check(w);
}

START_TEST(killed_anywhere)
{
    const char *wanted = getenv("WEIR_KILLS");
    int kills = wanted ? atoi(wanted) : 1000;
    uint64_t random = 88172645463325252, begun, most;
    struct weir_policy quick = numbers(1000000, 1);
    pid_t workers[WORKERS];

    admitted = mmap(NULL, HOT * sizeof *admitted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne((void *)admitted, MAP_FAILED);
    open_with(PLACES, numbers(RATE, BURST));
    quick.name = "quick";
    ck_assert_int_eq(weir_policy_add(w, &quick, &passing), 0);
    begun = weir_now(w);
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start(next(&random));
    for (int i = 0; i < kills; i++) {
        int victim = (int)(next(&random) % WORKERS);

        sleep_us((long)(next(&random) % 1500));
        kill(workers[victim], SIGKILL);
        if (i % 2) /* or it is a zombie for a while */
            waitpid(workers[victim], NULL, 0);
        else
            sleep_us(200);
        if (i % 2 == 0)
            waitpid(workers[victim], NULL, 0);
        workers[victim] = start(next(&random));
    }
    for (int i = 0; i < WORKERS; i++) {
        kill(workers[i], SIGKILL);
        waitpid(workers[i], NULL, 0);
    }
    most = BURST + (weir_now(w) - begun) * RATE / SECOND;
    for (uint32_t key = 0; key < HOT; key++)
        if (admitted[key] > most)
            ck_abort_msg("key %u: %u of %llu", key, admitted[key], (unsigned long long)most);
    ck_assert_uint_gt(admitted[0], BURST); /* it was kept busy */
    check_table();
    munmap((void *)admitted, HOT * sizeof *admitted);
    weir_close(w);
}
END_TEST

/* Without a 16-byte CAS (and under ThreadSanitizer) there is no telling who died with a lock bit: no such limiter. */
START_TEST(refused_without_a_16_byte_swap)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.shared = 1;
    ck_assert_int_eq(weir_open(&w, &options), WEIR_E_NOSUP);
    ck_assert_ptr_null(w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("shared");
    TCase *t = tcase_create("shared"), *alive, *kill;

    suite_add_tcase(s, t);
    if (!WEIR__CAS16_NATIVE) {
        tcase_add_test(t, refused_without_a_16_byte_swap);
        return s;
    }
    tcase_add_test(t, processes_share_buckets_and_policies);
    tcase_add_loop_test(t, what_a_dead_process_left_is_put_right, 0, STAGES);
    tcase_add_test(t, a_walk_that_was_cut_short);
    alive = tcase_create("alive");
    tcase_set_tags(alive, "start_times");
    tcase_add_test(alive, the_living_are_waited_for);
    suite_add_tcase(s, alive);
    kill = tcase_create("kill");
    tcase_set_tags(kill, "start_times robust_locks");
    tcase_set_timeout(kill, 300);
    tcase_add_test(kill, killed_anywhere);
    suite_add_tcase(s, kill);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
