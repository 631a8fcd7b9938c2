/* SPDX-License-Identifier: MIT */
/* Owns what a child does between fork and its own work; must not know that work. */
#include "tools/process.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

pid_t process_fork(void)
{
    pid_t parent = getpid();
    sigset_t all, before;
    /* A signal must not find the parent's handlers in the child. */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        static const int handled[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGWINCH, SIGPIPE};
        for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) {
            signal(handled[i], SIG_DFL);
        }
        setpgid(0, 0);
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        if (getppid() != parent) {
            _exit(125); /* it died before prctl could say so */
        }
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return pid;
}

static int exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int process_end(pid_t pid, int timeout_ms)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    int status;
    for (int waited = 0; waited < timeout_ms; waited += 2) {
        pid_t done = waitpid(pid, &status, WNOHANG);
        if (done == pid) {
            return exit_code(status);
        }
        if (done < 0 && errno != EINTR) {
            return -1;
        }
        nanosleep(&pause, NULL);
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return -1;
}
