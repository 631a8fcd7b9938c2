/* SPDX-License-Identifier: MIT */
/*
 * What the server says: the greeting at each connect, scripts that are gone, and who gets which answer. Owns
 * nothing; the states it moves are link.c's.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "sync/link_state.h"

#define SAID_NS UINT64_C(10000000000)

enum { RESENDS_MAX = 3 }; /* of a command: scripts may be flushed while they are loaded, but not for ever */

/* ---- replies ----------------------------------------------------------------------------------------------------- */

static void become_up(struct weir__link *link)
{
    link->state = WEIR__LINK_UP;
    link->up_since = uv_hrtime();
    link->last_fail = WEIR__LINK_OK;
    link->seeds_left = 0; /* who is lost after this is asked for anew, from all of them */
    if (link->was_up) {
        atomic_fetch_add_explicit(&link->reconnects, 1, memory_order_relaxed);
    }
    link->was_up = 1;
    weir__link_say(link, WEIR_LOG_INFO, ": connected");
    weir__link_tell(link, 1, WEIR__LINK_OK);
}

void weir__link_send_own(struct weir__link *link, enum weir__purpose purpose, unsigned script, int n,
                         const char *const *words, const size_t *lengths)
{
    struct weir__command *command = weir__line_take(&link->line);
    if (!command || weir__adapter_send_words(&link->adapter, n, words, lengths) != 0) {
        if (command) {
            weir__line_spare(&link->line, command);
        }
        weir__link_leave(link, WEIR__LINK_SYSTEM, "out of memory");
        return;
    }
    command->purpose = purpose;
    command->script = (uint8_t)script;
    command->answers = link->answers;
    weir__line_append(&link->line, command);
}

static void send_loads(struct weir__link *link)
{
    for (unsigned i = 0; i < link->config.script_count; i++) {
        const char *words[] = {"SCRIPT", "LOAD", link->scripts[i].body};
        size_t lengths[] = {6, 4, link->scripts[i].len};
        weir__link_send_own(link, WEIR__LOAD, i, 3, words, lengths);
    }
}

void weir__link_login(struct weir__link *link)
{
    const struct weir__uri *uri = &link->uri;
    const char *words[] = {"AUTH", uri->user, uri->password};
    size_t lengths[] = {4, strlen(uri->user), strlen(uri->password)};
    if (uri->has_user) {
        weir__link_send_own(link, WEIR__LOGIN, 0, 3, words, lengths);
    } else if (uri->has_password) {
        words[1] = words[2];
        lengths[1] = lengths[2];
        weir__link_send_own(link, WEIR__LOGIN, 0, 2, words, lengths);
    }
}

static void greet(struct weir__link *link)
{
    char db[16];
    snprintf(db, sizeof db, "%u", link->uri.db);
    const char *select[] = {"SELECT", db}, *info[] = {"INFO", "memory"}, *role[] = {"ROLE"};
    size_t select_len[] = {6, strlen(db)}, info_len[] = {4, 6}, role_len[] = {4};
    weir__link_login(link);
    if (link->uri.db != 0) {
        weir__link_send_own(link, WEIR__SELECT, 0, 2, select, select_len);
    }
    if (link->uri.kind == WEIR__URI_SENTINEL) {
        weir__link_send_own(link, WEIR__ROLE, 0, 1, role, role_len);
    }
    send_loads(link);
    weir__link_send_own(link, WEIR__INSPECT, 0, 2, info, info_len);
}

/* All of the greeting leaves in one write: one round trip. */
void weir__link_on_connected(void *arg)
{
    struct weir__link *link = arg;
    weir__link_wait_in(link, WEIR__LINK_GREETING, link->config.connect_timeout_ns);
    if (link->asking) {
        weir__link_ask(link);
    } else {
        greet(link);
    }
    weir__adapter_flush(&link->adapter); /* at once: its time has begun */
}

