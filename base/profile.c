/* profile.c - reading and writing profiles of a model on a device. */
#include "base/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/lines.h"
#include "base/memory.h"

#define PROFILE_FILE_LIMIT ((size_t)16 << 20)
#define LARGEST_COUNT 1e15 /* parameters: still exact in a double */
#define LONGEST_TIME 1e6   /* seconds */

/* What has been read so far; the line numbers are for messages, 0 = not yet. */
struct reading {
    struct lines lines;
    struct profile *profile;
    size_t capacity; /* of profile->layer */
    int model_line, device_line, step_line, layer_line;
};

static enum status once(struct reading *reading, int *line)
{
    if (*line != 0)
        return lines_fail(&reading->lines, "\"%s\" stands twice: the first is in line %d", reading->lines.word[0],
                          *line);
    *line = reading->lines.number;
    return STATUS_OK;
}

static enum status read_model(struct reading *reading)
{
    struct profile *profile = reading->profile;
    struct field fields[] = {
        {.key = "parameters", .min = 1, .max = LARGEST_COUNT},
        {.key = "classes", .min = 1, .max = 1e9, .optional = true},
        {.key = "image_size", .min = 1, .max = 1e6, .optional = true},
        {.key = "batch", .min = 1, .max = 1e6, .optional = true},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        fields[i].dimension = "";
        fields[i].whole = true;
    }
    TRY(once(reading, &reading->model_line));
    TRY(lines_word(&reading->lines, 1, "name", profile->model, sizeof profile->model));
    TRY(lines_fields(&reading->lines, 2, fields, sizeof fields / sizeof fields[0]));
    profile->parameters = (size_t)fields[0].value;
    profile->classes = (int)fields[1].value;
    profile->image_size = (int)fields[2].value;
    profile->batch = (int)fields[3].value;
    return STATUS_OK;
}

static enum status read_device(struct reading *reading)
{
    struct profile *profile = reading->profile;
    const char *device = lines_rest(&reading->lines, 1);
    TRY(once(reading, &reading->device_line));
    if (*device == '\0')
        return lines_fail(&reading->lines, "\"device\" lacks its name");
    size_t length = strlen(device);
    if (length >= sizeof profile->device)
        return lines_fail(&reading->lines, "the device's name is longer than %zu bytes", sizeof profile->device - 1);
    memcpy(profile->device, device, length + 1);
    return STATUS_OK;
}

static enum status refuse_both(struct reading *reading, int other)
{
    return lines_fail(&reading->lines,
                      "a profile has one step line or layer lines, not both (the other kind is in line %d): "
                      "remove one",
                      other);
}

static enum status read_step(struct reading *reading)
{
    struct profile *profile = reading->profile;
    struct field fields[] = {
        {.key = "fixed", .dimension = "s", .max = LONGEST_TIME},
        {.key = "per_image", .dimension = "s", .max = LONGEST_TIME},
        {.key = "backward", .dimension = "", .max = 1},
    };
    TRY(once(reading, &reading->step_line));
    if (reading->layer_line != 0)
        return refuse_both(reading, reading->layer_line);
    TRY(lines_fields(&reading->lines, 1, fields, sizeof fields / sizeof fields[0]));
    profile->affine = true;
    profile->fixed_s = fields[0].value;
    profile->per_image_s = fields[1].value;
    profile->backward_share = fields[2].value;
    return STATUS_OK;
}

static enum status read_layer(struct reading *reading)
{
    struct profile *profile = reading->profile;
    struct field fields[] = {
        {.key = "parameters", .dimension = "", .max = LARGEST_COUNT, .whole = true},
        {.key = "forward", .dimension = "s", .max = LONGEST_TIME},
        {.key = "backward", .dimension = "s", .max = LONGEST_TIME},
    };
    if (reading->step_line != 0)
        return refuse_both(reading, reading->step_line);
    if (reading->layer_line == 0)
        reading->layer_line = reading->lines.number;
    struct profile_layer layer = {0};
    TRY(lines_word(&reading->lines, 1, "name", layer.name, sizeof layer.name));
    TRY(lines_fields(&reading->lines, 2, fields, sizeof fields / sizeof fields[0]));
    layer.parameters = (size_t)fields[0].value;
    layer.forward_s = fields[1].value;
    layer.backward_s = fields[2].value;
    void *layers = profile->layer;
    TRY(memory_grow(&layers, &reading->capacity, profile->layers + 1, sizeof layer));
    profile->layer = layers;
    profile->layer[profile->layers++] = layer;
    return STATUS_OK;
}

static enum status read_line(struct reading *reading)
{
    static const char *const words[] = {"model", "device", "step", "layer"};
    static enum status (*const readers[])(struct reading *) = {read_model, read_device, read_step, read_layer};
    const char *word = reading->lines.word[0];
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i]) == 0)
            return readers[i](reading);
    return lines_fail(&reading->lines, "unknown word \"%s\": a profile has lines of model, device, step and layer",
                      word);
}

