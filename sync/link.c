/* SPDX-License-Identifier: MIT */
/*
 * The states of one connection. Invariants:
 *   - commands wait in the order in which they were sent, which is the order of the answers; one whose callback has
 *     been called stays in line, with no callback, until its answer or the connection's end takes it out;
 *   - a callback is called from the loop only, with the link consistent and nothing cached across it but `link`
 *     itself, which lives until the last handle is closed;
 *   - one timer serves every wait: it is armed for the earliest, and who fires too early arms it again.
 */
#include "sync/link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sync/link_state.h"

enum {
    IN_LINE_MAX = 1024, /* commands without an answer: a server that lags so far behind gets no more */
    LOG_LINE_SIZE = 512,
    SECRET_MIN = 4 /* a shorter piece of a password at the end of a line tells nothing */
};

#define MS UINT64_C(1000000)
#define NEVER UINT64_MAX

static void open_next(struct weir__link *link);
static void resolve(struct weir__link *link);

/* ---- memory, counters, log --------------------------------------------------------------------------------------- */

static void *default_alloc(void *arg, size_t size)
{
    (void)arg;
    return malloc(size);
}

static void default_release(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    free(memory);
}

void weir__link_count(struct weir__link *link, enum weir__link_kind kind)
{
    atomic_fetch_add_explicit(&link->errors[kind], 1, memory_order_relaxed);
    if (link->config.tally)
        atomic_fetch_add_explicit(&link->config.tally[kind], 1, memory_order_relaxed);
}

/* Faults of the connection are counted when it ends, error replies when they come. */
static int is_fault(enum weir__link_kind kind)
{
    return kind >= WEIR__LINK_RESOLVE && kind <= WEIR__LINK_CLOSED;
}

/* Stars for the password, also where the end of the line cuts it: a server may quote what it did not like. */
static void hide_password(const struct weir__link *link, char *line)
{
    const char *secret = link->uri.password;
    size_t n = strlen(secret), least = n < SECRET_MIN ? n : SECRET_MIN;
    for (size_t left = strlen(line); least > 0 && left >= least; line++, left--) {
        size_t most = n < left ? n : left;
        if (memcmp(line, secret, most) == 0) {
            memset(line, '*', most);
        }
    }
}

/* Names the server. What that one said may be anything: no control character leaves. */
void weir__link_say(struct weir__link *link, enum weir_log_level level, const char *format, ...)
{
    char line[LOG_LINE_SIZE];
    va_list args;
    if (!link->config.log) {
        return;
    }
    size_t n = (size_t)snprintf(line, sizeof line, "redis ");
    weir__uri_print(&link->uri, line + n, sizeof line / 2);
    n = strlen(line);
    va_start(args, format);
    vsnprintf(line + n, sizeof line - n, format, args);
    va_end(args);
    hide_password(link, line + n);
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    link->config.log(link->config.arg, level, line);
}

/* One line a change, not one an attempt. */
static void say_failure(struct weir__link *link, enum weir__link_kind why, const char *text)
{
    weir__link_say(link, link->last_fail == why ? WEIR_LOG_DEBUG : WEIR_LOG_WARN, ": %s: %s",
                   weir__link_kind_label(why), text);
    link->last_fail = why;
}

/* ---- the timer --------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

static void arm_timer(struct weir__link *link, uint64_t when)
{
    if (link->closing || when >= link->armed_for) {
        return;
    }
    uint64_t now = uv_hrtime();
    uv_update_time(link->loop); /* its cached time may be as old as the callback that we are in is long */
    uv_timer_start(&link->timer, on_timer, when > now ? (when - now + MS - 1) / MS : 0, 0);
    link->armed_for = when;
}

void weir__link_wait_in(struct weir__link *link, enum weir__link_state state, uint64_t ns)
{
    link->state = state;
    link->wait_until = uv_hrtime() + ns;
    arm_timer(link, link->wait_until);
}

void weir__link_tell(struct weir__link *link, int up, enum weir__link_kind why)
{
    if (link->told_up != up && !link->closing) {
        link->told_up = (uint8_t)up;
        if (link->config.on_state) {
            link->config.on_state(link->config.arg, up, why);
        }
    }
}

/* ---- leaving a connection ---------------------------------------------------------------------------------------- */

