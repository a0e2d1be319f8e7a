/* cmd_bench.c - chorale bench: times and checks allreduce on a real network, for several worker counts in turn. */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "experiments/bench.h"
#include "experiments/counts.h"
#include "experiments/library.h"
#include "experiments/program.h"

static const char head[] =
    "usage: chorale bench --allreduce=SPECS -n COUNTS [options]\n"
    "Times back-to-back calls at each size and, with --check, compares every element. Strategies: one period of\n"
    "their communication without compute, divided by the period.\n";

static const struct option options_table[] = {
    {.key = "allreduce",
     .repeats = true,
     .type = OPTION_SPEC,
     .default_text = "ring",
     .help = "specs (chorale list); all: every exact schedule"},
    {.key = "workers",
     .letter = 'n',
     .type = OPTION_STRING,
     .help = "worker counts: 4 or 2,3,5; inside a job: its size, or leave it out (default 2)"},
    {.key = "begin", .letter = 'b', .type = OPTION_SIZE, .default_text = "8", .unit = "B", .help = "smallest vector"},
    {.key = "end", .letter = 'e', .type = OPTION_SIZE, .default_text = "64M", .unit = "B", .help = "largest vector"},
    {.key = "factor",
     .letter = 'f',
     .type = OPTION_INT,
     .default_text = "2",
     .min = 2,
     .max = 1 << 20,
     .help = "from one size to the next"},
    {.key = "sizes", .type = OPTION_STRING, .help = "8..64M[:x2] = -b 8 -e 64M -f 2; 8 alone: this size"},
    {.key = "iters",
     .type = OPTION_INT,
     .default_text = "20",
     .min = 1,
     .max = 1e9,
     .help = "calls timed at each size"},
    {.key = "warmup",
     .letter = 'w',
     .type = OPTION_INT,
     .default_text = "5",
     .min = 0,
     .max = 1e9,
     .help = "calls before"},
    {.key = "dtype",
     .letter = 'd',
     .type = OPTION_STRING,
     .default_text = "f32",
     .help = "element type: f32, f64, i32, i64, f16, bf16, or float, double, int32, int64, half, bfloat16"},
    {.key = "op",
     .letter = 'o',
     .type = OPTION_CHOICE,
     .default_text = "sum",
     .choices = "sum|min|max|avg",
     .help = "reduction"},
    {.key = "wire",
     .type = OPTION_STRING,
     .help = "what travels (chorale list): f16, top-k:ratio=0.01 (default: elements as they are)"},
    {.key = "in-place",
     .type = OPTION_CHOICE,
     .default_text = "both",
     .choices = "both|only|no",
     .help = "which are measured"},
    {.key = "device",
     .type = OPTION_STRING,
     .default_text = "cpu",
     .help = "where vectors lie: cpu, cuda, cuda:NUMBER (default: the card of the worker's number on its host)"},
    {.key = "check",
     .letter = 'c',
     .type = OPTION_FLAG,
     .help = "compare every element with the exact result (op=sum: of sum and of avg), and all workers' bits"},
    {.key = "format",
     .type = OPTION_CHOICE,
     .default_text = "nccl",
     .choices = "nccl|osu|csv|json",
     .help = "of the output"},
    {.key = "head",
     .type = OPTION_CHOICE,
     .default_text = "yes",
     .choices = "yes|no",
     .help = "csv: the line of column names"},
    {.key = "json", .type = OPTION_FLAG, .help = "the same as --format=json"},
    {.key = "extended",
     .type = OPTION_FLAG,
     .help = "p50, p99, wire bytes, messages, prediction, equal bits, too; osu: the columns of its -f"},
    {.key = "platform", .type = OPTION_STRING, .help = "platform file for predictions (chorale calibrate)"},
    {.key = "rows", .type = OPTION_STRING, .help = "JSON rows to this file instead of stdout"},
    WORKER_OPTIONS,
    {.key = NULL},
};

