/* SPDX-License-Identifier: MIT */
/*
 * sync/wire.h without a server: where keys live, what a command looks like byte for byte, and that no reply is taken on
 * trust.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/suite.h"
#include "sync/wire.h"

static const char sha[] = "0123456789abcdef0123456789abcdef01234567";

/* ---- memory that fails when told --------------------------------------------------------------------------------- */

static long allocations_left;
static size_t bytes_out;

static void *get(void *arg, size_t size)
{
    (void)arg;
    if (allocations_left == 0) {
        return NULL;
    }
    allocations_left--;
    bytes_out += size;
    return malloc(size);
}

static void put_back(void *arg, void *memory, size_t size)
{
    (void)arg;
    bytes_out -= size;
    free(memory);
}

static const struct weir_allocator memory = {.alloc = get, .release = put_back};
static struct weir__wire_buf out;

static void setup(void)
{
    allocations_left = 1000;
    weir__wire_buf_init(&out, &memory);
}

static void teardown(void)
{
    weir__wire_buf_deinit(&out);
    ck_assert_uint_eq(bytes_out, 0);
}

/* ---- a reader of commands, independent of the encoder ------------------------------------------------------------ */

enum { WORDS = 80 };

struct command {
    int words;
    const char *word[WORDS];
    size_t len[WORDS];
};

static const char *read_number(const char *at, char kind, size_t *value)
{
    char *end;
    ck_assert_int_eq(*at, kind);
    *value = strtoul(at + 1, &end, 10);
    ck_assert_mem_eq(end, "\r\n", 2);
    return end + 2;
}

/* Takes the whole buffer apart as one command. */
static void parse(struct command *command)
{
    size_t words;
    const char *at = read_number(out.data, '*', &words), *end = out.data + out.len;
    ck_assert_uint_le(words, WORDS);
    command->words = (int)words;
    for (size_t i = 0; i < words; i++) {
        at = read_number(at, '$', &command->len[i]);
        command->word[i] = at;
        at += command->len[i];
        ck_assert_mem_eq(at, "\r\n", 2);
        at += 2;
    }
    ck_assert_ptr_eq(at, end);
}

