/* SPDX-License-Identifier: MIT */
/*
 * weir_open, weir_close, weir_now: one region laid out for all of a limiter, and a page that fork wipes. Owns where
 * things lie; must not know how they are used.
 */
#include "lib/limiter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/arena.h"
#include "lib/lease.h"
#include "lib/options.h"
#include "lib/table.h"

#define LINE 64u
#define ARENA_BLOCKS_MIN 4096u /* a few keys of 65,535 bytes, in the smallest table */

/* What weir__seam_store promises. Resident only where it was written to. */
#define STORE_FIXED ((size_t)24 << 20)
#define STORE_A_SLOT 128u

/* Offsets from the region's start. */
struct layout {
    uint64_t sets;
    uint32_t slots, blocks;
    size_t policies, counts, tags, hot, dirty, cold, slice, arena, store, end;
    size_t fault_to, table_end;
};

static size_t place(size_t *at, size_t size, size_t align)
{
    size_t start = (*at + align - 1) / align * align;

    *at = start + size;
    return start;
}

/* max_keys is at most 2^31: nothing overflows 64 bits. */
static int lay_out(uint64_t max_keys, int shared, struct layout *l)
{
    size_t at = sizeof(struct weir__state), page = weir__memory_page();
    uint64_t sets = weir__table_sets(max_keys), slots = sets * WEIR__WAYS;

    if (sizeof(size_t) < 8 || slots >= UINT32_MAX)
        return WEIR_E_RANGE;
    l->sets = sets;
    l->slots = (uint32_t)slots;
    l->blocks = l->slots < ARENA_BLOCKS_MIN ? ARENA_BLOCKS_MIN : l->slots;
    /* from the start, so that huge pages hold all of what takes touch at random */
    l->tags = place(&at, sets * sizeof(struct weir__tags), LINE);
    l->hot = place(&at, slots * sizeof(struct weir__hot), LINE);
    l->dirty = place(&at, (slots + 63) / 64 * sizeof(uint64_t), LINE);
    l->cold = place(&at, slots * sizeof(struct weir__cold), LINE);
    l->fault_to = at;
    l->policies = place(&at, WEIR__POLICY_MAX * sizeof(struct weir__policy_state), page);
    l->counts = place(&at, WEIR__STRIPES * WEIR__POLICY_MAX * sizeof(struct weir__count), LINE);
    l->table_end = at;
    l->slice = place(&at, slots * sizeof(struct weir__slice), page);
    l->arena = place(&at, weir__arena_bytes(l->blocks), page);
    l->store = place(&at, shared ? STORE_FIXED + slots * STORE_A_SLOT : 0, page);
    l->end = at;
    return 0;
}

static void point(struct weir *w, const struct layout *l)
{
    char *base = w->region.base;

    w->state = (struct weir__state *)(void *)base;
    w->policies = (struct weir__policy_state *)(void *)(base + l->policies);
    w->counts = (struct weir__count *)(void *)(base + l->counts);
    w->tags = (struct weir__tags *)(void *)(base + l->tags);
    w->hot = (struct weir__hot *)(void *)(base + l->hot);
    w->dirty = (_Atomic uint64_t *)(void *)(base + l->dirty);
    w->cold = (struct weir__cold *)(void *)(base + l->cold);
    w->slice = (struct weir__slice *)(void *)(base + l->slice);
    w->arena = (struct weir__arena *)(void *)(base + l->arena);
    w->store = l->end > l->store ? base + l->store : NULL;
    w->store_bytes = l->end - l->store;
    w->sets = l->sets;
    w->slots = l->slots;
    w->table_bytes = l->table_end;
}

static int random_bytes(void *out, size_t n)
{
    unsigned char *bytes = out;
    ssize_t got;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return WEIR_E_SYS;
    for (; n > 0; n -= (size_t)got, bytes += got) {
        got = read(fd, bytes, n);
        if (got <= 0)
            break;
    }
    close(fd);
    return n == 0 ? 0 : WEIR_E_SYS;
}

static int init_state(struct weir *w, const struct weir_options *options, const struct layout *l)
{
    struct weir__state *s = w->state;
    int error = random_bytes(s->secret, sizeof s->secret);

    if (error)
        return error;
    s->sets = l->sets;
    s->slots = l->slots;
    s->max_keys = options->max_keys;
    s->region_bytes = w->region.size;
    s->shared = options->shared != 0;
    weir__identity_init(&w->identity, s->secret, weir__identity_has_aes());
    error = weir__lock_init(&s->policy_lock, options->shared);
    if (error)
        return error;
    error = weir__lock_init(&s->walk_lock, options->shared);
    if (error)
        goto deinit_policy_lock;
    error = weir__lock_init(&s->recover_lock, options->shared);
    if (error)
        goto deinit_walk_lock;
    error = weir__lock_init(&s->lead_lock, options->shared);
    if (error)
        goto deinit_recover_lock;
    error = weir__arena_init(w->arena, l->blocks, options->shared);
    if (error)
        goto deinit_lead_lock;
    return 0;

deinit_lead_lock:
    weir__lock_deinit(&s->lead_lock);
deinit_recover_lock:
    weir__lock_deinit(&s->recover_lock);
deinit_walk_lock:
    weir__lock_deinit(&s->walk_lock);
deinit_policy_lock:
    weir__lock_deinit(&s->policy_lock);
    return error;
}

