/* SPDX-License-Identifier: MIT */
/*
 * Mutexes for what is rare. Knows nothing of what they protect.
 */
#include "lib/lock.h"

#include <errno.h>

#include <weir/weir.h>

int weir__lock_init(pthread_mutex_t *mutex, int shared)
{
    pthread_mutexattr_t attributes;
    int error;

    if (!shared)
        return pthread_mutex_init(mutex, NULL) == 0 ? 0 : WEIR_E_NOMEM;
    if (pthread_mutexattr_init(&attributes) != 0)
        return WEIR_E_NOMEM;
    error = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
#if defined(__linux__) || defined(__FreeBSD__)
    if (error == 0)
        error = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
#else
    error = ENOTSUP; /* one that is killed would keep it for ever */
#endif
    if (error == 0)
        error = pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return error == 0 ? 0 : WEIR_E_NOSUP;
}

void weir__lock_deinit(pthread_mutex_t *mutex)
{
    pthread_mutex_destroy(mutex);
}

/* Did the owner die? It is this thread's now. */
static int inherit(pthread_mutex_t *mutex, int error)
{
#if defined(__linux__) || defined(__FreeBSD__)
    if (error == EOWNERDEAD) {
        pthread_mutex_consistent(mutex);
        return 1;
    }
#endif
    (void)mutex;
    (void)error;
    return 0;
}

int weir__lock(pthread_mutex_t *mutex)
{
    return inherit(mutex, pthread_mutex_lock(mutex));
}

int weir__lock_try(pthread_mutex_t *mutex)
{
    int error = pthread_mutex_trylock(mutex);

    if (inherit(mutex, error))
        return 2;
    return error == 0;
}

void weir__unlock(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex);
}
