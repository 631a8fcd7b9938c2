/* SPDX-License-Identifier: MIT */
/*
 * Intents of processes that share a limiter, and recovery from those that were killed.
 */
#include "lib/intent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/arena.h"
#include "lib/hybrid.h"
#include "lib/table.h"

/* A process: its id in 22 bits, its start time (clock ticks since boot; 0: unknown) in 42. */
#define START_BITS 42
#define START_MASK ((UINT64_C(1) << START_BITS) - 1)

/* An intent: slot + 1 (0 for WEIR__NO_SLOT) in 32 bits, what it intends above. Never 0. */
#define KIND_SHIFT 32
#define SOME (UINT64_C(1) << 40)

#define PATIENCE_NS UINT64_C(20000000) /* for the living to finish, before keys are counted */
#define NAP_NS 200000

/* How many intents this thread has: with one it waits for nobody. */
static _Thread_local unsigned depth;

/* ---- processes --------------------------------------------------------------------------------------------------- */

static pid_t pid_in(uint64_t process)
{
    return (pid_t)(process >> START_BITS);
}

enum life { DEAD, ALIVE, UNKNOWN };

/* What /proc says of it, and when it began. A zombie is dead, unless only its first thread is. */
static enum life look_up(pid_t pid, uint64_t *began)
{
    char path[32], text[1024], *rest, state;
    unsigned long long start;
    long threads;
    ssize_t n;
    int fd;

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UNKNOWN;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return n < 0 && errno == ESRCH ? DEAD : UNKNOWN;
    text[n] = '\0';
    rest = strrchr(text, ')'); /* the name before it may hold anything */
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                        &state, &threads, &start) != 3)
        return UNKNOWN;
    *began = start & START_MASK;
    return (state == 'Z' || state == 'X') && threads <= 1 ? DEAD : ALIVE;
}

bool weir__intent_is_alive(uint64_t process)
{
    int kept = errno;
    uint64_t began;
    enum life life = DEAD;

    if (kill(pid_in(process), 0) == 0 || errno != ESRCH) {
        life = look_up(pid_in(process), &began);
        /* it may have ended in between */
        if (life == UNKNOWN && kill(pid_in(process), 0) != 0 && errno == ESRCH)
            life = DEAD;
        if (life == ALIVE && (process & START_MASK) != 0 && (process & START_MASK) != began)
            life = DEAD; /* another one has its number */
    }
    errno = kept;
    return life != DEAD;
}

uint64_t weir__intent_self(struct weir *w)
{
    uint64_t known = weir__load_relaxed(&w->process), began = 0;
    pid_t self = getpid();

    /* in a child of fork it is the parent's */
    if (pid_in(known) == self)
        return known;
    if (look_up(self, &began) != ALIVE)
        began = 0;
    known = (uint64_t)self << START_BITS | began;
    weir__store_relaxed(&w->process, known);
    return known;
}

/* ---- intents ----------------------------------------------------------------------------------------------------- */

/* WEIR__NO_SLOT + 1 is 0 */
static uint64_t name(uint32_t slot, unsigned intent)
{
    return SOME | (uint64_t)intent << KIND_SHIFT | (uint32_t)(slot + 1);
}

static bool names(uint64_t what, uint32_t slot)
{
    return what != 0 && (uint32_t)what == (uint32_t)(slot + 1);
}

static unsigned kind_in(uint64_t what)
{
    return (unsigned)(what >> KIND_SHIFT & 3);
}

static struct weir__place *place_at(struct weir *w, uint32_t slot, unsigned i)
{
    return &w->state->intents[(slot + i) % WEIR__INTENTS];
}

static struct weir__place *take_place(struct weir *w, uint32_t slot, uint64_t self, unsigned within)
{
    for (unsigned i = 0; i < within; i++) {
        struct weir__place *place = place_at(w, slot, i);
        uint64_t nobody = 0;

        if (weir__load_relaxed(&place->process) == 0 &&
            atomic_compare_exchange_strong_explicit(&place->process, &nobody, self, memory_order_seq_cst,
                                                    memory_order_relaxed))
            return place;
    }
    return NULL;
}

