/* SPDX-License-Identifier: MIT */
/*
 * The scripts of sync/lua in C, function by function under their names there, so that the two can be read side by side.
 * What they say of reasons is not repeated here.
 */
#include "tools/simulate_store.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tools/simulate_members.h"

#define US SIMULATE_US
#define LIVE SIMULATE_LIVE
#define REMEMBER SIMULATE_REMEMBER
#define STRAGGLE (10 * US)
#define AWAY (6 * US)
#define NOTHING_SEEN 1e300

/* One script at work. */
struct script {
    struct simulate_store *s;
    struct simulate_value *k;
    double now;
    int gathering, outage;
    int own; /* index of the asking node's slice; -1: none */
    int woke;
    double rate; /* what is to be given */
};

/* ---- the header -------------------------------------------------------------------------------------------------- */

static void lost(struct simulate_store *s, double now)
{
    s->epoch++;
    s->began = now;
    s->recover = now + s->life;
    s->settled = now + REMEMBER;
    s->came = s->expected = 0;
}

static void estranged(struct simulate_store *s, double now, int fresh)
{
    if (s->recover != 0 && !fresh)
        return;
    lost(s, now);
    if (!fresh && now <= s->created + LIVE)
        s->began = s->created;
}

static void came(struct simulate_store *s, double now, double nodes)
{
    s->came++;
    s->expected = fmax(s->expected, nodes);
    s->settled = s->came >= s->expected ? fmax(s->recover, now + STRAGGLE) : s->recover - s->life + REMEMBER;
}

static double recalled(const struct simulate_store *s, double now, double level, double age, double *out)
{
    double since = s->began == 0 ? 0 : now - s->began;

    *out = fmax(0, fmin(LIVE, *out - since));
    if (age > since) {
        level = fmin(s->burst, level + s->rate * fmax(0, age - since - *out));
        age = since;
    }
    return level + s->rate * (now - (now - age));
}

static double generation_length(const struct weir__wire_numbers *n)
{
    return weir__wire_generation(n->limit, n->per_ns, n->burst, n->overshoot) * US;
}

static void create(struct simulate_store *s, const struct weir__wire_numbers *n, double now)
{
    s->exists = 1;
    s->numbers = *n;
    s->rate = (double)n->limit * 1e3 / (double)n->per_ns;
    s->burst = (double)n->burst;
    s->over = (double)n->overshoot;
    s->interval = n->interval * US;
    s->timeout = n->timeout * US;
    s->life = 1.5 * s->interval + 2 * s->timeout;
    s->high = s->swept = s->created = now;
    s->epoch++;
    s->length = generation_length(n);
    s->flip = now + s->length;
}

static void flip(struct simulate_store *s, double now)
{
    s->has_previous = now < s->flip + s->length ? s->has_current : 0;
    s->has_current = 0;
    s->generation++;
    s->flip = now + s->length;
}

/* Returns the shard's time: never earlier than before. *fresh: it was made just now. */
static double open_shard(struct simulate_store *s, const struct weir__wire_numbers *numbers, double now_s, int *fresh)
{
    double now = (double)llround(now_s * US);

    *fresh = !s->exists;
    if (!s->exists) {
        create(s, numbers, now);
    } else {
        now += s->offset;
        if (now < s->high) {
            s->offset += s->high - now;
            now = s->high;
        }
        s->high = now;
    }
    if (now >= s->flip)
        flip(s, now);
    return now;
}

/* Is the key's value in one of the two generations? */
static int is_there(const struct simulate_store *s)
{
    if (s->key.form == SIMULATE_ABSENT)
        return 0;
    return (s->has_current && s->key_generation == s->generation) ||
           (s->has_previous && s->key_generation + 1 == s->generation);
}

static void written(struct simulate_store *s)
{
    s->has_current = 1;
    s->key_generation = s->generation;
}

