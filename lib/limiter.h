/* SPDX-License-Identifier: MIT */
/*
 * What a limiter is made of, for the files of lib/. Owns no algorithm; knows nothing of Redis but the hooks.
 *
 * struct weir         this process': pointers into the mapping, callbacks, hooks. Read-only after weir_open but for the
 *                     atomics.
 * struct weir__gate   this process': a page of its own that fork wipes once a sync was started. No policies: no way in.
 * struct weir__state  in the mapping, and with it policies, tags, entries, cold lines, slices, dirty bits, counters and
 *                     the key arena: no pointers, so that pre-forked workers can share all of it.
 */
#ifndef WEIR_LIB_LIMITER_H
#define WEIR_LIB_LIMITER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <weir/weir.h>

#include "lib/atomic.h"
#include "lib/bucket.h"
#include "lib/clock.h"
#include "lib/entry.h"
#include "lib/identity.h"
#include "lib/lock.h"
#include "lib/memory.h"
#include "lib/seam.h"

#define WEIR__POLICY_MAX 1024u /* policies of one limiter */
#define WEIR__WAYS 15u         /* entries of a set */
#define WEIR__INTENTS 256u     /* entries being rewritten at once, in a shared limiter */
#define WEIR__WORKERS 1024u    /* processes with a sync that share a limiter */
#define WEIR__LEASE_CHAINS 64u
#define WEIR__STRIPES 32u /* threads that count without an atomic step; more of them share */

_Static_assert(WEIR__POLICY_MAX <= WEIR__IDENTITY_MARKS, "each has a mark");

/* What weir__hybrid_* return besides WEIR_ALLOW and WEIR_DENY: the entry is no longer the key's, or it is locked;
 * search again. */
#define WEIR__REKEYED (-1000)

/* {mult, cap} in force for the entries whose f selects this slot. */
struct weir__params {
    _Atomic uint64_t mult; /* units a ns << 48 */
    _Atomic uint64_t cap;  /* units */
    _Atomic uint64_t most; /* cap in tokens, if an ordinary local policy's: neither shared nor shadow; else 0 */
    uint64_t spare;
};

/* One policy. Who writes: weir_policy_add and _set, under state->policy_lock; the hybrid fields: the collector.
 * slot[] as entry.h says: the spare one is filled while no entry selects it. */
struct weir__policy_state {
    /* all that a local decision reads */
    _Alignas(64) struct weir__params slot[2];
    /* ... and any other */
    _Alignas(64) _Atomic uint64_t burst; /* tokens */
    _Atomic uint64_t fresh_until;        /* hybrid: weir__seam_fresh_until */
    _Atomic int64_t overdraft; /* hybrid, tokens: q0 of weir__seam_overdraft, without the one of WEIR_UNKNOWN_ADMIT */
    _Atomic uint8_t special;   /* not an ordinary local policy: mode is not WEIR_LOCAL, or shadow */
    _Atomic uint8_t mode;      /* enum weir_mode */
    _Atomic uint8_t on_outage; /* enum weir_on_outage */
    _Atomic uint8_t unknown;   /* enum weir_unknown */
    _Atomic uint8_t shadow;
    _Atomic uint8_t k;       /* of every entry, but while weir_policy_set changes them one by one */
    _Atomic uint8_t current; /* slot[] of new entries: their k is slot_k[current], which is not always k */
    _Atomic uint8_t leased;  /* not 0: there may be leases: what a handle learned of the cap must allow for them */
    /* the rest */
    _Alignas(
        64) _Atomic double fall_rate; /* hybrid: the share that a never-synced key falls back to, tokens a second */
    _Atomic double fall_burst;        /* tokens; 0: never told, or no sync: the whole bucket */
    uint64_t limit, per_ns, version;  /* under policy_lock */
    uint64_t max_overshoot;           /* tokens, resolved; under policy_lock */
    _Atomic uint64_t by_redis[2];     /* verdicts of Redis, by enum weir_status */
    _Atomic uint64_t by_fallback[2];  /* ... of the outage policy */
    _Atomic uint64_t told_local[2];   /* the rest of them, as last told: a counter goes up alone */
    _Atomic uint64_t overshoot;       /* tokens admitted that the shared bucket did not have */
    _Atomic uint64_t fills_in;        /* ns from empty to full, rounded up, or WEIR_NEVER */
    _Atomic uint64_t per_second;      /* whole tokens that a second refills */
    _Atomic uint64_t interval;        /* hybrid: weir__seam_pace, ns; 0: never told */
    _Atomic uint64_t round_trip;
    char name[WEIR_NAME_MAX + 1];
    char group[WEIR_NAME_MAX + 1]; /* empty: none */
    _Atomic uint8_t slot_k[2];     /* of slot[] */
};
_Static_assert(sizeof(struct weir__policy_state) == 448, "seven lines");

