/* SPDX-License-Identifier: MIT */
/*
 * weir_take_all: every request is charged, or none. Owns the order: local members are looked at, then memory is
 * charged, then Redis asked; on a denial what was charged is put back. Must not know bucket arithmetic.
 */
#include "lib/take.h"

#include <string.h>

#define ALL_MAX 64

struct all {
    struct weir *w;
    struct weir_request *requests;
    size_t n;
    uint64_t now;
    struct weir__ask ask[ALL_MAX];
    struct weir_result result[ALL_MAX];
    int verdict[ALL_MAX];     /* WEIR_ALLOW, WEIR_DENY, an error */
    int64_t charged[ALL_MAX]; /* tokens to put back */
};

static uint8_t mode_of(const struct all *all, size_t i)
{
    return weir__load_acquire(&all->ask[i].p->mode);
}

static int check(struct all *all)
{
    int error = 0;

    for (size_t i = 0; i < all->n; i++) {
        struct weir_request *r = &all->requests[i];

        r->status = weir__take_check(all->w, r->policy, r->key, r->key_len, &all->ask[i]);
        if (r->status == 0 && r->cost < 0)
            r->status = WEIR_E_COST;
        if (r->status != 0 && error == 0)
            error = r->status;
    }
    return error;
}

/* What the first n members ask of the bucket of member i: it may be named more than once. */
static int64_t asked_of(const struct all *all, size_t i, size_t n)
{
    const struct weir__ask *ask = &all->ask[i];
    int64_t sum = 0;

    for (size_t j = 0; j < n; j++) {
        const uint64_t *id = all->ask[j].id;
        int64_t cost = all->requests[j].cost;

        if (id[0] == ask->id[0] && id[1] == ask->id[1] && all->ask[j].policy == ask->policy)
            sum = cost > INT64_MAX - sum ? INT64_MAX : sum + cost;
    }
    return sum;
}

/* Looks at a member, charging nothing: would it pass after those before it? */
static void look(struct all *all, size_t i)
{
    int64_t cost = all->requests[i].cost > 0 ? asked_of(all, i, i + 1) : 0;

    all->verdict[i] = weir__take_look(&all->ask[i], all->now, cost, &all->result[i]);
}

static void put_back(struct all *all)
{
    for (size_t i = 0; i < all->n; i++) {
        if (all->charged[i])
            weir__take_undo(&all->ask[i], all->now, all->charged[i]);
        all->charged[i] = 0;
    }
}

/* All members of memory, and with them those that are strict where no Redis is there to ask. False: one denied, and
 * nothing is charged. */
static bool charge(struct all *all, bool strict)
{
    bool allowed = true;

    for (size_t i = 0; i < all->n; i++) {
        if ((mode_of(all, i) == WEIR_STRICT) != strict)
            continue;
        if (!allowed && mode_of(all, i) != WEIR_STRICT) {
            look(all, i); /* for the longest wait */
        } else if (allowed) {
            all->verdict[i] =
                weir__take_charge(&all->ask[i], all->now, all->requests[i].cost, &all->charged[i], &all->result[i]);
            allowed = all->verdict[i] == WEIR_ALLOW;
        }
    }
    if (!allowed)
        put_back(all);
    return allowed;
}

/* The strict members in one question. Returns WEIR_ALLOW, WEIR_DENY or an error. */
static int ask_redis(struct all *all, struct weir_result *result)
{
    struct weir_request some[ALL_MAX];
    size_t from[ALL_MAX], have = 0;
    const struct weir__hooks *hooks;
    int verdict;

    for (size_t i = 0; i < all->n; i++) {
        if (mode_of(all, i) != WEIR_STRICT)
            continue;
        from[have] = i;
        some[have] = all->requests[i];
        some[have++].result = &all->result[i];
    }
    if (have == 0)
        return WEIR_ALLOW;
    hooks = weir__hooks_enter(all->w);
    if (!hooks)
        return charge(all, true) ? WEIR_ALLOW : WEIR_DENY;
    verdict = hooks->strict_all(hooks->ctx, some, have, result);
    weir__hooks_leave(all->w);
    for (size_t j = 0; j < have; j++)
        all->verdict[from[j]] = verdict < 0 ? verdict : some[j].status;
    return verdict;
}

