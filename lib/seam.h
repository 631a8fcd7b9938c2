/* SPDX-License-Identifier: MIT */
/*
 * The seam: all that sync/ may see of lib/. Installed nowhere; its symbols are exported under the version node
 * WEIR_PRIVATE for libweir-sync alone. A fake store can drive it (tests/unit/test_seam.c).
 *
 * One sync thread (the collector) calls the functions marked "collector"; nobody else may while it runs.
 */
#ifndef WEIR_LIB_SEAM_H
#define WEIR_LIB_SEAM_H

#include <stddef.h>
#include <stdint.h>

#include <weir/weir.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* Durations, counted up to each bound; the last count is past all of them. */
#define WEIR__SEAM_BOUNDS_NS                                                                                           \
    {                                                                                                                  \
        250000, 500000, 1000000, 2500000, 5000000, 10000000, 25000000, 50000000, 100000000, 250000000, 1000000000      \
    }
#define WEIR__SEAM_BOUNDS 11
struct weir__seam_durations {
    uint64_t count[WEIR__SEAM_BOUNDS + 1]; /* each for itself, not added up */
    uint64_t sum_ns;
};

#define WEIR__SEAM_KINDS_MAX 32
/* What weir_metrics_write tells besides weir_stats. */
struct weir__seam_metrics {
    struct weir__seam_durations sync, strict;
    struct {
        const char *kind; /* one word, static */
        uint64_t count;
    } errors[WEIR__SEAM_KINDS_MAX];
    uint32_t kinds;
    char hiredis[16], libuv[16]; /* versions */
};

/* What libweir calls when a sync is attached. Any thread; none may block but `strict`. */
struct weir__hooks {
    void *ctx;
    void (*wake)(void *ctx); /* urgent keys wait: coalesced, one call until weir__seam_urgent has been drained */
    /* n strict decisions, blocking for at most timeout_ns (0: the sync's). Fills status and result of each. */
    int (*strict)(void *ctx, struct weir_request *requests, size_t n, uint64_t timeout_ns);
    int (*strict_all)(void *ctx, struct weir_request *requests, size_t n, struct weir_result *result);
    int (*peek)(void *ctx, const struct weir_request *request); /* strict policies: a cost-0 or asking take */
    int (*give)(void *ctx, const struct weir_request *request); /* strict policies: cost = tokens to refund */
    int (*async)(void *ctx, const struct weir_request *request, weir_take_cb cb, void *arg);
    int (*wait)(void *ctx, const struct weir_request *request, uint64_t timeout_ns, struct weir_result *result);
    int (*forget)(void *ctx, weir_policy_id id, const void *key, size_t key_len);
    void (*policy_changed)(void *ctx, weir_policy_id id);       /* after weir_policy_add and _set */
    void (*stats)(void *ctx, struct weir_stats *stats);         /* fills the fields that sync owns */
    void (*metrics)(void *ctx, struct weir__seam_metrics *out); /* NULL: it has none to tell */
    void (*join)(void *ctx);                                    /* from weir_close: wait for the own thread */
};
/* Decisions that a hook makes are counted by it (weir__seam_count, weir__seam_outage_take), not by its caller. */

/* Attaching turns hybrid entries from WEIR__LOCAL to WEIR__BARE: what was spent before is reported as a debt.
 * WEIR_E_BUSY when one is attached. Detaching waits until no call is inside a hook, then hybrid and strict policies
 * answer by their outage policies. *hooks must stay until then; only `join` (may be NULL) and ctx are remembered:
 * weir_close or the next attach, whichever comes first, calls join(ctx) once, and ctx is gone then. */
int weir__seam_attach(struct weir *w, const struct weir__hooks *hooks);
void weir__seam_detach(struct weir *w);

/* Detaches this process alone: others that share the limiter go on. */
void weir__seam_leave(struct weir *w);

/* A policy's numbers as sync/ needs them; name and group live as long as the limiter. */
struct weir__seam_policy {
    const char *name, *group;
    uint64_t limit, per_ns, burst, version;
    uint64_t max_overshoot; /* tokens, resolved: never 0 for "default" nor WEIR_NONE */
    enum weir_mode mode;
    enum weir_on_outage on_outage;
    enum weir_unknown unknown;
    int shadow;
};
int weir__seam_policy(struct weir *w, weir_policy_id id,
                      struct weir__seam_policy *out); /* WEIR_E_NOENT past the last */

/* collector: the overdraft that a key of this policy may use before Redis has spoken of it (q0; tokens), and the share
 * that a never-synced key falls back to. Takers add the one token of WEIR_UNKNOWN_ADMIT themselves. */
void weir__seam_overdraft(struct weir *w, weir_policy_id id, uint64_t tokens, double fallback_rate,
                          double fallback_burst);

/* collector: entries without a slice (and new ones) are good until then (ns, weir_now's clock); past it, the outage
 * policy answers. Sliced entries have their own `until`. */
