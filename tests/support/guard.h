/* SPDX-License-Identifier: MIT */
/*
 * A process that outlives the test by a moment: it owns a temporary folder and runs at most one program in it. However
 * the test ends (a failed check, a crash, a kill), the program is killed and the folder removed. Every call aborts the
 * test with a message where it can't do its job.
 */
#ifndef WEIR_TESTS_GUARD_H
#define WEIR_TESTS_GUARD_H

struct guard;

struct guard *guard_open(void);
void guard_close(struct guard *guard); /* kills, removes, frees; NULL is allowed */

/* Short enough for a socket's path with a file name of up to 40 bytes behind it. */
const char *guard_folder(const struct guard *guard);

/* Runs a program (argv[0] is looked up in PATH), its output going to `log` in the folder. Returns its process id. */
int guard_run(struct guard *guard, const char *const *argv);

/* Signals the program and, with wait, returns when it has ended. Nothing happens where none runs. */
void guard_signal(struct guard *guard, int signal, int wait);

/* The program's process id, 0 where it has ended. */
int guard_pid(struct guard *guard);

/* Ends the test: the message goes to standard error. */
void guard_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
