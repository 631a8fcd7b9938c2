/* SPDX-License-Identifier: MIT */
/*
 * Reading the caller's structs: sizes, defaults, ranges. Knows nothing of what is made of them.
 */
#ifndef WEIR_LIB_OPTIONS_H
#define WEIR_LIB_OPTIONS_H

#include <weir/weir.h>

#include "lib/bucket.h"

#define WEIR__MAX_KEYS (UINT64_C(1) << 31)

/* in may be NULL. Defaults are filled in. 0, WEIR_E_INVAL or WEIR_E_RANGE. */
int weir__options_read(const struct weir_options *in, struct weir_options *out);

/* name may be NULL only where it is kept (keep_name). burst and max_overshoot are resolved (WEIR_NONE: 0), group is
 * NULL rather than empty. 0 or an error of weir_policy_add. */
int weir__options_policy(const struct weir_policy *in, int keep_name, struct weir_policy *out,
                         struct weir__numbers *numbers);

#endif
