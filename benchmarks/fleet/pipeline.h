/* SPDX-License-Identifier: MIT */
/*
 * A connection to Redis for many callers: what they ask between two turns leaves in one write, and answers come back in
 * the order of the questions. One that ended is made again every 100 ms.
 *
 * Owns the connection. Must not know what is asked.
 */
#ifndef WEIR_BENCH_FLEET_PIPELINE_H
#define WEIR_BENCH_FLEET_PIPELINE_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#include <hiredis/hiredis.h>

#include "benchmarks/fleet/strategy.h"

#define PIPELINE_ROOM 65536u /* commands on their way */

/* reply NULL: there is none, for want of a Redis or of time, or it was an error. */
typedef void (*pipeline_answer)(void *self, void *asker, int step, const redisReply *reply);

struct pipeline_slot {
    void *asker;
    int step, done;
    uint64_t deadline_ns;
};

struct pipeline {
    const char *socket, *script; /* script NULL: none */
    char sha[41];
    redisContext *context; /* NULL: not connected */
    pipeline_answer answer;
    void *self;
    uint64_t timeout_ns, retry_ns;
    uint64_t head, waiting, tail; /* slots [head, tail) are on their way; [waiting, tail) have not timed out */
    struct pipeline_slot *slots;
};

/* Connects and loads the script. Dies where it can't. */
void pipeline_open(struct pipeline *p, const struct strategy_setup *setup, const char *script, pipeline_answer answer,
                   void *self);
void pipeline_close(struct pipeline *p);

/* Queues a command. 0, or -1 where there is no connection: then nothing will answer it. */
int pipeline_send(struct pipeline *p, void *asker, int step, int argc, const char **argv, const size_t *lens);

/* EVALSHA of the script with one key. */
int pipeline_call(struct pipeline *p, void *asker, const char *key, size_t key_len, int argc, const char **argv,
                  const size_t *lens);

void pipeline_turn(struct pipeline *p);
/* Is there a connection, and nothing asked on it that is not answered? */
int pipeline_idle(const struct pipeline *p);
void pipeline_wait(const struct pipeline *p, struct pollfd *fd, uint64_t *until_ns);

#endif
