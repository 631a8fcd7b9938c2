/* SPDX-License-Identifier: MIT */
/*
 * Finds the ends of messages. Numbers are bounded, so that a broken peer can't make it run past what it was given.
 */
#include "support/resp.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 8 };

#define LENGTH_MAX (512L * 1024 * 1024)

/* The line at `at`, without its end: its number, and where the next line begins; 0 where it isn't all there. */
static size_t read_line(const char *bytes, size_t len, size_t at, long *number)
{
    const char *end = memchr(bytes + at, '\n', len - at);
    if (!end) {
        return 0;
    }
    /* Stops at the line's end, which is there; but white space would lead it on. */
    *number = bytes[at + 1] > ' ' ? strtol(bytes + at + 1, NULL, 10) : 0;
    return (size_t)(end - bytes) + 1;
}

static long measure(const char *bytes, size_t len, size_t at, int depth)
{
    long n;
    size_t next = at < len ? read_line(bytes, len, at, &n) : 0;
    if (next == 0) {
        return 0;
    }
    switch (bytes[at]) {
    case '+':
    case '-':
    case ':': return (long)next;
    case '$':
        if (n > LENGTH_MAX) {
            return -1;
        }
        next += n < 0 ? 0 : (size_t)n + 2;
        return next <= len ? (long)next : 0;
    case '*':
        if (depth == 0 || n > LENGTH_MAX) {
            return -1;
        }
        for (; n > 0; n--) {
            long end = measure(bytes, len, next, depth - 1);
            if (end <= 0) {
                return end;
            }
            next = (size_t)end;
        }
        return (long)next;
    default: return -1;
    }
}

long resp_length(const char *bytes, size_t len)
{
    return measure(bytes, len, 0, DEPTH_MAX);
}

int resp_words(const char *bytes, size_t len, struct resp_word *words, int max)
{
    long n, size;
    size_t at = len > 0 && bytes[0] == '*' ? read_line(bytes, len, 0, &n) : 0;
    if (at == 0 || n < 1) {
        return -1;
    }
    for (int i = 0; i < n; i++) {
        size_t start = at < len && bytes[at] == '$' ? read_line(bytes, len, at, &size) : 0;
        if (start == 0 || size < 0 || start + (size_t)size + 2 > len) {
            return -1;
        }
        if (i < max) {
            words[i] = (struct resp_word){bytes + start, (size_t)size};
        }
        at = start + (size_t)size + 2;
    }
    return (int)n;
}
