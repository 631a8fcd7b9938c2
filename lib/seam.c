/* SPDX-License-Identifier: MIT */
/*
 * The seam, collector's side: reports and grants. Owns cold->base, the slice records' pairs that are not in force, and
 * what a report in flight needs to be undone. Must not know Redis, nor how often anything is sent.
 *
 * The collector never takes the lock bit of an entry (but through weir__hybrid_settle, once an entry): a grant is
 * written beside what is in force and put in force by one 16-byte CAS. So a collector that stands still makes no taker
 * wait. state->walk_lock keeps weir_policy_set and weir_forget out while it works on an entry or a few; callbacks run
 * without.
 */
#include "lib/seam.h"

#include "lib/dirty.h"
#include "lib/hybrid.h"
#include "lib/intent.h"
#include "lib/table.h"
#include "lib/workers.h"

#define PREFETCH_AHEAD 8u /* entries: what it takes to fetch one, in times of what it takes to report one */

enum prepared { NOTHING, IN_FLIGHT, READY };

/* ---- policies ---------------------------------------------------------------------------------------------------- */

int weir__seam_policy(struct weir *w, weir_policy_id id, struct weir__seam_policy *out)
{
    struct weir__policy_state *p;

    if (id >= weir__load_acquire(&w->state->policies))
        return WEIR_E_NOENT;
    p = &w->policies[id];
    weir__lock(&w->state->policy_lock);
    *out = (struct weir__seam_policy){.name = p->name,
                                      .group = p->group[0] ? p->group : NULL,
                                      .limit = p->limit,
                                      .per_ns = p->per_ns,
                                      .burst = weir__load_relaxed(&p->burst),
                                      .version = p->version,
                                      .max_overshoot = p->max_overshoot,
                                      .mode = (enum weir_mode)weir__load_relaxed(&p->mode),
                                      .on_outage = (enum weir_on_outage)weir__load_relaxed(&p->on_outage),
                                      .unknown = (enum weir_unknown)weir__load_relaxed(&p->unknown),
                                      .shadow = weir__load_relaxed(&p->shadow)};
    weir__unlock(&w->state->policy_lock);
    return 0;
}

void weir__seam_overdraft(struct weir *w, weir_policy_id id, uint64_t tokens, double fallback_rate,
                          double fallback_burst)
{
    struct weir__policy_state *p = &w->policies[id];

    weir__store_relaxed(&p->overdraft, (int64_t)(tokens < WEIR_BURST_MAX ? tokens : WEIR_BURST_MAX));
    weir__store_relaxed(&p->fall_rate, fallback_rate);
    weir__store_relaxed(&p->fall_burst, fallback_burst);
}

void weir__seam_overshoot(struct weir *w, weir_policy_id id, uint64_t tokens)
{
    if (tokens > 0)
        atomic_fetch_add_explicit(&w->policies[id].overshoot, tokens, memory_order_relaxed);
}

void weir__seam_fresh_until(struct weir *w, weir_policy_id id, uint64_t until_ns)
{
    weir__store_relaxed(&w->policies[id].fresh_until, until_ns);
}

void weir__seam_pace(struct weir *w, weir_policy_id id, uint64_t interval_ns, uint64_t round_trip_ns)
{
    weir__store_relaxed(&w->policies[id].interval, interval_ns);
    weir__store_relaxed(&w->policies[id].round_trip, round_trip_ns);
}

/* ---- reports ----------------------------------------------------------------------------------------------------- */

static void pin(struct weir__hot *e)
{
    /* seq_cst, and x is loaded after it: whoever re-keys an entry takes the lock bit first and then looks at the pin */
    atomic_fetch_add_explicit(&e->pin, 1, memory_order_seq_cst);
}

static void unpin(struct weir__hot *e)
{
    /* release: what the collector wrote is there for whoever finds it unpinned */
    atomic_fetch_sub_explicit(&e->pin, 1, memory_order_release);
}

/* x and all that it decides, as of one moment; the level at `now`, or as whoever charged last saw it (late). The lock
 * bit is waited for: takers hold it for some stores. */
