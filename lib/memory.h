/* SPDX-License-Identifier: MIT */
/*
 * Where a limiter's memory comes from: the caller's allocator, or the system. Owns alignment, zeroing, huge pages and
 * pre-faulting; knows nothing of what is put there.
 */
#ifndef WEIR_LIB_MEMORY_H
#define WEIR_LIB_MEMORY_H

#include <stddef.h>

#include <weir/weir.h>

struct weir__memory {
    void *base;  /* aligned as asked for; zeroed */
    size_t size; /* as asked for */
    void *raw;   /* what was allocated or mapped */
    size_t raw_size;
    int mapped;
};

/* size bytes of zeros at a multiple of align (a power of two). allocator NULL or without alloc: mapped by the system,
 * where pages that nobody touches cost nothing; shared: in any case, and kept across fork. WEIR_E_NOMEM. */
int weir__memory_get(struct weir__memory *memory, const struct weir_allocator *allocator, size_t size, size_t align,
                     int shared);
void weir__memory_put(struct weir__memory *memory, const struct weir_allocator *allocator);

/* Touches every page of the range, so that no decision pays for it; huge ones where the system has them. */
void weir__memory_fault_in(void *start, size_t size);

/* fork leaves zeros of these whole pages in the child (on: non-zero), or copies them as usual. 0, or WEIR_E_NOSUP. */
int weir__memory_wipe_on_fork(void *pages, size_t size, int on);

size_t weir__memory_page(void);

#endif
