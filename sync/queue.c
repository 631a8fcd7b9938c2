/* SPDX-License-Identifier: MIT */
/*
 * A stack that is taken as a whole and turned over. It must not know what the items are. There is no ABA: nobody takes
 * single items.
 */
#include "sync/queue.h"

#include <stddef.h>

/* What head holds while the queue is shut: no item has this address. */
static struct weir__item shut_mark;

void weir__queue_init(struct weir__queue *queue, int open)
{
    atomic_init(&queue->head, open ? NULL : &shut_mark);
    atomic_init(&queue->fence, 0);
}

void weir__queue_open(struct weir__queue *queue)
{
    /* release: who pushes sees what was set up before */
    atomic_store_explicit(&queue->head, NULL, memory_order_release);
}

int weir__queue_push(struct weir__queue *queue, struct weir__item *item)
{
    struct weir__item *head = atomic_load_explicit(&queue->head, memory_order_acquire);

    do {
        if (head == &shut_mark)
            return -1;
        item->next = head;
        /* release: the item's content; acquire: what weir__queue_open published */
    } while (
        !atomic_compare_exchange_weak_explicit(&queue->head, &head, item, memory_order_acq_rel, memory_order_acquire));
    return head == NULL;
}

static struct weir__item *turn_over(struct weir__item *newest)
{
    struct weir__item *oldest = NULL;

    while (newest) {
        struct weir__item *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

static struct weir__item *take_all(struct weir__queue *queue, struct weir__item *leave)
{
    return turn_over(atomic_exchange_explicit(&queue->head, leave, memory_order_acq_rel));
}

struct weir__item *weir__queue_take(struct weir__queue *queue)
{
    struct weir__item *head = atomic_load_explicit(&queue->head, memory_order_relaxed);

    /* only this thread shuts and opens it: what is no mark here will be none in the exchange */
    if (head == NULL || head == &shut_mark)
        return NULL;
    return take_all(queue, NULL);
}

struct weir__item *weir__queue_shut(struct weir__queue *queue)
{
    if (atomic_load_explicit(&queue->head, memory_order_relaxed) == &shut_mark)
        return NULL;
    return take_all(queue, &shut_mark);
}
