/* SPDX-License-Identifier: MIT */
/*
 * The wire format: batches to Redis commands, replies to grants. Pure: no I/O, no clock, no policy. It owns the names
 * of the keys in Redis, the shard function, the text of the scripts and the layout of what travels (docs/protocol.md);
 * it must not know sockets, loops or the table.
 *
 * A command is encoded once and kept: a repeat sends the same bytes. A reply is one bulk string of packed doubles.
 * Here times are seconds and rates tokens a second; on the wire they are microseconds, as Redis' clock is, so that
 * they are exact. Tokens are doubles that hold whole numbers up to 2^53.
 *
 * Threads: none is assumed; every object belongs to its caller.
 */
#ifndef WEIR_SYNC_WIRE_H
#define WEIR_SYNC_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include <weir/weir.h>

#define WEIR__WIRE_FORMAT 2     /* of the state in Redis and of what travels: they change together */
#define WEIR__WIRE_ID 16        /* bytes of a node id */
#define WEIR__WIRE_RECORDS 512u /* records a batch may hold */
#define WEIR__WIRE_WAITS 2048u  /* waiting or strict entries a batch may hold */
#define WEIR__WIRE_MEMBERS 64u  /* members of an all-or-none take */
#define WEIR__WIRE_NAME 640u    /* room for a key's name in Redis, with its ending NUL; longer prefixes are refused */
#define WEIR__WIRE_US 1e6       /* units of time on the wire a second */
#define WEIR__WIRE_SHA 40       /* hex digits */
#define WEIR__WIRE_LIVE 60.0 /* s: a node that says nothing for so long is no longer counted; its q0 is void before */
#define WEIR__WIRE_REMEMBER 600.0 /* s: a silent node's sequence is kept so long; after half of it say hello again */

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

/* Bytes to send. mem's two functions must be set. A failed growth sets `failed` and drops what was to be appended. */
struct weir__wire_buf {
    char *data;
    size_t len, cap;
    const struct weir_allocator *mem; /* must outlive it */
    int failed;
};

void weir__wire_buf_init(struct weir__wire_buf *buf, const struct weir_allocator *mem);
void weir__wire_buf_clear(struct weir__wire_buf *buf); /* empty again; keeps the memory */
void weir__wire_buf_deinit(struct weir__wire_buf *buf);

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

enum weir__wire_script {
    WEIR__WIRE_SYNC = 0,   /* a node's batch, exactly once */
    WEIR__WIRE_STRICT = 1, /* takes, gives and peeks of one policy and shard */
    WEIR__WIRE_ALL = 2,    /* all or none across the policies of a group */
    WEIR__WIRE_FORGET = 3, /* drops keys */
    WEIR__WIRE_PEEK = 4,   /* everything about one key, for a person; writes nothing */
    WEIR__WIRE_SCRIPTS = 5
};

/* The script's text, NUL-terminated; static storage. */
const char *weir__wire_script_text(enum weir__wire_script script);

/* SCRIPT LOAD: its reply is the sha that the encoders below want. 0 or WEIR_E_NOMEM. */
int weir__wire_script_load(struct weir__wire_buf *out, enum weir__wire_script script);

/* ---- where a key lives ------------------------------------------------------------------------------------------- */

/* The shard of a key: the same on every node, of every version. shards >= 1. */
uint32_t weir__wire_shard(const void *key, size_t key_len, uint32_t shards);

struct weir__wire_target {
    const char *prefix; /* any bytes; braces, % and control characters are escaped as %XX */
    const char *policy;
    const char *group; /* NULL: none. The policies of a group share a cluster slot, whatever the shard */
    uint32_t shard;    /* < shards */
    uint32_t shards;
    const struct weir__wire_buf *names; /* what weir__wire_names made of the rest; NULL: it is made each time */
};

/* Name of one of the three keys of a shard; which: 'a', 'b' (generations) or 'n' (nodes).
 *   no group:  <prefix>:{<policy>#<shard>}:a       a group:  <prefix>:{<group>}<policy>#<shard>:a
 * Returns its length, or WEIR_E_SPACE where it does not fit into WEIR__WIRE_NAME. */
