/* SPDX-License-Identifier: MIT */
/* weir-bench: the command line. The rows are in the files that rows.h names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "rows.h"

static const char usage[] =
    "usage: weir-bench local [--json] [--rows L1,L2] [--quick]   decisions in the process: rows L1 to L10, peers\n"
    "       weir-bench accuracy [--json] [--rows A1,A2] [--quick] fleets on a real Redis: rows A1 to A10\n"
    "       weir-bench redis [--json] [--rows R1,R2] [--quick]   strict mode and reconciliation: rows R1 to R11\n"
    "       weir-bench fleet [--json] [--rows hybrid,gcra-lua] [--pictures FOLDER]  every way to share a limit\n"
    "       weir-bench keyed [--json] [--quick]                  1,000 to 10 million keys, uniform and Zipf\n"
    "       weir-bench peers [--json] [--quick]                  other limiters, those that are installed\n";

static void local(const struct bench_options *options)
{
    if (!options->json) {
        printf("weir %s, linked %s, %u CPUs; medians of ratios measured in turn, ns are this moment's\n\n",
               weir_version(), WEIR_BENCH_LINK, bench_cpus());
    }
    micro_rows(options);
    keyed_rows(options);
    tail_rows(options);
    callgrind_rows(options);
    if (!options->json && options->rows == NULL) {
        putchar('\n');
        peers_table(options);
    }
}

static const struct command {
    const char *name;
    void (*run)(const struct bench_options *options);
} commands[] = {
    {"accuracy", accuracy_rows}, {"fleet", fleet_rows},  {"local", local},
    {"keyed", keyed_sweep},      {"peers", peers_table}, {"redis", redis_rows},
};

static int parse(struct bench_options *options, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options->json = 1;
        } else if (strcmp(argv[i], "--quick") == 0) {
            options->quick = 1;
        } else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc) {
            options->rows = argv[++i];
        } else if (strcmp(argv[i], "--pictures") == 0 && i + 1 < argc) {
            options->pictures = argv[++i];
        } else {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct bench_options options = {0};
    if (argc == 4 && strcmp(argv[1], "work") == 0) {
        return callgrind_work(argv[2], strtoul(argv[3], NULL, 10));
    }
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0 && parse(&options, argc, argv)) {
            bench_init();
            commands[i].run(&options);
            return 0;
        }
    }
    fputs(usage, stderr);
    return 1;
}
