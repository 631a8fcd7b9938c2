/* SPDX-License-Identifier: MIT */
/*
 * The table of entries. How it stays consistent is in the header; what each step orders in docs/memory-model.md.
 */
#include "lib/table.h"

#include <string.h>

#include "lib/arena.h"
#include "lib/hybrid.h"
#include "lib/intent.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#define WAYS_MASK ((1u << WEIR__WAYS) - 1)
#define OVERFLOW_BIT (UINT64_C(1) << 63) /* of word[1]: byte 15, sticky */
#define VERSION_STEP (UINT64_C(1) << 56) /* the other seven bits of byte 15 */
#define VERSION_MASK (UINT64_C(0x7f) << 56)
#define CHOICES 8u     /* sets that a key may live in: so many full ones at load 0.7 are one key in 100 million */
#define SWEEP_STEP 4u  /* slots swept along with each new key, where the table fills up */
#define SWEEP_FULL 60u /* ... and before one is refused */

/* What a look at a set found. */
struct probe {
    uint64_t set;
    uint64_t word[2]; /* the tag line as it was */
    struct weir__hot *e;
    uint64_t x;
    bool busy; /* an entry with that tag is being made or re-keyed: look again */
};

/* A key's sets, as looked at one after the other. */
struct path {
    struct probe probe[CHOICES];
    unsigned sets;
};

/* An entry won for a new key: its tag is in place, id[0] is 0. */
struct claim {
    struct weir__hot *e;
    unsigned way;
    bool evicted; /* another key was dropped for it: x is locked, the number of keys stays */
};

enum claimed { CLAIMED, CLAIM_NO_ROOM, CLAIM_AGAIN };

uint64_t weir__table_sets(uint64_t max_keys)
{
    return (max_keys * 2 + 20) / 21 + 1; /* 15 ways * 0.7 = 21 / 2 */
}

static uint8_t tag_at(const uint64_t word[2], unsigned way)
{
    return (uint8_t)(word[way >> 3] >> (8 * (way & 7)));
}

/* Ways whose tag is `tag`, as a mask. */
static inline unsigned match(const uint64_t word[2], uint8_t tag)
{
#if defined(__SSE2__)
    __m128i line = _mm_set_epi64x((long long)word[1], (long long)word[0]);

    return (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(line, _mm_set1_epi8((char)tag))) & WAYS_MASK;
#elif defined(__ARM_NEON) && defined(__aarch64__)
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t line = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(word[0]), vcreate_u64(word[1])));
    uint8x16_t hit = vandq_u8(vceqq_u8(line, vdupq_n_u8(tag)), vld1q_u8(bits));

    return (vaddv_u8(vget_low_u8(hit)) | (unsigned)vaddv_u8(vget_high_u8(hit)) << 8) & WAYS_MASK;
#else
    unsigned mask = 0;

    for (unsigned way = 0; way < WEIR__WAYS; way++)
        mask |= (unsigned)(tag_at(word, way) == tag) << way;
    return mask;
#endif
}

static inline void look(const struct weir *w, uint64_t set, const uint64_t id[2], struct probe *probe)
{
    const struct weir__tags *tags = &w->tags[set];
    struct weir__hot *ways = &w->hot[set * WEIR__WAYS];
    unsigned hits;

    probe->set = set;
    probe->e = NULL;
    probe->x = 0;
    probe->busy = false;
    probe->word[0] = weir__load_acquire(&tags->word[0]);
    probe->word[1] = weir__load_acquire(&tags->word[1]);
    for (hits = match(probe->word, weir__table_tag(id[0])); hits; hits &= hits - 1) {
        struct weir__hot *e = &ways[__builtin_ctz(hits)];
        uint64_t x = weir__load_acquire(&e->x);
        uint64_t first = weir__load_acquire(&e->id[0]);

        if (first == id[0] && weir__load_relaxed(&e->id[1]) == id[1]) {
            if (x & WEIR__LOCK) {
                probe->busy = true;
                continue;
            }
            probe->e = e;
            probe->x = x;
            return;
        }
        if (first == 0)
            probe->busy = true;
    }
}

struct weir__hot *weir__table_glance(const struct weir *w, const uint64_t id[2], uint64_t *x)
{
    struct probe probe;

