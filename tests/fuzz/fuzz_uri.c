/* SPDX-License-Identifier: MIT */
/*
 * The URI of Redis: what parses is whole, what does not leaves nothing behind, and what is printed is no secret.
 */
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "sync/uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds) {
        abort();
    }
}

static int is_wiped(const struct weir__uri *uri)
{
    for (size_t i = 0; i < sizeof *uri; i++) {
        if (((const unsigned char *)uri)[i]) {
            return 0;
        }
    }
    return 1;
}

static int is_text(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && text[n]) {
        if ((unsigned char)text[n] < 0x20 || text[n] == 0x7f) {
            return 0;
        }
        n++;
    }
    return n < size;
}

static void check(const struct weir__uri *uri)
{
    char line[600], again[600];
    struct weir__uri other;
    must(is_text(uri->host, sizeof uri->host) && is_text(uri->path, sizeof uri->path));
    must(is_text(uri->user, sizeof uri->user) && is_text(uri->password, sizeof uri->password));
    must(is_text(uri->service, sizeof uri->service));
    must(!uri->host[0] == (uri->path[0] == '/'));
    must(uri->path[0] || uri->port > 0);
    must((uri->kind == WEIR__URI_SERVER) == (uri->seed_count == 0) && uri->seed_count <= WEIR__URI_SEEDS);
    must((uri->kind == WEIR__URI_SENTINEL) == (uri->service[0] != '\0'));
    for (unsigned i = 0; i < uri->seed_count; i++) {
        must(uri->seeds[i].host[0] && uri->seeds[i].port > 0 && is_text(uri->seeds[i].host, sizeof uri->seeds[i].host));
    }
    must(strlen(weir__uri_print(uri, line, sizeof line)) < sizeof line);
    /* what is printed is the same whatever the password is */
    other = *uri;
    memset(other.password, 'x', strlen(other.password));
    must(strcmp(line, weir__uri_print(&other, again, sizeof again)) == 0);
    weir__uri_wipe(&other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct weir__uri uri;
    char *text = malloc(size + 1);
    if (!text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    memset(&uri, 0xff, sizeof uri);
    if (weir__uri_parse(text, &uri) == 0) {
        check(&uri);
        weir__uri_wipe(&uri);
    }
    must(is_wiped(&uri));
    free(text);
    return 0;
}
