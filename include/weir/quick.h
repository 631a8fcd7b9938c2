/* SPDX-License-Identifier: MIT */
/*
 * The usual take by handle, compiled into its caller: weir/weir.h includes this, nobody else should. An ordinary take
 * of a local policy at the caller's time, without a result, is decided here; everything else is left to the function
 * of the library, which decides the same. A call through a shared library costs more than the decision.
 *
 * What has a name that ends in _ is not to be used: its layout is the library's, and changes with its soname alone.
 * -DWEIR_NO_INLINE leaves all of it out.
 *
 * docs/memory-model.md says why the orders here are enough (Q).
 */
#ifndef WEIR_QUICK_H
#define WEIR_QUICK_H

#include <weir/weir.h>

#if defined(__GNUC__) && defined(__SIZEOF_INT128__)
#define WEIR_QUICK_ 1
#else
#define WEIR_QUICK_ 0
#endif

#if WEIR_QUICK_

#ifdef __cplusplus
extern "C" {
#endif

/* Where this thread counts its verdicts, bytes from the first counters; SIZE_MAX: not known yet. Written by the library
 * alone. */
#if defined(__ELF__)
#define WEIR_THREAD_ __thread __attribute__((tls_model("initial-exec")))
#else
#define WEIR_THREAD_ __thread
#endif
extern WEIR_API WEIR_THREAD_ size_t weir_stripe_;

/* The library has other names for the same memory: neither compiler may think that they are apart, whole program
 * optimization or not. */
#define WEIR_SHARED_ __attribute__((may_alias))

/* A bucket: what was ever spent, bit 0: locked; what was ever forfeited, bit 0: a choice; 2^-k tokens both. */
struct WEIR_SHARED_ weir_bucket_ {
    uint64_t x, f, other[4], touched, leased;
};

/* Of the limiter; all 0 in a child after fork, where a sync had started. */
struct WEIR_SHARED_ weir_gate_ {
    uint64_t stripes; /* bytes of counters that threads own */
    uint64_t changes; /* by weir_policy_set: even; odd while one is at work */
};

/* What one thread may spend without asking, from `leases` as its counters from `counts`. */
struct WEIR_SHARED_ weir_lease_ {
    int64_t tokens;   /* or fewer than none: another thread has taken them back */
    uint64_t changes; /* when it was filled */
    uint64_t busy;    /* where one step of spending is several instructions: its thread is at it */
    uint64_t other[5];
};

/* How a handle begins. */
struct weir_quick_ {
    const struct weir_gate_ *gate;
    char *counts;                /* of the policy, in the first stripe: allowed, denied */
    struct weir_bucket_ *bucket; /* or one that is locked for ever: look for leases, or ask the library */
    uint64_t empty_x;            /* while the bucket has this x ... */
    uint64_t empty_until;        /* ... it has no whole token before then, ns */
    uint64_t changes;            /* for which what follows is true */
    uint64_t mult;               /* units a ns << 48 */
    uint64_t level;              /* units: above it, look for leases, or the cap */
    uint64_t most;               /* tokens: the burst; 0: nothing of this is to be used */
    uint64_t unit;               /* units of a token; or more than any bucket holds */
    size_t stripes;              /* as the gate says */
    char *leases;                /* NULL until threads were in each other's way */
};

#define WEIR_LEASE_STEP_ 256u             /* bytes of counters for a byte of leases */
#define WEIR_LEASE_MOST_ INT64_C(1 << 30) /* tokens of one; a cost of more is not taken from it */
#define WEIR_LEASE_GONE_ (INT64_MIN / 2)  /* tokens of one that was taken back; a cost less where one is refused */
#define WEIR_UNDECIDED_ (-1000)           /* nothing was done: ask the library */

/* Never compiled as a function of its own: where one is needed it is the library's. */
#define WEIR_INLINE_ extern __inline __attribute__((gnu_inline, always_inline))
#define WEIR_ONE_(cost) (__builtin_constant_p(cost) && (cost) == 1)
#define WEIR_RARE_(c) __builtin_expect(!!(c), 0)
__extension__ typedef unsigned __int128 weir_u128_;

/* In memory that this thread alone writes one instruction is quicker than two. */
#if defined(WEIR_NO_RMW_) /* for tests of what other machines do */
#define WEIR_RMW_ 0
#elif defined(__x86_64__) && defined(__GCC_ASM_FLAG_OUTPUTS__) && !defined(__SANITIZE_THREAD__)
#define WEIR_RMW_ 1
#else
#define WEIR_RMW_ 0
#endif
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) /* it can't see through assembly */
#undef WEIR_RMW_
#define WEIR_RMW_ 0
#endif
#endif

