/* The calling thread's error text, and the names of statuses. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char error_text[MOK_ERROR_TEXT_BYTES];

mok_status mok_fail(mok_status status, const char *format, ...)
{
    char text[MOK_ERROR_TEXT_BYTES]; /* an argument may be the text that was */
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(error_text, text, sizeof text);
    return status;
}

void mok_error_text_set(const char *text)
{
    (void)snprintf(error_text, sizeof error_text, "%s", text);
}

const char *mok_last_error(void)
{
    return error_text;
}

int32_t mok_version(void)
{
    return MOK_VERSION_MAJOR * 10000 + MOK_VERSION_MINOR * 100 + MOK_VERSION_PATCH;
}

const char *mok_status_string(mok_status status)
{
    switch (status) {
    case MOK_OK:
        return "MOK_OK";
    case MOK_ERROR_ARGUMENT:
        return "MOK_ERROR_ARGUMENT";
    case MOK_ERROR_SHAPE:
        return "MOK_ERROR_SHAPE";
    case MOK_ERROR_ROUTE:
        return "MOK_ERROR_ROUTE";
    case MOK_ERROR_CAPACITY:
        return "MOK_ERROR_CAPACITY";
    case MOK_ERROR_MEMORY:
        return "MOK_ERROR_MEMORY";
    case MOK_ERROR_PEER:
        return "MOK_ERROR_PEER";
    case MOK_ERROR_DEVICE:
        return "MOK_ERROR_DEVICE";
    case MOK_ERROR_UNSUPPORTED:
        return "MOK_ERROR_UNSUPPORTED";
    case MOK_ERROR_STATE:
        return "MOK_ERROR_STATE";
    case MOK_ERROR_MISMATCH:
        return "MOK_ERROR_MISMATCH";
    case MOK_ERROR_VALUE:
        return "MOK_ERROR_VALUE";
    case MOK_ERROR_FILE:
        return "MOK_ERROR_FILE";
    case MOK_ERROR_OVERLAP:
        return "MOK_ERROR_OVERLAP";
    }
    return "MOK_ERROR_UNKNOWN";
}

const char *mok_phase_string(mok_phase phase)
{
    static const char *const names[] = {"none",      "open",     "agree", "schedule", "forward",
                                        "recompute", "backward", "fold",  "reduce",   "exchange"};
    const int idx = (int)phase;
    return idx >= 0 && idx < (int)(sizeof names / sizeof names[0]) ? names[idx] : "unknown";
}

const char *mok_arith_string(mok_arith arith)
{
    return arith == MOK_ARITH_TC16 ? "tc16" : arith == MOK_ARITH_FMA ? "fma" : "unknown";
}
