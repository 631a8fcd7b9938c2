/* SPDX-License-Identifier: MIT */
/*
 * Where keys live and what is sent: names, shards, commands. Owns the request's layout; replies are wire_reply.c's. It
 * must not know sockets, loops or the table.
 */
#include "sync/wire.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sync/scripts.h"

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

void weir__wire_buf_init(struct weir__wire_buf *buf, const struct weir_allocator *mem)
{
    *buf = (struct weir__wire_buf){.mem = mem};
}

void weir__wire_buf_clear(struct weir__wire_buf *buf)
{
    buf->len = 0;
    buf->failed = 0;
}

void weir__wire_buf_deinit(struct weir__wire_buf *buf)
{
    if (buf->data != NULL)
        buf->mem->release(buf->mem->arg, buf->data, buf->cap);
    buf->data = NULL;
    buf->len = buf->cap = 0;
}

static int grow(struct weir__wire_buf *buf, size_t more)
{
    if (buf->failed)
        return 0;
    size_t cap = buf->cap < 512 ? 512 : buf->cap;
    while (cap - buf->len < more) {
        if (cap > SIZE_MAX / 2) {
            buf->failed = 1;
            return 0;
        }
        cap *= 2;
    }
    char *data = buf->mem->alloc(buf->mem->arg, cap);
    if (data == NULL) {
        buf->failed = 1;
        return 0;
    }
    if (buf->len > 0)
        memcpy(data, buf->data, buf->len);
    if (buf->data != NULL)
        buf->mem->release(buf->mem->arg, buf->data, buf->cap);
    buf->data = data;
    buf->cap = cap;
    return 1;
}

/* Makes room for more bytes. 0 when there is none: the buffer has failed then. */
static inline int reserve(struct weir__wire_buf *buf, size_t more)
{
    return (!buf->failed && buf->cap - buf->len >= more) || grow(buf, more);
}

static void put_bytes(struct weir__wire_buf *buf, const void *bytes, size_t len)
{
    if (len == 0 || !reserve(buf, len))
        return;
    memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
}

#define LENGTH 32u /* room for what write_length writes */

