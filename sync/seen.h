/* SPDX-License-Identifier: MIT */
/*
 * What Redis last said of keys that it decides for: a small cache, for the day when it says no more. Owns its memory; a
 * key that is not in it, or no longer, is one of which nothing is known. It must not know queries or scripts.
 *
 * Who writes and who reads: the loop's thread writes a slot as tag 0, value, tag (release); anyone reads tag (acquire),
 * value, tag, and believes it where both tags are the key's.
 */
#ifndef WEIR_SYNC_SEEN_H
#define WEIR_SYNC_SEEN_H

#include <stdint.h>

#include "sync/node.h"

struct weir__seen;

/* NULL: no memory. */
struct weir__seen *weir__seen_open(struct weir__node *node);
void weir__seen_close(struct weir__node *node, struct weir__seen *seen);

/* hash: weir__query_hash of the key. lost_at: when Redis was last found to have lost its state, 0 for never: what it
 * says so soon after that that a slot's time would put it before is not noted, and what was is forgotten. Threads: the
 * loop's. */
void weir__seen_note(struct weir__seen *seen, weir_policy_id id, uint64_t hash, double level, uint64_t mono,
                     uint64_t lost_at);
void weir__seen_forget(struct weir__seen *seen, weir_policy_id id, uint64_t hash);

/* What was noted of it, and how long before mono, to a 64th of a second. 0: it is not known, or was noted later than
 * `before`. Threads: any. */
int weir__seen_last(struct weir__seen *seen, weir_policy_id id, uint64_t hash, uint64_t mono, uint64_t before,
                    double *level, uint64_t *age_ns);

/* The level then, grown until mono at the policy's rate, at most its burst, at least 0; -1: not known, or noted later
 * than `before`. Threads: any. */
double weir__seen_level(struct weir__seen *seen, weir_policy_id id, uint64_t hash,
                        const struct weir__seam_policy *policy, uint64_t mono, uint64_t before);

#endif