void weir__intent_note(struct weir *w, uint32_t slot, enum weir__intent intent)
{
    uint64_t self = weir__intent_self(w);
    struct weir__place *place;
    unsigned turns = 0;

    /* those without a slot spread by process, as the others do by slot */
    uint32_t from = slot == WEIR__NO_SLOT ? (uint32_t)pid_in(self) * 7 : slot;

    for (;; weir__intent_wait(w, &turns)) {
        /* who has no intent yet leaves room for those who have, and can't look for the dead */
        place = take_place(w, from, self, depth > 0 ? WEIR__INTENTS : WEIR__INTENTS / 2);
        if (!place)
            continue;
        /* seq_cst: the place was taken before this look; who counts keys pauses the others first and then looks at the
         * places */
        if (depth > 0 || !atomic_load_explicit(&w->state->paused, memory_order_seq_cst))
            break;
        weir__store_release(&place->process, 0);
    }
    /* seq_cst: before the lock bit or the tag is taken */
    atomic_store_explicit(&place->what, name(slot, intent), memory_order_seq_cst);
    depth++;
}

/* Of several of this process the least goes first: what stays may be taken for another thread's, and more than it
 * intends does no harm. */
static struct weir__place *find_own(struct weir *w, uint32_t slot, uint64_t self, uint64_t *what)
{
    uint32_t from = slot == WEIR__NO_SLOT ? (uint32_t)pid_in(self) * 7 : slot;
    struct weir__place *found = NULL;

    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        struct weir__place *place = place_at(w, from, i);
        uint64_t seen = weir__load_relaxed(&place->what);

        if (!names(seen, slot) || weir__load_relaxed(&place->process) != self)
            continue;
        if (!found || kind_in(seen) < kind_in(*what)) {
            found = place;
            *what = seen;
        }
        if (kind_in(seen) == 0)
            break;
    }
    return found;
}

void weir__intent_done(struct weir *w, uint32_t slot)
{
    uint64_t self = weir__intent_self(w), what = 0;
    struct weir__place *place;

    /* another thread of this process may have taken that one back meanwhile: then there is its own */
    do
        place = find_own(w, slot, self, &what);
    while (place && !atomic_compare_exchange_strong_explicit(&place->what, &what, 0, memory_order_release,
                                                             memory_order_relaxed));
    if (place)
        weir__store_release(&place->process, 0);
    depth--;
}

bool weir__intent_is_at(struct weir *w, uint32_t slot)
{
    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        struct weir__place *place = &w->state->intents[i];

        if (names(atomic_load_explicit(&place->what, memory_order_seq_cst), slot)) {
            uint64_t process = atomic_load_explicit(&place->process, memory_order_seq_cst);

            if (process != 0 && weir__intent_is_alive(process))
                return true;
        }
    }
    return false;
}

/* ---- what the dead have left ------------------------------------------------------------------------------------- */

/* Locked, its numbers half written. It keeps its key and what is pinned of it, and holds nothing. */
static void empty(struct weir *w, struct weir__hot *e, uint64_t x)
{
    uint32_t slot = weir__slot_of(w, e);
    const struct weir__policy_state *p = &w->policies[weir__load_relaxed(&e->policy)];
    unsigned current = weir__load_acquire(&p->current);
    uint64_t now = weir_now(w), touched = weir__load_relaxed(&e->touched), next = (x & ~WEIR__LOCK) + WEIR__STEP;

    if (now < touched)
        now = touched;
    if (weir__load_acquire(&p->mode) != WEIR_LOCAL && atomic_load_explicit(&w->state->attached, memory_order_seq_cst)) {
        next = weir__hybrid_forget(w, slot, x & ~WEIR__LOCK, now);
    } else {
        weir__store_release(&e->regime, WEIR__LOCAL);
        weir__store_release(&e->k, weir__load_acquire(&p->slot_k[current]));
        weir__store_release(
            &e->f,
            ((weir__bucket_refill(now, weir__load_acquire(&p->slot[current].mult)) - next) & WEIR__UNITS) | current);
        weir__table_touch(e, now);
        weir__store_relaxed(&w->cold[slot].base, next);
        weir__store_relaxed(&w->cold[slot].returned, 0);
        weir__store_relaxed(&w->cold[slot].refunded, 0);
    }
    weir__store_release(&e->x, next & ~WEIR__LOCK);
}

/* The f of a share goes with the next x (lib/hybrid.c, fall); the one before with this. */
static void end_fall(struct weir *w, struct weir__hot *e, uint64_t x)
{
    if (weir__load_relaxed(&e->f) & WEIR__FALL)
        weir__store_release(&e->x, (x & ~WEIR__LOCK) + WEIR__STEP);
    else
        weir__table_step(w, e, x);
}

