/* SPDX-License-Identifier: MIT */
/*
 * Exhaustive model of how an entry lives: claim, publish, take, evict (re-key), collect. All keys share one tag in one
 * set with fewer ways than keys, so every look meets strangers and every claim may have to evict. Spin explores every
 * interleaving of these steps (sequentially consistent; what weaker machines may do beyond that is argued in
 * docs/memory-model.md). A statement that touches shared memory is one load, store or CAS of lib/table.c, lib/take.c,
 * lib/dirty.c or lib/seam.c, in their order.
 *
 * Proved, for every interleaving within the bounds that model.sh passes:
 *   no_twin    no key is ever in two entries
 *   bound      what a key was admitted in any window of time never exceeds its burst plus what the window refilled:
 *              no token is minted by an eviction, a re-key, a clip at the cap, a thread with an older time, a collection
 *   exact      when all is quiet, what was reported of each key is what it was admitted
 * and that nobody waits for ever (no invalid end state).
 *
 * -DBUG=n takes one guard out, and Spin must then find a violation: a model that can't fail proves nothing.
 *   1 evict without looking at the pin again under the lock     4 clip at the cap by writing f alone
 *   2 claim without stepping the version                        5 evict what has spending that no flag tells of yet
 *   3 evict what is dirty and unreported
 */
#ifndef BUG
#define BUG 0
#endif
#ifndef TAKERS
#define TAKERS 2
#endif
#ifndef TAKES
#define TAKES 2 /* of each taker */
#endif
#ifndef TICKS
#define TICKS 1
#endif
#ifndef ROUNDS
#define ROUNDS 1 /* collections while takers run */
#endif
#ifndef EVICTIONS
#define EVICTIONS 2 /* in all: two takers may evict each other for ever without taking */
#endif
#ifndef WAYS
#define WAYS 1
#endif
#define KEYS (WAYS + 1)
#define CAP 1

/* the set's tag line: 16 bytes, read in one step because only a CAS of the whole of it is trusted */
bool tag[WAYS];
byte version;
/* hot and cold lines */
byte x[WAYS]; /* units spent; the lock bit is `locked`, and every CAS compares both */
bool locked[WAYS];
byte f[WAYS]; /* forfeited, modulo 256 */
byte id[WAYS];
byte base[WAYS];
byte pin[WAYS];
bool dirty[WAYS];
bool listed[WAYS];
byte high; /* the latest time at which an entry was dropped */
/* the world */
byte refill; /* R(now): one token a tick */
#define STAMPS (TICKS + 1)
byte admitted[(KEYS + 1) * STAMPS]; /* by key and by the time at which it was decided */
byte reported[KEYS + 1];
byte done;
byte evictions;

/* weir__dirty_list */
inline mark_dirty(w)
{
    if
    :: dirty[w] -> skip
    :: !dirty[w] ->
        d_step { was = dirty[w]; dirty[w] = true } /* the exchange */
        if
        :: !was -> listed[w] = true
        :: else
        fi
    fi
}

/* lock_idle: leaves way w locked and hidden, or won == false. The look before the lock is a hint that the look under the
 * lock repeats, so it is one step here; old and xv are proved by the CAS, for id changes only together with x. */
inline lock_idle(w)
{
    d_step {
        won = false;
        xv = x[w];
        old = id[w];
        tok = now - xv - f[w];
        idle = !locked[w] && old != 0 && pin[w] == 0 && (!dirty[w] || BUG == 3) && tok >= CAP && tok < 128 &&
               (base[w] == xv || BUG == 5 || BUG == 3) && evictions < EVICTIONS
    }
    if
    :: !idle -> skip
    :: idle ->
        d_step { /* CAS x -> x | LOCK */
            if
            :: x[w] == xv && !locked[w] -> locked[w] = true; won = true
            :: else
            fi
        }
        if
        :: won && pin[w] > 0 && BUG != 1 -> won = false; locked[w] = false
        :: else
        fi;
        if
        :: won && dirty[w] && BUG != 3 -> won = false; locked[w] = false
        :: else
        fi;
        if
        :: won && base[w] != xv && BUG != 5 && BUG != 3 -> won = false; locked[w] = false
        :: else
        fi;
        if
        :: won -> /* raise_high_water, by CAS */
            d_step {
                if
                :: high < now -> high = now
                :: else
                fi
            }
            d_step { id[w] = 0; evictions++ }
        :: else
        fi
    fi
}

inline assert_no_twin(key)
{
    count = 0;
    i = 0;
    do
    :: i < WAYS ->
        if
        :: id[i] == key -> count++
        :: else
        fi;
        i++
    :: else -> break
    od;
    assert(count <= 1); /* no_twin */
    count = 0;
    i = 0
}

/* What is made of a claimed way: a full bucket of `key`. xv: x as it is published, not as a reload may find it. */
inline publish(w, key)
{
    d_step {
        if
        :: now < high -> now = high
        :: else
        fi
    }
    d_step { xv = x[w] + 1; f[w] = now - CAP - xv; base[w] = xv }
    d_step { x[w] = xv; locked[w] = false }
    d_step { id[w] = key; assert_no_twin(key) }
}

inline admit(key)
{
    admitted[key * STAMPS + now]++;
    /* bound: of every window of stamps that ends or begins at or around this one */
    i = 0;
    do
    :: i <= now ->
        count = 0;
        stamp = i;
        do
        :: stamp < STAMPS ->
            count = count + admitted[key * STAMPS + stamp];
            assert(stamp < now || count <= CAP + stamp - i);
            stamp++
        :: else -> break
        od;
        i++
    :: else -> break
    od;
    i = 0; count = 0; stamp = 0
}