static double number_at(const struct command *command, int word, size_t index)
{
    const uint8_t *p = (const uint8_t *)command->word[word] + index * 8;
    uint64_t bits = 0;
    double value;
    ck_assert_uint_le((index + 1) * 8, command->len[word]);
    for (int i = 7; i >= 0; i--) {
        bits = bits << 8 | p[i];
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void expect_word(const struct command *command, int word, const void *bytes, size_t len)
{
    ck_assert_int_lt(word, command->words);
    ck_assert_uint_eq(command->len[word], len);
    ck_assert_mem_eq(command->word[word], bytes, len);
}

#define EXPECT_TEXT(command, word, text) expect_word(command, word, text, sizeof(text) - 1)

static struct weir__wire_target some_target(void)
{
    return (struct weir__wire_target){.prefix = "weir", .policy = "api", .shard = 7, .shards = 64};
}

static struct weir__wire_numbers some_numbers(void)
{
    return (struct weir__wire_numbers){.version = 3,
                                       .limit = 1000,
                                       .per_ns = 1000000000,
                                       .burst = 500,
                                       .overshoot = 50,
                                       .interval = 0.2,
                                       .timeout = 0.05};
}

/* ---- where keys live --------------------------------------------------------------------------------------------- */

START_TEST(slots_are_those_of_redis_cluster)
{
    const struct {
        const char *name;
        uint32_t slot;
    } known[] = {{"{}user", 12192}, {"{user", 9243},    {"{{u}}", 14993},     {"{u}{v}", 11826},
                 {"u", 11826},      {"foo{bar}", 5061}, {"123456789", 12739}, {"", 0}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        ck_assert_uint_eq(weir__wire_slot(known[i].name, strlen(known[i].name)), known[i].slot);
    }
}
END_TEST

START_TEST(names_of_a_shard_share_a_slot)
{
    const char *prefixes[] = {"weir", "", "{}", "a{", "}b", "x{y}z", "{{", "a b%\x01"};
    const char *groups[] = {NULL, "team", "#"};
    char a[WEIR__WIRE_NAME], b[WEIR__WIRE_NAME], n[WEIR__WIRE_NAME];
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        for (size_t j = 0; j < sizeof groups / sizeof groups[0]; j++) {
            struct weir__wire_target target = some_target();
            target.prefix = prefixes[i];
            target.group = groups[j];
            int la = weir__wire_name(&target, 'a', a), lb = weir__wire_name(&target, 'b', b);
            int ln = weir__wire_name(&target, 'n', n);
            ck_assert_int_gt(la, 0);
            ck_assert_uint_eq(strlen(a), (size_t)la);
            ck_assert_str_ne(a, b);
            ck_assert_str_ne(a, n);
            ck_assert_uint_eq(weir__wire_slot(a, (size_t)la), weir__wire_slot(b, (size_t)lb));
            ck_assert_uint_eq(weir__wire_slot(a, (size_t)la), weir__wire_slot(n, (size_t)ln));
            ck_assert_ptr_eq(strchr(strchr(a, '{') + 1, '{'), NULL);
            ck_assert_ptr_eq(strchr(strchr(a, '}') + 1, '}'), NULL);
        }
    }
}
END_TEST

START_TEST(names_are_as_documented)
{
    char name[WEIR__WIRE_NAME];
    struct weir__wire_target target = some_target();
    weir__wire_name(&target, 'a', name);
    ck_assert_str_eq(name, "weir:{api#7}:a");
    target.group = "g";
    weir__wire_name(&target, 'n', name);
    ck_assert_str_eq(name, "weir:{g}api#7:n");
    target.group = NULL;
    target.prefix = "a{b}%\n";
    weir__wire_name(&target, 'b', name);
    ck_assert_str_eq(name, "a%7Bb%7D%25%0A:{api#7}:b");
}
END_TEST

/* Shards of one policy spread over the cluster; policies of a group share a slot whatever the shard. */
START_TEST(a_group_has_one_slot)
{
    char name[WEIR__WIRE_NAME];
    uint32_t slot = 0;
    unsigned different = 0;
    for (uint32_t shard = 0; shard < 64; shard++) {
        struct weir__wire_target target = some_target();
        target.shard = shard;
        int len = weir__wire_name(&target, 'a', name);
        different += weir__wire_slot(name, (size_t)len) != slot;
        slot = weir__wire_slot(name, (size_t)len);
        target.group = "g";
        target.policy = shard % 2 ? "one" : "two";
        len = weir__wire_name(&target, 'a', name);
        ck_assert_uint_eq(weir__wire_slot(name, (size_t)len), weir__wire_slot("{g}", 3));
    }
    ck_assert_uint_gt(different, 60);
}
END_TEST

START_TEST(a_name_too_long_is_refused)
{
    char prefix[2 * WEIR__WIRE_NAME], name[WEIR__WIRE_NAME];
    struct weir__wire_target target = some_target();
    target.prefix = prefix;
    int longest = 0;
    for (size_t len = 0; len < sizeof prefix - 1; len++) {
        memset(prefix, 'p', len);
        prefix[len] = 0;
        int got = weir__wire_name(&target, 'a', name);
        ck_assert(got == WEIR_E_SPACE || (got > 0 && strlen(name) == (size_t)got));
        if (got > 0) {
            ck_assert_int_eq(got, (int)len + 10);
            longest = got;
        }
    }
    ck_assert_int_gt(longest, WEIR__WIRE_NAME - 32);
    const struct weir__wire_batch batch = {.target = target, .numbers = some_numbers()};
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), WEIR_E_SPACE);
    ck_assert_uint_eq(out.len, 0);
}
END_TEST

/* Other nodes, of other versions, must find the same shard: these values may never change. */
START_TEST(shards_never_move)
{
    const struct {
        const char *key;
        size_t len;
        uint32_t shard;
    } known[] = {{"a", 1, 13}, {"user:1", 6, 33}, {"a\0b", 3, 15}, {"\xff", 1, 45}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        ck_assert_uint_eq(weir__wire_shard(known[i].key, known[i].len, 64), known[i].shard);
        ck_assert_uint_eq(weir__wire_shard(known[i].key, known[i].len, 1), 0);
    }
}
END_TEST

/* 20,000 similar keys over 64 shards: chi-squared with 63 degrees of freedom stays under its 1e-6 quantile (about
 * 131). */
START_TEST(shards_are_even)
{
    double hits[64] = {0}, chi = 0, expected = 20000.0 / 64;
    for (int i = 0; i < 20000; i++) {
        char key[32];
        int len = snprintf(key, sizeof key, "user:%d", i);
        uint32_t shard = weir__wire_shard(key, (size_t)len, 64);
        ck_assert_uint_lt(shard, 64);
        hits[shard]++;
    }
    for (int i = 0; i < 64; i++) {
        chi += (hits[i] - expected) * (hits[i] - expected) / expected;
    }
    ck_assert_double_lt(chi, 131);
}
END_TEST

