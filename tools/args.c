/* SPDX-License-Identifier: MIT */
/* Owns the syntax of what a person types; must not know what it is for. */
#include "tools/args.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef unsigned __int128 unsigned_wide;

#define LONGEST_NS (UINT64_C(100) * 365 * 86400 * 1000000000)

/* Digits at *text, moved past them. -1 where there are none or too many. */
static int read_digits(const char **text, uint64_t *out)
{
    const char *p = *text;
    uint64_t n = 0;
    if (*p < '0' || *p > '9') {
        return -1;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (n > (UINT64_MAX - digit) / 10) {
            return -1;
        }
        n = n * 10 + digit;
    }
    *text = p;
    *out = n;
    return 0;
}

int args_count(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    uint64_t n;
    if (read_digits(&text, &n) != 0 || *text != '\0' || n < least || n > most) {
        return -1;
    }
    *out = n;
    return 0;
}

static int read_unit(const char *text, size_t len, uint64_t *ns)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {
        {"ns", 1},
        {"us", 1000},
        {"ms", 1000000},
        {"s", 1000000000},
        {"m", UINT64_C(60) * 1000000000},
        {"min", UINT64_C(60) * 1000000000},
        {"h", UINT64_C(3600) * 1000000000},
        {"d", UINT64_C(86400) * 1000000000},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strlen(units[i].name) == len && memcmp(units[i].name, text, len) == 0) {
            *ns = units[i].ns;
            return 0;
        }
    }
    return -1;
}

/* whole + 0.digits units, in ns; what stands for a part of a nanosecond is refused. */
static int scale(uint64_t whole, const char *digits, size_t n, uint64_t unit_ns, uint64_t *out_ns)
{
    uint64_t tail = 0, tenth = 1;
    while (n > 0 && digits[n - 1] == '0') {
        n--;
    }
    if (n > 18 || whole > LONGEST_NS / unit_ns) {
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        tail = tail * 10 + (uint64_t)(digits[i] - '0');
        tenth *= 10;
    }
    unsigned_wide part = (unsigned_wide)tail * unit_ns;
    if (part % tenth != 0) {
        return -1;
    }
    uint64_t total = whole * unit_ns + (uint64_t)(part / tenth);
    if (total > LONGEST_NS) {
        return -1;
    }
    *out_ns = total;
    return 0;
}

int args_time(const char *text, uint64_t *out_ns)
{
    uint64_t whole, unit = 1000000000;
    const char *digits = NULL;
    size_t n = 0;
    if (read_digits(&text, &whole) != 0) {
        return -1;
    }
    if (*text == '.') {
        digits = ++text;
        n = strspn(digits, "0123456789");
        if (n == 0) {
            return -1;
        }
        text += n;
    }
    if (*text != '\0' && read_unit(text, strlen(text), &unit) != 0) {
        return -1;
    }
    return scale(whole, digits, n, unit, out_ns);
}

int args_factor(const char *text, double most, double *out)
{
    /* strtod alone would take " 1", "0x1p3", "inf" and "nan" */
    if (strspn(text, "0123456789.") != strlen(text)) {
        return -1;
    }
    char *end;
    double n = strtod(text, &end);
    if (end == text || *end != '\0' || !(n > 0) || n > most) {
        return -1;
    }
    *out = n;
    return 0;
}

int args_limit(const char *text, struct args_limit *out)
{
    struct args_limit l = {0};
    if (read_digits(&text, &l.limit) != 0 || l.limit == 0 || *text != '/') {
        return -1;
    }
    uint64_t periods = 1, unit;
    text++;
    if (*text >= '0' && *text <= '9' && read_digits(&text, &periods) != 0) {
        return -1;
    }
    size_t len = strcspn(text, ",");
    if (read_unit(text, len, &unit) != 0 || periods == 0 || periods > LONGEST_NS / unit) {
        return -1;
    }
    l.per_ns = periods * unit;
    text += len;
    if (*text == ',') {
        static const char word[] = ",burst=";
        if (strncmp(text, word, sizeof word - 1) != 0 ||
            args_count(text + sizeof word - 1, 1, UINT64_MAX, &l.burst) != 0) {
            return -1;
        }
    }
    *out = l;
    return 0;
}

int args_policy(const char *text, struct args_policy *out)
{
    struct args_policy p = {0};
    size_t len = strcspn(text, "=");
    if (len == 0 || len > ARGS_NAME_MAX) {
        return -1;
    }
    memcpy(p.name, text, len);
    if (text[len] == '=' && args_limit(text + len + 1, &p.limit) != 0) {
        return -1;
    }
    *out = p;
    return 0;
}

int args_word(const char *text, const char *const *words)
{
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* ---- the options of a command ------------------------------------------------------------------------------------ */

static void tell_more(const struct args_command *command)
{
    fprintf(stderr, "weir %s --help tells more\n", command->name);
}

int args_wrong(const struct args_command *command, const char *format, ...)
{
    va_list args;
    fprintf(stderr, "weir %s: ", command->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    putc('\n', stderr);
    tell_more(command);
    return -1;
}

int args_options(const struct args_command *command, int argc, char **argv, void *out)
{
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", command->options, &index)) != -1) {
        if (option == '?') {
            tell_more(command); /* getopt has said what is wrong */
            return -1;
        }
        if (option == ARGS_HELP) {
            fputs(command->help, stdout);
            return 0;
        }
        if (command->set(out, option, optarg) != 0) {
            return args_wrong(command, "--%s %s: not understood, or out of range", command->options[index].name,
                              optarg ? optarg : "");
        }
    }
    if (argc - optind > command->most) {
        return args_wrong(command, "unexpected argument '%s'", argv[optind + command->most]);
    }
    if (argc - optind < command->least) {
        return args_wrong(command, "something is missing behind '%s'", argv[argc - 1]);
    }
    return optind;
}
