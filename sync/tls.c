/* SPDX-License-Identifier: MIT */
/*
 * TLS through hiredis_ssl and OpenSSL, or its absence. hiredis' own way of making a session checks no name, so the
 * session is made here and handed to it.
 */
#include "sync/tls.h"

#include <string.h>

#include <weir/weir.h>

#ifdef WEIR_TLS

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <uv.h>

#include <hiredis/hiredis.h>
#include <hiredis/hiredis_ssl.h>

static int load_files(SSL_CTX *context, const struct weir__tls_options *options)
{
    int ok = options->ca ? SSL_CTX_load_verify_locations(context, options->ca, NULL)
                         : SSL_CTX_set_default_verify_paths(context);
    if (ok && options->cert) {
        ok = SSL_CTX_use_certificate_chain_file(context, options->cert) == 1 &&
             SSL_CTX_use_PrivateKey_file(context, options->key, SSL_FILETYPE_PEM) == 1 &&
             SSL_CTX_check_private_key(context) == 1;
    }
    return ok ? 0 : WEIR_E_SYS;
}

int weir__tls_init(struct weir__tls *tls, const struct weir__tls_options *options)
{
    const char *name = options->server_name ? options->server_name : "";
    memset(tls, 0, sizeof *tls);
    if (!options->cert != !options->key) {
        return WEIR_E_INVAL;
    }
    if (strlen(name) >= sizeof tls->server_name) {
        return WEIR_E_RANGE;
    }
    memcpy(tls->server_name, name, strlen(name) + 1);
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    if (!context) {
        ERR_clear_error();
        return WEIR_E_NOMEM;
    }
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    /* What waits to be written grows, and moves, between two tries. */
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    int status = load_files(context, options);
    ERR_clear_error();
    if (status != 0) {
        SSL_CTX_free(context);
        return status;
    }
    tls->context = context;
    return 0;
}

int weir__tls_share(struct weir__tls *tls, const struct weir__tls *from)
{
    *tls = *from;
    SSL_CTX_up_ref(from->context);
    return 0;
}

void weir__tls_deinit(struct weir__tls *tls)
{
    SSL_CTX_free(tls->context);
    tls->context = NULL;
}

static int expect_host(SSL *session, const char *host)
{
    unsigned char address[16];
    if (uv_inet_pton(AF_INET, host, address) == 0 || uv_inet_pton(AF_INET6, host, address) == 0) {
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host);
    }
    SSL_set_hostflags(session, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(session, host) && SSL_set_tlsext_host_name(session, host);
}

void *weir__tls_attach(const struct weir__tls *tls, const char *host, struct redisContext *context, const char **reason)
{
    ERR_clear_error();
    SSL *session = SSL_new(tls->context);
    if (!session) {
        *reason = "out of memory";
        return NULL;
    }
    if (expect_host(session, tls->server_name[0] ? tls->server_name : host) &&
        redisInitiateSSL(context, session) == REDIS_OK) {
        return session;
    }
    *reason = weir__tls_reason(session); /* static text: it outlives the session */
    SSL_free(session);
    return NULL;
}

void weir__tls_clear(void)
{
    ERR_clear_error();
}

int weir__tls_wants_write(const void *session)
{
    return SSL_want_write((const SSL *)session);
}

const char *weir__tls_reason(const void *session)
{
    long verdict = SSL_get_verify_result(session);
    const char *text = ERR_reason_error_string(ERR_peek_last_error());
    if (verdict != X509_V_OK) {
        return X509_verify_cert_error_string(verdict);
    }
    /* A server that wants a certificate may close before its alert gets through. */
    return text ? text : "closed before the first answer (does the server want a certificate?)";
}

#else

int weir__tls_init(struct weir__tls *tls, const struct weir__tls_options *options)
{
    (void)options;
    memset(tls, 0, sizeof *tls);
    return WEIR_E_NOSUP;
}

void weir__tls_deinit(struct weir__tls *tls)
{
    (void)tls;
}

int weir__tls_share(struct weir__tls *tls, const struct weir__tls *from)
{
    *tls = *from;
    return WEIR_E_NOSUP;
}

void *weir__tls_attach(const struct weir__tls *tls, const char *host, struct redisContext *context, const char **reason)
{
    (void)host;
    (void)tls;
    (void)context;
    *reason = "not built in";
    return NULL;
}

void weir__tls_clear(void) {}

int weir__tls_wants_write(const void *session)
{
    (void)session;
    return 0;
}

const char *weir__tls_reason(const void *session)
{
    (void)session;
    return "not built in";
}

#endif
