/* SPDX-License-Identifier: MIT */
/*
 * `weir-bench fleet`: runs every strategy, one after the other, and shows what came of it: a row each in JSON, or
 * tables, and the pictures.
 */
#include "benchmarks/rows.h"

#ifdef WEIR_BENCH_SYNC

#include <stdio.h>
#include <string.h>

#include "benchmarks/fleet/figures.h"
#include "benchmarks/fleet/pictures.h"

enum { STRATEGIES_MAX = 16 };

#define OVER 0.05  /* of the burst: what shows that a strategy does not hold its limit */
#define UNFIT 0.01 /* of the saturated decisions were made without Redis: it had to wait for a CPU for too long */
#define TRIES 2
#define LATE_US 5000 /* 1 % of the requests came later than that: it is no quiet machine */

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void detail_workload(struct bench_row *row, enum demand demand, const struct account *account)
{
    const struct {
        const char *name;
        double value;
    } members[] = {{"asked", account->asked},         {"admitted", account->admitted},
                   {"perfect", account->perfect},     {"overshoot", account->overshoot},
                   {"overshoot_seen", account->seen}, {"false_denied", account->false_denied},
                   {"degraded", account->degraded}};
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%s", demand_infos[demand].name, members[i].name);
        bench_detail(row, name, members[i].value);
    }
}

static void detail(struct bench_row *row, const struct figures *f)
{
    const struct {
        const char *name;
        double value;
    } members[] = {
        {"decisions_per_second", f->decisions_s},
        {"p50_us", f->p50_us},
        {"p99_us", f->p99_us},
        {"p999_us", f->p999_us},
        {"longest_us", f->longest_us},
        {"redis_calls_per_decision", f->calls},
        {"client_cpu_us", f->client_us},
        {"redis_cpu_us", f->redis_us},
        {"paced_cpu_us", f->paced_us},
        {"bytes_a_cold_key", f->cold_bytes},
        {"bytes_a_hot_key", f->hot_bytes},
        {"admitted_of_perfect", f->accounts[DEMAND_EVEN].admitted / f->accounts[DEMAND_EVEN].perfect},
        {"worst_overshoot_in_bursts", f->worst_overshoot},
        {"false_denied", f->false_denied},
        {"rate_error", f->rate_error},
        {"fairness", f->fairness},
        {"down_admitted_of_rate", f->down_admitted},
        {"down_degraded", f->down_degraded},
        {"down_p99_us", f->down_p99_us},
        {"down_longest_us", f->down_longest_us},
        {"recovered_ms", f->recovered_ms},
        {"late_p99_us", f->late_p99_us},
        {"busy_denied", f->busy_denied},
        {"busy_degraded", f->busy_degraded},
    };
    bench_detail_text(row, "strategy", f->strategy->name);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        bench_detail(row, members[i].name, members[i].value);
    }
    for (unsigned d = 0; d < DEMANDS; d++) {
        detail_workload(row, (enum demand)d, &f->accounts[d]);
    }
}

