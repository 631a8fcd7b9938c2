/* SPDX-License-Identifier: MIT */
/*
 * Opening a limiter: options, memory, the clocks, a full table, fork.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weir/weir.h>

#include "lib/seam.h"
#include "support/suite.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define HOUR (3600 * SECOND)
#define DAY (24 * HOUR)

static uint64_t now; /* the limiter's clock */
static struct weir *w;
static struct weir_result r;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static void setup(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = 100;
    options.now_ns = read_now;
    now = 0;
    memset(&r, 0xff, sizeof r);
    ck_assert_int_eq(weir_open(&w, &options), 0);
}

static void teardown(void)
{
    weir_close(w);
}

static weir_policy_id add(const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id = UINT32_MAX;

    policy.name = name;
    policy.mode = WEIR_LOCAL;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    return id;
}

static int take(weir_policy_id id, int64_t cost)
{
    return weir_take(w, id, "key", 3, cost, &r);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static size_t allocated;
static int calls, fail_at;

static void *count_alloc(void *arg, size_t size)
{
    ck_assert_ptr_eq(arg, &allocated);
    if (++calls == fail_at)
        return NULL;
    allocated += size;
    return malloc(size);
}

static void count_release(void *arg, void *memory, size_t size)
{
    ck_assert_ptr_eq(arg, &allocated);
    ck_assert_ptr_nonnull(memory);
    allocated -= size;
    free(memory);
}

START_TEST(options_are_checked)
{
    struct weir_options o = WEIR_OPTIONS_INIT;
    struct weir *x = (struct weir *)&o;

    ck_assert_int_eq(weir_open(NULL, NULL), WEIR_E_INVAL);
    o.size = 3;
    ck_assert_int_eq(weir_open(&x, &o), WEIR_E_INVAL);
    ck_assert_ptr_null(x);
    o = (struct weir_options)WEIR_OPTIONS_INIT;
    o.max_keys = SIZE_MAX;
    ck_assert_int_eq(weir_open(&x, &o), WEIR_E_RANGE);
    o = (struct weir_options)WEIR_OPTIONS_INIT;
    o.on_full = (enum weir_on_full)7;
    ck_assert_int_eq(weir_open(&x, &o), WEIR_E_INVAL);
    o = (struct weir_options)WEIR_OPTIONS_INIT;
    o.clock = (enum weir_clock)7;
    ck_assert_int_eq(weir_open(&x, &o), WEIR_E_INVAL);
    o = (struct weir_options)WEIR_OPTIONS_INIT;
    o.allocator.arg = &o;
    ck_assert_int_eq(weir_open(&x, &o), 0);
    weir_close(x);
    o.allocator.alloc = count_alloc;
    ck_assert_int_eq(weir_open(&x, &o), WEIR_E_INVAL);
    ck_assert_ptr_null(x);
}
END_TEST

/* A caller compiled with a later version passes more; what this library doesn't know must not be asked for. */
START_TEST(longer_options_of_a_later_version)
{
    struct {
        struct weir_options known;
        uint64_t more;
    } later = {.known = WEIR_OPTIONS_INIT};
    struct weir *x;

    later.known.size = sizeof later;
    ck_assert_int_eq(weir_open(&x, &later.known), 0);
    weir_close(x);
    later.more = 1;
    ck_assert_int_eq(weir_open(&x, &later.known), WEIR_E_NOSUP);
}
END_TEST

START_TEST(all_memory_is_the_allocators)
{
    struct weir_options o = WEIR_OPTIONS_INIT;
    struct weir_key *key = NULL;
    struct weir *outer = w;
    weir_policy_id id;
    int error;

    o.max_keys = 10;
    o.allocator = (struct weir_allocator){count_alloc, count_release, &allocated};
    for (fail_at = 1;; fail_at++) {
        calls = 0;
        error = weir_open(&w, &o);
        if (!error) {
            id = add("p", 1, SECOND, 1);
            error = weir_key_open(w, id, "key", 3, &key);
            if (!error)
                ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_ALLOW);
            weir_key_close(key);
            weir_close(w);
        }
        ck_assert_uint_eq(allocated, 0);
        if (!error)
            break;
        ck_assert_int_eq(error, WEIR_E_NOMEM);
        ck_assert_ptr_null(key);
    }
    ck_assert_int_ge(fail_at, 4);
    w = outer;
}
END_TEST

