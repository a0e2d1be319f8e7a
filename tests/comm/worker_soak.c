/* worker_soak.c - one worker of a soak: collectives back to back, each drawn at random (algorithm, size, element type, operator,
 * in place or not, team, how many at once, which memory, who dawdles), every element checked. In the end memory must not
 * have grown.
 *
 *   chorale run -n 4 -- comm_worker_soak TRANSPORT COUNT SEED [storm]
 *
 * storm: a signal each millisecond interrupts whatever system call goes on.
 *
 * All workers draw alike from the seed. Exit 0: all is well; else one line says what is not.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "algos/layout.h"
#include "algos/spec.h"
#include "base/clock.h"
#include "base/half.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/job.h"
#include "comm/transport.h"

enum { AT_ONCE = 3, WORKERS_MOST = 64, ELEMENTS_MOST = 40000, TEAM_LIFE = 40, VALUES = 11 };
#define GROWTH_MOST ((long)8 << 20) /* bytes of resident memory after the first fifth */

/* One collective of an iteration. */
struct call {
    struct shape *shape;
    struct collective *collective;
    size_t count;
    enum dtype dtype;
    enum reduce_op op;
    bool in_place, shared;
    const void *input;
    void *output;
    bool under_way;
};

struct soak {
    struct job *job;
    struct comm *comm;
    struct team *team; /* of some workers; NULL: this one is not in it */
    int members[WORKERS_MOST], team_size;
    struct spec specs[64];
    size_t spec_count;
    void *shared[AT_ONCE][2], *own[AT_ONCE][2];
    uint64_t seed;
};

static uint64_t drawn(const struct soak *soak, const char *what, uint64_t iteration, uint64_t call, uint64_t bound)
{
    return rng_below(rng_key(soak->seed, what, iteration, call), 0, bound);
}

/* ---- elements ---- */

/* A small whole number: sums of 64 of them are exact in every type. */
static int value_of(int rank, size_t index, uint64_t iteration)
{
    return (int)(((uint64_t)rank * 7 + index * 3 + iteration) % VALUES) - VALUES / 2;
}

static void put(void *to, enum dtype dtype, size_t i, double value)
{
    switch (dtype) {
    case DTYPE_F32:
        ((float *)to)[i] = (float)value;
        break;
    case DTYPE_F64:
        ((double *)to)[i] = value;
        break;
    case DTYPE_I32:
        ((int32_t *)to)[i] = (int32_t)value;
        break;
    case DTYPE_I64:
        ((int64_t *)to)[i] = (int64_t)value;
        break;
    case DTYPE_F16:
        ((uint16_t *)to)[i] = f16_from_f32((float)value);
        break;
    default:
        ((uint16_t *)to)[i] = bf16_from_f32((float)value);
        break;
    }
}

static double get(const void *from, enum dtype dtype, size_t i)
{
    switch (dtype) {
    case DTYPE_F32:
        return (double)((const float *)from)[i];
    case DTYPE_F64:
        return ((const double *)from)[i];
    case DTYPE_I32:
        return ((const int32_t *)from)[i];
    case DTYPE_I64:
        return (double)((const int64_t *)from)[i];
    case DTYPE_F16:
        return (double)f16_to_f32(((const uint16_t *)from)[i]);
    default:
        return (double)bf16_to_f32(((const uint16_t *)from)[i]);
    }
}

static double expected(const struct soak *soak, const struct call *call, bool world, size_t index, uint64_t iteration)
{
    const int size = world ? job_size(soak->job) : soak->team_size;
    double result = 0;
    for (int k = 0; k < size; k++) {
        const double value = value_of(world ? k : soak->members[k], index, iteration);
        if (k == 0 || (call->op == REDUCE_MIN && value < result) || (call->op == REDUCE_MAX && value > result))
            result = value;
        else if (call->op == REDUCE_SUM || call->op == REDUCE_AVG)
            result += value;
    }
    const int mean = (int)result / size; /* of whole numbers, cut off */
    return call->op == REDUCE_AVG ? (double)mean : result;
}

/* ---- one collective ---- */

static enum status open_shape(const struct soak *soak, const struct call *call, int workers, uint64_t choice,
                              struct shape **shape)
{
    struct layout layout;
    const struct spec *spec = &soak->specs[choice % soak->spec_count];
    TRY(choice % 3 == 0 ? layout_groups(workers, 2, &layout) : layout_flat(workers, &layout));
    enum status status = spec_shape(spec, &layout, 0, call->count, shape);
    for (size_t k = 0; status == STATUS_REFUSED && k < soak->spec_count;
         k++) /* not for so many workers: the next one */
        status = spec_shape(&soak->specs[(choice + k) % soak->spec_count], &layout, 0, call->count, shape);
    layout_release(&layout);
    return status;
}