int weir__wire_name(const struct weir__wire_target *target, char which, char out[WEIR__WIRE_NAME]);

/* Appends the names of a shard's three keys as they travel, to be kept where many commands will need them. 0,
 * WEIR_E_NOMEM or WEIR_E_SPACE. */
int weir__wire_names(struct weir__wire_buf *out, const struct weir__wire_target *target);

/* Redis Cluster's slot of a key name (hash tags honoured), 0 to 16383: for slot maps and tests. */
uint32_t weir__wire_slot(const void *name, size_t len);

/* How long a generation of a policy's keys lasts, s: 10, 600, 86,400 or 3,456,000, the first that holds
 * (2 burst + overshoot) / rate. 0: longer than any; such a policy must be refused. */
double weir__wire_generation(uint64_t limit, uint64_t per_ns, uint64_t burst, uint64_t overshoot);

/* ---- a node's batch ---------------------------------------------------------------------------------------------- */

struct weir__wire_numbers {
    uint64_t version; /* the highest wins; equal versions: the last that spoke. Compared as doubles */
    uint64_t limit;   /* tokens */
    uint64_t per_ns;  /* ... every per_ns */
    uint64_t burst;
    uint64_t overshoot; /* max_overshoot, resolved */
    double interval;    /* S of this policy, s: weir__slice_terms.interval */
    double timeout;     /* of a batch, s */
};

/* Requests of equal cost that wait for an answer from Redis. They are admitted from what is proven free. */
struct weir__wire_wait {
    int64_t cost;      /* >= 0 */
    uint32_t count;    /* in: >= 1 */
    uint32_t admitted; /* out: how many of them, in order */
};

/* One key's report. A record whose only news is `spent` travels in short form, which is four times cheaper; the encoder
 * decides. Keys must be distinct within a batch. */
struct weir__wire_record {
    const void *key;
    uint32_t key_len;
    int64_t spent; /* whole tokens, since the last report that was applied; without those admitted here */
    int64_t refunded;
    int64_t fallback_spent; /* the part of spent that a fallback share admitted */
    double age;      /* s: the rest of spent is all at least so old. 0 but for the first report after an outage */
    int slice;       /* non-zero: the key holds a slice or wants one; the five below count */
    double level;    /* tokens in hand when the batch was sent; < 0: overdraft in use */
    double rate;     /* tokens a second in force */
    double demand;   /* attempts a second */
    double want;     /* level wanted; 0: none (a release when level and rate are 0 too) */
    double max_cost; /* the largest recent cost; 0 or 1: nothing special */
    int known;       /* `seed` counts (only in a batch with WEIR__WIRE_HELLO) */
    double seed;     /* the key's total as last seen from Redis, ... */
    double seed_age; /* ... s ago */
    double fallback; /* tokens a second that its fallback share refills: with a seed only */
    struct weir__wire_wait *waits; /* must live until the reply is decoded */
    uint32_t n_waits;
};

/* The node says that Redis need not know it: the first batch to a shard, and the resend after WEIR__WIRE_LOST. */
#define WEIR__WIRE_HELLO 1u
/* The policy's on_outage is `local`: after an outage no refill for what fallback shares admitted. */
#define WEIR__WIRE_OUTAGE_LOCAL 2u

struct weir__wire_batch {
    struct weir__wire_target target;
    struct weir__wire_numbers numbers;
    uint8_t node[WEIR__WIRE_ID]; /* 128 random bits a process start */
    uint64_t seq;                /* of this node in this shard: 1, 2, 3, ...; never reused for other content */
    uint64_t nonce;              /* random bits, for an epoch that this batch may have to start */
    double epoch;                /* of the last reply from this shard; 0: none yet (with WEIR__WIRE_HELLO) */
    double rtt;                  /* measured round trip, s */
    uint32_t flags;
    double nodes; /* with HELLO: how many nodes the last answer named, from before state was lost; 0: there was none */
    struct weir__wire_record *records;
    uint32_t count;  /* may be 0: presence alone (keeps q0 and the sequence alive) */
    double test_now; /* tests only: Redis TIME is taken to be this, s; 0 in production */
};