START_TEST(generations_have_four_lengths)
{
    const uint64_t s = 1000000000, day = 86400 * s;
    ck_assert_double_eq(weir__wire_generation(1000, s, 1000, 100), 10);
    ck_assert_double_eq(weir__wire_generation(1, s, 3, 2), 10);
    ck_assert_double_eq(weir__wire_generation(1, s, 4, 2), 600);
    ck_assert_double_eq(weir__wire_generation(1, s, 60, 6), 600);
    ck_assert_double_eq(weir__wire_generation(1, 3600 * s, 10, 1), 86400);
    ck_assert_double_eq(weir__wire_generation(1, day, 10, 1), 3456000);
    ck_assert_double_eq(weir__wire_generation(1, day, 19, 0), 3456000);
    ck_assert_double_eq(weir__wire_generation(1, day, 20, 0), 0);
    ck_assert_double_eq(weir__wire_generation(0, s, 10, 0), 0);
    ck_assert_double_eq(weir__wire_generation(100000000, s, UINT64_C(1) << 53, 0), 0);
}
END_TEST

/* ---- commands ---------------------------------------------------------------------------------------------------- */

/* The word is these doubles and nothing else. */
static void expect_doubles(const struct command *command, int word, const double *values, size_t n)
{
    ck_assert_int_lt(word, command->words);
    ck_assert_uint_eq(command->len[word], n * 8);
    for (size_t i = 0; i < n; i++) {
        ck_assert_double_eq(number_at(command, word, i), values[i]);
    }
}

#define EXPECT_DOUBLES(command, word, ...)                                                                             \
    expect_doubles(command, word, (const double[]){__VA_ARGS__}, sizeof((double[]){__VA_ARGS__}) / sizeof(double))

static struct weir__wire_wait full_waits[] = {{.cost = 5, .count = 2}, {.cost = 1, .count = 9}};

/* A long record, a short one, and one that is long for what it gives back: the short one travels first. */
static struct weir__wire_record full_records[] = {
    {.key = "hot",
     .key_len = 3,
     .spent = 4,
     .refunded = 1,
     .fallback_spent = 2,
     .age = 0.5,
     .slice = 1,
     .level = -1.5,
     .rate = 10,
     .demand = 20,
     .want = 30,
     .max_cost = 7,
     .waits = &full_waits[0],
     .n_waits = 1},
    {.key = "a\0b",
     .key_len = 3,
     .spent = 6,
     .level = 99,
     .known = 1,
     .seed = 12,
     .seed_age = 0.25,
     .fallback = 2,
     .waits = &full_waits[1],
     .n_waits = 1},
    {.key = "r", .key_len = 1, .refunded = 8, .level = 99},
};

START_TEST(a_batch_is_laid_out_as_documented)
{
    struct weir__wire_batch batch = {.target = some_target(),
                                     .numbers = some_numbers(),
                                     .node = "0123456789abcde",
                                     .seq = 12,
                                     .nonce = UINT64_MAX,
                                     .epoch = 77,
                                     .rtt = 0.001,
                                     .flags = WEIR__WIRE_HELLO | WEIR__WIRE_OUTAGE_LOCAL,
                                     .nodes = 5,
                                     .records = full_records,
                                     .count = 3};
    struct command c;
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), 0);
    parse(&c);
    ck_assert_int_eq(c.words, 17);
    EXPECT_TEXT(&c, 0, "EVALSHA");
    EXPECT_TEXT(&c, 1, "0123456789abcdef0123456789abcdef01234567");
    EXPECT_TEXT(&c, 2, "3");
    EXPECT_TEXT(&c, 3, "weir:{api#7}:a");
    EXPECT_TEXT(&c, 4, "weir:{api#7}:b");
    EXPECT_TEXT(&c, 5, "weir:{api#7}:n");
    EXPECT_DOUBLES(&c, 6, WEIR__WIRE_FORMAT, 64, 3, 1000, 1e9, 500, 50, 200000, 50000, 4503599627370495.0);
    EXPECT_TEXT(&c, 7, "");
    expect_word(&c, 8, batch.node, 16);
    EXPECT_DOUBLES(&c, 9, 12, 77, 1000, 3, 1, 2, 5, 1.5);
    EXPECT_DOUBLES(&c, 10, 6);
    EXPECT_DOUBLES(&c, 11, 4, 1, 2, 500000, -1.5, 10e-6, 20e-6, 30, 7, 0, 8, 0, 0, 0, 0, 0, 0, 0);
    EXPECT_DOUBLES(&c, 12, 12, 250000, 2e-6, 1e300, 0, 0, 1e300, 0, 0);
    EXPECT_DOUBLES(&c, 13, 1, 1, 9, 2, 5, 2);
    EXPECT_TEXT(&c, 14, "ka\0b");
    EXPECT_TEXT(&c, 15, "khot");
    EXPECT_TEXT(&c, 16, "kr");
}
END_TEST

