/* SPDX-License-Identifier: MIT */
/*
 * Owns a child process and its two pipes; must not know what it is for.
 *
 * Spawned, not forked: the test may have threads, and what another of them has locked (Check, in an assertion) stays
 * locked for ever in a child of fork.
 */
#include "support/tool.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MAX = 32, SILENCE_MS = 25000 };

extern char **environ;

struct sink {
    char *text;
    size_t room, used;
};

/* What comes; 0 at the end of it. */
static int drain(int fd, struct sink *sink)
{
    char spill[1024];
    size_t left = sink->room - 1 - sink->used;
    ssize_t n = read(fd, left ? sink->text + sink->used : spill, left ? left : sizeof spill);
    if (n <= 0) {
        return 0;
    }
    ck_assert_msg(left > 0, "a program prints too much");
    sink->used += (size_t)n;
    return 1;
}

/* A test's time is that many times as long: under a sanitizer, or in an emulator. */
static int patience(void)
{
    const char *times = getenv("CK_TIMEOUT_MULTIPLIER");
    return times && atoi(times) > 0 ? atoi(times) : 1;
}

static void listen_to(int out, int err, struct tool_run *run)
{
    struct sink sinks[2] = {{run->out, sizeof run->out, 0}, {run->err, sizeof run->err, 0}};
    struct pollfd fds[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        ck_assert_msg(poll(fds, 2, patience() * SILENCE_MS) > 0, "a program hangs: %s%s", run->out, run->err);
        for (int i = 0; i < 2; i++) {
            if (fds[i].fd >= 0 && fds[i].revents && !drain(fds[i].fd, &sinks[i])) {
                fds[i].fd = -1;
            }
        }
    }
    run->out[sinks[0].used] = run->err[sinks[1].used] = '\0';
}

/* The same words, with the emulator before them where there is one. */
static char **with_emulator(char *const argv[], char *words[WORDS_MAX + 2])
{
    static char emulator[256]; /* as Meson says */
    size_t n = 0, i = 0;
    snprintf(emulator, sizeof emulator, "%s", getenv("MESON_EXE_WRAPPER") ? getenv("MESON_EXE_WRAPPER") : "");
    if (emulator[0]) {
        words[n++] = emulator;
    }
    while (i < WORDS_MAX && argv[i]) {
        words[n++] = argv[i++];
    }
    words[n] = NULL;
    return words;
}

void tool_exec(char *const argv[])
{
    char *words[WORDS_MAX + 2];
    with_emulator(argv, words);
    execvp(words[0], words);
}

/* Closed in every other program that is started meanwhile. */
static void make_pipe(int ends[2])
{
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFD, FD_CLOEXEC), 0);
    ck_assert_int_eq(fcntl(ends[1], F_SETFD, FD_CLOEXEC), 0);
}

static void run_child(struct tool_run *run, char *const argv[])
{
    posix_spawn_file_actions_t actions;
    int out[2], err[2], status;
    pid_t pid;
    make_pipe(out);
    make_pipe(err);
    ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
    ck_assert_int_eq(posix_spawn_file_actions_adddup2(&actions, out[1], 1), 0);
    ck_assert_int_eq(posix_spawn_file_actions_adddup2(&actions, err[1], 2), 0);
    status = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    ck_assert_msg(status == 0, "no program '%s': %s", argv[0], strerror(status));
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    listen_to(out[0], err[0], run);
    close(out[0]);
    close(err[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    run->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    ck_assert_msg(run->code != 127, "no program '%s'", argv[0]);
}

void tool_run_program(struct tool_run *run, const char *const *argv)
{
    run_child(run, (char *const *)argv);
}

void tool_run(struct tool_run *run, const char *word, ...)
{
    static char path[512];
    char *argv[WORDS_MAX] = {path}, *all[WORDS_MAX + 2];
    const char *build = getenv("WEIR_BUILD_DIR");
    size_t n = 1;
    va_list words;
    ck_assert_ptr_nonnull(build);
    snprintf(path, sizeof path, "%s/tools/weir", build);
    va_start(words, word);
    for (; word; word = va_arg(words, const char *)) {
        ck_assert_uint_lt(n, WORDS_MAX - 1);
        argv[n++] = (char *)(uintptr_t)word;
    }
    va_end(words);
    run_child(run, with_emulator(argv, all));
}

double tool_number(const struct tool_run *run, const char *name)
{
    char quoted[64], *end;
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *found = strstr(run->out, quoted);
    ck_assert_msg(found != NULL, "no member '%s' in %s", name, run->out);
    ck_assert_msg(strstr(found + 1, quoted) == NULL, "two members '%s' in %s", name, run->out);
    found += strlen(quoted);
    if (strncmp(found, "true", 4) == 0 || strncmp(found, "false", 5) == 0) {
        return *found == 't';
    }
    if (strncmp(found, "null", 4) == 0) {
        return NAN;
    }
    double n = strtod(found, &end);
    ck_assert_msg(end != found && strchr(",}", *end), "'%s' is no number in %s", name, run->out);
    return n;
}