static void look_at(struct weir *w, struct weir__hot *e, uint64_t now, bool late, struct weir__view *v)
{
    for (unsigned turns = 0;; weir__intent_wait(w, &turns)) {
        uint64_t x = atomic_load_explicit(&e->x, memory_order_seq_cst);
        uint64_t touched = weir__load_acquire(&e->touched);

        if (x & WEIR__LOCK)
            continue;
        weir__hybrid_view(w, e, x, late && now < touched ? touched : now, v);
        if (weir__load_relaxed(&e->x) == x)
            return;
    }
}

static void look(struct weir *w, struct weir__hot *e, uint64_t now, struct weir__view *v)
{
    look_at(w, e, now, true, v);
}

/* What shall be in force. A level past the cap is cut off by whoever looks. */
struct terms {
    uint64_t mult, cap, fall_mult, fall_cap;
    int64_t level;
};

/* Writes it beside what is in force (v) and puts it in force; now: when that level is held. false: x has moved, look
 * again. */
static bool install(struct weir *w, uint32_t slot, const struct weir__view *v, uint64_t now, const struct terms *terms)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__slice *slice = &w->slice[slot];
    unsigned s = (v->f & WEIR__SLOT) ^ WEIR__SLOT;
    uint64_t x = v->x, f = v->f, new_x = x + WEIR__STEP;

    /* release: a reader that meets one of these with an older f finds x changed when it looks again, for this slot was
     * in force until an earlier CAS */
    weir__store_release(&slice->mult[s], terms->mult);
    weir__store_release(&slice->cap[s], terms->cap);
    weir__store_release(&slice->fall_mult[s], terms->fall_mult);
    weir__store_release(&slice->fall_cap[s], terms->fall_cap);
    if (!weir__cas16_state(&e->x, &x, &f, new_x,
                           weir__hybrid_f(weir__bucket_refill(now, terms->mult), new_x, terms->level, s)))
        return false;
    atomic_fetch_add_explicit(&w->cold[slot].returned, WEIR__STEP, memory_order_release);
    return true;
}

/* Ends the refill of the slice in force, if there is one, as of `at`. */
static void halt(struct weir *w, uint32_t slot, uint64_t at)
{
    const struct weir__slice *slice = &w->slice[slot];
    struct weir__view v;
    struct terms terms;
    unsigned s;

    for (unsigned turns = 0;; weir__backoff(&turns)) {
        look_at(w, &w->hot[slot], at, false, &v);
        if (v.regime != WEIR__SLICED || v.f & WEIR__FALL || v.mult == 0)
            return;
        s = v.f & WEIR__SLOT;
        terms = (struct terms){.cap = v.cap ? v.cap : 1, /* {0, 0} would be no slice */
                               .fall_mult = weir__load_relaxed(&slice->fall_mult[s]),
                               .fall_cap = weir__load_relaxed(&slice->fall_cap[s]),
                               .level = v.level};
        (void)install(w, slot, &v, at, &terms);
    }
}

static double tokens_of(int64_t units, uint8_t k)
{
    if (units == 0)
        return 0;
    return (double)units / (double)(UINT64_C(1) << k);
}

static double rate_of(uint64_t mult, uint8_t k)
{
    if (mult == 0) /* as most are, and divisions take their time */
        return 0;
    return (double)mult / (double)(UINT64_C(1) << k) / (double)(UINT64_C(1) << WEIR__SHIFT) * 1e9;
}

