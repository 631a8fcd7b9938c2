/* SPDX-License-Identifier: MIT */
/*
 * Reading the caller's structs.
 */
#include "lib/options.h"

#include <stddef.h>
#include <string.h>

#define DEFAULT_KEYS 65536
#define NS_A_DAY (UINT64_C(86400) * 1000000000)
#define VERSION_MAX (UINT64_C(1) << 53) /* past it Redis, which counts in doubles, would take some for the same */
#define SHARED_DAYS_MAX 40              /* Redis keeps a bucket until it is surely full: not for longer */

/* Copies a struct that starts with its size, as this library knows it. Older callers' are shorter: zeros. Newer ones'
 * are longer, and may not ask for what this library doesn't know. */
static int copy_sized(void *out, size_t known, const void *in, size_t least)
{
    const unsigned char *bytes = in;
    size_t size;

    memcpy(&size, in, sizeof size);
    if (size < least)
        return WEIR_E_INVAL;
    for (size_t i = known; i < size; i++) {
        if (bytes[i])
            return WEIR_E_NOSUP;
    }
    memset(out, 0, known);
    memcpy(out, in, size < known ? size : known);
    return 0;
}

int weir__options_read(const struct weir_options *in, struct weir_options *out)
{
    static const struct weir_options none = WEIR_OPTIONS_INIT;
    int error = copy_sized(out, sizeof *out, in ? in : &none, offsetof(struct weir_options, reserved));

    if (error)
        return error;
    if (out->max_keys == 0)
        out->max_keys = DEFAULT_KEYS;
    if (out->max_keys > WEIR__MAX_KEYS)
        return WEIR_E_RANGE;
    if (out->on_full != WEIR_FULL_DENY && out->on_full != WEIR_FULL_ADMIT)
        return WEIR_E_INVAL;
    if (out->clock != WEIR_CLOCK_AUTO && out->clock != WEIR_CLOCK_MONOTONIC)
        return WEIR_E_INVAL;
    if (!out->allocator.alloc != !out->allocator.release)
        return WEIR_E_INVAL;
    return 0;
}

static int check_name(const char *name)
{
    size_t n = strnlen(name, WEIR_NAME_MAX + 1);

    if (n == 0 || n > WEIR_NAME_MAX)
        return WEIR_E_NAME;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];

        if (c < 0x20 || c == 0x7f || c == '{' || c == '}')
            return WEIR_E_NAME;
    }
    return 0;
}

static int check_enums(const struct weir_policy *p)
{
    if ((unsigned)p->mode > WEIR_STRICT || (unsigned)p->on_outage > WEIR_OUTAGE_CLOSED ||
        (unsigned)p->unknown > WEIR_UNKNOWN_DENY)
        return WEIR_E_INVAL;
    return 0;
}

/* How long Redis must keep a bucket: until it has filled from its deepest debt; two tokens more, as the scripts have it
 * (docs/protocol.md). */
static int check_shared(const struct weir_policy *p)
{
    weir__u128 fills = (weir__u128)(2 * p->burst + p->max_overshoot + 2) * p->per_ns;

    if (p->limit == 0)
        return WEIR_E_INVAL;
    if (p->version > VERSION_MAX)
        return WEIR_E_RANGE;
    return fills > (weir__u128)p->limit * SHARED_DAYS_MAX * NS_A_DAY ? WEIR_E_RANGE : 0;
}

int weir__options_policy(const struct weir_policy *in, int keep_name, struct weir_policy *out,
                         struct weir__numbers *numbers)
{
    int error = copy_sized(out, sizeof *out, in, offsetof(struct weir_policy, reserved));

    if (error)
        return error;
    if (out->name || !keep_name)
        error = out->name ? check_name(out->name) : WEIR_E_NAME;
    if (out->group && !*out->group)
        out->group = NULL;
    if (!error && out->group)
        error = check_name(out->group);
    if (!error)
        error = check_enums(out);
    if (!error)
        error = weir__bucket_numbers(out->limit, out->per_ns, out->burst, numbers);
    if (error)
        return error;
    if (out->burst == 0)
        out->burst = out->limit;
    if (out->max_overshoot == 0)
        out->max_overshoot = out->burst / 10;
    else if (out->max_overshoot == WEIR_NONE)
        out->max_overshoot = 0;
    if (out->max_overshoot > WEIR_BURST_MAX)
        return WEIR_E_RANGE;
    return out->mode == WEIR_LOCAL ? 0 : check_shared(out);
}
