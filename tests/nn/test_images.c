/* test_images.c - decoding and resizing give Pillow's bits, pieces those of the whole, bad files a reason. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "nn/data/jpeg.h"
#include "nn/data/resample.h"
#include "nn/data/view.h"
#include "tests/base/expect.h"
#include "tests/nn/support_golden.h"
#include "tests/nn/support_images.h"

/* ---- Pillow's values ---- */

enum { LONGEST = 70000 };

/* A word of hexadecimal digits at *at. */
static size_t read_hex(const char *at, uint8_t *bytes, size_t room)
{
    size_t length = 0;
    unsigned value;
    while (length < room && sscanf(at + 2 * length, "%2x", &value) == 1 && at[2 * length] != '\n')
        bytes[length++] = (uint8_t)value;
    return length;
}

/* The next word, NULL: none. */
static char *word(char **at)
{
    char *begin = *at + strspn(*at, " \n");
    size_t length = strcspn(begin, " \n");
    *at = begin + length;
    if (length == 0)
        return NULL;
    if (**at != '\0')
        *(*at)++ = '\0';
    return begin;
}

static int next_int(char **at)
{
    const char *text = word(at);
    cr_assert_not_null(text);
    return (int)strtol(text, NULL, 10);
}

/* What a line says about the file at hand. */
static struct view read_view(const char *kind, char **at, int width, int height)
{
    struct view view = {.width = width, .height = height};
    if (strcmp(kind, "crop") == 0) {
        view.left = next_int(at);
        view.top = next_int(at);
        view.width = next_int(at);
        view.height = next_int(at);
        view.size = view.out_width = view.out_height = next_int(at);
        return view;
    }
    int side = next_int(at);
    view.size = next_int(at);
    view.out_width = width > height ? side * width / height : side;
    view.out_height = width > height ? side : side * height / width;
    view.x = (int)nearbyint((view.out_width - view.size) / 2.0);
    view.y = (int)nearbyint((view.out_height - view.size) / 2.0);
    return view;
}

static void expect_pixels(const char *name, const struct view *view, const uint8_t *rgb, const uint8_t *wanted)
{
    int wrong = 0, worst = 0;
    for (int i = 0; i < view->size * view->size * 3; i++) {
        int distance = abs(rgb[i] - wanted[i]);
        wrong += distance != 0;
        worst = distance > worst ? distance : worst;
    }
    cr_expect_eq(wrong, 0, "%s, %d x %d at %d, %d to %d: %d values differ, by up to %d", name, view->width,
                 view->height, view->left, view->top, view->size, wrong, worst);
}

/* All lines; returns how many views there were. */
static int check_golden(void)
{
    FILE *file = golden_open("images.txt");
    struct jpeg *jpeg = NULL;
    static char line[LONGEST];
    static uint8_t bytes[LONGEST], wanted[LONGEST], rgb[LONGEST];
    size_t length = 0;
    int views = 0;
    if (jpeg_open(&jpeg) == STATUS_UNAVAILABLE)
        cr_skip_test("built without libjpeg-turbo");
    while (fgets(line, sizeof line, file) != NULL) {
        char *at = line;
        const char *kind = word(&at), *name = word(&at);
        if (kind == NULL || kind[0] == '#')
            continue;
        cr_assert_not_null(name);
        if (strcmp(kind, "file") == 0) {
            length = read_hex(at, bytes, sizeof bytes);
            continue;
        }
        int width = 0, height = 0;
        EXPECT_OK(jpeg_begin(jpeg, bytes, length, &width, &height));
        struct view view = read_view(kind, &at, width, height);
        cr_assert_eq(read_hex(at, wanted, sizeof wanted), (size_t)view.size * (size_t)view.size * 3);
        EXPECT_OK(jpeg_view(jpeg, &view, false, rgb));
        expect_pixels(name, &view, rgb, wanted);
        views++;
    }
    jpeg_close(jpeg);
    (void)fclose(file);
    return views;
}

Test(golden, decoding_and_resizing_give_the_bits_of_pillow)
{
    cr_expect_eq(check_golden(), 42);
    resample_force_plain(1);
    cr_expect_eq(check_golden(), 42, "without AVX2");
}

