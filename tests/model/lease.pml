/* SPDX-License-Identifier: MIT */
/*
 * A lease that is spent from by its thread, without an atomic step, and taken back by another: docs/memory-model.md, E.
 * Every interleaving, on a machine whose stores wait in a buffer (first in, first out, its thread reads its own). What
 * is spent, what is taken back and what its thread gives back are together what there was; models include/weir/quick.h
 * and lib/lease.c.
 *
 * A step of the owner's is several instructions, announced by `busy` (PORTABLE), or one, a load and a store that nothing
 * of its own thread comes between, or now this, now that (MIXED): a program may have been compiled in parts. The barrier
 * may be REFUSED at any time. BUG: what is left out; 4: what could not be taken is put back by who has tried.
 */
#ifndef TOKENS
#define TOKENS 3
#endif
#ifndef STEPS
#define STEPS 3 /* of the owner's, of one token or two */
#endif
#ifndef TRIES
#define TRIES 2 /* of the other's */
#endif
#ifndef FILLS
#define FILLS 1 /* by the owner, with all that there is but for what was spent */
#endif
#ifndef BUG
#define BUG 0
#endif

#define GONE (-64)
#define IS_GONE(t) ((t) < GONE / 2)

/* memory, which all see */
int tokens = TOKENS;
bit busy = 0, lock = 0;

/* under `lock` */
bit held = 1;
int aside = 0;

/* the owner's stores that memory doesn't have yet */
chan buffer = [4] of {byte, int}; /* 0: tokens, 1: busy, 2: lock */
bit inside = 0;                   /* between two halves of one instruction */

int spent = 0, back = 0, given = 0;

#define STORE(which, value) buffer ! which, value
#define DRAINED (len(buffer) == 0)

/* What the owner sees of tokens: its own last store, if it still waits. */
int latest = TOKENS; /* value of its youngest waiting store to tokens; meaningful while waiting > 0 */
byte waiting = 0;    /* such stores */

#define LOAD(t)                                                                                                        \
    if                                                                                                                 \
    :: waiting > 0 -> t = latest                                                                                       \
    :: else -> t = tokens                                                                                              \
    fi

/* The machine: a store reaches memory at any time. */
active proctype stores()
{
    byte which;
    int value;

end:
    do
    :: atomic {
           buffer ? which, value;
           if
           :: which == 0 -> tokens = value; waiting--
           :: which == 1 -> busy = value
           :: else -> lock = value
           fi
       }
    od
}

inline add(what)
{
    /* one instruction: its store follows its load, and only other threads come between */
    atomic { LOAD(t); inside = 1 }
    atomic { STORE(0, t + what); latest = t + what; waiting++; t = t + what; inside = 0 }
}

/* The owner has `lock`: what it takes out of its lease is what is there, or what whoever reached for it found. */
inline take_out()
{
    LOAD(t);
    if
    :: IS_GONE(t) && BUG != 5 -> t = aside
    :: else
    fi;
    if
    :: held && t > 0
    :: else -> t = 0
    fi;
    held = 0
}

inline portable_step()
{
    if
    :: BUG != 1 -> STORE(1, 1)
    :: else
    fi;
    atomic { LOAD(t); fewer = t < cost };
    if
    :: fewer
    :: else -> atomic { STORE(0, t - cost); latest = t - cost; waiting++; spent = spent + cost }
    fi;
    STORE(1, 0)
}

inline quick_step()
{
    add(-cost);
    fewer = t < 0;
    if
    :: fewer -> add(cost)
    :: else -> spent = spent + cost
    fi
}

active proctype owner()
{
    byte n = 0, fills = 0;
    int t, cost;
    bit fewer;

    do
    :: n < STEPS ->
        n++;
        if
        :: cost = 1
        :: cost = 2
        fi;
#if defined(MIXED)
        if
        :: true -> portable_step()
        :: true -> quick_step()
        fi;
#elif defined(PORTABLE)
        portable_step();
#else
        quick_step();
#endif
        /* filled anew, unless another one is at it; a locked instruction, before which all stores are in memory */
        if
        :: fewer && fills < FILLS ->
            DRAINED;
            atomic {
                if
                :: lock == 0 && DRAINED -> lock = 1
                :: else -> goto on
                fi
            };
            fills++;
            take_out();
            t = t + back;
            back = 0;
            atomic { STORE(0, t); latest = t; waiting++ };
            held = 1;
            STORE(2, 0)
        :: else
        fi;
    on:
        skip
    :: else -> break
    od;
    /* its thread ends */
    atomic { lock == 0 && DRAINED -> lock = 1 };
    take_out();
    given = t;
    assert(given + spent + back == TOKENS);
    lock = 0
}

active proctype other()
{
    byte n = 0;
    int t;
    bit passed, reached;

    do
    :: n < TRIES ->
        n++;
        atomic {
            if
            :: lock == 0 -> lock = 1
            :: else -> goto again
            fi
        };
        if
        :: !held -> goto let_go
        :: else
        fi;
        t = tokens;
        if
        :: IS_GONE(t) -> reached = 1
        :: t >= 0 ->
            /* 1: a locked instruction */
            atomic {
                reached = tokens == t;
                if
                :: reached -> tokens = GONE; aside = t
                :: else
                fi
            }
        :: else -> reached = 0
        fi;
        if
        :: !reached -> goto let_go
        :: else
        fi;
        /* 2: every store of before is in memory, and the owner is between two instructions */
        if
#ifdef REFUSED
        :: passed = 0
#endif
        :: passed = 1;
           if
           :: BUG != 2 -> DRAINED && !inside
           :: else
           fi
        fi;
        if
        :: !passed || busy ->
            /* 3 */
            if
            :: BUG == 4 ->
                atomic {
                    if
                    :: tokens == GONE -> tokens = aside
                    :: !IS_GONE(tokens)
                    fi;
                    aside = 0
                }
            :: else
            fi
        :: else ->
            if
            :: IS_GONE(tokens) || BUG == 3 -> held = 0; back = back + aside /* 4 */
            :: else
            fi
        fi;
    let_go:
        lock = 0;
    again:
        skip
    :: else -> break
    od
}
