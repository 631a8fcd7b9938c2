/* SPDX-License-Identifier: MIT */
/*
 * The stats socket: its life, who is connected, and the samples. It must not know what an answer says.
 *
 * Plain sockets on polling handles, for libuv's own pipes write without MSG_NOSIGNAL, and remove a path that may be
 * somebody else's by then. None of the handles keeps a loop alive.
 */
#include "sync/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <uv.h>

#include "sync/reconcile.h"
#include "sync/watch_state.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { CLIENTS_MAX = 8, LINE_MAX_BYTES = 64, SLOTS_A_TURN = 8192, RETRY_MS = 1000 };

#define FRESH_NS (200 * WEIR__MS) /* rates over less than that say little ... */
#define STALE_NS (5 * WEIR__SECOND)
#define FIRST_MS 500 /* between the two samples of one who has just come */

struct client {
    struct client *next;
    struct weir__watch *watch;
    uv_poll_t poll;
    int fd;
    char line[LINE_MAX_BYTES];
    unsigned used;
    unsigned wants; /* keys, when the next sample is taken; 0: none */
    char *text;     /* the answer on its way */
    size_t size, len, sent;
    int closing;
};

struct sample {
    uint64_t id, tokens;
};

struct weir__watch {
    struct weir__node *node;
    const struct weir__reconcile *rec;
    char *path;
    size_t path_size;
    int fd; /* -1: not listening */
    int said, started, stopped;
    unsigned handles; /* not closed yet */
    uv_poll_t poll;
    uv_timer_t timer; /* until it listens, the next try; then, the next sample */
    uv_idle_t walk;
    struct client *clients;
    unsigned client_count;
    uint64_t began; /* the sync */
    struct sample *samples;
    uint32_t slots, next;
    uint64_t walk_began, last_began; /* 0: never */
    struct weir__watched top[WEIR__WATCH_KEYS];
    size_t top_count;
    void (*closed)(void *arg);
    void *closed_arg;
};

int weir__watch_open(struct weir__watch **out, struct weir__node *node, const struct weir__reconcile *rec,
                     const char *path)
{
    struct weir__watch *watch;

    *out = NULL;
    if (!path)
        return 0;
    if (!path[0] || strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        return WEIR_E_RANGE;
    watch = weir__node_alloc(node, sizeof *watch);
    if (!watch)
        return WEIR_E_NOMEM;
    watch->node = node;
    watch->rec = rec;
    watch->fd = -1;
    watch->path_size = strlen(path) + 1;
    watch->path = weir__node_alloc(node, watch->path_size);
    if (!watch->path) {
        weir__node_free(node, watch, sizeof *watch);
        return WEIR_E_NOMEM;
    }
    memcpy(watch->path, path, watch->path_size);
    *out = watch;
    return 0;
}

static void deinit(struct weir__watch *watch)
{
    struct weir__node *node = watch->node;
    void (*closed)(void *arg) = watch->closed;
    void *arg = watch->closed_arg;

    weir__node_free(node, watch->samples, watch->slots * sizeof *watch->samples);
    weir__node_free(node, watch->path, watch->path_size);
    weir__node_free(node, watch, sizeof *watch);
    if (closed)
        closed(arg);
}

static void handle_gone(struct weir__watch *watch)
{
    if (--watch->handles == 0 && watch->stopped > 1)
        deinit(watch);
}

static void on_handle_closed(uv_handle_t *handle)
{
    handle_gone(handle->data);
}

/* ---- who is connected -------------------------------------------------------------------------------------------- */

static void on_client_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    struct weir__watch *watch = client->watch;

    close(client->fd);
    if (client->text)
        weir__node_free(watch->node, client->text, client->size);
    weir__node_free(watch->node, client, sizeof *client);
    handle_gone(watch);
}

static void drop(struct client *client)
{
    struct weir__watch *watch = client->watch;
    struct client **at = &watch->clients;

    if (client->closing)
        return;
    client->closing = 1;
    while (*at != client)
        at = &(*at)->next;
    *at = client->next;
    watch->client_count--;
    uv_close((uv_handle_t *)&client->poll, on_client_closed);
    if (watch->client_count > 0 || !watch->samples)
        return;
    /* nobody looks: no work, no memory */
    uv_idle_stop(&watch->walk);
    weir__node_free(watch->node, watch->samples, watch->slots * sizeof *watch->samples);
    watch->samples = NULL;
    watch->walk_began = watch->last_began = 0;
}

static void on_event(uv_poll_t *poll, int status, int events);
static void read_line(struct client *client);

/* While an answer is on its way nothing is read: one at a time. */
static void poll_client(struct client *client)
{
    if (uv_poll_start(&client->poll, client->text ? UV_WRITABLE : UV_READABLE, on_event))
        drop(client);
}

static void push(struct client *client)
{
    while (client->sent < client->len) {
        ssize_t n = send(client->fd, client->text + client->sent, client->len - client->sent, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                drop(client);
            return;
        }
        client->sent += (size_t)n;
    }
    weir__node_free(client->watch->node, client->text, client->size);
    client->text = NULL;
    poll_client(client);
    if (!client->closing && client->used > 0)
        read_line(client);
}

