/* SPDX-License-Identifier: MIT */
/* Row R11: how fast a strict take is answered by its outage policy where Redis is gone. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <weir/sync.h>

#include "../tools/private_redis.h"
#include "harness.h"
#include "limiter.h"
#include "redis_load.h"

#define TAKES 50000u
#define KEYS 1000u
#define WAIT_NS UINT64_C(10000000000)

enum { POLICIES = 3 };

static const struct {
    const char *name;
    enum weir_on_outage on_outage;
} outages[POLICIES] = {{"local", WEIR_OUTAGE_LOCAL}, {"open", WEIR_OUTAGE_OPEN}, {"closed", WEIR_OUTAGE_CLOSED}};

struct subject {
    struct private_redis server;
    struct weir *w;
    struct weir_sync *sync;
    weir_policy_id ids[POLICIES];
};

static void wait_for_store(struct subject *subject, int up)
{
    struct weir_stats stats = {.size = sizeof stats, .store_up = !up};
    for (uint64_t end = bench_clock_ns() + WAIT_NS; stats.store_up != up && bench_clock_ns() < end;) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* on the CPU of the sync's thread */
        limiter_check(weir_stats_get(subject->w, &stats), "weir_stats_get");
    }
    if (stats.store_up != up) {
        bench_die("the limiter does not see that redis-server %s", up ? "is there" : "is gone");
    }
}

/* A take of one of the keys, in ticks. Dies where not Redis answers, or does, as `degraded` says. */
static double take(struct subject *subject, int policy, unsigned number, int degraded)
{
    struct weir_result result;
    char key[32];
    size_t len = (size_t)bench_key(key, number);
    uint64_t begin = bench_ticks();
    int status = weir_take(subject->w, subject->ids[policy], key, len, 1, &result);
    double ticks = (double)(bench_ticks() - begin);
    if (status < 0 || ((result.flags & WEIR_DEGRADED) != 0) != degraded) {
        bench_die("a strict take gave %d, flags %u", status, (unsigned)result.flags);
    }
    return ticks;
}

static void open_subject(struct subject *subject)
{
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    char uri[128];
    snprintf(uri, sizeof uri, "unix://%s", subject->server.socket);
    sync.uri = uri;
    sync.timeout_ms = 10000; /* a machine that others use too is no outage */
    subject->w = limiter_open(POLICIES * KEYS);
    for (int i = 0; i < POLICIES; i++) {
        struct weir_policy policy = WEIR_POLICY_INIT;
        policy.name = outages[i].name;
        policy.mode = WEIR_STRICT;
        policy.on_outage = outages[i].on_outage;
        policy.limit = policy.burst = 1000000;
        policy.per_ns = UINT64_C(1000000000);
        limiter_check(weir_policy_add(subject->w, &policy, &subject->ids[i]), "weir_policy_add");
    }
    limiter_check(weir_sync_start(&subject->sync, subject->w, NULL, &sync), "weir_sync_start");
    wait_for_store(subject, 1);
}

static void measure(struct subject *subject, struct bench_row *row)
{
    double *ns = bench_alloc(TAKES * sizeof *ns);
    uint64_t random = 11;
    for (int i = 0; i < POLICIES; i++) {
        char name[32];
        for (unsigned n = 0; n < TAKES; n++) {
            ns[n] = bench_ns(take(subject, i, (unsigned)bench_below(bench_random(&random), KEYS), 1));
        }
        double p99 = bench_quantile(ns, TAKES, 0.99);
        row->value = p99 > row->value ? p99 : row->value;
        snprintf(name, sizeof name, "%s_p50_ns", outages[i].name);
        bench_detail(row, name, bench_quantile(ns, TAKES, 0.5));
        snprintf(name, sizeof name, "%s_p99_ns", outages[i].name);
        bench_detail(row, name, p99);
    }
    free(ns);
}

void circuit_row(const struct bench_options *options)
{
    struct subject subject = {.sync = NULL};
    struct bench_row row = {.id = "R11", .what = "strict, Redis gone: p99 of a take, ns", .goal = 1000};
    row.kind = BENCH_AT_MOST;
    if (private_redis_open(&subject.server) != 0) {
        row.skipped = subject.server.error;
        bench_report(options, &row);
        return;
    }
    if (private_redis_start(&subject.server) != 0 || private_redis_wait(&subject.server, 10000) != 0) {
        bench_die("%s", subject.server.error);
    }
    open_subject(&subject);
    for (int i = 0; i < POLICIES; i++) {
        for (unsigned n = 0; n < KEYS; n++) {
            take(&subject, i, n, 0);
        }
    }
    private_redis_kill(&subject.server);
    wait_for_store(&subject, 0);
    measure(&subject, &row);
    bench_report(options, &row);
    limiter_check(weir_sync_close(subject.sync, NULL, NULL), "weir_sync_close");
    weir_close(subject.w);
    private_redis_close(&subject.server);
}
