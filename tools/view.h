/* SPDX-License-Identifier: MIT */
/*
 * The live view: a frame of numbers drawn on a terminal with plain ANSI sequences, or said in a line where there is
 * none.
 *
 * Owns the terminal's state, which it restores on close and when the process crashes. Must not know where numbers come
 * from.
 */
#ifndef WEIR_TOOLS_VIEW_H
#define WEIR_TOOLS_VIEW_H

#include <stddef.h>
#include <stdint.h>

#define VIEW_EVENTS 4

struct view_row {
    double admitted, denied, degraded; /* a second */
    double sync_age;                   /* seconds; < 0: none yet */
    int store_up;
};

struct view_frame {
    double seconds;
    const char *mode;
    const char *redis; /* "up", "down", "frozen"; NULL: none is used */
    long redis_pid;
    const char *limit; /* "1000/s" */
    double limit_per_s;
    uint64_t burst;
    uint64_t admitted, denied, degraded;
    double perfect; /* what one bucket would have admitted by now */
    double overshoot, bound;
    struct view_row all;
    const struct view_row *rows;
    unsigned processes;
    const char *events[VIEW_EVENTS]; /* oldest first; NULL: none */
};

/* Takes the terminal: another screen, no cursor, keys unbuffered and unechoed. 0, or -1 where in or out is no terminal
 * (nothing is changed then). One view at a time. */
int view_open(int in, int out);
void view_draw(const struct view_frame *frame);
void view_close(void);

/* One line of the same, without a newline; returns its length as snprintf does. */
int view_line(const struct view_frame *frame, char *out, size_t size);

#endif
