/* winograd.c - see winograd.h. Transforms in one dimension first, then tiles, products, and the three directions. */
#include "nn/cpu/winograd.h"

#include "base/memory.h"
#include "nn/cpu/taps.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))
#define BODY static inline __attribute__((always_inline, target("avx2,fma")))
#define UNROLL _Pragma("GCC unroll 8")

/* Eight channels of one pixel, at any address. */
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));

enum { WIDTH = 8, KERNEL = 3, TAPS = KERNEL * KERNEL, MOST_SIDE = 6, MOST_POINTS = MOST_SIDE * MOST_SIDE };
enum { LINE = 16 }; /* floats of a cache line */

#define AT(p) (*(v8 *)(p))
#define READ(p) (*(const v8 *)(p))

/* ---- schemes ---- */

/* Which sums a tile has; always known where code is compiled. */
enum scheme {
    TWO,  /* F(2, 3)                                                                                         */
    FOUR, /* F(4, 3)                                                                                         */
    HALF  /* stride 2: outer taps fall on odd pixels, F(2, 2); the middle one on even pixels, two products of the same
             weight */
};

/* Sides of a tile. Turned: by data, where a tile of the result's gradient gives one of the source's. */
#define POINTS_SIDE(s) ((s) == TWO ? 4 : (s) == FOUR ? 6 : 5)
#define WEIGHTS_SIDE(s) ((s) == FOUR ? 6 : 4)
#define RESULT_SIDE(s) ((s) == FOUR ? 4 : 2)
#define READ_SIDE(s, turned) ((s) == HALF && (turned) ? 3 : POINTS_SIDE(s))
#define READ_STEP(s, turned) ((s) == FOUR || ((s) == HALF && !(turned)) ? 4 : 2)
#define READ_BEFORE(s, turned) ((s) == HALF && (turned) ? 0 : 1)
#define WRITE_SIDE(s, turned) ((s) == FOUR || ((s) == HALF && (turned)) ? 4 : 2)

/* Which of the transformed weights a point takes. */
static size_t weight_of(enum scheme scheme, size_t point)
{
    if (scheme != HALF)
        return point;
    size_t row = point / 5, column = point % 5;
    return (row < 4 ? row : 3) * 4 + (column < 4 ? column : 3);
}

/* ---- transforms of one line: `in` and `out` have elements `stride` vectors apart, and may be the same ---- */

BODY void line_source(enum scheme scheme, const v8 *in, v8 *out, int stride) /* B' */
{
    const v8 x0 = in[0], x1 = in[stride], x2 = in[2 * stride], x3 = in[3 * stride];
    if (scheme == HALF) {
        out[2 * stride] = in[4 * stride] - x2;
        out[0] = x0 - x2;
        out[stride] = x2;
        out[3 * stride] = x1;
        out[4 * stride] = x3;
        return;
    }
    if (scheme == TWO) {
        out[0] = x0 - x2;
        out[stride] = x1 + x2;
        out[2 * stride] = x2 - x1;
        out[3 * stride] = x1 - x3;
        return;
    }
    const v8 x4 = in[4 * stride], x5 = in[5 * stride];
    const v8 even = x4 - 4.0F * x2, odd = x3 - 4.0F * x1, even2 = x4 - x2, odd2 = 2.0F * (x3 - x1);
    out[0] = 4.0F * (x0 - x2) + even2;
    out[stride] = even + odd;
    out[2 * stride] = even - odd;
    out[3 * stride] = even2 + odd2;
    out[4 * stride] = even2 - odd2;
    out[5 * stride] = 4.0F * (x1 - x3) + (x5 - x3);
}

BODY void line_source_turned(enum scheme scheme, const v8 *in, v8 *out, int stride)
{
    if (scheme != HALF) {
        line_source(scheme, in, out, stride);
        return;
    }
    const v8 x0 = in[0], x1 = in[stride], x2 = in[2 * stride];
    out[0] = x0 - x1;
    out[stride] = x1;
    out[2 * stride] = x2 - x1;
    out[3 * stride] = x0;
    out[4 * stride] = x1;
}

BODY void line_result(enum scheme scheme, const v8 *in, v8 *out, int stride) /* A' */
{
    if (scheme == HALF) {
        const v8 middle = in[stride];
        out[0] = in[0] + middle + in[3 * stride];
        out[stride] = middle + in[2 * stride] + in[4 * stride];
        return;
    }
    const v8 p = in[stride] + in[2 * stride], q = in[stride] - in[2 * stride];
    if (scheme == TWO) {
        out[0] = in[0] + p;
        out[stride] = q - in[3 * stride];
        return;
    }
    const v8 r = in[3 * stride] + in[4 * stride], s = in[3 * stride] - in[4 * stride];
    const v8 first = in[0], last = in[5 * stride];
    out[0] = first + (p + r);
    out[stride] = q + 2.0F * s;
    out[2 * stride] = p + 4.0F * r;
    out[3 * stride] = q + 8.0F * s + last;
}

BODY void line_result_turned(enum scheme scheme, const v8 *in, v8 *out, int stride)
{
    if (scheme != HALF) {
        line_result(scheme, in, out, stride);
        return;
    }
    const v8 first = in[0] + in[stride], second = in[stride] + in[2 * stride];
    out[0] = in[3 * stride];
    out[stride] = first;
    out[2 * stride] = in[4 * stride];
    out[3 * stride] = second;
}

BODY void line_gradient(enum scheme scheme, const v8 *in, v8 *out, int stride) /* A */
{
    const v8 x0 = in[0], x1 = in[stride];
    if (scheme == HALF) {
        out[0] = out[3 * stride] = x0;
        out[stride] = x0 + x1;
        out[2 * stride] = out[4 * stride] = x1;
        return;
    }
    if (scheme == TWO) {
        out[0] = x0;
        out[stride] = x0 + x1;
        out[2 * stride] = x0 - x1;
        out[3 * stride] = -x1;
        return;
    }
    const v8 x2 = in[2 * stride], x3 = in[3 * stride];
    const v8 even = x0 + x2, odd = x1 + x3, even2 = x0 + 4.0F * x2, odd2 = 2.0F * x1 + 8.0F * x3;
    out[0] = x0;
    out[stride] = even + odd;
    out[2 * stride] = even - odd;
    out[3 * stride] = even2 + odd2;
    out[4 * stride] = even2 - odd2;
    out[5 * stride] = x3;
}

