/* SPDX-License-Identifier: MIT */
/*
 * What is known of keys without a look at their entries: whose lane a slot belongs to, whether it holds a slice, what
 * is due and in which order.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "support/fake_sync.h"
#include "support/suite.h"
#include "sync/keys.h"

static struct fake_sync fake;
static struct weir__node node;
static struct weir__keys keys;

static void setup(void)
{
    fake_open(&fake, 1000);
    node = (struct weir__node){.w = fake.w, .mem = weir__seam_allocator(fake.w), .shards = 64};
    ck_assert_int_eq(weir__keys_init(&keys, &node), 0);
}

static void teardown(void)
{
    weir__keys_deinit(&keys);
    fake_close(&fake);
}

static struct weir__kept *find(const char *key, uint32_t slot, uint64_t id)
{
    struct weir__report report = {.slot = slot, .id = id, .policy = 3, .key = key, .key_len = (uint32_t)strlen(key)};
    struct weir__kept *kept = weir__keys_find(&keys, &report);

    ck_assert_ptr_nonnull(kept);
    return kept;
}

START_TEST(a_lane_is_known_from_the_first_report_on)
{
    weir_policy_id policy;
    uint32_t shard;
    struct weir__kept *kept;

    ck_assert_int_eq(weir__keys_lane(&keys, 77, &policy, &shard), 0);
    kept = find("a", 77, 1);
    ck_assert_int_eq(weir__keys_lane(&keys, 77, &policy, &shard), 1);
    ck_assert_uint_eq(policy, 3);
    ck_assert_uint_eq(shard, weir__wire_shard("a", 1, 64));
    weir__keys_drop(&keys, kept);
    ck_assert_ptr_null(weir__keys_at(&keys, 77));
    ck_assert_int_eq(weir__keys_lane(&keys, 77, &policy, &shard), 1);
    ck_assert_uint_eq(shard, weir__wire_shard("a", 1, 64));
    find("another", 77, 2); /* the slot is another key's by now */
    ck_assert_int_eq(weir__keys_lane(&keys, 77, &policy, &shard), 1);
    ck_assert_uint_eq(shard, weir__wire_shard("another", 7, 64));
    ck_assert_uint_eq(find("another", 77, 2)->shard, shard);
}
END_TEST

START_TEST(a_slot_tells_whether_a_slice_is_held)
{
    static const enum weir__list lists[] = {WEIR__LIST_KNOWN, WEIR__LIST_HELD, WEIR__LIST_RECALL, WEIR__LIST_HELD,
                                            WEIR__LIST_NONE};
    struct weir__kept *kept = find("a", 5, 1);
    weir_policy_id policy;
    uint32_t shard;

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        weir__keys_move(&keys, kept, lists[i]);
        ck_assert_int_eq(weir__keys_is_held(&keys, 5), lists[i] == WEIR__LIST_HELD);
        ck_assert_int_eq(weir__keys_lane(&keys, 5, &policy, &shard), 1);
        ck_assert_uint_eq(policy, 3);
        ck_assert_uint_eq(shard, kept->shard);
    }
    weir__keys_move(&keys, kept, WEIR__LIST_HELD);
    find("b", 5, 2);
    ck_assert_int_eq(weir__keys_is_held(&keys, 5), 0);
}
END_TEST

/* Two lists side by side, longer and shorter by turns. */
START_TEST(what_is_due_comes_in_order)
{
    struct weir__due due[2] = {{0}, {0}};
    uint32_t next[2] = {0, 0}, slots[64], put = 0, n;
    uint64_t seed = 7;

    for (int round = 0; round < 2000; round++) {
        uint32_t list = fake_random(&seed) % 2;

        if (put < 1000 && fake_random(&seed) % 2) {
            uint32_t slot = put++;

            ck_assert_uint_eq(weir__keys_is_due(&keys, slot), 0);
            ck_assert_int_eq(weir__keys_due(&keys, &due[slot % 2], slot), 1);
            ck_assert_uint_eq(weir__keys_is_due(&keys, slot), 1);
            continue;
        }
        n = weir__keys_take_due(&keys, &due[list], slots, fake_random(&seed) % 8);
        for (uint32_t i = 0; i < n; i++) {
            ck_assert_uint_eq(slots[i], next[list]++ * 2 + list);
            ck_assert_uint_eq(weir__keys_is_due(&keys, slots[i]), 0);
        }
        ck_assert_uint_eq(keys.due_count, put - next[0] - next[1]);
        ck_assert_uint_eq(due[0].count + due[1].count, keys.due_count);
    }
    for (int list = 0; list < 2; list++)
        while ((n = weir__keys_take_due(&keys, &due[list], slots, 64)) > 0)
            next[list] += n;
    ck_assert_uint_eq(next[0] + next[1], put);
    ck_assert_uint_eq(keys.due_count, 0);
    ck_assert_ptr_null(due[0].first);
    ck_assert_ptr_null(due[1].last);
    /* and is as good as new */
    ck_assert_int_eq(weir__keys_due(&keys, &due[0], 9), 1);
    ck_assert_uint_eq(weir__keys_take_due(&keys, &due[0], slots, 64), 1);
    ck_assert_uint_eq(slots[0], 9);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("keys");
    TCase *places = tcase_create("places");

    tcase_add_checked_fixture(places, setup, teardown);
    tcase_add_test(places, a_lane_is_known_from_the_first_report_on);
    tcase_add_test(places, a_slot_tells_whether_a_slice_is_held);
    tcase_add_test(places, what_is_due_comes_in_order);
    suite_add_tcase(s, places);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
