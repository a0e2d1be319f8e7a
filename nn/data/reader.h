/* reader.h - formats of data sets: one file for each (nn/data/idx.c, ...), one line in the table of reader.c.
 *
 * A reader opens a data set as two parts, training and test, and gives out samples by number. Numbers depend on names and
 * contents only, never on the order in which a folder lists its files. Samples are either stored, pixels of one fixed
 * size, or encoded, the bytes of a JPEG file each.
 */
#ifndef CHORALE_NN_DATA_READER_H
#define CHORALE_NN_DATA_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"
#include "base/text.h"

enum part { PART_TRAIN, PART_TEST, PARTS };

struct bytes {
    uint8_t *data;
    size_t length, capacity;
};

struct data_set;

struct reader {
    const char *name, *summary; /* "tar", "WebDataset: train*.tar, ..." */
    bool photographs;           /* pictures of things: usually augmented, evaluated on the middle */
    bool repeats;               /* all batches are alike in cost and use: one may stand for all    */
    /* Whether `path` looks like one: file names only. */
    bool (*recognises)(const char *path);
    /* Fill in *set, which is zeroed but for `reader`, `size` and `seed`. Errors name the file, what is wrong and the cure.
     * After a failure close() is called, too. */
    enum status (*open)(const char *path, struct data_set *set);
    void (*close)(struct data_set *set);

    /* Both: any thread, several at once; index < count of the part. One of them is NULL. */
    /* Stored: (height, width, channels) bytes. */
    enum status (*pixels)(const struct data_set *set, enum part part, size_t index, uint8_t *to);
    /* Encoded: the file's bytes, into memory that grows and is the caller's. STATUS_IO: gone or unreadable. */
    enum status (*encoded)(const struct data_set *set, enum part part, size_t index, struct bytes *bytes);
    /* Of encoded ones: a file's bytes, told without reading it. NULL: nobody knows. */
    uint64_t (*length)(const struct data_set *set, enum part part, size_t index);
    /* What people call the sample: a path, a file and an offset. */
    void (*name_of)(const struct data_set *set, enum part part, size_t index, struct text *text);
};

struct data_set {
    const struct reader *reader;
    int size;      /* pixels that images will have: of synthetic ones */
    uint64_t seed; /* of synthetic ones                               */
    void *state;   /* the reader's                                    */
    size_t count[PARTS];
    int32_t *label[PARTS]; /* (count), 0 .. classes-1; released by whoever opened */
    int classes;
    char **class_name;           /* (classes), or NULL: the format has no names; released likewise */
    int height, width, channels; /* of stored samples; 0: encoded. channels 1 or 3                  */
    struct text notes;           /* what is odd, but no error: "2 empty class folders: ..."; released likewise */
};

extern const struct reader *const readers[]; /* ended by NULL, in the order in which they are asked */

/* KIND:PATH, PATH, or synthetic: the reader and the path within `words`. STATUS_IO when nothing there is known,
 * STATUS_USAGE without a path. */
enum status reader_choose(const char *words, const struct reader **reader, const char **path) MUST_CHECK;

/* ---- for readers ---- */

#define DATA_CURE "apt-get install dataset-fashion-mnist, or --data=FOLDER"

/* Labels of one part, zeroed. */
enum status set_labels(struct data_set *set, enum part part, size_t count) MUST_CHECK;
/* Names from a file, one a line; its lines are the classes. */
enum status set_class_names(struct data_set *set, const char *path) MUST_CHECK;
/* The entries of a folder whose names don't begin with a dot, sorted by name; an array of strings. `want` may be NULL. */
enum status folder_names(const char *path, bool (*want)(const char *name), char ***names, size_t *count) MUST_CHECK;
void names_release(char **names, size_t count);
/* FOLDER/NAME. */
enum status path_join(char **path, const char *folder, const char *name) MUST_CHECK;
bool path_has(const char *folder, const char *name); /* there is such a file or folder */
bool is_folder(const char *path);
bool ends_with(const char *name, const char *ending); /* without regard to case */

/* A regular file, open for reading at any place. It is not mapped: one that is cut while a run reads it would end the
 * process (SIGBUS), and so would a disk that fails. */
struct data_file {
    char *path;
    int fd;
    uint64_t length; /* when it was opened; 0: it is not open */
    struct timespec changed;
};
enum status data_file_open(const char *path, struct data_file *file) MUST_CHECK; /* an empty one is refused */
void data_file_close(struct data_file *file);                                    /* accepts a zeroed one */
/* STATUS_IO also where the file is not what it was when it was opened, by its length and time of change: its labels and
 * places were read then. Any thread. */
enum status data_file_read(const struct data_file *file, uint64_t offset, void *to, size_t length) MUST_CHECK;

/* pread until `length` bytes are there; STATUS_FORMAT when the file ends before. */
enum status file_pread(int fd, const char *path, uint64_t offset, void *to, size_t length) MUST_CHECK;
enum status bytes_reserve(struct bytes *bytes, size_t length) MUST_CHECK; /* sets length; contents undefined */

#endif
