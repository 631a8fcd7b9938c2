/* SPDX-License-Identifier: MIT */
/*
 * The 16-byte compare-and-swap and short waits. Knows nothing of buckets or tables.
 *
 * A pair is two adjacent _Atomic uint64_t, 16-byte aligned. Its halves are read one by one (a 16-byte atomic load is a
 * locked operation itself): whoever needs both to belong together proves it with a CAS.
 *
 *   weir__cas16_state  {x, f} of an entry, where 8-byte CASes on x run at the same time. Bit 0 of x is its lock.
 *   weir__cas16        any other pair, written by weir__cas16 alone.
 *
 * Both: acquire on success and on failure, release on success; on failure the pair found is stored in *lo, *hi (torn,
 * perhaps: a hint for the next try). With x86-64's cmpxchg16b they are one instruction, and a full barrier.
 */
#ifndef WEIR_LIB_ATOMIC_H
#define WEIR_LIB_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define WEIR__TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEIR__TSAN 1
#endif
#endif

#define WEIR__LIKELY(c) __builtin_expect(!!(c), 1)
#define WEIR__UNLIKELY(c) __builtin_expect(!!(c), 0)
/* A branch that is nearly always foreseen stays one: v, which it changed, is then not waited for. */
#define WEIR__BRANCH(v) __asm__("" : "+r"(v))
#define WEIR__NOINLINE __attribute__((noinline))
#define WEIR__INLINE static inline __attribute__((always_inline))

__extension__ typedef unsigned __int128 weir__u128;
__extension__ typedef unsigned __int128 __attribute__((may_alias)) weir__u128_alias;

#define weir__load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define weir__load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define weir__store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define weir__store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)

/* ThreadSanitizer can't see through assembly, and what it has for 16 bytes is a lock of its own, which 8-byte swaps and
 * other processes know nothing of. */
#if defined(WEIR_PORTABLE_CAS) || defined(WEIR__TSAN)
#define WEIR__CAS16_NATIVE 0
#elif defined(__x86_64__) || defined(__aarch64__)
#define WEIR__CAS16_NATIVE 1
#else
#define WEIR__CAS16_NATIVE 0
#endif

#if WEIR__CAS16_NATIVE && defined(__x86_64__)

WEIR__INLINE bool weir__cas16(_Atomic uint64_t *pair, uint64_t *lo, uint64_t *hi, uint64_t new_lo, uint64_t new_hi)
{
    bool swapped;

    __asm__ volatile("lock cmpxchg16b %1"
                     : "=@ccz"(swapped), "+m"(*(weir__u128 *)(void *)pair), "+a"(*lo), "+d"(*hi)
                     : "b"(new_lo), "c"(new_hi)
                     : "memory");
    return swapped;
}

#elif WEIR__CAS16_NATIVE && defined(__aarch64__)

/* The compiler's, for it asks the processor: casp where that has LSE, else a load-exclusive pair and its store. (The
 * __atomic_ builtin of gcc would want libatomic.) A full barrier. */
WEIR__INLINE bool weir__cas16(_Atomic uint64_t *pair, uint64_t *lo, uint64_t *hi, uint64_t new_lo, uint64_t new_hi)
{
    weir__u128 want = (weir__u128)*hi << 64 | *lo;
    weir__u128 found =
        __sync_val_compare_and_swap((weir__u128_alias *)(void *)pair, want, (weir__u128)new_hi << 64 | new_lo);

    *lo = (uint64_t)found;
    *hi = (uint64_t)(found >> 64);
    return found == want;
}

#endif

#if WEIR__CAS16_NATIVE

#define weir__cas16_state weir__cas16

#else

/* No 16-byte CAS: a striped lock for the pairs that only weir__cas16 writes... */
bool weir__cas16(_Atomic uint64_t *pair, uint64_t *lo, uint64_t *hi, uint64_t new_lo, uint64_t new_hi);

/* ... and the lock bit of x itself for {x, f}: nobody spends between the new f and the new x. f needs no comparison,
 * for every write of it changes x. */
WEIR__INLINE bool weir__cas16_state(_Atomic uint64_t *pair, uint64_t *x, uint64_t *f, uint64_t new_x, uint64_t new_f)
{
    uint64_t found = *x;

    /* seq_cst, as cmpxchg16b is: a load that follows in the caller (of the dirty flag) comes after the lock bit, and
     * whoever meets that waits for the new x */
    if (!atomic_compare_exchange_strong_explicit(&pair[0], &found, *x | 1, memory_order_seq_cst,
                                                 memory_order_acquire)) {
        *x = found;
        *f = weir__load_relaxed(&pair[1]);
        return false;
    }
    weir__store_release(&pair[1], new_f); /* whoever meets it finds x locked or moved when he looks again */
    weir__store_release(&pair[0], new_x);
    return true;
}

#endif

WEIR__INLINE void weir__cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* One turn of waiting for another thread: a pause at first, the scheduler after a while. *turns starts at 0. */
void weir__backoff(unsigned *turns);

#endif
