/* SPDX-License-Identifier: MIT */
/* Arithmetic as a witness, and pieces of a measurement. */
#include "core.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "harness.h"

#define OPS 20000u /* some 11 us */
#define TRIES 5u
#define SEARCH_NS UINT64_C(300000000)
#define AGAIN_NS 2000000
#define WHOLE 0.95 /* of a core */

static struct {
    pthread_t thread;
    sem_t asked, stop, told;
    double there, best; /* ns; there: the greatest on the second CPU since it was asked; best: the least on either */
    int ends;           /* sem_post publishes both */
} core;

/* ---- the witness ------------------------------------------------------------------------------------------------- */

static double measure(void)
{
    double ns[TRIES];
    for (unsigned i = 0; i < TRIES; i++) {
        uint64_t begin = bench_ticks();
        bench_arithmetic(NULL, 0, OPS);
        ns[i] = bench_ns((double)(bench_ticks() - begin));
    }
    return bench_quantile(ns, TRIES, 0.5);
}

static double note(double ns)
{
    core.best = core.best == 0 || ns < core.best ? ns : core.best;
    return ns;
}

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem) != 0) {
    }
}

static void *witness(void *arg)
{
    (void)arg;
    bench_pin(1);
    (void)setpriority(PRIO_PROCESS, 0, -20); /* of this thread, where that is allowed: as the server has it */
    for (;;) {
        wait_for(&core.asked);
        if (core.ends) {
            return NULL;
        }
        struct timespec next;
        core.there = 0;
        clock_gettime(CLOCK_REALTIME, &next); /* the one that sem_timedwait knows */
        do {
            double ns = measure();
            core.there = ns > core.there ? ns : core.there;
            next.tv_sec += (next.tv_nsec + AGAIN_NS) / 1000000000;
            next.tv_nsec = (next.tv_nsec + AGAIN_NS) % 1000000000;
        } while (sem_timedwait(&core.stop, &next) != 0);
        double last = measure();
        core.there = last > core.there ? last : core.there;
        sem_post(&core.told);
    }
}

double bench_core_here(void)
{
    return note(measure());
}

void bench_core_ask(void)
{
    sem_post(&core.asked);
}

double bench_core_told(void)
{
    sem_post(&core.stop);
    wait_for(&core.told);
    return note(core.there);
}

void bench_core_open(void)
{
    core.ends = 0;
    sem_init(&core.asked, 0, 0);
    sem_init(&core.stop, 0, 0);
    sem_init(&core.told, 0, 0);
    if (pthread_create(&core.thread, NULL, witness, NULL) != 0) {
        bench_die("cannot start a thread");
    }
    for (uint64_t end = bench_clock_ns() + SEARCH_NS; bench_clock_ns() < end;) {
        bench_core_ask();
        (void)bench_core_here();
        (void)bench_core_told();
    }
}

void bench_core_close(void)
{
    core.ends = 1;
    sem_post(&core.asked);
    pthread_join(core.thread, NULL);
    sem_destroy(&core.asked);
    sem_destroy(&core.stop);
    sem_destroy(&core.told);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

void bench_pieces_begin(struct bench_pieces *pieces, double ns, double done, double cpu)
{
    pieces->ns = ns;
    pieces->done = done;
    pieces->cpu = cpu;
    pieces->open = 1;
}

void bench_pieces_end(struct bench_pieces *pieces, double ns, double done, double cpu)
{
    if (pieces->open && pieces->n < BENCH_PIECES) {
        pieces->all[pieces->n++] = (struct bench_piece){
            .ns = ns > pieces->ns ? ns : pieces->ns, .done = done - pieces->done, .cpu = cpu - pieces->cpu};
    }
    pieces->open = 0;
}

static size_t count(const struct bench_pieces *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < pieces->n; i++) {
        n += core.best >= WHOLE * pieces->all[i].ns;
    }
    return n;
}

int bench_pieces_more(const struct bench_pieces *pieces)
{
    return pieces->n < BENCH_PIECES && count(pieces) < pieces->wanted;
}

static int by_ns(const void *a, const void *b)
{
    double x = ((const struct bench_piece *)a)->ns, y = ((const struct bench_piece *)b)->ns;
    return (x > y) - (x < y);
}

static double sum_of(const struct bench_pieces *pieces, size_t n)
{
    double done = 0, cpu = 0;
    for (size_t i = 0; i < n; i++) {
        done += pieces->all[i].done;
        cpu += pieces->all[i].cpu;
    }
    return done > 0 ? cpu / done : 0;
}

double bench_pieces_sum(struct bench_pieces *pieces, struct bench_row *row, double unit, int per_s)
{
    size_t counted = count(pieces), used = counted > pieces->few ? counted : pieces->few;
    if (pieces->n == 0) {
        bench_die("%s: nothing was measured", row->id);
    }
    used = used < pieces->n ? used : pieces->n;
    qsort(pieces->all, pieces->n, sizeof *pieces->all, by_ns);
    double each = sum_of(pieces, used), all = sum_of(pieces, pieces->n);
    bench_detail(row, "pieces", (double)pieces->n);
    bench_detail(row, "counted", (double)counted);
    bench_detail(row, "core", core.best / pieces->all[used - 1].ns);
    bench_detail(row, "of_all_pieces", per_s ? 1 / all / unit : all * unit);
    return each;
}
