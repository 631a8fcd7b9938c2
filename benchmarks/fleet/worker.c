/* SPDX-License-Identifier: MIT */
/* See worker.h. */
#define _GNU_SOURCE
#include "benchmarks/fleet/worker.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "benchmarks/harness.h"
#include "benchmarks/zipf.h"

#define ASKS 16384u                /* on their way at once; a power of two */
#define IDLE_NS DEMAND_MS          /* between looks at the board */
#define BUSY_ON_NS (DEMAND_MS / 4) /* of those who never wait */
#define BUSY_OFF_NS (19 * DEMAND_MS / 4)
#define SLACK_NS 1000 /* of the kernel's timers: requests come when they are due */
#define LATE_END_NS (DEMAND_MS * 500)

struct worker {
    struct board *board;
    struct seat *seat;
    const struct strategy *strategy;
    void *self;
    unsigned index;
    uint64_t random;
    struct zipf zipf;
    uint64_t due[DEMANDS];
    struct strategy_ask *asks; /* ASKS of them; `asker` is the record, or NULL where it is free */
    uint64_t next_ask;
    uint32_t waiting;
    uint64_t denied, degraded;
};

static struct worker *worker; /* verdicts have no argument for it; one a process */

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void done_with(struct worker *me, enum phase phase)
{
    atomic_store_explicit(&me->seat->phase, (uint32_t)phase, memory_order_release);
}

/* Until something comes or that time has. */
static void rest_until(struct worker *me, uint64_t until_ns)
{
    struct pollfd fd = {.fd = -1};
    me->strategy->wait(me->self, &fd, &until_ns);
    uint64_t now = bench_clock_ns(), rest = until_ns > now ? until_ns - now : 0;
    struct timespec ts = {(time_t)(rest / 1000000000), (long)(rest % 1000000000)};
    if (rest > 0) {
        ppoll(&fd, fd.fd >= 0 ? 1 : 0, &ts, NULL);
    }
}

static void idle_until(struct worker *me, uint64_t until_ns)
{
    while (bench_clock_ns() < until_ns) {
        me->strategy->turn(me->self);
        rest_until(me, until_ns);
    }
}

/* What can't be skipped while the others are waited for: timers go on. */
static void await_phase(struct worker *me, enum phase phase)
{
    while (atomic_load_explicit(&me->board->phase, memory_order_acquire) < (uint32_t)phase) {
        me->strategy->turn(me->self);
        rest_until(me, bench_clock_ns() + IDLE_NS);
    }
}

static struct strategy_ask *free_ask(struct worker *me)
{
    for (unsigned tries = 0; tries < ASKS; tries++) {
        struct strategy_ask *ask = &me->asks[me->next_ask++ % ASKS];
        if (!ask->asker) {
            return ask;
        }
    }
    bench_die("%s: too many requests wait for an answer", me->strategy->name);
}

static void name_key(struct strategy_ask *ask, const char *kind, uint32_t number)
{
    ask->key_len = (uint32_t)snprintf(ask->key, sizeof ask->key, "%s%u", kind, number);
}

/* ---- paced ------------------------------------------------------------------------------------------------------- */

static void on_verdict(struct strategy_ask *ask)
{
    uint64_t ticks = bench_ticks() - ask->ticks;
    struct record *record = ask->asker;
    double ns = bench_ns((double)ticks);
    record->took_ns = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
    record->allowed = ask->allowed != 0;
    record->degraded = ask->degraded != 0;
    ask->asker = NULL;
    worker->waiting--;
}

static void ask_one(struct worker *me, enum demand demand, uint64_t due)
{
    struct strategy_ask *ask = free_ask(me);
    struct record *record = &me->seat->records[me->seat->count++];
    if (me->seat->count == WORKER_RECORDS) {
        bench_die("more requests than were expected");
    }
    uint32_t key = demand_infos[demand].keys > 1 ? (uint32_t)zipf_draw(&me->zipf, &me->random) : 0;
    ask->limit = (uint32_t)demand;
    ask->cost = 1;
    ask->asker = record;
    name_key(ask, demand_infos[demand].name, key);
    uint64_t now = bench_clock_ns() - me->board->start_ns;
    *record = (struct record){.asked_ns = now, .late_ns = (uint32_t)(now > due ? now - due : 0), .key = key};
    record->demand = (uint8_t)demand;
    record->process = (uint8_t)me->index;
    me->waiting++;
    ask->ticks = bench_ticks();
    me->strategy->decide(me->self, ask);
}

