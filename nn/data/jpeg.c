/* jpeg.c - libjpeg-turbo: decode the piece that is looked at, convert, hand rows to the resampler.
 *
 * Errors of the library come back by longjmp to the function that called it; what lives across that lies in struct jpeg.
 */
#include "nn/data/jpeg.h"

#if defined(CHORALE_JPEG)

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h> /* what is in it depends on the other */

#include "base/memory.h"
#include "nn/data/resample.h"

enum {
    LANES = 4,
    MARGIN = 16,      /* pixels beside the piece: upsampling of colour looks at neighbours */
    MOST_SCANS = 100, /* as libjpeg-turbo's own fuzzing allows, roughly; photographs have about ten */
    EOI = 0xd9
};
#define MOST_PIXELS ((uint64_t)1 << 28)
#define MOST_PIXELS_OF_BYTE 512 /* Huffman's codes have a bit or more for each block of 8 x 8 pixels */
#define MOST_COEFFICIENT_BYTES ((uint64_t)1 << 30)
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)

struct jpeg {
    struct jpeg_decompress_struct library;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf escape;
    enum status failure; /* what the escape was about */
    struct resample *resample;
    uint8_t *row; /* 4 bytes a pixel */
    size_t row_capacity;
    const uint8_t *end; /* of the file */
};

/* ---- the library's errors ---- */

static struct jpeg *owner(j_common_ptr library)
{
    return library->client_data;
}

static _Noreturn void give_up(struct jpeg *jpeg)
{
    longjmp(jpeg->escape, 1);
}

static enum status say(struct jpeg *jpeg)
{
    const bool memory = jpeg->errors.msg_code == JERR_OUT_OF_MEMORY;
    char message[JMSG_LENGTH_MAX];
    jpeg->errors.format_message((j_common_ptr)&jpeg->library, message);
    return fail(memory ? STATUS_NO_MEMORY : STATUS_FORMAT, "JPEG: %s", message);
}

static void on_error(j_common_ptr library)
{
    struct jpeg *jpeg = owner(library);
    jpeg->failure = say(jpeg);
    give_up(jpeg);
}

/* Warnings that mean lost pixels end the image. */
static void on_message(j_common_ptr library, int level)
{
    static const int losses[] = {
        JWRN_JPEG_EOF,
        JWRN_HIT_MARKER,
        JWRN_HUFF_BAD_CODE,
        JWRN_MUST_RESYNC,
        JWRN_BOGUS_PROGRESSION,
#if defined(D_ARITH_CODING_SUPPORTED)
        JWRN_ARITH_BAD_CODE,
#endif
    };
    if (level >= 0)
        return; /* traces */
    for (size_t i = 0; i < sizeof losses / sizeof losses[0]; i++)
        if (library->err->msg_code == losses[i])
            on_error(library);
}

static void on_output(j_common_ptr library)
{
    (void)library; /* nothing is printed */
}

/* Small files of thousands of scans over a large image take minutes. */
static void on_progress(j_common_ptr library)
{
    struct jpeg *jpeg = owner(library);
    if (!library->is_decompressor || jpeg->library.input_scan_number <= MOST_SCANS)
        return;
    jpeg->failure = fail(STATUS_FORMAT, "JPEG: more than %d scans", MOST_SCANS);
    give_up(jpeg);
}

/* ---- a decoder ---- */

const char *jpeg_version(void)
{
#if defined(LIBJPEG_TURBO_VERSION)
    return "libjpeg-turbo " TEXT_OF(LIBJPEG_TURBO_VERSION);
#else
    return "libjpeg";
#endif
}

/* The library's part, as if nothing had been read yet. It is made anew for each file: an old one remembers the tables of
 * files before, and with these decodes one that lacks its own, but not on a worker that has read other files before. */
static enum status create(struct jpeg *jpeg)
{
    jpeg_destroy_decompress(&jpeg->library);
    jpeg->library.err = jpeg_std_error(&jpeg->errors);
    jpeg->errors.error_exit = on_error;
    jpeg->errors.emit_message = on_message;
    jpeg->errors.output_message = on_output;
    jpeg->library.client_data = jpeg;
    if (setjmp(jpeg->escape) != 0)
        return fail(STATUS_NO_MEMORY, "JPEG: %s", status_message());
    jpeg_create_decompress(&jpeg->library);
    jpeg->library.client_data = jpeg;
    jpeg->progress.progress_monitor = on_progress;
    jpeg->library.progress = &jpeg->progress;
    return STATUS_OK;
}

enum status jpeg_open(struct jpeg **out)
{
    void *memory = NULL;
    *out = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct jpeg)));
    struct jpeg *jpeg = memory;
    enum status status = create(jpeg);
    if (status >= 0)
        status = resample_create(&jpeg->resample);
    if (status < 0) {
        jpeg_close(jpeg);
        return status;
    }
    *out = jpeg;
    return STATUS_OK;
}

