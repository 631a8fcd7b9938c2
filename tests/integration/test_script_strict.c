/* SPDX-License-Identifier: MIT */
/*
 * The strict scripts: takes, refunds, looks, all or none, forget and peek, on the state that hybrid nodes share.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "script_node.h"

static struct weir__wire_head head;

/* One entry on one key; returns how many were admitted. free_left: what was there after it. */
static uint32_t ask(const char *key, enum weir__wire_op op, int64_t cost, uint32_t count, double *free_left)
{
    struct weir__wire_key one = {.key = key, .key_len = (uint32_t)strlen(key)};
    struct weir__wire_strict_entry entry = {.op = op, .cost = cost, .count = count};
    struct weir__wire_strict batch = {.target = target,
                                      .numbers = numbers,
                                      .nonce = 99,
                                      .keys = &one,
                                      .n_keys = 1,
                                      .entries = &entry,
                                      .n_entries = 1,
                                      .test_now = now};
    ck_assert_msg(script_client_strict(&client, &batch, &head) == 0, "%s", client.reply ? client.reply : "");
    ck_assert_int_eq(head.status, WEIR__WIRE_APPLIED);
    ck_assert_double_eq(one.free, entry.free);
    if (free_left != NULL) {
        *free_left = entry.free;
    }
    return entry.admitted;
}

static uint32_t take(const char *key, int64_t cost)
{
    return ask(key, WEIR__WIRE_TAKE, cost, 1, NULL);
}

/* Everything that Redis holds, as one text; it changes with every write. */
static void dump(char out[65536])
{
    const char *text = redis_server_do(server, "EVAL",
                                       "local o = '' "
                                       "local keys = redis.call('KEYS', '*') table.sort(keys) "
                                       "for _, k in ipairs(keys) do "
                                       "local h, f = redis.call('HGETALL', k), {} "
                                       "for i = 1, #h, 2 do f[#f + 1] = h[i] .. '=' .. h[i + 1] end table.sort(f) "
                                       "o = o .. k .. redis.sha1hex(table.concat(f)) .. "
                                       "(redis.call('PTTL', k) < 0 and 'immortal' or '') end return o",
                                       "0", NULL);
    size_t len = strlen(text);
    ck_assert_uint_lt(len, 65536);
    memcpy(out, text, len + 1);
}

/* ---- takes ------------------------------------------------------------------------------------------------------- */

START_TEST(exactly_the_bucket)
{
    double left;
    for (int i = 0; i < 17; i++) {
        ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 1);
        NEAR(left, 16 - i);
    }
    ck_assert_uint_eq(take("k", 1), 0);
    now += 86400.0 / 2;
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 0);
    NEAR(left, 0.5);
    /* Told to wait for the rest: a moment earlier is too early. */
    double wait = (1 - left) * 86400;
    now += wait - 0.01;
    ck_assert_uint_eq(take("k", 1), 0);
    now += 0.01;
    ck_assert_uint_eq(take("k", 1), 1);
}
END_TEST

/* To the microsecond, at the time of today: the wait told is enough, and one less is not. */
START_TEST(a_retry_is_exact)
{
    const double start = 1.8e9;
    set_rate(3, SECOND, 1, 0);
    for (int i = 0; i < 200; i++) {
        now = start + i;
        double left;
        ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 1);
        ck_assert_double_eq(left, 0);
        now = start + i + 0.333333;
        ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 0);
        ck_assert_double_gt(left, 0.999998);
        now = start + i + 0.333334;
        ck_assert_uint_eq(take("k", 1), 1);
    }
}
END_TEST

START_TEST(merged_requests_are_admitted_in_order)
{
    struct weir__wire_key keys[] = {{.key = "a", .key_len = 1}, {.key = "b", .key_len = 1}};
    struct weir__wire_strict_entry entries[] = {{.key = 0, .cost = 5, .count = 2},  {.key = 1, .cost = 18, .count = 1},
                                                {.key = 0, .cost = 6, .count = 3},  {.key = 0, .cost = 1, .count = 9},
                                                {.key = 1, .cost = 17, .count = 1}, {.key = 0, .cost = 0, .count = 4}};
    const uint32_t admitted[] = {2, 0, 1, 1, 1, 4};
    const double left[] = {7, 17, 1, 0, 0, 0};
    struct weir__wire_strict batch = {.target = target,
                                      .numbers = numbers,
                                      .keys = keys,
                                      .n_keys = 2,
                                      .entries = entries,
                                      .n_entries = 6,
                                      .test_now = now};
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(entries[i].admitted, admitted[i]);
        NEAR(entries[i].free, left[i]);
    }
    NEAR(keys[0].total, 0);
    NEAR(keys[1].total, 0);
}
END_TEST

