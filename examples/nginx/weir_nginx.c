/* SPDX-License-Identifier: MIT */
/*
 * A request: which zones it is charged for, the decision, and what the client is told. Charged once a zone, however
 * often it is sent from one location to another inside: the mark of that lies in the request's pool, since nginx wipes
 * a module's context on each of those ways.
 */
#include "weir_nginx.h"

enum verdict { NONE, PASSED, REJECTED, REJECTED_DRY_RUN };

struct mark {
    uint64_t charged; /* a bit a zone */
    enum verdict verdict;
    ngx_uint_t n, room;
    struct weir_result *results;
    ngx_table_elt_t *fields[WEIR_HTTP_FIELDS];
};

/* ---- the mark ---------------------------------------------------------------------------------------------------- */

static void keep_mark(void *data)
{
    (void)data; /* its address is what the mark is found by */
}

static struct mark *find_mark(ngx_http_request_t *r)
{
    for (ngx_pool_cleanup_t *c = r->main->pool->cleanup; c != NULL; c = c->next) {
        if (c->handler == keep_mark) {
            return c->data;
        }
    }
    return NULL;
}

static struct mark *make_mark(ngx_http_request_t *r)
{
    struct mark *mark = find_mark(r);
    if (mark != NULL) {
        return mark;
    }
    ngx_pool_cleanup_t *c = ngx_pool_cleanup_add(r->main->pool, sizeof *mark);
    if (c == NULL) {
        return NULL;
    }
    c->handler = keep_mark;
    mark = c->data;
    ngx_memzero(mark, sizeof *mark);
    return mark;
}

/* Room for so many results more. Few requests meet more than one location's rules. */
static ngx_int_t make_room(ngx_http_request_t *r, struct mark *mark, ngx_uint_t more)
{
    if (mark->n + more <= mark->room) {
        return NGX_OK;
    }
    struct weir_result *results = ngx_palloc(r->main->pool, (mark->n + more) * sizeof *results);
    if (results == NULL) {
        return NGX_ERROR;
    }
    if (mark->n > 0) {
        ngx_memcpy(results, mark->results, mark->n * sizeof *results);
    }
    mark->results = results;
    mark->room = mark->n + more;
    return NGX_OK;
}

/* ---- the decision ------------------------------------------------------------------------------------------------ */

/* NGX_OK: *request is to be decided; NGX_DECLINED: this rule doesn't hold for the request. */
static ngx_int_t read_rule(ngx_http_request_t *r, const struct weir_rule *rule, struct weir_zone *zone,
                           struct weir_request *request)
{
    ngx_str_t key, cost;
    if (ngx_http_complex_value(r, &zone->key, &key) != NGX_OK) {
        return NGX_ERROR;
    }
    if (key.len == 0) {
        return NGX_DECLINED;
    }
    if (key.len > WEIR_KEY_MAX) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "weir \"%V\": a key of %uz bytes is too long", &zone->name,
                      key.len);
        return NGX_DECLINED;
    }
    *request = (struct weir_request){.policy = zone->id, .key = key.data, .key_len = key.len, .cost = 1};
    if (rule->cost != NULL) {
        if (ngx_http_complex_value(r, rule->cost, &cost) != NGX_OK) {
            return NGX_ERROR;
        }
        ngx_int_t n = ngx_atoi(cost.data, cost.len);
        if (n == NGX_ERROR || n == 0) {
            return NGX_DECLINED; /* nothing to pay, or no number */
        }
        request->cost = n;
    }
    return NGX_OK;
}

/* All or none is charged. The result is that of the one that denied. */
static int decide(struct weir *limiter, struct weir_request *requests, ngx_uint_t n, struct weir_result *result)
{
    if (n > 1) {
        return weir_take_all(limiter, requests, n, result);
    }
    const struct weir_request *one = &requests[0];
    int status = weir_take(limiter, one->policy, one->key, one->key_len, one->cost, one->result);
    *result = *one->result;
    return status;
}

