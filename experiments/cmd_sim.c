/* cmd_sim.c - chorale sim: predicts one collective, or a training run, on a simulated platform. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "algos/spec.h"
#include "base/json.h"
#include "comm/codec.h"
#include "experiments/counts.h"
#include "experiments/program.h"
#include "nn/exchange.h"
#include "sim/sim.h"

static const char head[] =
    "usage: chorale sim allreduce|train --allreduce=SPECS -n COUNTS --platform=FILE [options]\n"
    "Predicts times on a platform (README, Files); train follows the strategy's step plan with the compute\n"
    "times of a profile. Simulated figures, never measured ones.\n";

static const struct option options_table[] = {
    {.key = "allreduce", .repeats = true, .type = OPTION_SPEC, .default_text = "ring", .help = "specs (chorale list)"},
    {.key = "workers",
     .letter = 'n',
     .type = OPTION_STRING,
     .default_text = "4",
     .help = "worker counts: 8 or 2,3,5 or 1..64"},
    {.key = "platform", .type = OPTION_STRING, .help = "platform file (experiments/platforms/)"},
    {.key = "bytes",
     .type = OPTION_SIZE,
     .default_text = "1M",
     .unit = "B",
     .help = "allreduce: size of the vector of f32"},
    {.key = "profile",
     .type = OPTION_STRING,
     .help = "train: profile file (experiments/profiles/, train --profile-out)"},
    {.key = "batch",
     .type = OPTION_INT,
     .default_text = "32",
     .unit = "images",
     .min = 1,
     .max = 65536,
     .help = "train: of one worker"},
    {.key = "steps",
     .type = OPTION_INT,
     .default_text = "0",
     .min = 0,
     .max = 100000,
     .help = "train: steps simulated; 0: enough for a period"},
    {.key = "bucket",
     .type = OPTION_SIZE,
     .unit = "B",
     .help = "train: exchange in pieces of this size; 0: all at once (default 4M with --overlap=bucket, else 0)"},
    {.key = "overlap",
     .type = OPTION_CHOICE,
     .choices = "none|bucket",
     .help =
         "train: when a bucket's exchange begins: after backward, or when backward has completed it (default where it "
         "can)"},
    {.key = "segment",
     .type = OPTION_SIZE,
     .default_text = "256K",
     .unit = "B",
     .help = "piece of a message on the wire, as train and bench have it; 0: a message is one"},
    {.key = "window",
     .type = OPTION_INT,
     .default_text = "4",
     .min = 1,
     .max = 64,
     .help = "receives posted ahead on each peer and lane"},
    {.key = "wire",
     .type = OPTION_STRING,
     .default_text = "f32",
     .help = "what travels (chorale list): bytes shrink by the format's ratio, encoding is free"},
    {.key = "nodes",
     .type = OPTION_STRING,
     .help = "node layout to pretend: 2x4 or 4+2 (default: the platform's nodes)"},
    {.key = "overlap-reduction",
     .type = OPTION_CHOICE,
     .default_text = "yes",
     .choices = "yes|no",
     .help = "reducing overlaps with the network; no: as closed forms have it"},
    {.key = "engine",
     .type = OPTION_CHOICE,
     .default_text = "event",
     .choices = "event",
     .help = "how time is simulated"},
    {.key = "json", .type = OPTION_FLAG, .help = "one JSON document"},
    {.key = NULL},
};

enum { SIM_MOST = 16384 };

struct run {
    const struct option_values *options;
    struct platform platform;
    struct profile profile;
    struct wire_format wire;
    bool train, json;
    json_t *rows;
    size_t simulated;
    struct text refused; /* why the first one was */
};

/* Bytes on the wire in proportion to f32, in segments of the size asked for; where messages are cut into none, in the
 * long run. */
static double wire_ratio(const struct run *run)
{
    const size_t segment = option_size(run->options, "segment") / 4;
    return wire_format_changes(&run->wire, DTYPE_F32) ? wire_format_ratio(&run->wire, segment > 0 ? segment : 1 << 20)
                                                      : 1;
}

