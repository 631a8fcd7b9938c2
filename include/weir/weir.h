/* SPDX-License-Identifier: MIT */
/*
 * weir: rate limiting for fast servers.
 *
 * A limiter (struct weir) holds policies (a rate, a burst, a mode) and one token bucket a key and policy. A decision
 * takes nanoseconds and never blocks, except in strict mode, where it is one round trip to Redis.
 *
 * Conventions of every function here:
 *   - a negative return is an error (weir_strerror gives its text); nothing was changed then;
 *   - times are nanoseconds on the limiter's monotonic clock (weir_now), tokens are whole;
 *   - structs of options start with their own size: initialise them with the *_INIT macro; zero means the default;
 *   - keys are any bytes, 1 to WEIR_KEY_MAX of them; nothing keeps a pointer to what the caller passed;
 *   - unless said otherwise, a function may be called from any number of threads at once.
 */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#else
#define WEIR_API
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0

#define WEIR_KEY_MAX 65535u                /* bytes of a key */
#define WEIR_NAME_MAX 63u                  /* bytes of a policy's or a group's name */
#define WEIR_BURST_MAX (UINT64_C(1) << 53) /* tokens; a local policy's resolution falls above 10^9 */
#define WEIR_NEVER UINT64_MAX              /* retry_after_ns: no wait will help */
#define WEIR_NONE UINT64_MAX               /* max_overshoot: not one token */

/* ---- statuses ---------------------------------------------------------------------------------------------------- */

/* code, number, text: the only place where they meet. 0 and 1 are verdicts, negatives are errors. */
#define WEIR_STATUS_MAP(X)                                                                                             \
    X(WEIR_ALLOW, 0, "allowed")                                                                                        \
    X(WEIR_DENY, 1, "denied: over the limit")                                                                          \
    X(WEIR_E_INVAL, -1, "invalid argument")                                                                            \
    X(WEIR_E_NOMEM, -2, "out of memory")                                                                               \
    X(WEIR_E_RANGE, -3, "number out of range")                                                                         \
    X(WEIR_E_EXIST, -4, "a policy of that name exists already")                                                        \
    X(WEIR_E_NOENT, -5, "no such policy or key")                                                                       \
    X(WEIR_E_FULL, -6, "no room left")                                                                                 \
    X(WEIR_E_KEY, -7, "key is empty or longer than 65,535 bytes")                                                      \
    X(WEIR_E_COST, -8, "cost is negative")                                                                             \
    X(WEIR_E_NAME, -9, "name is empty, too long or holds a control character or a brace")                              \
    X(WEIR_E_NOSYNC, -10, "no reconciliation with Redis is running")                                                   \
    X(WEIR_E_LOOP, -11, "would block the event loop: use weir_take_async")                                             \
    X(WEIR_E_FORKED, -12, "limiter was inherited through fork after its sync had started")                             \
    X(WEIR_E_CLOSED, -13, "closed or closing")                                                                         \
    X(WEIR_E_BUSY, -14, "already started")                                                                             \
    X(WEIR_E_TIMEOUT, -15, "no answer in time")                                                                        \
    X(WEIR_E_URI, -16, "URI does not parse")                                                                           \
    X(WEIR_E_NOSUP, -17, "not supported by this build or machine")                                                     \
    X(WEIR_E_SYS, -18, "system call failed")                                                                           \
    X(WEIR_E_SPACE, -19, "buffer too small")                                                                           \
    X(WEIR_E_MISMATCH, -20, "Redis holds another format or shard count under this prefix")

enum weir_status {
#define WEIR_STATUS_ENUM(code, number, text) code = (number),
    WEIR_STATUS_MAP(WEIR_STATUS_ENUM)
#undef WEIR_STATUS_ENUM
};

/* Text of a status, never NULL; static storage. */
WEIR_API const char *weir_strerror(int status);

/* "0.1.0": of the library in use, not of this header. */
WEIR_API const char *weir_version(void);

/* ---- limiter ----------------------------------------------------------------------------------------------------- */

struct weir;

enum weir_on_full {
    WEIR_FULL_DENY = 0, /* a new key that finds no room is denied (default), flagged WEIR_FULL */
    WEIR_FULL_ADMIT = 1 /* ... or admitted uncharged, flagged WEIR_FULL */
};

/* A suspended machine: CLOCK_MONOTONIC stands still, most counters go on, and buckets refill meanwhile. */
enum weir_clock {
    WEIR_CLOCK_AUTO = 0,     /* the CPU's time-stamp counter where it is verified, else CLOCK_MONOTONIC */
    WEIR_CLOCK_MONOTONIC = 1 /* always clock_gettime(CLOCK_MONOTONIC) */
};

