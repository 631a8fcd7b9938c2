/* SPDX-License-Identifier: MIT */
/*
 * lib/dirty: the bitmap's protocol between takers and collector, and the urgent list.
 */
#include <check.h>
#include <pthread.h>

#include "lib/dirty.h"
#include "support/fake_sync.h"
#include "support/suite.h"

enum { THREADS = 3, ENTRIES = 130, ROUNDS = 20000, PUSHES = 20000 };

static struct fake_sync fake;

static void setup(void)
{
    fake_open(&fake, 200);
}

static void teardown(void)
{
    fake_close(&fake);
}

START_TEST(a_mark_lists_once)
{
    struct weir__hot *e = &fake.w->hot[70];
    ck_assert_int_eq(weir__dirty_any(fake.w), 0);
    weir__dirty_mark(fake.w, e);
    weir__dirty_mark(fake.w, e);
    ck_assert_int_eq(weir__dirty_any(fake.w), 1);
    ck_assert_uint_eq(weir__dirty_take(fake.w, 0, UINT64_MAX), 0);
    ck_assert_uint_eq(weir__dirty_take(fake.w, 1, UINT64_MAX), UINT64_C(1) << 6);
    ck_assert_uint_eq(weir__dirty_take(fake.w, 1, UINT64_MAX), 0);
    /* taken off, but not cleared: it is still known to be dirty */
    weir__dirty_mark(fake.w, e);
    ck_assert_uint_eq(weir__dirty_take(fake.w, 1, UINT64_MAX), 0);
    weir__dirty_put_back(fake.w, 1, UINT64_C(1) << 6);
    ck_assert_uint_eq(weir__dirty_take(fake.w, 1, UINT64_MAX), UINT64_C(1) << 6);
    weir__dirty_clear(e);
    weir__dirty_mark(fake.w, e);
    ck_assert_uint_eq(weir__dirty_take(fake.w, 1, UINT64_MAX), UINT64_C(1) << 6);
}
END_TEST

START_TEST(every_slot_has_a_bit)
{
    ck_assert_uint_ge(weir__dirty_words(fake.w) * 64, fake.w->slots);
    for (uint32_t slot = 0; slot < fake.w->slots; slot++)
        weir__dirty_mark(fake.w, &fake.w->hot[slot]);
    uint32_t seen = 0;
    for (size_t word = 0; word < weir__dirty_words(fake.w); word++)
        seen += (uint32_t)__builtin_popcountll(weir__dirty_take(fake.w, word, UINT64_MAX));
    ck_assert_uint_eq(seen, fake.w->slots);
}
END_TEST

