/* SPDX-License-Identifier: MIT */
/*
 * One JSON object on one line, written member by member; a member may be a list of flat objects.
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
    int members, outer; /* outer: of the object that holds the list at hand */
    int items;
};

void json_open(struct json *j, FILE *file);
void json_count(struct json *j, const char *name, uint64_t n);
void json_number(struct json *j, const char *name, double n); /* finite; a NaN or an infinity is written as null */
void json_text(struct json *j, const char *name, const char *text);
void json_numbers(struct json *j, const char *name, const double *list, size_t n);
void json_flag(struct json *j, const char *name, int flag);

/* A list of objects: begin, then for each object item and its members, then end. */
void json_list_begin(struct json *j, const char *name);
void json_item(struct json *j);
void json_list_end(struct json *j);
void json_close(struct json *j);

#endif
