/* SPDX-License-Identifier: MIT */
/* The configuration: directives, their defaults and how they are inherited. It must not know requests. */
#include "weir_nginx.h"

/* ---- weir_zone KEY zone=NAME rate=100/10s ... -------------------------------------------------------------------- */

/* "10r/s", "100/10s", "5/m": tokens (an r after them does no harm), the period. */
static ngx_int_t read_rate(const ngx_str_t *text, struct weir_policy *policy)
{
    u_char *slash = ngx_strlchr(text->data, text->data + text->len, '/');
    u_char buf[32];
    if (slash == NULL || slash == text->data) {
        return NGX_ERROR;
    }
    size_t digits = (size_t)(slash - text->data), len = (size_t)(text->data + text->len - slash - 1);
    digits -= digits > 1 && slash[-1] == 'r';
    ngx_int_t limit = ngx_atoi(text->data, digits);
    if (limit == NGX_ERROR || len == 0 || len > sizeof buf - 1) {
        return NGX_ERROR;
    }
    buf[0] = '1'; /* "/s" is "/1s" */
    ngx_memcpy(buf + 1, slash + 1, len);
    ngx_str_t period = {len, buf + 1};
    if (slash[1] < '0' || slash[1] > '9') {
        period.data--;
        period.len++;
    }
    ngx_int_t ms = ngx_parse_time(&period, 0);
    if (ms == NGX_ERROR || ms == 0) {
        return NGX_ERROR;
    }
    policy->limit = (uint64_t)limit;
    policy->per_ns = (uint64_t)ms * 1000000;
    return NGX_OK;
}

static ngx_int_t read_number(const ngx_str_t *text, uint64_t *out)
{
    ngx_int_t n = ngx_atoi(text->data, text->len);
    if (n == NGX_ERROR) {
        return NGX_ERROR;
    }
    *out = (uint64_t)n;
    return NGX_OK;
}

/* The place of a word in a list that ends with NULL. */
static ngx_int_t read_word(const ngx_str_t *text, const char *const *words, ngx_int_t *out)
{
    for (ngx_int_t i = 0; words[i] != NULL; i++) {
        if (text->len == ngx_strlen(words[i]) && ngx_strncmp(text->data, words[i], text->len) == 0) {
            *out = i;
            return NGX_OK;
        }
    }
    return NGX_ERROR;
}

/* Is it NAME=...? Then *value is what follows. */
static int is_option(const ngx_str_t *word, const char *name, ngx_str_t *value)
{
    size_t n = ngx_strlen(name);
    if (word->len <= n || ngx_strncmp(word->data, name, n) != 0 || word->data[n] != '=') {
        return 0;
    }
    value->data = word->data + n + 1;
    value->len = word->len - n - 1;
    return 1;
}

static ngx_int_t read_zone_option(struct weir_zone *zone, const ngx_str_t *word)
{
    static const char *const modes[] = {"hybrid", "local", NULL}, *const outages[] = {"local", "open", "closed", NULL},
                             *const unknowns[] = {"admit", "deny", NULL};
    struct weir_policy *p = &zone->policy;
    ngx_str_t value;
    ngx_int_t place;
    if (is_option(word, "zone", &value)) {
        zone->name = value;
        return value.len ? NGX_OK : NGX_ERROR;
    }
    if (is_option(word, "rate", &value)) {
        return read_rate(&value, p);
    }
    if (is_option(word, "burst", &value)) {
        return read_number(&value, &p->burst);
    }
    if (is_option(word, "version", &value)) {
        return read_number(&value, &p->version);
    }
    if (is_option(word, "max_overshoot", &value)) {
        ngx_int_t rc = read_number(&value, &p->max_overshoot);
        p->max_overshoot = p->max_overshoot ? p->max_overshoot : WEIR_NONE;
        return rc;
    }
    if (is_option(word, "mode", &value) && read_word(&value, modes, &place) == NGX_OK) {
        p->mode = (enum weir_mode)place;
        return NGX_OK;
    }
    if (is_option(word, "on_outage", &value) && read_word(&value, outages, &place) == NGX_OK) {
        p->on_outage = (enum weir_on_outage)place;
        return NGX_OK;
    }
    if (is_option(word, "unknown", &value) && read_word(&value, unknowns, &place) == NGX_OK) {
        p->unknown = (enum weir_unknown)place;
        return NGX_OK;
    }
    return NGX_ERROR;
}

