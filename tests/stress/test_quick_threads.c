/* SPDX-License-Identifier: MIT */
/*
 * Threads on handles of one key that they share, by code compiled into them and by the library's, with leases; while
 * others take by key, give, forget, open and close handles, change the policy, attach a sync, end and begin. The clock
 * is the test's: to the token, nothing is lent and nothing lost.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/seam.h"
#include "lib/table.h"
#include "support/admissions.h"
#include "support/local_policy.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define THREADS 6
#define HANDLES 2
#define NS_A_TOKEN 16u /* a power of two: earned to the unit */
#define BURST 131072u  /* leases of 2,048 tokens at most, 8,192 in all */
#define LOG 20000

static struct weir *w;
static weir_policy_id id;
static struct weir_key *handles[HANDLES];
static _Atomic uint64_t now;
static _Atomic int stop;
static int (*volatile called_take)(struct weir_key *, int64_t, uint64_t, struct weir_result *) = weir_key_take;

struct worker {
    uint64_t random;
    unsigned kinds;  /* of what it does besides: bits */
    unsigned takes;  /* then it ends, and another thread goes on */
    unsigned denied; /* then it ends: so many takes of one token in a row */
    unsigned most;   /* tokens at a time */
    _Atomic uint64_t admitted, given, verdicts;
    struct admission *log; /* NULL: none is kept */
    size_t logged;
};

enum { GIVES = 1, OTHER_HANDLES = 2, FORGETS = 4, LATE = 8 };

static struct worker workers[THREADS];
static pthread_t threads[THREADS];

/* While a take asks for the time another one comes first: so threads are in each other's way on one CPU as well. */
static _Thread_local struct worker *interferes;

static void admit(struct worker *self, uint64_t called, uint64_t cost);

static uint64_t read_now(void *arg)
{
    uint64_t time = atomic_load_explicit(&now, memory_order_relaxed);
    struct worker *self = interferes;
    int verdict;

    (void)arg;
    interferes = NULL;
    if (self) {
        verdict = weir_take_at(w, id, "key", 3, 1, time, NULL);
        self->verdicts += verdict == WEIR_ALLOW || verdict == WEIR_DENY;
        if (verdict == WEIR_ALLOW)
            admit(self, time, 1);
    }
    return time;
}

