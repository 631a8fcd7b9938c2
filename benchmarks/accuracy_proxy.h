/* SPDX-License-Identifier: MIT */
/*
 * A process between limiters and Redis that loses batches and answers: a lost command never reaches Redis, a lost
 * answer never comes back, and the connection ends with either, as a network's does.
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

/* Listens beside `upstream` (a unix socket's path); loses each with probability `loss`. Dies where it can't. */
void accuracy_proxy_open(struct accuracy_proxy *proxy, const char *upstream, double loss);
void accuracy_proxy_close(struct accuracy_proxy *proxy);

#endif
