/* support_set.h - small data sets in the idx format, from which something can be learnt. Of the default one each worker
 * unpacks all of the 70,000 images: more work than most tests have besides.
 */
#ifndef CHORALE_TESTS_EXPERIMENTS_SUPPORT_SET_H
#define CHORALE_TESTS_EXPERIMENTS_SUPPORT_SET_H

/* Images of 9 x 9, and three classes. */
enum { SET_TRAIN = 50, SET_TEST = 21 };

void put_set(void); /* into the working folder: its four files */
/* One of them, at most SET_TRAIN long; with another shift the images, or the labels, are others. */
void put_images(const char *name, unsigned char count, int shift);
void put_labels(const char *name, unsigned char count, int shift);

/* The first images of the default data set, as many for training as for tests, not packed. */
enum { SET_PHOTOGRAPHS = 1000 };
void put_photographs(void);

#endif
