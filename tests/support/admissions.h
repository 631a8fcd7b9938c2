/* SPDX-License-Identifier: MIT */
/*
 * What a log of admissions says of the bucket that they came from. Must not know how takes are made.
 */
#ifndef WEIR_TESTS_ADMISSIONS_H
#define WEIR_TESTS_ADMISSIONS_H

#include <stddef.h>
#include <stdint.h>

/* A take that was allowed: some time between its call and its return, ns. */
struct admission {
    uint64_t called, returned, cost;
};

/* The smallest burst that explains the log, in tokens times per_ns: over all windows that begin with a call and end
 * with a return, what was surely admitted inside, less what the window earns (limit tokens every per_ns). Sorts the
 * log. */
int64_t admissions_burst(struct admission *log, size_t n, uint64_t limit, uint64_t per_ns);

#endif