/* No seed travels but in a batch that says hello; an empty batch is a legal one. */
START_TEST(seeds_travel_with_hello_alone)
{
    struct weir__wire_record record = {.key = "k", .key_len = 1, .spent = 1, .known = 1, .seed = 3};
    struct weir__wire_batch batch = {
        .target = some_target(), .numbers = some_numbers(), .seq = 2, .records = &record, .count = 1};
    struct command c;
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), 0);
    parse(&c);
    ck_assert_uint_eq(c.len[12], 0);
    weir__wire_buf_clear(&out);
    batch.count = 0;
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), 0);
    parse(&c);
    ck_assert_int_eq(c.words, 14);
}
END_TEST

START_TEST(strict_and_other_commands)
{
    struct weir__wire_key keys[] = {{.key = "x", .key_len = 1}, {.key = "yy", .key_len = 2}};
    struct weir__wire_strict_entry entries[] = {{.key = 1, .op = WEIR__WIRE_TAKE, .cost = 3, .count = 4},
                                                {.key = 0, .op = WEIR__WIRE_GIVE, .cost = 5, .count = 1}};
    struct weir__wire_strict batch = {.target = some_target(),
                                      .numbers = some_numbers(),
                                      .nonce = 99,
                                      .epoch = 7,
                                      .keys = keys,
                                      .n_keys = 2,
                                      .entries = entries,
                                      .n_entries = 2,
                                      .flags = WEIR__WIRE_OUTAGE_LOCAL,
                                      .test_now = 1234.5};
    struct command c;
    ck_assert_int_eq(weir__wire_strict_encode(&out, &batch, sha), 0);
    parse(&c);
    ck_assert_int_eq(c.words, 9);
    EXPECT_TEXT(&c, 6, "kx");
    EXPECT_TEXT(&c, 7, "kyy");
    EXPECT_DOUBLES(&c, 8, WEIR__WIRE_FORMAT, 64, 3, 1000, 1e9, 500, 50, 200000, 50000, 99, 1234500000, 2, 7, 2, 0, 3, 4,
                   1, 1, 5, 1);

    weir__wire_buf_clear(&out);
    ck_assert_int_eq(weir__wire_forget_encode(&out, &batch.target, keys, 2, sha), 0);
    parse(&c);
    ck_assert_int_eq(c.words, 8);
    EXPECT_TEXT(&c, 7, "kyy");
    weir__wire_buf_clear(&out);
    ck_assert_int_eq(weir__wire_peek_encode(&out, &batch.target, "zz", 2, 0, sha), 0);
    parse(&c);
    ck_assert_int_eq(c.words, 9);
    EXPECT_TEXT(&c, 8, "kzz");
}
END_TEST

/* Members of one policy and shard share its keys: each is named once. */
START_TEST(all_names_each_shard_once)
{
    struct weir__wire_member members[4];
    for (int i = 0; i < 4; i++) {
        members[i] = (struct weir__wire_member){
            .target = some_target(), .numbers = some_numbers(), .key = "k", .key_len = 1, .cost = i + 1};
        members[i].target.group = "g";
    }
    members[1].target.policy = "other";
    members[3].target.shard = 8;
    struct weir__wire_all all = {.members = members, .n = 4};
    struct command c;
    ck_assert_int_eq(weir__wire_all_encode(&out, &all, sha), 0);
    parse(&c);
    EXPECT_TEXT(&c, 2, "9");
    ck_assert_int_eq(c.words, 3 + 9 + 3 + 3 + 4);
    EXPECT_TEXT(&c, 3, "weir:{g}api#7:a");
    EXPECT_TEXT(&c, 6, "weir:{g}other#7:a");
    EXPECT_TEXT(&c, 9, "weir:{g}api#8:a");
    EXPECT_DOUBLES(&c, 14, 1, 1, 2, 2, 1, 3, 3, 4);
}
END_TEST

