/* SPDX-License-Identifier: MIT */
/* See zipf.h. */
#include "zipf.h"

#include <math.h>

#include "harness.h"

/* Integral of x^-s, and its inverse. */
static double integral(const struct zipf *z, double x)
{
    return (pow(x, 1 - z->s) - 1) / (1 - z->s);
}

static double inverse(const struct zipf *z, double y)
{
    return pow(1 + y * (1 - z->s), 1 / (1 - z->s));
}

void zipf_init(struct zipf *z, uint64_t n, double s)
{
    z->s = s;
    z->n = (double)n;
    z->high = integral(z, 1.5) - 1;
    z->low = integral(z, z->n + 0.5);
    z->squeeze = 2 - inverse(z, integral(z, 2.5) - pow(2, -s));
}

uint64_t zipf_draw(const struct zipf *z, uint64_t *random)
{
    for (;;) {
        double uniform = (double)(bench_random(random) >> 11) * 0x1p-53;
        double u = z->low + uniform * (z->high - z->low);
        double x = inverse(z, u);
        double k = floor(x + 0.5);
        k = k < 1 ? 1 : k > z->n ? z->n : k;
        if (k - x <= z->squeeze || u >= integral(z, k + 0.5) - pow(k, -z->s)) {
            return (uint64_t)k - 1;
        }
    }
}
