/* SPDX-License-Identifier: MIT */
/* Owns a child process and its two pipes; must not know what it is for. */
#include "support/tool.h"

#include <check.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MAX = 32, TIMEOUT_MS = 25000 };

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

static void listen_to(int out, int err, struct tool_run *run)
{
    struct sink sinks[2] = {{run->out, sizeof run->out, 0}, {run->err, sizeof run->err, 0}};
    struct pollfd fds[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        ck_assert_msg(poll(fds, 2, TIMEOUT_MS) > 0, "a program hangs: %s", run->out);
        for (int i = 0; i < 2; i++) {
            if (fds[i].fd >= 0 && fds[i].revents && !drain(fds[i].fd, &sinks[i])) {
                fds[i].fd = -1;
            }
        }
    }
    run->out[sinks[0].used] = run->err[sinks[1].used] = '\0';
}

void tool_exec(const char *path, char *const argv[])
{
    static char emulator[256]; /* as Meson says */
    char *words[WORDS_MAX + 2] = {emulator, (char *)(uintptr_t)path};
    snprintf(emulator, sizeof emulator, "%s", getenv("MESON_EXE_WRAPPER") ? getenv("MESON_EXE_WRAPPER") : "");
    if (!emulator[0]) {
        execv(path, argv);
        return;
    }
    for (size_t n = 1; n < WORDS_MAX && argv[n]; n++) {
        words[n + 1] = argv[n];
    }
    execvp(emulator, words);
}

static void run_child(struct tool_run *run, const char *const *argv, int is_weir)
{
    int out[2], err[2], status;
    ck_assert_int_eq(pipe(out), 0);
    ck_assert_int_eq(pipe(err), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(out[1], 1);
        dup2(err[1], 2);
        close(out[0]);
        close(err[0]);
        close(out[1]);
        close(err[1]);
        if (is_weir) {
            tool_exec(argv[0], (char *const *)argv);
        } else {
            execvp(argv[0], (char *const *)argv);
        }
        _exit(127);
    }
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
    run_child(run, argv, 0);
}

void tool_run(struct tool_run *run, const char *word, ...)
{
    static char path[512];
    const char *argv[WORDS_MAX] = {path}, *build = getenv("WEIR_BUILD_DIR");
    size_t n = 1;
    va_list words;
    ck_assert_ptr_nonnull(build);
    snprintf(path, sizeof path, "%s/tools/weir", build);
    va_start(words, word);
    for (; word; word = va_arg(words, const char *)) {
        ck_assert_uint_lt(n, WORDS_MAX - 1);
        argv[n++] = word;
    }
    va_end(words);
    run_child(run, argv, 1);
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