static uint64_t next(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static struct weir_policy numbers(uint64_t burst)
{
    return local_policy(1, NS_A_TOKEN, burst);
}

static void open_handles(void)
{
    for (int i = 0; i < HANDLES; i++)
        ck_assert_int_eq(weir_key_open(w, id, "key", 3, &handles[i]), 0);
}

static void close_handles(void)
{
    for (int i = 0; i < HANDLES; i++)
        weir_key_close(handles[i]);
}

static void open_limiter(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy p = numbers(BURST);

    now = 1000 * SECOND;
    options.max_keys = 16;
    options.now_ns = read_now;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    open_handles();
}

/* ---- what threads do --------------------------------------------------------------------------------------------- */

/* One take, in one of the ways there are. */
static int take(uint64_t random, int64_t cost, uint64_t at)
{
    struct weir_key *key = handles[random >> 8 & 1];
    struct weir_result r;

    switch (random >> 32 & 15) {
    case 0: return weir_take(w, id, "key", 3, cost, NULL);
    case 1: return weir_take_at(w, id, "key", 3, cost, at, NULL);
    case 2: return weir_key_take(key, cost, at, &r);
    case 3: return called_take(key, cost, at, NULL);
    case 4: return called_take(key, cost, 0, NULL);
    case 5: return weir_key_take(key, cost, 0, NULL);
    case 6: return cost == 1 ? weir_key_take(key, 1, 0, NULL) : weir_key_take(key, cost, 0, NULL);
    case 7: return cost == 1 ? weir_key_take(key, 1, at, NULL) : weir_key_take(key, cost, at, NULL);
    default: return weir_key_take(key, cost, at, NULL);
    }
}

static void admit(struct worker *self, uint64_t called, uint64_t cost)
{
    self->admitted += cost;
    if (self->log && self->logged < LOG)
        self->log[self->logged++] = (struct admission){called, read_now(NULL), cost};
}

static void do_besides(struct worker *self, uint64_t random)
{
    struct weir_key *key;

    if (self->kinds & GIVES && random % 64 == 0) {
        if (weir_give(w, id, "key", 3, (int64_t)(random >> 8 & 15)) == 0)
            self->given += random >> 8 & 15;
    } else if (self->kinds & OTHER_HANDLES && random % 64 == 1) {
        ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
        for (int i = 0; i < 8; i++) {
            uint64_t called = read_now(NULL);
            int verdict = weir_key_take(key, 2, called, NULL);

            self->verdicts += verdict == WEIR_ALLOW || verdict == WEIR_DENY;
            if (verdict == WEIR_ALLOW)
                admit(self, called, 2);
        }
        weir_key_close(key);
    } else if (self->kinds & FORGETS && random % 1024 == 2) {
        weir_forget(w, id, "key", 3);
    } else if (random % 64 == 3) {
        (void)weir_peek(w, id, "key", 3, 1, NULL);
        (void)weir_key_take(handles[0], 0, 0, NULL);
        (void)weir_key_take(handles[0], -1, 0, NULL);
    }
}

static void *work(void *arg)
{
    struct worker *self = arg;
    unsigned denied = 0;

    for (unsigned n = 0; !atomic_load_explicit(&stop, memory_order_relaxed); n++) {
        uint64_t random = next(&self->random), called;
        int64_t cost = denied > 0 ? 1 : 1 + (int64_t)(random % self->most);
        int verdict;

        if ((self->takes && n >= self->takes) || (self->denied && denied >= self->denied))
            break;
        do_besides(self, next(&self->random));
        called = read_now(NULL);
        interferes = !(self->kinds & FORGETS) && random >> 24 & 1 ? self : NULL;
        verdict = take(random, cost, called - (self->kinds & LATE && random >> 16 & 1 ? random >> 18 & 255 : 0));
        interferes = NULL;
        self->verdicts += verdict == WEIR_ALLOW || verdict == WEIR_DENY;
        denied = verdict == WEIR_ALLOW ? 0 : denied + 1;
        if (verdict == WEIR_ALLOW)
            admit(self, called, (uint64_t)cost);
        if (self->logged == LOG)
            break;
    }
    return NULL;
}

static void start(int i)
{
    ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
}

static void start_all(unsigned kinds, unsigned takes, unsigned denied, struct admission *log)
{
    static uint64_t seed = 88172645463325252u;

    stop = 0;
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < THREADS; i++) {
        workers[i].random = next(&seed);
        workers[i].kinds = kinds;
        workers[i].takes = takes;
        workers[i].denied = denied;
        workers[i].most = log ? 100 : 3;
        workers[i].log = log ? log + i * LOG : NULL;
        start(i);
    }
}

static void join_all(void)
{
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

static uint64_t sum_admitted(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < THREADS; i++)
        sum += workers[i].admitted;
    return sum;
}

static uint64_t sum_given(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < THREADS; i++)
        sum += workers[i].given;
    return sum;
}

/* The key's entry when nobody is at it: unpinned, no lease counted. */
static void check_at_rest(void)
{
    for (uint32_t slot = 0; slot < w->slots; slot++) {
        ck_assert_uint_eq(w->hot[slot].pin, 0);
        ck_assert_uint_eq(w->hot[slot].leased, 0);
        ck_assert_uint_eq(w->hot[slot].x & WEIR__LOCK, 0);
    }
}

