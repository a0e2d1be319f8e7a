/* support_set.h - opening a data set that a test has made, for Criterion suites. */
#ifndef CHORALE_TESTS_NN_SUPPORT_SET_H
#define CHORALE_TESTS_NN_SUPPORT_SET_H

#include <criterion/criterion.h>

#include "base/status.h"
#include "nn/data.h"

/* Skips the test where no JPEG can be decoded. */
static inline struct data *open_set(const char *path, int image_size)
{
    struct data *data = NULL;
    const struct data_request request = {.path = path, .image_size = image_size, .seed = 3};
    const enum status status = data_open(&request, &data);
    if (status == STATUS_UNAVAILABLE)
        cr_skip_test("built without libjpeg-turbo");
    cr_expect_eq(status, STATUS_OK, "%s", status_message());
    cr_assert_not_null(data);
    return data;
}

#endif
