/* SPDX-License-Identifier: MIT */
/*
 * A link on a loop, with what it said kept for the test to look at. The commands' bytes are freed in their callbacks,
 * so that a sanitizer sees whoever uses them later; the link's memory is counted.
 */
#ifndef WEIR_TESTS_RIG_H
#define WEIR_TESTS_RIG_H

#include <stddef.h>
#include <stdint.h>

#include <uv.h>

#include "sync/link.h"

#define RIG_MS UINT64_C(1000000)
#define RIG_HOUR (RIG_MS * 3600 * 1000)

enum { RIG_WAIT_MS = 20000 }; /* how long rig_wait waits before it fails the test: far longer than anything takes */

struct rig {
    uv_loop_t loop;
    uv_timer_t tick; /* keeps the loop turning while the test waits */
    struct weir__link *link;
    struct weir__link_config config;
    struct weir__uri uri;
    int up, ups, downs; /* the last state told, and how often each was told */
    enum weir__link_kind why;
    int closing;
    int closed;   /* times that the close callback ran */
    int close_on; /* closes the link inside on_state: 1 for up, 2 for down */
    char log[32 * 1024];
    size_t log_len;
    long memory;     /* bytes that the link holds */
    int allocations; /* so far */
    int fail_at;     /* that allocation fails; 0: none */
};

/* What became of a command. */
struct rig_answer {
    struct rig *rig;
    int calls; /* of its callback */
    enum weir__link_kind kind;
    int had_reply;
    char text[512]; /* of a string or an error reply, cut */
    uint64_t at;    /* uv_hrtime of the callback */
    char *bytes;
    int close_link; /* closes the link inside the callback */
    int patient;    /* an answer that is late is wanted too */
    int lates;      /* times that it was told to be late */
    int close_late; /* closes the link when told so */
};

/* Prepares the loop and a config with short times (stall 100 ms, backoff 2 to 20 ms; a connect has 10 s) that the test
 * may change before rig_start. */
void rig_open(struct rig *rig, const char *uri);

/* Opens the link and starts it. */
void rig_start(struct rig *rig);

/* The same, and waits until it is up. */
void rig_up(struct rig *rig);

/* Sends a command, its words ended by NULL; of the answer close_link, patient and close_late are kept. Returns what
 * weir__link_command_late did. */
int rig_send(struct rig *rig, struct rig_answer *answer, unsigned timeout_ms, const char *word, ...)
    __attribute__((sentinel));

/* Turns the loop once; fails the test when that has gone on since *deadline was 0 for too long. */
void rig_turn(struct rig *rig, uint64_t *deadline, const char *what);
#define rig_wait(rig, condition)                                                                                       \
    do {                                                                                                               \
        uint64_t deadline_ = 0;                                                                                        \
        while (!(condition)) {                                                                                         \
            rig_turn(rig, &deadline_, #condition);                                                                     \
        }                                                                                                              \
    } while (0)

/* Turns the loop for that long. */
void rig_run(struct rig *rig, unsigned ms);

/* Closes the link (unless the test has), then the loop: fails the test if anything is left, called twice or leaked. */
void rig_close(struct rig *rig);

/* weir__link_close with the rig's callback. */
void rig_close_link(struct rig *rig);

#endif
