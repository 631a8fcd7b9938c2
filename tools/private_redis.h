/* SPDX-License-Identifier: MIT */
/*
 * A redis-server of our own: on a unix socket in a temporary folder, without a TCP port, without a file on disk that
 * outlives it. It can be killed, frozen and started again, which is what it is for.
 *
 * Owns the process (by its pid) and the folder. Must not know what is stored in it.
 */
#ifndef WEIR_TOOLS_PRIVATE_REDIS_H
#define WEIR_TOOLS_PRIVATE_REDIS_H

#include <stddef.h>
#include <sys/types.h>

struct private_redis {
    pid_t pid; /* 0: not running */
    int frozen;
    char folder[64];
    char socket[96];
    char program[512];
    char error[256]; /* what went wrong, for a person */
};

/* Finds the program (redis-server or valkey-server in PATH) and makes the folder; starts nothing. 0, or -1 with `error`
 * set and nothing left to free. */
int private_redis_open(struct private_redis *r);

/* Starts the server, empty. 0, or -1 with `error` set. Does not wait: see private_redis_wait. */
int private_redis_start(struct private_redis *r);

/* Waits until it answers, at most timeout_ms. 0, or -1 with `error` set. */
int private_redis_wait(struct private_redis *r, int timeout_ms);

/* Is the process there? Notices one that ended by itself or was killed by somebody else. */
int private_redis_alive(struct private_redis *r);

/* kill -9, and waits for its end. Nothing happens where it is not running. */
void private_redis_kill(struct private_redis *r);

/* SIGSTOP and SIGCONT. */
void private_redis_freeze(struct private_redis *r);
void private_redis_thaw(struct private_redis *r);

/* Stops the server and removes the folder. */
void private_redis_close(struct private_redis *r);

#endif
