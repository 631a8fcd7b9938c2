/* SPDX-License-Identifier: MIT */
/* Owns everything of the demo that calls the library; knows its parent only through the board. */
#include "tools/worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <weir/sync.h>

#define MS UINT64_C(1000000)
#define STATS_EVERY_NS (50 * MS)
#define CATCH_UP_NS (50 * MS) /* a worker that was held up asks for that much of what it missed, not for all */
#define LOOK_NS (10000 * MS)  /* at the end, until Redis has told its level */

#define MANY 64 /* decisions asked for at once */

static const char key[] = "everybody";

struct worker {
    struct fleet_board *board;
    struct fleet_worker *mine;
    unsigned index;
    struct weir *limiter;
    struct weir_sync *sync;
    weir_policy_id policy;
    enum weir_mode mode;
    double offered; /* takes a nanosecond */
    uint64_t asked; /* takes since the start, or skipped */
    uint64_t written;
    uint64_t stats_ns;
};

static uint64_t clock_of_limiter(void *arg)
{
    (void)arg;
    return fleet_now();
}

static void rest(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}

static int orphaned(const struct worker *me)
{
    return getpid() != me->board->parent && getppid() != me->board->parent;
}

static void set_state(struct worker *me, enum fleet_worker_state state)
{
    atomic_store_explicit(&me->mine->state, (uint32_t)state, memory_order_release);
}

