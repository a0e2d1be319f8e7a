/* loss.c - see loss.h. Thousands of values at most, so it is done in double precision. */
#include "nn/cpu/loss.h"

#include <math.h>

static double largest_of(const float *value, size_t count)
{
    float largest = value[0];
    for (size_t k = 1; k < count; k++)
        largest = value[k] > largest ? value[k] : largest;
    return (double)largest;
}

/* Classes that come before `label` by their logits, of equal ones the first. Everything comes before a NaN, and a NaN before
 * everything. */
static size_t rank_of(const float *logit, size_t classes, size_t label)
{
    size_t rank = 0;
    for (size_t k = 0; k < classes; k++)
        rank += k != label && (!(logit[k] <= logit[label]) || (logit[k] == logit[label] && k < label));
    return rank;
}

/* log(sum(exp(logit - largest))): no overflow, whatever the logits. */
static double log_sum(const float *logit, size_t classes, double largest)
{
    double sum = 0;
    for (size_t k = 0; k < classes; k++)
        sum += exp((double)logit[k] - largest);
    return log(sum);
}

/* Of -log softmax over all classes. */
static double mean_surprise(const float *logit, size_t classes, double log_of_all)
{
    double sum = 0;
    for (size_t k = 0; k < classes; k++)
        sum += log_of_all - (double)logit[k];
    return sum / (double)classes;
}

enum status cross_entropy(const struct cross_entropy *of, double *loss_sum, size_t *correct, size_t *top5,
                          float *gradient)
{
    const size_t classes = of->classes;
    const double divisor = of->divisor > 0 ? of->divisor : (double)of->count;
    const double elsewhere = of->smoothing / (double)classes;
    *loss_sum = 0;
    *correct = 0;
    size_t among_five = 0;
    for (size_t n = 0; n < of->count; n++) {
        if (of->labels[n] < 0 || (size_t)of->labels[n] >= classes)
            return fail(STATUS_FORMAT, "label %d of image %zu: the model has classes 0 to %zu", of->labels[n], n,
                        classes - 1);
        const float *logit = of->logits + n * classes;
        const size_t label = (size_t)of->labels[n], rank = rank_of(logit, classes, label);
        double largest = largest_of(logit, classes), log_total = log_sum(logit, classes, largest);
        double loss = largest + log_total - (double)logit[label];
        if (of->smoothing > 0)
            loss = (1 - of->smoothing) * loss + of->smoothing * mean_surprise(logit, classes, largest + log_total);
        *loss_sum += loss;
        *correct += rank < 1;
        among_five += rank < 5;
        for (size_t k = 0; gradient && k < classes; k++) {
            double probability = exp((double)logit[k] - largest - log_total);
            double target = elsewhere + (k == label ? 1 - of->smoothing : 0);
            gradient[n * classes + k] = (float)((probability - target) / divisor);
        }
    }
    if (top5 != NULL)
        *top5 = among_five;
    return STATUS_OK;
}