/* A denial, a look, a cost of nothing: none of them writes, whether the key is there or not. */
START_TEST(denials_write_nothing)
{
    static char before[65536], after[65536];
    take("other", 1);
    take("k", 17);
    report(&alice, "sliced", 0, 0, 0, 50, 5);
    now += 0.3;
    dump(before);
    ck_assert_uint_eq(take("k", 1), 0);
    ck_assert_uint_eq(take("new", 18), 0);
    ck_assert_uint_eq(take("sliced", 14), 0);
    ck_assert_uint_eq(ask("k", WEIR__WIRE_LOOK, 0, 1, NULL), 1);
    ck_assert_uint_eq(ask("new", WEIR__WIRE_LOOK, 0, 1, NULL), 1);
    ck_assert_uint_eq(take("k", 0), 1);
    now += 30; /* a generation's end and a dead slice are no reason to write, either */
    ck_assert_uint_eq(take("new", 18), 0);
    dump(after);
    ck_assert_str_eq(before, after);
    ck_assert_uint_eq(take("k", 1), 0);
    ck_assert_int_eq(script_client_do(&client, "HEXISTS", &target, 'a', "knew", NULL), 0);
}
END_TEST

START_TEST(a_first_denial_leaves_no_trace)
{
    ck_assert_uint_eq(take("k", 18), 0);
    ck_assert_uint_eq(ask("k", WEIR__WIRE_LOOK, 0, 1, NULL), 1);
    ck_assert_str_eq(redis_server_do(server, "DBSIZE", NULL), "0");
}
END_TEST

START_TEST(refunds_end_at_the_burst)
{
    double left;
    take("k", 10);
    ask("k", WEIR__WIRE_GIVE, 4, 1, &left);
    NEAR(left, 11);
    ask("k", WEIR__WIRE_GIVE, 400, 1, &left);
    NEAR(left, 17);
    ask("unseen", WEIR__WIRE_GIVE, 400, 1, &left);
    NEAR(left, 17);
}
END_TEST

/* A thousand takes, one after the other, of what is full again in a tenth of a millisecond. */
START_TEST(times_to_live_of_a_fast_policy)
{
    set_rate(10000, SECOND, 1, 0);
    for (int i = 0; i < 1000; i++) {
        ck_assert_uint_eq(take("k", 1), 1);
        ck_assert_uint_eq(take("k", 1), 0);
        now += 0.0001;
        ck_assert_int_gt(script_client_pttl(&client, &target, 'a'), 0);
    }
}
END_TEST

/* An exhausted bucket that somebody persists: the next call denies, and gives the time to live back. */
START_TEST(an_immortal_bucket_is_made_mortal)
{
    set_rate(1, SECOND, 60, 0);
    ck_assert_uint_eq(take("k", 60), 1);
    for (const char *which = "an"; *which != 0; which++) {
        ck_assert_int_eq(script_client_do(&client, "PERSIST", &target, *which, NULL, NULL), 1);
    }
    double left;
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 0);
    NEAR(left, 0);
    for (const char *which = "an"; *which != 0; which++) {
        ck_assert_int_gt(script_client_pttl(&client, &target, *which), 0);
    }
    now += 1;
    ck_assert_uint_eq(take("k", 1), 1);
}
END_TEST

/* A generation that nobody asked for when it was due begins late. The one before it must be there until the next. */
START_TEST(a_late_generation_keeps_its_elder)
{
    set_rate(1, SECOND, 4, 0); /* ten seconds a generation */
    ck_assert_uint_eq(take("k", 4), 1);
    now += 19;
    long long began = clock_ms();
    script_client_do(&client, "PEXPIRE", &target, 'a', "8000", NULL); /* less than is left till the next begins */
    ck_assert_uint_eq(take("other", 4), 1);
    for (const char *which = "ab"; *which != 0; which++) {
        long long ttl = script_client_pttl(&client, &target, *which);
        ck_assert_int_gt(ttl + clock_ms() - began, 9000);
    }
    now += 9;
    ck_assert_uint_eq(take("k", 4), 1); /* looked for in both */
    ck_assert_double_eq(head.recovering, 0);
}
END_TEST

