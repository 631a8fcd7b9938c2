/* SPDX-License-Identifier: MIT */
/*
 * Policies: adding, finding, changing them under running takers. Owns struct weir__policy_state; must not know Redis.
 *
 * A change writes the spare parameter slot, names it the current one, then visits every entry and moves it over by one
 * 16-byte CAS: the level is carried, clipped to the new burst. Only then is the old slot spare. An entry made meanwhile
 * either uses the new slot or is still being filled when the visit comes by, and is waited for.
 */
#ifndef WEIR_LIB_POLICY_H
#define WEIR_LIB_POLICY_H

#include "lib/limiter.h"

/* A policy by its id; NULL: *error is WEIR_E_NOENT or WEIR_E_FORKED. */
struct weir__policy_state *weir__policy_get(struct weir *w, weir_policy_id id, int *error);

/* Brings one entry to its policy's present numbers and mode, for a taker that finds it in between. Waits for a
 * weir_policy_set that is under way. */
void weir__policy_settle(struct weir *w, struct weir__hot *e);

#endif
