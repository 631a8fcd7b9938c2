/* SPDX-License-Identifier: MIT */
/*
 * One thread serves every connection by poll; one mutex guards everything, held by the thread but while it polls. What
 * a connection owes waits in a queue, so that a lie about one answer keeps its place among the others.
 */
#include "support/liar.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "support/guard.h"
#include "support/port.h"
#include "support/resp.h"

enum { CONNECTIONS_MAX = 128, RULES_MAX = 32, NAMES_MAX = 64, WORDS_MAX = 64 };

struct buffer {
    char *bytes;
    size_t len, size;
};

/* What one command is owed. */
struct owed {
    struct owed *next;
    struct buffer answer;
    enum liar_act act;
    int lie;   /* act applies; else the plain answer */
    int ready; /* 0: upstream has not answered yet */
    uint64_t due_ms;
};

struct connection {
    int fd, upstream; /* -1: none */
    int hung;
    struct buffer in, from_upstream;
    struct owed *head, *tail;
};

struct counted {
    char name[24];
    unsigned count;
    struct buffer last;
};

struct liar {
    pthread_t thread;
    pthread_mutex_t lock;
    struct guard *guard;
    int wake[2], listener, port, held, deaf, stop;     /* held: the port's, listened at or not; -1: none */
    char socket[80], uri[96], upstream[108], self[64]; /* self: as a Sentinel names it */
    struct connection connections[CONNECTIONS_MAX];
    struct liar_rule rules[RULES_MAX];
    char *texts[RULES_MAX];
    unsigned seen[RULES_MAX]; /* commands that the rule has matched */
    int rule_count;
    struct counted names[NAMES_MAX];
    int name_count;
    unsigned accepted, total;
};

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void add(struct buffer *buffer, const char *bytes, size_t len)
{
    if (len == 0) {
        return;
    }
    if (buffer->len + len > buffer->size) {
        buffer->size = (buffer->len + len) * 2;
        buffer->bytes = realloc(buffer->bytes, buffer->size);
        if (!buffer->bytes) {
            guard_fail("out of memory");
        }
    }
    memcpy(buffer->bytes + buffer->len, bytes, len);
    buffer->len += len;
}

static void drop(struct buffer *buffer, size_t len)
{
    memmove(buffer->bytes, buffer->bytes + len, buffer->len - len);
    buffer->len -= len;
}

static void clear(struct buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct buffer){0};
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static void pop_owed(struct connection *connection)
{
    struct owed *owed = connection->head;
    connection->head = owed->next;
    if (!connection->head) {
        connection->tail = NULL;
    }
    clear(&owed->answer);
    free(owed);
}

static void end(struct connection *connection, int reset)
{
    struct linger at_once = {1, 0};
    if (connection->fd < 0) {
        return;
    }
    if (reset) {
        setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    close(connection->fd);
    if (connection->upstream >= 0) {
        close(connection->upstream);
    }
    while (connection->head) {
        pop_owed(connection);
    }
    clear(&connection->in);
    clear(&connection->from_upstream);
    connection->fd = connection->upstream = -1;
    connection->hung = 0;
}

/* A peer that does not read is given a second. */
static void write_out(struct connection *connection, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(connection->fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return; /* it has gone: the read will tell */
        }
        bytes += n;
        len -= (size_t)n;
    }
}

static int connect_upstream(const struct liar *liar)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", liar->upstream);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void take_connection(struct liar *liar)
{
    struct timeval second = {1, 0};
    int fd = accept(liar->listener, NULL, NULL);
    if (fd < 0) {
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *connection = &liar->connections[i];
        if (connection->fd < 0) {
            liar->accepted++;
            connection->fd = fd;
            connection->upstream = liar->upstream[0] ? connect_upstream(liar) : -1;
            if (liar->upstream[0] && connection->upstream < 0) {
                end(connection, 0); /* no server behind the proxy: the client sees it go */
            }
            return;
        }
    }
    guard_fail("too many connections for the lying server");
}

/* ---- what is owed ------------------------------------------------------------------------------------------------ */

