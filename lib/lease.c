/* SPDX-License-Identifier: MIT */
/*
 * Leases: how much, when, and back. Spending is weir/quick.h's.
 */
#include "lib/lease.h"

#include <pthread.h>
#include <string.h>

#include "lib/fence.h"
#include "lib/take.h"

#define WINDOW_NS UINT64_C(100000) /* a lease is for so long */
#define FIRST_CHUNK 16u            /* tokens; less is not worth a lease */

#define LEASES (WEIR__STRIPES - 1)
#define CHAINS 64u
_Static_assert(CHAINS == WEIR__LEASE_CHAINS, "a time for each");
_Static_assert(LEASES <= 32, "a bit each");

/* All leases of a handle. */
struct lease_set {
    struct lease_set *next, **link; /* link: what points to this one; NULL: nothing does */
    const struct weir__ask *ask;
    struct weir__hot *e;
    void *memory;
    struct weir__lease lease[LEASES];
};

/* The sets of this process by their entry's slot, of all limiters. Whoever takes leases of others back holds `registry`
 * for as long; so it never waits for a lock of an entry's but while it gives back. Takers don't wait for it. */
static pthread_mutex_t registry = PTHREAD_MUTEX_INITIALIZER;
static struct lease_set *chains[CHAINS];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool may_lease;

static _Thread_local bool has_leased; /* this thread, since it has its stripe */

/* ---- who has some ------------------------------------------------------------------------------------------------ */

static void before_fork(void)
{
    pthread_mutex_lock(&registry);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&registry);
}

static void prepare_once(void)
{
    may_lease = weir__fence_open() && pthread_atfork(before_fork, after_fork, after_fork) == 0;
}

void weir__lease_prepare(void)
{
    pthread_once(&once, prepare_once);
}

static struct lease_set *set_of(struct weir__lease *leases)
{
    return (struct lease_set *)(void *)((char *)leases - offsetof(struct lease_set, lease));
}

static uint32_t chain_of(const struct weir *w, const struct weir__hot *e)
{
    return weir__slot_of(w, e) % CHAINS;
}

/* Under `registry`. */
static void unlink_set(struct lease_set *set)
{
    if (!set->link)
        return;
    *set->link = set->next;
    if (set->next)
        set->next->link = set->link;
    set->link = NULL;
}

struct weir__lease *weir__lease_open(const struct weir__ask *ask, struct weir__hot *e)
{
    const size_t size = sizeof(struct lease_set) + _Alignof(struct lease_set);
    struct lease_set *set, **chain = &chains[chain_of(ask->w, e)];
    void *memory;

    if (!may_lease)
        return NULL;
    memory = weir__limiter_alloc(ask->w, size);
    if (!memory)
        return NULL;
    set = (struct lease_set *)(((uintptr_t)memory + _Alignof(struct lease_set)) &
                               ~(uintptr_t)(_Alignof(struct lease_set) - 1));
    memset(set, 0, sizeof *set);
    set->ask = ask;
    set->e = e;
    set->memory = memory;
    if (!weir__lock_try(&registry)) {
        weir__limiter_free(ask->w, memory, size);
        return NULL;
    }
    set->next = *chain;
    set->link = chain;
    if (set->next)
        set->next->link = &set->next;
    *chain = set;
    weir__unlock(&registry);
    return set->lease;
}

void weir__lease_end_limiter(const struct weir *w)
{
    if (!may_lease)
        return;
    weir__lock(&registry);
    for (size_t i = 0; i < CHAINS; i++) {
        for (struct lease_set *set = chains[i], *next; set; set = next) {
            next = set->next;
            if (set->ask->w == w)
                unlink_set(set);
        }
    }
    weir__unlock(&registry);
}

/* ---- back -------------------------------------------------------------------------------------------------------- */

/* Its owner's slow steps, and whoever takes it back. */
static bool hold(struct weir__lease *lease)
{
    return atomic_exchange_explicit(&lease->lock, 1, memory_order_acquire) == 0;
}

static void let_go(struct weir__lease *lease)
{
    weir__store_release(&lease->lock, 0);
}

/* The bucket, cut off at what fits beside the leases, and then with tokens of this one besides. What else has come
 * while it was counted is cut off even where nothing is left of it: it would fit as soon as that is counted off,
 * besides what was spent. And where more is counted than there is room for, for the burst was larger, what is left of
 * it comes back as far as the bucket was clipped for it. False: not a local entry. */
