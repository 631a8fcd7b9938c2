/* SPDX-License-Identifier: MIT */
/*
 * weir_key_take, compiled as for a machine that has no addition in memory. Knows nothing of tests.
 */
#ifndef WEIR_TESTS_PORTABLE_TAKE_H
#define WEIR_TESTS_PORTABLE_TAKE_H

#include <weir/weir.h>

int portable_take(struct weir_key *key, int64_t cost, uint64_t now);

#endif
