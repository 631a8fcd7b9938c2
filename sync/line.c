/* SPDX-License-Identifier: MIT */
/*
 * A queue with a pool: after the first burst no command costs an allocation.
 */
#include "sync/line.h"

#include <string.h>

void weir__line_init(struct weir__line *line, const struct weir_allocator *allocator)
{
    memset(line, 0, sizeof *line);
    line->allocator = *allocator;
}

void weir__line_deinit(struct weir__line *line)
{
    struct weir__command *command;
    while ((command = line->spare)) {
        line->spare = command->next;
        line->allocator.release(line->allocator.arg, command, sizeof *command);
    }
}

struct weir__command *weir__line_take(struct weir__line *line)
{
    struct weir__command *command = line->spare;
    if (command) {
        line->spare = command->next;
    } else {
        command = line->allocator.alloc(line->allocator.arg, sizeof *command);
    }
    if (command) {
        memset(command, 0, sizeof *command);
        command->deadline = UINT64_MAX;
    }
    return command;
}

void weir__line_spare(struct weir__line *line, struct weir__command *command)
{
    command->next = line->spare;
    line->spare = command;
}

void weir__line_append(struct weir__line *line, struct weir__command *command)
{
    command->next = NULL;
    if (line->tail) {
        line->tail->next = command;
    } else {
        line->head = command;
    }
    line->tail = command;
    line->length++;
    line->own += command->purpose != WEIR__USER;
    line->loads += command->purpose == WEIR__LOAD;
}

struct weir__command *weir__line_next(struct weir__line *line)
{
    struct weir__command *command = line->head;
    if (command) {
        line->head = command->next;
        line->tail = line->head ? line->tail : NULL;
        line->length--;
        line->own -= command->purpose != WEIR__USER;
        line->loads -= command->purpose == WEIR__LOAD;
    }
    return command;
}