enum weir_log_level { WEIR_LOG_ERROR = 0, WEIR_LOG_WARN = 1, WEIR_LOG_INFO = 2, WEIR_LOG_DEBUG = 3 };

/* All of the library's own memory comes from here; both or neither must be set. alloc returns NULL when out of memory.
 * release gets the size that was asked for. Not used for an option `shared` limiter's table, which is mapped. */
struct weir_allocator {
    void *(*alloc)(void *arg, size_t size);
    void (*release)(void *arg, void *memory, size_t size);
    void *arg;
};

struct weir_options {
    size_t size;
    size_t max_keys; /* buckets held at once; memory is reserved for them at open; 0: 65,536 */
    enum weir_on_full on_full;
    enum weir_clock clock;
    uint64_t (*now_ns)(void *now_arg); /* the caller's monotonic clock instead; must be thread-safe */
    void *now_arg;
    /* Non-zero: one table for this process and those that it forks, each of which may be killed at any time. Open it
     * and add the policies before forking; start a sync in each child, with the same options: one of them reconciles
     * for all (docs/prefork.md). Handles pin no entry then, and leases are not taken. */
    int shared;
    void (*log)(void *log_arg, enum weir_log_level level, const char *line); /* called from the sync thread */
    void *log_arg;
    struct weir_allocator allocator;
    uint64_t reserved[4];
};

#ifdef __cplusplus
#define WEIR_OPTIONS_INIT weir_options_init_()
#else
#define WEIR_OPTIONS_INIT                                                                                              \
    {                                                                                                                  \
        .size = sizeof(struct weir_options)                                                                            \
    }
#endif

/* Opens a limiter. options may be NULL. On an error *out is NULL and nothing is left to free. WEIR_E_INVAL,
 * WEIR_E_RANGE, WEIR_E_NOMEM, WEIR_E_SYS (no randomness), WEIR_E_NOSUP (shared, where the CPU has no 16-byte
 * compare-and-swap). */
WEIR_API int weir_open(struct weir **out, const struct weir_options *options);

/* Frees it; NULL is allowed. Threads: no other call may be running on it; weir_sync_close must have called back, and
 * handles be closed. */
WEIR_API void weir_close(struct weir *w);

/* The limiter's clock now, ns. */
WEIR_API uint64_t weir_now(const struct weir *w);

/* ---- policies ---------------------------------------------------------------------------------------------------- */

typedef uint32_t weir_policy_id;

enum weir_mode {
    WEIR_HYBRID = 0, /* decided in memory, reconciled with Redis by a timer (default) */
    WEIR_LOCAL = 1,  /* decided in memory, this process alone */
    WEIR_STRICT = 2  /* each decision by an atomic script in Redis */
};

/* What answers, flagged WEIR_DEGRADED, while Redis does not. A strict request that got no answer in time is never sent
 * again: Redis executed it once or not at all, so it may have been charged there besides. */
enum weir_on_outage {
    WEIR_OUTAGE_LOCAL = 0, /* each process enforces its last known share (default); of a policy that no process has in
                              hybrid mode it is that of weir_sync_options.fleet_hint processes */
    WEIR_OUTAGE_OPEN = 1,  /* admit, uncharged */
    WEIR_OUTAGE_CLOSED = 2 /* deny: answer 503, not 429 */
};

enum weir_unknown {
    WEIR_UNKNOWN_ADMIT = 0, /* hybrid: a key with nothing in hand admits one while Redis is asked (default) */
    WEIR_UNKNOWN_DENY = 1   /* ... or denies until Redis has answered */
};

/* A token bucket: `limit` tokens every `per_ns`, at most `burst` of them saved up; it starts full. */
struct weir_policy {
    size_t size;
    const char *name; /* 1 to WEIR_NAME_MAX bytes, no control characters, no { or }; copied */
    uint64_t limit;   /* tokens; with per_ns an exact ratio, from 1 a day to 100 million a second.
                                  0 (local only): the burst once, then never */
    uint64_t per_ns;  /* the period of limit, ns; not 0 */
    uint64_t burst;   /* tokens; 0: = limit */
    enum weir_mode mode;
    uint64_t max_overshoot; /* hybrid: tokens that the fleet together may lend; 0: 10 % of burst; WEIR_NONE: none */
    enum weir_on_outage on_outage;
    enum weir_unknown unknown;
    const char *group; /* strict: policies of one group are charged together by weir_take_all; NULL: none */
    uint64_t version;  /* of these numbers across the fleet, 2^53 at most; the highest wins */
    int shadow;        /* non-zero: decide and report (WEIR_SHADOW), never deny */
    uint64_t reserved[4];
};