/* '*12\r\n', '$5\r\n': the first line of an array or of a string. Returns where it ends. */
static inline char *write_length(char *at, char kind, size_t value)
{
    char digits[24];
    size_t n = sizeof digits;
    if (value >= 10 && value < 100) { /* as most keys are */
        at[0] = kind;
        at[1] = (char)('0' + value / 10);
        at[2] = (char)('0' + value % 10);
        at[3] = '\r';
        at[4] = '\n';
        return at + 5;
    }
    do
        digits[--n] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    *at++ = kind;
    while (n < sizeof digits)
        *at++ = digits[n++];
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

static void put_length(struct weir__wire_buf *buf, char kind, size_t value)
{
    if (reserve(buf, LENGTH))
        buf->len = (size_t)(write_length(buf->data + buf->len, kind, value) - buf->data);
}

static void put_string(struct weir__wire_buf *buf, const void *bytes, size_t len)
{
    put_length(buf, '$', len);
    put_bytes(buf, bytes, len);
    put_bytes(buf, "\r\n", 2);
}

/* A packed double: IEEE 754. */
static inline void put_double(struct weir__wire_buf *buf, double value)
{
    uint64_t bits;
    if (!reserve(buf, sizeof bits))
        return;
    memcpy(&bits, &value, sizeof bits);
    bits = weir__wire_little(bits);
    memcpy(buf->data + buf->len, &bits, sizeof bits);
    buf->len += sizeof bits;
}

static void put_doubles(struct weir__wire_buf *buf, const double *values, size_t n)
{
    put_length(buf, '$', n * 8);
    for (size_t i = 0; i < n; i++)
        put_double(buf, values[i]);
    put_bytes(buf, "\r\n", 2);
}

/* A key's field: 'k' and its bytes, so that fields of our own never meet one. */
static void put_field(struct weir__wire_buf *buf, const void *key, size_t len)
{
    char *at;
    if (!reserve(buf, len + LENGTH + 3))
        return;
    at = write_length(buf->data + buf->len, '$', len + 1);
    *at++ = 'k';
    if (len > 0)
        memcpy(at, key, len);
    at += len;
    *at++ = '\r';
    *at++ = '\n';
    buf->len = (size_t)(at - buf->data);
}

/* What is half written must not be sent. */
static int finish(struct weir__wire_buf *buf, size_t start, int rc)
{
    if (rc == 0 && buf->failed)
        rc = WEIR_E_NOMEM;
    if (rc != 0)
        buf->len = start;
    return rc;
}

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

static const char *const script_texts[WEIR__WIRE_SCRIPTS] = {
    [WEIR__WIRE_SYNC] =
        WEIR__SCRIPT_LAYOUT WEIR__SCRIPT_USUAL WEIR__SCRIPT_GRANT WEIR__SCRIPT_USUALLY WEIR__SCRIPT_COMMON
            WEIR__SCRIPT_BATCH WEIR__SCRIPT_SLICES WEIR__SCRIPT_RECONCILE WEIR__SCRIPT_GRANT WEIR__SCRIPT_RECONCILED,
    [WEIR__WIRE_STRICT] = WEIR__SCRIPT_LAYOUT WEIR__SCRIPT_LEAN WEIR__SCRIPT_COMMON WEIR__SCRIPT_DECIDE
        WEIR__SCRIPT_SLICES WEIR__SCRIPT_STRICT,
    [WEIR__WIRE_ALL] = WEIR__SCRIPT_LAYOUT WEIR__SCRIPT_COMMON WEIR__SCRIPT_SLICES WEIR__SCRIPT_ALL,
    [WEIR__WIRE_FORGET] = WEIR__SCRIPT_FORGET,
    [WEIR__WIRE_PEEK] = WEIR__SCRIPT_LAYOUT WEIR__SCRIPT_COMMON WEIR__SCRIPT_SLICES WEIR__SCRIPT_PEEK,
};

const char *weir__wire_script_text(enum weir__wire_script script)
{
    return script_texts[script];
}

int weir__wire_script_load(struct weir__wire_buf *out, enum weir__wire_script script)
{
    const char *text = script_texts[script];
    size_t start = out->len;
    put_length(out, '*', 3);
    put_string(out, "SCRIPT", 6);
    put_string(out, "LOAD", 4);
    put_string(out, text, strlen(text));
    return finish(out, start, 0);
}

/* ---- where a key lives ------------------------------------------------------------------------------------------- */

uint32_t weir__wire_shard(const void *key, size_t key_len, uint32_t shards)
{
    /* FNV-1a, then a finisher: its low bits alone are weak. Unkeyed, for every node must agree. */
    const uint8_t *bytes = key;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < key_len; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    hash ^= hash >> 33;
    hash *= UINT64_C(0xff51afd7ed558ccd);
    hash ^= hash >> 33;
    return shards <= 1 ? 0 : (uint32_t)(hash % shards);
}

/* Redis takes the first braces of a name for the hash tag, so ours must be the first. */
static size_t append_escaped(char out[WEIR__WIRE_NAME], size_t at, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    for (const uint8_t *p = (const uint8_t *)text; *p != 0; p++) {
        int plain = *p > 0x20 && *p != 0x7f && *p != '{' && *p != '}' && *p != '%';
        if (at + 4 > WEIR__WIRE_NAME)
            return SIZE_MAX;
        if (plain) {
            out[at++] = (char)*p;
        } else {
            out[at++] = '%';
            out[at++] = digits[*p >> 4];
            out[at++] = digits[*p & 15];
        }
    }
    return at;
}

int weir__wire_name(const struct weir__wire_target *target, char which, char out[WEIR__WIRE_NAME])
{
    const char *tag = target->group != NULL ? target->group : target->policy;
    size_t at = append_escaped(out, 0, target->prefix);
    if (at == SIZE_MAX || at + 2 >= WEIR__WIRE_NAME)
        return WEIR_E_SPACE;
    memcpy(out + at, ":{", 2);
    at = append_escaped(out, at + 2, tag);
    if (at == SIZE_MAX || at + 1 >= WEIR__WIRE_NAME)
        return WEIR_E_SPACE;
    if (target->group != NULL) {
        out[at++] = '}';
        at = append_escaped(out, at, target->policy);
        if (at == SIZE_MAX)
            return WEIR_E_SPACE;
    }
    int more = snprintf(out + at, WEIR__WIRE_NAME - at, target->group != NULL ? "#%u:%c" : "#%u}:%c",
                        (unsigned)target->shard, which);
    if (more < 0 || (size_t)more >= WEIR__WIRE_NAME - at)
        return WEIR_E_SPACE;
    return (int)at + more;
}

uint32_t weir__wire_slot(const void *name, size_t len)
{
    const uint8_t *bytes = name;
    const uint8_t *open = memchr(bytes, '{', len);
    if (open != NULL) {
        const uint8_t *close = memchr(open + 1, '}', len - (size_t)(open + 1 - bytes));
        if (close != NULL && close > open + 1) {
            bytes = open + 1;
            len = (size_t)(close - bytes);
        }
    }
    uint32_t crc = 0; /* CRC-16/XMODEM */
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint32_t)bytes[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
        crc &= 0xffff;
    }
    return crc & 16383;
}