static struct sim_request network_of(const struct run *run, const struct layout *layout)
{
    return (struct sim_request){.platform = &run->platform,
                                .layout = layout,
                                .segment = option_size(run->options, "segment"),
                                .window = (unsigned)option_int(run->options, "window"),
                                .overlap_reduction = strcmp(option_text(run->options, "overlap-reduction"), "yes") == 0,
                                .wire_ratio = wire_ratio(run)};
}

static json_t *totals_json(const struct run *run, const char *name, int workers, size_t bytes,
                           const struct sim_result *result)
{
    struct text wire = {0};
    wire_format_canonical(&run->wire, &wire);
    json_t *row = json_pack("{s:s, s:s, s:i, s:s, s:I, s:o, s:s, s:I, s:o, s:n}", "mode", "simulated", "allreduce",
                            name, "workers", workers, "wire", text_string(&wire), "bytes", (json_int_t)bytes, "time_us",
                            json_number(result->time_s * 1e6), "engine", "event", "events", (json_int_t)result->events,
                            "wall_s", json_number(result->wall_s), "refused");
    text_release(&wire);
    return row;
}

/* The mean over a period of its communication; for a schedule that is one call. Events, and how long simulating took, are of
 * the whole period. What the first shape decides is appended to *decided. */
static enum status sim_period(const struct run *run, const struct spec *spec, const struct layout *layout,
                              struct sim_result *result, struct text *decided)
{
    struct shape *shape = NULL;
    const struct sim_request request = network_of(run, layout);
    const size_t count = option_size(run->options, "bytes") / 4;
    uint64_t period = 1, events = 0;
    double total_s = 0, wall_s = 0;
    TRY(spec_period(spec, layout, &period));
    for (uint64_t step = 0; step < period; step++) {
        TRY(spec_shape(spec, layout, step, count, &shape));
        const enum status status = sim_schedule(&request, shape, count, 4, NULL, NULL, result);
        if (step == 0)
            (void)shape_describe(shape, decided);
        shape_destroy(shape);
        TRY(status);
        total_s += result->time_s;
        wall_s += result->wall_s;
        events += result->events;
    }
    result->time_s = total_s / (double)period;
    result->wall_s = wall_s;
    result->events = events;
    return STATUS_OK;
}

static enum status sim_collective(const struct run *run, const struct spec *spec, const char *name,
                                  const struct layout *layout)
{
    struct sim_result result = {.time_s = 0};
    struct text decided = {0};
    const size_t bytes = option_size(run->options, "bytes") / 4 * 4;
    const enum status status = sim_period(run, spec, layout, &result, &decided);
    const char *words = decided.length > 0 ? text_string(&decided) : NULL;
    if (status >= 0 && run->json) {
        json_t *row = totals_json(run, name, layout->workers, bytes, &result);
        json_object_set_new(row, "platform", json_string(run->platform.name));
        json_object_set_new(row, "decided", words != NULL ? json_string(words) : json_null());
        json_array_append_new(run->rows, row);
    } else if (status >= 0) {
        if (words != NULL)
            printf("# %s decided: %s\n", name, words);
        printf("%-36s %6d %12zu %14.2f %12llu %8.2f\n", name, layout->workers, bytes, result.time_s * 1e6,
               (unsigned long long)result.events, result.wall_s);
    }
    text_release(&decided);
    return status;
}

/* As the trainer decides (nn/train.c). */
static enum status find_overlap(const struct run *run, const struct spec *spec, struct sim_train_request *request)
{
    const bool given = option_given(run->options, "overlap");
    const bool none = given && strcmp(option_text(run->options, "overlap"), "none") == 0;
    const enum status can = none ? STATUS_REFUSED : exchange_can_overlap(spec);
    if (can < 0 && (can != STATUS_REFUSED || (given && !none)))
        return can;
    request->overlap = can == STATUS_OK;
    request->bucket = request->overlap ? BUCKET_OVERLAP : 0;
    if (option_given(run->options, "bucket"))
        request->bucket = option_size(run->options, "bucket");
    return STATUS_OK;
}