#ifdef __cplusplus
#define WEIR_POLICY_INIT weir_policy_init_()
#else
#define WEIR_POLICY_INIT                                                                                               \
    {                                                                                                                  \
        .size = sizeof(struct weir_policy)                                                                             \
    }
#endif

/* WEIR_E_EXIST for a name in use, WEIR_E_NAME, WEIR_E_RANGE for numbers past the limits above, WEIR_E_INVAL for a
 * period of 0, for limit and burst both 0 or for limit 0 in a shared mode. */
WEIR_API int weir_policy_add(struct weir *w, const struct weir_policy *policy, weir_policy_id *out);

/* New numbers or another mode, live, for every key of the policy. A smaller burst clips what is saved; a larger one
 * fills at the rate, not at once. The name and the group can't change (WEIR_E_INVAL); NULL keeps them. */
WEIR_API int weir_policy_set(struct weir *w, weir_policy_id id, const struct weir_policy *policy);

/* WEIR_E_NOENT where no policy has that name. */
WEIR_API int weir_policy_find(struct weir *w, const char *name, weir_policy_id *out);

/* ---- decisions --------------------------------------------------------------------------------------------------- */

/* weir_result.flags */
#define WEIR_DEGRADED 1u /* the outage policy answered, not the shared state */
#define WEIR_STALE 2u    /* hybrid: the last word from Redis is more than two intervals old */
#define WEIR_SHADOW 4u   /* a shadow policy would have denied */
#define WEIR_UNKNOWN 8u  /* hybrid: decided before Redis had said anything of this key */
#define WEIR_FULL 16u    /* the table had no room: on_full answered */

struct weir_result {
    uint64_t limit;          /* the policy's burst: the most that one can have, tokens */
    int64_t remaining;       /* tokens left, rounded down; never negative */
    uint64_t retry_after_ns; /* 0 when allowed; else until the same cost can pass, rounded up; or WEIR_NEVER */
    uint64_t reset_after_ns; /* until the bucket is full again, rounded up; WEIR_NEVER where it never refills */
    uint32_t flags;
    weir_policy_id policy;      /* the one that denied, or the one asked */
    const struct weir *limiter; /* whose policy that is: for weir/http.h, while it is open */
    uint64_t reserved[1];
};

/* Takes cost tokens for key, or none. cost 0 peeks. Returns WEIR_ALLOW, WEIR_DENY or an error.
 * result may be NULL, which is faster. A strict policy blocks up to timeout_ms (WEIR_E_LOOP on the sync loop's thread).
 *   WEIR_E_KEY, WEIR_E_COST, WEIR_E_NOENT (policy), WEIR_E_FORKED. */
WEIR_API int weir_take(struct weir *w, weir_policy_id id, const void *key, size_t key_len, int64_t cost,
                       struct weir_result *result);

/* The same at a time that the caller read from weir_now before: saves the clock. A time that goes back grants
 * nothing. */
WEIR_API int weir_take_at(struct weir *w, weir_policy_id id, const void *key, size_t key_len, int64_t cost,
                          uint64_t now_ns, struct weir_result *result);

/* Would `cost` pass now? Consumes nothing and creates nothing. result may be NULL. */
WEIR_API int weir_peek(struct weir *w, weir_policy_id id, const void *key, size_t key_len, int64_t cost,
                       struct weir_result *result);

/* Gives tokens back (a refund), clamped at the burst. 0, or an error; WEIR_E_COST for a negative number. */
WEIR_API int weir_give(struct weir *w, weir_policy_id id, const void *key, size_t key_len, int64_t tokens);

/* Drops the key here and, where the policy is shared, in Redis: the next take finds a full bucket. */
WEIR_API int weir_forget(struct weir *w, weir_policy_id id, const void *key, size_t key_len);

struct weir_request {
    weir_policy_id policy;
    int status; /* out: what weir_take would have returned */
    const void *key;
    size_t key_len;
    int64_t cost;
    struct weir_result *result; /* out; or NULL */
    uint64_t reserved[2];
};

/* n independent decisions at one time, several times faster than one by one: memory is fetched ahead. now_ns 0: the
 * limiter's clock. Strict members are sent together. Returns 0, or an error when an argument is wrong (each request's
 * status says which). */
WEIR_API int weir_take_many(struct weir *w, struct weir_request *requests, size_t n, uint64_t now_ns);

