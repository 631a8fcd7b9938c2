/* SPDX-License-Identifier: MIT */
/*
 * What the node remembers of the keys it shares: their demand, what Redis last said of them, whether they hold a slice;
 * which of them are due, and the reports that are on their way. Owns that memory; knows nothing of batches, the wire or
 * when to report.
 *
 * Threads: the loop's.
 */
#ifndef WEIR_SYNC_KEYS_H
#define WEIR_SYNC_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "sync/node.h"

enum weir__list {
    WEIR__LIST_NONE = 0,
    WEIR__LIST_HELD,   /* holds a slice: must report every interval; a ring a shard, of its own (struct weir__held) */
    WEIR__LIST_KNOWN,  /* holds none, but Redis said that it is not full: worth telling a Redis that lost its state */
    WEIR__LIST_RECALL, /* the same, to be told again */
    WEIR__LISTS
};

/* Between reports. Two cache lines: all of them are read once a report. */
struct weir__kept {
    struct weir__kept *prev, *next;
    uint64_t id; /* weir__report.id */
    uint32_t self, slot, shard;
    weir_policy_id policy;
    uint8_t list; /* enum weir__list */
    uint8_t out;  /* a report of it is on its way */
    uint8_t known;
    uint8_t held;         /* Redis keeps a slice for it */
    int64_t carried;      /* whole tokens that Redis would not take yet: a debt has a floor */
    double total;         /* T, as Redis last said, ... */
    uint64_t total_at;    /* ... then (machine's clock); counts where known */
    uint64_t reported_at; /* machine's clock */
    double fallback;      /* the last that Redis named, tokens a second; 0: it named none */
    struct weir__demand demand;
};

/* On its way: queued for a batch, or in one. Two cache lines. */
struct weir__out {
    struct weir__out *next; /* while it is queued */
    struct weir__kept *kept;
    const void *key;
    uint32_t self, slot;
    uint32_t round;   /* of weir__reconcile_flush */
    uint16_t key_len; /* at most WEIR_KEY_MAX */
    uint8_t slice;    /* travels in long form */
    uint8_t stranded; /* ... but nobody takes it there for now */
    int64_t spent, refunded, fallback_spent;
    int64_t carried; /* part of spent: what was kept->carried */
    double level, rate, demand, want, max_cost, age;
    uint64_t now; /* limiter's clock: when level was read */
};
_Static_assert(sizeof(struct weir__kept) <= 128 && sizeof(struct weir__out) <= 128, "two lines");

/* What is known of a slot without a look at its entry. */
struct weir__spot {
    uint32_t kept; /* index, + 1; 0: none */
    uint32_t lane; /* of the key that was last reported, though another one may be there by now; 0: none was */
};
#define WEIR__SPOT_HELD UINT32_C(0x80000000) /* in lane: what is kept is in the list of those that hold a slice */

/* Slots whose keys wait to be reported, in order. Nothing of their entries has been touched: that is done once, when a
 * batch leaves, and its answer finds all of it still in the caches. */
struct weir__part;
struct weir__due {
    struct weir__part *first, *last;
    uint32_t count;
    uint32_t older; /* the first so many were there when a flush began to wait */
};

struct weir__pool {
    size_t size; /* of an object: whole lines */
    void *free;  /* linked by their first word */
    void **chunks;
    uint32_t chunk_count, chunk_room, used;
};

struct weir__ring {
    struct weir__kept *first, *last;
    uint32_t count;
};

/* Of a policy. Each shard's ring is in the order of the last reports, for its answers come in that order; together they
 * would not be, and each answer would look for its place among all keys. */
struct weir__held {
    struct weir__ring *shards;
    uint32_t count; /* of all */
    uint32_t at;    /* the shard that weir__keys_oldest looks at first */
};

