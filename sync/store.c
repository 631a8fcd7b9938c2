/* SPDX-License-Identifier: MIT */
/*
 * Passes every call on to the one server or to the cluster.
 */
#include "sync/store.h"

#include <stdlib.h>

#include "sync/cluster.h"

struct weir__store {
    struct weir__link *link;       /* NULL: a cluster */
    struct weir__cluster *cluster; /* NULL: a server */
    struct weir_allocator allocator;
    void (*closed)(void *arg);
    void *closed_arg;
};

int weir__store_open(struct weir__store **out, struct uv_loop_s *loop, const struct weir__link_config *config)
{
    struct weir_allocator mem = config->allocator;
    int status;
    *out = NULL;
    if (!config->uri || !mem.alloc || !mem.release) {
        return WEIR_E_INVAL;
    }
    struct weir__store *store = mem.alloc(mem.arg, sizeof *store);
    if (!store) {
        return WEIR_E_NOMEM;
    }
    *store = (struct weir__store){.allocator = mem};
    if (config->uri->kind == WEIR__URI_CLUSTER) {
        status = weir__cluster_open(&store->cluster, loop, config);
    } else {
        status = weir__link_open(&store->link, loop, config);
    }
    if (status != 0) {
        mem.release(mem.arg, store, sizeof *store);
        return status;
    }
    *out = store;
    return 0;
}

void weir__store_start(struct weir__store *store)
{
    if (store->cluster) {
        weir__cluster_start(store->cluster);
    } else {
        weir__link_start(store->link);
    }
}

const char *weir__store_sha(const struct weir__store *store, size_t i)
{
    return store->cluster ? weir__cluster_sha(store->cluster, i) : weir__link_sha(store->link, i);
}

int weir__store_command(struct weir__store *store, const void *bytes, size_t len, uint64_t timeout_ns, weir__link_cb cb,
                        void *arg)
{
    if (store->cluster) {
        return weir__cluster_command(store->cluster, bytes, len, timeout_ns, cb, arg);
    }
    return weir__link_command(store->link, bytes, len, timeout_ns, cb, arg);
}

int weir__store_command_late(struct weir__store *store, const void *bytes, size_t len, uint64_t timeout_ns,
                             weir__link_late_cb on_late, weir__link_cb cb, void *arg)
{
    if (store->cluster) {
        return weir__cluster_command(store->cluster, bytes, len, timeout_ns, cb, arg);
    }
    return weir__link_command_late(store->link, bytes, len, timeout_ns, on_late, cb, arg);
}

int weir__store_is_cluster(const struct weir__store *store)
{
    return store->cluster != NULL;
}

void weir__store_flush(struct weir__store *store)
{
    if (store->cluster) {
        weir__cluster_flush(store->cluster);
    } else {
        weir__link_flush(store->link);
    }
}

void weir__store_fault(struct weir__store *store, enum weir__link_kind kind)
{
    if (store->cluster) {
        weir__cluster_fault(store->cluster, kind);
    } else {
        weir__link_fault(store->link, kind);
    }
}

static void on_closed(void *arg)
{
    struct weir__store *store = arg;
    struct weir_allocator mem = store->allocator;
    void (*closed)(void *) = store->closed;
    void *closed_arg = store->closed_arg;
    mem.release(mem.arg, store, sizeof *store);
    if (closed) {
        closed(closed_arg);
    }
}

void weir__store_close(struct weir__store *store, void (*cb)(void *arg), void *arg)
{
    store->closed = cb;
    store->closed_arg = arg;
    if (store->cluster) {
        weir__cluster_close(store->cluster, on_closed, store);
    } else {
        weir__link_close(store->link, on_closed, store);
    }
}

uint64_t weir__store_reconnects(const struct weir__store *store)
{
    return store->cluster ? weir__cluster_reconnects(store->cluster) : weir__link_reconnects(store->link);
}