/* Every request is charged, or none. On a denial result->policy names the one that denied and retry_after_ns is the
 * longest wait among those that denied. What requests of one bucket ask for adds up: WEIR_NEVER where that is more than
 * its burst. n up to 64. */
WEIR_API int weir_take_all(struct weir *w, struct weir_request *requests, size_t n, struct weir_result *result);

/* ---- key handles ------------------------------------------------------------------------------------------------- */

/* A key looked up once: the fastest way to decide for a hot key. Its entry stays in the table until close. */
struct weir_key;

WEIR_API int weir_key_open(struct weir *w, weir_policy_id id, const void *key, size_t key_len, struct weir_key **out);

/* As weir_take_at; now_ns 0: the limiter's clock. The usual case is compiled into the caller (weir/quick.h).
 *
 * Threads that are in each other's way on one bucket lease tokens (no result, local policies of 160,000 a second and a
 * burst of 1,024 or more): bucket and leases together never hold more than the burst, a lease at most 1/64 of it and
 * 100 us of refill, all of them at most 1/16. A lease goes back when its thread ends, its handle is closed or its
 * policy is changed; and to whoever would be denied else, once it was taken more than 1.1 ms ago. So nobody is denied
 * for tokens that lie in older ones, but while its thread, or one that takes leases back, is just at it. */
WEIR_API int weir_key_take(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result);

/* Threads: no take may be running on it. NULL is allowed. */
WEIR_API void weir_key_close(struct weir_key *key);

/* ---- asking Redis ------------------------------------------------------------------------------------------------ */

typedef void (*weir_take_cb)(void *arg, int status, const struct weir_result *result);

/* Decides in any mode; where the policy is strict, or a hybrid key has too little in hand, Redis is asked. cb runs
 * later, exactly once, from the sync loop's thread; it may take and close. The key is copied; request->result is not
 * used. 0, or an error (then cb never runs): WEIR_E_NOSYNC, WEIR_E_CLOSED and those of weir_take. */
WEIR_API int weir_take_async(struct weir *w, const struct weir_request *request, weir_take_cb cb, void *arg);

/* The same, waiting for at most timeout_ns (0: the sync's timeout; a year where it is more). Blocks only where Redis
 * must be asked.
 * Threads: any but the sync loop's own (WEIR_E_LOOP). */
WEIR_API int weir_take_wait(struct weir *w, const struct weir_request *request, uint64_t timeout_ns,
                            struct weir_result *result);

/* ---- what it sees ------------------------------------------------------------------------------------------------ */

struct weir_stats {
    size_t size;   /* set by the caller: sizeof(struct weir_stats) */
    uint64_t keys; /* buckets in the table */
    uint64_t max_keys;
    uint64_t memory_bytes; /* reserved at open */
    uint64_t evictions;    /* full, synced buckets dropped to make room */
    uint64_t table_full;   /* takes answered by on_full */
    uint64_t degraded;     /* takes answered by an outage policy */
    uint64_t syncs;        /* batches answered by Redis */
    uint64_t sync_errors;  /* batches that failed: error replies, garbage, timeouts, lost connections */
    uint64_t reconnects;
    uint64_t strict;             /* strict decisions made by Redis */
    uint64_t pending_tokens;     /* spent and not yet acknowledged by Redis, as of the last tick */
    uint64_t written_off_tokens; /* reports dropped by ageing or at close */
    uint64_t last_sync_ns;       /* weir_now() at the last answer; 0: never */
    int store_up;                /* 1: connected and answering */
    uint64_t allowed;            /* decisions, all policies and modes */
    uint64_t denied;
    uint64_t reports;           /* keys that Redis was told of, in hybrid policies */
    uint64_t unreturned_tokens; /* strict: charged to nobody, perhaps: a refund had no answer */
    uint64_t reserved[6];
};

/* WEIR_E_INVAL unless stats->size is set. */
WEIR_API int weir_stats_get(struct weir *w, struct weir_stats *stats);

/* Prometheus text format. Returns the length that the whole text needs, as snprintf does; buf is always terminated
 * where len > 0. */
WEIR_API int weir_metrics_write(struct weir *w, char *buf, size_t len);

#ifdef __cplusplus
}
static inline weir_options weir_options_init_()
{
    weir_options o = weir_options();
    o.size = sizeof o;
    return o;
}
static inline weir_policy weir_policy_init_()
{
    weir_policy p = weir_policy();
    p.size = sizeof p;
    return p;
}
#endif

#include <weir/quick.h>

#endif
