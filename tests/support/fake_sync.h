/* SPDX-License-Identifier: MIT */
/*
 * A limiter whose clock and whose sync are the test itself: time moves when the test says so, reports land in an array,
 * grants are what the test makes up.
 */
#ifndef WEIR_TESTS_FAKE_SYNC_H
#define WEIR_TESTS_FAKE_SYNC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/hybrid.h"
#include "lib/limiter.h"
#include "lib/seam.h"

#define FAKE_MS UINT64_C(1000000)
#define FAKE_SECOND UINT64_C(1000000000)
#define FAKE_START (1000 * FAKE_SECOND)

enum { FAKE_REPORTS = 256 };

struct fake_sync {
    struct weir *w;
    _Atomic uint64_t now;
    struct weir__hooks hooks;
    _Atomic unsigned wakes, joins, policy_changes, forgets;
    struct weir__report reports[FAKE_REPORTS]; /* of the last fake_collect or fake_urgent */
    size_t n;
    size_t refuse_after; /* reports that the sync takes before it refuses one */
};

/* max_keys 0: 64. Nothing is attached yet. */
void fake_open(struct fake_sync *fake, size_t max_keys);
void fake_close(struct fake_sync *fake);

void fake_attach(struct fake_sync *fake);

/* A hybrid policy, WEIR_POLICY_INIT but for these. */
weir_policy_id fake_policy(struct fake_sync *fake, const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst,
                           enum weir_on_outage on_outage, enum weir_unknown unknown);

/* 10 a second, burst 100: 100 ms a token. */
weir_policy_id fake_ten_a_second(struct fake_sync *fake, enum weir_on_outage on_outage, enum weir_unknown unknown);

/* The same with a sync that Redis answers for the next second, and that has told q0, a share (2 a second, 20 at most)
 * and its pace (200 ms, 5 ms). */
weir_policy_id fake_attached(struct fake_sync *fake, enum weir_on_outage on_outage, enum weir_unknown unknown,
                             uint64_t q0);

void fake_pass(struct fake_sync *fake, uint64_t ns);

/* How many takes of one token pass now. */
int fake_drain(struct fake_sync *fake, weir_policy_id id, const char *key, struct weir_result *result);

/* One take, at fake->now. */
int fake_take(struct fake_sync *fake, weir_policy_id id, const char *key, int64_t cost, struct weir_result *result);

/* Into fake->reports. Returns their number. */
size_t fake_collect(struct fake_sync *fake);
size_t fake_urgent(struct fake_sync *fake);

/* The one report of the key; fails the test where there is none. */
struct weir__report *fake_report(struct fake_sync *fake, const char *key);

/* Collects, and answers the key's report. */
void fake_grant(struct fake_sync *fake, const char *key, const struct weir__grant *grant);

/* A grant of nothing: no slice, no hold, fallback kept. */
struct weir__grant fake_nothing(double global);

/* A slice: level more, at rate, up to cap, for 400 ms. */
struct weir__grant fake_slice(struct fake_sync *fake, double level, double rate, double cap, double global);

/* The key's entry; fails the test where there is none. */
struct weir__hot *fake_entry(struct fake_sync *fake, weir_policy_id id, const char *key);

/* What is in force, in tokens. */
double fake_level(struct fake_sync *fake, weir_policy_id id, const char *key);

/* Random numbers of the test's own. */
uint64_t fake_random(uint64_t *seed);

#endif
