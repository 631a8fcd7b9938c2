/* SPDX-License-Identifier: MIT */
/*
 * An HTTP server that limits its clients: libmicrohttpd and weir's reconciliation on one libuv loop, one thread.
 *
 *   GET /         at most `client` requests an address, decided in memory
 *   GET /strict   at most `exact` of all together, decided by Redis; the connection waits, the loop does not
 *   GET /metrics  for Prometheus
 *
 *   http-server [PORT [REDIS-URI [LIMIT-A-MINUTE]]]     SIGINT and SIGTERM end it, and nothing that was spent is lost
 *
 * It owns the server; all that it knows of limits is in weir's public headers.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <microhttpd.h>
#include <uv.h>

#include <weir/http.h>
#include <weir/sync.h>
#include <weir/weir.h>

#define MINUTE_NS (UINT64_C(60) * 1000000000)

struct server {
    uv_loop_t loop;
    uv_poll_t poll; /* of libmicrohttpd's own epoll */
    uv_timer_t timer;
    uv_signal_t signals[2];
    struct MHD_Daemon *daemon;
    struct weir *limiter;
    struct weir_sync *sync;
    weir_policy_id client, exact;
};

/* A request that waits for Redis. */
struct waiting {
    struct server *server;
    struct MHD_Connection *connection;
    int status, answered;
    struct weir_result result;
};

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "http-server: %s: %s\n", what, why);
    return 1;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* Retry-After, RateLimit and RateLimit-Policy, as far as there is something to say. */
static void add_fields(struct MHD_Response *response, const struct weir_result *result)
{
    static const enum weir_http_field fields[] = {WEIR_HTTP_RETRY_AFTER, WEIR_HTTP_RATELIMIT,
                                                  WEIR_HTTP_RATELIMIT_POLICY};
    char value[WEIR_HTTP_HEADERS_MAX];
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (weir_http_value(value, sizeof value, result, 1, fields[i]) > 0 && value[0]) {
            MHD_add_response_header(response, weir_http_field_name(fields[i]), value);
        }
    }
}

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code, const char *text,
                             const struct weir_result *result)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (!response) {
        return MHD_NO;
    }
    if (result) {
        add_fields(response, result);
    }
    enum MHD_Result queued = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return queued;
}

/* 429 for who went over his limit, 503 where nobody could decide. */
static enum MHD_Result reply_verdict(struct MHD_Connection *connection, int status, const struct weir_result *result)
{
    int code = weir_http_status(status, result);
    return reply(connection, (unsigned)code, code == 200 ? "here you are\n" : "slow down\n",
                 status < 0 ? NULL : result);
}

static enum MHD_Result reply_metrics(struct server *server, struct MHD_Connection *connection)
{
    int len = weir_metrics_write(server->limiter, NULL, 0);
    size_t room = (size_t)(len > 0 ? len : 0) + 4096; /* it may have grown by then */
    char *text = malloc(room);
    enum MHD_Result result = MHD_NO;
    if (text && weir_metrics_write(server->limiter, text, room) >= 0) {
        result = reply(connection, MHD_HTTP_OK, text, NULL);
    }
    free(text);
    return result;
}

/* ---- decisions --------------------------------------------------------------------------------------------------- */

/* In memory: some nanoseconds. One key an address: a /64 where it is IPv6. */
static enum MHD_Result serve_client(struct server *server, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char key[WEIR_HTTP_IP_KEY_MAX];
    struct weir_result result;
    int len = info ? weir_http_ip_key(info->client_addr, 0, 0, key) : WEIR_E_INVAL;
    if (len < 0) {
        return reply(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "who are you?\n", NULL);
    }
    int status = weir_take(server->limiter, server->client, key, (size_t)len, 1, &result);
    return reply_verdict(connection, status, &result);
}

static void run_daemon(struct server *server);

/* From the loop, later: the connection goes on where it was suspended, and its handler is called again. */
static void on_decided(void *arg, int status, const struct weir_result *result)
{
    struct waiting *waiting = arg;
    waiting->status = status;
    waiting->result = *result;
    waiting->answered = 1;
    MHD_resume_connection(waiting->connection);
    run_daemon(waiting->server);
}

/* In Redis: a round trip, in which other requests are served. */
static enum MHD_Result serve_strict(struct server *server, struct MHD_Connection *connection, void **context)
{
    struct waiting *waiting = *context;
    struct weir_request request = {.policy = server->exact, .key = "everybody", .key_len = 9, .cost = 1};
    if (waiting->answered) {
        return reply_verdict(connection, waiting->status, &waiting->result);
    }
    waiting->server = server;
    waiting->connection = connection;
    int status = weir_take_async(server->limiter, &request, on_decided, waiting);
    if (status < 0) {
        return reply_verdict(connection, status, NULL);
    }
    MHD_suspend_connection(connection);
    return MHD_YES;
}