static char *terminate(ngx_conf_t *cf, const ngx_str_t *text)
{
    u_char *copy = ngx_pnalloc(cf->pool, text->len + 1);
    if (copy != NULL) {
        *ngx_cpymem(copy, text->data, text->len) = '\0';
    }
    return (char *)copy;
}

static struct weir_zone *find_zone(struct weir_main *main, const ngx_str_t *name)
{
    struct weir_zone *zones = main->zones.elts;
    for (ngx_uint_t i = 0; i < main->zones.nelts; i++) {
        if (zones[i].name.len == name->len && ngx_strncmp(zones[i].name.data, name->data, name->len) == 0) {
            return &zones[i];
        }
    }
    return NULL;
}

static char *add_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    struct weir_main *main = conf;
    struct weir_zone zone;
    ngx_str_t *words = cf->args->elts;
    ngx_http_compile_complex_value_t compile;
    (void)cmd;
    ngx_memzero(&zone, sizeof zone);
    zone.policy = (struct weir_policy)WEIR_POLICY_INIT;
    zone.policy.mode = (enum weir_mode) - 1;
    for (ngx_uint_t i = 2; i < cf->args->nelts; i++) {
        if (read_zone_option(&zone, &words[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir_zone: \"%V\" is not understood", &words[i]);
            return NGX_CONF_ERROR;
        }
    }
    if (zone.name.len == 0 || zone.policy.per_ns == 0) {
        return "needs zone=NAME and rate=TOKENS/TIME";
    }
    if (find_zone(main, &zone.name) != NULL) {
        return "has a name that another one has already";
    }
    if (main->zones.nelts == WEIR_ZONES_MAX) {
        return "is one too many: 64 are the most";
    }
    ngx_memzero(&compile, sizeof compile);
    compile.cf = cf;
    compile.value = &words[1];
    compile.complex_value = &zone.key;
    if (ngx_http_compile_complex_value(&compile) != NGX_OK) {
        return NGX_CONF_ERROR;
    }
    zone.policy.name = terminate(cf, &zone.name);
    struct weir_zone *place = zone.policy.name ? ngx_array_push(&main->zones) : NULL;
    if (place == NULL) {
        return NGX_CONF_ERROR;
    }
    *place = zone;
    return NGX_CONF_OK;
}

/* ---- weir_redis URI [prefix=TEXT] [interval=TIME] [timeout=TIME] ------------------------------------------------- */

static char *set_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    struct weir_main *main = conf;
    ngx_str_t *words = cf->args->elts, value;
    (void)cmd;
    if (main->redis.len != 0) {
        return "is duplicate";
    }
    main->redis = words[1]; /* words end with a NUL */
    for (ngx_uint_t i = 2; i < cf->args->nelts; i++) {
        ngx_int_t ms = 0;
        if (is_option(&words[i], "prefix", &main->prefix)) {
            continue;
        }
        if (is_option(&words[i], "interval", &value) && (ms = ngx_parse_time(&value, 0)) > 0) {
            main->interval = (ngx_msec_t)ms;
        } else if (is_option(&words[i], "timeout", &value) && (ms = ngx_parse_time(&value, 0)) > 0) {
            main->timeout = (ngx_msec_t)ms;
        } else {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir_redis: \"%V\" is not understood", &words[i]);
            return NGX_CONF_ERROR;
        }
    }
    return NGX_CONF_OK;
}

/* ---- weir zone=NAME [cost=N]; weir off --------------------------------------------------------------------------- */