/* 15 tags (0: free) and a version of 7 bits with the sticky overflow bit on top: one line of the set's entries. */
struct weir__tags {
    _Alignas(16) _Atomic uint64_t word[2];
};

/* Of a shared limiter: what a process is about to do (lib/intent.c). Free while process is 0. */
struct weir__place {
    _Atomic uint64_t process, what;
};

struct weir__state {
    uint64_t secret[2]; /* of the keyed hash */
    uint64_t sets;      /* of 15 entries */
    uint64_t max_keys;  /* as asked for */
    uint64_t region_bytes;
    uint32_t slots; /* sets * 15 */
    uint32_t shared;
    pthread_mutex_t policy_lock; /* adding and changing policies; process-shared and robust where `shared` */
    pthread_mutex_t
        walk_lock; /* whoever rewrites entries that may be in use: policy_set, forget, attach; and the collector */
    _Alignas(64) _Atomic uint32_t policies;
    _Atomic uint32_t attached;            /* a sync is attached: new hybrid entries are WEIR__BARE */
    _Alignas(64) _Atomic uint32_t urgent; /* head of the urgent list: index + 1; 0: empty */
    uint32_t urgent_rest;                 /* collector: of an earlier list, what its budget left over */
    uint32_t collect_word;                /* collector: word of the dirty bitmap where it goes on */
    _Alignas(64) _Atomic uint64_t keys;
    _Atomic uint64_t evictions;
    _Atomic uint64_t table_full;
    _Atomic uint64_t degraded;
    _Atomic uint64_t high_water; /* the latest time at which a full entry was dropped: none is made before it */
    _Atomic uint64_t sweep_hand; /* slot */
    /* of a shared limiter */
    struct weir__place intents[WEIR__INTENTS];
    _Atomic uint32_t paused;      /* keys are being counted: no intents, please */
    _Atomic uint32_t miscounted;  /* somebody died: they must be */
    pthread_mutex_t recover_lock; /* putting right what a dead process left */
    uint32_t walking;             /* under policy_lock: id + 1 of the policy whose entries are being moved */
    pthread_mutex_t lead_lock;    /* held for good by the process that reconciles (workers.h) */
    _Atomic uint64_t leader;      /* that process */
    _Atomic uint64_t workers[WEIR__WORKERS];
    _Atomic uint32_t policy_changes; /* weir_policy_add and _set, so far */
    _Atomic uint32_t hand;           /* enum weir__hand; with what follows under walk_lock */
    _Atomic uint32_t hand_slot;
    _Atomic uint64_t hand_base;
    _Atomic int64_t hand_refunded, hand_fallen; /* taken out of the entry so far */
    uint32_t audit_slot, audit_pass;            /* collector */
};

struct weir__gate {
    /* as weir/quick.h says */
    _Atomic uint64_t stripes; /* private_counts; 0 in a child after fork, where a sync had started */
    _Atomic uint64_t changes; /* by weir_policy_set, and a policy's first lease: even; odd while one is at work */
    /* the rest */
    _Atomic uint32_t policies; /* ids below it may be used; in a shared limiter, those that this process has met */
    _Atomic uint32_t alive;    /* 1; 0 in a child after fork, where a sync had started, and with it all of this */
    struct weir__clock clock;
};

