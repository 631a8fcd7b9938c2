/* SPDX-License-Identifier: MIT */
/* Owns one short connection to Redis, on a loop of its own; must not know what is done with the answers. */
#include "tools/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>
#include <uv.h>

#include "sync/link.h"
#include "sync/store.h"
#include "sync/uri.h"
#include "tools/args.h"

#define MS UINT64_C(1000000)
#define SHARDS_MOST 4096
#define AGAIN_MS 5
#define SHARDS_USUAL 64

int store_set(struct store_options *o, int option, const char *text)
{
    struct weir__uri uri;
    uint64_t n;
    int status;
    switch (option) {
    case STORE_REDIS:
        o->uri = text;
        status = weir__uri_parse(text, &uri);
        weir__uri_wipe(&uri);
        return status;
    case STORE_PREFIX: o->prefix = text; return 0;
    case STORE_GROUP: o->group = text; return 0;
    case STORE_SHARDS:
        if (args_count(text, 1, SHARDS_MOST, &n) != 0) {
            return -1;
        }
        o->shards = (uint32_t)n;
        return 0;
    case STORE_TIMEOUT:
        if (args_time(text, &n) != 0 || n < MS || n > 3600 * 1000 * MS) {
            return -1;
        }
        o->timeout_ms = (uint32_t)(n / MS);
        return 0;
    default: return -1;
    }
}

/* ---- one connection ---------------------------------------------------------------------------------------------- */

struct visit {
    const struct store_options *options;
    struct store_key *out;
    struct weir__wire_target target;
    const void *key;
    size_t key_len;
    uint32_t sought; /* shards asked so far, where it is not known how many there are */
    uv_loop_t loop;
    uv_timer_t deadline, again;
    struct weir__store *store;
    struct weir__wire_buf command;
    int done, closing;
    int elsewhere; /* head and seen: of another shard of the policy */
    struct weir__wire_head head;
    struct weir__wire_seen seen;
    char said[200]; /* the last warning of the connection */
};

static void *take(void *arg, size_t size)
{
    (void)arg;
    return malloc(size);
}

static void give(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    free(memory);
}

static const struct weir_allocator memory = {.alloc = take, .release = give};

static void leave(struct visit *v)
{
    if (!v->closing) {
        v->closing = 1;
        uv_close((uv_handle_t *)&v->deadline, NULL);
        uv_close((uv_handle_t *)&v->again, NULL);
        weir__store_close(v->store, NULL, NULL);
    }
}

static void fail(struct visit *v, const char *why)
{
    if (v->closing) {
        return;
    }
    snprintf(v->out->error, sizeof v->out->error, "%s%s%s", why, v->said[0] ? ": " : "", v->said);
    leave(v);
}

static void ask(struct visit *v);

static void finish(struct visit *v)
{
    v->done = 1;
    leave(v);
}

/* The policy is there. In as many shards as was thought: then this is what the key's shard says of the key, or, where
 * that one was never used, what another one says of a key that it never saw, which is the same. */
static void judge_found(struct visit *v)
{
    uint32_t shards = v->out->head.shards;
    if (shards == v->target.shards) {
        finish(v);
    } else if (v->options->shards != 0 || shards < 1 || shards > SHARDS_MOST) {
        fail(v, "the policy has another number of shards in Redis");
    } else {
        v->elsewhere = 1;
        v->head = v->out->head;
        v->seen = v->out->seen;
        v->target.shards = shards;
        v->target.shard = weir__wire_shard(v->key, v->key_len, shards);
        ask(v);
    }
}

/* The shard was never used: another one may tell how many there are, and the policy's numbers. */
static void judge_unused(struct visit *v)
{
    if (v->elsewhere) {
        v->out->head = v->head;
        v->out->seen = v->seen;
        finish(v);
    } else if (v->options->shards == 0 && v->sought < SHARDS_USUAL) {
        v->target.shard = v->sought++;
        ask(v);
    } else {
        finish(v);
    }
}

static void judge(struct visit *v)
{
    switch (v->out->head.status) {
    case WEIR__WIRE_APPLIED: judge_found(v); break;
    case WEIR__WIRE_LOST: judge_unused(v); break;
    default: fail(v, "another program's key, or another version's, is in the place of weir's"); break;
    }
}

