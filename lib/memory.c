/* SPDX-License-Identifier: MIT */
/*
 * Memory from the caller's allocator or the system.
 */
#include "lib/memory.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#define HUGE_PAGE ((size_t)2 << 20)

size_t weir__memory_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *align_up(void *p, size_t align)
{
    return (char *)p + (-(uintptr_t)p & (align - 1));
}

int weir__memory_get(struct weir__memory *memory, const struct weir_allocator *allocator, size_t size, size_t align,
                     int shared)
{
    memset(memory, 0, sizeof *memory);
    memory->size = size;
    memory->mapped = shared || !allocator || !allocator->alloc;
    if (memory->mapped && size >= HUGE_PAGE && align < HUGE_PAGE)
        align = HUGE_PAGE;
    if (size > SIZE_MAX - align)
        return WEIR_E_NOMEM;
    memory->raw_size = size + align;
    if (memory->mapped) {
        memory->raw = mmap(NULL, memory->raw_size, PROT_READ | PROT_WRITE,
                           (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory->raw == MAP_FAILED)
            return WEIR_E_NOMEM;
        memory->base = align_up(memory->raw, align);
    } else {
        memory->raw = allocator->alloc(allocator->arg, memory->raw_size);
        if (!memory->raw)
            return WEIR_E_NOMEM;
        memory->base = align_up(memory->raw, align);
        memset(memory->base, 0, size);
    }
    return 0;
}

void weir__memory_put(struct weir__memory *memory, const struct weir_allocator *allocator)
{
    if (!memory->base)
        return;
    if (memory->mapped)
        munmap(memory->raw, memory->raw_size);
    else
        allocator->release(allocator->arg, memory->raw, memory->raw_size);
    memory->base = NULL;
}

void weir__memory_fault_in(void *start, size_t size)
{
    size_t page = weir__memory_page();
    char *first = align_up(start, page);
    char *end = (char *)start + size;
    size_t whole = end > first ? (size_t)(end - first) / page * page : 0;

    if (whole == 0)
        return;
#ifdef MADV_HUGEPAGE
    if (whole >= HUGE_PAGE)
        madvise(first, whole, MADV_HUGEPAGE);
#endif
#ifdef MADV_POPULATE_WRITE
    if (madvise(first, whole, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (size_t i = 0; i < whole; i += page)
        *(volatile char *)(first + i) = 0;
}

int weir__memory_wipe_on_fork(void *pages, size_t size, int on)
{
#if defined(MADV_WIPEONFORK)
    return madvise(pages, size, on ? MADV_WIPEONFORK : MADV_KEEPONFORK) == 0 ? 0 : WEIR_E_NOSUP;
#elif defined(INHERIT_ZERO)
    return minherit(pages, size, on ? INHERIT_ZERO : INHERIT_COPY) == 0 ? 0 : WEIR_E_NOSUP;
#elif defined(VM_INHERIT_ZERO)
    return minherit(pages, size, on ? VM_INHERIT_ZERO : VM_INHERIT_COPY) == 0 ? 0 : WEIR_E_NOSUP;
#else
    (void)pages;
    (void)size;
    return on ? WEIR_E_NOSUP : 0;
#endif
}
