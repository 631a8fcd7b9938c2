/* SPDX-License-Identifier: MIT */
/*
 * The policy of most tests in memory. Knows nothing of them.
 */
#ifndef WEIR_TESTS_LOCAL_POLICY_H
#define WEIR_TESTS_LOCAL_POLICY_H

#include <stdint.h>

#include <weir/weir.h>

/* A local policy "p" of `limit` tokens every per_ns. */
struct weir_policy local_policy(uint64_t limit, uint64_t per_ns, uint64_t burst);

#endif