static enum status sim_training(const struct run *run, const struct spec *spec, const char *name,
                                const struct layout *layout)
{
    struct sim_train_result result = {.step_s = 0};
    struct sim_train_request request = {.network = network_of(run, layout),
                                        .spec = spec,
                                        .profile = &run->profile,
                                        .workers = layout->workers,
                                        .batch = (int)option_int(run->options, "batch"),
                                        .steps = (int)option_int(run->options, "steps")};
    TRY(find_overlap(run, spec, &request));
    TRY(sim_train(&request, &result));
    if (!run->json) {
        printf("%-36s %6d %10.2f %10.2f %10.2f %12.1f %10.4f\n", name, layout->workers, result.step_s * 1e3,
               result.compute_s * 1e3, result.exposed_s * 1e3, result.images_per_s, result.efficiency);
        return STATUS_OK;
    }
    result.totals.time_s = result.step_s; /* of one step: what `bytes` are exchanged in */
    json_t *row = totals_json(run, name, layout->workers, run->profile.parameters * 4, &result.totals);
    json_object_set_new(row, "step_ms", json_number(result.step_s * 1e3));
    json_object_set_new(row, "compute_ms", json_number(result.compute_s * 1e3));
    json_object_set_new(row, "exposed_ms", json_number(result.exposed_s * 1e3));
    json_object_set_new(row, "images_per_s", json_number(result.images_per_s));
    json_object_set_new(row, "efficiency", json_number(result.efficiency));
    json_object_set_new(row, "bytes_sent_per_step", json_integer((json_int_t)result.bytes_sent_per_step));
    json_object_set_new(row, "batch", json_integer(request.batch));
    json_object_set_new(row, "bucket_bytes", json_integer((json_int_t)request.bucket));
    json_object_set_new(row, "overlap", json_string(request.overlap ? "bucket" : "none"));
    json_object_set_new(row, "platform", json_string(run->platform.name));
    json_array_append_new(run->rows, row);
    return STATUS_OK;
}

/* A row with its reason: the others of a list go on. */
static void take_refusal(struct run *run, const char *name, int workers)
{
    const struct sim_result none = {.time_s = NAN};
    if (run->json) {
        const size_t bytes = run->train ? run->profile.parameters * 4 : option_size(run->options, "bytes") / 4 * 4;
        json_t *row = totals_json(run, name, workers, bytes, &none);
        json_object_set_new(row, "refused", json_string(status_message()));
        json_array_append_new(run->rows, row);
    } else {
        printf("%-36s %6d refused: %s\n", name, workers, status_message());
    }
    if (run->refused.length == 0)
        text_add(&run->refused, status_message());
}

/* The schedule of the first step tells for all. */
static enum status check_wire(const struct run *run, const struct spec *spec, const struct layout *layout)
{
    struct shape *shape = NULL;
    const size_t count = run->train ? run->profile.parameters : option_size(run->options, "bytes") / 4;
    TRY(spec_shape(spec, layout, 0, count, &shape));
    const enum status status = wire_format_check(&run->wire, DTYPE_F32, REDUCE_SUM, shape);
    shape_destroy(shape);
    return status;
}

static enum status sim_one(struct run *run, const struct spec *spec, int workers)
{
    enum status status = STATUS_OK;
    struct layout layout = {0};
    struct text name = {0};
    spec_canonical(spec, &name);
    status = program_layout(run->options, &run->platform, workers, &layout);
    if (status >= 0)
        status = check_wire(run, spec, &layout);
    if (status >= 0)
        status = (run->train ? sim_training : sim_collective)(run, spec, text_string(&name), &layout);
    if (status == STATUS_OK)
        run->simulated++;
    if (status == STATUS_REFUSED) {
        take_refusal(run, text_string(&name), workers);
        status = STATUS_OK;
    }
    layout_release(&layout);
    text_release(&name);
    return status;
}