static uint64_t drain(void)
{
    struct weir_result r;

    ck_assert_int_eq(weir_peek(w, id, "key", 3, 0, &r), WEIR_ALLOW);
    if (r.remaining > 0)
        ck_assert_int_eq(weir_take(w, id, "key", 3, r.remaining, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(w, id, "key", 3, 1, NULL), WEIR_DENY);
    return (uint64_t)r.remaining;
}

static uint64_t clock_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- to the token ------------------------------------------------------------------------------------------------ */

/* Time stands, the bucket is full, and some threads have leases of before: it gives the burst, and not a token more. */
START_TEST(a_full_bucket_gives_its_burst)
{
    for (int round = 0; round < 40; round++) {
        uint64_t sum;

        if (round % 8 == 0)
            open_limiter();
        now += SECOND;
        start_all(OTHER_HANDLES, 2000, 0, NULL);
        join_all();
        now += SECOND;
        start_all(OTHER_HANDLES, 0, 50, NULL);
        join_all();
        sum = sum_admitted();
        ck_assert_uint_le(sum, BURST);
        /* what leases that were just being counted have cut off */
        ck_assert_uint_ge(sum, BURST - BURST / 8);
        if (round % 8 == 7) {
            close_handles();
            check_at_rest();
            weir_close(w);
        }
    }
}
END_TEST

/* The same numbers again: all handles learn them anew, all leases go back. */
static void set_again(void)
{
    struct weir_policy p = numbers(BURST);

    ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
}

/* Time goes on as far as what was taken allows, of a bucket that was half full: it is never more than three quarters
 * full. */
static void pass_time(uint64_t begun, uint64_t tokens)
{
    uint64_t earned = (read_now(NULL) - begun) / NS_A_TOKEN;

    if (earned + sum_given() + tokens < sum_admitted() + BURST / 4)
        atomic_fetch_add_explicit(&now, NS_A_TOKEN * tokens, memory_order_relaxed);
}

/* Threads that end are followed by others, which get their stripes, for a while. */
static void run_beside(uint64_t ms, void (*meanwhile)(void))
{
    const uint64_t begun = read_now(NULL), end = clock_ms() + ms;

    for (int turn = 0; clock_ms() < end; turn++) {
        int i = turn % THREADS;

        pass_time(begun, 1 + (unsigned)turn % 1000);
        if (turn % 4 == 0)
            meanwhile();
        if (turn % 16 == 0) {
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
            start(i);
        }
    }
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    join_all();
}

static void idle(void)
{
    sched_yield();
}

START_TEST(nothing_is_lent_and_nothing_lost)
{
    uint64_t begun, earned, given;

    open_limiter();
    begun = now;
    ck_assert_int_eq(weir_take(w, id, "key", 3, BURST / 2, NULL), WEIR_ALLOW);
    start_all(GIVES | OTHER_HANDLES | LATE, 3000, 0, NULL);
    run_beside(700, _i ? set_again : idle);
    close_handles();
    check_at_rest();
    earned = (now - begun) / NS_A_TOKEN;
    given = sum_given();
    ck_assert_uint_gt(earned, 0);
    ck_assert_uint_eq(BURST / 2 + sum_admitted() + drain(), BURST + earned + given);
    weir_close(w);
}
END_TEST

/* Nor in any window in between, with the bucket full now and then. */
START_TEST(the_log_is_explained_by_the_burst)
{
    struct admission *log = malloc((1 + THREADS * LOG) * sizeof *log);
    const uint64_t late = clock_ms() + 5000;
    uint64_t random = 88172645463325252u;
    int64_t explained;
    size_t n = 1;

    ck_assert_ptr_nonnull(log);
    open_limiter();
    ck_assert_int_eq(weir_take(w, id, "key", 3, BURST / 2, NULL), WEIR_ALLOW);
    log[0] = (struct admission){now, now, BURST / 2};
    start_all(OTHER_HANDLES, 0, 0, log + 1);
    while (sum_admitted() + 200 < BURST / 2 && clock_ms() < late)
        sched_yield();
    for (int turn = 0; turn < 400; turn++) {
        uint64_t jump = turn % 4 == 0 ? 3 * BURST : turn % 4 == 1 ? next(&random) % BURST : 1000;

        atomic_fetch_add_explicit(&now, jump * NS_A_TOKEN, memory_order_relaxed);
        for (int i = 0; i < 10; i++)
            sched_yield();
        if (_i && turn % 16 == 0)
            set_again();
    }
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    join_all();
    for (int i = 0; i < THREADS; i++) {
        memmove(log + n, workers[i].log, workers[i].logged * sizeof *log);
        n += workers[i].logged;
    }
    explained = admissions_burst(log, n, 1, NS_A_TOKEN);
    ck_assert_int_le(explained, (int64_t)BURST * NS_A_TOKEN);
    ck_assert_int_ge(explained, (int64_t)(BURST - 200) * NS_A_TOKEN);
    free(log);
    close_handles();
    check_at_rest();
    weir_close(w);
}
END_TEST

/* ---- whatever changes -------------------------------------------------------------------------------------------- */

/* A sync that is always there, and always says no. */
static int refuse(void *ctx, struct weir_request *requests, size_t n, uint64_t timeout_ns)
{
    (void)ctx;
    (void)timeout_ns;
    for (size_t i = 0; i < n; i++) {
        requests[i].status = WEIR_DENY;
        if (requests[i].result)
            memset(requests[i].result, 0, sizeof *requests[i].result);
        weir__seam_count(w, requests[i].policy, WEIR_DENY);
    }
    return 0;
}

static int say_no(void *ctx, const struct weir_request *request)
{
    (void)ctx;
    (void)request;
    return WEIR_DENY;
}

static int give_nothing(void *ctx, const struct weir_request *request)
{
    (void)ctx;
    (void)request;
    return 0;
}

static void no_wake(void *ctx)
{
    (void)ctx;
}

static const struct weir__hooks hooks = {.wake = no_wake, .strict = refuse, .peek = say_no, .give = give_nothing};

/* Another mode, other numbers, or a sync that comes or goes. */
static void change_something(void)
{
    static uint64_t random = 88172645463325252u;
    static int attached;
    uint64_t r = next(&random);
    struct weir_policy p = numbers(r & 1 ? BURST : r & 2 ? 20 : 100 * BURST);

    if (r >> 8 & 1)
        p.per_ns = SECOND / 1000;
    p.shadow = (r >> 9 & 3) == 0;
    p.mode = (r >> 11 & 3) == 0 ? WEIR_HYBRID : (r >> 11 & 3) == 1 ? WEIR_STRICT : WEIR_LOCAL;
    if (r >> 13 & 3)
        ck_assert_int_eq(weir_policy_set(w, id, &p), 0);
    else if (attached)
        weir__seam_detach(w);
    else
        ck_assert_int_eq(weir__seam_attach(w, &hooks), 0);
    attached ^= (r >> 13 & 3) == 0;
    atomic_fetch_add_explicit(&now, r >> 16 & 1023, memory_order_relaxed);
}

/* Every verdict is counted, nothing stays locked, pinned or leased, and the key is as good as new in the end. */
START_TEST(a_storm_of_changes)
{
    struct weir_stats stats = {.size = sizeof stats};
    uint64_t verdicts = 0;

    open_limiter();
    start_all(GIVES | OTHER_HANDLES | FORGETS | LATE, 2000, 0, NULL);
    run_beside(700, change_something);
    for (int i = 0; i < THREADS; i++)
        verdicts += workers[i].verdicts;
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.allowed + stats.denied, verdicts);
    close_handles();
    set_again();
    check_at_rest();
    ck_assert_int_eq(weir_forget(w, id, "key", 3), 0);
    open_handles();
    now += SECOND;
    ck_assert_uint_eq(drain(), BURST);
    for (int i = 0; i < HANDLES; i++)
        ck_assert_int_eq(weir_key_take(handles[i], 1, now, NULL), WEIR_DENY);
    now += 10 * NS_A_TOKEN;
    ck_assert_int_eq(weir_key_take(handles[0], 10, now, NULL), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(handles[1], 1, now, NULL), WEIR_DENY);
    close_handles();
    weir_close(w);
}
END_TEST

