/* SPDX-License-Identifier: MIT */
/*
 * As much RESP as a lying server needs: where a message ends, and the words of a request. Pure.
 */
#ifndef WEIR_TESTS_RESP_H
#define WEIR_TESTS_RESP_H

#include <stddef.h>

/* The length of the whole message at the start of bytes; 0: not all of it is there yet; -1: not RESP. */
long resp_length(const char *bytes, size_t len);

/* The words of a whole request, at most max of them. How many it has, or -1 where it is no array of bulk strings. */
struct resp_word {
    const char *bytes;
    size_t len;
};
int resp_words(const char *bytes, size_t len, struct resp_word *words, int max);

#endif
