/* SPDX-License-Identifier: MIT */
/*
 * The life of a sync: weir_sync_start, _flush, _close, its thread and its handles. It must not know what is reported or
 * asked (reconcile, strict), nor what libweir calls (hooks).
 */
#include "sync/sync.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "sync/persist.h"
#include "sync/store.h"
#include "sync/uri.h"

#define HOUR_MS (3600u * 1000)
#define MINUTE_MS (60u * 1000)

struct flush {
    struct weir__item item; /* first */
    struct weir__flush flush;
    struct weir_sync *sync;
    weir_sync_cb cb;
    void *arg;
};

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Copies what this library knows of the struct; what it doesn't must be zero. */
static int read_options(const struct weir_sync_options *in, struct weir_sync_options *out)
{
    static const struct weir_sync_options none = WEIR_SYNC_OPTIONS_INIT;
    const unsigned char *bytes;

    if (!in)
        in = &none;
    if (in->size < offsetof(struct weir_sync_options, reserved))
        return WEIR_E_INVAL;
    bytes = (const unsigned char *)in;
    for (size_t i = sizeof *out; i < in->size; i++)
        if (bytes[i])
            return WEIR_E_NOSUP;
    memset(out, 0, sizeof *out);
    memcpy(out, in, in->size < sizeof *out ? in->size : sizeof *out);
    return 0;
}

/* *number: 0 becomes `preset`. Whether it is one from `least` to `most`. */
static int in_range(uint32_t *number, uint32_t preset, uint32_t least, uint32_t most)
{
    if (*number == 0)
        *number = preset;
    return *number >= least && *number <= most;
}

static int check_options(struct weir_sync_options *o)
{
    char longest[WEIR_NAME_MAX + 1], name[WEIR__WIRE_NAME];
    struct weir__wire_target target = {.policy = longest, .group = longest};

    if (!o->prefix)
        o->prefix = "weir";
    if (!in_range(&o->interval_ms, 200, 10, HOUR_MS) || !in_range(&o->jitter_pct, 10, 1, 50) ||
        !in_range(&o->connect_timeout_ms, 1000, 1, MINUTE_MS) || !in_range(&o->timeout_ms, 50, 1, MINUTE_MS) ||
        !in_range(&o->drain_ms, 1000, 1, HOUR_MS) || !in_range(&o->batch_max, 256, 1, WEIR__WIRE_RECORDS) ||
        !in_range(&o->window, 2, 1, 256) || !in_range(&o->shards, 64, 1, 4096) ||
        !in_range(&o->fleet_hint, 1, 1, 1000000) || o->strict_window_us > 1000000)
        return WEIR_E_RANGE;
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    target.prefix = o->prefix;
    target.shards = o->shards;
    target.shard = o->shards - 1;
    return weir__wire_name(&target, 'a', name) < 0 ? WEIR_E_RANGE : 0;
}