/* What nccl-tests and OSU's benchmarks call otherwise, or have and we don't. */
static const struct foreign {
    const char *words, *ours;
} foreign[] = {
    {" --minbytes ", "the smallest vector is -b"},
    {" --maxbytes ", "the largest vector is -e"},
    {" -i --stepbytes ", "sizes grow by a factor, -f, not by a step; calls timed are --iters=N"},
    {" --stepfactor ", "from one size to the next is -f, a factor"},
    {" --iterations ", "calls timed are --iters=N"},
    {" -x --skip --warmup_iters ", "calls before are -w, --warmup=N"},
    {" -m --message-size ", "sizes are --sizes=FROM..TO"},
    {" --datatype -T ", "the element type is -d, --dtype"},
    {" -g --ngpus -t --nthreads ", "each worker is a process of its own: how many is -n"},
    {" -z --blocking ", "every call is waited for: leave it out"},
    {" --full ", "all columns are --extended"},
    {" --validation ", "it is -c, --check"},
};

struct plan {
    const struct option_values *options;
    struct spec *specs;
    size_t spec_count;
    int *counts; /* NULL: not given */
    size_t count;
    struct bench_settings settings;
    struct accelerator accelerator;
    struct platform platform;
    struct wire_format wire;
    struct text wire_name, inject;
};

/* ---- options ---- */

/* "-i" of "-i100", "--skip" of "--skip=5". */
static void option_word(const char *argument, char word[32])
{
    const size_t length = argument[0] == '-' && argument[1] != '-' ? 2 : strcspn(argument, "=");
    snprintf(word, 32, " %.*s ", (int)(length < 28 ? length : 28), argument);
}

static enum status refuse_foreign(int argc, char **argv)
{
    char word[32];
    for (int i = 1; i < argc; i++) {
        option_word(argv[i], word);
        for (size_t k = 0; argv[i][0] == '-' && k < sizeof foreign / sizeof *foreign; k++)
            if (strstr(foreign[k].words, word) != NULL)
                return fail(STATUS_USAGE, "bench:%snot here: %s", word, foreign[k].ours);
        if (strcmp(word, " -c ") == 0 && i + 1 < argc && strspn(argv[i + 1], "0123456789") > 0)
            return fail(STATUS_USAGE, "bench: -c %s: -c, --check, takes no number: it compares every element",
                        argv[i + 1]);
    }
    return STATUS_OK;
}

static enum bench_format format_of(const struct option_values *options)
{
    static const char *const names[] = {"nccl", "osu", "csv", "json"};
    const char *text = option_text(options, "format");
    int format = BENCH_JSON;
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0)
            format = i;
    return option_flag(options, "json") ? BENCH_JSON : (enum bench_format)format;
}

static enum status read_wire(struct plan *plan, struct bench_settings *s)
{
    if (option_given(plan->options, "wire"))
        TRY(wire_format_parse(option_text(plan->options, "wire"), &plan->wire));
    if (wire_format_changes(&plan->wire, s->dtype))
        wire_format_canonical(&plan->wire, &plan->wire_name);
    else
        text_add(&plan->wire_name, dtype_name(s->dtype));
    s->wire = &plan->wire;
    s->wire_name = text_string(&plan->wire_name);
    return text_check(&plan->wire_name);
}

static enum status read_inject(struct plan *plan, struct bench_settings *s)
{
    struct inject inject;
    const char *text = option_text(plan->options, "inject");
    if (text == NULL || text[0] == '\0')
        return STATUS_OK;
    TRY(inject_parse(text, &inject));
    inject_describe(&inject, &plan->inject);
    s->inject = text_string(&plan->inject);
    return text_check(&plan->inject);
}

