/* SPDX-License-Identifier: MIT */
/*
 * The seam, for whoever watches: which keys are asked for most. Reads entries as they come; owns nothing, and must not
 * know who watches.
 */
#include <string.h>

#include "lib/seam.h"
#include "lib/stats.h"
#include "lib/table.h"

void weir__seam_verdicts(struct weir *w, weir_policy_id id, uint64_t *allowed, uint64_t *denied)
{
    *allowed = weir__stats_verdicts(w, id, WEIR_ALLOW);
    *denied = weir__stats_verdicts(w, id, WEIR_DENY);
}

int weir__seam_sight(const struct weir *w, uint32_t slot, struct weir__sight *out)
{
    const struct weir__hot *e = &w->hot[slot];
    uint64_t id = weir__load_acquire(&e->id[0]);
    uint64_t units = weir__load_relaxed(&e->x) - weir__load_relaxed(&w->cold[slot].returned);

    if (id == 0)
        return 0;
    out->id = id;
    out->policy = weir__load_relaxed(&e->policy);
    out->tokens = units >> weir__load_relaxed(&e->k);
    /* a slice that nobody wrote is not touched: it may not be resident */
    if (weir__load_relaxed(&e->noted))
        out->tokens += weir__load_relaxed(&w->slice[slot].denied);
    return 1;
}

size_t weir__seam_key(struct weir *w, uint32_t slot, uint64_t id, void *buf, size_t size)
{
    struct weir__hot *e = &w->hot[slot];
    const struct weir__cold *cold = &w->cold[slot];
    size_t len = 0;

    /* As the collector pins (seam.c): whoever re-keys an entry takes the lock bit first and then looks at the pin. */
    atomic_fetch_add_explicit(&e->pin, 1, memory_order_seq_cst);
    if (!(atomic_load_explicit(&e->x, memory_order_seq_cst) & WEIR__LOCK) && weir__load_relaxed(&e->id[0]) == id) {
        const void *key = weir__table_key(w, cold);

        len = cold->key_len;
        if (!key) { /* of a long key of a local policy only the beginning is kept */
            key = cold->key;
            size = size < WEIR__KEY_INLINE - sizeof(uint32_t) ? size : WEIR__KEY_INLINE - sizeof(uint32_t);
        }
        memcpy(buf, key, len < size ? len : size);
    }
    atomic_fetch_sub_explicit(&e->pin, 1, memory_order_release);
    return len;
}
