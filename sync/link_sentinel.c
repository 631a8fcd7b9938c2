/* SPDX-License-Identifier: MIT */
/*
 * Where the master is: each of the URI's Sentinels is asked in turn, at every connect, until one names a master that
 * proves to be it. Owns whom to ask next; the connection it asks on is the link's own (link.c), which then goes on to
 * the master.
 */
#include <stdio.h>
#include <string.h>

#include "sync/link_state.h"

static void take_host(struct weir__link *link, const char *host, uint16_t port)
{
    memmove(link->uri.host, host, strlen(host) + 1);
    link->uri.port = port;
}

void weir__link_ask_first(struct weir__link *link)
{
    const struct weir__uri_host *seed = &link->uri.seeds[link->seed];
    link->asking = 1;
    link->offered_login = 0;
    link->seeds_left = link->uri.seed_count - 1;
    take_host(link, seed->host, seed->port);
}

int weir__link_ask_next(struct weir__link *link)
{
    if (link->seeds_left == 0) {
        return 0;
    }
    unsigned left = link->seeds_left - 1;
    link->seed = (link->seed + 1) % link->uri.seed_count;
    weir__link_ask_first(link);
    link->seeds_left = left;
    return 1;
}

void weir__link_ask(struct weir__link *link)
{
    const char *words[] = {"SENTINEL", "GET-MASTER-ADDR-BY-NAME", link->uri.service};
    size_t lengths[] = {8, 23, strlen(link->uri.service)};
    weir__link_send_own(link, WEIR__ASK, 0, 3, words, lengths);
}

/* "::1" and "6379" as Sentinel tells them. */
static int read_address(struct weir__link *link, const struct redisReply *reply)
{
    const struct redisReply *host = weir__adapter_element(reply, 0), *port = weir__adapter_element(reply, 1);
    size_t host_len = 0, port_len = 0;
    const char *host_text = host ? weir__adapter_string(host, &host_len) : NULL;
    const char *port_text = port ? weir__adapter_string(port, &port_len) : NULL;
    unsigned number = 0;
    if (!host_text || !port_text || host_len == 0 || host_len >= sizeof link->uri.host || port_len > 5 ||
        memchr(host_text, '\0', host_len)) {
        return -1;
    }
    for (size_t i = 0; i < port_len; i++) {
        if (port_text[i] < '0' || port_text[i] > '9') {
            return -1;
        }
        number = number * 10 + (unsigned)(port_text[i] - '0');
    }
    if (number == 0 || number > 65535) {
        return -1;
    }
    memcpy(link->master.host, host_text, host_len);
    link->master.host[host_len] = '\0';
    link->master.port = (uint16_t)number;
    return 0;
}

void weir__link_told(struct weir__link *link, const struct redisReply *reply)
{
    size_t len = 0;
    const char *error = weir__adapter_error(reply, &len);
    enum weir__link_kind kind = error ? weir__link_classify(error, len) : WEIR__LINK_OK;
    if (kind == WEIR__LINK_NOAUTH && !link->offered_login && link->uri.has_password) {
        link->offered_login = 1;
        weir__link_login(link);
        weir__link_ask(link);
    } else if (error) {
        weir__link_count(link, kind);
        weir__link_leave(link, kind, kind == WEIR__LINK_NOAUTH ? "the Sentinel wants a password" : error);
    } else if (read_address(link, reply) != 0) {
        weir__link_leave(link, WEIR__LINK_RESOLVE, "this Sentinel knows no such master");
    } else {
        weir__link_leave(link, WEIR__LINK_OK, "told");
    }
}

void weir__link_go_to_master(struct weir__link *link)
{
    link->asking = 0;
    take_host(link, link->master.host, link->master.port);
}

void weir__link_check_role(struct weir__link *link, const struct redisReply *reply)
{
    const struct redisReply *first = weir__adapter_element(reply, 0);
    size_t len = 0;
    const char *role = first ? weir__adapter_string(first, &len) : NULL;
    if (!role) {
        weir__link_leave(link, WEIR__LINK_PROTOCOL, "not an answer to the greeting");
    } else if (len != 6 || memcmp(role, "master", 6) != 0) {
        weir__link_count(link, WEIR__LINK_READONLY);
        weir__link_leave(link, WEIR__LINK_READONLY, "not the master, or not yet");
    }
}
