/* SPDX-License-Identifier: MIT */
/*
 * lib/table.h with made-up identities, so that sets, tags and places collide at will; lib/arena.h.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arena.h"
#include "lib/decide.h"
#include "lib/table.h"
#include "support/suite.h"

#define SECOND UINT64_C(1000000000)
#define MAX_KEYS 150

static struct weir *w;
static weir_policy_id local, shared;
static uint64_t now;

static uint64_t read_now(void *arg)
{
    (void)arg;
    return now;
}

static weir_policy_id add(const char *name, enum weir_mode mode)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    weir_policy_id id;

    policy.name = name;
    policy.mode = mode;
    policy.limit = 1;
    policy.per_ns = SECOND;
    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    return id;
}

static void open_for(size_t max_keys)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.max_keys = max_keys;
    options.now_ns = read_now;
    now = 1000 * SECOND;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    local = add("local", WEIR_LOCAL);
    shared = add("shared", WEIR_HYBRID);
}

static void setup(void)
{
    open_for(MAX_KEYS);
}

static void teardown(void)
{
    weir_close(w);
}

/* The n-th identity whose first and second sets are these. All of one first set have the same tag and place. */
static void make_id(uint64_t id[2], uint64_t first, uint64_t second, uint64_t n)
{
    id[0] = (uint64_t)(((weir__u128)first << 64) / w->sets) + (UINT64_C(1) << 40) + (n << 33);
    id[0] = (id[0] & ~UINT64_C(0xffffffff)) | 0x12345678;
    id[1] = (uint64_t)(((weir__u128)second << 64) / w->sets) + 1 + n;
    ck_assert_uint_eq(weir__table_set(w, id[0]), first);
    ck_assert_uint_eq(weir__table_set(w, id[1]), second);
}

static struct weir__hot *obtain(const uint64_t id[2])
{
    uint64_t x = 1;
    struct weir__hot *e = weir__table_obtain(w, local, id, 16, id, now, &x);

    if (e) {
        ck_assert_uint_eq(x, e->x);
        ck_assert_uint_eq(x & WEIR__LOCK, 0);
    }
    return e;
}

static struct weir__hot *search(const uint64_t id[2])
{
    uint64_t x;

    return weir__table_search(w, id, &x);
}

static int take(const uint64_t id[2])
{
    struct weir__hot *e = obtain(id);

    ck_assert_ptr_nonnull(e);
    return weir__decide_take(&w->policies[local], e, e->x, id, now, 1, NULL);
}

static uint64_t keys(void)
{
    return w->state->keys;
}

static bool drop(const uint64_t id[2])
{
    struct weir__hot *e = search(id);
    uint64_t x;

    ck_assert_ptr_nonnull(e);
    ck_assert(weir__table_lock(w, e, id, &x));
    if (weir__table_drop(w, e, x, now))
        return true;
    weir__table_unlock(w, e, x);
    return false;
}

/* ---- finding ----------------------------------------------------------------------------------------------------- */

START_TEST(made_once_and_found)
{
    uint64_t id[2], x = 0;
    struct weir__hot *e;

    make_id(id, 3, 4, 0);
    ck_assert_ptr_null(search(id));
    ck_assert_ptr_null(weir__table_find(w, id, &x));
    e = obtain(id);
    ck_assert_ptr_nonnull(e);
    ck_assert_ptr_eq(obtain(id), e);
    ck_assert_ptr_eq(search(id), e);
    ck_assert_ptr_eq(weir__table_find(w, id, &x), e);
    ck_assert_uint_eq(x, e->x);
    ck_assert_ptr_eq(e, weir__table_first(w, id[0]));
    ck_assert_uint_eq(keys(), 1);
}
END_TEST

/* Case E9: two keys of one set, one tag and one half of their hash don't reset each other. */
START_TEST(case_e9_colliding_keys)
{
    uint64_t a[2], b[2];
    int allowed = 0;

    make_id(a, 3, 4, 0);
    memcpy(b, a, sizeof b);
    b[1] ^= 1;
    for (int i = 0; i < 100; i++)
        allowed += (take(a) == WEIR_ALLOW) + (take(b) == WEIR_ALLOW);
    ck_assert_int_eq(allowed, 2);
    ck_assert_uint_eq(keys(), 2);
}
END_TEST

