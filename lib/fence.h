/* SPDX-License-Identifier: MIT */
/*
 * A barrier that one thread makes all others of its process pass, so that what they do often needs none of its own.
 * Knows nothing of what is ordered by it.
 */
#ifndef WEIR_LIB_FENCE_H
#define WEIR_LIB_FENCE_H

#include <stdbool.h>

/* Is there such a barrier? Asks the system, once a process at least: may take some milliseconds. */
bool weir__fence_open(void);

/* Each running thread's accesses to memory are, at some moment during this call, done as far as its program has come,
 * and none of what follows is begun. So, by memory: either what the caller stored before this call is seen by what a
 * thread does from that moment on, or what it did before is seen by the caller afterwards. False: there is none. */
bool weir__fence_all(void);

#endif