/* Lets out what is ready, in order, and lies where it must. */
static void pay(struct connection *connection)
{
    while (connection->fd >= 0 && !connection->hung && connection->head) {
        struct owed *owed = connection->head;
        enum liar_act act = owed->lie ? owed->act : LIAR_REPLY;
        if (!owed->ready || owed->due_ms > now_ms()) {
            return;
        }
        switch (act) {
        case LIAR_HANG: connection->hung = 1; return;
        case LIAR_HALF:
        case LIAR_HALF_CLOSE: write_out(connection, owed->answer.bytes, owed->answer.len / 2); break;
        case LIAR_CLOSE:
        case LIAR_RESET:
        case LIAR_SILENT:
        case LIAR_LOSE_REQUEST:
        case LIAR_LOSE_REPLY: break;
        default: write_out(connection, owed->answer.bytes, owed->answer.len); break;
        }
        pop_owed(connection);
        connection->hung = act == LIAR_HALF;
        if (act == LIAR_HALF_CLOSE || act == LIAR_CLOSE || act == LIAR_RESET || act == LIAR_LOSE_REQUEST ||
            act == LIAR_LOSE_REPLY) {
            end(connection, act == LIAR_RESET);
        }
    }
}

static int word_is(const struct resp_word *word, const char *text)
{
    return word->len == strlen(text) && strncasecmp(word->bytes, text, word->len) == 0;
}

/* What an empty Redis would say. */
static const char *own_answer(const struct liar *liar, const struct resp_word *words, int n)
{
    if (word_is(&words[0], "PING")) {
        return "+PONG\r\n";
    }
    if (word_is(&words[0], "INFO")) {
        return "$52\r\n# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\r\n";
    }
    if (word_is(&words[0], "SENTINEL") && liar->self[0]) {
        return liar->self;
    }
    if (word_is(&words[0], "ROLE")) {
        return "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
    }
    if (word_is(&words[0], "SCRIPT") && n > 1 && word_is(&words[1], "LOAD")) {
        return "$40\r\n0123456789abcdef0123456789abcdef01234567\r\n";
    }
    if (word_is(&words[0], "AUTH") || word_is(&words[0], "SELECT") || word_is(&words[0], "SET")) {
        return "+OK\r\n";
    }
    return "$-1\r\n";
}

static struct counted *find_name(struct liar *liar, const char *name, size_t len)
{
    for (int i = 0; i < liar->name_count; i++) {
        if (strlen(liar->names[i].name) == len && strncasecmp(liar->names[i].name, name, len) == 0) {
            return &liar->names[i];
        }
    }
    return NULL;
}

static void note(struct liar *liar, const struct resp_word *words, int n)
{
    struct counted *counted = find_name(liar, words[0].bytes, words[0].len);
    liar->total++;
    if (!counted) {
        if (liar->name_count == NAMES_MAX || words[0].len >= sizeof counted->name) {
            return;
        }
        counted = &liar->names[liar->name_count++];
        memcpy(counted->name, words[0].bytes, words[0].len);
    }
    counted->count++;
    counted->last.len = 0;
    for (int i = 0; i < n && i < WORDS_MAX; i++) {
        add(&counted->last, " ", i > 0);
        add(&counted->last, words[i].bytes, words[i].len);
    }
}

/* The rule that acts on this command, or NULL. Every match before it was spent on skips and times is counted. */
static const struct liar_rule *find_rule(struct liar *liar, const struct resp_word *words)
{
    for (int i = 0; i < liar->rule_count; i++) {
        const struct liar_rule *rule = &liar->rules[i];
        if (rule->command && !word_is(&words[0], rule->command)) {
            continue;
        }
        unsigned seen = liar->seen[i]++;
        if (seen >= rule->skip && (rule->times == 0 || seen < rule->skip + rule->times)) {
            return rule;
        }
    }
    return NULL;
}