static bool restore(struct weir *w, const struct weir__policy_state *p, struct weir__hot *e, uint64_t now,
                    uint64_t held, uint64_t tokens)
{
    unsigned turns = 0;

    for (;;) {
        uint64_t x = weir__load_acquire(&e->x), f = weir__load_acquire(&e->f), leased, room, fits, y;
        struct weir__verdict v;

        if (weir__load_acquire(&e->regime) != WEIR__LOCAL)
            return false;
        if (x & WEIR__LOCK) {
            weir__backoff(&turns);
            continue;
        }
        weir__decide_read(p, e, x, f, now, 0, &v);
        if (tokens == 0 && v.level <= (int64_t)v.clip && weir__load_acquire(&e->x) == x)
            return true;
        leased = weir__load_acquire(&e->leased);
        room = weir__lease_room(v.cap, v.k);
        fits = (leased < room ? leased : room) - (leased - held < room ? leased - held : room);
        if (fits > tokens)
            fits = tokens;
        if (v.level > (int64_t)v.clip)
            v.level = (int64_t)v.clip;
        v.level += (int64_t)(fits << v.k);
        y = x + WEIR__STEP;
        if (weir__cas16_state(&e->x, &x, &f, y,
                              ((weir__bucket_refill(v.now, v.mult) - y - (uint64_t)v.level) & WEIR__UNITS) |
                                  (f & ~WEIR__UNITS))) {
            weir__store_relaxed(&e->touched, v.now);
            atomic_fetch_add_explicit(&w->cold[weir__slot_of(w, e)].returned, WEIR__STEP, memory_order_relaxed);
            return true;
        }
    }
}

/* tokens: what is left of it, which nobody spends any more. Held, or nobody else is there. */
static void give_back(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now,
                      int64_t tokens)
{
    uint64_t held = weir__load_relaxed(&lease->held);

    if (held == 0)
        return;
    if (!restore(ask->w, ask->p, e, now, held, (uint64_t)tokens) && tokens > 0)
        weir__take_undo(ask, now, tokens);
    atomic_fetch_sub_explicit(&e->leased, held, memory_order_release);
    weir__store_relaxed(&lease->held, 0);
}

static bool is_gone(int64_t tokens)
{
    return tokens < WEIR_LEASE_GONE_ / 2;
}

/* By its owner, or where that takes no more. Who could not take it back has left GONE, and it is as it was. */
static void give_own_back(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now)
{
    int64_t tokens = weir__load_relaxed(&lease->tokens);

    if (is_gone(tokens))
        tokens = lease->aside;
    weir__store_relaxed(&lease->tokens, 0);
    give_back(lease, ask, e, now, tokens > 0 ? tokens : 0);
}

void weir__lease_close(struct weir__lease *leases, bool present)
{
    struct lease_set *set;
    struct weir *w;
    uint64_t now;

    if (!leases)
        return;
    set = set_of(leases);
    w = set->ask->w;
    weir__lock(&registry);
    unlink_set(set);
    weir__unlock(&registry);
    now = present ? weir__limiter_now(w) : 0;
    for (size_t i = 0; present && i < LEASES; i++)
        give_own_back(&set->lease[i], set->ask, set->e, now);
    weir__limiter_free(w, set->memory, sizeof *set + _Alignof(struct lease_set));
}

void weir__lease_end_thread(size_t stripe)
{
    if (!has_leased)
        return;
    has_leased = false;
    weir__lock(&registry);
    for (size_t i = 0; i < CHAINS; i++) {
        for (struct lease_set *set = chains[i]; set; set = set->next) {
            struct weir__lease *lease = weir__lease_own(set->lease, stripe);
            struct weir *w = set->ask->w;

            if (weir__load_relaxed(&lease->held) == 0 || !weir__load_acquire(&w->gate->alive) || !hold(lease))
                continue;
            give_own_back(lease, set->ask, set->e, weir__limiter_now(w));
            let_go(lease);
        }
    }
    weir__unlock(&registry);
}

/* ---- back from a thread that takes no more ----------------------------------------------------------------------- */

