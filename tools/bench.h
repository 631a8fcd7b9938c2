/* SPDX-License-Identifier: MIT */
/* `weir bench`: decisions a second, on this machine and against a given Redis. */
#ifndef WEIR_TOOLS_BENCH_H
#define WEIR_TOOLS_BENCH_H

/* argv[0] is the command's name. Returns the exit code of the process. */
int bench_main(int argc, char **argv);

#endif
