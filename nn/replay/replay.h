/* replay.h - the model that a profile describes, for the backend that replays it (nn/backend.h: backend_replay).
 *
 * The backend sleeps until the profile's times for forward and backward have passed and computes nothing, so that
 * many emulated accelerators fit on few cores while real gradients-sized communication runs. Gradients are small
 * seeded values, written once into each gradient arena; losses are 0; it can't evaluate.
 */
#ifndef CHORALE_NN_REPLAY_REPLAY_H
#define CHORALE_NN_REPLAY_REPLAY_H

#include "base/status.h"
#include "nn/model.h"

/* The network that the profile names, when we have one of that name and size; else one tensor for each layer line, or a
 * single one. STATUS_FORMAT when it names one of ours with another number of parameters. Free with model_destroy(). */
enum status replay_model(const char *profile_path, struct model **model) MUST_CHECK;

#endif
