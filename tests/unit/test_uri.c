/* SPDX-License-Identifier: MIT */
/*
 * sync/uri.h: what parses, into what; what is refused; what is printed; what is wiped.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include <weir/weir.h>

#include "support/suite.h"
#include "sync/uri.h"

struct expected {
    const char *text, *host, *path, *user, *password;
    unsigned port, db;
    int tls, has_user, has_password;
};

static const struct expected good[] = {
    {"redis://127.0.0.1:6379", "127.0.0.1", "", "", "", 6379, 0, 0, 0, 0},
    {"redis://h", "h", "", "", "", 6379, 0, 0, 0, 0},
    {"redis://h/", "h", "", "", "", 6379, 0, 0, 0, 0},
    {"redis://h/15", "h", "", "", "", 6379, 15, 0, 0, 0},
    {"redis://h:1/0", "h", "", "", "", 1, 0, 0, 0, 0},
    {"redis://h:65535", "h", "", "", "", 65535, 0, 0, 0, 0},
    {"redis://h?db=3", "h", "", "", "", 6379, 3, 0, 0, 0},
    {"redis://h/?db=3", "h", "", "", "", 6379, 3, 0, 0, 0},
    {"REDIS://h", "h", "", "", "", 6379, 0, 0, 0, 0},
    {"redis://", "localhost", "", "", "", 6379, 0, 0, 0, 0},
    {"redis:///2", "localhost", "", "", "", 6379, 2, 0, 0, 0},
    {"redis://:7000", "localhost", "", "", "", 7000, 0, 0, 0, 0},
    {"rediss://h:6380/1", "h", "", "", "", 6380, 1, 1, 0, 0},
    {"valkey://h", "h", "", "", "", 6379, 0, 0, 0, 0},
    {"valkeys://h", "h", "", "", "", 6379, 0, 1, 0, 0},
    {"redis://[::1]", "::1", "", "", "", 6379, 0, 0, 0, 0},
    {"redis://[::1]:7000/4", "::1", "", "", "", 7000, 4, 0, 0, 0},
    {"redis://[fe80::1%25eth0]:7000", "fe80::1%eth0", "", "", "", 7000, 0, 0, 0, 0},
    {"redis://:secret@h", "h", "", "", "secret", 6379, 0, 0, 0, 1},
    {"redis://user:secret@h:7/1", "h", "", "user", "secret", 7, 1, 0, 1, 1},
    {"redis://user@h", "h", "", "user", "", 6379, 0, 0, 1, 0},
    {"redis://user:@h", "h", "", "user", "", 6379, 0, 0, 1, 1},
    {"redis://:@h", "h", "", "", "", 6379, 0, 0, 0, 1},
    {"redis://a%3Ab:p%40%2f%25%3a@h", "h", "", "a:b", "p@/%:", 6379, 0, 0, 1, 1},
    {"redis://u:p:q@h", "h", "", "u", "p:q", 6379, 0, 0, 1, 1},
    {"redis://u:p@[2001:db8::5]:7000/9", "2001:db8::5", "", "u", "p", 7000, 9, 0, 1, 1},
    {"redis://h/1000000", "h", "", "", "", 6379, 1000000, 0, 0, 0},
    {"unix:///tmp/redis.sock", "", "/tmp/redis.sock", "", "", 0, 0, 0, 0, 0},
    {"unix:///tmp/redis.sock?db=7", "", "/tmp/redis.sock", "", "", 0, 7, 0, 0, 0},
    {"unix://u:p@/tmp/a%20b", "", "/tmp/a b", "u", "p", 0, 0, 0, 1, 1},
    {"unix:///tmp/at@sign", "", "/tmp/at@sign", "", "", 0, 0, 0, 0, 0},
};

START_TEST(parses)
{
    const struct expected *e = &good[_i];
    struct weir__uri uri;
    ck_assert_msg(weir__uri_parse(e->text, &uri) == 0, "%s", e->text);
    ck_assert_str_eq(uri.host, e->host);
    ck_assert_str_eq(uri.path, e->path);
    ck_assert_str_eq(uri.user, e->user);
    ck_assert_str_eq(uri.password, e->password);
    ck_assert_uint_eq(uri.port, e->port);
    ck_assert_uint_eq(uri.db, e->db);
    ck_assert_int_eq(uri.tls, e->tls);
    ck_assert_int_eq(uri.has_user, e->has_user);
    ck_assert_int_eq(uri.has_password, e->has_password);
}
END_TEST

static const struct {
    const char *text;
    enum weir__uri_kind kind;
    const char *print, *service, *password;
    unsigned seeds, db;
    int tls;
} many[] = {
    {"redis+cluster://a", WEIR__URI_CLUSTER, "a:6379", "", "", 1, 0, 0},
    {"redis+cluster://:pw@a:1,b,[::1]:3", WEIR__URI_CLUSTER, "a:1 b:6379 [::1]:3", "", "pw", 3, 0, 0},
    {"valkeys+cluster://u:p@1,2,3,4,5,6,7,8:8", WEIR__URI_CLUSTER,
     "1:6379 2:6379 3:6379 4:6379 5:6379 6:6379 7:6379 8:8", "", "p", 8, 0, 1},
    {"rediss+cluster://a", WEIR__URI_CLUSTER, "a:6379", "", "", 1, 0, 1},
    {"valkey+cluster://a", WEIR__URI_CLUSTER, "a:6379", "", "", 1, 0, 0},
    {"redis+sentinel://a/m", WEIR__URI_SENTINEL, "a:26379", "m", "", 1, 0, 0},
    {"redis+sentinel://u:p@a:1,[::2],c/my%20m/3", WEIR__URI_SENTINEL, "a:1 [::2]:26379 c:26379", "my m", "p", 3, 3, 0},
    {"rediss+sentinel://a/m?db=2", WEIR__URI_SENTINEL, "a:26379", "m", "", 1, 2, 1},
    {"valkey+sentinel://a/m", WEIR__URI_SENTINEL, "a:26379", "m", "", 1, 0, 0},
    {"valkeys+sentinel://a/m", WEIR__URI_SENTINEL, "a:26379", "m", "", 1, 0, 1},
};

START_TEST(parses_many_hosts)
{
    struct weir__uri uri, seed;
    char text[256] = "";
    ck_assert_msg(weir__uri_parse(many[_i].text, &uri) == 0, "%s", many[_i].text);
    ck_assert_int_eq(uri.kind, many[_i].kind);
    ck_assert_uint_eq(uri.seed_count, many[_i].seeds);
    for (unsigned i = 0; i < uri.seed_count; i++) {
        seed = uri;
        memcpy(seed.host, uri.seeds[i].host, sizeof seed.host);
        seed.port = uri.seeds[i].port;
        if (i > 0) {
            memcpy(text + strlen(text), " ", 2);
        }
        weir__uri_print(&seed, text + strlen(text), sizeof text - strlen(text));
    }
    ck_assert_str_eq(text, many[_i].print);
    ck_assert_str_eq(uri.host, uri.seeds[0].host);
    ck_assert_uint_eq(uri.port, uri.seeds[0].port);
    ck_assert_str_eq(uri.service, many[_i].service);
    ck_assert_str_eq(uri.password, many[_i].password);
    ck_assert_uint_eq(uri.db, many[_i].db);
    ck_assert_int_eq(uri.tls, many[_i].tls);
}
END_TEST

static const char *const bad[] = {
    "",
    "redis",
    "redis:",
    "redis:/h",
    "h:6379",
    "127.0.0.1",
    "http://h",
    "redis+sentinel://h",
    "redis+sentinel://h/",
    "redis+sentinel://h//0",
    "redis+sentinel:///m",
    "redis+sentinel://h,/m",
    "redis+sentinel://h/m/x",
    "redis+sentinel://h/m/",
    "redis+sentinel://h/m/0?db=1",
    "redis+sentinel://h/m%00",
    "redis+sentinel://1,2,3,4,5,6,7,8,9/m",
    "redis+cluster://",
    "redis+cluster://h/0",
    "redis+cluster://h?db=0",
    "redis+cluster://h,",
    "redis+cluster://,h",
    "redis+cluster://h,,i",
    "redis+cluster://h:0",
    "redis+cluster://1,2,3,4,5,6,7,8,9",
    "unix+cluster:///tmp/x",
    "redis+other://h",
    "redis://h:0",
    "redis://h:65536",
    "redis://h:-1",
    "redis://h:+1",
    "redis://h:1x",
    "redis://h:",
    "redis://h: 1",
    "redis://h:99999999999999999999",
    "redis://h/x",
    "redis://h/-1",
    "redis://h/1/",
    "redis://h/1/2",
    "redis://h/1000001",
    "redis://h/99999999999999999999",
    "redis://h?db=",
    "redis://h?db=x",
    "redis://h?d=1",
    "redis://h?db=1&db=2",
    "redis://h/1?db=1",
    "redis://h?timeout=1",
    "redis://h#f",
    "redis://h?db=1#f",
    "redis://[::1",
    "redis://[]:1",
    "redis://[h]:1",
    "redis://[::1]x",
    "redis://[::1]x:1",
    "redis://::1",
    "redis://a@b@h",
    "redis://u:p@ss@h",
    "redis://h%",
    "redis://h%2",
    "redis://h%zz",
    "redis://h%00",
    "redis://h%0a",
    "redis://h\n",
    "redis://a b",
    "redis://a%2fb",
    "redis://u%00:p@h",
    "redis://u:p%00@h",
    "redis://u:p\r\nFLUSHALL@h",
    "unix://",
    "unix://tmp/redis.sock",
    "unix://h/tmp/redis.sock",
    "unix:///tmp/%00",
    "unix:///tmp/x?mode=1",
    " redis://h",
};

static int is_wiped(const struct weir__uri *uri)
{
    const unsigned char *bytes = (const unsigned char *)uri;
    size_t n = 0;
    while (n < sizeof *uri && bytes[n] == 0) {
        n++;
    }
    return n == sizeof *uri;
}

START_TEST(refuses)
{
    struct weir__uri uri;
    memset(&uri, 0xff, sizeof uri);
    ck_assert_msg(weir__uri_parse(bad[_i], &uri) == WEIR_E_URI, "accepted: %s", bad[_i]);
    ck_assert_msg(is_wiped(&uri), "not wiped: %s", bad[_i]);
}
END_TEST

START_TEST(null_is_the_local_default)
{
    struct weir__uri uri;
    ck_assert_int_eq(weir__uri_parse(NULL, &uri), 0);
    ck_assert_str_eq(uri.host, "127.0.0.1");
    ck_assert_uint_eq(uri.port, 6379);
}
END_TEST

/* Each part at its longest, and one byte longer. */
static void check_length(const char *before, size_t longest, const char *after)
{
    char middle[4096], text[8192];
    struct weir__uri uri;
    for (size_t extra = 0; extra < 2; extra++) {
        memset(middle, 'x', longest + extra);
        middle[longest + extra] = '\0';
        snprintf(text, sizeof text, "%s%s%s", before, middle, after);
        ck_assert_int_eq(weir__uri_parse(text, &uri), extra ? WEIR_E_URI : 0);
    }
}

