/* SPDX-License-Identifier: MIT */
/*
 * What is told to browsers: whatever a result holds, and whatever a policy is called, the text is whole header fields.
 * And keys of addresses, from text that a client may have written.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <weir/http.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { RESULTS = 3 };

static void must(int holds)
{
    if (!holds) {
        abort();
    }
}

/* Lines that end with CR LF, each "Name: value", and no other control characters. */
static void check_headers(const char *text)
{
    while (*text) {
        const char *end = strstr(text, "\r\n");
        must(end != NULL);
        const char *colon = memchr(text, ':', (size_t)(end - text));
        must(colon != NULL && colon > text && colon[1] == ' ');
        for (; text < end; text++) {
            must((unsigned char)*text >= 0x20 && (unsigned char)*text < 0x7f);
        }
        text = end + 2;
    }
}

static struct weir *limiter_of(const uint8_t *data, size_t size)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir *w = NULL;
    weir_policy_id id;
    char name[80];
    size_t n = size < sizeof name - 1 ? size : sizeof name - 1;
    memcpy(name, data, n);
    name[n] = '\0';
    policy.name = name;
    policy.limit = 1 + size;
    policy.per_ns = 1000000000;
    policy.mode = WEIR_LOCAL;
    struct weir_options options = WEIR_OPTIONS_INIT;
    options.max_keys = 16;
    if (weir_open(&w, &options) == 0 && weir_policy_add(w, &policy, &id) != 0) {
        weir_close(w);
        w = NULL;
    }
    return w;
}

static void fuzz_headers(const uint8_t *data, size_t size)
{
    struct weir_result results[RESULTS];
    char text[WEIR_HTTP_HEADERS_MAX * RESULTS + 1], small[300];
    size_t n = 1 + data[0] % RESULTS, room = (size_t)(data[1] * 2) % sizeof small, at = 2;
    memset(results, 0, sizeof results);
    struct weir *w = data[0] & 8 ? limiter_of(data + size / 2, size - size / 2) : NULL;
    for (size_t i = 0; i < n; i++) {
        uint64_t numbers[5] = {0};
        size_t left = size - at < sizeof numbers ? size - at : sizeof numbers;
        memcpy(numbers, data + at, left);
        at += left;
        results[i].limit = numbers[0];
        results[i].remaining = (int64_t)numbers[1];
        results[i].retry_after_ns = numbers[2];
        results[i].reset_after_ns = numbers[3];
        results[i].flags = (uint32_t)numbers[4];
        results[i].limiter = w;
    }
    for (int style = -1; style <= 4; style++) {
        int whole = weir_http_headers_many(text, sizeof text, results, n, style);
        must(whole < 0 || ((size_t)whole < sizeof text && strlen(text) == (size_t)whole));
        if (whole < 0) {
            continue;
        }
        check_headers(text);
        must(weir_http_headers_many(small, room, results, n, style) == whole);
        if (room > 0) {
            must(memchr(small, '\0', room) != NULL && strncmp(text, small, strlen(small)) == 0);
            check_headers(small);
        }
    }
    for (int field = 0; field < WEIR_HTTP_FIELDS; field++) {
        int len = weir_http_value(text, sizeof text, results, n, (enum weir_http_field)field);
        must(len < (int)sizeof text && (len <= 0 || (!strchr(text, '\r') && !strchr(text, '\n'))));
    }
    must(weir_http_status((int)data[0] - 20, &results[0]) >= 200);
    weir_close(w);
}

static void fuzz_address(const uint8_t *data, size_t size)
{
    char key[WEIR_HTTP_IP_KEY_MAX];
    int len = weir_http_ip_key_text((const char *)data + 2, size - 2, data[0] % 40, data[1] % 140, key);
    must(len < (int)sizeof key && strlen(key) == (len > 0 ? (size_t)len : 0));
    must(strspn(key, "0123456789abcdef:./") == strlen(key));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) {
        return 0;
    }
    if (data[0] & 128) {
        fuzz_address(data, size);
    } else {
        fuzz_headers(data, size);
    }
    return 0;
}
