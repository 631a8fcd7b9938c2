/* SPDX-License-Identifier: MIT */
/* See accuracy_proxy.h. Commands are EVALSHA; what sets a connection up passes. */
#include "accuracy_proxy.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "harness.h"
#include "support/resp.h"
#include "tools/process.h"

enum { PAIRS = 64, ROOM = 1 << 18, PENDING = 1024 };

struct stream {
    int fd;
    size_t len;
    char bytes[ROOM];
};

/* A connection and its other half. */
struct pair {
    struct stream client, server;
    /* of the commands under way, in order: is its answer to be lost? */
    unsigned char lose[PENDING];
    unsigned head, count;
};

struct proxy {
    int listener;
    double loss;
    const char *upstream;
    uint64_t random;
    _Atomic uint64_t *lost;
    struct pair *pairs[PAIRS];
};

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 64) != 0) {
        bench_die("cannot listen at %s", path);
    }
    return fd;
}

static void end_pair(struct proxy *proxy, int i)
{
    close(proxy->pairs[i]->client.fd);
    close(proxy->pairs[i]->server.fd);
    free(proxy->pairs[i]);
    proxy->pairs[i] = NULL;
}

static void accept_pair(struct proxy *proxy)
{
    int client = accept(proxy->listener, NULL, NULL), server, i = 0;
    while (i < PAIRS && proxy->pairs[i]) {
        i++;
    }
    server = client >= 0 && i < PAIRS ? connect_to(proxy->upstream) : -1;
    if (server < 0) {
        if (client >= 0) {
            close(client);
        }
        return;
    }
    proxy->pairs[i] = bench_alloc(sizeof *proxy->pairs[i]);
    proxy->pairs[i]->client.fd = client;
    proxy->pairs[i]->server.fd = server;
    proxy->pairs[i]->client.len = proxy->pairs[i]->server.len = 0;
    proxy->pairs[i]->head = proxy->pairs[i]->count = 0;
}

static int send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return -1;
        }
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

static int strikes(struct proxy *proxy)
{
    return (double)(bench_random(&proxy->random) >> 11) * 0x1p-53 < proxy->loss;
}

static int is_batch(const char *bytes, size_t len)
{
    struct resp_word word;
    return resp_words(bytes, len, &word, 1) > 0 && word.len == 7 && memcmp(word.bytes, "EVALSHA", 7) == 0;
}

/* One whole message from the client, or to it. -1: it is lost, and the connection with it. */
static int pass_command(struct proxy *proxy, struct pair *pair, const char *bytes, size_t len)
{
    int batch = is_batch(bytes, len);
    if (batch && strikes(proxy)) {
        atomic_fetch_add_explicit(&proxy->lost[0], 1, memory_order_relaxed);
        return -1;
    }
    if (pair->count == PENDING) {
        return -1;
    }
    pair->lose[(pair->head + pair->count++) % PENDING] = batch && strikes(proxy);
    return send_all(pair->server.fd, bytes, len);
}

static int pass_answer(struct proxy *proxy, struct pair *pair, const char *bytes, size_t len)
{
    if (pair->count > 0) {
        int lose = pair->lose[pair->head % PENDING];
        pair->head++;
        pair->count--;
        if (lose) {
            atomic_fetch_add_explicit(&proxy->lost[1], 1, memory_order_relaxed);
            return -1;
        }
    }
    return send_all(pair->client.fd, bytes, len);
}

static int pump(struct proxy *proxy, struct pair *pair, struct stream *from)
{
    ssize_t got = read(from->fd, from->bytes + from->len, ROOM - from->len);
    size_t at = 0;
    if (got <= 0) {
        return -1;
    }
    from->len += (size_t)got;
    for (;;) {
        long len = resp_length(from->bytes + at, from->len - at);
        if (len < 0 || (len == 0 && at == 0 && from->len == ROOM)) {
            return -1;
        }
        if (len == 0) {
            break;
        }
        int status = from == &pair->client ? pass_command(proxy, pair, from->bytes + at, (size_t)len)
                                           : pass_answer(proxy, pair, from->bytes + at, (size_t)len);
        if (status != 0) {
            return -1;
        }
        at += (size_t)len;
    }
    memmove(from->bytes, from->bytes + at, from->len - at);
    from->len -= at;
    return 0;
}

static void serve(struct proxy *proxy)
{
    struct pollfd fds[1 + 2 * PAIRS];
    int owner[1 + 2 * PAIRS];
    for (;;) {
        nfds_t n = 1;
        fds[0] = (struct pollfd){.fd = proxy->listener, .events = POLLIN};
        for (int i = 0; i < PAIRS; i++) {
            if (proxy->pairs[i]) {
                fds[n] = (struct pollfd){.fd = proxy->pairs[i]->client.fd, .events = POLLIN};
                owner[n++] = i;
                fds[n] = (struct pollfd){.fd = proxy->pairs[i]->server.fd, .events = POLLIN};
                owner[n++] = i;
            }
        }
        if (poll(fds, n, -1) < 0) {
            continue;
        }
        for (nfds_t j = 1; j < n; j++) {
            struct pair *pair = proxy->pairs[owner[j]];
            if (!fds[j].revents || !pair) {
                continue;
            }
            if (pump(proxy, pair, fds[j].fd == pair->client.fd ? &pair->client : &pair->server) != 0) {
                end_pair(proxy, owner[j]);
            }
        }
        if (fds[0].revents) {
            accept_pair(proxy);
        }
    }
}

void accuracy_proxy_open(struct accuracy_proxy *proxy, const char *upstream, double loss)
{
    struct proxy own = {.loss = loss, .upstream = upstream, .random = 4711};
    snprintf(proxy->socket, sizeof proxy->socket, "%s.lossy", upstream);
    own.listener = listen_at(proxy->socket);
    proxy->lost = mmap(NULL, 2 * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (proxy->lost == MAP_FAILED) {
        bench_die("no memory to share");
    }
    own.lost = proxy->lost;
    proxy->pid = process_fork();
    if (proxy->pid < 0) {
        bench_die("fork failed");
    }
    if (proxy->pid == 0) {
        serve(&own);
    }
    close(own.listener);
}

void accuracy_proxy_close(struct accuracy_proxy *proxy)
{
    kill(proxy->pid, SIGKILL);
    process_end(proxy->pid, 1000);
    unlink(proxy->socket);
    munmap(proxy->lost, 2 * sizeof(uint64_t));
}