/* A packed double's bits: little-endian, whatever the machine. Its own inverse. */
static inline uint64_t weir__wire_little(uint64_t bits)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    bits = __builtin_bswap64(bits);
#endif
    return bits;
}

/* Does this record travel in long form? (Then `slice` fields of its grant count.) */
static inline int weir__wire_is_long(const struct weir__wire_record *record)
{
    return record->slice || record->refunded != 0 || record->fallback_spent != 0 || record->age > 0;
}

/* Appends one EVALSHA command. 0, WEIR_E_NOMEM, WEIR_E_SPACE (name), WEIR_E_RANGE (too many records or waits). */
int weir__wire_sync_encode(struct weir__wire_buf *out, const struct weir__wire_batch *batch, const char *sha);

enum weir__wire_status {
    WEIR__WIRE_APPLIED = 0,
    WEIR__WIRE_REPEAT = 1,   /* it had been applied: this is the answer that was given then */
    WEIR__WIRE_LOST = 2,     /* nothing applied: Redis does not know this node or its epoch, or its numbers have a gap.
                                Resend what was in it under a new seq with HELLO, head.epoch and seeds */
    WEIR__WIRE_MISMATCH = 3, /* nothing applied: another format or shard count lives here (head.format, head.shards) */
    WEIR__WIRE_OLD = 4       /* nothing applied: a later seq has been (a delayed copy; its answer was given before) */
};

/* What every reply of the scripts starts with. */
struct weir__wire_head {
    uint32_t format;
    enum weir__wire_status status;
    double now;                        /* the shard's clock, s: never goes back */
    double epoch;                      /* send it back in the next batch */
    double last;                       /* the highest seq applied of this node */
    struct weir__wire_numbers numbers; /* in force: a version above the one sent means that the node's are stale */
    double nodes;                      /* live in the last minute, this one included */
    double q0;         /* tokens that this node may overdraw a key of this shard that it holds no slice of; void
                           WEIR__WIRE_LIVE - 10 s after the batch was sent. A node uses the least of its shards' */
    double pool;       /* what Redis may lend in slices */
    double recovering; /* s left in which state is gathered again and nothing granted; 0: none */
    uint32_t shards;
    double healed; /* records whose stored value made no sense and was replaced */
};

struct weir__wire_grant {
    double total;    /* T, the fleet's level, after this record: may be negative */
    double free;     /* of it, what is not reserved: the most that a waiting cost can have */
    int64_t carried; /* of `spent`: not applied, for the debt is as deep as it may be. Report it again */
    /* for records with `slice`; 0 otherwise: */
    double level;    /* the reservation as of the request: in hand then + granted */
    double rate;     /* tokens a second */
    double cap;      /* 0 with rate 0: no slice, ask each time */
    double fallback; /* F, tokens a second in an outage */
    double hold;     /* s: no use in asking again before; 0: none */
    int rich;        /* non-zero: more would have been there (the low mark may ask early) */
};

/* Takes the reply to `batch`, which must be unchanged since it was encoded: grants[i] and the waits of records[i].
 * With a status other than APPLIED and REPEAT only head is filled. 0, or WEIR_E_INVAL for anything that is no such
 * reply (then neither grants nor waits are worth anything, and nothing may be assumed of the batch). */
int weir__wire_sync_decode(const struct weir__wire_batch *batch, const void *reply, size_t len,
                           struct weir__wire_head *head, struct weir__wire_grant *grants);

/* ---- strict ------------------------------------------------------------------------------------------------------ */

enum weir__wire_op {
    WEIR__WIRE_TAKE = 0,
    WEIR__WIRE_GIVE = 1,
    WEIR__WIRE_LOOK = 2,
    WEIR__WIRE_SEEN = 3 /* for a Redis that lost its state: no more than this can be left */
};

struct weir__wire_strict_entry {
    uint32_t key; /* index into keys */
    enum weir__wire_op op;
    int64_t cost;      /* TAKE: of each; GIVE: tokens to refund; SEEN: the level as of `count` ms ago */
    uint32_t count;    /* TAKE: requests merged, >= 1; else 1 */
    uint32_t admitted; /* out (TAKE) */
    double free;       /* out: what was there right after this entry: retry = (cost - free) / rate */
};

