/* SPDX-License-Identifier: MIT */
/* The list of strategies, and what several of their files share. */
#include <string.h>
#include <time.h>

#include "benchmarks/fleet/strategy.h"

const struct strategy *const strategies[] = {
    &strategy_local,
    &strategy_static_split,
    &strategy_window_naive,
    &strategy_window_lua,
    &strategy_bucket_racy,
    &strategy_bucket_lua,
    &strategy_bucket_app_clock,
    &strategy_bucket_skewed,
    &strategy_sliding_window,
    &strategy_gcra,
    &strategy_push_pull,
    &strategy_hybrid,
    &strategy_strict,
    NULL,
};

const struct strategy *strategy_find(const char *name)
{
    for (size_t i = 0; strategies[i]; i++) {
        if (strcmp(strategies[i]->name, name) == 0) {
            return strategies[i];
        }
    }
    return NULL;
}

uint64_t strategy_interval_ns(const struct strategy_setup *setup)
{
    return (setup->interval_ms ? setup->interval_ms : 200) * UINT64_C(1000000);
}

uint64_t strategy_timeout_ns(const struct strategy_setup *setup)
{
    return (setup->timeout_ms ? setup->timeout_ms : 50) * UINT64_C(1000000);
}

void strategy_answer(const struct strategy_setup *setup, struct strategy_ask *ask, int allowed, int degraded)
{
    ask->allowed = allowed;
    ask->degraded = degraded;
    setup->on_verdict(ask);
}

int64_t strategy_wall_us(const struct strategy_setup *setup)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec + setup->skew_ns) / 1000;
}

/* One token: that of the fraction which a clock of microseconds can't tell. */
double strategy_exact(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds)
{
    (void)limit;
    (void)setup;
    (void)seconds;
    return 1;
}

double strategy_one_burst(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds)
{
    (void)setup;
    (void)seconds;
    return (double)limit->burst;
}
