/* SPDX-License-Identifier: MIT */
/* See accuracy_fleet.h. */
#include "accuracy_fleet.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <weir/sync.h>

#include "harness.h"
#include "limiter.h"
#include "tools/overshoot.h"
#include "tools/process.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define SETTLE_NS (4 * SECOND) /* the nodes have met: Redis has counted them and given each its overdraft */
#define FLEETS 8u
#define COLD_TAKES 8u
#define COLD_EVERY (100 * MS)

enum state { STARTING, READY, DONE };

/* Shared between one process and its parent. Stamps are ns since the start; each list is in order, but for admissions
 * by callback, which another thread appends. */
struct seat {
    _Atomic uint32_t state;
    uint64_t asked, room;
    _Atomic uint64_t admitted, answered, failed;
    uint64_t degraded, sync_errors, unsent, written_off, reconnects, syncs;
    int64_t remaining;
    uint64_t *ask_at, *admit_at;
};

struct board {
    _Atomic uint64_t start_ns, stop_ns;
    _Atomic uint32_t closed[FLEETS]; /* of each fleet: those whose slices are given back */
};

struct worker {
    const struct accuracy_fleet *fleet;
    struct board *board;
    struct seat *seat;
    unsigned index, fleet_index;
    struct weir *w;
    struct weir_sync *sync;
    weir_policy_id policy;
    uint64_t random, start, stop;
    uint64_t cold;
};

static void *share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        bench_die("no memory to share");
    }
    return memory;
}

static void rest(uint64_t ns)
{
    struct timespec ts = {(time_t)(ns / SECOND), (long)(ns % SECOND)};
    nanosleep(&ts, NULL);
}

/* ---- a process --------------------------------------------------------------------------------------------------- */

static void open_worker(struct worker *me)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_stats stats = {.size = sizeof stats};
    char uri[128];
    me->w = limiter_open(1024);
    policy.name = me->fleet->name;
    policy.limit = me->fleet->limit;
    policy.per_ns = me->fleet->per_ns;
    policy.burst = me->fleet->burst;
    policy.max_overshoot = me->fleet->max_overshoot ? me->fleet->max_overshoot : WEIR_NONE;
    limiter_check(weir_policy_add(me->w, &policy, &me->policy), "weir_policy_add");
    snprintf(uri, sizeof uri, "unix://%s", me->fleet->socket);
    options.uri = uri;
    options.fleet_hint = ACCURACY_PROCESSES;
    options.drain_ms = 5000;
    options.shards = me->fleet->shards;
    options.interval_ms = me->fleet->interval_ms;
    options.timeout_ms = me->fleet->timeout_ms;
    limiter_check(weir_sync_start(&me->sync, me->w, NULL, &options), "weir_sync_start");
    for (int ms = 0; ms < 10000 && stats.store_up != 1; ms++) {
        rest(MS);
        weir_stats_get(me->w, &stats);
    }
    if (stats.store_up != 1) {
        bench_die("Redis does not answer");
    }
}

static void admitted(struct seat *seat, uint64_t at)
{
    uint64_t i = atomic_fetch_add_explicit(&seat->admitted, 1, memory_order_relaxed);
    if (i < seat->room) {
        seat->admit_at[i] = at;
    }
}

static void on_verdict(void *arg, int status, const struct weir_result *result)
{
    struct worker *me = arg;
    (void)result;
    if (status == WEIR_ALLOW) {
        admitted(me->seat, bench_clock_ns() - me->start);
    } else if (status < 0) {
        atomic_fetch_add_explicit(&me->seat->failed, 1, memory_order_relaxed);
    }
    /* release: what was counted before it is seen with it */
    atomic_fetch_add_explicit(&me->seat->answered, 1, memory_order_release);
}

static void ask(struct worker *me, const char *key, size_t len, uint64_t now)
{
    struct seat *seat = me->seat;
    struct weir_request request = {.policy = me->policy, .key = key, .key_len = len, .cost = 1};
    if (seat->asked == seat->room) {
        bench_die("more requests than were expected");
    }
    seat->ask_at[seat->asked++] = now - me->start;
    if (me->fleet->async) {
        limiter_check(weir_take_async(me->w, &request, on_verdict, me), "weir_take_async");
        return;
    }
    int status = weir_take(me->w, me->policy, key, len, 1, NULL);
    if (status == WEIR_ALLOW) {
        admitted(seat, now - me->start);
    } else if (status < 0) {
        atomic_fetch_add_explicit(&seat->failed, 1, memory_order_relaxed);
    }
}

static double uniform(struct worker *me)
{
    return (double)(bench_random(&me->random) >> 11) * 0x1p-53;
}