/* ---- fork -------------------------------------------------------------------------------------------------------- */

static uint64_t leased_by_this_thread(void)
{
    const struct weir_quick_ *q = (const struct weir_quick_ *)(const void *)handles[0];
    const char *leases = __atomic_load_n(&q->leases, __ATOMIC_ACQUIRE);

    if (!leases || weir_stripe_ >= q->stripes)
        return 0;
    return ((const struct weir_lease_ *)(const void *)(leases + weir_stripe_ / WEIR_LEASE_STEP_))->tokens;
}

/* Until this thread, taking beside the others, has a lease; or it is given up. */
static void take_until_leased(void)
{
    const uint64_t begun = now, late = clock_ms() + 5000;

    start_all(0, 0, 0, NULL);
    while (leased_by_this_thread() == 0 && clock_ms() < late) {
        interferes = &workers[0];
        workers[0].admitted += weir_key_take(handles[0], 1, 0, NULL) == WEIR_ALLOW;
        interferes = NULL;
        workers[0].admitted += weir_key_take(handles[0], 1, now, NULL) == WEIR_ALLOW;
        pass_time(begun, 1000);
    }
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    join_all();
}

static int child_is_refused(void)
{
    struct weir_result r;

    return weir_key_take(handles[0], 1, now, NULL) != WEIR_E_FORKED ||
           weir_key_take(handles[0], 1, 0, NULL) != WEIR_E_FORKED ||
           called_take(handles[0], 1, now, NULL) != WEIR_E_FORKED ||
           called_take(handles[0], 2, 0, NULL) != WEIR_E_FORKED ||
           weir_key_take(handles[1], 3, now, &r) != WEIR_E_FORKED;
}

