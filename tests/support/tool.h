/* SPDX-License-Identifier: MIT */
/* The `weir` command, or another program, run to its end with what it prints. Fails the test where it can't be run. */
#ifndef WEIR_TESTS_TOOL_H
#define WEIR_TESTS_TOOL_H

#include <stddef.h>

struct tool_run {
    int code;        /* exit code, or 128 + signal */
    char out[32768]; /* standard output ... */
    char err[4096];  /* ... and error, each as a string */
};

/* Words after "weir", ended by NULL. */
void tool_run(struct tool_run *run, const char *word, ...) __attribute__((sentinel));

/* Any program: argv[0] is looked up in PATH. */
void tool_run_program(struct tool_run *run, const char *const *argv);

/* In a child that is to become the `weir` command, by its path: as execv, in the emulator, if any, that runs the test.
 * At most 32 words. */
void tool_exec(char *const argv[]);

/* A member of the object that was printed: a number (true: 1, false: 0, null: NaN). Fails the test where there is none,
 * or two. */
double tool_number(const struct tool_run *run, const char *name);

#endif