START_TEST(a_set_overflows_into_the_second)
{
    struct weir__hot *e[2 * WEIR__WAYS];
    uint64_t id[2];

    for (uint64_t n = 0; n < 2 * WEIR__WAYS; n++) {
        make_id(id, 3, 7, n);
        ck_assert_int_eq(take(id), WEIR_ALLOW); /* not idle */
        e[n] = search(id);
        ck_assert_uint_eq(weir__slot_of(w, e[n]) / WEIR__WAYS, n < WEIR__WAYS ? 3 : 7);
    }
    for (uint64_t n = 0; n < 2 * WEIR__WAYS; n++) {
        make_id(id, 3, 7, n);
        ck_assert_ptr_eq(search(id), e[n]);
        ck_assert_int_eq(take(id), WEIR_DENY);
    }
    ck_assert_uint_eq(keys(), 2 * WEIR__WAYS);
    /* both are full of buckets that aren't: a third */
    make_id(id, 3, 7, 2 * WEIR__WAYS);
    e[0] = obtain(id);
    ck_assert_ptr_nonnull(e[0]);
    ck_assert_uint_ne(weir__slot_of(w, e[0]) / WEIR__WAYS, 3);
    ck_assert_uint_ne(weir__slot_of(w, e[0]) / WEIR__WAYS, 7);
    ck_assert_ptr_eq(search(id), e[0]);
    ck_assert_ptr_eq(obtain(id), e[0]);
    /* one that has its second set elsewhere finds room there */
    make_id(id, 3, 8, 0);
    e[0] = obtain(id);
    ck_assert_uint_eq(weir__slot_of(w, e[0]) / WEIR__WAYS, 8);
}
END_TEST

/* A limiter of two sets, whatever it is said to have room for. */
static void open_two_sets(void)
{
    weir_close(w);
    open_for(1);
    ck_assert_uint_eq(w->sets, 2);
    w->state->max_keys = MAX_KEYS;
}

START_TEST(no_set_has_room)
{
    uint64_t id[2];

    open_two_sets();
    for (uint64_t n = 0; n < 2 * WEIR__WAYS; n++) {
        make_id(id, 1, n < WEIR__WAYS, n);
        ck_assert_int_eq(take(id), WEIR_ALLOW); /* not idle */
    }
    ck_assert_uint_eq(keys(), 2 * WEIR__WAYS);
    make_id(id, 0, 1, 100);
    ck_assert_ptr_null(obtain(id));
    make_id(id, 1, 1, 100);
    ck_assert_ptr_null(obtain(id));
    ck_assert_uint_eq(keys(), 2 * WEIR__WAYS);
}
END_TEST

/* As many keys as were asked for find room, for the chance that all of a key's sets are full is small. */
START_TEST(every_key_finds_room)
{
    const uint64_t all = 100000;
    uint64_t made = 0, found = 0, id[2], x;

    weir_close(w);
    open_for(all);
    for (uint64_t n = 0; n < all; n++) {
        struct weir__hot *e;

        weir__table_id(w, local, &n, sizeof n, id);
        e = weir__table_obtain(w, local, &n, sizeof n, id, now, &x);
        made += e && weir__decide_take(&w->policies[local], e, x, id, now, 1, NULL) == WEIR_ALLOW;
    }
    for (uint64_t n = 0; n < all; n++) {
        weir__table_id(w, local, &n, sizeof n, id);
        found += weir__table_search(w, id, &x) != NULL;
    }
    ck_assert_uint_eq(made, all);
    ck_assert_uint_eq(found, all);
    ck_assert_uint_eq(keys(), all);
}
END_TEST

/* The first set has room again: a key that lives in its second set stays where it is. */
START_TEST(overflown_keys_are_not_made_twice)
{
    uint64_t id[2], gone[2];
    struct weir__hot *e;

    for (uint64_t n = 0; n <= WEIR__WAYS; n++) {
        make_id(id, 3, 7, n);
        ck_assert_int_eq(take(id), WEIR_ALLOW);
    }
    e = search(id);
    ck_assert_uint_eq(weir__slot_of(w, e) / WEIR__WAYS, 7);
    make_id(gone, 3, 7, 0);
    ck_assert(drop(gone));
    ck_assert_ptr_eq(obtain(id), e);
}
END_TEST

