/* random_k.c - a part of the elements, chosen at random.
 *
 *   [ key: 64 bits ] [ k values: f32 ]     k = ceil(ratio * count)
 *
 * Element j of the k is drawn from the j-th of k equal stretches of the segment, by a counter-based generator: the key
 * says which, so that no indices travel, and with the same key the same are chosen again. Source: S. U. Stich, J.-B.
 * Cordonnier, M. Jaggi, NeurIPS 2018.
 */
#include <string.h>

#include "base/rng.h"
#include "comm/codec.h"

#define HEADER sizeof(uint64_t)

static size_t random_k_bound(const struct option_values *o, size_t count)
{
    return HEADER + codec_ratio_count(o, count) * sizeof(float);
}

/* The element of stretch j. */
static size_t draw(uint64_t key, size_t j, size_t k, size_t count)
{
    const size_t width = count / k, wider = count % k; /* the first `wider` stretches have one more */
    const size_t begin = j * width + (j < wider ? j : wider);
    return begin + (size_t)rng_below(key, j, width + (j < wider));
}

static size_t random_k_encode(const struct option_values *o, uint64_t key, const float *values, size_t count,
                              unsigned char *bytes)
{
    const size_t k = codec_ratio_count(o, count);
    memcpy(bytes, &key, HEADER);
    for (size_t j = 0; j < k; j++)
        memcpy(bytes + HEADER + j * sizeof(float), &values[draw(key, j, k, count)], sizeof(float));
    return HEADER + k * sizeof(float);
}

static enum status random_k_decode(const struct option_values *o, const unsigned char *bytes, size_t length,
                                   float *values, size_t count)
{
    const size_t k = codec_ratio_count(o, count);
    uint64_t key = 0;
    if (length != HEADER + k * sizeof(float))
        return fail(STATUS_FORMAT, "random-k: %zu of %zu elements in %zu bytes", k, count, length);
    memcpy(&key, bytes, HEADER);
    memset(values, 0, count * sizeof(float));
    for (size_t j = 0; j < k; j++)
        memcpy(&values[draw(key, j, k, count)], bytes + HEADER + j * sizeof(float), sizeof(float));
    return STATUS_OK;
}

/* On the mean sqrt(1 - ratio) * norm; what is drawn may be zeros. */
static double random_k_error(const struct option_values *o, size_t count, double norm, double most)
{
    (void)o, (void)count, (void)most;
    return norm;
}

const struct codec codec_random_k = {
    .name = "random-k",
    .summary = "elements drawn at random, their indices from a key, with error feedback",
    .source = "Stich, Cordonnier, Jaggi 2018",
    .traits = CODEC_IDEMPOTENT | CODEC_COARSE,
    .options = codec_ratio_options,
    .bound = random_k_bound,
    .encode = random_k_encode,
    .decode = random_k_decode,
    .error = random_k_error,
};