START_TEST(limits_are_kept)
{
    static struct weir__wire_record records[WEIR__WIRE_RECORDS + 1];
    static struct weir__wire_wait waits[WEIR__WIRE_WAITS + 1];
    static struct weir__wire_key keys[WEIR__WIRE_RECORDS + 1];
    struct weir__wire_batch batch = {.target = some_target(), .numbers = some_numbers(), .records = records};
    for (size_t i = 0; i <= WEIR__WIRE_RECORDS; i++) {
        records[i].key = keys[i].key = "k";
        records[i].key_len = keys[i].key_len = 1;
    }
    batch.count = WEIR__WIRE_RECORDS + 1;
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), WEIR_E_RANGE);
    batch.count = WEIR__WIRE_RECORDS;
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), 0);
    records[0].waits = waits;
    records[0].n_waits = WEIR__WIRE_WAITS + 1;
    ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), WEIR_E_RANGE);
    struct weir__wire_strict strict = {
        .target = some_target(), .numbers = some_numbers(), .keys = keys, .n_keys = WEIR__WIRE_RECORDS + 1};
    ck_assert_int_eq(weir__wire_strict_encode(&out, &strict, sha), WEIR_E_RANGE);
    struct weir__wire_all all = {.n = WEIR__WIRE_MEMBERS + 1};
    ck_assert_int_eq(weir__wire_all_encode(&out, &all, sha), WEIR_E_RANGE);
    all.n = 0;
    ck_assert_int_eq(weir__wire_all_encode(&out, &all, sha), WEIR_E_RANGE);
    ck_assert_int_eq(weir__wire_forget_encode(&out, &strict.target, keys, WEIR__WIRE_RECORDS + 1, sha), WEIR_E_RANGE);
}
END_TEST

/* Whichever allocation fails, nothing half written stays in the buffer, what was there before does. */
START_TEST(no_memory_leaves_the_buffer_as_it_was)
{
    for (int enough = 0; enough < 2; enough++) {
        struct weir__wire_batch batch = {.target = some_target(), .numbers = some_numbers(), .seq = 1};
        weir__wire_buf_deinit(&out);
        weir__wire_buf_init(&out, &memory);
        allocations_left = enough;
        int rc = 0, sent = 0;
        size_t before = 0;
        while ((rc = weir__wire_sync_encode(&out, &batch, sha)) == 0) {
            ck_assert_int_lt(++sent, 1000);
            before = out.len;
        }
        ck_assert_int_eq(rc, WEIR_E_NOMEM);
        ck_assert_uint_eq(out.len, before);
        ck_assert_int_eq(sent > 0, enough > 0);
        ck_assert_int_eq(weir__wire_script_load(&out, WEIR__WIRE_SYNC), WEIR_E_NOMEM);
        ck_assert_uint_eq(out.len, before);
        weir__wire_buf_clear(&out);
        allocations_left = 10;
        ck_assert_int_eq(weir__wire_sync_encode(&out, &batch, sha), 0);
    }
}
END_TEST

START_TEST(scripts_can_be_loaded)
{
    for (int i = 0; i < WEIR__WIRE_SCRIPTS; i++) {
        const char *text = weir__wire_script_text((enum weir__wire_script)i);
        struct command c;
        ck_assert_ptr_nonnull(strstr(text, "redis.call"));
        weir__wire_buf_clear(&out);
        ck_assert_int_eq(weir__wire_script_load(&out, (enum weir__wire_script)i), 0);
        parse(&c);
        ck_assert_int_eq(c.words, 3);
        EXPECT_TEXT(&c, 0, "SCRIPT");
        EXPECT_TEXT(&c, 1, "LOAD");
        expect_word(&c, 2, text, strlen(text));
    }
}
END_TEST

/* ---- replies ----------------------------------------------------------------------------------------------------- */

enum { HEAD = 16 };

static void pack(uint8_t *bytes, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        for (int j = 0; j < 8; j++) {
            bytes[8 * i + (size_t)j] = (uint8_t)(bits >> (8 * j));
        }
    }
}

static const double some_head[HEAD] = {1, 0, 5000250000.0, 99, 12, 3, 1000, 1e9, 500, 50, 4, 9, 14, 250000, 64, 1};

