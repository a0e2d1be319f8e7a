/* pack.c - the reader and the writer of packs. */
#include "nn/data/pack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "nn/data/reader.h"

enum { VERSION = 2, HEADER = 112, HASHED = 104, PAGE = 4096, LARGEST_SIDE = 4096, MOST_CLASSES = 1000000 };
#define LABEL_BYTES sizeof(uint32_t)
#define HASH_BYTES sizeof(uint64_t)
static const char magic[8] = {'c', 'h', 'o', 'r', 'p', 'a', 'c', 'k'};

struct header {
    uint32_t version, height, width, channels, classes;
    uint64_t names_bytes, count[PARTS], left_out, labels_at, images_at, length, hashes_at, meta_hash;
};

struct pack {
    struct data_file file;
    struct header header;
    uint8_t *meta; /* what lies before the images, as in the file */
};

/* ---- numbers ---- */

static uint64_t get(const uint8_t *from, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;)
        value = value << 8 | from[i];
    return value;
}

static void put(uint8_t *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, value >>= 8)
        to[i] = (uint8_t)value;
}

static void encode(const struct header *header, uint8_t bytes[HEADER])
{
    memset(bytes, 0, HEADER);
    memcpy(bytes, magic, sizeof magic);
    const uint32_t narrow[] = {header->version, header->height, header->width, header->channels, header->classes};
    const uint64_t wide[] = {header->names_bytes, header->count[PART_TRAIN], header->count[PART_TEST],
                             header->left_out,    header->labels_at,         header->images_at,
                             header->length,      header->hashes_at,         header->meta_hash};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++)
        put(bytes + 8 + 4 * i, narrow[i], 4);
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        put(bytes + 32 + 8 * i, wide[i], 8);
    put(bytes + HASHED, hash_bytes(HASH_START, bytes, HASHED), 8);
}

static void decode(const uint8_t bytes[HEADER], struct header *header)
{
    *header = (struct header){
        .version = (uint32_t)get(bytes + 8, 4),
        .height = (uint32_t)get(bytes + 12, 4),
        .width = (uint32_t)get(bytes + 16, 4),
        .channels = (uint32_t)get(bytes + 20, 4),
        .classes = (uint32_t)get(bytes + 24, 4),
        .names_bytes = get(bytes + 32, 8),
        .count = {get(bytes + 40, 8), get(bytes + 48, 8)},
        .left_out = get(bytes + 56, 8),
        .labels_at = get(bytes + 64, 8),
        .images_at = get(bytes + 72, 8),
        .length = get(bytes + 80, 8),
        .hashes_at = get(bytes + 88, 8),
        .meta_hash = get(bytes + 96, 8),
    };
}

static uint64_t image_bytes(const struct header *header)
{
    return (uint64_t)header->height * header->width * header->channels;
}

/* Where everything lies, from the numbers before it. False: too much for a file. */
static bool lay_out(struct header *header)
{
    size_t count, labels, hashes, images, names = (size_t)header->names_bytes;
    if (!checked_add((size_t)header->count[PART_TRAIN], (size_t)header->count[PART_TEST], &count) ||
        !checked_multiply(count, LABEL_BYTES, &labels) || !checked_multiply(count, HASH_BYTES, &hashes) ||
        !checked_multiply(count, (size_t)image_bytes(header), &images) || names > SIZE_MAX / 8 ||
        hashes > SIZE_MAX / 8 || images > SIZE_MAX / 4)
        return false;
    header->labels_at = (HEADER + names + LABEL_BYTES - 1) / LABEL_BYTES * LABEL_BYTES;
    header->hashes_at = (header->labels_at + labels + HASH_BYTES - 1) / HASH_BYTES * HASH_BYTES;
    header->images_at = (header->hashes_at + hashes + PAGE - 1) / PAGE * PAGE;
    header->length = header->images_at + images;
    return true;
}

/* ---- reading ---- */

static bool recognises(const char *path)
{
    return ends_with(path, ".pack") && file_exists(path) && !is_folder(path);
}

static enum status damaged(const char *path, const char *what)
{
    return fail(STATUS_FORMAT, "data %s: %s: make it anew with chorale data pack", path, what);
}

/* What other versions put where is not ours to know: of theirs only the number is read. */
static enum status check_version(const char *path, uint32_t version)
{
    enum { MOST = 99 }; /* above it is damage */
    if (version == VERSION || version == 0 || version > MOST)
        return STATUS_OK;
    return fail(STATUS_FORMAT,
                "data %s: written by %s chorale (version %u, this one reads %d): make it anew with chorale data pack",
                path, version < VERSION ? "an older" : "a newer", (unsigned)version, VERSION);
}

