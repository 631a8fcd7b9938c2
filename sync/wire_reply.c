/* SPDX-License-Identifier: MIT */
/*
 * What comes back: one bulk string of packed doubles a reply. Owns the reply's layout; takes nothing on trust, for a
 * server may lie. It must not know sockets, loops or the table.
 */
#include <math.h>
#include <string.h>

#include "sync/wire.h"

#define HEAD 16u       /* doubles of a head */
#define LEAN_HEAD 3u   /* ... of a short answer: an odd number, so that no other is as long */
#define SHORT_GRANT 2u /* ... of a short record's answer */
#define LONG_GRANT 8u
#define SEEN 12u /* of a peek, after the head */
#define SEEN_SLICE 8u

/* Doubles still to be read. Reading past the end or a number that is none marks it broken. */
struct reader {
    const uint8_t *at;
    size_t left;
    int broken;
};

/* A reply that is at least so many doubles long. */
static int reader_init(struct reader *in, const void *reply, size_t len, size_t doubles)
{
    *in = (struct reader){.at = reply, .left = len / 8};
    return reply != NULL && len % 8 == 0 && in->left >= doubles;
}

static inline double double_at(const uint8_t *at)
{
    uint64_t bits;
    double value;
    memcpy(&bits, at, sizeof bits);
    bits = weir__wire_little(bits);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double next(struct reader *in)
{
    double value;
    if (in->left == 0) {
        in->broken = 1;
        return 0;
    }
    value = double_at(in->at);
    in->at += 8;
    in->left--;
    if (!isfinite(value)) {
        in->broken = 1;
        return 0;
    }
    return value;
}

/* A double that must be a whole number from 0 to most. */
static double next_whole(struct reader *in, double most)
{
    double value = next(in);
    if (!(value >= 0 && value <= most) || value != floor(value)) {
        in->broken = 1;
        return 0;
    }
    return value;
}

static uint64_t next_u64(struct reader *in)
{
    /* The largest double below 2^64; a version of all ones rounds up to 2^64 itself. */
    double value = next_whole(in, 18446744073709551616.0);
    return value >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)value;
}

static void read_head(struct reader *in, struct weir__wire_head *head)
{
    memset(head, 0, sizeof *head);
    head->format = (uint32_t)next_whole(in, UINT32_MAX);
    head->status = (enum weir__wire_status)next_whole(in, WEIR__WIRE_OLD);
    head->now = next(in) / WEIR__WIRE_US;
    head->epoch = next(in);
    head->last = next(in);
    head->numbers.version = next_u64(in);
    head->numbers.limit = next_u64(in);
    head->numbers.per_ns = next_u64(in);
    head->numbers.burst = next_u64(in);
    head->numbers.overshoot = next_u64(in);
    head->nodes = next(in);
    head->q0 = next(in);
    head->pool = next(in);
    head->recovering = next(in) / WEIR__WIRE_US;
    head->shards = (uint32_t)next_whole(in, UINT32_MAX);
    head->healed = next(in);
}

/* Only a head: the script ended early. */
static int is_refusal(const struct weir__wire_head *head)
{
    return head->status != WEIR__WIRE_APPLIED && head->status != WEIR__WIRE_REPEAT;
}

/* As read_grant does of n short records that follow each other and are there. */
static void read_shorts(struct reader *in, const struct weir__wire_head *head, int plain,
                        struct weir__wire_grant *grants, size_t n)
{
    double bottom = -((double)head->numbers.burst + (double)head->numbers.overshoot);
    for (size_t i = 0; i < n; i++, in->at += 8 * SHORT_GRANT) {
        struct weir__wire_grant *grant = &grants[i];
        double total = double_at(in->at), other = double_at(in->at + 8);
        *grant = (struct weir__wire_grant){.total = total, .free = plain ? total : other};
        if (total < bottom && bottom - total < 9e18)
            grant->carried = (int64_t)floor(bottom - total);
        in->broken |= !isfinite(total) || !isfinite(other);
    }
    in->left -= SHORT_GRANT * n;
}

