/* SPDX-License-Identifier: MIT */
/* A user's program that knows weir/weir.h alone; valid C11 and C++17. Exits with 0 where the limit held. */
#include <weir/weir.h>

static int expect(struct weir *w, weir_policy_id id, int verdict, int64_t remaining)
{
    struct weir_result result;
    return weir_take(w, id, "key", 3, 1, &result) == verdict && result.remaining == remaining;
}

/* By handle: code of the header, compiled here, and of the library. */
static int spend_by_handle(struct weir *w, weir_policy_id id)
{
    struct weir_key *key;
    int allowed = 0;

    if (weir_key_open(w, id, "another", 7, &key) != 0)
        return -1;
    for (int i = 0; i < 100; i++)
        allowed += weir_key_take(key, 1 + i % 2, i % 3 ? weir_now(w) : 0, NULL) == WEIR_ALLOW ? 1 + i % 2 : 0;
    if (weir_key_take(key, 1, weir_now(w), NULL) != WEIR_DENY || weir_key_take(key, 1, 0, NULL) != WEIR_DENY ||
        weir_key_take(NULL, 1, 0, NULL) != WEIR_E_INVAL)
        allowed = -1;
    weir_key_close(key);
    return allowed;
}

int main(void)
{
    struct weir *w;
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_stats stats;
    weir_policy_id id;

    options.max_keys = 16;
    policy.name = "a day";
    policy.limit = 2;
    policy.per_ns = UINT64_C(86400000000000);
    policy.mode = WEIR_LOCAL;
    if (weir_open(&w, &options) != 0)
        return 1;
    if (weir_policy_add(w, &policy, &id) != 0)
        return 2;
    if (!expect(w, id, WEIR_ALLOW, 1) || !expect(w, id, WEIR_ALLOW, 0) || !expect(w, id, WEIR_DENY, 0))
        return 3;
    policy.name = "fifty";
    policy.limit = 50;
    if (weir_policy_add(w, &policy, &id) != 0 || spend_by_handle(w, id) != 50)
        return 4;
    stats.size = sizeof stats;
    if (weir_stats_get(w, &stats) != 0 || stats.allowed + stats.denied != 3 + 102)
        return 5;
    weir_close(w);
    return 0;
}