/* The rules that the request has not met yet. Returns how many; NGX_ERROR. */
static ngx_int_t gather(ngx_http_request_t *r, struct weir_main *main, const ngx_array_t *rules, struct mark *mark,
                        struct weir_request *requests)
{
    struct weir_zone *zones = main->zones.elts;
    const struct weir_rule *list = rules->elts;
    ngx_int_t n = 0;
    if (make_room(r, mark, rules->nelts) != NGX_OK) {
        return NGX_ERROR;
    }
    for (ngx_uint_t i = 0; i < rules->nelts; i++) {
        uint64_t bit = UINT64_C(1) << list[i].index;
        if (mark->charged & bit) {
            continue;
        }
        ngx_int_t rc = read_rule(r, &list[i], &zones[list[i].index], &requests[n]);
        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }
        mark->charged |= bit;
        if (rc == NGX_OK) {
            requests[n].result = &mark->results[mark->n + (ngx_uint_t)n];
            ngx_memzero(requests[n].result, sizeof(struct weir_result));
            n++;
        }
    }
    return n;
}

/* ---- what the client is told ------------------------------------------------------------------------------------- */

/* A field that an earlier way through a location wrote is written anew. */
static ngx_int_t put_field(ngx_http_request_t *r, struct mark *mark, enum weir_http_field field, const char *value,
                           size_t len)
{
    ngx_table_elt_t *h = mark->fields[field];
    if (h == NULL) {
        const char *name = weir_http_field_name(field);
        h = ngx_list_push(&r->headers_out.headers);
        if (h == NULL) {
            return NGX_ERROR;
        }
        ngx_memzero(h, sizeof *h);
        h->hash = 1;
        h->key.data = (u_char *)name;
        h->key.len = ngx_strlen(name);
        mark->fields[field] = h;
    }
    h->value.data = ngx_pnalloc(r->pool, len + 1);
    if (h->value.data == NULL) {
        return NGX_ERROR;
    }
    ngx_memcpy(h->value.data, value, len + 1);
    h->value.len = len;
    return NGX_OK;
}

static ngx_int_t put_fields(ngx_http_request_t *r, struct mark *mark, ngx_int_t style)
{
#define STYLES(code, number, name, styles) styles,
    static const unsigned char styles_of[] = {WEIR_HTTP_FIELD_MAP(STYLES)};
#undef STYLES
    char value[WEIR_HTTP_HEADERS_MAX];
    if (style == WEIR_HEADERS_OFF || r != r->main) {
        return NGX_OK;
    }
    for (int field = 0; field < WEIR_HTTP_FIELDS; field++) {
        if (!(styles_of[field] & 1u << style)) {
            continue;
        }
        int len = weir_http_value(value, sizeof value, mark->results, mark->n, (enum weir_http_field)field);
        if (len > 0 && (size_t)len < sizeof value &&
            put_field(r, mark, (enum weir_http_field)field, value, (size_t)len) != NGX_OK) {
            return NGX_ERROR;
        }
    }
    return NGX_OK;
}

static ngx_int_t refuse(ngx_http_request_t *r, struct weir_main *main, const struct weir_location *location,
                        struct mark *mark, const struct weir_result *result)
{
    struct weir_zone *zones = main->zones.elts;
    for (ngx_uint_t i = 0; i < main->zones.nelts; i++) {
        if (zones[i].id == result->policy) {
            ngx_log_error(location->log_level, r->connection->log, 0, "weir: denied%s by zone \"%V\"",
                          location->dry_run ? ", dry run," : "", &zones[i].name);
        }
    }
    mark->verdict = location->dry_run ? REJECTED_DRY_RUN : REJECTED;
    if (location->dry_run) {
        return NGX_DECLINED;
    }
    return location->status ? (ngx_int_t)location->status : weir_http_status(WEIR_DENY, result);
}

