/* SPDX-License-Identifier: MIT */
/* `weir top`: what a process decides, and its hottest keys, by its stats socket. */
#ifndef WEIR_TOOLS_TOP_H
#define WEIR_TOOLS_TOP_H

/* argv[0] is the command's name. Returns the exit code of the process. */
int top_main(int argc, char **argv);

#endif
