/* SPDX-License-Identifier: MIT */
/*
 * redis-server under a guard. It is spoken to in plain RESP: a test of the link must not rest on what it tests.
 */
#include "support/redis_server.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "support/guard.h"
#include "support/port.h"

enum { ARGS_MAX = 100, STARTS_MAX = 5, WAIT_MS = 20000 };

struct redis_server {
    struct guard *guard;
    char socket[80], uri[96], tcp_uri[48], port_text[8], bus_text[8];
    int port, port_fd, bus_fd;      /* the ports are held while it does not run, too; -1: none */
    const char *args[ARGS_MAX + 1]; /* argv */
    char *owned[ARGS_MAX];          /* the caller's arguments, copied */
    int args_count, owned_count;
    const char *password;
};

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&ts, NULL);
}

/* ---- speaking to it ---------------------------------------------------------------------------------------------- */

static FILE *connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    FILE *stream = fdopen(fd, "r+");
    if (!stream) {
        guard_fail("fdopen: %s", strerror(errno));
    }
    return stream;
}

struct text {
    char bytes[256 * 1024];
    size_t len;
};

static void append(struct text *text, const char *bytes, size_t len)
{
    if (text->len + len >= sizeof text->bytes) {
        guard_fail("reply is too long for a test");
    }
    memcpy(text->bytes + text->len, bytes, len);
    text->len += len;
    text->bytes[text->len] = '\0';
}

/* One reply, appended as text. -1: the connection ended. */
static int read_reply(FILE *stream, struct text *out)
{
    char line[1024];
    if (!fgets(line, sizeof line, stream)) {
        return -1;
    }
    line[strcspn(line, "\r\n")] = '\0';
    long n = strtol(line + 1, NULL, 10);
    switch (line[0]) {
    case '+':
    case ':': append(out, line + 1, strlen(line + 1)); return 0;
    case '-': append(out, line, strlen(line)); return 0;
    case '$':
        if (n < 0) {
            append(out, "(nil)", 5);
            return 0;
        }
        for (long i = 0; i < n + 2; i++) {
            int c = getc(stream);
            char byte = (char)c;
            if (c == EOF) {
                return -1;
            }
            if (i < n) {
                append(out, &byte, 1);
            }
        }
        return 0;
    case '*':
        for (long i = 0; i < n; i++) {
            if (i > 0) {
                append(out, "\n", 1);
            }
            if (read_reply(stream, out) != 0) {
                return -1;
            }
        }
        return 0;
    default: guard_fail("not RESP: %s", line);
    }
}

/* Sends words, reads the answer into *out. */
static int exchange(FILE *stream, int n, const char *const *words, struct text *out)
{
    out->len = 0;
    out->bytes[0] = '\0';
    fprintf(stream, "*%d\r\n", n);
    for (int i = 0; i < n; i++) {
        fprintf(stream, "$%zu\r\n%s\r\n", strlen(words[i]), words[i]);
    }
    fflush(stream);
    fseek(stream, 0, SEEK_CUR); /* C asks for it between writing and reading */
    return read_reply(stream, out);
}

const char *redis_server_do(const struct redis_server *server, const char *word, ...)
{
    static struct text out;
    const char *words[64] = {word};
    int n = 1;
    va_list args;
    va_start(args, word);
    while (n < 64 && (words[n] = va_arg(args, const char *))) {
        n++;
    }
    va_end(args);
    FILE *stream = connect_to(server->socket);
    if (!stream) {
        guard_fail("%s: can't connect to redis-server", word);
    }
    const char *auth[] = {"AUTH", server->password};
    if ((server->password && exchange(stream, 2, auth, &out) != 0) || exchange(stream, n, words, &out) != 0) {
        guard_fail("%s: redis-server closed the connection", word);
    }
    fclose(stream);
    return out.bytes;
}

/* ---- its life ---------------------------------------------------------------------------------------------------- */

static int answers(const struct redis_server *server)
{
    static struct text out;
    const char *ping[] = {"PING"};
    FILE *stream = connect_to(server->socket);
    if (!stream) {
        return 0;
    }
    int ok = exchange(stream, 1, ping, &out) == 0 && strncmp(out.bytes, "-LOADING", 8) != 0;
    fclose(stream);
    return ok;
}

/* 0, or -1 where it ended at once: somebody took the port. */
static int start(struct redis_server *server)
{
    guard_run(server->guard, server->args);
    for (int ms = 0; ms < WAIT_MS; ms += 5) {
        if (answers(server)) {
            return 0;
        }
        if (guard_pid(server->guard) == 0) {
            return -1;
        }
        sleep_ms(5);
    }
    guard_fail("redis-server does not answer");
}