/* The 8-byte CAS, and the 16-byte CAS that also moves f to `clipped`. */
inline cas_x(w, key)
{
    d_step {
        won = false;
        if
        :: x[w] == xv && !locked[w] -> x[w] = xv + 1; won = true; admit(key)
        :: else
        fi
    }
}

inline cas_xf(w, key)
{
    d_step {
        won = false;
        if
        :: x[w] == xv && !locked[w] && f[w] == fv -> f[w] = now - CAP - xv; x[w] = xv + 1; won = true; admit(key)
        :: else
        fi
    }
}

proctype taker()
{
    byte key, way, xv, fv, old, seen_version, tok, n, count, stamp, i, now;
    bool won, idle, busy, found, was, evicted;
    bool seen[WAYS];

    do
    :: n == TAKES -> break
    :: n < TAKES ->
        atomic {
            n++;
            now = refill;
            select (key : 1 .. KEYS)
        }
search:
        skip;
        /* look: the tag line, then x and id of each way whose tag matches */
        d_step {
            i = 0;
            do
            :: i < WAYS -> seen[i] = tag[i]; i++
            :: else -> break
            od;
            seen_version = version;
            i = 0; way = WAYS; busy = false; found = false; won = false; evicted = false
        }
        do
        :: i < WAYS && !found ->
            if
            :: seen[i] ->
                d_step { xv = x[i]; was = locked[i] }
                d_step {
                    old = id[i];
                    if
                    :: old == key && !was -> found = true; way = i
                    :: (old == key && was) || old == 0 -> busy = true
                    :: else
                    fi;
                    i++
                }
            :: else -> i++
            fi
        :: else -> break
        od;
        skip;
        d_step { i = 0; old = 0; was = false }
        if
        :: found -> goto decide
        :: !found && busy -> /* weir__backoff */
            goto search
        :: else
        fi;
        /* claim: a free way, or an idle one */
        d_step {
            way = WAYS;
            do
            :: i < WAYS && way == WAYS ->
                if
                :: !seen[i] -> way = i
                :: else
                fi;
                i++
            :: else -> break
            od;
            i = 0
        }
        do
        :: way == WAYS && i < WAYS ->
            lock_idle(i);
            if
            :: won -> way = i; evicted = true
            :: else -> i++
            fi
        :: else -> break
        od;
        i = 0;
        if
        :: way == WAYS -> goto next /* no room: on_full answers */
        :: else
        fi;
        d_step { /* the 16-byte CAS of the tag line */
            won = (version == seen_version);
            do
            :: i < WAYS -> won = won && (tag[i] == seen[i]); i++
            :: else -> break
            od;
            i = 0;
            if
            :: won && BUG != 2 -> tag[way] = true; version++
            :: won && BUG == 2 -> tag[way] = true
            :: else
            fi
        }
        if
        :: won -> publish(way, key)
        :: !won && evicted -> id[way] = old; locked[way] = false; goto search /* give_back */
        :: else -> goto search
        fi;
decide:
        skip;
#ifdef LOOK_ONLY
        goto next;
#endif
        d_step { fv = f[way]; tok = now - xv - fv }
        if
        :: tok == 0 || tok >= 128 -> /* deny: loads only, then x again */
            if
            :: x[way] == xv && !locked[way] -> goto next
            :: else -> goto search
            fi
        :: tok > 0 && tok <= CAP -> cas_x(way, key)
        :: tok > CAP && tok < 128 && BUG != 4 -> cas_xf(way, key)
        :: tok > CAP && tok < 128 && BUG == 4 -> f[way] = now - CAP - xv; cas_x(way, key)
        fi;
        if
        :: !won -> goto search
        :: won -> mark_dirty(way)
        fi;
next:
        skip;
        d_step { xv = 0; fv = 0; old = 0; tok = 0; way = 0; seen_version = 0; won = false; idle = false; evicted = false;
                 busy = false; found = false; was = false; key = 0 }
    od;
    done++
}

inline collect(w)
{
    d_step { was = listed[w]; listed[w] = false } /* the exchange of the bitmap's word */
    if
    :: !was -> skip
    :: was ->
        pin[w]++;
        dirty[w] = false;
        (!locked[w] || id[w] == 0); /* spins while it is locked */
        key = id[w];
        if
        :: key == 0 -> skip
        :: key != 0 ->
            d_step { xv = x[w]; spent = xv - base[w] } /* base is the collector's own while it holds the pin */
            d_step { reported[key] = reported[key] + spent }
            base[w] = xv
        fi;
        d_step { pin[w]--; xv = 0; spent = 0; key = 0; was = false }
    fi
}

proctype collector()
{
    byte n, xv, key, spent, i;
    bool was;

    do
    :: n < ROUNDS -> n++; i = 0;
        do
        :: i < WAYS -> collect(i); i++
        :: else -> break
        od
    :: done == TAKERS -> i = 0;
        do
        :: i < WAYS -> collect(i); i++
        :: else -> break
        od;
        skip;
        d_step {
            i = 1;
            do
            :: i <= KEYS ->
                n = 0; spent = 0;
                do
                :: n < STAMPS -> spent = spent + admitted[i * STAMPS + n]; n++
                :: else -> break
                od;
                assert(spent == reported[i]); /* exact */
                i++
            :: else -> break
            od
        }
        break
    od
}

proctype clock()
{
    byte n;

    do
    :: n < TICKS -> n++; refill++
    :: else -> break
    od
}

init {
    atomic {
        byte t = 0;
        do
        :: t < TAKERS -> run taker(); t++
        :: else -> break
        od;
        run collector();
        run clock()
    }
}