/* ---- pieces ---- */

/* All pixels of an image, at its own size; square images only. */
static uint8_t *whole(struct jpeg *jpeg, const uint8_t *bytes, size_t length, int *width)
{
    int height = 0;
    EXPECT_OK(jpeg_begin(jpeg, bytes, length, width, &height));
    cr_assert_eq(*width, height);
    struct view view = view_whole(*width, height, *width);
    uint8_t *rgb = malloc((size_t)*width * (size_t)*width * 3);
    cr_assert_not_null(rgb);
    EXPECT_OK(jpeg_view(jpeg, &view, false, rgb));
    return rgb;
}

/* A square piece that is not resized is what the whole image has there. */
static void expect_piece(struct jpeg *jpeg, const uint8_t *bytes, size_t length, const uint8_t *all, int width,
                         int left, int top, int side)
{
    int w = 0, h = 0;
    uint8_t piece[64 * 64 * 3];
    struct view view = {.left = left, .top = top, .width = side, .height = side, .size = side};
    view.out_width = view.out_height = side;
    EXPECT_OK(jpeg_begin(jpeg, bytes, length, &w, &h));
    EXPECT_OK(jpeg_view(jpeg, &view, false, piece));
    int wrong = 0;
    for (int y = 0; y < side; y++)
        wrong += memcmp(piece + (size_t)y * (size_t)side * 3,
                        all + ((size_t)(top + y) * (size_t)width + (size_t)left) * 3, (size_t)side * 3) != 0;
    cr_expect_eq(wrong, 0, "%d of %d rows differ, at %d, %d", wrong, side, left, top);
}

Test(pieces, are_decoded_as_in_the_whole_image)
{
    static const int samplings[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};
    struct jpeg *jpeg = NULL;
    if (jpeg_open(&jpeg) == STATUS_UNAVAILABLE)
        cr_skip_test("built without libjpeg-turbo");
    for (int s = 0; s < 4; s++) {
        for (int progressive = 0; progressive < 2; progressive++) {
            struct picture picture = {.width = 163,
                                      .height = 163,
                                      .progressive = progressive,
                                      .across = samplings[s][0],
                                      .down = samplings[s][1]};
            size_t length = 0;
            int width = 0;
            uint8_t *bytes = picture_jpeg(&picture, &length), *all = whole(jpeg, bytes, length, &width);
            for (uint64_t trial = 0; trial < 60; trial++) {
                uint64_t key = rng_key(trial, "piece", (uint64_t)s, (uint64_t)progressive);
                int side = 1 + (int)rng_below(key, 0, 64);
                int left = (int)rng_below(key, 1, (uint64_t)(163 - side) + 1);
                int top = (int)rng_below(key, 2, (uint64_t)(163 - side) + 1);
                expect_piece(jpeg, bytes, length, all, width, left, top, side);
            }
            free(all);
            free(bytes);
        }
    }
    jpeg_close(jpeg);
}

/* Halved by the cosine transform first, a view is nearly the same. */
Test(pieces, reduced_ones_are_near)
{
    struct jpeg *jpeg = NULL;
    struct picture picture = {.width = 500, .height = 375};
    size_t length = 0;
    int width = 0, height = 0;
    static uint8_t exact[56 * 56 * 3], reduced[56 * 56 * 3];
    if (jpeg_open(&jpeg) == STATUS_UNAVAILABLE)
        cr_skip_test("built without libjpeg-turbo");
    uint8_t *bytes = picture_jpeg(&picture, &length);
    for (uint64_t sample = 0; sample < 20; sample++) {
        struct view view = view_random(500, 375, 56, 1, 0, sample);
        EXPECT_OK(jpeg_begin(jpeg, bytes, length, &width, &height));
        EXPECT_OK(jpeg_view(jpeg, &view, false, exact));
        EXPECT_OK(jpeg_begin(jpeg, bytes, length, &width, &height));
        EXPECT_OK(jpeg_view(jpeg, &view, true, reduced));
        double sum = 0;
        for (size_t i = 0; i < sizeof exact; i++)
            sum += fabs((double)exact[i] - reduced[i]);
        cr_expect_lt(sum / (double)sizeof exact, 6, "sample %d: mean difference %.2f of 255", (int)sample,
                     sum / (double)sizeof exact);
    }
    free(bytes);
    jpeg_close(jpeg);
}

