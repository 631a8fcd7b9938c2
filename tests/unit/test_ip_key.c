/* SPDX-License-Identifier: MIT */
/*
 * weir/http.h: keys of IP addresses.
 */
#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <weir/http.h>

#include "support/suite.h"

static char key[WEIR_HTTP_IP_KEY_MAX];

/* The key of a text, and where it is an address as inet_pton reads it, the same key of a sockaddr. */
static int key_of(const char *address, unsigned prefix4, unsigned prefix6)
{
    struct sockaddr_storage storage;
    struct sockaddr_in *in = (void *)&storage;
    struct sockaddr_in6 *in6 = (void *)&storage;
    char other[WEIR_HTTP_IP_KEY_MAX];
    int n = weir_http_ip_key_text(address, strlen(address), prefix4, prefix6, key);

    ck_assert_uint_lt(strlen(key), sizeof key);
    ck_assert_int_eq(n < 0 ? 0 : n, (int)strlen(key));
    memset(&storage, 0xa5, sizeof storage); /* port, flow and scope are no matter */
    if (inet_pton(AF_INET, address, &in->sin_addr) == 1)
        in->sin_family = AF_INET;
    else if (inet_pton(AF_INET6, address, &in6->sin6_addr) == 1)
        in6->sin6_family = AF_INET6;
    else
        return n;
    memset(other, 'x', sizeof other);
    ck_assert_int_eq(weir_http_ip_key((struct sockaddr *)&storage, prefix4, prefix6, other), n);
    ck_assert_str_eq(other, key);
    return n;
}

static void key_is(const char *address, unsigned prefix4, unsigned prefix6, const char *expected)
{
    ck_assert_int_eq(key_of(address, prefix4, prefix6), (int)strlen(expected));
    ck_assert_str_eq(key, expected);
}

/* Open case 38. */
START_TEST(case_38_ipv6_addresses)
{
    static const struct {
        const char *address;
        int verdict;
    } asked[] = {
        {"2001:db8:1:2::1", WEIR_ALLOW},
        {"2001:db8:1:2:ffff::9", WEIR_DENY},
        {"2001:db8:1:3::1", WEIR_ALLOW},
        {"::ffff:192.0.2.1", WEIR_ALLOW},
        {"192.0.2.1", WEIR_DENY},
        {"2001:0DB8:1:2:0:0:0:1", WEIR_DENY},
        {"2001:db8:0001:0002::", WEIR_DENY},
        {"::ffff:c000:201", WEIR_DENY},
        {"192.0.2.2", WEIR_ALLOW},
    };
    struct weir_policy p = WEIR_POLICY_INIT;
    struct weir *w;
    weir_policy_id id;

    p.name = "p";
    p.limit = 1;
    p.per_ns = UINT64_C(86400000000000);
    p.mode = WEIR_LOCAL;
    ck_assert_int_eq(weir_open(&w, NULL), 0);
    ck_assert_int_eq(weir_policy_add(w, &p, &id), 0);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        int n = key_of(asked[i].address, 0, 64);

        ck_assert_int_gt(n, 0);
        ck_assert_msg(weir_take(w, id, key, (size_t)n, 1, NULL) == asked[i].verdict, "%s", asked[i].address);
    }
    weir_close(w);
}
END_TEST