/* Sends what was made; NULL: there was no memory. */
static void answer(struct client *client, char *text)
{
    client->text = text;
    client->sent = 0;
    if (!text) {
        drop(client);
        return;
    }
    poll_client(client);
    if (!client->closing)
        push(client);
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

static void rank(struct weir__watch *watch, uint32_t slot, const struct weir__sight *sight, double per_s)
{
    size_t at = watch->top_count;

    if (at == WEIR__WATCH_KEYS && watch->top[at - 1].per_s >= per_s)
        return;
    if (at < WEIR__WATCH_KEYS)
        watch->top_count++;
    else
        at--;
    for (; at > 0 && watch->top[at - 1].per_s < per_s; at--)
        watch->top[at] = watch->top[at - 1];
    watch->top[at] = (struct weir__watched){.slot = slot, .policy = sight->policy, .id = sight->id, .per_s = per_s};
}

static void take_sample(struct weir__watch *watch, uint32_t slot)
{
    struct sample *sample = &watch->samples[slot];
    struct weir__sight sight;

    if (!weir__seam_sight(watch->node->w, slot, &sight)) {
        sample->id = 0;
        return;
    }
    if (watch->last_began && sample->id == sight.id && sight.tokens > sample->tokens)
        rank(watch, slot, &sight,
             (double)(sight.tokens - sample->tokens) / ((double)(watch->walk_began - watch->last_began) / 1e9));
    sample->id = sight.id;
    sample->tokens = sight.tokens;
}

static void answer_all(struct weir__watch *watch)
{
    uint64_t uptime = uv_hrtime() - watch->began;

    for (struct client *client = watch->clients, *next; client; client = next) {
        size_t n = client->wants - 1 < watch->top_count ? client->wants - 1 : watch->top_count;

        next = client->next;
        if (client->wants == 0)
            continue;
        client->wants = 0;
        answer(client, weir__watch_say_top(watch->node, uptime, watch->top, n, &client->size, &client->len));
    }
}

static void on_timer(uv_timer_t *timer);

static void on_walk(uv_idle_t *idle)
{
    struct weir__watch *watch = idle->data;
    uint32_t end = watch->slots - watch->next < SLOTS_A_TURN ? watch->slots : watch->next + SLOTS_A_TURN;
    int rated = watch->last_began != 0;

    for (; watch->next < end; watch->next++)
        take_sample(watch, watch->next);
    if (watch->next < watch->slots)
        return;
    uv_idle_stop(&watch->walk);
    watch->last_began = watch->walk_began;
    watch->walk_began = 0;
    if (rated)
        answer_all(watch);
    else
        uv_timer_start(&watch->timer, on_timer, FIRST_MS, 0);
}

/* Somebody waits for the keys. Rates need two samples, the last one not long ago, and not just now. */
static void want_sample(struct weir__watch *watch)
{
    uint64_t now = uv_hrtime(), age = now - watch->last_began;

    if (watch->walk_began)
        return;
    if (!watch->samples) {
        watch->slots = weir__seam_slots(watch->node->w);
        watch->samples = weir__node_alloc(watch->node, watch->slots * sizeof *watch->samples);
        if (!watch->samples) {
            answer_all(watch); /* without keys */
            return;
        }
    }
    if (watch->last_began && age > STALE_NS)
        watch->last_began = 0;
    if (watch->last_began && age < FRESH_NS) {
        uv_update_time(watch->node->loop);
        uv_timer_start(&watch->timer, on_timer, (FRESH_NS - age) / WEIR__MS + 1, 0);
        return;
    }
    watch->walk_began = now;
    watch->next = 0;
    watch->top_count = 0;
    uv_idle_start(&watch->walk, on_walk);
}

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

/* "top", "top N", "metrics". Whoever says anything else is sent away. */
static void obey(struct client *client, const char *line)
{
    char *rest;
    unsigned long n = 10;

    if (strcmp(line, "metrics") == 0) {
        answer(client, weir__watch_say_metrics(client->watch->node, &client->size, &client->len));
        return;
    }
    if (strncmp(line, "top ", 4) == 0 && line[4] >= '0' && line[4] <= '9') {
        n = strtoul(line + 4, &rest, 10);
        line = *rest ? rest : "top";
    }
    if (strcmp(line, "top") != 0 || n > WEIR__WATCH_KEYS) {
        drop(client);
        return;
    }
    client->wants = (unsigned)n + 1;
    want_sample(client->watch);
}

static void read_line(struct client *client)
{
    char line[LINE_MAX_BYTES], *end = memchr(client->line, '\n', client->used);

    if (!end) {
        if (client->used == sizeof client->line)
            drop(client);
        return;
    }
    *end++ = '\0';
    memcpy(line, client->line, (size_t)(end - client->line));
    client->used -= (unsigned)(end - client->line);
    memmove(client->line, end, client->used);
    obey(client, line);
}

static void pull(struct client *client)
{
    ssize_t n = recv(client->fd, client->line + client->used, sizeof client->line - client->used, 0);

    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0) {
        drop(client);
        return;
    }
    client->used += (unsigned)n;
    if (client->wants == 0)
        read_line(client);
    else if (client->used == sizeof client->line)
        drop(client);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct client *client = poll->data;

    if (status)
        drop(client);
    else if (client->text)
        push(client);
    else if (events & UV_READABLE)
        pull(client);
}

