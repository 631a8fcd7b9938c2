/* SPDX-License-Identifier: MIT */
/*
 * The node's arithmetic of slices. Owns no state and no clock; it must not know the wire, sockets or the table.
 */
#include "sync/slice.h"

#include <math.h>
#include <string.h>

#define DEMAND_EWMA 0.5 /* s */
#define LONG 10         /* intervals: nobody's next take of many tokens is waited for any longer */
#define SHORTEST 0.020  /* s: no key is reported more often by its timer */
#define MARGIN 50       /* 1 / MARGIN of a lifetime: clocks differ, and a decision takes a moment */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

/* ---- terms ------------------------------------------------------------------------------------------------------- */

void weir__slice_terms_set(struct weir__slice_terms *terms, uint64_t limit, uint64_t per_ns, uint64_t burst,
                           uint64_t overshoot, double interval, double timeout)
{
    terms->rate = (double)limit * 1e9 / (double)per_ns;
    terms->burst = (double)burst;
    terms->overshoot = (double)overshoot;
    terms->interval = smaller(interval, larger(SHORTEST, terms->burst / (2 * terms->rate)));
    terms->timeout = timeout;
    terms->lifetime = 1.5 * terms->interval + 2 * timeout;
    terms->margin = terms->lifetime / MARGIN;
}

double weir__slice_q0(const struct weir__slice_terms *terms, double nodes)
{
    return nodes >= 1 ? floor(0.75 * terms->overshoot / nodes + 1e-9) : 0;
}

void weir__slice_share(const struct weir__slice_terms *terms, double nodes, double *rate, double *burst)
{
    nodes = larger(1, nodes);
    *rate = terms->rate / nodes;
    *burst = terms->burst / nodes;
}

uint64_t weir__slice_until(const struct weir__slice_terms *terms, uint64_t sent_ns)
{
    return sent_ns + (uint64_t)((terms->lifetime - terms->margin) * 1e9);
}

/* ---- demand ------------------------------------------------------------------------------------------------------ */

/* What a take is counted as, tokens. */
static double take_of(const struct weir__demand *demand)
{
    return larger(1, demand->cost);
}

/* Ends the open window where it is long enough to say something. */
static void close_window(struct weir__demand *demand, double now, double interval)
{
    double width = now - demand->opened;
    if (width < interval / 2)
        return;
    double seen = demand->attempts, rate = seen / width, expected = demand->rate * width, take = take_of(demand);
    double spread = 3 * sqrt(expected * take) + take;
    if (seen <= 0 && take > 1 && expected < spread) /* takes of many tokens are few: one may still come */
        return;
    if (demand->rate <= 0 || seen > expected + spread + take || seen < expected - spread)
        demand->rate = rate;
    else
        demand->rate += (1 - exp(-width / DEMAND_EWMA)) * (rate - demand->rate);
    demand->attempts = 0;
    demand->opened = now;
}

void weir__demand_add(struct weir__demand *demand, double now, uint64_t attempts, uint64_t cost, double interval)
{
    if (demand->cost > 1 && weir__demand_idle(demand, now, interval)) { /* of then; nobody was told */
        demand->rate = demand->attempts = demand->cost = 0;
        demand->opened = now - interval / 4;
    }
    if ((double)cost > demand->cost || attempts > 0) /* while nobody asks nothing says that costs are less */
        demand->cost = larger((double)cost, demand->cost > 1 ? 0.9 * demand->cost : 0);
    if (demand->opened == 0 && demand->last == 0) {
        /* The first report of a key says what happened in about a report's time. */
        demand->opened = now - interval / 4;
        demand->last = now;
    }
    demand->attempts += (double)attempts;
    if (attempts > 0)
        demand->last = now;
    /* Judged by the rate of the time when somebody still asked: one that decays would put the end off. */
    if (weir__demand_idle(demand, now, interval)) {
        demand->rate = demand->attempts = demand->cost = 0;
        demand->opened = now;
        return;
    }
    close_window(demand, now, interval);
}

