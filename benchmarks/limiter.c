/* SPDX-License-Identifier: MIT */
/* See limiter.h. */
#include "limiter.h"

#include "harness.h"

void limiter_check(int status, const char *what)
{
    if (status != 0) {
        bench_die("%s: %s", what, weir_strerror(status));
    }
}

struct weir *limiter_open(size_t max_keys)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir *w;
    options.max_keys = max_keys;
    limiter_check(weir_open(&w, &options), "weir_open");
    return w;
}

weir_policy_id limiter_policy(struct weir *w, const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;
    policy.name = name;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    policy.mode = WEIR_LOCAL;
    limiter_check(weir_policy_add(w, &policy, &id), "weir_policy_add");
    return id;
}

weir_policy_id limiter_ample(struct weir *w)
{
    return limiter_policy(w, "ample", 1, UINT64_C(86400000000000), UINT64_C(1000000000000));
}