/* Lowered numbers count from the next call on, though it is a denial and though there is no admission for long. */
START_TEST(new_numbers_count_at_once)
{
    double left;
    set_rate(100, 60 * SECOND, 100, 0);
    take("k", 1);
    set_rate(10, 60 * SECOND, 10, 0);
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 1);
    NEAR(left, 9);
    ck_assert_uint_eq(head.numbers.burst, 10);
    take("k", 9);
    set_rate(1, 3600 * SECOND, 10, 0);
    ck_assert_uint_eq(take("k", 1), 0);
    now += 600;
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 0);
    NEAR(left, 600.0 / 3600);
}
END_TEST

START_TEST(a_clock_that_goes_back_grants_nothing)
{
    double left;
    set_rate(1, SECOND, 10, 0);
    take("k", 3);
    now += 2;
    take("other", 1);
    now -= 3600;
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 1, 1, &left), 1);
    NEAR(left, 8);
    now += 1;
    ask("k", WEIR__WIRE_LOOK, 0, 1, &left);
    NEAR(left, 9);
}
END_TEST

START_TEST(other_formats_and_types_are_refused)
{
    struct weir__wire_key key = {.key = "k", .key_len = 1};
    struct weir__wire_strict_entry entry = {.cost = 1, .count = 1};
    struct weir__wire_strict batch = {.target = target,
                                      .numbers = numbers,
                                      .keys = &key,
                                      .n_keys = 1,
                                      .entries = &entry,
                                      .n_entries = 1,
                                      .test_now = now};
    take("k", 1);
    batch.target.shards = 9;
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
    ck_assert_int_eq(head.status, WEIR__WIRE_MISMATCH);
    ck_assert_uint_eq(head.shards, 4);
    batch.target.shards = 4;
    drop('a');
    script_client_do(&client, "RPUSH", &target, 'a', "x", NULL);
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 1);
    ck_assert_ptr_nonnull(strstr(client.reply, "WRONGTYPE"));
    drop('a');
    script_client_do(&client, "HSET", &target, 'a', "kk", "hello");
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
}
END_TEST

/* ---- on one state with hybrid nodes ------------------------------------------------------------------------------ */

/* What a node holds is not given away; what is given here is missing there. */
START_TEST(slices_are_respected)
{
    double left;
    report(&alice, "k", 0, 0, 0, 50, 6);
    NEAR(alice.grants[0].level, 6);
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 12, 1, &left), 0);
    NEAR(left, 11);
    ck_assert_uint_eq(ask("k", WEIR__WIRE_TAKE, 11, 1, &left), 1);
    NEAR(left, 0);
    NEAR(head.now, now);
    ck_assert_uint_eq(take("k", 1), 0);
    NEAR(peek("k").total, 6);
    NEAR(peek("k").reserved, 6);
    report(&alice, "k", 4, 2, 0, 50, 6); /* it may borrow the overdraft's rest, no more */
    NEAR(alice.grants[0].total, 2);
    ck_assert_double_le(alice.grants[0].level, 2 + 4);
    ask("k", WEIR__WIRE_GIVE, 3, 1, &left);
    NEAR(peek("k").total, 5);
}
END_TEST

/* A dead node's slice: reserved until its life is over, then spent; strict takes are not held up by its rate. */
START_TEST(a_dead_slice_does_not_lock_a_key)
{
    set_rate(100, SECOND, 100, 0);
    report(&alice, "k", 90, 0, 0, 2000, 50);
    report(&alice, "k", 0, alice.grants[0].level, alice.grants[0].rate, 2000, 50);
    ck_assert_double_gt(peek("k").rates, 20);
    now += 3;
    ck_assert_uint_eq(take("k", 90), 0); /* it may yet tell what it spent */
    ck_assert_uint_eq(take("k", 10), 1);
    now += 3;
    ck_assert_uint_eq(take("k", 100), 1);
}
END_TEST

