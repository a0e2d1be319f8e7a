/* bench_print.c - the formats of bench: nccl-tests' columns, OSU's, CSV and JSON. */
#include <math.h>
#include <stdio.h>

#include "base/csv.h"
#include "experiments/bench.h"

/* GB/s, GB = 1e9 bytes; 0 where no time or no byte was needed. */
static double algbw(const struct bench_row *row, const struct bench_half *half)
{
    return half->time_s > 0 ? (double)row->bytes / half->time_s / 1e9 : 0;
}

static double busbw(const struct bench_row *row, const struct bench_half *half)
{
    return algbw(row, half) * 2 * (row->workers - 1) / row->workers;
}

/* ---- heads ---- */

static void nccl_head(const struct bench_settings *settings)
{
    printf("#\n# %10s  %12s  %8s  %6s  %6s    %-33s%-33s\n", "", "", "", "", "", "        out-of-place",
           "          in-place");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s", "size", "count", "type", "redop",
           "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
    if (settings->extended)
        printf("  %9s  %9s  %9s  %9s  %12s  %8s  %9s  %5s", "p50", "p99", "p50 in", "p99 in", "wire", "messages",
               "predicted", "equal");
    printf("\n# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s", "(B)", "(elements)", "", "", "",
           "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
    if (settings->extended)
        printf("  %9s  %9s  %9s  %9s  %12s  %8s  %9s  %5s", "(us)", "(us)", "(us)", "(us)", "(B)", "", "(us)", "bits");
    putchar('\n');
}

static const char *const csv_columns[] = {
    "allreduce",    "workers",  "transport",  "bytes",    "count",          "dtype",
    "op",           "in_place", "time_us",    "p50_us",   "p99_us",         "algbw",
    "busbw",        "wrong",    "wire_bytes", "messages", "schedule_bytes", "schedule_messages",
    "predicted_us", "wire",     "refused"};
static const char *const csv_extended_columns[] = {"equal_bits",    "deterministic", "decided",      "files_hash",
                                                   "wire_infinite", "wire_nan",      "wire_flushed", "wire_error"};

void bench_print_head(const struct bench_settings *settings, int workers, const char *transport)
{
    if (settings->format == BENCH_CSV && !settings->head)
        return;
    if (settings->format == BENCH_CSV) {
        struct text row = {0};
        for (size_t i = 0; i < sizeof csv_columns / sizeof *csv_columns; i++)
            csv_add(&row, csv_columns[i]);
        for (size_t i = 0; settings->extended && i < sizeof csv_extended_columns / sizeof *csv_extended_columns; i++)
            csv_add(&row, csv_extended_columns[i]);
        csv_end(&row);
        fputs(text_string(&row), stdout);
        text_release(&row);
    } else if (settings->format != BENCH_JSON) {
        printf("# chorale allreduce, measured: %d worker%s, transport %s, %d calls after %d\n", workers,
               workers > 1 ? "s" : "", transport, settings->iterations, settings->warmup);
        if (wire_format_changes(settings->wire, settings->dtype))
            printf("# on the wire: %s\n", settings->wire_name);
    }
}

void bench_print_spec(const struct bench_settings *settings, const char *name, const char *timed)
{
    if (settings->format == BENCH_CSV || settings->format == BENCH_JSON)
        return;
    printf("#\n# %s%s%s\n", name, timed != NULL ? ": " : "", timed != NULL ? timed : "");
    if (settings->format == BENCH_NCCL) {
        nccl_head(settings);
        return;
    }
    printf("# OSU MPI Allreduce Latency Test v7.x (format)\n# Datatype: %s.\n", dtype_name(settings->dtype));
    printf("%-10s%18s", "# Size", "Avg Latency(us)");
    if (settings->extended)
        printf("%18s%18s%12s%18s%18s", "Min Latency(us)", "Max Latency(us)", "Iterations", "P50 Latency(us)",
               "P99 Latency(us)");
    printf("%s\n", settings->check ? "        Validation" : "");
}

/* ---- rows ---- */

static void nccl_half(const struct bench_row *row, const struct bench_half *half)
{
    if (!half->measured) {
        printf("  %7s  %6s  %6s  %6s", "-", "-", "-", "-");
        return;
    }
    printf("  %7.*f  %6.2f  %6.2f",
           half->time_s < 1e-3   ? 2
           : half->time_s < 1e-1 ? 1
                                 : 0,
           half->time_s * 1e6, algbw(row, half), busbw(row, half));
    if (isfinite(half->wrong))
        printf("  %6g", half->wrong);
    else
        printf("  %6s", "N/A");
}

static void print_microseconds(double seconds)
{
    if (isfinite(seconds))
        printf("  %9.2f", seconds * 1e6);
    else
        printf("  %9s", "-");
}

static const char *answer_word(enum bench_answer answer, const char *no, const char *yes, const char *unknown)
{
    return answer == BENCH_NO ? no : answer == BENCH_YES ? yes : unknown;
}

/* Whether all workers had equal bits, out of place and in place. */
static enum bench_answer both_halves(const struct bench_row *row)
{
    const enum bench_answer one = row->half[0].equal_bits, other = row->half[1].equal_bits;
    if (one == BENCH_NO || other == BENCH_NO)
        return BENCH_NO;
    return one == BENCH_YES || other == BENCH_YES ? BENCH_YES : BENCH_NOT_ASKED;
}

static void files_hash_word(const struct bench_row *row, char word[17])
{
    word[0] = '\0';
    if (row->has_files)
        snprintf(word, 17, "%016llx", (unsigned long long)row->files_hash);
}

static void nccl_row(const struct bench_row *row)
{
    printf("%12zu  %12zu  %8s  %6s  %6s", row->bytes, row->count, dtype_long_name(row->settings->dtype),
           reduce_op_name(row->settings->op), "-1");
    nccl_half(row, &row->half[0]);
    nccl_half(row, &row->half[1]);
    if (row->settings->extended) {
        for (int h = 0; h < 2; h++) {
            print_microseconds(row->half[h].p50_s);
            print_microseconds(row->half[h].p99_s);
        }
        if (row->counted)
            printf("  %12zu  %8zu", row->wire_bytes, row->messages);
        else
            printf("  %12s  %8s", "-", "-");
        print_microseconds(row->predicted_s);
        printf("  %5s", answer_word(both_halves(row), "no", "yes", "-"));
    }
    putchar('\n');
}

/* Never hidden: what the wire format could not hold. */
static void say_lost(const struct bench_row *row)
{
    const struct codec_statistics *wire = &row->wire;
    if (wire->infinite > 0 || wire->nan > 0)
        printf("# on the wire as %s: %llu values became infinite, %llu are NaN\n", row->settings->wire_name,
               (unsigned long long)wire->infinite, (unsigned long long)wire->nan);
}

static void osu_row(const struct bench_row *row)
{
    const struct bench_half *half = row->half[0].measured ? &row->half[0] : &row->half[1];
    printf("%-10zu%18.2f", row->bytes, half->time_s * 1e6);
    if (row->settings->extended)
        printf("%18.2f%18.2f%12d%18.2f%18.2f", half->least_s * 1e6, half->most_s * 1e6, row->settings->iterations,
               half->p50_s * 1e6, half->p99_s * 1e6);
    if (row->settings->check)
        printf("%18s", !isfinite(half->wrong) ? "-" : half->wrong == 0 ? "Pass" : "Fail");
    putchar('\n');
}

static void csv_add_count(struct text *line, const struct bench_row *row, size_t value)
{
    if (row->counted)
        csv_add_size(line, value);
    else
        csv_add(line, "");
}

/* Nobody looks into what a device encodes. */
static void add_statistics(struct text *line, const struct bench_row *row)
{
    if (row->settings->device != NULL) {
        for (int k = 0; k < 4; k++)
            csv_add(line, "");
        return;
    }
    csv_add_size(line, row->wire.infinite);
    csv_add_size(line, row->wire.nan);
    csv_add_size(line, row->wire.flushed);
    csv_add_real(line, row->wire.worst, 7);
}

static void csv_row(const struct bench_row *row, int in_place)
{
    struct text line = {0};
    const struct bench_half *half = &row->half[in_place];
    const bool refused = row->refused != NULL;
    csv_add(&line, row->name);
    csv_add_size(&line, (size_t)row->workers);
    csv_add(&line, row->transport);
    csv_add_size(&line, row->bytes);
    csv_add_size(&line, row->count);
    csv_add(&line, dtype_name(row->settings->dtype));
    csv_add(&line, reduce_op_name(row->settings->op));
    csv_add(&line, in_place ? "true" : "false");
    csv_add_real(&line, half->time_s * 1e6, 7);
    csv_add_real(&line, half->p50_s * 1e6, 7);
    csv_add_real(&line, half->p99_s * 1e6, 7);
    csv_add_real(&line, refused ? NAN : algbw(row, half), 7);
    csv_add_real(&line, refused ? NAN : busbw(row, half), 7);
    csv_add_real(&line, half->wrong, 17);
    csv_add_count(&line, row, row->wire_bytes);
    csv_add_count(&line, row, row->messages);
    csv_add_count(&line, row, row->schedule_bytes);
    csv_add_count(&line, row, row->schedule_messages);
    csv_add_real(&line, row->predicted_s * 1e6, 7);
    csv_add(&line, row->settings->wire_name);
    csv_add(&line, refused ? row->refused : "");
    if (row->settings->extended) {
        char hash[17];
        files_hash_word(row, hash);
        csv_add(&line, answer_word(half->equal_bits, "false", "true", ""));
        csv_add(&line, answer_word(half->deterministic, "false", "true", ""));
        csv_add(&line, row->decided);
        csv_add(&line, hash);
        add_statistics(&line, row);
    }
    csv_end(&line);
    fputs(text_string(&line), stdout);
    text_release(&line);
}

static json_t *count_json(const struct bench_row *row, size_t value)
{
    return row->counted ? json_integer((json_int_t)value) : json_null();
}

static json_t *answer_json(enum bench_answer answer)
{
    return answer == BENCH_NOT_ASKED ? json_null() : json_boolean(answer == BENCH_YES);
}

static json_t *statistic_json(const struct bench_row *row, uint64_t number)
{
    return row->settings->device != NULL ? json_null() : json_integer((json_int_t)number);
}

static enum status json_row(const struct bench_row *row, int in_place, json_t *rows)
{
    const struct bench_half *half = &row->half[in_place];
    const bool refused = row->refused != NULL;
    char hash[17];
    files_hash_word(row, hash);
    json_t *object = json_pack(
        "{s:s, s:i, s:s, s:I, s:I, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?, s:o, "
        "s:o, s:s?, s:s?, s:s, s:o, s:o, s:o, s:o, s:s, s:s?}",
        "allreduce", row->name, "workers", row->workers, "transport", row->transport, "bytes", (json_int_t)row->bytes,
        "count", (json_int_t)row->count, "dtype", dtype_name(row->settings->dtype), "op",
        reduce_op_name(row->settings->op), "in_place", in_place, "time_us", json_number(half->time_s * 1e6), "p50_us",
        json_number(half->p50_s * 1e6), "p99_us", json_number(half->p99_s * 1e6), "algbw",
        json_number(refused ? NAN : algbw(row, half)), "busbw", json_number(refused ? NAN : busbw(row, half)), "wrong",
        isfinite(half->wrong) ? json_integer((json_int_t)half->wrong) : json_null(), "wire_bytes",
        count_json(row, row->wire_bytes), "messages", count_json(row, row->messages), "schedule_bytes",
        count_json(row, row->schedule_bytes), "schedule_messages", count_json(row, row->schedule_messages),
        "predicted_us", json_number(row->predicted_s * 1e6), "refused", row->refused, "equal_bits",
        answer_json(half->equal_bits), "deterministic", answer_json(half->deterministic), "decided", row->decided,
        "files_hash", row->has_files ? hash : NULL, "wire", row->settings->wire_name, "wire_infinite",
        statistic_json(row, row->wire.infinite), "wire_nan", statistic_json(row, row->wire.nan), "wire_flushed",
        statistic_json(row, row->wire.flushed), "wire_error",
        json_number(row->settings->device != NULL ? NAN : row->wire.worst), "device",
        row->settings->device != NULL ? row->settings->device : "cpu", "inject", row->settings->inject);
    if (object == NULL || json_array_append_new(rows, object) != 0)
        return fail(STATUS_NO_MEMORY, "bench: no memory for a row");
    return STATUS_OK;
}

static void add_to_totals(const struct bench_row *row, struct bench_totals *totals)
{
    for (int h = 0; h < 2 && row->refused == NULL; h++) {
        const struct bench_half *half = &row->half[h];
        if (!half->measured)
            continue;
        totals->measured++;
        totals->busbw += busbw(row, half);
        totals->checked += isfinite(half->wrong);
        totals->wrong += isfinite(half->wrong) ? half->wrong : 0;
    }
}

void bench_print_end(const struct bench_settings *settings, const struct bench_totals *totals)
{
    if (settings->format != BENCH_NCCL || totals->measured == 0)
        return;
    if (totals->checked > 0)
        printf("# Out of bounds values : %.0f %s\n", totals->wrong, totals->wrong > 0 ? "FAILED" : "OK");
    else
        printf("# Out of bounds values : N/A\n");
    printf("# Avg bus bandwidth    : %g\n#\n", totals->busbw / (double)totals->measured);
}

enum status bench_print_row(const struct bench_row *row, json_t *rows, struct bench_totals *totals)
{
    add_to_totals(row, totals);
    const enum bench_format format = row->settings->format;
    const bool table = format == BENCH_NCCL || format == BENCH_OSU;
    if (table && row->decided_anew && row->decided != NULL)
        printf("# decided: %s\n", row->decided);
    if (row->refused != NULL && table) {
        printf("# refused: %s\n", row->refused);
    } else if (format == BENCH_NCCL) {
        nccl_row(row);
    } else if (format == BENCH_OSU) {
        osu_row(row);
    } else {
        for (int in_place = 0; in_place < 2; in_place++) {
            if (!row->half[in_place].measured && !(row->refused != NULL && in_place == 0))
                continue;
            if (format == BENCH_CSV)
                csv_row(row, in_place);
            else
                TRY(json_row(row, in_place, rows));
        }
    }
    if (table)
        say_lost(row);
    return fflush(stdout) == 0 ? STATUS_OK : fail(STATUS_IO, "standard output: a row could not be written");
}
