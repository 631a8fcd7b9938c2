/* SPDX-License-Identifier: MIT */
/*
 * The inside of a link, shared by link.c (states, timers, the interface), link_reply.c (what the server says) and
 * link_sentinel.c (which server).
 * Nobody else includes this.
 */
#ifndef WEIR_SYNC_LINK_STATE_H
#define WEIR_SYNC_LINK_STATE_H

#include <netdb.h>
#include <stdatomic.h>
#include <stdint.h>

#include <uv.h>

#include "sync/adapter.h"
#include "sync/backoff.h"
#include "sync/line.h"
#include "sync/link.h"
#include "sync/tls.h"
#include "sync/uri.h"

enum { WEIR__LINK_ADDRESSES_MAX = 8, WEIR__LINK_SHA_LENGTH = 40 };

/* LEAVING: the adapter is closing, its `closed` event moves on from there. */
enum weir__link_state {
    WEIR__LINK_IDLE,
    WEIR__LINK_WAITING,
    WEIR__LINK_RESOLVING,
    WEIR__LINK_CONNECTING,
    WEIR__LINK_GREETING,
    WEIR__LINK_UP,
    WEIR__LINK_STALLED,
    WEIR__LINK_LEAVING
};

struct weir__link {
    uv_loop_t *loop;
    uv_timer_t timer;
    uv_prepare_t prepare;
    uv_getaddrinfo_t resolver;
    struct weir__adapter adapter;
    struct weir__line line;
    struct weir__link_config config;
    struct weir__uri uri;
    struct weir__tls tls;
    struct weir__backoff backoff;
    struct weir__link_script scripts[WEIR__LINK_SCRIPTS_MAX];
    char sha[WEIR__LINK_SCRIPTS_MAX][WEIR__LINK_SHA_LENGTH + 1];
    char addresses[WEIR__LINK_ADDRESSES_MAX][NI_MAXHOST];
    unsigned address_count, address;
    enum weir__link_state state, left; /* left: what it was before LEAVING */
    enum weir__link_kind last_fail;    /* logged already; WEIR__LINK_OK: none since the last time up */
    uint64_t answers;                  /* replies so far, of any kind */
    uint64_t wait_until;               /* of the state */
    uint64_t armed_for;                /* the timer; UINT64_MAX: not armed */
    uint64_t up_since;
    uint64_t said_at[WEIR__LINK_KINDS]; /* when an error reply of that kind was last logged; 0: never */
    unsigned handles;                   /* not closed yet, and requests not called back */
    uint8_t told_up, closing, resolving, was_up, warned_eviction;
    uint8_t asking; /* a Sentinel, where the master is */
    uint8_t offered_login;
    unsigned seed, seeds_left; /* which Sentinel; how many more this time */
    struct weir__uri_host master;
    void (*close_cb)(void *arg);
    void *close_arg;
    _Atomic uint64_t errors[WEIR__LINK_KINDS];
    _Atomic uint64_t reconnects, late;
};

/* link.c, for link_reply.c */
void weir__link_count(struct weir__link *link, enum weir__link_kind kind);
void weir__link_say(struct weir__link *link, enum weir_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void weir__link_tell(struct weir__link *link, int up, enum weir__link_kind why);
void weir__link_wait_in(struct weir__link *link, enum weir__link_state state, uint64_t ns);
void weir__link_leave(struct weir__link *link, enum weir__link_kind why, const char *text);

/* link_reply.c, for link.c: events of the adapter */
void weir__link_on_connected(void *arg);
void weir__link_on_reply(void *arg, const struct redisReply *reply);

/* link_reply.c, for link_sentinel.c */
void weir__link_send_own(struct weir__link *link, enum weir__purpose purpose, unsigned script, int n,
                         const char *const *words, const size_t *lengths);
void weir__link_login(struct weir__link *link);

/* link_sentinel.c. ask_first, ask_next (0: nobody is left to ask before the next ask_first) and go_to_master set
 * uri.host and uri.port. */
void weir__link_ask_first(struct weir__link *link);
int weir__link_ask_next(struct weir__link *link);
void weir__link_go_to_master(struct weir__link *link);
void weir__link_ask(struct weir__link *link);
void weir__link_told(struct weir__link *link, const struct redisReply *reply);
void weir__link_check_role(struct weir__link *link, const struct redisReply *reply);

/* link_kind.c */
enum weir__link_effect weir__link_effect_of(enum weir__link_kind kind);

#endif
