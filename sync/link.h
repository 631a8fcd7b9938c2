/* SPDX-License-Identifier: MIT */
/*
 * One connection to Redis that looks after itself: resolves, connects, logs in, loads the scripts, gives each command
 * a deadline, notices a server that hangs, and comes back after a loss. It owns the states of the connection; it knows
 * nothing of limiters, batches or what replies say, and of hiredis only through adapter.h.
 *
 *   DOWN --start/backoff--> RESOLVING --> CONNECTING --> GREETING --> UP <--> STALLED
 *     ^------------------------ any failure ------------------------------------'
 *
 * STALLED: a deadline passed and nothing at all was answered since that command was sent. New commands are refused
 * until an answer comes (UP again) or stall_ns is over (the connection is dropped).
 *
 * Threads: everything here runs on the loop's thread, unless said otherwise. Callbacks come from the loop, never from
 * inside a call of these functions, and may call any of them, weir__link_close included.
 */
#ifndef WEIR_SYNC_LINK_H
#define WEIR_SYNC_LINK_H

#include <stddef.h>
#include <stdint.h>

#include <weir/weir.h>

#include "sync/uri.h"

struct uv_loop_s;
struct redisReply;
struct weir__link;
struct weir__tls;

/* ---- what can go wrong ------------------------------------------------------------------------------------------- */

/* What an error does to the connection. */
enum weir__link_effect {
    WEIR__LINK_KEEP, /* it stays: only this command failed */
    WEIR__LINK_DROP  /* it goes, and the name is resolved again: another server must answer */
};

/* Kinds that the link finds by itself: name, label (of metrics and logs). */
#define WEIR__LINK_FAULT_MAP(X)                                                                                        \
    X(RESOLVE, "resolve")   /* the host's name has no address */                                                       \
    X(CONNECT, "connect")   /* refused, unreachable */                                                                 \
    X(TLS, "tls")           /* no handshake, or a certificate that does not hold */                                    \
    X(LOST, "lost")         /* the peer closed or reset */                                                             \
    X(TIMEOUT, "timeout")   /* a deadline passed: of the connect, of a command */                                      \
    X(PROTOCOL, "protocol") /* not RESP, or not the answer to what was asked */                                        \
    X(SYSTEM, "system")     /* out of memory or descriptors on this side */                                            \
    X(CLOSED, "closed")     /* weir__link_close was called */

/* Error replies by their first word: word, label, effect. The last resort, ERROR, is every other one. */
#define WEIR__LINK_REPLY_MAP(X)                                                                                        \
    X(NOSCRIPT, "noscript", KEEP) /* the link loads the scripts and sends the command again, some times */             \
    X(READONLY, "readonly", DROP)                                                                                      \
    X(LOADING, "loading", KEEP)                                                                                        \
    X(MASTERDOWN, "masterdown", KEEP)                                                                                  \
    X(CLUSTERDOWN, "clusterdown", KEEP)                                                                                \
    X(TRYAGAIN, "tryagain", KEEP)                                                                                      \
    X(BUSY, "busy", KEEP)                                                                                              \
    X(OOM, "oom", KEEP)                                                                                                \
    X(MISCONF, "misconf", KEEP)                                                                                        \
    X(NOREPLICAS, "noreplicas", KEEP)                                                                                  \
    X(NOAUTH, "noauth", DROP)                                                                                          \
    X(WRONGPASS, "wrongpass", DROP)                                                                                    \
    X(NOPERM, "noperm", KEEP)                                                                                          \
    X(MOVED, "moved", DROP)                                                                                            \
    X(ASK, "ask", KEEP)                                                                                                \
    X(CROSSSLOT, "crossslot", KEEP)                                                                                    \
    X(WRONGTYPE, "wrongtype", KEEP)                                                                                    \
    X(ERROR, "error", KEEP)

enum weir__link_kind {
    WEIR__LINK_OK = 0,
#define WEIR__LINK_ENUM(name, ...) WEIR__LINK_##name,
    WEIR__LINK_FAULT_MAP(WEIR__LINK_ENUM) WEIR__LINK_REPLY_MAP(WEIR__LINK_ENUM)
#undef WEIR__LINK_ENUM
        WEIR__LINK_KINDS
};

/* "ok", "resolve", ..., "error". Threads: any. */
const char *weir__link_kind_label(enum weir__link_kind kind);

/* The kind of an error reply's text (without the leading '-'), also where an older server wraps it into "ERR Error
 * running script ...". Threads: any. */
enum weir__link_kind weir__link_classify(const char *text, size_t len);

/* ---- a link ------------------------------------------------------------------------------------------------------ */

struct weir__link_script {
    const char *name; /* for logs */
    const char *body; /* both must outlive the link */
    size_t len;
};

#define WEIR__LINK_SCRIPTS_MAX 8