void weir__link_leave(struct weir__link *link, enum weir__link_kind why, const char *text)
{
    if (weir__adapter_is_alive(&link->adapter)) {
        link->left = link->state;
        link->state = WEIR__LINK_LEAVING;
        weir__adapter_close(&link->adapter, why, text);
    }
}

/* Another Sentinel may know more, also than one who named a master that is none; else later. */
static void back_off(struct weir__link *link)
{
    if (weir__link_ask_next(link)) {
        resolve(link);
        return;
    }
    weir__link_wait_in(link, WEIR__LINK_WAITING, weir__backoff_next(&link->backoff));
}

/* One handle or request less. The last one was all that kept the link. */
static void release_handle(struct weir__link *link)
{
    struct weir_allocator allocator = link->config.allocator;
    void (*cb)(void *) = link->close_cb;
    void *arg = link->close_arg;
    if (--link->handles > 0) {
        return;
    }
    weir__line_deinit(&link->line);
    weir__tls_deinit(&link->tls);
    weir__uri_wipe(&link->uri);
    allocator.release(allocator.arg, link, sizeof *link);
    if (cb) {
        cb(arg);
    }
}

/* Everything in line ends with the connection. */
static void fail_line(struct weir__link *link, enum weir__link_kind why)
{
    struct weir__command *command;
    while ((command = weir__line_next(&link->line))) {
        weir__link_cb cb = command->cb;
        void *arg = command->arg;
        weir__line_spare(&link->line, command);
        if (cb) {
            cb(arg, link->closing ? WEIR__LINK_CLOSED : why, NULL);
        }
    }
}

static void on_adapter_closed(void *arg, enum weir__link_kind why, const char *text)
{
    struct weir__link *link = arg;
    enum weir__link_state left = link->state == WEIR__LINK_LEAVING ? link->left : link->state;
    link->state = WEIR__LINK_LEAVING;
    if (!link->closing && why == WEIR__LINK_OK) { /* a Sentinel has said all that it was asked for */
        link->handles--;
        weir__link_go_to_master(link);
        resolve(link);
        return;
    }
    if (!link->closing) {
        /* A stall ends with a deadline that was counted when it passed. */
        if (is_fault(why) && !(why == WEIR__LINK_TIMEOUT && left == WEIR__LINK_STALLED)) {
            weir__link_count(link, why);
        }
        say_failure(link, why, text);
        weir__link_tell(link, 0, why);
    }
    if ((left == WEIR__LINK_UP || left == WEIR__LINK_STALLED) &&
        uv_hrtime() - link->up_since > link->config.backoff_max_ns) {
        weir__backoff_reset(&link->backoff); /* it held for long enough to be no failed attempt */
    }
    /* An error reply is the answer to one command; to the others the connection was lost. */
    fail_line(link, is_fault(why) ? why : WEIR__LINK_LOST);
    if (link->closing) {
        release_handle(link);
        return;
    }
    link->handles--;
    if ((left == WEIR__LINK_CONNECTING || left == WEIR__LINK_GREETING) && is_fault(why) &&
        link->address + 1 < link->address_count) {
        link->address++;
        open_next(link);
    } else {
        back_off(link);
    }
}

/* ---- connecting -------------------------------------------------------------------------------------------------- */

static const struct weir__adapter_events adapter_events = {
    .connected = weir__link_on_connected,
    .reply = weir__link_on_reply,
    .closed = on_adapter_closed,
};

/* Tries the addresses from link->address on, until one does not fail at once. */
static void open_next(struct weir__link *link)
{
    struct weir__adapter_target target = {
        .path = link->uri.path[0] ? link->uri.path : NULL,
        .port = link->uri.port,
        .signals_blocked = link->config.signals_blocked,
        .tls = link->uri.tls ? &link->tls : NULL,
        .host = link->uri.host,
    };
    for (; link->address < link->address_count; link->address++) {
        target.address = link->addresses[link->address];
        if (weir__adapter_open(&link->adapter, link->loop, &target, &adapter_events, link) == 0) {
            link->handles++;
            weir__link_wait_in(link, WEIR__LINK_CONNECTING, link->config.connect_timeout_ns);
            return;
        }
        weir__link_count(link, link->adapter.why);
        say_failure(link, link->adapter.why, link->adapter.text);
    }
    back_off(link);
}

