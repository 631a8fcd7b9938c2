/* SPDX-License-Identifier: MIT */
/* Peer: one bucket of doubles under a mutex, time from clock_gettime: what most C programs have. */
#include <pthread.h>
#include <time.h>

#include "serve.h"

static struct bucket {
    pthread_mutex_t mutex;
    double tokens, per_ns, burst;
    uint64_t last_ns;
} bucket = {.mutex = PTHREAD_MUTEX_INITIALIZER, .tokens = 1e12, .per_ns = 1e-3, .burst = 1e12};

static int take(struct bucket *b, double cost)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    uint64_t now = (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
    pthread_mutex_lock(&b->mutex);
    if (now > b->last_ns) {
        b->tokens += (double)(now - b->last_ns) * b->per_ns;
        b->tokens = b->tokens > b->burst ? b->burst : b->tokens;
        b->last_ns = now;
    }
    int allowed = b->tokens >= cost;
    b->tokens -= allowed ? cost : 0;
    pthread_mutex_unlock(&b->mutex);
    return allowed;
}

static uint64_t work(void *arg, unsigned thread, size_t ops)
{
    uint64_t allowed = 0;
    (void)thread;
    for (size_t i = 0; i < ops; i++) {
        allowed += (uint64_t)take(arg, 1);
    }
    return allowed;
}

int main(void)
{
    return peer_serve("mutex + double", work, &bucket);
}