void weir__seam_fresh_until(struct weir *w, weir_policy_id id, uint64_t until_ns);

/* collector: how often it reports a key of this policy and how long an answer takes (ns), for WEIR_STALE (older than
 * two intervals) and for retry_after_ns where only Redis can tell more. Until told: 200 ms and 50 ms. */
void weir__seam_pace(struct weir *w, weir_policy_id id, uint64_t interval_ns, uint64_t round_trip_ns);

/* collector: so many tokens were admitted that the shared bucket did not have. */
void weir__seam_overshoot(struct weir *w, weir_policy_id id, uint64_t tokens);

struct weir__report {
    uint32_t slot; /* the entry, pinned until weir__seam_release */
    uint64_t id;   /* of the key: another value means that the slot holds another key now */
    weir_policy_id policy;
    const void *key; /* valid until weir__seam_release */
    uint32_t key_len;
    int64_t spent;          /* whole tokens since the last report, now the caller's to deliver; signed */
    int64_t refunded;       /* whole tokens given back since then */
    int64_t fallback_spent; /* the part of `spent` that was admitted on a fallback share */
    double level;           /* tokens in hand at `now`, < 0: overdraft in use */
    double rate;            /* tokens a second in force */
    uint64_t attempts;      /* tokens asked for since the last report, admitted and denied (lossy) */
    uint64_t asked;         /* the largest cost since then that was denied or taken of a slice; 0: none, or 1 */
    uint64_t now;           /* when level was read */
    uint64_t until;         /* of the slice in force; 0: none */
    uint8_t regime;         /* enum weir__regime */
    uint8_t urgent;
};

/* collector: hands over a report for every dirty hybrid entry, and for each urgent one. An entry that is pinned by an
 * earlier report stays dirty (one report a key in flight). Stops when `take` returns 0 (that entry is put back).
 * Returns how many were taken. `budget` bounds the number of reports. */
typedef int (*weir__report_fn)(void *ctx, const struct weir__report *report);
size_t weir__seam_collect(struct weir *w, uint64_t now, size_t budget, weir__report_fn take, void *ctx);
/* The same for some of them; the others stay dirty. `pick` is shown up to 64 that are dirty (bit i: slot first + i) and
 * returns which of these it wants. Nothing of an entry is touched for that. */
typedef uint64_t (*weir__pick_fn)(void *ctx, uint32_t first, uint64_t mask);
size_t weir__seam_collect_some(struct weir *w, uint64_t now, size_t budget, weir__pick_fn pick, weir__report_fn take,
                               void *ctx);
size_t weir__seam_urgent(struct weir *w, uint64_t now, size_t budget, weir__report_fn take, void *ctx);

/* collector: a report for one entry that holds a slice and must renew it although it may be clean. 0 where the entry is
 * in flight or no longer that key's. */
int weir__seam_report(struct weir *w, uint32_t slot, uint64_t now, struct weir__report *out);

/* collector: reports of those of n entries that are dirty by now and have none out; they lie one after the other.
 * Returns how many there are. The others are as weir__seam_collect leaves them. */
size_t weir__seam_later(struct weir *w, const uint32_t *slots, size_t n, uint64_t now, struct weir__report *reports);

/* Redis' answer to a report. */
struct weir__grant {
    double level_delta;   /* tokens added to the level (may be negative) */
    double refill_back;   /* tokens: so much of what refilled since the report goes, for the rate fell */
    double rate;          /* tokens a second from now on; 0 with cap 0: no slice */
    double cap;           /* tokens */
    double low;           /* tokens: below it sync early; < 0: never */
    uint64_t until;       /* ns */
    uint64_t hold;        /* ns; 0: none */
    double fallback_rate; /* F, tokens a second; < 0: keep */
    double fallback_cap;
    double global; /* T: the fleet's level as Redis sees it, for `remaining` */
    double unheld; /* of it, what no slice holds: an outage's share of a key with a slice */
};

/* collector: fetches the lines of an entry that is to be reported or answered soon, for they are rarely in a cache. */
void weir__seam_prefetch(const struct weir *w, uint32_t slot);

/* collector: applies the answer and ends the report: unpins. */
void weir__seam_apply(struct weir *w, uint32_t slot, uint64_t now, const struct weir__grant *grant);
void weir__seam_apply_all(struct weir *w, const uint32_t *slots, size_t n, uint64_t now,
                          const struct weir__grant *grants);

/* collector: the answer is late: the slice in force refills no more from `at` on, which may be past (its level then and
 * its end stay; what was spent since is owed). The report stays out. */
void weir__seam_pause(struct weir *w, uint32_t slot, uint64_t at);

/* collector: nobody can answer the report: an entry without a slice, too, is answered by its outage policy from now on,
 * until weir__seam_apply. The report stays out. */
void weir__seam_strand(struct weir *w, uint32_t slot, uint64_t now);

/* collector: whole tokens spent that no report has carried yet, those of entries whose report is out included. */
uint64_t weir__seam_unsent(struct weir *w);

