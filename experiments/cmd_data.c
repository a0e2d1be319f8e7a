/* cmd_data.c - chorale data: index, pack and inspect data sets. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/host.h"
#include "experiments/program.h"
#include "nn/checkpoint.h"
#include "nn/data.h"
#include "nn/data/loader.h"
#include "nn/data/pack.h"
#include "nn/data/reader.h"
#include "nn/data/tar_index.h"

static const char head[] =
    "usage: chorale data inspect DATA [--decode]       counts, classes, sizes, bad images; how quickly it is decoded\n"
    "       chorale data inspect CHECKPOINT            what a kept run holds, as JSON; its checksums are compared\n"
    "       chorale data pack DATA --out=FILE.pack     its images in one file of plain pixels of one size\n"
    "       chorale data index FOLDER|FILE.tar ...     where the samples of tar files lie, kept beside them\n"
    "DATA is what --data= of chorale train takes: PATH, its format found out, or FORMAT:PATH.\n"
    "JPEG files of any colours are converted; those that can't be decoded are bad: inspect names them, training counts "
    "and\n"
    "replaces them, evaluation and packs leave them out.\n";

enum { PACK_SIZE = 256, DECODE_SIZE = 224, DECODE_IMAGES = 2000, BATCH = 64, MOST_NAMED = 20 };

static const struct option options_table[] = {
    {.key = "out", .type = OPTION_STRING, .help = "pack: the file, named .pack"},
    {.key = "image-size",
     .type = OPTION_INT,
     .unit = "pixels",
     .min = 8,
     .max = 1024,
     .help = "pack: of JPEG files, the middle square (default 256); inspect --decode: what is made (default 224)"},
    {.key = "images",
     .type = OPTION_INT,
     .min = 1,
     .max = 1e12,
     .help = "inspect: look at this many of each part, evenly spread (default all); --decode: at most (default 2000)"},
    {.key = "decode", .type = OPTION_FLAG, .help = "inspect: decode whole images, and time training's decoding"},
    {.key = "loaders",
     .type = OPTION_INT,
     .unit = "threads",
     .min = 1,
     .max = 1024,
     .help = "inspect --decode: this many threads (default 1, 2, 4, ... cores)"},
    {.key = "seed",
     .type = OPTION_INT,
     .default_text = "1",
     .min = 0,
     .max = 9e15,
     .help = "inspect --decode: of crops; pack: of synthetic images"},
    {.key = "json", .type = OPTION_FLAG, .help = "inspect: one JSON document on stdout"},
    {.key = NULL},
};

static enum status open_data(const struct option_values *options, const char *path, int size, struct data **data)
{
    const struct data_request request = {
        .path = path,
        .image_size = option_given(options, "image-size") ? (int)option_int(options, "image-size") : size,
        .seed = (uint64_t)option_int(options, "seed"),
    };
    return data_open(&request, data);
}

/* Of the options that an action has, `keys`, no other is given. */
static enum status only(const struct option_values *options, const char *action, const char *keys)
{
    for (const struct option *option = options_table; option->key != NULL; option++) {
        char word[32];
        (void)snprintf(word, sizeof word, " %s ", option->key);
        if (option_given(options, option->key) && strstr(keys, word) == NULL)
            return fail(STATUS_USAGE, "--%s: data %s has no use for it: leave it out: chorale data --help", option->key,
                        action);
    }
    return STATUS_OK;
}

/* ---- index ---- */

static enum status index_file(const char *tar)
{
    struct tar_index index;
    bool scanned = false, stored = false;
    TRY(tar_index_open(tar, &index, &scanned, &stored));
    printf("%s: %zu samples, %zu left out, index %s\n", tar, index.count, index.left_out,
           !scanned ? "is up to date"
           : stored ? "written"
                    : "not written");
    tar_index_release(&index);
    return stored ? STATUS_OK : fail_context(STATUS_IO, "data %s.index", tar);
}