    look(w, weir__table_set(w, id[0]), id, &probe);
    *x = probe.x;
    return probe.e;
}

WEIR__NOINLINE struct weir__hot *weir__table_guess(const struct weir *w, uint64_t id0)
{
    uint64_t set = weir__table_set(w, id0), word[2];
    unsigned hits;

    word[0] = weir__load_relaxed(&w->tags[set].word[0]);
    word[1] = weir__load_relaxed(&w->tags[set].word[1]);
    hits = match(word, weir__table_tag(id0));
    return hits ? &w->hot[set * WEIR__WAYS + (unsigned)__builtin_ctz(hits)] : weir__table_first(w, id0);
}

void weir__table_prefetch(const struct weir *w, const uint64_t id[2])
{
    uint64_t set = weir__table_set(w, id[0]), word[2];
    unsigned hits;

    if (weir__load_relaxed(&weir__table_first(w, id[0])->id[0]) == id[0])
        return;
    word[0] = weir__load_relaxed(&w->tags[set].word[0]);
    word[1] = weir__load_relaxed(&w->tags[set].word[1]);
    hits = match(word, weir__table_tag(id[0]));
    if (hits)
        __builtin_prefetch(&w->hot[set * WEIR__WAYS + (unsigned)__builtin_ctz(hits)], 1, 3);
}

/* The n-th of a key's sets. */
static uint64_t nth_set(const struct weir *w, const uint64_t id[2], unsigned n)
{
    uint64_t hash = id[n & 1];
    unsigned turn = 16 * (n >> 1);

    return weir__table_set(w, turn ? hash << turn | hash >> (64 - turn) : hash);
}

/* The key's sets in turn, up to the first that has not overflowed, waiting for busy entries. Returns the entry, or NULL
 * with all of them in *path. */
static struct weir__hot *look_well(struct weir *w, const uint64_t id[2], struct path *path, uint64_t *x)
{
    unsigned turns = 0;

    for (;; weir__intent_wait(w, &turns)) {
        struct probe *last;

        path->sets = 0;
        do {
            last = &path->probe[path->sets];
            look(w, nth_set(w, id, path->sets++), id, last);
        } while (!last->e && !last->busy && last->word[1] & OVERFLOW_BIT && path->sets < CHOICES);
        if (last->e) {
            *x = last->x;
            return last->e;
        }
        if (!last->busy)
            return NULL;
    }
}

struct weir__hot *weir__table_search(struct weir *w, const uint64_t id[2], uint64_t *x)
{
    struct path path;

    return look_well(w, id, &path, x);
}

/* Does dropping the entry lose nothing? Without the lock bit: a hint. */
static bool is_idle(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now)
{
    const struct weir__params *params;
    uint64_t touched, f, cap;

    /* seq_cst: whoever pins or marks an entry does so before looking at x and id; see the lock's other half below */
    if (atomic_load_explicit(&e->pin, memory_order_seq_cst) || atomic_load_explicit(&e->urgent, memory_order_seq_cst) ||
        atomic_load_explicit(&e->dirty, memory_order_seq_cst))
        return false;
    if (weir__load_acquire(&e->regime) != WEIR__LOCAL)
        return weir__hybrid_evictable(w, weir__slot_of(w, e), x, now) != 0;
    f = weir__load_acquire(&e->f);
    params = &w->policies[weir__load_acquire(&e->policy)].slot[f & WEIR__SLOT];
    touched = weir__load_relaxed(&e->touched);
    if (touched > now)
        now = touched;
    cap = weir__load_acquire(&params->cap);
    return weir__bucket_level(now, touched, weir__load_acquire(&params->mult), cap, x + (f & WEIR__UNITS)) >=
           (int64_t)cap;
}

/* A full entry is about to be dropped: no entry is made before the time at which it was known to be full. */
static void raise_high_water(struct weir *w, const struct weir__hot *e, uint64_t now)
{
    uint64_t seen = weir__load_relaxed(&w->state->high_water);
    uint64_t touched = weir__load_relaxed(&e->touched);

    if (now < touched)
        now = touched;
    while (seen < now && !atomic_compare_exchange_weak_explicit(&w->state->high_water, &seen, now, memory_order_relaxed,
                                                                memory_order_relaxed))
        ;
}

