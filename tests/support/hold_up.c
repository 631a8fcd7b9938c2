/* SPDX-License-Identifier: MIT */
/*
 * A library to be preloaded: holds every thread up at random, before and after what it asks of the system, as a busy
 * machine does, and as it lets others run ahead. What a test, a server or a loop rests on by chance comes out so. Knows
 * nothing of tests. ./run check held
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define GAP_NS (600 * MS)  /* a thread runs for so long at most, half of it in the mean */
#define LEAST_NS (5 * MS)  /* and is held for so long at least, */
#define MOST_NS (300 * MS) /* or at most; half a second would be an outage of much that must not be one */

static __thread uint64_t due, random_state;

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static uint64_t below(uint64_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % n;
}

static void hold_up(void)
{
    int error = errno;
    uint64_t now = now_ns(), length;

    if (random_state == 0) {
        random_state = (now ^ (uint64_t)syscall(SYS_gettid) << 32) | 1;
        due = now + below(GAP_NS);
    }
    if (now >= due) {
        struct timespec t = {0};

        length = LEAST_NS + below(1 + below(MOST_NS - LEAST_NS)); /* short ones are the more frequent */
        t.tv_nsec = (long)length;
        syscall(SYS_nanosleep, &t, NULL);
        due = now_ns() + below(GAP_NS);
    }
    errno = error;
}

/* The function that would have been called. */
static void *real(void *_Atomic *known, const char *name)
{
    void *function = atomic_load_explicit(known, memory_order_relaxed);

    if (!function) {
        function = dlsym(RTLD_NEXT, name);
        atomic_store_explicit(known, function, memory_order_relaxed);
    }
    return function;
}

/* The C library names its parameters as no program may, and a declaration can't be put in parentheses. */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name, bugprone-macro-parentheses) */
#define HELD_UP(type, name, parameters, arguments)                                                                     \
    type name parameters                                                                                               \
    {                                                                                                                  \
        static void *_Atomic known;                                                                                    \
        type(*function) parameters;                                                                                    \
        type result;                                                                                                   \
                                                                                                                       \
        *(void **)&function = real(&known, #name);                                                                     \
        hold_up();                                                                                                     \
        result = function arguments;                                                                                   \
        hold_up();                                                                                                     \
        return result;                                                                                                 \
    }

HELD_UP(int, epoll_wait, (int fd, struct epoll_event *events, int n, int timeout), (fd, events, n, timeout))
HELD_UP(int, epoll_pwait, (int fd, struct epoll_event *events, int n, int timeout, const sigset_t *signals),
        (fd, events, n, timeout, signals))
HELD_UP(int, poll, (struct pollfd * fds, nfds_t n, int timeout), (fds, n, timeout))
HELD_UP(int, accept4, (int fd, struct sockaddr *address, socklen_t *size, int flags), (fd, address, size, flags))
HELD_UP(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size))
HELD_UP(ssize_t, recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags))
HELD_UP(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
HELD_UP(ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n))
HELD_UP(ssize_t, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags))
HELD_UP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
HELD_UP(int, nanosleep, (const struct timespec *length, struct timespec *left), (length, left))
HELD_UP(int, clock_nanosleep, (clockid_t id, int flags, const struct timespec *length, struct timespec *left),
        (id, flags, length, left))
/* NOLINTEND(readability-inconsistent-declaration-parameter-name, bugprone-macro-parentheses) */