void jpeg_close(struct jpeg *jpeg)
{
    if (jpeg == NULL)
        return;
    jpeg_destroy_decompress(&jpeg->library);
    resample_destroy(jpeg->resample);
    free(jpeg->row);
    free(jpeg);
}

/* ---- the header ---- */

/* A file that is cut short has no end marker after its first scan began: inside of a scan, those two bytes can't stand. */
static enum status check_end(const struct jpeg *jpeg)
{
    const uint8_t *from = jpeg->library.src->next_input_byte;
    for (const uint8_t *at = jpeg->end - 2; at >= from; at--)
        if (at[0] == 0xff && at[1] == EOI)
            return STATUS_OK;
    return fail(STATUS_FORMAT, "JPEG: the file is cut short");
}

static enum status check_size(const struct jpeg *jpeg, size_t length)
{
    const struct jpeg_decompress_struct *library = &jpeg->library;
    const uint64_t pixels = (uint64_t)library->image_width * library->image_height;
    if (pixels > MOST_PIXELS)
        return fail(STATUS_FORMAT, "JPEG: %u x %u pixels, at most 2^28 are taken", library->image_width,
                    library->image_height);
    if (!library->arith_code && pixels / MOST_PIXELS_OF_BYTE > length)
        return fail(STATUS_FORMAT, "JPEG: cut short, or its header is wrong: %u x %u pixels in %zu bytes",
                    library->image_width, library->image_height, length);
    if (jpeg_has_multiple_scans((j_decompress_ptr)(uintptr_t)library) &&
        pixels * (uint64_t)library->num_components * sizeof(JCOEF) > MOST_COEFFICIENT_BYTES)
        return fail(STATUS_FORMAT, "JPEG: progressive, of %u x %u pixels: its coefficients need more than 1 GiB",
                    library->image_width, library->image_height);
    return STATUS_OK;
}

static enum status check_colours(struct jpeg *jpeg)
{
    struct jpeg_decompress_struct *library = &jpeg->library;
    switch (library->jpeg_color_space) {
    case JCS_GRAYSCALE:
    case JCS_RGB:
    case JCS_YCbCr:
        library->out_color_space = JCS_EXT_RGBX;
        return STATUS_OK;
    case JCS_CMYK:
    case JCS_YCCK:
        library->out_color_space = JCS_CMYK;
        return STATUS_OK;
    default:
        return fail(STATUS_FORMAT, "JPEG: %d components of no known colour space", library->num_components);
    }
}

static enum status read_header(struct jpeg *jpeg, const uint8_t *bytes, size_t length)
{
    TRY(create(jpeg));
    if (setjmp(jpeg->escape) != 0)
        return jpeg->failure;
    jpeg_mem_src(&jpeg->library, bytes, length);
    (void)jpeg_read_header(&jpeg->library, TRUE);
    TRY(check_end(jpeg));
    TRY(check_size(jpeg, length));
    return check_colours(jpeg);
}

/* What else lies under the names of JPEG files. */
static const char *other_format(const uint8_t *bytes, size_t length)
{
    static const struct {
        const char *magic, *name;
    } formats[] = {{"\x89PNG", "PNG"}, {"GIF8", "GIF"}, {"RIFF", "WebP"}, {"BM", "BMP"}, {"II*", "TIFF"}};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (length >= strlen(formats[i].magic) && memcmp(bytes, formats[i].magic, strlen(formats[i].magic)) == 0)
            return formats[i].name;
    return NULL;
}

enum status jpeg_begin(struct jpeg *jpeg, const uint8_t *bytes, size_t length, int *width, int *height)
{
    const char *other = other_format(bytes, length);
    if (other != NULL)
        return fail(STATUS_FORMAT, "no JPEG file but %s", other);
    if (length < 4 || bytes[0] != 0xff || bytes[1] != 0xd8)
        return fail(STATUS_FORMAT, "no JPEG file: it begins with other bytes");
    jpeg->end = bytes + length;
    TRY(read_header(jpeg, bytes, length));
    *width = (int)jpeg->library.image_width;
    *height = (int)jpeg->library.image_height;
    return STATUS_OK;
}

/* ---- the view ---- */

/* Eighths of its size at which the view is still at least as large as it will become. */
static int scale_of(const struct view *view)
{
    int eighths = 8;
    while (eighths > 1 && view->width * (int64_t)(eighths / 2) >= (int64_t)view->out_width * 8 &&
           view->height * (int64_t)(eighths / 2) >= (int64_t)view->out_height * 8)
        eighths /= 2;
    return eighths;
}