static void say_head(const struct run *run)
{
    if (run->json)
        return;
    printf("# simulated on platform %s", run->platform.name);
    if (wire_format_changes(&run->wire, DTYPE_F32))
        printf(", %s on the wire (%.3g of the bytes)", option_text(run->options, "wire"), wire_ratio(run));
    if (run->train) {
        printf(", %s after the profile of %s, batch %lld a worker; ms a step\n", run->profile.model,
               run->profile.device, (long long)option_int(run->options, "batch"));
        printf("# %-34s %6s %10s %10s %10s %12s %10s\n", "allreduce", "n", "step", "compute", "exposed", "images/s",
               "efficiency");
    } else {
        printf("\n# %-34s %6s %12s %14s %12s %8s\n", "allreduce", "n", "bytes", "time us", "events", "wall s");
    }
}

/* A single row is the document itself; several stand in "rows". */
static enum status say_json(struct run *run)
{
    json_t *document = json_array_size(run->rows) == 1 ? json_incref(json_array_get(run->rows, 0))
                                                       : json_pack("{s:O}", "rows", run->rows);
    const enum status status =
        document != NULL ? json_print(stdout, document) : fail(STATUS_NO_MEMORY, "sim: no memory for the document");
    json_decref(document);
    return status;
}

static enum status read_files(struct run *run)
{
    const char *platform = option_text(run->options, "platform"), *profile = option_text(run->options, "profile");
    if (platform == NULL)
        return fail(STATUS_USAGE, "sim: no platform: give --platform=FILE, as in experiments/platforms/fdr-4gpu.txt");
    if (run->train && profile == NULL)
        return fail(STATUS_USAGE,
                    "sim train: no profile: give --profile=FILE, as in experiments/profiles/p100-fp32.txt");
    TRY(wire_format_parse(option_text(run->options, "wire"), &run->wire));
    TRY(platform_read(platform, &run->platform));
    return run->train ? profile_read(profile, &run->profile) : STATUS_OK;
}

static enum status simulate(struct run *run)
{
    enum status status = STATUS_OK;
    struct spec *specs = NULL;
    size_t spec_count = 0, count = 0;
    int *counts = NULL;
    TRY_TO(done, read_files(run));
    TRY_TO(done, program_specs(option_text(run->options, "allreduce"), &specs, &spec_count));
    TRY_TO(done, counts_parse(option_text(run->options, "workers"), SIM_MOST, &counts, &count));
    say_head(run);
    for (size_t s = 0; s < spec_count; s++)
        for (size_t i = 0; i < count; i++)
            TRY_TO(done, sim_one(run, &specs[s], counts[i]));
    if (run->simulated == 0)
        status = fail(STATUS_REFUSED, "%s", text_string(&run->refused));
    else if (run->json)
        status = say_json(run);
    else if (fflush(stdout) != 0)
        status = fail(STATUS_IO, "standard output: the rows could not be written");
done:
    free(counts);
    spec_list_release(specs, spec_count);
    profile_release(&run->profile);
    wire_format_release(&run->wire);
    return status;
}

int cmd_sim(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    const char *what = argc > 1 ? argv[1] : "";
    const bool train = strcmp(what, "train") == 0, help = strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0;
    if (!train && !help && strcmp(what, "allreduce") != 0)
        return program_error(fail(STATUS_USAGE, "sim%s%s: say what to simulate: sim allreduce, or sim train",
                                  what[0] != '\0' ? " " : "", what));
    if (!program_options(head, options_table, help ? argc : argc - 1, help ? argv : argv + 1, &options, &exit_code))
        return exit_code;
    struct run run = {.options = &options, .train = train, .json = option_flag(&options, "json"), .rows = json_array()};
    const enum status status = simulate(&run);
    text_release(&run.refused);
    json_decref(run.rows);
    option_values_release(&options);
    return status < 0 ? program_error(status) : 0;
}
