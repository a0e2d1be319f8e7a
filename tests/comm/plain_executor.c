/* plain_executor.c - workers as threads, each with its progress thread, over loopback and node memory: for
 * ThreadSanitizer.
 *
 * Two collectives are under way while the worker computes (sleeps), then it waits; every result is checked.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "algos/spec.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "comm/transport.h"

enum { WORKERS = 4, ROUNDS = 30, COUNT = 5000 };

struct seat {
    int rank;
    struct transport *transport;
    const struct shape *shape[2];
    bool failed;
};

static enum status run_round(struct collective *const *c, float (*data)[COUNT], int rank, int round)
{
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < COUNT; i++)
            data[k][i] = (float)((i + rank + round + k) % 100);
        TRY(collective_start(c[k], data[k], data[k]));
    }
    clock_sleep_ns((uint64_t)(rank + round) % 3 * 500000);
    for (int k = 1; k >= 0; k--)
        TRY(collective_wait(c[k]));
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < COUNT; i++) {
            int sum = 0;
            for (int r = 0; r < WORKERS; r++)
                sum += (i + r + round + k) % 100;
            if (data[k][i] != (float)sum)
                return fail(STATUS_INTERNAL, "round %d collective %d element %d is wrong", round, k, i);
        }
    }
    return STATUS_OK;
}

static enum status work(const struct seat *seat)
{
    enum status status = STATUS_OK;
    struct comm *comm = NULL;
    struct collective *c[2] = {NULL, NULL};
    float(*data)[COUNT] = malloc(sizeof(float[2][COUNT]));
    const struct comm_request request = {
        .transport = seat->transport, .segment = 4096, .deadline = 60, .progress_thread = true};
    TRY_TO(done, data != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "no memory"));
    TRY_TO(done, comm_open(&request, &comm));
    for (int k = 0; k < 2; k++) {
        const struct collective_request call = {.team = comm_world(comm),
                                                .shape = seat->shape[k],
                                                .name = k == 0 ? "ring" : "rhd",
                                                .count = COUNT,
                                                .dtype = DTYPE_F32,
                                                .op = REDUCE_SUM};
        TRY_TO(done, collective_create(&call, &c[k]));
    }
    for (int round = 0; round < ROUNDS; round++)
        TRY_TO(done, run_round(c, data, seat->rank, round));
done:
    if (status < 0)
        fprintf(stderr, "worker %d: %s\n", seat->rank, status_message());
    collective_destroy(c[0]);
    collective_destroy(c[1]);
    comm_close(comm);
    free(data);
    return status;
}

static void *worker(void *context)
{
    struct seat *seat = context;
    seat->failed = work(seat) < 0;
    return NULL;
}

static enum status make_shape(const char *text, struct shape **shape)
{
    struct spec spec;
    struct layout layout;
    TRY(spec_parse(text, &spec));
    enum status status = layout_flat(WORKERS, &layout);
    if (status >= 0) {
        status = spec_shape(&spec, &layout, 0, 0, shape);
        layout_release(&layout);
    }
    spec_release(&spec);
    return status;
}

/* All workers of one transport, each on its thread; how many fail. */
static int run(enum loopback_mode mode, struct shape *const *shape)
{
    struct transport *transports[WORKERS];
    struct seat seats[WORKERS];
    pthread_t threads[WORKERS];
    int failed = 0;
    if (loopback_open(WORKERS, mode, 7, transports) < 0) {
        fprintf(stderr, "%s\n", status_message());
        return WORKERS;
    }
    for (int r = 0; r < WORKERS; r++) {
        seats[r] = (struct seat){.rank = r, .transport = transports[r], .shape = {shape[0], shape[1]}};
        if (pthread_create(&threads[r], NULL, worker, &seats[r]) != 0)
            exit(1);
    }
    for (int r = 0; r < WORKERS; r++) {
        pthread_join(threads[r], NULL);
        failed += seats[r].failed;
    }
    return failed;
}

int main(void)
{
    static const enum loopback_mode modes[] = {LOOPBACK_SHUFFLED, LOOPBACK_NODE, LOOPBACK_HOSTS};
    struct shape *shape[2] = {NULL, NULL};
    int failed = 0;
    if (make_shape("ring", &shape[0]) < 0 || make_shape("rhd", &shape[1]) < 0) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    for (int k = 0; k < 3; k++)
        failed += run(modes[k], shape);
    shape_destroy(shape[0]);
    shape_destroy(shape[1]);
    printf("%d passed, %d failed\n", 3 * WORKERS - failed, failed);
    return failed > 0;
}
