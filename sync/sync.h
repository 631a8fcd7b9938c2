/* SPDX-License-Identifier: MIT */
/*
 * The inside of a sync, shared by sync.c (its life) and hooks.c (what libweir calls). Nobody else includes this.
 *
 *   start: thread (waits) --> handles --> link --> attach --> open to queries --> thread goes
 *   close: drain --> queue shut --> queries answered --> reports given back --> detach --> link, handles closed
 */
#ifndef WEIR_SYNC_SYNC_H
#define WEIR_SYNC_SYNC_H

#include <stdatomic.h>

#include <uv.h>

#include <weir/sync.h>

#include "lib/seam.h"
#include "sync/node.h"
#include "sync/probes.h"
#include "sync/query.h"
#include "sync/queue.h"
#include "sync/reconcile.h"
#include "sync/strict.h"
#include "sync/watch.h"

struct weir_sync {
    struct weir__node node;
    struct weir__hooks hooks;
    struct weir__reconcile *rec;
    struct weir__strict *strict;
    struct weir__watch *watch; /* the stats socket; NULL: none */
    struct weir__queue queue;
    uv_loop_t own_loop;
    uv_async_t async;
    uv_prepare_t prepare;
    uv_timer_t drain;
    uv_thread_t thread;      /* own */
    uv_thread_t loop_thread; /* published by `accepting` */
    uv_sem_t go;             /* own: the thread may begin, or end */
    uv_pid_t pid;
    char *prefix;
    size_t prefix_size;
    struct weir__item close_item;
    weir_sync_cb close_cb;
    void *close_arg;
    uint64_t unsent;
    _Atomic int accepting;        /* queries and flushes are taken */
    _Atomic int leaving;          /* weir_sync_close has not returned */
    _Atomic int policies_changed; /* hooks.c sets, the loop clears */
    _Atomic int woken;            /* the same: keys wait */
    uint32_t flushes, parts;      /* parts: of it that are not closed yet */
    uint8_t own, started, closing, finished, referenced;
};

/* Wakes the loop: what was pushed or set before will be seen. Threads: any. */
void weir__sync_wake(struct weir_sync *sync);

/* On the loop's own thread nobody may block. Threads: any, once `accepting` was seen. */
int weir__sync_is_here(const struct weir_sync *sync);

/* Something is on its way that the loop must not end without. Threads: the loop's. */
void weir__sync_reference(struct weir_sync *sync);

/* hooks.c */
void weir__sync_hooks(struct weir_sync *sync, struct weir__hooks *hooks);

#endif