/* plain: a short record's second double is no more than the time, for nothing is reserved. */
static void read_grant(struct reader *in, const struct weir__wire_head *head, int is_long, int plain,
                       struct weir__wire_grant *grant)
{
    double bottom = -((double)head->numbers.burst + (double)head->numbers.overshoot);
    memset(grant, 0, sizeof *grant);
    grant->total = next(in);
    grant->free = next(in);
    if (grant->total < bottom && bottom - grant->total < 9e18)
        grant->carried = (int64_t)floor(bottom - grant->total);
    if (!is_long) {
        if (plain)
            grant->free = grant->total;
        return;
    }
    grant->level = next(in);
    grant->rate = next(in) * WEIR__WIRE_US;
    grant->cap = next(in);
    grant->fallback = next(in) * WEIR__WIRE_US;
    grant->hold = next(in) / WEIR__WIRE_US;
    grant->rich = next(in) != 0;
    /* a rate that was finite by the microsecond may not be by the second */
    if (grant->rate < 0 || grant->cap < 0 || grant->fallback < 0 || grant->hold < 0 || !isfinite(grant->rate) ||
        !isfinite(grant->fallback))
        in->broken = 1;
}

int weir__wire_sync_decode(const struct weir__wire_batch *batch, const void *reply, size_t len,
                           struct weir__wire_head *head, struct weir__wire_grant *grants)
{
    struct reader in;
    size_t doubles = HEAD + 1, longs = 0, waits = 0;
    int plain;
    if (!reader_init(&in, reply, len, HEAD))
        return WEIR_E_INVAL;
    read_head(&in, head);
    head->numbers.interval = batch->numbers.interval;
    head->numbers.timeout = batch->numbers.timeout;
    if (in.broken)
        return WEIR_E_INVAL;
    if (is_refusal(head))
        return len == HEAD * 8 ? 0 : WEIR_E_INVAL;
    for (uint32_t i = 0; i < batch->count; i++) {
        longs += weir__wire_is_long(&batch->records[i]) != 0;
        waits += batch->records[i].n_waits;
    }
    doubles += (batch->count - longs) * SHORT_GRANT + longs * LONG_GRANT + waits;
    if (len != doubles * 8)
        return WEIR_E_INVAL;
    plain = next_whole(&in, 1) != 0;
    if (longs == 0)
        read_shorts(&in, head, plain, grants, batch->count);
    for (int want_long = longs == batch->count; longs > 0 && want_long <= 1; want_long++)
        for (uint32_t i = 0; i < batch->count; i++)
            if (weir__wire_is_long(&batch->records[i]) == want_long)
                read_grant(&in, head, want_long, plain, &grants[i]);
    for (int want_long = 0; want_long <= 1 && waits > 0; want_long++)
        for (uint32_t i = 0; i < batch->count; i++)
            if (weir__wire_is_long(&batch->records[i]) == want_long)
                for (uint32_t j = 0; j < batch->records[i].n_waits; j++)
                    batch->records[i].waits[j].admitted = (uint32_t)next_whole(&in, batch->records[i].waits[j].count);
    return in.broken ? WEIR_E_INVAL : 0;
}

static void read_entries(struct reader *in, struct weir__wire_strict *batch)
{
    for (uint32_t i = 0; i < batch->n_entries; i++) {
        batch->entries[i].admitted = (uint32_t)next_whole(in, batch->entries[i].count);
        batch->entries[i].free = next(in);
    }
}

/* The short answer: one entry a key, in their order, nothing reserved, and the numbers in force are those sent. */
static int decode_lean(struct reader *in, struct weir__wire_strict *batch, struct weir__wire_head *head)
{
    memset(head, 0, sizeof *head);
    head->format = WEIR__WIRE_FORMAT;
    head->shards = batch->target.shards;
    head->numbers = batch->numbers;
    head->nodes = next(in);
    head->epoch = next(in);
    head->now = next(in) / WEIR__WIRE_US;
    read_entries(in, batch);
    for (uint32_t i = 0; i < batch->n_entries; i++) {
        if (batch->entries[i].key != i)
            return WEIR_E_INVAL;
        batch->keys[i].total = batch->keys[i].free = batch->entries[i].free;
    }
    return in->broken ? WEIR_E_INVAL : 0;
}