/* What was spent goes over to the report, in whole tokens; the rest stays. */
static void hand_over(struct weir *w, uint32_t slot, const struct weir__view *v, struct weir__report *report)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__cold *cold = &w->cold[slot];
    struct weir__slice *slice = &w->slice[slot];
    uint64_t denied, at;
    int64_t fallen;

    report->spent = weir__hybrid_whole(weir__hybrid_unreported(w, slot, v->x), v->k);
    report->attempts = report->spent > 0 ? (uint64_t)report->spent : 0;
    /* Killed in the next few stores, the collector leaves a note of what they undo. (A refund may be lost between two
     * of them, never told twice.) */
    weir__hand_take(w, slot, WEIR__HAND_TAKING, weir__load_relaxed(&cold->base));
    /* seq_cst: after the dirty flag was cleared; what is given back later lists the entry again */
    if (atomic_load_explicit(&cold->refunded, memory_order_seq_cst))
        report->refunded = (int64_t)atomic_exchange_explicit(&cold->refunded, 0, memory_order_acq_rel);
    weir__store_release(&w->state->hand_refunded, report->refunded);
    /* release: whoever drops the entry finds it reported only after it is pinned */
    atomic_fetch_add_explicit(&cold->base, (uint64_t)report->spent << v->k, memory_order_release);
    if (weir__load_relaxed(&e->noted)) {
        fallen = weir__load_relaxed(&slice->fall_spent);
        if (fallen > report->spent)
            fallen = report->spent;
        report->fallback_spent = fallen > 0 ? fallen : 0;
        if (report->fallback_spent)
            atomic_fetch_sub_explicit(&slice->fall_spent, report->fallback_spent, memory_order_release);
        weir__store_release(&w->state->hand_fallen, report->fallback_spent);
        denied = weir__load_relaxed(&slice->denied);
        report->attempts += denied - slice->denied_told;
        slice->denied_told = denied;
        report->asked = weir__load_relaxed(&slice->asked);
        weir__store_relaxed(&slice->asked, 0);
        /* Redis' answer will hold it; until then it is subtracted here, for it is no longer unreported */
        at = weir__load_relaxed(&slice->global_at);
        if (at)
            weir__hybrid_fleet_set(
                slice, weir__load_relaxed(&slice->global) - (report->spent - report->refunded) * (INT64_C(1) << v->k),
                at);
    }
    weir__store_relaxed(&e->noted, 1);
    slice->sent_fall = report->fallback_spent;
    slice->sent_spent = report->spent;
    slice->sent_refunded = report->refunded;
}

static void fill_report(struct weir *w, uint32_t slot, uint64_t now, struct weir__report *report)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__slice *slice = &w->slice[slot];
    bool fallen, sliced;
    struct weir__view v;

    look(w, e, now, &v);
    fallen = v.f & WEIR__FALL;
    sliced = !fallen && (v.mult || v.cap);
    *report = (struct weir__report){.slot = slot,
                                    .id = weir__load_relaxed(&e->id[0]),
                                    .policy = weir__load_relaxed(&e->policy),
                                    .key = weir__table_key(w, &w->cold[slot]),
                                    .key_len = w->cold[slot].key_len,
                                    .now = now};
    hand_over(w, slot, &v, report);
    /* a fallback share is nothing that Redis knows of: all that counts is what is owed */
    slice->sent_level = fallen && v.level > 0 ? 0 : v.level;
    report->level = tokens_of(slice->sent_level, v.k);
    report->rate = fallen || v.ended ? 0 : rate_of(v.mult, v.k);
    report->until = sliced ? weir__load_relaxed(&slice->until) : 0;
    report->regime = fallen ? WEIR__FALLBACK : sliced ? WEIR__SLICED : WEIR__BARE;
    weir__store_release(&e->reported, 1); /* now it is the report's */
}

/* A key that was too long to be kept while its policy was local can't be reported. Dropped, it will be made anew, with
 * its bytes. */
static void drop_nameless(struct weir *w, struct weir__hot *e, uint64_t now)
{
    uint64_t id[2] = {weir__load_relaxed(&e->id[0]), weir__load_relaxed(&e->id[1])}, x;

    if (weir__table_lock(w, e, id, &x) && !weir__table_drop(w, e, x, now))
        weir__table_unlock(w, e, x + WEIR__STEP);
}

/* Pins the entry and fills its report, if it can have one now. Under walk_lock. */
static enum prepared prepare_held(struct weir *w, uint32_t slot, uint64_t now, struct weir__report *report)
{
    struct weir__hot *e = &w->hot[slot];
    const struct weir__policy_state *policy;
    enum prepared prepared = NOTHING;

    if (weir__load_relaxed(&e->reported))
        return IN_FLIGHT;
    weir__hand_take(w, slot, WEIR__HAND_LOOKING, 0);
    pin(e);
    weir__dirty_clear(e); /* before x is loaded: a taker whose CAS comes later lists the entry again */
    for (unsigned turns = 0; atomic_load_explicit(&e->x, memory_order_seq_cst) & WEIR__LOCK;)
        weir__intent_wait(w, &turns);
    policy = &w->policies[weir__load_acquire(&e->policy)];
    if (weir__load_acquire(&e->id[0]) != 0 && weir__load_acquire(&policy->mode) != WEIR_LOCAL) {
        weir__hybrid_settle(w, e, now);
        if (!weir__table_key(w, &w->cold[slot])) {
            unpin(e);
            drop_nameless(w, e, now);
            weir__hand_empty(w);
            return NOTHING;
        }
        if (weir__load_acquire(&e->regime) != WEIR__LOCAL) {
            fill_report(w, slot, now, report);
            prepared = READY;
        }
    }
    if (prepared == NOTHING)
        unpin(e);
    weir__hand_empty(w);
    return prepared;
}