static int take_options(struct weir_sync *sync, const struct weir_sync_options *o)
{
    struct weir__node *node = &sync->node;

    sync->prefix_size = strlen(o->prefix) + 1;
    sync->prefix = weir__seam_alloc(node->w, sync->prefix_size);
    if (!sync->prefix)
        return WEIR_E_NOMEM;
    node->prefix = memcpy(sync->prefix, o->prefix, sync->prefix_size);
    node->shards = o->shards;
    node->batch_max = o->batch_max;
    node->window = o->window;
    node->jitter_pct = o->jitter_pct;
    node->fleet_hint = o->fleet_hint;
    node->interval_ns = o->interval_ms * WEIR__MS;
    node->timeout_ns = o->timeout_ms * WEIR__MS;
    node->drain_ns = o->drain_ms * WEIR__MS;
    node->strict_window_ns = o->strict_window_us * UINT64_C(1000);
    return 0;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

void weir__sync_wake(struct weir_sync *sync)
{
    weir__queue_fence(&sync->queue);
    uv_async_send(&sync->async);
}

int weir__sync_is_here(const struct weir_sync *sync)
{
    uv_thread_t self = uv_thread_self();

    return uv_thread_equal(&self, &sync->loop_thread);
}

/* The caller's loop ends by itself while nothing is on its way; it must not end before an answer. */
static void refer(struct weir_sync *sync)
{
    int needed = sync->own || sync->closing || sync->flushes || weir__strict_pending(sync->strict);

    if (needed == sync->referenced)
        return;
    sync->referenced = (uint8_t)needed;
    if (needed)
        uv_ref((uv_handle_t *)&sync->async);
    else
        uv_unref((uv_handle_t *)&sync->async);
}

void weir__sync_reference(struct weir_sync *sync)
{
    if (sync->referenced || sync->finished)
        return;
    sync->referenced = 1;
    uv_ref((uv_handle_t *)&sync->async);
}

static void on_flushed(void *arg, int status, uint64_t unsent)
{
    struct flush *flush = arg;
    struct weir_sync *sync = flush->sync;
    weir_sync_cb cb = flush->cb;
    void *cb_arg = flush->arg;

    sync->flushes--;
    weir__node_free(&sync->node, flush, sizeof *flush);
    if (cb)
        cb(cb_arg, status, unsent);
}

static void begin_close(struct weir_sync *sync);

static void handle(struct weir_sync *sync, struct weir__item *item)
{
    switch (item->kind) {
    case WEIR__ITEM_FLUSH: {
        struct flush *flush = (struct flush *)item;

        sync->flushes++;
        weir__reconcile_flush(sync->rec, &flush->flush);
        break;
    }
    case WEIR__ITEM_CLOSE: begin_close(sync); break;
    case WEIR__QUERY_TOLD: weir__query_answer(&sync->node, (struct weir__query *)item, 0); break;
    default: weir__strict_ask(sync->strict, (struct weir__query *)item); break;
    }
}

static void handle_all(struct weir_sync *sync, struct weir__item *item)
{
    while (item) {
        struct weir__item *next = item->next;

        handle(sync, item);
        item = next;
    }
}

static void on_async(uv_async_t *async)
{
    struct weir_sync *sync = async->data;

    weir__queue_fence(&sync->queue);
    if (sync->finished)
        return;
    if (atomic_exchange_explicit(&sync->policies_changed, 0, memory_order_acquire)) {
        weir__node_policies(&sync->node);
        weir__reconcile_policies(sync->rec);
    }
    if (atomic_exchange_explicit(&sync->woken, 0, memory_order_acquire))
        weir__reconcile_wake(sync->rec);
    handle_all(sync, weir__queue_take(&sync->queue));
    refer(sync);
}

/* What came together in one turn of the loop leaves together. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct weir_sync *sync = prepare->data;

    if (sync->finished)
        return;
    /* what callbacks of this turn asked for need not wait for the next one, in which its wake-up is seen */
    handle_all(sync, weir__queue_take(&sync->queue));
    weir__strict_pump(sync->strict);
    weir__reconcile_pump(sync->rec);
    weir__store_flush(sync->node.store);
    refer(sync);
}

static void on_state(void *arg, int up, enum weir__link_kind why)
{
    struct weir_sync *sync = arg;

    (void)why;
    WEIR__PROBE2(store_state, up, weir__link_kind_label(why));
    if (sync->finished)
        return;
    weir__strict_link(sync->strict, up);
    weir__reconcile_link(sync->rec, up);
    /* last, and release: whoever sees that Redis is there is answered by it */
    atomic_store_explicit(&sync->node.count.store_up, up, memory_order_release);
}

static void on_log(void *arg, enum weir_log_level level, const char *line)
{
    struct weir_sync *sync = arg;

    weir__seam_log(sync->node.w, level, "%s", line);
}

