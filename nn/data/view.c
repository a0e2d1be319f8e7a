/* view.c - crops of training and of evaluation. */
#include "nn/data/view.h"

#include <math.h>

#include "base/rng.h"

enum { ATTEMPTS = 10 };

/* One attempt: a piece of the wanted area and ratio, if it fits. */
static bool try_piece(int width, int height, uint64_t key, int attempt, struct view *view)
{
    const uint64_t counter = 4 * (uint64_t)attempt;
    const double largest = log(4.0 / 3.0);
    double area = (double)width * (double)height * (0.08 + 0.92 * rng_uniform(key, counter));
    double ratio = exp(largest * (2 * rng_uniform(key, counter + 1) - 1));
    double w = nearbyint(sqrt(area * ratio)), h = nearbyint(sqrt(area / ratio));
    if (w < 1 || h < 1 || w > width || h > height)
        return false;
    view->width = (int)w;
    view->height = (int)h;
    view->left = (int)rng_below(key, counter + 2, (uint64_t)(width - view->width) + 1);
    view->top = (int)rng_below(key, counter + 3, (uint64_t)(height - view->height) + 1);
    return true;
}

/* The largest piece in the middle whose ratio is allowed. */
static void middle_piece(int width, int height, struct view *view)
{
    double ratio = (double)width / (double)height;
    view->width = width;
    view->height = height;
    if (ratio < 3.0 / 4.0)
        view->height = (int)nearbyint((double)width / (3.0 / 4.0));
    else if (ratio > 4.0 / 3.0)
        view->width = (int)nearbyint((double)height * (4.0 / 3.0));
    view->left = (width - view->width) / 2;
    view->top = (height - view->height) / 2;
}

struct view view_random(int width, int height, int size, uint64_t seed, uint64_t epoch, uint64_t sample)
{
    struct view view = {.out_width = size, .out_height = size, .size = size};
    const uint64_t key = rng_key(seed, "crop", epoch, sample);
    int attempt = 0;
    while (attempt < ATTEMPTS && !try_piece(width, height, key, attempt, &view))
        attempt++;
    if (attempt == ATTEMPTS)
        middle_piece(width, height, &view);
    view.flip = (rng_u64(rng_key(seed, "flip", epoch, sample), 0) & 1) != 0;
    return view;
}

/* The shorter side becomes `side` pixels, of which the middle `size` ones are taken. */
static struct view middle_of(int width, int height, int side, int size)
{
    struct view view = {.width = width, .height = height, .out_width = side, .out_height = side, .size = size};
    if (width > height)
        view.out_width = (int)((int64_t)side * width / height);
    else
        view.out_height = (int)((int64_t)side * height / width);
    view.x = (int)nearbyint((double)(view.out_width - size) / 2.0);
    view.y = (int)nearbyint((double)(view.out_height - size) / 2.0);
    return view;
}

struct view view_middle(int width, int height, int size)
{
    const int shorter = width < height ? width : height;
    return middle_of(width, height, shorter > size ? (int)((int64_t)size * 256 / 224) : size, size);
}

struct view view_square(int width, int height, int size)
{
    return middle_of(width, height, size, size);
}

struct view view_whole(int width, int height, int size)
{
    return (struct view){.width = width, .height = height, .out_width = size, .out_height = size, .size = size};
}

/* `pixels` of `out` that `extent` becomes; exact where they are all of them. */
static float extent_of(int pixels, int extent, int out)
{
    return (float)((double)pixels * (double)extent / (double)out);
}

struct image_box view_box(const struct view *view)
{
    return (struct image_box){.left = (float)view->left + extent_of(view->x, view->width, view->out_width),
                              .top = (float)view->top + extent_of(view->y, view->height, view->out_height),
                              .width = extent_of(view->size, view->width, view->out_width),
                              .height = extent_of(view->size, view->height, view->out_height),
                              .flip = view->flip};
}