double weir__wire_generation(uint64_t limit, uint64_t per_ns, uint64_t burst, uint64_t overshoot)
{
    static const double classes[] = {10, 600, 86400, 3456000};
    if (limit == 0)
        return 0;
    /* Two tokens more: a debt is rounded, and so is the time. The scripts say the same. */
    double need = (2.0 * (double)burst + (double)overshoot + 2) * (double)per_ns / (double)limit / 1e9;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (need <= classes[i])
            return classes[i];
    return 0;
}

/* ---- what all commands share ------------------------------------------------------------------------------------- */

/* "$4\r\na:..": the three names of a shard. */
static int put_names(struct weir__wire_buf *out, const struct weir__wire_target *target)
{
    static const char which[] = {'a', 'b', 'n'};
    char name[WEIR__WIRE_NAME];
    if (target->names != NULL) {
        put_bytes(out, target->names->data, target->names->len);
        return 0;
    }
    for (size_t i = 0; i < sizeof which; i++) {
        int len = weir__wire_name(target, which[i], name);
        if (len < 0)
            return len;
        put_string(out, name, (size_t)len);
    }
    return 0;
}

int weir__wire_names(struct weir__wire_buf *out, const struct weir__wire_target *target)
{
    size_t start = out->len;
    int rc = put_names(out, target);
    return finish(out, start, rc);
}

/* EVALSHA sha keys ... with `args` arguments to follow the names. */
static void put_evalsha(struct weir__wire_buf *out, const char *sha, size_t keys, size_t args)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%zu", keys);
    put_length(out, '*', 3 + keys + args);
    put_string(out, "EVALSHA", 7);
    put_string(out, sha, WEIR__WIRE_SHA);
    put_string(out, digits, (size_t)len);
}

/* Seven that the script compares, and three more. */
static void fill_numbers(double values[10], const struct weir__wire_target *target,
                         const struct weir__wire_numbers *numbers, uint64_t nonce)
{
    values[0] = WEIR__WIRE_FORMAT;
    values[1] = target->shards;
    values[2] = (double)numbers->version;
    values[3] = (double)numbers->limit;
    values[4] = (double)numbers->per_ns;
    values[5] = (double)numbers->burst;
    values[6] = (double)numbers->overshoot;
    values[7] = numbers->interval * WEIR__WIRE_US;
    values[8] = numbers->timeout * WEIR__WIRE_US;
    values[9] = (double)(nonce & ((UINT64_C(1) << 52) - 1));
}

static void put_numbers(struct weir__wire_buf *out, const struct weir__wire_target *target,
                        const struct weir__wire_numbers *numbers, uint64_t nonce)
{
    double values[10];
    fill_numbers(values, target, numbers, nonce);
    put_doubles(out, values, 10);
}

/* The server's own clock, or a test's: digits only, whatever the locale. */
static void put_clock(struct weir__wire_buf *out, double now)
{
    char text[48];
    if (now == 0) {
        put_string(out, "", 0);
        return;
    }
    int len = snprintf(text, sizeof text, "%lld", llround(now * WEIR__WIRE_US));
    put_string(out, text, (size_t)len);
}

static void put_number(struct weir__wire_buf *out, uint32_t value)
{
    char digits[16];
    int len = snprintf(digits, sizeof digits, "%u", (unsigned)value);
    put_string(out, digits, (size_t)len);
}

