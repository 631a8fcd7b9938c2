/* SPDX-License-Identifier: MIT */
/*
 * sync/cluster.h's reading: the slot of a command, redirections, ranges of CLUSTER SLOTS; and what is none.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include <hiredis/hiredis.h>

#include "support/suite.h"
#include "sync/cluster.h"
#include "sync/wire.h"

/* Case 30: braces are Redis' own rule, to the byte. */
static const struct {
    const char *key;
    int slot;
} keys[] = {
    {"a{'1':{'i32':1}}", 5540}, {"{}user", 12192}, {"{user", 9243},    {"{{u}}", 14993},
    {"{u}{v}", 11826},          {"u", 11826},      {"foo{bar}", 5061}, {"bar", 5061},
};

START_TEST(a_command_has_the_slot_of_its_first_key)
{
    char command[256];
    int len =
        snprintf(command, sizeof command, "*5\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$1\r\n1\r\n$%zu\r\n%s\r\n$1\r\n{\r\n",
                 strlen(keys[_i].key), keys[_i].key);
    ck_assert_int_eq(weir__slots_of_command(command, (size_t)len), keys[_i].slot);
    for (size_t cut = 0; cut < (size_t)len - 8; cut++) {
        ck_assert_int_eq(weir__slots_of_command(command, cut), -1);
    }
}
END_TEST

START_TEST(users_spread_over_the_slots)
{
    static char seen[WEIR__CLUSTER_SLOTS];
    int distinct = 0;
    for (int i = 0; i < 10000; i++) {
        char key[16];
        uint32_t slot = weir__wire_slot(key, (size_t)snprintf(key, sizeof key, "user:%d", i));
        ck_assert_uint_lt(slot, WEIR__CLUSTER_SLOTS);
        distinct += !seen[slot];
        seen[slot] = 1;
    }
    ck_assert_int_gt(distinct, 7000);
}
END_TEST

static const char *const no_commands[] = {
    "",
    "*",
    "*4",
    "*4\r",
    "*-1\r\n",
    "*4\r\n$99\r\nx\r\n",
    "*1\r\n$4\r\nPING\r\n",
    "PING\r\n",
    "*4\r\n:1\r\n",
    "*99999999999999999999\r\n",
    "*4\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n",
    "*4\r\n$99999999999999999999\r\nx",
};

START_TEST(what_is_no_command_has_no_slot)
{
    ck_assert_int_eq(weir__slots_of_command(no_commands[_i], strlen(no_commands[_i])), -1);
}
END_TEST

static const struct {
    const char *text, *host;
    unsigned slot, port;
} good[] = {
    {"MOVED 3999 127.0.0.1:6381", "127.0.0.1", 3999, 6381},
    {"ASK 0 127.0.0.1:1", "127.0.0.1", 0, 1},
    {"MOVED 16383 ::1:65535", "::1", 16383, 65535},
    {"MOVED 7 2001:db8::5:7000", "2001:db8::5", 7, 7000},
    {"MOVED 7 redis-2.example:7000", "redis-2.example", 7, 7000},
    {"MOVED 7 :7000", "", 7, 7000},
};

START_TEST(redirections_are_read)
{
    struct weir__uri_host to;
    unsigned slot;
    ck_assert_int_eq(weir__slots_redirection(good[_i].text, strlen(good[_i].text), &slot, &to), 0);
    ck_assert_uint_eq(slot, good[_i].slot);
    ck_assert_uint_eq(to.port, good[_i].port);
    ck_assert_str_eq(to.host, good[_i].host);
}
END_TEST

static const char *const bad[] = {
    "",
    "MOVED",
    "MOVED ",
    "MOVED 1",
    "MOVED 1 ",
    "MOVED x h:1",
    "MOVED -1 h:1",
    "MOVED 16384 h:1",
    "MOVED 1 h",
    "MOVED 1 h:",
    "MOVED 1 h:0",
    "MOVED 1 h:65536",
    "MOVED 1 h:1x",
    "MOVED 1  h:1",
    "moved 1 h:1",
    "ASKING 1 h:1",
    "MOVED1 h:1",
    "MOVED 1 a b:1",
    "MOVED 1 h\n:1",
    "MOVED 1 h:99999999999999999999",
    "MOVED 99999999999999999999 h:1",
};