/* ---- libmicrohttpd on libuv -------------------------------------------------------------------------------------- */

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **context)
{
    struct server *server = arg;
    (void)version;
    (void)upload;
    *upload_size = 0;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0) {
        return reply(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n", NULL);
    }
    if (!*context) { /* the head has been read; what is decided when the whole of it has */
        *context = calloc(1, sizeof(struct waiting));
        return *context ? MHD_YES : MHD_NO;
    }
    if (strcmp(url, "/metrics") == 0) {
        return reply_metrics(server, connection);
    }
    if (strcmp(url, "/strict") == 0) {
        return serve_strict(server, connection, context);
    }
    return serve_client(server, connection);
}

static void on_completed(void *arg, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode why)
{
    (void)arg;
    (void)connection;
    (void)why;
    free(*context);
}

static void on_timer(uv_timer_t *timer)
{
    run_daemon(timer->data);
}

/* Serves what is ready; its timeouts become the timer's. */
static void run_daemon(struct server *server)
{
    MHD_UNSIGNED_LONG_LONG ms;
    if (!server->daemon) {
        return;
    }
    MHD_run(server->daemon);
    if (MHD_get_timeout(server->daemon, &ms) == MHD_YES) {
        uv_timer_start(&server->timer, on_timer, ms, 0);
    } else {
        uv_timer_stop(&server->timer);
    }
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    run_daemon(poll->data);
}

static int listen_on(struct server *server, uint16_t port)
{
    server->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, port, NULL, NULL,
                                      on_request, server, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
                                      MHD_OPTION_CONNECTION_TIMEOUT, 30u, MHD_OPTION_END);
    if (!server->daemon) {
        return fail("listen", "is the port in use?");
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    uv_poll_init(&server->loop, &server->poll, info->epoll_fd);
    uv_timer_init(&server->loop, &server->timer);
    server->poll.data = server->timer.data = server;
    uv_poll_start(&server->poll, UV_READABLE, on_ready);
    info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_BIND_PORT);
    printf("http://127.0.0.1:%u/\n", info ? info->port : port);
    fflush(stdout);
    return 0;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* What was spent has been reported, and every waiting request was called back: nobody holds a connection any more. */
static void on_sync_closed(void *arg, int status, uint64_t unsent)
{
    struct server *server = arg;
    struct MHD_Daemon *daemon = server->daemon;
    (void)status;
    if (unsent) {
        fprintf(stderr, "http-server: %" PRIu64 " tokens were not reported\n", unsent);
    }
    server->daemon = NULL;
    uv_poll_stop(&server->poll);
    MHD_stop_daemon(daemon);
    uv_close((uv_handle_t *)&server->poll, NULL);
    uv_close((uv_handle_t *)&server->timer, NULL);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct server *server = handle->data;
    (void)number;
    for (int i = 0; i < 2; i++) {
        uv_close((uv_handle_t *)&server->signals[i], NULL);
    }
    weir_sync_close(server->sync, on_sync_closed, server);
}

static void catch_signals(struct server *server)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        server->signals[i].data = server;
        uv_signal_start_oneshot(&server->signals[i], on_signal, numbers[i]);
    }
}

/* ---- the start --------------------------------------------------------------------------------------------------- */

static void on_log(void *arg, enum weir_log_level level, const char *line)
{
    (void)arg;
    if (level <= WEIR_LOG_WARN) {
        fprintf(stderr, "weir: %s\n", line);
    }
}

static int open_limiter(struct server *server, const char *uri, uint64_t limit)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    options.log = on_log;
    int status = weir_open(&server->limiter, &options);
    if (status < 0) {
        return fail("weir_open", weir_strerror(status));
    }
    policy.limit = limit;
    policy.per_ns = MINUTE_NS;
    policy.name = "client";
    status = weir_policy_add(server->limiter, &policy, &server->client);
    if (status == 0) {
        policy.name = "exact";
        policy.mode = WEIR_STRICT;
        policy.on_outage = WEIR_OUTAGE_CLOSED;
        status = weir_policy_add(server->limiter, &policy, &server->exact);
    }
    if (status == 0) {
        sync.uri = uri;
        status = weir_sync_start(&server->sync, server->limiter, &server->loop, &sync);
    }
    if (status < 0) {
        weir_close(server->limiter);
        return fail("limiter", weir_strerror(status));
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct server server;
    unsigned long port = argc > 1 ? strtoul(argv[1], NULL, 10) : 8080;
    unsigned long long limit = argc > 3 ? strtoull(argv[3], NULL, 10) : 100;
    if (port > UINT16_MAX || limit == 0) {
        return fail("usage", "http-server [PORT [REDIS-URI [LIMIT-A-MINUTE]]]");
    }
    uv_loop_init(&server.loop);
    if (open_limiter(&server, argc > 2 ? argv[2] : NULL, limit) != 0) {
        return 1;
    }
    int failed = listen_on(&server, (uint16_t)port);
    if (failed) {
        weir_sync_close(server.sync, NULL, NULL);
    } else {
        catch_signals(&server);
    }
    uv_run(&server.loop, UV_RUN_DEFAULT);
    uv_loop_close(&server.loop);
    weir_close(server.limiter);
    return failed;
}
