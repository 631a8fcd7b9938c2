/* SPDX-License-Identifier: MIT */
/* The command line of `weir simulate`. */
#ifndef WEIR_TOOLS_SIMULATE_OPTIONS_H
#define WEIR_TOOLS_SIMULATE_OPTIONS_H

#include "tools/simulate_fleet.h"

struct simulate_command {
    struct simulate_options run;
    int all; /* every strategy in turn */
    int json;
    const char *plot; /* a file to draw into, or NULL */
};

/* 0, 1 where help was printed, or -1 where the command line is wrong (which has been said). */
int simulate_options_parse(struct simulate_command *out, int argc, char **argv);

#endif
