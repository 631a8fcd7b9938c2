/* SPDX-License-Identifier: MIT */
/* See pictures.h. */
#include "benchmarks/fleet/pictures.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "benchmarks/child.h"
#include "benchmarks/fleet/scripts.h"

static FILE *open_data(const char *folder, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.dat", folder, name);
    FILE *file = fopen(path, "w");
    if (!file) {
        fprintf(stderr, "weir-bench: %s: %s\n", path, strerror(errno));
    }
    return file;
}

/* The head of a column each: gnuplot finds them by their names. */
static void write_names(FILE *file, const char *first, const struct figures *figures, size_t n)
{
    fputs(first, file);
    for (size_t i = 0; i < n; i++) {
        fprintf(file, " %s", figures[i].strategy->name);
    }
    fputc('\n', file);
}

static void write_series(FILE *file, const struct figures *figures, size_t n, size_t offset)
{
    const struct series *first = (const struct series *)((const char *)figures + offset);
    write_names(file, "s allowed", figures, n);
    for (unsigned step = 0; step < first->steps; step++) {
        double allowed = 0; /* the mean: processes may wake up later in one run than in another */
        for (size_t i = 0; i < n; i++) {
            const struct series *series = (const struct series *)((const char *)&figures[i] + offset);
            allowed += series->perfect[step] / (double)n;
        }
        fprintf(file, "%g %.0f", (step + 1) * first->step_s, allowed);
        for (size_t i = 0; i < n; i++) {
            const struct series *series = (const struct series *)((const char *)&figures[i] + offset);
            fprintf(file, " %.0f", series->admitted[step]);
        }
        fputc('\n', file);
    }
}

static void write_latencies(FILE *file, const struct figures *figures, size_t n)
{
    write_names(file, "one-in", figures, n);
    for (unsigned q = 0; q < FIGURES_QUANTILES; q++) {
        fprintf(file, "%g", pow(10, q / 10.0));
        for (size_t i = 0; i < n; i++) {
            fprintf(file, " %g", figures[i].quantile_us[q]);
        }
        fputc('\n', file);
    }
}

static int write_data(const char *folder, const struct figures *figures, size_t n,
                      const struct by_interval *by_interval)
{
    static const struct {
        const char *name;
        size_t offset;
    } series[] = {{"fleet-flash", offsetof(struct figures, flash)}, {"fleet-outage", offsetof(struct figures, outage)}};
    FILE *file;
    for (size_t i = 0; i < 2; i++) {
        if (!(file = open_data(folder, series[i].name))) {
            return -1;
        }
        write_series(file, figures, n, series[i].offset);
        fclose(file);
    }
    if (!(file = open_data(folder, "fleet-latency"))) {
        return -1;
    }
    write_latencies(file, figures, n);
    fclose(file);
    if (by_interval) {
        if (!(file = open_data(folder, "fleet-interval"))) {
            return -1;
        }
        fputs("ms push-pull hybrid\n", file);
        for (unsigned i = 0; i < PICTURES_INTERVALS; i++) {
            fprintf(file, "%u %g %g\n", by_interval->interval_ms[i], by_interval->push_pull[i], by_interval->hybrid[i]);
        }
        fclose(file);
    }
    return 0;
}

int pictures_make(const char *folder, const struct figures *figures, size_t n, const struct by_interval *by_interval)
{
    static const char *const argv[] = {"gnuplot", "-", NULL};
    struct child gnuplot;
    char line[256];
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "weir-bench: %s: %s\n", folder, strerror(errno));
        return -1;
    }
    if (write_data(folder, figures, n, by_interval) != 0) {
        return -1;
    }
    if (child_start(&gnuplot, argv, 0) != 0) {
        fputs("weir-bench: gnuplot is not installed (Debian: gnuplot-nox)\n", stderr);
        return -1;
    }
    fprintf(gnuplot.in, "folder = '%s'\nhave_intervals = %d\nlent = %g\n%s", folder, by_interval != NULL,
            (double)demand_limits[DEMAND_FLASH].burst / 10, FLEET_PICTURES);
    fflush(gnuplot.in);
    if (child_end(&gnuplot) != 0) {
        snprintf(line, sizeof line, "weir-bench: gnuplot failed on the data in %s\n", folder);
        fputs(line, stderr);
        return -1;
    }
    return 0;
}
