/* SPDX-License-Identifier: MIT */
/* Owns the server's process, by its pid, and its folder; must not know what is stored in it. */
#include "tools/private_redis.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/process.h"

static int find_in_path(const char *name, char *out, size_t size)
{
    const char *p = getenv("PATH");
    if (!p) {
        p = "/usr/local/bin:/usr/bin";
    }
    while (*p) {
        size_t len = strcspn(p, ":");
        int n = snprintf(out, size, "%.*s/%s", (int)len, p, name);
        if (len > 0 && n > 0 && (size_t)n < size && access(out, X_OK) == 0) {
            return 0;
        }
        p += len + (p[len] == ':');
    }
    return -1;
}

int private_redis_open(struct private_redis *r)
{
    *r = (struct private_redis){0};
    if (find_in_path("redis-server", r->program, sizeof r->program) != 0 &&
        find_in_path("valkey-server", r->program, sizeof r->program) != 0) {
        snprintf(r->error, sizeof r->error,
                 "redis-server is not installed (Debian, Ubuntu: apt-get install redis-server; Fedora: dnf install "
                 "valkey; Arch: pacman -S valkey; macOS: brew install redis)");
        return -1;
    }
    const char *parent = getenv("TMPDIR");
    if (!parent || parent[0] != '/') {
        parent = "/tmp";
    }
    int n = snprintf(r->folder, sizeof r->folder, "%s/weir-XXXXXX", parent);
    if (n < 0 || (size_t)n >= sizeof r->folder) {
        /* a socket's path has little room (104 bytes on some systems) */
        snprintf(r->folder, sizeof r->folder, "/tmp/weir-XXXXXX");
    }
    if (!mkdtemp(r->folder)) {
        snprintf(r->error, sizeof r->error, "can't make a folder %s: %s", r->folder, strerror(errno));
        return -1;
    }
    snprintf(r->socket, sizeof r->socket, "%s/redis.sock", r->folder);
    return 0;
}

static _Noreturn void become_server(const struct private_redis *r)
{
    char log[96];
    snprintf(log, sizeof log, "%s/redis.log", r->folder);
    int in = open("/dev/null", O_RDONLY);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        _exit(126);
    }
    execl(r->program, r->program, "--port", "0", "--unixsocket", r->socket, "--unixsocketperm", "700", "--dir",
          r->folder, "--save", "", "--appendonly", "no", "--daemonize", "no", (char *)NULL);
    _exit(127);
}

int private_redis_start(struct private_redis *r)
{
    if (private_redis_alive(r)) {
        return 0;
    }
    pid_t pid = process_fork();
    if (pid < 0) {
        snprintf(r->error, sizeof r->error, "can't fork: %s", strerror(errno));
        return -1;
    }
    if (pid == 0) {
        become_server(r);
    }
    r->pid = pid;
    r->frozen = 0;
    return 0;
}

/* One PING on a connection of its own. */
static int answers(const struct private_redis *r, int timeout_ms)
{
    static const char ping[] = "PING\r\n";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char reply[8];
    int ok = 0;
    if (strlen(r->socket) >= sizeof address.sun_path) {
        return 0;
    }
    memcpy(address.sun_path, r->socket, strlen(r->socket) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) {
        return 0;
    }
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        write(fd, ping, sizeof ping - 1) == (ssize_t)(sizeof ping - 1)) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        ok = poll(&ready, 1, timeout_ms) == 1 && read(fd, reply, sizeof reply) >= 5 && memcmp(reply, "+PONG", 5) == 0;
    }
    close(fd);
    return ok;
}

static void last_line_of_log(const struct private_redis *r, char out[160])
{
    char path[96], line[160];
    out[0] = '\0';
    snprintf(path, sizeof path, "%s/redis.log", r->folder);
    FILE *log = fopen(path, "r");
    if (!log) {
        return;
    }
    while (fgets(line, sizeof line, log)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0]) {
            memcpy(out, line, sizeof line);
        }
    }
    fclose(log);
}

int private_redis_wait(struct private_redis *r, int timeout_ms)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    for (int waited = 0; waited < timeout_ms; waited += 5) {
        if (!private_redis_alive(r)) {
            char line[160];
            last_line_of_log(r, line);
            snprintf(r->error, sizeof r->error, "%.60s did not start: %s", r->program, line);
            return -1;
        }
        if (answers(r, 100)) {
            return 0;
        }
        nanosleep(&pause, NULL);
    }
    snprintf(r->error, sizeof r->error, "%.60s does not answer on %s", r->program, r->socket);
    return -1;
}

int private_redis_alive(struct private_redis *r)
{
    if (r->pid > 0 && waitpid(r->pid, NULL, WNOHANG) == r->pid) {
        r->pid = 0;
        r->frozen = 0;
    }
    return r->pid > 0;
}

static void reap(struct private_redis *r)
{
    while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    r->pid = 0;
    r->frozen = 0;
}

void private_redis_kill(struct private_redis *r)
{
    if (private_redis_alive(r)) {
        kill(r->pid, SIGKILL);
        reap(r);
    }
}

void private_redis_freeze(struct private_redis *r)
{
    if (private_redis_alive(r)) {
        kill(r->pid, SIGSTOP);
        r->frozen = 1;
    }
}

void private_redis_thaw(struct private_redis *r)
{
    if (private_redis_alive(r) && r->frozen) {
        kill(r->pid, SIGCONT);
        r->frozen = 0;
    }
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    if (!dir) {
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        unlinkat(dirfd(dir), e->d_name, 0); /* refuses . and .. */
    }
    closedir(dir);
    rmdir(folder);
}

/* Nothing in it is worth a clean shutdown. */
void private_redis_close(struct private_redis *r)
{
    private_redis_kill(r);
    if (r->folder[0]) {
        remove_folder(r->folder);
        r->folder[0] = '\0';
    }
}
