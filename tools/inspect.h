/* SPDX-License-Identifier: MIT */
/* `weir inspect`: all that Redis holds of one key, for a person. Reads only. */
#ifndef WEIR_TOOLS_INSPECT_H
#define WEIR_TOOLS_INSPECT_H

/* argv[0] is the command's name. Returns the exit code of the process. */
int inspect_main(int argc, char **argv);

#endif
