/* SPDX-License-Identifier: MIT */
/*
 * Text into a caller's buffer, as snprintf counts: what doesn't fit is only counted. Knows nothing of what it says.
 */
#ifndef WEIR_LIB_TEXT_H
#define WEIR_LIB_TEXT_H

#include <stddef.h>

struct weir__text {
    char *buf; /* terminated wherever len > 0 and something was added */
    size_t len, used;
};

/* buf NULL: to count alone. The buffer is empty text afterwards. */
void weir__text_init(struct weir__text *t, char *buf, size_t len);

void weir__text_add(struct weir__text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Between quotes, with backslashes and quotes escaped; ascii: bytes that are no printable ASCII become %XX; else those
 * that are no UTF-8 U+FFFD. */
void weir__text_quote(struct weir__text *t, const char *s, int ascii);

/* Bytes of the UTF-8 character that terminated text begins with; 0: it begins with none. */
size_t weir__text_utf8(const char *s);

/* The length that all of it needs, or WEIR_E_RANGE. */
int weir__text_length(const struct weir__text *t);

#endif
