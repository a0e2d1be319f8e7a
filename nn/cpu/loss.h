/* loss.h - softmax and cross-entropy. */
#ifndef CHORALE_NN_CPU_LOSS_H
#define CHORALE_NN_CPU_LOSS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* logits (count, classes), labels (count). loss_sum: sum over the images of -log softmax(logits)[label]; correct:
 * images whose largest logit is their label. gradient (count, classes), or NULL: of the MEAN loss by the logits.
 * STATUS_FORMAT where a label is not a class. */
enum status cross_entropy(const float *logits, const int32_t *labels, size_t count, size_t classes, double *loss_sum,
                          size_t *correct, float *gradient) MUST_CHECK;

#endif
