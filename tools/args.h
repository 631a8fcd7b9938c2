/* SPDX-License-Identifier: MIT */
/*
 * Reading what a person types: counts, times, limits, policies. Each returns 0, or -1 where the text is not one (out
 * untouched). And the options of a command, by means of getopt_long.
 *
 * Owns the syntax; must not know what the numbers are for, nor print anything but help and what is wrong with a line.
 */
#ifndef WEIR_TOOLS_ARGS_H
#define WEIR_TOOLS_ARGS_H

#include <getopt.h>
#include <stdint.h>

/* "1000": decimal digits, nothing else, within [least, most]. */
int args_count(const char *text, uint64_t least, uint64_t most, uint64_t *out);

/* "10", "2.5", "100ms", "1.5h": seconds where no unit follows. Units: ns us ms s m min h d. Exact: finer than 1 ns, or
 * longer than 100 years, is refused. */
int args_time(const char *text, uint64_t *out_ns);

/* "2.5": a positive decimal number up to `most`. */
int args_factor(const char *text, double most, double *out);

struct args_limit {
    uint64_t limit;
    uint64_t per_ns;
    uint64_t burst; /* 0: not given */
};

/* "1000/s", "100/10s", "5/min,burst=20": tokens, the period, perhaps the burst. Neither may be 0. */
int args_limit(const char *text, struct args_limit *out);

#define ARGS_NAME_MAX 63

struct args_policy {
    char name[ARGS_NAME_MAX + 1];
    struct args_limit limit; /* limit 0: the name alone was given */
};

/* "api", "api=100/10s,burst=20": a name that holds no '=', perhaps with its numbers. */
int args_policy(const char *text, struct args_policy *out);

/* The place of a word in a list that ends with NULL, or -1. */
int args_word(const char *text, const char *const *words);

/* ---- the options of a command ------------------------------------------------------------------------------------ */

#define ARGS_HELP 1
#define ARGS_OPTIONS_END                                                                                               \
    {"help", no_argument, NULL, ARGS_HELP},                                                                            \
    {                                                                                                                  \
        NULL, 0, NULL, 0                                                                                               \
    }

struct args_command {
    const char *name; /* "demo", of `weir demo` */
    const char *help;
    const struct option *options; /* ends with ARGS_OPTIONS_END */
    int least, most;              /* operands */
    /* 0, or -1: not understood, or out of range. text NULL: an option that takes none */
    int (*set)(void *out, int option, const char *text);
};

/* Reads them all into `out`. Returns the place in argv of the first operand (they stand behind all options then), 0
 * where help was asked for (and was printed), or -1 where the line is wrong (which was said). */
int args_options(const struct args_command *command, int argc, char **argv, void *out);

/* Says what is wrong with the line, and where to read more. Returns -1. */
int args_wrong(const struct args_command *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