/* Puts one command into the queue, and passes it on where a real server is to answer. */
static void take_command(struct liar *liar, struct connection *connection, const char *bytes, size_t len)
{
    struct resp_word words[WORDS_MAX];
    int n = resp_words(bytes, len, words, WORDS_MAX);
    if (n < 1) {
        end(connection, 0);
        return;
    }
    note(liar, words, n);
    const struct liar_rule *rule = find_rule(liar, words);
    struct owed *owed = calloc(1, sizeof *owed);
    if (!owed) {
        guard_fail("out of memory");
    }
    owed->lie = rule != NULL;
    owed->act = rule ? rule->act : LIAR_REPLY;
    owed->due_ms = rule && rule->act == LIAR_LATE ? now_ms() + rule->ms : 0;
    owed->ready = 1;
    const char *answer = own_answer(liar, words, n);
    if (rule && (rule->act == LIAR_REPLY || rule->act == LIAR_GARBAGE || rule->text)) {
        answer = rule->act == LIAR_GARBAGE ? "\x01\x7fno RESP at all\r\n" : liar->texts[rule - liar->rules];
    } else if (connection->upstream >= 0 &&
               (!rule || (rule->act != LIAR_SILENT && rule->act != LIAR_HANG && rule->act != LIAR_CLOSE &&
                          rule->act != LIAR_RESET && rule->act != LIAR_LOSE_REQUEST))) {
        owed->ready = send(connection->upstream, bytes, len, MSG_NOSIGNAL) != (ssize_t)len;
        answer = "";
    }
    add(&owed->answer, answer, strlen(answer));
    if (connection->tail) {
        connection->tail->next = owed;
    } else {
        connection->head = owed;
    }
    connection->tail = owed;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* More of the stream. 0: it has ended. */
static int read_more(int fd, struct buffer *buffer)
{
    char bytes[65536];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) {
        add(buffer, bytes, (size_t)n);
        return 1;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static void read_client(struct liar *liar, struct connection *connection)
{
    if (!read_more(connection->fd, &connection->in)) {
        end(connection, 0);
        return;
    }
    long len = 0;
    while (connection->fd >= 0 && (len = resp_length(connection->in.bytes, connection->in.len)) > 0) {
        take_command(liar, connection, connection->in.bytes, (size_t)len);
        if (connection->fd >= 0) {
            drop(&connection->in, (size_t)len);
        }
    }
    if (len < 0 || (connection->in.len > 0 && connection->in.bytes[0] != '*')) {
        end(connection, 0); /* not RESP: even a liar can't answer that */
    }
    pay(connection);
}

static void read_upstream(struct connection *connection)
{
    if (!read_more(connection->upstream, &connection->from_upstream)) {
        end(connection, 0);
        return;
    }
    long len;
    while ((len = resp_length(connection->from_upstream.bytes, connection->from_upstream.len)) > 0) {
        struct owed *owed = connection->head;
        while (owed && owed->ready) {
            owed = owed->next;
        }
        if (owed) {
            add(&owed->answer, connection->from_upstream.bytes, (size_t)len);
            owed->ready = 1;
        }
        drop(&connection->from_upstream, (size_t)len);
    }
    pay(connection);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* How long until the next late answer, ms; -1: none. Pays what is due. */
static int pay_all(struct liar *liar)
{
    uint64_t now = now_ms(), next = UINT64_MAX;
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        struct connection *connection = &liar->connections[i];
        pay(connection);
        if (connection->fd >= 0 && !connection->hung && connection->head && connection->head->ready &&
            connection->head->due_ms < next) {
            next = connection->head->due_ms;
        }
    }
    return next == UINT64_MAX ? -1 : next > now ? (int)(next - now) : 0;
}

static int watch(const struct liar *liar, struct pollfd *fds)
{
    int n = 0;
    fds[n++] = (struct pollfd){.fd = liar->wake[0], .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = liar->listener, .events = POLLIN};
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        const struct connection *connection = &liar->connections[i];
        fds[n++] = (struct pollfd){.fd = liar->deaf ? -1 : connection->fd, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = connection->upstream, .events = POLLIN};
    }
    return n;
}

static void *serve(void *arg)
{
    struct liar *liar = arg;
    struct pollfd fds[2 + 2 * CONNECTIONS_MAX];
    char byte[64];
    pthread_mutex_lock(&liar->lock);
    while (!liar->stop) {
        int timeout = pay_all(liar);
        int n = watch(liar, fds);
        pthread_mutex_unlock(&liar->lock);
        poll(fds, (nfds_t)n, timeout);
        pthread_mutex_lock(&liar->lock);
        while (recv(liar->wake[0], byte, sizeof byte, MSG_DONTWAIT) > 0) {
        }
        /* A descriptor may have been closed, and given out again, while this polled: only those that still are what
         * they were are read, and reading one that has nothing does no harm. Who is deaf by now reads none. */
        if (fds[1].revents && fds[1].fd == liar->listener) {
            take_connection(liar);
        }
        for (int i = 0; i < CONNECTIONS_MAX; i++) {
            struct connection *connection = &liar->connections[i];
            if (!liar->deaf && fds[2 + 2 * i].revents && connection->fd >= 0 && fds[2 + 2 * i].fd == connection->fd) {
                read_client(liar, connection);
            }
            if (fds[3 + 2 * i].revents && connection->upstream >= 0 && fds[3 + 2 * i].fd == connection->upstream) {
                read_upstream(connection);
            }
        }
    }
    pthread_mutex_unlock(&liar->lock);
    return NULL;
}

static void wake(struct liar *liar)
{
    if (send(liar->wake[1], "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) {
        guard_fail("the lying server: %s", strerror(errno));
    }
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

static void start_listening(struct liar *liar, int tcp)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int on = 1;
    int fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        guard_fail("socket: %s", strerror(errno));
    }
    if (tcp) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        in.sin_port = htons((uint16_t)liar->port);
    } else {
        snprintf(un.sun_path, sizeof un.sun_path, "%s", liar->socket);
        unlink(un.sun_path);
    }
    int bound = tcp ? bind(fd, (struct sockaddr *)&in, sizeof in) : bind(fd, (struct sockaddr *)&un, sizeof un);
    if (bound != 0 || listen(fd, 128) != 0) {
        guard_fail("listen: %s", strerror(errno));
    }
    liar->listener = fd;
}