START_TEST(parts_have_a_length)
{
    struct weir__uri uri;
    check_length("redis://", sizeof uri.host - 1, ":1");
    check_length("redis://", sizeof uri.user - 1, ":p@h");
    check_length("redis://u:", sizeof uri.password - 1, "@h");
    check_length("unix:///", sizeof uri.path - 2, "");
}
END_TEST

START_TEST(login_replaces)
{
    struct weir__uri uri;
    char longest[sizeof uri.password + 1];
    ck_assert_int_eq(weir__uri_parse("redis://u:longpassword@h", &uri), 0);
    ck_assert_int_eq(weir__uri_login(&uri, NULL, NULL), 0);
    ck_assert_str_eq(uri.user, "u");
    ck_assert_str_eq(uri.password, "longpassword");
    ck_assert_int_eq(weir__uri_login(&uri, "other", "p"), 0);
    ck_assert_str_eq(uri.user, "other");
    ck_assert_str_eq(uri.password, "p");
    for (size_t i = 1; i < sizeof uri.password; i++) {
        ck_assert_msg(uri.password[i] == 0, "the old password shows behind the new one");
    }
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    ck_assert_int_eq(weir__uri_login(&uri, NULL, longest), WEIR_E_RANGE);
    ck_assert_int_eq(weir__uri_login(&uri, longest, NULL), WEIR_E_RANGE);
    ck_assert_str_eq(uri.user, "other");
    ck_assert_str_eq(uri.password, "p");
    ck_assert_int_eq(weir__uri_login(&uri, "", NULL), 0);
    ck_assert_int_eq(uri.has_user, 0);
}
END_TEST

