/* SPDX-License-Identifier: MIT */
/* Owns the syntax of JSON; must not know what is written. */
#include "tools/json.h"

#include <inttypes.h>
#include <math.h>

#include "lib/text.h"

static void put_text(FILE *file, const char *text)
{
    putc('"', file);
    for (size_t n; *text; text += n ? n : 1) {
        unsigned char c = (unsigned char)*text;
        n = c < 0x80 ? 1 : weir__text_utf8(text);
        if (n == 0) {
            fputs("\\ufffd", file); /* a key may be any bytes, JSON is UTF-8 */
        } else if (n > 1) {
            fwrite(text, 1, n, file);
        } else if (c == '"' || c == '\\') {
            putc('\\', file);
            putc(c, file);
        } else if (c < 0x20) {
            fprintf(file, "\\u%04x", c);
        } else {
            putc(c, file);
        }
    }
    putc('"', file);
}

static void put_number(FILE *file, double n)
{
    if (isfinite(n)) {
        fprintf(file, "%.15g", n);
    } else {
        fputs("null", file);
    }
}

static void put_name(struct json *j, const char *name)
{
    if (j->members++ > 0) {
        fputs(", ", j->file);
    }
    put_text(j->file, name);
    fputs(": ", j->file);
}

void json_open(struct json *j, FILE *file)
{
    *j = (struct json){.file = file};
    putc('{', file);
}

void json_count(struct json *j, const char *name, uint64_t n)
{
    put_name(j, name);
    fprintf(j->file, "%" PRIu64, n);
}

void json_number(struct json *j, const char *name, double n)
{
    put_name(j, name);
    put_number(j->file, n);
}

void json_text(struct json *j, const char *name, const char *text)
{
    put_name(j, name);
    put_text(j->file, text);
}

void json_numbers(struct json *j, const char *name, const double *list, size_t n)
{
    put_name(j, name);
    putc('[', j->file);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            fputs(", ", j->file);
        }
        put_number(j->file, list[i]);
    }
    putc(']', j->file);
}

void json_flag(struct json *j, const char *name, int flag)
{
    put_name(j, name);
    fputs(flag ? "true" : "false", j->file);
}

void json_list_begin(struct json *j, const char *name)
{
    put_name(j, name);
    putc('[', j->file);
    j->outer = j->members;
    j->items = 0;
}

void json_item(struct json *j)
{
    fputs(j->items++ > 0 ? "}, {" : "{", j->file);
    j->members = 0;
}

void json_list_end(struct json *j)
{
    fputs(j->items > 0 ? "}]" : "]", j->file);
    j->members = j->outer;
}

void json_close(struct json *j)
{
    fputs("}\n", j->file);
}