static void head_of(const struct simulate_store *s, double now, enum weir__wire_status status, double last, double q0,
                    struct weir__wire_head *head)
{
    *head = (struct weir__wire_head){.format = WEIR__WIRE_FORMAT,
                                     .status = status,
                                     .now = now / US,
                                     .epoch = s->epoch,
                                     .last = last,
                                     .numbers = s->numbers,
                                     .nodes = s->nodes,
                                     .q0 = q0,
                                     .pool = fmax(0, s->over - s->reserve),
                                     .recovering = fmax(0, s->recover - now) / US,
                                     .shards = 1};
}

/* ---- the key: slices.lua ----------------------------------------------------------------------------------------- */

static double plain(const struct script *c)
{
    const struct simulate_store *s = c->s;
    double level = s->burst;

    if (is_there(s)) {
        level = s->key.level;
        if (c->now > s->key.at)
            level += s->rate * (c->now - s->key.at);
    }
    return fmin(level, s->burst);
}

/* One slice that was silent for a lifetime. Returns 0 where nothing of it is worth remembering. */
static int expire(struct script *c, struct simulate_slice *slice, double bury, double cut, double *reserved)
{
    double p = slice->reserved + (double)slice->rate * c->s->life;

    slice->rate = slice->use = 0;
    slice->credit = (float)((double)slice->credit + (double)slice->fallback * cut);
    if (slice->at < bury && c->k->level - fmax(p, 0) >= -(c->s->burst + c->s->over)) {
        p = fmax(p, 0);
        slice->demand = -1;
        slice->cap = 0;
        c->k->level -= p;
        c->k->expected -= p;
        c->k->charged += p;
    }
    slice->reserved = *reserved = p;
    return !(slice->demand < 0 && p == 0 && slice->credit == 0);
}

static void rebuild(struct script *c, double bury, double cut)
{
    struct simulate_value *k = c->k;
    uint32_t kept = 0;
    int own = -1;

    k->reserved = k->rates = k->fallbacks = k->demands = k->caps = k->holders = k->use = k->unseen = 0;
    for (uint32_t i = 0; i < k->count; i++) {
        struct simulate_slice slice = k->slices[i];
        double quiet = c->now - slice.at, p = slice.reserved;
        int keep = 1;

        if ((int)i == c->own) {
            own = (int)kept;
        } else if (slice.demand < 0) {
            keep = quiet <= REMEMBER;
        } else {
            if (quiet > c->s->life) {
                keep = expire(c, &slice, bury, cut, &p);
                quiet = 0;
            }
            if (slice.demand >= 0) {
                k->reserved += p + (double)slice.rate * quiet;
                k->rates += (double)slice.rate;
                k->fallbacks += (double)slice.fallback;
                k->demands += (double)slice.demand;
                k->caps += (double)slice.cap;
                k->holders++;
                k->use += (double)slice.use;
                k->unseen += (double)slice.use * quiet;
            }
        }
        if (keep)
            k->slices[kept++] = slice;
    }
    k->count = kept;
    c->own = own;
    k->sweep = c->now + c->s->interval;
}

static double unnoticed(const struct simulate_store *s, double level, double at)
{
    if (at < s->began || at >= s->recover - s->life)
        return 0;
    return fmax(0, s->burst + s->rate * (at - s->began) - level);
}

static void load(struct script *c, double back)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    double now = c->now, since = k->at, gone = fmax(0, now - since);
    double gain = gone > back ? s->rate * (gone - back) : 0;

    if (since < s->began)
        k->charged = 0;
    else if (now < s->settled)
        k->charged = fmax(k->charged, unnoticed(s, k->level, since));
    if (gone > s->life) {
        double cut = c->outage ? fmax(0, fmin(60 * US, gone - 2 * s->timeout)) : 0;
        gain -= k->fallbacks * cut;
        k->charged += k->fallbacks * cut;
        rebuild(c, since - s->life, cut);
        k->unseen = 0;
        k->outage_end = now;
        k->sweep = now + s->life;
        c->woke = k->holders > 0;
    } else {
        k->unseen += k->use * gone;
        k->reserved += k->rates * gone;
    }
    k->level = fmin(k->level + gain, s->burst);
    k->expected = fmin(k->expected + gain, s->burst + fmax(0, k->unseen));
    k->expected = fmax(k->expected, k->level);
}