BODY void line_weights(enum scheme scheme, const v8 *in, v8 *out, int stride) /* G */
{
    const v8 w0 = in[0], w1 = in[stride], w2 = in[2 * stride];
    out[0] = w0;
    if (scheme == HALF) {
        out[stride] = w0 + w2;
        out[3 * stride] = w1;
        return;
    }
    if (scheme == TWO) {
        out[stride] = 0.5F * (w0 + w2 + w1);
        out[2 * stride] = 0.5F * (w0 + w2 - w1);
        out[3 * stride] = w2;
        return;
    }
    const v8 even = (w0 + w2) * (-1.0F / 6), odd = w1 * (1.0F / 6);
    const v8 even2 = w0 * (1.0F / 24) + w2 * (1.0F / 6), odd2 = w1 * (1.0F / 12);
    out[0] = 0.25F * w0;
    out[stride] = even - odd;
    out[2 * stride] = even + odd;
    out[3 * stride] = even2 + odd2;
    out[4 * stride] = even2 - odd2;
    out[5 * stride] = w2;
}

BODY void line_weights_gradient(enum scheme scheme, const v8 *in, v8 *out, int stride) /* G' */
{
    if (scheme == HALF) {
        const v8 both = in[stride], end = in[2 * stride];
        out[0] = in[0] + both;
        out[stride] = in[3 * stride];
        out[2 * stride] = both + end;
        return;
    }
    const v8 p = in[stride] + in[2 * stride], q = in[2 * stride] - in[stride];
    if (scheme == TWO) {
        const v8 last = in[3 * stride];
        out[0] = in[0] + 0.5F * p;
        out[stride] = -0.5F * q;
        out[2 * stride] = 0.5F * p + last;
        return;
    }
    const v8 r = in[3 * stride] + in[4 * stride], s = in[3 * stride] - in[4 * stride], last = in[5 * stride];
    out[0] = 0.25F * in[0] - p * (1.0F / 6) + r * (1.0F / 24);
    out[stride] = q * (1.0F / 6) + s * (1.0F / 12);
    out[2 * stride] = (r - p) * (1.0F / 6) + last;
}

/* Both dimensions: `from` x `from` vectors, rows MOST_SIDE apart, become `to` x `to`. */
#define BOTH(line, scheme, tile, from, to)                                                                             \
    do {                                                                                                               \
        const int from_side = (from), to_side = (to);                                                                  \
        UNROLL for (int k = 0; k < from_side; k++) line(scheme, (tile) + k, (tile) + k, MOST_SIDE);                    \
        UNROLL for (int k = 0; k < to_side; k++) line(scheme, (tile) + k * MOST_SIDE, (tile) + k * MOST_SIDE, 1);      \
    } while (0)

/* ---- tiles ---- */

/* The tiles of an image, or of all images one after the other. */
struct grid {
    enum scheme scheme;
    size_t rows, columns, tiles;
};

static enum scheme scheme_of(const struct winograd *winograd)
{
    if (winograd->stride == 2)
        return HALF;
    return winograd->tile == 2 ? TWO : FOUR;
}

static struct grid grid_of(const struct winograd *winograd)
{
    const struct value *value = winograd->result;
    size_t m = (size_t)winograd->tile, rows = (value->height + m - 1) / m, columns = (value->width + m - 1) / m;
    return (struct grid){
        .scheme = scheme_of(winograd), .rows = rows, .columns = columns, .tiles = rows * columns * value->images};
}

/* Where a tile lies, with `step` pixels from tile to tile. */
struct spot {
    size_t image, y, x;
};

static struct spot spot_of(const struct grid *grid, size_t tile, size_t step)
{
    size_t within = tile % (grid->rows * grid->columns);
    return (struct spot){.image = tile / (grid->rows * grid->columns),
                         .y = within / grid->columns * step,
                         .x = within % grid->columns * step};
}

/* First float of eight channels of an image: the layout's blocks have 8 or 16. */
static size_t channels_offset(const struct value *value, size_t image, size_t eight)
{
    const size_t eights = value->block / WIDTH;
    return value_offset(value, image, eight / eights) + eight % eights * WIDTH;
}

/* side x side pixels from (y - before, x - before) on; zeros outside the image. */
BODY void read_tile(const struct value *value, const float *block, const struct spot *spot, int side, size_t before,
                    v8 *tile)
{
    const size_t width = value->width, s = (size_t)side, b = value->block;
    if (spot->y >= before && spot->x >= before && spot->y - before + s <= value->height &&
        spot->x - before + s <= width) {
        const float *pixel = block + ((spot->y - before) * width + spot->x - before) * b;
        UNROLL for (size_t i = 0; i < s; i++)
        {
            UNROLL for (size_t j = 0; j < s; j++) tile[i * MOST_SIDE + j] = READ(pixel + (i * width + j) * b);
        }
        return;
    }
    for (size_t i = 0; i < s; i++) {
        size_t y = spot->y + i - before; /* wraps around above the image, and then is too large, too */
        for (size_t j = 0; j < s; j++) {
            size_t x = spot->x + j - before;
            bool inside = y < value->height && x < width;
            tile[i * MOST_SIDE + j] = inside ? READ(block + (y * width + x) * b) : (v8){0};
        }
    }
}

/* Transformed values of some tiles: [points][blocks][tiles][8], points `point` floats apart. */
struct matrix {
    float *data;
    size_t tiles, point;
};

/* Points must not lie a power of two apart: they would fall into the same sets of the caches. */
static size_t point_stride(size_t floats)
{
    size_t lines = (floats + LINE - 1) / LINE;
    return (lines | 1) * LINE;
}

