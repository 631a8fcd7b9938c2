/* SPDX-License-Identifier: MIT */
/*
 * `weir demo`: processes that share one limit through a private Redis, driven above it, in a live view.
 *
 * Owns the run: who is started, killed and stopped when, and the verdict on it.
 */
#ifndef WEIR_TOOLS_DEMO_H
#define WEIR_TOOLS_DEMO_H

/* argv[0] is the command's name. Returns the exit code of the process. */
int demo_main(int argc, char **argv);

#endif