/* ---- resizing against its definition ---- */

static double triangle(double x)
{
    return fabs(x) < 1 ? 1 - fabs(x) : 0;
}

/* Along one axis in double precision: `out` pixels at o. */
static double filtered(const double *values, int in, int out, int o)
{
    double scale = (double)in / out, reach = scale > 1 ? scale : 1, centre = (o + 0.5) * scale, sum = 0, weights = 0;
    for (int i = 0; i < in; i++) {
        double weight = triangle((i + 0.5 - centre) / reach);
        sum += weight * values[i];
        weights += weight;
    }
    return sum / weights;
}

static void expect_resized(int width, int height, int out_width, int out_height)
{
    struct resample *resample = NULL;
    struct resample_axis across = {.extent = width, .end = width, .out = out_width, .size = out_width};
    struct resample_axis down = {.extent = height, .end = height, .out = out_height, .size = out_height};
    uint8_t *in = calloc((size_t)width * (size_t)height, 4), *rgb = calloc((size_t)out_width * (size_t)out_height, 3);
    double *rows = calloc((size_t)height * (size_t)out_width, sizeof *rows), *line = calloc(65536, sizeof *line);
    cr_assert(in != NULL && rgb != NULL && rows != NULL && line != NULL);
    for (size_t i = 0; i < (size_t)width * (size_t)height * 4; i++)
        in[i] = (uint8_t)(i * 37 + i / 7 * 11);
    EXPECT_OK(resample_create(&resample));
    EXPECT_OK(resample_begin(resample, &across, &down));
    int first_row, end_row, first_column, end_column;
    resample_needs(resample, &first_row, &end_row, &first_column, &end_column);
    cr_assert(first_row >= 0 && end_row <= height && first_column >= 0 && end_column <= width);
    for (int y = first_row; y < end_row; y++)
        resample_row(resample, in + ((size_t)y * (size_t)width + (size_t)first_column) * 4, rgb);
    double worst = 0;
    for (int c = 0; c < 3; c++) {
        for (int y = 0; y < height; y++) {
            for (int x = 0; x < width; x++)
                line[x] = in[((size_t)y * (size_t)width + (size_t)x) * 4 + (size_t)c];
            for (int o = 0; o < out_width; o++)
                rows[(size_t)y * (size_t)out_width + (size_t)o] = filtered(line, width, out_width, o);
        }
        for (int o = 0; o < out_width; o++) {
            for (int y = 0; y < height; y++)
                line[y] = rows[(size_t)y * (size_t)out_width + (size_t)o];
            for (int p = 0; p < out_height; p++) {
                double value = filtered(line, height, out_height, p);
                double distance = fabs(value - rgb[((size_t)p * (size_t)out_width + (size_t)o) * 3 + (size_t)c]);
                worst = distance > worst ? distance : worst;
            }
        }
    }
    cr_expect_leq(worst, 1.01, "%d x %d to %d x %d: %.3f of 255", width, height, out_width, out_height, worst);
    resample_destroy(resample);
    free(in);
    free(rgb);
    free(rows);
    free(line);
}

Test(resample, is_the_triangle_filter)
{
    static const int sides[] = {1, 2, 3, 7, 40};
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++)
            expect_resized(sides[a], sides[4 - a], sides[b], sides[(b + 2) % 5]);
    expect_resized(65500, 1, 5, 2);
    expect_resized(1, 65500, 2, 5);
}

/* ---- views ---- */

Test(view, the_middle_is_torchvisions)
{
    struct view view = view_middle(500, 375, 224);
    cr_expect(view.out_width == 341 && view.out_height == 256 && view.x == 58 && view.y == 16, "%d x %d at %d, %d",
              view.out_width, view.out_height, view.x, view.y); /* round(58.5) is 58 in Python */
    view = view_middle(375, 500, 224);
    cr_expect(view.out_width == 256 && view.out_height == 341 && view.x == 16 && view.y == 58);
    view = view_middle(32, 32, 32);
    cr_expect(view.out_width == 32 && view.x == 0 && view.y == 0, "small images are not cropped");
    view = view_middle(1, 65500, 224);
    cr_expect(view.out_width == 224 && view.out_height == 224 * 65500 && view.size == 224);
}