/* Unlocked as it was, but for a step of x: x never has the same value twice. */
void weir__table_step(struct weir *w, struct weir__hot *e, uint64_t x)
{
    uint64_t f = weir__load_relaxed(&e->f);

    weir__store_release(&e->f, ((f & WEIR__UNITS) - WEIR__STEP) | (f & ~WEIR__UNITS));
    atomic_fetch_add_explicit(&w->cold[weir__slot_of(w, e)].returned, WEIR__STEP, memory_order_release);
    weir__store_release(&e->x, (x & ~WEIR__LOCK) + WEIR__STEP);
}

/* Locks an idle entry and hides it. *id0 gives it back. */
static bool lock_idle(struct weir *w, struct weir__hot *e, uint64_t now, uint64_t *id0)
{
    uint64_t x = weir__load_acquire(&e->x);
    uint64_t seen = x;

    *id0 = weir__load_acquire(&e->id[0]);
    if (x & WEIR__LOCK || *id0 == 0 || !is_idle(w, e, x, now))
        return false;
    weir__intent_begin(w, e, WEIR__INTENT_DROP);
    if (!atomic_compare_exchange_strong_explicit(&e->x, &seen, x | WEIR__LOCK, memory_order_seq_cst,
                                                 memory_order_relaxed)) {
        weir__intent_end(w, e);
        return false;
    }
    /* A pin comes before a look at x, the lock before this look at the pin: one of the two sees the other. */
    if (atomic_load_explicit(&e->id[0], memory_order_seq_cst) != *id0 || !is_idle(w, e, x, now)) {
        weir__table_step(w, e, x);
        weir__intent_end(w, e);
        return false;
    }
    raise_high_water(w, e, now);
    weir__store_release(&e->id[0], 0);
    return true;
}

static void give_back(struct weir *w, struct weir__hot *e, uint64_t id0)
{
    weir__store_release(&e->id[0], id0);
    weir__table_step(w, e, weir__load_relaxed(&e->x));
    weir__intent_end(w, e);
}

/* A free or (may_grow or not) idle entry of the set as it was probed. */
static enum claimed claim(struct weir *w, const struct probe *probe, const uint64_t id[2], bool may_grow, uint64_t now,
                          struct claim *claim)
{
    unsigned preferred = weir__slot_of(w, weir__table_first(w, id[0])) % WEIR__WAYS, way = WEIR__WAYS, shift;
    struct weir__hot *ways = &w->hot[probe->set * WEIR__WAYS];
    unsigned free = may_grow ? match(probe->word, 0) : 0;
    uint64_t id0 = 0, word[2], seen[2];

    if (free)
        way = (unsigned)__builtin_ctz(free >> preferred ? free >> preferred << preferred : free);
    for (unsigned i = 0; i < WEIR__WAYS && way == WEIR__WAYS; i++) {
        unsigned candidate = (preferred + i) % WEIR__WAYS;

        if (tag_at(probe->word, candidate) && lock_idle(w, &ways[candidate], now, &id0))
            way = candidate;
    }
    if (way == WEIR__WAYS)
        return CLAIM_NO_ROOM;
    if (free)
        weir__intent_begin(w, &ways[way], WEIR__INTENT_DROP);

    memcpy(seen, probe->word, sizeof seen);
    memcpy(word, probe->word, sizeof word);
    shift = 8 * (way & 7);
    word[way >> 3] = (word[way >> 3] & ~(UINT64_C(0xff) << shift)) | (uint64_t)weir__table_tag(id[0]) << shift;
    word[1] = (word[1] & ~VERSION_MASK) | ((word[1] + VERSION_STEP) & VERSION_MASK);
    if (!weir__cas16(w->tags[probe->set].word, &seen[0], &seen[1], word[0], word[1])) {
        if (free)
            weir__intent_end(w, &ways[way]);
        else
            give_back(w, &ways[way], id0);
        return CLAIM_AGAIN;
    }
    claim->e = &ways[way];
    claim->way = way;
    claim->evicted = !free;
    return CLAIMED;
}

