/* costs.c - measured times: a CSV becomes curves over the size. */
#include "algos/costs.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/memory.h"

enum column { COLUMN_SPEC, COLUMN_WORKERS, COLUMN_BYTES, COLUMN_TIME, COLUMN_REFUSED, COLUMNS };
static const char *const column_names[COLUMNS] = {"allreduce", "workers", "bytes", "time_us", "refused"};

#define NO_COLUMN SIZE_MAX

struct reader {
    const char *name, *at;
    size_t line;           /* of the row at hand, from 1 */
    size_t place[COLUMNS]; /* which field of a row */
    struct text field[COLUMNS];
    struct costs *costs;
};

/* Says where a failure is. */
static enum status at_line(const struct reader *reader, enum status status)
{
    return status < 0 ? fail_context(status, "%s:%zu", reader->name, reader->line) : status;
}

/* ---- rows ---- */

static enum status read_head(struct reader *reader)
{
    struct text field = {0};
    enum status status = STATUS_OK;
    bool last = false;
    for (int c = 0; c < COLUMNS; c++)
        reader->place[c] = NO_COLUMN;
    for (size_t place = 0; !last; place++) {
        TRY_TO(done, csv_next(&reader->at, &field, &last));
        for (int c = 0; c < COLUMNS; c++)
            if (strcmp(text_string(&field), column_names[c]) == 0)
                reader->place[c] = place;
    }
    for (int c = 0; c < COLUMN_REFUSED; c++)
        if (reader->place[c] == NO_COLUMN)
            TRY_TO(done, fail(STATUS_FORMAT, "the column %s is missing: take what chorale bench --format=csv prints",
                              column_names[c]));
done:
    text_release(&field);
    return status;
}

/* The fields of a row that matter. */
static enum status read_row(struct reader *reader)
{
    struct text field = {0};
    enum status status = STATUS_OK;
    bool last = false;
    for (int c = 0; c < COLUMNS; c++)
        text_clear(&reader->field[c]);
    for (size_t place = 0; !last; place++) {
        TRY_TO(done, csv_next(&reader->at, &field, &last));
        for (int c = 0; c < COLUMNS; c++) {
            if (reader->place[c] != place)
                continue;
            text_add(&reader->field[c], text_string(&field));
            TRY_TO(done, text_check(&reader->field[c]));
        }
    }
done:
    text_release(&field);
    return status;
}

/* ---- curves ---- */

static enum status find_curve(struct costs *costs, const char *spec, int workers, struct cost_curve **curve)
{
    for (size_t i = 0; i < costs->count; i++) {
        *curve = &costs->curve[i];
        if ((*curve)->workers == workers && strcmp((*curve)->spec, spec) == 0)
            return STATUS_OK;
    }
    void *curves = costs->curve;
    TRY(memory_grow(&curves, &costs->capacity, costs->count + 1, sizeof *costs->curve));
    costs->curve = curves;
    *curve = &costs->curve[costs->count];
    **curve = (struct cost_curve){.workers = workers};
    TRY(memory_string(&(*curve)->spec, spec));
    costs->count++;
    return STATUS_OK;
}

static enum status add_point(struct cost_curve *curve, size_t bytes, double seconds)
{
    size_t i = curve->count;
    while (i > 0 && curve->point[i - 1].bytes > bytes)
        i--;
    if (i > 0 && curve->point[i - 1].bytes == bytes) {
        curve->point[i - 1].seconds = fmin(curve->point[i - 1].seconds, seconds);
        return STATUS_OK;
    }
    void *points = curve->point;
    TRY(memory_grow(&points, &curve->capacity, curve->count + 1, sizeof *curve->point));
    curve->point = points;
    memmove(curve->point + i + 1, curve->point + i, (curve->count - i) * sizeof *curve->point);
    curve->point[i] = (struct cost_point){.bytes = bytes, .seconds = seconds};
    curve->count++;
    return STATUS_OK;
}