/* Asks all that is due. When the next one is. */
static uint64_t ask_due(struct worker *me)
{
    uint64_t first = UINT64_MAX, now = bench_clock_ns() - me->board->start_ns;
    for (unsigned d = 0; d < DEMANDS; d++) {
        while (me->due[d] <= now) {
            ask_one(me, (enum demand)d, me->due[d]);
            me->due[d] = demand_next((enum demand)d, me->index, me->due[d] + 1, &me->random);
        }
        first = me->due[d] < first ? me->due[d] : first;
    }
    return first;
}

static void paced(struct worker *me)
{
    uint64_t start = me->board->start_ns, next;
    double cpu = cpu_s();
    int measured = 0;
    for (unsigned d = 0; d < DEMANDS; d++) {
        me->due[d] = me->board->demands >> d & 1 ? demand_next((enum demand)d, me->index, 0, &me->random) : UINT64_MAX;
    }
    idle_until(me, start);
    while ((next = ask_due(me)) != UINT64_MAX || me->waiting > 0) {
        me->strategy->turn(me->self);
        if (!measured && next > DEMAND_FLASH_END) {
            measured = 1;
            me->seat->paced_cpu_s = cpu_s() - cpu;
        }
        if (bench_clock_ns() > start + DEMAND_END + LATE_END_NS) {
            bench_die("%s: %u requests were not answered", me->strategy->name, me->waiting);
        }
        rest_until(me, next != UINT64_MAX ? start + next : bench_clock_ns() + IDLE_NS);
    }
}

static void recover(struct worker *me)
{
    for (uint64_t end = bench_clock_ns() + 10000 * DEMAND_MS; !me->strategy->connected(me->self);) {
        if (bench_clock_ns() > end) {
            bench_die("%s: no connection after the outage", me->strategy->name);
        }
        me->strategy->turn(me->self);
        rest_until(me, bench_clock_ns() + IDLE_NS);
    }
}

/* ---- as fast as it goes ------------------------------------------------------------------------------------------ */

static void on_busy_verdict(struct strategy_ask *ask)
{
    worker->denied += !ask->allowed;
    worker->degraded += ask->degraded != 0;
    worker->waiting--;
    ask->asker = NULL;
}

static void decide_now(struct worker *me, struct strategy_ask *ask)
{
    ask->asker = ask;
    me->waiting++;
    me->strategy->decide(me->self, ask);
}

static void await_answers(struct worker *me)
{
    while (me->waiting > 0) {
        me->strategy->turn(me->self);
        rest_until(me, bench_clock_ns() + IDLE_NS);
    }
}

static void cold(struct worker *me)
{
    for (uint32_t key = me->index; key < WORKER_COLD_KEYS; key += FLEET_PROCESSES) {
        struct strategy_ask *ask = free_ask(me);
        ask->limit = LIMIT_COLD;
        name_key(ask, "cold", key);
        decide_now(me, ask);
        if (me->waiting >= WORKER_CALLERS) {
            await_answers(me);
        }
    }
    await_answers(me);
}

static void hot(struct worker *me)
{
    uint64_t begin = bench_clock_ns();
    for (unsigned round = 0; round < 10; round++) {
        for (uint32_t key = 0; key < WORKER_HOT_KEYS; key++) {
            struct strategy_ask *ask = free_ask(me);
            ask->limit = LIMIT_HOT;
            name_key(ask, "hot", key);
            decide_now(me, ask);
            if (me->waiting >= WORKER_CALLERS) {
                await_answers(me);
            }
        }
        await_answers(me);
        idle_until(me, begin + (round + 1) * 100 * DEMAND_MS);
    }
}

