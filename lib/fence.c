/* SPDX-License-Identifier: MIT */
/*
 * membarrier(2), expedited: an interrupt on those CPUs that run a thread of this process, a few microseconds. Knows
 * nothing of what is ordered by it.
 */
#define _GNU_SOURCE /* syscall */
#include "lib/fence.h"

#if defined(__linux__)

#include <errno.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

bool weir__fence_open(void)
{
    int saved = errno;
    bool ready = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;

    errno = saved;
    return ready;
}

/* A process is registered; whether a child of fork still is, is the kernel's business. */
bool weir__fence_all(void)
{
    int saved = errno;
    bool passed = membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;

    if (!passed && errno == EPERM)
        passed = weir__fence_open() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
    errno = saved;
    return passed;
}

#else

bool weir__fence_open(void)
{
    return false;
}

bool weir__fence_all(void)
{
    return false;
}

#endif
