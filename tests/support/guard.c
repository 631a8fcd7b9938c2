/* SPDX-License-Identifier: MIT */
/*
 * Test and guard talk over a socket pair: a request of one byte and its payload, an answer of one int. The end of the
 * test is the end of the stream. The guard has its own process group, so that who kills the test's does not reach it.
 */
#include "support/guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS_SIZE = 8192, WORDS_MAX = 128 };

struct guard {
    char folder[48];
    pid_t process;
    int socket;
};

struct request {
    char what; /* r: run, s: signal, p: process id */
    int signal, wait;
    unsigned size; /* of the words that follow, each with its NUL */
};

void guard_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

static int move_bytes(int fd, void *bytes, size_t size, int out)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = out ? send(fd, (char *)bytes + done, size - done, MSG_NOSIGNAL)
                        : recv(fd, (char *)bytes + done, size - done, 0);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return -1;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* ---- the guard's side -------------------------------------------------------------------------------------------- */

static void remove_tree(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        char name[512];
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (lstat(name, &st) == 0 && S_ISDIR(st.st_mode)) {
            remove_tree(name);
        } else {
            unlink(name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    rmdir(path);
}

/* What else the test had open must not be held open by the guard: a peer waits for its end. */
static void close_others(int keep)
{
    for (int fd = 3; fd < 1024; fd++) {
        if (fd != keep) {
            close(fd);
        }
    }
}

static void redirect(const char *folder)
{
    char log[64];
    snprintf(log, sizeof log, "%s/log", folder);
    int in = open("/dev/null", O_RDONLY), out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
}

static pid_t run(char *words, unsigned size)
{
    char *argv[WORDS_MAX + 1];
    int argc = 0;
    if (size == 0) {
        return 0;
    }
    for (unsigned at = 0; at < size && argc < WORDS_MAX; at += (unsigned)strlen(words + at) + 1) {
        argv[argc++] = words + at;
    }
    argv[argc] = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    return pid;
}

static void reap(pid_t *program, int options)
{
    if (*program > 0 && waitpid(*program, NULL, options) == *program) {
        *program = 0;
    }
}

static void serve(int fd, const char *folder)
{
    static char words[ARGUMENTS_SIZE];
    struct request request;
    pid_t program = 0;
    while (move_bytes(fd, &request, sizeof request, 0) == 0) {
        if (request.size > sizeof words || move_bytes(fd, words, request.size, 0) != 0) {
            break;
        }
        reap(&program, WNOHANG);
        if (request.what == 'r' && program == 0) {
            program = run(words, request.size);
        } else if (request.what == 's' && program > 0) {
            kill(program, request.signal);
            if (request.wait) {
                reap(&program, 0);
            }
        }
        int answer = (int)program;
        if (move_bytes(fd, &answer, sizeof answer, 1) != 0) {
            break;
        }
    }
    if (program > 0) {
        kill(program, SIGKILL);
        reap(&program, 0);
    }
    remove_tree(folder);
    _exit(0);
}

/* ---- the test's side --------------------------------------------------------------------------------------------- */

struct guard *guard_open(void)
{
    struct guard *guard = calloc(1, sizeof *guard);
    int fds[2];
    if (!guard) {
        guard_fail("out of memory");
    }
    snprintf(guard->folder, sizeof guard->folder, "/tmp/weir-test-XXXXXX");
    if (!mkdtemp(guard->folder) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        guard_fail("no folder or no socket: %s", strerror(errno));
    }
    guard->process = fork();
    if (guard->process < 0) {
        guard_fail("fork: %s", strerror(errno));
    }
    if (guard->process == 0) {
        setpgid(0, 0);
        close_others(fds[1]);
        redirect(guard->folder);
        serve(fds[1], guard->folder);
    }
    setpgid(guard->process, guard->process);
    close(fds[1]);
    guard->socket = fds[0];
    return guard;
}

void guard_close(struct guard *guard)
{
    if (guard) {
        close(guard->socket);
        while (waitpid(guard->process, NULL, 0) < 0 && errno == EINTR) {
        }
        free(guard);
    }
}

const char *guard_folder(const struct guard *guard)
{
    return guard->folder;
}

static int ask(struct guard *guard, const struct request *request, char *words)
{
    int answer = 0;
    struct request copy = *request;
    if (move_bytes(guard->socket, &copy, sizeof copy, 1) != 0 ||
        move_bytes(guard->socket, words, request->size, 1) != 0 ||
        move_bytes(guard->socket, &answer, sizeof answer, 0) != 0) {
        guard_fail("the guard process is gone");
    }
    return answer;
}

int guard_run(struct guard *guard, const char *const *argv)
{
    char words[ARGUMENTS_SIZE];
    struct request request = {.what = 'r'};
    for (; *argv; argv++) {
        size_t n = strlen(*argv) + 1;
        if (request.size + n > sizeof words) {
            guard_fail("too many arguments");
        }
        memcpy(words + request.size, *argv, n);
        request.size += (unsigned)n;
    }
    int pid = ask(guard, &request, words);
    if (pid <= 0) {
        guard_fail("could not start %s", words);
    }
    return pid;
}

void guard_signal(struct guard *guard, int signal, int wait)
{
    struct request request = {.what = 's', .signal = signal, .wait = wait};
    ask(guard, &request, NULL);
}

int guard_pid(struct guard *guard)
{
    struct request request = {.what = 'p'};
    return ask(guard, &request, NULL);
}