static double offered(const struct accuracy_fleet *fleet)
{
    return fleet->asked_s > 0 ? fleet->asked_s : fleet->load * (double)fleet->limit * 1e9 / (double)fleet->per_ns;
}

/* Requests a second of this process, at a time since the start. */
static double demand_at(const struct worker *me, uint64_t t)
{
    double all = offered(me->fleet);
    switch (me->fleet->demand) {
    case ACCURACY_SKEWED: return me->index == 0 ? 0.9 * all : 0.1 * all / (ACCURACY_PROCESSES - 1);
    case ACCURACY_MOVING: return t / (2 * SECOND) % ACCURACY_PROCESSES == me->index ? all : 0;
    case ACCURACY_COLD: return me->index == 0 ? 1 : 0;
    default: return all / ACCURACY_PROCESSES;
    }
}

/* When the next request is due, of a Poisson stream; 0: not before the demand changes. */
static uint64_t next_due(struct worker *me, uint64_t due)
{
    double rate = demand_at(me, due - me->start);
    return rate > 0 ? due + (uint64_t)(-log(1 - uniform(me)) / rate * 1e9) : 0;
}

static void drive(struct worker *me)
{
    uint64_t due = me->start, now;
    while ((now = bench_clock_ns()) < me->stop) {
        uint64_t next = next_due(me, due);
        if (next == 0) {
            due = due + 10 * MS; /* looks again: MOVING comes to everyone */
            if (due > now) {
                rest(due - now);
            }
            continue;
        }
        due = next;
        if (due >= me->stop) {
            break;
        }
        now = bench_clock_ns();
        if (due > now) {
            rest(due - now);
            now = bench_clock_ns();
        }
        ask(me, "key", 3, now);
    }
}

static void drive_cold(struct worker *me)
{
    for (uint64_t due = me->start; due < me->stop && me->index == 0; due += COLD_EVERY) {
        char key[32];
        int len = snprintf(key, sizeof key, "cold%llu", (unsigned long long)me->cold++);
        uint64_t now = bench_clock_ns();
        if (due > now) {
            rest(due - now);
        }
        for (unsigned i = 0; i < COLD_TAKES; i++) {
            ask(me, key, (size_t)len, bench_clock_ns());
        }
    }
}

struct finished {
    _Atomic int done;
    uint64_t unsent;
};

static void on_finished(void *arg, int status, uint64_t unsent)
{
    struct finished *finished = arg;
    (void)status;
    finished->unsent = unsent;
    atomic_store_explicit(&finished->done, 1, memory_order_release);
}

static uint64_t wait_finished(struct finished *finished)
{
    for (int ms = 0; !atomic_load_explicit(&finished->done, memory_order_acquire); ms++) {
        if (ms == 20000) {
            bench_die("a sync does not call back");
        }
        rest(MS);
    }
    return finished->unsent;
}

static void note_stats(struct worker *me, const struct weir_stats *before)
{
    struct weir_stats stats = {.size = sizeof stats};
    struct seat *seat = me->seat;
    limiter_check(weir_stats_get(me->w, &stats), "weir_stats_get");
    seat->degraded = stats.degraded - before->degraded;
    seat->sync_errors = stats.sync_errors - before->sync_errors;
    seat->reconnects = stats.reconnects - before->reconnects;
    seat->syncs = stats.syncs + stats.sync_errors - before->syncs - before->sync_errors;
}

/* The key as Redis has it: asked in strict mode by this process, when all slices are given back. */
static int64_t look(struct worker *me)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_result result;
    struct finished flushed = {0};
    const _Atomic uint32_t *closed = &me->board->closed[me->fleet_index];
    int64_t most = -1;
    for (int ms = 0; atomic_load_explicit(closed, memory_order_acquire) < ACCURACY_PROCESSES - 1 && ms < 20000; ms++) {
        rest(MS);
    }
    policy.limit = me->fleet->limit;
    policy.per_ns = me->fleet->per_ns;
    policy.burst = me->fleet->burst;
    policy.max_overshoot = me->fleet->max_overshoot ? me->fleet->max_overshoot : WEIR_NONE;
    policy.mode = WEIR_STRICT;
    limiter_check(weir_policy_set(me->w, me->policy, &policy), "weir_policy_set");
    limiter_check(weir_sync_flush(me->sync, on_finished, &flushed), "weir_sync_flush");
    wait_finished(&flushed);
    for (int i = 0; i < 50; i++) { /* what is still reserved counts as gone until it is given back */
        rest(40 * MS);
        if (weir_peek(me->w, me->policy, "key", 3, 0, &result) >= 0 && !(result.flags & WEIR_DEGRADED) &&
            result.remaining > most) {
            most = result.remaining;
        }
    }
    return most;
}

