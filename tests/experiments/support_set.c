#include "support_set.h"

#include <string.h>

#include "base/file.h"
#include "tests/base/expect.h"

enum { SIDE = 9, PIXELS = SIDE * SIDE };

/* Of a class there are brighter rows at its place. */
void put_images(const char *name, unsigned char count, int shift)
{
    static unsigned char file[16 + SET_TRAIN * PIXELS];
    const unsigned char header[16] = {0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
    memcpy(file, header, sizeof header);
    for (int n = 0; n < count; n++)
        for (int i = 0; i < PIXELS; i++)
            file[16 + n * PIXELS + i] = (unsigned char)((n * 37 + i * 11 + shift) % 97 + (i / SIDE == n % 3 ? 120 : 0));
    EXPECT_OK(file_write_atomic(name, file, 16 + (size_t)count * PIXELS));
}

void put_labels(const char *name, unsigned char count, int shift)
{
    unsigned char file[8 + SET_TRAIN] = {0, 0, 8, 1, 0, 0, 0, count};
    for (int n = 0; n < count; n++)
        file[8 + n] = (unsigned char)((n + shift) % 3);
    EXPECT_OK(file_write_atomic(name, file, 8 + (size_t)count));
}

void put_set(void)
{
    put_images("train-images-idx3-ubyte", SET_TRAIN, 0);
    put_labels("train-labels-idx1-ubyte", SET_TRAIN, 0);
    put_images("t10k-images-idx3-ubyte", SET_TEST, 0);
    put_labels("t10k-labels-idx1-ubyte", SET_TEST, 0);
}
