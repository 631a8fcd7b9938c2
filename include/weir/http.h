/* SPDX-License-Identifier: MIT */
/*
 * weir for HTTP servers: what to answer, the header fields that say so, and keys made of IP addresses. Library libweir.
 * Knows no server: text in, text out.
 *
 * RateLimit and RateLimit-Policy are those of draft-ietf-httpapi-ratelimit-headers (revisions 08 to 10). It is a draft:
 * no compliance is claimed, and what is written here follows it as it changes.
 */
#ifndef WEIR_HTTP_H
#define WEIR_HTTP_H

#include <weir/weir.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sockaddr; /* of <sys/socket.h>, which this header does not need */

/* What to answer: 200 for WEIR_ALLOW; 429 for WEIR_DENY; 503 where it was not the client who went over a limit: Redis
 * is away and the policy fails closed (WEIR_OUTAGE_CLOSED), the table had no room (WEIR_FULL), or the status says that
 * nobody could decide (WEIR_E_TIMEOUT, _NOSYNC, _CLOSED, _FULL, _NOMEM). 500 for any other error: the server's mistake.
 * result may be NULL; then every denial is a 429. Threads: any. */
WEIR_API int weir_http_status(int status, const struct weir_result *result);

/* ---- header fields ----------------------------------------------------------------------------------------------- */

/* code, number, name, and its styles, a bit for each of enum weir_http_style: the only place where they meet. */
#define WEIR_HTTP_FIELD_MAP(X)                                                                                         \
    X(WEIR_HTTP_RETRY_AFTER, 0, "Retry-After", 15)                                                                     \
    X(WEIR_HTTP_RATELIMIT, 1, "RateLimit", 5)                                                                          \
    X(WEIR_HTTP_RATELIMIT_POLICY, 2, "RateLimit-Policy", 5)                                                            \
    X(WEIR_HTTP_X_LIMIT, 3, "X-RateLimit-Limit", 6)                                                                    \
    X(WEIR_HTTP_X_REMAINING, 4, "X-RateLimit-Remaining", 6)                                                            \
    X(WEIR_HTTP_X_RESET, 5, "X-RateLimit-Reset", 6)

enum weir_http_field {
#define WEIR_HTTP_FIELD_ENUM(code, number, name, styles) code = (number),
    WEIR_HTTP_FIELD_MAP(WEIR_HTTP_FIELD_ENUM)
#undef WEIR_HTTP_FIELD_ENUM
        WEIR_HTTP_FIELDS /* how many there are */
};

enum weir_http_style {
    WEIR_HTTP_DRAFT = 0,  /* Retry-After, RateLimit, RateLimit-Policy (default) */
    WEIR_HTTP_LEGACY = 1, /* Retry-After, X-RateLimit-Limit, -Remaining, -Reset (seconds from now) */
    WEIR_HTTP_BOTH = 2,
    WEIR_HTTP_RETRY = 3 /* Retry-After alone */
};

#define WEIR_HTTP_HEADERS_MAX 1024 /* bytes that hold one policy's header fields in any style */

/*
 * The header fields for one decision, each "Name: value\r\n", without the empty line that ends a header:
 *
 *     RateLimit: "api";r=50;t=30
 *     RateLimit-Policy: "api";q=100;w=60
 *
 *   Retry-After  on a denial alone, and where waiting helps: whole seconds, rounded up, never 0
 *   r, t         tokens left; seconds until all are back, or on a denial until the same cost can pass, never later than
 *                Retry-After
 *   q, w         the burst, and the seconds that it takes to come back, at least 1: of a bucket that comes back sooner
 *                q is its tokens a second
 * What is not known is left out: r and t where it was not the client who went over the limit, w where nothing comes
 * back.
 * A shadow policy denies nothing, so it asks nobody to wait. A policy's name is a quoted string of printable ASCII;
 * other bytes appear as %XX, so that nothing can be injected.
 *
 * Returns the length that the whole text needs, as snprintf does; buf is always terminated where len > 0. A field that
 * does not fit whole is left out with all that follow: a cut text is still a header.
 *   WEIR_E_INVAL: no result, or no such style.
 * result->limiter must be open; NULL: a result that was filled by hand, whose policy is called "default".
 * Threads: any. */
WEIR_API int weir_http_headers(char *buf, size_t len, const struct weir_result *result, int style);

/* The same for the policies that one request met, each with its result (weir_take_many, or the members of
 * weir_take_all): the draft's fields list them in that order; Retry-After is the longest wait, and left out where one
 * of them will never do; the X-RateLimit fields tell of the one that denied with the longest wait, else of the one with
 * least left. Results that were not filled (limit 0) are passed over. */
WEIR_API int weir_http_headers_many(char *buf, size_t len, const struct weir_result *results, size_t n, int style);

/* One field's value, for servers that keep names and values apart. 0 where the field has nothing to say: send none.
 * Otherwise as above, but a value that does not fit is empty. */
WEIR_API int weir_http_value(char *buf, size_t len, const struct weir_result *results, size_t n,
                             enum weir_http_field field);

/* "Retry-After" and so on; NULL for no such field. */
WEIR_API const char *weir_http_field_name(enum weir_http_field field);

/* ---- keys -------------------------------------------------------------------------------------------------------- */

#define WEIR_HTTP_IP_KEY_MAX 48 /* bytes of a key made of an address, its '\0' included */

/* The key of the client at addr (of accept, getpeername, uv_tcp_getpeername), as text, the same for every spelling of
 * an address and on every machine: "192.0.2.7", "2001:db8:1:2::/64". Whoever holds one IPv6 address holds the 2^64 of
 * its network, so the default is one key a network.
 *   prefix4, prefix6  leading bits that count, 1 to 32 and 1 to 128; 0: 32 and 64
 *   ::ffff:192.0.2.7  (IPv4 in IPv6) is 192.0.2.7
 *   a scope id (%eth0) does not count: its number is one machine's own
 * Returns the length of the key, or WEIR_E_INVAL, WEIR_E_RANGE (prefix), WEIR_E_NOSUP (neither AF_INET nor AF_INET6);
 * out is empty then. Threads: any. */
WEIR_API int weir_http_ip_key(const struct sockaddr *addr, unsigned prefix4, unsigned prefix6,
                              char out[WEIR_HTTP_IP_KEY_MAX]);

/* The same of text, as a trusted proxy writes it into X-Forwarded-For, Forwarded or X-Real-IP: one address, with or
 * without blanks around it, brackets, a port (of IPv6 only after brackets) or a scope id. Anything else is
 * WEIR_E_INVAL: decimal numbers of another base or length, several addresses, a name. Threads: any. */
WEIR_API int weir_http_ip_key_text(const char *text, size_t text_len, unsigned prefix4, unsigned prefix6,
                                   char out[WEIR_HTTP_IP_KEY_MAX]);

#ifdef __cplusplus
}
#endif
#endif
