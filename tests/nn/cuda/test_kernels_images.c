/* Images in: against nn/data.c to the bit, against ramps in closed form, against crops made by hand. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/cuda/element.h"
#include "nn/data.h"
#include "support_kernels.h"

static void check_planes(enum dtype storage, int images, int channels, int height, int width, int padded)
{
    const size_t plane = (size_t)height * (size_t)width, from_count = (size_t)(images * channels) * plane;
    const size_t to_count = (size_t)images * plane * (size_t)padded;
    float *from = device(from_count * sizeof *from);
    for (size_t i = 0; i < from_count; i++)
        from[i] = number(1, i);
    void *to = device(to_count * dtype_size(storage));
    DONE(cuda_images_from_planes(NULL, storage, to, from, images, channels, height, width, padded));
    for (size_t i = 0; i < to_count; i++) {
        const size_t c = i % (size_t)padded, pixel = i / (size_t)padded, n = pixel / plane, p = pixel % plane;
        const bool real = c < (size_t)channels;
        const float want = real ? from[(n * (size_t)channels + c) * plane + p] : 0;
        cr_assert_eq(storage_at(storage, to, i), storage_round(storage, want), "[%zu]", i);
    }
    devices_release();
}

Test(kernels_images, from_planes)
{
    EACH_ORDER(order)
    {
        EACH_STORAGE(storage)
        {
            check_planes(*storage, 3, 3, 5, 7, 8);
            check_planes(*storage, 1, 3, 1, 1, 4);
            check_planes(*storage, 2, 3, 17, 16, 3);
            check_planes(*storage, 1, 11, 2, 3, 16);
        }
    }
    REFUSED(cuda_images_from_planes(NULL, DTYPE_F32, NULL, NULL, 1, 3, 1, 1, 2));
    DONE(cuda_images_from_planes(NULL, DTYPE_F32, NULL, NULL, 0, 3, 1, 1, 3));
}

/* ---- whole images as nn/data.c gives them ---- */

static void put32(FILE *file, uint32_t v)
{
    const unsigned char bytes[4] = {(unsigned char)(v >> 24), (unsigned char)(v >> 16), (unsigned char)(v >> 8),
                                    (unsigned char)v};
    cr_assert_eq(fwrite(bytes, 1, 4, file), 4);
}

static FILE *create(const char *folder, const char *name)
{
    char path[256];
    cr_assert_lt(snprintf(path, sizeof path, "%s/%s", folder, name), (int)sizeof path);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    return file;
}

enum { IMAGES = 3, HEIGHT = 11, WIDTH = 9 };

static unsigned char grey(size_t i)
{
    return (unsigned char)((i * 2654435761U) >> 13);
}

static void write_set(const char *folder, const char *images_name, const char *labels_name)
{
    FILE *images = create(folder, images_name), *labels = create(folder, labels_name);
    put32(images, 0x803);
    put32(images, IMAGES);
    put32(images, HEIGHT);
    put32(images, WIDTH);
    for (size_t i = 0; i < (size_t)IMAGES * HEIGHT * WIDTH; i++)
        cr_assert_neq(fputc(grey(i), images), EOF);
    put32(labels, 0x801);
    put32(labels, IMAGES);
    for (int i = 0; i < IMAGES; i++)
        cr_assert_neq(fputc(i, labels), EOF);
    cr_assert_eq(fclose(images), 0);
    cr_assert_eq(fclose(labels), 0);
}

static void remove_set(const char *folder)
{
    static const char *const names[] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                        "t10k-labels-idx1-ubyte"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        cr_assert_eq(unlink(path), 0);
    }
    cr_assert_eq(rmdir(folder), 0);
}

/* Whole, at whole pixels, and anywhere; mirrored, too. One piece an image. */
static const struct image_box pieces[][IMAGES] = {
    {{.width = WIDTH, .height = HEIGHT}, {.width = WIDTH, .height = HEIGHT, .flip = true}, {2, 3, 4, 5, false}},
    {{0.25F, 1.5F, 7.3F, 8.1F, true}, {8, 10, 1, 1, false}, {3.9F, 0, 0.75F, 11, true}}};

