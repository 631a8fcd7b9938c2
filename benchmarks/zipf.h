/* SPDX-License-Identifier: MIT */
/* Which key comes next: uniform or Zipf over n keys. */
#ifndef WEIR_BENCH_ZIPF_H
#define WEIR_BENCH_ZIPF_H

#include <stddef.h>
#include <stdint.h>

/* Zipf with exponent s > 0, s != 1, over 0 to n - 1 (0 the most frequent), by rejection inversion (W. Hoermann,
 * G. Derflinger, 1996): no table of n entries. */
struct zipf {
    double s, n, low, high, squeeze;
};

void zipf_init(struct zipf *z, uint64_t n, double s);
uint64_t zipf_draw(const struct zipf *z, uint64_t *random);

#endif