static struct weir__wire_wait some_waits[2];
static struct weir__wire_record some_records[2];
static struct weir__wire_batch some_batch;
static struct weir__wire_grant grants[2];
static struct weir__wire_head head;

enum { BODY = HEAD + 1 }; /* behind it: are short records answered in plain form? */

/* A long record, then a short one: on the wire the short one comes first. */
static const double some_reply[BODY + 2 + 8 + 2] = {
    1,  0,  5000250000.0, 99,   12, 3,    1000,   1e9, 500, 50, 4, 9, 14, 250000, 64, 1, /* head */
    0,                                                                                   /* not plain */
    -7, -8,                                                                              /* short: T free */
    30, 20, 5.5,          6e-6, 7,  8e-6, 500000, 1, /* long: T free level rate cap F hold rich */
    2,  3,                                           /* waiting: of the short, of the long */
};

static int decode(const double *values, size_t n)
{
    uint8_t bytes[8 * 64];
    pack(bytes, values, n);
    some_waits[0] = (struct weir__wire_wait){.cost = 1, .count = 3};
    some_waits[1] = (struct weir__wire_wait){.cost = 1, .count = 2};
    some_records[0] =
        (struct weir__wire_record){.key = "l", .key_len = 1, .slice = 1, .waits = &some_waits[0], .n_waits = 1};
    some_records[1] = (struct weir__wire_record){.key = "s", .key_len = 1, .waits = &some_waits[1], .n_waits = 1};
    some_batch = (struct weir__wire_batch){
        .target = some_target(), .numbers = some_numbers(), .records = some_records, .count = 2};
    return weir__wire_sync_decode(&some_batch, bytes, n * 8, &head, grants);
}

START_TEST(a_reply_is_understood)
{
    ck_assert_int_eq(decode(some_reply, sizeof some_reply / 8), 0);
    ck_assert_int_eq(head.status, WEIR__WIRE_APPLIED);
    ck_assert_uint_eq(head.format, 1);
    ck_assert_double_eq(head.now, 5000.25);
    ck_assert_double_eq(head.epoch, 99);
    ck_assert_double_eq(head.last, 12);
    ck_assert_uint_eq(head.numbers.version, 3);
    ck_assert_uint_eq(head.numbers.limit, 1000);
    ck_assert_uint_eq(head.numbers.per_ns, 1000000000);
    ck_assert_uint_eq(head.numbers.burst, 500);
    ck_assert_uint_eq(head.numbers.overshoot, 50);
    ck_assert_double_eq(head.nodes, 4);
    ck_assert_double_eq(head.q0, 9);
    ck_assert_double_eq(head.pool, 14);
    ck_assert_double_eq(head.recovering, 0.25);
    ck_assert_uint_eq(head.shards, 64);
    ck_assert_double_eq(head.healed, 1);
    ck_assert_double_eq(grants[1].total, -7);
    ck_assert_double_eq(grants[1].free, -8);
    ck_assert_double_eq(grants[1].level, 0);
    ck_assert_double_eq(grants[0].total, 30);
    ck_assert_double_eq(grants[0].free, 20);
    ck_assert_double_eq(grants[0].level, 5.5);
    ck_assert_double_eq_tol(grants[0].rate, 6, 1e-9);
    ck_assert_double_eq(grants[0].cap, 7);
    ck_assert_double_eq_tol(grants[0].fallback, 8, 1e-9);
    ck_assert_double_eq(grants[0].hold, 0.5);
    ck_assert_int_eq(grants[0].rich, 1);
    ck_assert_uint_eq(some_waits[1].admitted, 2);
    ck_assert_uint_eq(some_waits[0].admitted, 3);
}
END_TEST

/* Nothing is reserved, and what stands in place of what is free is the time. */
START_TEST(a_plain_reply_is_understood)
{
    double values[sizeof some_reply / 8];
    memcpy(values, some_reply, sizeof some_reply);
    values[HEAD] = 1;
    values[BODY + 1] = values[2];
    ck_assert_int_eq(decode(values, sizeof values / 8), 0);
    ck_assert_double_eq(grants[1].total, -7);
    ck_assert_double_eq(grants[1].free, -7);
    ck_assert_double_eq(grants[0].total, 30);
    ck_assert_double_eq(grants[0].free, 20);
}
END_TEST

