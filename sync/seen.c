/* SPDX-License-Identifier: MIT */
/*
 * Sets of four slots, a cache line each; who finds no room takes that of the one noted longest ago. A level is a float,
 * a time 64ths of a second, which come round after two years; what is a year old is taken for new.
 */
#include "sync/seen.h"

#include <math.h>
#include <string.h>

#define SLOTS 8192u
#define WAYS 4u
#define TICK_NS (WEIR__SECOND / 64)

struct slot {
    _Atomic uint64_t tag; /* of policy and key; 0: empty */
    _Atomic uint64_t value;
};

struct weir__seen {
    struct slot slots[SLOTS];
};

struct weir__seen *weir__seen_open(struct weir__node *node)
{
    return weir__node_alloc(node, sizeof(struct weir__seen));
}

void weir__seen_close(struct weir__node *node, struct weir__seen *seen)
{
    weir__node_free(node, seen, sizeof *seen);
}

static uint64_t tag_of(weir_policy_id id, uint64_t hash)
{
    uint64_t tag = (hash ^ id) * UINT64_C(0x9e3779b97f4a7c15);

    return tag ? tag : 1;
}

static struct slot *set_of(struct weir__seen *seen, uint64_t tag)
{
    return &seen->slots[(tag >> 32 & (SLOTS / WAYS - 1)) * WAYS];
}

/* NULL: not there. */
static struct slot *find(struct weir__seen *seen, uint64_t tag)
{
    struct slot *set = set_of(seen, tag);

    for (unsigned i = 0; i < WAYS; i++)
        if (atomic_load_explicit(&set[i].tag, memory_order_acquire) == tag)
            return &set[i];
    return NULL;
}

static uint32_t ticks_since(const struct slot *slot, uint64_t mono)
{
    return (uint32_t)(mono / TICK_NS) - (uint32_t)atomic_load_explicit(&slot->value, memory_order_relaxed);
}

/* The key's slot, an empty one, or that of the one noted longest ago. */
static struct slot *room_for(struct weir__seen *seen, uint64_t tag, uint64_t mono)
{
    struct slot *set = set_of(seen, tag), *found = find(seen, tag);

    for (unsigned i = 0; i < WAYS && !found; i++)
        if (!atomic_load_explicit(&set[i].tag, memory_order_relaxed))
            found = &set[i];
    if (found)
        return found;
    found = set;
    for (unsigned i = 1; i < WAYS; i++)
        if (ticks_since(&set[i], mono) > ticks_since(found, mono))
            found = &set[i];
    return found;
}

void weir__seen_forget(struct weir__seen *seen, weir_policy_id id, uint64_t hash)
{
    uint64_t tag = tag_of(id, hash);
    struct slot *slot = find(seen, tag);

    if (slot)
        atomic_store_explicit(&slot->tag, 0, memory_order_relaxed);
}

void weir__seen_note(struct weir__seen *seen, weir_policy_id id, uint64_t hash, double level, uint64_t mono,
                     uint64_t lost_at)
{
    uint64_t tag = tag_of(id, hash);
    struct slot *slot;
    float rounded = (float)level;
    uint32_t bits;

    if (lost_at && mono / TICK_NS <= lost_at / TICK_NS) {
        weir__seen_forget(seen, id, hash);
        return;
    }
    slot = room_for(seen, tag, mono);
    memcpy(&bits, &rounded, sizeof bits);
    /* the release store of the value keeps the 0 before it: a reader of this value finds another tag than before */
    atomic_store_explicit(&slot->tag, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->value, (uint64_t)bits << 32 | (uint32_t)(mono / TICK_NS), memory_order_release);
    atomic_store_explicit(&slot->tag, tag, memory_order_release);
}

int weir__seen_last(struct weir__seen *seen, weir_policy_id id, uint64_t hash, uint64_t mono, uint64_t before,
                    double *level, uint64_t *age_ns)
{
    uint64_t tag = tag_of(id, hash), value;
    struct slot *slot = find(seen, tag);
    uint32_t bits;
    float then;

    if (!slot)
        return 0;
    /* acquire: the second look at the tag comes after it */
    value = atomic_load_explicit(&slot->value, memory_order_acquire);
    if (atomic_load_explicit(&slot->tag, memory_order_relaxed) != tag)
        return 0;
    if ((int32_t)((uint32_t)(before / TICK_NS) - (uint32_t)value) < 0)
        return 0;
    bits = (uint32_t)(value >> 32);
    memcpy(&then, &bits, sizeof then);
    *level = (double)then;
    *age_ns = (uint64_t)((uint32_t)(mono / TICK_NS) - (uint32_t)value) * TICK_NS;
    return 1;
}

double weir__seen_level(struct weir__seen *seen, weir_policy_id id, uint64_t hash,
                        const struct weir__seam_policy *policy, uint64_t mono, uint64_t before)
{
    uint64_t age;
    double level;

    if (!weir__seen_last(seen, id, hash, mono, before, &level, &age))
        return -1;
    level += (double)age * (double)policy->limit / (double)policy->per_ns;
    return fmin(fmax(level, 0), (double)policy->burst);
}
