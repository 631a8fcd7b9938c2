/* SPDX-License-Identifier: MIT */
/*
 * What the parts of a simulation share: time, chance, events, the network, the account. Nobody but simulate_*.c
 * includes this.
 */
#ifndef WEIR_TOOLS_SIMULATE_WORLD_H
#define WEIR_TOOLS_SIMULATE_WORLD_H

#include "tools/overshoot.h"
#include "tools/simulate_fleet.h"
#include "tools/simulate_store.h"

#define SIMULATE_START UINT64_C(1000000000000) /* ns: when virtual time begins */
#define SIMULATE_NEVER UINT64_MAX

enum simulate_event_kind {
    SIMULATE_ARRIVAL,
    SIMULATE_TICK,
    SIMULATE_SEND,    /* a batch leaves, for the first time or again */
    SIMULATE_EXECUTE, /* it reaches Redis */
    SIMULATE_RECEIVE, /* its answer is back */
    SIMULATE_EXPIRE,  /* it has not come in time */
    SIMULATE_QUERY,   /* a single take reaches Redis */
    SIMULATE_VERDICT, /* its answer is back, or will never be */
    SIMULATE_CRASH,
    SIMULATE_STALL
};

struct simulate_event {
    uint64_t at, order;
    enum simulate_event_kind kind;
    uint32_t node, life; /* life: of the node then; an event of an earlier one is void */
    uint32_t tag;        /* of a batch: which try; of a query: its verdict */
    int64_t cost;
};

struct simulate_node;

/* A node as the fleet sees it. */
struct simulate_seat {
    struct simulate_node *hybrid;
    struct weir *alone; /* local and static split */
    uint32_t life;
    int alive;
    uint64_t chance;    /* of its demand: the same for every strategy */
    uint64_t from;      /* it is connected and asks from then on */
    uint64_t switch_at; /* on/off */
    int on;
    /* push-pull */
    double level, refilled, unsent, sent;
    int flying;
};

struct simulate_world {
    const struct simulate_options *o;
    struct simulate_result *result;
    uint64_t now, end, chance;
    struct simulate_event *events; /* a heap */
    size_t event_count, event_room;
    uint64_t order;
    int status; /* the first thing that went wrong */
    struct simulate_store store;
    struct weir__wire_numbers numbers;
    int has_lost; /* ... its state: options->lose_ns */
    struct simulate_seat seats[SIMULATE_NODES_MAX];
    uint64_t processes; /* ever started */
    uint64_t alive_ns;  /* of all nodes together */
    struct overshoot over;
    double rate;                         /* tokens a second */
    double x, x_at, perfect, perfect_at; /* buckets: of what was admitted, of what was asked; s */
};

/* [0, 1). */
double simulate_draw(uint64_t *chance);

/* A failure is remembered in world->status. */
void simulate_post(struct simulate_world *world, uint64_t at, enum simulate_event_kind kind, uint32_t node,
                   uint32_t tag, int64_t cost);

/* One way, ns; and is what leaves, or arrives, at this time lost? */
uint64_t simulate_delay(struct simulate_world *world);
int simulate_is_lost(struct simulate_world *world, uint64_t at);

/* Before anything reaches Redis. */
void simulate_arrive(struct simulate_world *world);

/* A decision, now. */
void simulate_admitted(struct simulate_world *world, int64_t cost);
void simulate_denied(struct simulate_world *world, int64_t cost);

#endif
