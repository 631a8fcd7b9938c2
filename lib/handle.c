/* SPDX-License-Identifier: MIT */
/*
 * Key handles: an entry found once and pinned. Owns struct weir_key, and what the quick take of weir/quick.h is told.
 */
#define WEIR_NO_INLINE /* weir_key_take is here */
#include <string.h>

#include "lib/lease.h"
#include "lib/take.h"

/* A bucket known to hold tokens: while the counter is at `first` to first + span - 1, and x + f is `spent` to
 * spent + room - 1, there is a token to take and none to forfeit. What is read after `written` and before `begun` is of
 * one writing where the two agree. */
struct known {
    uint64_t begun, written; /* how often */
    uint64_t mark;           /* of the gate's changes and the clock's anchor, for which it is true */
    uint64_t first, span;
    uint64_t spent, room; /* room 0: nothing is known */
    uint64_t ns, pace;    /* of the clock: at `first`, and << 32 a step */
    uint64_t next;        /* when another look is worth its time, ns */
};

struct weir_key {
    struct weir_quick_ quick;
    struct known known;
    struct weir__hot *e;  /* pinned; of a strict policy, which has none: `no_entry` */
    struct weir__ask ask; /* ask.key is own */
    size_t size;          /* of this */
    unsigned char own[];  /* the key's bytes */
};
_Static_assert(offsetof(struct weir_key, quick) == 0, "callers' code begins there");
_Static_assert(offsetof(struct weir_bucket_, touched) == offsetof(struct weir__hot, touched) &&
                   offsetof(struct weir__hot, f) == sizeof(uint64_t) &&
                   sizeof(struct weir_bucket_) == sizeof(struct weir__hot),
               "the same");
_Static_assert(offsetof(struct weir__gate, changes) == offsetof(struct weir_gate_, changes), "the same");
_Static_assert(sizeof(struct weir__lease) * WEIR_LEASE_STEP_ == WEIR__STRIPE_BYTES, "one lease a stripe");

#define EMPTY_NS 1000u  /* an empty bucket is noted for so long at least */
#define KNOWN_TAKES 16u /* one that holds tokens: for so many takes at least, */
#define KNOWN_NS 20000u /* and so long; nor is it looked at again sooner than that, */
#define OFTEN_NS 5000u  /* or where it is taken from less often than that */

/* Values that neither an x nor a gate's `changes` ever has. */
#define NO_X 2u
#define NEVER 1u
#define BUSY UINT64_MAX

/* policy.leased */
#define LEASES_COMING 1u
#define LEASES_KNOWN 2u

/* Locked for ever: nothing is decided on it. */
static struct weir__hot no_entry = {.x = WEIR__LOCK};

/* A pinned entry stays the key's. The pin comes before x and id are looked at: whoever drops an entry takes the lock
 * bit of x first and then looks at the pin. */
static struct weir__hot *pin(const struct weir__ask *ask)
{
    struct weir *w = ask->w;
    unsigned turns = 0;
    uint64_t x;

    for (;; weir__backoff(&turns)) {
        struct weir__hot *e =
            weir__table_obtain(w, ask->policy, ask->key, ask->key_len, ask->id, weir__limiter_now(w), &x);

        if (!e)
            return NULL;
        if (w->state->shared) /* a process that is killed would leave it pinned for ever: it is found anew if need be */
            return e;
        atomic_fetch_add_explicit(&e->pin, 1, memory_order_seq_cst);
        x = atomic_load_explicit(&e->x, memory_order_seq_cst);
        if (weir__table_is(e, ask->id) && !(x & WEIR__LOCK))
            return e;
        atomic_fetch_sub_explicit(&e->pin, 1, memory_order_release);
    }
}

int weir_key_open(struct weir *w, weir_policy_id policy, const void *key, size_t key_len, struct weir_key **out)
{
    struct weir__ask ask;
    struct weir_key *k;
    size_t size;
    int error;

    if (!out)
        return WEIR_E_INVAL;
    *out = NULL;
    if (!w)
        return WEIR_E_INVAL;
    error = weir__take_check(w, policy, key, key_len, &ask);
    if (error)
        return error;
    size = sizeof *k + key_len;
    k = weir__limiter_alloc(w, size);
    if (!k)
        return WEIR_E_NOMEM;
    k->ask = ask;
    k->size = size;
    memcpy(k->own, key, key_len);
    k->ask.key = k->own;
    k->known = (struct known){0};
    k->e = &no_entry;
    if (weir__load_acquire(&ask.p->mode) != WEIR_STRICT) {
        k->e = pin(&k->ask);
        if (!k->e) {
            weir__limiter_free(w, k, size);
            return WEIR_E_FULL;
        }
    }
    k->quick = (struct weir_quick_){
        .gate = (const struct weir_gate_ *)(const void *)w->gate,
        .counts = (char *)&w->counts[policy],
        .bucket = (struct weir_bucket_ *)(void *)k->e,
        .empty_x = NO_X,
        .changes = NEVER,
        .stripes = w->private_counts,
    };
    *out = k;
    return 0;
}