static enum prepared prepare(struct weir *w, uint32_t slot, uint64_t now, struct weir__report *report)
{
    enum prepared prepared;

    weir__workers_walk(w);
    prepared = prepare_held(w, slot, now, report);
    weir__unlock(&w->state->walk_lock);
    return prepared;
}

/* As if the report had never been made. */
static void take_back(struct weir *w, const struct weir__report *report)
{
    struct weir__slice *slice = &w->slice[report->slot];
    uint64_t shown = report->spent > 0 ? (uint64_t)report->spent : 0;

    slice->denied_told -= report->attempts - shown;
    if (report->asked > weir__load_relaxed(&slice->asked))
        weir__store_relaxed(&slice->asked, report->asked);
    weir__seam_release(w, report->slot, report->spent, report->refunded);
}

void weir__seam_prefetch(const struct weir *w, uint32_t slot)
{
    const char *slice = (const char *)&w->slice[slot];

    __builtin_prefetch(&w->hot[slot], 1, 3);
    __builtin_prefetch(&w->cold[slot], 1, 3);
    __builtin_prefetch(slice, 1, 3);
    __builtin_prefetch(slice + 64, 1, 3);
    __builtin_prefetch(slice + 128, 1, 3);
}

/* The next n entries of what is left of a word. */
static void prefetch_ahead(const struct weir *w, size_t word, uint64_t *mask, unsigned n)
{
    for (; n > 0 && *mask; n--, *mask &= *mask - 1)
        weir__seam_prefetch(w, (uint32_t)(word * 64 + (unsigned)__builtin_ctzll(*mask)));
}

/* One of a list of urgent ones, none of which is taken yet. Returns the next. */
static uint32_t prefetch_link(const struct weir *w, uint32_t list)
{
    if (!list)
        return 0;
    weir__seam_prefetch(w, list - 1);
    return weir__load_relaxed(&w->hot[list - 1].urgent_next);
}

size_t weir__seam_collect(struct weir *w, uint64_t now, size_t budget, weir__report_fn take, void *ctx)
{
    return weir__seam_collect_some(w, now, budget, NULL, take, ctx);
}

size_t weir__seam_collect_some(struct weir *w, uint64_t now, size_t budget, weir__pick_fn pick, weir__report_fn take,
                               void *ctx)
{
    size_t words = weir__dirty_words(w), word = w->state->collect_word, taken = 0;
    struct weir__report report;
    bool stopped = budget == 0;

    for (size_t n = 0; n < words && !stopped; n++, word++) {
        uint64_t mask, ahead, back = 0;

        if (word >= words)
            word = 0;
        mask = weir__load_relaxed(&w->dirty[word]);
        if (mask && pick)
            mask = pick(ctx, (uint32_t)(word * 64), mask);
        if (!mask)
            continue;
        ahead = mask = weir__dirty_take(w, word, mask);
        prefetch_ahead(w, word, &ahead, PREFETCH_AHEAD);
        for (; mask && !stopped; mask &= mask - 1) {
            uint32_t slot = (uint32_t)(word * 64 + (unsigned)__builtin_ctzll(mask));
            enum prepared prepared;

            prefetch_ahead(w, word, &ahead, 1);
            /* The flag is set before the bit: if it is clear now, whoever sets it will set the bit anew. */
            if (!weir__dirty_is(&w->hot[slot]))
                continue;
            prepared = weir__load_relaxed(&w->hot[slot].reported) ? IN_FLIGHT : prepare(w, slot, now, &report);
            if (prepared == IN_FLIGHT) {
                back |= mask & -mask;
            } else if (prepared == READY && !take(ctx, &report)) {
                take_back(w, &report);
                weir__dirty_list(w, &w->hot[slot]);
                stopped = true;
            } else if (prepared == READY) {
                stopped = ++taken == budget;
            }
        }
        weir__dirty_put_back(w, word, back | mask);
        if (stopped)
            break; /* and goes on here */
    }
    w->state->collect_word = (uint32_t)word;
    return taken;
}