/* The mode of a policy is switched under way: what one spent the other sees. */
START_TEST(modes_share_one_state)
{
    ck_assert_uint_eq(take("k", 5), 1);
    NEAR(spend(&alice, "k", 2), 10);
    ck_assert_uint_eq(take("k", 11), 0);
    ck_assert_uint_eq(take("k", 10), 1);
    NEAR(spend(&alice, "k", 1), -1);
    ck_assert_uint_eq(take("k", 1), 0);
    ck_assert_double_eq(alice.head.recovering, 0);
    NEAR(alice.head.q0, 3);
}
END_TEST

static struct weir__wire_strict_entry entries_of_loss[2];

/* A take of 4, or of 3 after what was seen; returns the status. */
static enum weir__wire_status ask_with(double epoch, int seen, int64_t cost)
{
    static uint64_t nonce;
    struct weir__wire_key key = {.key = "k", .key_len = 1};
    struct weir__wire_strict_entry *entries = entries_of_loss;
    struct weir__wire_strict batch = {.target = target,
                                      .numbers = numbers,
                                      .epoch = epoch,
                                      .keys = &key,
                                      .n_keys = 1,
                                      .entries = seen >= 0 ? entries : entries + 1,
                                      .n_entries = seen >= 0 ? 2 : 1,
                                      .test_now = now};
    nonce++;
    batch.nonce = nonce;
    entries[0] = (struct weir__wire_strict_entry){.op = WEIR__WIRE_SEEN, .cost = seen, .count = 1};
    entries[1] = (struct weir__wire_strict_entry){.op = WEIR__WIRE_TAKE, .cost = cost, .count = 1};
    ck_assert_int_eq(script_client_strict(&client, &batch, &head), 0);
    return head.status;
}

/* A node that asks with the epoch that it knows: Redis came back empty, applies nothing, and hears what was left. */
START_TEST(a_loss_is_noticed)
{
    double epoch;
    ck_assert_int_eq(ask_with(0, -1, 14), WEIR__WIRE_APPLIED);
    epoch = head.epoch;
    ck_assert_double_ne(epoch, 0);
    ck_assert_int_eq(ask_with(epoch, -1, 1), WEIR__WIRE_APPLIED); /* 2 are left */
    for (const char *which = "abn"; *which != 0; which++) {
        drop(*which);
    }
    ck_assert_int_eq(ask_with(epoch, -1, 2), WEIR__WIRE_LOST);
    ck_assert_double_ne(head.epoch, epoch);
    ck_assert_double_gt(head.recovering, 0);
    epoch = head.epoch;
    ck_assert_int_eq(ask_with(epoch, 2, 1), WEIR__WIRE_APPLIED);
    ck_assert_double_eq(head.epoch, epoch);
    ck_assert_uint_eq(entries_of_loss[1].admitted, 0); /* others may have seen less */
    now += 0.5;
    ck_assert_int_eq(ask_with(epoch, -1, 3), WEIR__WIRE_APPLIED);
    ck_assert_uint_eq(entries_of_loss[1].admitted, 0);
    ck_assert_int_eq(ask_with(epoch, 1, 1), WEIR__WIRE_APPLIED); /* another one, later: it saw 1 */
    ck_assert_uint_eq(entries_of_loss[1].admitted, 1);
    ck_assert_int_eq(ask_with(epoch, 17, 1), WEIR__WIRE_APPLIED); /* seen more: no news */
    ck_assert_uint_eq(entries_of_loss[1].admitted, 0);
    /* who comes late with an old epoch is told, and nothing is gathered a second time */
    ck_assert_int_eq(ask_with(epoch + 1, -1, 1), WEIR__WIRE_LOST);
    ck_assert_double_eq(head.recovering, 0);
    ck_assert_double_eq(head.epoch, epoch);
}
END_TEST

/* What was asked of a shard that Redis wrote nothing for has no epoch to be known by. */
START_TEST(a_look_leaves_no_epoch)
{
    ck_assert_uint_eq(take("k", 18), 0);
    ck_assert_double_eq(head.epoch, 0);
    ck_assert_uint_eq(take("k", 1), 1);
    ck_assert_double_ne(head.epoch, 0);
}
END_TEST

