/* SPDX-License-Identifier: MIT */
/*
 * Fills a local policy.
 */
#include "support/local_policy.h"

struct weir_policy local_policy(uint64_t limit, uint64_t per_ns, uint64_t burst)
{
    struct weir_policy policy = WEIR_POLICY_INIT;

    policy.name = "p";
    policy.mode = WEIR_LOCAL;
    policy.limit = limit;
    policy.per_ns = per_ns;
    policy.burst = burst;
    return policy;
}