/* Writes a tag of a set whatever else changes meanwhile. */
static void set_tag(struct weir *w, uint64_t set, unsigned way, uint8_t tag)
{
    unsigned shift = 8 * (way & 7);
    uint64_t seen[2], word[2];

    seen[0] = weir__load_acquire(&w->tags[set].word[0]);
    seen[1] = weir__load_acquire(&w->tags[set].word[1]);
    do {
        memcpy(word, seen, sizeof word);
        word[way >> 3] = (word[way >> 3] & ~(UINT64_C(0xff) << shift)) | (uint64_t)tag << shift;
        word[1] = (word[1] & ~VERSION_MASK) | ((word[1] + VERSION_STEP) & VERSION_MASK);
    } while (!weir__cas16(w->tags[set].word, &seen[0], &seen[1], word[0], word[1]));
}

/* Steps the version of a set, or sets its overflow bit, if it is as it was probed. */
static bool touch_set(struct weir *w, const struct probe *probe, bool overflow)
{
    uint64_t seen[2], last = probe->word[1];

    memcpy(seen, probe->word, sizeof seen);
    last = (last & ~VERSION_MASK) | ((last + VERSION_STEP) & VERSION_MASK) | (overflow ? OVERFLOW_BIT : 0);
    return weir__cas16(w->tags[probe->set].word, &seen[0], &seen[1], seen[0], last);
}

static bool reserve_key(struct weir *w)
{
    if (atomic_fetch_add_explicit(&w->state->keys, 1, memory_order_relaxed) < w->state->max_keys)
        return true;
    atomic_fetch_sub_explicit(&w->state->keys, 1, memory_order_relaxed);
    return false;
}

static void unreserve_key(struct weir *w)
{
    atomic_fetch_sub_explicit(&w->state->keys, 1, memory_order_relaxed);
}

/* A claimed entry that is not needed after all, or a dropped one: free. Its x may be used again only once the tag is
 * gone, so the lock ends before. */
static void release_way(struct weir *w, struct weir__hot *e)
{
    uint32_t slot = weir__slot_of(w, e);

    weir__store_release(&e->x, (weir__load_relaxed(&e->x) & ~WEIR__LOCK) + WEIR__STEP);
    set_tag(w, slot / WEIR__WAYS, slot % WEIR__WAYS, 0);
    weir__intent_end(w, e);
}

/* The key of an entry that is locked or claimed goes. */
static void forget_key(struct weir *w, struct weir__hot *e)
{
    struct weir__cold *cold = &w->cold[weir__slot_of(w, e)];
    uint32_t block;

    if (cold->key_len > WEIR__KEY_INLINE) {
        memcpy(&block, cold->key + WEIR__KEY_INLINE - sizeof block, sizeof block);
        if (block != WEIR__ARENA_NONE)
            weir__arena_drop(w->arena, block, cold->key_len);
    }
    cold->key_len = 0;
}

/* Only who reports keys needs them whole. */
static bool remember_key(struct weir *w, struct weir__hot *e, bool whole, const void *key, size_t key_len)
{
    struct weir__cold *cold = &w->cold[weir__slot_of(w, e)];
    uint32_t block = WEIR__ARENA_NONE;

    forget_key(w, e);
    if (key_len <= WEIR__KEY_INLINE) {
        memcpy(cold->key, key, key_len);
    } else {
        if (whole)
            block = weir__arena_put(w->arena, key, key_len);
        if (whole && block == WEIR__ARENA_NONE)
            return false;
        memcpy(cold->key, key, WEIR__KEY_INLINE - sizeof block);
        memcpy(cold->key + WEIR__KEY_INLINE - sizeof block, &block, sizeof block);
    }
    cold->key_len = (uint16_t)key_len;
    return true;
}

const void *weir__table_key(const struct weir *w, const struct weir__cold *cold)
{
    uint32_t block;

    if (cold->key_len <= WEIR__KEY_INLINE)
        return cold->key;
    memcpy(&block, cold->key + WEIR__KEY_INLINE - sizeof block, sizeof block);
    return block == WEIR__ARENA_NONE ? NULL : weir__arena_bytes_of(w->arena, block);
}

/* Fills a claimed entry and shows it. Returns x as it was shown: a later look may be at the next key's. The policy is
 * read after the claim, so that weir_policy_set, which changes the policy first and then waits for claimed entries,
 * either is seen here or finds the entry. */
