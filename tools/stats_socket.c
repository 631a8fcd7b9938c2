/* SPDX-License-Identifier: MIT */
/* Owns a connection to a stats socket and the syntax of its lines. */
#include "tools/stats_socket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define TIMEOUT_S 5
#define ROOM_FIRST 65536u
#define ROOM_MOST (16u << 20)

static int fail(struct stats_socket *s, const char *what)
{
    snprintf(s->error, sizeof s->error, "%s: %s", what, errno == EAGAIN ? "no answer" : strerror(errno));
    return -1;
}

int stats_socket_open(struct stats_socket *s, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = TIMEOUT_S};
    *s = (struct stats_socket){.fd = -1, .room = ROOM_FIRST};
    errno = ENAMETOOLONG;
    if (strlen(path) >= sizeof address.sun_path) {
        return fail(s, path);
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    s->text = malloc(s->room);
    s->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!s->text || s->fd < 0 || setsockopt(s->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0 ||
        connect(s->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        fail(s, path);
        stats_socket_close(s);
        return -1;
    }
    return 0;
}

void stats_socket_close(struct stats_socket *s)
{
    if (s->fd >= 0) {
        close(s->fd);
    }
    free(s->text);
    s->fd = -1;
    s->text = NULL;
}

static int make_room(struct stats_socket *s)
{
    if (s->used + 1 < s->room) {
        return 0;
    }
    char *more = s->room < ROOM_MOST ? realloc(s->text, 2 * s->room) : NULL;
    if (!more) {
        errno = ENOMEM;
        return fail(s, "the answer");
    }
    s->text = more;
    s->room *= 2;
    return 0;
}

static int is_whole(const struct stats_socket *s)
{
    static const char end[] = "end\n";
    size_t n = sizeof end - 1;
    return s->used >= n && memcmp(s->text + s->used - n, end, n) == 0 &&
           (s->used == n || s->text[s->used - n - 1] == '\n');
}

int stats_socket_ask(struct stats_socket *s, const char *line)
{
    s->used = 0;
    if (send(s->fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line)) {
        return fail(s, "the process");
    }
    while (!is_whole(s)) {
        if (make_room(s) != 0) {
            return -1;
        }
        ssize_t n = recv(s->fd, s->text + s->used, s->room - 1 - s->used, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            errno = n == 0 ? ECONNRESET : errno;
            return fail(s, "the process");
        }
        s->used += (size_t)n;
    }
    s->text[s->used] = '\0';
    for (char *at = s->text; (at = strchr(at, '\n')) != NULL; at++) {
        *at = '\0';
    }
    return 0;
}

const char *stats_socket_next(const struct stats_socket *s, const char *line)
{
    line = line ? line + strlen(line) + 1 : s->text;
    return line < s->text + s->used && strcmp(line, "end") != 0 ? line : NULL;
}

int stats_line_is(const char *line, const char *kind)
{
    size_t n = strlen(kind);
    return strncmp(line, kind, n) == 0 && line[n] == ' ';
}

static const char *find(const char *line, const char *name)
{
    size_t n = strlen(name);
    for (; line; line = strchr(line, ' ')) {
        line += *line == ' ';
        if (strncmp(line, name, n) == 0 && line[n] == '=') {
            return line + n + 1;
        }
    }
    return NULL;
}

double stats_line_number(const char *line, const char *name)
{
    const char *value = find(line, name);
    return value ? strtod(value, NULL) : 0;
}

char *stats_line_text(const char *line, const char *name, char *out, size_t size)
{
    const char *value = find(line, name);
    int len = value ? (int)strcspn(value, " ") : 0;
    snprintf(out, size, "%.*s", len, value ? value : "");
    return out;
}
