/* SPDX-License-Identifier: MIT */
/*
 * rediss://. Owns the TLS settings of a link and turns a connected context into an encrypted one. tls.c is the only
 * file that knows OpenSSL; a build without it has the same functions, and weir__tls_init says WEIR_E_NOSUP.
 *
 * A peer is always verified: its chain against `ca` (or the system's), its name against the host or the server name.
 */
#ifndef WEIR_SYNC_TLS_H
#define WEIR_SYNC_TLS_H

#include <stddef.h>

struct redisContext;

struct weir__tls_options {
    const char *ca;   /* PEM file; NULL: the system's */
    const char *cert; /* PEM files of this side; both or neither */
    const char *key;
    const char *server_name; /* what the certificate must bear, whatever the host is called; NULL: the host */
};

struct weir__tls {
    void *context;         /* SSL_CTX */
    char server_name[256]; /* "": the host of each connection */
};

/* WEIR_E_NOSUP: not built in; WEIR_E_SYS: a file that can't be used; WEIR_E_INVAL: a certificate without its key or the
 * other way round; WEIR_E_RANGE: the server name is too long; WEIR_E_NOMEM. Nothing to free then. */
int weir__tls_init(struct weir__tls *tls, const struct weir__tls_options *options);

/* The same settings once more; each is deinited by itself. 0, or WEIR_E_NOSUP: not built in. */
int weir__tls_share(struct weir__tls *tls, const struct weir__tls *from);

/* Zeroed memory is allowed. */
void weir__tls_deinit(struct weir__tls *tls);

/* Begins the handshake on a connected, non-blocking context: it goes on inside the context's reads and writes. Returns
 * the session, which the context owns; NULL: failed, and *reason says why. host: the name (or address) that the
 * certificate must bear where no server name was set; a name also goes into SNI. */
void *weir__tls_attach(const struct weir__tls *tls, const char *host, struct redisContext *context,
                       const char **reason);

/* Before each read or write: what other users of OpenSSL left in this thread's queue is not our error. */
void weir__tls_clear(void);

/* Is the session waiting until the socket can be written? If not, it waits for the peer. */
int weir__tls_wants_write(const void *session);

/* Why a session failed that has not brought one answer yet, in words. */
const char *weir__tls_reason(const void *session);

#endif