static enum status check_header(const char *path, const struct pack *pack, const uint8_t bytes[HEADER])
{
    const struct header *header = &pack->header;
    TRY(check_version(path, header->version));
    if (get(bytes + HASHED, 8) != hash_bytes(HASH_START, bytes, HASHED))
        return damaged(path, "its header is damaged (the checksum is wrong)");
    if (header->height < 1 || header->height > LARGEST_SIDE || header->width < 1 || header->width > LARGEST_SIDE ||
        (header->channels != 1 && header->channels != 3) || header->classes < 1 || header->classes > MOST_CLASSES)
        return damaged(path, "images or classes that no pack has");
    struct header wanted = *header;
    if (!lay_out(&wanted) || wanted.labels_at != header->labels_at || wanted.hashes_at != header->hashes_at ||
        wanted.images_at != header->images_at || wanted.length != header->length)
        return damaged(path, "its parts lie in places that they can't");
    if (pack->file.length != header->length)
        return damaged(path, "it is cut short, or something was added");
    return STATUS_OK;
}

/* Names, labels and checksums; where they lie is known to be within the file. */
static enum status read_meta(const char *path, struct pack *pack)
{
    const struct header *header = &pack->header;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)header->images_at, 1));
    pack->meta = memory;
    TRY(data_file_read(&pack->file, 0, pack->meta, (size_t)header->images_at));
    if (header->meta_hash != hash_bytes(HASH_START, pack->meta + HEADER, header->images_at - HEADER))
        return damaged(path, "its names, labels or the images' checksums are damaged (the checksum is wrong)");
    return STATUS_OK;
}

/* After a failure, too, it is for close_pack(). */
static enum status open_pack(const char *path, struct pack *pack)
{
    uint8_t bytes[HEADER] = {0};
    TRY(data_file_open(path, &pack->file));
    if (pack->file.length >= HEADER)
        TRY(data_file_read(&pack->file, 0, bytes, sizeof bytes));
    if (memcmp(bytes, magic, sizeof magic) != 0)
        return damaged(path, "no pack (it does not begin with chorpack)");
    decode(bytes, &pack->header);
    TRY(check_header(path, pack, bytes));
    return read_meta(path, pack);
}

static void close_pack(struct pack *pack)
{
    data_file_close(&pack->file);
    free(pack->meta);
}

static enum status read_names(const char *path, struct data_set *set)
{
    const struct pack *pack = set->state;
    const char *name = (const char *)pack->meta + HEADER, *end = name + pack->header.names_bytes;
    void *names = NULL;
    if (name == end)
        return STATUS_OK;
    TRY(memory_zeroed(&names, (size_t)set->classes, sizeof(char *)));
    set->class_name = names;
    for (int c = 0; c < set->classes; c++) {
        const char *stop = name < end ? memchr(name, '\0', (size_t)(end - name)) : NULL;
        if (stop == NULL)
            return damaged(path, "fewer class names than classes");
        TRY(memory_string(&set->class_name[c], name));
        name = stop + 1;
    }
    return STATUS_OK;
}

static enum status pack_open(const char *path, struct data_set *set)
{
    TRY(memory_zeroed(&set->state, 1, sizeof(struct pack)));
    struct pack *pack = set->state;
    TRY(open_pack(path, pack));
    const struct header *header = &pack->header;
    const uint8_t *label = pack->meta + header->labels_at;
    set->classes = (int)header->classes;
    set->height = (int)header->height;
    set->width = (int)header->width;
    set->channels = (int)header->channels;
    for (int part = 0; part < PARTS; part++) {
        TRY(set_labels(set, part, (size_t)header->count[part]));
        for (size_t i = 0; i < set->count[part]; i++, label += LABEL_BYTES)
            set->label[part][i] = (int32_t)get(label, LABEL_BYTES);
    }
    if (header->left_out > 0)
        text_addf(&set->notes, "%llu image%s that could not be decoded left out when it was made",
                  (unsigned long long)header->left_out, plural((size_t)header->left_out));
    return read_names(path, set);
}

static void pack_close(struct data_set *set)
{
    struct pack *pack = set->state;
    if (pack == NULL)
        return;
    close_pack(pack);
    free(pack);
}

