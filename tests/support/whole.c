/* SPDX-License-Identifier: MIT */
/*
 * What holds of every table at rest.
 */
#include "support/whole.h"

#include <check.h>

#include "lib/intent.h"
#include "lib/table.h"

static unsigned tag_of(const struct weir *w, uint32_t slot)
{
    return (uint8_t)(w->tags[slot / WEIR__WAYS].word[slot % WEIR__WAYS / 8] >> 8 * (slot % WEIR__WAYS % 8));
}

void whole_check(struct weir *w)
{
    uint64_t entries = 0;

    weir__intent_recover(w);
    for (unsigned i = 0; i < WEIR__INTENTS; i++) {
        ck_assert_uint_eq(w->state->intents[i].process, 0);
        ck_assert_uint_eq(w->state->intents[i].what, 0);
    }
    for (uint32_t slot = 0; slot < w->slots; slot++) {
        const struct weir__hot *e = &w->hot[slot];
        uint64_t id[2] = {e->id[0], e->id[1]}, x;

        ck_assert_uint_eq(e->x & WEIR__LOCK, 0);
        ck_assert_uint_eq(e->pin, 0);
        ck_assert_int_eq(tag_of(w, slot) != 0, id[0] != 0);
        if (id[0] == 0)
            continue;
        entries++;
        ck_assert_uint_eq(tag_of(w, slot), weir__table_tag(id[0]));
        ck_assert_ptr_eq(weir__table_search(w, id, &x), e);
    }
    ck_assert_uint_eq(w->state->keys, entries);
    ck_assert_uint_eq(w->state->paused, 0);
}