static uint64_t publish(struct weir *w, struct weir__hot *e, weir_policy_id policy, const uint64_t id[2], uint64_t now)
{
    struct weir__policy_state *p = &w->policies[policy];
    struct weir__cold *cold = &w->cold[weir__slot_of(w, e)];
    uint64_t x = (weir__load_relaxed(&e->x) & ~WEIR__LOCK) + WEIR__STEP;
    uint64_t high = weir__load_relaxed(&w->state->high_water);
    unsigned slot = atomic_load_explicit(&p->current, memory_order_seq_cst);
    uint64_t full;

    if (now < high)
        now = high;
    weir__store_relaxed(&e->policy, (uint16_t)policy);
    weir__store_relaxed(&e->touched, now);
    if (weir__load_acquire(&p->mode) == WEIR_HYBRID) {
        weir__hybrid_claim(w, weir__slot_of(w, e), policy, x, now);
    } else {
        full =
            weir__bucket_refill(now, weir__load_acquire(&p->slot[slot].mult)) - weir__load_acquire(&p->slot[slot].cap);
        weir__store_relaxed(&e->regime, WEIR__LOCAL);
        weir__store_relaxed(&e->k, weir__load_acquire(&p->slot_k[slot]));
        weir__store_relaxed(&e->f, ((full - x) & WEIR__UNITS) | slot);
        weir__store_relaxed(&cold->base, x);
        weir__store_relaxed(&cold->returned, 0);
        weir__store_relaxed(&cold->refunded, 0);
    }
    weir__store_relaxed(&e->id[1], id[1]);
    weir__store_release(&e->x, x);
    weir__store_release(&e->id[0], id[0]);
    weir__intent_end(w, e);
    return x;
}

/* One try at an entry for a key that none of the path's sets holds. */
static enum claimed claim_any(struct weir *w, const struct path *path, const uint64_t id[2], bool may_grow,
                              uint64_t now, struct claim *won)
{
    for (unsigned n = 0; n < path->sets; n++) {
        const struct probe *probe = &path->probe[n];
        enum claimed got = claim(w, probe, id, may_grow, now, won);

        /* Another thread may have made the key meanwhile: then the version of the first set has changed. */
        if (got == CLAIMED && n > 0 && !touch_set(w, &path->probe[0], false)) {
            forget_key(w, won->e);
            release_way(w, won->e);
            if (won->evicted)
                unreserve_key(w);
            return CLAIM_AGAIN;
        }
        if (got != CLAIM_NO_ROOM)
            return got;
        if (!(probe->word[1] & OVERFLOW_BIT) && n + 1 < CHOICES) {
            touch_set(w, probe, true);
            return CLAIM_AGAIN;
        }
    }
    return CLAIM_NO_ROOM;
}

/* A claimed entry becomes the key's. Returns NULL where its bytes find no room. */
static struct weir__hot *furnish(struct weir *w, const struct claim *won, weir_policy_id policy, const void *key,
                                 size_t key_len, const uint64_t id[2], uint64_t now, uint64_t *x)
{
    bool whole = weir__load_acquire(&w->policies[policy].mode) != WEIR_LOCAL;

    if (won->evicted)
        atomic_fetch_add_explicit(&w->state->evictions, 1, memory_order_relaxed);
    if (!remember_key(w, won->e, whole, key, key_len)) {
        release_way(w, won->e);
        unreserve_key(w);
        return NULL;
    }
    /* before the entry is shown, for it is idle until its first take */
    if (weir__load_relaxed(&w->state->keys) > w->state->max_keys - w->state->max_keys / 4)
        weir__table_sweep(w, SWEEP_STEP, now);
    *x = publish(w, won->e, policy, id, now);
    return won->e;
}

