/* SPDX-License-Identifier: MIT */
/*
 * What `weir demo` was asked to do.
 *
 * Owns the command line and its help text; must not run anything.
 */
#ifndef WEIR_TOOLS_DEMO_OPTIONS_H
#define WEIR_TOOLS_DEMO_OPTIONS_H

#include <stdint.h>

#include "tools/fleet.h"

struct demo_options {
    struct fleet_options fleet; /* uri is filled later */
    int json;
    uint64_t kill_at, restart_at, stop_at; /* ns after the start; UINT64_MAX: never */
};

/* Returns 0, 1 where help was asked for (and printed), or -1 where the line is wrong (and was told why). */
int demo_options_parse(struct demo_options *out, int argc, char **argv);

const char *demo_mode_name(enum weir_mode mode);

#endif