BODY void store_points(const v8 *tile, int side, float *to, size_t point)
{
    UNROLL for (int i = 0; i < side; i++)
    {
        UNROLL for (int j = 0; j < side; j++) AT(to + (size_t)(i * side + j) * point) = tile[i * MOST_SIDE + j];
    }
}

BODY void load_points(const float *from, size_t point, int side, v8 *tile)
{
    UNROLL for (int i = 0; i < side; i++)
    {
        UNROLL for (int j = 0; j < side; j++) tile[i * MOST_SIDE + j] = READ(from + (size_t)(i * side + j) * point);
    }
}

/* Tiles of one block of channels, from number `first` on: as many as the matrix has. */
BODY void source_tiles(enum scheme scheme, bool turned, const struct grid *grid, const struct value *value,
                       const float *data, size_t block, size_t first, const struct matrix *to)
{
    for (size_t t = 0; t < to->tiles; t++) {
        v8 tile[MOST_POINTS];
        struct spot spot = spot_of(grid, first + t, READ_STEP(scheme, turned));
        read_tile(value, data + channels_offset(value, spot.image, block), &spot, READ_SIDE(scheme, turned),
                  READ_BEFORE(scheme, turned), tile);
        if (turned)
            BOTH(line_source_turned, scheme, tile, READ_SIDE(scheme, true), POINTS_SIDE(scheme));
        else
            BOTH(line_source, scheme, tile, READ_SIDE(scheme, false), POINTS_SIDE(scheme));
        store_points(tile, POINTS_SIDE(scheme), to->data + (block * to->tiles + t) * WIDTH, to->point);
    }
}

BODY void gradient_tiles(enum scheme scheme, const struct grid *grid, const struct value *value, const float *data,
                         size_t block, size_t first, const struct matrix *to)
{
    for (size_t t = 0; t < to->tiles; t++) {
        v8 tile[MOST_POINTS];
        struct spot spot = spot_of(grid, first + t, RESULT_SIDE(scheme));
        read_tile(value, data + channels_offset(value, spot.image, block), &spot, RESULT_SIDE(scheme), 0, tile);
        BOTH(line_gradient, scheme, tile, RESULT_SIDE(scheme), POINTS_SIDE(scheme));
        store_points(tile, POINTS_SIDE(scheme), to->data + (block * to->tiles + t) * WIDTH, to->point);
    }
}

/* `from` begins with the block. */
BODY void result_tiles(enum scheme scheme, bool turned, const struct grid *grid, const struct value *value, float *data,
                       size_t block, size_t first, const struct matrix *from)
{
    const size_t side = WRITE_SIDE(scheme, turned);
    for (size_t t = 0; t < from->tiles; t++) {
        v8 tile[MOST_POINTS];
        struct spot spot = spot_of(grid, first + t, side);
        load_points(from->data + t * WIDTH, from->point, POINTS_SIDE(scheme), tile);
        if (turned)
            BOTH(line_result_turned, scheme, tile, POINTS_SIDE(scheme), WRITE_SIDE(scheme, true));
        else
            BOTH(line_result, scheme, tile, POINTS_SIDE(scheme), WRITE_SIDE(scheme, false));
        if (spot.y >= value->height || spot.x >= value->width)
            continue;
        float *pixel =
            data + channels_offset(value, spot.image, block) + (spot.y * value->width + spot.x) * value->block;
        size_t rows = smaller(side, value->height - spot.y), columns = smaller(side, value->width - spot.x);
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < columns; j++)
                AT(pixel + (i * value->width + j) * value->block) = tile[i * MOST_SIDE + j];
        }
    }
}

/* ---- weights ---- */

/* Transformed weights lie as [points][O/16][I][16], points `point` floats apart. */
enum { PANEL = 16, HALVES = PANEL / WIDTH };

BODY void transpose8(v8 *row)
{
    __m256 a[WIDTH], b[WIDTH];
    UNROLL for (int k = 0; k < 4; k++)
    {
        a[2 * k] = _mm256_unpacklo_ps((__m256)row[2 * k], (__m256)row[2 * k + 1]);
        a[2 * k + 1] = _mm256_unpackhi_ps((__m256)row[2 * k], (__m256)row[2 * k + 1]);
    }
    UNROLL for (int k = 0; k < 2; k++)
    {
        b[4 * k] = _mm256_shuffle_ps(a[4 * k], a[4 * k + 2], 0x44);
        b[4 * k + 1] = _mm256_shuffle_ps(a[4 * k], a[4 * k + 2], 0xEE);
        b[4 * k + 2] = _mm256_shuffle_ps(a[4 * k + 1], a[4 * k + 3], 0x44);
        b[4 * k + 3] = _mm256_shuffle_ps(a[4 * k + 1], a[4 * k + 3], 0xEE);
    }
    UNROLL for (int k = 0; k < 4; k++)
    {
        row[k] = (v8)_mm256_permute2f128_ps(b[k], b[k + 4], 0x20);
        row[k + 4] = (v8)_mm256_permute2f128_ps(b[k], b[k + 4], 0x31);
    }
}

/* Weights of 8 x 8 channels lie in blocks of 8 or 16 x 16: their first float. */
static size_t weights_offset(size_t block, size_t in, size_t o, size_t i)
{
    const size_t eights = block / WIDTH;
    return ((o / eights * (in / block) + i / eights) * TAPS * block + i % eights * WIDTH) * block + o % eights * WIDTH;
}

/* Two times weights of 8 i x 8 o, within blocks (3, 3, b i, b o), become eight rows of a panel. Turned: the blocks' rows
 * are o and their lanes i, which are exchanged, and the taps are in reverse. */