START_TEST(a_refusal_is_a_head_alone)
{
    double values[HEAD + 1];
    memcpy(values, some_head, sizeof some_head);
    values[HEAD] = 0;
    for (int status = WEIR__WIRE_LOST; status <= WEIR__WIRE_OLD; status++) {
        values[1] = status;
        ck_assert_int_eq(decode(values, HEAD), 0);
        ck_assert_int_eq((int)head.status, status);
        ck_assert_int_eq(decode(values, HEAD + 1), WEIR_E_INVAL);
    }
    values[1] = WEIR__WIRE_APPLIED;
    ck_assert_int_eq(decode(values, HEAD), WEIR_E_INVAL);
}
END_TEST

/* Every double of a good reply in turn made nonsense, and every wrong length. */
START_TEST(nonsense_is_refused)
{
    const size_t n = sizeof some_reply / 8;
    double values[sizeof some_reply / 8 + 1] = {0};
    uint8_t bytes[8] = {0};
    for (size_t i = 0; i < n; i++) {
        const double bad[] = {NAN, INFINITY, -INFINITY};
        for (size_t j = 0; j < 3; j++) {
            memcpy(values, some_reply, sizeof some_reply);
            values[i] = bad[j];
            ck_assert_int_eq(decode(values, n), WEIR_E_INVAL);
        }
    }
    for (size_t len = 0; len <= n + 1; len++) {
        memcpy(values, some_reply, sizeof some_reply);
        ck_assert_int_eq(decode(values, len), len == n ? 0 : WEIR_E_INVAL);
    }
    const struct {
        size_t at;
        double value;
    } wrong[] = {{1, 5},         {1, -1},    {1, 0.5},    {0, -1},        {6, -1},        {6, 1e30},
                 {14, 1e10},     {HEAD, 2},  {HEAD, 0.5}, {BODY + 5, -1}, {BODY + 6, -1}, {BODY + 7, -1},
                 {BODY + 8, -1}, {n - 1, 4}, {n - 2, 3},  {n - 1, -1},    {n - 1, 1.5}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(values, some_reply, sizeof some_reply);
        values[wrong[i].at] = wrong[i].value;
        ck_assert_msg(decode(values, n) == WEIR_E_INVAL, "case %zu was taken", i);
    }
    ck_assert_int_eq(weir__wire_sync_decode(&some_batch, NULL, 0, &head, grants), WEIR_E_INVAL);
    ck_assert_int_eq(weir__wire_sync_decode(&some_batch, bytes, 7, &head, grants), WEIR_E_INVAL);
}
END_TEST

/* Below -(burst + overshoot) whole tokens go back to the node. */
START_TEST(a_debt_too_deep_is_carried)
{
    double values[sizeof some_reply / 8];
    const double totals[] = {-550, -550.5, -551, -561.75, 0, -1e300};
    const int64_t carried[] = {0, 0, 1, 11, 0, 0};
    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; i++) {
        memcpy(values, some_reply, sizeof some_reply);
        values[BODY] = totals[i];
        ck_assert_int_eq(decode(values, sizeof values / 8), 0);
        ck_assert_int_eq(grants[1].carried, carried[i]);
    }
}
END_TEST

START_TEST(strict_replies)
{
    struct weir__wire_key key = {.key = "k", .key_len = 1};
    struct weir__wire_strict_entry entry = {.cost = 2, .count = 3};
    struct weir__wire_strict batch = {
        .target = some_target(), .keys = &key, .n_keys = 1, .entries = &entry, .n_entries = 1};
    double values[HEAD + 4];
    uint8_t bytes[sizeof values];
    memcpy(values, some_head, sizeof some_head);
    values[HEAD] = 40;
    values[HEAD + 1] = 30;
    values[HEAD + 2] = 3;
    values[HEAD + 3] = 31;
    pack(bytes, values, HEAD + 4);
    ck_assert_int_eq(weir__wire_strict_decode(&batch, bytes, sizeof bytes, &head), 0);
    ck_assert_double_eq(key.total, 40);
    ck_assert_double_eq(key.free, 30);
    ck_assert_uint_eq(entry.admitted, 3);
    ck_assert_double_eq(entry.free, 31);
    for (size_t len = 0; len < sizeof bytes; len++) {
        ck_assert_int_eq(weir__wire_strict_decode(&batch, bytes, len, &head), WEIR_E_INVAL);
    }
    values[HEAD + 2] = 4;
    pack(bytes, values, HEAD + 4);
    ck_assert_int_eq(weir__wire_strict_decode(&batch, bytes, sizeof bytes, &head), WEIR_E_INVAL);
}
END_TEST

