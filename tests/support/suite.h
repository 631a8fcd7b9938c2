/* SPDX-License-Identifier: MIT */
/*
 * What test programs end with.
 */
#ifndef WEIR_TESTS_SUITE_H
#define WEIR_TESTS_SUITE_H

#include <check.h>

/* Runs all cases, as CK_* of the environment say, and frees the suite. Returns what main returns. */
int suite_run(Suite *suite);

#endif