/* Brings c->k to the present. seed: what a node last saw of it, or NOTHING_SEEN. */
static void bring(struct script *c, double back, double seed)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    int there = is_there(s);
    double level;

    c->own = -1;
    c->woke = 0;
    if (there && k->form == SIMULATE_SLICED) {
        load(c, back);
        if (seed - k->charged < k->level)
            k->level = k->expected = seed - k->charged;
        return;
    }
    level = s->burst;
    if (there) {
        level = k->level;
        if (c->now - back > k->at)
            level += s->rate * (c->now - back - k->at);
        level = fmin(level, s->burst);
    }
    k->charged = there && c->now < s->settled ? unnoticed(s, k->level, k->at) : 0;
    if (seed - k->charged < level)
        level = seed - k->charged;
    k->level = k->expected = level;
    k->sweep = c->now + s->interval;
    k->reserved = k->rates = k->fallbacks = k->demands = k->caps = k->holders = k->use = k->unseen = 0;
    k->outage_end = 0;
    k->count = 0;
}

static void spend(struct simulate_value *k, double tokens)
{
    k->level -= tokens;
    k->expected -= tokens;
    k->charged += tokens;
}

/* Whole tokens below the floor of a debt: the node will report them again. */
static double carried(const struct simulate_store *s, double level)
{
    double bottom = -(s->burst + s->over);
    return level < bottom ? floor(bottom - level) : 0;
}

/* What value_of and store do: mine may be NULL. Returns -1 where there is no room. */
static int put(struct script *c, const struct simulate_slice *mine)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;

    double unpaid = carried(s, k->level);
    k->level += unpaid;
    k->charged -= unpaid;
    k->expected = fmax(k->expected, k->level);
    if (c->own >= 0) {
        memmove(&k->slices[c->own], &k->slices[c->own + 1], (k->count - (uint32_t)c->own - 1) * sizeof k->slices[0]);
        k->count--;
    }
    if (mine) {
        if (k->count == SIMULATE_SLICES)
            return -1;
        k->slices[k->count++] = *mine;
    }
    k->at = c->now;
    k->form = k->count == 0 && c->now >= s->settled ? SIMULATE_PLAIN : SIMULATE_SLICED;
    written(s);
    return 0;
}

/* ---- one record: reconcile.lua ----------------------------------------------------------------------------------- */

static void find_own(struct script *c, const uint8_t *id)
{
    for (uint32_t i = 0; i < c->k->count && c->own < 0; i++)
        if (memcmp(c->k->slices[i].node, id, sizeof c->k->slices[i].node) == 0)
            c->own = (int)i;
}

/* Returns what was written off of it. */
static double take_own(struct script *c, const uint8_t *id, double *credit)
{
    struct simulate_value *k = c->k;

    *credit = 0;
    find_own(c, id);
    if (c->own < 0)
        return 0;
    const struct simulate_slice *own = &k->slices[c->own];
    double quiet = c->now - own->at;
    *credit = (double)own->credit;
    if (own->demand < 0)
        return own->reserved;
    if (--k->holders <= 0) {
        k->reserved = k->rates = k->fallbacks = k->demands = k->caps = k->holders = k->use = k->unseen = 0;
    } else {
        k->reserved -= own->reserved + (double)own->rate * quiet;
        k->rates -= (double)own->rate;
        k->fallbacks -= (double)own->fallback;
        k->demands -= (double)own->demand;
        k->caps -= (double)own->cap;
        k->use -= (double)own->use;
        k->unseen -= (double)own->use * quiet;
    }
    return 0;
}

static void sweep(struct script *c)
{
    if (c->now >= c->k->sweep && !c->gathering)
        rebuild(c, c->now, 0);
}

