/* expect.h - "succeeds" and "fails with exactly this status, saying this", for Criterion suites. */
#ifndef CHORALE_TESTS_BASE_EXPECT_H
#define CHORALE_TESTS_BASE_EXPECT_H

#include <criterion/criterion.h>
#include <string.h>

#include "base/status.h"

#define EXPECT_OK(expression)                                                                                          \
    do {                                                                                                               \
        enum status expect_status = (expression);                                                                      \
        cr_expect(expect_status == STATUS_OK, "%s: %s: %s", #expression, status_name(expect_status),                   \
                  status_message());                                                                                   \
    } while (0)

/* `fragment` must occur in the message; "" where the words do not matter. */
#define EXPECT_FAIL(wanted, fragment, expression)                                                                      \
    do {                                                                                                               \
        status_clear();                                                                                                \
        enum status expect_status = (expression);                                                                      \
        cr_expect(expect_status == (wanted), "%s: %s instead of %s", #expression, status_name(expect_status),          \
                  status_name(wanted));                                                                                \
        cr_expect(strstr(status_message(), fragment) != NULL, "%s: \"%s\" does not say \"%s\"", #expression,           \
                  status_message(), fragment);                                                                         \
        cr_expect(status_message()[0] != '\0', "%s: a failure without a message", #expression);                        \
    } while (0)

#endif