size_t weir__seam_later(struct weir *w, const uint32_t *slots, size_t n, uint64_t now, struct weir__report *reports)
{
    size_t made = 0;

    weir__workers_walk(w);
    for (size_t i = 0; i < n; i++) {
        struct weir__hot *e = &w->hot[slots[i]];
        uint64_t bit = UINT64_C(1) << slots[i] % 64;

        if (weir__load_relaxed(&e->reported))
            continue;
        /* As above: the bit goes before the flag is looked at. */
        weir__dirty_take(w, slots[i] / 64, bit);
        if (weir__dirty_is(e) && prepare_held(w, slots[i], now, &reports[made]) == READY)
            made++;
    }
    weir__unlock(&w->state->walk_lock);
    return made;
}

size_t weir__seam_urgent(struct weir *w, uint64_t now, size_t budget, weir__report_fn take, void *ctx)
{
    uint32_t list = w->state->urgent_rest, ahead = list;
    struct weir__report report;
    unsigned lead = 0;
    size_t taken = 0;

    while (taken < budget) {
        uint32_t slot;

        if (!list) {
            list = ahead = weir__urgent_drain(w);
            lead = 0;
        }
        if (!list)
            break;
        for (; lead <= PREFETCH_AHEAD; lead++)
            ahead = prefetch_link(w, ahead);
        lead--;
        slot = weir__urgent_pop(w, &list);
        if (prepare(w, slot, now, &report) != READY)
            continue; /* in flight: what it brings may do; if not, a taker will say so */
        report.urgent = 1;
        if (!take(ctx, &report)) {
            take_back(w, &report);
            weir__dirty_list(w, &w->hot[slot]);
            (void)weir__urgent_push(w, &w->hot[slot]);
            break;
        }
        taken++;
    }
    w->state->urgent_rest = list;
    return taken;
}

