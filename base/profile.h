/* profile.h - the profile of a model on a device: how long forward and backward take. Read by the replay backend and by
 * the simulator, written by `chorale train --profile-out=`. Line-based text, '#' begins a comment, a unit in every
 * time:
 *
 *   # chorale model profile; source of the figures in comments
 *   model resnet50 parameters=25557032 [classes=1000 image_size=224 batch=32]
 *   device P100 free text
 *   step fixed=36ms per_image=4.0ms backward=0.667          (affine form: step time of a batch, share of backward)
 *   layer conv1 parameters=9408 forward=1.2ms backward=2.3ms   (measured form: one line a layer, in layer order)
 *
 * A file has either a step line or layer lines, not both. Measured layer times hold for the batch of the model line;
 * other batches are scaled in proportion, which profile_times() reports through *scaled.
 */
#ifndef CHORALE_BASE_PROFILE_H
#define CHORALE_BASE_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

struct profile_layer {
    char name[64];
    size_t parameters;
    double forward_s, backward_s;
};

struct profile {
    char model[32], device[128];
    size_t parameters;
    int classes, image_size, batch; /* 0 = not given */
    bool affine;
    double fixed_s, per_image_s, backward_share;
    struct profile_layer *layer;
    size_t layers;
};

/* STATUS_IO, STATUS_FORMAT naming file and line. Release with profile_release(). */
enum status profile_read(const char *path, struct profile *profile) MUST_CHECK;
enum status profile_parse(const char *text, const char *name_for_messages, struct profile *profile) MUST_CHECK;
void profile_release(struct profile *profile);
/* Forward and backward seconds of one step of `batch` images (>= 1). scaled may be NULL. */
void profile_times(const struct profile *profile, int batch, double *forward_s, double *backward_s, bool *scaled);
/* Seconds from the start of backward until the gradients of all parameters from `offset` on are complete: by the layers'
 * times, those of the last layers first; in the affine form in proportion to the parameters. */
double profile_backward_until(const struct profile *profile, int batch, size_t offset);
/* The lines of a profile, without comments; profile_parse() reads them back. Appended. */
void profile_text(const struct profile *profile, struct text *text);

#endif