/* ---- dropping ---------------------------------------------------------------------------------------------------- */

START_TEST(dropped_and_made_anew)
{
    uint64_t id[2], x;
    struct weir__hot *e;

    make_id(id, 3, 4, 0);
    ck_assert_int_eq(take(id), WEIR_ALLOW);
    ck_assert_int_eq(take(id), WEIR_DENY);
    e = search(id);
    x = e->x;
    ck_assert(drop(id));
    ck_assert_ptr_null(search(id));
    ck_assert_uint_eq(keys(), 0);
    ck_assert_ptr_eq(obtain(id), e);
    ck_assert_int_gt((int64_t)(e->x - x), 0); /* x goes on: a CAS with what was read before fails */
    ck_assert_int_eq(take(id), WEIR_ALLOW);
}
END_TEST

START_TEST(a_pinned_entry_stays)
{
    uint64_t id[2];

    make_id(id, 3, 4, 0);
    obtain(id)->pin++;
    ck_assert(!drop(id));
    ck_assert_uint_eq(weir__table_sweep(w, w->slots, now), 0);
    ck_assert_ptr_nonnull(search(id));
    search(id)->pin--;
    ck_assert_uint_eq(weir__table_sweep(w, w->slots, now), 1);
    ck_assert_ptr_null(search(id));
}
END_TEST

/* What of a full set gives way to a new key: only an entry that is full, unpinned and has no news. */
START_TEST(only_what_is_idle_gives_way)
{
    uint64_t id[2], spare[2];
    struct weir__hot *e;

    open_two_sets();
    for (uint64_t n = 0; n < WEIR__WAYS; n++) {
        make_id(id, 0, 0, n + 1000);
        ck_assert_int_eq(take(id), WEIR_ALLOW);
        obtain(id)->pin++;
    }
    for (uint64_t n = 0; n < WEIR__WAYS; n++) {
        make_id(id, 1, 1, n);
        e = obtain(id);
        switch (n % 4) {
        case 0: ck_assert_int_eq(take(id), WEIR_ALLOW); break;
        case 1: e->pin++; break;
        case 2: e->dirty = 1; break;
        default: e->urgent = 1; break;
        }
    }
    make_id(spare, 1, 1, 100);
    ck_assert_ptr_null(obtain(spare));
    make_id(id, 1, 1, _i == 0 ? 4 : (uint64_t)_i);
    e = search(id);
    switch (_i) {
    case 0: now += SECOND; break; /* all that were taken from are full again */
    case 1: e->pin--; break;
    case 2: e->dirty = 0; break;
    default: e->urgent = 0; break;
    }
    ck_assert_ptr_nonnull(obtain(spare));
    ck_assert_uint_eq(keys(), 2 * WEIR__WAYS);
    ck_assert_uint_eq(w->state->evictions, 1);
    if (_i > 0)
        ck_assert_ptr_null(search(id));
}
END_TEST

START_TEST(max_keys_is_kept)
{
    uint64_t made = 0;

    for (uint64_t n = 0; n < 3 * MAX_KEYS; n++) {
        uint64_t id[2];

        weir__table_id(w, local, &n, sizeof n, id);
        if (!weir__table_find(w, id, &(uint64_t){0}) && obtain(id)) {
            take(id);
            made++;
        }
    }
    ck_assert_uint_eq(made, MAX_KEYS);
    ck_assert_uint_eq(keys(), MAX_KEYS);
    now += SECOND;
    for (uint64_t n = 0; n < 3 * MAX_KEYS; n++) {
        uint64_t id[2];

        weir__table_id(w, local, &n, sizeof n, id);
        ck_assert_ptr_nonnull(obtain(id));
        ck_assert_uint_le(keys(), MAX_KEYS);
    }
}
END_TEST

