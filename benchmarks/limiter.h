/* SPDX-License-Identifier: MIT */
/* Limiters and keys as the benchmarks use them, through the public interface alone. */
#ifndef WEIR_BENCH_LIMITER_H
#define WEIR_BENCH_LIMITER_H

#include <stddef.h>
#include <stdint.h>

#include <weir/weir.h>

/* Dies on an error. */
struct weir *limiter_open(size_t max_keys);

/* A local policy. Dies on an error. */
weir_policy_id limiter_policy(struct weir *w, const char *name, uint64_t limit, uint64_t per_ns, uint64_t burst);

/* 10^12 tokens, one more a day: neither empty nor, after its first take, full. So a take is one step of one word. */
weir_policy_id limiter_ample(struct weir *w);

/* 16 bytes, "user:" and more, made from a number in registers. */
struct key16 {
    uint64_t words[2];
};

static inline struct key16 key16_make(uint64_t number)
{
    struct key16 key = {
        {UINT64_C(0x3a72657375) | number << 40, (number >> 24) * UINT64_C(0x9e3779b97f4a7c15) + number}};
    return key;
}

/* Dies unless status is 0. */
void limiter_check(int status, const char *what);

#endif
