/* loss.c - see loss.h. Thousands of values at most, so it is done in double precision. */
#include "nn/cpu/loss.h"

#include <math.h>

static size_t index_of_largest(const float *value, size_t count)
{
    size_t best = 0;
    for (size_t k = 1; k < count; k++) {
        if (value[k] > value[best])
            best = k;
    }
    return best;
}

/* log(sum(exp(logit - largest))): no overflow, whatever the logits. */
static double log_sum(const float *logit, size_t classes, double largest)
{
    double sum = 0;
    for (size_t k = 0; k < classes; k++)
        sum += exp((double)logit[k] - largest);
    return log(sum);
}

enum status cross_entropy(const float *logits, const int32_t *labels, size_t count, size_t classes, double *loss_sum,
                          size_t *correct, float *gradient)
{
    *loss_sum = 0;
    *correct = 0;
    for (size_t n = 0; n < count; n++) {
        if (labels[n] < 0 || (size_t)labels[n] >= classes)
            return fail(STATUS_FORMAT, "label %d of image %zu: the model has classes 0 to %zu", labels[n], n,
                        classes - 1);
        const float *logit = logits + n * classes;
        size_t label = (size_t)labels[n], best = index_of_largest(logit, classes);
        double largest = (double)logit[best], log_total = log_sum(logit, classes, largest);
        *loss_sum += largest + log_total - (double)logit[label];
        *correct += best == label;
        for (size_t k = 0; gradient && k < classes; k++) {
            double probability = exp((double)logit[k] - largest - log_total);
            gradient[n * classes + k] = (float)((probability - (k == label ? 1 : 0)) / (double)count);
        }
    }
    return STATUS_OK;
}
