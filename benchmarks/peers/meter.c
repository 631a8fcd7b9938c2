/* SPDX-License-Identifier: MIT */
/* Peer: DPDK's rte_meter, a single-rate three-colour marker; green is allowed. For one thread only. */
#include <rte_cycles.h>
#include <rte_meter.h>

#include "serve.h"

struct meter {
    struct rte_meter_srtcm state;
    struct rte_meter_srtcm_profile profile;
};

static uint64_t work(void *arg, unsigned thread, size_t ops)
{
    struct meter *m = arg;
    uint64_t allowed = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += rte_meter_srtcm_color_blind_check(&m->state, &m->profile, rte_rdtsc(), 1) == RTE_COLOR_GREEN;
    }
    return allowed;
}

int main(void)
{
    /* The profile is filled in by hand, one token every 2,500 cycles, about a million a second: the function that does
     * it asks an initialised EAL for the counter's frequency. */
    struct meter m = {.profile = {.cbs = UINT64_C(1000000000000),
                                  .ebs = UINT64_C(1000000000000),
                                  .cir_period = 2500,
                                  .cir_bytes_per_period = 1}};
    if (rte_meter_srtcm_config(&m.state, &m.profile) != 0) {
        return 1;
    }
    return peer_serve("DPDK rte_meter", work, &m);
}