/* collector: ends a report without an answer; `unsent` (whole tokens) goes back to the entry as unreported. */
void weir__seam_release(struct weir *w, uint32_t slot, int64_t unsent_spent, int64_t unsent_refunded);

/* Is anything left to report? */
int weir__seam_dirty(struct weir *w);

/* Takes from what is in hand (a local bucket; a slice, the overdraft, the fallback share of an outage), and otherwise
 * says WEIR__SEAM_ASK where Redis may know better: unlike weir_take it admits nothing on WEIR_UNKNOWN_ADMIT. WEIR_DENY
 * only where memory suffices to say so: a local policy, on hold, cost > burst, an outage. Errors as weir_take. Counts
 * its verdicts. Strict policies: always WEIR__SEAM_ASK. Threads: any. */
#define WEIR__SEAM_ASK 2
int weir__seam_try(struct weir *w, const struct weir_request *request, struct weir_result *result);

/* Counts a decision that Redis made. Threads: any. */
void weir__seam_count(struct weir *w, weir_policy_id id, int status);

/* Verdict of the outage policy for a strict request that Redis did not answer (counted, DEGRADED). fleet: what Redis
 * last said that the key's bucket holds, grown since, tokens; < 0: not known. Threads: any. */
int weir__seam_outage_take(struct weir *w, const struct weir_request *request, double fleet,
                           struct weir_result *result);

void weir__seam_log(struct weir *w, enum weir_log_level level, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/* The limiter's allocator; NULL when out of memory. */
void *weir__seam_alloc(struct weir *w, size_t size);
void weir__seam_free(struct weir *w, void *memory, size_t size);

/* The same as an allocator, with both functions set, that stays good when the limiter is gone. */
struct weir_allocator weir__seam_allocator(const struct weir *w);

/* ---- processes that share a limiter ------------------------------------------------------------------------------ */

int weir__seam_is_shared(const struct weir *w);

/* Memory in the mapping for the sync's own use, zero at first: at least 24 MB and 128 bytes a slot. NULL where the
 * limiter is not shared. */
void *weir__seam_store(struct weir *w, size_t *size);

/* One process reconciles. lead: 1: it is this one from now on, until it ends or weir__seam_retire; the calling thread
 * is the collector, and the only one that may retire. 0: it is another one. What the last one had left half done in an
 * entry is whole again. */
int weir__seam_lead(struct weir *w);
void weir__seam_retire(struct weir *w);

/* This process closes: it takes over from nobody who closes later. 1: no other living process has a sync attached that
 * is not closing itself. */
int weir__seam_closing(struct weir *w);

/* How often policies were added or changed, by any process. */
uint32_t weir__seam_changes(const struct weir *w);

/* Do urgent keys wait? The process that listed them could not wake this one. */
int weir__seam_hurries(const struct weir *w);

/* collector: of a limiter that is shared weir__seam_apply leaves the entry pinned until this; else it does nothing. */
void weir__seam_end(struct weir *w, uint32_t slot);

/* collector: the report that is out for an entry: slot, id, policy, key, spent, refunded, fallback_spent. 0: none is;
 * WEIR__SEAM_ANSWERED: its answer has been applied. Who took over from another one ends all of those: with
 * weir__seam_apply, or by reclaim, which releases those that are not answered and that `keep` doesn't keep, and lists
 * every key that may hold a slice. */
#define WEIR__SEAM_ANSWERED 3
typedef int (*weir__keep_fn)(void *ctx, uint32_t slot);
int weir__seam_out(struct weir *w, uint32_t slot, struct weir__report *report);
void weir__seam_reclaim(struct weir *w, weir__keep_fn keep, void *ctx);

/* collector: looks at the next entries for marks and pins that somebody was killed over. */
void weir__seam_audit(struct weir *w, size_t budget);

/* Number of slots in the table: an upper bound of weir__report.slot. */
uint32_t weir__seam_slots(const struct weir *w);

/* ---- for whoever watches ----------------------------------------------------------------------------------------- */

/* Decisions of a policy so far. Threads: any. */
void weir__seam_verdicts(struct weir *w, weir_policy_id id, uint64_t *allowed, uint64_t *denied);

/* What an entry was asked for: only differences mean anything, and only while id is the same. Tokens admitted, and
 * those denied where that is counted (hybrid keys that Redis knows). 0: no key is there. Threads: any. */
struct weir__sight {
    uint64_t id;
    weir_policy_id policy;
    uint64_t tokens;
};
int weir__seam_sight(const struct weir *w, uint32_t slot, struct weir__sight *out);

/* collector: copies the key with this id, or as much of it as fits (of a long key of a local policy the first 32
 * bytes). Returns the length of the whole key; 0: another key is there by now. */
#define WEIR__SEAM_KEY_PART 32u
size_t weir__seam_key(struct weir *w, uint32_t slot, uint64_t id, void *buf, size_t size);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