/* Small steps come by every slot. */
START_TEST(the_sweep_frees_what_is_idle)
{
    size_t dropped = 0, idle;

    for (uint64_t n = 0; n < 100; n++) {
        uint64_t id[2];

        weir__table_id(w, local, &n, sizeof n, id);
        ck_assert_ptr_nonnull(obtain(id));
        if (n % 2)
            ck_assert_int_eq(take(id), WEIR_ALLOW);
    }
    idle = keys() - 50; /* where many keys meet in a set, some had to go before */
    ck_assert_uint_gt(idle, 30);
    for (uint32_t slot = 0; slot < w->slots + 7; slot += 7)
        dropped += weir__table_sweep(w, 7, now);
    ck_assert_uint_eq(dropped, idle);
    ck_assert_uint_eq(keys(), 50);
    ck_assert_uint_eq(weir__table_sweep(w, w->slots, now + SECOND - 1), 0);
    ck_assert_uint_eq(weir__table_sweep(w, w->slots, now + SECOND), 50);
    ck_assert_uint_eq(keys(), 0);
}
END_TEST

/* Idle keys of a limiter that fills up make room before it is full. */
START_TEST(new_keys_sweep_along)
{
    for (uint64_t n = 0; n < MAX_KEYS * 20; n++) {
        ck_assert_int_eq(weir_take(w, local, &n, sizeof n, 1, NULL), WEIR_ALLOW);
        now += SECOND / 50; /* fifty at a time are not full */
    }
    ck_assert_uint_lt(keys(), MAX_KEYS);
    ck_assert_uint_eq(w->state->table_full, 0);
}
END_TEST

/* ---- against a list ---------------------------------------------------------------------------------------------- */

START_TEST(agrees_with_a_list)
{
    enum { KEYS = 400 };
    bool held[KEYS] = {false};
    uint64_t random = 88172645463325252, have = 0;

    for (int step = 0; step < 100000; step++) {
        uint64_t id[2], n;
        struct weir__hot *e;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        n = random % KEYS;
        make_id(id, n % 5, n / 5 % 5, n);
        e = search(id);
        if ((e != NULL) != held[n])
            ck_abort_msg("key %d is %s", (int)n, e ? "back" : "gone");
        if (e && random >> 32 & 1) {
            if (!drop(id))
                ck_abort_msg("not dropped");
            held[n] = false;
            have--;
        } else if (!e) {
            e = obtain(id);
            held[n] = e != NULL;
            have += e != NULL;
            if (e) {
                e->f += UINT64_C(4); /* never idle */
                if (memcmp(weir__table_key(w, &w->cold[weir__slot_of(w, e)]), id, 16) != 0)
                    ck_abort_msg("another key's bytes");
            }
        }
        if (keys() != have)
            ck_abort_msg("%d keys, not %d", (int)keys(), (int)have);
    }
    ck_assert_uint_gt(have, 5 * WEIR__WAYS / 2);
}
END_TEST

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static const void *key_of(weir_policy_id policy, const void *key, size_t n)
{
    uint64_t id[2], x;
    struct weir__hot *e;

    weir__table_id(w, policy, key, n, id);
    e = weir__table_obtain(w, policy, key, n, id, now, &x);
    return e ? weir__table_key(w, &w->cold[weir__slot_of(w, e)]) : NULL;
}

START_TEST(shared_keys_are_kept_whole)
{
    static const size_t lengths[] = {1, 35, 36, 37, 64, 65, 1000, 65535};
    static unsigned char key[65535];

    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(key, (int)i + 1, sizeof key);
        key[lengths[i] - 1] = 0xff;
        ck_assert_ptr_nonnull(key_of(shared, key, lengths[i]));
        ck_assert_mem_eq(key_of(shared, key, lengths[i]), key, lengths[i]);
    }
    ck_assert_uint_eq(w->arena->in_use, 1 + 1 + 2 + 16 + 1024);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(key, (int)i + 1, sizeof key);
        key[lengths[i] - 1] = 0xff;
        ck_assert_mem_eq(key_of(shared, key, lengths[i]), key, lengths[i]);
    }
    ck_assert_uint_eq(weir__table_sweep(w, w->slots, now), sizeof lengths / sizeof *lengths);
    ck_assert_uint_eq(w->arena->in_use, 0);
}
END_TEST

