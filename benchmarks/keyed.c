/* SPDX-License-Identifier: MIT */
/*
 * Rows L6 to L8: one decision among many keys, where memory is what costs; against one dependent line of the same
 * memory, and against 64 hash maps under 64 mutexes. And the sweep over sizes. Knows weir by its public interface
 * alone.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "limiter.h"
#include "rows.h"
#include "shardmap.h"
#include "zipf.h"

#define MANY 16u
#define SAMPLES ((size_t)1 << 21) /* Zipf draws made beforehand, read in order; uniform ones are made on the way */
#define ZIPF_S 0.99
#define TOUCHED_BYTES 93 /* a key: a line and a tag at the table's load of 0.7; cold lines are for others */

/* ---- which key comes next ---------------------------------------------------------------------------------------- */

struct stream {
    const uint32_t *samples; /* NULL: uniform */
    uint64_t keys;
};

struct cursor {
    uint64_t random;
    size_t at;
};

/* Each thread goes on where its last trial ended. */
static struct cursor cursors[2] = {{.random = 1}, {.random = 2, .at = SAMPLES / 2}};

static inline uint64_t next_key(const struct stream *stream, struct cursor *cursor)
{
    if (stream->samples == NULL) {
        return bench_below(bench_random(&cursor->random), stream->keys);
    }
    return stream->samples[cursor->at++ & (SAMPLES - 1)];
}

static uint32_t *draw_samples(uint64_t keys)
{
    struct zipf z;
    uint64_t random = 3;
    uint32_t *samples = bench_alloc(SAMPLES * sizeof *samples);
    zipf_init(&z, keys, ZIPF_S);
    for (size_t i = 0; i < SAMPLES; i++) {
        samples[i] = (uint32_t)zipf_draw(&z, &random);
    }
    return samples;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

struct subject {
    struct weir *w;
    weir_policy_id policy;
    struct shardmap *map;
    struct stream stream;
    uint64_t *lines; /* the floor's memory: line_count lines of 64 bytes, all zero */
    size_t line_count;
};

static uint64_t floor_line(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    uint64_t random = cursors[thread].random;
    for (size_t i = 0; i < ops; i++) {
        /* what the line held, 0, goes into the choice of the next */
        random += s->lines[bench_below(random, s->line_count) * 8];
        bench_random(&random);
    }
    cursors[thread].random = random;
    return ops;
}

static uint64_t weir_takes(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    struct cursor cursor = cursors[thread];
    uint64_t allowed = 0;
    for (size_t i = 0; i < ops; i++) {
        struct key16 key = key16_make(next_key(&s->stream, &cursor));
        allowed += weir_take(s->w, s->policy, &key, sizeof key, 1, NULL) == WEIR_ALLOW;
    }
    cursors[thread] = cursor;
    return allowed;
}

static uint64_t weir_takes_many(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    struct cursor cursor = cursors[thread];
    struct key16 keys[MANY];
    struct weir_request requests[MANY];
    uint64_t allowed = 0;
    memset(requests, 0, sizeof requests);
    for (size_t i = 0; i < MANY; i++) {
        requests[i].policy = s->policy;
        requests[i].key = &keys[i];
        requests[i].key_len = sizeof keys[i];
        requests[i].cost = 1;
    }
    while (ops > 0) {
        size_t n = ops < MANY ? ops : MANY;
        for (size_t i = 0; i < n; i++) {
            keys[i] = key16_make(next_key(&s->stream, &cursor));
        }
        limiter_check(weir_take_many(s->w, requests, n, 0), "weir_take_many");
        for (size_t i = 0; i < n; i++) {
            allowed += requests[i].status == WEIR_ALLOW;
        }
        ops -= n;
    }
    cursors[thread] = cursor;
    return allowed;
}

static uint64_t map_takes(void *arg, unsigned thread, size_t ops)
{
    struct subject *s = arg;
    struct cursor cursor = cursors[thread];
    uint64_t allowed = 0;
    for (size_t i = 0; i < ops; i++) {
        struct key16 key = key16_make(next_key(&s->stream, &cursor));
        allowed += (uint64_t)shardmap_take(s->map, &key, sizeof key, 1);
    }
    cursors[thread] = cursor;
    return allowed;
}

/* ---- the subjects ------------------------------------------------------------------------------------------------ */

static size_t resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*d %ld", &pages) != 1) {
        bench_die("cannot read /proc/self/statm");
    }
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

static struct weir_stats stats_of(struct weir *w)
{
    struct weir_stats stats = {.size = sizeof stats};
    limiter_check(weir_stats_get(w, &stats), "weir_stats_get");
    return stats;
}

