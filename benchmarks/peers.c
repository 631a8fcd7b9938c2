/* SPDX-License-Identifier: MIT */
/*
 * Other limiters, each a program of its own in its own language (peers/), driven in turn with weir: one trial of the
 * peer, one of weir, the median of the ratios. A trial is timed from here, pipe included, which is 0.1 ms of 20.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "child.h"
#include "limiter.h"
#include "rows.h"

/* Paths come from the build; "" where the build did not find what it needs. */
static const struct peer {
    const char *name, *needs, *work;
    const char *argv[6]; /* argv[0] without a slash and with `beside`: built beside this program */
    int beside;
    unsigned threads_max;
} peers[] = {
    {"mutex + double (C)", "", "one bucket", {"peer-mutex"}, 1, 2},
    {"DPDK rte_meter (C)", "libdpdk-dev", "a thread's own", {"peer-meter"}, 1, 1},
    {"x/time/rate (Go)",
     "golang-go golang-golang-x-time-dev golang-github-juju-ratelimit-dev",
     "one bucket",
     {"peer-golimit", "xtime"},
     1,
     2},
    {"juju/ratelimit (Go)",
     "golang-go golang-golang-x-time-dev golang-github-juju-ratelimit-dev",
     "one bucket",
     {"peer-golimit", "juju"},
     1,
     2},
    {"Guava RateLimiter (Java)",
     "default-jdk-headless libguava-java",
     "one bucket",
     {"java", "-cp", NULL, "GuavaLimit"},
     0,
     2},
};

#define TRIAL_US 20000

/* ---- work -------------------------------------------------------------------------------------------------------- */

struct run {
    struct child child;
    struct weir_key *key;
    unsigned threads;
};

static uint64_t peer_trial(void *arg, unsigned thread, size_t ops)
{
    struct run *run = arg;
    unsigned long long allowed;
    (void)thread;
    fprintf(run->child.in, "%u %zu\n", run->threads, ops);
    fflush(run->child.in);
    if (fscanf(run->child.out, "%llu", &allowed) != 1 || allowed != run->threads * (unsigned long long)ops) {
        bench_die("a peer ended, or allowed other than all");
    }
    return ops;
}

static uint64_t weir_trial(void *arg, unsigned thread, size_t ops)
{
    struct weir_key *key = ((struct run *)arg)->key;
    uint64_t allowed = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += weir_key_take(key, 1, 0, NULL) == WEIR_ALLOW;
    }
    return allowed;
}

/* ---- table ------------------------------------------------------------------------------------------------------- */

void peers_report(const struct bench_options *options, const char *peer, const char *work,
                  const struct bench_side *other, const struct bench_side *weir, unsigned threads)
{
    const char *format = options->json ? "{\"id\":\"peer\",\"what\":\"%s\",\"work\":\"%s\",\"threads\":%u,\"ns\":%.1f,"
                                         "\"weir_ns\":%.1f,\"ratio\":%.2f}\n"
                                       : "%-26s %-18s %7u %9.1f %9.1f %8.2f\n";
    printf(format, peer, work, threads, bench_median(other), bench_median(weir), bench_ratio(other, weir));
    fflush(stdout);
}

static void skip(const struct bench_options *options, const struct peer *peer)
{
    if (options->json) {
        printf("{\"id\":\"peer\",\"what\":\"%s\",\"skipped\":\"needs at build time: %s\"}\n", peer->name, peer->needs);
    } else {
        printf("%-26s skipped: needs at build time: %s\n", peer->name, peer->needs);
    }
    fflush(stdout);
}

/* 0 when the peer was not built. */
static int start(const struct peer *peer, struct run *run)
{
    char path[4096], classes[8192], line[256];
    const char *argv[6];
    memcpy(argv, peer->argv, sizeof argv);
    if (peer->beside) {
        child_beside(path, sizeof path, peer->argv[0]);
        argv[0] = path;
    } else {
        child_beside(path, sizeof path, "GuavaLimit.class");
        argv[0] = WEIR_BENCH_JAVA;
    }
    if (access(path, R_OK) != 0 || argv[0][0] == '\0') {
        return 0;
    }
    if (!peer->beside) {
        *strrchr(path, '/') = '\0';
        snprintf(classes, sizeof classes, "%s:%s", WEIR_BENCH_GUAVA, path);
        argv[2] = classes;
    }
    bench_unpin();
    int status = child_start(&run->child, argv, 0);
    bench_pin(0);
    if (status != 0) {
        bench_die("cannot start %s", path);
    }
    if (fgets(line, sizeof line, run->child.out) == NULL || strncmp(line, "ready ", 6) != 0) {
        bench_die("%s did not start", path);
    }
    return 1;
}

static void run_peer(const struct bench_options *options, struct weir *w, weir_policy_id policy,
                     const struct peer *peer)
{
    struct run run;
    if (!start(peer, &run)) {
        skip(options, peer);
        return;
    }
    limiter_check(weir_key_open(w, policy, "peer", 4, &run.key), "weir_key_open");
    run.threads = 1;
    for (int i = 0; i < 5; i++) {
        peer_trial(&run, 0, 100000); /* a compiler that works meanwhile has then seen the loop */
    }
    for (run.threads = 1; run.threads <= peer->threads_max && run.threads <= bench_cpus(); run.threads++) {
        struct bench_side sides[] = {
            {.name = peer->name, .work = peer_trial, .arg = &run},
            {.name = "handle take", .work = weir_trial, .arg = &run, .threads = run.threads},
        };
        bench_run(sides, 2, options->quick ? 11 : 31, TRIAL_US);
        peers_report(options, peer->name, peer->work, &sides[0], &sides[1], run.threads);
        bench_free(sides, 2);
    }
    weir_key_close(run.key);
    if (child_end(&run.child) != 0) {
        bench_die("%s failed", peer->name);
    }
}

void peers_table(const struct bench_options *options)
{
    struct weir *w = limiter_open(1000);
    /* the numbers that the peers have too */
    weir_policy_id policy = limiter_policy(w, "peer", 1000000, UINT64_C(1000000000), UINT64_C(1000000000000));
    if (!options->json) {
        printf("%-26s %-18s %7s %9s %9s %8s   (ns a decision and thread)\n", "peer", "work", "threads", "peer", "weir",
               "ratio");
    }
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++) {
        run_peer(options, w, policy, &peers[i]);
    }
    weir_close(w);
    keyed_peer(options);
}