int weir__seam_report(struct weir *w, uint32_t slot, uint64_t now, struct weir__report *out)
{
    return prepare(w, slot, now, out) == READY;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static uint64_t share_mult(const struct weir__policy_state *policy, double rate, uint8_t k)
{
    uint64_t mult = weir__bucket_mult(rate, k), most = mult ? weir__hybrid_mult(policy, k) : 0;

    return mult < most ? mult : most;
}

static uint64_t share_cap(const struct weir__policy_state *policy, double tokens, uint8_t k)
{
    int64_t cap = weir__bucket_units(tokens, k), most = cap > 0 ? weir__hybrid_burst(policy, k) : 0;

    return cap < 0 ? 0 : (uint64_t)(cap < most ? cap : most);
}

/* The level that the grant leaves. It is relative to what the report told, so what happened since is told apart: spent
 * and given back; refilled, unless the entry fell back meanwhile: then nothing of what is there is from its slice. */
static int64_t level_after(struct weir *w, uint32_t slot, const struct weir__view *v, const struct weir__grant *grant)
{
    const int64_t most = (int64_t)WEIR__UNITS_MAX;
    int64_t sent = w->slice[slot].sent_level, back = weir__bucket_units(grant->refill_back, v->k), left, refilled = 0;
    int64_t given = (int64_t)weir__load_relaxed(&w->cold[slot].refunded);
    double target = tokens_of(sent, v->k) + grant->level_delta;

    /* What a double can't tell from nothing is nothing: no key shall be in debt for ever for a sum's last digit. */
    if (target < 0 && target > -1e-9)
        target = 0;
    left = sent - weir__hybrid_unreported(w, slot, v->x) + (given > most >> v->k ? most : given << v->k);
    if (!(v->f & WEIR__FALL)) {
        refilled = v->level - left - (back > 0 ? back : 0);
        left = left < v->level ? left : v->level;
    }
    left += weir__bucket_units(target, v->k) - sent + (refilled > 0 ? refilled : 0);
    return left > most ? most : left < -most ? -most : left;
}

/* The grant in units. Nothing that a lying server may answer makes it more than the policy allows. */
static void plan(struct weir *w, uint32_t slot, const struct weir__view *v, const struct weir__grant *grant,
                 struct terms *terms)
{
    const struct weir__policy_state *policy = &w->policies[weir__load_relaxed(&w->hot[slot].policy)];
    const struct weir__slice *slice = &w->slice[slot];
    unsigned s = v->f & WEIR__SLOT;

    terms->mult = share_mult(policy, grant->rate, v->k);
    terms->cap = share_cap(policy, grant->cap, v->k);
    terms->fall_mult = weir__load_relaxed(&slice->fall_mult[s]);
    terms->fall_cap = weir__load_relaxed(&slice->fall_cap[s]);
    if (grant->fallback_rate >= 0) {
        terms->fall_mult = share_mult(policy, grant->fallback_rate, v->k);
        terms->fall_cap = share_cap(policy, grant->fallback_cap, v->k);
    }
    terms->level = level_after(w, slot, v, grant);
}

static void apply(struct weir *w, uint32_t slot, uint64_t now, const struct weir__grant *grant)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__slice *slice = &w->slice[slot];
    struct weir__view v;
    struct terms terms;
    uint64_t from, until, held;
    bool sliced;

    look(w, e, now, &v);
    if (v.regime == WEIR__LOCAL) /* the policy has become a local one */
        return;
    if (v.ended) { /* its end is about to be another */
        halt(w, slot, now);
        look(w, e, now, &v);
    }
    sliced = grant->rate > 0 || grant->cap > 0;
    weir__store_relaxed(&e->noted, 1);
    until = sliced ? grant->until : 0;
    weir__store_relaxed(&slice->until, until);
    /* The shorter hold comes before the new level and the longer one behind it: with what was in hand before, nobody is
     * denied until a time that goes with what is in hand then. */
    held = weir__load_relaxed(&slice->hold);
    if (grant->hold < held)
        weir__store_relaxed(&slice->hold, grant->hold);
    weir__store_relaxed(&slice->low, grant->low >= 0 ? weir__bucket_units(grant->low, v.k) : INT64_MIN);
    /* release: the pair in force of an entry that was bare is {0, 0} in its record as well, and until is told */
    weir__store_release(&e->regime, WEIR__SLICED);
    for (unsigned turns = 0;; weir__backoff(&turns)) {
        plan(w, slot, &v, grant, &terms);
        /* What goes on from a level goes on from when it was read. A share's is not gone on from, and its time may be
         * any: nothing ended a caller's that was far ahead. A slice that came too late is worth that at its end. */
        from = v.f & WEIR__FALL ? now : v.now;
        if (install(w, slot, &v, until && until < from ? until : from, &terms))
            break;
        look(w, e, now, &v);
    }
    if (grant->hold > held)
        weir__store_release(&slice->hold, grant->hold); /* who reads it finds that x has moved */
    /* Redis' clock and this one agree on nothing later than now */
    if (weir__load_relaxed(&e->touched) > now)
        weir__store_relaxed(&e->touched, now);
    weir__store_relaxed(&slice->unheld, weir__bucket_units(grant->unheld, v.k));
    weir__hybrid_fleet_set(slice, weir__bucket_units(grant->global, v.k), now);
}

void weir__seam_apply_all(struct weir *w, const uint32_t *slots, size_t n, uint64_t now,
                          const struct weir__grant *grants)
{
    weir__workers_walk(w);
    for (size_t i = 0; i < n; i++) {
        struct weir__hot *e = &w->hot[slots[i]];
        uint8_t reported = weir__load_relaxed(&e->reported);

        /* From here on a successor takes it for applied: a grant may be lost, and is never applied twice. */
        weir__hand_take(w, slots[i], WEIR__HAND_GRANTING, 0);
        weir__store_release(&e->reported, reported ? WEIR__SEAM_ANSWERED : 0);
        if (reported == 1)
            apply(w, slots[i], now, &grants[i]);
        weir__hand_empty(w);
        if (!w->state->shared)
            weir__seam_end(w, slots[i]);
    }
    weir__unlock(&w->state->walk_lock);
}

void weir__seam_apply(struct weir *w, uint32_t slot, uint64_t now, const struct weir__grant *grant)
{
    weir__seam_apply_all(w, &slot, 1, now, grant);
}

void weir__seam_end(struct weir *w, uint32_t slot)
{
    struct weir__hot *e = &w->hot[slot];

    if (weir__load_relaxed(&e->reported) != WEIR__SEAM_ANSWERED)
        return;
    weir__store_release(&e->reported, 0);
    unpin(e);
}

