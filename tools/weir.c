/* SPDX-License-Identifier: MIT */
/*
 * The `weir` command. Owns the choice of a subcommand; must not know what they do.
 *
 * Their exit codes: tools/exits.h.
 */
#include <stdio.h>
#include <string.h>

#include <weir/weir.h>

#include "tools/bench.h"
#include "tools/check.h"
#include "tools/demo.h"
#include "tools/exits.h"
#include "tools/inspect.h"
#include "tools/simulate.h"
#include "tools/top.h"

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"bench", bench_main, "decisions a second, here and against a Redis"},
    {"check", check_main, "one decision, made by Redis"},
    {"demo", demo_main, "processes that share one limit through a private Redis, live"},
    {"inspect", inspect_main, "all that Redis holds of one key"},
    {"simulate", simulate_main, "nodes that share one limit, in virtual time, with any strategy"},
    {"top", top_main, "what a process decides, and its hottest keys, live"},
};

static void usage(FILE *file)
{
    fputs("usage: weir COMMAND [OPTIONS]\n\n", file);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].what);
    }
    fputs("\n  weir COMMAND --help tells its options, weir --version the version.\n", file);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("weir %s\n", weir_version());
        return EXIT_DONE;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            static char name[32];
            snprintf(name, sizeof name, "weir %s", commands[i].name);
            argv[1] = name; /* what getopt blames */
            return commands[i].main(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "weir: no command '%s'\nweir --help lists them\n", argv[1]);
    return EXIT_USAGE;
}