START_TEST(the_own_clock_is_monotonic_time)
{
    struct weir_options o = WEIR_OPTIONS_INIT;
    weir_policy_id id;
    uint64_t before;
    int verdict;

    for (int clock = 0; clock < 2; clock++) {
        teardown();
        o.clock = clock ? WEIR_CLOCK_MONOTONIC : WEIR_CLOCK_AUTO;
        ck_assert_int_eq(weir_open(&w, &o), 0);
        id = add("p", 1000, SECOND, 1);
        before = weir_now(w);
        ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
        ck_assert_int_eq(weir_take_at(w, id, "key", 3, 1, before, &r), WEIR_DENY);
        do { /* until both takes are made within the millisecond that brings a token */
            before = weir_now(w);
            while (weir_now(w) < before + 10 * MS)
                ;
            before = weir_now(w);
            ck_assert_int_eq(take(id, 1), WEIR_ALLOW);
            verdict = take(id, 1);
        } while (weir_now(w) - before >= MS);
        ck_assert_int_eq(verdict, WEIR_DENY);
        ck_assert_uint_le(r.retry_after_ns, MS);
    }
}
END_TEST

/* ---- a full table ------------------------------------------------------------------------------------------------ */

START_TEST(a_full_table_asks_on_full)
{
    struct weir_options o = WEIR_OPTIONS_INIT;
    struct weir_stats stats = {.size = sizeof stats};
    weir_policy_id id;
    uint64_t memory;
    int allowed = 0, full = 0;

    teardown();
    o.max_keys = 50;
    o.now_ns = read_now;
    o.on_full = _i ? WEIR_FULL_ADMIT : WEIR_FULL_DENY;
    ck_assert_int_eq(weir_open(&w, &o), 0);
    id = add("p", 1, HOUR, 2);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    memory = stats.memory_bytes;
    for (int i = 0; i < 200; i++) {
        int verdict = weir_take(w, id, &i, sizeof i, 1, &r);

        allowed += verdict == WEIR_ALLOW;
        full += (r.flags & WEIR_FULL) != 0;
        if (verdict == WEIR_DENY) {
            ck_assert_uint_eq(r.flags, WEIR_FULL);
            ck_assert_uint_gt(r.retry_after_ns, 0);
            ck_assert_uint_ne(r.retry_after_ns, WEIR_NEVER);
        }
    }
    ck_assert_int_eq(full, 150);
    ck_assert_int_eq(allowed, _i ? 200 : 50);
    ck_assert_int_eq(weir_stats_get(w, &stats), 0);
    ck_assert_uint_eq(stats.keys, 50);
    ck_assert_uint_eq(stats.max_keys, 50);
    ck_assert_uint_eq(stats.table_full, 150);
    ck_assert_uint_eq(stats.memory_bytes, memory);
    /* those that have a bucket are not disturbed */
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 1, &r), WEIR_ALLOW);
        ck_assert_int_eq(r.remaining, 0);
        ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 1, &r), WEIR_DENY);
    }
    /* and when they are full again, others take their places */
    now = 2 * HOUR;
    for (int i = 1000; i < 1050; i++) {
        ck_assert_int_eq(weir_take(w, id, &i, sizeof i, 1, &r), WEIR_ALLOW);
        ck_assert_uint_eq(r.flags, 0);
    }
}
END_TEST

START_TEST(a_handle_holds_its_place)
{
    struct weir_options o = WEIR_OPTIONS_INIT;
    struct weir_key *key, *none;
    weir_policy_id id;

    teardown();
    o.max_keys = 1;
    o.now_ns = read_now;
    ck_assert_int_eq(weir_open(&w, &o), 0);
    id = add("p", 1, SECOND, 1);
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
    ck_assert_int_eq(weir_key_open(w, id, "other", 5, &none), WEIR_E_FULL);
    ck_assert_ptr_null(none);
    ck_assert_int_eq(weir_take(w, id, "other", 5, 1, NULL), WEIR_DENY);
    ck_assert_int_eq(weir_key_take(key, 1, 0, NULL), WEIR_ALLOW);
    weir_key_close(key);
    ck_assert_int_eq(weir_take(w, id, "other", 5, 1, NULL), WEIR_DENY);
    now = SECOND;
    ck_assert_int_eq(weir_take(w, id, "other", 5, 1, NULL), WEIR_ALLOW);
}
END_TEST

/* ---- fork -------------------------------------------------------------------------------------------------------- */

