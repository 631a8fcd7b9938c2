/* SPDX-License-Identifier: MIT */
/*
 * A reader of Prometheus' text format.
 */
#include "support/exposition.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_ = 128, LINE_MAX_ = 1024, SERIES_MAX = 2048, FAMILIES_MAX = 128 };

struct family {
    char name[NAME_MAX_], type[16];
    size_t samples;
    /* of a histogram */
    double bound, below, count;
    int has_sum, has_count, has_inf;
};

struct reader {
    struct family families[FAMILIES_MAX];
    size_t n;
    char described[NAME_MAX_]; /* HELP without its TYPE yet */
    char *series[SERIES_MAX];
    size_t told;
};

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The length of a name at s, 0 where there is none. */
static size_t name_length(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:0123456789");

    return n > 0 && (*s < '0' || *s > '9') && n < NAME_MAX_ ? n : 0;
}

static void take_name(const char **at, char out[NAME_MAX_], const char *line)
{
    size_t n = name_length(*at);

    ck_assert_msg(n > 0, "no name: %s", line);
    memcpy(out, *at, n);
    out[n] = '\0';
    *at += n;
}

static struct family *find(struct reader *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->families[i].name, name) == 0)
            return &r->families[i];
    return NULL;
}

static void read_help(struct reader *r, const char *at, const char *line)
{
    char name[NAME_MAX_];

    take_name(&at, name, line);
    ck_assert_msg(at[0] == ' ' && at[1] > ' ', "no help: %s", line);
    ck_assert_msg(!find(r, name) && !*r->described, "described twice, or without a type: %s", line);
    memcpy(r->described, name, sizeof name);
}

static void read_type(struct reader *r, const char *at, const char *line)
{
    struct family *f = &r->families[r->n];
    int counter;

    memset(f, 0, sizeof *f);
    take_name(&at, f->name, line);
    ck_assert_msg(strcmp(f->name, r->described) == 0, "a type without its help: %s", line);
    ck_assert_msg(sscanf(at, " %15s", f->type) == 1, "no type: %s", line);
    counter = strcmp(f->type, "counter") == 0;
    ck_assert_msg(counter || strcmp(f->type, "gauge") == 0 || strcmp(f->type, "histogram") == 0, "%s", line);
    ck_assert_msg(counter == ends_with(f->name, "_total"), "a counter ends in _total, and nothing else: %s", line);
    ck_assert_msg(!ends_with(f->name, "_sum") && !ends_with(f->name, "_count") && !ends_with(f->name, "_bucket"),
                  "a histogram's own: %s", line);
    ck_assert_msg(!strstr(f->name, "_ms") && !strstr(f->name, "_ns") && !strstr(f->name, "millis"),
                  "seconds are the unit: %s", line);
    f->bound = -INFINITY;
    *r->described = '\0';
    ck_assert_uint_lt(++r->n, FAMILIES_MAX);
}

/* {a="b",c="d"}; le is kept for a bucket. */
static void read_labels(const char **at, char le[32], const char *line)
{
    char name[NAME_MAX_];

    *le = '\0';
    if (**at != '{')
        return;
    do {
        size_t n = 0;
        int is_le;

        ++*at;
        take_name(at, name, line);
        ck_assert_msg(!strchr(name, ':') && strncmp(name, "__", 2) != 0, "no label's name: %s", line);
        ck_assert_msg(strcmp(name, "key") != 0, "a label of unbounded values: %s", line);
        is_le = strcmp(name, "le") == 0;
        ck_assert_msg(strncmp(*at, "=\"", 2) == 0, "no quoted value: %s", line);
        for (*at += 2; **at != '"'; ++*at) {
            ck_assert_msg(**at, "a value without an end: %s", line);
            if (**at == '\\')
                ck_assert_msg(strchr("\\\"n", *++*at), "an escape that is none: %s", line);
            if (is_le && n + 1 < 32) {
                le[n++] = **at;
                le[n] = '\0';
            }
        }
        ++*at;
    } while (**at == ',');
    ck_assert_msg(**at == '}', "labels without an end: %s", line);
    ++*at;
}

