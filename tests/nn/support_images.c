/* support_images.c - a pattern, and libjpeg's compressor. */
#include "tests/nn/support_images.h"

#include <stdio.h>
#include <stdlib.h>

uint8_t picture_value(const struct picture *picture, int x, int y, int channel)
{
    unsigned seed = picture->seed;
    unsigned smooth = (unsigned)(x * (3 + channel) + y * (2 + channel)) + 40 * seed;
    unsigned edges = ((unsigned)x / (7 + seed % 5) + (unsigned)y / 9 + (unsigned)channel) % 2 * 90;
    return (uint8_t)(smooth % 150 + edges);
}

#if defined(CHORALE_JPEG)

#include <jpeglib.h>

uint8_t *picture_jpeg(const struct picture *picture, size_t *length)
{
    struct jpeg_compress_struct library;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long size = 0;
    const int channels = picture->grey ? 1 : 3;
    library.err = jpeg_std_error(&errors);
    jpeg_create_compress(&library);
    jpeg_mem_dest(&library, &bytes, &size);
    library.image_width = (JDIMENSION)picture->width;
    library.image_height = (JDIMENSION)picture->height;
    library.input_components = channels;
    library.in_color_space = picture->grey ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&library);
    jpeg_set_quality(&library, picture->quality > 0 ? picture->quality : 80, TRUE);
    if (!picture->grey && picture->across > 0) {
        library.comp_info[0].h_samp_factor = picture->across;
        library.comp_info[0].v_samp_factor = picture->down;
    }
    if (picture->progressive)
        jpeg_simple_progression(&library);
    jpeg_start_compress(&library, TRUE);
    unsigned char *row = malloc((size_t)picture->width * (size_t)channels);
    if (row == NULL)
        abort();
    for (int y = 0; y < picture->height; y++) {
        for (int x = 0; x < picture->width; x++)
            for (int c = 0; c < channels; c++)
                row[x * channels + c] = picture_value(picture, x, y, c);
        (void)jpeg_write_scanlines(&library, &row, 1);
    }
    jpeg_finish_compress(&library);
    jpeg_destroy_compress(&library);
    free(row);
    *length = size;
    return bytes;
}

#else

uint8_t *picture_jpeg(const struct picture *picture, size_t *length)
{
    (void)picture;
    *length = 0;
    return NULL;
}

#endif
