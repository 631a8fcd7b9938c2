/* SPDX-License-Identifier: MIT */
/* See account.h. */
#include "benchmarks/fleet/account.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/harness.h"
#include "tools/overshoot.h"

static uint64_t answered(const struct record *record)
{
    return record->asked_ns + record->took_ns;
}

static int by_number(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_asked(const void *a, const void *b)
{
    return by_number(((const struct record *)a)->asked_ns, ((const struct record *)b)->asked_ns);
}

static int by_answered(const void *a, const void *b)
{
    return by_number(answered(a), answered(b));
}

static int by_key(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    return x->key != y->key ? by_number(x->key, y->key) : by_asked(a, b);
}

/* ---- windows that hold both the request and the verdict ---------------------------------------------------------- */

/* Of the windows that begin with a request in this node's part of them: the most that one holds, plus rate x its
 * beginning. A node's children are at 2 i and 2 i + 1. */
struct node {
    double sum, best;
};

static void combine(struct node *nodes, size_t i)
{
    const struct node *left = &nodes[2 * i], *right = &nodes[2 * i + 1];
    nodes[i].sum = left->sum + right->sum;
    nodes[i].best = fmax(right->best, left->best + right->sum);
}

/* An admission, with its place in the order of requests. */
struct admission {
    uint64_t asked_ns, answered_ns;
    size_t place;
};

static int by_verdict(const void *a, const void *b)
{
    return by_number(((const struct admission *)a)->answered_ns, ((const struct admission *)b)->answered_ns);
}

/* Verdicts are gone through in order; each is counted for every window that begins with its request or before. A worst
 * window begins with a request that it counts. */
static double sure_overshoot(const struct strategy_limit *limit, const struct record *records, size_t n)
{
    size_t leaves = 1, count = 0;
    double rate = strategy_rate(limit), most = 0;
    for (size_t i = 0; i < n; i++) {
        count += records[i].allowed;
    }
    while (leaves < count) {
        leaves *= 2;
    }
    struct node *nodes = bench_alloc(2 * leaves * sizeof *nodes);
    struct admission *admissions = bench_alloc((count + 1) * sizeof *admissions);
    for (size_t i = 0; i < 2 * leaves; i++) {
        nodes[i] = (struct node){0, -INFINITY};
    }
    for (size_t i = 0, place = 0; i < n; i++) {
        if (records[i].allowed) {
            admissions[place] = (struct admission){records[i].asked_ns, answered(&records[i]), place};
            place++;
        }
    }
    qsort(admissions, count, sizeof *admissions, by_verdict);
    for (size_t i = 0; i < count; i++) {
        size_t at = leaves + admissions[i].place;
        nodes[at] = (struct node){1, rate * (double)admissions[i].asked_ns + 1};
        while (at /= 2) {
            combine(nodes, at);
        }
        most = fmax(most, nodes[1].best - rate * (double)admissions[i].answered_ns);
    }
    free(admissions);
    free(nodes);
    return fmax(0, most - (double)limit->burst);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static double refilled(const struct strategy_limit *limit, double level, uint64_t from, uint64_t to)
{
    return fmin((double)limit->burst, level + (double)(to - from) * strategy_rate(limit));
}

static double perfect_of(const struct strategy_limit *limit, const struct record *records, size_t n)
{
    double level = (double)limit->burst, sum = 0;
    for (size_t i = 0; i < n; i++) {
        level = refilled(limit, level, records[i > 0 ? i - 1 : 0].asked_ns, records[i].asked_ns);
        if (level >= 1) {
            level--;
            sum++;
        }
    }
    return sum;
}

static double seen_overshoot(const struct strategy_limit *limit, const struct record *records, size_t n)
{
    struct record *sorted = bench_alloc((n + 1) * sizeof *sorted);
    struct overshoot over;
    memcpy(sorted, records, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_answered);
    overshoot_init(&over, limit->tokens, limit->per_ns, limit->burst);
    for (size_t i = 0; i < n; i++) {
        if (sorted[i].allowed) {
            overshoot_add(&over, answered(&sorted[i]), 1);
        }
    }
    free(sorted);
    return overshoot_tokens(&over);
}

/* Each admission is charged when it was asked for, the earliest that it can have been; a denial must leave room for
 * those that were asked for before its verdict. */
static double false_denials(const struct strategy_limit *limit, const struct record *records, size_t n)
{
    double level = (double)limit->burst, sum = 0;
    for (size_t i = 0; i < n; i++) {
        level = refilled(limit, level, records[i > 0 ? i - 1 : 0].asked_ns, records[i].asked_ns);
        double needed = 1;
        for (size_t j = i + 1; !records[i].allowed && j < n && records[j].asked_ns <= answered(&records[i]); j++) {
            needed += records[j].allowed;
        }
        int is_false = !records[i].allowed && level >= needed;
        sum += is_false;
        level -= records[i].allowed || is_false;
    }
    return sum;
}

void account_add(struct account *account, const struct strategy_limit *limit, struct record *records, size_t n)
{
    qsort(records, n, sizeof *records, by_asked);
    for (size_t i = 0; i < n; i++) {
        account->asked++;
        account->admitted += records[i].allowed;
        account->degraded += records[i].degraded;
    }
    account->perfect += perfect_of(limit, records, n);
    account->overshoot = fmax(account->overshoot, sure_overshoot(limit, records, n));
    account->seen = fmax(account->seen, seen_overshoot(limit, records, n));
    account->false_denied += false_denials(limit, records, n);
}

void account_add_keys(struct account *account, const struct strategy_limit *limit, struct record *records, size_t n)
{
    qsort(records, n, sizeof *records, by_key);
    for (size_t from = 0, to; from < n; from = to) {
        to = from;
        while (to < n && records[to].key == records[from].key) {
            to++;
        }
        account_add(account, limit, records + from, to - from);
    }
}