struct weir__link_config {
    const struct weir__uri *uri;             /* copied */
    const struct weir__link_script *scripts; /* loaded at each connect; the array is copied, the bodies are not */
    size_t script_count;                     /* at most WEIR__LINK_SCRIPTS_MAX */
    uint64_t connect_timeout_ns;             /* for the connect and again for the greeting, an address; 0: 1 s */
    uint64_t stall_ns;                       /* 0: 250 ms */
    uint64_t backoff_min_ns;                 /* 0: 100 ms */
    uint64_t backoff_max_ns;                 /* 0: 5 s */
    uint64_t seed;                           /* of the jitter; 0: from the clock and the process id */
    int signals_blocked; /* the loop's thread blocks SIGPIPE: no need to mask it around each write */
    const char *tls_ca, *tls_cert, *tls_key, *tls_server_name; /* files, NULL: defaults; used where uri->tls */
    const struct weir__tls *tls;                               /* settings to share, instead of files; NULL: none */
    int cluster;                     /* MOVED is the owner's to follow: the connection stays */
    struct weir_allocator allocator; /* both functions NULL: malloc and free */
    _Atomic uint64_t *tally;         /* [WEIR__LINK_KINDS]: what it counts as errors is added here too; NULL: nowhere */
    /* Lines hold no secret and no control character. NULL: none. */
    void (*log)(void *arg, enum weir_log_level level, const char *line);
    /* Called at each change of "commands are accepted", why being WEIR__LINK_OK for up. NULL: nobody asks. */
    void (*on_state)(void *arg, int up, enum weir__link_kind why);
    void *arg; /* of log and on_state */
};

/* Makes a link on this loop; nothing moves before weir__link_start. Its handles don't keep the loop alive (a name that
 * is being resolved does, and holds up weir__link_close until the resolver gives up). On an error *out is NULL and
 * nothing is left to free.
 *   WEIR_E_INVAL, WEIR_E_NOMEM; with TLS also WEIR_E_NOSUP (not built in), WEIR_E_SYS (files that can't be used),
 *   WEIR_E_RANGE (a server name that is too long). */
int weir__link_open(struct weir__link **out, struct uv_loop_s *loop, const struct weir__link_config *config);

/* Connects at once, then keeps itself connected until weir__link_close. A second call does nothing. */
void weir__link_start(struct weir__link *link);

/* Are commands accepted? */
int weir__link_is_up(const struct weir__link *link);

/* The 40 hex digits under which script i is loaded, terminated; "" before the first time up. The text and its address
 * stay the same for the link's life. */
const char *weir__link_sha(const struct weir__link *link, size_t i);

/* kind WEIR__LINK_OK: reply is the answer, never an error; it is the link's and gone after the return. An error reply:
 * its kind, and the reply for its text. Everything else: reply NULL. */
typedef void (*weir__link_cb)(void *arg, enum weir__link_kind kind, const struct redisReply *reply);

/* Sends one command, formatted in RESP. bytes must stay as they are until cb has been called, which happens exactly
 * once where 0 is returned: with the answer, or WEIR__LINK_TIMEOUT when timeout_ns has passed (an answer that comes
 * later is dropped), or whatever ended the connection. A command whose cb got no reply may have been executed or not.
 *   WEIR_E_NOSYNC: not up. WEIR_E_FULL: too many wait already. WEIR_E_CLOSED. WEIR_E_NOMEM. cb is not called then. */
int weir__link_command(struct weir__link *link, const void *bytes, size_t len, uint64_t timeout_ns, weir__link_cb cb,
                       void *arg);

/* The answer is late; cb will be called all the same. */
typedef void (*weir__link_late_cb)(void *arg);

/* The same for who can use an answer that comes late: when timeout_ns has passed on_late is called, and cb after it:
 * with the answer, or whatever ended the connection, or WEIR__LINK_TIMEOUT another stall_ns later. */
int weir__link_command_late(struct weir__link *link, const void *bytes, size_t len, uint64_t timeout_ns,
                            weir__link_late_cb on_late, weir__link_cb cb, void *arg);

/* What was sent leaves in one write, when the loop next runs its prepare handles. Who sends from a prepare callback of
 * its own calls this at its end. */
void weir__link_flush(struct weir__link *link);

/* The caller found a fault that only he can see (a well-formed answer that makes no sense): counts it, and drops the
 * connection where the kind's effect says so (always for WEIR__LINK_PROTOCOL). */
void weir__link_fault(struct weir__link *link, enum weir__link_kind kind);

/* Ends it: every command in flight is called back with WEIR__LINK_CLOSED, then cb once, when every handle is closed;
 * the link is gone then. on_state is not called any more. cb may be NULL. A second call is a caller's error. */
void weir__link_close(struct weir__link *link, void (*cb)(void *arg), void *arg);

/* ---- what it counted. Threads: any, while the link lives --------------------------------------------------------- */

/* By kind: error replies and passed deadlines, each; failed attempts to connect and lost connections, once each. */
uint64_t weir__link_errors(const struct weir__link *link, enum weir__link_kind kind);
uint64_t weir__link_reconnects(const struct weir__link *link); /* times up, but the first */
uint64_t weir__link_late(const struct weir__link *link);       /* answers that came after their deadline */

#endif