static enum status check_layers(const struct profile *profile, const char *name)
{
    size_t parameters = 0;
    for (size_t i = 0; i < profile->layers; i++)
        parameters += profile->layer[i].parameters;
    if (profile->batch == 0)
        return fail(STATUS_FORMAT, "%s: layer times hold for one batch: add batch= to the model line", name);
    if (parameters != profile->parameters)
        return fail(STATUS_FORMAT, "%s: the layers have %zu parameters, the model line says %zu: make them agree", name,
                    parameters, profile->parameters);
    return STATUS_OK;
}

/* What can only be told at the end of the file. */
static enum status check_whole(const struct reading *reading)
{
    const struct profile *profile = reading->profile;
    const char *name = reading->lines.name;
    if (reading->model_line == 0)
        return fail(STATUS_FORMAT, "%s: no model line: add \"model NAME parameters=N\"", name);
    if (reading->device_line == 0)
        return fail(STATUS_FORMAT, "%s: no device line: add \"device NAME\"", name);
    if (!profile->affine && profile->layers == 0)
        return fail(STATUS_FORMAT, "%s: no times: add a step line or layer lines", name);
    if (!profile->affine)
        TRY(check_layers(profile, name));
    double forward_s;
    double backward_s;
    profile_times(profile, 1, &forward_s, &backward_s, NULL);
    if (!(forward_s + backward_s > 0))
        return fail(STATUS_FORMAT, "%s: a step takes no time at all: give times above 0", name);
    return STATUS_OK;
}

enum status profile_parse(const char *text, const char *name_for_messages, struct profile *profile)
{
    struct reading reading = {.profile = profile};
    enum status status;
    *profile = (struct profile){0};
    lines_begin(&reading.lines, text, name_for_messages);
    for (;;) {
        TRY_TO(failed, lines_next(&reading.lines));
        if (status == STATUS_AGAIN)
            break;
        TRY_TO(failed, read_line(&reading));
    }
    TRY_TO(failed, check_whole(&reading));
    return STATUS_OK;
failed:
    profile_release(profile);
    return status;
}

enum status profile_read(const char *path, struct profile *profile)
{
    char *text = NULL;
    size_t length = 0;
    *profile = (struct profile){0};
    enum status status = file_read(path, PROFILE_FILE_LIMIT, &text, &length);
    if (status < 0)
        return status;
    if (strlen(text) != length)
        status = fail(STATUS_FORMAT, "%s: holds NUL bytes: a profile is plain text", path);
    else
        status = profile_parse(text, path, profile);
    free(text);
    return status;
}

void profile_release(struct profile *profile)
{
    free(profile->layer);
    *profile = (struct profile){0};
}

void profile_times(const struct profile *profile, int batch, double *forward_s, double *backward_s, bool *scaled)
{
    if (scaled != NULL)
        *scaled = !profile->affine && batch != profile->batch;
    if (profile->affine) {
        double step_s = profile->fixed_s + profile->per_image_s * batch;
        *backward_s = step_s * profile->backward_share;
        *forward_s = step_s - *backward_s;
        return;
    }
    double factor = profile->batch > 0 ? (double)batch / profile->batch : 1;
    *forward_s = 0;
    *backward_s = 0;
    for (size_t i = 0; i < profile->layers; i++) {
        *forward_s += profile->layer[i].forward_s * factor;
        *backward_s += profile->layer[i].backward_s * factor;
    }
}

double profile_backward_until(const struct profile *profile, int batch, size_t offset)
{
    double forward_s = 0, backward_s = 0;
    size_t begin = profile->parameters;
    profile_times(profile, batch, &forward_s, &backward_s, NULL);
    if (profile->affine || profile->layers == 0)
        return begin > 0 ? backward_s * ((double)(begin - offset) / (double)begin) : backward_s;
    double until_s = 0, factor = profile->batch > 0 ? (double)batch / profile->batch : 1;
    for (size_t i = profile->layers; i-- > 0 && begin > offset;) {
        until_s += profile->layer[i].backward_s * factor;
        begin -= profile->layer[i].parameters;
    }
    return until_s;
}

/* ---- writing ---- */

static void add_time(struct text *text, const char *key, double seconds)
{
    text_addf(text, " %s=", key);
    text_add_real(text, seconds * 1e3, 9);
    text_add(text, "ms");
}

static void add_optional(struct text *text, const char *key, int value)
{
    if (value > 0)
        text_addf(text, " %s=%d", key, value);
}

void profile_text(const struct profile *profile, struct text *text)
{
    text_addf(text, "model %s parameters=%zu", profile->model, profile->parameters);
    add_optional(text, "classes", profile->classes);
    add_optional(text, "image_size", profile->image_size);
    add_optional(text, "batch", profile->batch);
    text_addf(text, "\ndevice %s\n", profile->device);
    if (profile->affine) {
        text_add(text, "step");
        add_time(text, "fixed", profile->fixed_s);
        add_time(text, "per_image", profile->per_image_s);
        text_add(text, " backward=");
        text_add_real(text, profile->backward_share, 9);
        text_add(text, "\n");
    }
    for (size_t i = 0; i < profile->layers; i++) {
        text_addf(text, "layer %s parameters=%zu", profile->layer[i].name, profile->layer[i].parameters);
        add_time(text, "forward", profile->layer[i].forward_s);
        add_time(text, "backward", profile->layer[i].backward_s);
        text_add(text, "\n");
    }
}
