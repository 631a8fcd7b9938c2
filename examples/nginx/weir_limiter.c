/* SPDX-License-Identifier: MIT */
/*
 * The limiter's life. The master opens it while it reads a configuration and starts nothing; workers inherit the
 * memory, start a sync each, of which one reports to Redis for all, and end it when they exit, which reports what is
 * left.
 *
 * A reload keeps it: the new configuration takes the old one's limiter over and changes its policies, so buckets stay
 * as they are. Only another number of keys, or another prefix in Redis, needs another one.
 */
#include "weir_nginx.h"

static struct weir_sync *sync_of_process;

/* A cycle's configuration of this very module: NULL where that had not loaded it, or an older file of the same name. */
static struct weir_main *main_of(ngx_cycle_t *cycle)
{
    for (ngx_uint_t i = 0; cycle != NULL && cycle->conf_ctx != NULL && cycle->modules[i] != NULL; i++) {
        if (cycle->modules[i] == &ngx_http_weir_module) {
            return ngx_http_cycle_get_module_main_conf(cycle, ngx_http_weir_module);
        }
    }
    return NULL;
}

/* From the sync's thread: ngx_log_error writes one line by one write. */
static void on_log(void *arg, enum weir_log_level level, const char *line)
{
    static const ngx_uint_t levels[] = {NGX_LOG_ERR, NGX_LOG_WARN, NGX_LOG_NOTICE, NGX_LOG_INFO};
    (void)arg;
    ngx_log_error(levels[level & 3], ngx_cycle->log, 0, "weir: %s", line);
}

static void on_pool_gone(void *data)
{
    struct weir_main *main = data;
    if (!main->passed_on) {
        weir_close(main->limiter);
    }
    main->limiter = NULL;
}

static int open_limiter(struct weir **out, size_t keys, int shared)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    options.max_keys = keys;
    options.shared = shared;
    options.log = on_log;
    return weir_open(out, &options);
}

/* A policy that is refused is the configuration's mistake: it must be found while that can still be said. */
static ngx_int_t try_policies(ngx_conf_t *cf, struct weir_main *main)
{
    struct weir_zone *zones = main->zones.elts;
    struct weir *scratch;
    int status = open_limiter(&scratch, 1, 0);
    for (ngx_uint_t i = 0; status >= 0 && i < main->zones.nelts; i++) {
        status = weir_policy_add(scratch, &zones[i].policy, &zones[i].id);
        if (status < 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir_zone \"%V\": %s", &zones[i].name, weir_strerror(status));
        }
    }
    weir_close(scratch);
    return status < 0 ? NGX_ERROR : NGX_OK;
}

static int is_same(const ngx_str_t *a, const ngx_str_t *b)
{
    return a->len == b->len && ngx_strncmp(a->data, b->data, a->len) == 0;
}

/* Of processes that share a limiter all report under one prefix. */
static int is_inheritable(const struct weir_main *old, const struct weir_main *main)
{
    return old != NULL && old->limiter != NULL && old->keys == main->keys &&
           (old->redis.len == 0 || main->redis.len == 0 || is_same(&old->prefix, &main->prefix));
}

/* Has a zone of the configuration before this one the same numbers? Setting them costs a walk over the table. */
static int is_unchanged(const struct weir_main *old, const struct weir_zone *zone)
{
    const struct weir_zone *zones = old->zones.elts;
    const struct weir_policy *a, *b = &zone->policy;
    for (ngx_uint_t i = 0; i < old->zones.nelts; i++) {
        a = &zones[i].policy;
        if (is_same(&zones[i].name, &zone->name)) {
            return a->limit == b->limit && a->per_ns == b->per_ns && a->burst == b->burst && a->mode == b->mode &&
                   a->max_overshoot == b->max_overshoot && a->on_outage == b->on_outage && a->unknown == b->unknown &&
                   a->version == b->version;
        }
    }
    return 0;
}

ngx_int_t weir_limiter_prepare(ngx_conf_t *cf, struct weir_main *main)
{
    ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(cf->pool, 0);
    if (cleanup == NULL || try_policies(cf, main) != NGX_OK) {
        return NGX_ERROR;
    }
    cleanup->handler = on_pool_gone;
    cleanup->data = main;
    if (is_inheritable(main_of(cf->cycle->old_cycle), main)) {
        return NGX_OK; /* once this configuration holds: it may still be refused */
    }
    int status = open_limiter(&main->limiter, (size_t)main->keys, 1);
    if (status < 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir: %s", weir_strerror(status));
        return NGX_ERROR;
    }
    return NGX_OK;
}

/* From here on the configuration holds. */
ngx_int_t weir_limiter_init_module(ngx_cycle_t *cycle)
{
    struct weir_main *main = main_of(cycle), *old = main_of(cycle->old_cycle);
    if (main == NULL || main->zones.nelts == 0) {
        return NGX_OK;
    }
    if (main->limiter == NULL && is_inheritable(old, main)) {
        main->limiter = old->limiter;
        old->passed_on = 1;
    }
    struct weir_zone *zones = main->zones.elts;
    for (ngx_uint_t i = 0; i < main->zones.nelts; i++) {
        struct weir_zone *zone = &zones[i];
        int status = weir_policy_find(main->limiter, zone->policy.name, &zone->id);
        if (status < 0) {
            status = weir_policy_add(main->limiter, &zone->policy, &zone->id);
        } else if (!is_unchanged(old, zone)) { /* what has a policy already was inherited */
            status = weir_policy_set(main->limiter, zone->id, &zone->policy);
        }
        if (status < 0) {
            ngx_log_error(NGX_LOG_EMERG, cycle->log, 0, "weir_zone \"%V\": %s", &zone->name, weir_strerror(status));
            return NGX_ERROR;
        }
    }
    return NGX_OK;
}

ngx_int_t weir_limiter_init_process(ngx_cycle_t *cycle)
{
    struct weir_main *main = main_of(cycle);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    if (main == NULL || main->limiter == NULL || main->redis.len == 0 || sync_of_process != NULL ||
        (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)) {
        return NGX_OK;
    }
    options.uri = (const char *)main->redis.data;
    options.prefix = main->prefix.len ? (const char *)main->prefix.data : NULL;
    options.stats_socket = main->stats_socket.len ? (const char *)main->stats_socket.data : NULL;
    options.interval_ms = (uint32_t)main->interval;
    options.timeout_ms = (uint32_t)main->timeout;
    int status = weir_sync_start(&sync_of_process, main->limiter, NULL, &options);
    if (status < 0) {
        /* the worker serves all the same: policies answer as in an outage */
        ngx_log_error(NGX_LOG_ALERT, cycle->log, 0, "weir_redis: %s", weir_strerror(status));
    }
    return NGX_OK;
}

/* Reports what is left; weir_close, when the configuration's pool goes, waits for the end of it. */
void weir_limiter_exit_process(ngx_cycle_t *cycle)
{
    (void)cycle;
    if (sync_of_process != NULL) {
        weir_sync_close(sync_of_process, NULL, NULL);
        sync_of_process = NULL;
    }
}
