/* SPDX-License-Identifier: MIT */
/* `weir simulate`. */
#ifndef WEIR_TOOLS_SIMULATE_H
#define WEIR_TOOLS_SIMULATE_H

/* Exit code: 0 done, 1 failed or past the bound, 2 wrong command line. */
int simulate_main(int argc, char **argv);

#endif
