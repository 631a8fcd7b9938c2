/* SPDX-License-Identifier: MIT */
/*
 * Header fields and status codes for HTTP. Owns their layout; must not know how a verdict is reached.
 */
#include <weir/http.h>

#include "lib/limiter.h"
#include "lib/text.h"

#define SECOND UINT64_C(1000000000)
#define INTEGER_MAX UINT64_C(999999999999999) /* of a structured field: 15 digits */

/* Denied since Redis is away, not since the client is over its limit: a cost that never fits is. */
static bool failed_closed(const struct weir_result *r)
{
    return r->flags & WEIR_DEGRADED && r->retry_after_ns != 0 && r->retry_after_ns != WEIR_NEVER && r->limiter &&
           weir__load_relaxed(&r->limiter->policies[r->policy].on_outage) == WEIR_OUTAGE_CLOSED;
}

static bool nobody_knows(const struct weir_result *r)
{
    return r->flags & WEIR_FULL || failed_closed(r);
}

int weir_http_status(int status, const struct weir_result *result)
{
    switch (status) {
    case WEIR_ALLOW: return 200;
    case WEIR_DENY: return result && nobody_knows(result) ? 503 : 429;
    case WEIR_E_TIMEOUT:
    case WEIR_E_NOSYNC:
    case WEIR_E_CLOSED:
    case WEIR_E_FULL:
    case WEIR_E_NOMEM: return 503;
    default: return 500;
    }
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static unsigned long long integer(uint64_t n)
{
    return n < INTEGER_MAX ? n : INTEGER_MAX;
}

/* Rounded up. */
static unsigned long long seconds(uint64_t ns)
{
    return ns / SECOND + (ns % SECOND != 0);
}

static bool is_filled(const struct weir_result *r)
{
    return r->limit != 0;
}

/* A result keeps no verdict: a denial is one that asks to wait. */
static bool is_denied(const struct weir_result *r)
{
    return r->retry_after_ns != 0 && !(r->flags & WEIR_SHADOW);
}

/* Does it know what is left? */
static bool is_measured(const struct weir_result *r)
{
    return is_filled(r) && !nobody_knows(r);
}

/* Until more is left, ns; WEIR_NEVER: never, or not to be told: of the answer's other policies, once one denied, since
 * no t may lie past Retry-After. */
static uint64_t reset(const struct weir_result *r, bool denied)
{
    if (!denied)
        return r->reset_after_ns;
    if (!is_denied(r))
        return WEIR_NEVER;
    return r->retry_after_ns < r->reset_after_ns ? r->retry_after_ns : r->reset_after_ns;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

struct answer {
    const struct weir_result *results;
    size_t n;
    bool denied;
    uint64_t wait;                  /* the longest, where denied */
    const struct weir_result *told; /* by fields that have room for one; NULL: none is measured */
};

static void look(struct answer *a, const struct weir_result *results, size_t n)
{
    *a = (struct answer){.results = results, .n = n};
    for (const struct weir_result *r = results; r < results + n; r++) {
        if (!is_filled(r) || !is_denied(r))
            continue;
        a->denied = true;
        a->wait = r->retry_after_ns > a->wait ? r->retry_after_ns : a->wait;
    }
    for (const struct weir_result *r = results; r < results + n; r++) {
        const struct weir_result *best = a->told;

        if (!is_measured(r))
            continue;
        if (!best || (a->denied ? is_denied(r) && (!is_denied(best) || r->retry_after_ns > best->retry_after_ns)
                                : r->remaining < best->remaining))
            a->told = r;
    }
}

static void add_name(struct weir__text *t, const struct weir_result *r)
{
    weir__text_add(t, t->used ? ", " : "");
    weir__text_quote(t, r->limiter ? r->limiter->policies[r->policy].name : "default", 1);
}

static void add_ratelimit(struct weir__text *t, const struct answer *a)
{
    for (const struct weir_result *r = a->results; r < a->results + a->n; r++) {
        uint64_t until;

        if (!is_measured(r))
            continue;
        add_name(t, r);
        weir__text_add(t, ";r=%llu", integer(r->remaining > 0 ? (uint64_t)r->remaining : 0));
        until = reset(r, a->denied);
        if (until != WEIR_NEVER)
            weir__text_add(t, ";t=%llu", seconds(until));
    }
}

static void add_policy(struct weir__text *t, const struct answer *a)
{
    for (const struct weir_result *r = a->results; r < a->results + a->n; r++) {
        uint64_t quota = r->limit, window = WEIR_NEVER, per_second;

        if (!is_filled(r))
            continue;
        if (r->limiter) {
            const struct weir__policy_state *p = &r->limiter->policies[r->policy];

            window = weir__load_relaxed(&p->fills_in);
            per_second = weir__load_relaxed(&p->per_second);
            if (window < SECOND && quota < per_second)
                quota = per_second;
        }
        add_name(t, r);
        weir__text_add(t, ";q=%llu", integer(quota));
        if (window != WEIR_NEVER)
            weir__text_add(t, ";w=%llu", seconds(window));
    }
}

static void add_value(struct weir__text *t, const struct answer *a, enum weir_http_field field)
{
    const struct weir_result *r = a->told;

    switch (field) {
    case WEIR_HTTP_RETRY_AFTER:
        if (a->denied && a->wait != WEIR_NEVER)
            weir__text_add(t, "%llu", seconds(a->wait));
        break;
    case WEIR_HTTP_RATELIMIT: add_ratelimit(t, a); break;
    case WEIR_HTTP_RATELIMIT_POLICY: add_policy(t, a); break;
    case WEIR_HTTP_X_LIMIT:
        if (r)
            weir__text_add(t, "%llu", (unsigned long long)r->limit);
        break;
    case WEIR_HTTP_X_REMAINING:
        if (r)
            weir__text_add(t, "%lld", r->remaining > 0 ? (long long)r->remaining : 0);
        break;
    case WEIR_HTTP_X_RESET:
        if (r && reset(r, a->denied) != WEIR_NEVER)
            weir__text_add(t, "%llu", seconds(reset(r, a->denied)));
        break;
    case WEIR_HTTP_FIELDS: break;
    }
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    unsigned styles; /* a bit each */
} fields[WEIR_HTTP_FIELDS] = {
#define FIELD(code, number, name, styles) [number] = {name, styles},
    WEIR_HTTP_FIELD_MAP(FIELD)
#undef FIELD
};

const char *weir_http_field_name(enum weir_http_field field)
{
    return (unsigned)field < WEIR_HTTP_FIELDS ? fields[field].name : NULL;
}

int weir_http_value(char *buf, size_t len, const struct weir_result *results, size_t n, enum weir_http_field field)
{
    struct weir__text t;
    struct answer a;

    weir__text_init(&t, buf, len);
    if (!results || n == 0 || !weir_http_field_name(field))
        return WEIR_E_INVAL;
    look(&a, results, n);
    add_value(&t, &a, field);
    if (t.len > 0 && t.used >= t.len)
        buf[0] = '\0';
    return weir__text_length(&t);
}

int weir_http_headers_many(char *buf, size_t len, const struct weir_result *results, size_t n, int style)
{
    struct weir__text t, value;
    struct answer a;
    bool fits = true;

    weir__text_init(&t, buf, len);
    if (!results || n == 0 || style < WEIR_HTTP_DRAFT || style > WEIR_HTTP_RETRY)
        return WEIR_E_INVAL;
    look(&a, results, n);
    for (unsigned field = 0; field < WEIR_HTTP_FIELDS; field++) {
        size_t start = t.used;

        if (!(fields[field].styles >> style & 1))
            continue;
        weir__text_add(&t, "%s: ", fields[field].name);
        weir__text_init(&value, t.used < t.len ? buf + t.used : NULL, t.used < t.len ? t.len - t.used : 0);
        add_value(&value, &a, (enum weir_http_field)field);
        if (value.used > 0) {
            t.used += value.used;
            weir__text_add(&t, "\r\n");
        } else {
            t.used = start;
        }
        if (fits && start < t.len && (value.used == 0 || t.used >= t.len))
            buf[start] = '\0';
        fits = fits && t.used < t.len;
    }
    return weir__text_length(&t);
}

int weir_http_headers(char *buf, size_t len, const struct weir_result *result, int style)
{
    return weir_http_headers_many(buf, len, result, 1, style);
}
