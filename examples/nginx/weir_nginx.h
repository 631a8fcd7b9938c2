/* SPDX-License-Identifier: MIT */
/*
 * The module's files to each other:
 *   weir_nginx.c       a request: keys, the decision, status, header fields, variables
 *   weir_directives.c  the configuration
 *   weir_limiter.c     the limiter's life: one for all workers, over reloads
 *
 * Everything under http { } shares one limiter, in memory that the workers inherit; one of them reports to Redis.
 */
#ifndef WEIR_NGINX_H
#define WEIR_NGINX_H

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include <weir/http.h>
#include <weir/sync.h>
#include <weir/weir.h>

#define WEIR_ZONES_MAX 64 /* a bit each in what a request was charged for */
#define WEIR_HEADERS_OFF (-2)

struct weir_zone {
    ngx_str_t name;
    ngx_http_complex_value_t key;
    struct weir_policy policy;
    weir_policy_id id; /* when the limiter is there */
};

/* http { } */
struct weir_main {
    ngx_array_t zones; /* struct weir_zone */
    ngx_str_t redis, prefix, stats_socket;
    ngx_msec_t interval, timeout;
    ngx_int_t keys;
    struct weir *limiter;
    unsigned passed_on : 1; /* to the configuration that came after this one */
};

struct weir_rule {
    ngx_str_t zone;
    ngx_uint_t index;               /* in zones */
    ngx_http_complex_value_t *cost; /* NULL: 1 */
    ngx_uint_t line;
};

/* location { } */
struct weir_location {
    ngx_array_t *rules; /* struct weir_rule; NULL: none here, those above hold */
    ngx_flag_t off;
    ngx_uint_t status; /* 0: 429 or 503, as the reason is */
    ngx_int_t headers; /* enum weir_http_style, WEIR_HEADERS_OFF */
    ngx_flag_t dry_run;
    ngx_uint_t log_level;
};

extern ngx_module_t ngx_http_weir_module;
extern ngx_command_t weir_commands[];

/* weir_directives.c */
void *weir_create_main(ngx_conf_t *cf);
char *weir_init_main(ngx_conf_t *cf, void *conf);
void *weir_create_location(ngx_conf_t *cf);
char *weir_merge_location(ngx_conf_t *cf, void *parent, void *child);

/* weir_limiter.c */

/* While the configuration is read: opens what can't be inherited, and refuses numbers that no limiter takes. */
ngx_int_t weir_limiter_prepare(ngx_conf_t *cf, struct weir_main *main);
ngx_int_t weir_limiter_init_module(ngx_cycle_t *cycle);
ngx_int_t weir_limiter_init_process(ngx_cycle_t *cycle);
void weir_limiter_exit_process(ngx_cycle_t *cycle);

/* weir_nginx.c */
ngx_int_t weir_metrics_handler(ngx_http_request_t *r);

#endif
