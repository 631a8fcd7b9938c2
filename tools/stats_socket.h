/* SPDX-License-Identifier: MIT */
/*
 * The other end of a stats socket (docs/stats-socket.md): asks, and takes the answer apart. Owns the connection; must
 * not know what is shown.
 */
#ifndef WEIR_TOOLS_STATS_SOCKET_H
#define WEIR_TOOLS_STATS_SOCKET_H

#include <stddef.h>
#include <stdint.h>

struct stats_socket {
    int fd;
    char *text; /* the answer: lines, each a string */
    size_t room, used;
    char error[200];
};

/* 0, or -1 with `error` set and nothing left to close. */
int stats_socket_open(struct stats_socket *s, const char *path);
void stats_socket_close(struct stats_socket *s);

/* Sends a line and reads the answer up to its end. 0, or -1 with `error` set. */
int stats_socket_ask(struct stats_socket *s, const char *line);

/* Lines of the last answer, one after the other: NULL to begin with; NULL at the end. */
const char *stats_socket_next(const struct stats_socket *s, const char *line);

/* Is it a line of this kind ("policy")? */
int stats_line_is(const char *line, const char *kind);

/* A value of the line; 0 where it has none of that name. */
double stats_line_number(const char *line, const char *name);

/* The same as text, with its escapes; "" where there is none. Returns out. */
char *stats_line_text(const char *line, const char *name, char *out, size_t size);

#endif