START_TEST(what_is_no_redirection_is_refused)
{
    struct weir__uri_host to;
    unsigned slot;
    ck_assert_int_eq(weir__slots_redirection(bad[_i], strlen(bad[_i]), &slot, &to), -1);
}
END_TEST

START_TEST(a_host_has_a_length)
{
    char text[400], name[300];
    struct weir__uri_host to;
    unsigned slot;
    for (size_t n = sizeof to.host - 1; n <= sizeof to.host; n++) {
        memset(name, 'h', n);
        name[n] = '\0';
        snprintf(text, sizeof text, "MOVED 1 %s:2", name);
        ck_assert_int_eq(weir__slots_redirection(text, strlen(text), &slot, &to), n < sizeof to.host ? 0 : -1);
    }
}
END_TEST

/* What hiredis makes of these bytes. */
static int range_of(const char *resp, struct weir__slots_range *out)
{
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    redisReaderFeed(reader, resp, strlen(resp));
    ck_assert_int_eq(redisReaderGetReply(reader, &reply), REDIS_OK);
    ck_assert_ptr_nonnull(reply);
    int status = weir__slots_range(reply, out);
    freeReplyObject(reply);
    redisReaderFree(reader);
    return status;
}

START_TEST(ranges_are_read)
{
    struct weir__slots_range range;
    ck_assert_int_eq(range_of("*4\r\n:5\r\n:9\r\n*3\r\n$1\r\nh\r\n:7\r\n$2\r\nid\r\n*2\r\n$1\r\nr\r\n:8\r\n", &range),
                     0);
    ck_assert_uint_eq(range.first, 5);
    ck_assert_uint_eq(range.last, 9);
    ck_assert_str_eq(range.master.host, "h");
    ck_assert_uint_eq(range.master.port, 7);
    ck_assert_int_eq(range_of("*3\r\n:0\r\n:16383\r\n*2\r\n$-1\r\n:7\r\n", &range), 0);
    ck_assert_str_eq(range.master.host, ""); /* unknown to the server: where it is itself */
    ck_assert_int_eq(range_of("*3\r\n:0\r\n:0\r\n*2\r\n$1\r\n?\r\n:7\r\n", &range), 0);
    ck_assert_str_eq(range.master.host, "");
}
END_TEST

static const char *const no_ranges[] = {
    ":1\r\n",
    "*0\r\n",
    "*2\r\n:0\r\n:1\r\n",
    "*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:7\r\n",
    "*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\nh\r\n:7\r\n",
    "*3\r\n:2\r\n:1\r\n*2\r\n$1\r\nh\r\n:7\r\n",
    "*3\r\n$1\r\n0\r\n:1\r\n*2\r\n$1\r\nh\r\n:7\r\n",
    "*3\r\n:0\r\n:1\r\n$1\r\nh\r\n",
    "*3\r\n:0\r\n:1\r\n*1\r\n$1\r\nh\r\n",
    "*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n:0\r\n",
    "*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n:65536\r\n",
    "*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n$1\r\n7\r\n",
    "*3\r\n:0\r\n:1\r\n*2\r\n:1\r\n:7\r\n",
    "*3\r\n:0\r\n:1\r\n*2\r\n$3\r\na b\r\n:7\r\n",
};

START_TEST(what_is_no_range_is_refused)
{
    struct weir__slots_range range;
    ck_assert_int_eq(range_of(no_ranges[_i], &range), -1);
}
END_TEST

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

int main(void)
{
    Suite *suite = suite_create("slots");
    TCase *tcase = tcase_create("slots");
    tcase_add_loop_test(tcase, a_command_has_the_slot_of_its_first_key, 0, COUNT(keys));
    tcase_add_test(tcase, users_spread_over_the_slots);
    tcase_add_loop_test(tcase, what_is_no_command_has_no_slot, 0, COUNT(no_commands));
    tcase_add_loop_test(tcase, redirections_are_read, 0, COUNT(good));
    tcase_add_loop_test(tcase, what_is_no_redirection_is_refused, 0, COUNT(bad));
    tcase_add_test(tcase, a_host_has_a_length);
    tcase_add_test(tcase, ranges_are_read);
    tcase_add_loop_test(tcase, what_is_no_range_is_refused, 0, COUNT(no_ranges));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
