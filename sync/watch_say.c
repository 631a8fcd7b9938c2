/* SPDX-License-Identifier: MIT */
/* Owns the text of the stats socket's answers; must not know who reads it or how a key's rate was found. */
#include "sync/watch_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <uv.h>

#define KEY_SHOWN 96u /* bytes of a key that are told */
#define KEY_LINE (3 * KEY_SHOWN + 160)
#define POLICY_LINE (3 * WEIR_NAME_MAX + 320)
#define FIRST_LINES 1024u

static const char end[] = "end\n";

struct text {
    char *at;
    size_t room, used;
};

static void add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(t->at + t->used, t->room - t->used, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < t->room - t->used)
        t->used += (size_t)n;
}

/* One word: whatever is not printable ASCII, and blanks, = and %, as %XX. */
static void add_word(struct text *t, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < len; i++)
        add(t, p[i] > ' ' && p[i] < 0x7f && p[i] != '%' && p[i] != '=' ? "%c" : "%%%02X", p[i]);
}

static void add_process(struct text *t, struct weir__node *node, uint64_t uptime_ns)
{
    struct weir_stats s = {.size = sizeof s};
    uint64_t now = weir_now(node->w);
    double age = -1;

    weir_stats_get(node->w, &s);
    if (s.last_sync_ns)
        age = now > s.last_sync_ns ? (double)(now - s.last_sync_ns) / 1e9 : 0;
    add(t, "process pid=%d version=%s uptime_s=%.3f\n", (int)uv_os_getpid(), weir_version(), (double)uptime_ns / 1e9);
    add(t, "table keys=%llu max_keys=%llu memory_bytes=%llu evictions=%llu table_full=%llu\n",
        (unsigned long long)s.keys, (unsigned long long)s.max_keys, (unsigned long long)s.memory_bytes,
        (unsigned long long)s.evictions, (unsigned long long)s.table_full);
    add(t, "store up=%d last_sync_age_s=%.3f syncs=%llu sync_errors=%llu reconnects=%llu strict=%llu degraded=%llu",
        s.store_up, age, (unsigned long long)s.syncs, (unsigned long long)s.sync_errors,
        (unsigned long long)s.reconnects, (unsigned long long)s.strict, (unsigned long long)s.degraded);
    add(t, " pending_tokens=%llu written_off_tokens=%llu round_trip_s=%.6f\n", (unsigned long long)s.pending_tokens,
        (unsigned long long)s.written_off_tokens, node->rtt);
}

static void add_policy(struct text *t, struct weir *w, weir_policy_id id, const struct weir__seam_policy *p)
{
    static const char *const modes[] = {"hybrid", "local", "strict"};
    uint64_t allowed, denied;

    weir__seam_verdicts(w, id, &allowed, &denied);
    add(t, "policy id=%u allowed=%llu denied=%llu limit=%llu per_ns=%llu burst=%llu max_overshoot=%llu", id,
        (unsigned long long)allowed, (unsigned long long)denied, (unsigned long long)p->limit,
        (unsigned long long)p->per_ns, (unsigned long long)p->burst, (unsigned long long)p->max_overshoot);
    add(t, " mode=%s shadow=%d name=", modes[p->mode], p->shadow != 0);
    add_word(t, p->name, strlen(p->name));
    add(t, "\n");
}

/* What is left is asked of memory alone: a strict policy would ask Redis. */
static void add_key(struct text *t, struct weir *w, const struct weir__watched *key)
{
    unsigned char bytes[KEY_SHOWN];
    struct weir__seam_policy policy;
    struct weir_result result;
    size_t len = weir__seam_key(w, key->slot, key->id, bytes, sizeof bytes), shown = len;

    if (len == 0 || weir__seam_policy(w, key->policy, &policy))
        return;
    if (shown > WEIR__SEAM_KEY_PART + sizeof(uint32_t))
        shown = policy.mode == WEIR_LOCAL ? WEIR__SEAM_KEY_PART : shown < sizeof bytes ? shown : sizeof bytes;
    add(t, "key policy=%u per_s=%.1f", key->policy, key->per_s);
    if (shown == len && policy.mode != WEIR_STRICT && weir_peek(w, key->policy, bytes, len, 0, &result) >= 0)
        add(t, " remaining=%lld", (long long)result.remaining);
    add(t, " length=%zu key=", len);
    add_word(t, bytes, shown);
    add(t, "\n");
}

char *weir__watch_say_top(struct weir__node *node, uint64_t uptime_ns, const struct weir__watched *keys, size_t n,
                          size_t *size, size_t *len)
{
    struct weir__seam_policy policy;
    struct text t = {.room = FIRST_LINES + n * KEY_LINE + sizeof end};
    weir_policy_id policies = 0;

    while (weir__seam_policy(node->w, policies, &policy) == 0)
        policies++;
    t.room += policies * POLICY_LINE;
    t.at = weir__node_alloc(node, t.room);
    if (!t.at)
        return NULL;
    add_process(&t, node, uptime_ns);
    for (weir_policy_id id = 0; id < policies; id++)
        if (weir__seam_policy(node->w, id, &policy) == 0)
            add_policy(&t, node->w, id, &policy);
    for (size_t i = 0; i < n; i++)
        add_key(&t, node->w, &keys[i]);
    add(&t, "%s", end);
    *size = t.room;
    *len = t.used;
    return t.at;
}

char *weir__watch_say_metrics(struct weir__node *node, size_t *size, size_t *len)
{
    int n = weir_metrics_write(node->w, NULL, 0), written;
    char *text;

    if (n < 0)
        return NULL;
    *size = (size_t)n + 4096 + sizeof end; /* it may have grown until the next line */
    text = weir__node_alloc(node, *size);
    if (!text)
        return NULL;
    written = weir_metrics_write(node->w, text, *size - sizeof end);
    if (written < 0 || (size_t)written >= *size - sizeof end)
        written = 0;
    memcpy(text + written, end, sizeof end);
    *len = (size_t)written + sizeof end - 1;
    return text;
}