/* Takes once from each of `keys` keys from number `first` on; returns how many were allowed. */
static uint64_t touch(struct subject *s, uint64_t first, uint64_t keys)
{
    uint64_t allowed = 0;
    for (uint64_t i = first; i < first + keys; i++) {
        struct key16 key = key16_make(i);
        allowed += weir_take(s->w, s->policy, &key, sizeof key, 1, NULL) == WEIR_ALLOW;
    }
    return allowed;
}

static void open_limiter(struct subject *s, uint64_t keys)
{
    s->stream.keys = keys;
    s->w = limiter_open(keys);
    s->policy = limiter_ample(s->w);
    uint64_t allowed = touch(s, 0, keys);
    struct weir_stats stats = stats_of(s->w);
    if (allowed != keys || stats.keys != keys || stats.table_full != 0) {
        bench_die("a table for %llu keys holds %llu (%llu allowed, %llu found it full)", (unsigned long long)keys,
                  (unsigned long long)stats.keys, (unsigned long long)allowed, (unsigned long long)stats.table_full);
    }
}

static void open_map(struct subject *s, uint64_t keys)
{
    s->map = shardmap_open(keys, 1e6, 1e12);
    if (s->map == NULL) {
        bench_die("out of memory");
    }
    for (uint64_t i = 0; i < keys; i++) {
        struct key16 key = key16_make(i);
        if (!shardmap_take(s->map, &key, sizeof key, 1)) {
            bench_die("the map denied a new key");
        }
    }
}

/* The floor's memory is got as weir gets its own: mapped, huge pages advised, every page touched. */
static void open_lines(struct subject *s, size_t bytes)
{
    s->line_count = bytes / 64;
    s->lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->lines == MAP_FAILED) {
        bench_die("cannot map %zu bytes", bytes);
    }
    madvise(s->lines, bytes, MADV_HUGEPAGE);
    memset(s->lines, 0, bytes);
}