static void on_reply(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct visit *v = arg;
    struct store_key *out = v->out;
    if (v->closing) {
        return;
    }
    if (kind != WEIR__LINK_OK) {
        snprintf(v->said, sizeof v->said, "%.*s", reply ? (int)reply->len : 0, reply ? reply->str : "");
        fail(v, weir__link_kind_label(kind));
    } else if (reply->type != REDIS_REPLY_STRING ||
               weir__wire_peek_decode(reply->str, reply->len, &out->head, &out->seen, out->slices, STORE_SLICES_MAX)) {
        fail(v, "what Redis answers makes no sense");
    } else {
        judge(v);
    }
}

static void on_again(uv_timer_t *timer)
{
    ask(timer->data);
}

/* A cluster is up with the first of its masters; that of the key may still be on its way. */
static void ask(struct visit *v)
{
    weir__wire_buf_clear(&v->command);
    if (weir__wire_peek_encode(&v->command, &v->target, v->key, v->key_len, 0, weir__store_sha(v->store, 0)) != 0) {
        fail(v, "prefix and names are too long");
    } else if (weir__store_command(v->store, v->command.data, v->command.len, v->options->timeout_ms * MS, on_reply,
                                   v)) {
        uv_timer_start(&v->again, on_again, AGAIN_MS, 0);
    }
}

static void on_state(void *arg, int up, enum weir__link_kind why)
{
    struct visit *v = arg;
    (void)why;
    if (up && !v->closing && !uv_is_active((uv_handle_t *)&v->again)) {
        ask(v);
    }
}

static void on_log(void *arg, enum weir_log_level level, const char *line)
{
    struct visit *v = arg;
    if (level <= WEIR_LOG_WARN) {
        snprintf(v->said, sizeof v->said, "%s", line);
    }
}

static void on_deadline(uv_timer_t *timer)
{
    fail(timer->data, "no answer from Redis");
}

static int visit(struct visit *v, const struct weir__uri *uri)
{
    const char *script = weir__wire_script_text(WEIR__WIRE_PEEK);
    struct weir__link_script peek = {.name = "peek", .body = script, .len = strlen(script)};
    struct weir__link_config config = {.uri = uri,
                                       .scripts = &peek,
                                       .script_count = 1,
                                       .connect_timeout_ns = v->options->timeout_ms * MS,
                                       .allocator = memory,
                                       .log = on_log,
                                       .on_state = on_state,
                                       .arg = v};
    int status = uv_loop_init(&v->loop) ? WEIR_E_SYS : 0;
    if (status != 0) {
        return status;
    }
    uv_timer_init(&v->loop, &v->deadline);
    uv_timer_init(&v->loop, &v->again);
    v->deadline.data = v->again.data = v;
    status = weir__store_open(&v->store, &v->loop, &config);
    if (status == 0) {
        uv_timer_start(&v->deadline, on_deadline, v->options->timeout_ms, 0);
        weir__store_start(v->store);
    } else {
        uv_close((uv_handle_t *)&v->deadline, NULL);
        uv_close((uv_handle_t *)&v->again, NULL);
    }
    uv_run(&v->loop, UV_RUN_DEFAULT);
    uv_loop_close(&v->loop);
    return status;
}

int store_look(const struct store_options *o, const char *policy, const void *key, size_t key_len,
               struct store_key *out)
{
    uint32_t shards = o->shards ? o->shards : SHARDS_USUAL;
    struct weir__uri uri;
    struct visit v = {
        .options = o,
        .out = out,
        .target = {.prefix = o->prefix ? o->prefix : "weir", .policy = policy, .group = o->group, .shards = shards},
        .key = key,
        .key_len = key_len};
    v.target.shard = weir__wire_shard(key, key_len, shards);
    out->error[0] = '\0';
    int status = weir__uri_parse(o->uri, &uri);
    weir__wire_buf_init(&v.command, &memory);
    if (status == 0) {
        status = visit(&v, &uri);
    }
    weir__wire_buf_deinit(&v.command);
    weir__uri_wipe(&uri);
    if (status != 0) {
        snprintf(out->error, sizeof out->error, "%s", weir_strerror(status));
    }
    out->shard = weir__wire_shard(key, key_len, v.target.shards);
    out->shards = v.target.shards;
    return v.done ? 0 : -1;
}
