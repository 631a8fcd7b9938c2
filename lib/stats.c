/* SPDX-License-Identifier: MIT */
/*
 * Counters: which thread writes which, and their sums. Knows nothing of how a verdict is reached.
 */
#include "lib/stats.h"

#include <pthread.h>
#include <string.h>

#include "lib/lease.h"

#define PRIVATE_STRIPES (WEIR__STRIPES - 1)

WEIR_THREAD_ size_t weir_stripe_ = SIZE_MAX;

static _Atomic uint32_t taken; /* stripes, a bit each, of all limiters of this process */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int have_key;

_Static_assert(WEIR__STRIPES <= 32, "a bit each");

/* A thread ends: what it counted stays. Release: the next owner goes on from its last count. */
static void give_stripe_back(void *stripe)
{
    weir__lease_end_thread(((uintptr_t)stripe - 1) * WEIR__STRIPE_BYTES);
    weir_stripe_ = SIZE_MAX;
    atomic_fetch_and_explicit(&taken, ~(UINT32_C(1) << ((uintptr_t)stripe - 1)), memory_order_release);
}

static void make_key(void)
{
    have_key = pthread_key_create(&key, give_stripe_back) == 0;
}

static uint32_t take_stripe(void)
{
    uint32_t seen = weir__load_relaxed(&taken), stripe;

    pthread_once(&once, make_key);
    if (!have_key)
        return PRIVATE_STRIPES;
    do {
        if (seen == (UINT32_C(1) << PRIVATE_STRIPES) - 1)
            return PRIVATE_STRIPES;
        stripe = (uint32_t)__builtin_ctz(~seen);
    } while (!atomic_compare_exchange_weak_explicit(&taken, &seen, seen | UINT32_C(1) << stripe, memory_order_acquire,
                                                    memory_order_relaxed));
    if (pthread_setspecific(key, (void *)(uintptr_t)(stripe + 1)) != 0) {
        atomic_fetch_and_explicit(&taken, ~(UINT32_C(1) << stripe), memory_order_release);
        return PRIVATE_STRIPES;
    }
    return stripe;
}

void weir__stats_count_slow(struct weir *w, weir_policy_id policy, int verdict)
{
    if (weir_stripe_ == SIZE_MAX)
        weir_stripe_ = take_stripe() * WEIR__STRIPE_BYTES;
    if (weir_stripe_ < w->private_counts)
        weir_count_((char *)&w->counts[policy], weir_stripe_, verdict);
    else
        atomic_fetch_add_explicit(&w->counts[weir_stripe_ / sizeof(struct weir__count) + policy].verdict[verdict], 1,
                                  memory_order_relaxed);
}

uint64_t weir__stats_verdicts(const struct weir *w, weir_policy_id policy, int verdict)
{
    uint64_t sum = 0;

    for (size_t stripe = 0; stripe < WEIR__STRIPES; stripe++)
        sum += weir__load_relaxed(&w->counts[stripe * WEIR__POLICY_MAX + policy].verdict[verdict]);
    return sum;
}

static void fill(struct weir *w, struct weir_stats *stats)
{
    uint32_t policies = weir__load_acquire(&w->state->policies);
    const struct weir__hooks *hooks;

    stats->keys = weir__load_relaxed(&w->state->keys);
    stats->max_keys = w->state->max_keys;
    stats->memory_bytes = w->table_bytes;
    stats->evictions = weir__load_relaxed(&w->state->evictions);
    stats->table_full = weir__load_relaxed(&w->state->table_full);
    stats->degraded = weir__load_relaxed(&w->state->degraded);
    for (uint32_t policy = 0; policy < policies; policy++) {
        stats->allowed += weir__stats_verdicts(w, policy, WEIR_ALLOW);
        stats->denied += weir__stats_verdicts(w, policy, WEIR_DENY);
    }
    hooks = weir__hooks_enter(w);
    if (hooks) {
        if (hooks->stats)
            hooks->stats(hooks->ctx, stats);
        weir__hooks_leave(w);
    }
}

int weir_stats_get(struct weir *w, struct weir_stats *stats)
{
    struct weir_stats all = {.size = sizeof all};
    size_t size;

    if (!w || !stats || stats->size < offsetof(struct weir_stats, max_keys))
        return WEIR_E_INVAL;
    fill(w, &all);
    size = stats->size < sizeof all ? stats->size : sizeof all;
    all.size = size;
    memset(stats, 0, stats->size);
    memcpy(stats, &all, size);
    return 0;
}
