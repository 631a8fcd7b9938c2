/* SPDX-License-Identifier: MIT */
/*
 * A limiter with the test for a clock and for a sync.
 */
#include "support/fake_sync.h"

#include <check.h>
#include <string.h>

#include "lib/table.h"

static uint64_t read_clock(void *arg)
{
    struct fake_sync *fake = arg;
    return atomic_load_explicit(&fake->now, memory_order_relaxed);
}

static void on_wake(void *ctx)
{
    struct fake_sync *fake = ctx;
    atomic_fetch_add_explicit(&fake->wakes, 1, memory_order_relaxed);
}

static void on_join(void *ctx)
{
    struct fake_sync *fake = ctx;
    atomic_fetch_add_explicit(&fake->joins, 1, memory_order_relaxed);
}

static void on_policy_changed(void *ctx, weir_policy_id id)
{
    struct fake_sync *fake = ctx;
    (void)id;
    atomic_fetch_add_explicit(&fake->policy_changes, 1, memory_order_relaxed);
}

static int on_forget(void *ctx, weir_policy_id id, const void *key, size_t key_len)
{
    struct fake_sync *fake = ctx;
    (void)id;
    (void)key;
    (void)key_len;
    atomic_fetch_add_explicit(&fake->forgets, 1, memory_order_relaxed);
    return 0;
}

void fake_open(struct fake_sync *fake, size_t max_keys)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    memset(fake, 0, sizeof *fake);
    atomic_store_explicit(&fake->now, FAKE_START, memory_order_relaxed);
    fake->refuse_after = SIZE_MAX;
    fake->hooks = (struct weir__hooks){
        .ctx = fake, .wake = on_wake, .join = on_join, .policy_changed = on_policy_changed, .forget = on_forget};
    options.max_keys = max_keys ? max_keys : 64;
    options.now_ns = read_clock;
    options.now_arg = fake;
    ck_assert_int_eq(weir_open(&fake->w, &options), 0);
}

void fake_close(struct fake_sync *fake)
{
    weir_close(fake->w);
}

void fake_attach(struct fake_sync *fake)
{
    ck_assert_int_eq(weir__seam_attach(fake->w, &fake->hooks), 0);
}

weir_policy_id fake_policy(struct fake_sync *fake, const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst,
                           enum weir_on_outage on_outage, enum weir_unknown unknown)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;
    policy.name = name;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    policy.on_outage = on_outage;
    policy.unknown = unknown;
    ck_assert_int_eq(weir_policy_add(fake->w, &policy, &id), 0);
    return id;
}

weir_policy_id fake_ten_a_second(struct fake_sync *fake, enum weir_on_outage on_outage, enum weir_unknown unknown)
{
    return fake_policy(fake, "p", 10, FAKE_SECOND, 100, on_outage, unknown);
}

weir_policy_id fake_attached(struct fake_sync *fake, enum weir_on_outage on_outage, enum weir_unknown unknown,
                             uint64_t q0)
{
    weir_policy_id id = fake_ten_a_second(fake, on_outage, unknown);
    fake_attach(fake);
    weir__seam_overdraft(fake->w, id, q0, 2, 20);
    weir__seam_fresh_until(fake->w, id, read_clock(fake) + FAKE_SECOND);
    weir__seam_pace(fake->w, id, 200 * FAKE_MS, 5 * FAKE_MS);
    return id;
}

void fake_pass(struct fake_sync *fake, uint64_t ns)
{
    atomic_fetch_add_explicit(&fake->now, ns, memory_order_relaxed);
}

int fake_drain(struct fake_sync *fake, weir_policy_id id, const char *key, struct weir_result *result)
{
    int n = 0;
    while (fake_take(fake, id, key, 1, result) == WEIR_ALLOW)
        ck_assert_int_lt(n++, 100000);
    return n;
}

int fake_take(struct fake_sync *fake, weir_policy_id id, const char *key, int64_t cost, struct weir_result *result)
{
    return weir_take(fake->w, id, key, strlen(key), cost, result);
}

static int keep(void *ctx, const struct weir__report *report)
{
    struct fake_sync *fake = ctx;
    if (fake->n >= fake->refuse_after)
        return 0;
    ck_assert_uint_lt(fake->n, FAKE_REPORTS);
    fake->reports[fake->n++] = *report;
    return 1;
}

size_t fake_collect(struct fake_sync *fake)
{
    fake->n = 0;
    ck_assert_uint_eq(weir__seam_collect(fake->w, read_clock(fake), FAKE_REPORTS, keep, fake), fake->n);
    return fake->n;
}

size_t fake_urgent(struct fake_sync *fake)
{
    fake->n = 0;
    ck_assert_uint_eq(weir__seam_urgent(fake->w, read_clock(fake), FAKE_REPORTS, keep, fake), fake->n);
    return fake->n;
}

struct weir__report *fake_report(struct fake_sync *fake, const char *key)
{
    struct weir__report *found = NULL;
    for (size_t i = 0; i < fake->n; i++) {
        struct weir__report *report = &fake->reports[i];
        if (report->key_len == strlen(key) && memcmp(report->key, key, report->key_len) == 0) {
            ck_assert_ptr_null(found);
            found = report;
        }
    }
    ck_assert_msg(found != NULL, "no report of %s", key);
    return found;
}

void fake_grant(struct fake_sync *fake, const char *key, const struct weir__grant *grant)
{
    fake_collect(fake);
    weir__seam_apply(fake->w, fake_report(fake, key)->slot, read_clock(fake), grant);
}

struct weir__grant fake_nothing(double global)
{
    return (struct weir__grant){.low = -1, .fallback_rate = -1, .global = global};
}

struct weir__grant fake_slice(struct fake_sync *fake, double level, double rate, double cap, double global)
{
    return (struct weir__grant){.level_delta = level,
                                .rate = rate,
                                .cap = cap,
                                .low = -1,
                                .until = read_clock(fake) + 400 * FAKE_MS,
                                .fallback_rate = -1,
                                .global = global};
}

struct weir__hot *fake_entry(struct fake_sync *fake, weir_policy_id id, const char *key)
{
    uint64_t hash[2], x;
    weir__table_id(fake->w, id, key, strlen(key), hash);
    struct weir__hot *e = weir__table_search(fake->w, hash, &x);
    ck_assert_msg(e != NULL, "no entry of %s", key);
    return e;
}

double fake_level(struct fake_sync *fake, weir_policy_id id, const char *key)
{
    struct weir__hot *e = fake_entry(fake, id, key);
    struct weir__view view;
    weir__hybrid_view(fake->w, e, atomic_load_explicit(&e->x, memory_order_acquire), read_clock(fake), &view);
    return (double)view.level / (double)(UINT64_C(1) << view.k);
}

uint64_t fake_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}