/* The side of a view in the decoder's scaled image of `pixels`. */
static struct resample_axis axis_of(int begin, int extent, int out, int from, int size, int eighths, int pixels)
{
    const int64_t end = (int64_t)begin + extent;
    struct resample_axis axis = {
        .begin = begin * (eighths / 8.0), .extent = extent * (eighths / 8.0), .out = out, .from = from, .size = size};
    axis.first = (int)((int64_t)begin * eighths / 8);
    axis.end = (int)((end * eighths + 7) / 8);
    if (axis.end > pixels)
        axis.end = pixels;
    return axis;
}

/* CMYK as Adobe stores it, inverted: with Pillow's rounding of products. */
static void from_cmyk(uint8_t *row, size_t pixels)
{
    for (size_t i = 0; i < pixels; i++, row += LANES)
        for (int c = 0; c < 3; c++) {
            int product = (255 - row[c]) * row[3] + 128;
            int value = row[3] - ((product >> 8) + product) / 256;
            row[c] = (uint8_t)(value < 0 ? 0 : value);
        }
}

/* Columns first .. end - 1 and some beside them; *skip: of those that come. */
static void crop_columns(struct jpeg_decompress_struct *library, int first, int end, size_t *skip)
{
    JDIMENSION left = first > MARGIN ? (JDIMENSION)(first - MARGIN) : 0, right = (JDIMENSION)(end + MARGIN);
    if (right > library->output_width)
        right = library->output_width;
    JDIMENSION width = right - left;
    *skip = (size_t)first;
    if (width == library->output_width)
        return;
    jpeg_crop_scanline(library, &left, &width);
    *skip = (size_t)first - left;
}

static enum status begin_view(struct jpeg *jpeg, const struct view *view, bool reduced)
{
    struct jpeg_decompress_struct *library = &jpeg->library;
    const int eighths = reduced ? scale_of(view) : 8;
    library->scale_num = (unsigned)eighths;
    library->scale_denom = 8;
    (void)jpeg_start_decompress(library);
    struct resample_axis across =
        axis_of(view->left, view->width, view->out_width, view->x, view->size, eighths, (int)library->output_width);
    struct resample_axis down =
        axis_of(view->top, view->height, view->out_height, view->y, view->size, eighths, (int)library->output_height);
    return resample_begin(jpeg->resample, &across, &down);
}

static enum status grow_row(struct jpeg *jpeg)
{
    void *row = jpeg->row;
    enum status status = memory_grow(&row, &jpeg->row_capacity, (size_t)jpeg->library.output_width * LANES, 1);
    jpeg->row = row;
    return status;
}

enum status jpeg_view(struct jpeg *jpeg, const struct view *view, bool reduced, uint8_t *rgb)
{
    struct jpeg_decompress_struct *library = &jpeg->library;
    int first_row = 0, end_row = 0, first_column = 0, end_column = 0;
    size_t skip = 0;
    if (setjmp(jpeg->escape) != 0)
        return jpeg->failure;
    TRY(begin_view(jpeg, view, reduced));
    resample_needs(jpeg->resample, &first_row, &end_row, &first_column, &end_column);
    crop_columns(library, first_column, end_column, &skip);
    TRY(grow_row(jpeg));
    if (first_row > 0)
        (void)jpeg_skip_scanlines(library, (JDIMENSION)first_row);
    while (library->output_scanline < (JDIMENSION)end_row) {
        JSAMPROW row = jpeg->row;
        (void)jpeg_read_scanlines(library, &row, 1);
        if (library->out_color_space == JCS_CMYK)
            from_cmyk(jpeg->row, library->output_width);
        resample_row(jpeg->resample, jpeg->row + skip * LANES, rgb);
    }
    return STATUS_OK;
}

#else

#include <stddef.h>

enum status jpeg_open(struct jpeg **jpeg)
{
    *jpeg = NULL;
    return fail(STATUS_UNAVAILABLE,
                "JPEG files: built without libjpeg-turbo: apt-get install libjpeg-dev, then configure "
                "and build again");
}

void jpeg_close(struct jpeg *jpeg)
{
    (void)jpeg;
}

enum status jpeg_begin(struct jpeg *jpeg, const uint8_t *bytes, size_t length, int *width, int *height)
{
    (void)bytes;
    (void)length;
    (void)width;
    (void)height;
    return jpeg_open(&jpeg);
}

enum status jpeg_view(struct jpeg *jpeg, const struct view *view, bool reduced, uint8_t *rgb)
{
    (void)view;
    (void)reduced;
    (void)rgb;
    return jpeg_open(&jpeg);
}

const char *jpeg_version(void)
{
    return "none";
}

#endif
