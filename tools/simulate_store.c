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

#define US 1e6
#define LIVE (60 * US)
#define REMEMBER (600 * US)
#define NOTHING_SEEN 1e300

/* One script at work. */
struct script {
    struct simulate_store *s;
    struct simulate_value *k;
    double now;
    int gathering, outage;
    int own; /* index of the asking node's slice; -1: none */
    int woke;
};

/* ---- the header -------------------------------------------------------------------------------------------------- */

static void lost(struct simulate_store *s, double now)
{
    s->epoch++;
    s->recover = now + s->life;
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
    s->high = s->swept = now;
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

static struct simulate_member *find_member(struct simulate_store *s, const uint8_t *id)
{
    for (uint32_t i = 0; i < s->member_count; i++)
        if (memcmp(s->members[i].id, id, WEIR__WIRE_ID) == 0)
            return &s->members[i];
    return NULL;
}

static struct simulate_member *add_member(struct simulate_store *s, const uint8_t *id)
{
    if (s->member_count == s->member_room) {
        uint32_t room = s->member_room ? 2 * s->member_room : 16;
        struct simulate_member *more = realloc(s->members, room * sizeof *more);
        if (!more)
            return NULL;
        s->members = more;
        s->member_room = room;
    }
    struct simulate_member *member = &s->members[s->member_count++];
    memset(member, 0, sizeof *member);
    memcpy(member->id, id, WEIR__WIRE_ID);
    return member;
}

static void count_nodes(struct simulate_store *s, double now)
{
    uint32_t kept = 0;

    s->nodes = s->promised = 0;
    s->swept = now;
    for (uint32_t i = 0; i < s->member_count; i++) {
        const struct simulate_member *member = &s->members[i];
        if (member->said >= now - LIVE) {
            s->nodes++;
            s->promised += member->counted;
        }
        if (member->said >= now - REMEMBER)
            s->members[kept++] = *member;
    }
    s->member_count = kept;
}

/* known: what the shard remembered of the node, or NULL. Returns its overdraft; *counted: what is reserved for it. */
static double promise(struct simulate_store *s, const struct simulate_member *known, double now, double *counted)
{
    double heard = known ? known->q0 : 0, said = known ? known->said : 0, q0;
    int is_known = known != NULL;

    *counted = known ? known->counted : 0;
    if (now >= s->swept + 10 * US)
        count_nodes(s, now);
    double others = s->promised;
    if (is_known && said >= s->swept - LIVE)
        others -= *counted;
    else
        s->nodes++;
    double each = floor(0.75 * s->over / s->nodes + 1e-9), want = each * s->nodes;
    if (s->raised == 0) {
        s->reserve = want;
        s->raised = now;
        s->promisable = s->recover == 0 ? want : 0;
    } else if (want > s->reserve) {
        s->reserve = want;
        s->raised = now;
    } else if (now >= s->raised + s->length) {
        s->promisable = s->reserve;
    }
    q0 = fmax(0, fmin(each, floor(s->promisable - others + 1e-9)));
    *counted = said >= now - LIVE && heard > q0 ? heard : q0;
    s->promised = others + *counted;
    if (want < s->reserve && s->promised <= want)
        s->reserve = want;
    s->promisable = fmin(s->promisable, s->reserve);
    return q0;
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

static void load(struct script *c, double back)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    double now = c->now, since = k->at, gone = fmax(0, now - since);
    double gain = gone > back ? s->rate * (gone - back) : 0;

    if (since < s->recover - s->life)
        k->charged = 0;
    if (gone > s->life) {
        double cut = c->outage ? fmax(0, fmin(60 * US, gone - 2 * s->timeout)) : 0;
        gain -= k->fallbacks * cut;
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
        if (c->now < s->recover && seed - k->charged < k->level)
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
    if (seed < level && (!there || c->now < s->recover))
        level = seed;
    k->level = k->expected = level;
    k->sweep = c->now + s->interval;
    k->reserved = k->rates = k->fallbacks = k->demands = k->caps = k->holders = k->use = k->unseen = 0;
    k->outage_end = k->charged = 0;
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

    k->level += carried(s, k->level);
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
    k->form = k->count == 0 && c->now >= s->recover ? SIMULATE_PLAIN : SIMULATE_SLICED;
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

static double charge(struct script *c, const uint8_t *id, const struct weir__wire_record *record, double back)
{
    struct simulate_store *s = c->s;
    struct simulate_value *k = c->k;
    double fall = (double)record->fallback_spent, spent = (double)record->spent - fall, credit;
    double off = take_own(c, id, &credit), more, top = s->burst;

    if (c->now > k->outage_end + LIVE)
        credit = 0;
    if (off > 0)
        spent = fmax(0, spent - off);
    if (fall > 0) {
        spent += fmax(0, fmin(fall - credit, k->level - spent + s->burst));
        credit = fmax(0, credit - fall);
    }
    more = (double)record->refunded + s->rate * back;
    k->charged += spent;
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
    double r = s->rate, half = s->burst / 2, all = k->demands + a->demand;
    double part = all > a->demand ? a->demand / all : 1, least = fmin(a->want, 2);
    struct share out = {.cap = fmin(a->want, half * part), .part = part};

    if (out.cap < least)
        out.cap = half >= least * (k->holders + 1) ? least : 0;
    if (out.cap <= 0)
        return (struct share){.part = part};
    if (a->most > out.cap && half >= a->most * (k->holders + 1))
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
    double r = c->s->rate, interval = c->s->interval, hold = 0, avail = g->left;

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
    double r = s->rate, pool = fmax(0, s->over - s->reserve), avail = k->expected, g = 0, have, room;

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
    double rate = fmax(0, fmin(a->rate, c->s->rate - c->k->rates));
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

static int long_record(struct script *c, const struct weir__wire_batch *batch, double seed,
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
    double credit = charge(c, batch->node, record, back), inflight = a.rate * batch->rtt * US;
    double sure = k->level - k->reserved - a.level - inflight;
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
        mine.credit = (float)charge(c, batch->node, record, 0);
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

    if (c->gathering || seed < NOTHING_SEEN || (is_there(c->s) && k->form == SIMULATE_SLICED))
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
        if (s->recover == 0 || fresh)
            lost(s, now);
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
    struct simulate_member *member = find_member(s, batch->node);
    const struct weir__wire_record *record = batch->count ? &batch->records[0] : NULL;

    memset(out, 0, sizeof *out);
    if (!is_new(s, batch, member, now, fresh, head, out))
        return 0;
    double counted, q0 = promise(s, member, now, &counted);
    member = find_member(s, batch->node); /* counting may have moved it, or forgotten it */
    if (!member && !(member = add_member(s, batch->node)))
        return -1;
    struct script c = {.s = s, .k = &s->key, .now = now, .own = -1, .gathering = now < s->recover};
    c.outage = (batch->flags & WEIR__WIRE_OUTAGE_LOCAL) != 0;
    head_of(s, now, WEIR__WIRE_APPLIED, (double)batch->seq, q0, head);
    if (record) {
        if (record->known && (batch->flags & WEIR__WIRE_HELLO))
            seed = record->seed;
        status = weir__wire_is_long(record) ? long_record(&c, batch, seed, out) : short_record(&c, batch, seed, out);
        out->carried = (int64_t)carried(s, out->total);
    }
    member->seq = (double)batch->seq;
    member->said = now;
    member->counted = counted;
    member->q0 = q0;
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
