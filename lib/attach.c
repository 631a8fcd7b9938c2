/* SPDX-License-Identifier: MIT */
/*
 * The seam, the rest: attaching and detaching a sync, verdicts on its behalf, log and memory. Must not know what a
 * report is.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/dirty.h"
#include "lib/hybrid.h"
#include "lib/seam.h"
#include "lib/stats.h"
#include "lib/take.h"
#include "lib/workers.h"

#define LOG_LINE 512 /* bytes of a line, its end included */

/* ---- coming and going -------------------------------------------------------------------------------------------- */

static void settle_all(struct weir *w)
{
    uint64_t now = weir_now(w);

    for (uint32_t slot = 0; slot < w->slots; slot++)
        if (weir__load_relaxed(&w->hot[slot].id[0]) != 0)
            weir__hybrid_settle(w, &w->hot[slot], now);
}

void weir__attach_join(struct weir *w)
{
    void (*join)(void *ctx) = w->join;

    w->join = NULL;
    if (join)
        join(w->join_ctx);
}

/* seq_cst: before the walk of settle_all; an entry that somebody made WEIR__LOCAL before he saw this, and showed after
 * the walk, is put right by its next taker. False: it was so already. */
static bool set_attached(struct weir *w)
{
    uint32_t none = 0;

    return atomic_compare_exchange_strong_explicit(&w->state->attached, &none, 1, memory_order_seq_cst,
                                                   memory_order_relaxed);
}

void weir__attach_again(struct weir *w)
{
    if (set_attached(w))
        settle_all(w);
}

static int attach(struct weir *w, const struct weir__hooks *hooks)
{
    int error;

    weir__attach_join(w);
    error = weir__gate_close_on_fork(w);
    if (error)
        return error;
    w->join = hooks->join;
    w->join_ctx = hooks->ctx;
    atomic_store_explicit(&w->hooks, hooks, memory_order_seq_cst);
    return 0;
}

/* Each process that shares a limiter attaches its own sync; that there is one they have in common. */
static int attach_worker(struct weir *w, const struct weir__hooks *hooks)
{
    int error;

    if (atomic_load_explicit(&w->hooks, memory_order_seq_cst))
        return WEIR_E_BUSY;
    error = weir__workers_join(w);
    if (error)
        return error;
    error = attach(w, hooks);
    if (error)
        weir__workers_leave(w);
    else
        weir__attach_again(w);
    return error;
}

int weir__seam_attach(struct weir *w, const struct weir__hooks *hooks)
{
    int error;

    if (w->state->shared)
        return attach_worker(w, hooks);
    if (!set_attached(w))
        return WEIR_E_BUSY;
    error = attach(w, hooks);
    if (error)
        atomic_store_explicit(&w->state->attached, 0, memory_order_seq_cst);
    else
        settle_all(w);
    return error;
}

/* Nobody will ever look at these marks again, and a marked entry is never dropped. */
static void drop_marks(struct weir *w)
{
    size_t words = weir__dirty_words(w);
    uint32_t list = w->state->urgent_rest;

    for (size_t word = 0; word < words; word++)
        for (uint64_t mask = weir__dirty_take(w, word, UINT64_MAX); mask; mask &= mask - 1)
            weir__dirty_clear(&w->hot[word * 64 + (unsigned)__builtin_ctzll(mask)]);
    w->state->urgent_rest = 0;
    for (int lists = 0; lists < 2; lists++, list = weir__urgent_drain(w))
        while (list)
            (void)weir__urgent_pop(w, &list);
}

void weir__seam_leave(struct weir *w)
{
    unsigned turns = 0;

    /* seq_cst, both: a call has counted itself in before it looked for hooks, so it is counted here or finds none.
     * (acquire, too: what it did inside comes before what follows) */
    atomic_store_explicit(&w->hooks, NULL, memory_order_seq_cst);
    while (atomic_load_explicit(&w->hooks_inside, memory_order_seq_cst) != 0)
        weir__backoff(&turns);
    if (w->state->shared)
        weir__workers_leave(w);
}