static bool is_tar(const char *name)
{
    return ends_with(name, ".tar");
}

static enum status index_folder(const char *folder)
{
    char **names = NULL;
    size_t count = 0;
    TRY(folder_names(folder, is_tar, &names, &count));
    enum status status = count > 0 ? STATUS_OK : fail(STATUS_USAGE, "data %s: no tar files in it", folder);
    for (size_t i = 0; status >= 0 && i < count; i++) {
        char *path = NULL;
        status = path_join(&path, folder, names[i]);
        if (status >= 0)
            status = index_file(path);
        free(path);
    }
    names_release(names, count);
    return status;
}

static enum status run_index(const struct option_values *options, char **paths, size_t count)
{
    TRY(only(options, "index", " "));
    for (size_t i = 0; i < count; i++)
        TRY(is_folder(paths[i]) ? index_folder(paths[i]) : index_file(paths[i]));
    return STATUS_OK;
}

/* ---- pack ---- */

static enum status run_pack(const struct option_values *options, char **paths, size_t count)
{
    struct data *data = NULL;
    struct stored_images form;
    struct pack_written written = {.train = 0};
    const char *out = option_text(options, "out");
    TRY(only(options, "pack", " out image-size seed "));
    if (count != 1)
        return fail(STATUS_USAGE, "data pack: one data set, please: chorale data --help");
    if (out == NULL || !ends_with(out, ".pack"))
        return fail(STATUS_USAGE, "data pack: --out=FILE.pack is missing: packs are known by that ending");
    TRY(open_data(options, paths[0], PACK_SIZE, &data));
    data_form(data, &form);
    enum status status = pack_write(data, out, &written);
    if (status >= 0)
        printf("%s: %zu + %zu images of %d x %d x %d bytes in %d classes, %zu of %zu left out (can't be decoded)\n",
               out, written.train, written.test, form.height, form.width, form.channels, data_classes(data),
               written.left_out, data_train_count(data) + data_test_count(data));
    data_close(data);
    return status;
}

/* ---- inspect: what is there ---- */

struct bad_image {
    char *name, *why;
};

struct inspection {
    const struct option_values *options;
    const char *words;
    struct data *data;
    struct data_facts facts;
    size_t *of_class[2]; /* images of the training and the test set */
    size_t looked, bad;
    int width[2], height[2]; /* least, most */
    struct bad_image named[MOST_NAMED];
    json_t *rates;
};

static size_t count_of(const struct inspection *inspection, bool test)
{
    return test ? data_test_count(inspection->data) : data_train_count(inspection->data);
}

static enum status count_classes(struct inspection *inspection)
{
    for (int test = 0; test < 2; test++) {
        void *counts = NULL;
        TRY(memory_zeroed(&counts, (size_t)data_classes(inspection->data), sizeof(size_t)));
        inspection->of_class[test] = counts;
        for (size_t i = 0; i < count_of(inspection, test != 0); i++)
            inspection->of_class[test][data_label(inspection->data, test != 0, i)]++;
    }
    return STATUS_OK;
}

static void widen(int range[2], int value)
{
    if (range[0] == 0 || value < range[0])
        range[0] = value;
    if (value > range[1])
        range[1] = value;
}

static enum status name_bad(struct inspection *inspection, bool test, size_t index)
{
    struct text name = {0};
    size_t number = inspection->bad++;
    if (number >= MOST_NAMED)
        return STATUS_OK;
    struct bad_image *bad = &inspection->named[number];
    TRY(memory_string(&bad->why, status_message()));
    data_name(inspection->data, test, index, &name);
    enum status status = text_check(&name);
    if (status >= 0)
        status = memory_string(&bad->name, text_string(&name));
    text_release(&name);
    return status;
}