/* Decisions of one thread, or of the threads past WEIR__STRIPES - 1, which share the last one. */
struct weir__count {
    _Atomic uint64_t verdict[2]; /* by enum weir_status: WEIR_ALLOW, WEIR_DENY */
};

#define WEIR__STRIPE_BYTES (WEIR__POLICY_MAX * sizeof(struct weir__count))

struct weir__arena;

struct weir {
    /* one line, read by every decision */
    _Alignas(64) struct weir__gate *gate;
    struct weir__policy_state *policies;
    struct weir__hot *hot;
    struct weir__tags *tags;
    uint64_t sets;
    uint64_t slots;             /* sets * WEIR__WAYS */
    struct weir__count *counts; /* [WEIR__STRIPES][WEIR__POLICY_MAX] */
    size_t private_counts;      /* bytes of counts[] that threads own, a stripe each: no atomic step needed */
    /* another, where a key is hashed */
    struct weir__identity identity; /* of state->secret */
    /* the rest */
    uint64_t (*now_ns)(void *now_arg); /* the caller's clock, or NULL */
    void *now_arg;
    enum weir_on_full on_full;
    struct weir__state *state;
    struct weir__cold *cold;
    struct weir__slice *slice;
    _Atomic uint64_t *dirty; /* a bit a slot */
    struct weir__arena *arena;
    void *store; /* of a shared limiter: the sync's own memory; else NULL */
    size_t store_bytes;
    _Atomic uint64_t process;                  /* this one, as weir__intent_self last found it */
    _Atomic(const struct weir__hooks *) hooks; /* NULL: no sync attached */
    _Atomic uint32_t hooks_inside;             /* calls that may be using it */
    void (*join)(void *join_ctx);              /* of the sync that was attached last: once it has gone, wait for it */
    void *join_ctx;
    void (*log)(void *log_arg, enum weir_log_level level, const char *line);
    void *log_arg;
    struct weir_allocator allocator;
    struct weir__memory self, region, gate_page;    /* what weir_close gives back */
    size_t table_bytes;                             /* of region, without the slices: they are touched where needed */
    _Atomic uint64_t lease_due[WEIR__LEASE_CHAINS]; /* ns: no stale lease is looked for before (lease.h) */
};

WEIR__INLINE uint64_t weir__limiter_now(const struct weir *w)
{
    if (WEIR__UNLIKELY(w->now_ns != NULL))
        return w->now_ns(w->now_arg);
    return weir__clock_now(&w->gate->clock);
}

WEIR__INLINE uint32_t weir__slot_of(const struct weir *w, const struct weir__hot *e)
{
    return (uint32_t)(e - w->hot);
}

/* The hooks while they may be called, or NULL. Not NULL: weir__hooks_leave must follow. The order: count first, then
 * read; weir__seam_detach clears first, then waits for the count to be 0 (both seq_cst). */
WEIR__INLINE const struct weir__hooks *weir__hooks_enter(struct weir *w)
{
    const struct weir__hooks *hooks;

    atomic_fetch_add_explicit(&w->hooks_inside, 1, memory_order_seq_cst);
    hooks = atomic_load_explicit(&w->hooks, memory_order_seq_cst);
    if (!hooks)
        atomic_fetch_sub_explicit(&w->hooks_inside, 1, memory_order_release);
    return hooks;
}

WEIR__INLINE void weir__hooks_leave(struct weir *w)
{
    atomic_fetch_sub_explicit(&w->hooks_inside, 1, memory_order_release);
}

/* From the caller's allocator, or the C library's. NULL when out of memory. */
void *weir__limiter_alloc(struct weir *w, size_t size);
void weir__limiter_free(struct weir *w, void *memory, size_t size);

/* Of a shared limiter: this process' sync reconciles from now on; nobody's may be attached. */
void weir__attach_again(struct weir *w);

/* Calls the join hook of the sync that was attached last, once. */
void weir__attach_join(struct weir *w);

/* From weir__seam_attach: from now on a child after fork finds no way in (WEIR_E_FORKED). WEIR_E_SYS. */
int weir__gate_close_on_fork(struct weir *w);

#endif