/* Its owner finds nothing in it, from the next barrier on: E in docs/memory-model.md. False: it is at it. */
static bool reach(struct weir__lease *lease)
{
    int64_t tokens = weir__load_relaxed(&lease->tokens);

    if (is_gone(tokens)) /* by one who could not take it: what is aside is still right */
        return true;
    lease->aside = tokens;
    return tokens >= 0 && atomic_compare_exchange_strong_explicit(&lease->tokens, &tokens, WEIR_LEASE_GONE_,
                                                                  memory_order_acq_rel, memory_order_relaxed);
}

/* After the barrier: is it ours? If not its owner has it, or will say at its next fill that it has not: nobody else can
 * write to `tokens` here, for the owner's one instruction may be at it. */
static bool grasp(struct weir__lease *lease)
{
    return !weir__load_acquire(&lease->busy) && is_gone(weir__load_acquire(&lease->tokens));
}

/* older_than: ns since it was filled; 0: whatever its age. True: something came back. */
static bool take_back(struct lease_set *set, uint64_t now, uint64_t older_than)
{
    uint32_t reached = 0;
    bool passed, some = false;

    for (size_t i = 0; i < LEASES; i++) {
        struct weir__lease *lease = &set->lease[i];

        if (weir__load_relaxed(&lease->held) == 0 ||
            (older_than > 0 && (int64_t)(now - weir__load_relaxed(&lease->since)) <= (int64_t)older_than) ||
            !hold(lease))
            continue;
        if (reach(lease))
            reached |= UINT32_C(1) << i;
        else
            let_go(lease);
    }
    if (reached == 0)
        return false;
    passed = weir__fence_all();
    for (size_t i = 0; i < LEASES; i++) {
        if (!(reached >> i & 1))
            continue;
        if (passed && grasp(&set->lease[i])) {
            give_back(&set->lease[i], set->ask, set->e, now, set->lease[i].aside);
            some = true;
        }
        let_go(&set->lease[i]);
    }
    return some;
}

WEIR__NOINLINE bool weir__lease_hunt(struct weir *w, struct weir__hot *e, uint64_t now)
{
    uint32_t chain = chain_of(w, e);
    uint64_t due = weir__load_relaxed(&w->lease_due[chain]);
    bool some = false;

    /* Further ahead than a look ever leaves it: time went back. */
    if (due - now - 1 < WEIR__LEASE_LOOK_NS || !weir__lock_try(&registry))
        return false;
    for (struct lease_set *set = chains[chain]; set; set = set->next) {
        if (set->ask->w == w && take_back(set, now, WEIR__LEASE_STALE_NS) && set->e == e)
            some = true;
    }
    weir__store_relaxed(&w->lease_due[chain], now + WEIR__LEASE_LOOK_NS);
    weir__unlock(&registry);
    return some;
}

void weir__lease_end_policy(struct weir *w, weir_policy_id policy, uint64_t now)
{
    if (!weir__load_relaxed(&w->policies[policy].leased))
        return;
    weir__lock(&registry);
    for (size_t i = 0; i < CHAINS; i++) {
        for (struct lease_set *set = chains[i]; set; set = set->next) {
            if (set->ask->w == w && set->ask->policy == policy)
                take_back(set, now, 0);
        }
    }
    weir__unlock(&registry);
}

/* ---- how much ---------------------------------------------------------------------------------------------------- */

uint64_t weir__lease_most(const struct weir__policy_state *p)
{
    unsigned slot = weir__load_acquire(&p->current);
    uint8_t k = weir__load_acquire(&p->slot_k[slot]);
    uint64_t refill = weir__bucket_refill(WINDOW_NS, weir__load_acquire(&p->slot[slot].mult)) >> k;
    uint64_t share = (weir__load_acquire(&p->slot[slot].cap) >> k) / 64;

    if (refill > share)
        refill = share;
    if (refill > WEIR_LEASE_MOST_)
        refill = WEIR_LEASE_MOST_;
    return refill < FIRST_CHUNK || weir__load_relaxed(&p->special) ? 0 : refill;
}

void weir__lease_want(struct weir__lease *lease, const struct weir__policy_state *p, uint64_t now)
{
    if (weir__lease_most(p) == 0)
        return;
    lease->chunk = FIRST_CHUNK;
    weir__store_relaxed(&lease->since, now);
}

/* By how fast the last one was spent. */
static void adapt(struct weir__lease *lease, uint64_t most, uint64_t now)
{
    if (now - weir__load_relaxed(&lease->since) < WINDOW_NS)
        lease->chunk *= 2;
    else
        lease->chunk /= 2;
    if (lease->chunk > most)
        lease->chunk = most;
    if (lease->chunk < FIRST_CHUNK)
        lease->chunk = 0;
    weir__store_relaxed(&lease->since, now);
}