/* Three shards in one script: of one a node holds a slice, one is as usual, one is another format's. */
START_TEST(shards_are_answered_each_for_itself)
{
    struct weir__wire_key keys[] = {{.key = "k", .key_len = 1}, {.key = "l", .key_len = 1}, {.key = "m", .key_len = 1}};
    struct weir__wire_strict_entry entries[3], twelve = {.op = WEIR__WIRE_TAKE, .cost = 12, .count = 1};
    struct weir__wire_strict shards[3];
    struct weir__wire_head heads[3];
    report(&alice, "k", 0, 0, 0, 50, 6);
    target.shard = 2;
    target.shards = 9;
    take("m", 1);
    target.shards = 4;
    for (int round = 0; round < 2; round++) {
        for (uint32_t u = 0; u < 3; u++) {
            entries[u] = twelve;
            entries[u].cost -= u == 0 && round == 0 ? 1 : 0;
            shards[u] = (struct weir__wire_strict){.target = target,
                                                   .numbers = numbers,
                                                   .keys = &keys[u],
                                                   .n_keys = 1,
                                                   .entries = &entries[u],
                                                   .n_entries = 1,
                                                   .test_now = now};
            shards[u].target.shard = u;
        }
        ck_assert_int_eq(script_client_strict_all(&client, shards, 3, heads), 0);
        ck_assert_int_eq(heads[0].status, WEIR__WIRE_APPLIED);
        ck_assert_int_eq(heads[1].status, WEIR__WIRE_APPLIED);
        ck_assert_int_eq(heads[2].status, WEIR__WIRE_MISMATCH);
        ck_assert_uint_eq(heads[2].shards, 9);
        ck_assert_uint_eq(entries[0].admitted, round == 0);
        ck_assert_uint_eq(entries[1].admitted, round == 0);
        NEAR(keys[0].total, 6); /* the slice's */
        NEAR(keys[0].free, 0);
        NEAR(keys[1].total, 5);
    }
    target.shards = 9;
    NEAR(peek("m").total, 16);
    target.shard = 0;
    target.shards = 4;
}
END_TEST

/* While nodes register again nothing is taken: what is there is not known yet. */
START_TEST(nothing_is_taken_while_state_is_gathered)
{
    spend(&alice, "k", 10);
    drop('a');
    alice.records[0] = spent_of("k", 1);
    send_records(&alice, 1);
    ck_assert_int_eq(alice.head.status, WEIR__WIRE_LOST);
    ck_assert_uint_eq(take("k", 1), 0);
    ck_assert_double_gt(head.recovering, 0);
    alice.records[0] = spent_of("k", 1);
    alice.records[0].known = 1;
    alice.records[0].seed = 7;
    send_records(&alice, 1);
    now += 0.5;
    ck_assert_uint_eq(take("k", 7), 0);
    ck_assert_uint_eq(take("k", 6), 1);
}
END_TEST

/* ---- all or none ------------------------------------------------------------------------------------------------- */

static struct weir__wire_member member_of(const char *policy, uint32_t shard, const char *key, int64_t cost)
{
    struct weir__wire_member member = {
        .target = target, .numbers = numbers, .key = key, .key_len = (uint32_t)strlen(key), .cost = cost};
    member.target.policy = policy;
    member.target.group = "g";
    member.target.shard = shard;
    return member;
}

static int take_all(struct weir__wire_member *members, uint32_t n)
{
    struct weir__wire_all all = {.members = members, .n = n, .nonce = 7, .test_now = now};
    ck_assert_msg(script_client_all(&client, &all, &head) == 0, "%s", client.reply ? client.reply : "");
    return all.admitted;
}

START_TEST(all_are_charged_or_none)
{
    struct weir__wire_member m[] = {member_of("one", 0, "u", 3), member_of("two", 1, "ip", 5),
                                    member_of("one", 2, "v", 1)};
    m[1].numbers.burst = 12;
    ck_assert_int_eq(take_all(m, 3), 1);
    NEAR(m[0].total, 14);
    NEAR(m[1].total, 7);
    NEAR(m[2].total, 16);
    ck_assert_int_eq(take_all(m, 3), 1);
    ck_assert_int_eq(take_all(m, 3), 0);
    ck_assert_int_eq(m[0].denied, 0);
    ck_assert_int_eq(m[1].denied, 1);
    ck_assert_int_eq(m[2].denied, 0);
    NEAR(m[0].total, 11);
    NEAR(m[1].free, 2);
    NEAR(m[2].total, 15);
    /* The same state as one that is asked alone. */
    target.group = "g";
    target.policy = "two";
    target.shard = 1;
    numbers.burst = 12;
    ck_assert_uint_eq(take("ip", 3), 0);
    ck_assert_uint_eq(take("ip", 2), 1);
}
END_TEST

