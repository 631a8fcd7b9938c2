/* SPDX-License-Identifier: MIT */
/*
 * Keys made of IP addresses. Owns their spelling, which is part of what the fleet shares, so it is written here and not
 * by whatever C library a machine has. Knows no bucket.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include <weir/http.h>

#define GROUPS 8 /* of an IPv6 address, 16 bits each */

static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff}; /* ::ffff:0:0/96 */

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static char *put_number(char *out, unsigned n, unsigned base)
{
    char digits[8];
    size_t have = 0;

    do {
        digits[have++] = "0123456789abcdef"[n % base];
        n /= base;
    } while (n > 0);
    while (have > 0)
        *out++ = digits[--have];
    return out;
}

/* Clears the bits past the prefix. */
static void mask(unsigned char *bytes, size_t size, unsigned prefix)
{
    for (size_t i = 0; i < size; i++) {
        unsigned bits = prefix > 8 * i ? prefix - 8 * (unsigned)i : 0;

        if (bits < 8)
            bytes[i] &= (unsigned char)(0xff00u >> bits);
    }
}

/* The end of the key: its prefix where bits were cleared. Returns the length. */
static int finish(char *start, char *out, unsigned prefix, unsigned whole)
{
    if (prefix < whole) {
        *out++ = '/';
        out = put_number(out, prefix, 10);
    }
    *out = '\0';
    return (int)(out - start);
}

static int write4(const unsigned char *from, unsigned prefix, char *start)
{
    unsigned char bytes[4];
    char *out = start;

    memcpy(bytes, from, sizeof bytes);
    mask(bytes, sizeof bytes, prefix);
    for (size_t i = 0; i < sizeof bytes; i++) {
        if (i > 0)
            *out++ = '.';
        out = put_number(out, bytes[i], 10);
    }
    return finish(start, out, prefix, 32);
}

/* The longest run of two zero groups and more, the first of equals: RFC 5952 writes it as "::". */
static void find_zeros(const unsigned *groups, unsigned *at, unsigned *count)
{
    *at = GROUPS;
    *count = 1;
    for (unsigned i = 0, run; i < GROUPS; i += run + 1) {
        for (run = 0; i + run < GROUPS && groups[i + run] == 0;)
            run++;
        if (run > *count) {
            *at = i;
            *count = run;
        }
    }
}

static int write6(const unsigned char *from, unsigned prefix, char *start)
{
    unsigned char bytes[16];
    unsigned groups[GROUPS], zeros, count;
    char *out = start;

    memcpy(bytes, from, sizeof bytes);
    mask(bytes, sizeof bytes, prefix);
    for (size_t i = 0; i < GROUPS; i++)
        groups[i] = (unsigned)bytes[2 * i] << 8 | bytes[2 * i + 1];
    find_zeros(groups, &zeros, &count);
    for (unsigned i = 0; i < GROUPS; i++) {
        if (i == zeros) {
            *out++ = ':';
            *out++ = ':';
            i += count - 1;
            continue;
        }
        if (i > 0 && out[-1] != ':')
            *out++ = ':';
        out = put_number(out, groups[i], 16);
    }
    return finish(start, out, prefix, 128);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* 16 bytes, or 4 where `four`. */
static int write_key(const unsigned char *bytes, bool four, unsigned prefix4, unsigned prefix6, char *out)
{
    if (prefix4 > 32 || prefix6 > 128)
        return WEIR_E_RANGE;
    if (!four && memcmp(bytes, mapped, sizeof mapped) == 0) {
        bytes += sizeof mapped;
        four = true;
    }
    if (four)
        return write4(bytes, prefix4 ? prefix4 : 32, out);
    return write6(bytes, prefix6 ? prefix6 : 64, out);
}

int weir_http_ip_key(const struct sockaddr *addr, unsigned prefix4, unsigned prefix6, char out[WEIR_HTTP_IP_KEY_MAX])
{
    const unsigned char *at = (const unsigned char *)addr; /* not always aligned as the structs below are */
    unsigned char bytes[16];
    sa_family_t family;

    if (!out)
        return WEIR_E_INVAL;
    out[0] = '\0';
    if (!addr)
        return WEIR_E_INVAL;
    memcpy(&family, at + offsetof(struct sockaddr, sa_family), sizeof family);
    if (family == AF_INET)
        memcpy(bytes, at + offsetof(struct sockaddr_in, sin_addr), 4);
    else if (family == AF_INET6)
        memcpy(bytes, at + offsetof(struct sockaddr_in6, sin6_addr), 16);
    else
        return WEIR_E_NOSUP;
    return write_key(bytes, family == AF_INET, prefix4, prefix6, out);
}

struct span {
    const char *at;
    size_t len;
};

static void trim(struct span *s)
{
    while (s->len > 0 && (*s->at == ' ' || *s->at == '\t')) {
        s->at++;
        s->len--;
    }
    while (s->len > 0 && (s->at[s->len - 1] == ' ' || s->at[s->len - 1] == '\t'))
        s->len--;
}

/* ":1" to ":65535". */
static bool is_port(const char *at, size_t len)
{
    unsigned long port = 0;

    if (len < 2 || len > 6 || *at != ':')
        return false;
    for (size_t i = 1; i < len; i++) {
        if (at[i] < '0' || at[i] > '9')
            return false;
        port = 10 * port + (unsigned long)(at[i] - '0');
    }
    return port <= 65535;
}

/* Leaves the address alone. False: what is around it makes no sense. */
static bool strip(struct span *s)
{
    const char *colon, *bracket;

    trim(s);
    if (s->len > 0 && *s->at == '[') {
        size_t inside;

        bracket = memchr(s->at, ']', s->len);
        if (!bracket)
            return false;
        inside = (size_t)(bracket - s->at) - 1;
        if (inside + 2 < s->len && !is_port(bracket + 1, s->len - inside - 2))
            return false;
        *s = (struct span){s->at + 1, inside};
        return memchr(s->at, ':', s->len) != NULL; /* IPv6 alone */
    }
    colon = memchr(s->at, ':', s->len);
    if (colon && !memchr(colon + 1, ':', s->len - (size_t)(colon - s->at) - 1)) {
        if (!is_port(colon, s->len - (size_t)(colon - s->at)))
            return false;
        s->len = (size_t)(colon - s->at);
    }
    return true;
}

int weir_http_ip_key_text(const char *text, size_t text_len, unsigned prefix4, unsigned prefix6,
                          char out[WEIR_HTTP_IP_KEY_MAX])
{
    struct span s = {text, text_len};
    char address[INET6_ADDRSTRLEN];
    unsigned char bytes[16];
    const char *scope;
    bool six;

    if (!out)
        return WEIR_E_INVAL;
    out[0] = '\0';
    if (!text || !strip(&s))
        return WEIR_E_INVAL;
    six = memchr(s.at, ':', s.len) != NULL;
    scope = six ? memchr(s.at, '%', s.len) : NULL;
    if (scope) {
        if (scope == s.at + s.len - 1)
            return WEIR_E_INVAL;
        s.len = (size_t)(scope - s.at);
    }
    if (s.len >= sizeof address || memchr(s.at, '\0', s.len))
        return WEIR_E_INVAL;
    memcpy(address, s.at, s.len);
    address[s.len] = '\0';
    if (inet_pton(six ? AF_INET6 : AF_INET, address, bytes) != 1)
        return WEIR_E_INVAL;
    return write_key(bytes, !six, prefix4, prefix6, out);
}
