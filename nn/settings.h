/* settings.h - the options of a run that change its result, one by one as text: those that all its workers, and the run of
 * a checkpoint, must have. Private to train.c and resume.c.
 */
#ifndef CHORALE_NN_SETTINGS_H
#define CHORALE_NN_SETTINGS_H

#include "base/json.h"
#include "base/status.h"
#include "nn/trainer.h"

/* For checkpoints, with the data, which must be open: {"lr": "0.10000000000000001", ...}, but for what depends on the number
 * of workers. NULL: no memory. */
json_t *settings_of(const struct trainer *trainer);

/* Collective, before the data is read: STATUS_MISMATCH, alike on all workers, where one was started with another option,
 * also with one that decides what workers do together (--steps, --eval, ...). The message has the option and both values. */
enum status settings_agree(const struct trainer *trainer) MUST_CHECK;

#endif
