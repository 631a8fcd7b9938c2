/* SPDX-License-Identifier: MIT */
/* See serve.h. */
#include "serve.h"

#include <pthread.h>
#include <stdio.h>

#define THREADS_MAX 8u

struct share {
    peer_work work;
    void *arg;
    unsigned thread;
    size_t ops;
    uint64_t allowed;
    pthread_t handle;
};

static void *do_share(void *arg)
{
    struct share *share = arg;
    share->allowed = share->work(share->arg, share->thread, share->ops);
    return NULL;
}

int peer_serve(const char *name, peer_work work, void *arg)
{
    unsigned threads;
    size_t ops;
    printf("ready %s\n", name);
    fflush(stdout);
    while (scanf("%u %zu", &threads, &ops) == 2 && threads >= 1 && threads <= THREADS_MAX) {
        struct share shares[THREADS_MAX];
        uint64_t allowed = 0;
        for (unsigned i = 0; i < threads; i++) {
            shares[i] = (struct share){.work = work, .arg = arg, .thread = i, .ops = ops};
            if (i > 0 && pthread_create(&shares[i].handle, NULL, do_share, &shares[i]) != 0) {
                return 1;
            }
        }
        do_share(&shares[0]);
        for (unsigned i = 0; i < threads; i++) {
            if (i > 0) {
                pthread_join(shares[i].handle, NULL);
            }
            allowed += shares[i].allowed;
        }
        printf("%llu\n", (unsigned long long)allowed);
        fflush(stdout);
    }
    return 0;
}