static void read_bucket(struct family *f, const char *le, double value, const char *line)
{
    char *end;
    double bound = strcmp(le, "+Inf") == 0 ? INFINITY : strtod(le, &end);

    ck_assert_msg(*le && bound > f->bound && value >= f->below, "buckets grow: %s", line);
    f->bound = bound;
    f->below = value;
    f->has_inf |= bound == INFINITY;
}

/* The family that a sample belongs to: a histogram's have other names. */
static struct family *family_of(struct reader *r, char *name, const char *le, double value, const char *line)
{
    static const char *const ends[] = {"_bucket", "_sum", "_count"};
    struct family *f = find(r, name);

    for (size_t i = 0; i < 3 && !f; i++) {
        if (!ends_with(name, ends[i]))
            continue;
        name[strlen(name) - strlen(ends[i])] = '\0';
        f = find(r, name);
        ck_assert_msg(f && strcmp(f->type, "histogram") == 0, "no histogram: %s", line);
        if (i == 0)
            read_bucket(f, le, value, line);
        f->has_sum |= i == 1;
        f->has_count |= i == 2;
        if (i == 2)
            f->count = value;
        return f;
    }
    ck_assert_msg(f && strcmp(f->type, "histogram") != 0, "not described: %s", line);
    return f;
}

static void read_sample(struct reader *r, const char *line)
{
    const char *at = line;
    char name[NAME_MAX_], le[32], *end;
    struct family *f;
    double value;

    take_name(&at, name, line);
    read_labels(&at, le, line);
    for (size_t i = 0; i < r->told; i++)
        ck_assert_msg(strncmp(r->series[i], line, (size_t)(at - line) + 1) != 0, "told twice: %s", line);
    ck_assert_uint_lt(r->told, SERIES_MAX);
    r->series[r->told] = strdup(line);
    ck_assert_ptr_nonnull(r->series[r->told]);
    r->told++;
    ck_assert_msg(*at == ' ', "no value: %s", line);
    value = strtod(at + 1, &end);
    ck_assert_msg(end > at + 1 && *end == '\0' && !isnan(value), "no number: %s", line);
    f = family_of(r, name, le, value, line);
    ck_assert_msg(f == &r->families[r->n - 1], "a family in pieces: %s", line);
    ck_assert_msg(strcmp(f->type, "gauge") == 0 || value >= 0, "negative: %s", line);
    f->samples++;
}

size_t exposition_check(const char *text)
{
    static struct reader r;
    size_t families;

    memset(&r, 0, sizeof r);
    while (*text) {
        const char *end = strchr(text, '\n');
        char line[LINE_MAX_];

        ck_assert_msg(end && end > text && end - text < LINE_MAX_, "a line without an end, or empty: %.80s", text);
        memcpy(line, text, (size_t)(end - text));
        line[end - text] = '\0';
        text = end + 1;
        if (strncmp(line, "# HELP ", 7) == 0)
            read_help(&r, line + 7, line);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            read_type(&r, line + 7, line);
        else
            read_sample(&r, line);
    }
    for (size_t i = 0; i < r.n; i++) {
        const struct family *f = &r.families[i];

        ck_assert_msg(f->samples > 0, "%s is described and not told", f->name);
        if (strcmp(f->type, "histogram") == 0)
            ck_assert_msg(f->has_sum && f->has_count && f->has_inf && f->below == f->count, "%s is not whole", f->name);
    }
    for (size_t i = 0; i < r.told; i++)
        free(r.series[i]);
    families = r.n;
    ck_assert_str_eq(r.described, "");
    return families;
}

double exposition_value(const char *text, const char *series)
{
    size_t n = strlen(series);

    for (; text; text = strchr(text, '\n')) {
        text += *text == '\n';
        if (strncmp(text, series, n) == 0 && text[n] == ' ')
            return strtod(text + n, NULL);
    }
    ck_abort_msg("no series %s", series);
    return 0;
}

int exposition_has(const char *text, const char *name, const char *type)
{
    char line[LINE_MAX_];

    snprintf(line, sizeof line, "# TYPE %s %s\n", name, type);
    return strstr(text, line) != NULL;
}
