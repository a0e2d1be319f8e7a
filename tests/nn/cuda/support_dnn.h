/* What the suites of nn/cuda/dnn.h share: a described device, requests from a model's layers. */
#ifndef CHORALE_TESTS_NN_CUDA_SUPPORT_DNN_H
#define CHORALE_TESTS_NN_CUDA_SUPPORT_DNN_H

#include <criterion/criterion.h>

#include "nn/cuda/dnn.h"
#include "nn/model.h"

#define OK(expression) cr_assert_geq((expression), 0, "%s", status_message())
#define EXPECT_STATUS(expression, expected)                                                                            \
    do {                                                                                                               \
        enum status status_seen = (expression);                                                                        \
        cr_expect_eq(status_seen, (expected), "%s, not %s: %s", status_name(status_seen), status_name(expected),       \
                     status_message());                                                                                \
    } while (0)
#define EXPECT_MESSAGE(part) cr_expect_not_null(strstr(status_message(), (part)), "%s", status_message())

#define MIB ((size_t)1 << 20)

/* The text of h200.json; free(). */
char *h200_description(void);

/* Open for planning on the H200's description. */
struct dnn *open_planning(const char *engine_file);

/* A 3x3 convolution of 64 channels on 56x56 pixels, batch 64, bf16, within 256 MiB. */
struct dnn_convolution_request request_3x3(void);

/* `layer` of a model as a request; the images' channels are padded to 8. */
struct dnn_convolution_request request_of_layer(const struct layer *layer, int batch, enum dtype type, bool tf32);

struct dnn_convolution *create(struct dnn *dnn, const struct dnn_convolution_request *request);

#endif
