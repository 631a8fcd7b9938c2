/* SPDX-License-Identifier: MIT */
/*
 * lib/lease.h: leases come back from threads that end, to whoever is denied from those that take no more, when their
 * handle is closed and when their policy is changed; and there are none where they could not.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/lease.h"
#include "support/leasing.h"
#include "support/no_barrier.h"
#include "support/suite.h"

#define STALE (WEIR__LEASE_STALE_NS + WEIR__LEASE_LOOK_NS + 1)

/* A thread that leases, and then waits for what to do: take once more, or end. */
static struct {
    pthread_t thread;
    sem_t done, go;
    bool end;
    int verdict;
} holder;

static void *hold_a_lease(void *arg)
{
    struct weir_key *handle = arg;

    at.interfere = true;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(weir_key_take(handle, 1, 0, NULL), WEIR_ALLOW);
    for (;;) {
        sem_post(&holder.done);
        while (sem_wait(&holder.go) != 0) {
        }
        if (holder.end)
            return NULL;
        holder.verdict = weir_key_take(handle, 1, at.now, NULL);
    }
}

/* Returns what the lease holds. */
static uint64_t start_holder(struct weir_key *handle)
{
    memset(&holder, 0, sizeof holder);
    ck_assert_int_eq(sem_init(&holder.done, 0, 0), 0);
    ck_assert_int_eq(sem_init(&holder.go, 0, 0), 0);
    ck_assert_int_eq(pthread_create(&holder.thread, NULL, hold_a_lease, handle), 0);
    while (sem_wait(&holder.done) != 0) {
    }
    ck_assert_uint_ge(at.e->leased, 16); /* filled, and nothing of it spent */
    return at.e->leased;
}

static int holder_takes(void)
{
    sem_post(&holder.go);
    while (sem_wait(&holder.done) != 0) {
    }
    return holder.verdict;
}

static void end_holder(void)
{
    holder.end = true;
    sem_post(&holder.go);
    ck_assert_int_eq(pthread_join(holder.thread, NULL), 0);
    sem_destroy(&holder.done);
    sem_destroy(&holder.go);
}

START_TEST(a_thread_that_ends_gives_back)
{
    leasing_open(1000000, 100000);
    start_holder(at.key);
    ck_assert_uint_eq(leasing_drain() + at.e->leased, 100000 - 3);
    end_holder();
    ck_assert_uint_eq(at.e->leased, 0);
    ck_assert_uint_ge(leasing_drain(), 16);
    at.now += SECOND;
    ck_assert_uint_eq(leasing_drain(), 100000);
    leasing_close();
}
END_TEST

/* The handle, or the limiter as well, is gone when the thread ends. */
START_TEST(a_thread_ends_after_its_handle)
{
    leasing_open(1000000, 100000);
    start_holder(at.key);
    weir_key_close(at.key);
    at.key = NULL;
    ck_assert_uint_eq(at.e->leased, 0);
    ck_assert_uint_eq(leasing_drain(), 100000 - 3);
    if (_i)
        weir_close(at.w);
    end_holder();
    if (!_i)
        leasing_close();
}
END_TEST

/* Ways to ask for n tokens without a lease. */
static int ask_for(int way, int64_t n)
{
    struct weir_request request = {.policy = at.ask.policy, .key = "key", .key_len = 3, .cost = n};
    struct weir_result r;

    switch (way) {
    case 0: return weir_take(at.w, at.ask.policy, "key", 3, n, NULL);
    case 1: return weir_take(at.w, at.ask.policy, "key", 3, n, &r);
    case 2: return weir_take_at(at.w, at.ask.policy, "key", 3, n, at.now, NULL);
    case 3: return weir_key_take(at.key, n, 0, NULL);
    case 4: return weir_key_take(at.key, n, at.now, NULL);
    case 5: return weir_key_take(at.key, n, at.now, &r);
    case 6: ck_assert_int_eq(weir_take_many(at.w, &request, 1, at.now), 0); return request.status;
    case 7: return weir_take_all(at.w, &request, 1, NULL);
    default:
        if (weir_peek(at.w, at.ask.policy, "key", 3, n, NULL) == WEIR_DENY)
            return WEIR_DENY;
        return weir_take(at.w, at.ask.policy, "key", 3, n, NULL);
    }
}

