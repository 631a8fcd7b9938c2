/* SPDX-License-Identifier: MIT */
/*
 * weir_key_take as it is compiled where spending from a lease is more than one instruction; slow at times before a
 * store, where another thread may come in between. Knows nothing of tests.
 */
#define WEIR_NO_RMW_
#include <sched.h>
#include <stdint.h>

void portable_dawdle(void);

void portable_dawdle(void)
{
    static _Thread_local uint32_t random = 2463534242u;

    random ^= random << 13;
    random ^= random >> 17;
    random ^= random << 5;
    if (random % 1024 == 0)
        sched_yield();
}

/* Of all stores that are compiled into this file. */
#define __atomic_store_n(p, v, order) (portable_dawdle(), __atomic_store_n(p, v, order))
#include "support/portable_take.h"

int portable_take(struct weir_key *key, int64_t cost, uint64_t now)
{
    return weir_key_take(key, cost, now, NULL);
}
