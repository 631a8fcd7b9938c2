/* SPDX-License-Identifier: MIT */
/*
 * What an error reply means: a table of first words, and the older servers' habit of hiding them in another text.
 * Owns no state.
 */
#include <string.h>

#include "sync/link_state.h"

static const char *const labels[WEIR__LINK_KINDS] = {
#define LABEL(name, label, ...) [WEIR__LINK_##name] = label,
    WEIR__LINK_FAULT_MAP(LABEL) WEIR__LINK_REPLY_MAP(LABEL)
#undef LABEL
        [WEIR__LINK_OK] = "ok",
};

static const enum weir__link_effect effects[WEIR__LINK_KINDS] = {
#define EFFECT(name, label, effect) [WEIR__LINK_##name] = WEIR__LINK_##effect,
    WEIR__LINK_REPLY_MAP(EFFECT)
#undef EFFECT
        [WEIR__LINK_PROTOCOL] = WEIR__LINK_DROP,
};

static const struct {
    const char *word;
    size_t len;
    enum weir__link_kind kind;
} words[] = {
#define WORD(name, label, effect) {#name, sizeof #name - 1, WEIR__LINK_##name},
    WEIR__LINK_REPLY_MAP(WORD)
#undef WORD
};

const char *weir__link_kind_label(enum weir__link_kind kind)
{
    return (unsigned)kind < WEIR__LINK_KINDS ? labels[kind] : "unknown";
}

/* The kind whose word stands at the start of text, whole. ERROR is no server's word. */
static enum weir__link_kind match_word(const char *text, size_t len)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = words[i].len;
        if (words[i].kind != WEIR__LINK_ERROR && len >= n && memcmp(text, words[i].word, n) == 0 &&
            (len == n || text[n] == ' ')) {
            return words[i].kind;
        }
    }
    return WEIR__LINK_ERROR;
}

/* "ERR Error running script (call to f_...): @user_script:7: -READONLY You can't ...": the word stands behind a colon,
 * with or without its dash. */
static enum weir__link_kind match_nested(const char *text, size_t len)
{
    for (size_t i = 0; i + 2 < len; i++) {
        if (text[i] == ':' && text[i + 1] == ' ') {
            size_t at = i + 2 + (text[i + 2] == '-');
            enum weir__link_kind kind = match_word(text + at, len - at);
            if (kind != WEIR__LINK_ERROR) {
                return kind;
            }
        }
    }
    return WEIR__LINK_ERROR;
}

enum weir__link_kind weir__link_classify(const char *text, size_t len)
{
    static const char wrapper[] = "ERR Error running script";
    if (len >= sizeof wrapper - 1 && memcmp(text, wrapper, sizeof wrapper - 1) == 0) {
        return match_nested(text, len);
    }
    return match_word(text, len);
}

enum weir__link_effect weir__link_effect_of(enum weir__link_kind kind)
{
    return effects[kind];
}
