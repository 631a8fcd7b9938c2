/* SPDX-License-Identifier: MIT */
/*
 * Child processes that do not outlive their parent.
 *
 * Owns what a child does between fork and its own work; must not know that work.
 */
#ifndef WEIR_TOOLS_PROCESS_H
#define WEIR_TOOLS_PROCESS_H

#include <sys/types.h>

/* fork(2), and in the child: its own process group (so that a ^C at the terminal reaches the parent alone, which then
 * stops its children in order), the default again for each signal that a parent handles and, on Linux, death by SIGKILL
 * with the parent. Elsewhere a child must watch for the parent itself. */
pid_t process_fork(void);

/* Waits at most timeout_ms for a child, then ends it with SIGKILL. Returns its exit code, 128 + N where signal N ended
 * it, or -1 where it had to be ended. */
int process_end(pid_t pid, int timeout_ms);

#endif
