/* SPDX-License-Identifier: MIT */
/* Owns what `weir simulate` prints and draws; must not know how a simulation works. */
#include "tools/simulate.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/json.h"
#include "tools/simulate_options.h"

extern char **environ;

/* An outage that `local` or `open` answers has no bound. */
static int is_bounded(const struct simulate_options *run, const struct simulate_result *r)
{
    return run->strategy == SIMULATE_HYBRID && (run->on_outage == WEIR_OUTAGE_CLOSED || r->degraded == 0);
}

static double utilisation(const struct simulate_result *r)
{
    return r->perfect > 0 ? r->admitted / r->perfect : 1;
}

static double false_denials(const struct simulate_result *r)
{
    return r->asked > 0 ? r->false_denied / r->asked : 0;
}

static void print_json(const struct simulate_options *run, const struct simulate_result *r)
{
    struct json j;
    json_open(&j, stdout);
    json_text(&j, "strategy", simulate_strategy_name(run->strategy));
    json_text(&j, "workload", simulate_workload_name(run->workload));
    json_count(&j, "nodes", run->nodes);
    json_number(&j, "load", run->load);
    json_number(&j, "rate_per_s", (double)run->limit * 1e9 / (double)run->per_ns);
    json_count(&j, "burst", run->burst);
    json_count(&j, "max_overshoot", run->max_overshoot);
    json_number(&j, "seconds", (double)run->run_ns / 1e9);
    json_count(&j, "seed", run->seed);
    json_number(&j, "overshoot", r->overshoot);
    json_number(&j, "utilisation", utilisation(r));
    json_number(&j, "false_denials", false_denials(r));
    json_number(&j, "calls_per_second_and_node", r->calls_per_node);
    json_number(&j, "asked", r->asked);
    json_number(&j, "admitted", r->admitted);
    json_number(&j, "perfect", r->perfect);
    json_count(&j, "calls", r->calls);
    json_count(&j, "lost", r->lost);
    json_count(&j, "repeats", r->repeats);
    json_count(&j, "degraded", r->degraded);
    if (is_bounded(run, r)) {
        json_number(&j, "bound", r->bound);
    }
    json_close(&j);
}

static void print_header(const struct simulate_options *run)
{
    printf("%u nodes, %s at %g times %llu/%gs, burst %llu, max_overshoot %llu, round trip %g ms, %g s, seed %llu\n\n",
           run->nodes, simulate_workload_name(run->workload), run->load, (unsigned long long)run->limit,
           (double)run->per_ns / 1e9, (unsigned long long)run->burst, (unsigned long long)run->max_overshoot,
           (double)run->rtt_ns / 1e6, (double)run->run_ns / 1e9, (unsigned long long)run->seed);
    printf("%-14s%12s%16s%13s%16s%20s\n", "", "overshoot", "of the burst", "utilisation", "false denials",
           "calls/s and node");
}

static void print_line(const struct simulate_options *run, const struct simulate_result *r)
{
    printf("%-14s%12.3f%16.4f%13.4f%16.4f%20.2f\n", simulate_strategy_name(run->strategy), r->overshoot,
           r->overshoot / (double)run->burst, utilisation(r), false_denials(r), r->calls_per_node);
    if (is_bounded(run, r)) {
        printf("%-14s%12.3f is what it may be: %s\n", "", r->bound, r->overshoot <= r->bound ? "kept" : "BROKEN");
    }
}

/* ---- the picture ------------------------------------------------------------------------------------------------- */

static void write_script(FILE *file, const struct simulate_options *run, const struct simulate_result *r,
                         const char *name)
{
    const char *end = strrchr(name, '.');
    fprintf(file, "set terminal %s size 900,540\nset output '", strcmp(end, ".png") == 0 ? "png" : "svg");
    for (const char *c = name; *c; c++) {
        fputs(*c == '\'' ? "''" : (char[]){*c, 0}, file);
    }
    fprintf(file, "'\nset title '%s, %s at %g times the limit, %u nodes: %.1f tokens over'\n",
            simulate_strategy_name(run->strategy), simulate_workload_name(run->workload), run->load, run->nodes,
            r->overshoot);
    fputs("set xlabel 'seconds'\nset ylabel 'tokens'\nset key left top\nset grid\n$data << END\n", file);
    for (size_t i = 0; i <= SIMULATE_BINS; i++) {
        fprintf(file, "%.6g %.6f %.6f %.6f\n", (double)i / SIMULATE_BINS * (double)run->run_ns / 1e9, r->allowed_at[i],
                r->perfect_at[i], r->admitted_at[i]);
    }
    fputs("END\nplot $data using 1:2 with lines dashtype 2 title 'burst + rate x time', "
          "$data using 1:3 with lines linewidth 3 linecolor rgb '#bbbbbb' title 'a perfect bucket', "
          "$data using 1:4 with lines linewidth 1.5 linecolor rgb '#1f6fb4' title 'admitted'\n",
          file);
}

static int run_gnuplot(int in)
{
    char *argv[] = {"gnuplot", NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status, error;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, 0);
    error = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
        fprintf(stderr, "weir simulate: --plot needs gnuplot, which can't be started (%s); Debian: gnuplot-nox\n",
                strerror(error));
        return -1;
    }
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fputs("weir simulate: gnuplot failed\n", stderr);
        return -1;
    }
    return 0;
}

static int draw(const struct simulate_options *run, const struct simulate_result *r, const char *name)
{
    FILE *file = tmpfile();
    int status = -1;
    if (!file) {
        perror("weir simulate: temporary file");
        return -1;
    }
    write_script(file, run, r, name);
    if (fflush(file) == 0 && lseek(fileno(file), 0, SEEK_SET) == 0) {
        status = run_gnuplot(fileno(file));
    }
    fclose(file);
    return status;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static int one(const struct simulate_command *command, const struct simulate_options *run)
{
    static struct simulate_result result;
    int status = simulate_run(run, &result);
    if (status != 0) {
        fprintf(stderr, "weir simulate: %s\n", weir_strerror(status));
        return 1;
    }
    if (command->json) {
        print_json(run, &result);
    } else {
        print_line(run, &result);
    }
    if (command->plot && draw(run, &result, command->plot) != 0) {
        return 1;
    }
    return is_bounded(run, &result) && result.overshoot > result.bound;
}

int simulate_main(int argc, char **argv)
{
    struct simulate_command command;
    int status = simulate_options_parse(&command, argc, argv), failed = 0;
    if (status != 0) {
        return status > 0 ? 0 : 2;
    }
    if (!command.json) {
        print_header(&command.run);
    }
    if (!command.all) {
        return one(&command, &command.run);
    }
    for (int i = 0; i < SIMULATE_STRATEGIES; i++) {
        struct simulate_options run = command.run;
        run.strategy = (enum simulate_strategy)i;
        failed |= one(&command, &run);
    }
    return failed;
}
