/* SPDX-License-Identifier: MIT */
/*
 * A process between limiters and Redis that loses batches and answers. A connection keeps its order, so what is lost
 * keeps its place in line: a lost batch never reaches Redis, a lost answer never leaves here, and in the place of
 * either an error comes when its time has passed. What is behind it waits as well, as in a network that repeats a
 * segment.
 *
 * Owns its listening socket and the process. Must not know what is lost.
 */
#ifndef WEIR_BENCH_ACCURACY_PROXY_H
#define WEIR_BENCH_ACCURACY_PROXY_H

#include <stdint.h>
#include <sys/types.h>

struct accuracy_proxy {
    pid_t pid;
    char socket[108];
    _Atomic uint64_t *lost; /* [2], shared: batches, answers */
};

/* Listens beside `upstream` (a unix socket's path); loses each with probability `loss`. late_ms: until the
 * error comes. Dies where it can't. */
void accuracy_proxy_open(struct accuracy_proxy *proxy, const char *upstream, double loss, unsigned late_ms);
void accuracy_proxy_close(struct accuracy_proxy *proxy);

#endif