static void deinit_state(struct weir *w)
{
    weir__arena_deinit(w->arena);
    weir__lock_deinit(&w->state->lead_lock);
    weir__lock_deinit(&w->state->recover_lock);
    weir__lock_deinit(&w->state->walk_lock);
    weir__lock_deinit(&w->state->policy_lock);
}

static int open_self(struct weir **out, const struct weir_options *options)
{
    struct weir__memory self;
    struct weir *w;
    int error = weir__memory_get(&self, &options->allocator, sizeof *w, LINE, 0);

    if (error)
        return error;
    w = self.base;
    w->self = self;
    w->allocator = options->allocator;
    w->now_ns = options->now_ns;
    w->now_arg = options->now_arg;
    w->on_full = options->on_full;
    w->log = options->log;
    w->log_arg = options->log_arg;
    w->private_counts = options->shared ? 0 : (WEIR__STRIPES - 1) * WEIR__STRIPE_BYTES;
    *out = w;
    return 0;
}

static void close_self(struct weir *w)
{
    struct weir__memory self = w->self;
    struct weir_allocator allocator = w->allocator;

    weir__memory_put(&self, &allocator);
}

int weir_open(struct weir **out, const struct weir_options *options)
{
    struct weir_options read;
    struct layout layout;
    struct weir *w;
    int error;

    if (!out)
        return WEIR_E_INVAL;
    *out = NULL;
    error = weir__options_read(options, &read);
    /* Without a 16-byte CAS the lock bit is taken by every take, and who died with it can't be told. */
    if (!error && read.shared && !WEIR__CAS16_NATIVE)
        error = WEIR_E_NOSUP;
    if (!error)
        error = lay_out(read.max_keys, read.shared, &layout);
    if (error)
        return error;
    error = open_self(&w, &read);
    if (error)
        return error;
    error = weir__memory_get(&w->gate_page, &read.allocator, weir__memory_page(), weir__memory_page(), 0);
    if (error)
        goto close_self;
    error = weir__memory_get(&w->region, &read.allocator, layout.end, weir__memory_page(), read.shared);
    if (error)
        goto put_gate;
    if (w->region.mapped)
        weir__memory_fault_in(w->region.base, layout.fault_to);
    point(w, &layout);
    error = init_state(w, &read, &layout);
    if (error)
        goto put_region;
    w->gate = w->gate_page.base;
    weir__clock_init(&w->gate->clock, !read.now_ns && read.clock == WEIR_CLOCK_AUTO);
    weir__store_relaxed(&w->gate->changes, 2); /* 0: wiped; 1: a handle's, for never */
    weir__store_relaxed(&w->gate->stripes, w->private_counts);
    weir__store_release(&w->gate->alive, 1);
    if (!read.shared)
        weir__lease_prepare();
    *out = w;
    return 0;

put_region:
    weir__memory_put(&w->region, &read.allocator);
put_gate:
    weir__memory_put(&w->gate_page, &read.allocator);
close_self:
    close_self(w);
    return error;
}

void weir_close(struct weir *w)
{
    if (!w)
        return;
    if (weir__load_acquire(&w->gate->alive)) /* a child of fork has no such thread */
        weir__attach_join(w);
    weir__lease_end_limiter(w);
    /* The locks of a shared limiter live on in the processes that still have it. */
    if (!w->state->shared)
        deinit_state(w);
    weir__memory_put(&w->region, &w->allocator);
    weir__memory_wipe_on_fork(w->gate_page.base, w->gate_page.size, 0);
    weir__memory_put(&w->gate_page, &w->allocator);
    close_self(w);
}

void *weir__limiter_alloc(struct weir *w, size_t size)
{
    return w->allocator.alloc ? w->allocator.alloc(w->allocator.arg, size) : malloc(size);
}

void weir__limiter_free(struct weir *w, void *memory, size_t size)
{
    if (!memory)
        return;
    if (w->allocator.release)
        w->allocator.release(w->allocator.arg, memory, size);
    else
        free(memory);
}

int weir__gate_close_on_fork(struct weir *w)
{
    return weir__memory_wipe_on_fork(w->gate_page.base, w->gate_page.size, 1) ? WEIR_E_SYS : 0;
}

uint64_t weir_now(const struct weir *w)
{
    return weir__limiter_now(w);
}