BODY void panel_rows(enum scheme scheme, const float *const *block, size_t b, bool turned, float *to, size_t point)
{
    v8 row[HALVES][TAPS][WIDTH];
    for (int half = 0; half < HALVES; half++) {
        UNROLL for (int tap = 0; tap < TAPS; tap++)
        {
            v8 *rows = row[half][turned ? TAPS - 1 - tap : tap];
            UNROLL for (int i = 0; i < WIDTH; i++) rows[i] = READ(block[half] + ((size_t)tap * b + (size_t)i) * b);
            if (turned)
                transpose8(rows);
        }
    }
    for (int i = 0; i < WIDTH; i++) {
        for (int half = 0; half < HALVES; half++) { /* both halves of a cache line */
            v8 tile[MOST_POINTS];
            UNROLL for (int tap = 0; tap < TAPS; tap++)
            {
                tile[tap / KERNEL * MOST_SIDE + tap % KERNEL] = row[half][tap][i];
            }
            BOTH(line_weights, scheme, tile, KERNEL, WEIGHTS_SIDE(scheme));
            store_points(tile, WEIGHTS_SIDE(scheme), to + i * PANEL + half * WIDTH, point);
        }
    }
}

/* One direction: `in` and `out` channels of the products. */
struct direction {
    const struct value *in, *out;
    bool turned; /* by data */
};

/* Of a panel, `count` blocks of inputs from `first` on. */
BODY void panel(enum scheme scheme, const struct direction *way, const float *weights, size_t number, size_t first,
                size_t count, float *to, size_t point)
{
    const size_t b = way->in->block;
    for (size_t i = first; i < first + count; i++, to += WIDTH * PANEL) {
        const float *block[HALVES];
        for (size_t half = 0; half < HALVES; half++) {
            size_t o = number * HALVES + half;
            block[half] = weights + (way->turned ? weights_offset(b, way->out->channels, i, o)
                                                 : weights_offset(b, way->in->channels, o, i));
        }
        if (b == WIDTH) /* known where it is compiled, it is quicker */
            panel_rows(scheme, block, WIDTH, way->turned, to, point);
        else
            panel_rows(scheme, block, b, way->turned, to, point);
    }
}

TARGET static void transform_panel(enum scheme scheme, const struct direction *way, const float *weights, size_t number,
                                   float *to, size_t point)
{
    const size_t in = way->in->channels, blocks = in / WIDTH;
    to += number * PANEL * in;
    if (scheme == TWO)
        panel(TWO, way, weights, number, 0, blocks, to, point);
    else if (scheme == FOUR)
        panel(FOUR, way, weights, number, 0, blocks, to, point);
    else
        panel(HALF, way, weights, number, 0, blocks, to, point);
}

/* ---- products ---- */