Test(view, random_pieces_lie_inside_and_have_the_wanted_sizes)
{
    double area = 0;
    int flips = 0;
    enum { TRIALS = 4000 };
    for (uint64_t sample = 0; sample < TRIALS; sample++) {
        struct view view = view_random(500, 375, 224, 9, 3, sample);
        cr_assert(view.left >= 0 && view.top >= 0 && view.width >= 1 && view.height >= 1);
        cr_assert(view.left + view.width <= 500 && view.top + view.height <= 375);
        double share = view.width * (double)view.height / (500.0 * 375.0), ratio = view.width / (double)view.height;
        cr_assert(share > 0.078 && share <= 1 && ratio > 0.74 && ratio < 1.35, "share %f, ratio %f", share, ratio);
        area += share / TRIALS;
        flips += view.flip;
    }
    cr_expect(area > 0.42 && area < 0.54, "mean share %f: uniform, less the large ones that don't fit", area);
    cr_expect(flips > TRIALS * 45 / 100 && flips < TRIALS * 55 / 100);
}

Test(view, draws_depend_on_seed_epoch_and_sample_only)
{
    struct view a = view_random(500, 375, 224, 1, 2, 3), b = view_random(500, 375, 224, 1, 2, 3);
    cr_expect(a.left == b.left && a.top == b.top && a.width == b.width && a.height == b.height && a.flip == b.flip);
    struct view others[] = {view_random(500, 375, 224, 2, 2, 3), view_random(500, 375, 224, 1, 3, 3),
                            view_random(500, 375, 224, 1, 2, 4)};
    for (int i = 0; i < 3; i++)
        cr_expect(others[i].left != a.left || others[i].top != a.top || others[i].width != a.width);
}

Test(view, images_of_any_shape_have_a_piece)
{
    static const int sides[] = {1, 2, 3, 10, 65500};
    for (int w = 0; w < 5; w++)
        for (int h = 0; h < 5; h++)
            for (uint64_t sample = 0; sample < 20; sample++) {
                struct view view = view_random(sides[w], sides[h], 8, 1, 1, sample);
                cr_expect(view.width >= 1 && view.height >= 1 && view.left >= 0 && view.top >= 0 &&
                          view.left + view.width <= sides[w] && view.top + view.height <= sides[h]);
            }
}

/* ---- bad files ---- */

static struct jpeg *decoder(void)
{
    struct jpeg *jpeg = NULL;
    if (jpeg_open(&jpeg) == STATUS_UNAVAILABLE)
        cr_skip_test("built without libjpeg-turbo");
    return jpeg;
}

/* Fails with `why` at the header or in the view, and the decoder goes on with a good file. */
static void expect_bad(struct jpeg *jpeg, const uint8_t *bytes, size_t length, const char *why)
{
    int width = 0, height = 0;
    uint8_t rgb[8 * 8 * 3];
    struct picture picture = {.width = 20, .height = 30};
    status_clear();
    enum status status = jpeg_begin(jpeg, bytes, length, &width, &height);
    if (status >= 0) {
        struct view view = view_whole(width, height, 8);
        status = jpeg_view(jpeg, &view, false, rgb);
    }
    cr_expect_eq(status, STATUS_FORMAT);
    cr_expect_not_null(strstr(status_message(), why), "%s: does not say %s", status_message(), why);
    uint8_t *good = picture_jpeg(&picture, &length);
    EXPECT_OK(jpeg_begin(jpeg, good, length, &width, &height));
    struct view view = view_whole(width, height, 8);
    EXPECT_OK(jpeg_view(jpeg, &view, false, rgb));
    free(good);
}

