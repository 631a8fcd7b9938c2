/* SPDX-License-Identifier: MIT */
/*
 * Texts of statuses, and the version. Knows nothing else.
 */
#include <weir/weir.h>

#define WEIR_TEXT_OF(number) #number
#define WEIR_TEXT(number) WEIR_TEXT_OF(number)

const char *weir_strerror(int status)
{
    switch (status) {
#define WEIR_STATUS_TEXT(code, number, text)                                                                           \
    case code: return text;
        WEIR_STATUS_MAP(WEIR_STATUS_TEXT)
#undef WEIR_STATUS_TEXT
    default: return "unknown status";
    }
}

const char *weir_version(void)
{
    return WEIR_TEXT(WEIR_VERSION_MAJOR) "." WEIR_TEXT(WEIR_VERSION_MINOR) "." WEIR_TEXT(WEIR_VERSION_PATCH);
}
