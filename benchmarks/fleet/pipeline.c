/* SPDX-License-Identifier: MIT */
/* See pipeline.h. */
#include "benchmarks/fleet/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "benchmarks/harness.h"

#define RETRY_NS UINT64_C(100000000)
#define WORDS_MAX 12

static struct pipeline_slot *slot_at(struct pipeline *p, uint64_t n)
{
    return &p->slots[n % PIPELINE_ROOM];
}

static void load_script(struct pipeline *p)
{
    redisContext *context = redisConnectUnix(p->socket);
    redisReply *reply = context && !context->err ? redisCommand(context, "SCRIPT LOAD %s", p->script) : NULL;
    if (reply && reply->type == REDIS_REPLY_STRING && reply->len == 40) {
        memcpy(p->sha, reply->str, sizeof p->sha);
    } else {
        bench_die("can't load a script: %s", reply ? reply->str : context ? context->errstr : "no memory");
    }
    freeReplyObject(reply);
    redisFree(context);
}

/* A server that was started anew has forgotten the script. */
static void connect_again(struct pipeline *p)
{
    p->retry_ns = bench_clock_ns() + RETRY_NS;
    p->context = redisConnectUnixNonBlock(p->socket);
    if (!p->context || p->context->err) {
        redisFree(p->context);
        p->context = NULL;
        return;
    }
    if (p->script) {
        const char *argv[] = {"SCRIPT", "LOAD", p->script};
        pipeline_send(p, NULL, 0, 3, argv, NULL);
    }
}

void pipeline_open(struct pipeline *p, const struct strategy_setup *setup, const char *script, pipeline_answer answer,
                   void *self)
{
    *p = (struct pipeline){.socket = setup->socket,
                           .timeout_ns = strategy_timeout_ns(setup),
                           .script = script,
                           .answer = answer,
                           .self = self};
    p->slots = bench_alloc(PIPELINE_ROOM * sizeof p->slots[0]);
    if (script) {
        load_script(p);
    }
    connect_again(p);
    if (!p->context) {
        bench_die("Redis does not answer on %s", setup->socket);
    }
}

void pipeline_close(struct pipeline *p)
{
    if (p->context) {
        redisFree(p->context);
    }
    free(p->slots);
}

static void answer_with(struct pipeline *p, struct pipeline_slot *slot, const redisReply *reply)
{
    if (!slot->done) {
        slot->done = 1;
        if (slot->asker) {
            p->answer(p->self, slot->asker, slot->step, reply);
        }
    }
}

static void drop(struct pipeline *p)
{
    redisFree(p->context);
    p->context = NULL;
    p->retry_ns = bench_clock_ns() + RETRY_NS;
    while (p->head != p->tail) {
        struct pipeline_slot slot = *slot_at(p, p->head++);
        answer_with(p, &slot, NULL);
    }
    p->waiting = p->tail;
}

int pipeline_send(struct pipeline *p, void *asker, int step, int argc, const char **argv, const size_t *lens)
{
    if (!p->context || p->tail - p->head == PIPELINE_ROOM ||
        redisAppendCommandArgv(p->context, argc, argv, lens) != REDIS_OK) {
        return -1;
    }
    *slot_at(p, p->tail++) = (struct pipeline_slot){asker, step, 0, bench_clock_ns() + p->timeout_ns};
    return 0;
}

int pipeline_call(struct pipeline *p, void *asker, const char *key, size_t key_len, int argc, const char **argv,
                  const size_t *lens)
{
    const char *words[WORDS_MAX] = {"EVALSHA", p->sha, "1", key};
    size_t sizes[WORDS_MAX] = {7, 40, 1, key_len};
    memcpy(words + 4, argv, (size_t)argc * sizeof words[0]);
    memcpy(sizes + 4, lens, (size_t)argc * sizeof sizes[0]);
    return pipeline_send(p, asker, 0, 4 + argc, words, sizes);
}

static int write_all(struct pipeline *p)
{
    int done = 0;
    size_t before;
    do {
        before = sdslen(p->context->obuf);
        if (redisBufferWrite(p->context, &done) != REDIS_OK) {
            return -1;
        }
    } while (!done && sdslen(p->context->obuf) != before);
    return 0;
}

static int read_all(struct pipeline *p)
{
    void *next;
    if (redisBufferRead(p->context) != REDIS_OK) {
        return -1;
    }
    while (redisGetReplyFromReader(p->context, &next) == REDIS_OK) {
        redisReply *reply = next;
        if (!reply) {
            return 0;
        }
        struct pipeline_slot *slot = slot_at(p, p->head++);
        if (p->waiting < p->head) {
            p->waiting = p->head;
        }
        answer_with(p, slot, reply->type != REDIS_REPLY_ERROR ? reply : NULL);
        freeReplyObject(reply);
    }
    return -1;
}

static void expire(struct pipeline *p)
{
    uint64_t now = bench_clock_ns();
    while (p->waiting != p->tail && slot_at(p, p->waiting)->deadline_ns <= now) {
        answer_with(p, slot_at(p, p->waiting++), NULL);
    }
}

/* Answers may ask again, so what they queued is written too. */
void pipeline_turn(struct pipeline *p)
{
    if (!p->context && bench_clock_ns() >= p->retry_ns) {
        connect_again(p);
    }
    if (p->context && (write_all(p) != 0 || read_all(p) != 0 || write_all(p) != 0)) {
        drop(p);
    }
    expire(p);
}

void pipeline_wait(const struct pipeline *p, struct pollfd *fd, uint64_t *until_ns)
{
    uint64_t until = p->context ? UINT64_MAX : p->retry_ns;
    if (p->waiting != p->tail) {
        until = p->slots[p->waiting % PIPELINE_ROOM].deadline_ns;
    }
    *until_ns = until < *until_ns ? until : *until_ns;
    *fd = (struct pollfd){.fd = p->context ? p->context->fd : -1, .events = POLLIN};
    if (p->context && sdslen(p->context->obuf) > 0) {
        fd->events |= POLLOUT;
    }
}

int pipeline_idle(const struct pipeline *p)
{
    return p->context && p->head == p->tail;
}