START_TEST(urgent_entries_are_listed_once_and_wake_once)
{
    struct weir__hot *e = fake.w->hot;
    ck_assert_int_eq(weir__urgent_push(fake.w, &e[3]), 1);
    ck_assert_int_eq(weir__urgent_push(fake.w, &e[5]), 0);
    ck_assert_int_eq(weir__urgent_push(fake.w, &e[3]), 0);
    ck_assert_int_eq(weir__urgent_push(fake.w, &e[0]), 0);
    uint32_t list = weir__urgent_drain(fake.w);
    ck_assert_uint_eq(weir__urgent_drain(fake.w), 0);
    ck_assert_uint_eq(weir__urgent_pop(fake.w, &list), 0);
    ck_assert_uint_eq(weir__urgent_pop(fake.w, &list), 5);
    /* pushed again while the rest of the old list is still out */
    ck_assert_int_eq(weir__urgent_push(fake.w, &e[5]), 1);
    ck_assert_int_eq(weir__urgent_push(fake.w, &e[3]), 0);
    ck_assert_uint_eq(weir__urgent_pop(fake.w, &list), 3);
    ck_assert_uint_eq(list, 0);
    list = weir__urgent_drain(fake.w);
    ck_assert_uint_eq(weir__urgent_pop(fake.w, &list), 5);
    ck_assert_uint_eq(list, 0);
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static _Atomic int stop;

/* Takers: a CAS of x, then the mark. */
static void *spend(void *arg)
{
    uint64_t seed = (uintptr_t)arg * 7919 + 1;
    for (int i = 0; i < ROUNDS; i++) {
        struct weir__hot *e = &fake.w->hot[fake_random(&seed) % ENTRIES];
        atomic_fetch_add_explicit(&e->x, WEIR__STEP, memory_order_seq_cst);
        weir__dirty_mark(fake.w, e);
    }
    return NULL;
}

static void collect_once(uint64_t *seen)
{
    for (size_t word = 0; word < weir__dirty_words(fake.w); word++) {
        uint64_t mask = weir__dirty_take(fake.w, word, UINT64_MAX);
        for (; mask; mask &= mask - 1) {
            size_t slot = word * 64 + (unsigned)__builtin_ctzll(mask);
            weir__dirty_clear(&fake.w->hot[slot]);
            seen[slot] = atomic_load_explicit(&fake.w->hot[slot].x, memory_order_seq_cst);
        }
    }
}

/* Whoever is not listed when all is quiet has been read after its last spend. */
START_TEST(no_spend_escapes_the_collector)
{
    static uint64_t seen[4096];
    pthread_t takers[THREADS];
    ck_assert_uint_le(fake.w->slots, 4096);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&takers[i], NULL, spend, (void *)(uintptr_t)i), 0);
    for (int i = 0; i < 200; i++)
        collect_once(seen);
    for (int i = 0; i < THREADS; i++)
        pthread_join(takers[i], NULL);
    collect_once(seen);
    ck_assert_int_eq(weir__dirty_any(fake.w), 0);
    uint64_t total = 0;
    for (uint32_t slot = 0; slot < fake.w->slots; slot++) {
        ck_assert_uint_eq(seen[slot], atomic_load_explicit(&fake.w->hot[slot].x, memory_order_relaxed));
        total += seen[slot];
    }
    ck_assert_uint_eq(total, WEIR__STEP * THREADS * ROUNDS);
}
END_TEST

static _Atomic unsigned woken;
static _Atomic uint64_t pushed[ENTRIES];

static void *push(void *arg)
{
    uint64_t seed = (uintptr_t)arg * 7919 + 1;
    for (int i = 0; i < PUSHES; i++) {
        size_t slot = fake_random(&seed) % ENTRIES;
        atomic_fetch_add_explicit(&pushed[slot], 1, memory_order_relaxed);
        if (weir__urgent_push(fake.w, &fake.w->hot[slot]))
            atomic_fetch_add_explicit(&woken, 1, memory_order_relaxed);
    }
    return NULL;
}

/* Nothing is lost, nothing is listed twice at a time, and a list is announced by exactly one push. */
START_TEST(urgent_survives_threads)
{
    static uint64_t popped[ENTRIES];
    pthread_t takers[THREADS];
    unsigned lists = 0;
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&takers[i], NULL, push, (void *)(uintptr_t)i), 0);
    for (int turn = 0; turn < 2000 || !stop; turn++) {
        if (turn == 2000) {
            for (int i = 0; i < THREADS; i++)
                pthread_join(takers[i], NULL);
            stop = 1;
        }
        uint32_t list = weir__urgent_drain(fake.w);
        lists += list != 0;
        for (unsigned length = 0; list; length++) {
            ck_assert_uint_lt(length, ENTRIES);
            ck_assert_int_eq(fake.w->hot[list - 1].urgent, 1); /* it is on this list, and on no other */
            popped[weir__urgent_pop(fake.w, &list)]++;
        }
    }
    uint32_t list = weir__urgent_drain(fake.w);
    lists += list != 0;
    while (list)
        popped[weir__urgent_pop(fake.w, &list)]++;
    ck_assert_uint_eq(lists, woken);
    for (int i = 0; i < ENTRIES; i++) {
        ck_assert_uint_le(popped[i], pushed[i]);
        ck_assert_int_eq(popped[i] > 0, pushed[i] > 0);
        ck_assert_int_eq(atomic_load_explicit(&fake.w->hot[i].urgent, memory_order_relaxed), 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dirty");
    TCase *tcase = tcase_create("dirty");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_mark_lists_once);
    tcase_add_test(tcase, every_slot_has_a_bit);
    tcase_add_test(tcase, urgent_entries_are_listed_once_and_wake_once);
    tcase_add_test(tcase, no_spend_escapes_the_collector);
    tcase_add_test(tcase, urgent_survives_threads);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
