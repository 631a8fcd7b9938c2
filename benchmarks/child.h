/* SPDX-License-Identifier: MIT */
/* A program of ours or of the system, talked to through its standard input and output. */
#ifndef WEIR_BENCH_CHILD_H
#define WEIR_BENCH_CHILD_H

#include <stdio.h>
#include <sys/types.h>

struct child {
    pid_t pid;
    FILE *in;  /* to its standard input */
    FILE *out; /* from its standard output, and from its standard error if asked for */
};

/* argv[0] is looked for in PATH unless it holds a slash. The child runs on the caller's CPUs.
 * 0, or -1 when it cannot be started. */
int child_start(struct child *child, const char *const argv[], int with_stderr);

/* Closes both ends and waits. Its exit status, or -1 when a signal ended it. */
int child_end(struct child *child);

/* The path of a file that was built beside this program. */
void child_beside(char *path, size_t size, const char *name);

#endif