/* Image `number`, training first. */
static enum status read_image(const struct pack *pack, uint64_t number, uint8_t *image)
{
    const struct header *header = &pack->header;
    const uint64_t bytes = image_bytes(header);
    const uint64_t wanted = get(pack->meta + header->hashes_at + number * HASH_BYTES, HASH_BYTES);
    TRY(data_file_read(&pack->file, header->images_at + number * bytes, image, (size_t)bytes));
    if (hash_quick(image, (size_t)bytes) == wanted)
        return STATUS_OK;
    const bool train = number < header->count[PART_TRAIN];
    return fail(STATUS_FORMAT,
                "data %s: %s image %llu is damaged (the checksum is wrong): make it anew with chorale data pack",
                pack->file.path, train ? "training" : "test",
                (unsigned long long)(train ? number : number - header->count[PART_TRAIN]));
}

/* Damage is noticed when the image is read: all of a large file at the start would be minutes, one image while it is in the
 * cache is next to nothing. */
static enum status pack_pixels(const struct data_set *set, enum part part, size_t index, uint8_t *to)
{
    const struct pack *pack = set->state;
    return read_image(pack, index + (part == PART_TEST ? set->count[PART_TRAIN] : 0), to);
}

static void pack_name(const struct data_set *set, enum part part, size_t index, struct text *text)
{
    (void)set;
    text_addf(text, "%s image %zu", part == PART_TRAIN ? "training" : "test", index);
}

extern const struct reader reader_pack;
const struct reader reader_pack = {
    .name = "pack",
    .summary = "FILE.pack of chorale data pack",
    .photographs = true,
    .recognises = recognises,
    .open = pack_open,
    .close = pack_close,
    .pixels = pack_pixels,
    .name_of = pack_name,
};

enum status pack_check(const char *path)
{
    struct pack pack = {.meta = NULL};
    void *image = NULL;
    enum status status = open_pack(path, &pack);
    const struct header *header = &pack.header;
    const uint64_t count = header->count[PART_TRAIN] + header->count[PART_TEST];
    if (status >= 0)
        status = memory_zeroed(&image, (size_t)image_bytes(header), 1);
    for (uint64_t i = 0; status >= 0 && i < count; i++)
        status = read_image(&pack, i, image);
    free(image);
    close_pack(&pack);
    return status;
}

/* ---- writing ---- */

struct writer {
    const struct data *data;
    struct header header;
    struct bytes labels[PARTS], hashes[PARTS]; /* as they lie in the file */
    struct text names;
    uint8_t *image;
    FILE *file;
    const char *path;
};

static enum status wrote(const struct writer *writer, bool done)
{
    return done ? STATUS_OK : fail(STATUS_IO, "write %s: %s", writer->path, strerror(errno));
}

static enum status append(struct bytes *numbers, uint64_t number, size_t width)
{
    size_t length = numbers->length;
    TRY(bytes_reserve(numbers, length + width));
    put(numbers->data + length, number, width);
    return STATUS_OK;
}

/* Images go to the file one after the other, from where they begin if none is left out. */
static enum status write_images(struct writer *writer, struct pack_written *written)
{
    struct data_scratch *scratch = NULL;
    struct header *header = &writer->header;
    enum status status = data_scratch_open(writer->data, &scratch);
    for (int part = 0; status >= 0 && part < PARTS; part++) {
        const size_t count = part == PART_TRAIN ? data_train_count(writer->data) : data_test_count(writer->data);
        for (size_t i = 0; status >= 0 && i < count; i++) {
            int32_t label = -1;
            status = data_square(writer->data, scratch, part == PART_TEST, i, writer->image, &label);
            if (status < 0)
                break;
            if (label < 0) {
                header->left_out++;
                continue;
            }
            header->count[part]++;
            status = append(&writer->labels[part], (uint32_t)label, LABEL_BYTES);
            if (status >= 0)
                status =
                    append(&writer->hashes[part], hash_quick(writer->image, (size_t)image_bytes(header)), HASH_BYTES);
            if (status >= 0)
                status = wrote(writer, fwrite(writer->image, (size_t)image_bytes(header), 1, writer->file) == 1);
        }
    }
    data_scratch_close(scratch);
    *written = (struct pack_written){.train = (size_t)header->count[PART_TRAIN],
                                     .test = (size_t)header->count[PART_TEST],
                                     .left_out = (size_t)header->left_out};
    return status;
}

/* Images that turned out bad made labels and checksums fewer: the others move forward. */
static enum status move_images(struct writer *writer, uint64_t from)
{
    const size_t bytes = (size_t)image_bytes(&writer->header);
    uint64_t to = writer->header.images_at;
    TRY(wrote(writer, fflush(writer->file) == 0));
    for (; to < writer->header.length; to += bytes, from += bytes) {
        TRY(file_pread(fileno(writer->file), writer->path, from, writer->image, bytes));
        TRY(wrote(writer, pwrite(fileno(writer->file), writer->image, bytes, (off_t)to) == (ssize_t)bytes));
    }
    return STATUS_OK;
}