static enum status read_settings(struct plan *plan)
{
    const struct option_values *options = plan->options;
    struct bench_settings *s = &plan->settings;
    const char *in_place = option_text(options, "in-place");
    *s = (struct bench_settings){.begin = option_size(options, "begin"),
                                 .end = option_size(options, "end"),
                                 .factor = (size_t)option_int(options, "factor"),
                                 .iterations = (int)option_int(options, "iters"),
                                 .warmup = (int)option_int(options, "warmup"),
                                 .out_of_place = strcmp(in_place, "only") != 0,
                                 .in_place = strcmp(in_place, "no") != 0,
                                 .check = option_flag(options, "check"),
                                 .extended = option_flag(options, "extended"),
                                 .head = strcmp(option_text(options, "head"), "yes") == 0,
                                 .format = format_of(options)};
    if (option_given(options, "sizes"))
        TRY(sizes_parse(option_text(options, "sizes"), &s->begin, &s->end, &s->factor));
    if (s->end < s->begin)
        return fail(STATUS_USAGE, "bench: the largest size, -e %zu, is below the smallest, -b %zu", s->end, s->begin);
    if (option_given(options, "rows") && s->format != BENCH_JSON)
        return fail(STATUS_USAGE, "--rows=%s: it takes the rows of --format=json: give that, too",
                    option_text(options, "rows"));
    if (option_given(options, "rows"))
        TRY(file_writable(option_text(options, "rows")));
    TRY(read_inject(plan, s));
    TRY(dtype_parse(option_text(options, "dtype"), &s->dtype));
    TRY(reduce_op_parse(option_text(options, "op"), &s->op));
    TRY(read_wire(plan, s));
    if (option_given(options, "platform")) {
        TRY(platform_read(option_text(options, "platform"), &plan->platform));
        s->platform = &plan->platform;
    }
    return STATUS_OK;
}

static enum status read_device(struct plan *plan)
{
    const char *text = option_text(plan->options, "device");
    TRY(accelerator_parse(text, &plan->accelerator));
    if (plan->accelerator.profile != NULL)
        return fail(STATUS_REFUSED, "--device=%s: a replayed device has no memory of its own: leave it out", text);
    if (plan->accelerator.module != NULL)
        plan->settings.device = plan->accelerator.name;
    return STATUS_OK;
}

static enum status read_plan(struct plan *plan)
{
    const char *counts = option_text(plan->options, "workers");
    TRY(program_specs(option_text(plan->options, "allreduce"), &plan->specs, &plan->spec_count));
    if (counts != NULL)
        TRY(counts_parse(counts, WORKERS_MOST, &plan->counts, &plan->count));
    TRY(read_settings(plan));
    return read_device(plan);
}

/* --------------------------------------------------------------------------------------------------------------- a
 * worker */

struct output {
    json_t *rows;               /* of all specs */
    struct bench_totals totals; /* of this one */
};

static enum status take_row(void *context, const struct bench_row *row)
{
    struct output *output = context;
    return bench_print_row(row, output->rows, &output->totals);
}

/* How the workers of these rows talk, and where they run. */
static enum status add_setup(json_t *rows, const struct worker *worker)
{
    struct text transport = {0};
    comm_describe(worker->comm, &transport);
    json_t *placement = placement_json(&worker->placement, worker->job), *row;
    size_t i;
    bool made = placement != NULL;
    json_array_foreach(rows, i, row) made =
        made && json_object_set(row, "placement", placement) == 0 &&
        json_object_set_new(row, "network", json_string(text_string(&transport))) == 0;
    json_decref(placement);
    text_release(&transport);
    return made ? STATUS_OK : fail(STATUS_NO_MEMORY, "bench: no memory for the rows");
}

static enum status say_json(const struct plan *plan, json_t *rows)
{
    const char *path = option_text(plan->options, "rows");
    json_t *document = json_pack("{s:O}", "rows", rows);
    if (document == NULL)
        return fail(STATUS_NO_MEMORY, "bench: no memory for the document");
    const enum status status = path != NULL ? json_write(path, document) : json_print(stdout, document);
    json_decref(document);
    return status;
}

