/* SPDX-License-Identifier: MIT */
/*
 * Redis as a person asks it: where it is, and all that it holds of one key.
 *
 * Owns the options that say where Redis is, and one short connection. It reads; it must not know how a decision is
 * made, nor write.
 */
#ifndef WEIR_TOOLS_STORE_H
#define WEIR_TOOLS_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "sync/wire.h"

struct store_options {
    const char *uri, *prefix, *group; /* NULL: the library's defaults, no group */
    uint32_t shards;                  /* 0: as Redis says, or 64 */
    uint32_t timeout_ms;
};

#define STORE_DEFAULTS                                                                                                 \
    {                                                                                                                  \
        .timeout_ms = 1000                                                                                             \
    }

/* Lines of a table of options; their values are below 256. */
enum { STORE_REDIS = 2, STORE_PREFIX, STORE_GROUP, STORE_SHARDS, STORE_TIMEOUT };
#define STORE_OPTION_LINES                                                                                             \
    {"redis", required_argument, NULL, STORE_REDIS}, {"prefix", required_argument, NULL, STORE_PREFIX},                \
        {"group", required_argument, NULL, STORE_GROUP}, {"shards", required_argument, NULL, STORE_SHARDS},            \
    {                                                                                                                  \
        "timeout", required_argument, NULL, STORE_TIMEOUT                                                              \
    }
#define STORE_HELP                                                                                                     \
    "  --redis URI           redis://127.0.0.1:6379 (default), rediss://, redis+cluster://, unix:///path\n"            \
    "  --prefix TEXT         of the keys in Redis (default: weir)\n"                                                   \
    "  --group NAME          the policy's group, where it has one\n"                                                   \
    "  --shards N            of the policy (default: what Redis says, else 64)\n"                                      \
    "  --timeout T           for Redis to answer (default: 1s)\n"

/* 0, or -1: not understood, or none of these. */
int store_set(struct store_options *o, int option, const char *text);

#define STORE_SLICES_MAX 1024u

struct store_key {
    uint32_t shard, shards;
    struct weir__wire_head head; /* status WEIR__WIRE_LOST: Redis knows nothing of the policy here */
    struct weir__wire_seen seen;
    struct weir__wire_seen_slice slices[STORE_SLICES_MAX];
    char error[320];
};

/* Looks a key up. 0, or -1: Redis did not answer, or what it holds is none of ours (error says so). */
int store_look(const struct store_options *o, const char *policy, const void *key, size_t key_len,
               struct store_key *out);

#endif