/* ---- what the quick take is told --------------------------------------------------------------------------------- */

/* The numbers in force, if it may decide by them. One thread at a time; nobody waits. */
static void learn(struct weir_key *key)
{
    struct weir_quick_ *q = &key->quick;
    uint64_t known = __atomic_load_n(&q->changes, __ATOMIC_ACQUIRE);
    uint64_t changes = weir__load_acquire(&key->ask.w->gate->changes), x, f;
    const struct weir__params *params;
    uint64_t cap, most;

    if (known == changes || known == BUSY || changes & 1 || key->ask.w->state->shared || key->e == &no_entry ||
        !__atomic_compare_exchange_n(&q->changes, &known, BUSY, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    x = weir__load_acquire(&key->e->x);
    f = weir__load_acquire(&key->e->f);
    params = &key->ask.p->slot[f & WEIR__SLOT];
    cap = weir__load_acquire(&params->cap);
    __atomic_store_n(&q->mult, weir__load_acquire(&params->mult), __ATOMIC_RELEASE);
    most = weir__load_acquire(&params->most);
    __atomic_store_n(&q->most, most, __ATOMIC_RELEASE);
    __atomic_store_n(&q->unit, most ? UINT64_C(1) << weir__load_acquire(&key->e->k) : INT64_MAX, __ATOMIC_RELEASE);
    /* all leases together hold no more than that */
    if (weir__load_relaxed(&key->ask.p->leased))
        cap -= cap / 16;
    __atomic_store_n(&q->level, cap & WEIR__UNITS, __ATOMIC_RELEASE);
    if (x & WEIR__LOCK || (most && weir__load_acquire(&key->e->regime) != WEIR__LOCAL) ||
        weir__load_acquire(&key->e->x) != x || weir__load_acquire(&key->ask.w->gate->changes) != changes)
        changes = NEVER;
    __atomic_store_n(&q->changes, changes, __ATOMIC_RELEASE);
}

/* That there is not one token, and until when, if that is long enough to be worth a line that others may be reading. */
static void note_empty(struct weir_key *key, uint64_t now)
{
    const struct weir__policy_state *p = key->ask.p;
    struct weir_quick_ *q = &key->quick;
    /* acquire: the x that follows is no older than the one that is noted */
    uint64_t seen = __atomic_load_n(&q->empty_x, __ATOMIC_ACQUIRE), x = weir__load_acquire(&key->e->x), f, wait;
    struct weir__verdict v;
    int64_t need;

    if (seen == x || seen == BUSY || x & WEIR__LOCK)
        return;
    f = weir__load_acquire(&key->e->f);
    weir__decide_read(p, key->e, x, f, now, 1, &v);
    need = (int64_t)(v.units - (uint64_t)v.level);
    if (weir__load_acquire(&p->slot[f & WEIR__SLOT].most) == 0 || weir__load_acquire(&key->e->regime) != WEIR__LOCAL ||
        need <= (int64_t)weir__bucket_refill(EMPTY_NS, v.mult) || weir__load_acquire(&key->e->x) != x ||
        !__atomic_compare_exchange_n(&q->empty_x, &seen, BUSY, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    wait = weir__bucket_wait(v.now, v.mult, need);
    /* release, both: a reader that finds this x finds this time or a later x's, and then the bucket's x is another */
    __atomic_store_n(&q->empty_until, wait < UINT64_MAX - v.now ? v.now + wait : UINT64_MAX, __ATOMIC_RELEASE);
    __atomic_store_n(&q->empty_x, x, __ATOMIC_RELEASE);
}

/* Both only grow: their sum is what it was only while both are. */
WEIR__INLINE uint64_t mark(const struct weir__gate *gate)
{
    return weir__load_acquire(&gate->changes) + weir__load_acquire(&gate->clock.seq);
}

/* For how many steps of the counter, which is `gone` from the anchor's, a bucket stays below its cap of which `spare`
 * units are free. */
static uint64_t steps_to_full(const struct weir__anchor *anchor, uint64_t gone, uint64_t spare, uint64_t mult)
{
    uint64_t span = weir__load_acquire(&anchor->span), pace = weir__load_acquire(&anchor->mult);
    weir__u128 wait, steps;

    if (gone >= span || pace == 0)
        return 0;
    span -= gone;
    if (mult == 0)
        return span;
    /* Both rounded down; spare is 4 units less than it might be, and wait 1 ns: more than what the two products that
     * these quotients undo were rounded by. */
    wait = ((weir__u128)spare << WEIR__SHIFT) / mult;
    if (wait >= UINT64_C(1) << 62)
        return span;
    steps = wait > 1 ? ((wait - 1) << 32) / pace : 0;
    return steps < span ? (uint64_t)steps : span;
}

/* What is there as of now, units, rounded down, and what is free up to the cap. Any pair of x and f will do: what is
 * noted is true of a sum. False: it is nothing worth noting. */
WEIR__INLINE bool holds_tokens(const struct weir_key *key, uint64_t now, uint64_t *spent, int64_t *level,
                               int64_t *spare)
{
    uint64_t mult = __atomic_load_n(&key->quick.mult, __ATOMIC_ACQUIRE);

    *spent = weir__load_acquire(&key->e->x);
    *spent += weir__load_acquire(&key->e->f);
    *level = (int64_t)(weir__bucket_refill(now, mult) - *spent) & ~INT64_C(3);
    *spare = (int64_t)__atomic_load_n(&key->quick.level, __ATOMIC_ACQUIRE) - 4 - *level;
    return *spare > (int64_t)weir__bucket_refill(KNOWN_NS, mult) &&
           *level / KNOWN_TAKES >= (int64_t)__atomic_load_n(&key->quick.unit, __ATOMIC_ACQUIRE);
}

/* Writes what there is; nothing, where it would be for too short a time. */
static void note(const struct weir_key *key, struct known *n)
{
    const struct weir_quick_ *q = &key->quick;
    const struct weir__clock *clock = &key->ask.w->gate->clock;
    const struct weir__anchor *anchor = weir__clock_anchor(clock, weir__load_acquire(&clock->seq));
    uint64_t pace = weir__load_acquire(&anchor->mult), first = weir__clock_counter();
    uint64_t gone = first - weir__load_acquire(&anchor->base);
    uint64_t ns = weir__load_acquire(&anchor->ns) + (gone * pace >> 32), span = 0, spent;
    int64_t level, spare;

    if (holds_tokens(key, ns, &spent, &level, &spare))
        span = steps_to_full(anchor, gone, (uint64_t)spare, __atomic_load_n(&q->mult, __ATOMIC_ACQUIRE));
    if (span < ((uint64_t)KNOWN_NS << 32) / (pace + 1))
        span = 0;
    __atomic_store_n(&n->first, first, __ATOMIC_RELEASE);
    __atomic_store_n(&n->span, span, __ATOMIC_RELEASE);
    __atomic_store_n(&n->spent, spent, __ATOMIC_RELEASE);
    __atomic_store_n(&n->room, (uint64_t)level - __atomic_load_n(&q->unit, __ATOMIC_ACQUIRE) + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&n->ns, ns, __ATOMIC_RELEASE);
    __atomic_store_n(&n->pace, pace, __ATOMIC_RELEASE);
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */

/* All that the quick take leaves. */
WEIR__INLINE int take_well(struct weir_key *key, int64_t cost, uint64_t now, struct weir_result *result)
{
    const struct weir__ask *ask = &key->ask;
    const uint64_t *id = ask->w->state->shared ? ask->id : NULL; /* not pinned: is it still the key's? */
    int verdict = WEIR__REKEYED;
    uint64_t x;

    if (WEIR__UNLIKELY(!weir__load_acquire(&ask->w->gate->alive)))
        return WEIR_E_FORKED;
    if (WEIR__UNLIKELY(weir__load_acquire(&ask->p->mode) == WEIR_STRICT))
        return weir__take_strict(ask, cost, result);
    if (!now)
        now = weir__limiter_now(ask->w);
    x = weir__load_acquire(&key->e->x);
    if (WEIR__LIKELY(key->e != &no_entry) && weir__take_is_fast(ask->p, cost) &&
        (!id || WEIR__LIKELY(weir__table_is(key->e, id))))
        verdict = weir__decide_take(ask->p, key->e, x, id, now, cost, result);
    if (verdict == WEIR_DENY && weir__lease_reclaim(ask->w, key->e, now))
        verdict = WEIR__REKEYED;
    if (WEIR__UNLIKELY(verdict == WEIR__REKEYED))
        return weir__take_memory(ask, now, cost, result);
    if (result) {
        result->policy = ask->policy;
        result->limiter = ask->w;
    }
    weir__stats_count(ask->w, ask->policy, verdict);
    return verdict;
}

/* From now on whoever learns the numbers allows for leases: done once, before the policy's first lease can be taken. */
static void announce_leases(struct weir_key *key)
{
    struct weir__policy_state *p = key->ask.p;

    if (weir__load_acquire(&p->leased) & LEASES_KNOWN)
        return;
    atomic_fetch_or_explicit(&p->leased, LEASES_COMING, memory_order_relaxed);
    atomic_fetch_add_explicit(&key->ask.w->gate->changes, 2, memory_order_release);
    /* release: whoever finds it done finds `changes` */
    atomic_fetch_or_explicit(&p->leased, LEASES_KNOWN, memory_order_release);
}

/* The lease of this thread, made where there is none; NULL where it can't have one. */
static struct weir__lease *own_lease(struct weir_key *key)
{
    char *leases = __atomic_load_n(&key->quick.leases, __ATOMIC_ACQUIRE), *mine;

    if (weir_stripe_ >= weir__load_relaxed(&key->ask.w->gate->stripes) || key->e == &no_entry)
        return NULL;
    if (!leases) {
        if (weir__lease_most(key->ask.p) == 0)
            return NULL;
        mine = (char *)weir__lease_open(&key->ask, key->e);
        if (!mine)
            return NULL;
        announce_leases(key);
        if (__atomic_compare_exchange_n(&key->quick.leases, &leases, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            leases = mine;
        else
            weir__lease_close((struct weir__lease *)(void *)mine, true);
        /* release: who finds no bucket finds the leases */
        __atomic_store_n(&key->quick.bucket, (struct weir_bucket_ *)(void *)&no_entry, __ATOMIC_RELEASE);
    }
    return weir__lease_own((struct weir__lease *)(void *)leases, weir_stripe_);
}

/* Of a bucket that learn has found to be an ordinary one, pinned; the gate is open, this thread counts by itself. */
static int take_ordinary(struct weir_key *key, int64_t cost, uint64_t now)
{
    struct weir__hot *e = key->e;
    int verdict = weir__decide_take(key->ask.p, e, weir__load_acquire(&e->x), NULL, now, cost, NULL);

    if (verdict == WEIR_DENY && weir__lease_reclaim(key->ask.w, e, now))
        return WEIR__REKEYED;
    if (WEIR__LIKELY(verdict != WEIR__REKEYED)) {
        weir_count_(key->quick.counts, weir_stripe_, verdict);
        if (verdict == WEIR_DENY)
            note_empty(key, now);
    }
    return verdict;
}

/* One that finds another thread in its way asks for a lease from the next time on. */
static int take_silently(struct weir_key *key, int64_t cost, uint64_t now)
{
    const struct weir_quick_ *q = &key->quick;
    uint64_t before = weir__load_relaxed(&key->e->x);
    int verdict = WEIR__REKEYED;
    uint8_t k;

    if (!now)
        now = weir__limiter_now(key->ask.w);
    if (__atomic_load_n(&q->changes, __ATOMIC_ACQUIRE) == __atomic_load_n(&q->gate->changes, __ATOMIC_ACQUIRE) &&
        weir_stripe_ < q->stripes && (uint64_t)cost - 1 < __atomic_load_n(&q->most, __ATOMIC_ACQUIRE))
        verdict = take_ordinary(key, cost, now);
    if (WEIR__UNLIKELY(verdict == WEIR__REKEYED)) {
        verdict = take_well(key, cost, now, NULL);
        if (verdict == WEIR_ALLOW && cost > 0)
            learn(key);
    }
    k = weir__load_relaxed(&key->e->k);
    if (WEIR__UNLIKELY(weir__load_relaxed(&key->e->x) - before > (uint64_t)cost << k) && verdict == WEIR_ALLOW &&
        cost > 0) {
        struct weir__lease *lease = own_lease(key);

        if (lease && lease->chunk == 0)
            weir__lease_want(lease, key->ask.p, now);
    }
    return verdict;
}

/* The lease is used up, or this thread has none. */
static int take_and_lease(struct weir_key *key, int64_t cost, uint64_t now)
{
    const struct weir__ask *ask = &key->ask;
    struct weir__lease *lease = own_lease(key);

    if (!now)
        now = weir__limiter_now(ask->w);
    if (lease && (lease->chunk != 0 || weir__load_relaxed(&lease->held) != 0) &&
        weir__lease_fill(lease, ask, key->e, now, cost) == WEIR_ALLOW) {
        weir__stats_count(ask->w, ask->policy, WEIR_ALLOW);
        return WEIR_ALLOW;
    }
    return take_silently(key, cost, now);
}

int weir_key_ask_(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result)
{
    if (WEIR__UNLIKELY(!key))
        return WEIR_E_INVAL;
    if (result)
        return take_well(key, cost, now_ns, result);
    if (WEIR__UNLIKELY(__atomic_load_n(&key->quick.leases, __ATOMIC_ACQUIRE) != NULL) &&
        WEIR__LIKELY(weir__load_acquire(&key->ask.w->gate->alive)))
        return take_and_lease(key, cost, now_ns);
    return take_silently(key, cost, now_ns);
}

/* As weir_take_quick_, the other way round: here the clock costs more than a look. */
static WEIR__NOINLINE int take_at_clock(struct weir_key *key, int64_t cost, uint64_t now)
{
    struct weir_bucket_ *bucket = __atomic_load_n(&key->quick.bucket, __ATOMIC_ACQUIRE);
    uint64_t x;

    if (weir_take_empty_(&key->quick, bucket, cost, now, &x) == WEIR_DENY)
        return WEIR_DENY;
    return weir_key_ask_(key, cost, now, NULL);
}

/* A take of one token was allowed at `now`: the next ones may be quicker. By one thread at a time; nobody waits. What
 * was noted before is true for as long as it said, and stays where nothing better is known. */
static WEIR__NOINLINE int note_tokens(struct weir_key *key, uint64_t now)
{
    const struct weir__gate *gate = key->ask.w->gate;
    struct known *n = &key->known;
    uint64_t written = __atomic_load_n(&n->written, __ATOMIC_ACQUIRE), marked = mark(gate), spent;
    int64_t level, spare;

    __atomic_store_n(&n->next, now + KNOWN_NS, __ATOMIC_RELAXED);
    /* the numbers were copied for what the gate says, and so were those that are read below, where it says the same */
    if (__atomic_load_n(&key->quick.changes, __ATOMIC_ACQUIRE) != weir__load_acquire(&gate->changes) ||
        !holds_tokens(key, now, &spent, &level, &spare) ||
        !__atomic_compare_exchange_n(&n->begun, &written, written + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return WEIR_ALLOW;
    __atomic_store_n(&n->mark, marked, __ATOMIC_RELEASE);
    note(key, n);
    /* a mark that was never the gate's: part of it was read before a change, and part of it after */
    if (mark(gate) != marked)
        __atomic_store_n(&n->room, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&n->written, written + 1, __ATOMIC_RELEASE);
    return WEIR_ALLOW;
}

/* One token of a bucket known to hold some. All else is looked at before the counter, whose reading takes longest: then
 * little is left to wait for. *counter: out; 0: not read. */
WEIR__INLINE int take_known(struct weir_key *key, uint64_t *counter)
{
    const struct weir_quick_ *q = &key->quick;
    const struct weir__gate *gate = (const struct weir__gate *)(const void *)q->gate;
    const struct known *n = &key->known;
    struct weir_bucket_ *bucket = __atomic_load_n(&q->bucket, __ATOMIC_ACQUIRE);
    uint64_t x = __atomic_load_n(&bucket->x, __ATOMIC_ACQUIRE);
    uint64_t written = __atomic_load_n(&n->written, __ATOMIC_ACQUIRE);
    uint64_t spent = x + __atomic_load_n(&bucket->f, __ATOMIC_ACQUIRE) - __atomic_load_n(&n->spent, __ATOMIC_ACQUIRE);
    uint64_t first = __atomic_load_n(&n->first, __ATOMIC_ACQUIRE), span = __atomic_load_n(&n->span, __ATOMIC_ACQUIRE);
    uint64_t unit = __atomic_load_n(&q->unit, __ATOMIC_ACQUIRE), gone, now;

    *counter = 0;
    if (WEIR__UNLIKELY(spent >= __atomic_load_n(&n->room, __ATOMIC_ACQUIRE)) || WEIR__UNLIKELY(x & WEIR__LOCK) ||
        WEIR__UNLIKELY(__atomic_load_n(&n->mark, __ATOMIC_ACQUIRE) != mark(gate)) ||
        WEIR__UNLIKELY(weir_stripe_ >= q->stripes) ||
        WEIR__UNLIKELY(__atomic_load_n(&n->begun, __ATOMIC_RELAXED) != written))
        return WEIR_UNDECIDED_;
    gone = weir__clock_counter() - first;
    if (WEIR__UNLIKELY(gone >= span)) {
        *counter = gone + first;
        return WEIR_UNDECIDED_;
    }
    if (WEIR__UNLIKELY(!__atomic_compare_exchange_n(&bucket->x, &x, x + unit, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)))
        return WEIR_UNDECIDED_;
    now = gone * __atomic_load_n(&n->pace, __ATOMIC_ACQUIRE) >> 32;
    now += __atomic_load_n(&n->ns, __ATOMIC_ACQUIRE);
    /* else another thread has noted something else, or a caller's time is ahead: it may stay too early */
    if (WEIR__LIKELY(__atomic_load_n(&n->begun, __ATOMIC_RELAXED) == written) &&
        WEIR__LIKELY(now > __atomic_load_n(&bucket->touched, __ATOMIC_RELAXED)))
        __atomic_store_n(&bucket->touched, now, __ATOMIC_RELAXED);
    weir_count_(q->counts, weir_stripe_, 0);
    return WEIR_ALLOW;
}

/* Every call here is the last thing done, so that no register need be saved. */
WEIR__INLINE int take_by_clock(struct weir_key *key, int64_t cost, uint64_t counter)
{
    const struct weir__gate *gate = (const struct weir__gate *)(const void *)key->quick.gate;
    struct weir_bucket_ *bucket;
    uint64_t now, before, x;

    if (WEIR__UNLIKELY(!weir__clock_glance(&gate->clock, counter, &now)))
        return weir_key_ask_(key, cost, 0, NULL);
    bucket = __atomic_load_n(&key->quick.bucket, __ATOMIC_ACQUIRE);
    x = __atomic_load_n(&bucket->x, __ATOMIC_ACQUIRE);
    before = __atomic_load_n(&bucket->touched, __ATOMIC_RELAXED);
    if (WEIR__UNLIKELY(x & WEIR__LOCK) ||
        WEIR__UNLIKELY(weir_take_bucket_(&key->quick, bucket, x, cost, now, 0) != WEIR_ALLOW))
        return take_at_clock(key, cost, now);
    if (WEIR_ONE_(cost) && now - before < OFTEN_NS && now >= __atomic_load_n(&key->known.next, __ATOMIC_RELAXED))
        return note_tokens(key, now);
    return WEIR_ALLOW;
}

int weir_key_take_now_(struct weir_key *key, int64_t cost)
{
    return take_by_clock(key, cost, 0);
}

int weir_key_take_one_(struct weir_key *key)
{
    uint64_t counter;

    if (WEIR__LIKELY(take_known(key, &counter) == WEIR_ALLOW))
        return WEIR_ALLOW;
    return take_by_clock(key, 1, counter);
}

int weir_key_take(struct weir_key *key, int64_t cost, uint64_t now_ns, struct weir_result *result)
{
    int verdict;

    if (WEIR__UNLIKELY(!key) || WEIR__UNLIKELY(result))
        return weir_key_ask_(key, cost, now_ns, result);
    if (!now_ns) {
        verdict = weir_take_lease_(&key->quick, __atomic_load_n(&key->quick.leases, __ATOMIC_ACQUIRE), cost);
        return WEIR__LIKELY(verdict == WEIR_UNDECIDED_) ? weir_key_take_now_(key, cost) : verdict;
    }
    verdict = weir_take_quick_(&key->quick, cost, now_ns);
    return WEIR__LIKELY(verdict != WEIR_UNDECIDED_) ? verdict : weir_key_ask_(key, cost, now_ns, NULL);
}

void weir_key_close(struct weir_key *key)
{
    bool pinned;

    if (!key)
        return;
    /* not in a child of fork: what it sees of the entry is its parent's, or nobody's */
    pinned = key->e != &no_entry && weir__load_acquire(&key->ask.w->gate->alive);
    weir__lease_close((struct weir__lease *)(void *)__atomic_load_n(&key->quick.leases, __ATOMIC_ACQUIRE), pinned);
    if (pinned && !key->ask.w->state->shared)
        atomic_fetch_sub_explicit(&key->e->pin, 1, memory_order_release);
    weir__limiter_free(key->ask.w, key, key->size);
}