static double charge(struct script *c, const uint8_t *id, const struct weir__wire_record *record, double back,
                     double paid)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    double fall = (double)record->fallback_spent, spent = (double)record->spent - fall, credit;
    double off = take_own(c, id, &credit), more, top = s->burst;

    if (c->now > k->outage_end + LIVE)
        credit = 0;
    if (off > 0)
        spent = fmax(0, spent - off);
    credit = fmax(credit, paid);
    if (fall > 0) {
        spent += fmax(0, fmin(fall - credit, k->level - spent + s->burst));
        credit = fmax(0, credit - fall);
    }
    more = (double)record->refunded + s->rate * back;
    k->charged += spent - (double)record->refunded;
    k->level = fmin(k->level - spent + more, top);
    if (k->unseen > 0)
        top += k->unseen;
    k->expected = fmax(fmin(k->expected - spent + more, top), k->level);
    sweep(c);
    return credit;
}

struct ask {
    double level, rate, demand, want, most;
};

struct share {
    double cap, target, fallback, scarce, part;
};

static struct share share(const struct script *c, double avail, const struct ask *a)
{
    const struct simulate_store *s = c->s;
    const struct simulate_value *k = c->k;
    double r = c->rate, half = s->burst / 2, all = k->demands + a->demand;
    double part = all > a->demand ? a->demand / all : 1, least = fmin(a->want, 2);
    struct share out = {.cap = fmin(a->want, half * part), .part = part};

    if (out.cap < least)
        out.cap = half >= least * (k->holders + 1) ? least : 0;
    if (out.cap <= 0)
        return (struct share){.part = part};
    if (a->most > out.cap && (k->holders > 0 ? half : s->burst) >= a->most * (k->holders + 1))
        out.cap = a->most;
    out.scarce = 0.25;
    out.target = avail < 0 ? fmax(r / 2, r + avail * 1e-6) : r;
    if (all >= r)
        out.scarce = avail <= 0 ? 1 : fmax(0.25, 1 - avail / fmin(all * s->interval, half / 2));
    out.target = out.scarce * fmin(out.target * part, a->demand);
    out.fallback = r * part;
    if (out.fallback > r - k->fallbacks)
        out.fallback = fmax(0, r - k->fallbacks);
    return out;
}

struct grant {
    double level, rate, cap, fallback, hold, left;
};

static double hold(const struct script *c, const struct share *share, double goal, const struct grant *g)
{
    double r = c->rate, interval = c->s->interval, hold = 0, avail = g->left;

    if (avail < 1) {
        double left = r - c->k->rates;
        hold = fmax((1 - avail) / r, fmin(left > 1e-15 ? (1 - avail) / left : 1e24, interval));
    } else if (share->scarce > 0.5 && g->level < goal - 1e-6 && g->rate >= 0.7 * share->target) {
        hold = 0.1 * interval;
    }
    if (goal > 0 && g->rate < 0.7 * share->target && hold > 0.1 * interval)
        hold = 0.1 * interval;
    return hold;
}

static struct grant grant(struct script *c, double sure, const struct ask *a)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    double r = c->rate, pool = fmax(0, s->over - s->reserve), avail = k->expected, g = 0, have, room;

    if (sure < k->level)
        avail += sure - k->level;
    avail = fmin(avail, sure + pool);
    struct share sh = share(c, avail, a);
    double goal = sh.cap, rate = fmin(fmin(sh.target, sh.fallback), r - k->rates);
    if (rate < 1e-5 * r)
        rate = 0;
    have = fmax(0, avail);
    if (a->level < 0)
        g = fmin(-a->level, have);
    if (goal > a->level + g)
        g += fmax(0, fmin(goal - a->level - g, (have - g) * fmax(sh.part, 0.5 / (k->holders + 1))));
    if (goal > 0 && rate < sh.target - 1e-9)
        g += fmax(0, fmin((sh.target - rate) * s->interval, sure - g + pool));
    room = s->burst - k->caps;
    g = fmax(0, fmin(g, a->level > 0 ? room - a->level : room));
    struct grant out = {.level = a->level + g, .rate = rate, .cap = fmax(0, a->level + g), .fallback = sh.fallback};
    if (rate > 0)
        out.cap = fmax(out.cap, fmin(goal, room));
    k->rates += rate;
    out.left = avail - g;
    out.hold = out.left >= 1 && sh.scarce <= 0.5 ? 0 : hold(c, &sh, goal, &out);
    return out;
}

