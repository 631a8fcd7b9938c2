/* SPDX-License-Identifier: MIT */
/* See fleet.h. */
#include "benchmarks/fleet/fleet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/fleet/store.h"
#include "benchmarks/fleet/worker.h"
#include "benchmarks/harness.h"
#include "tools/process.h"

#define START_NS (20 * DEMAND_MS)
#define WARM_NS (400 * DEMAND_MS) /* saturated, before it counts */
#define BUSY_NS (1000 * DEMAND_MS)
#define SYNC_NS (500 * DEMAND_MS) /* after which timers have told Redis */

struct fleet {
    const struct strategy *strategy;
    struct store store;
    struct board *board;
    pid_t pids[FLEET_PROCESSES];
};

static void *share(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        bench_die("no memory to share");
    }
    return memory;
}

static void rest_until(uint64_t at_ns)
{
    uint64_t now = bench_clock_ns(), rest = at_ns > now ? at_ns - now : 0;
    nanosleep(&(struct timespec){(time_t)(rest / 1000000000), (long)(rest % 1000000000)}, NULL);
}

/* Tells the processes to go on to a phase. */
static void go(struct fleet *fleet, enum phase phase)
{
    atomic_store_explicit(&fleet->board->phase, (uint32_t)phase, memory_order_release);
}

/* Waits until all have done it. */
static void await(struct fleet *fleet, enum phase phase)
{
    uint64_t end = bench_clock_ns() + 40000 * DEMAND_MS;
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        while (atomic_load_explicit(&fleet->board->seats[i].phase, memory_order_acquire) < (uint32_t)phase) {
            if (bench_clock_ns() > end) {
                bench_die("%s: a process did not come so far", fleet->strategy->name);
            }
            rest_until(bench_clock_ns() + DEMAND_MS);
        }
    }
}

static void go_through(struct fleet *fleet, enum phase phase)
{
    go(fleet, phase);
    await(fleet, phase);
}

static void open_fleet(struct fleet *fleet, const struct strategy *strategy, uint32_t demands, uint32_t interval_ms,
                       int paced_only)
{
    *fleet = (struct fleet){.strategy = strategy, .board = share(sizeof *fleet->board)};
    store_open(&fleet->store);
    struct board *board = fleet->board;
    board->strategy = strategy;
    board->demands = demands;
    board->paced_only = paced_only;
    board->setup = (struct strategy_setup){.socket = fleet->store.server.socket,
                                           .limits = demand_limits,
                                           .limit_count = LIMITS,
                                           .processes = FLEET_PROCESSES,
                                           .interval_ms = interval_ms};
    board->seats = share(FLEET_PROCESSES * sizeof board->seats[0]);
    fflush(NULL);
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        struct record *records = share(WORKER_RECORDS * sizeof *records);
        memset(records, 0, WORKER_RECORDS * sizeof *records); /* no page is first touched while it is measured */
        board->seats[i].records = records;
    }
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        fleet->pids[i] = process_fork();
        if (fleet->pids[i] == 0) {
            _exit(worker_run(board, i));
        }
        if (fleet->pids[i] < 0) {
            bench_die("fork failed");
        }
    }
}

static void close_fleet(struct fleet *fleet)
{
    go_through(fleet, PHASE_CLOSE);
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        if (process_end(fleet->pids[i], 5000) != 0) {
            bench_die("%s: a process failed", fleet->strategy->name);
        }
        munmap(fleet->board->seats[i].records, WORKER_RECORDS * sizeof(struct record));
    }
    store_close(&fleet->store);
    munmap(fleet->board->seats, FLEET_PROCESSES * sizeof fleet->board->seats[0]);
    munmap(fleet->board, sizeof *fleet->board);
}

static void collect(struct fleet *fleet, struct fleet_data *data)
{
    const struct seat *seats = fleet->board->seats;
    data->setup = fleet->board->setup;
    data->setup.socket = NULL;
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        data->count += seats[i].count;
        data->paced_cpu_s += seats[i].paced_cpu_s;
    }
    data->records = bench_alloc((data->count + 1) * sizeof data->records[0]);
    for (size_t i = 0, at = 0; i < FLEET_PROCESSES; i++) {
        memcpy(data->records + at, seats[i].records, seats[i].count * sizeof data->records[0]);
        at += seats[i].count;
    }
}