static void take_addresses(struct weir__link *link, const struct addrinfo *found)
{
    link->address = link->address_count = 0;
    for (; found && link->address_count < WEIR__LINK_ADDRESSES_MAX; found = found->ai_next) {
        if (getnameinfo(found->ai_addr, found->ai_addrlen, link->addresses[link->address_count], NI_MAXHOST, NULL, 0,
                        NI_NUMERICHOST) == 0) {
            link->address_count++;
        }
    }
}

static void fail_resolve(struct weir__link *link, int status)
{
    weir__link_count(link, WEIR__LINK_RESOLVE);
    say_failure(link, WEIR__LINK_RESOLVE, status < 0 ? uv_strerror(status) : "no address");
    back_off(link);
}

static void on_resolved(uv_getaddrinfo_t *resolver, int status, struct addrinfo *found)
{
    struct weir__link *link = resolver->data;
    if (!link->closing) {
        link->handles--;
        take_addresses(link, status == 0 ? found : NULL);
        if (link->address_count == 0) {
            fail_resolve(link, status);
        } else {
            open_next(link);
        }
    }
    uv_freeaddrinfo(found);
    link->resolving = 0;
    if (link->closing) {
        release_handle(link);
    }
}

static int is_numeric(const char *host)
{
    char bytes[16], bare[NI_MAXHOST];
    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(host, "%"), host); /* fe80::1%eth0 */
    return uv_inet_pton(AF_INET, host, bytes) == 0 || uv_inet_pton(AF_INET6, bare, bytes) == 0;
}