/* As much as may be leased from what there is besides cost; and from the room that all leases have. */
static uint64_t affordable(const struct weir__lease *lease, const struct weir__policy_state *p, struct weir__hot *e,
                           uint64_t now, int64_t cost, uint64_t *room)
{
    uint64_t x = weir__load_acquire(&e->x), leased = weir__load_relaxed(&e->leased), want = lease->chunk, free;
    struct weir__verdict v;
    int64_t left;

    weir__decide_read(p, e, x, weir__load_acquire(&e->f), now, cost, &v);
    if (v.level > (int64_t)v.clip)
        v.level = (int64_t)v.clip;
    left = weir__bucket_tokens(v.level, v.k) - cost;
    *room = weir__lease_room(v.cap, v.k);
    free = *room > leased ? *room - leased : 0;
    if (left < 0)
        return 0;
    if (want > (uint64_t)left / 4)
        want = (uint64_t)left / 4;
    if (want > free)
        want = free;
    return want;
}

/* weir__decide_take for a lease that is counted already, and doesn't stand in its own way. */
static bool charge(const struct weir__policy_state *p, struct weir__hot *e, uint64_t now, int64_t cost, uint64_t want)
{
    for (;;) {
        uint64_t x = weir__load_acquire(&e->x), f = weir__load_acquire(&e->f), full;
        struct weir__verdict v;

        weir__decide_read(p, e, x, f, now, cost + (int64_t)want, &v);
        if (x & WEIR__LOCK || weir__load_acquire(&e->regime) != WEIR__LOCAL)
            return false;
        v.clip += want << v.k;
        if (v.clip > v.cap)
            v.clip = v.cap;
        full = weir__bucket_refill(v.now, v.mult) - v.clip - x;
        if ((v.level < (int64_t)v.clip ? v.level : (int64_t)v.clip) < (int64_t)v.units)
            return false;
        if (v.level <= (int64_t)v.clip
                ? atomic_compare_exchange_strong_explicit(&e->x, &x, x + v.units, memory_order_acq_rel,
                                                          memory_order_relaxed)
                : weir__cas16_state(&e->x, &x, &f, x + v.units, (full & WEIR__UNITS) | (f & ~WEIR__UNITS))) {
            weir__store_relaxed(&e->touched, v.now);
            return true;
        }
    }
}

/* More is never counted than there is room for, not even for a moment: what a lease that goes back is worth meanwhile
 * depends on it. Acquire and release: whoever meets the bucket meanwhile clips it too early, not too late. */
static bool count(struct weir__hot *e, uint64_t want, uint64_t room)
{
    uint64_t leased = weir__load_relaxed(&e->leased);

    do {
        if (leased + want > room)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&e->leased, &leased, leased + want, memory_order_acq_rel,
                                                    memory_order_relaxed));
    return true;
}

/* Held. */
static int fill(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now, int64_t cost)
{
    const struct weir__policy_state *p = ask->p;
    uint64_t want, room;

    give_own_back(lease, ask, e, now);
    lease->changes = weir__load_acquire(&ask->w->gate->changes);
    adapt(lease, weir__lease_most(p), now);
    if (lease->chunk == 0 || !weir__take_is_fast(p, cost))
        return WEIR__REKEYED;
    want = affordable(lease, p, e, now, cost, &room);
    if (want < FIRST_CHUNK || !count(e, want, room)) /* others have seen the same room */
        return WEIR__REKEYED;
    if (!charge(p, e, now, cost, want)) {
        atomic_fetch_sub_explicit(&e->leased, want, memory_order_relaxed);
        return WEIR__REKEYED;
    }
    weir__store_relaxed(&lease->held, want);
    weir__store_relaxed(&lease->tokens, (int64_t)want);
    return WEIR_ALLOW;
}

int weir__lease_fill(struct weir__lease *lease, const struct weir__ask *ask, struct weir__hot *e, uint64_t now,
                     int64_t cost)
{
    int verdict;

    if (!hold(lease)) /* being taken back */
        return WEIR__REKEYED;
    has_leased = true;
    verdict = fill(lease, ask, e, now, cost);
    let_go(lease);
    return verdict;
}
