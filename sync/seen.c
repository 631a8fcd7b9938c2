/* SPDX-License-Identifier: MIT */
/*
 * One slot a key, whoever comes last has it. A level is a float, a time 64ths of a second, which come round after two
 * years.
 */
#include "sync/seen.h"

#include <math.h>
#include <string.h>

#define SLOTS 8192u
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

static struct slot *slot_of(struct weir__seen *seen, uint64_t tag)
{
    return &seen->slots[tag >> 32 & (SLOTS - 1)];
}

void weir__seen_note(struct weir__seen *seen, weir_policy_id id, uint64_t hash, double level, uint64_t mono)
{
    uint64_t tag = tag_of(id, hash);
    struct slot *slot = slot_of(seen, tag);
    float rounded = (float)level;
    uint32_t bits;

    memcpy(&bits, &rounded, sizeof bits);
    /* the release store of the value keeps the 0 before it: a reader of this value finds another tag than before */
    atomic_store_explicit(&slot->tag, 0, memory_order_relaxed);
    atomic_store_explicit(&slot->value, (uint64_t)bits << 32 | (uint32_t)(mono / TICK_NS), memory_order_release);
    atomic_store_explicit(&slot->tag, tag, memory_order_release);
}

void weir__seen_forget(struct weir__seen *seen, weir_policy_id id, uint64_t hash)
{
    uint64_t tag = tag_of(id, hash);
    struct slot *slot = slot_of(seen, tag);

    if (atomic_load_explicit(&slot->tag, memory_order_relaxed) == tag)
        atomic_store_explicit(&slot->tag, 0, memory_order_relaxed);
}

double weir__seen_level(struct weir__seen *seen, weir_policy_id id, uint64_t hash,
                        const struct weir__seam_policy *policy, uint64_t mono, uint64_t before)
{
    uint64_t tag = tag_of(id, hash), value;
    struct slot *slot = slot_of(seen, tag);
    uint32_t bits, ticks;
    double level;
    float then;

    if (atomic_load_explicit(&slot->tag, memory_order_acquire) != tag)
        return -1;
    /* acquire: the second look at the tag comes after it */
    value = atomic_load_explicit(&slot->value, memory_order_acquire);
    if (atomic_load_explicit(&slot->tag, memory_order_relaxed) != tag)
        return -1;
    bits = (uint32_t)(value >> 32);
    memcpy(&then, &bits, sizeof then);
    if ((int32_t)((uint32_t)(before / TICK_NS) - (uint32_t)value) < 0)
        return -1;
    ticks = (uint32_t)(mono / TICK_NS) - (uint32_t)value;
    level = (double)then + (double)ticks * TICK_NS * (double)policy->limit / (double)policy->per_ns;
    return fmin(fmax(level, 0), (double)policy->burst);
}
