/* batch.h - images and labels of one step: what data gives out and backends take. */
#ifndef CHORALE_NN_BATCH_H
#define CHORALE_NN_BATCH_H

#include <stdbool.h>
#include <stdint.h>

/* The part of a stored image that is resized to the model's size, in pixels of the stored image; (0, 0, width, height):
 * all of it. */
struct image_box {
    float left, top, width, height;
    bool flip; /* left and right change places */
};

/* Images as they are stored, to be resized bilinearly (data.h tells how) and normalised by whoever takes them. */
struct stored_images {
    const uint8_t *bytes;        /* (count, height, width, channels); one channel becomes three equal ones */
    int height, width, channels; /* channels 1 or 3                                                       */
    const struct image_box *box; /* (count)                                                               */
    float mean[3], deviation[3]; /* (value / 255 - mean) / deviation, of each channel of the model        */
};

/* In host memory, of a backend with a device: pinned. */
struct batch {
    int count;
    double divisor;         /* training: the gradient is that of the sum of the images' losses, divided by this;
                                           0: by count, the gradient of their mean. Where workers have unlike counts: a step's
                                           images / workers, so that the mean over the workers is that over the images */
    const float *canonical; /* (count, 3, S, S), normalised; or NULL, and */
    const struct stored_images *stored; /* where the backend takes them               */
    const int32_t *labels;              /* (count)                                    */
};

#endif
