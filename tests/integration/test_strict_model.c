/* SPDX-License-Identifier: MIT */
/*
 * The strict script against an exact model: whatever a request is merged with and whenever it comes, its key is one
 * bucket. It is asked with the time that the test says, in numbers that doubles hold exactly. (The library's part:
 * test_strict_merge.c.)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "script_node.h"

/* ---- the script, to the last bit --------------------------------------------------------------------------------- */

enum { SHARDS = 5, KEYS_EACH = 4, ENTRIES = 64, BATCHES = 1200, BURST = 40, LIMIT = 5, PER_US = 1 << 16 };

static uint64_t seed;

static unsigned below(unsigned n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(seed >> 33) % n;
}

/* A bucket in units of 1 / PER_US token: LIMIT of them a microsecond. */
struct model {
    int64_t level, at;
};

static struct model models[SHARDS][KEYS_EACH];
static char names[SHARDS][KEYS_EACH][8];
static int64_t clock_us;

static int64_t level_now(struct model *model)
{
    int64_t level = model->level + (clock_us - model->at) * LIMIT, full = (int64_t)BURST * PER_US;

    model->level = level < full ? level : full;
    model->at = clock_us;
    return model->level;
}

/* How many are admitted. */
static uint32_t work_off(struct model *model, const struct weir__wire_strict_entry *entry)
{
    int64_t level = level_now(model), cost = entry->cost * PER_US, full = (int64_t)BURST * PER_US;
    uint32_t admitted = entry->count;

    if (entry->op == WEIR__WIRE_GIVE) {
        model->level = level + cost < full ? level + cost : full;
    } else if (entry->op == WEIR__WIRE_TAKE && cost > 0) {
        if ((int64_t)admitted > level / cost)
            admitted = (uint32_t)(level / cost);
        model->level -= (int64_t)admitted * cost;
    }
    return admitted;
}

struct batch {
    struct weir__wire_strict shards[SHARDS];
    struct weir__wire_key keys[SHARDS * KEYS_EACH];
    struct weir__wire_strict_entry entries[ENTRIES];
    struct model *of[SHARDS * KEYS_EACH];
    uint32_t n_shards, n_keys, n_entries;
};

/* Any; as most batches are, a take a key, which the script's short way answers; and all of them alike. */
enum { MIXED, PLAIN, ALIKE, SHAPES };

static void add_entries(struct batch *b, struct weir__wire_strict *shard, uint32_t key, int shape)
{
    static const enum weir__wire_op ops[] = {WEIR__WIRE_TAKE, WEIR__WIRE_TAKE, WEIR__WIRE_TAKE, WEIR__WIRE_GIVE,
                                             WEIR__WIRE_LOOK};

    for (unsigned i = shape != MIXED ? 1 : 1 + below(3); i > 0; i--) {
        enum weir__wire_op op = shape != MIXED ? WEIR__WIRE_TAKE : ops[below(5)];

        b->entries[b->n_entries] = (struct weir__wire_strict_entry){.key = key,
                                                                    .op = op,
                                                                    .cost = below(12) + (op == WEIR__WIRE_GIVE),
                                                                    .count = op == WEIR__WIRE_TAKE ? 1 + below(6) : 1};
        if (shape == ALIKE) {
            b->entries[b->n_entries].cost = b->entries[0].cost;
            b->entries[b->n_entries].count = b->entries[0].count;
        }
        b->n_entries++;
        shard->n_entries++;
    }
}

/* A random part of all keys. */
static void make_batch(struct batch *b, unsigned shards, int shape)
{
    memset(b, 0, sizeof *b);
    for (unsigned u = below(SHARDS), left = shards; left > 0; left--, u = (u + 1) % SHARDS) {
        struct weir__wire_strict *shard = &b->shards[b->n_shards++];

        *shard = (struct weir__wire_strict){.target = target,
                                            .numbers = numbers,
                                            .nonce = seed,
                                            .keys = b->keys + b->n_keys,
                                            .entries = b->entries + b->n_entries,
                                            .test_now = (double)clock_us / 1e6};
        shard->target.shard = u;
        for (unsigned k = below(KEYS_EACH), n = 1 + below(KEYS_EACH); n > 0; n--, k = (k + 1) % KEYS_EACH) {
            b->of[b->n_keys] = &models[u][k];
            b->keys[b->n_keys++] =
                (struct weir__wire_key){.key = names[u][k], .key_len = (uint32_t)strlen(names[u][k])};
            add_entries(b, shard, shard->n_keys++, shape);
        }
    }
}

static void check_batch(struct batch *b)
{
    uint32_t key = 0;

    for (uint32_t u = 0; u < b->n_shards; key += b->shards[u++].n_keys) {
        const struct weir__wire_strict *shard = &b->shards[u];

        for (uint32_t i = 0; i < shard->n_entries; i++) {
            const struct weir__wire_strict_entry *entry = &shard->entries[i];
            struct model *model = b->of[key + entry->key];

            ck_assert_uint_eq(entry->admitted, work_off(model, entry));
            ck_assert_double_eq(entry->free, (double)model->level / PER_US);
        }
        for (uint32_t i = 0; i < shard->n_keys; i++)
            ck_assert_double_eq(shard->keys[i].total, (double)level_now(b->of[key + i]) / PER_US);
    }
}

/* Mostly a moment; at times past one generation, or past both. */
static void let_time_pass(void)
{
    static const unsigned most[] = {300, 300, 60000, 60000, 60000, 400000, 3000000, 12000000, 35000000};

    clock_us += below(most[below(100) < 95 ? below(6) : 6 + below(3)]);
}

START_TEST(any_interleaving_is_one_bucket_a_key)
{
    static struct batch b;
    struct weir__wire_head heads[SHARDS];

    seed = (uint64_t)_i + 1;
    clock_us = INT64_C(1000000000000) + _i;
    set_rate(LIMIT, UINT64_C(1000) * PER_US, BURST, 0);
    target.shards = SHARDS;
    for (unsigned u = 0; u < SHARDS; u++)
        for (unsigned k = 0; k < KEYS_EACH; k++) {
            snprintf(names[u][k], sizeof names[u][k], "%u %u", u, k);
            models[u][k] = (struct model){.level = (int64_t)BURST * PER_US, .at = clock_us};
        }
    for (int i = 0; i < BATCHES; i++) {
        make_batch(&b, below(3) ? 1 + below(SHARDS) : 1, (int)below(SHAPES));
        ck_assert_msg(script_client_strict_all(&client, b.shards, b.n_shards, heads) == 0, "%s", client.reply);
        for (uint32_t u = 0; u < b.n_shards; u++) {
            ck_assert_int_eq(heads[u].status, WEIR__WIRE_APPLIED);
            ck_assert_double_eq(heads[u].recovering, 0);
        }
        check_batch(&b);
        if (below(4))
            let_time_pass();
    }
}
END_TEST

static void add_all(TCase *tcase)
{
    tcase_add_loop_test(tcase, any_interleaving_is_one_bucket_a_key, 0, 4);
}

int main(void)
{
    return script_main("strict_model", add_all);
}