void weir__seam_pause(struct weir *w, uint32_t slot, uint64_t at)
{
    weir__workers_walk(w);
    if (weir__load_relaxed(&w->hot[slot].reported) == 1)
        halt(w, slot, at);
    weir__unlock(&w->state->walk_lock);
}

void weir__seam_strand(struct weir *w, uint32_t slot, uint64_t now)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__slice *slice = &w->slice[slot];
    uint8_t regime;

    weir__workers_walk(w);
    regime = weir__load_relaxed(&e->regime);
    if (weir__load_relaxed(&e->reported) == 1 && (regime == WEIR__BARE || regime == WEIR__SLICED)) {
        weir__store_relaxed(&e->noted, 1);
        if (regime == WEIR__BARE)
            weir__store_relaxed(&slice->low, INT64_MIN);
        if (weir__load_relaxed(&slice->until) == 0)
            weir__store_relaxed(&slice->until, now ? now : 1);
        /* release: what it has in force, {0, 0}, is in its record as well, and until is told */
        weir__store_release(&e->regime, WEIR__SLICED);
    }
    weir__unlock(&w->state->walk_lock);
}

void weir__seam_release(struct weir *w, uint32_t slot, int64_t unsent_spent, int64_t unsent_refunded)
{
    struct weir__hot *e = &w->hot[slot];
    struct weir__cold *cold = &w->cold[slot];
    struct weir__slice *slice = &w->slice[slot];
    uint8_t k = weir__load_relaxed(&e->k), reported;
    uint64_t at;
    int64_t fallen;

    weir__workers_walk(w);
    reported = weir__load_relaxed(&e->reported);
    if (reported == 1) {
        struct weir__view v;

        look(w, e, 0, &v); /* who holds the lock bit may be writing base */
        k = v.k;
        weir__hand_take(w, slot, WEIR__HAND_GIVING, weir__load_relaxed(&cold->base) - ((uint64_t)unsent_spent << k));
    }
    weir__store_release(&e->reported, 0);
    if (reported == 1) {
        atomic_fetch_sub_explicit(&cold->base, (uint64_t)unsent_spent << k, memory_order_release);
        atomic_fetch_add_explicit(&cold->refunded, (uint64_t)unsent_refunded, memory_order_release);
        fallen = slice->sent_fall < unsent_spent ? slice->sent_fall : unsent_spent;
        if (fallen > 0)
            atomic_fetch_add_explicit(&slice->fall_spent, fallen, memory_order_relaxed);
        at = weir__load_relaxed(&slice->global_at);
        if (at)
            weir__hybrid_fleet_set(
                slice, weir__load_relaxed(&slice->global) + (unsent_spent - unsent_refunded) * (INT64_C(1) << k), at);
        /* on its fallback share it stays until a report is answered */
        if (unsent_spent || unsent_refunded || weir__load_relaxed(&e->f) & WEIR__FALL)
            weir__dirty_list(w, e);
    }
    if (reported)
        unpin(e);
    weir__hand_empty(w);
    weir__unlock(&w->state->walk_lock);
}

/* ---- what is left ------------------------------------------------------------------------------------------------ */

int weir__seam_dirty(struct weir *w)
{
    return weir__dirty_any(w);
}

uint64_t weir__seam_unsent(struct weir *w)
{
    size_t words = weir__dirty_words(w);
    uint64_t total = 0;

    weir__workers_walk(w);
    for (size_t word = 0; word < words; word++) {
        uint64_t mask = weir__load_acquire(&w->dirty[word]), ahead = mask;

        prefetch_ahead(w, word, &ahead, PREFETCH_AHEAD);
        for (; mask; mask &= mask - 1) {
            uint32_t slot = (uint32_t)(word * 64 + (unsigned)__builtin_ctzll(mask));
            struct weir__hot *e = &w->hot[slot];
            struct weir__view v;
            int64_t spent;

            prefetch_ahead(w, word, &ahead, 1);
            if (weir__load_acquire(&e->id[0]) == 0 || weir__load_acquire(&e->regime) == WEIR__LOCAL)
                continue;
            look(w, e, 0, &v);
            spent = weir__hybrid_whole(weir__hybrid_unreported(w, slot, v.x), v.k);
            total += spent > 0 ? (uint64_t)spent : 0;
        }
    }
    weir__unlock(&w->state->walk_lock);
    return total;
}

uint32_t weir__seam_slots(const struct weir *w)
{
    return w->slots;
}