/* ---- a node's batch ---------------------------------------------------------------------------------------------- */

static void put_long(struct weir__wire_buf *out, const struct weir__wire_record *record)
{
    int slice = record->slice;
    put_double(out, (double)record->spent);
    put_double(out, (double)record->refunded);
    put_double(out, (double)record->fallback_spent);
    put_double(out, record->age * WEIR__WIRE_US);
    put_double(out, slice ? record->level : 0);
    put_double(out, slice ? record->rate / WEIR__WIRE_US : 0);
    put_double(out, slice ? record->demand / WEIR__WIRE_US : 0);
    put_double(out, slice ? record->want : 0);
    put_double(out, slice ? record->max_cost : 0);
}

/* What the short records spent. */
static void put_spent(struct weir__wire_buf *out, const struct weir__wire_batch *batch, uint32_t shorts)
{
    char *at;
    put_length(out, '$', (size_t)shorts * 8);
    if (!reserve(out, (size_t)shorts * 8))
        return;
    at = out->data + out->len;
    for (uint32_t i = 0; i < batch->count; i++) {
        double spent = (double)batch->records[i].spent;
        uint64_t bits;
        if (weir__wire_is_long(&batch->records[i]))
            continue;
        memcpy(&bits, &spent, sizeof bits);
        bits = weir__wire_little(bits);
        memcpy(at, &bits, sizeof bits);
        at += sizeof bits;
    }
    out->len += (size_t)shorts * 8;
    put_bytes(out, "\r\n", 2);
}

/* What must be known of a batch before the first byte is written. */
struct shape {
    uint32_t shorts, longs, waits;
    int seeds;
    double owed; /* the deepest overdraft told */
};

/* Calls for each record, those of one kind after those of the other: put(out, record, its number on the wire). */
typedef void put_record_fn(struct weir__wire_buf *out, const struct weir__wire_record *record, uint32_t number);

static inline void each_record(struct weir__wire_buf *out, const struct weir__wire_batch *batch,
                               const struct shape *shape, put_record_fn *put)
{
    uint32_t number = 0;
    for (int want_long = shape->shorts == 0; want_long <= (shape->longs > 0); want_long++)
        for (uint32_t i = 0; i < batch->count; i++)
            if (weir__wire_is_long(&batch->records[i]) == want_long)
                put(out, &batch->records[i], ++number);
}

static void put_seed(struct weir__wire_buf *out, const struct weir__wire_record *record, uint32_t number)
{
    (void)number;
    put_double(out, record->known ? record->seed : 1e300);
    put_double(out, record->known ? record->seed_age * WEIR__WIRE_US : 0);
    put_double(out, record->known ? record->fallback / WEIR__WIRE_US : 0);
}

static void put_waits(struct weir__wire_buf *out, const struct weir__wire_record *record, uint32_t number)
{
    for (uint32_t i = 0; i < record->n_waits; i++) {
        put_double(out, number);
        put_double(out, (double)record->waits[i].cost);
        put_double(out, record->waits[i].count);
    }
}

static void put_record_field(struct weir__wire_buf *out, const struct weir__wire_record *record, uint32_t number)
{
    (void)number;
    put_field(out, record->key, record->key_len);
}

static int measure(const struct weir__wire_batch *batch, struct shape *shape)
{
    size_t waits = 0;
    *shape = (struct shape){0};
    if (batch->count > WEIR__WIRE_RECORDS)
        return WEIR_E_RANGE;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct weir__wire_record *record = &batch->records[i];
        if (weir__wire_is_long(record))
            shape->longs++;
        else
            shape->shorts++;
        if (record->known && (batch->flags & WEIR__WIRE_HELLO) != 0)
            shape->seeds = 1;
        if (-record->level > shape->owed)
            shape->owed = -record->level;
        waits += record->n_waits;
    }
    if (waits > WEIR__WIRE_WAITS)
        return WEIR_E_RANGE;
    shape->waits = (uint32_t)waits;
    return 0;
}

