/* SPDX-License-Identifier: MIT */
/*
 * hiredis on libuv. Invariants:
 *   - once the poll handle exists, the context is freed in its close callback and nowhere else, so no frame of this
 *     file, of hiredis or of the owner can hold a freed one;
 *   - UV_READABLE stays armed from connect to close; UV_WRITABLE only while connecting and after a partial write;
 *   - after weir__adapter_close no event but `closed` is sent, however much has been read already.
 */
#include "sync/adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <hiredis/hiredis.h>

#include "sync/tls.h"

enum {
    READ_SIZE = 16 * 1024,  /* what redisBufferRead asks for */
    READS_MAX = 16,         /* in one event: the loop's other handles want their turn */
    FAULTS_MAX = 64,        /* poll errors in a row that neither a read nor a write explains */
    ELEMENTS_MAX = 65536,   /* of an array */
    DEPTH_MAX = 6,          /* of arrays in arrays */
    BUFFERED_MAX = 1 << 24, /* bytes of an unfinished reply: who sends more is no Redis of ours */
};

/* ---- what a peer can make us allocate ---------------------------------------------------------------------------- */

/* hiredis allocates an array as long as its header claims, before any element has come; newer ones nest as deep as a
 * peer likes, and free by recursion. So: its own functions, but for arrays past our limits. */
#if HIREDIS_MAJOR >= 1
typedef size_t element_count;
#else
typedef int element_count;
#endif

static uv_once_t limited_once = UV_ONCE_INIT;
static redisReplyObjectFunctions limited;
static void *(*unlimited_array)(const redisReadTask *task, element_count elements);

static void *create_array(const redisReadTask *task, element_count elements)
{
    int depth = 0;
    for (const redisReadTask *outer = task->parent; outer && depth <= DEPTH_MAX; outer = outer->parent) {
        depth++;
    }
    if (elements > (element_count)ELEMENTS_MAX || depth > DEPTH_MAX) {
        ((struct weir__adapter *)task->privdata)->oversize = 1;
        return NULL;
    }
    return unlimited_array(task, elements);
}

static void init_limited(void)
{
    redisReader *reader = redisReaderCreate();
    if (reader) {
        limited = *reader->fn;
        unlimited_array = limited.createArray;
        limited.createArray = create_array;
        redisReaderFree(reader);
    }
}

static void limit_replies(struct weir__adapter *adapter)
{
    uv_once(&limited_once, init_limited);
    if (unlimited_array) {
        adapter->context->reader->fn = &limited;
        adapter->context->reader->privdata = adapter;
    }
}

/* ---- SIGPIPE ----------------------------------------------------------------------------------------------------- */

/* hiredis writes with write(2): a peer that has gone raises SIGPIPE on this thread, and its default kills the host.
 * Where the socket can't be told to be silent, the signal is blocked around the write and taken back if it was ours. */
#ifndef SO_NOSIGPIPE
struct signal_guard {
    sigset_t pipe, before;
    int pending; /* one was pending already, for somebody else */
};

static void block_sigpipe(struct signal_guard *guard)
{
    sigset_t pending;
    sigemptyset(&guard->pipe);
    sigaddset(&guard->pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &guard->pipe, &guard->before);
    guard->pending = 0;
    /* Unblocked until now, it can't have been pending. */
    if (sigismember(&guard->before, SIGPIPE) && sigpending(&pending) == 0) {
        guard->pending = sigismember(&pending, SIGPIPE);
    }
}

