/* SPDX-License-Identifier: MIT */
/*
 * Row L10: instructions of one decision, counted by valgrind's callgrind over this same program doing nothing but that
 * work. Two runs of different length leave the set-up out; the empty loop is counted the same way and taken off.
 */
#include <stdlib.h>
#include <string.h>

#include "child.h"
#include "limiter.h"
#include "rows.h"

#define KEYS 64u
#define SHORT_RUN 20000u
#define LONG_RUN 60000u

/* ---- under valgrind ---------------------------------------------------------------------------------------------- */

int callgrind_work(const char *name, size_t ops)
{
    struct weir *w = limiter_open(4 * KEYS);
    weir_policy_id ample = limiter_ample(w);
    struct weir_key *handle;
    struct key16 keys[KEYS];
    uint64_t allowed = 0, expected = ops;
    limiter_check(weir_key_open(w, ample, "own", 3, &handle), "weir_key_open");
    for (size_t i = 0; i < KEYS; i++) {
        keys[i] = key16_make(i);
        weir_take(w, ample, &keys[i], sizeof keys[i], 1, NULL);
    }
    if (strcmp(name, "empty") == 0) {
        for (size_t i = 0; i < ops; i++) {
            bench_keep(i);
            allowed++;
        }
    } else if (strcmp(name, "handle") == 0) {
        for (size_t i = 0; i < ops; i++) {
            allowed += weir_key_take(handle, 1, 0, NULL) == WEIR_ALLOW;
        }
    } else if (strcmp(name, "key16") == 0) {
        for (size_t i = 0; i < ops; i++) {
            allowed += weir_take(w, ample, &keys[i % KEYS], sizeof keys[0], 1, NULL) == WEIR_ALLOW;
        }
    } else {
        expected = ops + 1;
    }
    weir_key_close(handle);
    weir_close(w);
    return allowed == expected ? 0 : 1;
}

/* ---- the counting ------------------------------------------------------------------------------------------------ */

/* Instructions of a whole run, or 0 when valgrind is not here or said no. */
static double count(const char *work, unsigned ops)
{
    char self[4096], number[16], line[512];
    unsigned long long collected = 0;
    struct child child;
    child_beside(self, sizeof self, WEIR_BENCH_NAME);
    snprintf(number, sizeof number, "%u", ops);
    const char *const argv[] = {
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", self, "work", work, number, NULL};
    if (child_start(&child, argv, 1) != 0) {
        return 0;
    }
    while (fgets(line, sizeof line, child.out) != NULL) {
        const char *found = strstr(line, "Collected : ");
        if (found != NULL) {
            collected = strtoull(found + strlen("Collected : "), NULL, 10);
        }
    }
    return child_end(&child) == 0 ? (double)collected : 0;
}

static double count_one(const char *work)
{
    double few = count(work, SHORT_RUN), many = count(work, LONG_RUN);
    return few > 0 && many > few ? (many - few) / (LONG_RUN - SHORT_RUN) : 0;
}

void callgrind_rows(const struct bench_options *options)
{
    struct bench_row rows[] = {
        {.id = "L10a", .what = "instructions of a handle take", .goal = 70},
        {.id = "L10b", .what = "instructions of a 16-byte key take", .goal = 320},
    };
    static const char *const works[] = {"handle", "key16"};
    if (!bench_wanted(options, "L10a") && !bench_wanted(options, "L10b")) {
        return;
    }
    double empty = count_one("empty");
    for (size_t i = 0; i < 2; i++) {
        double all = empty > 0 ? count_one(works[i]) : 0;
        if (all > 0) {
            rows[i].value = all - empty;
            bench_detail(&rows[i], "loop", empty);
        } else {
            rows[i].skipped = "valgrind is not installed";
        }
        bench_report(options, &rows[i]);
    }
}