/* Images of one part, all or some evenly spread. */
static enum status look(struct inspection *inspection, bool test)
{
    const struct option_values *options = inspection->options;
    const size_t count = count_of(inspection, test);
    size_t wanted = option_given(options, "images") ? (size_t)option_int(options, "images") : count;
    struct data_scratch *scratch = NULL;
    enum status status = data_scratch_open(inspection->data, &scratch);
    wanted = wanted < count ? wanted : count;
    for (size_t k = 0; status >= 0 && k < wanted; k++) {
        const size_t index = (size_t)((double)k / (double)wanted * (double)count);
        int width = 0, height = 0;
        status = data_look(inspection->data, scratch, test, index, option_flag(options, "decode"), &width, &height);
        inspection->looked++;
        if (status == STATUS_FORMAT) {
            status = name_bad(inspection, test, index);
        } else if (status >= 0) {
            widen(inspection->width, width);
            widen(inspection->height, height);
        }
    }
    data_scratch_close(scratch);
    return status;
}

/* ---- inspect: how quickly it is decoded ---- */

static enum status time_loaders(const struct inspection *inspection, int threads, double *rate)
{
    const struct option_values *options = inspection->options;
    const size_t samples = data_train_count(inspection->data);
    size_t images = option_given(options, "images") ? (size_t)option_int(options, "images") : DECODE_IMAGES;
    images = images < samples ? images : samples;
    const int batch = images < BATCH ? (int)images : BATCH;
    const struct data_order order = {
        .seed = (uint64_t)option_int(options, "seed"), .samples = samples, .workers = 1, .batch = batch};
    const struct loader_request request = {.data = inspection->data,
                                           .batch = batch,
                                           .batches = images / (size_t)batch,
                                           .order = &order,
                                           .stored = true,
                                           .threads = threads,
                                           .ahead = 2,
                                           .held = 1};
    struct loader *loader = NULL;
    const struct batch *made = NULL;
    const uint64_t before = clock_ns();
    enum status status = loader_open(&request, &loader);
    for (uint64_t b = 0; status >= 0 && b < request.batches; b++) {
        status = loader_next(loader, &made);
        if (status >= 0)
            loader_done(loader);
    }
    loader_close(loader);
    *rate = (double)request.batches * batch / ((double)(clock_ns() - before) * 1e-9);
    return status;
}

static enum status measure(struct inspection *inspection)
{
    const struct option_values *options = inspection->options;
    const int cores = host_cores();
    const bool given = option_given(options, "loaders");
    int threads = given ? (int)option_int(options, "loaders") : 1;
    inspection->rates = json_array();
    for (;;) {
        double rate = 0;
        TRY(time_loaders(inspection, threads, &rate));
        if (json_array_append_new(inspection->rates,
                                  json_pack("{si so}", "loaders", threads, "images_per_s", json_number(rate))) != 0)
            return fail(STATUS_NO_MEMORY, "out of memory: the rates");
        if (given || threads == cores)
            return STATUS_OK;
        threads = 2 * threads < cores ? 2 * threads : cores;
    }
}

/* ---- inspect: what the user sees ---- */

/* A name in one line, whatever characters it has. */
static void say_name(const char *name)
{
    for (const char *at = name; *at != '\0'; at++)
        (void)putchar((unsigned char)*at < ' ' || *at == 127 ? '?' : *at);
}

static void say_class(const struct inspection *inspection, int c)
{
    printf("  %d ", c);
    say_name(inspection->facts.class_name != NULL ? inspection->facts.class_name[c] : "");
    printf(": %zu + %zu\n", inspection->of_class[0][c], inspection->of_class[1][c]);
}

static void say_classes(const struct inspection *inspection)
{
    const int classes = data_classes(inspection->data);
    printf("classes, with training and test images (hash %016llx):\n",
           (unsigned long long)inspection->facts.class_hash);
    if (classes <= MOST_NAMED) {
        for (int c = 0; c < classes; c++)
            say_class(inspection, c);
        return;
    }
    int least = 0, most = 0;
    for (int c = 1; c < classes; c++) {
        least = inspection->of_class[0][c] < inspection->of_class[0][least] ? c : least;
        most = inspection->of_class[0][c] > inspection->of_class[0][most] ? c : most;
    }
    say_class(inspection, least);
    printf("  ...\n");
    say_class(inspection, most);
}