static enum status not_taken(const struct reader *reader, enum column column, const char *taken)
{
    return fail(STATUS_FORMAT, "%s is \"%s\": it takes %s", column_names[column], text_string(&reader->field[column]),
                taken);
}

static enum status take_row(struct reader *reader)
{
    const char *spec = text_string(&reader->field[COLUMN_SPEC]), *time = text_string(&reader->field[COLUMN_TIME]);
    long long workers, bytes;
    double microseconds;
    struct cost_curve *curve;
    if (strcmp(spec, column_names[COLUMN_SPEC]) == 0 || time[0] == '\0' || reader->field[COLUMN_REFUSED].length > 0)
        return STATUS_OK;
    if (parse_int(text_string(&reader->field[COLUMN_WORKERS]), &workers) < 0 || workers < 1 || workers > INT_MAX)
        return not_taken(reader, COLUMN_WORKERS, "a whole number from 1");
    if (parse_int(text_string(&reader->field[COLUMN_BYTES]), &bytes) < 0 || bytes < 0)
        return not_taken(reader, COLUMN_BYTES, "a whole number from 0");
    if (parse_real(time, &microseconds) < 0 || !(microseconds > 0) || isinf(microseconds))
        return not_taken(reader, COLUMN_TIME, "a number above 0");
    TRY(find_curve(reader->costs, spec, (int)workers, &curve));
    return add_point(curve, (size_t)bytes, microseconds * 1e-6);
}

static enum status read_all(struct reader *reader)
{
    TRY(at_line(reader, read_head(reader)));
    while (*reader->at != '\0') {
        reader->line++;
        TRY(at_line(reader, read_row(reader)));
        TRY(at_line(reader, take_row(reader)));
    }
    if (reader->costs->count == 0)
        return fail(STATUS_FORMAT, "%s: no row with a time in it: take what chorale bench --format=csv prints",
                    reader->name);
    return STATUS_OK;
}

enum status costs_parse(const char *text, const char *name, struct costs *costs)
{
    struct reader reader = {.name = name, .at = text, .line = 1, .costs = costs};
    *costs = (struct costs){.count = 0};
    enum status status = read_all(&reader);
    for (int c = 0; c < COLUMNS; c++)
        text_release(&reader.field[c]);
    if (status < 0)
        costs_release(costs);
    return status;
}

void costs_release(struct costs *costs)
{
    for (size_t i = 0; i < costs->count; i++) {
        free(costs->curve[i].spec);
        free(costs->curve[i].point);
    }
    free(costs->curve);
    *costs = (struct costs){.count = 0};
}

/* ---- looking up ---- */

int costs_nearest_workers(const struct costs *costs, int workers)
{
    int nearest = 0;
    double least = INFINITY;
    for (size_t i = 0; i < costs->count; i++) {
        const int measured = costs->curve[i].workers;
        const double larger = measured > workers ? measured : workers,
                     smaller = measured > workers ? workers : measured;
        const double ratio = larger / smaller;
        if (ratio < least || (ratio == least && measured < nearest)) {
            least = ratio;
            nearest = measured;
        }
    }
    return nearest;
}

double cost_curve_seconds(const struct cost_curve *curve, size_t bytes)
{
    const struct cost_point *point = curve->point, *end = point + curve->count;
    while (point < end && point->bytes < bytes)
        point++;
    if (point == end) /* point[-1].bytes may be 0: then size tells nothing */
        return point[-1].seconds * (point[-1].bytes > 0 ? (double)bytes / (double)point[-1].bytes : 1);
    if (point->bytes == bytes || point == curve->point || point[-1].bytes == 0)
        return point->seconds;
    const double share =
        log((double)bytes / (double)point[-1].bytes) / log((double)point->bytes / (double)point[-1].bytes);
    return exp(log(point[-1].seconds) + share * log(point->seconds / point[-1].seconds));
}
