/* SPDX-License-Identifier: MIT */
/*
 * Long keys: first fit from where the last search ended, over a bitmap. Knows nothing of who owns a key.
 */
#include "lib/arena.h"

#include <string.h>

#include "lib/lock.h"

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t map_bytes(uint32_t blocks)
{
    return round_up(((size_t)blocks + 7) / 8, WEIR__ARENA_BLOCK);
}

static unsigned char *map_of(const struct weir__arena *arena)
{
    return (unsigned char *)arena + arena->map_offset;
}

static uint32_t blocks_for(size_t n)
{
    return (uint32_t)((n + WEIR__ARENA_BLOCK - 1) / WEIR__ARENA_BLOCK);
}

size_t weir__arena_bytes(uint32_t blocks)
{
    return round_up(sizeof(struct weir__arena), WEIR__ARENA_BLOCK) + map_bytes(blocks) +
           (size_t)blocks * WEIR__ARENA_BLOCK;
}

int weir__arena_init(struct weir__arena *arena, uint32_t blocks, int shared)
{
    arena->blocks = blocks;
    arena->too_long = UINT32_MAX;
    arena->map_offset = round_up(sizeof *arena, WEIR__ARENA_BLOCK);
    arena->data_offset = arena->map_offset + map_bytes(blocks);
    return weir__lock_init(&arena->lock, shared);
}

void weir__arena_deinit(struct weir__arena *arena)
{
    weir__lock_deinit(&arena->lock);
}

static int is_used(const unsigned char *map, uint32_t block)
{
    return map[block / 8] >> (block % 8) & 1;
}

/* The first block of a free run of n in [from, to), or WEIR__ARENA_NONE. */
static uint32_t find_run(const unsigned char *map, uint32_t from, uint32_t to, uint32_t n)
{
    uint32_t run = 0;

    for (uint32_t block = from; block < to; block++) {
        if (block % 8 == 0 && map[block / 8] == 0xff && to - block >= 8) {
            run = 0;
            block += 7;
        } else if (is_used(map, block)) {
            run = 0;
        } else if (++run == n) {
            return block + 1 - n;
        }
    }
    return WEIR__ARENA_NONE;
}

static void mark(struct weir__arena *arena, uint32_t first, uint32_t n, int used)
{
    unsigned char *map = map_of(arena);

    for (uint32_t block = first; block < first + n; block++) {
        if (used)
            map[block / 8] |= (unsigned char)(1u << block % 8);
        else
            map[block / 8] &= (unsigned char)~(1u << block % 8);
    }
    arena->in_use += used ? n : 0 - n;
}

uint32_t weir__arena_put(struct weir__arena *arena, const void *bytes, size_t n)
{
    uint32_t need = blocks_for(n), first = WEIR__ARENA_NONE;

    weir__lock(&arena->lock);
    /* in_use is not asked: a process that was killed here may have left it wrong */
    if (need < arena->too_long) {
        first = find_run(map_of(arena), arena->hand, arena->blocks, need);
        if (first == WEIR__ARENA_NONE && arena->hand > 0)
            first = find_run(map_of(arena), 0, arena->blocks, need);
        if (first == WEIR__ARENA_NONE) {
            arena->too_long = need;
        } else {
            arena->hand = first + need; /* first: it tells that something was ever put in */
            mark(arena, first, need, 1);
        }
    }
    weir__unlock(&arena->lock);
    if (first != WEIR__ARENA_NONE)
        memcpy((unsigned char *)arena + arena->data_offset + (size_t)first * WEIR__ARENA_BLOCK, bytes, n);
    return first;
}

void weir__arena_drop(struct weir__arena *arena, uint32_t block, size_t n)
{
    weir__lock(&arena->lock);
    mark(arena, block, blocks_for(n), 0);
    arena->too_long = UINT32_MAX;
    weir__unlock(&arena->lock);
}

int weir__arena_begin_again(struct weir__arena *arena)
{
    weir__lock(&arena->lock);
    if (arena->hand == 0) {
        weir__unlock(&arena->lock);
        return 0;
    }
    memset(map_of(arena), 0, map_bytes(arena->blocks));
    arena->in_use = 0;
    arena->too_long = UINT32_MAX;
    return 1;
}

void weir__arena_mark_again(struct weir__arena *arena, uint32_t block, size_t n)
{
    mark(arena, block, blocks_for(n), 1);
}

void weir__arena_end_again(struct weir__arena *arena)
{
    weir__unlock(&arena->lock);
}

const void *weir__arena_bytes_of(const struct weir__arena *arena, uint32_t block)
{
    return (const unsigned char *)arena + arena->data_offset + (size_t)block * WEIR__ARENA_BLOCK;
}
