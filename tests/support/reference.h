/* SPDX-License-Identifier: MIT */
/*
 * A token bucket in exact rational arithmetic, to compare the library's with. Owns the meaning of a decision; must not
 * know how the library counts, but for the error that it is allowed (reference_slack).
 */
#ifndef WEIR_TESTS_REFERENCE_H
#define WEIR_TESTS_REFERENCE_H

#include <stdint.h>

__extension__ typedef __int128 reference_level_t; /* tokens times per_ns */

struct reference {
    uint64_t limit, per_ns, burst;
    reference_level_t level;
    uint64_t last; /* ns: of the last change */
    uint64_t full; /* ns: when the level was known to the last bit: the library's error grows from there */
};

static inline void reference_init(struct reference *ref, uint64_t limit, uint64_t per_ns, uint64_t burst, uint64_t now)
{
    *ref = (struct reference){limit, per_ns, burst, (reference_level_t)burst * per_ns, now, now};
}

static inline reference_level_t reference_cap(const struct reference *ref)
{
    return (reference_level_t)ref->burst * ref->per_ns;
}

static inline reference_level_t reference_tokens(const struct reference *ref, uint64_t tokens)
{
    return (reference_level_t)tokens * ref->per_ns;
}

/* A clock that has gone back counts as one that stands still. */
static inline reference_level_t reference_level(const struct reference *ref, uint64_t now)
{
    reference_level_t level = ref->level, cap = reference_cap(ref);

    if (now > ref->last)
        level += (reference_level_t)(now - ref->last) * ref->limit;
    return level < cap ? level : cap;
}

/* Takes or, negative, gives. */
static inline void reference_charge(struct reference *ref, uint64_t now, int64_t tokens)
{
    reference_level_t level = reference_level(ref, now), cap = reference_cap(ref);

    if (now > ref->last)
        ref->last = now;
    if (level == cap)
        ref->full = ref->last;
    ref->level = level - (reference_level_t)tokens * (reference_level_t)ref->per_ns;
    if (ref->level >= cap) {
        ref->level = cap;
        ref->full = ref->last;
    }
}

/* By how much the library's level may differ: R(now) is rounded twice, to 4 units of 2^-k token, and its slope by 2^-48
 * unit a ns. */
static inline reference_level_t reference_slack(const struct reference *ref, uint64_t now, uint8_t k)
{
    uint64_t since = now > ref->full ? now - ref->full : 0;
    reference_level_t units = 8 + (reference_level_t)(since >> 47);

    return ((units * (reference_level_t)ref->per_ns) >> k) + 1;
}

#endif
