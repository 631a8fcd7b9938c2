/* SPDX-License-Identifier: MIT */
/*
 * What any thread hands to the loop's thread: a lock-free list of items, taken off as a whole, in the order in which
 * they came. Owns no memory and wakes nobody: it says who must.
 *
 * Who writes and who reads:
 *   head         pushers add by CAS (release); the loop's thread takes all by exchange (acquire)
 *   item->next   its pusher before the item is in the list, its taker after that
 */
#ifndef WEIR_SYNC_QUEUE_H
#define WEIR_SYNC_QUEUE_H

#include <stdatomic.h>

/* A full fence between pushing and waking, and between being woken and taking: uv_async_send may return on a relaxed
 * read that finds a wake-up pending, and what was pushed must then be seen by the callback that is about to run
 * (docs/memory-model.md, W). ThreadSanitizer knows no fences; a read-modify-write does the same there. */
#if defined(__SANITIZE_THREAD__)
#define WEIR__QUEUE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEIR__QUEUE_TSAN 1
#endif
#endif

struct weir__item {
    struct weir__item *next;
    int kind; /* of what it is part of; not the queue's business */
};

struct weir__queue {
    _Atomic(struct weir__item *) head; /* the newest first */
    _Atomic unsigned fence;            /* under ThreadSanitizer */
};

static inline void weir__queue_fence(struct weir__queue *queue)
{
#ifdef WEIR__QUEUE_TSAN
    (void)atomic_fetch_add_explicit(&queue->fence, 1, memory_order_seq_cst);
#else
    (void)queue;
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* open 0: as after weir__queue_shut. */
void weir__queue_init(struct weir__queue *queue, int open);

/* Lets items in. */
void weir__queue_open(struct weir__queue *queue);

/* 1: added to an empty queue: the loop must be woken, and nobody else will. 0: added; whoever made it non-empty wakes
 * the loop. -1: shut, not added. Threads: any. */
int weir__queue_push(struct weir__queue *queue, struct weir__item *item);

/* All that is in it, the oldest first; NULL: nothing. Threads: the loop's. */
struct weir__item *weir__queue_take(struct weir__queue *queue);

/* The same, and lets nothing in from now on. Threads: the loop's. */
struct weir__item *weir__queue_shut(struct weir__queue *queue);

#endif
