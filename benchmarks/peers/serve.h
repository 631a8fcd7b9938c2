/* SPDX-License-Identifier: MIT */
/*
 * How a peer program is driven, in every language: it says "ready NAME" when it is warm; then each line "THREADS OPS"
 * on its standard input asks for one trial, answered by "ALLOWED", the sum over its threads; the end of the input ends
 * it.
 */
#ifndef WEIR_BENCH_PEER_SERVE_H
#define WEIR_BENCH_PEER_SERVE_H

#include <stddef.h>
#include <stdint.h>

/* Does ops decisions as thread number `thread`; returns how many were allowed. */
typedef uint64_t (*peer_work)(void *arg, unsigned thread, size_t ops);

/* Returns main's status. */
int peer_serve(const char *name, peer_work work, void *arg);

#endif
