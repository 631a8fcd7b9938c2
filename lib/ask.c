/* SPDX-License-Identifier: MIT */
/*
 * weir_take_async and weir_take_wait: checked here, answered by the attached sync.
 */
#include "lib/take.h"

#include "lib/policy.h"

static int check(struct weir *w, const struct weir_request *request)
{
    struct weir__ask ask;
    int error;

    if (!w || !request)
        return WEIR_E_INVAL;
    error = weir__take_check(w, request->policy, request->key, request->key_len, &ask);
    if (!error && request->cost < 0)
        error = WEIR_E_COST;
    return error;
}

int weir_take_async(struct weir *w, const struct weir_request *request, weir_take_cb cb, void *arg)
{
    const struct weir__hooks *hooks;
    int error = cb ? check(w, request) : WEIR_E_INVAL;

    if (error)
        return error;
    hooks = weir__hooks_enter(w);
    if (!hooks)
        return WEIR_E_NOSYNC;
    error = hooks->async(hooks->ctx, request, cb, arg);
    weir__hooks_leave(w);
    return error;
}

int weir_take_wait(struct weir *w, const struct weir_request *request, uint64_t timeout_ns, struct weir_result *result)
{
    const struct weir__hooks *hooks;
    int status = check(w, request);

    if (status)
        return status;
    hooks = weir__hooks_enter(w);
    if (!hooks)
        return weir_take(w, request->policy, request->key, request->key_len, request->cost, result);
    status = hooks->wait(hooks->ctx, request, timeout_ns, result);
    weir__hooks_leave(w);
    return status;
}