/* The most that any dead process intended with an entry. */
static unsigned worst_of(struct weir *w, uint32_t slot)
{
    unsigned worst = 0;

    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        uint64_t what = weir__load_acquire(&w->state->intents[i].what);

        if (names(what, slot) && kind_in(what) > worst)
            worst = kind_in(what);
    }
    return worst;
}

/* Returns false where a living process is at it, or comes to it just now. */
static bool put_right(struct weir *w, uint32_t slot)
{
    struct weir__hot *e = &w->hot[slot];
    const struct weir__tags *tags = &w->tags[slot / WEIR__WAYS];
    uint64_t x = atomic_load_explicit(&e->x, memory_order_seq_cst), word, id0;

    word = atomic_load_explicit(&tags->word[slot % WEIR__WAYS >> 3], memory_order_seq_cst);
    id0 = atomic_load_explicit(&e->id[0], memory_order_seq_cst);
    /* Who holds it said so before and takes it back after, and changes x when it ends. Nobody alive says so now, and x
     * has not changed meanwhile: so if it is held, its holder is dead; and nobody else can take hold of it. */
    if (weir__intent_is_at(w, slot) || atomic_load_explicit(&e->x, memory_order_seq_cst) != x)
        return false;
    if ((uint8_t)(word >> 8 * (slot % WEIR__WAYS & 7)) != 0 && id0 == 0) {
        weir__table_abandon(w, e);
    } else if (x & WEIR__LOCK) {
        switch (worst_of(w, slot)) {
        case WEIR__INTENT_DROP: weir__table_step(w, e, x); break;
        case WEIR__INTENT_FALL: end_fall(w, e, x); break;
        default: empty(w, e, x); break;
        }
    }
    return true;
}

static uint64_t count_keys(const struct weir *w)
{
    uint64_t counted = 0;

    for (uint64_t set = 0; set < w->sets; set++)
        for (unsigned way = 0; way < WEIR__WAYS; way++)
            counted += (uint8_t)(weir__load_relaxed(&w->tags[set].word[way >> 3]) >> 8 * (way & 7)) != 0;
    return counted;
}

/* Has a living process an intent? Then keys may come and go. */
static bool is_quiet(struct weir *w)
{
    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        uint64_t process = atomic_load_explicit(&w->state->intents[i].process, memory_order_seq_cst);

        if (process != 0 && weir__intent_is_alive(process))
            return false;
    }
    return true;
}

static uint64_t nap(void)
{
    struct timespec t = {.tv_nsec = NAP_NS};

    nanosleep(&t, NULL);
    return weir__clock_monotonic();
}

/* The number of keys and the arena, of which nobody can tell what a dead process had done to them. False: the living
 * did not come to an end; later. */
static bool recount(struct weir *w)
{
    uint64_t end = weir__clock_monotonic() + PATIENCE_NS;
    bool quiet;

    atomic_store_explicit(&w->state->paused, 1, memory_order_seq_cst);
    do
        quiet = is_quiet(w);
    while (!quiet && nap() < end);
    if (quiet) {
        weir__store_relaxed(&w->state->keys, count_keys(w));
        weir__table_mend_arena(w);
    }
    atomic_store_explicit(&w->state->paused, 0, memory_order_seq_cst);
    return quiet;
}

static void recover(struct weir *w)
{
    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        struct weir__place *place = &w->state->intents[i];
        uint64_t process = weir__load_acquire(&place->process), what;

        if (process == 0 || weir__intent_is_alive(process))
            continue;
        what = weir__load_acquire(&place->what);
        if ((uint32_t)what != 0 && !put_right(w, (uint32_t)what - 1))
            continue;
        /* before the place is free: if this process dies as well, the next one counts */
        weir__store_release(&w->state->miscounted, 1);
        weir__store_release(&place->what, 0);
        weir__store_release(&place->process, 0);
    }
    if (weir__load_acquire(&w->state->miscounted) && recount(w))
        weir__store_release(&w->state->miscounted, 0);
}

void weir__intent_recover(struct weir *w)
{
    /* One that was killed here has left nothing that is not found anew, but the others waiting. */
    if (depth > 0 || !weir__lock_try(&w->state->recover_lock))
        return;
    atomic_store_explicit(&w->state->paused, 0, memory_order_seq_cst);
    recover(w);
    weir__unlock(&w->state->recover_lock);
}

void weir__intent_wait_long(struct weir *w, unsigned turns)
{
    (void)turns;
    weir__intent_recover(w);
    nap();
}