static enum status call_start(struct soak *soak, uint64_t iteration, int number, bool world, struct call *call)
{
    static const size_t sizes[] = {0, 1, 3, 7, 64, 1000, 4097, ELEMENTS_MOST};
    const int rank = job_rank(soak->job), workers = world ? job_size(soak->job) : soak->team_size;
    const uint64_t n = (uint64_t)number, choice = drawn(soak, "spec", iteration, n, 1 << 20);
    struct text name = {0};
    *call = (struct call){.count = sizes[drawn(soak, "size", iteration, n, sizeof sizes / sizeof *sizes)],
                          .dtype = (enum dtype)drawn(soak, "dtype", iteration, n, DTYPE_COUNT),
                          .op = (enum reduce_op)drawn(soak, "op", iteration, n, REDUCE_OP_COUNT),
                          .in_place = drawn(soak, "place", iteration, n, 2) == 0};
    if (call->count > 1)
        call->count -= drawn(soak, "less", iteration, n, call->count / 2 + 1);
    if (call->op == REDUCE_AVG && call->dtype != DTYPE_I32 && call->dtype != DTYPE_I64)
        call->op = REDUCE_SUM;
    void **memory =
        drawn(soak, "memory", iteration + (uint64_t)rank, n, 2) == 0 ? soak->shared[number] : soak->own[number];
    call->input = call->in_place ? memory[1] : memory[0];
    call->output = memory[1];
    for (size_t i = 0; i < call->count; i++)
        put(call->in_place ? memory[1] : memory[0], call->dtype, i, value_of(rank, i, iteration));
    TRY(open_shape(soak, call, workers, choice, &call->shape));
    if (call->shape == NULL)
        return fail(STATUS_INTERNAL, "soak: no schedules");
    text_addf(&name, "%s %d", call->shape->algorithm->name, number);
    const struct collective_request request = {.team = world ? comm_world(soak->comm) : soak->team,
                                               .shape = call->shape,
                                               .name = text_string(&name),
                                               .count = call->count,
                                               .dtype = call->dtype,
                                               .op = call->op};
    enum status status = collective_create(&request, &call->collective);
    if (status == STATUS_OK)
        status = collective_start(call->collective, call->input, call->output);
    call->under_way = status == STATUS_OK;
    text_release(&name);
    return status;
}

static enum status call_check(const struct soak *soak, const struct call *call, bool world, uint64_t iteration)
{
    for (size_t i = 0; i < call->count; i++) {
        const double want = expected(soak, call, world, i, iteration), have = get(call->output, call->dtype, i);
        if (want != have)
            return fail(STATUS_FORMAT, "iteration %llu, %s of %zu %s, %s%s: element %zu is %g instead of %g",
                        (unsigned long long)iteration, call->shape->algorithm->name, call->count,
                        dtype_name(call->dtype), reduce_op_name(call->op), call->in_place ? ", in place" : "", i, have,
                        want);
    }
    return STATUS_OK;
}

static void dawdle(const struct soak *soak, uint64_t iteration, uint64_t when)
{
    const uint64_t key = rng_key(soak->seed, "dawdle", (uint64_t)job_rank(soak->job), when);
    if (rng_below(key, 2 * iteration, 4) == 0)
        clock_sleep_ns(rng_below(key, 2 * iteration + 1, 1000000));
}

/* In an order of its own, wait and check. */
static enum status iterate(struct soak *soak, uint64_t iteration)
{
    struct call calls[AT_ONCE];
    const bool world = soak->team_size == 0 || drawn(soak, "world", iteration, 0, 2) == 0;
    const int count = 1 + (int)drawn(soak, "at once", iteration, 0, AT_ONCE);
    const int first =
        (int)rng_below(rng_key(soak->seed, "first", iteration, (uint64_t)job_rank(soak->job)), 0, AT_ONCE);
    enum status status = STATUS_OK;
    memset(calls, 0, sizeof calls);
    if (!world && soak->team == NULL)
        return STATUS_OK;
    for (int k = 0; k < count && status == STATUS_OK; k++) {
        status = call_start(soak, iteration, k, world, &calls[k]);
        dawdle(soak, iteration, (uint64_t)k);
    }
    for (int k = 0; k < AT_ONCE && status == STATUS_OK; k++) {
        struct call *call = &calls[(k + first) % AT_ONCE];
        if (!call->under_way)
            continue;
        status = collective_wait(call->collective);
        if (status == STATUS_OK)
            status = call_check(soak, call, world, iteration);
    }
    for (int k = 0; k < AT_ONCE; k++) {
        collective_destroy(calls[k].collective);
        shape_destroy(calls[k].shape);
    }
    return status;
}

/* ---- teams ---- */

