/* SPDX-License-Identifier: MIT */
/*
 * The commands of a connection that wait for their answers, first in, first out, which is the order of the answers.
 * Owns their memory; knows nothing of sockets and states.
 */
#ifndef WEIR_SYNC_LINE_H
#define WEIR_SYNC_LINE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/weir.h>

#include "sync/link.h"

/* What a command is for. All but USER are the link's own. */
enum weir__purpose { WEIR__USER, WEIR__LOGIN, WEIR__SELECT, WEIR__LOAD, WEIR__INSPECT, WEIR__ROLE, WEIR__ASK };

struct weir__command {
    struct weir__command *next;
    weir__link_cb cb;           /* NULL: answered for already, or the link's own */
    weir__link_late_cb on_late; /* NULL: nobody wants an answer after the deadline, or that has passed */
    void *arg;
    const void *bytes;
    size_t len;
    uint64_t deadline; /* by uv_hrtime; UINT64_MAX: none */
    uint64_t answers;  /* how many the link had got when this one was sent */
    enum weir__purpose purpose;
    uint8_t script;       /* WEIR__LOAD: which */
    uint8_t resent, late; /* late: its first deadline has passed */
};

struct weir__line {
    struct weir__command *head, *tail, *spare;
    unsigned length, own, loads; /* in line: all, the link's own, those that load a script */
    struct weir_allocator allocator;
};

void weir__line_init(struct weir__line *line, const struct weir_allocator *allocator);

/* Gives the memory back. Nothing may be in line. */
void weir__line_deinit(struct weir__line *line);

/* A zeroed command without a deadline, not in line yet; NULL: out of memory. */
struct weir__command *weir__line_take(struct weir__line *line);

/* Ends a command that is not in line. */
void weir__line_spare(struct weir__line *line, struct weir__command *command);

/* To the end of the line. */
void weir__line_append(struct weir__line *line, struct weir__command *command);

/* The first, out of line; NULL: nobody waits. */
struct weir__command *weir__line_next(struct weir__line *line);

#endif