/* Eviction drops whole shards, thousands of limits at once: say so where it can happen. */
static void inspect(struct weir__link *link, const char *text, size_t len)
{
    static const char field[] = "maxmemory_policy:";
    const size_t n = sizeof field - 1;
    for (size_t i = 0; i + n < len; i++) {
        if (memcmp(text + i, field, n) == 0) {
            const char *value = text + i + n;
            int value_len = (int)strcspn(value, "\r\n");
            int evicts = value_len != 10 || memcmp(value, "noeviction", 10) != 0;
            if (evicts && !link->warned_eviction) {
                weir__link_say(
                    link, WEIR_LOG_WARN,
                    ": maxmemory-policy is %.*s: Redis may drop the limits of many keys at once; use noeviction",
                    value_len < 32 ? value_len : 32, value);
            }
            link->warned_eviction = (uint8_t)evicts;
            return;
        }
    }
}

static int is_sha(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && isxdigit((unsigned char)text[n])) {
        n++;
    }
    return n == WEIR__LINK_SHA_LENGTH && len == WEIR__LINK_SHA_LENGTH;
}

/* Is it this user, or this server, that will never run our scripts? Servers before 5.0 let nobody write who had asked
 * for the time; hosted ones lack commands, in scripts or at all; others are no Redis. */
static int is_hopeless(enum weir__link_kind kind, const char *error, size_t len)
{
    static const char *const signs[] = {
        "can't run this command", "ACL failure",  "non deterministic", "nknown command",
        "nknown subcommand",      "nknown Redis", "not allowed from",  "nonexistent global",
        "compiling script",       "isabled",      "not supported",
    };
    for (size_t i = 0; kind == WEIR__LINK_ERROR && i < sizeof signs / sizeof signs[0]; i++) {
        size_t n = strlen(signs[i]);
        for (size_t at = 0; at + n <= len; at++) {
            if (memcmp(error + at, signs[i], n) == 0) {
                return 1;
            }
        }
    }
    return kind == WEIR__LINK_NOPERM;
}

static const char *advice(enum weir__link_kind kind, const char *error, size_t len)
{
    return is_hopeless(kind, error, len) ? " (what weir needs: Redis 5, the rights in docs/security.md)" : "";
}

/* Not everybody may ask for the settings, and nothing depends on them. A server that tells nobody its role is taken for
 * the master, as Sentinel says; one that can't tell it now is not. But who is not let in at all must know. */
static int is_no_matter(enum weir__purpose purpose, enum weir__link_kind kind)
{
    return (purpose == WEIR__INSPECT && weir__link_effect_of(kind) == WEIR__LINK_KEEP) ||
           (purpose == WEIR__ROLE && (kind == WEIR__LINK_NOPERM || kind == WEIR__LINK_ERROR));
}

/* The link's own command failed. A server may quote the words it did not like: a login's must not reach the log. */
static void own_failed(struct weir__link *link, const struct weir__command *command, const char *error, size_t len)
{
    enum weir__link_kind kind = weir__link_classify(error, len);
    char text[160];
    switch (command->purpose) {
    case WEIR__LOGIN: snprintf(text, sizeof text, "the server refused the login"); break;
    case WEIR__LOAD:
        snprintf(text, sizeof text, "loading script %s%s: %.*s", link->scripts[command->script].name,
                 advice(kind, error, len), len < 100 ? (int)len : 100, error);
        break;
    default: snprintf(text, sizeof text, "%.*s", len < 100 ? (int)len : 100, error); break;
    }
    if (is_no_matter(command->purpose, kind)) {
        weir__link_say(link, WEIR_LOG_DEBUG, ": can't read its %s: %s",
                       command->purpose == WEIR__ROLE ? "role" : "settings", text);
        return;
    }
    weir__link_count(link, kind);
    if (link->state == WEIR__LINK_GREETING || weir__link_effect_of(kind) == WEIR__LINK_DROP) {
        weir__link_leave(link, kind, text);
    } else {
        weir__link_say(link, WEIR_LOG_WARN, ": %s: %s", weir__link_kind_label(kind), text);
    }
}

