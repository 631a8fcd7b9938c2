/* SPDX-License-Identifier: MIT */
/*
 * Finding, making and dropping entries. Owns tags, identities, cold lines and the number of keys; must not know how a
 * bucket decides, nor Redis.
 *
 * Sets of 15 entries; a set's tag line holds a byte of each entry's hash and a version. A key lives in its first set
 * (by id[0]) or, once that one has overflowed, in its second (by id[1]), and so on: each set tells by a bit that stays
 * whether one must look further. All changes of a set are 16-byte CASes of its tag line, which fail if anything changed
 * since it was read: so two threads that miss the same key can't both make it. What goes into a later set also steps
 * the version of the first.
 *
 * An entry is made by whoever won its tag: the tag is there, id[0] is still 0, and whoever looks for that tag waits.
 * It is dropped or given to another key under the lock bit of x, and its x goes on from there.
 */
#ifndef WEIR_LIB_TABLE_H
#define WEIR_LIB_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/limiter.h"

/* Sets for max_keys: load 0.7. More costs little time and saves little memory; 64 keys of 65 are in their first set. */
uint64_t weir__table_sets(uint64_t max_keys);

/* The identity of a key. The lowest byte of id[0], its tag, is never 0: what were two identities but for that become
 * one, which is no likelier than any other collision. */
WEIR__INLINE void weir__table_id(const struct weir *w, weir_policy_id policy, const void *key, size_t key_len,
                                 uint64_t id[2])
{
    weir__identity_of(&w->identity, policy, key, key_len, id);
    if (WEIR__UNLIKELY((uint8_t)id[0] == 0)) {
        id[0] |= 0x80;
        WEIR__BRANCH(id[0]);
    }
}

WEIR__INLINE uint64_t weir__table_set(const struct weir *w, uint64_t hash)
{
    return (uint64_t)((weir__u128)hash * w->sets >> 64);
}

/* Where an entry lies if it can: in its first set, for slots / WEIR__WAYS = sets. */
WEIR__INLINE struct weir__hot *weir__table_first(const struct weir *w, uint64_t id0)
{
    return &w->hot[(uint64_t)((weir__u128)id0 * w->slots >> 64)];
}

/* Fetches where the key is most likely: in its place (two keys of three in a table filled to 0.7) or in the next (one
 * of seven). That is, before the tags have come from memory. */
WEIR__INLINE void weir__table_prefetch_first(const struct weir *w, const uint64_t id[2])
{
    const struct weir__hot *e = weir__table_first(w, id[0]);

    __builtin_prefetch(e, 0, 3);
    __builtin_prefetch(e + 1, 0, 3);
}

WEIR__INLINE uint8_t weir__table_tag(uint64_t id0)
{
    return (uint8_t)id0;
}

/* Where the tags of the key's first set say it is; where they don't know it, the place where it would lie. */
struct weir__hot *weir__table_guess(const struct weir *w, uint64_t id0);

/* The same, looking first where it lies if it can: so that a branch that is usually foreseen, not the tag's memory,
 * stands between a take and its entry. To be checked with weir__table_is. */
WEIR__INLINE struct weir__hot *weir__table_aim(const struct weir *w, const uint64_t id[2])
{
    uint64_t slot = (uint64_t)((weir__u128)id[0] * w->slots >> 64);
    /* 16 bytes a set of 15 tags. The bytes of a big-endian machine lie elsewhere: then it is guessed. */
    const uint8_t *tag = (const uint8_t *)(const void *)w->tags + slot + weir__table_set(w, id[0]);

    if (WEIR__LIKELY(__atomic_load_n(tag, __ATOMIC_RELAXED) == weir__table_tag(id[0])))
        return &w->hot[slot];
    return weir__table_guess(w, id[0]);
}

/* x must have been loaded with acquire before. */
WEIR__INLINE bool weir__table_is(const struct weir__hot *e, const uint64_t id[2])
{
    return weir__load_acquire(&e->id[0]) == id[0] && weir__load_relaxed(&e->id[1]) == id[1];
}

/* The key's entry if it is quickly found, and its x without the lock bit; NULL says nothing. Reads only. */
struct weir__hot *weir__table_glance(const struct weir *w, const uint64_t id[2], uint64_t *x);

WEIR__INLINE struct weir__hot *weir__table_find(const struct weir *w, const uint64_t id[2], uint64_t *x)
{
    struct weir__hot *e = weir__table_first(w, id[0]);

    *x = weir__load_acquire(&e->x);
    if (WEIR__LIKELY(weir__table_is(e, id) && !(*x & WEIR__LOCK)))
        return e;
    return weir__table_glance(w, id, x);
}

/* Fetches the line of a key that isn't where weir__table_first says, as its tag line tells. */
void weir__table_prefetch(const struct weir *w, const uint64_t id[2]);

/* The key's entry, waiting for one that is being made or changed; NULL where there is none. */
struct weir__hot *weir__table_search(struct weir *w, const uint64_t id[2], uint64_t *x);

/* The same, made where there is none: a full bucket as of now. NULL where there is no room. */
struct weir__hot *weir__table_obtain(struct weir *w, weir_policy_id policy, const void *key, size_t key_len,
                                     const uint64_t id[2], uint64_t now, uint64_t *x);

/* Takes the lock bit of x, to rewrite the entry in place, if it still is the key's; false: it isn't. Waits where it is
 * locked. *x: as it was, without the bit. weir__table_unlock publishes what was changed meanwhile; x must be past *x.
 * */
bool weir__table_lock(struct weir *w, struct weir__hot *e, const uint64_t id[2], uint64_t *x);
void weir__table_unlock(struct weir *w, struct weir__hot *e, uint64_t x);

/* Drops an entry that weir__table_lock locked at x and that nobody has pinned: false, and it is still locked, where
 * somebody has. */
bool weir__table_drop(struct weir *w, struct weir__hot *e, uint64_t x, uint64_t now);

/* f was written as of now: weir__bucket_level counts from there. */
WEIR__INLINE void weir__table_touch(struct weir__hot *e, uint64_t now)
{
    if (now > weir__load_relaxed(&e->touched))
        weir__store_relaxed(&e->touched, now);
}

/* For recovery, of an entry that a dead process has left: frees one that is nobody's; or unlocks one that is as it
 * was. */
void weir__table_abandon(struct weir *w, struct weir__hot *e);
void weir__table_step(struct weir *w, struct weir__hot *e, uint64_t x);

/* For recovery: the arena holds the keys of the entries that are shown, and nothing else. Threads: nobody may make or
 * drop entries. */
void weir__table_mend_arena(struct weir *w);

/* Drops what is idle (full, synced, unpinned) among the next n slots in turn. Returns how many entries it dropped. */
size_t weir__table_sweep(struct weir *w, size_t n, uint64_t now);

/* The key's bytes: in the cold line, or in the arena. Entry pinned or locked. */
const void *weir__table_key(const struct weir *w, const struct weir__cold *cold);

#endif
