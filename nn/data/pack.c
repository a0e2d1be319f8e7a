/* pack.c - the reader and the writer of packs. */
#include "nn/data/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/text.h"
#include "nn/data/reader.h"

enum { HEADER = 112, HASHED = 104, PAGE = 4096, LARGEST_SIDE = 4096, MOST_CLASSES = 1000000 };
#define LABEL_BYTES sizeof(uint32_t)
static const char magic[8] = {'c', 'h', 'o', 'r', 'p', 'a', 'c', 'k'};

struct header {
    uint32_t version, height, width, channels, classes;
    uint64_t names_bytes, count[PARTS], labels_at, images_at, length, images_hash, meta_hash;
};

struct pack {
    struct mapped file;
    struct header header;
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
    const uint64_t wide[] = {
        header->names_bytes, header->count[PART_TRAIN], header->count[PART_TEST], 0,
        header->labels_at,   header->images_at,         header->length,           header->images_hash,
        header->meta_hash};
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
        .labels_at = get(bytes + 64, 8),
        .images_at = get(bytes + 72, 8),
        .length = get(bytes + 80, 8),
        .images_hash = get(bytes + 88, 8),
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
    size_t count, labels, images, names = (size_t)header->names_bytes;
    if (!checked_add((size_t)header->count[PART_TRAIN], (size_t)header->count[PART_TEST], &count) ||
        !checked_multiply(count, LABEL_BYTES, &labels) ||
        !checked_multiply(count, (size_t)image_bytes(header), &images) || names > SIZE_MAX / 4 ||
        labels > SIZE_MAX / 4 || images > SIZE_MAX / 4)
        return false;
    header->labels_at = (HEADER + names + LABEL_BYTES - 1) / LABEL_BYTES * LABEL_BYTES;
    header->images_at = (header->labels_at + labels + PAGE - 1) / PAGE * PAGE;
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

static enum status check_header(const char *path, const struct pack *pack)
{
    const uint8_t *bytes = pack->file.data;
    const struct header *header = &pack->header;
    if (get(bytes + HASHED, 8) != hash_bytes(HASH_START, bytes, HASHED))
        return damaged(path, "its header is damaged (the checksum is wrong)");
    if (header->version != 1)
        return damaged(path, "a pack of another version");
    if (header->height < 1 || header->height > LARGEST_SIDE || header->width < 1 || header->width > LARGEST_SIDE ||
        (header->channels != 1 && header->channels != 3) || header->classes < 1 || header->classes > MOST_CLASSES)
        return damaged(path, "images or classes that no pack has");
    struct header wanted = *header;
    if (!lay_out(&wanted) || wanted.labels_at != header->labels_at || wanted.images_at != header->images_at ||
        wanted.length != header->length)
        return damaged(path, "its parts lie in places that they can't");
    if (pack->file.length != header->length)
        return damaged(path, "it is cut short, or something was added");
    if (header->meta_hash != hash_bytes(HASH_START, bytes + HEADER, header->images_at - HEADER))
        return damaged(path, "its names or labels are damaged (the checksum is wrong)");
    return STATUS_OK;
}

static enum status map_pack(const char *path, struct pack *pack)
{
    TRY(file_map(path, &pack->file));
    if (pack->file.length < HEADER || memcmp(pack->file.data, magic, sizeof magic) != 0)
        return damaged(path, "no pack (it does not begin with chorpack)");
    decode(pack->file.data, &pack->header);
    return check_header(path, pack);
}

static enum status read_names(const char *path, struct data_set *set)
{
    const struct pack *pack = set->state;
    const char *name = (const char *)pack->file.data + HEADER, *end = name + pack->header.names_bytes;
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
    TRY(map_pack(path, pack));
    const struct header *header = &pack->header;
    const uint8_t *label = pack->file.data + header->labels_at;
    set->classes = (int)header->classes;
    set->height = (int)header->height;
    set->width = (int)header->width;
    set->channels = (int)header->channels;
    for (int part = 0; part < PARTS; part++) {
        TRY(set_labels(set, part, (size_t)header->count[part]));
        for (size_t i = 0; i < set->count[part]; i++, label += LABEL_BYTES)
            set->label[part][i] = (int32_t)get(label, LABEL_BYTES);
    }
    return read_names(path, set);
}

static void pack_close(struct data_set *set)
{
    struct pack *pack = set->state;
    if (pack != NULL)
        file_unmap(&pack->file);
    free(pack);
}

static enum status pack_pixels(const struct data_set *set, enum part part, size_t index, uint8_t *to)
{
    const struct pack *pack = set->state;
    const size_t bytes = (size_t)image_bytes(&pack->header), before = part == PART_TEST ? set->count[PART_TRAIN] : 0;
    memcpy(to, pack->file.data + pack->header.images_at + (before + index) * bytes, bytes);
    return STATUS_OK;
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
    struct pack pack = {.file = {.data = NULL}};
    enum status status = map_pack(path, &pack);
    if (status >= 0) {
        const struct header *header = &pack.header;
        uint64_t hash = hash_bytes(HASH_START, pack.file.data + header->images_at, header->length - header->images_at);
        if (hash != header->images_hash)
            status = damaged(path, "its images are damaged (the checksum is wrong)");
    }
    file_unmap(&pack.file);
    return status;
}

/* ---- writing ---- */

struct writer {
    const struct data *data;
    struct header header;
    struct bytes labels[PARTS]; /* as they lie in the file */
    struct text names;
    uint8_t *image;
    FILE *file;
    const char *path;
};

static enum status wrote(const struct writer *writer, bool done)
{
    return done ? STATUS_OK : fail(STATUS_IO, "write %s: %s", writer->path, strerror(errno));
}

/* Append a label. */
static enum status keep_label(struct bytes *labels, int32_t label)
{
    size_t length = labels->length;
    TRY(bytes_reserve(labels, length + LABEL_BYTES));
    put(labels->data + length, (uint64_t)(uint32_t)label, LABEL_BYTES);
    return STATUS_OK;
}

/* Images go to the file one after the other, from where they begin if none is left out. */
static enum status write_images(struct writer *writer, size_t *skipped)
{
    struct data_scratch *scratch = NULL;
    struct header *header = &writer->header;
    enum status status = data_scratch_open(writer->data, &scratch);
    header->images_hash = HASH_START;
    for (int part = 0; status >= 0 && part < PARTS; part++) {
        const size_t count = part == PART_TRAIN ? data_train_count(writer->data) : data_test_count(writer->data);
        for (size_t i = 0; status >= 0 && i < count; i++) {
            int32_t label = -1;
            status = data_square(writer->data, scratch, part == PART_TEST, i, writer->image, &label);
            if (status < 0)
                break;
            if (label < 0) {
                ++*skipped;
                continue;
            }
            header->images_hash = hash_bytes(header->images_hash, writer->image, (size_t)image_bytes(header));
            header->count[part]++;
            status = keep_label(&writer->labels[part], label);
            if (status >= 0)
                status = wrote(writer, fwrite(writer->image, (size_t)image_bytes(header), 1, writer->file) == 1);
        }
    }
    data_scratch_close(scratch);
    return status;
}

/* Images that turned out bad made the labels shorter: the others move forward. */
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

/* Header, names and labels, and zeros up to the images. */
static enum status write_meta(struct writer *writer)
{
    struct header *header = &writer->header;
    struct bytes meta = {0};
    enum status status = STATUS_OK;
    TRY_TO(done, bytes_reserve(&meta, (size_t)header->images_at));
    memset(meta.data, 0, meta.length);
    memcpy(meta.data + HEADER, text_string(&writer->names), writer->names.length);
    uint8_t *labels = meta.data + header->labels_at;
    for (int part = 0; part < PARTS; part++) {
        if (writer->labels[part].length > 0)
            memcpy(labels, writer->labels[part].data, writer->labels[part].length);
        labels += writer->labels[part].length;
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
    writer->header = (struct header){.version = 1,
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
static enum status write_all(struct writer *writer, size_t *skipped)
{
    struct header *header = &writer->header;
    header->count[PART_TRAIN] = data_train_count(writer->data);
    header->count[PART_TEST] = data_test_count(writer->data);
    if (!lay_out(header))
        return fail(STATUS_REFUSED, "write %s: more than a file can hold", writer->path);
    const uint64_t images_at = header->images_at;
    header->count[PART_TRAIN] = header->count[PART_TEST] = 0;
    TRY(wrote(writer, fseeko(writer->file, (off_t)images_at, SEEK_SET) == 0));
    TRY(write_images(writer, skipped));
    if (!lay_out(header))
        return fail(STATUS_REFUSED, "write %s: more than a file can hold", writer->path);
    if (header->images_at != images_at)
        TRY(move_images(writer, images_at));
    TRY(write_meta(writer));
    TRY(wrote(writer, fflush(writer->file) == 0 && fsync(fileno(writer->file)) == 0));
    return wrote(writer, ftruncate(fileno(writer->file), (off_t)header->length) == 0);
}

static enum status write_to(struct writer *writer, const char *temporary, size_t *skipped)
{
    writer->file = fopen(temporary, "w+be");
    TRY(wrote(writer, writer->file != NULL));
    enum status status = write_all(writer, skipped);
    if (fclose(writer->file) != 0 && status >= 0)
        status = wrote(writer, false);
    if (status >= 0)
        status = wrote(writer, rename(temporary, writer->path) == 0);
    if (status < 0)
        (void)unlink(temporary);
    return status;
}

enum status pack_write(const struct data *data, const char *path, size_t *skipped)
{
    struct writer writer = {.data = data, .path = path};
    struct text temporary = {0};
    enum status status = STATUS_OK;
    *skipped = 0;
    text_addf(&temporary, "%s.tmp.%ld", path, (long)getpid());
    TRY_TO(done, text_check(&temporary));
    TRY_TO(done, prepare(&writer));
    TRY_TO(done, write_to(&writer, text_string(&temporary), skipped));
done:
    for (int part = 0; part < PARTS; part++)
        free(writer.labels[part].data);
    text_release(&writer.names);
    text_release(&temporary);
    free(writer.image);
    return status;
}
