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

/* Between quotes, with backslashes and quotes escaped; ascii: bytes that are no printable ASCII become %XX. */
void weir__text_quote(struct weir__text *t, const char *s, int ascii);

/* The length that all of it needs, or WEIR_E_RANGE. */
int weir__text_length(const struct weir__text *t);

#endif
