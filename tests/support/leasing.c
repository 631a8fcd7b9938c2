/* SPDX-License-Identifier: MIT */
/*
 * See leasing.h. Knows no test.
 */
#include "support/leasing.h"

#include <check.h>

#include "support/local_policy.h"

struct leasing at;

static uint64_t read_now(void *arg)
{
    (void)arg;
    if (at.interfere) {
        at.interfere = false;
        ck_assert_int_eq(weir_take_at(at.w, at.ask.policy, "key", 3, 1, at.now, NULL), WEIR_ALLOW);
    }
    return at.now;
}

struct weir_policy leasing_numbers(uint64_t limit, uint64_t burst)
{
    return local_policy(limit, SECOND, burst);
}

void leasing_open(uint64_t limit, uint64_t burst)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy p = leasing_numbers(limit, burst);
    weir_policy_id id;
    uint64_t x;

    options.max_keys = 16;
    options.allocator = at.allocator;
    options.now_ns = read_now;
    at.now = 1000 * SECOND;
    ck_assert_int_eq(weir_open(&at.w, &options), 0);
    ck_assert_int_eq(weir_policy_add(at.w, &p, &id), 0);
    ck_assert_int_eq(weir_key_open(at.w, id, "key", 3, &at.key), 0);
    ck_assert_int_eq(weir_take(at.w, id, "other", 5, 1, NULL), WEIR_ALLOW);
    ck_assert_uint_lt(weir_stripe_, at.w->private_counts); /* from the first verdict on */
    ck_assert_int_eq(weir__take_check(at.w, id, "key", 3, &at.ask), 0);
    at.e = weir__table_search(at.w, at.ask.id, &x);
    ck_assert_ptr_nonnull(at.e);
}

void leasing_close(void)
{
    weir_key_close(at.key);
    weir_close(at.w);
}

uint64_t leasing_drain(void)
{
    uint64_t n = 0;

    while (weir_take(at.w, at.ask.policy, "key", 3, 1, NULL) == WEIR_ALLOW)
        n++;
    return n;
}
