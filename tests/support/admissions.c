/* SPDX-License-Identifier: MIT */
/*
 * The smallest burst that explains a log.
 */
#include "support/admissions.h"

#include <check.h>
#include <stdlib.h>

static int by_call(const void *a, const void *b)
{
    const struct admission *x = a, *y = b;

    return x->called < y->called ? -1 : x->called > y->called;
}

static int by_return(const void *a, const void *b)
{
    const struct admission *x = *(const struct admission *const *)a, *y = *(const struct admission *const *)b;

    return x->returned < y->returned ? -1 : x->returned > y->returned;
}

/* A tree over the admissions in order of their calls: the largest value among them, and adding to all up to one. */
struct tree {
    size_t leaves;
    int64_t *most, *added;
};

static void tree_add(struct tree *t, size_t node, size_t from, size_t to, size_t last, int64_t more)
{
    size_t middle = (from + to) / 2;

    if (to - 1 <= last) {
        t->most[node] += more;
        t->added[node] += more;
        return;
    }
    tree_add(t, 2 * node, from, middle, last, more);
    if (middle <= last)
        tree_add(t, 2 * node + 1, middle, to, last, more);
    t->most[node] = t->most[2 * node] > t->most[2 * node + 1] ? t->most[2 * node] : t->most[2 * node + 1];
    t->most[node] += t->added[node];
}

int64_t admissions_burst(struct admission *log, size_t n, uint64_t limit, uint64_t per_ns)
{
    const int64_t absent = INT64_MAX / 4; /* a window that begins with a call that has not returned */
    struct admission **returns = malloc(n * sizeof *returns);
    struct tree t = {.leaves = 1};
    int64_t worst = 0;

    qsort(log, n, sizeof *log, by_call);
    while (t.leaves < n)
        t.leaves *= 2;
    t.most = calloc(2 * t.leaves, sizeof *t.most);
    t.added = calloc(2 * t.leaves, sizeof *t.added);
    ck_assert(returns && t.most && t.added);
    for (size_t i = 0; i < t.leaves; i++)
        t.most[t.leaves + i] = i < n ? (int64_t)((log[i].called - log[0].called) * limit) - absent : -absent;
    for (size_t i = t.leaves - 1; i > 0; i--)
        t.most[i] = t.most[2 * i] > t.most[2 * i + 1] ? t.most[2 * i] : t.most[2 * i + 1];
    for (size_t i = 0; i < n; i++)
        returns[i] = &log[i];
    qsort(returns, n, sizeof *returns, by_return);
    for (size_t i = 0; i < n; i++) {
        int64_t earned = (int64_t)((returns[i]->returned - log[0].called) * limit);
        size_t leaf = (size_t)(returns[i] - log);

        tree_add(&t, 1, 0, t.leaves, leaf, (int64_t)(returns[i]->cost * per_ns) + absent);
        if (leaf > 0)
            tree_add(&t, 1, 0, t.leaves, leaf - 1, -absent);
        if (t.most[1] - earned > worst)
            worst = t.most[1] - earned;
    }
    free(returns);
    free(t.most);
    free(t.added);
    return worst;
}