static ngx_http_complex_value_t *read_cost(ngx_conf_t *cf, ngx_str_t *text)
{
    ngx_http_compile_complex_value_t compile;
    ngx_http_complex_value_t *cost = ngx_palloc(cf->pool, sizeof *cost);
    ngx_memzero(&compile, sizeof compile);
    compile.cf = cf;
    compile.value = text;
    compile.complex_value = cost;
    if (cost == NULL || ngx_http_compile_complex_value(&compile) != NGX_OK) {
        return NULL;
    }
    if (cost->lengths == NULL && ngx_atoi(text->data, text->len) == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir: cost \"%V\" is no number", text);
        return NULL;
    }
    return cost;
}

static char *add_rule(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    struct weir_location *location = conf;
    ngx_str_t *words = cf->args->elts, zone = ngx_null_string, text;
    ngx_http_complex_value_t *cost = NULL;
    (void)cmd;
    if (cf->args->nelts == 2 && ngx_strcmp(words[1].data, "off") == 0) {
        location->off = 1;
        return location->rules == NULL ? NGX_CONF_OK : "off, and a zone beside it";
    }
    for (ngx_uint_t i = 1; i < cf->args->nelts; i++) {
        if (is_option(&words[i], "cost", &text)) {
            cost = read_cost(cf, &text);
            if (cost == NULL) {
                return NGX_CONF_ERROR;
            }
        } else if (!is_option(&words[i], "zone", &zone)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir: \"%V\" is not understood", &words[i]);
            return NGX_CONF_ERROR;
        }
    }
    if (zone.len == 0 || location->off == 1) {
        return "needs zone=NAME, and no off beside it";
    }
    if (location->rules == NULL) {
        location->rules = ngx_array_create(cf->pool, 1, sizeof(struct weir_rule));
    }
    struct weir_rule *rule = location->rules ? ngx_array_push(location->rules) : NULL;
    if (rule == NULL) {
        return NGX_CONF_ERROR;
    }
    location->off = 0;
    *rule = (struct weir_rule){.zone = zone, .cost = cost};
    return NGX_CONF_OK;
}

static char *set_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t *core = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    (void)cmd;
    (void)conf;
    core->handler = weir_metrics_handler;
    return NGX_CONF_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static ngx_conf_num_bounds_t statuses = {ngx_conf_check_num_bounds, 400, 599};

static ngx_conf_enum_t headers[] = {{ngx_string("off"), (ngx_uint_t)WEIR_HEADERS_OFF},
                                    {ngx_string("draft"), WEIR_HTTP_DRAFT},
                                    {ngx_string("legacy"), WEIR_HTTP_LEGACY},
                                    {ngx_string("both"), WEIR_HTTP_BOTH},
                                    {ngx_string("retry"), WEIR_HTTP_RETRY},
                                    {ngx_null_string, 0}};

static ngx_conf_enum_t log_levels[] = {{ngx_string("info"), NGX_LOG_INFO},
                                       {ngx_string("notice"), NGX_LOG_NOTICE},
                                       {ngx_string("warn"), NGX_LOG_WARN},
                                       {ngx_string("error"), NGX_LOG_ERR},
                                       {ngx_null_string, 0}};

#define ANYWHERE (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)
#define MAIN NGX_HTTP_MAIN_CONF_OFFSET
#define LOCATION NGX_HTTP_LOC_CONF_OFFSET
#define IN_MAIN(member) MAIN, offsetof(struct weir_main, member)
#define IN_LOCATION(member) LOCATION, offsetof(struct weir_location, member)

