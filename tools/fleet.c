/* SPDX-License-Identifier: MIT */
/* Owns the board, the workers' processes and the merging; must not know the limiter nor what is drawn. */
#include "tools/fleet.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/process.h"
#include "tools/worker.h"

#define MS UINT64_C(1000000)

uint64_t fleet_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void rest(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}

int fleet_open(struct fleet *f, const struct fleet_options *options)
{
    *f = (struct fleet){.processes = options->processes};
    f->board_size = sizeof *f->board + (options->processes + 1) * sizeof f->board->workers[0];
    void *memory = mmap(NULL, f->board_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        snprintf(f->error, sizeof f->error, "can't map %zu bytes: %s", f->board_size, strerror(errno));
        return -1;
    }
    f->board = memory;
    f->board->options = *options;
    f->board->parent = getpid();
    atomic_store_explicit(&f->board->mode, (uint32_t)options->mode, memory_order_relaxed);
    atomic_store_explicit(&f->board->stop_ns, UINT64_MAX, memory_order_relaxed);
    overshoot_init(&f->overshoot, options->limit, options->per_ns, options->burst);
    fflush(NULL); /* or each child would write again what is buffered now */
    for (unsigned i = 0; i < f->processes; i++) {
        pid_t pid = process_fork();
        if (pid == 0) {
            _exit(worker_run(f->board, i));
        }
        if (pid < 0) {
            snprintf(f->error, sizeof f->error, "can't fork: %s", strerror(errno));
            fleet_close(f);
            return -1;
        }
        f->pids[i] = pid;
    }
    return 0;
}

static uint32_t state_of(const struct fleet *f, unsigned i)
{
    return atomic_load_explicit(&f->board->workers[i].state, memory_order_acquire);
}

/* A worker that ends before it is done has failed, whatever it meant by it. */
static int reap(struct fleet *f, unsigned i)
{
    int status;
    if (state_of(f, i) == FLEET_WORKER_FAILED) {
        snprintf(f->error, sizeof f->error, "process %u: %s", i + 1, f->board->workers[i].error);
        return -1;
    }
    if (f->pids[i] == 0 || waitpid(f->pids[i], &status, WNOHANG) != f->pids[i]) {
        return 0;
    }
    f->pids[i] = 0;
    if (WIFSIGNALED(status)) {
        snprintf(f->error, sizeof f->error, "process %u was ended by signal %d", i + 1, WTERMSIG(status));
        return -1;
    }
    if (state_of(f, i) != FLEET_WORKER_DONE || WEXITSTATUS(status) != 0) {
        snprintf(f->error, sizeof f->error, "process %u ended with exit code %d", i + 1, WEXITSTATUS(status));
        return -1;
    }
    return 0;
}

static int drain(struct fleet *f, unsigned i)
{
    struct fleet_worker *worker = &f->board->workers[i];
    uint64_t written = atomic_load_explicit(&worker->written, memory_order_acquire);
    uint64_t read = atomic_load_explicit(&worker->read, memory_order_relaxed);
    for (; read != written; read++) {
        if (overshoot_queue_push(&f->queues[i], worker->stamps[read % FLEET_RING]) != 0) {
            snprintf(f->error, sizeof f->error, "out of memory");
            return -1;
        }
    }
    atomic_store_explicit(&worker->read, read, memory_order_release);
    return 0;
}

int fleet_poll(struct fleet *f)
{
    uint64_t settled = UINT64_MAX;
    for (unsigned i = 0; i < f->processes; i++) {
        /* The watermark before the ring: what is published after it is read is not older. */
        uint64_t watermark = atomic_load_explicit(&f->board->workers[i].watermark_ns, memory_order_acquire);
        if (drain(f, i) != 0 || reap(f, i) != 0) {
            return -1;
        }
        settled = watermark < settled ? watermark : settled;
    }
    overshoot_merge(&f->overshoot, f->queues, f->processes, settled);
    return 0;
}

/* Until every worker has come to `state` or past it. */
static int await(struct fleet *f, uint32_t state, uint64_t deadline, const char *what)
{
    for (;;) {
        unsigned there = 0, first = f->processes;
        if (fleet_poll(f) != 0) {
            return -1;
        }
        for (unsigned i = 0; i < f->processes; i++) {
            if (state_of(f, i) >= state) {
                there++;
            } else if (first == f->processes) {
                first = i;
            }
        }
        if (there == f->processes) {
            return 0;
        }
        if (fleet_now() >= deadline) {
            snprintf(f->error, sizeof f->error, "process %u is not %s in time", first + 1, what);
            return -1;
        }
        rest(2 * MS);
    }
}

int fleet_start(struct fleet *f, int timeout_ms)
{
    if (await(f, FLEET_WORKER_READY, fleet_now() + (uint64_t)timeout_ms * MS, "ready") != 0) {
        return -1;
    }
    struct fleet_board *board = f->board;
    uint64_t start = fleet_now() + 20 * MS;
    atomic_store_explicit(&board->start_ns, start, memory_order_relaxed);
    if (board->options.run_ns > 0) {
        atomic_store_explicit(&board->stop_ns, start + board->options.run_ns, memory_order_relaxed);
    }
    for (unsigned i = 0; i < f->processes; i++) {
        atomic_store_explicit(&board->workers[i].watermark_ns, start, memory_order_relaxed);
    }
    /* release: a worker that sees the phase sees both times */
    atomic_store_explicit(&board->phase, FLEET_RUN, memory_order_release);
    return 0;
}

void fleet_stop(struct fleet *f)
{
    uint64_t now = fleet_now();
    if (now < atomic_load_explicit(&f->board->stop_ns, memory_order_relaxed)) {
        atomic_store_explicit(&f->board->stop_ns, now, memory_order_relaxed);
    }
}

int fleet_finish(struct fleet *f, int timeout_ms)
{
    uint64_t deadline = fleet_now() + (uint64_t)timeout_ms * MS;
    int failed = 0;
    fleet_stop(f);
    failed |= await(f, FLEET_WORKER_FLUSHED, deadline, "flushed");
    atomic_store_explicit(&f->board->phase, FLEET_CLOSE, memory_order_release);
    if (!failed) {
        failed |= await(f, FLEET_WORKER_DONE, deadline, "closed");
    }
    for (unsigned i = 0; i < f->processes; i++) {
        if (f->pids[i] > 0) {
            int code = process_end(f->pids[i], failed ? 0 : 2000);
            f->pids[i] = 0;
            if (code != 0 && !failed) {
                snprintf(f->error, sizeof f->error, "process %u did not end well (%d)", i + 1, code);
                failed = -1;
            }
        }
        failed |= drain(f, i);
    }
    overshoot_merge(&f->overshoot, f->queues, f->processes, UINT64_MAX);
    return failed ? -1 : 0;
}

void fleet_close(struct fleet *f)
{
    for (unsigned i = 0; i < f->processes; i++) {
        if (f->pids[i] > 0) {
            process_end(f->pids[i], 0);
            f->pids[i] = 0;
        }
        overshoot_queue_deinit(&f->queues[i]);
    }
    if (f->board) {
        munmap(f->board, f->board_size);
        f->board = NULL;
    }
}
