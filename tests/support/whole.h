/* SPDX-License-Identifier: MIT */
/*
 * Is a limiter's table whole? For tests of processes that were killed over it; nobody else may use it meanwhile.
 */
#ifndef WEIR_TESTS_WHOLE_H
#define WEIR_TESTS_WHOLE_H

#include <weir/weir.h>

/* Recovers, then fails the test unless nothing is locked or claimed, every entry is found by its identity, the number
 * of keys is that of the entries, no intent is left and the policies can be changed. */
void whole_check(struct weir *w);

#endif