static void resolve(struct weir__link *link)
{
    link->address = 0;
    link->address_count = 1;
    if (link->uri.path[0] || is_numeric(link->uri.host)) {
        snprintf(link->addresses[0], sizeof link->addresses[0], "%s", link->uri.host);
        open_next(link);
        return;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    link->resolver.data = link;
    int status = uv_getaddrinfo(link->loop, &link->resolver, on_resolved, link->uri.host, NULL, &hints);
    if (status < 0) {
        fail_resolve(link, status);
        return;
    }
    link->state = WEIR__LINK_RESOLVING; /* for as long as the resolver likes: there is nothing better to do */
    link->resolving = 1;
    link->handles++;
}

static void begin(struct weir__link *link)
{
    if (link->uri.kind == WEIR__URI_SENTINEL) {
        weir__link_ask_first(link);
    }
    resolve(link);
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

/* A deadline passed for the first time. */
static void fall_behind(struct weir__link *link, struct weir__command *command)
{
    command->late = 1;
    weir__link_count(link, WEIR__LINK_TIMEOUT);
    if (link->state == WEIR__LINK_UP && command->answers == link->answers) {
        weir__link_wait_in(link, WEIR__LINK_STALLED, link->config.stall_ns);
        weir__link_tell(link, 0, WEIR__LINK_TIMEOUT);
    }
}

/* Calls back whoever's deadline has passed. Commands stay in line: their answers may still come. */
static void expire(struct weir__link *link, uint64_t now)
{
    for (struct weir__command *command = link->line.head; command; command = command->next) {
        weir__link_cb cb = command->cb;
        weir__link_late_cb on_late = command->on_late;
        if (!cb || command->deadline > now) {
            continue;
        }
        if (on_late) {
            command->on_late = NULL;
            command->deadline = now + link->config.stall_ns;
        } else {
            command->cb = NULL;
        }
        if (!command->late) {
            fall_behind(link, command);
        }
        if (on_late) {
            on_late(command->arg);
        } else {
            cb(command->arg, WEIR__LINK_TIMEOUT, NULL);
        }
        if (!weir__adapter_is_alive(&link->adapter)) {
            return;
        }
    }
}

/* When the timer must fire next. A connection that has ended waits for nothing but to be told of, later in this turn of
 * the loop; with times that are over it would never come to that, for libuv (before 1.45) calls a timer again in the
 * same turn while it is due. */
static uint64_t next_wait(const struct weir__link *link)
{
    uint64_t next = NEVER;
    if (link->state != WEIR__LINK_WAITING && !weir__adapter_is_alive(&link->adapter)) {
        return NEVER;
    }
    if (link->state == WEIR__LINK_WAITING || link->state == WEIR__LINK_CONNECTING ||
        link->state == WEIR__LINK_GREETING || link->state == WEIR__LINK_STALLED) {
        next = link->wait_until;
    }
    if (link->state == WEIR__LINK_UP || link->state == WEIR__LINK_STALLED) {
        for (const struct weir__command *command = link->line.head; command; command = command->next) {
            if (command->cb && command->deadline < next) {
                next = command->deadline;
            }
        }
    }
    return next;
}

static void on_timer(uv_timer_t *timer)
{
    struct weir__link *link = timer->data;
    link->armed_for = NEVER;
    uint64_t now = uv_hrtime();
    if (next_wait(link) <= now) {
        if (link->state == WEIR__LINK_WAITING) {
            begin(link);
        } else {
            /* Timers run before poll in a turn of the loop: after a long callback an answer may lie there unread. */
            weir__adapter_read(&link->adapter);
        }
    }
    enum weir__link_state state = link->state;
    if (weir__adapter_is_alive(&link->adapter) && (state == WEIR__LINK_UP || state == WEIR__LINK_STALLED)) {
        expire(link, now);
    }
    if ((state == WEIR__LINK_CONNECTING || state == WEIR__LINK_GREETING || state == WEIR__LINK_STALLED) &&
        state == link->state && link->wait_until <= now) {
        weir__link_leave(link, WEIR__LINK_TIMEOUT, state == WEIR__LINK_STALLED ? "no answer" : "no connection in time");
    }
    if (!link->closing) {
        arm_timer(link, next_wait(link));
    }
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct weir__link *link = prepare->data;
    weir__adapter_flush(&link->adapter);
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

static void take_config(struct weir__link *link, const struct weir__link_config *config)
{
    link->config = *config;
    link->config.uri = NULL;
    link->config.scripts = NULL;
    link->config.tls = NULL;
    link->config.tls_ca = link->config.tls_cert = link->config.tls_key = link->config.tls_server_name = NULL;
    link->uri = *config->uri;
    for (size_t i = 0; i < config->script_count; i++) {
        link->scripts[i] = config->scripts[i];
    }
    uint64_t *times[] = {&link->config.connect_timeout_ns, &link->config.stall_ns, &link->config.backoff_min_ns,
                         &link->config.backoff_max_ns};
    static const uint64_t defaults[] = {1000 * MS, 250 * MS, 100 * MS, 5000 * MS};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        *times[i] = *times[i] ? *times[i] : defaults[i];
    }
    if (link->config.backoff_min_ns > link->config.backoff_max_ns) {
        link->config.backoff_min_ns = link->config.backoff_max_ns; /* only one of the two was given */
    }
    uint64_t seed = config->seed;
    if (seed == 0) {
        seed = uv_hrtime() ^ ((uint64_t)uv_os_getpid() << 32) ^ (uint64_t)(uintptr_t)link;
    }
    weir__backoff_init(&link->backoff, link->config.backoff_min_ns, link->config.backoff_max_ns, seed);
}

static int take_tls(struct weir__link *link, const struct weir__link_config *config)
{
    struct weir__tls_options options = {config->tls_ca, config->tls_cert, config->tls_key, config->tls_server_name};
    return config->tls ? weir__tls_share(&link->tls, config->tls) : weir__tls_init(&link->tls, &options);
}

int weir__link_open(struct weir__link **out, struct uv_loop_s *loop, const struct weir__link_config *config)
{
    struct weir_allocator allocator = config->allocator;
    *out = NULL;
    if (!config->uri || config->script_count > WEIR__LINK_SCRIPTS_MAX || !allocator.alloc != !allocator.release ||
        (config->backoff_max_ns != 0 && config->backoff_max_ns < config->backoff_min_ns)) {
        return WEIR_E_INVAL;
    }
    if (!allocator.alloc) {
        allocator.alloc = default_alloc;
        allocator.release = default_release;
    }
    struct weir__link *link = allocator.alloc(allocator.arg, sizeof *link);
    if (!link) {
        return WEIR_E_NOMEM;
    }
    memset(link, 0, sizeof *link);
    take_config(link, config);
    link->config.allocator = allocator;
    weir__line_init(&link->line, &allocator);
    if (config->uri->tls) {
        int status = take_tls(link, config);
        if (status != 0) {
            weir__uri_wipe(&link->uri);
            allocator.release(allocator.arg, link, sizeof *link);
            return status;
        }
    }
    link->loop = loop;
    link->armed_for = NEVER;
    uv_timer_init(loop, &link->timer);
    uv_prepare_init(loop, &link->prepare);
    uv_unref((uv_handle_t *)&link->timer);
    uv_unref((uv_handle_t *)&link->prepare);
    link->timer.data = link->prepare.data = link;
    link->handles = 2;
    uv_prepare_start(&link->prepare, on_prepare);
    *out = link;
    return 0;
}

void weir__link_start(struct weir__link *link)
{
    if (link->state == WEIR__LINK_IDLE && !link->closing) {
        weir__link_wait_in(link, WEIR__LINK_WAITING, 0);
    }
}

int weir__link_is_up(const struct weir__link *link)
{
    return link->state == WEIR__LINK_UP && weir__adapter_is_alive(&link->adapter);
}

const char *weir__link_sha(const struct weir__link *link, size_t i)
{
    return link->sha[i];
}

int weir__link_command_late(struct weir__link *link, const void *bytes, size_t len, uint64_t timeout_ns,
                            weir__link_late_cb on_late, weir__link_cb cb, void *arg)
{
    if (link->closing || !weir__link_is_up(link)) {
        return link->closing ? WEIR_E_CLOSED : WEIR_E_NOSYNC;
    }
    if (link->line.length >= IN_LINE_MAX) {
        return WEIR_E_FULL;
    }
    struct weir__command *command = weir__line_take(&link->line);
    if (!command) {
        return WEIR_E_NOMEM;
    }
    if (weir__adapter_send(&link->adapter, bytes, len) != 0) {
        weir__line_spare(&link->line, command);
        weir__link_leave(link, WEIR__LINK_SYSTEM, "out of memory");
        return WEIR_E_NOMEM;
    }
    uint64_t now = uv_hrtime();
    command->cb = cb;
    command->on_late = on_late;
    command->arg = arg;
    command->bytes = bytes;
    command->len = len;
    command->deadline = timeout_ns < NEVER - now ? now + timeout_ns : NEVER;
    command->answers = link->answers;
    weir__line_append(&link->line, command);
    arm_timer(link, command->deadline);
    return 0;
}

int weir__link_command(struct weir__link *link, const void *bytes, size_t len, uint64_t timeout_ns, weir__link_cb cb,
                       void *arg)
{
    return weir__link_command_late(link, bytes, len, timeout_ns, NULL, cb, arg);
}

void weir__link_flush(struct weir__link *link)
{
    weir__adapter_flush(&link->adapter);
}

void weir__link_fault(struct weir__link *link, enum weir__link_kind kind)
{
    int drops = weir__link_effect_of(kind) == WEIR__LINK_DROP && weir__adapter_is_alive(&link->adapter);
    if (!drops || !is_fault(kind)) {
        weir__link_count(link, kind);
    }
    if (drops) {
        weir__link_leave(link, kind, "an answer that makes no sense");
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    release_handle(handle->data);
}

void weir__link_close(struct weir__link *link, void (*cb)(void *arg), void *arg)
{
    link->closing = 1;
    link->close_cb = cb;
    link->close_arg = arg;
    if (link->resolving) {
        uv_cancel((uv_req_t *)&link->resolver); /* where it runs already, its callback comes when it is done */
    }
    if (weir__adapter_is_alive(&link->adapter)) {
        weir__adapter_close(&link->adapter, WEIR__LINK_CLOSED, "closed");
    }
    uv_close((uv_handle_t *)&link->timer, on_handle_closed);
    uv_close((uv_handle_t *)&link->prepare, on_handle_closed);
}

uint64_t weir__link_errors(const struct weir__link *link, enum weir__link_kind kind)
{
    return atomic_load_explicit(&link->errors[kind], memory_order_relaxed);
}

uint64_t weir__link_reconnects(const struct weir__link *link)
{
    return atomic_load_explicit(&link->reconnects, memory_order_relaxed);
}

uint64_t weir__link_late(const struct weir__link *link)
{
    return atomic_load_explicit(&link->late, memory_order_relaxed);
}