/* A copy that may be used on its own: with all that its parent had, and no more. */
static int child_has_more_than(uint64_t tokens)
{
    close_handles();
    return drain() != tokens;
}

START_TEST(a_child_after_fork)
{
    uint64_t begun, left;
    int status;
    pid_t child;

    open_limiter();
    begun = now;
    ck_assert_int_eq(weir_take(w, id, "key", 3, BURST / 2, NULL), WEIR_ALLOW);
    take_until_leased();
    ck_assert(leased_by_this_thread() > 0 || sysconf(_SC_NPROCESSORS_ONLN) < 2);
    left = BURST / 2 + (now - begun) / NS_A_TOKEN - sum_admitted();
    if (_i)
        ck_assert_int_eq(weir__seam_attach(w, &hooks), 0);
    child = fork();
    if (child == 0)
        _exit(_i ? child_is_refused() : child_has_more_than(left));
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    if (_i)
        weir__seam_detach(w);
    close_handles();
    check_at_rest();
    ck_assert_uint_eq(drain(), left);
    weir_close(w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("quick_threads");
    TCase *t = tcase_create("quick_threads"), *synced = tcase_create("fork of a synced one");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_full_bucket_gives_its_burst);
    tcase_add_loop_test(t, nothing_is_lent_and_nothing_lost, 0, 2);
    tcase_add_loop_test(t, the_log_is_explained_by_the_burst, 0, 2);
    tcase_add_test(t, a_storm_of_changes);
    tcase_add_loop_test(t, a_child_after_fork, 0, 1);
    suite_add_tcase(s, t);
    tcase_set_timeout(synced, 60);
    tcase_set_tags(synced, "wipe_on_fork");
    tcase_add_loop_test(synced, a_child_after_fork, 1, 2);
    suite_add_tcase(s, synced);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