/* What nn/data.c gives the network, against the same pieces of the same bytes from the device. */
static void check_against_data(const char *folder, int size, const struct image_box *piece, bool cropped)
{
    const struct data_request request = {.path = folder, .image_size = size};
    struct data *data = NULL;
    struct data_scratch *scratch = NULL;
    cr_assert_geq(data_open(&request, &data), 0, "%s", status_message());
    cr_assert_geq(data_scratch_open(data, &scratch), 0, "%s", status_message());
    const size_t plane = (size_t)size * (size_t)size, bytes = (size_t)HEIGHT * WIDTH;
    float *want = calloc(3 * plane, sizeof *want), *to = device(IMAGES * plane * 8 * sizeof *to);
    uint8_t *from = device(IMAGES * bytes);
    struct cuda_crop *crops = device(IMAGES * sizeof *crops);
    cr_assert_not_null(want);
    for (size_t i = 0; i < IMAGES * bytes; i++)
        from[i] = grey(i);
    for (int n = 0; n < IMAGES; n++)
        crops[n] = (struct cuda_crop){piece[n].top, piece[n].left, piece[n].height, piece[n].width, piece[n].flip};
    const struct cuda_resize resize = {.from = from,
                                       .images = IMAGES,
                                       .height = HEIGHT,
                                       .width = WIDTH,
                                       .channels = 1,
                                       .crops = cropped ? crops : NULL,
                                       .mean = {DATA_MEAN, DATA_MEAN, DATA_MEAN},
                                       .deviation = {DATA_DEVIATION, DATA_DEVIATION, DATA_DEVIATION},
                                       .to = to,
                                       .out_height = size,
                                       .out_width = size,
                                       .padded = 8};
    DONE(cuda_images_resize(NULL, DTYPE_F32, &resize));
    for (size_t n = 0; n < IMAGES; n++) {
        data_canonical(data, scratch, from + n * bytes, cropped ? &piece[n] : &pieces[0][0], want);
        for (size_t i = 0; i < plane * 8; i++) {
            const size_t p = i / 8, c = i % 8;
            const float expected = c < 3 ? want[c * plane + p] : 0;
            cr_assert_eq(element_bits(to[n * plane * 8 + i]), element_bits(expected),
                         "size %d, image %zu, pixel %zu, channel %zu", size, n, p, c);
        }
    }
    free(want);
    data_scratch_close(scratch);
    data_close(data);
    devices_release();
}

Test(kernels_images, bits_are_those_of_data)
{
    char folder[] = "/tmp/chorale-kernels-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    write_set(folder, "train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    write_set(folder, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");
    EACH_ORDER(order)
    {
        static const int sizes[] = {1, 5, 9, 11, 16, 33};
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            check_against_data(folder, sizes[i], pieces[0], false);
            check_against_data(folder, sizes[i], pieces[0], true);
            check_against_data(folder, sizes[i], pieces[1], true);
        }
    }
    remove_set(folder);
}

/* ---- crops ---- */

enum { SIDE = 24, OUT = 10 };

static struct cuda_resize coloured(const uint8_t *from, void *to, const struct cuda_crop *crop)
{
    return (struct cuda_resize){.from = from,
                                .images = 1,
                                .height = SIDE,
                                .width = SIDE,
                                .channels = 3,
                                .crops = crop,
                                .deviation = {1, 1, 1},
                                .to = to,
                                .out_height = OUT,
                                .out_width = OUT,
                                .padded = 3};
}

/* Between pixels a ramp is linear: at a source position s it is s, clamped to the centres of the crop's first and last
 * pixel. Channel 0 rises by row, 1 by column, 2 is constant. */
