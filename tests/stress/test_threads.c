/* SPDX-License-Identifier: MIT */
/*
 * Many threads on local buckets: not one token too many, none lost; keys that come and go faster than the table holds
 * them.
 */
#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "lib/limiter.h"
#include "lib/table.h"
#include "support/admissions.h"
#include "support/local_policy.h"
#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define THREADS 8

static struct weir *w;
static weir_policy_id policy;
static _Atomic uint64_t now; /* of limiters whose clock stands still */
static _Atomic int stop;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return atomic_load_explicit(&now, memory_order_relaxed);
}

static struct weir_policy numbers(uint64_t limit, uint64_t burst)
{
    return local_policy(limit, SECOND, burst);
}

static void open_with(size_t max_keys, bool still, uint64_t limit, uint64_t burst)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy p = numbers(limit, burst);

    options.max_keys = max_keys;
    options.now_ns = still ? read_now : NULL;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &policy), 0);
}

static void start(pthread_t *threads, void *(*run)(void *), void *args, size_t size)
{
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run, args ? (char *)args + i * size : NULL), 0);
}

static void join(pthread_t *threads)
{
    for (size_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

static uint64_t next(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* ---- case 39 ----------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 100 };

static pthread_barrier_t barrier;
static _Atomic uint64_t admitted;
static _Atomic int nonsense; /* a remaining that no bucket has */

static void *take_in_rounds(void *arg)
{
    struct weir_result r;

    (void)arg;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < 1000; i++) {
            if (weir_take(w, policy, "key", 3, 1, i % 100 ? NULL : &r) == WEIR_ALLOW)
                atomic_fetch_add_explicit(&admitted, 1, memory_order_relaxed);
            if (i % 100 == 0 && (r.remaining < 0 || r.remaining > 100))
                atomic_store_explicit(&nonsense, 1, memory_order_relaxed);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

START_TEST(case_39_refill_is_counted_once)
{
    pthread_t threads[THREADS];

    now = 50 * SECOND;
    open_with(16, true, 1000, 1000);
    ck_assert_int_eq(weir_take(w, policy, "key", 3, 1000, NULL), WEIR_ALLOW);
    ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS + 1), 0);
    start(threads, take_in_rounds, NULL, 0);
    for (int round = 0; round < ROUNDS; round++) {
        admitted = 0;
        now += 100 * MS;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        ck_assert_uint_eq(admitted, 100);
    }
    join(threads);
    ck_assert_int_eq(nonsense, 0);
    pthread_barrier_destroy(&barrier);
    weir_close(w);
}
END_TEST

/* ---- what the log of all admissions says
 * --------------------------------------------------------------------------- */

enum { LOG = 30000 };
/* A second, so that the threads are kept waiting; and four seconds of it, in which a busy machine runs one of them. */
static const uint64_t rate = 50000, burst = 200000;

struct logger {
    uint64_t random;
    size_t n;
    struct admission *log;
};

static void *take_and_log(void *arg)
{
    struct logger *logger = arg;

    while (!atomic_load_explicit(&stop, memory_order_relaxed) && logger->n < LOG) {
        uint64_t cost = 1 + next(&logger->random) % 3, called = weir_now(w);

        if (weir_take(w, policy, "key", 3, (int64_t)cost, NULL) == WEIR_ALLOW)
            logger->log[logger->n++] = (struct admission){called, weir_now(w), cost};
    }
    return NULL;
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

START_TEST(the_smallest_burst_that_explains_the_log)
{
    struct admission *log = malloc((1 + THREADS * LOG) * sizeof *log);
    struct logger loggers[THREADS];
    pthread_t threads[THREADS];
    uint64_t begun, total = burst, end;
    struct weir_result r;
    int64_t explained;
    size_t n = 1;

    ck_assert_ptr_nonnull(log);
    open_with(16, false, rate, burst);
    for (size_t i = 0; i < THREADS; i++)
        loggers[i] = (struct logger){.random = 88172645463325252 + i, .log = log + 1 + i * LOG};
    begun = weir_now(w);
    ck_assert_int_eq(weir_take_at(w, policy, "key", 3, (int64_t)burst, begun, NULL), WEIR_ALLOW);
    log[0] = (struct admission){begun, weir_now(w), burst};
    stop = 0;
    start(threads, take_and_log, loggers, sizeof *loggers);
    sleep_ms(300);
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    join(threads);
    for (size_t i = 0; i < THREADS; i++) {
        memmove(log + n, loggers[i].log, loggers[i].n * sizeof *log);
        for (size_t j = n; j < n + loggers[i].n; j++)
            total += log[j].cost;
        n += loggers[i].n;
    }
    /* Nothing is lost: what was admitted and what is left are what was there and what has come since. */
    end = weir_now(w);
    ck_assert_int_eq(weir_take_at(w, policy, "key", 3, 0, end, &r), WEIR_ALLOW);
    ck_assert_int_lt(r.remaining, (int64_t)burst); /* it was kept busy: nothing was cut off */
    total += (uint64_t)r.remaining;
    ck_assert_uint_le(total, burst + (end - begun) * rate / SECOND);
    ck_assert_uint_ge(total + 1, burst + (end - begun) * rate / SECOND);
    /* Nothing is lent, in no window: and the burst is used to the full. */
    explained = admissions_burst(log, n, rate, SECOND);
    ck_assert_int_le(explained, (int64_t)(burst * SECOND + SECOND / 1000));
    ck_assert_int_ge(explained, (int64_t)((burst - 3) * SECOND));
    free(log);
    weir_close(w);
}
END_TEST

/* ---- keys that come and go
 * ------------------------------------------------------------------------------------------- */

enum { KEYS = 3000, PLACES = 200, STORM_BURST = 5 };

struct stormer {
    uint64_t random;
    int kind; /* bit 0: handles and forgetting too, bit 1: many at once */
    uint64_t full, takes;
    uint64_t allowed[KEYS];
};

static void take_some(struct stormer *s)
{
    struct weir_request list[16];
    uint32_t keys[16];

    for (int i = 0; i < 16; i++) {
        keys[i] = (uint32_t)(next(&s->random) % (i % 4 ? KEYS : 50));
        list[i] = (struct weir_request){.policy = policy, .key = &keys[i], .key_len = sizeof keys[i], .cost = 1};
    }
    weir_take_many(w, list, 16, 0);
    for (int i = 0; i < 16; i++)
        s->allowed[keys[i]] += list[i].status == WEIR_ALLOW;
}

static void *storm(void *arg)
{
    struct stormer *s = arg;

    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint32_t key = (uint32_t)(next(&s->random) % (next(&s->random) % 4 ? KEYS : 50));
        struct weir_key *handle;
        struct weir_result r;

        s->takes++;
        if (s->kind & 1 && key % 16 == 0) {
            if (weir_key_open(w, policy, &key, sizeof key, &handle) == 0) {
                s->allowed[key] += weir_key_take(handle, 1, 0, NULL) == WEIR_ALLOW;
                weir_key_close(handle);
            }
        } else if (s->kind & 1 && key % 16 == 1) {
            weir_forget(w, policy, &key, sizeof key);
        } else if (s->kind & 2 && s->takes % 8 == 0) {
            take_some(s);
        } else {
            s->allowed[key] += weir_take(w, policy, &key, sizeof key, 1, &r) == WEIR_ALLOW;
            s->full += (r.flags & WEIR_FULL) != 0;
        }
    }
    return NULL;
}

/* Every tag has an entry, every entry a tag, no identity stands twice, nothing is locked or pinned, and the count is
 * right. */
static void check_table(void)
{
    uint64_t entries = 0;

    for (uint32_t slot = 0; slot < w->slots; slot++) {
        const struct weir__hot *e = &w->hot[slot];
        uint8_t tag = (uint8_t)(w->tags[slot / WEIR__WAYS].word[slot % WEIR__WAYS / 8] >> 8 * (slot % WEIR__WAYS % 8));
        uint64_t id[2] = {e->id[0], e->id[1]}, x;

        ck_assert_uint_eq(e->x & WEIR__LOCK, 0);
        ck_assert_uint_eq(e->pin, 0);
        ck_assert_int_eq(tag != 0, id[0] != 0);
        if (tag == 0)
            continue;
        entries++;
        ck_assert_uint_eq(tag, (uint8_t)id[0] ? (uint8_t)id[0] : 0x80);
        ck_assert_ptr_eq(weir__table_search(w, id, &x), e);
        for (uint32_t other = slot + 1; other < w->slots; other++)
            if (w->hot[other].id[0] == id[0] && w->hot[other].id[1] == id[1])
                ck_abort_msg("slots %u and %u hold the same key", slot, other);
    }
    ck_assert_uint_eq(w->state->keys, entries);
    ck_assert_uint_le(entries, PLACES);
}

static struct stormer stormers[THREADS];

static void run_storm(int kind, void (*meanwhile)(void))
{
    pthread_t threads[THREADS];

    memset(stormers, 0, sizeof stormers);
    for (size_t i = 0; i < THREADS; i++) {
        stormers[i].random = 88172645463325252 + 77 * i;
        stormers[i].kind = kind;
    }
    stop = 0;
    start(threads, storm, stormers, sizeof *stormers);
    meanwhile();
    atomic_store_explicit(&stop, 1, memory_order_relaxed);
    join(threads);
}

static void wait_for_evictions(void)
{
    struct weir_stats stats = {.size = sizeof stats};

    sleep_ms(300);
    for (int i = 0; i < 1000 && weir_stats_get(w, &stats) == 0 && stats.evictions == 0; i++)
        sleep_ms(10);
}

/* A bucket is dropped only when it is full, so its key gets no more than if it had stayed. */
START_TEST(eviction_mints_nothing)
{
    const uint64_t limit = 2000; /* a second: full after 2.5 ms */
    struct weir_stats stats = {.size = sizeof stats};
    uint64_t begun, most;

    open_with(PLACES, false, limit, STORM_BURST);
    begun = weir_now(w);
    run_storm(_i, wait_for_evictions);
    most = STORM_BURST + (weir_now(w) - begun) * limit / SECOND;
    for (size_t key = 0; key < KEYS; key++) {
        uint64_t allowed = 0;

        for (size_t i = 0; i < THREADS; i++)
            allowed += stormers[i].allowed[key];
        /* a forgotten bucket is full again, whenever it was emptied */
        if (allowed > most && !(_i & 1 && key % 16 == 1))
            ck_abort_msg("key %zu: %llu of %llu", key, (unsigned long long)allowed, (unsigned long long)most);
    }
    check_table();
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_gt(stats.evictions, 0);
    weir_close(w);
}
END_TEST

static void change_numbers(void)
{
    for (int i = 0; i < 150; i++) {
        bool is_local = i % 5 != 0;
        struct weir_policy p = numbers(i % 2 ? 2000 : 100000000, i % 3 && is_local ? UINT64_C(1) << 50 : 5);

        p.mode = is_local ? WEIR_LOCAL : WEIR_HYBRID;
        ck_assert_int_eq(weir_policy_set(w, policy, &p), 0);
        sleep_ms(1);
    }
}

/* Numbers, resolutions and modes change while keys come and go, are pinned and forgotten: the table stays whole. */
START_TEST(a_storm_with_changing_numbers)
{
    open_with(PLACES, false, 2000, STORM_BURST);
    run_storm(3, change_numbers);
    check_table();
    weir_close(w);
}
END_TEST

/* ---- counting ---------------------------------------------------------------------------------------------------- */

enum { COUNTERS = 50, COUNTED = 2000 };

static void *take_counted(void *arg)
{
    (void)arg;
    for (int i = 0; i < COUNTED; i++)
        weir_take(w, policy, &i, sizeof i, 1, NULL);
    return NULL;
}

/* More threads than have counters of their own, some after others have ended. */
START_TEST(verdicts_are_counted_exactly)
{
    struct weir_stats stats = {.size = sizeof stats};
    pthread_t threads[COUNTERS];

    now = SECOND;
    open_with(4096, true, 1, 10);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNTERS; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, take_counted, NULL), 0);
        for (int i = 0; i < COUNTERS; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    }
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.allowed, 10 * COUNTED);
    ck_assert_uint_eq(stats.denied, (3 * COUNTERS - 10) * COUNTED);
    weir_close(w);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("threads");
    TCase *t = tcase_create("threads");

    tcase_add_test(t, case_39_refill_is_counted_once);
    tcase_add_test(t, the_smallest_burst_that_explains_the_log);
    tcase_add_loop_test(t, eviction_mints_nothing, 0, 4);
    tcase_add_test(t, a_storm_with_changing_numbers);
    tcase_add_test(t, verdicts_are_counted_exactly);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
