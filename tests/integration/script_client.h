/* SPDX-License-Identifier: MIT */
/*
 * The scripts on a real redis-server, called one by one with the time that the test says. For tests alone.
 */
#ifndef WEIR_TESTS_SCRIPT_CLIENT_H
#define WEIR_TESTS_SCRIPT_CLIENT_H

#include <stddef.h>

#include "support/redis_server.h"
#include "sync/wire.h"

struct redisContext;

struct script_client {
    struct redisContext *redis;
    struct weir__wire_buf out;
    char sha[WEIR__WIRE_SCRIPTS][WEIR__WIRE_SHA + 1];
    char *reply; /* the last bulk reply, or the text of the last error */
    size_t reply_len;
    long long number; /* the last integer reply */
    int error;        /* the last reply was an error */
    int twice;        /* script_client_twice */
    char general[WEIR__WIRE_SHA + 1];
};

/* Loads every script. Fails the test where it can't. */
void script_client_open(struct script_client *client, const struct redis_server *server);
void script_client_close(struct script_client *client);

/* From now on every batch, strict script and plain command goes to a twin of the shard too, whose batches never take
 * the short way through the script (sync/lua/usual.lua). Fails the test where the twin's answer differs by a bit. */
void script_client_twice(struct script_client *client);

/* Each sends one command and decodes its reply: the decoder's result, or 1 where Redis answered with an error. */
int script_client_sync(struct script_client *client, const struct weir__wire_batch *batch, struct weir__wire_head *head,
                       struct weir__wire_grant *grants);
int script_client_strict(struct script_client *client, struct weir__wire_strict *batch, struct weir__wire_head *head);
int script_client_strict_all(struct script_client *client, struct weir__wire_strict *shards, uint32_t n,
                             struct weir__wire_head *heads);
int script_client_all(struct script_client *client, struct weir__wire_all *all, struct weir__wire_head *head);
int script_client_peek(struct script_client *client, const struct weir__wire_target *target, const char *key,
                       double test_now, struct weir__wire_head *head, struct weir__wire_seen *seen,
                       struct weir__wire_seen_slice *slices, unsigned room);
long long script_client_forget(struct script_client *client, const struct weir__wire_target *target, const char *key);

/* What the server holds now of a key of a policy with 64 shards under the usual prefix, by a client of its own. Fails
 * the test where it can't be asked. */
struct weir__wire_seen script_client_look(const struct redis_server *server, const char *policy, const char *key);
struct weir__wire_seen script_client_look_in(const struct redis_server *server, unsigned db, const char *policy,
                                             const char *key);

/* T of it, which Redis must know. */
double script_client_total(const struct redis_server *server, const char *policy, const char *key);

/* The time to live of a shard's key ('a', 'b' or 'n'), ms; -1: none; -2: no such key. */
long long script_client_pttl(struct script_client *client, const struct weir__wire_target *target, char which);

/* One plain command of up to four words about a shard's key: word, key, more words. Returns as `number`, or 0. */
long long script_client_do(struct script_client *client, const char *word, const struct weir__wire_target *target,
                           char which, const char *third, const char *fourth);

#endif