#define WAYS 9

/* Nobody is denied for the tokens of a lease that has become old: exactly those come back, and its thread, which lives
 * on, has them no more. */
START_TEST(an_idle_lease_goes_to_who_is_denied)
{
    uint64_t held, left;

    leasing_open(1000000, 100000);
    held = start_holder(at.key);
    left = leasing_drain() + 1;
    ck_assert_uint_eq(left + 3 + held, 100000 + 1);
    ck_assert_int_eq(ask_for(_i, (int64_t)held), WEIR_DENY);
    at.now += WEIR__LEASE_STALE_NS;
    left = WEIR__LEASE_STALE_NS / 1000;
    ck_assert_int_eq(ask_for(_i, (int64_t)(left + held)), WEIR_DENY); /* not old enough */
    ck_assert_uint_eq(at.e->leased, held);
    at.now += WEIR__LEASE_LOOK_NS + 1000;
    left += WEIR__LEASE_LOOK_NS / 1000 + 1;
    ck_assert_int_eq(ask_for(_i, (int64_t)(left + held + 1)), WEIR_DENY);
    ck_assert_uint_eq(at.e->leased, 0);
    ck_assert_int_eq(ask_for(_i, (int64_t)(left + held)), WEIR_ALLOW);
    ck_assert_int_eq(ask_for(_i, 1), WEIR_DENY);
    ck_assert_int_eq(holder_takes(), WEIR_DENY);
    at.now += 1000;
    ck_assert_int_eq(holder_takes(), WEIR_ALLOW);
    ck_assert_int_eq(ask_for(_i, 1), WEIR_DENY);
    end_holder();
    ck_assert_uint_eq(at.e->leased, 0);
    at.now += SECOND;
    ck_assert_uint_eq(leasing_drain(), 100000);
    leasing_close();
}
END_TEST

/* At once: by the first one that needs them. */
START_TEST(the_first_who_needs_them_gets_them)
{
    uint64_t held;

    leasing_open(1000000, 100000);
    held = start_holder(at.key);
    leasing_drain();
    at.now += STALE;
    ck_assert_int_eq(ask_for(_i, (int64_t)(held + STALE / 1000)), WEIR_ALLOW);
    ck_assert_int_eq(ask_for(_i, 1), WEIR_DENY);
    end_holder();
    leasing_close();
}
END_TEST

/* A cost that fits beside no lease. */
START_TEST(an_idle_lease_doesnt_keep_the_whole_burst_away)
{
    leasing_open(1000000, 100000);
    start_holder(at.key);
    at.now += SECOND;
    ck_assert_int_eq(ask_for(_i, 100000), WEIR_ALLOW);
    ck_assert_int_eq(ask_for(_i, 1), WEIR_DENY);
    ck_assert_int_eq(holder_takes(), WEIR_DENY);
    end_holder();
    leasing_close();
}
END_TEST

/* By another handle than that of the lease. */
START_TEST(leases_of_any_handle_are_found)
{
    struct weir_key *others[3];
    uint64_t held;

    leasing_open(1000000, 100000);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(weir_key_open(at.w, at.ask.policy, "key", 3, &others[i]), 0);
    held = start_holder(others[1]);
    leasing_drain();
    at.now += STALE;
    ck_assert_int_eq(ask_for(3, (int64_t)(held + STALE / 1000)), WEIR_ALLOW);
    ck_assert_int_eq(weir_key_take(others[2], 1, at.now, NULL), WEIR_DENY);
    for (int i = 0; i < 3; i++)
        weir_key_close(others[i]);
    end_holder();
    leasing_close();
}
END_TEST

/* Spent from meanwhile or not: what is left comes back, not what it was filled with. */
START_TEST(what_was_spent_of_it_stays_spent)
{
    uint64_t held;

    leasing_open(1000000, 100000);
    held = start_holder(at.key);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(holder_takes(), WEIR_ALLOW);
    ck_assert_uint_eq(at.e->leased, held);
    leasing_drain();
    at.now += STALE;
    ck_assert_int_eq(ask_for(_i, (int64_t)(held - 4 + STALE / 1000)), WEIR_DENY);
    ck_assert_int_eq(ask_for(_i, (int64_t)(held - 5 + STALE / 1000)), WEIR_ALLOW);
    end_holder();
    leasing_close();
}
END_TEST