static void say(const struct inspection *inspection)
{
    const struct data_facts *facts = &inspection->facts;
    printf("%s %s: %zu + %zu images in %d classes%s%s\n", facts->format, facts->path,
           data_train_count(inspection->data), data_test_count(inspection->data), data_classes(inspection->data),
           facts->notes[0] != '\0' ? "; " : "", facts->notes);
    say_classes(inspection);
    printf("looked at %zu: widths %d to %d, heights %d to %d pixels; %zu bad\n", inspection->looked,
           inspection->width[0], inspection->width[1], inspection->height[0], inspection->height[1], inspection->bad);
    for (size_t i = 0; i < inspection->bad && i < MOST_NAMED; i++) {
        printf("  ");
        say_name(inspection->named[i].name);
        printf(": %s\n", inspection->named[i].why);
    }
    if (inspection->bad > MOST_NAMED)
        printf("  ...\n");
    if (inspection->rates == NULL)
        return;
    printf("decoding to %d x %d, augmentation %s, measured:\n%8s %12s\n", data_size(inspection->data),
           data_size(inspection->data), facts->augment, "loaders", "images/s");
    for (size_t i = 0; i < json_array_size(inspection->rates); i++) {
        const json_t *row = json_array_get(inspection->rates, i);
        printf("%8d %12.1f\n", (int)json_integer_value(json_object_get(row, "loaders")),
               json_number_value(json_object_get(row, "images_per_s")));
    }
}

static json_t *counts_json(const size_t *counts, int classes)
{
    json_t *array = json_array();
    for (int c = 0; c < classes; c++)
        (void)json_array_append_new(array, json_integer((json_int_t)counts[c]));
    return array;
}

static json_t *bad_json(const struct inspection *inspection)
{
    json_t *array = json_array();
    for (size_t i = 0; i < inspection->bad && i < MOST_NAMED; i++)
        (void)json_array_append_new(array, json_pack("{so so}", "name", json_name(inspection->named[i].name), "why",
                                                     json_name(inspection->named[i].why)));
    return array;
}

static json_t *names_json(const struct inspection *inspection)
{
    char *const *names = inspection->facts.class_name;
    if (names == NULL)
        return json_null();
    json_t *array = json_array();
    for (int c = 0; c < data_classes(inspection->data); c++)
        (void)json_array_append_new(array, json_name(names[c]));
    return array;
}

static enum status print_json(const struct inspection *inspection)
{
    const struct data_facts *facts = &inspection->facts;
    const int classes = data_classes(inspection->data);
    char hash[17];
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)facts->class_hash);
    json_t *document = json_pack(
        "{ss so so sI sI si so ss so so sI sI so s[ii] s[ii] sO?}", "format", facts->format, "path",
        json_name(facts->path), "notes", json_name(facts->notes), "train_images",
        (json_int_t)data_train_count(inspection->data), "test_images", (json_int_t)data_test_count(inspection->data),
        "classes", classes, "class_names", names_json(inspection), "class_hash", hash, "train_images_of_class",
        counts_json(inspection->of_class[0], classes), "test_images_of_class",
        counts_json(inspection->of_class[1], classes), "looked_at", (json_int_t)inspection->looked, "bad_images",
        (json_int_t)inspection->bad, "bad", bad_json(inspection), "width", inspection->width[0], inspection->width[1],
        "height", inspection->height[0], inspection->height[1], "decode", inspection->rates);
    if (document == NULL)
        return fail(STATUS_NO_MEMORY, "out of memory: the document");
    enum status status = json_print(stdout, document);
    json_decref(document);
    return status;
}

