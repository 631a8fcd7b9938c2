/* SPDX-License-Identifier: MIT */
/*
 * Verifying the time-stamp counter and keeping it at CLOCK_MONOTONIC's pace. The hot path is in the header.
 */
#include "lib/clock.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define NS_A_SECOND UINT64_C(1000000000)
#define LEARN_NS UINT64_C(5000000)       /* to know the frequency to some 20 millionths */
#define FIRST_SPAN_NS UINT64_C(50000000) /* doubled at each check, up to a second */
#define WRONG_NS UINT64_C(1000000) /* ahead by more than this and WRONG_PPM of the time since: not the same clock */
#define WRONG_PPM 300
#define WRONG_MAX 3 /* in a row: the counter is given up */
#define SLEW_PPM 1000
#define CLOSE_SHIFT 13 /* readings are from one moment if they are closer than 2^-13 of the time since the last */

/* The kernel has compared all CPUs' counters: where it took another source for its own clock than the counter or a
 * hypervisor's page over it, the counter isn't trusted. */
static bool kernel_trusts_counter(void)
{
#if defined(__linux__)
    static const char *const good[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter"};
    char name[64];
    ssize_t n = -1;
    int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return true;
    n = read(fd, name, sizeof name - 1);
    close(fd);
    if (n <= 0)
        return true;
    name[n] = '\0';
    name[strcspn(name, "\n")] = '\0';
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (strcmp(name, good[i]) == 0)
            return true;
    }
    return false;
#else
    return true;
#endif
}

static bool counter_is_invariant(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;

    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8) != 0 && kernel_trusts_counter();
#elif defined(__aarch64__)
    return kernel_trusts_counter();
#else
    return false;
#endif
}

/* Counter and CLOCK_MONOTONIC at one moment: the closest of a few tries. The counter is read first, so that what
 * follows from the pair is never behind. Returns how many steps of the counter they are apart at most: many, where the
 * thread was stopped in each try, as by a debugger that goes instruction by instruction. */
static uint64_t read_both(uint64_t *base, uint64_t *ns)
{
    uint64_t best = UINT64_MAX;

    *base = 0;
    *ns = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t before = weir__clock_counter();
        uint64_t now = weir__clock_monotonic();
        uint64_t took = weir__clock_counter() - before;

        if (took < best) {
            best = took;
            *base = before;
            *ns = now;
        }
    }
    return best;
}

static void publish(struct weir__clock *clock, uint64_t base, uint64_t ns, uint64_t mult, uint64_t span)
{
    uint32_t seq = weir__load_relaxed(&clock->seq);
    struct weir__anchor *anchor = &clock->anchor[seq & WEIR__CLOCK_STEP ? 0 : 1];

    /* Readers of the anchor in force don't look here; one that slept since the last but one sees seq change. */
    weir__store_release(&anchor->span, span);
    weir__store_release(&anchor->mult, mult);
    weir__store_release(&anchor->ns, ns);
    weir__store_release(&anchor->base, base);
    weir__store_release(&clock->seq, seq + WEIR__CLOCK_STEP);
}

/* The anchor in force at `base`, whatever its span. */
static uint64_t extend(const struct weir__clock *clock, uint64_t base)
{
    for (;;) {
        uint32_t seq = weir__load_acquire(&clock->seq);
        const struct weir__anchor *anchor = weir__clock_anchor(clock, seq);
        uint64_t mult = weir__load_acquire(&anchor->mult);
        uint64_t ns = weir__load_acquire(&anchor->ns);
        int64_t gone = (int64_t)(base - weir__load_acquire(&anchor->base));

        /* negative: this CPU's counter is a little behind that of the one that re-anchored */
        if (gone > 0)
            ns += (uint64_t)((weir__u128)(uint64_t)gone * mult >> 32);
        if (weir__load_relaxed(&clock->seq) == seq)
            return ns;
    }
}

static void give_up(struct weir__clock *clock, uint64_t ahead)
{
    weir__store_relaxed(&clock->offset, ahead);
    weir__store_release(&clock->source, WEIR__CLOCK_SYSTEM);
    publish(clock, 0, 0, 0, 0);
}

/* ns << 32 a step; 0 where the readings make no sense: the counter stands, has begun anew, or is far too slow. */
static uint64_t slope(uint64_t steps, uint64_t ns)
{
    weir__u128 mult = (int64_t)steps <= 0 ? 0 : ((weir__u128)ns << 32) / steps;

    return mult >> 42 ? 0 : (uint64_t)mult; /* 1 MHz at least */
}

static uint64_t steps_of(uint64_t ns, uint64_t mult)
{
    return (uint64_t)(((weir__u128)ns << 32) / mult);
}

