/* label.h - label mode: what the workers write, line by line, each with "[rank] " before it.
 *
 * The workers' stdout and stderr are pipes; the launcher copies whole lines to its own. It neither blocks on a reader
 * that is slow (the workers then wait, as they would without us) nor dies with one that is gone (the pipes are closed:
 * the workers get SIGPIPE, as they would without us).
 */
#ifndef CHORALE_COMM_BOOTSTRAP_LABEL_H
#define CHORALE_COMM_BOOTSTRAP_LABEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/text.h"

/* One of the launcher's own streams. */
struct label_sink {
    int fd;
    bool gone;           /* nobody reads it any more, or it can't be written */
    int error;           /* why it can't be written: a full disk, say; 0: it can */
    struct text pending; /* whole lines */
    size_t written;      /* of pending */
};

/* One stream of one worker. */
struct label_source {
    int fd; /* -1: at its end */
    int rank;
    struct label_sink *sink;
    struct text line; /* begun, not ended */
};

/* Whether the source is worth polling: open, and its sink not full. */
bool label_source_wanted(const struct label_source *source);
/* Read what is there into the sink. At the end of the stream, or when the sink is gone, the source is closed. */
enum status label_source_pump(struct label_source *source) MUST_CHECK;
void label_source_close(struct label_source *source);

bool label_sink_wanted(const struct label_sink *sink);
/* Write one piece; call when poll() says that it won't block. */
void label_sink_flush(struct label_sink *sink);

#endif
