/* How the library reports a caller's mistake and checks itself.
 *
 * mok_fail writes the calling thread's error text and returns the status, so that a check is one
 * line: MOK_REQUIRE(rows <= capacity, MOK_ERROR_CAPACITY, "rank %d needs %lld rows, has %lld",
 * ...); MOK_TRY passes an error up. MOK_ASSERT states our own invariants: on in debug, test and CI
 * builds. */
#ifndef MOK_CORE_STATUS_H
#define MOK_CORE_STATUS_H

#include <mok/mok.h>

#define MOK_ERROR_TEXT_BYTES 240

mok_status mok_fail(mok_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* This thread's error text, for agreement between ranks and for workers that report to their
 * caller. */
void mok_error_text_set(const char *text);

#define MOK_REQUIRE(cond, status, ...)                                                             \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return mok_fail((status), __VA_ARGS__);                                                \
        }                                                                                          \
    } while (0)

#define MOK_TRY(call)                                                                              \
    do {                                                                                           \
        const mok_status mok_try_ = (call);                                                        \
        if (mok_try_ != MOK_OK) {                                                                  \
            return mok_try_;                                                                       \
        }                                                                                          \
    } while (0)

#ifdef MOK_ENABLE_ASSERT
#include <assert.h>
#define MOK_ASSERT(cond) assert(cond)
#else
#define MOK_ASSERT(cond) ((void)0)
#endif

#endif