static void note_seen(struct weir__clock *clock, uint64_t base, uint64_t ns, uint64_t took)
{
    clock->seen_base = base;
    clock->seen_ns = ns;
    clock->seen_took = took;
}

static void learn(struct weir__clock *clock, uint64_t base, uint64_t ns, uint64_t took)
{
    uint64_t mult = slope(base - clock->seen_base, ns - clock->seen_ns);

    if (mult == 0) {
        give_up(clock, 0);
        return;
    }
    note_seen(clock, base, ns, took);
    publish(clock, base, ns, mult, steps_of(FIRST_SPAN_NS, mult));
    weir__store_release(&clock->source, WEIR__CLOCK_COUNTER);
}

void weir__clock_check(struct weir__clock *clock, uint64_t base, uint64_t ns, uint64_t took)
{
    uint64_t source = weir__load_relaxed(&clock->source);
    uint64_t old = weir__load_relaxed(&weir__clock_anchor(clock, weir__load_relaxed(&clock->seq))->mult);
    uint64_t since = ns - clock->seen_ns;
    uint64_t mult = slope(base - clock->seen_base, since);
    uint64_t offset = weir__load_relaxed(&clock->offset);
    uint64_t said, span;
    int64_t ahead;

    /* Else a clock is made that runs ahead, by as much as the thread was stopped for. */
    if (took + clock->seen_took > (base - clock->seen_base) >> CLOSE_SHIFT)
        return;
    if (source == WEIR__CLOCK_LEARNING)
        learn(clock, base, ns, took);
    if (source != WEIR__CLOCK_COUNTER)
        return;

    said = extend(clock, base);
    ahead = (int64_t)(said - (ns + offset));
    note_seen(clock, base, ns, took);
    if (mult == 0 || ahead > (int64_t)(WRONG_NS + since / 1000000 * WRONG_PPM)) {
        /* A suspend, which CLOCK_MONOTONIC didn't see, or a counter that can't be used: told apart by repetition. */
        offset += ahead > 0 ? (uint64_t)ahead : 0;
        if (mult == 0 || ++clock->wrong >= WRONG_MAX) {
            give_up(clock, offset);
            return;
        }
        weir__store_relaxed(&clock->offset, offset);
        publish(clock, base, said, old, steps_of(FIRST_SPAN_NS, old));
        return;
    }
    clock->wrong = 0;
    span = clock->steps < 4 ? FIRST_SPAN_NS << ++clock->steps : NS_A_SECOND;
    if (ahead > 0) {
        uint64_t slew = mult / 1000000 * SLEW_PPM;
        uint64_t wanted = (uint64_t)((weir__u128)mult * (uint64_t)ahead / span);

        publish(clock, base, said, mult - (wanted < slew ? wanted : slew), steps_of(span, mult));
    } else {
        publish(clock, base, ns + offset, mult, steps_of(span, mult));
    }
}

static bool enter(struct weir__clock *clock)
{
    uint32_t self = (uint32_t)getpid();
    uint32_t holder = 0;

    if (atomic_compare_exchange_strong_explicit(&clock->busy, &holder, self, memory_order_acquire,
                                                memory_order_relaxed))
        return true;
    /* Another process' number: held across a fork by a thread that the child doesn't have. */
    return holder != self && atomic_compare_exchange_strong_explicit(&clock->busy, &holder, self, memory_order_acquire,
                                                                     memory_order_relaxed);
}

uint64_t weir__clock_overdue(struct weir__clock *clock)
{
    uint64_t base, ns, took;

    if (weir__load_acquire(&clock->source) != WEIR__CLOCK_SYSTEM && enter(clock)) {
        ns = weir__clock_monotonic();
        if (weir__load_relaxed(&clock->source) == WEIR__CLOCK_COUNTER || ns - clock->seen_ns >= LEARN_NS) {
            took = read_both(&base, &ns);
            weir__clock_check(clock, base, ns, took);
        }
        weir__store_release(&clock->busy, 0);
    }
    if (weir__load_acquire(&clock->source) == WEIR__CLOCK_COUNTER)
        return extend(clock, weir__clock_counter());
    return weir__clock_monotonic() + weir__load_relaxed(&clock->offset);
}

void weir__clock_init(struct weir__clock *clock, int use_counter)
{
    memset(clock, 0, sizeof *clock);
    if (!use_counter || !counter_is_invariant())
        return;
    clock->seen_took = read_both(&clock->seen_base, &clock->seen_ns);
    weir__store_relaxed(&clock->source, WEIR__CLOCK_LEARNING);
}
