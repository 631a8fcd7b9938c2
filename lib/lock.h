/* SPDX-License-Identifier: MIT */
/*
 * Mutexes for what is rare: policies, walks over the table, the key arena. No decision on an existing key takes one.
 */
#ifndef WEIR_LIB_LOCK_H
#define WEIR_LIB_LOCK_H

#include <pthread.h>

/* shared: between processes, and taken over where its owner died. 0, WEIR_E_NOMEM or WEIR_E_NOSUP. */
int weir__lock_init(pthread_mutex_t *mutex, int shared);
void weir__lock_deinit(pthread_mutex_t *mutex);

/* What it protects may be half changed where its owner died: whoever holds it must be able to start over. Returns 1
 * then. */
int weir__lock(pthread_mutex_t *mutex);

/* 0: somebody holds it, this thread perhaps. 1: it is taken; 2: its owner died. */
int weir__lock_try(pthread_mutex_t *mutex);
void weir__unlock(pthread_mutex_t *mutex);

#endif