static int live(struct worker *me)
{
    struct weir_stats before = {.size = sizeof before};
    struct finished flushed = {0}, closed = {0};
    struct seat *seat = me->seat;
    open_worker(me);
    rest(SETTLE_NS);
    atomic_store_explicit(&seat->state, READY, memory_order_release);
    while ((me->start = atomic_load_explicit(&me->board->start_ns, memory_order_acquire)) == 0) {
        rest(MS);
    }
    me->stop = atomic_load_explicit(&me->board->stop_ns, memory_order_acquire);
    weir_stats_get(me->w, &before);
    uint64_t now = bench_clock_ns();
    if (me->start > now) {
        rest(me->start - now);
    }
    (me->fleet->demand == ACCURACY_COLD ? drive_cold : drive)(me);
    now = bench_clock_ns();
    if (me->stop > now) {
        rest(me->stop - now);
    }
    note_stats(me, &before);
    for (int ms = 0; me->fleet->async && ms < 5000; ms++) {
        if (atomic_load_explicit(&seat->answered, memory_order_acquire) == seat->asked) {
            break;
        }
        rest(MS);
    }
    limiter_check(weir_sync_flush(me->sync, on_finished, &flushed), "weir_sync_flush");
    seat->unsent = wait_finished(&flushed);
    seat->remaining = me->index == 0 && me->fleet->demand != ACCURACY_COLD ? look(me) : -1;
    struct weir_stats after = {.size = sizeof after};
    weir_stats_get(me->w, &after);
    seat->written_off = after.written_off_tokens;
    limiter_check(weir_sync_close(me->sync, on_finished, &closed), "weir_sync_close");
    wait_finished(&closed);
    atomic_fetch_add_explicit(&me->board->closed[me->fleet_index], 1, memory_order_release);
    weir_close(me->w);
    atomic_store_explicit(&seat->state, DONE, memory_order_release);
    return 0;
}