static void on_alive(void *arg, uint64_t now)
{
    struct weir_sync *sync = arg;

    weir__reconcile_alive(sync->rec, now);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* All that it owns but itself. */
static void deinit(struct weir_sync *sync)
{
    weir__node_deinit(&sync->node);
    weir__node_free(&sync->node, sync->prefix, sync->prefix_size);
}

/* On the caller's loop this is the end; a thread of its own goes on in run_thread. */
static void part_closed(struct weir_sync *sync)
{
    struct weir *w = sync->node.w;
    weir_sync_cb cb = sync->close_cb;
    void *arg = sync->close_arg;
    uint64_t unsent = sync->unsent;

    if (--sync->parts || sync->own)
        return;
    deinit(sync);
    weir__seam_free(w, sync, sizeof *sync);
    if (cb)
        cb(arg, 0, unsent);
}

static void on_part_closed(void *arg)
{
    part_closed(arg);
}

static void on_handle_closed(uv_handle_t *handle)
{
    part_closed(handle->data);
}

static void on_link_closed(void *arg)
{
    struct weir_sync *sync = arg;

    sync->parts = 6;
    weir__reconcile_close(sync->rec, on_part_closed, sync);
    weir__strict_close(sync->strict, on_part_closed, sync);
    weir__watch_close(sync->watch, on_part_closed, sync);
    uv_close((uv_handle_t *)&sync->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&sync->drain, on_handle_closed);
    uv_close((uv_handle_t *)&sync->async, on_handle_closed);
}

/* From here on nobody gets in, and what is still inside is answered. */
static void finish(struct weir_sync *sync)
{
    struct weir__item *late;

    if (sync->finished)
        return;
    atomic_store_explicit(&sync->accepting, 0, memory_order_release);
    while (atomic_load_explicit(&sync->leaving, memory_order_acquire))
        ; /* whoever called weir_sync_close is still at waking this loop */
    late = weir__queue_shut(&sync->queue);
    handle_all(sync, late);
    weir__strict_stop(sync->strict);
    weir__watch_stop(sync->watch); /* before another process takes over and listens */
    sync->unsent = weir__reconcile_stop(sync->rec);
    sync->finished = 1;
    weir__reconcile_leave(sync->rec);
    weir__store_close(sync->node.store, on_link_closed, sync);
}

static void on_drain(uv_timer_t *timer)
{
    finish(timer->data);
}

/* Not at once: this comes from the midst of reconciliation. */
static void on_drained(void *arg)
{
    struct weir_sync *sync = arg;

    uv_timer_start(&sync->drain, on_drain, 0, 0);
}

static void begin_close(struct weir_sync *sync)
{
    if (sync->closing || sync->finished)
        return;
    sync->closing = 1;
    refer(sync);
    uv_update_time(sync->node.loop);
    uv_timer_start(&sync->drain, on_drain, sync->node.drain_ns / WEIR__MS, 0);
    if (weir__reconcile_is_idle(sync->rec))
        on_drained(sync);
    else
        weir__reconcile_drain(sync->rec, on_drained, sync);
}

/* ---- a thread of its own ----------------------------------------------------------------------------------------- */

static void run_thread(void *arg)
{
    struct weir_sync *sync = arg;
    weir_sync_cb cb;
    void *cb_arg;
    uint64_t unsent;

    uv_sem_wait(&sync->go);
    if (!sync->started)
        return;
    uv_run(&sync->own_loop, UV_RUN_DEFAULT);
    uv_loop_close(&sync->own_loop);
    cb = sync->close_cb;
    cb_arg = sync->close_arg;
    unsent = sync->unsent;
    deinit(sync);
    /* whoever joins frees the rest; that may be done from within cb */
    if (cb)
        cb(cb_arg, 0, unsent);
}

static void hook_join(void *ctx)
{
    struct weir_sync *sync = ctx;

    if (uv_os_getpid() != sync->pid)
        return; /* a child after fork has no such thread */
    if (weir__sync_is_here(sync))
        pthread_detach(sync->thread); /* weir_close from the close callback, the last thing that the thread does */
    else
        uv_thread_join(&sync->thread);
    uv_sem_destroy(&sync->go);
    weir__seam_free(sync->node.w, sync, sizeof *sync);
}

/* Made before anything that would have to be undone on a loop; it does nothing before `go`. Signals are the host's: the
 * thread takes none, and a dead peer's SIGPIPE does nothing. */
static int make_thread(struct weir_sync *sync)
{
    sigset_t all, before;
    int failed;

    if (uv_loop_init(&sync->own_loop))
        return WEIR_E_SYS;
    if (uv_sem_init(&sync->go, 0))
        goto close_loop;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = uv_thread_create(&sync->thread, run_thread, sync);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        goto destroy_go;
    sync->loop_thread = sync->thread;
    sync->node.loop = &sync->own_loop;
    return 0;

destroy_go:
    uv_sem_destroy(&sync->go);
close_loop:
    uv_loop_close(&sync->own_loop);
    return WEIR_E_SYS;
}

static void unmake_thread(struct weir_sync *sync)
{
    uv_run(&sync->own_loop, UV_RUN_DEFAULT); /* what was closed calls back */
    uv_loop_close(&sync->own_loop);
    uv_sem_post(&sync->go);
    uv_thread_join(&sync->thread);
    uv_sem_destroy(&sync->go);
}

/* ---- the start --------------------------------------------------------------------------------------------------- */

static int open_link(struct weir_sync *sync, const struct weir_sync_options *o, const struct weir__uri *uri)
{
    static const char *const names[WEIR__WIRE_SCRIPTS] = {"sync", "strict", "all", "forget", "peek"};
    struct weir__link_script scripts[WEIR__WIRE_SCRIPTS];
    struct weir__link_config config = {.uri = uri,
                                       .scripts = scripts,
                                       .script_count = WEIR__WIRE_SCRIPTS,
                                       .connect_timeout_ns = o->connect_timeout_ms * WEIR__MS,
                                       .seed = weir__node_random(&sync->node) | 1,
                                       .signals_blocked = sync->own,
                                       .tls_ca = o->tls_ca,
                                       .tls_cert = o->tls_cert,
                                       .tls_key = o->tls_key,
                                       .tls_server_name = o->tls_server_name,
                                       .allocator = sync->node.mem,
                                       .tally = sync->node.count.errors,
                                       .log = on_log,
                                       .on_state = on_state,
                                       .arg = sync};

    for (int i = 0; i < WEIR__WIRE_SCRIPTS; i++) {
        scripts[i].name = names[i];
        scripts[i].body = weir__wire_script_text((enum weir__wire_script)i);
        scripts[i].len = strlen(scripts[i].body);
    }
    return weir__store_open(&sync->node.store, sync->node.loop, &config);
}

/* All that no loop knows. */
static void undo_parts(struct weir_sync *sync)
{
    if (sync->rec)
        weir__reconcile_close(sync->rec, NULL, NULL);
    if (sync->strict)
        weir__strict_close(sync->strict, NULL, NULL);
    weir__watch_close(sync->watch, NULL, NULL);
    deinit(sync);
}

static void free_self(struct weir_sync *sync)
{
    struct weir_allocator mem = sync->node.mem;

    mem.release(mem.arg, sync, sizeof *sync);
}

/* On a caller's loop the limiter may be gone by now. */
static void on_undone(uv_handle_t *handle)
{
    struct weir_sync *sync = handle->data;

    if (!sync->own)
        free_self(sync);
}

static void on_link_undone(void *arg)
{
    struct weir_sync *sync = arg;

    uv_close((uv_handle_t *)&sync->async, on_undone);
}

/* All that may fail, in order; the limiter learns of the sync last. Handles that a caller's loop knows by then are
 * closed when it next runs, and of `sync` nothing but them and the memory they are in is left until then. */
static int open_parts(struct weir_sync *sync, const struct weir_sync_options *o, const struct weir__uri *uri,
                      struct uv_loop_s *loop)
{
    int status = weir__node_init(&sync->node);

    if (!status)
        status = take_options(sync, o);
    if (!status)
        status = weir__persist_open(&sync->node);
    if (!status)
        status = weir__reconcile_open(&sync->rec, &sync->node);
    if (!status)
        status = weir__strict_open(&sync->strict, &sync->node, on_alive, sync);
    if (!status)
        status = weir__watch_open(&sync->watch, &sync->node, sync->rec, o->stats_socket);
    if (!status && sync->own)
        status = make_thread(sync);
    if (status)
        goto free_all;
    if (!sync->own) {
        sync->node.loop = loop;
        sync->loop_thread = uv_thread_self();
    }
    status = WEIR_E_SYS;
    if (uv_async_init(sync->node.loop, &sync->async, on_async))
        goto end_thread;
    sync->async.data = sync;
    status = open_link(sync, o, uri);
    if (status)
        goto close_async;
    status = weir__seam_attach(sync->node.w, &sync->hooks);
    if (!status)
        return 0;
    weir__store_close(sync->node.store, on_link_undone, sync);
    goto end_thread;

close_async:
    on_link_undone(sync);
end_thread:
    if (sync->own)
        unmake_thread(sync);
free_all:
    undo_parts(sync);
    if (sync->own || !sync->async.data)
        free_self(sync);
    return status;
}

static void start_handles(struct weir_sync *sync)
{
    uv_prepare_init(sync->node.loop, &sync->prepare);
    uv_timer_init(sync->node.loop, &sync->drain);
    sync->prepare.data = sync->drain.data = sync;
    uv_prepare_start(&sync->prepare, on_prepare);
    uv_unref((uv_handle_t *)&sync->prepare);
    sync->referenced = sync->own;
    if (!sync->own)
        uv_unref((uv_handle_t *)&sync->async);
    weir__node_policies(&sync->node);
    weir__strict_start(sync->strict);
    weir__reconcile_start(sync->rec);
    weir__watch_start(sync->watch);
    weir__store_start(sync->node.store);
}

int weir_sync_start(struct weir_sync **out, struct weir *w, struct uv_loop_s *loop,
                    const struct weir_sync_options *options)
{
    struct weir_sync_options o;
    struct weir_sync *sync;
    struct weir__uri uri;
    int status;

    if (!out)
        return WEIR_E_INVAL;
    *out = NULL;
    if (!w)
        return WEIR_E_INVAL;
    status = read_options(options, &o);
    if (!status)
        status = check_options(&o);
    if (status)
        return status;
    status = weir__uri_parse(o.uri, &uri);
    if (!status)
        status = weir__uri_login(&uri, o.username, o.password);
    if (status)
        goto wipe;
    status = WEIR_E_NOMEM;
    sync = weir__seam_alloc(w, sizeof *sync);
    if (!sync)
        goto wipe;
    memset(sync, 0, sizeof *sync);
    sync->node.w = w;
    sync->own = !loop;
    sync->pid = uv_os_getpid();
    weir__queue_init(&sync->queue, 0);
    weir__sync_hooks(sync, &sync->hooks);
    sync->hooks.join = sync->own ? hook_join : NULL;
    status = open_parts(sync, &o, &uri, loop);
    if (status)
        goto wipe;
    start_handles(sync);
    weir__queue_open(&sync->queue);
    sync->started = 1;
    /* release: loop_thread and all that was made */
    atomic_store_explicit(&sync->accepting, 1, memory_order_release);
    if (sync->own)
        uv_sem_post(&sync->go);
    *out = sync;
wipe:
    weir__uri_wipe(&uri);
    return status;
}

/* ---- from any thread --------------------------------------------------------------------------------------------- */

static int check_call(const struct weir_sync *sync)
{
    if (!sync)
        return WEIR_E_INVAL;
    if (uv_os_getpid() != sync->pid)
        return WEIR_E_FORKED;
    return atomic_load_explicit(&sync->accepting, memory_order_acquire) ? 0 : WEIR_E_CLOSED;
}

static int push(struct weir_sync *sync, struct weir__item *item)
{
    int pushed = weir__queue_push(&sync->queue, item);

    if (pushed < 0)
        return WEIR_E_CLOSED;
    if (weir__sync_is_here(sync))
        weir__sync_reference(sync);
    if (pushed)
        weir__sync_wake(sync);
    return 0;
}

int weir_sync_flush(struct weir_sync *sync, weir_sync_cb cb, void *arg)
{
    int status = check_call(sync);
    struct flush *flush;

    if (status)
        return status;
    flush = weir__node_alloc(&sync->node, sizeof *flush);
    if (!flush)
        return WEIR_E_NOMEM;
    flush->item.kind = WEIR__ITEM_FLUSH;
    flush->sync = sync;
    flush->cb = cb;
    flush->arg = arg;
    flush->flush.cb = on_flushed;
    flush->flush.arg = flush;
    status = push(sync, &flush->item);
    if (status)
        weir__node_free(&sync->node, flush, sizeof *flush);
    return status;
}

int weir_sync_close(struct weir_sync *sync, weir_sync_cb cb, void *arg)
{
    int status = check_call(sync), open = 1;

    if (status)
        return status;
    /* the first one closes; acq_rel: it alone writes what follows */
    if (!atomic_compare_exchange_strong_explicit(&sync->accepting, &open, 0, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return WEIR_E_CLOSED;
    sync->close_cb = cb;
    sync->close_arg = arg;
    sync->close_item.kind = WEIR__ITEM_CLOSE;
    atomic_store_explicit(&sync->leaving, 1, memory_order_relaxed);
    status = push(sync, &sync->close_item);
    /* release: the last touch, if another thread is to free it */
    atomic_store_explicit(&sync->leaving, 0, memory_order_release);
    return status;
}