START_TEST(a_local_limiter_survives_a_fork)
{
    weir_policy_id id = add("p", 1, HOUR, 10);
    int status;
    pid_t child;

    ck_assert_int_eq(take(id, 4), WEIR_ALLOW);
    child = fork();
    if (child == 0) /* a copy of its own from here on */
        _exit(take(id, 6) == WEIR_ALLOW && take(id, 1) == WEIR_DENY ? 0 : 1);
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(take(id, 6), WEIR_ALLOW);
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
}
END_TEST

static void never_called(void *arg, int status, const struct weir_result *result)
{
    (void)arg;
    (void)status;
    (void)result;
    ck_abort_msg("called back in a child");
}

static void no_wake(void *ctx)
{
    (void)ctx;
}

static int in_the_child(weir_policy_id id, struct weir_key *key, const struct weir_policy *policy)
{
    struct weir_request request = {.policy = id, .key = "key", .key_len = 3, .cost = 1};
    weir_policy_id found;

#define FORKED(call)                                                                                                   \
    if ((call) != WEIR_E_FORKED)                                                                                       \
        return __LINE__ % 200 + 1;
    FORKED(take(id, 1))
    FORKED(weir_take_at(w, id, "key", 3, 1, now, NULL))
    FORKED(weir_peek(w, id, "key", 3, 1, NULL))
    FORKED(weir_give(w, id, "key", 3, 1))
    FORKED(weir_forget(w, id, "key", 3))
    FORKED(weir_take_many(w, &request, 1, 0))
    FORKED(request.status)
    FORKED(weir_take_all(w, &request, 1, NULL))
    FORKED(weir_take_async(w, &request, never_called, NULL))
    FORKED(weir_take_wait(w, &request, 0, NULL))
    FORKED(weir_key_take(key, 1, 0, NULL))
    FORKED(weir_key_take(key, 1, now, NULL))
    FORKED(weir_key_take(key, 1, 0, &r))
    FORKED(weir_key_open(w, id, "key", 3, &key))
    FORKED(weir_policy_add(w, policy, &found))
    FORKED(weir_policy_set(w, id, policy))
    FORKED(weir_policy_find(w, "p", &found))
#undef FORKED
    weir_close(w);
    return 0;
}

/* Once a sync has started a child must not speak in its parent's name: every call is refused, and closing is allowed.
 * */
START_TEST(a_synced_limiter_refuses_in_a_child)
{
    static const struct weir__hooks hooks = {.wake = no_wake};
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id = add("p", 1, HOUR, 10);
    struct weir_key *key;
    int status;
    pid_t child;

    policy.name = "q";
    policy.mode = WEIR_LOCAL;
    policy.limit = 1;
    policy.per_ns = HOUR;
    ck_assert_int_eq(weir_key_open(w, id, "key", 3, &key), 0);
    ck_assert_int_eq(weir__seam_attach(w, &hooks), 0);
    child = fork();
    if (child == 0)
        _exit(in_the_child(id, key, &policy));
    ck_assert_int_gt(child, 0);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(weir_key_take(key, 10, 0, NULL), WEIR_ALLOW); /* the parent's goes on */
    ck_assert_int_eq(take(id, 1), WEIR_DENY);
    weir_key_close(key);
    weir__seam_detach(w);
}
END_TEST

START_TEST(statuses_have_texts)
{
#define CHECK_TEXT(code, number, text) ck_assert_str_eq(weir_strerror(code), text);
    WEIR_STATUS_MAP(CHECK_TEXT)
#undef CHECK_TEXT
    ck_assert_str_eq(weir_strerror(-12345), "unknown status");
    ck_assert_str_eq(weir_version(), "0.1.0");
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("opening");
    TCase *t, *forked;

    t = tcase_create("opening");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, options_are_checked);
    tcase_add_test(t, longer_options_of_a_later_version);
    tcase_add_test(t, all_memory_is_the_allocators);
    tcase_add_test(t, the_own_clock_is_monotonic_time);
    suite_add_tcase(s, t);

    t = tcase_create("a_full_table");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, a_full_table_asks_on_full, 0, 2);
    tcase_add_test(t, a_handle_holds_its_place);
    suite_add_tcase(s, t);

    t = tcase_create("fork");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_local_limiter_survives_a_fork);
    tcase_add_test(t, statuses_have_texts);
    suite_add_tcase(s, t);

    forked = tcase_create("fork of a synced one");
    tcase_set_tags(forked, "wipe_on_fork");
    tcase_add_checked_fixture(forked, setup, teardown);
    tcase_add_test(forked, a_synced_limiter_refuses_in_a_child);
    suite_add_tcase(s, forked);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
