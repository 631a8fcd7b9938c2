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

enum fate { PASS, UNHEARD, SWALLOWED };

/* A command under way. */
struct command {
    enum fate fate;
    uint64_t due; /* when its place in line is free, at the earliest */
};

/* A connection and its other half. */
struct pair {
    struct stream client, server;
    struct command line[PENDING]; /* a ring */
    unsigned head, count;
};

struct proxy {
    int listener;
    double loss;
    uint64_t late_ns;
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

static int take_command(struct proxy *proxy, struct pair *pair, const char *bytes, size_t len)
{
    struct command command = {.fate = PASS};
    if (pair->count == PENDING) {
        return -1;
    }
    if (is_batch(bytes, len)) {
        command.fate = strikes(proxy) ? SWALLOWED : strikes(proxy) ? UNHEARD : PASS;
    }
    if (command.fate != PASS) {
        command.due = bench_clock_ns() + proxy->late_ns;
        atomic_fetch_add_explicit(&proxy->lost[command.fate == UNHEARD], 1, memory_order_relaxed);
    }
    pair->line[(pair->head + pair->count++) % PENDING] = command;
    return command.fate == SWALLOWED ? 0 : send_all(pair->server.fd, bytes, len);
}

/* All whole commands that the client sent. */
static int take_commands(struct proxy *proxy, struct pair *pair)
{
    struct stream *from = &pair->client;
    size_t at = 0;
    long len;
    while ((len = resp_length(from->bytes + at, from->len - at)) > 0) {
        if (take_command(proxy, pair, from->bytes + at, (size_t)len) != 0) {
            return -1;
        }
        at += (size_t)len;
    }
    memmove(from->bytes, from->bytes + at, from->len - at);
    from->len -= at;
    return len < 0 || from->len == ROOM ? -1 : 0;
}

/* All answers whose turn and time have come. */
static int give_answers(struct pair *pair)
{
    static const char error[] = "-ERR lost\r\n";
    struct stream *from = &pair->server;
    size_t at = 0;
    long len = 0;
    while (pair->count > 0) {
        struct command *command = &pair->line[pair->head % PENDING];
        if (command->due > bench_clock_ns()) {
            break;
        }
        len = 0;
        if (command->fate != SWALLOWED && (len = resp_length(from->bytes + at, from->len - at)) <= 0) {
            break;
        }
        if (command->fate == PASS ? send_all(pair->client.fd, from->bytes + at, (size_t)len)
                                  : send_all(pair->client.fd, error, sizeof error - 1)) {
            return -1;
        }
        at += (size_t)len;
        pair->head++;
        pair->count--;
    }
    memmove(from->bytes, from->bytes + at, from->len - at);
    from->len -= at;
    return len < 0 || from->len == ROOM ? -1 : 0;
}

static int receive(struct stream *from)
{
    ssize_t got = read(from->fd, from->bytes + from->len, ROOM - from->len);
    from->len += got > 0 ? (size_t)got : 0;
    return got > 0 ? 0 : -1;
}

/* What poll saw of a pair. */
static void pump(struct proxy *proxy, int i, int from_client, int from_server)
{
    struct pair *pair = proxy->pairs[i];
    if ((from_client && (receive(&pair->client) != 0 || take_commands(proxy, pair) != 0)) ||
        (from_server && receive(&pair->server) != 0) || give_answers(pair) != 0) {
        end_pair(proxy, i);
    }
}

static void serve(struct proxy *proxy)
{
    struct pollfd fds[1 + 2 * PAIRS];
    for (;;) {
        fds[0] = (struct pollfd){.fd = proxy->listener, .events = POLLIN};
        for (int i = 0; i < PAIRS; i++) {
            const struct pair *pair = proxy->pairs[i]; /* poll skips what is negative */
            fds[1 + 2 * i] = (struct pollfd){.fd = pair ? pair->client.fd : -1, .events = POLLIN};
            fds[2 + 2 * i] = (struct pollfd){.fd = pair ? pair->server.fd : -1, .events = POLLIN};
        }
        if (poll(fds, 1 + 2 * PAIRS, 2) < 0) {
            continue;
        }
        for (int i = 0; i < PAIRS; i++) {
            if (proxy->pairs[i]) {
                pump(proxy, i, fds[1 + 2 * i].revents != 0, fds[2 + 2 * i].revents != 0);
            }
        }
        if (fds[0].revents) {
            accept_pair(proxy);
        }
    }
}

void accuracy_proxy_open(struct accuracy_proxy *proxy, const char *upstream, double loss, unsigned late_ms)
{
    struct proxy own = {.loss = loss, .late_ns = late_ms * UINT64_C(1000000), .upstream = upstream, .random = 4711};
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
