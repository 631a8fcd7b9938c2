/* SPDX-License-Identifier: MIT */
/*
 * Policies as people type them, and what a limiter makes of them; names as they become keys in Redis: one hash tag
 * each, whatever they hold.
 */
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

#include "sync/wire.h"
#include "tools/args.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds) {
        abort();
    }
}

static void add(const char *name, const struct args_limit *limit)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_result result;
    struct weir *w;
    weir_policy_id id;
    options.max_keys = 16;
    policy.name = name;
    policy.limit = limit->limit;
    policy.per_ns = limit->per_ns;
    policy.burst = limit->burst;
    policy.mode = WEIR_LOCAL;
    must(weir_open(&w, &options) == 0);
    if (weir_policy_add(w, &policy, &id) == 0) {
        must(weir_take(w, id, "k", 1, 1, &result) == WEIR_ALLOW); /* a bucket starts full */
        must(result.remaining >= 0 && (uint64_t)result.remaining < result.limit);
    }
    weir_close(w);
}

static void check_names(const char *prefix, const char *policy, const char *group)
{
    struct weir__wire_target target = {.prefix = prefix, .policy = policy, .group = group, .shard = 7, .shards = 64};
    char names[3][WEIR__WIRE_NAME];
    for (int i = 0; i < 3; i++) {
        int len = weir__wire_name(&target, "abn"[i], names[i]);
        if (len < 0) {
            return;
        }
        const char *open = memchr(names[i], '{', (size_t)len), *close = memchr(names[i], '}', (size_t)len);
        if (!open || !close) {
            abort();
        }
        must(open < close);
        must(!memchr(open + 1, '{', (size_t)(names[i] + len - open - 1)));
        must(!memchr(close + 1, '}', (size_t)(names[i] + len - close - 1)));
        must(weir__wire_slot(names[i], (size_t)len) == weir__wire_slot(names[0], (size_t)len));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct args_limit limit;
    struct args_policy policy;
    uint64_t number;
    double factor;
    char *text = malloc(size + 1);
    if (!text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (args_limit(text, &limit) == 0) {
        must(limit.limit > 0 && limit.per_ns > 0);
        add("p", &limit);
    }
    if (args_policy(text, &policy) == 0) {
        must(policy.name[0] && memchr(policy.name, '\0', sizeof policy.name) != NULL);
        if (policy.limit.limit) {
            add(policy.name, &policy.limit);
        }
    }
    must(args_count(text, 5, 500, &number) != 0 || (number >= 5 && number <= 500));
    must(args_factor(text, 9, &factor) != 0 || (factor > 0 && factor <= 9));
    args_time(text, &number);
    if (text[0]) { /* an empty name is refused, an empty group is none */
        check_names(text, text, NULL);
        check_names("weir", text, text);
    }
    free(text);
    return 0;
}