START_TEST(a_key_named_twice_pays_twice)
{
    struct weir__wire_member m[] = {member_of("one", 0, "u", 9), member_of("one", 0, "u", 9),
                                    member_of("one", 0, "u", 0)};
    ck_assert_int_eq(take_all(m, 3), 0);
    ck_assert_int_eq(m[0].denied, 0);
    ck_assert_int_eq(m[1].denied, 1);
    NEAR(m[0].total, 17);
    m[1].cost = 8;
    ck_assert_int_eq(take_all(m, 3), 1);
    NEAR(m[2].total, 0);
}
END_TEST

START_TEST(a_denied_all_writes_nothing)
{
    static char before[65536], after[65536];
    struct weir__wire_member m[] = {member_of("one", 0, "u", 1), member_of("two", 0, "u", 1)};
    ck_assert_int_eq(take_all(m, 2), 1);
    dump(before);
    m[1].cost = 17;
    ck_assert_int_eq(take_all(m, 2), 0);
    dump(after);
    ck_assert_str_eq(before, after);
}
END_TEST

START_TEST(all_takes_the_most_members)
{
    static struct weir__wire_member m[WEIR__WIRE_MEMBERS];
    static char keys[WEIR__WIRE_MEMBERS][4];
    for (unsigned i = 0; i < WEIR__WIRE_MEMBERS; i++) {
        keys[i][0] = 'x';
        keys[i][1] = (char)('A' + i % 32);
        keys[i][2] = (char)('a' + i / 32);
        m[i] = member_of(i % 2 ? "one" : "two", i % 4, keys[i], 17);
    }
    ck_assert_int_eq(take_all(m, WEIR__WIRE_MEMBERS), 1);
    ck_assert_int_eq(take_all(m, WEIR__WIRE_MEMBERS), 0);
    for (unsigned i = 0; i < WEIR__WIRE_MEMBERS; i++) {
        ck_assert_int_eq(m[i].denied, 1);
        NEAR(m[i].total, 0);
    }
}
END_TEST

/* A member of another format ends it; nothing of the others is charged. */
START_TEST(a_mismatch_among_all_charges_nobody)
{
    struct weir__wire_member m[] = {member_of("one", 0, "u", 1), member_of("two", 0, "u", 1)};
    ck_assert_int_eq(take_all(m, 2), 1);
    m[1].target.shards = 9;
    ck_assert_int_eq(take_all(m, 2), 0);
    ck_assert_int_eq(head.status, WEIR__WIRE_MISMATCH);
    m[1].target.shards = 4;
    ck_assert_int_eq(take_all(m, 2), 1);
    NEAR(m[0].total, 15);
}
END_TEST

/* ---- forget and peek --------------------------------------------------------------------------------------------- */

START_TEST(a_forgotten_key_is_full)
{
    client.twice = 0; /* what is done here is done to one shard */
    set_rate(1, SECOND, 3, 0);
    take("k", 3);
    now += 11;
    take("other", 1);
    now += 1;
    take("k", 3); /* now in both generations */
    ck_assert_int_eq(script_client_forget(&client, &target, "k"), 1);
    ck_assert_int_eq(script_client_forget(&client, &target, "k"), 0);
    ck_assert_int_eq(script_client_forget(&client, &target, "never"), 0);
    ck_assert_uint_eq(take("k", 3), 1);
    NEAR(peek("other").total, 3);
}
END_TEST

