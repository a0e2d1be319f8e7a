#include "support_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/file.h"
#include "nn/data.h"
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

/* The first elements of a file of that set, each of so many bytes; in both headers the count is bytes 4 to 7. */
static void put_first(const char *name, size_t header, size_t element)
{
    char path[128];
    const size_t length = header + SET_PHOTOGRAPHS * element;
    unsigned char *bytes = malloc(length);
    cr_assert_not_null(bytes);
    (void)snprintf(path, sizeof path, DATA_FOLDER "/%s.gz", name);
    gzFile file = gzopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(gzread(file, bytes, (unsigned)length), (int)length);
    (void)gzclose(file);
    bytes[6] = SET_PHOTOGRAPHS >> 8;
    bytes[7] = SET_PHOTOGRAPHS & 255;
    bytes[4] = bytes[5] = 0;
    EXPECT_OK(file_write_atomic(name, bytes, length));
    free(bytes);
}

void put_photographs(void)
{
    put_first("train-images-idx3-ubyte", 16, (size_t)28 * 28);
    put_first("train-labels-idx1-ubyte", 8, 1);
    put_first("t10k-images-idx3-ubyte", 16, (size_t)28 * 28);
    put_first("t10k-labels-idx1-ubyte", 8, 1);
}