START_TEST(all_replies)
{
    struct weir__wire_member members[2] = {{.cost = 1}, {.cost = 2}};
    struct weir__wire_all all = {.members = members, .n = 2};
    double values[HEAD + 7];
    uint8_t bytes[sizeof values];
    const double rest[] = {0, 5, 4, 0, 1, 0.5, 1};
    memcpy(values, some_head, sizeof some_head);
    memcpy(values + HEAD, rest, sizeof rest);
    pack(bytes, values, HEAD + 7);
    ck_assert_int_eq(weir__wire_all_decode(&all, bytes, sizeof bytes, &head), 0);
    ck_assert_int_eq(all.admitted, 0);
    ck_assert_int_eq(members[0].denied, 0);
    ck_assert_double_eq(members[0].total, 5);
    ck_assert_double_eq(members[1].free, 0.5);
    ck_assert_int_eq(members[1].denied, 1);
    for (size_t len = 0; len < sizeof bytes; len++) {
        ck_assert_int_eq(weir__wire_all_decode(&all, bytes, len, &head), WEIR_E_INVAL);
    }
}
END_TEST

START_TEST(peek_replies)
{
    struct weir__wire_seen seen;
    struct weir__wire_seen_slice slice;
    double values[HEAD + 12 + 16] = {0};
    uint8_t bytes[sizeof values];
    const double rest[] = {1,  40, 30, 10, 5,    6, 7, 8,   12500000, 7, 2.5e6, 2, 0, 1e5,
                           10, 5,  9,  6,  7e-6, 0, 0, 9e5, 1,        0, 0,     0, 0, 1};
    memcpy(values, some_head, sizeof some_head);
    memcpy(values + HEAD, rest, sizeof rest);
    pack(bytes, values, sizeof values / 8);
    memcpy(bytes + (HEAD + 12) * 8, "nodename", 8);
    ck_assert_int_eq(weir__wire_peek_decode(bytes, sizeof bytes, &head, &seen, &slice, 1), 0);
    ck_assert_int_eq(seen.exists, 1);
    ck_assert_double_eq(seen.reserved, 10);
    ck_assert_double_eq(seen.ttl, 12.5);
    ck_assert_double_eq(seen.generation, 7);
    ck_assert_double_eq(seen.flip, 2.5);
    ck_assert_uint_eq(seen.n_slices, 2);
    ck_assert_mem_eq(slice.node, "nodename", 8);
    ck_assert_double_eq(slice.reserved, 10);
    ck_assert_double_eq_tol(slice.demand, 7, 1e-9);
    ck_assert_double_eq(slice.age, 0.1);
    ck_assert_int_eq(slice.expired, 0);
    for (size_t len = 0; len < sizeof bytes; len++) {
        ck_assert_int_eq(weir__wire_peek_decode(bytes, len, &head, &seen, &slice, 1), WEIR_E_INVAL);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("wire");
    TCase *tcase = tcase_create("all");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, slots_are_those_of_redis_cluster);
    tcase_add_test(tcase, names_of_a_shard_share_a_slot);
    tcase_add_test(tcase, names_are_as_documented);
    tcase_add_test(tcase, a_group_has_one_slot);
    tcase_add_test(tcase, a_name_too_long_is_refused);
    tcase_add_test(tcase, shards_never_move);
    tcase_add_test(tcase, shards_are_even);
    tcase_add_test(tcase, generations_have_four_lengths);
    tcase_add_test(tcase, a_batch_is_laid_out_as_documented);
    tcase_add_test(tcase, seeds_travel_with_hello_alone);
    tcase_add_test(tcase, strict_and_other_commands);
    tcase_add_test(tcase, all_names_each_shard_once);
    tcase_add_test(tcase, limits_are_kept);
    tcase_add_test(tcase, no_memory_leaves_the_buffer_as_it_was);
    tcase_add_test(tcase, scripts_can_be_loaded);
    tcase_add_test(tcase, a_reply_is_understood);
    tcase_add_test(tcase, a_plain_reply_is_understood);
    tcase_add_test(tcase, a_refusal_is_a_head_alone);
    tcase_add_test(tcase, nonsense_is_refused);
    tcase_add_test(tcase, a_debt_too_deep_is_carried);
    tcase_add_test(tcase, strict_replies);
    tcase_add_test(tcase, all_replies);
    tcase_add_test(tcase, peek_replies);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
