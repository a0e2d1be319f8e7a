/* plain_teams.c - teams beyond the world, over loopback, workers as threads with progress threads: for ThreadSanitizer.
 *
 * Each worker is in the world, in one half, and two of them in an overlapping team of three; collectives of all run at
 * the same time, started in different orders in different teams. Then teams come and go, hundreds of them, one always
 * alive.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "algos/spec.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "comm/transport.h"

enum { WORKERS = 4, KINDS = 4, ROUNDS = 30, COUNT = 3000, GENERATIONS = 600 };

/* Who is together: the world backwards, two halves, three of them. */
static const struct {
    int size, ranks[WORKERS];
} kinds[KINDS] = {{4, {3, 2, 1, 0}}, {2, {0, 2}}, {2, {3, 1}}, {3, {1, 3, 0}}};

struct seat {
    int rank;
    struct transport *transport;
    const struct shape *shape[WORKERS + 1]; /* by size */
    bool failed;
};

struct member {
    struct team *team;
    struct collective *collective;
    float data[COUNT];
};

static bool belongs(int kind, int rank)
{
    for (int i = 0; i < kinds[kind].size; i++)
        if (kinds[kind].ranks[i] == rank)
            return true;
    return false;
}

static float value(int kind, int rank, int round, int i)
{
    return (float)((i * 3 + rank * 17 + round + kind * 5) % 50);
}

static enum status check(const struct member *member, int kind, int round)
{
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int k = 0; k < kinds[kind].size; k++)
            sum += value(kind, kinds[kind].ranks[k], round, i);
        if (member->data[i] != sum)
            return fail(STATUS_INTERNAL, "round %d team %d element %d is wrong", round, kind, i);
    }
    return STATUS_OK;
}

static enum status run_round(struct member *members, int rank, int round)
{
    for (int n = 0; n < KINDS; n++) {
        const int kind = (n + rank) % KINDS; /* teams are independent of each other */
        if (!belongs(kind, rank))
            continue;
        for (int i = 0; i < COUNT; i++)
            members[kind].data[i] = value(kind, rank, round, i);
        TRY(collective_start(members[kind].collective, members[kind].data, members[kind].data));
    }
    clock_sleep_ns((uint64_t)(rank + round) % 3 * 500000);
    for (int kind = 0; kind < KINDS; kind++)
        if (belongs(kind, rank)) {
            TRY(collective_wait(members[kind].collective));
            TRY(check(&members[kind], kind, round));
        }
    return STATUS_OK;
}

static enum status join_teams(const struct seat *seat, struct comm *comm, struct member *members)
{
    for (int kind = 0; kind < KINDS; kind++) {
        if (!belongs(kind, seat->rank))
            continue;
        TRY(team_create(comm, kinds[kind].ranks, kinds[kind].size, &members[kind].team));
        const struct collective_request request = {.team = members[kind].team,
                                                   .shape = seat->shape[kinds[kind].size],
                                                   .name = "ring",
                                                   .count = COUNT,
                                                   .dtype = DTYPE_F32,
                                                   .op = REDUCE_SUM};
        TRY(collective_create(&request, &members[kind].collective));
    }
    return STATUS_OK;
}

/* A small sum in a team that was just made. */
static enum status use_once(const struct seat *seat, struct team *team, int generation)
{
    float data[5];
    struct collective *collective = NULL;
    const struct collective_request request = {
        .team = team, .shape = seat->shape[WORKERS], .name = "ring", .count = 5, .dtype = DTYPE_F32, .op = REDUCE_SUM};
    for (int i = 0; i < 5; i++)
        data[i] = (float)(team_rank(team) + generation);
    TRY(collective_create(&request, &collective));
    enum status status = collective_start(collective, data, data);
    if (status >= 0)
        status = collective_wait(collective);
    collective_destroy(collective);
    for (int i = 0; status >= 0 && i < 5; i++)
        if (data[i] != (float)(6 + WORKERS * generation))
            status = fail(STATUS_INTERNAL, "generation %d of teams: element %d is wrong", generation, i);
    return status;
}

/* Each team is made before the one before it goes. */
static enum status come_and_go(const struct seat *seat, struct comm *comm)
{
    enum status status = STATUS_OK;
    struct team *last = NULL;
    for (int g = 0; status >= 0 && g < GENERATIONS; g++) {
        struct team *team = NULL;
        status = team_create(comm, kinds[0].ranks, WORKERS, &team);
        if (status >= 0)
            status = use_once(seat, team, g);
        team_destroy(last);
        last = team;
    }
    team_destroy(last);
    return status;
}

static enum status work(const struct seat *seat)
{
    enum status status = STATUS_OK;
    struct comm *comm = NULL;
    struct member *members = calloc(KINDS, sizeof *members);
    const struct comm_request request = {
        .transport = seat->transport, .segment = 1024, .deadline = 60, .progress_thread = true};
    TRY_TO(done, members != NULL ? STATUS_OK : fail(STATUS_NO_MEMORY, "no memory"));
    TRY_TO(done, comm_open(&request, &comm));
    TRY_TO(done, join_teams(seat, comm, members));
    for (int round = 0; round < ROUNDS; round++)
        TRY_TO(done, run_round(members, seat->rank, round));
    TRY_TO(done, come_and_go(seat, comm));
done:
    if (status < 0)
        fprintf(stderr, "worker %d: %s\n", seat->rank, status_message());
    for (int kind = 0; members != NULL && kind < KINDS; kind++) {
        collective_destroy(members[kind].collective);
        team_destroy(members[kind].team);
    }
    comm_close(comm);
    free(members);
    return status;
}

static void *worker(void *context)
{
    struct seat *seat = context;
    seat->failed = work(seat) < 0;
    return NULL;
}

static enum status make_shape(int workers, struct shape **shape)
{
    struct spec spec;
    struct layout layout;
    TRY(spec_parse("ring", &spec));
    enum status status = layout_flat(workers, &layout);
    if (status >= 0) {
        status = spec_shape(&spec, &layout, 0, 0, shape);
        layout_release(&layout);
    }
    spec_release(&spec);
    return status;
}

static int run(enum loopback_mode mode, struct shape *shape[WORKERS + 1])
{
    struct transport *transports[WORKERS];
    struct seat seats[WORKERS];
    pthread_t threads[WORKERS];
    int failed = 0;
    if (loopback_open(WORKERS, mode, 11, transports) < 0)
        exit(1);
    for (int r = 0; r < WORKERS; r++) {
        seats[r] = (struct seat){.rank = r, .transport = transports[r]};
        for (int n = 0; n <= WORKERS; n++)
            seats[r].shape[n] = shape[n];
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
    struct shape *shape[WORKERS + 1] = {NULL};
    enum status status = STATUS_OK;
    for (int n = 2; status >= 0 && n <= WORKERS; n++)
        status = make_shape(n, &shape[n]);
    if (status < 0) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    const int failed = run(LOOPBACK_SHUFFLED, shape) + run(LOOPBACK_HOSTS, shape);
    for (int n = 0; n <= WORKERS; n++)
        shape_destroy(shape[n]);
    printf("%d passed, %d failed\n", 2 * WORKERS - failed, failed);
    return failed > 0;
}
