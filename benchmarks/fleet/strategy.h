/* SPDX-License-Identifier: MIT */
/*
 * One way to share a limit, behind one small interface: decide(key, cost). A strategy lives in one process and on one
 * thread; what it shares with its like in other processes is in Redis.
 *
 * Owns the interface and the list. Must not know who asks, how often, or what is measured.
 */
#ifndef WEIR_BENCH_FLEET_STRATEGY_H
#define WEIR_BENCH_FLEET_STRATEGY_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define STRATEGY_KEY_MAX 24u

/* `tokens` every `per_ns`, at most `burst` saved. To a window it is `burst` in each burst / rate. */
struct strategy_limit {
    uint64_t tokens, per_ns, burst;
};

/* Tokens a ns. */
static inline double strategy_rate(const struct strategy_limit *limit)
{
    return (double)limit->tokens / (double)limit->per_ns;
}

static inline double strategy_window_ns(const struct strategy_limit *limit)
{
    return (double)limit->burst / strategy_rate(limit);
}

/* One request. It belongs to the strategy from decide until on_verdict. */
struct strategy_ask {
    char key[STRATEGY_KEY_MAX];
    uint32_t key_len, limit, cost;
    int allowed, degraded; /* the verdict; degraded: without Redis where it should have been asked */
    uint64_t ticks;        /* the asker's */
    void *asker, *strategy;
};

struct strategy_setup {
    const char *socket; /* of Redis */
    const struct strategy_limit *limits;
    unsigned limit_count, processes, index;
    uint32_t interval_ms; /* of a timer, where there is one; 0: 200 */
    uint32_t timeout_ms;  /* after which nobody waits for Redis any more; 0: 50 */
    int64_t skew_ns;      /* what this process' wall clock is off by, where the strategy uses it */
    void (*on_verdict)(struct strategy_ask *ask);
};

struct strategy {
    const char *name, *what;
    const char *commands; /* that it sends by itself (not by scripts), as INFO commandstats names them */
    /* What its kind may be held to while Redis answers: tokens over the limit in any window. NULL: nothing. */
    double (*claim)(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds);
    int in_memory;      /* a decision waits for nobody */
    int skewed;         /* its processes' clocks are told to be off: by 2 s in turn forward and back */
    uint32_t settle_ms; /* that its processes need to meet before the first request */
    const void *detail; /* the file's own */

    void *(*open)(const struct strategy *strategy, const struct strategy_setup *setup);
    void (*decide)(void *self, struct strategy_ask *ask); /* on_verdict runs inside, or in a later turn */
    void (*turn)(void *self);                             /* sends what is queued, reads what came, runs timers */
    void (*wait)(void *self, struct pollfd *fd, uint64_t *until_ns); /* what ends the wait for the next turn */
    int (*connected)(void *self);                                    /* does Redis answer, as far as it knows? */
    void (*close)(void *self);
};

extern const struct strategy *const strategies[]; /* ended by NULL */

/* NULL where there is none of that name. */
const struct strategy *strategy_find(const char *name);

/* What files of strategies share. */
uint64_t strategy_interval_ns(const struct strategy_setup *setup);
uint64_t strategy_timeout_ns(const struct strategy_setup *setup);
void strategy_answer(const struct strategy_setup *setup, struct strategy_ask *ask, int allowed, int degraded);
int64_t strategy_wall_us(const struct strategy_setup *setup); /* the wall clock of this process, skew included */
double strategy_exact(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds);
double strategy_one_burst(const struct strategy_limit *limit, const struct strategy_setup *setup, double seconds);

extern const struct strategy strategy_local, strategy_static_split;             /* memory.c */
extern const struct strategy strategy_window_naive, strategy_bucket_racy;       /* stepwise.c */
extern const struct strategy strategy_window_lua, strategy_bucket_lua;          /* scripted.c */
extern const struct strategy strategy_bucket_app_clock, strategy_bucket_skewed; /* scripted.c */
extern const struct strategy strategy_sliding_window, strategy_gcra;            /* scripted.c */
extern const struct strategy strategy_push_pull;                                /* push_pull.c */
extern const struct strategy strategy_hybrid, strategy_strict;                  /* weir.c */

#endif
