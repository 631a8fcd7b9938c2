/* SPDX-License-Identifier: MIT */
/*
 * Text into a caller's buffer.
 */
#include "lib/text.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
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

size_t weir__text_utf8(const char *s)
{
    /* of each length: what its first byte looks like, and the least code that needs it */
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0, 1}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    unsigned char c = (unsigned char)*s;
    uint32_t code;
    size_t n = 0;

    while (n < 4 && (c & forms[n].mask) != forms[n].lead)
        n++;
    if (n == 4)
        return 0;
    code = c & (unsigned char)~forms[n].mask;
    for (size_t i = 1; i <= n; i++) {
        c = (unsigned char)s[i];
        if ((c & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (c & 0x3fu);
    }
    return code < forms[n].least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n + 1;
}

void weir__text_quote(struct weir__text *t, const char *s, int ascii)
{
    weir__text_add(t, "\"");
    for (size_t n; *s; s += n ? n : 1) {
        unsigned char c = (unsigned char)*s;

        n = ascii || c < 0x80 ? 1 : weir__text_utf8(s);
        if (ascii && (c < 0x20 || c > 0x7e))
            weir__text_add(t, "%%%02X", c);
        else if (n != 1)
            weir__text_add(t, "%.*s", n ? (int)n : 3, n ? s : "\xef\xbf\xbd");
        else
            weir__text_add(t, c == '\\' || c == '"' ? "\\%c" : "%c", c);
    }
    weir__text_add(t, "\"");
}

int weir__text_length(const struct weir__text *t)
{
    return t->used > INT_MAX ? WEIR_E_RANGE : (int)t->used;
}