/* No wait helps where members of one bucket together ask for more than its burst. */
static void find_hopeless(struct all *all)
{
    for (size_t i = 0; i < all->n; i++) {
        struct weir_result *r = &all->result[i];

        if (all->verdict[i] == WEIR_DENY && r->limit > 0 && (uint64_t)asked_of(all, i, all->n) > r->limit)
            r->retry_after_ns = WEIR_NEVER;
    }
}

/* The one that denied, with the longest wait (a shadow policy's is nobody's); or the one that has least left. */
static void sum_up(const struct all *all, int verdict, struct weir_result *result)
{
    uint64_t longest = 0;
    size_t which = all->n;

    for (size_t i = 0; i < all->n; i++) {
        if (verdict == WEIR_DENY && all->verdict[i] != WEIR_DENY)
            continue;
        if (all->result[i].retry_after_ns > longest)
            longest = all->result[i].retry_after_ns;
        if (which == all->n || (verdict == WEIR_ALLOW && all->result[i].remaining < all->result[which].remaining))
            which = i;
    }
    if (which == all->n)
        return;
    *result = all->result[which];
    result->retry_after_ns = verdict == WEIR_DENY ? longest : 0;
}

/* Strict members that Redis decided were counted by the hook. */
static void count(const struct all *all, int verdict, bool redis)
{
    for (size_t i = 0; i < all->n; i++) {
        if ((redis && mode_of(all, i) == WEIR_STRICT) || all->requests[i].cost == 0)
            continue;
        if (verdict == WEIR_ALLOW || all->verdict[i] == WEIR_DENY)
            weir__stats_count(all->w, all->ask[i].policy, verdict);
    }
}

static int decide(struct all *all, struct weir_result *result)
{
    struct weir_result asked;
    int verdict = WEIR_ALLOW;
    bool redis = false;

    /* Most denials are seen here, before anything was charged that another thread might miss. */
    for (size_t i = 0; i < all->n; i++) {
        if (mode_of(all, i) == WEIR_LOCAL)
            look(all, i);
        if (all->verdict[i] == WEIR_DENY)
            verdict = WEIR_DENY;
    }
    if (verdict == WEIR_ALLOW && !charge(all, false))
        verdict = WEIR_DENY;
    memset(&asked, 0, sizeof asked);
    if (verdict == WEIR_ALLOW) {
        redis = weir__load_acquire(&all->w->hooks) != NULL;
        verdict = ask_redis(all, &asked);
        if (verdict != WEIR_ALLOW)
            put_back(all);
    }
    if (verdict < 0)
        return verdict;
    if (verdict == WEIR_DENY)
        find_hopeless(all);
    sum_up(all, verdict, result);
    if (asked.retry_after_ns > result->retry_after_ns)
        *result = asked;
    count(all, verdict, redis);
    return verdict;
}

int weir_take_all(struct weir *w, struct weir_request *requests, size_t n, struct weir_result *result)
{
    struct weir_result own;
    struct all all;
    int verdict;

    if (!w || !requests || n == 0)
        return WEIR_E_INVAL;
    if (n > ALL_MAX)
        return WEIR_E_RANGE;
    memset(&own, 0, sizeof own);
    all.w = w;
    all.requests = requests;
    all.n = n;
    memset(all.result, 0, n * sizeof *all.result);
    memset(all.verdict, 0, n * sizeof *all.verdict);
    memset(all.charged, 0, n * sizeof *all.charged);
    verdict = check(&all);
    if (verdict < 0)
        return verdict;
    all.now = weir__limiter_now(w);
    verdict = decide(&all, &own);
    for (size_t i = 0; i < n; i++) {
        requests[i].status = verdict < 0 ? verdict : all.verdict[i];
        if (requests[i].result && verdict >= 0)
            *requests[i].result = all.result[i];
    }
    if (result && verdict >= 0)
        *result = own;
    return verdict;
}