START_TEST(long_local_keys_take_no_room)
{
    unsigned char key[100] = {1};

    ck_assert_ptr_null(key_of(local, key, sizeof key));
    ck_assert_ptr_nonnull(key_of(local, key, 36));
    ck_assert_uint_eq(w->arena->in_use, 0);
}
END_TEST

/* A full arena is a full table, for keys that need it. */
START_TEST(a_full_arena)
{
    static unsigned char key[65535];
    struct weir_result r;
    uint32_t most = w->arena->blocks / 1024;

    for (uint32_t n = 0; n < most; n++) {
        memcpy(key, &n, sizeof n);
        ck_assert_ptr_nonnull(key_of(shared, key, sizeof key));
    }
    key[9] = 1;
    ck_assert_uint_eq(keys(), most);
    ck_assert_int_eq(weir_take(w, shared, key, sizeof key, 1, &r), WEIR_DENY);
    ck_assert_uint_eq(r.flags, WEIR_FULL);
    ck_assert_uint_eq(keys(), most);
    ck_assert_int_eq(weir_take(w, shared, "short", 5, 1, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_take(w, local, key, sizeof key, 1, &r), WEIR_ALLOW);
}
END_TEST

/* ---- the arena --------------------------------------------------------------------------------------------------- */

START_TEST(arena_runs)
{
    enum { BLOCKS = 100 };
    struct weir__arena *arena = aligned_alloc(64, (weir__arena_bytes(BLOCKS) + 63) / 64 * 64);
    unsigned char bytes[64 * BLOCKS];
    uint32_t first[BLOCKS];

    ck_assert_ptr_nonnull(arena);
    memset(arena, 0, weir__arena_bytes(BLOCKS));
    memset(bytes, 7, sizeof bytes);
    ck_assert_int_eq(weir__arena_init(arena, BLOCKS, 0), 0);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        first[i] = weir__arena_put(arena, bytes, 1 + i % 64);
        ck_assert_uint_eq(first[i], i);
    }
    ck_assert_uint_eq(weir__arena_put(arena, bytes, 1), WEIR__ARENA_NONE);
    for (uint32_t i = 0; i < BLOCKS; i += 2)
        weir__arena_drop(arena, first[i], 1 + i % 64);
    ck_assert_uint_eq(weir__arena_put(arena, bytes, 65), WEIR__ARENA_NONE); /* half is free, but no two in a row */
    ck_assert_uint_ne(weir__arena_put(arena, bytes, 64), WEIR__ARENA_NONE);
    weir__arena_drop(arena, first[51], 1 + 51 % 64);
    ck_assert_uint_eq(weir__arena_put(arena, bytes, 129), 50);
    ck_assert_mem_eq(weir__arena_bytes_of(arena, 50), bytes, 129);
    ck_assert_uint_eq(weir__arena_put(arena, bytes, sizeof bytes), WEIR__ARENA_NONE);
    weir__arena_deinit(arena);
    free(arena);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("table");
    TCase *t = tcase_create("table");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, made_once_and_found);
    tcase_add_test(t, case_e9_colliding_keys);
    tcase_add_test(t, a_set_overflows_into_the_second);
    tcase_add_test(t, no_set_has_room);
    tcase_add_test(t, every_key_finds_room);
    tcase_add_test(t, overflown_keys_are_not_made_twice);
    tcase_add_test(t, dropped_and_made_anew);
    tcase_add_test(t, a_pinned_entry_stays);
    tcase_add_loop_test(t, only_what_is_idle_gives_way, 0, 4);
    tcase_add_test(t, max_keys_is_kept);
    tcase_add_test(t, the_sweep_frees_what_is_idle);
    tcase_add_test(t, new_keys_sweep_along);
    tcase_add_test(t, agrees_with_a_list);
    tcase_add_test(t, shared_keys_are_kept_whole);
    tcase_add_test(t, long_local_keys_take_no_room);
    tcase_add_test(t, a_full_arena);
    tcase_add_test(t, arena_runs);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