static struct grant keep(struct script *c, const struct ask *a)
{
    double rate = fmax(0, fmin(a->rate, c->rate - c->k->rates));
    struct ask nothing = *a;
    nothing.most = 0;
    struct share sh = share(c, 0, &nothing);

    c->k->rates += rate;
    return (struct grant){.level = a->level,
                          .rate = rate,
                          .cap = fmax(0, a->level),
                          .fallback = sh.fallback,
                          .hold = c->s->recover - c->now};
}

/* For nodes that are not back yet. */
static double kept_for_others(struct script *c, const struct ask *a)
{
    const struct simulate_store *s = c->s;
    double missing = s->expected - s->came, theirs;

    c->rate = s->rate;
    if (missing <= 0 || c->now >= s->began + AWAY)
        return 0;
    theirs = s->rate * missing / s->expected;
    c->rate -= theirs;
    theirs = fmin(theirs, (c->k->demands + a->demand) / (c->k->holders + 1) * missing);
    return fmin(s->burst, theirs * (c->now - s->began + s->life));
}

static int long_record(struct script *c, const struct weir__wire_batch *batch, double seed, double paid,
                       struct weir__wire_grant *out)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    const struct weir__wire_record *record = &batch->records[0];
    struct ask a = {0};
    struct simulate_slice mine;
    double age = record->age * US, back = 0;

    if (record->slice)
        a = (struct ask){record->level, record->rate / US, record->demand / US, record->want, record->max_cost};
    if (age > 0 && is_there(s))
        back = fmax(0, fmin(age, c->now - k->at));
    bring(c, back, seed);
    double credit = charge(c, batch->node, record, back, paid), inflight = a.rate * batch->rtt * US;
    double sure = k->level - k->reserved - kept_for_others(c, &a) - a.level - inflight;
    struct grant g = c->gathering ? keep(c, &a) : grant(c, sure, &a);
    double unpaid = carried(s, k->level), p = g.level + inflight;
    if (unpaid > 0)
        p = fmax(0, p) + unpaid;
    int holds = a.demand > 0 || g.rate > 0 || p > 1e-9 || p < -1e-9;
    if (holds) {
        double use = fmin(g.rate + (g.level > 0 ? g.level / s->interval : 0), a.demand);
        k->reserved += p;
        k->fallbacks += g.fallback;
        k->demands += a.demand;
        k->caps += g.cap;
        k->holders++;
        k->use += use;
        mine = (struct simulate_slice){.at = c->now, .reserved = p, .rate = (float)g.rate, .cap = (float)g.cap};
        mine.demand = (float)a.demand;
        mine.fallback = (float)g.fallback;
        mine.use = (float)use;
        mine.credit = (float)credit;
        memcpy(mine.node, batch->node, sizeof mine.node);
    }
    *out = (struct weir__wire_grant){.total = k->level,
                                     .free = k->level + unpaid - k->reserved,
                                     .level = g.level,
                                     .rate = g.rate * US,
                                     .cap = g.cap,
                                     .fallback = g.fallback * US,
                                     .hold = g.hold / US,
                                     .rich = g.left >= 1};
    return put(c, holds ? &mine : NULL);
}

/* A short record of a key that has slices, or while state is being gathered. */
static int short_sliced(struct script *c, const struct weir__wire_batch *batch, double seed,
                        struct weir__wire_grant *out)
{
    struct simulate_value *k = c->k;
    const struct weir__wire_record *record = &batch->records[0];