Test(bad, other_formats_and_torn_files_are_told)
{
    struct jpeg *jpeg = decoder();
    struct picture picture = {.width = 200, .height = 150};
    size_t length = 0;
    uint8_t *bytes = picture_jpeg(&picture, &length);
    expect_bad(jpeg, (const uint8_t *)"\x89PNG\r\n\x1a\n", 8, "PNG");
    expect_bad(jpeg, (const uint8_t *)"GIF89a", 6, "GIF");
    expect_bad(jpeg, (const uint8_t *)"hello", 5, "no JPEG");
    expect_bad(jpeg, bytes, 0, "no JPEG");
    expect_bad(jpeg, bytes, 2, "no JPEG");
    expect_bad(jpeg, bytes, 100, "JPEG");
    expect_bad(jpeg, bytes, length / 2, "cut short");
    expect_bad(jpeg, bytes, length - 1, "cut short");
    memset(bytes + length / 2, 0xff, 40);
    memset(bytes + length / 2 + 40, 0xd8, 1);
    expect_bad(jpeg, bytes, length, "JPEG");
    free(bytes);
    jpeg_close(jpeg);
}

Test(bad, a_cut_is_noticed_even_where_the_view_does_not_reach)
{
    struct jpeg *jpeg = decoder();
    struct picture picture = {.width = 64, .height = 640};
    size_t length = 0;
    int width = 0, height = 0;
    uint8_t *bytes = picture_jpeg(&picture, &length);
    EXPECT_FAIL(STATUS_FORMAT, "cut short", jpeg_begin(jpeg, bytes, length - 50, &width, &height));
    free(bytes);
    jpeg_close(jpeg);
}

/* The header's size, which nothing else depends on. */
static void set_size(uint8_t *bytes, size_t length, unsigned width, unsigned height)
{
    for (size_t i = 2; i + 8 < length; i++) {
        if (bytes[i] == 0xff && (bytes[i + 1] == 0xc0 || bytes[i + 1] == 0xc2)) {
            bytes[i + 5] = (uint8_t)(height >> 8);
            bytes[i + 6] = (uint8_t)height;
            bytes[i + 7] = (uint8_t)(width >> 8);
            bytes[i + 8] = (uint8_t)width;
            return;
        }
    }
}

Test(bad, huge_images_are_refused_or_end_where_their_data_end)
{
    struct jpeg *jpeg = decoder();
    struct picture picture = {.width = 64, .height = 64};
    size_t length = 0;
    uint8_t *bytes = picture_jpeg(&picture, &length);
    set_size(bytes, length, 65500, 65500);
    expect_bad(jpeg, bytes, length, "2^28");
    set_size(bytes, length, 65500, 4000);
    expect_bad(jpeg, bytes, length, "65500 x 4000 pixels in ");
    set_size(bytes, length, 640, 640);
    expect_bad(jpeg, bytes, length, "JPEG");
    free(bytes);
    /* What the decoder would keep of a progressive image is refused even where the file is long enough. */
    picture.progressive = true;
    bytes = picture_jpeg(&picture, &length);
    const size_t long_enough = 600000;
    bytes = realloc(bytes, long_enough);
    cr_assert_not_null(bytes);
    memset(bytes + length, 0, long_enough - length - 2);
    bytes[long_enough - 2] = 0xff;
    bytes[long_enough - 1] = 0xd9;
    set_size(bytes, long_enough, 65500, 4000);
    expect_bad(jpeg, bytes, long_enough, "coefficients");
    free(bytes);
    jpeg_close(jpeg);
}

Test(good, the_widest_image_is_converted)
{
    struct jpeg *jpeg = decoder();
    struct picture wide = {.width = 65500, .height = 3}, high = {.width = 2, .height = 65500};
    size_t length = 0;
    int width = 0, height = 0;
    uint8_t rgb[24 * 24 * 3];
    uint8_t *bytes = picture_jpeg(&wide, &length);
    EXPECT_OK(jpeg_begin(jpeg, bytes, length, &width, &height));
    cr_expect(width == 65500 && height == 3);
    struct view view = view_middle(width, height, 24);
    EXPECT_OK(jpeg_view(jpeg, &view, false, rgb));
    free(bytes);
    bytes = picture_jpeg(&high, &length);
    EXPECT_OK(jpeg_begin(jpeg, bytes, length, &width, &height));
    view = view_whole(width, height, 24);
    EXPECT_OK(jpeg_view(jpeg, &view, true, rgb));
    free(bytes);
    jpeg_close(jpeg);
}