ngx_command_t weir_commands[] = {
    {ngx_string("weir_zone"), NGX_HTTP_MAIN_CONF | NGX_CONF_2MORE, add_zone, MAIN, 0, NULL},
    {ngx_string("weir_redis"), NGX_HTTP_MAIN_CONF | NGX_CONF_1MORE, set_redis, MAIN, 0, NULL},
    {ngx_string("weir_keys"), NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE1, ngx_conf_set_num_slot, IN_MAIN(keys), NULL},
    {ngx_string("weir_stats_socket"), NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE1, ngx_conf_set_str_slot, IN_MAIN(stats_socket),
     NULL},
    {ngx_string("weir"), ANYWHERE | NGX_CONF_TAKE12, add_rule, LOCATION, 0, NULL},
    {ngx_string("weir_status"), ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_num_slot, IN_LOCATION(status), &statuses},
    {ngx_string("weir_headers"), ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot, IN_LOCATION(headers), headers},
    {ngx_string("weir_dry_run"), ANYWHERE | NGX_CONF_FLAG, ngx_conf_set_flag_slot, IN_LOCATION(dry_run), NULL},
    {ngx_string("weir_log_level"), ANYWHERE | NGX_CONF_TAKE1, ngx_conf_set_enum_slot, IN_LOCATION(log_level),
     log_levels},
    {ngx_string("weir_metrics"), NGX_HTTP_LOC_CONF | NGX_CONF_NOARGS, set_metrics, LOCATION, 0, NULL},
    ngx_null_command};

void *weir_create_main(ngx_conf_t *cf)
{
    struct weir_main *main = ngx_pcalloc(cf->pool, sizeof *main);
    if (main == NULL || ngx_array_init(&main->zones, cf->pool, 4, sizeof(struct weir_zone)) != NGX_OK) {
        return NULL;
    }
    main->keys = NGX_CONF_UNSET;
    return main;
}

/* A zone that says nothing is shared where there is a Redis. */
char *weir_init_main(ngx_conf_t *cf, void *conf)
{
    struct weir_main *main = conf;
    struct weir_zone *zones = main->zones.elts;
    ngx_conf_init_value(main->keys, 65536);
    for (ngx_uint_t i = 0; i < main->zones.nelts; i++) {
        enum weir_mode preset = main->redis.len ? WEIR_HYBRID : WEIR_LOCAL;
        if (zones[i].policy.mode == (enum weir_mode) - 1) {
            zones[i].policy.mode = preset;
        } else if (zones[i].policy.mode == WEIR_HYBRID && preset == WEIR_LOCAL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir_zone \"%V\": mode=hybrid needs weir_redis", &zones[i].name);
            return NGX_CONF_ERROR;
        }
    }
    if (main->keys < 1 || main->keys > 1000000000) {
        return "weir_keys is out of range";
    }
    return NGX_CONF_OK;
}

void *weir_create_location(ngx_conf_t *cf)
{
    struct weir_location *location = ngx_pcalloc(cf->pool, sizeof *location);
    if (location == NULL) {
        return NULL;
    }
    location->off = NGX_CONF_UNSET;
    location->status = NGX_CONF_UNSET_UINT;
    location->headers = NGX_CONF_UNSET;
    location->dry_run = NGX_CONF_UNSET;
    location->log_level = NGX_CONF_UNSET_UINT;
    return location;
}

/* Rules are inherited where a level has none of its own, as limit_req's are. */
char *weir_merge_location(ngx_conf_t *cf, void *parent, void *child)
{
    struct weir_location *above = parent, *here = child;
    struct weir_main *main = ngx_http_conf_get_module_main_conf(cf, ngx_http_weir_module);
    struct weir_zone *zones = main->zones.elts;
    if (here->off == NGX_CONF_UNSET) {
        here->rules = above->rules;
    }
    ngx_conf_merge_value(here->off, above->off, 0);
    ngx_conf_merge_uint_value(here->status, above->status, 0);
    ngx_conf_merge_value(here->headers, above->headers, WEIR_HTTP_DRAFT);
    ngx_conf_merge_value(here->dry_run, above->dry_run, 0);
    ngx_conf_merge_uint_value(here->log_level, above->log_level, NGX_LOG_WARN);
    struct weir_rule *rules = here->rules ? here->rules->elts : NULL;
    for (ngx_uint_t i = 0; rules && i < here->rules->nelts; i++) {
        struct weir_zone *zone = find_zone(main, &rules[i].zone);
        if (zone == NULL) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "weir: there is no weir_zone \"%V\"", &rules[i].zone);
            return NGX_CONF_ERROR;
        }
        rules[i].index = (ngx_uint_t)(zone - zones);
    }
    return NGX_CONF_OK;
}