/* One more verdict; the stripe is this thread's own. counts: of the policy, in the first stripe. */
WEIR_INLINE_ void weir_count_(char *counts, size_t stripe, int verdict)
{
    uint64_t *count = (uint64_t *)(void *)(counts + stripe) + verdict;

#if WEIR_RMW_
    __asm__("addq $1, %0" : "+m"(*count) : : "cc");
#else
    __atomic_store_n(count, __atomic_load_n(count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
#endif
}

/* False: there are fewer, and nothing was done. Another thread that wants the tokens back passes all threads through a
 * barrier (membarrier): it must find this done or not begun, which is one instruction, or is announced. */
WEIR_INLINE_ int weir_lease_spend_(struct weir_lease_ *lease, int64_t cost)
{
    int fewer;

#if WEIR_RMW_
    __asm__("subq %2, %0" : "+m"(lease->tokens), "=@ccl"(fewer) : "er"(cost));
    if (WEIR_RARE_(fewer))
        __asm__("addq %1, %0" : "+m"(lease->tokens) : "er"(cost) : "cc");
#else
    int64_t tokens;

    __atomic_store_n(&lease->busy, 1, __ATOMIC_RELAXED);
    /* before what follows, for the other thread's barrier: the compiler alone must keep the order */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    tokens = __atomic_load_n(&lease->tokens, __ATOMIC_RELAXED);
    fewer = tokens < cost;
    if (!WEIR_RARE_(fewer))
        __atomic_store_n(&lease->tokens, tokens - cost, __ATOMIC_RELAXED);
    /* release: whoever finds this finds what was spent */
    __atomic_store_n(&lease->busy, 0, __ATOMIC_RELEASE);
#endif
    return !fewer;
}

/* From this thread's lease, if there are leases. */
WEIR_INLINE_ int weir_take_lease_(struct weir_quick_ *q, char *leases, int64_t cost)
{
    size_t stripe = weir_stripe_;
    struct weir_lease_ *lease;

    if (!leases || WEIR_RARE_(stripe >= q->stripes))
        return WEIR_UNDECIDED_;
    lease = (struct weir_lease_ *)(void *)(leases + stripe / WEIR_LEASE_STEP_);
    if (WEIR_RARE_((uint64_t)cost - 1 >= (uint64_t)WEIR_LEASE_MOST_) ||
        WEIR_RARE_(__atomic_load_n(&q->gate->changes, __ATOMIC_ACQUIRE) != lease->changes) ||
        WEIR_RARE_(!weir_lease_spend_(lease, cost)))
        return WEIR_UNDECIDED_;
    weir_count_(q->counts, stripe, 0);
    return 0;
}

/* From the bucket, whose x was loaded with acquire. again: now may well be that of the last take too. WEIR_ALLOW or
 * WEIR_UNDECIDED_. */
WEIR_INLINE_ int weir_take_bucket_(struct weir_quick_ *q, struct weir_bucket_ *bucket, uint64_t x, int64_t cost,
                                   uint64_t now, int again)
{
    uint64_t changes = __atomic_load_n(&q->changes, __ATOMIC_ACQUIRE), units;
    uint64_t refill = (uint64_t)((weir_u128_)now * __atomic_load_n(&q->mult, __ATOMIC_ACQUIRE) >> 48);
    /* Its two lowest bits are noise, whatever they are; what it is compared with has none. */
    int64_t level = (int64_t)(refill - x - __atomic_load_n(&bucket->f, __ATOMIC_ACQUIRE));
    uint64_t touched = __atomic_load_n(&bucket->touched, __ATOMIC_ACQUIRE);
    size_t stripe;

    if (WEIR_RARE_(now < touched) || WEIR_RARE_(level > (int64_t)__atomic_load_n(&q->level, __ATOMIC_ACQUIRE)))
        return WEIR_UNDECIDED_;
    units = (uint64_t)cost * __atomic_load_n(&q->unit, __ATOMIC_ACQUIRE);
    if (WEIR_RARE_(level < (int64_t)units) ||
        (!WEIR_ONE_(cost) && WEIR_RARE_((uint64_t)cost - 1 >= __atomic_load_n(&q->most, __ATOMIC_ACQUIRE))) ||
        WEIR_RARE_(changes != __atomic_load_n(&q->gate->changes, __ATOMIC_ACQUIRE)))
        return WEIR_UNDECIDED_;
    stripe = weir_stripe_;
    if (WEIR_RARE_(stripe >= q->stripes) ||
        WEIR_RARE_(!__atomic_compare_exchange_n(&bucket->x, &x, x + units, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)))
        return WEIR_UNDECIDED_;
    if (!again || now != touched)
        __atomic_store_n(&bucket->touched, now, __ATOMIC_RELAXED);
    weir_count_(q->counts, stripe, 0);
    return 0;
}

/* What the bucket is known to be. WEIR_DENY or WEIR_UNDECIDED_. x: out, the bucket's: it is loaded after what was noted
 * of it. */
WEIR_INLINE_ int weir_take_empty_(struct weir_quick_ *q, struct weir_bucket_ *bucket, int64_t cost, uint64_t now,
                                  uint64_t *x)
{
    uint64_t empty_x = __atomic_load_n(&q->empty_x, __ATOMIC_ACQUIRE);
    uint64_t empty_until = __atomic_load_n(&q->empty_until, __ATOMIC_ACQUIRE);
    size_t stripe = weir_stripe_;

    *x = __atomic_load_n(&bucket->x, __ATOMIC_ACQUIRE);
    if (*x != empty_x || now >= empty_until || cost < 1 ||
        WEIR_RARE_(stripe >= __atomic_load_n(&q->gate->stripes, __ATOMIC_RELAXED)))
        return WEIR_UNDECIDED_;
    weir_count_(q->counts, stripe, 1);
    return 1;
}

/* WEIR_ALLOW, WEIR_DENY or WEIR_UNDECIDED_. now is not 0. */
WEIR_INLINE_ int weir_take_quick_(struct weir_quick_ *q, int64_t cost, uint64_t now)
{
    struct weir_bucket_ *bucket = __atomic_load_n(&q->bucket, __ATOMIC_ACQUIRE);
    uint64_t x;

    if (weir_take_empty_(q, bucket, cost, now, &x) == 1)
        return 1;
    if (WEIR_RARE_(x & 1))
        return weir_take_lease_(q, __atomic_load_n(&q->leases, __ATOMIC_ACQUIRE), cost);
    return weir_take_bucket_(q, bucket, x, cost, now, 1);
}

/* weir_key_take by the limiter's clock, without a result; of one token ... */
WEIR_API int weir_key_take_now_(struct weir_key *key, int64_t cost);
WEIR_API int weir_key_take_one_(struct weir_key *key);
/* ... and all that is left undecided here. */
WEIR_API int weir_key_ask_(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result);

#ifndef WEIR_NO_INLINE

WEIR_INLINE_ int weir_key_take(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result)
{
    struct weir_quick_ *q = (struct weir_quick_ *)(void *)key;
    char *leases;
    int verdict;

    if (WEIR_RARE_(!q) || WEIR_RARE_(result != NULL))
        return weir_key_ask_(key, cost, now_ns, result);
    if (__builtin_expect(now_ns != 0, 1)) {
        verdict = weir_take_quick_(q, cost, now_ns);
        return WEIR_RARE_(verdict == WEIR_UNDECIDED_) ? weir_key_ask_(key, cost, now_ns, NULL) : verdict;
    }
    leases = __atomic_load_n(&q->leases, __ATOMIC_ACQUIRE);
    if (leases) {
        verdict = weir_take_lease_(q, leases, cost);
        if (verdict != WEIR_UNDECIDED_)
            return verdict;
    }
    return WEIR_ONE_(cost) ? weir_key_take_one_(key) : weir_key_take_now_(key, cost);
}

#endif

#ifdef __cplusplus
}
#endif
#endif
#endif