/* The one that is filled. */
static struct weir__lease *filled_lease(void)
{
    struct weir__lease *lease = (struct weir__lease *)(void *)((struct weir_quick_ *)(void *)at.key)->leases;

    while (lease->held == 0)
        lease++;
    return lease;
}

/* Reached for while its thread was in a step, which was then refused and stored what it had found: it was
 * neither spent nor taken back, and whoever comes next has all of it. */
START_TEST(what_could_not_be_taken_back_is_not_lost)
{
    struct weir__lease *lease;
    uint64_t held, left;

    leasing_open(1000000, 100000);
    held = start_holder(at.key);
    ck_assert_int_eq(holder_takes(), WEIR_ALLOW);
    lease = filled_lease();
    leasing_drain();
    at.now += STALE;
    left = held - 1 + STALE / 1000;
    lease->busy = 1;
    ck_assert_int_eq(ask_for(0, (int64_t)left), WEIR_DENY);
    ck_assert_uint_eq(at.e->leased, held);
    lease->tokens = WEIR_LEASE_GONE_;
    lease->busy = 0;
    switch (_i) {
    case 0: break; /* whoever is denied */
    case 1:        /* its thread */
        ck_assert_int_eq(holder_takes(), WEIR_ALLOW);
        left--;
        break;
    case 2: end_holder(); break;
    default: weir_key_close(at.key); at.key = NULL;
    }
    at.now += STALE;
    ck_assert_int_eq(ask_for(0, (int64_t)(left + STALE / 1000)), WEIR_ALLOW);
    ck_assert_int_eq(ask_for(0, 1), WEIR_DENY);
    ck_assert_uint_eq(at.e->leased, 0);
    if (_i != 2)
        end_holder();
    leasing_close();
}
END_TEST

START_TEST(a_clock_that_went_back_hides_no_lease)
{
    uint64_t held, ahead = 3600 * SECOND;

    leasing_open(1000000, 100000);
    at.now -= ahead; /* so that the bucket has seen nothing later */
    ck_assert_int_eq(weir_forget(at.w, at.ask.policy, "key", 3), 0);
    held = start_holder(at.key);
    at.now += ahead;
    at.e->touched = 0;
    ck_assert(!weir__lease_hunt(at.w, at.e, at.now - ahead)); /* nothing is old: another look is due much later */
    at.w->lease_due[weir__slot_of(at.w, at.e) % WEIR__LEASE_CHAINS] = at.now;
    at.now -= ahead;
    leasing_drain();
    at.now += STALE;
    ck_assert_int_eq(ask_for(0, (int64_t)(held + STALE / 1000)), WEIR_ALLOW);
    end_holder();
    leasing_close();
}
END_TEST

/* Whatever a policy becomes, no lease of before weighs on it. */
START_TEST(a_change_of_the_policy_brings_leases_back)
{
    struct weir_policy p = leasing_numbers(1000000, 100000);
    uint64_t left;

    leasing_open(1000000, 100000);
    start_holder(at.key);
    left = 100000 - 3;
    if (_i == 1)
        p.mode = WEIR_HYBRID;
    if (_i == 3)
        p.mode = WEIR_STRICT;
    if (_i == 2)
        p.burst = left = 5000;
    ck_assert_int_eq(weir_policy_set(at.w, at.ask.policy, &p), 0);
    ck_assert_uint_eq(at.e->leased, 0);
    ck_assert_uint_eq(leasing_drain(), left);
    ck_assert_int_eq(holder_takes(), WEIR_DENY);
    end_holder();
    leasing_close();
}
END_TEST

/* The thread that holds it isn't there in the child. */
START_TEST(a_child_of_fork_gets_at_the_leases_of_its_parent)
{
    uint64_t held;
    int status;
    pid_t child;

    leasing_open(1000000, 100000);
    held = start_holder(at.key);
    leasing_drain();
    at.now += STALE;
    child = fork();
    if (child == 0)
        _exit(ask_for(_i, (int64_t)(held + STALE / 1000)) != WEIR_ALLOW || ask_for(_i, 1) != WEIR_DENY);
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(ask_for(_i, (int64_t)(held + STALE / 1000)), WEIR_ALLOW);
    end_holder();
    leasing_close();
}
END_TEST

static bool refuse;
static void *blocks[16]; /* not yet released */

