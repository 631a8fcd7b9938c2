/* SPDX-License-Identifier: MIT */
/* The exit codes of every command of `weir`, documented in weir(1). Owns nothing else. */
#ifndef WEIR_TOOLS_EXITS_H
#define WEIR_TOOLS_EXITS_H

enum {
    EXIT_DONE = 0,     /* done; allowed; found */
    EXIT_NO = 1,       /* denied; not there; a bound that did not hold; something failed here */
    EXIT_USAGE = 2,    /* the command line is wrong */
    EXIT_UNREACHED = 3 /* Redis, or the process that was asked, did not answer */
};

#endif