    struct simulate_slice mine = {.at = c->now};
    double unpaid = 0;

    bring(c, 0, seed);
    find_own(c, batch->node);
    int alive = c->own >= 0 && k->slices[c->own].demand > 0;
    c->own = -1;
    if (alive) {
        spend(k, (double)record->spent);
        k->level = fmin(c->s->burst, k->level);
        sweep(c);
    } else {
        mine.credit = (float)charge(c, batch->node, record, 0, 0);
        unpaid = carried(c->s, k->level);
    }
    if (unpaid > 0) {
        k->reserved += unpaid;
        k->holders++;
        mine.reserved = unpaid;
        memcpy(mine.node, batch->node, sizeof mine.node);
    }
    *out = (struct weir__wire_grant){.total = k->level, .free = k->level + unpaid - k->reserved};
    return put(c, unpaid > 0 ? &mine : NULL);
}

static int short_record(struct script *c, const struct weir__wire_batch *batch, double seed,
                        struct weir__wire_grant *out)
{
    struct simulate_value *k = c->k;
    const struct weir__wire_record *record = &batch->records[0];

    if (c->now < c->s->settled || seed < NOTHING_SEEN || (is_there(c->s) && k->form == SIMULATE_SLICED))
        return short_sliced(c, batch, seed, out);
    double level = fmin(c->s->burst, plain(c) - (double)record->spent);
    if (carried(c->s, level) > 0)
        return short_sliced(c, batch, seed, out);
    *out = (struct weir__wire_grant){.total = level, .free = level};
    if (record->spent == 0)
        return 0;
    k->level = level;
    k->at = c->now;
    k->form = SIMULATE_PLAIN;
    k->count = 0;
    written(c->s);
    return 0;
}

/* ---- a batch: batch.lua ------------------------------------------------------------------------------------------ */

/* Is the batch to be applied? If not, *head is the answer. */
static int is_new(struct simulate_store *s, const struct weir__wire_batch *batch, struct simulate_member *known,
                  double now, int fresh, struct weir__wire_head *head, struct weir__wire_grant *grant)
{
    double last = known ? known->seq : 0, seq = (double)batch->seq;
    enum weir__wire_status status = WEIR__WIRE_APPLIED;

    if (batch->epoch != 0 && batch->epoch != s->epoch) {
        estranged(s, now, fresh);
        status = WEIR__WIRE_LOST;
    } else if (known && seq <= last) {
        if (seq == last) {
            *head = known->head;
            head->status = WEIR__WIRE_REPEAT;
            *grant = known->grant;
            return 0;
        }
        status = WEIR__WIRE_OLD;
    } else if (!(batch->flags & WEIR__WIRE_HELLO) && seq != (known ? last : -1) + 1) {
        if (known)
            lost(s, now);
        status = WEIR__WIRE_LOST;
    }
    if (status != WEIR__WIRE_APPLIED)
        head_of(s, now, status, last, 0, head);
    return status == WEIR__WIRE_APPLIED;
}

int simulate_store_sync(struct simulate_store *s, const struct weir__wire_batch *batch, struct weir__wire_head *head,
                        struct weir__wire_grant *out)
{
    int fresh, status = 0;
    double now = open_shard(s, &batch->numbers, batch->test_now, &fresh), seed = NOTHING_SEEN;
    struct simulate_member *member = simulate_find_member(s, batch->node);
    const struct weir__wire_record *record = batch->count ? &batch->records[0] : NULL;