/* Free callers ask; how many that were. */
static unsigned ask_busy(struct worker *me, const struct strategy_ask *keys)
{
    unsigned asked = 0;
    for (unsigned i = 0; i < WORKER_CALLERS; i++) {
        struct strategy_ask *ask = &me->asks[i];
        if (!ask->asker) {
            const struct strategy_ask *key = &keys[bench_below(bench_random(&me->random), WORKER_BUSY_KEYS)];
            memcpy(ask->key, key->key, sizeof ask->key);
            ask->key_len = key->key_len;
            ask->limit = LIMIT_AMPLE;
            asked++;
            decide_now(me, ask);
        }
    }
    return asked;
}

/* Callers ask, then one turn, again and again. Those who never wait would leave no CPU to Redis and to the threads that
 * talk to it: they ask for a part of the time. */
static void saturate(struct worker *me)
{
    static struct strategy_ask keys[WORKER_BUSY_KEYS];
    uint64_t decisions = 0, now, began = bench_clock_ns();
    double cpu = 0;
    int counting = 0;
    for (uint32_t i = 0; i < WORKER_BUSY_KEYS; i++) {
        name_key(&keys[i], "busy-key-", 1000000 + i);
    }
    while ((now = bench_clock_ns()) < me->board->busy_stop_ns) {
        if (!counting && now >= me->board->busy_ns) {
            counting = 1;
            decisions = me->denied = me->degraded = 0;
            cpu = cpu_s();
        }
        decisions += ask_busy(me, keys);
        me->strategy->turn(me->self);
        if (me->waiting == WORKER_CALLERS) {
            rest_until(me, bench_clock_ns() + IDLE_NS);
        } else if (me->waiting == 0 && now > began + BUSY_ON_NS) {
            rest_until(me, now + BUSY_OFF_NS);
            began = bench_clock_ns();
        }
    }
    me->seat->busy_cpu_s = cpu_s() - cpu;
    me->seat->busy_decisions = decisions - me->waiting;
    me->seat->busy_denied = me->denied;
    me->seat->busy_degraded = me->degraded;
    await_answers(me);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

static void choose(struct strategy_ask *ask)
{
    if (ask->asker == ask) {
        on_busy_verdict(ask);
    } else {
        on_verdict(ask);
    }
}

static void open_strategy(struct worker *me)
{
    struct strategy_setup setup = me->board->setup;
    setup.index = me->index;
    setup.on_verdict = choose;
    setup.skew_ns = me->strategy->skewed ? (me->index % 2 ? -2000 : 2000) * (int64_t)DEMAND_MS : 0;
    me->self = me->strategy->open(me->strategy, &setup);
    idle_until(me, bench_clock_ns() + me->strategy->settle_ms * DEMAND_MS);
}

int worker_run(struct board *board, unsigned index)
{
    static struct worker me;
    static void (*const work[])(struct worker *) = {
        [PHASE_OPEN] = open_strategy, [PHASE_PACED] = paced,       [PHASE_RECOVER] = recover, [PHASE_HOT] = hot,
        [PHASE_COLD] = cold,          [PHASE_SATURATE] = saturate,
    };
    worker = &me;
    me = (struct worker){.board = board, .seat = &board->seats[index], .strategy = board->strategy, .index = index};
    me.random = 77 + 1000 * index;
    me.asks = bench_alloc(ASKS * sizeof me.asks[0]);
    memset(me.asks, 0, ASKS * sizeof me.asks[0]);
    for (unsigned i = 0; i < ASKS; i++) {
        me.asks[i].cost = 1;
    }
    zipf_init(&me.zipf, demand_infos[DEMAND_ZIPF].keys, 1.1);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
    for (enum phase phase = PHASE_OPEN; phase < (board->paced_only ? PHASE_RECOVER : PHASE_CLOSE); phase++) {
        if (phase > PHASE_OPEN) {
            await_phase(&me, phase);
        }
        work[phase](&me);
        done_with(&me, phase);
    }
    await_phase(&me, PHASE_CLOSE);
    me.strategy->close(me.self);
    done_with(&me, PHASE_CLOSE);
    return 0;
}
