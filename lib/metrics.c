/* SPDX-License-Identifier: MIT */
/*
 * weir_metrics_write: the counters in Prometheus' text format. Owns names and layout; no label but a policy's name,
 * ever a bounded number of series.
 */
#include "lib/stats.h"
#include "lib/text.h"

static void describe(struct weir__text *t, const char *name, const char *type, const char *help)
{
    weir__text_add(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_one(struct weir__text *t, const char *name, const char *type, const char *help, uint64_t value)
{
    describe(t, name, type, help);
    weir__text_add(t, "%s %llu\n", name, (unsigned long long)value);
}

static void add_policy(struct weir__text *t, const char *name)
{
    weir__text_add(t, "policy=");
    weir__text_quote(t, name, 0);
}

static void add_decisions(struct weir__text *t, struct weir *w, uint32_t policies)
{
    static const char *const results[] = {"allowed", "denied"};

    describe(t, "weir_decisions_total", "counter", "Decisions by policy and result.");
    for (uint32_t id = 0; id < policies; id++) {
        for (int verdict = WEIR_ALLOW; verdict <= WEIR_DENY; verdict++) {
            weir__text_add(t, "weir_decisions_total{");
            add_policy(t, w->policies[id].name);
            weir__text_add(t, ",result=\"%s\"} %llu\n", results[verdict],
                           (unsigned long long)weir__stats_verdicts(w, id, verdict));
        }
    }
}

static void add_limits(struct weir__text *t, struct weir *w, uint32_t policies)
{
    describe(t, "weir_policy_limit", "gauge", "Tokens a second that a policy grants each key.");
    for (uint32_t id = 0; id < policies; id++) {
        const struct weir__policy_state *p = &w->policies[id];

        weir__text_add(t, "weir_policy_limit{");
        add_policy(t, p->name);
        weir__lock(&w->state->policy_lock);
        weir__text_add(t, "} %.17g\n", (double)p->limit * 1e9 / (double)p->per_ns);
        weir__unlock(&w->state->policy_lock);
    }
    describe(t, "weir_policy_burst", "gauge", "Tokens that a key can have saved up.");
    for (uint32_t id = 0; id < policies; id++) {
        weir__text_add(t, "weir_policy_burst{");
        add_policy(t, w->policies[id].name);
        weir__text_add(t, "} %llu\n", (unsigned long long)weir__load_relaxed(&w->policies[id].burst));
    }
}

static void add_table(struct weir__text *t, const struct weir_stats *s)
{
    add_one(t, "weir_buckets", "gauge", "Buckets in the table.", s->keys);
    add_one(t, "weir_buckets_max", "gauge", "Buckets that the table can hold.", s->max_keys);
    add_one(t, "weir_memory_bytes", "gauge", "Memory reserved when the limiter was opened.", s->memory_bytes);
    add_one(t, "weir_evictions_total", "counter", "Full buckets dropped to make room.", s->evictions);
    add_one(t, "weir_table_full_total", "counter", "Takes of new keys that found no room.", s->table_full);
    add_one(t, "weir_degraded_total", "counter", "Takes answered by an outage policy.", s->degraded);
}

static void add_sync(struct weir__text *t, const struct weir_stats *s, uint64_t now)
{
    describe(t, "weir_syncs_total", "counter", "Batches sent to Redis by result.");
    weir__text_add(t, "weir_syncs_total{result=\"ok\"} %llu\n", (unsigned long long)s->syncs);
    weir__text_add(t, "weir_syncs_total{result=\"error\"} %llu\n", (unsigned long long)s->sync_errors);
    if (s->last_sync_ns != 0) {
        describe(t, "weir_last_sync_age_seconds", "gauge", "Time since Redis last answered.");
        weir__text_add(t, "weir_last_sync_age_seconds %.9f\n",
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
    struct weir__text t;
    uint32_t policies;
    int error = w ? weir_stats_get(w, &stats) : WEIR_E_INVAL;

    if (error)
        return error;
    weir__text_init(&t, buf, len);
    policies = weir__load_acquire(&w->state->policies);
    describe(&t, "weir_build_info", "gauge", "The library's version.");
    weir__text_add(&t, "weir_build_info{version=\"%s\"} 1\n", weir_version());
    add_decisions(&t, w, policies);
    add_limits(&t, w, policies);
    add_table(&t, &stats);
    add_sync(&t, &stats, weir_now(w));
    return weir__text_length(&t);
}