    memset(out, 0, sizeof *out);
    if (!is_new(s, batch, member, now, fresh, head, out))
        return 0;
    if ((batch->flags & WEIR__WIRE_HELLO) && batch->nodes > 0 && (member ? member->said : 0) < s->began &&
        now < s->began + REMEMBER)
        came(s, now, batch->nodes);
    struct simulate_member is = member ? *member : (struct simulate_member){0};
    simulate_promise(s, &is, now, record ? fmax(0, -record->level) : 0);
    member = simulate_find_member(s, batch->node); /* counting may have moved it, or forgotten it */
    if (!member && !(member = simulate_add_member(s, batch->node)))
        return -1;
    struct script c = {.s = s, .k = &s->key, .now = now, .own = -1, .gathering = now < s->recover};
    c.outage = (batch->flags & WEIR__WIRE_OUTAGE_LOCAL) != 0;
    head_of(s, now, WEIR__WIRE_APPLIED, (double)batch->seq, is.q0, head);
    if (record) {
        int is_long = weir__wire_is_long(record);
        double away = is_long && c.outage ? record->age * US : 0, paid = 0;
        if (record->known && (batch->flags & WEIR__WIRE_HELLO)) {
            seed = recalled(s, now, record->seed, record->seed_age * US, &away);
            paid = record->fallback / US * away;
        }
        status = is_long ? long_record(&c, batch, seed, paid, out) : short_record(&c, batch, seed, out);
        out->carried = (int64_t)carried(s, out->total);
    }
    member->seq = (double)batch->seq;
    member->said = now;
    member->counted = is.counted;
    member->q0 = is.q0;
    member->told = is.told;
    member->till = is.till;
    member->head = *head;
    member->grant = *out;
    return status;
}

/* ---- strict: decide.lua and strict.lua --------------------------------------------------------------------------- */

/* Copies what counts of a value. */
static void copy_value(struct simulate_value *to, const struct simulate_value *from)
{
    memcpy(to, from, offsetof(struct simulate_value, slices));
    memcpy(to->slices, from->slices, from->count * sizeof from->slices[0]);
}

int simulate_store_take(struct simulate_store *s, const struct weir__wire_numbers *numbers, uint32_t flags, double at,
                        int64_t cost, double *free)
{
    int fresh, admitted;
    double now = open_shard(s, numbers, at, &fresh), left;
    struct script c = {.s = s, .k = &s->scratch, .now = now, .own = -1, .gathering = now < s->recover};

    c.outage = (flags & WEIR__WIRE_OUTAGE_LOCAL) != 0;
    copy_value(&s->scratch, &s->key);
    bring(&c, 0, NOTHING_SEEN);
    if (now >= c.k->sweep && c.k->count > 0 && !c.gathering)
        rebuild(&c, now, 0);
    left = fmin(c.k->level, c.k->level - c.k->reserved);
    admitted = !c.gathering && floor(left / (double)cost + 1e-9) >= 1;
    if (admitted || c.woke) {
        if (admitted) {
            double before = c.k->level;
            c.k->level -= (double)cost;
            c.k->charged += before - c.k->level;
            c.k->expected = fmax(c.k->level, fmin(s->burst + fmax(0, c.k->unseen), c.k->expected - (double)cost));
            left -= (double)cost;
        }
        put(&c, NULL);
        copy_value(&s->key, &s->scratch);
    }
    *free = left;
    return admitted;
}

void simulate_store_look(struct simulate_store *s, double at, double *total, double *free)
{
    struct script c = {.s = s, .k = &s->scratch, .now = (double)llround(at * US) + s->offset, .own = -1};

    copy_value(&s->scratch, &s->key);
    bring(&c, 0, NOTHING_SEEN);
    *total = c.k->level;
    *free = c.k->level - c.k->reserved;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void simulate_store_init(struct simulate_store *s)
{
    memset(s, 0, offsetof(struct simulate_store, key));
    memset(&s->key, 0, offsetof(struct simulate_value, slices));
    memset(&s->scratch, 0, offsetof(struct simulate_value, slices));
}

void simulate_store_deinit(struct simulate_store *s)
{
    free(s->members);
    s->members = NULL;
}

void simulate_store_forget(struct simulate_store *s)
{
    double epoch = s->epoch;

    simulate_store_deinit(s);
    simulate_store_init(s);
    s->epoch = epoch;
}