static void answer_own(struct weir__link *link, const struct weir__command *command, const struct redisReply *reply)
{
    size_t len = 0;
    if (command->purpose == WEIR__ASK) {
        weir__link_told(link, reply);
        return;
    }
    const char *text = weir__adapter_error(reply, &len);
    if (text) {
        own_failed(link, command, text, len);
    } else {
        text = weir__adapter_string(reply, &len);
        if (command->purpose == WEIR__INSPECT) {
            inspect(link, text ? text : "", len);
        } else if (command->purpose == WEIR__ROLE) {
            weir__link_check_role(link, reply);
        } else if (command->purpose == WEIR__LOAD && text && is_sha(text, len)) {
            memcpy(link->sha[command->script], text, WEIR__LINK_SHA_LENGTH);
        } else if (command->purpose == WEIR__LOAD || !text || len != 2 || memcmp(text, "OK", 2) != 0) {
            weir__link_leave(link, WEIR__LINK_PROTOCOL, "not an answer to the greeting");
        }
    }
    if (link->state == WEIR__LINK_GREETING && link->line.own == 0 && !link->asking) {
        become_up(link);
    }
}

/* The scripts are gone (a restart, a flush): again, behind one reload for all who were in line. Nothing was
 * executed, so this breaks no promise of "at most once". */
static int resend(struct weir__link *link, struct weir__command *command)
{
    if (link->line.loads == 0) {
        send_loads(link);
    }
    if (!weir__adapter_is_alive(&link->adapter) ||
        weir__adapter_send(&link->adapter, command->bytes, command->len) != 0) {
        return 0;
    }
    command->resent++;
    command->answers = link->answers;
    weir__line_append(&link->line, command);
    return 1;
}

/* Somebody must learn why nothing works (a user without rights, a full server), but not at every command. */
static void say_error(struct weir__link *link, enum weir__link_kind kind, const char *error, size_t len)
{
    uint64_t now = uv_hrtime();
    if (kind != WEIR__LINK_NOSCRIPT && (link->said_at[kind] == 0 || now - link->said_at[kind] > SAID_NS)) {
        link->said_at[kind] = now;
        weir__link_say(link, WEIR_LOG_WARN, ": %s: %.*s%s", weir__link_kind_label(kind), len < 200 ? (int)len : 200,
                       error, advice(kind, error, len));
    }
}

static void answer_user(struct weir__link *link, struct weir__command *command, const struct redisReply *reply)
{
    size_t len = 0;
    const char *error = weir__adapter_error(reply, &len);
    enum weir__link_kind kind = error ? weir__link_classify(error, len) : WEIR__LINK_OK;
    weir__link_cb cb = command->cb;
    void *arg = command->arg;
    if (kind == WEIR__LINK_OK) {
        weir__backoff_reset(&link->backoff);
    } else {
        weir__link_count(link, kind);
        if (kind == WEIR__LINK_NOSCRIPT && cb && command->resent < RESENDS_MAX && resend(link, command)) {
            return;
        }
        int drops =
            weir__link_effect_of(kind) == WEIR__LINK_DROP && !(kind == WEIR__LINK_MOVED && link->config.cluster);
        if (drops) {
            weir__link_leave(link, kind, error);
        } else if (!link->config.cluster || (kind != WEIR__LINK_MOVED && kind != WEIR__LINK_ASK)) {
            say_error(link, kind, error, len);
        }
    }
    if (command->late) {
        atomic_fetch_add_explicit(&link->late, 1, memory_order_relaxed);
    }
    weir__line_spare(&link->line, command);
    if (cb) {
        cb(arg, kind, reply);
    }
}

void weir__link_on_reply(void *arg, const struct redisReply *reply)
{
    struct weir__link *link = arg;
    link->answers++;
    if (link->state == WEIR__LINK_STALLED) {
        link->state = WEIR__LINK_UP;
        weir__link_tell(link, 1, WEIR__LINK_OK);
        if (!weir__adapter_is_alive(&link->adapter)) {
            return; /* closed from inside: whoever waits is called back for that */
        }
    }
    struct weir__command *command = weir__line_next(&link->line);
    if (!command) {
        size_t len = 0;
        const char *error = weir__adapter_error(reply, &len);
        enum weir__link_kind kind = error ? weir__link_classify(error, len) : WEIR__LINK_PROTOCOL;
        if (error) {
            weir__link_count(link, kind);
        }
        weir__link_leave(link, kind, error ? error : "an answer that nobody asked for");
    } else if (command->purpose == WEIR__USER) {
        answer_user(link, command, reply);
    } else {
        answer_own(link, command, reply);
        weir__line_spare(&link->line, command);
    }
}