static int fail(struct worker *me, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int fail(struct worker *me, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(me->mine->error, sizeof me->mine->error, format, args);
    va_end(args);
    set_state(me, FLEET_WORKER_FAILED);
    return -1;
}

void worker_policy(const struct fleet_options *options, enum weir_mode mode, unsigned index, struct weir_policy *out)
{
    *out = (struct weir_policy)WEIR_POLICY_INIT;
    out->name = "demo";
    out->limit = options->limit;
    out->per_ns = options->per_ns;
    out->burst = options->burst;
    out->mode = mode;
    out->max_overshoot = options->max_overshoot ? options->max_overshoot : WEIR_NONE;
    if (mode == WEIR_LOCAL) {
        out->per_ns *= options->processes;
        out->burst = options->burst / options->processes + (index < options->burst % options->processes);
    }
}

int worker_try_policy(const struct fleet_options *options)
{
    struct weir_policy policy;
    struct weir *limiter;
    weir_policy_id id;
    int status = weir_open(&limiter, NULL);
    if (status != 0) {
        return status;
    }
    worker_policy(options, options->mode, options->processes - 1, &policy);
    status = weir_policy_add(limiter, &policy, &id);
    weir_close(limiter);
    return status;
}

static int open_limiter(struct worker *me)
{
    const struct fleet_options *options = &me->board->options;
    struct weir_options limiter = WEIR_OPTIONS_INIT;
    limiter.max_keys = 64;
    limiter.now_ns = clock_of_limiter; /* so that every process' stamps, and its limiter, go by one clock */
    int status = weir_open(&me->limiter, &limiter);
    if (status != 0) {
        return fail(me, "weir_open: %s", weir_strerror(status));
    }
    struct weir_policy policy;
    worker_policy(options, me->mode, me->index, &policy);
    status = weir_policy_add(me->limiter, &policy, &me->policy);
    if (status != 0) {
        return fail(me, "weir_policy_add: %s", weir_strerror(status));
    }
    if (options->uri[0] == '\0') {
        return 0;
    }
    struct weir_sync_options sync = WEIR_SYNC_OPTIONS_INIT;
    sync.uri = options->uri;
    sync.timeout_ms = FLEET_TIMEOUT_MS;
    sync.fleet_hint = options->processes;
    status = weir_sync_start(&me->sync, me->limiter, NULL, &sync);
    if (status != 0) {
        return fail(me, "weir_sync_start: %s", weir_strerror(status));
    }
    return 0;
}

static void report_stats(struct worker *me, uint64_t now)
{
    struct weir_stats stats = {.size = sizeof stats};
    struct fleet_worker *mine = me->mine;
    me->stats_ns = now;
    if (weir_stats_get(me->limiter, &stats) != 0) {
        return;
    }
    atomic_store_explicit(&mine->last_sync_ns, stats.last_sync_ns, memory_order_relaxed);
    atomic_store_explicit(&mine->syncs, stats.syncs, memory_order_relaxed);
    atomic_store_explicit(&mine->sync_errors, stats.sync_errors, memory_order_relaxed);
    atomic_store_explicit(&mine->written_off, stats.written_off_tokens, memory_order_relaxed);
    atomic_store_explicit(&mine->store_up, stats.store_up == 1, memory_order_relaxed);
}

static void await_phase(struct worker *me, enum fleet_phase phase)
{
    while (atomic_load_explicit(&me->board->phase, memory_order_acquire) < (uint32_t)phase && !orphaned(me)) {
        rest(MS);
    }
}

/* Redis is there already; a limiter that has not met it would start on its outage policy. */
static void await_store(struct worker *me)
{
    uint64_t deadline = fleet_now() + 2000 * MS;
    do {
        report_stats(me, fleet_now());
        if (!me->sync || atomic_load_explicit(&me->mine->store_up, memory_order_relaxed)) {
            return;
        }
        rest(MS);
    } while (fleet_now() < deadline && !orphaned(me));
}

static void add(_Atomic uint64_t *counter, uint64_t n)
{
    /* one writer: no atomic addition is needed */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static void raise_to(_Atomic uint64_t *most, uint64_t n)
{
    if (n > atomic_load_explicit(most, memory_order_relaxed)) {
        atomic_store_explicit(most, n, memory_order_relaxed);
    }
}

/* No admission goes unrecorded: a full ring makes the worker wait for its reader. */
static void record(struct worker *me, uint64_t at_ns)
{
    while (me->written - atomic_load_explicit(&me->mine->read, memory_order_acquire) >= FLEET_RING) {
        if (orphaned(me)) {
            return;
        }
        rest(MS);
    }
    me->mine->stamps[me->written++ % FLEET_RING] = at_ns;
    /* release: publishes the stamp */
    atomic_store_explicit(&me->mine->written, me->written, memory_order_release);
}

static void account(struct worker *me, int verdict, uint32_t flags, uint64_t now, uint64_t took)
{
    struct fleet_worker *mine = me->mine;
    if (verdict < 0) {
        add(&mine->failed, 1);
        return;
    }
    if (flags & WEIR_DEGRADED) {
        add(&mine->degraded, 1);
    } else if (me->mode == WEIR_STRICT) {
        raise_to(&mine->round_trip_ns, took);
    }
    if (verdict == WEIR_ALLOW) {
        add(&mine->admitted, 1);
        add(&mine->lent, me->mode == WEIR_STRICT && (flags & WEIR_DEGRADED));
        record(me, now);
    } else {
        add(&mine->denied, 1);
    }
}

/* One decision, as most programs ask. */
static void ask_once(struct worker *me, uint64_t now)
{
    struct weir_result result = {0};
    int verdict = weir_take_at(me->limiter, me->policy, key, sizeof key - 1, 1, now, &result);
    uint64_t took = fleet_now() - now;
    raise_to(&me->mine->longest_ns, took);
    account(me, verdict, result.flags, now, took);
}

/* Those that are due together, sent together: one thread that waits for each answer asks too little of a high limit. */
static void ask_many(struct worker *me, uint64_t now, size_t n)
{
    struct weir_request requests[MANY];
    struct weir_result results[MANY];
    memset(requests, 0, sizeof requests);
    memset(results, 0, sizeof results);
    for (size_t i = 0; i < n; i++) {
        requests[i].policy = me->policy;
        requests[i].key = key;
        requests[i].key_len = sizeof key - 1;
        requests[i].cost = 1;
        requests[i].result = &results[i];
    }
    int status = weir_take_many(me->limiter, requests, n, now);
    uint64_t took = fleet_now() - now;
    raise_to(&me->mine->longest_ns, took);
    for (size_t i = 0; i < n; i++) {
        account(me, status < 0 ? status : requests[i].status, results[i].flags, now, took);
    }
}

static int follow_mode(struct worker *me)
{
    enum weir_mode wanted = (enum weir_mode)atomic_load_explicit(&me->board->mode, memory_order_relaxed);
    if (wanted == me->mode) {
        return 0;
    }
    struct weir_policy policy;
    worker_policy(&me->board->options, wanted, me->index, &policy);
    int status = weir_policy_set(me->limiter, me->policy, &policy);
    if (status != 0) {
        return fail(me, "weir_policy_set: %s", weir_strerror(status));
    }
    me->mode = wanted;
    return 0;
}

/* An even stream: take number n is due at start + (n + offset) / offered, the workers' offsets interleave. */
static int drive(struct worker *me)
{
    const struct fleet_options *options = &me->board->options;
    uint64_t start = atomic_load_explicit(&me->board->start_ns, memory_order_relaxed);
    double offset = (double)me->index / options->processes;
    uint64_t spacing = (uint64_t)(1 / me->offered);
    uint64_t tick = spacing < MS ? MS : spacing > 20 * MS ? 20 * MS : spacing;
    uint64_t backlog = (uint64_t)(me->offered * CATCH_UP_NS) + 1;
    for (;;) {
        uint64_t now = fleet_now();
        if (now >= atomic_load_explicit(&me->board->stop_ns, memory_order_relaxed) || orphaned(me)) {
            return 0;
        }
        /* release: the stamps published so far are older, and those to come are not */
        atomic_store_explicit(&me->mine->watermark_ns, now, memory_order_release);
        if (follow_mode(me) != 0) {
            return -1;
        }
        double gone = now > start ? (double)(now - start) * me->offered - offset : 0;
        uint64_t due = gone > 0 ? (uint64_t)gone : 0;
        if (due > me->asked + backlog) {
            me->asked = due - backlog;
        }
        while (me->asked < due) {
            now = fleet_now();
            if (now >= atomic_load_explicit(&me->board->stop_ns, memory_order_relaxed)) {
                break;
            }
            size_t n = me->mode != WEIR_STRICT ? 1 : due - me->asked < MANY ? (size_t)(due - me->asked) : MANY;
            if (n == 1) {
                ask_once(me, now);
            } else {
                ask_many(me, now, n);
            }
            me->asked += n;
        }
        if (now >= me->stats_ns + STATS_EVERY_NS) {
            report_stats(me, now);
        }
        rest(tick);
    }
}

/* What a callback of the sync thread leaves for the worker: done is published with release. */
struct answer {
    _Atomic int done;
    uint64_t unsent;
};

static void on_answer(void *arg, int status, uint64_t unsent)
{
    struct answer *answer = arg;
    (void)status;
    answer->unsent = unsent;
    atomic_store_explicit(&answer->done, 1, memory_order_release);
}

static int await_answer(struct worker *me, struct answer *answer)
{
    uint64_t deadline = fleet_now() + 5000 * MS;
    while (!atomic_load_explicit(&answer->done, memory_order_acquire)) {
        if (fleet_now() >= deadline || orphaned(me)) {
            return fail(me, "the sync thread does not call back");
        }
        rest(MS);
    }
    return 0;
}

static int flush(struct worker *me)
{
    struct answer answer = {0};
    int status = weir_sync_flush(me->sync, on_answer, &answer);
    if (status != 0) {
        return fail(me, "weir_sync_flush: %s", weir_strerror(status));
    }
    return await_answer(me, &answer);
}

static int close_sync(struct worker *me)
{
    struct answer answer = {0};
    int status = weir_sync_close(me->sync, on_answer, &answer);
    if (status != 0) {
        return fail(me, "weir_sync_close: %s", weir_strerror(status));
    }
    if (await_answer(me, &answer) != 0) {
        return -1;
    }
    atomic_store_explicit(&me->mine->unsent, answer.unsent, memory_order_relaxed);
    return 0;
}

static int live(struct worker *me)
{
    if (open_limiter(me) != 0) {
        return -1;
    }
    await_store(me);
    set_state(me, FLEET_WORKER_READY);
    await_phase(me, FLEET_RUN);
    if (drive(me) != 0) {
        return -1;
    }
    atomic_store_explicit(&me->mine->watermark_ns, UINT64_MAX, memory_order_release);
    if (me->sync && flush(me) != 0) {
        return -1;
    }
    report_stats(me, fleet_now());
    set_state(me, FLEET_WORKER_FLUSHED);
    await_phase(me, FLEET_CLOSE);
    if (me->sync && close_sync(me) != 0) {
        return -1;
    }
    weir_close(me->limiter);
    set_state(me, FLEET_WORKER_DONE);
    return 0;
}

int worker_run(struct fleet_board *board, unsigned index)
{
    struct worker me = {.board = board, .mine = &board->workers[index], .index = index, .mode = board->options.mode};
    const struct fleet_options *options = &board->options;
    me.offered = options->load * (double)options->limit / (double)options->per_ns / options->processes;
    return live(&me) == 0 ? 0 : 1;
}

/* Again while Redis is late: a busy machine may well need more than the timeout of one answer. */
static int look(struct worker *me, uint64_t *tokens)
{
    uint64_t deadline = fleet_now() + LOOK_NS;
    do {
        struct weir_result result;
        await_store(me);
        int verdict = weir_peek(me->limiter, me->policy, key, sizeof key - 1, 0, &result);
        if (verdict >= 0 && !(result.flags & WEIR_DEGRADED)) {
            *tokens = (uint64_t)result.remaining;
            return 0;
        }
        rest(MS);
    } while (fleet_now() < deadline);
    return -1;
}

int worker_look(struct fleet_board *board, uint64_t *tokens)
{
    unsigned index = board->options.processes;
    struct worker me = {.board = board, .mine = &board->workers[index], .index = index, .mode = WEIR_STRICT};
    int found = -1;
    if (open_limiter(&me) == 0) {
        found = look(&me, tokens);
    }
    if (me.sync && close_sync(&me) != 0) {
        return -1; /* its thread may still use the limiter */
    }
    weir_close(me.limiter);
    return found;
}