/* The next time, START_NS from now or later, at which the wall clock is half a second past a full one. */
static uint64_t next_half_second(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t second = 1000 * DEMAND_MS, past = ((uint64_t)wall.tv_nsec + START_NS + second / 2) % second;
    return bench_clock_ns() + START_NS + second - past;
}

/* The workloads, of which one has an outage in it. */
static void run_paced(struct fleet *fleet, struct fleet_data *data)
{
    const char *commands = fleet->strategy->commands;
    uint64_t start = next_half_second();
    double calls = store_calls(&fleet->store, commands), cpu = store_cpu_s(&fleet->store);
    fleet->board->start_ns = start;
    go(fleet, PHASE_PACED);
    rest_until(start + (DEMAND_FLASH_END + DEMAND_OUTAGE_BEGIN) / 2);
    data->paced_calls = store_calls(&fleet->store, commands) - calls;
    data->paced_redis_cpu_s = store_cpu_s(&fleet->store) - cpu;
    if (fleet->board->demands >> DEMAND_OUTAGE & 1) {
        rest_until(start + DEMAND_KILL);
        store_kill(&fleet->store);
        rest_until(start + DEMAND_RESTART);
        store_start(&fleet->store);
    }
    await(fleet, PHASE_PACED);
}

static void count_bytes(struct fleet *fleet, struct fleet_data *data)
{
    double before = store_bytes(&fleet->store);
    go_through(fleet, PHASE_HOT);
    rest_until(bench_clock_ns() + SYNC_NS / 2);
    double hot = store_bytes(&fleet->store);
    go_through(fleet, PHASE_COLD);
    rest_until(bench_clock_ns() + SYNC_NS);
    data->hot_bytes = (hot - before) / WORKER_HOT_KEYS;
    data->cold_bytes = (store_bytes(&fleet->store) - hot) / WORKER_COLD_KEYS;
}

static void run_busy(struct fleet *fleet, struct fleet_data *data)
{
    struct board *board = fleet->board;
    board->busy_ns = bench_clock_ns() + WARM_NS;
    board->busy_stop_ns = board->busy_ns + BUSY_NS;
    go(fleet, PHASE_SATURATE);
    rest_until(board->busy_ns);
    double cpu = store_cpu_s(&fleet->store);
    rest_until(board->busy_stop_ns);
    data->busy_redis_cpu_s = store_cpu_s(&fleet->store) - cpu;
    await(fleet, PHASE_SATURATE);
    data->busy_s = (double)BUSY_NS / 1e9;
    for (unsigned i = 0; i < FLEET_PROCESSES; i++) {
        data->busy_decisions += (double)board->seats[i].busy_decisions;
        data->busy_denied += (double)board->seats[i].busy_denied;
        data->busy_degraded += (double)board->seats[i].busy_degraded;
        data->busy_cpu_s += board->seats[i].busy_cpu_s;
    }
}

void fleet_run(const struct strategy *strategy, struct fleet_data *data)
{
    struct fleet fleet;
    *data = (struct fleet_data){.records = NULL};
    open_fleet(&fleet, strategy, (1u << DEMANDS) - 1, 0, 0);
    await(&fleet, PHASE_OPEN);
    run_paced(&fleet, data);
    go_through(&fleet, PHASE_RECOVER);
    count_bytes(&fleet, data);
    run_busy(&fleet, data);
    collect(&fleet, data);
    close_fleet(&fleet);
}

void fleet_run_one(const struct strategy *strategy, enum demand demand, uint32_t interval_ms, struct fleet_data *data)
{
    struct fleet fleet;
    *data = (struct fleet_data){.records = NULL};
    open_fleet(&fleet, strategy, 1u << demand, interval_ms, 1);
    await(&fleet, PHASE_OPEN);
    fleet.board->start_ns = bench_clock_ns() + START_NS - demand_infos[demand].begin_ns;
    go(&fleet, PHASE_PACED);
    await(&fleet, PHASE_PACED);
    collect(&fleet, data);
    close_fleet(&fleet);
}

void fleet_free(struct fleet_data *data)
{
    free(data->records);
    data->records = NULL;
}
