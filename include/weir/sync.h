/* SPDX-License-Identifier: MIT */
/*
 * weir's reconciliation with Redis (or Valkey): what makes hybrid and strict policies shared. Library libweir-sync.
 */
#ifndef WEIR_SYNC_H
#define WEIR_SYNC_H

#include <weir/weir.h>

#ifdef __cplusplus
extern "C" {
#endif

struct uv_loop_s; /* libuv's uv_loop_t; this header does not need uv.h */
struct weir_sync;

struct weir_sync_options {
    size_t size;
    const char *uri;      /* redis://[user[:password]@]host[:port][/db], rediss:// (TLS), valkey://, valkeys://,
                                     unix:///path/to/socket[?db=N]; NULL: redis://127.0.0.1:6379
                                     redis+cluster://[login@]host[:port][,host[:port]...]: nodes of a Redis Cluster;
                                     redis+sentinel://[login@]host[:port][,...]/service[/db]: Sentinels that know its
                                     master; both also as rediss, valkey and valkeys */
    const char *prefix;   /* of every key in Redis; NULL: "weir" */
    const char *username; /* override the URI's */
    const char *password;
    uint32_t interval_ms;        /* between reconciliations; 0: 200 */
    uint32_t jitter_pct;         /* of the interval; 0: 10 */
    uint32_t connect_timeout_ms; /* 0: 1,000 */
    uint32_t timeout_ms;         /* of one batch; 0: 50 */
    uint32_t drain_ms;           /* weir_sync_close reports what is unsent for at most this long; 0: 1,000 */
    uint32_t batch_max;          /* keys a batch, 1 to 512; 0: 256 */
    uint32_t window;             /* full batches in flight, or smaller ones that weigh the same, of which 2 x window at
                                    most where Redis falls behind; 1 to 256; 0: 2 */
    uint32_t strict_window_us;   /* wait that long for strict requests to share a script, rounded up to libuv's whole
                                    milliseconds; 0: one turn of the loop */
    uint32_t shards;             /* hashes a policy's keys are spread over: the same on every node; 0: 64 */
    uint32_t fleet_hint;         /* processes, before Redis has told (of policies that are only strict it never does);
                                    0: 1 */
    const char *tls_ca;          /* PEM files, rediss:// only; NULL: the system's */
    const char *tls_cert;
    const char *tls_key;
    const char *tls_server_name; /* SNI; NULL: the URI's host */
    const char *stats_socket;    /* path of a unix socket where `weir top` sees this process; NULL: none (default) */
    uint64_t reserved[3];
};

#ifdef __cplusplus
#define WEIR_SYNC_OPTIONS_INIT weir_sync_options_init_()
#else
#define WEIR_SYNC_OPTIONS_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(struct weir_sync_options)                                                                       \
    }
#endif

/* stats_socket: made for this user alone (mode 0600), removed at the end. One that a dead process left is replaced;
 * while another one listens there, or it can't be made, that is logged and tried again. Of processes that share a
 * limiter the one that reconciles listens. Longer than a socket's path may be: WEIR_E_RANGE. What it says:
 * docs/stats-socket.md. */

/* Starts reconciling w. loop NULL: on a thread of its own. Else on the caller's loop, and the call must be made on its
 * thread; the handles keep no loop alive. A Redis that can't be reached is not an error: the outage policies answer
 * until it is. One sync a limiter and process (WEIR_E_BUSY). After a fork, start it in the child, never before. Of the
 * processes that share a limiter one reconciles, and the others follow: `shards` is at most 64 then, and the same for
 * all, as is `prefix` (WEIR_E_MISMATCH); at most 1,024 of them (WEIR_E_FULL). On an error *out is NULL; a caller's loop
 * may have a handle to close yet when it next runs, and the limiter may be closed before that (its allocator is used).
 *   WEIR_E_URI, WEIR_E_RANGE, WEIR_E_NOSUP (TLS not built in), WEIR_E_NOMEM, WEIR_E_SYS. */
WEIR_API int weir_sync_start(struct weir_sync **out, struct weir *w, struct uv_loop_s *loop,
                             const struct weir_sync_options *options);

/* status 0: done; WEIR_E_TIMEOUT or WEIR_E_CLOSED otherwise. unsent: whole tokens that Redis was not told of, or
 * would not take: a bucket's debt ends at burst + max_overshoot. */
typedef void (*weir_sync_cb)(void *arg, int status, uint64_t unsent);

/* Calls back when all that was spent before the call has been acknowledged by Redis, or with WEIR_E_TIMEOUT after
 * drain_ms. cb runs on the loop's thread. cb may be NULL. Threads: any. */
WEIR_API int weir_sync_flush(struct weir_sync *sync, weir_sync_cb cb, void *arg);

/* Reports what is unsent for at most drain_ms, disconnects, then calls back, once, on the loop's thread; sync is gone
 * then. Calls on the limiter finish by their outage policies from now on. With a thread of its own, cb is the last
 * thing that the thread does; weir_close joins it. cb may be NULL. Threads: any. */
WEIR_API int weir_sync_close(struct weir_sync *sync, weir_sync_cb cb, void *arg);

#ifdef __cplusplus
}
static inline weir_sync_options weir_sync_options_init_()
{
    weir_sync_options o = weir_sync_options();
    o.size = sizeof o;
    return o;
}
#endif
#endif