int weir__wire_strict_decode(struct weir__wire_strict *batch, const void *reply, size_t len,
                             struct weir__wire_head *head)
{
    struct reader in;
    if (!reader_init(&in, reply, len, LEAN_HEAD + 2))
        return WEIR_E_INVAL;
    if (len == (LEAN_HEAD + 2 * (size_t)batch->n_entries) * 8 && batch->n_keys == batch->n_entries)
        return decode_lean(&in, batch, head);
    read_head(&in, head);
    head->numbers.interval = batch->numbers.interval;
    head->numbers.timeout = batch->numbers.timeout;
    if (in.broken)
        return WEIR_E_INVAL;
    if (is_refusal(head))
        return len == HEAD * 8 ? 0 : WEIR_E_INVAL;
    if (len != (HEAD + 2 * (size_t)batch->n_keys + 2 * (size_t)batch->n_entries) * 8)
        return WEIR_E_INVAL;
    for (uint32_t i = 0; i < batch->n_keys; i++) {
        batch->keys[i].total = next(&in);
        batch->keys[i].free = next(&in);
    }
    read_entries(&in, batch);
    return in.broken ? WEIR_E_INVAL : 0;
}

int weir__wire_strict_decode_all(struct weir__wire_strict *shards, uint32_t n, const void *reply, size_t len,
                                 struct weir__wire_head *heads)
{
    struct reader in;
    if (n == 1)
        return weir__wire_strict_decode(shards, reply, len, heads);
    if (!reader_init(&in, reply, len, n))
        return WEIR_E_INVAL;
    for (uint32_t u = 0; u < n; u++) {
        size_t part = (size_t)next_whole(&in, (double)(in.left * 8));
        if (in.broken || part % 8 != 0 || part / 8 > in.left ||
            weir__wire_strict_decode(&shards[u], in.at, part, &heads[u]))
            return WEIR_E_INVAL;
        in.at += part;
        in.left -= part / 8;
    }
    return in.left == 0 ? 0 : WEIR_E_INVAL;
}

int weir__wire_all_decode(struct weir__wire_all *all, const void *reply, size_t len, struct weir__wire_head *head)
{
    struct reader in;
    if (!reader_init(&in, reply, len, HEAD))
        return WEIR_E_INVAL;
    read_head(&in, head);
    if (in.broken)
        return WEIR_E_INVAL;
    if (is_refusal(head))
        return len == HEAD * 8 ? 0 : WEIR_E_INVAL;
    if (len != (HEAD + 1 + 3 * (size_t)all->n) * 8)
        return WEIR_E_INVAL;
    all->admitted = next_whole(&in, 1) != 0;
    for (uint32_t i = 0; i < all->n; i++) {
        all->members[i].total = next(&in);
        all->members[i].free = next(&in);
        all->members[i].denied = next_whole(&in, 1) != 0;
    }
    return in.broken ? WEIR_E_INVAL : 0;
}

static void read_seen_slice(struct reader *in, struct weir__wire_seen_slice *slice)
{
    memcpy(slice->node, in->at, sizeof slice->node);
    in->at += 8;
    in->left--;
    slice->age = next(in) / WEIR__WIRE_US;
    slice->reserved = next(in);
    slice->rate = next(in) * WEIR__WIRE_US;
    slice->cap = next(in);
    slice->fallback = next(in) * WEIR__WIRE_US;
    slice->demand = next(in) * WEIR__WIRE_US;
    slice->expired = next(in) != 0;
}

int weir__wire_peek_decode(const void *reply, size_t len, struct weir__wire_head *head, struct weir__wire_seen *seen,
                           struct weir__wire_seen_slice *slices, uint32_t room)
{
    struct reader in;
    if (!reader_init(&in, reply, len, HEAD + SEEN))
        return WEIR_E_INVAL;
    read_head(&in, head);
    seen->exists = (int)next_whole(&in, 2);
    seen->older = seen->exists == 2;
    seen->exists = seen->exists != 0;
    seen->total = next(&in);
    seen->free = next(&in);
    seen->reserved = next(&in);
    seen->rates = next(&in) * WEIR__WIRE_US;
    seen->fallbacks = next(&in) * WEIR__WIRE_US;
    seen->demands = next(&in) * WEIR__WIRE_US;
    seen->caps = next(&in);
    seen->ttl = next(&in) / WEIR__WIRE_US;
    seen->generation = next(&in);
    seen->flip = next(&in) / WEIR__WIRE_US;
    seen->n_slices = (uint32_t)next_whole(&in, 1e6);
    if (in.broken || in.left != (size_t)seen->n_slices * SEEN_SLICE)
        return WEIR_E_INVAL;
    for (uint32_t i = 0; i < seen->n_slices && i < room; i++)
        read_seen_slice(&in, &slices[i]);
    return in.broken ? WEIR_E_INVAL : 0;
}
