/* SPDX-License-Identifier: MIT */
/*
 * TLS through hiredis_ssl and OpenSSL, or its absence. hiredis' own way of making a session verifies no name, so the
 * session is made here and handed to it.
 */
#include "sync/tls.h"

#include <weir/weir.h>

#ifdef WEIR_TLS
#else

int weir__tls_open(struct weir__tls **out, const struct weir__tls_options *options)
{
    (void)options;
    *out = NULL;
    return WEIR_E_NOSUP;
}

void weir__tls_close(struct weir__tls *tls)
{
    (void)tls;
}

void *weir__tls_attach(const struct weir__tls *tls, struct redisContext *context)
{
    (void)tls;
    (void)context;
    return NULL;
}

int weir__tls_wants_write(const void *session)
{
    (void)session;
    return 0;
}

#endif
