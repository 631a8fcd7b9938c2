/* SPDX-License-Identifier: MIT */
/*
 * One socket to Redis: hiredis' protocol on libuv's polling. adapter.c is the only file that knows both. Owns the
 * context and the poll handle; knows nothing of commands, their order or what an answer means: that is link.c's.
 *
 * It uses hiredis' plain context, non-blocking, and not its async layer: that one frees the context under its caller's
 * feet, allocates per command, and asserts that a server never speaks unasked.
 */
#ifndef WEIR_SYNC_ADAPTER_H
#define WEIR_SYNC_ADAPTER_H

#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "sync/link.h"

struct redisContext;
struct redisReply;
struct weir__tls;

/* What it tells its owner. Each runs from the loop, and may call anything below. */
struct weir__adapter_events {
    void (*connected)(void *arg);
    void (*reply)(void *arg, const struct redisReply *reply); /* in the order of the commands; gone after the return */
    /* The last event, exactly once for a weir__adapter_open that returned 0; the adapter may be opened again from
     * inside. text: what happened, in words. */
    void (*closed)(void *arg, enum weir__link_kind why, const char *text);
};

struct weir__adapter_target {
    const char *path;    /* of a unix socket; NULL: address and port */
    const char *address; /* numeric: nothing is resolved here */
    uint16_t port;
    int signals_blocked;         /* see weir__link_config */
    const struct weir__tls *tls; /* NULL: none */
    const char *host;            /* whose certificate TLS expects; must live as long as the connection */
};

struct weir__adapter {
    uv_poll_t poll;
    struct redisContext *context; /* NULL: not open */
    const struct weir__adapter_events *events;
    const struct weir__tls *tls;
    const char *host;
    void *session; /* of TLS, owned by the context */
    void *arg;
    int armed;  /* what poll watches for */
    int faults; /* poll errors in a row */
    enum weir__link_kind why;
    uint8_t connected, closing, unsent, answered, oversize, guard_signals;
    char text[128];
};

/* Begins to connect. WEIR_E_SYS: refused at once, or no handle for it; WEIR_E_NOMEM. Nothing is open then and no event
 * follows; `why` and `text` say what it was. `adapter` must be zeroed before its first use. */
int weir__adapter_open(struct weir__adapter *adapter, uv_loop_t *loop, const struct weir__adapter_target *target,
                       const struct weir__adapter_events *events, void *arg);

/* Open, and not closing. */
int weir__adapter_is_alive(const struct weir__adapter *adapter);

/* Appends one command, formatted already or as words. It leaves with the next flush. WEIR_E_NOMEM: the stream is
 * broken, close it. */
int weir__adapter_send(struct weir__adapter *adapter, const void *bytes, size_t len);
int weir__adapter_send_words(struct weir__adapter *adapter, int n, const char *const *words, const size_t *lengths);

/* Writes what was appended, in one write. */
void weir__adapter_flush(struct weir__adapter *adapter);

/* Sees what has happened on the socket already. A timer that may fire late because the loop was held up calls this
 * before it judges a peer silent. */
void weir__adapter_read(struct weir__adapter *adapter);

/* Ends it: no further event but `closed`, with this reason (the first reason stands), when the handle is closed. */
void weir__adapter_close(struct weir__adapter *adapter, enum weir__link_kind why, const char *text);

/* Replies, for who may not know hiredis. */
const char *weir__adapter_error(const struct redisReply *reply, size_t *len);  /* NULL: not an error */
const char *weir__adapter_string(const struct redisReply *reply, size_t *len); /* bulk or simple string; or NULL */
const struct redisReply *weir__adapter_element(const struct redisReply *reply, size_t i); /* of an array; or NULL */

#endif
