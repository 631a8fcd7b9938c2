/* SPDX-License-Identifier: MIT */
/* See store.h. */
#include "benchmarks/fleet/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "benchmarks/harness.h"

static _Noreturn void die(struct store *store)
{
    char error[sizeof store->server.error];
    memcpy(error, store->server.error, sizeof error);
    private_redis_close(&store->server);
    bench_die("%s", error);
}

void store_open(struct store *store)
{
    *store = (struct store){.control = NULL};
    if (private_redis_open(&store->server) != 0) {
        bench_die("%s", store->server.error);
    }
    store_start(store);
}

void store_start(struct store *store)
{
    if (private_redis_start(&store->server) != 0 || private_redis_wait(&store->server, 10000) != 0) {
        die(store);
    }
    store->control = redisConnectUnix(store->server.socket);
    if (!store->control || store->control->err) {
        snprintf(store->server.error, sizeof store->server.error, "no connection to redis-server");
        die(store);
    }
}

void store_kill(struct store *store)
{
    redisFree(store->control);
    store->control = NULL;
    private_redis_kill(&store->server);
}

void store_close(struct store *store)
{
    store_kill(store);
    private_redis_close(&store->server);
}

/* The number after a name in a section of INFO; 0 where it isn't there. */
static double info(struct store *store, const char *section, const char *name)
{
    redisReply *reply = redisCommand(store->control, "INFO %s", section);
    double value = 0;
    if (reply && reply->type == REDIS_REPLY_STRING) {
        const char *at = strstr(reply->str, name);
        value = at ? strtod(at + strlen(name), NULL) : 0;
    } else {
        bench_die("INFO %s failed", section);
    }
    freeReplyObject(reply);
    return value;
}

double store_cpu_s(struct store *store)
{
    return info(store, "cpu", "used_cpu_user:") + info(store, "cpu", "used_cpu_sys:");
}

static redisReply *reply_of(struct store *store)
{
    void *reply = NULL;
    if (redisGetReply(store->control, &reply) != REDIS_OK || ((redisReply *)reply)->type == REDIS_REPLY_ERROR) {
        bench_die("redis-server: %s", reply ? ((redisReply *)reply)->str : store->control->errstr);
    }
    return reply;
}

/* Of those keys that one step of a SCAN gave. */
static double bytes_of(struct store *store, const redisReply *keys)
{
    double sum = 0;
    for (size_t i = 0; i < keys->elements; i++) {
        redisAppendCommand(store->control, "MEMORY USAGE %b SAMPLES 0", keys->element[i]->str, keys->element[i]->len);
    }
    for (size_t i = 0; i < keys->elements; i++) {
        redisReply *bytes = reply_of(store);
        sum += bytes->type == REDIS_REPLY_INTEGER ? (double)bytes->integer : 0; /* it may have expired */
        freeReplyObject(bytes);
    }
    return sum;
}

double store_bytes(struct store *store)
{
    char cursor[32] = "0";
    double sum = 0;
    do {
        redisAppendCommand(store->control, "SCAN %s COUNT 1000", cursor);
        redisReply *step = reply_of(store);
        snprintf(cursor, sizeof cursor, "%s", step->element[0]->str);
        sum += bytes_of(store, step->element[1]);
        freeReplyObject(step);
    } while (strcmp(cursor, "0") != 0);
    return sum;
}

double store_calls(struct store *store, const char *commands)
{
    double sum = 0;
    while (commands && *commands) {
        char name[64];
        int len = (int)strcspn(commands, " ");
        snprintf(name, sizeof name, "cmdstat_%.*s:calls=", len, commands);
        sum += info(store, "commandstats", name);
        commands += len + (commands[len] == ' ');
    }
    return sum;
}