/* A Sentinel's answer: this port of 127.0.0.1. */
static void print_master(int port, char *text, size_t size)
{
    char digits[12];
    snprintf(digits, sizeof digits, "%d", port);
    snprintf(text, size, "*2\r\n$9\r\n127.0.0.1\r\n$%zu\r\n%s\r\n", strlen(digits), digits);
}

struct liar *liar_open(const struct liar_options *options)
{
    static const struct liar_options defaults;
    struct liar *liar = calloc(1, sizeof *liar);
    if (!liar || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, liar->wake) != 0) {
        guard_fail("the lying server can't start");
    }
    options = options ? options : &defaults;
    liar->held = -1;
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        liar->connections[i].fd = liar->connections[i].upstream = -1;
    }
    if (options->upstream) {
        snprintf(liar->upstream, sizeof liar->upstream, "%s", options->upstream);
    }
    if (options->tcp) {
        liar->port = port_hold(&liar->held);
    } else {
        liar->guard = guard_open();
        snprintf(liar->socket, sizeof liar->socket, "%s/liar.sock", guard_folder(liar->guard));
    }
    start_listening(liar, options->tcp);
    if (options->tcp) {
        snprintf(liar->uri, sizeof liar->uri, "redis://127.0.0.1:%d", liar->port);
        print_master(liar->port, liar->self, sizeof liar->self);
    } else {
        snprintf(liar->uri, sizeof liar->uri, "unix://%s", liar->socket);
    }
    pthread_mutex_init(&liar->lock, NULL);
    if (pthread_create(&liar->thread, NULL, serve, liar) != 0) {
        guard_fail("no thread for the lying server");
    }
    return liar;
}

void liar_close(struct liar *liar)
{
    if (!liar) {
        return;
    }
    pthread_mutex_lock(&liar->lock);
    liar->stop = 1;
    pthread_mutex_unlock(&liar->lock);
    wake(liar);
    pthread_join(liar->thread, NULL);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        end(&liar->connections[i], 0);
    }
    if (liar->listener >= 0) {
        close(liar->listener);
    }
    if (liar->held >= 0) {
        close(liar->held);
    }
    liar_clear(liar);
    for (int i = 0; i < liar->name_count; i++) {
        clear(&liar->names[i].last);
    }
    close(liar->wake[0]);
    close(liar->wake[1]);
    pthread_mutex_destroy(&liar->lock);
    guard_close(liar->guard);
    free(liar);
}

