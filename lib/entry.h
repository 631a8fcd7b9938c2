/* SPDX-License-Identifier: MIT */
/*
 * The memory layout of a bucket, shared by every file of lib/. Owns no algorithm.
 *
 * State: two words. x = tokens ever spent, f = tokens ever forfeited (lost to the cap, spent elsewhere, adjustments),
 * both in units of 2^-k token, modulo 2^64. With R(now) = (now_ns * mult) >> 48:
 *
 *     tokens(now) = min(cap, R(now) - x - f)
 *
 * Bit 0 of x is the lock of an entry that is being re-keyed; bit 0 of f selects the parameter slot {mult, cap}; R, x
 * and f are even otherwise. Every write of f changes x in the same 16-byte CAS, so a successful 8-byte CAS of x proves
 * that f, the slot, k, policy and regime were current. x never goes back for the life of the memory: it is the version.
 *
 * Who writes and who reads (the pairing tags are in docs/memory-model.md):
 *   x, f      takers and the sync thread, by CAS; anyone reads
 *   id, k, policy, regime  only the holder of x's lock bit writes
 *   regime    also the collector, on an entry that it pins: WEIR__BARE to WEIR__SLICED, once
 *   dirty     takers set, the collector clears
 *   pin       collector, handles, weir_give: counted; a pinned entry is never re-keyed
 *   urgent    takers set, the sync thread clears
 *   noted     whoever writes slice[i] first sets it; the holder of the lock bit zeroes slice[i] and clears it
 *   reported  the collector alone: 1: a report of this entry is out; 3, where processes share it: and has been answered
 *   cold line collector and lock holder; refunded, returned: anyone adds
 *   reported  but weir_forget makes it 2: the answer will be ignored (it excludes the collector)
 *   slice     the sync thread, or the holder of the lock bit; takers read. denied, asked, fall_spent: takers add
 */
#ifndef WEIR_LIB_ENTRY_H
#define WEIR_LIB_ENTRY_H

#include <stdatomic.h>
#include <stdint.h>

#define WEIR__LOCK UINT64_C(1) /* bit 0 of x */
#define WEIR__SLOT UINT64_C(1) /* bit 0 of f */
#define WEIR__FALL UINT64_C(2) /* bit 1 of f, hybrid entries: on the fallback share */
#define WEIR__STEP UINT64_C(4) /* the smallest change of x that is not the lock */

enum weir__regime {
    WEIR__LOCAL = 0,   /* the policy's own {mult, cap}; hybrid policy: no sync has ever run (answers are DEGRADED) */
    WEIR__BARE = 1,    /* hybrid, Redis has never spoken of it: {0, 0}, lives on the overdraft alone */
    WEIR__SLICED = 2,  /* hybrid, slice[i] holds {mult, cap} ({0, 0}: no slice), until, hold, low */
    WEIR__FALLBACK = 3 /* in a report only: on the fallback share. An entry tells it by WEIR__FALL, not by its regime */
};

/* One cache line: all that a decision touches besides the policy's line. */
struct weir__hot {
    _Alignas(64) _Atomic uint64_t x; /* x and f: one 16-byte aligned pair. (Aligning "x, f" in one declaration would */
    _Atomic uint64_t f;              /* align each of them, and the 16-byte CAS would never match.) */
    _Atomic uint64_t id[2];          /* weir__table_id of policy and key; id[0] == 0: free */
    _Atomic uint32_t pin;
    _Atomic uint16_t policy;
    _Atomic uint8_t k;
    _Atomic uint8_t regime;
    _Atomic uint8_t dirty;
    _Atomic uint8_t urgent;
    _Atomic uint8_t noted; /* slice[i] is not all zero */
    _Atomic uint8_t reported;
    _Atomic uint32_t urgent_next; /* link of the urgent list: index + 1, 0 ends it */
    _Atomic uint64_t touched;     /* ns: of the last charge; nobody decides by an earlier time */
    _Atomic uint64_t leased;      /* tokens that leases hold: they count against the cap; 0 unless pinned */
};
_Static_assert(sizeof(struct weir__hot) == 64, "one line");

#define WEIR__KEY_INLINE 36u

/* Read by the collector and by whoever re-keys, never by a decision. */
struct weir__cold {
    _Alignas(64) _Atomic uint64_t base; /* x up to which spending has been handed to the collector, in units */
    _Atomic uint64_t returned;          /* units that left x without being spent (leases given back, f-writes' steps) */
    _Atomic uint64_t refunded;          /* whole tokens given back by weir_give, not yet reported */
    uint16_t key_len;
    uint16_t spare;
    uint8_t key[WEIR__KEY_INLINE]; /* the key; longer: its first bytes here, the rest in the key arena: */
                                   /* the last four bytes of key[] are then the arena's first block */
};
_Static_assert(sizeof(struct weir__cold) == 64, "one line");

/* slice[i] belongs to entry i; untouched (so not resident) until Redis or an outage gives it something to hold. */
struct weir__slice {
    _Alignas(64) _Atomic uint64_t mult[2]; /* refill, units a ns << 48 */
    _Atomic uint64_t cap[2];               /* units */
    _Atomic uint64_t until;                /* ns: past it the slice is worth nothing; 0: as bare keys */
    _Atomic uint64_t hold;                 /* ns: until then Redis has no more; no overdraft */
    _Atomic int64_t low;                   /* units: below it, sync early; INT64_MIN: never */
    _Atomic uint64_t denied;               /* tokens denied, ever; lossy */
    /* second line: outages, and whoever fills a result */
    _Alignas(64) _Atomic uint64_t fall_mult[2]; /* as mult, of the fallback share that goes with the slot; 0: none */
    _Atomic uint64_t fall_cap[2];               /* units */
    _Atomic int64_t fall_spent;                 /* tokens admitted on the fallback share, not yet reported */
    _Atomic uint64_t asked;                     /* largest cost since the last report, denied or of a slice, tokens */
    _Atomic int64_t global;                     /* units: the fleet's level less what this process reported since ... */
    _Atomic uint64_t global_at;                 /* ... as of then, ns; 0: never told; odd: being told */
    /* third line: the collector's */
    _Alignas(64) uint64_t denied_told; /* denied, as of the last report */
    int64_t sent_level;                /* units: the level that the report in flight told */
    int64_t sent_fall;                 /* tokens: the fallback_spent that it told ... */
    int64_t sent_spent, sent_refunded; /* ... and the rest of it: for a successor (workers.h) */
    _Atomic int64_t unheld; /* units: of the fleet's level, what nobody held when Redis last spoke. Takers read it */
    uint64_t spare[2];
};
_Static_assert(sizeof(struct weir__slice) == 192, "three lines");

#endif