/* Returns where the next go. */
static uint8_t *place(uint8_t *to, const struct bytes *bytes)
{
    if (bytes->length > 0)
        memcpy(to, bytes->data, bytes->length);
    return to + bytes->length;
}

/* Header, names, labels and checksums, and zeros up to the images. */
static enum status write_meta(struct writer *writer)
{
    struct header *header = &writer->header;
    struct bytes meta = {0};
    enum status status = STATUS_OK;
    TRY_TO(done, bytes_reserve(&meta, (size_t)header->images_at));
    memset(meta.data, 0, meta.length);
    memcpy(meta.data + HEADER, text_string(&writer->names), writer->names.length);
    uint8_t *labels = meta.data + header->labels_at, *hashes = meta.data + header->hashes_at;
    for (int part = 0; part < PARTS; part++) {
        labels = place(labels, &writer->labels[part]);
        hashes = place(hashes, &writer->hashes[part]);
    }
    header->meta_hash = hash_bytes(HASH_START, meta.data + HEADER, meta.length - HEADER);
    encode(header, meta.data);
    TRY_TO(done, wrote(writer, fseeko(writer->file, 0, SEEK_SET) == 0));
    TRY_TO(done, wrote(writer, fwrite(meta.data, meta.length, 1, writer->file) == 1));
done:
    free(meta.data);
    return status;
}

static enum status prepare(struct writer *writer)
{
    struct stored_images form;
    struct data_facts facts;
    void *image = NULL;
    data_form(writer->data, &form);
    data_facts(writer->data, &facts);
    writer->header = (struct header){.version = VERSION,
                                     .height = (uint32_t)form.height,
                                     .width = (uint32_t)form.width,
                                     .channels = (uint32_t)form.channels,
                                     .classes = (uint32_t)data_classes(writer->data)};
    for (int c = 0; facts.class_name != NULL && c < data_classes(writer->data); c++)
        text_add_bytes(&writer->names, facts.class_name[c], strlen(facts.class_name[c]) + 1);
    TRY(text_check(&writer->names));
    writer->header.names_bytes = writer->names.length;
    TRY(memory_zeroed(&image, (size_t)image_bytes(&writer->header), 1));
    writer->image = image;
    return STATUS_OK;
}

/* Where images begin depends on how many there are: at first, none is taken for bad. */
static enum status write_all(struct writer *writer, struct pack_written *written)
{
    struct header *header = &writer->header;
    header->count[PART_TRAIN] = data_train_count(writer->data);
    header->count[PART_TEST] = data_test_count(writer->data);
    if (!lay_out(header))
        return fail(STATUS_REFUSED, "write %s: more than a file can hold", writer->path);
    const uint64_t images_at = header->images_at;
    header->count[PART_TRAIN] = header->count[PART_TEST] = 0;
    TRY(wrote(writer, fseeko(writer->file, (off_t)images_at, SEEK_SET) == 0));
    TRY(write_images(writer, written));
    if (!lay_out(header))
        return fail(STATUS_REFUSED, "write %s: more than a file can hold", writer->path);
    if (header->images_at != images_at)
        TRY(move_images(writer, images_at));
    TRY(write_meta(writer));
    TRY(wrote(writer, fflush(writer->file) == 0));
    return wrote(writer, ftruncate(fileno(writer->file), (off_t)header->length) == 0);
}

/* All but what makes the file one. */
static enum status write_stream(struct writer *writer, int fd, struct pack_written *written)
{
    const int stream = dup(fd);
    writer->file = stream >= 0 ? fdopen(stream, "w+b") : NULL;
    if (writer->file == NULL) {
        const enum status status = wrote(writer, false);
        if (stream >= 0)
            (void)close(stream);
        return status;
    }
    enum status status = write_all(writer, written);
    if (fclose(writer->file) != 0 && status >= 0)
        status = wrote(writer, false);
    return status;
}

enum status pack_write(const struct data *data, const char *path, struct pack_written *written)
{
    struct writer writer = {.data = data, .path = path};
    struct file_writer *file = NULL;
    enum status status = STATUS_OK;
    *written = (struct pack_written){.train = 0};
    TRY_TO(done, prepare(&writer));
    TRY_TO(done, file_begin(path, &file));
    status = write_stream(&writer, file_descriptor(file), written);
    if (status >= 0)
        status = file_commit(file);
    else
        file_abandon(file);
done:
    for (int part = 0; part < PARTS; part++) {
        free(writer.labels[part].data);
        free(writer.hashes[part].data);
    }
    text_release(&writer.names);
    free(writer.image);
    return status;
}