/* What a kind claims must hold; of one that claims nothing it must show. */
static struct bench_row row_of(const struct figures *f)
{
    struct bench_row row = {.id = f->strategy->name, .what = f->strategy->what};
    if (f->strategy->claim) {
        row.value = f->claimed;
        row.goal = 1;
        row.kind = BENCH_AT_MOST;
    } else {
        row.value = f->accounts[DEMAND_EVEN].overshoot / (double)demand_limits[DEMAND_EVEN].burst;
        row.goal = OVER;
        row.kind = BENCH_AT_LEAST;
    }
    detail(&row, f);
    return row;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void print_speed(const struct figures *figures, size_t n)
{
    puts("Speed and cost: decisions a second of 8 processes with 64 callers each, and their CPU; time of a decision "
         "and\n"
         "calls to Redis in the workloads; bytes in Redis of a key that was asked for once, and of one that all ask "
         "for\n");
    printf("%-27s %11s %9s %9s %9s %8s %7s %7s %11s %6s\n", "", "decisions/s", "p50 us", "p99 us", "p99.9 us", "calls",
           "CPU us", "+ Redis", "bytes a key", "hot");
    for (size_t i = 0; i < n; i++) {
        const struct figures *f = &figures[i];
        printf("%-27s %11.0f %9.3g %9.3g %9.3g %8.3f %7.3g %7.2g %11.0f %6.0f\n", f->strategy->name, f->decisions_s,
               f->p50_us, f->p99_us, f->p999_us, f->calls, f->client_us, f->redis_us, f->cold_bytes, f->hot_bytes);
    }
}

static void print_accuracy(const struct figures *figures, size_t n)
{
    puts("\nAccuracy: admitted, % of what one perfect bucket admits + the most tokens over the limit in any window\n"
         "(limit 1000/s, burst 1000; zipf: 20/s, burst 20, its worst key)\n");
    printf("%-27s", "");
    for (unsigned d = 0; d < DEMAND_OUTAGE; d++) {
        printf(" %12s", demand_infos[d].name);
    }
    putchar('\n');
    for (size_t i = 0; i < n; i++) {
        printf("%-27s", figures[i].strategy->name);
        for (unsigned d = 0; d < DEMAND_OUTAGE; d++) {
            const struct account *account = &figures[i].accounts[d];
            char cell[32];
            snprintf(cell, sizeof cell, "%.1f +%.0f", 100 * account->admitted / account->perfect, account->overshoot);
            printf(" %12s", cell);
        }
        putchar('\n');
    }
}

static void print_rest(const struct figures *figures, size_t n)
{
    puts("\nThe rest: denied, though it could have been admitted besides all that was, % of what was asked; error of "
         "the\n"
         "long-run rate, %; the least that a process was admitted / the most (even). While Redis is dead for 3 s: "
         "admitted,\n"
         "% of the rate; the longest decision; the last decision without Redis after it is back. The worst overshoot\n"
         "against what the strategy may be held to\n");
    printf("%-27s %12s %10s %9s %10s %11s %12s   %s\n", "", "false denial", "rate error", "fairness", "down: adm.",
           "longest ms", "back after", "verdict");
    for (size_t i = 0; i < n; i++) {
        const struct figures *f = &figures[i];
        struct bench_row row = row_of(f);
        int ok = row.kind == BENCH_AT_MOST ? row.value <= row.goal : row.value >= row.goal;
        printf("%-27s %12.2f %+10.2f %9.2f %10.0f %11.3g %9.0f ms   %.3g %s %g %s\n", f->strategy->name,
               100 * f->false_denied, 100 * f->rate_error, f->fairness, 100 * f->down_admitted,
               f->down_longest_us / 1e3, f->recovered_ms, row.value, row.kind == BENCH_AT_MOST ? "<=" : ">=", row.goal,
               ok ? "reached" : "MISSED");
    }
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void run_once(const struct strategy *strategy, struct figures *figures)
{
    struct fleet_data data;
    fleet_run(strategy, &data);
    figures_make(figures, strategy, &data);
    fleet_free(&data);
}

/* Who other programs keep from Redis for longer than anybody waits for an answer is measured again. */
static void run(const struct strategy *strategy, struct figures *figures)
{
    for (int tries = 0; tries < TRIES; tries++) {
        fprintf(stderr, "weir-bench: fleet: %s%s\n", strategy->name, tries > 0 ? ", again" : "");
        run_once(strategy, figures);
        if (figures->late_p99_us > LATE_US) {
            fprintf(stderr, "weir-bench: fleet: %s: processes woke up %.0f ms late: the machine is too busy\n",
                    strategy->name, figures->late_p99_us / 1e3);
        }
        if (figures->busy_degraded <= UNFIT) {
            return;
        }
    }
    bench_die("%s: the machine is too busy", strategy->name);
}

static double overshoot_at(const struct strategy *strategy, uint32_t interval_ms, struct bench_row *row)
{
    const struct demand_info *info = &demand_infos[DEMAND_FLASH];
    struct fleet_data data;
    char name[32];
    fleet_run_one(strategy, DEMAND_FLASH, interval_ms, &data);
    struct account account = figures_account(&data, DEMAND_FLASH);
    fleet_free(&data);
    double claim =
        strategy->claim(&demand_limits[DEMAND_FLASH], &data.setup, (double)(info->end_ns - info->begin_ns) / 1e9);
    double value = account.overshoot / (claim + account.degraded);
    row->value = value > row->value ? value : row->value;
    snprintf(name, sizeof name, "overshoot_%u_ms", interval_ms);
    bench_detail(row, name, account.overshoot);
    return account.overshoot;
}

static void run_intervals(const struct bench_options *options, struct by_interval *by_interval)
{
    static const uint32_t intervals[PICTURES_INTERVALS] = {25, 50, 100, 200, 400};
    struct bench_row rows[] = {{.id = "interval-push-pull", .what = "flash, by the interval of push-pull", .goal = 1},
                               {.id = "interval-hybrid", .what = "flash, by the interval of hybrid", .goal = 1}};
    for (unsigned i = 0; i < PICTURES_INTERVALS; i++) {
        fprintf(stderr, "weir-bench: fleet: an interval of %u ms\n", intervals[i]);
        by_interval->interval_ms[i] = intervals[i];
        by_interval->push_pull[i] = overshoot_at(&strategy_push_pull, intervals[i], &rows[0]);
        by_interval->hybrid[i] = overshoot_at(&strategy_hybrid, intervals[i], &rows[1]);
    }
    if (options->json) {
        bench_report(options, &rows[0]);
        bench_report(options, &rows[1]);
        return;
    }
    puts("\nTokens over the limit in a flash crowd, by the interval of the timer\n");
    for (unsigned i = 0; i < PICTURES_INTERVALS; i++) {
        printf("%4u ms: push-pull %5.0f, hybrid %4.0f\n", intervals[i], by_interval->push_pull[i],
               by_interval->hybrid[i]);
    }
}

void fleet_rows(const struct bench_options *options)
{
    static struct figures figures[STRATEGIES_MAX];
    struct by_interval by_interval;
    size_t n = 0;
    bench_unpin();
    for (size_t i = 0; strategies[i]; i++) {
        if (bench_wanted(options, strategies[i]->name)) {
            run(strategies[i], &figures[n]);
            if (options->json) {
                struct bench_row row = row_of(&figures[n]);
                bench_report(options, &row);
            }
            n++;
        }
    }
    if (!options->json) {
        print_speed(figures, n);
        print_accuracy(figures, n);
        print_rest(figures, n);
    }
    if (options->rows == NULL) {
        run_intervals(options, &by_interval);
    }
    if (options->pictures && pictures_make(options->pictures, figures, n, options->rows ? NULL : &by_interval) != 0) {
        bench_die("no pictures");
    }
}

#else

void fleet_rows(const struct bench_options *options)
{
    struct bench_row row = {.id = "fleet", .what = "strategies", .skipped = "built without libweir-sync"};
    bench_report(options, &row);
}

#endif
