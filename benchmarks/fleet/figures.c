/* SPDX-License-Identifier: MIT */
/* See figures.h. */
#include "benchmarks/fleet/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/harness.h"

#define SETTLED_NS (2000 * DEMAND_MS) /* the even workload has used its burst up */

static int by_demand(const void *a, const void *b)
{
    return (int)((const struct record *)a)->demand - (int)((const struct record *)b)->demand;
}

/* Records of one workload, which follow each other. */
struct span {
    struct record *records;
    size_t count;
};

static struct span span_of(struct fleet_data *data, enum demand demand)
{
    struct span span = {data->records, 0};
    size_t from = 0;
    while (from < data->count && data->records[from].demand != demand) {
        from++;
    }
    span.records += from;
    while (from + span.count < data->count && span.records[span.count].demand == demand) {
        span.count++;
    }
    return span;
}

static double rate_of(enum demand demand)
{
    return strategy_rate(&demand_limits[demand]);
}

/* ---- latencies --------------------------------------------------------------------------------------------------- */

struct sample {
    double *values;
    size_t count;
};

static double quantile(struct sample *sample, double q)
{
    return sample->count > 0 ? bench_quantile(sample->values, sample->count, q) : 0;
}

static void make_latencies(struct figures *f, struct fleet_data *data)
{
    struct sample took = {bench_alloc((data->count + 1) * sizeof(double)), 0};
    struct sample late = {bench_alloc((data->count + 1) * sizeof(double)), 0};
    for (size_t i = 0; i < data->count; i++) {
        if (data->records[i].demand < DEMAND_FLASH) {
            took.values[took.count++] = data->records[i].took_ns / 1e3;
            late.values[late.count++] = data->records[i].late_ns / 1e3;
        }
    }
    f->p50_us = quantile(&took, 0.5);
    f->p99_us = quantile(&took, 0.99);
    f->p999_us = quantile(&took, 0.999);
    f->longest_us = quantile(&took, 1);
    f->late_p99_us = quantile(&late, 0.99);
    for (unsigned i = 0; i < FIGURES_QUANTILES; i++) {
        f->quantile_us[i] = quantile(&took, 1 - pow(10, -(double)i / 10));
    }
    free(took.values);
    free(late.values);
}

/* ---- the even workload ------------------------------------------------------------------------------------------- */

static void make_even(struct figures *f, struct span even)
{
    double admitted[FLEET_PROCESSES] = {0}, settled = 0, least = INFINITY, most = 0;
    for (size_t i = 0; i < even.count; i++) {
        const struct record *record = &even.records[i];
        admitted[record->process] += record->allowed;
        settled += record->allowed && record->asked_ns >= SETTLED_NS;
    }
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        least = fmin(least, admitted[i]);
        most = fmax(most, admitted[i]);
    }
    f->fairness = most > 0 ? least / most : 0;
    f->rate_error = settled / (rate_of(DEMAND_EVEN) * (double)(demand_infos[DEMAND_EVEN].end_ns - SETTLED_NS)) - 1;
}

/* ---- the outage -------------------------------------------------------------------------------------------------- */

static void make_outage(struct figures *f, struct span outage)
{
    struct sample took = {bench_alloc((outage.count + 1) * sizeof(double)), 0};
    double admitted = 0, degraded = 0;
    for (size_t i = 0; i < outage.count; i++) {
        const struct record *record = &outage.records[i];
        if (record->asked_ns >= DEMAND_KILL && record->asked_ns < DEMAND_RESTART) {
            took.values[took.count++] = record->took_ns / 1e3;
            admitted += record->allowed;
            degraded += record->degraded;
        } else if (record->asked_ns >= DEMAND_RESTART && record->degraded) {
            f->recovered_ms = fmax(f->recovered_ms, (double)(record->asked_ns - DEMAND_RESTART) / 1e6);
        }
    }
    f->down_admitted = admitted / (rate_of(DEMAND_OUTAGE) * (double)(DEMAND_RESTART - DEMAND_KILL));
    f->down_degraded = took.count > 0 ? degraded / (double)took.count : 0;
    f->down_p99_us = quantile(&took, 0.99);
    f->down_longest_us = quantile(&took, 1);
    free(took.values);
}

