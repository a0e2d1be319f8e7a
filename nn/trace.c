/* trace.c - see trace.h. The format is the JSON array of the Trace Event Format, complete events ("ph": "X"), times in
 * microseconds. */
#include "nn/trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

struct event {
    const char *name;
    size_t row;
    uint64_t step, from_ns, to_ns;
};

struct trace {
    int rank;
    struct text path;
    struct event *event;
    size_t events, capacity;
    bool failed;
};

/* Of this rank, and of every `size`-th after it, as far as there are any. */
static enum status remove_earlier(const char *folder, int rank, int size)
{
    enum status status = STATUS_OK;
    struct text path = {0};
    for (int old = rank; status >= 0; old += size) {
        text_clear(&path);
        text_addf(&path, "%s/trace.%d.json", folder, old);
        TRY_TO(done, text_check(&path));
        if (!file_is_plain(text_string(&path)))
            break;
        if (unlink(text_string(&path)) != 0)
            status = fail(STATUS_IO, "remove %s: %s", text_string(&path), strerror(errno));
    }
done:
    text_release(&path);
    return status;
}

enum status trace_create(const char *folder, int rank, int size, struct trace **out)
{
    void *memory = NULL;
    enum status status = STATUS_OK;
    *out = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct trace)));
    struct trace *trace = memory;
    trace->rank = rank;
    text_addf(&trace->path, "%s/trace.%d.json", folder, rank);
    TRY_TO(failed, text_check(&trace->path));
    TRY_TO(failed, folder_create(folder));
    TRY_TO(failed, file_writable(text_string(&trace->path)));
    TRY_TO(failed, remove_earlier(folder, rank, size));
    *out = trace;
    return STATUS_OK;
failed:
    trace_destroy(trace);
    return fail(status, "--trace: %s", status_message());
}

void trace_destroy(struct trace *trace)
{
    if (trace == NULL)
        return;
    text_release(&trace->path);
    free(trace->event);
    free(trace);
}

void trace_add(struct trace *trace, const char *name, size_t row, uint64_t step, uint64_t from_ns, uint64_t to_ns)
{
    if (trace == NULL || trace->failed)
        return;
    void *memory = trace->event;
    if (memory_grow(&memory, &trace->capacity, trace->events + 1, sizeof(struct event)) < 0) {
        trace->failed = true;
        return;
    }
    trace->event = memory;
    trace->event[trace->events++] =
        (struct event){.name = name, .row = row, .step = step, .from_ns = from_ns, .to_ns = to_ns};
}

static void add_name(struct text *text, const char *what, int rank, size_t row, const char *name, int number)
{
    text_addf(text, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"%s\",\"args\":{\"name\":\"%s", rank, row, what,
              name);
    if (number >= 0)
        text_addf(text, " %d", number);
    text_add(text, "\"}},\n");
}

static void add_names(const struct trace *trace, struct text *text)
{
    size_t rows = 1;
    for (size_t k = 0; k < trace->events; k++)
        rows = trace->event[k].row >= rows ? trace->event[k].row + 1 : rows;
    add_name(text, "process_name", trace->rank, 0, "rank", trace->rank);
    add_name(text, "thread_name", trace->rank, TRACE_STEPS, "steps", -1);
    for (size_t row = TRACE_BUCKETS; row < rows; row++)
        add_name(text, "thread_name", trace->rank, row, "bucket", (int)(row - TRACE_BUCKETS));
}

static void add_event(const struct trace *trace, const struct event *event, struct text *text)
{
    text_addf(text, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%zu,\"name\":\"%s\",\"ts\":", trace->rank, event->row,
              event->name);
    text_add_fixed(text, (double)event->from_ns * 1e-3, 3);
    text_add(text, ",\"dur\":");
    text_add_fixed(text, (double)(event->to_ns - event->from_ns) * 1e-3, 3);
    text_addf(text, ",\"args\":{\"step\":%llu}},\n", (unsigned long long)event->step);
}

enum status trace_write(const struct trace *trace)
{
    struct text text = {0};
    if (trace->failed)
        return fail(STATUS_NO_MEMORY, "out of memory: the trace of rank %d: trace fewer steps", trace->rank);
    text_add(&text, "[\n");
    add_names(trace, &text);
    for (size_t k = 0; k < trace->events; k++)
        add_event(trace, &trace->event[k], &text);
    text_addf(&text, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}\n]\n",
              trace->rank, trace->rank);
    enum status status = text_check(&text);
    if (status >= 0)
        status = file_write_atomic(text_string(&trace->path), text_string(&text), text.length);
    text_release(&text);
    return status;
}
