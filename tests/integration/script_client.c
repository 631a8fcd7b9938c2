/* SPDX-License-Identifier: MIT */
/*
 * Sends what the encoders made over hiredis' blocking calls.
 */
#include "script_client.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

static void *get(void *arg, size_t size)
{
    (void)arg;
    return malloc(size);
}

static void put_back(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    free(memory);
}

static const struct weir_allocator heap = {.alloc = get, .release = put_back};

/* Keeps what came back. */
static void keep(struct script_client *client, redisReply *reply)
{
    ck_assert_msg(reply != NULL, "redis: %s", client->redis->errstr);
    free(client->reply);
    client->reply = NULL;
    client->reply_len = 0;
    client->number = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    client->error = reply->type == REDIS_REPLY_ERROR;
    if (reply->str != NULL) {
        client->reply = malloc((size_t)reply->len + 1);
        ck_assert_ptr_nonnull(client->reply);
        memcpy(client->reply, reply->str, (size_t)reply->len);
        client->reply[reply->len] = 0;
        client->reply_len = (size_t)reply->len;
    }
    freeReplyObject(reply);
}

/* Sends the buffer. 1 where Redis answered with an error. */
static int send_it(struct script_client *client)
{
    void *reply = NULL;
    redisAppendFormattedCommand(client->redis, client->out.data, client->out.len);
    redisGetReply(client->redis, &reply);
    keep(client, reply);
    weir__wire_buf_clear(&client->out);
    return client->error;
}

void script_client_open(struct script_client *client, const struct redis_server *server)
{
    memset(client, 0, sizeof *client);
    weir__wire_buf_init(&client->out, &heap);
    client->redis = redisConnectUnix(redis_server_socket(server));
    ck_assert_ptr_nonnull(client->redis);
    ck_assert_msg(client->redis->err == 0, "redis: %s", client->redis->errstr);
    for (int i = 0; i < WEIR__WIRE_SCRIPTS; i++) {
        ck_assert_int_eq(weir__wire_script_load(&client->out, (enum weir__wire_script)i), 0);
        ck_assert_msg(send_it(client) == 0, "script %d: %s", i, client->reply);
        ck_assert_uint_eq(client->reply_len, WEIR__WIRE_SHA);
        memcpy(client->sha[i], client->reply, WEIR__WIRE_SHA);
    }
}

void script_client_close(struct script_client *client)
{
    redisFree(client->redis);
    weir__wire_buf_deinit(&client->out);
    free(client->reply);
}

void script_client_twice(struct script_client *client)
{
    static const char skip[] = "  if true then break end\n";
    const char *text = weir__wire_script_text(WEIR__WIRE_SYNC), *way = strstr(text, "\nrepeat\n");
    ck_assert_ptr_nonnull(way);
    size_t before = (size_t)(way - text) + strlen("\nrepeat\n");
    char *general = malloc(strlen(text) + sizeof skip);
    ck_assert_ptr_nonnull(general);
    memcpy(general, text, before);
    memcpy(general + before, skip, sizeof skip - 1);
    memcpy(general + before + sizeof skip - 1, text + before, strlen(text + before) + 1);
    keep(client, redisCommand(client->redis, "SCRIPT LOAD %s", general));
    free(general);
    ck_assert_msg(client->error == 0, "%s", client->reply);
    memcpy(client->general, client->reply, WEIR__WIRE_SHA);
    client->twice = 1;
}

static struct weir__wire_target twin_of(const struct weir__wire_target *target)
{
    struct weir__wire_target twin = *target;
    twin.prefix = "twin";
    twin.names = NULL;
    return twin;
}

/* Sends the buffer, which asks what `twin` has answered. */
static int send_and_compare(struct script_client *client, char *twin, size_t len)
{
    int rc = send_it(client);
    if (twin != NULL) {
        ck_assert_uint_eq(client->reply_len, len);
        ck_assert_int_eq(memcmp(client->reply, twin, len), 0);
        free(twin);
    }
    return rc;
}

/* The twin's answer to what is in the buffer; the caller's to free. */
static char *ask_twin(struct script_client *client, size_t *len)
{
    char *reply;
    send_it(client);
    reply = client->reply;
    *len = client->reply_len;
    client->reply = NULL;
    return reply;
}

int script_client_sync(struct script_client *client, const struct weir__wire_batch *batch, struct weir__wire_head *head,
                       struct weir__wire_grant *grants)
{
    char *theirs = NULL;
    size_t len = 0;
    if (client->twice) {
        struct weir__wire_batch twin = *batch;
        twin.target = twin_of(&batch->target);
        ck_assert_int_eq(weir__wire_sync_encode(&client->out, &twin, client->general), 0);
        theirs = ask_twin(client, &len);
    }
    ck_assert_int_eq(weir__wire_sync_encode(&client->out, batch, client->sha[WEIR__WIRE_SYNC]), 0);
    if (send_and_compare(client, theirs, len)) {
        return 1;
    }
    return weir__wire_sync_decode(batch, client->reply, client->reply_len, head, grants);
}