struct weir__wire_key {
    const void *key;
    uint32_t key_len;
    double total; /* out: T after the batch */
    double free;  /* out: of it, not reserved by slices */
};

/* What one shard is asked. Entries are worked off in order. Never repeated: a strict batch is at most once. */
struct weir__wire_strict {
    struct weir__wire_target target;
    struct weir__wire_numbers numbers;
    uint64_t nonce;
    double epoch; /* of the last answer, or 0. LOST: it is another one, nothing was applied; ask again with head.epoch,
                     and say what was SEEN */
    uint32_t flags;              /* WEIR__WIRE_OUTAGE_LOCAL or 0 */
    struct weir__wire_key *keys; /* distinct */
    uint32_t n_keys;
    struct weir__wire_strict_entry *entries;
    uint32_t n_entries;
    double test_now;
};

int weir__wire_strict_encode(struct weir__wire_buf *out, const struct weir__wire_strict *batch, const char *sha);
int weir__wire_strict_decode(struct weir__wire_strict *batch, const void *reply, size_t len,
                             struct weir__wire_head *head);

/* The same for n shards of one policy in one command, each of which is answered for itself. What is not of a shard is
 * the first one's; keys and entries are counted together. In a cluster n is 1, or the policy has a group: a script
 * touches one slot there. */
#define WEIR__WIRE_SHARDS 64u
int weir__wire_strict_encode_all(struct weir__wire_buf *out, const struct weir__wire_strict *shards, uint32_t n,
                                 const char *sha);
int weir__wire_strict_decode_all(struct weir__wire_strict *shards, uint32_t n, const void *reply, size_t len,
                                 struct weir__wire_head *heads);

/* All or none of n takes, each of a policy of one group (or one policy); head.numbers are the first member's. */
struct weir__wire_member {
    struct weir__wire_target target; /* the same prefix and group for all */
    struct weir__wire_numbers numbers;
    const void *key;
    uint32_t key_len;
    uint32_t flags; /* WEIR__WIRE_OUTAGE_LOCAL or 0 */
    int64_t cost;
    double total, free; /* out: after the decision */
    int denied;         /* out: it had too little, or would have after the members before it */
};

struct weir__wire_all {
    struct weir__wire_member *members;
    uint32_t n; /* 1 to 64 */
    uint64_t nonce;
    double test_now;
    int admitted; /* out */
};

int weir__wire_all_encode(struct weir__wire_buf *out, const struct weir__wire_all *all, const char *sha);
int weir__wire_all_decode(struct weir__wire_all *all, const void *reply, size_t len, struct weir__wire_head *head);

/* ---- forget and peek --------------------------------------------------------------------------------------------- */

/* Its reply is an integer: how many of the keys existed. */
int weir__wire_forget_encode(struct weir__wire_buf *out, const struct weir__wire_target *target,
                             const struct weir__wire_key *keys, uint32_t n, const char *sha);

struct weir__wire_seen_slice {
    uint8_t node[8]; /* the first bytes of its id */
    double age;      /* s since it last reported */
    double reserved; /* tokens, as of now */
    double rate, cap, fallback, demand;
    int expired; /* a tombstone: `reserved` was written off */
};

struct weir__wire_seen {
    int exists;   /* 0: nowhere, which counts as full */
    int older;    /* it is in the older generation */
    double total; /* T now */
    double free;
    double reserved; /* P */
    double rates, fallbacks, demands, caps;
    double ttl;        /* s left of the generation that holds it; < 0: none */
    double generation; /* number of the newer one */
    double flip;       /* s until the next begins */
    uint32_t n_slices;
};

int weir__wire_peek_encode(struct weir__wire_buf *out, const struct weir__wire_target *target, const void *key,
                           size_t key_len, double test_now, const char *sha);
/* Fills at most `room` slices; seen->n_slices says how many there are. */
int weir__wire_peek_decode(const void *reply, size_t len, struct weir__wire_head *head, struct weir__wire_seen *seen,
                           struct weir__wire_seen_slice *slices, uint32_t room);

#endif
