/* SPDX-License-Identifier: MIT */
/*
 * Row L10: instructions of one decision, counted by valgrind's callgrind over this same program doing nothing but that
 * work. What is done inside of the public function counts; of takes by handle, which are partly compiled into their
 * caller, the loop that does them, less one that does nothing. Two runs of different length leave first times out.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "child.h"
#include "limiter.h"
#include "rows.h"

#define KEYS 64u
#define SHORT_RUN 20000u
#define LONG_RUN 60000u

/* ---- under valgrind ---------------------------------------------------------------------------------------------- */

/* A function of its own: its name tells valgrind where to count. */
static __attribute__((noinline)) uint64_t takes_by_handle(struct weir_key *handle, size_t ops)
{
    uint64_t allowed = 0;
    for (size_t i = 0; i < ops; i++) {
        allowed += weir_key_take(handle, 1, 0, NULL) == WEIR_ALLOW;
    }
    return allowed;
}

/* What of that is not a take. */
static __attribute__((noinline)) uint64_t takes_by_nobody(size_t ops)
{
    uint64_t allowed = 0;
    for (size_t i = 0; i < ops; i++) {
        int verdict = WEIR_ALLOW;
        __asm__ volatile("" : "+r"(verdict));
        allowed += verdict == WEIR_ALLOW;
    }
    return allowed;
}

int callgrind_work(const char *name, size_t ops)
{
    struct weir *w = limiter_open(64 * KEYS); /* so many that nearly all keys lie in their place */
    weir_policy_id ample = limiter_ample(w);
    struct weir_key *handle;
    struct key16 keys[KEYS];
    uint64_t allowed = 0, expected = ops;
    /* the limiter's clock learns the counter's frequency from two readings, 5 ms apart or more */
    struct timespec pause = {.tv_nsec = 20000000};
    weir_now(w);
    nanosleep(&pause, NULL);
    weir_now(w);
    limiter_check(weir_key_open(w, ample, "own", 3, &handle), "weir_key_open");
    for (size_t i = 0; i < KEYS; i++) {
        keys[i] = key16_make(i);
        weir_take(w, ample, &keys[i], sizeof keys[i], 1, NULL);
    }
    if (strcmp(name, "takes_by_handle") == 0) {
        allowed = takes_by_handle(handle, ops);
    } else if (strcmp(name, "takes_by_nobody") == 0) {
        allowed = takes_by_nobody(ops);
    } else if (strcmp(name, "weir_take") == 0) {
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

/* Instructions of all calls of a function in a run, or 0 when valgrind is not here or said no. */
static double count(const char *function, unsigned ops)
{
    char self[4096], number[16], line[512], toggle[64];
    unsigned long long collected = 0;
    struct child child;
    child_beside(self, sizeof self, WEIR_BENCH_NAME);
    snprintf(number, sizeof number, "%u", ops);
    snprintf(toggle, sizeof toggle, "--toggle-collect=%s", function);
    const char *const argv[] = {
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", toggle, self, "work", function, number, NULL};
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

/* Of one call of the function, or of one turn of the loop in it. */
static double count_each(const char *function)
{
    double few = count(function, SHORT_RUN), many = count(function, LONG_RUN);
    return few > 0 && many > few ? (many - few) / (LONG_RUN - SHORT_RUN) : 0;
}

void callgrind_rows(const struct bench_options *options)
{
    static const struct {
        const char *id, *what, *function, *besides;
        double goal;
    } counted[] = {
        {"L10a", "instructions of a handle take", "takes_by_handle", "takes_by_nobody", 70},
        {"L10b", "instructions of a 16-byte key take", "weir_take", NULL, 320},
    };
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++) {
        struct bench_row row = {.id = counted[i].id, .what = counted[i].what, .goal = counted[i].goal};
        if (!bench_wanted(options, row.id)) {
            continue;
        }
        double all = count_each(counted[i].function);
        double besides = counted[i].besides != NULL ? count_each(counted[i].besides) : 0;
        row.value = all - besides;
        if (all <= 0 || (counted[i].besides != NULL && besides <= 0)) {
            row.skipped = "valgrind is not installed";
        }
        bench_report(options, &row);
    }
}