static enum status change_team(struct soak *soak, uint64_t iteration)
{
    const int workers = job_size(soak->job);
    bool mine = false;
    team_destroy(soak->team);
    soak->team = NULL;
    soak->team_size = 0;
    for (int i = 0; i < workers; i++) {
        const int rank = (int)rng_permute(rng_key(soak->seed, "team", iteration, 0), (uint64_t)workers, (uint64_t)i);
        if (drawn(soak, "member", iteration, (uint64_t)i, 3) == 0)
            continue;
        soak->members[soak->team_size++] = rank;
        mine = mine || rank == job_rank(soak->job);
    }
    if (!mine)
        return STATUS_OK;
    return team_create(soak->comm, soak->members, soak->team_size, &soak->team);
}

/* ---- the soak ---- */

static long resident_bytes(void)
{
    long pages = 0, all = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%ld %ld", &all, &pages) != 2) /* NOLINT(cert-err34-c): the kernel's own numbers */
        pages = 0;
    (void)fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static enum status soak_open(struct soak *soak, const char *transport_name)
{
    struct transport *transport = NULL;
    size_t algorithms = 0;
    const struct algorithm *const *catalogue = catalogue_algorithms(&algorithms);
    const struct job_options options = {.deadline = 60};
    TRY(job_join(&options, &soak->job));
    if (job_size(soak->job) > WORKERS_MOST)
        return fail(STATUS_USAGE, "soak: at most %d workers", (int)WORKERS_MOST);
    const struct fabric_request fabric = {.job = soak->job, .name = transport_name};
    TRY(fabric_open(&fabric, &transport));
    const struct comm_request request = {.transport = transport,
                                         .job = soak->job,
                                         .deadline = 60,
                                         .segment = 8192, /* so that vectors have several */
                                         .progress_thread = job_rank(soak->job) % 2 == 1};
    TRY(comm_open(&request, &soak->comm));
    for (size_t i = 0; i < algorithms && soak->spec_count < sizeof soak->specs / sizeof *soak->specs; i++)
        if (algorithm_in_all(catalogue[i]))
            TRY(spec_parse(catalogue[i]->name, &soak->specs[soak->spec_count++]));
    for (int i = 0; i < AT_ONCE * 2; i++) {
        TRY(comm_alloc(soak->comm, ELEMENTS_MOST * sizeof(double), &soak->shared[i / 2][i % 2]));
        soak->own[i / 2][i % 2] = calloc(ELEMENTS_MOST, sizeof(double));
        if (soak->own[i / 2][i % 2] == NULL)
            return fail(STATUS_NO_MEMORY, "soak: no memory");
    }
    return STATUS_OK;
}

static enum status soak_run(struct soak *soak, uint64_t count)
{
    long warm = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (i % TEAM_LIFE == 0)
            TRY(change_team(soak, i));
        if (i == count / 5)
            warm = resident_bytes();
        TRY(iterate(soak, i));
    }
    const long grown = resident_bytes() - warm;
    if (job_rank(soak->job) == 0)
        printf("soak: %llu iterations on %d workers over %s: memory %+ld KiB\n", (unsigned long long)count,
               job_size(soak->job), comm_transport(soak->comm), grown / 1024);
    return grown <= GROWTH_MOST ? STATUS_OK
                                : fail(STATUS_INTERNAL, "resident memory has grown by %ld KiB since iteration %llu",
                                       grown / 1024, (unsigned long long)(count / 5));
}

static void soak_close(struct soak *soak)
{
    team_destroy(soak->team);
    comm_close(soak->comm);
    job_destroy(soak->job);
    for (size_t i = 0; i < soak->spec_count; i++)
        spec_release(&soak->specs[i]);
    for (int i = 0; i < AT_ONCE * 2; i++)
        free(soak->own[i / 2][i % 2]);
}

static void ignore(int number)
{
    (void)number;
}

/* No SA_RESTART: calls fail with EINTR. */
static void storm_begin(void)
{
    const struct sigaction action = {.sa_handler = ignore};
    const struct itimerval each = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};
    (void)sigaction(SIGALRM, &action, NULL);
    (void)setitimer(ITIMER_REAL, &each, NULL);
}

int main(int argc, char **argv)
{
    static struct soak soak;
    if (argc != 4 && argc != 5) {
        (void)fputs("usage: comm_worker_soak TRANSPORT COUNT SEED, under chorale run -n N --\n", stderr);
        return 2;
    }
    soak.seed = strtoull(argv[3], NULL, 10);
    if (argc == 5)
        storm_begin();
    enum status status = soak_open(&soak, argv[1]);
    if (status == STATUS_OK)
        status = soak_run(&soak, strtoull(argv[2], NULL, 10));
    if (status == STATUS_OK)
        status = job_barrier(soak.job);
    if (status == STATUS_OK)
        status = job_leave(soak.job);
    if (status < 0 && (soak.job == NULL || !job_abort(soak.job, status, status_message())))
        (void)fprintf(stderr, "soak: %s\n", status_message());
    soak_close(&soak);
    return status_exit_code(status);
}