START_TEST(prints_no_secret)
{
    struct weir__uri uri;
    char text[64];
    ck_assert_int_eq(weir__uri_parse("redis://user:secret@h:7/1", &uri), 0);
    ck_assert_str_eq(weir__uri_print(&uri, text, sizeof text), "h:7");
    ck_assert_int_eq(weir__uri_parse("redis://user:secret@[::1]:7/1", &uri), 0);
    ck_assert_str_eq(weir__uri_print(&uri, text, sizeof text), "[::1]:7");
    ck_assert_int_eq(weir__uri_parse("unix://user:secret@/a/b", &uri), 0);
    ck_assert_str_eq(weir__uri_print(&uri, text, sizeof text), "unix:/a/b");
    ck_assert_str_eq(weir__uri_print(&uri, text, 5), "unix");
    ck_assert_str_eq(weir__uri_print(&uri, text, 0), "");
}
END_TEST

START_TEST(wiping_leaves_nothing)
{
    struct weir__uri uri;
    ck_assert_int_eq(weir__uri_parse("rediss://user:secret@h:7/1", &uri), 0);
    weir__uri_wipe(&uri);
    ck_assert(is_wiped(&uri));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("uri");
    TCase *tcase = tcase_create("uri");
    tcase_add_loop_test(tcase, parses, 0, (int)(sizeof good / sizeof good[0]));
    tcase_add_loop_test(tcase, parses_many_hosts, 0, (int)(sizeof many / sizeof many[0]));
    tcase_add_loop_test(tcase, refuses, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(tcase, null_is_the_local_default);
    tcase_add_test(tcase, parts_have_a_length);
    tcase_add_test(tcase, login_replaces);
    tcase_add_test(tcase, prints_no_secret);
    tcase_add_test(tcase, wiping_leaves_nothing);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