struct weir__hot *weir__table_obtain(struct weir *w, weir_policy_id policy, const void *key, size_t key_len,
                                     const uint64_t id[2], uint64_t now, uint64_t *x)
{
    bool swept = false, may_grow;
    struct claim won;
    struct path path;

    for (;;) {
        struct weir__hot *e = look_well(w, id, &path, x);
        enum claimed got;

        if (e)
            return e;
        weir__intent_enter(w);
        may_grow = reserve_key(w);
        got = claim_any(w, &path, id, may_grow, now, &won);
        if (may_grow && (got != CLAIMED || won.evicted))
            unreserve_key(w);
        e = got == CLAIMED ? furnish(w, &won, policy, key, key_len, id, now, x) : NULL;
        weir__intent_leave(w);
        if (got == CLAIMED)
            return e;
        if (got == CLAIM_NO_ROOM) {
            if (w->state->shared && !swept) /* dead processes may hold it */
                weir__intent_recover(w);
            if (swept || weir__table_sweep(w, SWEEP_FULL, now) == 0)
                return NULL;
            swept = true;
        }
    }
}

bool weir__table_lock(struct weir *w, struct weir__hot *e, const uint64_t id[2], uint64_t *x)
{
    unsigned turns = 0;

    for (;; weir__intent_wait(w, &turns)) {
        *x = weir__load_acquire(&e->x);
        if (!weir__table_is(e, id))
            return false;
        if (*x & WEIR__LOCK)
            continue;
        weir__intent_begin(w, e, WEIR__INTENT_REWRITE);
        if (atomic_compare_exchange_weak_explicit(&e->x, x, *x | WEIR__LOCK, memory_order_seq_cst,
                                                  memory_order_relaxed))
            return true;
        weir__intent_end(w, e);
    }
}

void weir__table_unlock(struct weir *w, struct weir__hot *e, uint64_t x)
{
    weir__store_release(&e->x, x & ~WEIR__LOCK);
    weir__intent_end(w, e);
}

void weir__table_abandon(struct weir *w, struct weir__hot *e)
{
    uint32_t slot = weir__slot_of(w, e);

    /* Whether the key's run in the arena was given back already can't be known: it is not given back twice. */
    w->cold[slot].key_len = 0;
    weir__store_release(&e->x, (weir__load_relaxed(&e->x) & ~WEIR__LOCK) + WEIR__STEP);
    set_tag(w, slot / WEIR__WAYS, slot % WEIR__WAYS, 0);
}

/* An entry that is shown, and has its key in the arena: its run. */
static bool run_of(struct weir *w, uint32_t slot, uint32_t *block)
{
    const struct weir__cold *cold = &w->cold[slot];

    if (weir__load_relaxed(&w->hot[slot].id[0]) == 0 || cold->key_len <= WEIR__KEY_INLINE)
        return false;
    memcpy(block, cold->key + WEIR__KEY_INLINE - sizeof *block, sizeof *block);
    return *block != WEIR__ARENA_NONE;
}

void weir__table_mend_arena(struct weir *w)
{
    uint32_t block;

    if (!weir__arena_begin_again(w->arena))
        return;
    for (uint32_t slot = 0; slot < w->slots; slot++)
        if (run_of(w, slot, &block))
            weir__arena_mark_again(w->arena, block, w->cold[slot].key_len);
    weir__arena_end_again(w->arena);
}

/* Of an entry that is locked and hidden. */
static void drop_hidden(struct weir *w, struct weir__hot *e)
{
    forget_key(w, e);
    unreserve_key(w); /* while somebody still says that he is at it */
    release_way(w, e);
}

bool weir__table_drop(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now)
{
    (void)x;
    if (atomic_load_explicit(&e->pin, memory_order_seq_cst))
        return false;
    raise_high_water(w, e, now);
    weir__store_release(&e->id[0], 0);
    drop_hidden(w, e);
    return true;
}

size_t weir__table_sweep(struct weir *w, size_t n, uint64_t now)
{
    uint64_t slot = atomic_fetch_add_explicit(&w->state->sweep_hand, n, memory_order_relaxed) % w->slots;
    size_t dropped = 0;
    uint64_t id0;

    weir__intent_enter(w);
    for (; n > 0; n--, slot = slot + 1 == w->slots ? 0 : slot + 1) {
        uint64_t word = weir__load_acquire(&w->tags[slot / WEIR__WAYS].word[slot % WEIR__WAYS >> 3]);

        if ((uint8_t)(word >> (8 * (slot % WEIR__WAYS & 7))) && lock_idle(w, &w->hot[slot], now, &id0)) {
            drop_hidden(w, &w->hot[slot]);
            dropped++;
        }
    }
    weir__intent_leave(w);
    return dropped;
}