int weir__wire_sync_encode(struct weir__wire_buf *out, const struct weir__wire_batch *batch, const char *sha)
{
    struct shape shape;
    size_t start = out->len;
    int rc = measure(batch, &shape);
    if (rc != 0)
        return rc;
    const double meta[] = {
        (double)batch->seq, batch->epoch, batch->rtt * WEIR__WIRE_US, batch->flags, shape.shorts, shape.longs,
        batch->nodes,       shape.owed,
    };
    reserve(out, 1024 + (size_t)shape.shorts * 64 + (size_t)shape.longs * 128); /* most keys fit: it grows once */
    put_evalsha(out, sha, 3, 8 + (size_t)batch->count);
    rc = put_names(out, &batch->target);
    put_numbers(out, &batch->target, &batch->numbers, batch->nonce);
    put_clock(out, batch->test_now);
    put_string(out, batch->node, sizeof batch->node);
    put_doubles(out, meta, sizeof meta / sizeof meta[0]);
    put_spent(out, batch, shape.shorts);
    put_length(out, '$', (size_t)shape.longs * 72);
    for (uint32_t i = 0; i < batch->count && shape.longs > 0; i++)
        if (weir__wire_is_long(&batch->records[i]))
            put_long(out, &batch->records[i]);
    put_bytes(out, "\r\n", 2);
    put_length(out, '$', shape.seeds ? (size_t)batch->count * 24 : 0);
    if (shape.seeds)
        each_record(out, batch, &shape, put_seed);
    put_bytes(out, "\r\n", 2);
    put_length(out, '$', (size_t)shape.waits * 24);
    if (shape.waits > 0)
        each_record(out, batch, &shape, put_waits);
    put_bytes(out, "\r\n", 2);
    each_record(out, batch, &shape, put_record_field);
    return finish(out, start, rc);
}

/* ---- strict ------------------------------------------------------------------------------------------------------ */

int weir__wire_strict_encode(struct weir__wire_buf *out, const struct weir__wire_strict *batch, const char *sha)
{
    return weir__wire_strict_encode_all(out, batch, 1, sha);
}

/* Is each key asked for once, by takes that are all alike? As most are: then they are told once. */
static int all_alike(const struct weir__wire_strict *shards, uint32_t n)
{
    for (uint32_t u = 0; u < n; u++) {
        if (shards[u].n_keys != shards[u].n_entries || shards[u].n_keys == 0)
            return 0;
        for (uint32_t i = 0; i < shards[u].n_entries; i++) {
            const struct weir__wire_strict_entry *entry = &shards[u].entries[i];
            if (entry->key != i || entry->op != WEIR__WIRE_TAKE || entry->cost != shards[0].entries[0].cost ||
                entry->count != shards[0].entries[0].count)
                return 0;
        }
    }
    return 1;
}

static void put_entries(struct weir__wire_buf *out, const struct weir__wire_strict *shard)
{
    for (uint32_t i = 0; i < shard->n_entries; i++) {
        const struct weir__wire_strict_entry *entry = &shard->entries[i];
        put_double(out, (double)entry->key + 1);
        put_double(out, entry->op);
        put_double(out, (double)entry->cost);
        put_double(out, entry->count);
    }
}

int weir__wire_strict_encode_all(struct weir__wire_buf *out, const struct weir__wire_strict *shards, uint32_t n,
                                 const char *sha)
{
    size_t start = out->len, keys = 0, entries = 0;
    double numbers[13];
    int rc = 0;
    if (n == 0 || n > WEIR__WIRE_SHARDS)
        return WEIR_E_RANGE;
    for (uint32_t u = 0; u < n; u++) {
        keys += shards[u].n_keys;
        entries += shards[u].n_entries;
    }
    if (keys > WEIR__WIRE_RECORDS || entries > WEIR__WIRE_WAITS)
        return WEIR_E_RANGE;
    put_evalsha(out, sha, 3 * (size_t)n, keys + (n > 1) + 1);
    for (uint32_t u = 0; u < n && rc == 0; u++)
        rc = put_names(out, &shards[u].target);
    for (uint32_t u = 0; u < n; u++)
        for (uint32_t i = 0; i < shards[u].n_keys; i++)
            put_field(out, shards[u].keys[i].key, shards[u].keys[i].key_len);
    if (n > 1) {
        put_length(out, '$', (size_t)n * 24);
        for (uint32_t u = 0; u < n; u++) {
            put_double(out, shards[u].n_keys);
            put_double(out, shards[u].n_entries);
            put_double(out, shards[u].epoch);
        }
        put_bytes(out, "\r\n", 2);
    }
    fill_numbers(numbers, &shards[0].target, &shards[0].numbers, shards[0].nonce);
    numbers[10] = shards[0].test_now == 0 ? 0 : round(shards[0].test_now * WEIR__WIRE_US);
    numbers[11] = shards[0].flags;
    numbers[12] = shards[0].epoch;
    int alike = all_alike(shards, n);
    put_length(out, '$', sizeof numbers + (alike ? 16 : entries * 32));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        put_double(out, numbers[i]);
    for (uint32_t u = 0; u < n && !alike; u++)
        put_entries(out, &shards[u]);
    if (alike) {
        put_double(out, (double)shards[0].entries[0].cost);
        put_double(out, shards[0].entries[0].count);
    }
    put_bytes(out, "\r\n", 2);
    return finish(out, start, rc);
}

