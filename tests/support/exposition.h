/* SPDX-License-Identifier: MIT */
/*
 * Prometheus' text format, as strictly as its own tool reads it. Every call fails the test where the text is not what
 * it should be. Knows no metric of ours.
 */
#ifndef WEIR_TESTS_EXPOSITION_H
#define WEIR_TESTS_EXPOSITION_H

#include <stddef.h>

/* Each family has its help, then its type, then all of its samples, once; names are well formed, and end as their type
 * wants it; labels are quoted; no series is told twice; buckets grow and end at +Inf with the count; counters are not
 * negative; the last line ends. Returns the number of families. */
size_t exposition_check(const char *text);

/* A series' value, by its name and labels as they are written. */
double exposition_value(const char *text, const char *series);

/* Is there a family of that name and type ("counter", "gauge", "histogram")? */
int exposition_has(const char *text, const char *name, const char *type);

#endif