static ngx_int_t handle(ngx_http_request_t *r)
{
    struct weir_location *location = ngx_http_get_module_loc_conf(r, ngx_http_weir_module);
    struct weir_main *main = ngx_http_get_module_main_conf(r, ngx_http_weir_module);
    struct weir_request requests[WEIR_ZONES_MAX];
    struct weir_result result;
    if (location->rules == NULL || location->off) {
        return NGX_DECLINED;
    }
    struct mark *mark = make_mark(r);
    ngx_int_t n = mark == NULL ? NGX_ERROR : gather(r, main, location->rules, mark, requests);
    if (n == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (n == 0) {
        return NGX_DECLINED;
    }
    int status = decide(main->limiter, requests, (ngx_uint_t)n, &result);
    if (status < 0) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0, "weir: %s", weir_strerror(status));
        return NGX_DECLINED;
    }
    mark->n += (ngx_uint_t)n;
    if (!location->dry_run && put_fields(r, mark, location->headers) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    if (status == WEIR_DENY) {
        return refuse(r, main, location, mark, &result);
    }
    if (mark->verdict == NONE) {
        mark->verdict = PASSED;
    }
    return NGX_DECLINED;
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

ngx_int_t weir_metrics_handler(ngx_http_request_t *r)
{
    struct weir_main *main = ngx_http_get_module_main_conf(r, ngx_http_weir_module);
    ngx_chain_t out;
    if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }
    ngx_int_t rc = ngx_http_discard_request_body(r);
    int room = main->limiter ? weir_metrics_write(main->limiter, NULL, 0) : WEIR_E_NOENT;
    if (rc != NGX_OK || room < 0) {
        return rc != NGX_OK ? rc : NGX_HTTP_NOT_FOUND;
    }
    ngx_buf_t *b = ngx_create_temp_buf(r->pool, (size_t)room + 4096); /* it may have grown by the next line */
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    int len = weir_metrics_write(main->limiter, (char *)b->pos, (size_t)room + 4096);
    if (len < 0 || len >= room + 4096) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }
    b->last = b->pos + len;
    b->last_buf = r == r->main;
    b->last_in_chain = 1;
    ngx_str_set(&r->headers_out.content_type, "text/plain; version=0.0.4");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = len;
    rc = ngx_http_send_header(r);
    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }
    out.buf = b;
    out.next = NULL;
    return ngx_http_output_filter(r, &out);
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

static ngx_int_t set_value(ngx_http_variable_value_t *v, const char *text, size_t len)
{
    v->data = (u_char *)text;
    v->len = (unsigned)len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    return NGX_OK;
}

/* $weir_status: of the whole request so far. */
static ngx_int_t get_status(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    static const char *const names[] = {"", "PASSED", "REJECTED", "REJECTED_DRY_RUN"};
    const struct mark *mark = find_mark(r);
    (void)data;
    if (mark == NULL || mark->verdict == NONE) {
        v->not_found = 1;
        return NGX_OK;
    }
    set_value(v, names[mark->verdict], ngx_strlen(names[mark->verdict]));
    v->no_cacheable = 1;
    return NGX_OK;
}

/* $weir_ip: the client's address as a key: one a /64 for IPv6, the same for each spelling. */
static ngx_int_t get_ip(ngx_http_request_t *r, ngx_http_variable_value_t *v, uintptr_t data)
{
    char *key = ngx_pnalloc(r->pool, WEIR_HTTP_IP_KEY_MAX);
    (void)data;
    if (key == NULL) {
        return NGX_ERROR;
    }
    int len = weir_http_ip_key(r->connection->sockaddr, 0, 0, key);
    if (len < 0) {
        return set_value(v, "unix:", 5);
    }
    return set_value(v, key, (size_t)len);
}

static ngx_int_t add_variables(ngx_conf_t *cf)
{
    static const struct {
        const char *name;
        ngx_http_get_variable_pt get;
        ngx_uint_t flags;
    } variables[] = {{"weir_status", get_status, NGX_HTTP_VAR_NOCACHEABLE}, {"weir_ip", get_ip, 0}};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        ngx_str_t name = {ngx_strlen(variables[i].name), (u_char *)variables[i].name};
        ngx_http_variable_t *v = ngx_http_add_variable(cf, &name, variables[i].flags);
        if (v == NULL) {
            return NGX_ERROR;
        }
        v->get_handler = variables[i].get;
    }
    return NGX_OK;
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static ngx_int_t install(ngx_conf_t *cf)
{
    ngx_http_core_main_conf_t *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    struct weir_main *main = ngx_http_conf_get_module_main_conf(cf, ngx_http_weir_module);
    if (main->zones.nelts == 0) {
        return NGX_OK;
    }
    ngx_http_handler_pt *handler = ngx_array_push(&core->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
    if (handler == NULL) {
        return NGX_ERROR;
    }
    *handler = handle;
    return weir_limiter_prepare(cf, main);
}

static ngx_http_module_t context = {.preconfiguration = add_variables,
                                    .postconfiguration = install,
                                    .create_main_conf = weir_create_main,
                                    .init_main_conf = weir_init_main,
                                    .create_loc_conf = weir_create_location,
                                    .merge_loc_conf = weir_merge_location};

ngx_module_t ngx_http_weir_module = {NGX_MODULE_V1,
                                     &context,
                                     weir_commands,
                                     NGX_HTTP_MODULE,
                                     NULL,
                                     weir_limiter_init_module,
                                     weir_limiter_init_process,
                                     NULL,
                                     NULL,
                                     weir_limiter_exit_process,
                                     NULL,
                                     NGX_MODULE_V1_PADDING};