static void let_go(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

/* Others, where it has some already. */
static void choose_ports(struct redis_server *server, const struct redis_server_options *options)
{
    int port_fd = server->port_fd, bus_fd = server->bus_fd;
    if (options->tcp) {
        server->port = port_hold(&server->port_fd);
        snprintf(server->port_text, sizeof server->port_text, "%d", server->port);
        snprintf(server->tcp_uri, sizeof server->tcp_uri, "redis://127.0.0.1:%d", server->port);
    }
    if (options->cluster) {
        snprintf(server->bus_text, sizeof server->bus_text, "%d", port_hold(&server->bus_fd));
    }
    let_go(port_fd);
    let_go(bus_fd);
}

static void add(struct redis_server *server, const char *name, const char *value)
{
    if (server->args_count + 2 > ARGS_MAX) {
        guard_fail("too many arguments");
    }
    server->args[server->args_count++] = name;
    if (value) {
        server->args[server->args_count++] = value;
    }
}

static char *own(struct redis_server *server, const char *text)
{
    char *copy = strdup(text);
    if (!copy) {
        guard_fail("out of memory");
    }
    server->owned[server->owned_count++] = copy;
    return copy;
}

/* A Sentinel insists on a file that it can write to. */
static void add_sentinel(struct redis_server *server, const char *lines)
{
    char path[128];
    snprintf(path, sizeof path, "%s/sentinel.conf", guard_folder(server->guard));
    FILE *file = fopen(path, "w");
    if (!file || fputs(lines, file) < 0 || fclose(file) != 0) {
        guard_fail("%s: %s", path, strerror(errno));
    }
    add(server, own(server, path), NULL);
    add(server, "--sentinel", NULL);
}

static void add_caller_args(struct redis_server *server, const char *const *args)
{
    for (int i = 0; args && args[i]; i++) {
        char *copy = own(server, args[i]);
        add(server, copy, NULL);
        if (i > 0 && strcmp(args[i - 1], "--requirepass") == 0) {
            server->password = copy;
        }
    }
}

struct redis_server *redis_server_open(const struct redis_server_options *options)
{
    static const struct redis_server_options defaults;
    struct redis_server *server = calloc(1, sizeof *server);
    if (!server) {
        guard_fail("out of memory");
    }
    options = options ? options : &defaults;
    server->port_fd = server->bus_fd = -1;
    server->guard = guard_open();
    snprintf(server->socket, sizeof server->socket, "%s/redis.sock", guard_folder(server->guard));
    snprintf(server->uri, sizeof server->uri, "unix://%s", server->socket);
    strcpy(server->port_text, "0");
    add(server, "redis-server", NULL);
    if (options->sentinel) {
        add_sentinel(server, options->sentinel);
    }
    add(server, "--unixsocket", server->socket);
    add(server, "--dir", guard_folder(server->guard));
    add(server, "--port", server->port_text);
    add(server, "--bind", "127.0.0.1");
    add(server, "-::1", NULL); /* where there is one */
    if (!options->sentinel) {
        add(server, "--save", "");
        add(server, "--appendonly", options->persist ? "yes" : "no");
        add(server, "--appendfsync", "always");
    }
    if (options->cluster) {
        add(server, "--cluster-enabled", "yes");
        add(server, "--cluster-port", server->bus_text);
    }
    add_caller_args(server, options->args);
    for (int i = 0; i < STARTS_MAX; i++) {
        choose_ports(server, options);
        if (start(server) == 0) {
            return server;
        }
    }
    guard_fail("redis-server does not start: is it installed, are its arguments right?");
}

void redis_server_close(struct redis_server *server)
{
    if (server) {
        guard_close(server->guard);
        let_go(server->port_fd);
        let_go(server->bus_fd);
        for (int i = 0; i < server->owned_count; i++) {
            free(server->owned[i]);
        }
        free(server);
    }
}

const char *redis_server_socket(const struct redis_server *server)
{
    return server->socket;
}

const char *redis_server_uri(const struct redis_server *server)
{
    return server->uri;
}

const char *redis_server_tcp_uri(const struct redis_server *server)
{
    return server->port ? server->tcp_uri : NULL;
}

const char *redis_server_folder(const struct redis_server *server)
{
    return guard_folder(server->guard);
}

int redis_server_port(const struct redis_server *server)
{
    return server->port;
}

int redis_server_pid(const struct redis_server *server)
{
    return guard_pid(server->guard);
}

void redis_server_stop(struct redis_server *server)
{
    guard_signal(server->guard, SIGTERM, 1);
}

void redis_server_kill(struct redis_server *server)
{
    guard_signal(server->guard, SIGKILL, 1);
}

void redis_server_pause(struct redis_server *server)
{
    guard_signal(server->guard, SIGSTOP, 0);
}

void redis_server_resume(struct redis_server *server)
{
    guard_signal(server->guard, SIGCONT, 0);
}

void redis_server_restart(struct redis_server *server)
{
    redis_server_kill(server);
    for (int i = 0; i < STARTS_MAX; i++) {
        if (start(server) == 0) {
            return;
        }
        sleep_ms(50);
    }
    guard_fail("redis-server does not start again");
}