static void restore_sigpipe(const struct signal_guard *guard, int broken)
{
    static const struct timespec at_once = {0, 0};
    if (broken && !guard->pending) {
        while (sigtimedwait(&guard->pipe, NULL, &at_once) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
}
#else
struct signal_guard {
    int unused;
};
static void block_sigpipe(struct signal_guard *guard)
{
    guard->unused = 0;
}
static void restore_sigpipe(const struct signal_guard *guard, int broken)
{
    (void)guard;
    (void)broken;
}
#endif

/* ---- closing ----------------------------------------------------------------------------------------------------- */

static void on_poll_closed(uv_handle_t *handle)
{
    struct weir__adapter *adapter = handle->data;
    redisFree(adapter->context);
    adapter->context = NULL;
    adapter->events->closed(adapter->arg, adapter->why, adapter->text);
}

void weir__adapter_close(struct weir__adapter *adapter, enum weir__link_kind why, const char *text)
{
    if (adapter->closing) {
        return;
    }
    adapter->closing = 1;
    adapter->why = why;
    snprintf(adapter->text, sizeof adapter->text, "%s", text);
    uv_close((uv_handle_t *)&adapter->poll, on_poll_closed);
}

/* Closes for what hiredis found. */
static void close_by_context(struct weir__adapter *adapter)
{
    const redisContext *context = adapter->context;
    if (adapter->oversize) {
        weir__adapter_close(adapter, WEIR__LINK_PROTOCOL, "reply is too large");
    } else if (context->err == REDIS_ERR_PROTOCOL) {
        weir__adapter_close(adapter, WEIR__LINK_PROTOCOL, context->errstr);
    } else if (context->err == REDIS_ERR_OOM) {
        weir__adapter_close(adapter, WEIR__LINK_SYSTEM, context->errstr);
    } else if (adapter->session && !adapter->answered) {
        weir__adapter_close(adapter, WEIR__LINK_TLS, weir__tls_reason(adapter->session));
    } else {
        weir__adapter_close(adapter, WEIR__LINK_LOST, context->errstr);
    }
}

/* ---- reading and writing ----------------------------------------------------------------------------------------- */

static void on_poll(uv_poll_t *handle, int status, int events);

static void arm(struct weir__adapter *adapter, int events)
{
    if (adapter->armed != events) {
        adapter->armed = events;
        uv_poll_start(&adapter->poll, events, on_poll);
    }
}

static int is_push(const redisReply *reply)
{
#ifdef REDIS_REPLY_PUSH
    return reply->type == REDIS_REPLY_PUSH;
#else
    (void)reply;
    return 0;
#endif
}

/* Hands over every whole reply that is buffered. */
static void deliver(struct weir__adapter *adapter)
{
    for (;;) {
        void *reply = NULL;
        if (redisGetReplyFromReader(adapter->context, &reply) != REDIS_OK) {
            close_by_context(adapter);
            return;
        }
        if (!reply) {
            return;
        }
        adapter->answered = 1;
        if (is_push(reply)) {
            weir__adapter_close(adapter, WEIR__LINK_PROTOCOL, "a push message that nobody subscribed to");
        } else {
            adapter->events->reply(adapter->arg, reply);
        }
        freeReplyObject(reply);
        if (adapter->closing) {
            return;
        }
    }
}

/* One read(2), or one TLS record. How many bytes came; -1: the adapter is closing. */
static long read_once(struct weir__adapter *adapter)
{
    redisContext *context = adapter->context;
    struct signal_guard guard;
    int guarded = adapter->session && adapter->guard_signals; /* TLS may write while it reads */
    size_t before = context->reader->len;
    if (adapter->session) {
        weir__tls_clear();
    }
    if (guarded) {
        block_sigpipe(&guard);
    }
    int status = redisBufferRead(context);
    if (guarded) {
        restore_sigpipe(&guard, status != REDIS_OK);
    }
    if (status != REDIS_OK) {
        close_by_context(adapter);
        return -1;
    }
    return (long)(context->reader->len - before);
}

static void read_all(struct weir__adapter *adapter)
{
    for (int i = 0; i < READS_MAX || adapter->session; i++) {
        long got = read_once(adapter);
        if (got <= 0) {
            return;
        }
        deliver(adapter);
        if (adapter->closing) {
            return;
        }
        if (adapter->context->reader->len > BUFFERED_MAX) {
            weir__adapter_close(adapter, WEIR__LINK_PROTOCOL, "reply is too large");
            return;
        }
        /* A short read emptied the socket. TLS may hold decrypted bytes that poll knows nothing of: read on to 0. */
        if (got < READ_SIZE && !adapter->session) {
            return;
        }
    }
}

static void write_all(struct weir__adapter *adapter)
{
    struct signal_guard guard;
    int done = 0;
    if (adapter->session) {
        weir__tls_clear();
    }
    if (adapter->guard_signals) {
        block_sigpipe(&guard);
    }
    int status = redisBufferWrite(adapter->context, &done);
    if (adapter->guard_signals) {
        restore_sigpipe(&guard, status != REDIS_OK);
    }
    if (status != REDIS_OK) {
        close_by_context(adapter);
        return;
    }
    adapter->unsent = !done;
    int wants_write = adapter->session ? weir__tls_wants_write(adapter->session) : !done;
    arm(adapter, wants_write ? UV_READABLE | UV_WRITABLE : UV_READABLE);
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static int socket_error(int fd)
{
    int error = 0;
    socklen_t len = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 ? error : errno;
}

static int begin_tls(struct weir__adapter *adapter)
{
    struct signal_guard guard;
    const char *reason = NULL;
    if (adapter->guard_signals) {
        block_sigpipe(&guard);
    }
    adapter->session = weir__tls_attach(adapter->tls, adapter->host, adapter->context, &reason);
    if (adapter->guard_signals) {
        restore_sigpipe(&guard, adapter->session == NULL);
    }
    if (!adapter->session) {
        weir__adapter_close(adapter, WEIR__LINK_TLS, reason);
        return -1;
    }
    return 0;
}

/* The socket became writable, or failed. */
static void finish_connect(struct weir__adapter *adapter, int status)
{
    char text[64];
    int error = socket_error(adapter->context->fd);
    if (error != 0 || status < 0) {
        uv_strerror_r(error ? uv_translate_sys_error(error) : status, text, sizeof text);
        weir__adapter_close(adapter, WEIR__LINK_CONNECT, text);
        return;
    }
    if (adapter->tls && begin_tls(adapter) != 0) {
        return;
    }
    adapter->connected = 1;
    arm(adapter, UV_READABLE);
    adapter->events->connected(adapter->arg);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct weir__adapter *adapter = handle->data;
    if (!adapter->connected) {
        if (status < 0 || (events & UV_WRITABLE)) {
            finish_connect(adapter, status);
        }
        return;
    }
    if (status < 0) {
        /* libuv has stopped the handle and hides what it saw. A read or a write tells, when what came before the error
         * has been read. */
        adapter->armed = 0;
        if (++adapter->faults > FAULTS_MAX) {
            weir__adapter_close(adapter, WEIR__LINK_LOST, uv_strerror(status));
            return;
        }
        events = UV_READABLE | UV_WRITABLE;
    } else {
        adapter->faults = 0;
    }
    if ((events & UV_READABLE) || adapter->session) {
        read_all(adapter);
    }
    if (!adapter->closing && ((events & UV_WRITABLE) || (adapter->session && adapter->unsent))) {
        write_all(adapter);
    }
    if (!adapter->closing && adapter->armed == 0) {
        arm(adapter, UV_READABLE);
    }
}

/* Settings of the socket that neither library makes for us. */
static void prepare_socket(int fd, int is_tcp)
{
    int on = 1;
    int flags = fcntl(fd, F_GETFD);
    if (flags >= 0) {
        fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
    if (is_tcp) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

int weir__adapter_open(struct weir__adapter *adapter, uv_loop_t *loop, const struct weir__adapter_target *target,
                       const struct weir__adapter_events *events, void *arg)
{
    memset(adapter, 0, sizeof *adapter);
    redisContext *context =
        target->path ? redisConnectUnixNonBlock(target->path) : redisConnectNonBlock(target->address, target->port);
    if (!context) {
        adapter->why = WEIR__LINK_SYSTEM;
        snprintf(adapter->text, sizeof adapter->text, "out of memory");
        return WEIR_E_NOMEM;
    }
    if (context->err) {
        adapter->why = WEIR__LINK_CONNECT;
        snprintf(adapter->text, sizeof adapter->text, "%s", context->errstr);
        redisFree(context);
        return WEIR_E_SYS;
    }
    int status = uv_poll_init(loop, &adapter->poll, context->fd);
    if (status < 0) {
        adapter->why = WEIR__LINK_SYSTEM;
        snprintf(adapter->text, sizeof adapter->text, "%s", uv_strerror(status));
        redisFree(context);
        return WEIR_E_SYS;
    }
    prepare_socket(context->fd, !target->path);
    adapter->poll.data = adapter;
    adapter->context = context;
    adapter->events = events;
    adapter->arg = arg;
    adapter->tls = target->tls;
    adapter->host = target->host;
    adapter->guard_signals = !target->signals_blocked;
    limit_replies(adapter);
    uv_unref((uv_handle_t *)&adapter->poll);
    arm(adapter, UV_READABLE | UV_WRITABLE);
    return 0;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

int weir__adapter_is_alive(const struct weir__adapter *adapter)
{
    return adapter->context && !adapter->closing;
}

int weir__adapter_send(struct weir__adapter *adapter, const void *bytes, size_t len)
{
    adapter->unsent = 1;
    return redisAppendFormattedCommand(adapter->context, bytes, len) == REDIS_OK ? 0 : WEIR_E_NOMEM;
}

int weir__adapter_send_words(struct weir__adapter *adapter, int n, const char *const *words, const size_t *lengths)
{
    adapter->unsent = 1;
    return redisAppendCommandArgv(adapter->context, n, (const char **)words, lengths) == REDIS_OK ? 0 : WEIR_E_NOMEM;
}

void weir__adapter_flush(struct weir__adapter *adapter)
{
    /* Armed for writing: the socket is full, and poll will say when it is not. */
    if (adapter->unsent && adapter->connected && weir__adapter_is_alive(adapter) && !(adapter->armed & UV_WRITABLE)) {
        write_all(adapter);
    }
}

void weir__adapter_read(struct weir__adapter *adapter)
{
    if (!weir__adapter_is_alive(adapter)) {
        return;
    }
    if (adapter->connected) {
        read_all(adapter);
        return;
    }
    struct pollfd one = {.fd = adapter->context->fd, .events = POLLOUT};
    if (poll(&one, 1, 0) > 0) {
        finish_connect(adapter, 0);
    }
}

const char *weir__adapter_error(const struct redisReply *reply, size_t *len)
{
    if (reply->type != REDIS_REPLY_ERROR) {
        return NULL;
    }
    *len = reply->len;
    return reply->str;
}

const char *weir__adapter_string(const struct redisReply *reply, size_t *len)
{
    if (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS) {
        return NULL;
    }
    *len = reply->len;
    return reply->str;
}

const struct redisReply *weir__adapter_element(const struct redisReply *reply, size_t i)
{
    return reply->type == REDIS_REPLY_ARRAY && i < reply->elements ? reply->element[i] : NULL;
}