/* `rows` tiles x 16 channels: sums over `in` channels, added to what is there. */
BODY void product_rows(int rows, size_t in, const float *v, size_t v_block, const float *u, bool add, float *to,
                       size_t to_block)
{
    __m256 sum[6][2];
    UNROLL for (int r = 0; r < rows; r++)
    {
        sum[r][0] = add ? _mm256_loadu_ps(to + r * WIDTH) : _mm256_setzero_ps();
        sum[r][1] = add ? _mm256_loadu_ps(to + to_block + r * WIDTH) : _mm256_setzero_ps();
    }
    for (size_t block = 0; block < in / WIDTH; block++, v += v_block) {
        UNROLL for (int c = 0; c < WIDTH; c++, u += PANEL)
        {
            __m256 left = _mm256_loadu_ps(u), right = _mm256_loadu_ps(u + WIDTH);
            UNROLL for (int r = 0; r < rows; r++)
            {
                __m256 x = _mm256_broadcast_ss(v + r * WIDTH + c);
                sum[r][0] = _mm256_fmadd_ps(x, left, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(x, right, sum[r][1]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
    {
        _mm256_storeu_ps(to + r * WIDTH, sum[r][0]);
        _mm256_storeu_ps(to + to_block + r * WIDTH, sum[r][1]);
    }
}

/* One point and one panel: `count` tiles. */
TARGET static void product(size_t in, size_t count, const float *v, const float *u, bool add, float *to)
{
    enum { MOST_ROWS = 6 };
    const size_t block = count * WIDTH;
    size_t left = count;
    for (; left >= MOST_ROWS; left -= MOST_ROWS, v += MOST_ROWS * WIDTH, to += MOST_ROWS * WIDTH)
        product_rows(MOST_ROWS, in, v, block, u, add, to, block);
    if (left == 5)
        product_rows(5, in, v, block, u, add, to, block);
    else if (left == 4)
        product_rows(4, in, v, block, u, add, to, block);
    else if (left == 3)
        product_rows(3, in, v, block, u, add, to, block);
    else if (left == 2)
        product_rows(2, in, v, block, u, add, to, block);
    else if (left == 1)
        product_rows(1, in, v, block, u, add, to, block);
}

enum { MOST_GROUPS = 3 }; /* blocks of outputs that are summed up together */

/* `groups` blocks of 8 outputs x 4 inputs: sums over tiles, added to what is there. */
BODY void gradient_rows(int groups, size_t count, const float *v, const float *d, size_t d_block, bool add, float *to,
                        size_t to_block)
{
    enum { ROWS = 4 };
    __m256 sum[ROWS][MOST_GROUPS];
    UNROLL for (int r = 0; r < ROWS; r++)
    {
        UNROLL for (int g = 0; g < groups; g++) sum[r][g] =
            add ? _mm256_loadu_ps(to + (size_t)g * to_block + r * WIDTH) : _mm256_setzero_ps();
    }
    for (size_t t = 0; t < count; t++, v += WIDTH, d += WIDTH) {
        __m256 y[MOST_GROUPS];
        UNROLL for (int g = 0; g < groups; g++) y[g] = _mm256_loadu_ps(d + (size_t)g * d_block);
        UNROLL for (int r = 0; r < ROWS; r++)
        {
            __m256 x = _mm256_broadcast_ss(v + r);
            UNROLL for (int g = 0; g < groups; g++) sum[r][g] = _mm256_fmadd_ps(x, y[g], sum[r][g]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++)
    {
        UNROLL for (int g = 0; g < groups; g++) _mm256_storeu_ps(to + (size_t)g * to_block + r * WIDTH, sum[r][g]);
    }
}

/* One point: up to three blocks of outputs x all inputs. */
BODY void gradient_group(int groups, size_t in, size_t count, const float *v, const float *d, bool add, float *to)
{
    for (size_t c = 0; c < in; c += 4)
        gradient_rows(groups, count, v + c / WIDTH * count * WIDTH + c % WIDTH, d, count * WIDTH, add, to + c * WIDTH,
                      in * WIDTH);
}

TARGET static void gradient_product(size_t groups, size_t in, size_t count, const float *v, const float *d, bool add,
                                    float *to)
{
    if (groups == 1)
        gradient_group(1, in, count, v, d, add, to);
    else if (groups == 2)
        gradient_group(2, in, count, v, d, add, to);
    else
        gradient_group(MOST_GROUPS, in, count, v, d, add, to);
}

/* ---- sizes ---- */

bool winograd_runs(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t points_of(enum scheme scheme)
{
    return (size_t)(POINTS_SIDE(scheme) * POINTS_SIDE(scheme));
}

static size_t weight_points_of(enum scheme scheme)
{
    return (size_t)(WEIGHTS_SIDE(scheme) * WEIGHTS_SIDE(scheme));
}

/* Tiles that are worked on at a time, measured on Zen 3: by weights, longer sums are better than a stay in L2. */
static size_t chunk_of(const struct winograd *winograd, bool by_weights)
{
    enum { WIDE = 512, NARROW_TILES = 24, WIDE_TILES = 48, SUM_TILES = 192 };
    size_t tiles = grid_of(winograd).tiles, most = SUM_TILES;
    if (by_weights)
        return smaller(tiles, most);
    most = winograd->source->channels + winograd->result->channels >= WIDE ? WIDE_TILES : NARROW_TILES;
    size_t threads = (size_t)winograd->threads, chunks = (tiles + most - 1) / most;
    chunks = (chunks + threads - 1) / threads * threads;
    return (tiles + chunks - 1) / chunks;
}

static size_t weights_stride(const struct winograd *winograd)
{
    return point_stride(winograd->source->channels * winograd->result->channels);
}

/* Floats of one point of a chunk: both matrices. */
static size_t chunk_stride(const struct winograd *winograd, size_t chunk)
{
    return point_stride(winograd->source->channels * chunk) + point_stride(winograd->result->channels * chunk);
}

/* Few tiles and large weights: to write all the transformed weights down and to read them again takes as long as the
 * products. Measured on Zen 3. */
static bool panel_by_panel(const struct winograd *winograd)
{
    enum { MOST_TILES = 128, LEAST_WEIGHTS = 1 << 20 };
    return grid_of(winograd).tiles <= MOST_TILES &&
           weight_points_of(scheme_of(winograd)) * weights_stride(winograd) >= LEAST_WEIGHTS;
}

/* Likewise for the sums of the weights' gradient, which take another pass of additions. */
static bool part_by_part(const struct winograd *winograd)
{
    enum { MOST_TILES = 24 };
    return panel_by_panel(winograd) && grid_of(winograd).tiles <= MOST_TILES;
}

/* Inputs whose transformed weights for a panel stay in L2. */
static size_t panel_inputs(enum scheme scheme)
{
    return scheme == FOUR ? 56 : 128;
}

/* Inputs whose sums for a group of outputs stay in L2. */
enum { PART_INPUTS = 64 };

static size_t part_stride(void)
{
    return point_stride((size_t)PART_INPUTS * MOST_GROUPS * WIDTH);
}

/* Floats of one thread that computes a panel of all tiles. */
static size_t panel_floats(const struct winograd *winograd)
{
    const enum scheme scheme = scheme_of(winograd);
    return weight_points_of(scheme) * point_stride(panel_inputs(scheme) * PANEL) +
           points_of(scheme) * point_stride(grid_of(winograd).tiles * PANEL);
}

/* Of all tiles, which are few, and of the threads. */
static size_t panel_by_panel_floats(const struct winograd *winograd)
{
    const size_t in = winograd->source->channels, out = winograd->result->channels;
    return points_of(scheme_of(winograd)) * point_stride(larger(in, out) * grid_of(winograd).tiles) +
           panel_floats(winograd) * (size_t)winograd->threads;
}

static size_t part_by_part_floats(const struct winograd *winograd)
{
    const enum scheme scheme = scheme_of(winograd);
    return points_of(scheme) * chunk_stride(winograd, grid_of(winograd).tiles) +
           weight_points_of(scheme) * part_stride() * (size_t)winograd->threads;
}

enum status winograd_scratch(const struct winograd *winograd, size_t *count)
{
    const enum scheme scheme = scheme_of(winograd);
    size_t workers = 0, weights = 0, sums = chunk_stride(winograd, chunk_of(winograd, true));
    if (!checked_multiply(chunk_stride(winograd, chunk_of(winograd, false)), (size_t)winograd->threads, &workers) ||
        !checked_multiply(weights_stride(winograd), weight_points_of(scheme), &weights) ||
        !checked_multiply(larger(sums, workers), points_of(scheme), count) || !checked_add(*count, weights, count))
        return fail(STATUS_USAGE, "a batch of %zu images is too large", winograd->source->images);
    if (panel_by_panel(winograd))
        *count = larger(*count, panel_by_panel_floats(winograd));
    if (part_by_part(winograd))
        *count = larger(*count, part_by_part_floats(winograd));
    return STATUS_OK;
}

/* ---- result, and backward by data ---- */

/* What all threads share in one call. */
struct pass {
    const struct winograd *winograd;
    struct grid grid;
    struct direction way;
    const float *input, *weights;
    float *transformed; /* weights */
    float *output;
};

BODY void convolve_chunk(enum scheme scheme, bool turned, const struct pass *pass, size_t first, size_t count,
                         float *scratch)
{
    const size_t in = pass->way.in->channels, out = pass->way.out->channels, points = points_of(scheme);
    const size_t stride = weights_stride(pass->winograd);
    const struct matrix v = {.data = scratch, .tiles = count, .point = point_stride(in * count)};
    struct matrix y = {.data = scratch + points * v.point, .tiles = count, .point = point_stride(out * count)};
    for (size_t block = 0; block < in / WIDTH; block++)
        source_tiles(scheme, turned, &pass->grid, pass->way.in, pass->input, block, first, &v);
    for (size_t k = 0; k < points; k++) {
        for (size_t o = 0; o < out; o += PANEL)
            product(in, count, v.data + k * v.point, pass->transformed + weight_of(scheme, k) * stride + o * in, false,
                    y.data + k * y.point + o * count);
    }
    for (size_t block = 0; block < out / WIDTH; block++, y.data += count * WIDTH)
        result_tiles(scheme, turned, &pass->grid, pass->way.out, pass->output, block, first, &y);
}

TARGET static void convolve_tiles(const struct pass *pass, size_t first, size_t count, float *scratch)
{
    if (pass->grid.scheme == TWO) /* symmetric: turned or not, tiles are the same */
        convolve_chunk(TWO, false, pass, first, count, scratch);
    else if (pass->grid.scheme == FOUR)
        convolve_chunk(FOUR, false, pass, first, count, scratch);
    else if (pass->way.turned)
        convolve_chunk(HALF, true, pass, first, count, scratch);
    else
        convolve_chunk(HALF, false, pass, first, count, scratch);
}

/* Source of all tiles, one block of channels. */
TARGET static void transform_source(const struct pass *pass, size_t block, const struct matrix *v)
{
    if (pass->grid.scheme == TWO)
        source_tiles(TWO, false, &pass->grid, pass->way.in, pass->input, block, 0, v);
    else if (pass->grid.scheme == FOUR)
        source_tiles(FOUR, false, &pass->grid, pass->way.in, pass->input, block, 0, v);
    else if (pass->way.turned)
        source_tiles(HALF, true, &pass->grid, pass->way.in, pass->input, block, 0, v);
    else
        source_tiles(HALF, false, &pass->grid, pass->way.in, pass->input, block, 0, v);
}

/* Results of all tiles, one panel of channels: some of its weights are transformed and used while they are in L2. */
BODY void panel_results(enum scheme scheme, bool turned, const struct pass *pass, size_t number, const struct matrix *v,
                        float *scratch)
{
    const size_t in = pass->way.in->channels, some = panel_inputs(scheme), stride = point_stride(some * PANEL);
    struct matrix y = {.data = scratch + weight_points_of(scheme) * stride,
                       .tiles = v->tiles,
                       .point = point_stride(v->tiles * PANEL)};
    for (size_t c = 0; c < in; c += some) {
        const size_t count = smaller(some, in - c);
        panel(scheme, &pass->way, pass->weights, number, c / WIDTH, count / WIDTH, scratch, stride);
        for (size_t k = 0; k < points_of(scheme); k++)
            product(count, v->tiles, v->data + k * v->point + c * v->tiles, scratch + weight_of(scheme, k) * stride,
                    c > 0, y.data + k * y.point);
    }
    for (size_t half = 0; half < HALVES; half++, y.data += y.tiles * WIDTH)
        result_tiles(scheme, turned, &pass->grid, pass->way.out, pass->output, number * HALVES + half, 0, &y);
}

TARGET static void convolve_panel(const struct pass *pass, size_t number, const struct matrix *v, float *scratch)
{
    if (pass->grid.scheme == TWO)
        panel_results(TWO, false, pass, number, v, scratch);
    else if (pass->grid.scheme == FOUR)
        panel_results(FOUR, false, pass, number, v, scratch);
    else if (pass->way.turned)
        panel_results(HALF, true, pass, number, v, scratch);
    else
        panel_results(HALF, false, pass, number, v, scratch);
}

static void convolve_panels(struct pass *pass, float *scratch)
{
    const size_t in = pass->way.in->channels, tiles = pass->grid.tiles, threads = (size_t)pass->winograd->threads;
    const struct matrix v = {.data = scratch, .tiles = tiles, .point = point_stride(in * tiles)};
    const size_t lent = panel_floats(pass->winograd);
    const int blocks = (int)(in / WIDTH), workers = pass->winograd->threads;
    const size_t panels = pass->way.out->channels / PANEL;
    scratch += points_of(pass->grid.scheme) * v.point;
#pragma omp parallel for schedule(static) num_threads(workers)
    for (int k = 0; k < blocks; k++)
        transform_source(pass, (size_t)k, &v);
#pragma omp parallel for schedule(static) num_threads(workers)
    for (int worker = 0; worker < workers; worker++) {
        size_t end = panels * ((size_t)worker + 1) / threads;
        for (size_t k = panels * (size_t)worker / threads; k < end; k++)
            convolve_panel(pass, k, &v, scratch + (size_t)worker * lent);
    }
}

static void convolve(const struct winograd *winograd, struct pass *pass, float *scratch)
{
    pass->winograd = winograd;
    pass->grid = grid_of(winograd);
    if (panel_by_panel(winograd)) {
        convolve_panels(pass, scratch);
        return;
    }
    const size_t stride = weights_stride(winograd), chunk = chunk_of(winograd, false);
    pass->transformed = scratch;
    const size_t lent = chunk_stride(winograd, chunk) * points_of(pass->grid.scheme);
    scratch += stride * weight_points_of(pass->grid.scheme);
    const size_t tiles = pass->grid.tiles, chunks = (tiles + chunk - 1) / chunk, threads = (size_t)winograd->threads;
    int panels = (int)(pass->way.out->channels / PANEL), workers = winograd->threads;
#pragma omp parallel for schedule(static) num_threads(workers)
    for (int k = 0; k < panels; k++)
        transform_panel(pass->grid.scheme, &pass->way, pass->weights, (size_t)k, pass->transformed, stride);
#pragma omp parallel for schedule(static) num_threads(workers)
    for (int worker = 0; worker < workers; worker++) {
        size_t end = chunks * ((size_t)worker + 1) / threads;
        for (size_t k = chunks * (size_t)worker / threads; k < end; k++)
            convolve_tiles(pass, k * chunk, smaller(chunk, tiles - k * chunk), scratch + (size_t)worker * lent);
    }
}

void winograd_forward(const struct winograd *winograd, const float *source, const float *weights, float *result,
                      float *scratch)
{
    struct pass pass = {.way = {.in = winograd->source, .out = winograd->result},
                        .input = source,
                        .weights = weights,
                        .output = result};
    convolve(winograd, &pass, scratch);
}

void winograd_backward_data(const struct winograd *winograd, const float *result_gradient, const float *weights,
                            float *source_gradient, float *scratch)
{
    struct pass pass = {.way = {.in = winograd->result, .out = winograd->source, .turned = true},
                        .input = result_gradient,
                        .weights = weights,
                        .output = source_gradient};
    convolve(winograd, &pass, scratch);
}

/* ---- backward by weights ---- */

/* A chunk of tiles, transformed. */
struct chunk {
    const struct winograd *winograd;
    struct grid grid;
    const float *source, *gradient;
    size_t first;
    struct matrix v, d; /* of the source and of the result's gradient */
    float *sums;        /* [weights' points][O/8][I][8], points `point` floats apart */
    size_t point;
};

/* Blocks of the source, then of the result's gradient. */
BODY void both_tiles(enum scheme scheme, const struct chunk *chunk, size_t block)
{
    const struct winograd *winograd = chunk->winograd;
    const size_t blocks = winograd->source->channels / WIDTH;
    if (block < blocks)
        source_tiles(scheme, false, &chunk->grid, winograd->source, chunk->source, block, chunk->first, &chunk->v);
    else
        gradient_tiles(scheme, &chunk->grid, winograd->result, chunk->gradient, block - blocks, chunk->first,
                       &chunk->d);
}

TARGET static void transform_block(const struct chunk *chunk, size_t block)
{
    if (chunk->grid.scheme == TWO)
        both_tiles(TWO, chunk, block);
    else if (chunk->grid.scheme == FOUR)
        both_tiles(FOUR, chunk, block);
    else
        both_tiles(HALF, chunk, block);
}

/* One of the weights' points, and up to three blocks of outputs. */
static void sum_group(const struct chunk *chunk, size_t weight, size_t group)
{
    const size_t in = chunk->winograd->source->channels, blocks = chunk->winograd->result->channels / WIDTH;
    const size_t o = group * MOST_GROUPS, count = chunk->v.tiles, points = points_of(chunk->grid.scheme);
    bool add = chunk->first > 0;
    for (size_t point = 0; point < points; point++) {
        if (weight_of(chunk->grid.scheme, point) != weight)
            continue;
        gradient_product(smaller(MOST_GROUPS, blocks - o), in, count, chunk->v.data + point * chunk->v.point,
                         chunk->d.data + point * chunk->d.point + o * count * WIDTH, add,
                         chunk->sums + weight * chunk->point + o * in * WIDTH);
        add = true;
    }
}

/* Sums of `count` inputs -> weights' gradient of eight outputs, from a block of b inputs on */
BODY void weights_block(enum scheme scheme, size_t b, size_t count, const float *sums, size_t point, float *to)
{
    for (size_t c = 0; c < count; c++) {
        v8 tile[MOST_POINTS];
        load_points(sums + c * WIDTH, point, WEIGHTS_SIDE(scheme), tile);
        BOTH(line_weights_gradient, scheme, tile, WEIGHTS_SIDE(scheme), KERNEL);
        float *block = to + (c / b * b * TAPS + c % b) * b;
        UNROLL for (int tap = 0; tap < TAPS; tap++)
        {
            AT(block + (size_t)tap * b * b) = tile[tap / KERNEL * MOST_SIDE + tap % KERNEL];
        }
    }
}

TARGET static void finish_weights(enum scheme scheme, size_t b, size_t count, const float *sums, size_t point,
                                  float *to)
{
    if (scheme == TWO)
        weights_block(TWO, b, count, sums, point, to);
    else if (scheme == FOUR)
        weights_block(FOUR, b, count, sums, point, to);
    else
        weights_block(HALF, b, count, sums, point, to);
}

/* The sums of a group of outputs and some inputs, from `first` on, are finished while they are in L2. */
static void finish_part(const struct chunk *chunk, size_t group, size_t first, float *sums, float *to)
{
    const size_t in = chunk->winograd->source->channels, blocks = chunk->winograd->result->channels / WIDTH;
    const size_t o = group * MOST_GROUPS, groups = smaller(MOST_GROUPS, blocks - o), tiles = chunk->v.tiles;
    const size_t count = smaller(PART_INPUTS, in - first), b = chunk->winograd->source->block;
    const enum scheme scheme = chunk->grid.scheme;
    bool begun[MOST_POINTS] = {false};
    for (size_t point = 0; point < points_of(scheme); point++) {
        const size_t weight = weight_of(scheme, point);
        gradient_product(groups, count, tiles, chunk->v.data + point * chunk->v.point + first * tiles,
                         chunk->d.data + point * chunk->d.point + o * tiles * WIDTH, begun[weight],
                         sums + weight * part_stride());
        begun[weight] = true;
    }
    for (size_t k = 0; k < groups; k++)
        finish_weights(scheme, b, count, sums + k * count * WIDTH, part_stride(),
                       to + weights_offset(b, in, o + k, first / WIDTH));
}

static void transform_chunk(struct chunk *chunk, size_t count, float *scratch)
{
    const struct winograd *winograd = chunk->winograd;
    const size_t in = winograd->source->channels, out = winograd->result->channels;
    const int blocks = (int)((in + out) / WIDTH);
    chunk->v = (struct matrix){.data = scratch, .tiles = count, .point = point_stride(in * count)};
    chunk->d = (struct matrix){.data = scratch + points_of(chunk->grid.scheme) * chunk->v.point,
                               .tiles = count,
                               .point = point_stride(out * count)};
#pragma omp parallel for schedule(static) num_threads(winograd->threads)
    for (int k = 0; k < blocks; k++)
        transform_block(chunk, (size_t)k);
}

static size_t groups_of(const struct winograd *winograd)
{
    return (winograd->result->channels / WIDTH + MOST_GROUPS - 1) / MOST_GROUPS;
}

/* All tiles are one chunk. */
static void sum_parts(struct chunk *chunk, float *weights_gradient, float *scratch)
{
    const struct winograd *winograd = chunk->winograd;
    const size_t groups = groups_of(winograd), threads = (size_t)winograd->threads;
    const size_t parts = (winograd->source->channels + PART_INPUTS - 1) / PART_INPUTS * groups;
    const size_t lent = weight_points_of(chunk->grid.scheme) * part_stride();
    const int workers = winograd->threads;
    transform_chunk(chunk, chunk->grid.tiles, scratch);
    scratch += points_of(chunk->grid.scheme) * (chunk->v.point + chunk->d.point);
#pragma omp parallel for schedule(static) num_threads(workers)
    for (int worker = 0; worker < workers; worker++) {
        size_t end = parts * ((size_t)worker + 1) / threads;
        for (size_t k = parts * (size_t)worker / threads; k < end; k++)
            finish_part(chunk, k % groups, k / groups * PART_INPUTS, scratch + (size_t)worker * lent, weights_gradient);
    }
}

/* Chunk by chunk, all sums together. */
static void sum_chunks(struct chunk *chunk, float *weights_gradient, float *scratch)
{
    const struct winograd *winograd = chunk->winograd;
    const size_t in = winograd->source->channels, out = winograd->result->channels, groups = groups_of(winograd);
    const size_t most = chunk_of(winograd, true), weights = weight_points_of(chunk->grid.scheme);
    const size_t b = winograd->source->block;
    const int tasks = (int)(weights * groups);
    chunk->sums = scratch;
    chunk->point = weights_stride(winograd);
    for (; chunk->first < chunk->grid.tiles; chunk->first += most) {
        transform_chunk(chunk, smaller(most, chunk->grid.tiles - chunk->first), scratch + weights * chunk->point);
#pragma omp parallel for schedule(static) num_threads(winograd->threads)
        for (int k = 0; k < tasks; k++)
            sum_group(chunk, (size_t)k / groups, (size_t)k % groups);
    }
#pragma omp parallel for schedule(static) num_threads(winograd->threads)
    for (int o = 0; o < (int)(out / WIDTH); o++)
        finish_weights(chunk->grid.scheme, b, in, chunk->sums + (size_t)o * in * WIDTH, chunk->point,
                       weights_gradient + weights_offset(b, in, (size_t)o, 0));
}

void winograd_backward_weights(const struct winograd *winograd, const float *source, const float *result_gradient,
                               float *weights_gradient, float *scratch)
{
    struct chunk chunk = {
        .winograd = winograd, .grid = grid_of(winograd), .source = source, .gradient = result_gradient};
    const struct taps taps = {.source = winograd->source,
                              .result = winograd->result,
                              .stride = winograd->stride,
                              .threads = winograd->threads};
    if (taps_run(&taps))
        taps_backward_weights(&taps, source, result_gradient, weights_gradient);
    else if (part_by_part(winograd))
        sum_parts(&chunk, weights_gradient, scratch);
    else
        sum_chunks(&chunk, weights_gradient, scratch);
}

#else /* the header's contract: nothing below is called where winograd_runs() is false */

bool winograd_runs(void)
{
    return false;
}

enum status winograd_scratch(const struct winograd *winograd, size_t *count)
{
    (void)winograd;
    *count = 0;
    return STATUS_OK;
}

void winograd_forward(const struct winograd *winograd, const float *source, const float *weights, float *result,
                      float *scratch)
{
    (void)winograd, (void)source, (void)weights, (void)result, (void)scratch;
}

void winograd_backward_data(const struct winograd *winograd, const float *result_gradient, const float *weights,
                            float *source_gradient, float *scratch)
{
    (void)winograd, (void)result_gradient, (void)weights, (void)source_gradient, (void)scratch;
}

void winograd_backward_weights(const struct winograd *winograd, const float *source, const float *result_gradient,
                               float *weights_gradient, float *scratch)
{
    (void)winograd, (void)source, (void)result_gradient, (void)weights_gradient, (void)scratch;
}

#endif

/* In products of 16 channels by one of a tile's: what the transformed weights cost beside the tiles, measured on Zen 3. */
static size_t cost(size_t m, size_t points, size_t weights, const struct value *result)
{
    enum { WEIGHTS = 6 };
    size_t tiles = (result->height + m - 1) / m * ((result->width + m - 1) / m) * result->images;
    return points * tiles + weights * WEIGHTS;
}

static bool same_size(size_t source, size_t result, int stride)
{
    return (source + (size_t)stride - 1) / (size_t)stride == result;
}

int winograd_tile(const struct value *source, const struct value *result, int stride)
{
    enum { MULTIPLE = 16 };
    /* nine taps, nearer to the peak; blocks of 16 are AVX-512's, with vectors twice as wide as those here */
    const size_t direct = source->block == 16 ? 4 : 8;
    const size_t pixels = value_pixels(result) * result->images;
    if (!winograd_runs() || (source->block != 8 && source->block != 16) || result->block != source->block ||
        source->channels % MULTIPLE != 0 || result->channels % MULTIPLE != 0 || stride < 1 || stride > 2 ||
        !same_size(source->height, result->height, stride) || !same_size(source->width, result->width, stride))
        return 0;
    if (stride == 2)
        return cost(2, 25, 16, result) <= direct * pixels ? 2 : 0;
    const size_t two = cost(2, 16, 16, result), four = cost(4, 36, 36, result);
    if (smaller(two, four) > direct * pixels)
        return 0;
    return four < two ? 4 : 2;
}
