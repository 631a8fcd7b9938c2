/* SPDX-License-Identifier: MIT */
/*
 * Where Redis is and who we are there: a URI taken apart. Owns the grammar; knows nothing of sockets.
 *
 *   redis://[user[:password]@]host[:port][/db]     also valkey://; ?db=N instead of /db
 *   rediss://...                                   the same over TLS; also valkeys://
 *   unix://[user[:password]@]/path[?db=N]
 *   redis+cluster://[user[:password]@]host[:port][,host[:port]...]              nodes of a Redis Cluster: one will do
 *   redis+sentinel://[user[:password]@]host[:port][,host[:port]...]/service[/db]   who know where the master is
 *
 * The last two also with rediss, valkey and valkeys. A Sentinel's port is 26379 where none is named.
 * User, password, host and path may be percent-encoded; an IPv6 host stands in brackets.
 */
#ifndef WEIR_SYNC_URI_H
#define WEIR_SYNC_URI_H

#include <stddef.h>
#include <stdint.h>

enum { WEIR__URI_SEEDS = 8 }; /* hosts of a cluster's or a Sentinel's URI */

enum weir__uri_kind { WEIR__URI_SERVER = 0, WEIR__URI_CLUSTER, WEIR__URI_SENTINEL };

struct weir__uri_host {
    char host[256]; /* name or address without brackets */
    uint16_t port;
};

struct weir__uri {
    enum weir__uri_kind kind;
    int tls;
    int has_user, has_password; /* an empty one is one */
    uint16_t port;
    uint32_t db;
    char host[256]; /* name or address without brackets, the first of the seeds; "" for a unix socket */
    char path[108]; /* of a unix socket; "" otherwise */
    char user[256];
    char password[2048]; /* room for the tokens that managed services hand out */
    unsigned seed_count; /* 0 for a server */
    struct weir__uri_host seeds[WEIR__URI_SEEDS];
    char service[128]; /* what a Sentinel calls the master */
};

/* WEIR_E_URI where it does not parse or a part is too long: *out is wiped then. text NULL: redis://127.0.0.1:6379. */
int weir__uri_parse(const char *text, struct weir__uri *out);

/* Replaces the user or the password (NULL: keeps it). WEIR_E_RANGE: too long, nothing changed. */
int weir__uri_login(struct weir__uri *uri, const char *user, const char *password);

/* "host:port", "[v6]:port" or "unix:path": for logs, without any secret. Returns buf, always terminated. */
const char *weir__uri_print(const struct weir__uri *uri, char *buf, size_t len);

/* Overwrites it so that the password is gone from memory. */
void weir__uri_wipe(struct weir__uri *uri);

#endif