START_TEST(a_peek_sees_everything_and_changes_nothing)
{
    static char before[65536], after[65536];
    struct weir__wire_seen seen;
    struct weir__wire_seen_slice slices[2];
    ck_assert_int_eq(script_client_peek(&client, &target, "k", now, &head, &seen, slices, 2), 0);
    ck_assert_int_eq(head.status, WEIR__WIRE_LOST); /* no such shard yet */
    ck_assert_int_eq(seen.exists, 0);
    set_rate(100, SECOND, 100, 20);
    report(&alice, "k", 30, 0, 0, 300, 40);
    report(&bob, "k", 0, 0, 0, 100, 10);
    now += 0.1;
    dump(before);
    ck_assert_int_eq(script_client_peek(&client, &target, "k", now, &head, &seen, slices, 2), 0);
    dump(after);
    ck_assert_str_eq(before, after);
    ck_assert_int_eq(seen.exists, 1);
    NEAR(seen.total, 80);
    ck_assert_uint_eq(seen.n_slices, 2);
    ck_assert_mem_eq(slices[0].node, alice.id, 8);
    ck_assert_mem_eq(slices[1].node, bob.id, 8);
    NEAR(slices[0].age, 0.1);
    NEAR(slices[0].reserved, alice.grants[0].level + 0.1 * alice.grants[0].rate);
    NEAR(slices[1].reserved, bob.grants[0].level + 0.1 * bob.grants[0].rate);
    NEAR(seen.reserved, slices[0].reserved + slices[1].reserved);
    NEAR(seen.free, fmin(seen.total, seen.total - seen.reserved));
    NEAR(seen.demands, 400);
    ck_assert_double_gt(seen.ttl, 10);
    ck_assert_uint_eq(head.numbers.limit, 100);
    ck_assert_int_eq(script_client_peek(&client, &target, "absent", now, &head, &seen, slices, 2), 0);
    ck_assert_int_eq(seen.exists, 0);
    NEAR(seen.total, 100);
    target.shards = 9; /* a peek takes what it finds */
    ck_assert_int_eq(script_client_peek(&client, &target, "k", now, &head, &seen, slices, 2), 0);
    ck_assert_int_eq(seen.exists, 1);
    target.shards = 4;
}
END_TEST

/* ---- real time --------------------------------------------------------------------------------------------------- */

/* With the server's own clock: a retry told is a retry that passes, and a script's own time never runs backwards. */
START_TEST(the_servers_own_clock)
{
    client.twice = 0; /* what is done here is done to one shard */
    now = 0;
    set_rate(1000, SECOND, 1, 0);
    double last = 0;
    int admitted = 0;
    for (int i = 0; i < 300; i++) {
        admitted += (int)take("k", 1);
        ck_assert_double_ge(head.now, last);
        last = head.now;
    }
    ck_assert_int_ge(admitted, 1);
    ck_assert_double_gt(last, 1.6e9);
    struct weir__wire_seen seen = peek("k");
    ck_assert_double_le(seen.total, 1);
}
END_TEST

static void add_all(TCase *tcase)
{
    tcase_add_test(tcase, exactly_the_bucket);
    tcase_add_test(tcase, a_retry_is_exact);
    tcase_add_test(tcase, merged_requests_are_admitted_in_order);
    tcase_add_test(tcase, denials_write_nothing);
    tcase_add_test(tcase, a_first_denial_leaves_no_trace);
    tcase_add_test(tcase, refunds_end_at_the_burst);
    tcase_add_test(tcase, times_to_live_of_a_fast_policy);
    tcase_add_test(tcase, an_immortal_bucket_is_made_mortal);
    tcase_add_test(tcase, a_late_generation_keeps_its_elder);
    tcase_add_test(tcase, new_numbers_count_at_once);
    tcase_add_test(tcase, a_clock_that_goes_back_grants_nothing);
    tcase_add_test(tcase, other_formats_and_types_are_refused);
    tcase_add_test(tcase, slices_are_respected);
    tcase_add_test(tcase, a_dead_slice_does_not_lock_a_key);
    tcase_add_test(tcase, modes_share_one_state);
    tcase_add_test(tcase, a_loss_is_noticed);
    tcase_add_test(tcase, a_look_leaves_no_epoch);
    tcase_add_test(tcase, shards_are_answered_each_for_itself);
    tcase_add_test(tcase, nothing_is_taken_while_state_is_gathered);
    tcase_add_test(tcase, all_are_charged_or_none);
    tcase_add_test(tcase, a_key_named_twice_pays_twice);
    tcase_add_test(tcase, a_denied_all_writes_nothing);
    tcase_add_test(tcase, all_takes_the_most_members);
    tcase_add_test(tcase, a_mismatch_among_all_charges_nobody);
    tcase_add_test(tcase, a_forgotten_key_is_full);
    tcase_add_test(tcase, a_peek_sees_everything_and_changes_nothing);
    tcase_add_test(tcase, the_servers_own_clock);
}

int main(void)
{
    return script_main("script_strict", add_all);
}