static enum status say_spec(const struct worker *worker, const struct spec *spec, const struct bench_settings *settings)
{
    struct text name = {0}, timed = {0};
    uint64_t period = 1;
    TRY(spec_period(spec, &worker->layout, &period));
    spec_canonical(spec, &name);
    if (spec->kind == SPEC_STRATEGY)
        text_add(&timed, "timed: its communication without compute");
    if (period > 1)
        text_addf(&timed, ", a period of %llu, divided by it", (unsigned long long)period);
    if (!spec_is_exact(spec))
        text_addf(&timed, "%sno allreduce: its result is not checked, busbw is that of an allreduce in its time",
                  timed.length > 0 ? "; " : "");
    bench_print_spec(settings, text_string(&name), timed.length > 0 ? text_string(&timed) : NULL);
    text_release(&name);
    text_release(&timed);
    return STATUS_OK;
}

static enum status measure(const struct plan *plan, const struct worker *worker)
{
    enum status status = STATUS_OK;
    const bool speaks = job_rank(worker->job) == 0;
    size_t faults = 0;
    struct output output = {.rows = json_array()};
    struct text transport = {0};
    comm_describe(worker->comm, &transport);
    text_add(&transport, "; ");
    placement_describe(&worker->placement, worker->job, &transport);
    if (speaks)
        bench_print_head(&plan->settings, job_size(worker->job), text_string(&transport));
    text_release(&transport);
    for (size_t i = 0; i < plan->spec_count; i++) {
        if (speaks)
            TRY_TO(done, say_spec(worker, &plan->specs[i], &plan->settings));
        output.totals = (struct bench_totals){0};
        TRY_TO(done, bench_spec(worker, &plan->specs[i], &plan->settings, take_row, &output, &faults));
        bench_print_end(&plan->settings, &output.totals); /* has nothing to say on other workers */
    }
    if (speaks && plan->settings.format == BENCH_JSON) {
        TRY_TO(done, add_setup(output.rows, worker));
        TRY_TO(done, say_json(plan, output.rows));
    }
    if (faults > 0)
        status = fail(
            STATUS_FORMAT,
            "bench: %zu rows are wrong: wrong elements, bits that should be equal, or bytes that the schedule does "
            "not have",
            faults);
done:
    json_decref(output.rows);
    return status;
}

static bool wants_mpi(const struct plan *plan)
{
    for (size_t i = 0; i < plan->spec_count; i++)
        if (plan->specs[i].external != NULL && library_is_mpi(plan->specs[i].external))
            return true;
    return false;
}

static int work(const struct plan *plan)
{
    struct worker worker;
    const unsigned wants = wants_mpi(plan) ? WORKER_EXTERNAL : 0;
    enum status status =
        worker_open(plan->options, plan->counts != NULL ? plan->counts[0] : 0, wants, &plan->accelerator, &worker);
    if (status == STATUS_OK)
        status = measure(plan, &worker);
    return worker_close(&worker, status);
}

/* ------------------------------------------------------------------------------------------------------------ the
 * launcher */

/* Refusals are rows of the result as long as there are others; where everything is refused, nothing is started. */
static enum status check_plan(const struct plan *plan)
{
    enum status status = STATUS_OK;
    bool possible = false;
    char reason[1024] = "";
    for (size_t i = 0; i < plan->count && status >= 0; i++) {
        struct layout layout = {0};
        TRY(bench_memory(&plan->settings, plan->counts[i], 0));
        TRY(program_layout(plan->options, NULL, plan->counts[i], &layout));
        for (size_t k = 0; k < plan->spec_count && status >= 0 && !possible; k++) {
            status = bench_possible(&plan->specs[k], &layout, &plan->settings);
            possible = status == STATUS_OK;
            if (status != STATUS_REFUSED)
                continue;
            if (reason[0] == '\0')
                snprintf(reason, sizeof reason, "%s", status_message());
            status = STATUS_OK;
        }
        layout_release(&layout);
    }
    if (status >= 0 && !possible)
        status = fail(STATUS_REFUSED, "%s", reason);
    return status;
}