static int make_quiet(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct weir__watch *watch = poll->data;
    int fd = accept(watch->fd, NULL, NULL);
    struct client *client = NULL;

    (void)status;
    (void)events;
    if (fd < 0)
        return;
    if (watch->client_count < CLIENTS_MAX && make_quiet(fd))
        client = weir__node_alloc(watch->node, sizeof *client);
    if (!client || uv_poll_init(watch->node->loop, &client->poll, fd)) {
        if (client)
            weir__node_free(watch->node, client, sizeof *client);
        close(fd);
        return;
    }
    client->fd = fd;
    client->watch = watch;
    client->poll.data = client;
    client->next = watch->clients;
    watch->clients = client;
    watch->client_count++;
    watch->handles++;
    uv_unref((uv_handle_t *)&client->poll);
    poll_client(client);
}

/* ---- the socket -------------------------------------------------------------------------------------------------- */

/* Is this the path of a socket where nobody listens? */
static int is_stale(const struct sockaddr_un *address)
{
    struct stat st;
    int fd, refused;

    if (lstat(address->sun_path, &st) || !S_ISSOCK(st.st_mode))
        return 0;
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0)
        return 0;
    refused = make_quiet(fd) && connect(fd, (const struct sockaddr *)address, sizeof *address) && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

/* Nobody can connect before listen, so nobody does while the mode is not set. */
static int open_socket(const struct weir__watch *watch)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), failed;

    if (fd < 0)
        return -1;
    memcpy(address.sun_path, watch->path, watch->path_size);
    failed = !make_quiet(fd) || bind(fd, (struct sockaddr *)&address, sizeof address);
    if (failed && errno == EADDRINUSE) {
        if (is_stale(&address))
            unlink(watch->path);
        failed = bind(fd, (struct sockaddr *)&address, sizeof address);
    }
    if (!failed && (chmod(watch->path, 0600) || listen(fd, CLIENTS_MAX))) {
        unlink(watch->path);
        failed = 1;
    }
    if (!failed)
        return fd;
    close(fd);
    return -1;
}

static void try_to_listen(struct weir__watch *watch)
{
    if (weir__reconcile_leads(watch->rec))
        watch->fd = open_socket(watch);
    if (watch->fd >= 0 && uv_poll_init(watch->node->loop, &watch->poll, watch->fd) == 0) {
        watch->poll.data = watch;
        watch->handles++;
        uv_unref((uv_handle_t *)&watch->poll);
        uv_poll_start(&watch->poll, UV_READABLE, on_connection);
        return;
    }
    if (watch->fd >= 0) {
        unlink(watch->path);
        close(watch->fd);
        watch->fd = -1;
    }
    if (weir__reconcile_leads(watch->rec) && !watch->said) {
        watch->said = 1;
        weir__seam_log(watch->node->w, WEIR_LOG_WARN, "stats socket %s: %s; it will be tried again", watch->path,
                       errno == EADDRINUSE ? "another one listens there" : strerror(errno));
    }
    uv_timer_start(&watch->timer, on_timer, RETRY_MS, 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct weir__watch *watch = timer->data;

    if (watch->fd < 0)
        try_to_listen(watch);
    else
        want_sample(watch);
}

void weir__watch_start(struct weir__watch *watch)
{
    if (!watch)
        return;
    uv_timer_init(watch->node->loop, &watch->timer);
    uv_idle_init(watch->node->loop, &watch->walk);
    watch->timer.data = watch->walk.data = watch;
    uv_unref((uv_handle_t *)&watch->timer);
    uv_unref((uv_handle_t *)&watch->walk);
    watch->handles = 2;
    watch->started = 1;
    watch->began = uv_hrtime();
    try_to_listen(watch);
}

void weir__watch_stop(struct weir__watch *watch)
{
    if (!watch || watch->stopped)
        return;
    watch->stopped = 1;
    while (watch->clients)
        drop(watch->clients);
    uv_timer_stop(&watch->timer);
    if (watch->fd >= 0) {
        unlink(watch->path);
        uv_close((uv_handle_t *)&watch->poll, on_handle_closed);
        close(watch->fd); /* behind uv_close, which takes the number out of the loop: another thread may be given it */
    }
}

void weir__watch_close(struct weir__watch *watch, void (*cb)(void *arg), void *arg)
{
    if (!watch) {
        if (cb)
            cb(arg);
        return;
    }
    watch->closed = cb;
    watch->closed_arg = arg;
    if (!watch->started) {
        deinit(watch);
        return;
    }
    watch->stopped = 2;
    uv_close((uv_handle_t *)&watch->timer, on_handle_closed);
    uv_close((uv_handle_t *)&watch->walk, on_handle_closed);
}