static enum status inspect(struct inspection *inspection)
{
    const struct option_values *options = inspection->options;
    TRY(open_data(options, inspection->words, DECODE_SIZE, &inspection->data));
    data_facts(inspection->data, &inspection->facts);
    if (strcmp(inspection->facts.format, "pack") == 0)
        TRY(pack_check(inspection->facts.path));
    TRY(count_classes(inspection));
    TRY(look(inspection, false));
    TRY(look(inspection, true));
    if (option_flag(options, "decode"))
        TRY(measure(inspection));
    if (option_flag(options, "json"))
        return print_json(inspection);
    say(inspection);
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: the result could not be written");
}

/* Its header; all of it is checked. */
static enum status inspect_checkpoint(const char *path)
{
    struct checkpoint *checkpoint = NULL;
    TRY(checkpoint_open(path, &checkpoint));
    enum status status = checkpoint_verify(checkpoint);
    if (status >= 0)
        status = json_print(stdout, checkpoint_header(checkpoint));
    checkpoint_close(checkpoint);
    return status;
}

static enum status run_inspect(const struct option_values *options, char **paths, size_t count)
{
    struct inspection inspection = {.options = options, .words = paths[0]};
    if (count != 1)
        return fail(STATUS_USAGE, "data inspect: one data set, please: chorale data --help");
    if (checkpoint_is(paths[0])) {
        TRY(only(options, "inspect CHECKPOINT", " json "));
        return inspect_checkpoint(paths[0]);
    }
    if (option_flag(options, "decode"))
        TRY(only(options, "inspect", " images image-size decode loaders seed json "));
    else
        TRY(only(options, "inspect without --decode", " images json "));
    enum status status = inspect(&inspection);
    for (size_t i = 0; i < MOST_NAMED; i++) {
        free(inspection.named[i].name);
        free(inspection.named[i].why);
    }
    free(inspection.of_class[0]);
    free(inspection.of_class[1]);
    json_decref(inspection.rates);
    data_close(inspection.data);
    return status;
}

/* ---- the command ---- */

static const struct {
    const char *name;
    enum status (*run)(const struct option_values *options, char **paths, size_t count);
} actions[] = {{"inspect", run_inspect}, {"pack", run_pack}, {"index", run_index}};
enum { ACTIONS = sizeof actions / sizeof actions[0] };

static int say_help(void)
{
    struct text text = {0};
    text_add(&text, head);
    text_add(&text, "Formats:\n");
    for (size_t i = 0; readers[i] != NULL; i++)
        text_addf(&text, "  %-10s %s\n", readers[i]->name, readers[i]->summary);
    int exit_code = program_help(text_string(&text), options_table);
    text_release(&text);
    return exit_code;
}

static enum status act(const struct option_values *options, char **words, size_t count)
{
    const char *names[ACTIONS];
    for (int i = 0; i < ACTIONS; i++)
        names[i] = actions[i].name;
    if (count == 0)
        return fail(STATUS_USAGE, "data: inspect, pack or index, and what: chorale data --help");
    for (int i = 0; i < ACTIONS; i++) {
        if (strcmp(words[0], names[i]) != 0)
            continue;
        if (count < 2)
            return fail(STATUS_USAGE, "data %s: of what: chorale data --help", words[0]);
        return actions[i].run(options, words + 1, count - 1);
    }
    const char *near = nearest_spelling(words[0], names, ACTIONS);
    return fail(STATUS_USAGE, "data %s: unknown: %s%s", words[0],
                near != NULL ? "did you mean " : "inspect, pack or index", near != NULL ? near : "");
}

int cmd_data(int argc, char **argv)
{
    struct option_values options;
    char **words = NULL;
    size_t count = 0;
    bool help = false;
    enum status status = option_values_init(&options, options_table);
    if (status < 0)
        return program_error(status);
    status = option_parse(&options, argc, argv, &help, &words, &count);
    int exit_code = 0;
    if (status >= 0 && help)
        exit_code = say_help();
    else if (status < 0 || (status = act(&options, words, count)) < 0)
        exit_code = program_error(status);
    free(words);
    option_values_release(&options);
    return exit_code;
}
