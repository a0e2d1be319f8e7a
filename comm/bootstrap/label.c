/* label.c - label mode. */
#include "comm/bootstrap/label.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_LINE 65536u /* a longer one is broken */
#define SINK_FULL 1048576u  /* bytes that wait for a slow reader before the workers have to */
#define READS_A_TURN 16     /* one worker's flood must not keep the launcher from the others */

bool label_source_wanted(const struct label_source *source)
{
    return source->fd >= 0 && source->sink->pending.length - source->sink->written < SINK_FULL;
}

void label_source_close(struct label_source *source)
{
    if (source->fd >= 0)
        close(source->fd);
    source->fd = -1;
    text_release(&source->line);
}

static void end_line(struct label_source *source)
{
    text_addf(&source->sink->pending, "[%d] ", source->rank);
    text_add_bytes(&source->sink->pending, text_string(&source->line), source->line.length);
    text_add(&source->sink->pending, "\n");
    text_clear(&source->line);
}

static enum status take(struct label_source *source, const char *bytes, size_t length)
{
    while (length > 0) {
        const char *newline = memchr(bytes, '\n', length);
        size_t part = newline != NULL ? (size_t)(newline - bytes) : length;
        text_add_bytes(&source->line, bytes, part);
        if (newline != NULL || source->line.length >= LONGEST_LINE)
            end_line(source);
        part += newline != NULL ? 1 : 0;
        bytes += part;
        length -= part;
    }
    TRY(text_check(&source->line));
    return text_check(&source->sink->pending);
}

enum status label_source_pump(struct label_source *source)
{
    char bytes[PIPE_BUF];
    for (int i = 0; i < READS_A_TURN && label_source_wanted(source); i++) {
        ssize_t count = source->sink->gone ? 0 : read(source->fd, bytes, sizeof bytes);
        if (count > 0) {
            TRY(take(source, bytes, (size_t)count));
        } else if (count == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
            if (source->line.length > 0 && !source->sink->gone)
                end_line(source);
            label_source_close(source);
        } else if (errno != EINTR) {
            return STATUS_OK;
        }
    }
    return text_check(&source->sink->pending);
}

bool label_sink_wanted(const struct label_sink *sink)
{
    return !sink->gone && sink->written < sink->pending.length;
}

void label_sink_flush(struct label_sink *sink)
{
    size_t left = sink->pending.length - sink->written;
    /* a pipe that poll() calls writable has room for PIPE_BUF bytes */
    ssize_t count = write(sink->fd, sink->pending.data + sink->written, left < PIPE_BUF ? left : PIPE_BUF);
    if (count > 0) {
        sink->written += (size_t)count;
    } else if (count < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK) {
        sink->gone = true;
        sink->error = errno != EPIPE ? errno : 0; /* a reader that goes has seen enough */
    }
    if (sink->gone || sink->written == sink->pending.length) {
        text_clear(&sink->pending);
        sink->written = 0;
    }
}
