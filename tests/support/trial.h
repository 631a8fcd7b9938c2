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

struct trial {
    struct redis_server *server;
    struct liar *liar;
    struct node node;
    weir_policy_id small, strict;
    long p, q;              /* admitted */
    long certain, doubtful; /* of strict: admitted by Redis; answered by the outage policy */
    long degraded;          /* takes of p that said so */
};

struct trial_options {
    const char *login; /* "jane:s3cret@"; NULL: none */
    int persist;       /* Redis keeps its data over a restart */
};

/* Opens all, spends a little of each policy and settles. Every call fails the test where it can't do its job. */
void trial_open(struct trial *trial, const struct trial_options *options);

/* Takes for so long; `often` (may be NULL) is called every 20 ms. */
void trial_load(struct trial *trial, unsigned ms, void (*often)(void));

/* Waits until Redis answers, strict verdicts are its own again and nothing is left to report; then looks at the bounds.
 * forgets: Redis lost its state, so what it alone knew (of strict) is gone. */
void trial_recover(struct trial *trial, int forgets);

void trial_close(struct trial *trial);

#endif
