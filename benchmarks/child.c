/* SPDX-License-Identifier: MIT */
/* See child.h. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

extern char **environ;

/* Both ends close on exec: a child holds no other child's pipe open. */
static int make_pipe(int ends[2])
{
    if (pipe(ends) != 0) {
        return -1;
    }
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    return 0;
}

int child_start(struct child *child, const char *const argv[], int with_stderr)
{
    posix_spawn_file_actions_t actions;
    int in[2], out[2], status = -1;
    if (make_pipe(in) != 0) {
        return -1;
    }
    if (make_pipe(out) != 0) {
        goto close_in;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (with_stderr) {
        posix_spawn_file_actions_adddup2(&actions, out[1], 2);
    }
    status = posix_spawnp(&child->pid, argv[0], &actions, NULL, (char *const *)argv, environ) == 0 ? 0 : -1;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    if (status == 0) {
        child->in = fdopen(in[1], "w");
        child->out = fdopen(out[0], "r");
        close(in[0]);
        return 0;
    }
    close(out[0]);
close_in:
    close(in[0]);
    close(in[1]);
    return -1;
}

int child_end(struct child *child)
{
    int status;
    fclose(child->in);
    fclose(child->out);
    while (waitpid(child->pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void child_beside(char *path, size_t size, const char *name)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0) {
        bench_die("cannot read /proc/self/exe");
    }
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    size_t used = (size_t)(slash - path) + 1;
    if (used + strlen(name) >= size) {
        bench_die("path too long");
    }
    memcpy(path + used, name, strlen(name) + 1);
}