START_TEST(canonical_text)
{
    key_is("192.0.2.7", 0, 0, "192.0.2.7");
    key_is("0.0.0.0", 0, 0, "0.0.0.0");
    key_is("255.255.255.255", 0, 0, "255.255.255.255");
    key_is("2001:db8:1:2:3:4:5:6", 0, 0, "2001:db8:1:2::/64");
    key_is("2001:DB8:1:2:3:4:5:6", 0, 128, "2001:db8:1:2:3:4:5:6");
    key_is("::", 0, 0, "::/64");
    key_is("::", 0, 128, "::");
    key_is("::1", 0, 128, "::1");
    key_is("1::", 0, 128, "1::");
    key_is("1:0:0:2:0:0:0:3", 0, 128, "1:0:0:2::3");   /* the longer run */
    key_is("1:0:0:2:3:0:0:4", 0, 128, "1::2:3:0:0:4"); /* the first of two */
    key_is("1:2:3:4:5:6:0:7", 0, 128, "1:2:3:4:5:6:0:7");
    key_is("0:1:2:3:4:5:6:7", 0, 128, "0:1:2:3:4:5:6:7");
    key_is("1:2:3:4:5:6:0:0", 0, 128, "1:2:3:4:5:6::");
    key_is("::192.0.2.7", 0, 128, "::c000:207"); /* no spelling of its own */
    key_is("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 0, 127, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127");
}
END_TEST

START_TEST(prefixes)
{
    key_is("203.0.113.255", 24, 0, "203.0.113.0/24");
    key_is("203.0.113.255", 1, 0, "128.0.0.0/1");
    key_is("203.0.113.255", 31, 0, "203.0.113.254/31");
    key_is("203.0.113.255", 32, 0, "203.0.113.255");
    key_is("::ffff:203.0.113.255", 24, 64, "203.0.113.0/24");
    key_is("2001:db8:1:ff02::1", 0, 56, "2001:db8:1:ff00::/56");
    key_is("2001:db8:1:ff02::1", 0, 48, "2001:db8:1::/48");
    key_is("2001:db8:1:ff02::1", 0, 63, "2001:db8:1:ff02::/63");
    key_is("ffff::", 0, 1, "8000::/1");
    ck_assert_int_eq(key_of("192.0.2.7", 33, 0), WEIR_E_RANGE);
    ck_assert_int_eq(key_of("192.0.2.7", 0, 129), WEIR_E_RANGE);
    ck_assert_int_eq(key_of("2001:db8::1", 33, 0), WEIR_E_RANGE);
    ck_assert_int_eq(key_of("2001:db8::1", 0, (unsigned)-1), WEIR_E_RANGE);
    ck_assert_str_eq(key, "");
}
END_TEST

/* Against inet_ntop, which spells all but two kinds of address the same way. */
START_TEST(every_prefix_of_many_addresses)
{
    uint32_t seed = 1;

    for (int round = 0; round < 2000; round++) {
        unsigned prefix = 1 + (unsigned)round % 128;
        unsigned char bytes[16], masked[16] = {0};
        char address[INET6_ADDRSTRLEN], expected[64];

        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525 + 1013904223;
            bytes[i] = seed >> 30 ? 0 : (unsigned char)(seed >> 16);
        }
        bytes[0] = 0x20;
        for (unsigned bit = 0; bit < prefix; bit++)
            masked[bit / 8] |= (unsigned char)(bytes[bit / 8] & 0x80 >> bit % 8);
        ck_assert_ptr_nonnull(inet_ntop(AF_INET6, bytes, address, sizeof address));
        ck_assert_ptr_nonnull(inet_ntop(AF_INET6, masked, expected, INET6_ADDRSTRLEN));
        if (prefix < 128)
            snprintf(expected + strlen(expected), 5, "/%u", prefix);
        key_is(address, 0, prefix, expected);
    }
}
END_TEST

START_TEST(addresses_as_proxies_write_them)
{
    key_is(" 192.0.2.7\t", 0, 0, "192.0.2.7");
    key_is("192.0.2.7:4711", 0, 0, "192.0.2.7");
    key_is("[2001:db8:1:2::3]", 0, 128, "2001:db8:1:2::3");
    key_is("[2001:db8:1:2::3]:4711", 0, 0, "2001:db8:1:2::/64");
    key_is("[::ffff:192.0.2.7]:80", 0, 0, "192.0.2.7");
    key_is("fe80::1%eth0", 0, 128, "fe80::1");
    key_is("[fe80::1%25]:80", 0, 128, "fe80::1");
    ck_assert_int_eq(weir_http_ip_key_text("192.0.2.7, 10.0.0.1", 9, 0, 0, key), 9);
    ck_assert_str_eq(key, "192.0.2.7");
}
END_TEST

