/* SPDX-License-Identifier: MIT */
/*
 * What a cluster says of its slots, and whose a command's keys are. Pure: what a server sends is looked at byte by
 * byte, and nothing is believed that is not checked.
 */
#include <string.h>

#include <hiredis/hiredis.h>

#include "sync/cluster.h"
#include "sync/wire.h"

enum { KEY_WORD = 3 }; /* EVALSHA sha numkeys key */

/* Digits up to `end`, at most `most`; *at is moved behind them. -1: none, or too much. */
static long read_number(const char **at, const char *end, long most)
{
    long value = -1;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        value = (value < 0 ? 0 : value) * 10 + (**at - '0');
        if (value > most) {
            return -1;
        }
    }
    return value;
}

/* "$5\r\n": *at is moved behind it. -1: it is something else. */
static long read_length(const char **at, const char *end, char kind)
{
    if (*at >= end || **at != kind) {
        return -1;
    }
    ++*at;
    long value = read_number(at, end, end - *at < 1 << 30 ? 1 << 30 : end - *at);
    if (value < 0 || end - *at < 2 || (*at)[0] != '\r' || (*at)[1] != '\n') {
        return -1;
    }
    *at += 2;
    return value;
}

int weir__slots_of_command(const void *bytes, size_t len)
{
    const char *at = bytes, *end = at + len;
    long words = read_length(&at, end, '*');
    for (long i = 0; i < words; i++) {
        long n = read_length(&at, end, '$');
        if (n < 0 || n + 2 > end - at) {
            return -1;
        }
        if (i == KEY_WORD) {
            return (int)weir__wire_slot(at, (size_t)n);
        }
        at += n + 2;
    }
    return -1;
}

/* A name or an address: no more than fits, no control characters. */
static int take_host(const char *text, size_t len, struct weir__uri_host *out)
{
    if (len >= sizeof out->host) {
        return -1;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] <= 0x20 || text[i] == 0x7f) {
            return -1;
        }
    }
    memcpy(out->host, text, len);
    out->host[len] = '\0';
    return 0;
}

int weir__slots_redirection(const char *text, size_t len, unsigned *slot, struct weir__uri_host *to)
{
    const char *end = text + len, *at, *colon = end;
    long number;
    if (len > 6 && memcmp(text, "MOVED ", 6) == 0) {
        at = text + 6;
    } else if (len > 4 && memcmp(text, "ASK ", 4) == 0) {
        at = text + 4;
    } else {
        return -1;
    }
    number = read_number(&at, end, WEIR__CLUSTER_SLOTS - 1);
    if (number < 0 || at == end || *at++ != ' ') {
        return -1;
    }
    *slot = (unsigned)number;
    while (colon > at && colon[-1] != ':') {
        colon--; /* the last one: an IPv6 address has more */
    }
    if (colon == at || take_host(at, (size_t)(colon - 1 - at), to) != 0) {
        return -1;
    }
    number = read_number(&colon, end, 65535);
    if (number <= 0 || colon != end) {
        return -1;
    }
    to->port = (uint16_t)number;
    return 0;
}

int weir__slots_range(const struct redisReply *reply, struct weir__slots_range *out)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < 3) {
        return -1;
    }
    const struct redisReply *first = reply->element[0], *last = reply->element[1], *master = reply->element[2];
    if (first->type != REDIS_REPLY_INTEGER || last->type != REDIS_REPLY_INTEGER || first->integer < 0 ||
        last->integer >= WEIR__CLUSTER_SLOTS || first->integer > last->integer || master->type != REDIS_REPLY_ARRAY ||
        master->elements < 2) {
        return -1;
    }
    const struct redisReply *host = master->element[0], *port = master->element[1];
    if (port->type != REDIS_REPLY_INTEGER || port->integer < 1 || port->integer > 65535 ||
        (host->type != REDIS_REPLY_STRING && host->type != REDIS_REPLY_NIL)) {
        return -1;
    }
    out->first = (unsigned)first->integer;
    out->last = (unsigned)last->integer;
    out->master.port = (uint16_t)port->integer;
    if (host->type == REDIS_REPLY_NIL || (host->len == 1 && host->str[0] == '?')) {
        out->master.host[0] = '\0'; /* where the one who answers is */
        return 0;
    }
    return take_host(host->str, host->len, &out->master);
}