int script_client_strict(struct script_client *client, struct weir__wire_strict *batch, struct weir__wire_head *head)
{
    return script_client_strict_all(client, batch, 1, head);
}

int script_client_strict_all(struct script_client *client, struct weir__wire_strict *shards, uint32_t n,
                             struct weir__wire_head *heads)
{
    char *theirs = NULL;
    size_t len = 0;
    if (client->twice) {
        struct weir__wire_strict twins[WEIR__WIRE_SHARDS];
        for (uint32_t i = 0; i < n; i++) {
            twins[i] = shards[i];
            twins[i].target = twin_of(&shards[i].target);
        }
        ck_assert_int_eq(weir__wire_strict_encode_all(&client->out, twins, n, client->sha[WEIR__WIRE_STRICT]), 0);
        theirs = ask_twin(client, &len);
    }
    ck_assert_int_eq(weir__wire_strict_encode_all(&client->out, shards, n, client->sha[WEIR__WIRE_STRICT]), 0);
    if (send_and_compare(client, theirs, len)) {
        return 1;
    }
    return weir__wire_strict_decode_all(shards, n, client->reply, client->reply_len, heads);
}

int script_client_all(struct script_client *client, struct weir__wire_all *all, struct weir__wire_head *head)
{
    char *theirs = NULL;
    size_t len = 0;
    if (client->twice) {
        struct weir__wire_member members[WEIR__WIRE_MEMBERS];
        struct weir__wire_all twin = *all;
        twin.members = members;
        for (uint32_t i = 0; i < all->n; i++) {
            members[i] = all->members[i];
            members[i].target = twin_of(&all->members[i].target);
        }
        ck_assert_int_eq(weir__wire_all_encode(&client->out, &twin, client->sha[WEIR__WIRE_ALL]), 0);
        theirs = ask_twin(client, &len);
    }
    ck_assert_int_eq(weir__wire_all_encode(&client->out, all, client->sha[WEIR__WIRE_ALL]), 0);
    if (send_and_compare(client, theirs, len)) {
        return 1;
    }
    return weir__wire_all_decode(all, client->reply, client->reply_len, head);
}

int script_client_peek(struct script_client *client, const struct weir__wire_target *target, const char *key,
                       double test_now, struct weir__wire_head *head, struct weir__wire_seen *seen,
                       struct weir__wire_seen_slice *slices, unsigned room)
{
    const char *sha = client->sha[WEIR__WIRE_PEEK];
    ck_assert_int_eq(weir__wire_peek_encode(&client->out, target, key, strlen(key), test_now, sha), 0);
    if (send_it(client)) {
        return 1;
    }
    return weir__wire_peek_decode(client->reply, client->reply_len, head, seen, slices, room);
}

struct weir__wire_seen script_client_look(const struct redis_server *server, const char *policy, const char *key)
{
    return script_client_look_in(server, 0, policy, key);
}

double script_client_total(const struct redis_server *server, const char *policy, const char *key)
{
    struct weir__wire_seen seen = script_client_look(server, policy, key);

    ck_assert_msg(seen.exists, "Redis knows nothing of %s", key);
    return seen.total;
}

struct weir__wire_seen script_client_look_in(const struct redis_server *server, unsigned db, const char *policy,
                                             const char *key)
{
    struct weir__wire_target target = {.prefix = "weir", .policy = policy, .shards = 64};
    struct weir__wire_seen seen;
    struct script_client client;
    struct weir__wire_head head;

    target.shard = weir__wire_shard(key, strlen(key), 64);
    script_client_open(&client, server);
    keep(&client, redisCommand(client.redis, "SELECT %u", db));
    ck_assert_int_eq(client.error, 0);
    int status = script_client_peek(&client, &target, key, 0, &head, &seen, NULL, 0);
    ck_assert_msg(status == 0, "look: %d, %s", status, client.error ? client.reply : "no error");
    script_client_close(&client);
    return seen;
}

long long script_client_forget(struct script_client *client, const struct weir__wire_target *target, const char *key)
{
    struct weir__wire_key one = {.key = key, .key_len = (uint32_t)strlen(key)};
    ck_assert_int_eq(weir__wire_forget_encode(&client->out, target, &one, 1, client->sha[WEIR__WIRE_FORGET]), 0);
    ck_assert_msg(send_it(client) == 0, "forget: %s", client->reply);
    return client->number;
}

long long script_client_do(struct script_client *client, const char *word, const struct weir__wire_target *target,
                           char which, const char *third, const char *fourth)
{
    char name[WEIR__WIRE_NAME];
    const char *words[4] = {word, name, third, fourth};
    if (client->twice && strcmp(target->prefix, "twin") != 0) {
        struct weir__wire_target twin = twin_of(target);
        script_client_do(client, word, &twin, which, third, fourth);
    }
    ck_assert_int_gt(weir__wire_name(target, which, name), 0);
    keep(client, redisCommandArgv(client->redis, third == NULL ? 2 : fourth == NULL ? 3 : 4, words, NULL));
    return client->number;
}

long long script_client_pttl(struct script_client *client, const struct weir__wire_target *target, char which)
{
    return script_client_do(client, "PTTL", target, which, NULL, NULL);
}
