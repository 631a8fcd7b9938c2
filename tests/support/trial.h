/* SPDX-License-Identifier: MIT */
/*
 * A limiter under load while something goes wrong, and what must hold whatever it was: nobody is let in beyond the
 * bound, what was admitted is charged once, and it recovers. One node; Redis behind a proxy that lies on demand.
 *
 * Three policies, a key each: "p" hybrid and large (nothing may be lost or told twice), "q" hybrid and small (it is
 * empty long before the end: nobody may be let in), "s" strict (what Redis decided is charged; where its answer was
 * lost, the share that answered instead is charged as well, so such a take may be charged twice, and none is admitted
 * twice).
 */
#ifndef WEIR_TESTS_TRIAL_H
#define WEIR_TESTS_TRIAL_H

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"

enum trial_mode { TRIAL_BOTH = 0, TRIAL_HYBRID, TRIAL_STRICT };

struct trial {
    struct redis_server *server;
    struct liar *liar;
    struct liar *sentinel; /* names the proxy as the master; NULL: none */
    unsigned db;
    struct node node;
    weir_policy_id small, strict;
    long p, q;              /* admitted */
    long certain, doubtful; /* of strict: admitted by Redis; answered by the outage policy */
    long degraded;          /* takes of p that said so */
    uint64_t begun;         /* tokens have come since then */
    enum trial_mode only;   /* what trial_load takes; the test may set it */
};

struct trial_options {
    const char *login; /* "jane:s3cret@"; NULL: none */
    unsigned db;       /* which of Redis' databases */
    int sentinel;      /* the proxy is found by asking a Sentinel */
    int persist;       /* Redis keeps its data over a restart */
};

/* Opens all, spends a little of each policy and settles. Every call fails the test where it can't do its job. */
void trial_open(struct trial *trial, const struct trial_options *options);

/* Takes for so long, once at least; `often` (may be NULL) is called every 20 ms. */
void trial_load(struct trial *trial, unsigned ms, void (*often)(void));

/* Takes until that is logged. */
void trial_load_until_said(struct trial *trial, const char *text);

/* The same until p is answered by its outage policy. */
void trial_load_until_degraded(struct trial *trial);

/* Waits until Redis answers and nothing is left to report. */
void trial_settle(struct trial *trial);

/* The same, and until strict verdicts are its own again; then looks at the bounds.
 * forgets: Redis lost its state, so what it alone knew (of strict) is gone. */
void trial_recover(struct trial *trial, int forgets);

/* The same in two steps: the sync is open between them, and what is admitted there is looked at as well. */
void trial_check(struct trial *trial, int forgets);
void trial_end(struct trial *trial);

void trial_close(struct trial *trial);

#endif
