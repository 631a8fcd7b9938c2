/* SPDX-License-Identifier: MIT */
/*
 * weir_metrics_write: the counters in Prometheus' text format. Owns names and layout; no label but a policy's name,
 * ever a bounded number of series.
 */
#include <time.h>

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

/* Of one policy: all verdicts, less those of Redis and of the outage policy. Read one after the other while they are
 * counted, so the difference may be off for a moment; but a counter never goes down. A take_all that ended in nothing
 * may have met the outage policy, which counts what it says and not what becomes of it. */
static uint64_t decided_here(struct weir *w, weir_policy_id id, int verdict, uint64_t elsewhere)
{
    _Atomic uint64_t *told = &w->policies[id].told_local[verdict];
    uint64_t all = weir__stats_verdicts(w, id, verdict), here = all > elsewhere ? all - elsewhere : 0;
    uint64_t before = weir__load_relaxed(told);

    while (before < here &&
           !atomic_compare_exchange_weak_explicit(told, &before, here, memory_order_relaxed, memory_order_relaxed))
        ;
    return before < here ? here : before;
}

static void add_decided(struct weir__text *t, const char *name, int verdict, const char *source, uint64_t count)
{
    weir__text_add(t, "weir_decisions_total{");
    add_policy(t, name);
    weir__text_add(t, ",result=\"%s\",source=\"%s\"} %llu\n", verdict == WEIR_ALLOW ? "allowed" : "denied", source,
                   (unsigned long long)count);
}

static void add_decisions(struct weir__text *t, struct weir *w, uint32_t policies)
{
    describe(t, "weir_decisions_total", "counter",
             "Decisions by policy and result, made in memory, by Redis (strict) or by the outage policy (fallback).");
    for (uint32_t id = 0; id < policies; id++) {
        struct weir__policy_state *p = &w->policies[id];

        for (int verdict = WEIR_ALLOW; verdict <= WEIR_DENY; verdict++) {
            uint64_t strict = weir__load_relaxed(&p->by_redis[verdict]);
            uint64_t fallback = weir__load_relaxed(&p->by_fallback[verdict]);

            add_decided(t, p->name, verdict, "local", decided_here(w, id, verdict, strict + fallback));
            add_decided(t, p->name, verdict, "strict", strict);
            add_decided(t, p->name, verdict, "fallback", fallback);
        }
    }
    describe(t, "weir_overshoot_tokens_total", "counter",
             "Tokens that this process admitted and the shared bucket did not have, as Redis was told.");
    for (uint32_t id = 0; id < policies; id++) {
        weir__text_add(t, "weir_overshoot_tokens_total{");
        add_policy(t, w->policies[id].name);
        weir__text_add(t, "} %llu\n", (unsigned long long)weir__load_relaxed(&w->policies[id].overshoot));
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
        struct timespec wall;

        clock_gettime(CLOCK_REALTIME, &wall);
        describe(t, "weir_last_sync_timestamp_seconds", "gauge", "When Redis last answered, seconds since 1970.");
        weir__text_add(t, "weir_last_sync_timestamp_seconds %.3f\n",
                       (double)wall.tv_sec + (double)wall.tv_nsec / 1e9 -
                           (now > s->last_sync_ns ? (double)(now - s->last_sync_ns) / 1e9 : 0.0));
    }
    add_one(t, "weir_store_up", "gauge", "1 while Redis is connected and answering.", s->store_up != 0);
    add_one(t, "weir_store_reconnects_total", "counter", "Connections to Redis made after one was lost.",
            s->reconnects);
    add_one(t, "weir_pending_tokens", "gauge", "Tokens spent and not yet acknowledged by Redis.", s->pending_tokens);
    add_one(t, "weir_written_off_tokens_total", "counter", "Tokens spent that Redis will not be told of.",
            s->written_off_tokens);
    add_one(t, "weir_unreturned_tokens_total", "counter", "Tokens that Redis may have charged to nobody.",
            s->unreturned_tokens);
}

static void add_durations(struct weir__text *t, const char *name, const char *help,
                          const struct weir__seam_durations *durations)
{
    static const uint64_t bounds[WEIR__SEAM_BOUNDS] = WEIR__SEAM_BOUNDS_NS;
    unsigned long long sum = 0;

    describe(t, name, "histogram", help);
    for (unsigned i = 0; i < WEIR__SEAM_BOUNDS; i++) {
        sum += durations->count[i];
        weir__text_add(t, "%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds[i] / 1e9, sum);
    }
    sum += durations->count[WEIR__SEAM_BOUNDS];
    weir__text_add(t, "%s_bucket{le=\"+Inf\"} %llu\n", name, sum);
    weir__text_add(t, "%s_sum %.9f\n%s_count %llu\n", name, (double)durations->sum_ns / 1e9, name, sum);
}

static void add_seam(struct weir__text *t, const struct weir__seam_metrics *m)
{
    add_durations(t, "weir_sync_duration_seconds", "From sending a batch of reports to its answer.", &m->sync);
    add_durations(t, "weir_strict_duration_seconds", "From sending a batch of strict requests to its answer.",
                  &m->strict);
    if (m->kinds > 0)
        describe(t, "weir_store_errors_total", "counter", "Error replies, passed deadlines and lost connections.");
    for (uint32_t i = 0; i < m->kinds; i++)
        weir__text_add(t, "weir_store_errors_total{kind=\"%s\"} %llu\n", m->errors[i].kind,
                       (unsigned long long)m->errors[i].count);
}

/* False: no sync is attached. */
static bool read_seam(struct weir *w, struct weir__seam_metrics *out)
{
    const struct weir__hooks *hooks = weir__hooks_enter(w);
    bool told = hooks && hooks->metrics;

    if (told)
        hooks->metrics(hooks->ctx, out);
    if (hooks)
        weir__hooks_leave(w);
    return told;
}

int weir_metrics_write(struct weir *w, char *buf, size_t len)
{
    struct weir_stats stats = {.size = sizeof stats};
    struct weir__seam_metrics seam = {.kinds = 0};
    struct weir__text t;
    uint32_t policies;
    bool told;
    int error = w ? weir_stats_get(w, &stats) : WEIR_E_INVAL;

    if (error)
        return error;
    weir__text_init(&t, buf, len);
    policies = weir__load_acquire(&w->state->policies);
    told = read_seam(w, &seam);
    describe(&t, "weir_build_info", "gauge", "The versions of the library and of what it is linked to.");
    weir__text_add(&t, "weir_build_info{version=\"%s\"", weir_version());
    if (told)
        weir__text_add(&t, ",hiredis=\"%s\",libuv=\"%s\"", seam.hiredis, seam.libuv);
    weir__text_add(&t, "} 1\n");
    add_decisions(&t, w, policies);
    add_limits(&t, w, policies);
    add_table(&t, &stats);
    add_sync(&t, &stats, weir_now(w));
    if (told)
        add_seam(&t, &seam);
    return weir__text_length(&t);
}
