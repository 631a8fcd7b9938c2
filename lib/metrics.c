/* SPDX-License-Identifier: MIT */
/*
 * weir_metrics_write: the counters in Prometheus' text format. Owns names and layout; no label but a policy's name,
 * ever a bounded number of series.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/stats.h"

/* Where text goes: what doesn't fit is only counted. */
struct text {
    char *buf;
    size_t len, used;
};

static void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *format, ...)
{
    bool fits = t->used < t->len;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(fits ? t->buf + t->used : NULL, fits ? t->len - t->used : 0, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

static void describe(struct text *t, const char *name, const char *type, const char *help)
{
    add(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_one(struct text *t, const char *name, const char *type, const char *help, uint64_t value)
{
    describe(t, name, type, help);
    add(t, "%s %llu\n", name, (unsigned long long)value);
}

/* As a label's value: backslashes and quotes are escaped; names hold no control characters. */
static void add_policy(struct text *t, const char *name)
{
    add(t, "policy=\"");
    for (; *name; name++)
        add(t, *name == '\\' || *name == '"' ? "\\%c" : "%c", *name);
    add(t, "\"");
}

static void add_decisions(struct text *t, struct weir *w, uint32_t policies)
{
    static const char *const results[] = {"allowed", "denied"};

    describe(t, "weir_decisions_total", "counter", "Decisions by policy and result.");
    for (uint32_t id = 0; id < policies; id++) {
        for (int verdict = WEIR_ALLOW; verdict <= WEIR_DENY; verdict++) {
            add(t, "weir_decisions_total{");
            add_policy(t, w->policies[id].name);
            add(t, ",result=\"%s\"} %llu\n", results[verdict],
                (unsigned long long)weir__stats_verdicts(w, id, verdict));
        }
    }
}

static void add_limits(struct text *t, struct weir *w, uint32_t policies)
{
    describe(t, "weir_policy_limit", "gauge", "Tokens a second that a policy grants each key.");
    for (uint32_t id = 0; id < policies; id++) {
        const struct weir__policy_state *p = &w->policies[id];

        add(t, "weir_policy_limit{");
        add_policy(t, p->name);
        weir__lock(&w->state->policy_lock);
        add(t, "} %.17g\n", (double)p->limit * 1e9 / (double)p->per_ns);
        weir__unlock(&w->state->policy_lock);
    }
    describe(t, "weir_policy_burst", "gauge", "Tokens that a key can have saved up.");
    for (uint32_t id = 0; id < policies; id++) {
        add(t, "weir_policy_burst{");
        add_policy(t, w->policies[id].name);
        add(t, "} %llu\n", (unsigned long long)weir__load_relaxed(&w->policies[id].burst));
    }
}

static void add_table(struct text *t, const struct weir_stats *s)
{
    add_one(t, "weir_buckets", "gauge", "Buckets in the table.", s->keys);
    add_one(t, "weir_buckets_max", "gauge", "Buckets that the table can hold.", s->max_keys);
    add_one(t, "weir_memory_bytes", "gauge", "Memory reserved when the limiter was opened.", s->memory_bytes);
    add_one(t, "weir_evictions_total", "counter", "Full buckets dropped to make room.", s->evictions);
    add_one(t, "weir_table_full_total", "counter", "Takes of new keys that found no room.", s->table_full);
    add_one(t, "weir_degraded_total", "counter", "Takes answered by an outage policy.", s->degraded);
}

static void add_sync(struct text *t, const struct weir_stats *s, uint64_t now)
{
    describe(t, "weir_syncs_total", "counter", "Batches sent to Redis by result.");
    add(t, "weir_syncs_total{result=\"ok\"} %llu\n", (unsigned long long)s->syncs);
    add(t, "weir_syncs_total{result=\"error\"} %llu\n", (unsigned long long)s->sync_errors);
    if (s->last_sync_ns != 0) {
        describe(t, "weir_last_sync_age_seconds", "gauge", "Time since Redis last answered.");
        add(t, "weir_last_sync_age_seconds %.9f\n",
            now > s->last_sync_ns ? (double)(now - s->last_sync_ns) / 1e9 : 0.0);
    }
    add_one(t, "weir_store_up", "gauge", "1 while Redis is connected and answering.", s->store_up != 0);
    add_one(t, "weir_store_reconnects_total", "counter", "Connections to Redis made after one was lost.",
            s->reconnects);
    add_one(t, "weir_strict_decisions_total", "counter", "Decisions made by Redis.", s->strict);
    add_one(t, "weir_pending_tokens", "gauge", "Tokens spent and not yet acknowledged by Redis.", s->pending_tokens);
    add_one(t, "weir_written_off_tokens_total", "counter", "Tokens spent that Redis will not be told of.",
            s->written_off_tokens);
}

int weir_metrics_write(struct weir *w, char *buf, size_t len)
{
    struct weir_stats stats = {.size = sizeof stats};
    struct text t = {.buf = buf, .len = buf ? len : 0};
    uint32_t policies;
    int error = w ? weir_stats_get(w, &stats) : WEIR_E_INVAL;

    if (error)
        return error;
    policies = weir__load_acquire(&w->state->policies);
    describe(&t, "weir_build_info", "gauge", "The library's version.");
    add(&t, "weir_build_info{version=\"%s\"} 1\n", weir_version());
    add_decisions(&t, w, policies);
    add_limits(&t, w, policies);
    add_table(&t, &stats);
    add_sync(&t, &stats, weir_now(w));
    return t.used > INT32_MAX ? WEIR_E_RANGE : (int)t.used;
}
