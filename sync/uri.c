/* SPDX-License-Identifier: MIT */
/*
 * Takes a URI apart, left to right, into fixed buffers: no allocation, nothing to free, and one place to wipe. What is
 * not in the grammar is refused: a typing error in a URI must not become another server or another database.
 */
#include "sync/uri.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <weir/weir.h>

enum { DEFAULT_PORT = 6379, SENTINEL_PORT = 26379, DB_MAX = 1000000 };

static const struct {
    const char *scheme;
    int tls, is_unix;
    enum weir__uri_kind kind;
} schemes[] = {
    {"redis://", 0, 0, WEIR__URI_SERVER},
    {"rediss://", 1, 0, WEIR__URI_SERVER},
    {"valkey://", 0, 0, WEIR__URI_SERVER},
    {"valkeys://", 1, 0, WEIR__URI_SERVER},
    {"unix://", 0, 1, WEIR__URI_SERVER},
    {"redis+cluster://", 0, 0, WEIR__URI_CLUSTER},
    {"rediss+cluster://", 1, 0, WEIR__URI_CLUSTER},
    {"valkey+cluster://", 0, 0, WEIR__URI_CLUSTER},
    {"valkeys+cluster://", 1, 0, WEIR__URI_CLUSTER},
    {"redis+sentinel://", 0, 0, WEIR__URI_SENTINEL},
    {"rediss+sentinel://", 1, 0, WEIR__URI_SENTINEL},
    {"valkey+sentinel://", 0, 0, WEIR__URI_SENTINEL},
    {"valkeys+sentinel://", 1, 0, WEIR__URI_SENTINEL},
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The first c in [from, to), or NULL. */
static const char *find(const char *from, const char *to, char c)
{
    while (from < to && *from != c) {
        from++;
    }
    return from < to ? from : NULL;
}

/* Decodes [from, to) into out, terminated. A NUL or another control character can't be meant in any part. */
static int decode(const char *from, const char *to, char *out, size_t size)
{
    size_t n = 0;
    while (from < to) {
        unsigned char c = (unsigned char)*from++;
        if (c == '%') {
            if (to - from < 2 || hex_digit(from[0]) < 0 || hex_digit(from[1]) < 0) {
                return WEIR_E_URI;
            }
            c = (unsigned char)(hex_digit(from[0]) * 16 + hex_digit(from[1]));
            from += 2;
        }
        if (c < 0x20 || c == 0x7f || n + 1 >= size) {
            return WEIR_E_URI;
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return 0;
}

/* Digits only: no sign, no space, no more than max. */
static int parse_number(const char *from, const char *to, uint32_t max, uint32_t *out)
{
    uint64_t value = 0;
    if (from == to) {
        return WEIR_E_URI;
    }
    for (; from < to; from++) {
        if (*from < '0' || *from > '9') {
            return WEIR_E_URI;
        }
        value = value * 10 + (uint64_t)(*from - '0');
        if (value > max) {
            return WEIR_E_URI;
        }
    }
    *out = (uint32_t)value;
    return 0;
}

/* user[:password], of which either may be empty. */
static int parse_login(const char *from, const char *to, struct weir__uri *out)
{
    const char *colon = find(from, to, ':');
    const char *user_end = colon ? colon : to;
    out->has_user = user_end > from;
    out->has_password = colon != NULL;
    int status = decode(from, user_end, out->user, sizeof out->user);
    if (status == 0 && colon) {
        status = decode(colon + 1, to, out->password, sizeof out->password);
    }
    return status;
}

/* host[:port], [v6]:port, or nothing for localhost. */
static int parse_host(const char *from, const char *to, uint16_t preset, struct weir__uri_host *out)
{
    static const char localhost[] = "localhost";
    const char *end;
    out->port = preset;
    if (from < to && *from == '[') {
        from++;
        end = find(from, to, ']');
        if (!end || end == from || !find(from, end, ':')) {
            return WEIR_E_URI;
        }
    } else {
        end = find(from, to, ':');
        end = end ? end : to;
    }
    int status = from == end ? decode(localhost, localhost + sizeof localhost - 1, out->host, sizeof out->host)
                             : decode(from, end, out->host, sizeof out->host);
    if (status != 0 || strpbrk(out->host, " /")) {
        return WEIR_E_URI;
    }
    end += end < to && *end == ']';
    if (end < to) {
        uint32_t port;
        if (*end != ':' || parse_number(end + 1, to, 65535, &port) != 0 || port == 0) {
            return WEIR_E_URI;
        }
        out->port = (uint16_t)port;
    }
    return 0;
}

/* The only parameter that means something is db=N. */
static int parse_query(const char *from, const char *to, struct weir__uri *out)
{
    if (to - from < 4 || memcmp(from, "db=", 3) != 0) {
        return WEIR_E_URI;
    }
    return parse_number(from + 3, to, DB_MAX, &out->db);
}

static int parse_unix(const char *from, const char *to, struct weir__uri *out)
{
    if (from == to || *from != '/') {
        return WEIR_E_URI;
    }
    return decode(from, to, out->path, sizeof out->path);
}

static void take_host(struct weir__uri *out, const struct weir__uri_host *host)
{
    memcpy(out->host, host->host, sizeof out->host);
    out->port = host->port;
}

/* host[:port], ... of a cluster or of Sentinels. */
static int parse_seeds(const char *from, const char *to, uint16_t preset, struct weir__uri *out)
{
    for (const char *end = NULL; end != to; from = end + 1) {
        end = find(from, to, ',');
        end = end ? end : to;
        if (from == end || out->seed_count == WEIR__URI_SEEDS ||
            parse_host(from, end, preset, &out->seeds[out->seed_count]) != 0) {
            return WEIR_E_URI;
        }
        out->seed_count++;
    }
    take_host(out, &out->seeds[0]);
    return 0;
}

/* A cluster has database 0 alone. */
static int parse_cluster(const char *from, const char *to, struct weir__uri *out)
{
    return *to == '?' || find(from, to, '/') ? WEIR_E_URI : parse_seeds(from, to, DEFAULT_PORT, out);
}

static int parse_sentinel(const char *from, const char *to, struct weir__uri *out)
{
    const char *slash = find(from, to, '/');
    const char *second = slash ? find(slash + 1, to, '/') : NULL;
    const char *end = second ? second : to;
    if (!slash || slash + 1 == end || (second && *to == '?') ||
        decode(slash + 1, end, out->service, sizeof out->service) != 0) {
        return WEIR_E_URI;
    }
    if (second && parse_number(second + 1, to, DB_MAX, &out->db) != 0) {
        return WEIR_E_URI;
    }
    return parse_seeds(from, slash, SENTINEL_PORT, out);
}

static int parse_tcp(const char *from, const char *to, struct weir__uri *out)
{
    const char *slash = find(from, to, '/');
    struct weir__uri_host host = {.port = 0};
    int status = parse_host(from, slash ? slash : to, DEFAULT_PORT, &host);
    take_host(out, &host);
    if (status == 0 && slash && slash + 1 < to) {
        if (*to == '?') {
            return WEIR_E_URI; /* two places name a database */
        }
        status = parse_number(slash + 1, to, DB_MAX, &out->db);
    }
    return status;
}

static int parse(const char *text, struct weir__uri *out)
{
    const size_t n = sizeof schemes / sizeof schemes[0];
    size_t i = 0;
    while (i < n && strncasecmp(text, schemes[i].scheme, strlen(schemes[i].scheme)) != 0) {
        i++;
    }
    if (i == n) {
        return WEIR_E_URI;
    }
    out->tls = schemes[i].tls;
    out->kind = schemes[i].kind;
    const char *from = text + strlen(schemes[i].scheme);
    const char *to = from + strcspn(from, "?#");
    if (*to == '#' || (*to == '?' && strchr(to + 1, '#'))) {
        return WEIR_E_URI;
    }
    int status = *to == '?' ? parse_query(to + 1, to + strlen(to), out) : 0;
    /* A slash ends the login: an '@' further on belongs to a path. */
    const char *authority_end = find(from, to, '/');
    authority_end = authority_end ? authority_end : to;
    const char *at = find(from, authority_end, '@');
    if (status == 0 && at) {
        if (find(at + 1, authority_end, '@')) {
            return WEIR_E_URI; /* an '@' in a password must be encoded: which one ends it would be a guess */
        }
        status = parse_login(from, at, out);
        from = at + 1;
    }
    if (status != 0) {
        return status;
    }
    switch (schemes[i].kind) {
    case WEIR__URI_CLUSTER: return parse_cluster(from, to, out);
    case WEIR__URI_SENTINEL: return parse_sentinel(from, to, out);
    default: return schemes[i].is_unix ? parse_unix(from, to, out) : parse_tcp(from, to, out);
    }
}

int weir__uri_parse(const char *text, struct weir__uri *out)
{
    memset(out, 0, sizeof *out);
    int status = parse(text ? text : "redis://127.0.0.1:6379", out);
    if (status != 0) {
        weir__uri_wipe(out);
    }
    return status;
}

int weir__uri_login(struct weir__uri *uri, const char *user, const char *password)
{
    if ((user && strlen(user) >= sizeof uri->user) || (password && strlen(password) >= sizeof uri->password)) {
        return WEIR_E_RANGE;
    }
    if (user) {
        memset(uri->user, 0, sizeof uri->user);
        memcpy(uri->user, user, strlen(user));
        uri->has_user = *user != '\0';
    }
    if (password) {
        memset(uri->password, 0, sizeof uri->password);
        memcpy(uri->password, password, strlen(password));
        uri->has_password = 1;
    }
    return 0;
}

const char *weir__uri_print(const struct weir__uri *uri, char *buf, size_t len)
{
    if (len == 0) {
        return "";
    }
    if (uri->path[0]) {
        snprintf(buf, len, "unix:%s", uri->path);
    } else {
        snprintf(buf, len, strchr(uri->host, ':') ? "[%s]:%u" : "%s:%u", uri->host, uri->port);
    }
    return buf;
}

void weir__uri_wipe(struct weir__uri *uri)
{
    /* Through volatile: nobody reads it afterwards, so a plain memset may be left out. */
    volatile unsigned char *byte = (volatile unsigned char *)uri;
    for (size_t i = 0; i < sizeof *uri; i++) {
        byte[i] = 0;
    }
}
