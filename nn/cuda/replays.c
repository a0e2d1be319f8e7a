/* replays.c - see replays.h. */
#include "nn/cuda/replays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/cuda/runtime.h"

/* Forward, and for each of two arenas of gradients that take turns backward in a dozen parts; what comes beyond is put piece
 * by piece. */
enum { ENTRIES_MOST = 40, WARM_UP = 2 };

struct entry {
    struct cuda_sequence sequence;
    int runs;
    cudaGraphExec_t graph; /* NULL: not captured yet */
};

struct cuda_replays {
    cudaStream_t stream;
    bool capture;
    char reason[192];
    struct entry entry[ENTRIES_MOST];
    int entries;
};

enum status cuda_replays_create(cudaStream_t stream, bool capture, const char *reason, struct cuda_replays **replays)
{
    void *memory = NULL;
    *replays = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct cuda_replays)));
    *replays = memory;
    (*replays)->stream = stream;
    (*replays)->capture = capture;
    snprintf((*replays)->reason, sizeof(*replays)->reason, "%s", capture ? "" : reason);
    return STATUS_OK;
}

void cuda_replays_destroy(struct cuda_replays *replays)
{
    if (replays == NULL)
        return;
    for (int k = 0; k < replays->entries; k++) {
        if (replays->entry[k].graph != NULL)
            (void)cudaGraphExecDestroy(replays->entry[k].graph);
    }
    free(replays);
}

static bool same(const struct cuda_sequence *a, const struct cuda_sequence *b)
{
    return a->number == b->number && a->begin == b->begin && a->end == b->end &&
           memcmp(a->address, b->address, sizeof a->address) == 0;
}

static struct entry *find(struct cuda_replays *replays, const struct cuda_sequence *sequence)
{
    for (int k = 0; k < replays->entries; k++) {
        if (same(&replays->entry[k].sequence, sequence))
            return &replays->entry[k];
    }
    if (replays->entries == ENTRIES_MOST)
        return NULL;
    struct entry *entry = &replays->entry[replays->entries++];
    *entry = (struct entry){.sequence = *sequence};
    return entry;
}

/* Only this thread's calls are watched: others may allocate meanwhile. */
static enum status capture(struct cuda_replays *replays, struct entry *entry, enum status (*put)(void *argument),
                           void *argument)
{
    cudaGraph_t graph = NULL;
    TRY(cuda_check(cudaStreamBeginCapture(replays->stream, cudaStreamCaptureModeThreadLocal), "a capture"));
    enum status status = put(argument);
    /* In any case: the stream must leave the capture. */
    const cudaError_t ended = cudaStreamEndCapture(replays->stream, &graph);
    if (status >= 0)
        status = cuda_check(ended, "the end of a capture");
    if (status >= 0)
        status = cuda_check(cudaGraphInstantiate(&entry->graph, graph, 0), "a graph");
    if (status < 0)
        entry->graph = NULL;
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return status;
}

static void give_up(struct cuda_replays *replays)
{
    replays->capture = false;
    snprintf(replays->reason, sizeof replays->reason, "%s", status_message());
}

enum status cuda_replays_run(struct cuda_replays *replays, const struct cuda_sequence *sequence,
                             enum status (*put)(void *argument), void *argument)
{
    struct entry *entry = replays->capture ? find(replays, sequence) : NULL;
    if (entry == NULL)
        return put(argument);
    if (entry->graph == NULL && entry->runs++ >= WARM_UP && capture(replays, entry, put, argument) < 0)
        give_up(replays);
    if (entry->graph == NULL)
        return put(argument);
    return cuda_check(cudaGraphLaunch(entry->graph, replays->stream), "a graph's work");
}

void cuda_replays_describe(const struct cuda_replays *replays, struct text *text)
{
    if (replays->capture)
        text_add(text, "graphs");
    else
        text_addf(text, "no graphs (%s)", replays->reason);
}
