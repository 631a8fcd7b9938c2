/* SPDX-License-Identifier: MIT */
/*
 * Threads on handles of one key by the limiter's own clock, where each handle notes that there are tokens, for all that
 * share it; while others take by key, give, open handles, and set the policy again. Nothing is lent and nothing lost.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/admissions.h"
#include "support/local_policy.h"
#include "support/suite.h"
#include <weir/weir.h>

#define SECOND UINT64_C(1000000000)
#define THREADS 4
#define HANDLES 2
#define LOG 60000
#define NS_A_TOKEN 10000 /* of the log: too slow for leases */
#define BURST 2000
#define SKEW_NS 500 /* two threads' times may differ by what a re-anchoring takes */

static struct weir *w;
static weir_policy_id id;
static struct weir_key *handles[HANDLES];
static _Atomic int stop;

struct worker {
    uint64_t random;
    int64_t admitted, given;
    struct admission *log; /* NULL: none is kept, and it takes until it is denied */
    size_t logged;
};

static struct worker workers[THREADS];
static pthread_t threads[THREADS];

static uint64_t next(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static void open_limiter(const struct weir_policy *p)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = 16;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, p, &id), 0);
    for (int i = 0; i < HANDLES; i++)
        ck_assert_int_eq(weir_key_open(w, id, "key", 3, &handles[i]), 0);
}

static void close_limiter(void)
{
    for (int i = 0; i < HANDLES; i++)
        weir_key_close(handles[i]);
    weir_close(w);
}

/* One take, mostly as a loop on a handle has them. Returns how many tokens were admitted. */
static int64_t take(struct worker *self, struct weir_key *key)
{
    uint64_t random = next(&self->random);
    int64_t cost = random % 64 ? 1 : 1 + (int64_t)(random >> 8) % 3;

    switch (random % 256) {
    case 1: /* by a clock that is ahead */
        return weir_key_take(key, cost, weir_now(w) + (random >> 16) % 1000, NULL) == WEIR_ALLOW ? cost : 0;
    case 2: return weir_take(w, id, "key", 3, cost, NULL) == WEIR_ALLOW ? cost : 0;
    default: return weir_key_take(key, cost, 0, NULL) == WEIR_ALLOW ? cost : 0;
    }
}

static void do_besides(struct worker *self)
{
    uint64_t random = next(&self->random);
    struct weir_key *key;

    if (random % 512 == 0 && weir_give(w, id, "key", 3, (int64_t)(random >> 16 & 15)) == 0)
        self->given += random >> 16 & 15;
    if (random % 512 == 1) {
        ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
        for (int i = 0; i < 100; i++)
            self->admitted += take(self, key);
        weir_key_close(key);
    }
}

static void *spend(void *arg)
{
    struct worker *self = arg;
    unsigned denied = 0;

    while (denied < 100) {
        int64_t admitted = take(self, handles[next(&self->random) % HANDLES]);

        do_besides(self);
        self->admitted += admitted;
        denied = admitted > 0 ? 0 : denied + 1;
    }
    return NULL;
}

static void *keep_log(void *arg)
{
    struct worker *self = arg;
    const struct timespec rest = {.tv_nsec = 3000000};

    while (self->logged < LOG && !atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t called = weir_now(w);
        struct weir_key *key = handles[next(&self->random) % HANDLES];

        if (weir_key_take(key, 1, 0, NULL) == WEIR_ALLOW)
            self->log[self->logged++] = (struct admission){called, weir_now(w), 1};
        if (next(&self->random) % 8192 == 0) /* then it fills */
            nanosleep(&rest, NULL);
    }
    return NULL;
}

static void start_all(void *(*work)(void *), struct admission *log)
{
    static uint64_t seed = 88172645463325252u;

    stop = 0;
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < THREADS; i++) {
        workers[i].random = next(&seed);
        workers[i].log = log ? log + i * LOG : NULL;
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
}

static void join_all(void)
{
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

/* The same numbers again: all handles learn them anew. */
static void set_again(const struct weir_policy *p)
{
    const struct timespec rest = {.tv_nsec = 200000};

    ck_assert_int_eq(weir_policy_set(w, id, p), 0);
    nanosleep(&rest, NULL);
}

START_TEST(nothing_is_lent_and_nothing_lost)
{
    const int64_t burst = 400000;
    struct weir_policy p = local_policy(1, 86400 * SECOND, (uint64_t)burst);
    int64_t taken, given;

    for (int round = 0; round < 6; round++) {
        open_limiter(&p);
        start_all(spend, NULL);
        for (int i = 0; i < 20 && round % 2; i++)
            set_again(&p);
        join_all();
        taken = given = 0;
        for (int i = 0; i < THREADS; i++) {
            taken += workers[i].admitted;
            given += workers[i].given;
        }
        while (weir_take(w, id, "key", 3, 1, NULL) == WEIR_ALLOW) /* of what was given last */
            taken++;
        ck_assert_int_eq(taken, burst + given);
        close_limiter();
    }
}
END_TEST

static uint64_t admitted(void)
{
    struct weir_stats stats = {.size = sizeof stats};

    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    return stats.allowed;
}

/* Nor in any window in between, with the bucket full now and then. */
START_TEST(the_log_is_explained_by_the_burst)
{
    struct weir_policy p = local_policy(1, NS_A_TOKEN, BURST);
    struct admission *log = malloc(THREADS * LOG * sizeof *log);
    size_t n = 0;

    ck_assert_ptr_nonnull(log);
    open_limiter(&p);
    start_all(keep_log, log);
    for (int i = 0; i < 500 || admitted() < 2 * BURST; i++)
        set_again(&p);
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    join_all();
    for (int i = 0; i < THREADS; i++) {
        memmove(log + n, workers[i].log, workers[i].logged * sizeof *log);
        n += workers[i].logged;
    }
    ck_assert_int_le(admissions_burst(log, n, 1, NS_A_TOKEN), (int64_t)BURST * NS_A_TOKEN + SKEW_NS);
    free(log);
    close_limiter();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("known_threads");
    TCase *t = tcase_create("threads");

    tcase_set_timeout(t, 60);
    tcase_add_test(t, nothing_is_lent_and_nothing_lost);
    tcase_add_test(t, the_log_is_explained_by_the_burst);
    suite_add_tcase(suite, t);
    return suite_run(suite);
}
