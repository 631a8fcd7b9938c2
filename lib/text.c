/* SPDX-License-Identifier: MIT */
/*
 * Text into a caller's buffer.
 */
#include "lib/text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>

#include <weir/weir.h>

void weir__text_init(struct weir__text *t, char *buf, size_t len)
{
    t->buf = buf;
    t->len = buf ? len : 0;
    t->used = 0;
    if (t->len > 0)
        buf[0] = '\0';
}

void weir__text_add(struct weir__text *t, const char *format, ...)
{
    int fits = t->used < t->len;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(fits ? t->buf + t->used : NULL, fits ? t->len - t->used : 0, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

void weir__text_quote(struct weir__text *t, const char *s, int ascii)
{
    weir__text_add(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;

        if (ascii && (c < 0x20 || c > 0x7e))
            weir__text_add(t, "%%%02X", c);
        else
            weir__text_add(t, c == '\\' || c == '"' ? "\\%c" : "%c", c);
    }
    weir__text_add(t, "\"");
}

int weir__text_length(const struct weir__text *t)
{
    return t->used > INT_MAX ? WEIR_E_RANGE : (int)t->used;
}