/* Members of one policy and shard share its three keys. */
static int same_shard(const struct weir__wire_member *a, const struct weir__wire_member *b)
{
    return a->target.shard == b->target.shard && strcmp(a->target.policy, b->target.policy) == 0;
}

/* unit[i]: the shard of member i, counted from 1; first[u]: its first member. Returns how many there are. */
static uint32_t find_units(const struct weir__wire_all *all, uint32_t unit[], uint32_t first[])
{
    uint32_t units = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        uint32_t u = 0;
        while (u < units && !same_shard(&all->members[first[u]], &all->members[i]))
            u++;
        if (u == units)
            first[units++] = i;
        unit[i] = u + 1;
    }
    return units;
}

int weir__wire_all_encode(struct weir__wire_buf *out, const struct weir__wire_all *all, const char *sha)
{
    uint32_t unit[WEIR__WIRE_MEMBERS], first[WEIR__WIRE_MEMBERS];
    size_t start = out->len;
    int rc = 0;
    if (all->n == 0 || all->n > WEIR__WIRE_MEMBERS)
        return WEIR_E_RANGE;
    uint32_t units = find_units(all, unit, first);
    put_evalsha(out, sha, (size_t)units * 3, 3 + (size_t)units + all->n);
    for (uint32_t u = 0; u < units && rc == 0; u++)
        rc = put_names(out, &all->members[first[u]].target);
    put_clock(out, all->test_now);
    put_length(out, '$', (size_t)units * 8);
    for (uint32_t u = 0; u < units; u++)
        put_double(out, all->members[first[u]].flags);
    put_bytes(out, "\r\n", 2);
    put_length(out, '$', (size_t)all->n * 16);
    for (uint32_t i = 0; i < all->n; i++) {
        put_double(out, unit[i]);
        put_double(out, (double)all->members[i].cost);
    }
    put_bytes(out, "\r\n", 2);
    for (uint32_t u = 0; u < units; u++)
        put_numbers(out, &all->members[first[u]].target, &all->members[first[u]].numbers, all->nonce);
    for (uint32_t i = 0; i < all->n; i++)
        put_field(out, all->members[i].key, all->members[i].key_len);
    return finish(out, start, rc);
}

/* ---- forget and peek --------------------------------------------------------------------------------------------- */

int weir__wire_forget_encode(struct weir__wire_buf *out, const struct weir__wire_target *target,
                             const struct weir__wire_key *keys, uint32_t n, const char *sha)
{
    size_t start = out->len;
    if (n > WEIR__WIRE_RECORDS)
        return WEIR_E_RANGE;
    put_evalsha(out, sha, 3, n);
    int rc = put_names(out, target);
    for (uint32_t i = 0; i < n; i++)
        put_field(out, keys[i].key, keys[i].key_len);
    return finish(out, start, rc);
}

int weir__wire_peek_encode(struct weir__wire_buf *out, const struct weir__wire_target *target, const void *key,
                           size_t key_len, double test_now, const char *sha)
{
    size_t start = out->len;
    put_evalsha(out, sha, 3, 3);
    int rc = put_names(out, target);
    put_clock(out, test_now);
    put_number(out, WEIR__WIRE_FORMAT);
    put_field(out, key, key_len);
    return finish(out, start, rc);
}