static void *allocate(void *arg, size_t size)
{
    void *block = refuse ? NULL : aligned_alloc(4096, (size + 4095) / 4096 * 4096);

    (void)arg;
    for (size_t i = 0; block && i < sizeof blocks / sizeof *blocks; i++) {
        if (!blocks[i]) {
            blocks[i] = block;
            return block;
        }
    }
    ck_assert_ptr_null(block);
    return NULL;
}

static void release(void *arg, void *block, size_t size)
{
    size_t i = 0;

    (void)arg;
    (void)size;
    while (blocks[i] != block)
        ck_assert_uint_lt(++i, sizeof blocks / sizeof *blocks);
    blocks[i] = NULL;
    free(block);
}

static size_t free_blocks(void)
{
    size_t n = 0;

    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        n += blocks[i] != NULL;
        free(blocks[i]);
        blocks[i] = NULL;
    }
    return n;
}

/* Takes go on without; and with, once there is some again, which is given back. */
START_TEST(no_memory_no_leases)
{
    at.allocator = (struct weir_allocator){allocate, release, NULL};
    leasing_open(1000000, 100000);
    ck_assert_int_eq(weir_take(at.w, at.ask.policy, "key", 3, 50000, NULL), WEIR_ALLOW);
    refuse = true;
    for (int i = 0; i < 10; i++) {
        at.interfere = true;
        ck_assert_int_eq(weir_key_take(at.key, 1, 0, NULL), WEIR_ALLOW);
        ck_assert_uint_eq(at.e->leased, 0);
    }
    refuse = false;
    start_holder(at.key);
    end_holder();
    ck_assert_uint_eq(leasing_drain(), 50000 - 20 - 3);
    leasing_close();
    ck_assert_uint_eq(free_blocks(), 0);
}
END_TEST

/* Which leaks it, and its leases; the thread that ends later doesn't look for the limiter. */
START_TEST(a_limiter_is_closed_before_a_handle)
{
    at.allocator = (struct weir_allocator){allocate, release, NULL};
    leasing_open(1000000, 100000);
    start_holder(at.key);
    weir_close(at.w);
    end_holder();
    ck_assert_uint_eq(free_blocks(), 2);
}
END_TEST

/* A system without the barrier that taking back needs: nothing is leased, so nothing can be held back. */
START_TEST(no_barrier_no_leases)
{
    refuse_barriers(ENOSYS);
    leasing_open(1000000, 100000);
    for (int i = 0; i < 10; i++) {
        at.interfere = true;
        ck_assert_int_eq(weir_key_take(at.key, 1, 0, NULL), WEIR_ALLOW);
        ck_assert_uint_eq(at.e->leased, 0);
    }
    ck_assert_uint_eq(leasing_drain(), 100000 - 20);
    leasing_close();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("lease_back");
    TCase *t = tcase_create("back"), *filtered = tcase_create("no barrier");

    tcase_add_test(t, a_thread_that_ends_gives_back);
    tcase_add_loop_test(t, a_thread_ends_after_its_handle, 0, 2);
    tcase_add_loop_test(t, an_idle_lease_goes_to_who_is_denied, 0, WAYS);
    tcase_add_loop_test(t, the_first_who_needs_them_gets_them, 0, WAYS);
    tcase_add_loop_test(t, an_idle_lease_doesnt_keep_the_whole_burst_away, 0, WAYS);
    tcase_add_test(t, leases_of_any_handle_are_found);
    tcase_add_loop_test(t, what_was_spent_of_it_stays_spent, 0, WAYS);
    tcase_add_loop_test(t, what_could_not_be_taken_back_is_not_lost, 0, 4);
    tcase_add_test(t, a_clock_that_went_back_hides_no_lease);
    tcase_add_loop_test(t, a_change_of_the_policy_brings_leases_back, 0, 4);
    tcase_add_loop_test(t, a_child_of_fork_gets_at_the_leases_of_its_parent, 0, WAYS);
    tcase_add_test(t, no_memory_no_leases);
    tcase_add_test(t, a_limiter_is_closed_before_a_handle);
    suite_add_tcase(s, t);
    tcase_set_tags(filtered, "seccomp");
    tcase_add_test(filtered, no_barrier_no_leases);
    suite_add_tcase(s, filtered);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