/* ---- the account ------------------------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* What a process that has ended left in its seat. */
static uint64_t count_of(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

/* All stamps of one kind in the order of time. */
static uint64_t *merge(const struct seat *seats, int of_admissions, size_t *n)
{
    size_t total = 0, at = 0;
    for (unsigned i = 0; i < ACCURACY_PROCESSES; i++) {
        total += of_admissions ? count_of(&seats[i].admitted) : seats[i].asked;
    }
    uint64_t *all = bench_alloc((total + 1) * sizeof *all);
    for (unsigned i = 0; i < ACCURACY_PROCESSES; i++) {
        size_t count = of_admissions ? count_of(&seats[i].admitted) : seats[i].asked;
        memcpy(all + at, of_admissions ? seats[i].admit_at : seats[i].ask_at, count * sizeof *all);
        at += count;
    }
    qsort(all, total, sizeof *all, by_time);
    *n = total;
    return all;
}

static double overshoot_of(const struct accuracy_fleet *fleet, const uint64_t *at, size_t n, uint64_t from)
{
    struct overshoot over;
    overshoot_init(&over, fleet->limit, fleet->per_ns, fleet->burst);
    for (size_t i = 0; i < n; i++) {
        if (at[i] >= from) {
            overshoot_add(&over, at[i], 1);
        }
    }
    return overshoot_tokens(&over);
}

static double perfect_of(const struct accuracy_fleet *fleet, const uint64_t *at, size_t n)
{
    double level = (double)fleet->burst, rate = (double)fleet->limit / (double)fleet->per_ns, sum = 0;
    for (size_t i = 0; i < n; i++) {
        level = fmin((double)fleet->burst, level + rate * (double)(at[i] - (i ? at[i - 1] : 0)));
        if (level >= 1) {
            level--;
            sum++;
        }
    }
    return sum;
}

static void sum_up(const struct accuracy_fleet *fleet, const struct seat *seats, double seconds,
                   struct accuracy_result *r)
{
    size_t asked, admissions;
    uint64_t *ask_at = merge(seats, 0, &asked), *admit_at = merge(seats, 1, &admissions);
    double rate = (double)fleet->limit * 1e9 / (double)fleet->per_ns, syncs = 0;
    memset(r, 0, sizeof *r);
    for (unsigned i = 0; i < ACCURACY_PROCESSES; i++) {
        const struct seat *seat = &seats[i];
        r->degraded += seat->degraded;
        r->sync_errors += seat->sync_errors;
        r->unsent += seat->unsent;
        r->written_off += seat->written_off;
        r->reconnects += seat->reconnects;
        r->failed += count_of(&seat->failed);
        syncs += (double)seat->syncs;
        if (fleet->async && count_of(&seat->answered) != seat->asked) {
            bench_die("%s: %llu of %llu callbacks came", fleet->name, (unsigned long long)count_of(&seat->answered),
                      (unsigned long long)seat->asked);
        }
    }
    r->asked = (double)asked;
    r->admitted = (double)admissions;
    r->perfect = fleet->demand == ACCURACY_COLD ? r->asked : perfect_of(fleet, ask_at, asked);
    r->overshoot = fleet->demand == ACCURACY_COLD ? 0 : overshoot_of(fleet, admit_at, admissions, 0);
    r->late_overshoot = fleet->demand == ACCURACY_COLD ? 0 : overshoot_of(fleet, admit_at, admissions, SECOND);
    r->saturated_error = r->admitted / ((double)fleet->burst + rate * seconds) - 1;
    r->calls_per_node = syncs / seconds / ACCURACY_PROCESSES;
    r->remaining = (double)seats[0].remaining;
    free(ask_at);
    free(admit_at);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void make_seats(const struct accuracy_fleet *fleet, struct seat *seats, double seconds)
{
    double most = offered(fleet) * (fleet->demand == ACCURACY_EVEN ? 2.0 / ACCURACY_PROCESSES : 1.2);
    for (unsigned i = 0; i < ACCURACY_PROCESSES; i++) {
        seats[i].room = (uint64_t)(most * seconds) + 4096;
        seats[i].ask_at = share(seats[i].room * sizeof(uint64_t));
        seats[i].admit_at = share(seats[i].room * sizeof(uint64_t));
    }
}

static pid_t start_worker(const struct accuracy_fleet *fleets, struct board *board, struct seat *seats, unsigned nth)
{
    unsigned f = nth / ACCURACY_PROCESSES, index = nth % ACCURACY_PROCESSES;
    pid_t pid = process_fork();
    if (pid < 0) {
        bench_die("fork failed");
    }
    if (pid == 0) {
        struct worker me = {.fleet = &fleets[f], .board = board, .seat = &seats[nth], .index = index, .fleet_index = f};
        me.random = 77 + 1000 * index;
        bench_unpin();
        _exit(live(&me));
    }
    return pid;
}

static void await(const struct seat *seats, unsigned n, enum state state)
{
    for (unsigned i = 0; i < n; i++) {
        for (int ms = 0; atomic_load_explicit(&seats[i].state, memory_order_acquire) < (uint32_t)state; ms++) {
            if (ms == 60000) {
                bench_die("a process of the fleet did not come so far");
            }
            rest(MS);
        }
    }
}

void accuracy_run(const struct accuracy_fleet *fleets, struct accuracy_result *results, unsigned n, double seconds,
                  accuracy_meanwhile meanwhile, void *arg)
{
    unsigned processes = n * ACCURACY_PROCESSES;
    if (n > FLEETS) {
        bench_die("too many fleets");
    }
    struct seat *seats = share(processes * sizeof *seats);
    struct board *board = share(sizeof *board);
    pid_t *pids = bench_alloc(processes * sizeof *pids);
    fflush(stdout);
    for (unsigned f = 0; f < n; f++) {
        make_seats(&fleets[f], &seats[f * ACCURACY_PROCESSES], seconds);
    }
    for (unsigned i = 0; i < processes; i++) {
        pids[i] = start_worker(fleets, board, seats, i);
    }
    await(seats, processes, READY);
    uint64_t start = bench_clock_ns() + 20 * MS;
    atomic_store_explicit(&board->stop_ns, start + (uint64_t)(seconds * 1e9), memory_order_release);
    atomic_store_explicit(&board->start_ns, start, memory_order_release);
    while (bench_clock_ns() < start + (uint64_t)(seconds * 1e9)) {
        rest(10 * MS);
        if (meanwhile) {
            meanwhile(arg, (double)(int64_t)(bench_clock_ns() - start) / 1e9);
        }
    }
    await(seats, processes, DONE);
    for (unsigned i = 0; i < processes; i++) {
        if (process_end(pids[i], 5000) != 0) {
            bench_die("a process of the fleet failed");
        }
    }
    for (unsigned f = 0; f < n; f++) {
        sum_up(&fleets[f], &seats[f * ACCURACY_PROCESSES], seconds, &results[f]);
    }
    for (unsigned i = 0; i < processes; i++) {
        munmap(seats[i].ask_at, seats[i].room * sizeof(uint64_t));
        munmap(seats[i].admit_at, seats[i].room * sizeof(uint64_t));
    }
    munmap(seats, processes * sizeof *seats);
    munmap(board, sizeof *board);
    free(pids);
}