void weir__seam_detach(struct weir *w)
{
    uint32_t policies = weir__load_acquire(&w->state->policies);

    weir__seam_leave(w);
    atomic_store_explicit(&w->state->attached, 0, memory_order_seq_cst);
    for (weir_policy_id id = 0; id < policies; id++) {
        weir__seam_fresh_until(w, id, 0);
        weir__seam_overdraft(w, id, 0, 0, 0);
    }
    for (uint32_t slot = 0; slot < w->slots; slot++)
        if (weir__load_relaxed(&w->hot[slot].reported))
            weir__seam_release(w, slot, 0, 0);
    settle_all(w);
    drop_marks(w);
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */

static int finish(const struct weir__ask *ask, int verdict, struct weir_result *result)
{
    result->policy = ask->policy;
    result->limiter = ask->w;
    if (verdict == WEIR_DENY && weir__load_relaxed(&ask->p->shadow)) {
        result->flags |= WEIR_SHADOW;
        verdict = WEIR_ALLOW;
    }
    weir__stats_count(ask->w, ask->policy, verdict);
    return verdict;
}

int weir__seam_try(struct weir *w, const struct weir_request *request, struct weir_result *result)
{
    uint64_t now = weir_now(w), x;
    struct weir_result own;
    struct weir__ask ask;
    unsigned turns = 0;
    int verdict = weir__take_check_tokens(w, request->policy, request->key, request->key_len, request->cost, &ask);

    if (verdict)
        return verdict;
    if (!result)
        result = &own;
    do {
        struct weir__hot *e;
        int mode = weir__load_acquire(&ask.p->mode);

        if (mode == WEIR_STRICT)
            return WEIR__SEAM_ASK;
        if (mode == WEIR_LOCAL || request->cost == 0)
            return weir__take_memory(&ask, now, request->cost, result);
        e = weir__table_obtain(w, ask.policy, ask.key, ask.key_len, ask.id, now, &x);
        if (!e)
            return WEIR__SEAM_ASK;
        verdict = weir__hybrid_try(w, e, x, ask.id, ask.policy, now, request->cost, result);
        weir__backoff(&turns);
    } while (verdict == WEIR__REKEYED);
    return verdict == WEIR__SEAM_ASK ? verdict : finish(&ask, verdict, result);
}

void weir__seam_count(struct weir *w, weir_policy_id id, int status)
{
    if (status != WEIR_ALLOW && status != WEIR_DENY)
        return;
    weir__stats_count(w, id, status);
    atomic_fetch_add_explicit(&w->policies[id].by_redis[status], 1, memory_order_relaxed);
}

/* Of a strict policy, a cost from 1 to its burst. Or WEIR__REKEYED: not for here. */
static int take_share(const struct weir__ask *ask, uint64_t now, int64_t cost, double fleet, struct weir_result *result)
{
    unsigned turns = 0;
    uint64_t x;

    while (weir__load_acquire(&ask->p->mode) == WEIR_STRICT) {
        struct weir__hot *e = weir__table_obtain(ask->w, ask->policy, ask->key, ask->key_len, ask->id, now, &x);
        int verdict;

        if (!e)
            break;
        verdict = weir__hybrid_outage(ask->w, e, x, ask->id, ask->policy, now, cost, fleet, NULL, result);
        if (verdict != WEIR__REKEYED)
            return verdict;
        weir__backoff(&turns);
    }
    return WEIR__REKEYED;
}

int weir__seam_outage_take(struct weir *w, const struct weir_request *request, double fleet, struct weir_result *result)
{
    struct weir__ask ask;
    int error = weir__take_check_tokens(w, request->policy, request->key, request->key_len, request->cost, &ask);
    uint64_t now = weir_now(w);

    if (error)
        return error;
    if (fleet >= 0 && request->cost > 0 && (uint64_t)request->cost <= weir__load_relaxed(&ask.p->burst)) {
        int verdict = take_share(&ask, now, request->cost, fleet, result);

        if (verdict != WEIR__REKEYED)
            return finish(&ask, verdict, result);
    }
    return weir__take_memory(&ask, now, request->cost, result);
}

/* ---- log and memory ---------------------------------------------------------------------------------------------- */

void weir__seam_log(struct weir *w, enum weir_log_level level, const char *format, ...)
{
    char line[LOG_LINE];
    va_list args;

    if (!w->log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    w->log(w->log_arg, level, line);
}

void *weir__seam_alloc(struct weir *w, size_t size)
{
    return weir__limiter_alloc(w, size);
}

void weir__seam_free(struct weir *w, void *memory, size_t size)
{
    weir__limiter_free(w, memory, size);
}

static void *take_memory(void *arg, size_t size)
{
    (void)arg;
    return malloc(size);
}

static void give_memory(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    free(memory);
}

struct weir_allocator weir__seam_allocator(const struct weir *w)
{
    return w->allocator.alloc ? w->allocator : (struct weir_allocator){.alloc = take_memory, .release = give_memory};
}