START_TEST(texts_that_are_no_address)
{
    static const char *const texts[] = {
        "",
        " ",
        "x",
        "unknown",
        "_hidden",
        "localhost",
        "192.0.2",
        "192.0.2.256",
        "192.0.2.07",
        "0x7f.1",
        "3221225991",
        "192.0.2.7/24",
        "192.0.2.7 1",
        "192.0.2.7:",
        "192.0.2.7:x",
        "192.0.2.7:65536",
        "192.0.2.7:123456",
        "192.0.2.7%eth0",
        "[192.0.2.7]",
        "[192.0.2.7]:80",
        "[",
        "]",
        "[]",
        "[]:80",
        "[2001:db8::1",
        "2001:db8::1]",
        "[2001:db8::1]80",
        "[2001:db8::1]:",
        "[2001:db8::1]:8x",
        "1:2:3:4:5:6:7:8:9",
        ":::",
        "1::2::3",
        "::12345",
        "%eth0",
        "fe80::1%",
        ":",
        ":80",
        "::ffff:192.0.2.256",
        "192.0.2.7, 192.0.2.8",
        "192.0.2.7\r\nX: y",
        "2001:db8::1:x",
        "1111111111111111111111111111111111111111111111111111111111111111",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        memset(key, 'x', sizeof key);
        ck_assert_msg(key_of(texts[i], 0, 0) == WEIR_E_INVAL, "\"%s\" became \"%s\"", texts[i], key);
        ck_assert_str_eq(key, "");
    }
    ck_assert_int_eq(weir_http_ip_key_text("192.0.2.7\0", 10, 0, 0, key), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_ip_key_text("1.2.3.4\0xxx", 11, 0, 0, key), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_ip_key_text(NULL, 0, 0, 0, key), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_ip_key_text("::1", 3, 0, 0, NULL), WEIR_E_INVAL);
}
END_TEST

START_TEST(other_families)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "/tmp/socket"};
    struct sockaddr unspecified = {.sa_family = AF_UNSPEC};

    memset(key, 'x', sizeof key);
    ck_assert_int_eq(weir_http_ip_key((struct sockaddr *)&un, 0, 0, key), WEIR_E_NOSUP);
    ck_assert_str_eq(key, "");
    ck_assert_int_eq(weir_http_ip_key(&unspecified, 0, 0, key), WEIR_E_NOSUP);
    ck_assert_int_eq(weir_http_ip_key(NULL, 0, 0, key), WEIR_E_INVAL);
    ck_assert_int_eq(weir_http_ip_key(&unspecified, 0, 0, NULL), WEIR_E_INVAL);
}
END_TEST

/* Of a packet, an address may lie anywhere. */
START_TEST(addresses_that_are_not_aligned)
{
    unsigned char bytes[sizeof(struct sockaddr_in6) + 8];
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_scope_id = 3};

    ck_assert_int_eq(inet_pton(AF_INET6, "fe80::1", &in6.sin6_addr), 1);
    for (size_t at = 0; at < 8; at++) {
        memcpy(bytes + at, &in6, sizeof in6);
        ck_assert_int_eq(weir_http_ip_key((struct sockaddr *)(void *)(bytes + at), 0, 0, key), 9);
        ck_assert_str_eq(key, "fe80::/64");
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("ip_key");
    TCase *keys = tcase_create("keys");

    tcase_add_test(keys, case_38_ipv6_addresses);
    tcase_add_test(keys, canonical_text);
    tcase_add_test(keys, prefixes);
    tcase_add_test(keys, every_prefix_of_many_addresses);
    tcase_add_test(keys, addresses_as_proxies_write_them);
    tcase_add_test(keys, texts_that_are_no_address);
    tcase_add_test(keys, other_families);
    tcase_add_test(keys, addresses_that_are_not_aligned);
    suite_add_tcase(s, keys);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
