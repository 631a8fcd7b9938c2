/* SPDX-License-Identifier: MIT */
/*
 * One flat JSON object on one line, written member by member.
 *
 * Owns the syntax; must not know what is written.
 */
#ifndef WEIR_TOOLS_JSON_H
#define WEIR_TOOLS_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *file;
    int members;
};

void json_open(struct json *j, FILE *file);
void json_count(struct json *j, const char *name, uint64_t n);
void json_number(struct json *j, const char *name, double n); /* finite; a NaN or an infinity is written as null */
void json_text(struct json *j, const char *name, const char *text);
void json_numbers(struct json *j, const char *name, const double *list, size_t n);
void json_close(struct json *j);

#endif