double weir__demand_rate(const struct weir__demand *demand, double now, double interval)
{
    double width = now - demand->opened, seen = demand->attempts, take = take_of(demand);
    double rate = seen / larger(width, seen < 4 * take ? interval : interval / 4);
    if (width >= interval / 2)
        return larger(demand->rate, rate);
    double expected = demand->rate * larger(0, width);
    if (seen > expected + 3 * sqrt(expected * take) + 2 * take)
        return larger(demand->rate, rate);
    return demand->rate > 0 ? demand->rate : rate;
}

int weir__demand_idle(const struct weir__demand *demand, double now, double interval)
{
    double quiet = now - demand->last;
    if (quiet <= interval / 4)
        return 0;
    if (demand->cost > 1 && quiet > LONG * interval)
        return 1;
    return demand->rate <= 0 ? demand->attempts <= 0 : quiet * demand->rate > 5 * take_of(demand);
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

double weir__slice_rtt(double old, double measured)
{
    if (!(measured > 0))
        return old;
    return old <= 0 ? measured : larger(measured, old + 0.1 * (measured - old));
}

double weir__slice_late(double old, double timeout)
{
    return old <= 0 ? timeout : larger(old, old + 0.1 * (timeout - old));
}

double weir__slice_want(const struct weir__slice_terms *terms, double demand, double rtt, double max_cost)
{
    double use = demand * terms->interval;
    /* A lone take of a key that nobody knows counts as one an interval, which is no demand yet: else each key that is
     * ever asked for would be given a slice, and report it until it has idled for a second. */
    if (use < 1 + 1e-9)
        return 0;
    double want = use / 2 + 2 * sqrt(use) + 2 * demand * rtt;
    want = larger(1, smaller(want, terms->burst / 2));
    return larger(want, smaller(max_cost, terms->burst));
}

void weir__slice_grant(const struct weir__slice_terms *terms, const struct weir__slice_ask *ask,
                       const struct weir__slice_answer *answer, uint64_t now_ns, double rtt, struct weir__grant *out)
{
    double flight = now_ns > ask->sent_ns ? (double)(now_ns - ask->sent_ns) / 1e9 : 0;
    double slower = larger(0, ask->rate - answer->rate);
    memset(out, 0, sizeof *out);
    out->level_delta = answer->level - ask->level;
    out->refill_back = slower * smaller(flight, terms->timeout);
    out->rate = answer->rate;
    out->cap = answer->cap;
    /* What is not wanted goes now, while Redis still holds it reserved; the next report tells. A fraction that will
     * never be a whole token is of no use either. */
    double keep = larger(ask->want, 0);
    if (answer->level > keep) {
        out->level_delta -= answer->level - keep;
        out->cap = smaller(out->cap, larger(keep, answer->rate > 0 ? out->cap : 0));
    }
    double level = smaller(answer->level, keep);
    if (answer->rate <= 0 && level > 0 && level < 1) {
        out->level_delta -= level;
        level = 0;
        out->cap = 0;
    }
    out->low = -1;
    if (answer->rich && level > 0)
        out->low = smaller(0.6 * level, larger(level / 4, 1.5 * ask->demand * rtt));
    /* Nothing is held that could end: the key is as good as one that was never granted anything. */
    out->until = out->rate > 0 || out->cap > 0 ? weir__slice_until(terms, ask->sent_ns) : 0;
    out->hold = answer->hold > 0 ? now_ns + (uint64_t)ceil(smaller(answer->hold, 1e9) * 1e9) : 0;
    out->fallback_rate = answer->fallback;
    out->fallback_cap = terms->rate > 0 ? terms->burst * answer->fallback / terms->rate : 0;
    out->global = answer->total;
    out->unheld = answer->free;
}

double weir__slice_owed(double level, double free)
{
    return smaller(0, larger(level, smaller(0, free)));
}

int weir__slice_nothing(const struct weir__slice_ask *ask, const struct weir__slice_answer *answer)
{
    return answer->rate <= 0 && answer->level < 1e-9 && answer->level > -1e-9 && ask->demand <= 0;
}