static void check_ramp(float top, float left, float height, float width, uint32_t flip)
{
    uint8_t *from = device((size_t)SIDE * SIDE * 3);
    for (size_t i = 0; i < (size_t)SIDE * SIDE; i++) {
        from[3 * i] = (uint8_t)(i / SIDE * 10);
        from[3 * i + 1] = (uint8_t)(i % SIDE * 10);
        from[3 * i + 2] = 77;
    }
    struct cuda_crop *crop = device(sizeof *crop);
    *crop = (struct cuda_crop){top, left, height, width, flip};
    float *to = device((size_t)OUT * OUT * 3 * sizeof *to);
    const struct cuda_resize resize = coloured(from, to, crop);
    DONE(cuda_images_resize(NULL, DTYPE_F32, &resize));
    for (int y = 0; y < OUT; y++) {
        for (int x = 0; x < OUT; x++) {
            const int column = flip ? OUT - 1 - x : x;
            const double row_at = fmin(fmax((double)height / OUT * (y + 0.5) - 0.5, 0) + (double)top,
                                       ceil((double)top + (double)height) - 1);
            const double column_at = fmin(fmax((double)width / OUT * (column + 0.5) - 0.5, 0) + (double)left,
                                          ceil((double)left + (double)width) - 1);
            const float *pixel = to + (y * OUT + x) * 3;
            expect_near((double)pixel[0], row_at * 10 / 255, 1e-5, 1e-6, "row", (size_t)y);
            expect_near((double)pixel[1], column_at * 10 / 255, 1e-5, 1e-6, "column", (size_t)x);
            expect_near((double)pixel[2], 77 / 255.0, 1e-6, 0, "constant", (size_t)x);
        }
    }
    devices_release();
}

Test(kernels_images, crops_of_a_ramp)
{
    EACH_ORDER(order)
    {
        check_ramp(0, 0, SIDE, SIDE, 0);
        check_ramp(0, 0, SIDE, SIDE, 1);
        check_ramp(3, 5, 16, 11, 1);
        check_ramp(2.25F, 7.5F, 9.5F, 13.125F, 0);
        check_ramp(20, 20, 4, 4, 0);
        check_ramp(23, 0, 1, 1, 1);
    }
}

/* A crop at whole pixels is the image cut out first and resized then. */
Test(kernels_images, crop_reads_nothing_outside)
{
    enum { TOP = 4, LEFT = 7, TALL = 13, WIDE = 6 };
    uint8_t *from = device((size_t)SIDE * SIDE * 3), *cut = device((size_t)TALL * WIDE * 3);
    for (size_t i = 0; i < (size_t)SIDE * SIDE * 3; i++) {
        const size_t y = i / 3 / SIDE, x = i / 3 % SIDE;
        const bool inside = y >= TOP && y < TOP + TALL && x >= LEFT && x < LEFT + WIDE;
        from[i] = inside ? grey(i) : 255;
        if (inside)
            cut[((y - TOP) * WIDE + x - LEFT) * 3 + i % 3] = grey(i);
    }
    struct cuda_crop *crop = device(sizeof *crop);
    *crop = (struct cuda_crop){TOP, LEFT, TALL, WIDE, 0};
    EACH_STORAGE(storage)
    {
        const size_t bytes = (size_t)OUT * OUT * 3 * dtype_size(*storage);
        void *one = device(bytes), *other = device(bytes);
        struct cuda_resize resize = coloured(from, one, crop);
        DONE(cuda_images_resize(NULL, *storage, &resize));
        resize = coloured(cut, other, NULL);
        resize.height = TALL, resize.width = WIDE;
        DONE(cuda_images_resize(NULL, *storage, &resize));
        cr_assert_eq(memcmp(one, other, bytes), 0);
    }
    devices_release();
}

Test(kernels_images, means_and_deviations_by_channel)
{
    uint8_t *from = device(3);
    float *to = device(4 * sizeof *to);
    from[0] = 0, from[1] = 255, from[2] = 51;
    const struct cuda_resize resize = {.from = from,
                                       .images = 1,
                                       .height = 1,
                                       .width = 1,
                                       .channels = 3,
                                       .mean = {0.5F, 0.25F, 0.2F},
                                       .deviation = {0.5F, 0.125F, 2},
                                       .to = to,
                                       .out_height = 1,
                                       .out_width = 1,
                                       .padded = 4};
    DONE(cuda_images_resize(NULL, DTYPE_F32, &resize));
    cr_assert_eq(to[0], -1);
    cr_assert_eq(to[1], 6);
    expect_near((double)to[2], 0, 0, 1e-7, "mean", 2);
    cr_assert_eq(to[3], 0);
    struct cuda_resize bad = resize;
    bad.channels = 2;
    REFUSED(cuda_images_resize(NULL, DTYPE_F32, &bad));
    bad = resize;
    bad.padded = 2;
    REFUSED(cuda_images_resize(NULL, DTYPE_F32, &bad));
    devices_release();
}