struct weir__keys {
    struct weir__node *node;
    uint32_t slots;
    struct weir__spot *spots; /* by slot */
    uint64_t *due;            /* a bit a slot: it is in a list of due ones */
    struct weir__pool kept, outs, parts;
    uint32_t out_count, due_count;
    uint32_t stranded_count;                 /* of those that are out */
    int64_t out_spent, out_carried;          /* whole tokens on their way; of these, that were there before */
    struct weir__ring (*rings)[WEIR__LISTS]; /* by policy */
    struct weir__held *held;                 /* by policy */
    uint32_t ring_count;
};

int weir__keys_init(struct weir__keys *keys, struct weir__node *node);
void weir__keys_deinit(struct weir__keys *keys);

/* The lists of a policy, or NULL where there is no memory for them (asked for a new policy only). */
struct weir__ring *weir__keys_rings(struct weir__keys *keys, weir_policy_id id);

/* What is kept of the key that a report is about; new where the slot holds another key by now. NULL: no memory. */
struct weir__kept *weir__keys_find(struct weir__keys *keys, const struct weir__report *report);

/* What is kept of the key that this slot held when it was last reported, or NULL. */
struct weir__kept *weir__keys_at(const struct weir__keys *keys, uint32_t slot);

/* The lane of the key that was last reported from this slot. 0: not known. */
int weir__keys_lane(const struct weir__keys *keys, uint32_t slot, weir_policy_id *policy, uint32_t *shard);

/* Appends a slot. 0: no memory. It must not be due already. */
int weir__keys_due(struct weir__keys *keys, struct weir__due *due, uint32_t slot);

static inline uint32_t weir__keys_is_due(const struct weir__keys *keys, uint32_t slot)
{
    return keys->due[slot / 64] >> slot % 64 & 1;
}

/* Takes up to n off. Returns how many those were. */
uint32_t weir__keys_take_due(struct weir__keys *keys, struct weir__due *due, uint32_t *slots, uint32_t n);

static inline int weir__keys_is_held(const struct weir__keys *keys, uint32_t slot)
{
    return (keys->spots[slot].lane & WEIR__SPOT_HELD) != 0;
}

/* Fetches the two lines of a weir__kept or a weir__out; NULL: nothing. */
static inline void weir__keys_prefetch(const void *object)
{
    if (!object)
        return;
    __builtin_prefetch(object, 1, 3);
    __builtin_prefetch((const char *)object + 64, 1, 3);
}

/* A key of the policy that holds a slice and was last reported before that, or NULL. */
struct weir__kept *weir__keys_oldest(struct weir__keys *keys, weir_policy_id id, uint64_t before);

/* To the end of a list, or to its place in that of the held ones, which is in the order of reported_at. */
void weir__keys_move(struct weir__keys *keys, struct weir__kept *kept, enum weir__list list);
void weir__keys_drop(struct weir__keys *keys, struct weir__kept *kept);

/* A report on its way, with what the report says; mono: the machine's clock. NULL: no memory. weir__keys_arrive ends
 * it. */
struct weir__out *weir__keys_depart(struct weir__keys *keys, struct weir__kept *kept, const struct weir__report *report,
                                    uint64_t mono);
void weir__keys_arrive(struct weir__keys *keys, struct weir__out *out);

/* It can't leave for now, so it counts among stranded_count until it ends. */
void weir__keys_strand(struct weir__keys *keys, struct weir__out *out);

/* What the key has to tell from before goes along with the report. */
void weir__keys_carry(struct weir__keys *keys, struct weir__out *out);

/* Whole tokens that Redis would not take when it was last told. slices: how many keys hold one, but for those of which
 * a report is on its way. */
uint64_t weir__keys_carried(const struct weir__keys *keys, uint32_t *slices);

/* What Redis last said of it, grown since at the policy's rate; its burst at most. Counts where kept->known. */
double weir__keys_total(const struct weir__kept *kept, const struct weir__slice_terms *terms, uint64_t mono);

#endif
