/* SPDX-License-Identifier: MIT */
/* `weir check`: one strict decision from the shell. */
#ifndef WEIR_TOOLS_CHECK_H
#define WEIR_TOOLS_CHECK_H

/* argv[0] is the command's name. Returns the exit code of the process. */
int check_main(int argc, char **argv);

#endif