static void close_subject(struct subject *s)
{
    weir_close(s->w);
    if (s->map != NULL) {
        shardmap_close(s->map);
    }
    if (s->lines != NULL) {
        munmap(s->lines, s->line_count * 64);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { L6A, L6B, L7, L8, ROWS };

static void set_speed_rows(const struct bench_options *options, struct subject *s, struct bench_row *rows)
{
    enum { LINE, TAKE, MANY_16, MAP, SIDES };
    struct bench_side sides[SIDES] = {
        [LINE] = {.name = "dependent line", .work = floor_line, .arg = s},
        [TAKE] = {.name = "16-byte key of 1M", .work = weir_takes, .arg = s},
        [MANY_16] = {.name = "take_many of 16", .work = weir_takes_many, .arg = s},
        [MAP] = {.name = "64-shard mutex map", .work = map_takes, .arg = s},
    };
    bench_run(sides, SIDES, options->quick ? 31 : 151, 4000);
    rows[L6A].value = bench_ratio(&sides[TAKE], &sides[LINE]);
    bench_detail(&rows[L6A], "ns", bench_median(&sides[TAKE]));
    bench_detail(&rows[L6A], "floor_ns", bench_median(&sides[LINE]));
    bench_detail(&rows[L6A], "footprint_mb", (double)(s->line_count * 64) / 1e6);
    rows[L6B].value = bench_ratio(&sides[MAP], &sides[TAKE]);
    bench_detail(&rows[L6B], "map_ns", bench_median(&sides[MAP]));
    bench_detail(&rows[L6B], "map_bytes_a_key", (double)shardmap_bytes(s->map) / (double)s->stream.keys);
    rows[L7].value = bench_ratio(&sides[MAP], &sides[MANY_16]);
    bench_detail(&rows[L7], "ns", bench_median(&sides[MANY_16]));
    bench_free(sides, SIDES);
}

/* As many new keys again as the table holds: refused or in an old one's place, but never in new memory. */
static void set_memory_row(struct subject *s, struct bench_row *row, size_t resident_before)
{
    uint64_t keys = s->stream.keys;
    struct weir_stats before = stats_of(s->w);
    size_t resident = resident_bytes();
    touch(s, keys, keys);
    struct weir_stats after = stats_of(s->w);
    size_t grown = resident_bytes() - resident;
    if (after.memory_bytes != before.memory_bytes || (grown < SIZE_MAX / 2 && grown > before.memory_bytes / 100)) {
        bench_die("memory grew by %zu bytes under new keys", grown);
    }
    if (after.evictions + after.table_full - before.evictions - before.table_full == 0) {
        bench_die("twice as many keys as the table has room for met no full table");
    }
    size_t used = resident - resident_before;
    uint64_t reserved = before.memory_bytes;
    row->value = (double)(used > reserved ? used : reserved) / (double)keys;
    bench_detail(row, "reserved", (double)reserved / (double)keys);
    bench_detail(row, "resident", (double)used / (double)keys);
}

void keyed_rows(const struct bench_options *options)
{
    const uint64_t keys = 1000000;
    struct bench_row rows[ROWS] = {
        [L6A] = {.id = "L6a", .what = "16-byte key of 1M, uniform / one dependent random line", .goal = 1.3},
        [L6B] = {.id = "L6b", .what = "64-shard mutex map / the same", .goal = 2.5, .kind = BENCH_AT_LEAST},
        [L7] = {.id = "L7", .what = "64-shard mutex map / take_many of 16", .goal = 7, .kind = BENCH_AT_LEAST},
        [L8] = {.id = "L8", .what = "bytes a key at 1M keys, none growing", .goal = 200},
    };
    int speed = bench_wanted(options, "L6") || bench_wanted(options, "L7");
    if (!speed && !bench_wanted(options, "L8")) {
        return;
    }
    struct subject s = {.w = NULL};
    size_t resident = resident_bytes();
    open_limiter(&s, keys);
    set_memory_row(&s, &rows[L8], resident);
    if (speed) {
        /* afresh: the table of the row before is full of other keys */
        weir_close(s.w);
        open_limiter(&s, keys);
        open_map(&s, keys);
        open_lines(&s, keys * TOUCHED_BYTES);
        set_speed_rows(options, &s, rows);
    }
    close_subject(&s);
    for (size_t i = 0; i < ROWS; i++) {
        bench_report(options, &rows[i]);
    }
}

void keyed_peer(const struct bench_options *options)
{
    struct subject s = {.w = NULL};
    open_limiter(&s, 1000000);
    open_map(&s, 1000000);
    for (unsigned threads = 1; threads <= 2 && threads <= bench_cpus(); threads++) {
        struct bench_side sides[] = {
            {.name = "map", .work = map_takes, .arg = &s, .threads = threads},
            {.name = "take", .work = weir_takes, .arg = &s, .threads = threads},
        };
        bench_run(sides, 2, options->quick ? 11 : 51, 4000);
        peers_report(options, "64 maps, 64 mutexes (C)", "16-byte key of 1M", &sides[0], &sides[1], threads);
        bench_free(sides, 2);
    }
    close_subject(&s);
}

/* ---- sweep ------------------------------------------------------------------------------------------------------- */

static void sweep_one(const struct bench_options *options, struct subject *s, unsigned threads)
{
    enum { TAKE, MANY_16, MAP, SIDES };
    struct bench_side sides[SIDES] = {
        [TAKE] = {.name = "take", .work = weir_takes, .arg = s, .threads = threads},
        [MANY_16] = {.name = "take_many", .work = weir_takes_many, .arg = s, .threads = threads},
        [MAP] = {.name = "map", .work = map_takes, .arg = s, .threads = threads},
    };
    const char *format = options->json ? "{\"id\":\"keyed\",\"keys\":%llu,\"distribution\":\"%s\",\"threads\":%u,"
                                         "\"take_ns\":%.1f,\"many_ns\":%.1f,"
                                         "\"map_ns\":%.1f,\"map_to_take\":%.2f,\"map_to_many\":%.2f}\n"
                                       : "%9llu %-8s %7u %9.1f %9.1f %9.1f %9.2f %9.2f\n";
    bench_run(sides, SIDES, options->quick ? 15 : 61, 4000);
    printf(format, (unsigned long long)s->stream.keys, s->stream.samples != NULL ? "zipf" : "uniform", threads,
           bench_median(&sides[TAKE]), bench_median(&sides[MANY_16]), bench_median(&sides[MAP]),
           bench_ratio(&sides[MAP], &sides[TAKE]), bench_ratio(&sides[MAP], &sides[MANY_16]));
    fflush(stdout);
    bench_free(sides, SIDES);
}

void keyed_sweep(const struct bench_options *options)
{
    if (!options->json) {
        printf("%9s %-8s %7s %9s %9s %9s %9s %9s   (ns a decision and thread; ratios)\n", "keys", "choice", "threads",
               "take", "many(16)", "map(64)", "map/take", "map/many");
    }
    for (uint64_t keys = 1000; keys <= 10000000; keys *= 10) {
        struct subject s = {.w = NULL};
        uint32_t *samples = draw_samples(keys);
        open_limiter(&s, keys);
        open_map(&s, keys);
        for (int zipf = 0; zipf <= 1; zipf++) {
            s.stream.samples = zipf ? samples : NULL;
            for (unsigned threads = 1; threads <= 2 && threads <= bench_cpus(); threads++) {
                sweep_one(options, &s, threads);
            }
        }
        close_subject(&s);
        free(samples);
    }
}