/* argv with the list of counts replaced by one, and JSON rows going to a file. A table has one head. */
static int launch_one(const struct plan *plan, size_t index, const char *rows, int argc, char **argv)
{
    static char no_head[] = "--head=no";
    const int workers = plan->counts[index];
    char count[32], path[4200];
    char **words = calloc((size_t)argc + 5, sizeof *words);
    if (words == NULL)
        return program_error(fail(STATUS_NO_MEMORY, "bench: no memory"));
    memcpy(words, argv, (size_t)argc * sizeof *words);
    snprintf(count, sizeof count, "--workers=%d", workers);
    words[argc++] = count;
    if (index > 0)
        words[argc++] = no_head;
    if (rows != NULL) {
        snprintf(path, sizeof path, "--rows=%s", rows);
        words[argc++] = path;
    }
    const int exit_code = worker_launch(workers, worker_deadline(plan->options), argc, words);
    free(words);
    return exit_code;
}

static enum status append_rows(json_t *all, const char *path)
{
    json_error_t error;
    json_t *document = json_load_file(path, 0, &error);
    if (document == NULL)
        return fail(STATUS_FORMAT, "%s: %s", path, error.text);
    const int failed = json_array_extend(all, json_object_get(document, "rows"));
    json_decref(document);
    return failed ? fail(STATUS_NO_MEMORY, "bench: no memory for the rows") : STATUS_OK;
}

/* JSON from several jobs is one document: each job writes into memory of the launcher, so that nothing is left behind
 * however it ends. */
static int launch_json(const struct plan *plan, int argc, char **argv)
{
    char path[64];
    struct stat about;
    int exit_code = 0, fd = memfd_create("rows", MFD_CLOEXEC);
    if (fd < 0)
        return program_error(fail(STATUS_UNAVAILABLE, "bench: memory for the rows: %s", strerror(errno)));
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
    json_t *all = json_array();
    enum status status = STATUS_OK;
    for (size_t i = 0; i < plan->count && exit_code == 0 && status >= 0; i++) {
        exit_code = ftruncate(fd, 0) == 0 ? launch_one(plan, i, path, argc, argv) : 1;
        if (fstat(fd, &about) == 0 && about.st_size > 0)
            status = append_rows(all, path);
    }
    (void)close(fd);
    if (status >= 0)
        status = say_json(plan, all);
    json_decref(all);
    return status < 0 ? program_error(status) : exit_code;
}

static int launch(const struct plan *plan, int argc, char **argv)
{
    static int two[] = {2};
    struct plan with_counts = *plan;
    int exit_code = 0;
    if (plan->counts == NULL) {
        with_counts.counts = two;
        with_counts.count = 1;
    }
    const enum status status = check_plan(&with_counts);
    if (status < 0)
        return program_error(status);
    if (plan->settings.format == BENCH_JSON)
        return launch_json(&with_counts, argc, argv);
    for (size_t i = 0; i < with_counts.count && exit_code == 0; i++)
        exit_code = launch_one(&with_counts, i, NULL, argc, argv);
    return exit_code;
}

int cmd_bench(int argc, char **argv)
{
    struct option_values options;
    int exit_code = 0;
    enum status status = refuse_foreign(argc, argv);
    if (status < 0)
        return program_refuse(status);
    if (!program_options(head, options_table, argc, argv, &options, &exit_code))
        return exit_code;
    struct plan plan = {.options = &options};
    status = read_plan(&plan);
    if (status < 0)
        exit_code = program_refuse(status);
    else
        exit_code = worker_is_one() ? work(&plan) : launch(&plan, argc, argv);
    free(plan.counts);
    wire_format_release(&plan.wire);
    text_release(&plan.wire_name);
    text_release(&plan.inject);
    spec_list_release(plan.specs, plan.spec_count);
    option_values_release(&options);
    return exit_code;
}
