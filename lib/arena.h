/* SPDX-License-Identifier: MIT */
/*
 * Where keys too long for a cold line are kept: contiguous runs of 64-byte blocks in a fixed region. Knows nothing of
 * entries. Only keys of shared policies come here, once each, so a lock and a scan of the bitmap will do.
 */
#ifndef WEIR_LIB_ARENA_H
#define WEIR_LIB_ARENA_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define WEIR__ARENA_BLOCK 64u
#define WEIR__ARENA_NONE UINT32_MAX

struct weir__arena {
    pthread_mutex_t lock;
    uint32_t blocks;
    uint32_t hand;     /* where the last search ended */
    uint32_t too_long; /* a run of that many blocks was not found since the last release */
    uint32_t in_use;   /* blocks */
    size_t map_offset; /* of the bitmap and of the blocks, from the arena */
    size_t data_offset;
};

/* Bytes for an arena of that many blocks. */
size_t weir__arena_bytes(uint32_t blocks);

/* In zeroed memory, 64-byte aligned. The lock is process-shared and robust where shared. 0 or an error. */
int weir__arena_init(struct weir__arena *arena, uint32_t blocks, int shared);
void weir__arena_deinit(struct weir__arena *arena);

/* Copies n bytes (> 0) in. The first block, or WEIR__ARENA_NONE where there is no room. Threads: any. */
uint32_t weir__arena_put(struct weir__arena *arena, const void *bytes, size_t n);
void weir__arena_drop(struct weir__arena *arena, uint32_t block, size_t n);

/* After somebody was killed in one of these: all is freed; what is in use is marked again. begin: 0 where nothing was
 * ever put in; else the lock is held until end. */
int weir__arena_begin_again(struct weir__arena *arena);
void weir__arena_mark_again(struct weir__arena *arena, uint32_t block, size_t n);
void weir__arena_end_again(struct weir__arena *arena);

const void *weir__arena_bytes_of(const struct weir__arena *arena, uint32_t block);

#endif