static void make_series(struct series *series, enum demand demand, double step_s, struct span span)
{
    const struct strategy_limit *limit = &demand_limits[demand];
    uint64_t begin = demand_infos[demand].begin_ns, end = demand_infos[demand].end_ns, last = begin;
    double level = (double)limit->burst;
    series->step_s = step_s;
    series->steps = (unsigned)lround((double)(end - begin) / 1e9 / step_s);
    for (size_t i = 0; i < span.count; i++) { /* in the order in which they were asked */
        const struct record *record = &span.records[i];
        unsigned step = (unsigned)((double)(record->asked_ns - begin) / 1e9 / step_s);
        step = step < series->steps ? step : series->steps - 1;
        level = fmin((double)limit->burst, level + (double)(record->asked_ns - last) * strategy_rate(limit));
        last = record->asked_ns;
        if (level >= 1) {
            level--;
            series->perfect[step]++;
        }
        series->admitted[step] += record->allowed;
    }
    for (unsigned i = 1; i < series->steps; i++) {
        series->perfect[i] += series->perfect[i - 1];
        series->admitted[i] += series->admitted[i - 1];
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void make_accounts(struct figures *f, struct fleet_data *data)
{
    double asked = 0, false_denied = 0;
    for (unsigned d = 0; d < DEMANDS; d++) {
        struct span span = span_of(data, (enum demand)d);
        const struct demand_info *info = &demand_infos[d];
        account_add_keys(&f->accounts[d], &demand_limits[d], span.records, span.count);
        if (d == DEMAND_OUTAGE) {
            continue;
        }
        double over = f->accounts[d].overshoot;
        asked += f->accounts[d].asked;
        false_denied += f->accounts[d].false_denied;
        f->worst_overshoot = fmax(f->worst_overshoot, over / (double)demand_limits[d].burst);
        if (f->strategy->claim) {
            double seconds = (double)(info->end_ns - info->begin_ns) / 1e9;
            double claim = f->strategy->claim(&demand_limits[d], &data->setup, seconds);
            /* it holds while Redis answers: who had to wait for a CPU for too long was admitted without it */
            f->claimed = fmax(f->claimed, over / (claim + f->accounts[d].degraded));
        }
    }
    f->false_denied = asked > 0 ? false_denied / asked : 0;
    f->calls = asked > 0 ? data->paced_calls / asked : 0;
    f->paced_us = asked > 0 ? (data->paced_cpu_s + data->paced_redis_cpu_s) / asked * 1e6 : 0;
}

void figures_make(struct figures *f, const struct strategy *strategy, struct fleet_data *data)
{
    memset(f, 0, sizeof *f);
    f->strategy = strategy;
    f->cold_bytes = data->cold_bytes;
    f->hot_bytes = data->hot_bytes;
    f->client_us = data->busy_cpu_s / data->busy_decisions * 1e6;
    f->redis_us = data->busy_redis_cpu_s / data->busy_decisions * 1e6;
    /* who decides in memory asks for a part of the time */
    f->decisions_s =
        strategy->in_memory ? bench_cpus() * 1e6 / (f->client_us + f->redis_us) : data->busy_decisions / data->busy_s;
    f->busy_denied = data->busy_denied / data->busy_decisions;
    f->busy_degraded = data->busy_degraded / data->busy_decisions;
    make_latencies(f, data);
    qsort(data->records, data->count, sizeof data->records[0], by_demand);
    make_accounts(f, data); /* each workload's records are in the order of keys and of requests from now on */
    make_even(f, span_of(data, DEMAND_EVEN));
    make_outage(f, span_of(data, DEMAND_OUTAGE));
    make_series(&f->flash, DEMAND_FLASH, 0.005, span_of(data, DEMAND_FLASH));
    make_series(&f->outage, DEMAND_OUTAGE, 0.05, span_of(data, DEMAND_OUTAGE));
}

struct account figures_account(struct fleet_data *data, enum demand demand)
{
    struct account account = {0};
    qsort(data->records, data->count, sizeof data->records[0], by_demand);
    struct span span = span_of(data, demand);
    account_add_keys(&account, &demand_limits[demand], span.records, span.count);
    return account;
}