const char *liar_uri(const struct liar *liar)
{
    return liar->uri;
}

const char *liar_socket(const struct liar *liar)
{
    return liar->socket[0] ? liar->socket : NULL;
}

int liar_port(const struct liar *liar)
{
    return liar->port;
}

void liar_rule(struct liar *liar, const struct liar_rule *rule)
{
    pthread_mutex_lock(&liar->lock);
    int i = liar->rule_count;
    if (i == RULES_MAX) {
        guard_fail("too many rules for the lying server");
    }
    liar->rules[i] = *rule;
    liar->texts[i] = strdup(rule->text ? rule->text : "");
    liar->seen[i] = 0;
    liar->rule_count++;
    pthread_mutex_unlock(&liar->lock);
}

void liar_name_master(struct liar *liar, int port, unsigned skip, unsigned times)
{
    char text[64];
    print_master(port, text, sizeof text);
    liar_rule(liar, &(struct liar_rule){
                        .command = "SENTINEL", .act = LIAR_REPLY, .text = text, .skip = skip, .times = times});
}

void liar_clear(struct liar *liar)
{
    pthread_mutex_lock(&liar->lock);
    for (int i = 0; i < liar->rule_count; i++) {
        free(liar->texts[i]);
    }
    liar->rule_count = 0;
    pthread_mutex_unlock(&liar->lock);
}

void liar_release(struct liar *liar)
{
    pthread_mutex_lock(&liar->lock);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        for (struct owed *owed = liar->connections[i].head; owed; owed = owed->next) {
            owed->due_ms = 0;
        }
    }
    pthread_mutex_unlock(&liar->lock);
    wake(liar);
}

void liar_refuse(struct liar *liar, int on)
{
    pthread_mutex_lock(&liar->lock);
    if (on && liar->listener >= 0) {
        shutdown(liar->listener, SHUT_RDWR); /* the thread's poll holds it open beyond the close */
        close(liar->listener);
        liar->listener = -1;
    } else if (!on && liar->listener < 0) {
        start_listening(liar, liar->socket[0] == '\0');
    }
    pthread_mutex_unlock(&liar->lock);
    wake(liar);
}

void liar_deaf(struct liar *liar, int on)
{
    pthread_mutex_lock(&liar->lock);
    liar->deaf = on;
    pthread_mutex_unlock(&liar->lock);
    wake(liar);
}

void liar_cut(struct liar *liar)
{
    pthread_mutex_lock(&liar->lock);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        end(&liar->connections[i], 0);
    }
    pthread_mutex_unlock(&liar->lock);
    wake(liar);
}

unsigned liar_accepted(struct liar *liar)
{
    pthread_mutex_lock(&liar->lock);
    unsigned n = liar->accepted;
    pthread_mutex_unlock(&liar->lock);
    return n;
}

unsigned liar_connected(struct liar *liar)
{
    unsigned n = 0;
    pthread_mutex_lock(&liar->lock);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        n += liar->connections[i].fd >= 0;
    }
    pthread_mutex_unlock(&liar->lock);
    return n;
}

unsigned liar_count(struct liar *liar, const char *command)
{
    pthread_mutex_lock(&liar->lock);
    const struct counted *counted = command ? find_name(liar, command, strlen(command)) : NULL;
    unsigned n = !command ? liar->total : counted ? counted->count : 0;
    pthread_mutex_unlock(&liar->lock);
    return n;
}

size_t liar_last(struct liar *liar, const char *command, char *buf, size_t len)
{
    size_t n = 0;
    pthread_mutex_lock(&liar->lock);
    const struct counted *counted = find_name(liar, command, strlen(command));
    if (counted && len > 0) {
        n = counted->last.len;
        size_t copied = n < len ? n : len - 1;
        memcpy(buf, counted->last.bytes, copied);
        buf[copied] = '\0';
    }
    pthread_mutex_unlock(&liar->lock);
    return n;
}
