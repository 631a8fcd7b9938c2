/* SPDX-License-Identifier: MIT */
/* A user's program that shares a limit through a Redis that is not there; valid C11 and C++17. Exits with 0 where the
 * outage policy answered and said so. */
#include <weir/sync.h>
#include <weir/weir.h>

int main(void)
{
    struct weir *w;
    struct weir_sync *sync;
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_result result;
    weir_policy_id id;

    policy.name = "a day";
    policy.limit = 2;
    policy.per_ns = UINT64_C(86400000000000);
    policy.mode = WEIR_STRICT;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    options.uri = "unix:///nonexistent/redis.sock";
    options.drain_ms = 10;
    if (weir_open(&w, NULL) != 0)
        return 1;
    if (weir_policy_add(w, &policy, &id) != 0)
        return 2;
    if (weir_sync_start(&sync, w, NULL, &options) != 0)
        return 3;
    if (weir_take(w, id, "key", 3, 1, &result) != WEIR_DENY || !(result.flags & WEIR_DEGRADED))
        return 4;
    if (weir_sync_close(sync, NULL, NULL) != 0)
        return 5;
    weir_close(w);
    return 0;
}
