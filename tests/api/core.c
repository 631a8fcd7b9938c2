/* SPDX-License-Identifier: MIT */
/* A user's program that knows weir/weir.h alone; valid C11 and C++17. Exits with 0 where the limit held. */
#include <weir/weir.h>

static int expect(struct weir *w, weir_policy_id id, int verdict, int64_t remaining)
{
    struct weir_result result;
    return weir_take(w, id, "key", 3, 1, &result) == verdict && result.remaining == remaining;
}

int main(void)
{
    struct weir *w;
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
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
    weir_close(w);
    return 0;
}
