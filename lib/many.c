/* SPDX-License-Identifier: MIT */
/*
 * weir_take_many: hash all keys of a block and fetch their lines, then decide. Owns the order of memory accesses alone.
 */
#include "lib/take.h"

#define BLOCK 32
#define STRICT_BLOCK 128 /* requests a call of the hook */

#define LEFT (-1001) /* a status: strict, not yet asked */

struct block {
    struct weir__ask ask[BLOCK];
    bool skip[BLOCK]; /* refused, or strict */
};

static bool is_strict(const struct weir__ask *ask)
{
    return weir__load_acquire(&ask->p->mode) == WEIR_STRICT;
}

/* Checks and hashes; returns the number of strict requests. */
static size_t prepare(struct weir *w, struct weir_request *requests, size_t n, struct block *block, int *error)
{
    size_t strict = 0;

    for (size_t i = 0; i < n; i++) {
        struct weir_request *r = &requests[i];

        r->status = weir__take_check(w, r->policy, r->key, r->key_len, &block->ask[i]);
        if (r->status == 0 && r->cost < 0)
            r->status = WEIR_E_COST;
        block->skip[i] = r->status != 0;
        if (r->status != 0) {
            *error = *error ? *error : r->status;
            continue;
        }
        if (is_strict(&block->ask[i])) {
            block->skip[i] = true;
            r->status = LEFT;
            strict++;
            continue;
        }
        __builtin_prefetch(weir__table_first(w, block->ask[i].id[0]), 1, 3);
        __builtin_prefetch(&w->tags[weir__table_set(w, block->ask[i].id[0])], 0, 3);
    }
    return strict;
}

static void decide_block(struct weir *w, struct weir_request *requests, size_t n, const struct block *block,
                         uint64_t now)
{
    /* A key that isn't where it is looked for first: by now its tag line has come. */
    for (size_t i = 0; i < n; i++) {
        if (!block->skip[i])
            weir__table_prefetch(w, block->ask[i].id);
    }
    for (size_t i = 0; i < n; i++) {
        struct weir_request *r = &requests[i];
        const struct weir__ask *ask = &block->ask[i];

        if (block->skip[i])
            continue;
        if (weir__take_is_fast(ask->p, r->cost))
            r->status = weir__take_fast(ask, now, r->cost, r->result);
        else
            r->status = weir__take_memory(ask, now, r->cost, r->result);
    }
}

/* One call of the hook; without one, each by itself: its outage policy answers. */
static void ask_strict(struct weir *w, struct weir_request *requests, size_t n)
{
    const struct weir__hooks *hooks = weir__hooks_enter(w);
    int error = 0;

    if (hooks) {
        error = hooks->strict(hooks->ctx, requests, n, 0);
        weir__hooks_leave(w);
    }
    for (size_t i = 0; i < n && (!hooks || error); i++) {
        struct weir_request *r = &requests[i];

        r->status = hooks ? error : weir_take(w, r->policy, r->key, r->key_len, r->cost, r->result);
    }
}

/* Strict requests on their way to one call of the hook. */
struct batch {
    struct weir_request some[STRICT_BLOCK];
    struct weir_request *from[STRICT_BLOCK];
    size_t have;
};

static void flush(struct weir *w, struct batch *batch)
{
    if (batch->have > 0)
        ask_strict(w, batch->some, batch->have);
    for (size_t i = 0; i < batch->have; i++)
        batch->from[i]->status = batch->some[i].status;
    batch->have = 0;
}

/* Those that `prepare` left, together; looks (cost 0) one by one, in their place. */
static void take_strict(struct weir *w, struct weir_request *requests, size_t n)
{
    struct batch batch;

    batch.have = 0;
    for (struct weir_request *r = requests; r < requests + n; r++) {
        if (r->status != LEFT)
            continue;
        if (batch.have == STRICT_BLOCK || r->cost == 0)
            flush(w, &batch);
        if (r->cost == 0) {
            r->status = weir_take(w, r->policy, r->key, r->key_len, 0, r->result);
        } else {
            batch.from[batch.have] = r;
            batch.some[batch.have] = *r;
            batch.some[batch.have++].status = 0;
        }
    }
    flush(w, &batch);
}

int weir_take_many(struct weir *w, struct weir_request *requests, size_t n, uint64_t now_ns)
{
    struct block block;
    size_t strict = 0, m;
    int error = 0;

    if (!w || (!requests && n > 0))
        return WEIR_E_INVAL;
    for (size_t first = 0; first < n; first += m) {
        m = n - first < BLOCK ? n - first : BLOCK;
        strict += prepare(w, requests + first, m, &block, &error);
        decide_block(w, requests + first, m, &block, now_ns ? now_ns : weir__limiter_now(w));
    }
    if (strict > 0)
        take_strict(w, requests, n);
    return error;
}
