/* interposer.c - our algorithms under the MPI_Allreduce of a program that knows nothing of them. A library of its own,
 * libchorale-mpi-STEM.so for each MPI that is installed, to be named in LD_PRELOAD (or libchorale-mpi.so, which loads the
 * right one: interposer_pick.c):
 *
 *   CHORALE_ALLREDUCE  spec of an exact schedule; must be set
 *   CHORALE_TRANSPORT  as --transport; auto without
 *
 * Ours are calls from C with MPI_SUM, MPI_MIN or MPI_MAX of float, double and signed integers of 32 and 64 bits, on any
 * communicator within MPI_COMM_WORLD, whose nodes are those of the job (comm/job.h). All others go to PMPI_Allreduce and
 * are counted, with the reason; at MPI_Finalize rank 0 says what was whose. Other collectives, non-blocking ones too, are
 * MPI's; so is a Fortran program whose MPI starts past MPI_Init. What fails here ends the job.
 *
 * Whose a call is follows from what MPI wants to be equal on all workers, so all of them decide alike. Whoever waits
 * drives MPI as well: another worker may need that to come as far as its own call. As in MPI, a wait has no deadline.
 *
 * Threads: up to MPI_THREAD_SERIALIZED; under MPI_THREAD_MULTIPLE every call goes through.
 */
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algos/spec.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "comm/job.h"
#include "comm/transport.h"

#define HOOK __attribute__((visibility("default")))
#define SPEAKING_NS UINT64_C(200000000) /* that a rank waits for each rank below it to speak */
#define READING_NS UINT64_C(100000000)  /* that mpiexec has to read it                       */
#define FILE_MOST ((size_t)64 << 20)

enum {
    CALLS_MOST = 64, /* collectives kept for a communicator; a new one then takes the oldest's place */
    TESTS = 64       /* of ours without progress before MPI is driven once                           */
};

/* Whose a call was, and why. */
enum whose { OURS, TYPE, OPERATOR, REFUSED, BETWEEN, OUTSIDE, THREADS, WHOSE_COUNT };
static const char *const reasons[WHOSE_COUNT] = {
    [TYPE] = "type",
    [OPERATOR] = "operator",
    [REFUSED] = "the algorithm refuses that many workers",
    [BETWEEN] = "intercommunicator",
    [OUTSIDE] = "communicator with processes from outside MPI_COMM_WORLD",
    [THREADS] = "MPI_THREAD_MULTIPLE",
};

struct call {
    struct shape *shape; /* NULL: refused */
    struct collective *collective;
    size_t count;
    enum dtype dtype;
    enum reduce_op op;
};

/* What hangs on a communicator. */
struct group {
    struct group *next;
    enum whose whose;
    struct team *team;    /* NULL: one worker, or not ours */
    struct layout layout; /* of the team's workers         */
    struct call calls[CALLS_MOST];
    size_t made; /* calls, those that are gone included */
};

/* The program has one MPI; so there is one of this. */
static struct {
    bool open, many_threads;
    int rank, size, keyval;
    MPI_Comm world; /* ours alone */
    struct spec spec;
    struct job *job;
    struct comm *comm;
    struct group *groups;
    atomic_ullong calls[WHOSE_COUNT];
} ours = {.world = MPI_COMM_NULL, .keyval = MPI_KEYVAL_INVALID};

/* ---- failures ---- */

static enum status check(int code, const char *what)
{
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return STATUS_OK;
    PMPI_Error_string(code, words, &length);
    return fail(STATUS_IO, "%s: %s", what, words);
}

/* What fails here mostly fails everywhere: the lowest rank says it. */
static _Noreturn void give_up(enum status status)
{
    clock_sleep_ns((uint64_t)ours.rank * SPEAKING_NS);
    fprintf(stderr, "chorale: rank %d: %s\n", ours.rank, status_message());
    clock_sleep_ns(READING_NS);
    job_remove_leftovers((long)getpid());
    PMPI_Abort(MPI_COMM_WORLD, status_exit_code(status));
    _exit(status_exit_code(status));
}

static void must(enum status status)
{
    if (status < 0)
        give_up(status);
}

/* ---- opening ---- */

static const char *environment(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment meanwhile */
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static enum status read_whole(void *context, const char *path, char **text, size_t *length)
{
    (void)context;
    return file_read(path, FILE_MOST, text, length);
}

static enum status read_spec(void)
{
    const char *text = environment("CHORALE_ALLREDUCE");
    if (text == NULL)
        return fail(STATUS_USAGE, "not set: name an algorithm, as `chorale list` shows them");
    TRY(spec_parse(text, &ours.spec));
    if (ours.spec.kind != SPEC_SCHEDULE || !spec_is_exact(&ours.spec))
        return fail(STATUS_REFUSED, "%s: MPI_Allreduce needs a schedule that computes the reduction: `chorale list`",
                    text);
    return spec_read_files(&ours.spec, read_whole, NULL);
}

/* What can't run at all on these nodes is said at once. */
static enum status check_spec(void)
{
    struct shape *shape = NULL;
    TRY(spec_shape(&ours.spec, job_layout(ours.job), 0, 1, &shape));
    shape_destroy(shape);
    return STATUS_OK;
}

static enum status gather(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context;
    if (bytes == 0)
        return check(PMPI_Barrier(ours.world), "MPI_Barrier");
    return check(PMPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, ours.world), "MPI_Allgather");
}

static enum status adopt(void)
{
    MPI_Comm node = MPI_COMM_NULL;
    struct job_manager manager = {.rank = ours.rank, .size = ours.size, .allgather = gather};
    TRY(check(PMPI_Comm_split_type(ours.world, MPI_COMM_TYPE_SHARED, ours.rank, MPI_INFO_NULL, &node),
              "MPI_Comm_split_type"));
    TRY(check(PMPI_Comm_rank(node, &manager.local_rank), "MPI_Comm_rank"));
    TRY(check(PMPI_Comm_free(&node), "MPI_Comm_free"));
    return job_adopt(&manager, NULL, &ours.job);
}

/* Everyone must have been told the same; and one worker that may call from many threads makes it so for all. */
static enum status compare(bool many_threads)
{
    enum status status = STATUS_OK;
    struct text text = {0};
    void *memory = NULL;
    uint64_t mine[2] = {0, many_threads};
    spec_identity(&ours.spec, &text);
    TRY_TO(done, text_check(&text));
    TRY_TO(done, memory_zeroed(&memory, (size_t)ours.size, sizeof mine));
    mine[0] = hash_bytes(HASH_START, text_string(&text), text.length);
    TRY_TO(done, job_allgather(ours.job, mine, sizeof mine, memory));
    const uint64_t *all = memory;
    for (int r = 0; r < ours.size; r++) {
        ours.many_threads = ours.many_threads || all[2 * r + 1] != 0;
        if (all[2 * r] != mine[0])
            TRY_TO(done, fail(STATUS_USAGE, "rank %d has another than this rank's %s: let mpiexec hand one to all", r,
                              text_string(&text)));
    }
done:
    free(memory);
    text_release(&text);
    return status;
}

static enum status open_comm(void)
{
    struct transport *transport = NULL;
    const char *name = environment("CHORALE_TRANSPORT");
    if (setenv("IPATH_NO_BACKTRACE", "1", 0) != 0) /* libfabric's psm library would take over signal handlers */
        return fail(STATUS_NO_MEMORY, "out of memory: the environment");
    const struct fabric_request fabric = {.job = ours.job, .name = name != NULL ? name : "auto"};
    enum status status = fabric_open(&fabric, &transport);
    if (status < 0)
        return fail_context(status, "CHORALE_TRANSPORT");
    const struct comm_request request = {.transport = transport, .job = ours.job};
    return comm_open(&request, &ours.comm);
}

static void group_destroy(struct group *group)
{
    for (struct group **at = &ours.groups; *at != NULL; at = &(*at)->next) {
        if (*at == group) {
            *at = group->next;
            break;
        }
    }
    for (size_t i = 0; i < CALLS_MOST; i++) {
        collective_destroy(group->calls[i].collective);
        shape_destroy(group->calls[i].shape);
    }
    team_destroy(group->team);
    layout_release(&group->layout);
    free(group);
}

static int forget(MPI_Comm comm, int keyval, void *value, void *state)
{
    (void)comm;
    (void)keyval;
    (void)state;
    if (ours.open) /* else all are gone already */
        group_destroy(value);
    return MPI_SUCCESS;
}

static enum status open_all(bool many_threads)
{
    TRY(check(PMPI_Comm_rank(MPI_COMM_WORLD, &ours.rank), "MPI_Comm_rank"));
    TRY(check(PMPI_Comm_size(MPI_COMM_WORLD, &ours.size), "MPI_Comm_size"));
    enum status status = read_spec();
    if (status < 0)
        return fail_context(status, "CHORALE_ALLREDUCE");
    TRY(check(PMPI_Comm_dup(MPI_COMM_WORLD, &ours.world), "MPI_Comm_dup"));
    TRY(check(PMPI_Comm_set_errhandler(ours.world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    TRY(check(PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &ours.keyval, NULL), "MPI_Comm_create_keyval"));
    TRY(adopt());
    status = compare(many_threads);
    if (status >= 0)
        status = check_spec();
    if (status < 0)
        return fail_context(status, "CHORALE_ALLREDUCE");
    if (ours.size > 1)
        TRY(open_comm());
    ours.open = true;
    return STATUS_OK;
}

/* ---- communicators ---- */

/* The communicator's workers by their ranks in MPI_COMM_WORLD; *outside: some have none. */
static enum status find_members(MPI_Comm comm, int *ranks, int *places, int size, bool *outside)
{
    MPI_Group all = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    TRY(check(PMPI_Comm_group(ours.world, &all), "MPI_Comm_group"));
    TRY(check(PMPI_Comm_group(comm, &members), "MPI_Comm_group"));
    for (int i = 0; i < size; i++)
        places[i] = i;
    TRY(check(PMPI_Group_translate_ranks(members, size, places, all, ranks), "MPI_Group_translate_ranks"));
    for (int i = 0; i < size; i++)
        *outside = *outside || ranks[i] == MPI_UNDEFINED;
    TRY(check(PMPI_Group_free(&members), "MPI_Group_free"));
    return check(PMPI_Group_free(&all), "MPI_Group_free");
}

/* The nodes of some workers, numbered in order of first appearance. */
static enum status find_nodes(const int *ranks, int size, struct layout *layout)
{
    const int *node_of = job_layout(ours.job)->node_of;
    TRY(layout_flat(size, layout));
    layout->nodes = 0;
    for (int i = 0; i < size; i++) {
        int first = 0;
        while (node_of[ranks[first]] != node_of[ranks[i]])
            first++;
        layout->node_of[i] = first == i ? layout->nodes++ : layout->node_of[first];
    }
    return STATUS_OK;
}

static enum status make_team(MPI_Comm comm, int size, struct group *group)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    bool outside = false;
    TRY(memory_zeroed(&memory, 2 * (size_t)size, sizeof(int)));
    int *ranks = memory;
    TRY_TO(done, find_members(comm, ranks, ranks + size, size, &outside));
    if (outside) {
        group->whose = OUTSIDE;
    } else {
        TRY_TO(done, find_nodes(ranks, size, &group->layout));
        /* Workers make a team together, and wait for each other without driving MPI. */
        TRY_TO(done, check(PMPI_Barrier(comm), "MPI_Barrier"));
        TRY_TO(done, team_create(ours.comm, ranks, size, &group->team));
    }
done:
    free(memory);
    return status;
}

static enum status make_group(MPI_Comm comm, struct group **out)
{
    enum status status = STATUS_OK;
    int between = 0, size = 0;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, 1, sizeof(struct group)));
    struct group *group = memory;
    TRY_TO(done, check(PMPI_Comm_test_inter(comm, &between), "MPI_Comm_test_inter"));
    TRY_TO(done, check(PMPI_Comm_size(comm, &size), "MPI_Comm_size"));
    if (between)
        group->whose = BETWEEN;
    else if (size > 1)
        TRY_TO(done, make_team(comm, size, group));
    TRY_TO(done, check(PMPI_Comm_set_attr(comm, ours.keyval, group), "MPI_Comm_set_attr"));
    group->next = ours.groups;
    ours.groups = group;
    *out = group;
done:
    if (status < 0)
        group_destroy(group);
    return status;
}

static enum status find_group(MPI_Comm comm, bool make, struct group **group)
{
    int found = 0;
    *group = NULL;
    TRY(check(PMPI_Comm_get_attr(comm, ours.keyval, (void *)group, &found), "MPI_Comm_get_attr"));
    if (!found)
        *group = NULL;
    return found || !make ? STATUS_OK : make_group(comm, group);
}

/* Before it goes all must be done with it: what comes late would be taken for a later team's. */
static void part(MPI_Comm comm)
{
    struct group *group = NULL;
    if (!ours.open || comm == MPI_COMM_NULL)
        return;
    must(find_group(comm, false, &group));
    if (group != NULL && group->team != NULL)
        must(check(PMPI_Barrier(comm), "MPI_Barrier"));
}

/* ---- calls ---- */

_Static_assert(sizeof(int) == 4 && sizeof(long) == 8 && sizeof(long long) == 8, "types by their size");

static bool find_dtype(MPI_Datatype type, enum dtype *dtype)
{
    const struct {
        MPI_Datatype type;
        enum dtype dtype;
    } known[] = {{MPI_FLOAT, DTYPE_F32},   {MPI_DOUBLE, DTYPE_F64}, {MPI_INT, DTYPE_I32},      {MPI_INT32_T, DTYPE_I32},
                 {MPI_INT64_T, DTYPE_I64}, {MPI_LONG, DTYPE_I64},   {MPI_LONG_LONG, DTYPE_I64}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].type == type) {
            *dtype = known[i].dtype;
            return true;
        }
    }
    return false;
}

static bool find_operator(MPI_Op op, enum reduce_op *reduce_op)
{
    if (op == MPI_SUM)
        *reduce_op = REDUCE_SUM;
    else if (op == MPI_MIN)
        *reduce_op = REDUCE_MIN;
    else if (op == MPI_MAX)
        *reduce_op = REDUCE_MAX;
    else
        return false;
    return true;
}

/* A shape that is refused stays NULL: MPI then does the call. */
static enum status make_call(const struct group *group, struct call *call)
{
    struct text name = {0};
    const struct shape_request wanted = {
        .layout = &group->layout, .count = call->count, .element_bytes = dtype_size(call->dtype)};
    enum status status = spec_shape_for(&ours.spec, &wanted, &call->shape);
    if (status == STATUS_REFUSED) {
        call->shape = NULL;
        return STATUS_OK;
    }
    TRY(status);
    spec_call_name(&ours.spec, call->shape, &name);
    const struct collective_request request = {.team = group->team,
                                               .shape = call->shape,
                                               .name = text_string(&name),
                                               .count = call->count,
                                               .dtype = call->dtype,
                                               .op = call->op};
    status = text_check(&name);
    if (status >= 0)
        status = collective_create(&request, &call->collective);
    text_release(&name);
    return status;
}

static enum status find_call(struct group *group, const struct call *wanted, struct call **call)
{
    const size_t kept = group->made < CALLS_MOST ? group->made : CALLS_MOST;
    for (size_t i = 0; i < kept; i++) {
        struct call *c = &group->calls[i];
        if (c->count == wanted->count && c->dtype == wanted->dtype && c->op == wanted->op) {
            *call = c;
            return STATUS_OK;
        }
    }
    *call = &group->calls[group->made % CALLS_MOST];
    collective_destroy((*call)->collective);
    shape_destroy((*call)->shape);
    **call = *wanted;
    TRY(make_call(group, *call));
    group->made++;
    return STATUS_OK;
}

static enum status finish(struct collective *collective)
{
    enum status status = collective_test(collective);
    for (unsigned tests = 1; status == STATUS_AGAIN; tests++) {
        int flag = 0;
        if (tests % TESTS == 0)
            TRY(check(PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ours.world, &flag, MPI_STATUS_IGNORE), "MPI_Iprobe"));
        sched_yield();
        status = collective_test(collective);
    }
    return status;
}

static enum status run(struct group *group, const void *input, void *output, const struct call *wanted,
                       enum whose *whose)
{
    struct call *call = NULL;
    if (input == MPI_IN_PLACE)
        input = output;
    if (group->team == NULL) {
        if (input != output && wanted->count > 0)
            memcpy(output, input, wanted->count * dtype_size(wanted->dtype));
        return STATUS_OK;
    }
    TRY(find_call(group, wanted, &call));
    if (call->shape == NULL) {
        *whose = REFUSED;
        return STATUS_OK;
    }
    TRY(collective_start(call->collective, input, output));
    return finish(call->collective);
}

/* True: done. */
static bool take(const void *input, void *output, size_t count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct group *group = NULL;
    struct call wanted = {.count = count};
    enum whose whose = OURS;
    if (ours.many_threads)
        whose = THREADS;
    else if (!find_dtype(type, &wanted.dtype))
        whose = TYPE;
    else if (!find_operator(op, &wanted.op))
        whose = OPERATOR;
    if (whose == OURS) {
        must(find_group(comm, true, &group));
        whose = group->whose;
    }
    if (whose == OURS) {
        enum status status = run(group, input, output, &wanted, &whose);
        if (status < 0)
            give_up(fail_context(status, "MPI_Allreduce"));
    }
    atomic_fetch_add(&ours.calls[whose], 1);
    return whose == OURS;
}

/* ---- closing ---- */

static enum status say_counts(void)
{
    unsigned long long mine[WHOSE_COUNT], all[WHOSE_COUNT] = {0}, theirs = 0;
    struct text line = {0};
    for (int w = 0; w < WHOSE_COUNT; w++)
        mine[w] = atomic_load(&ours.calls[w]);
    TRY(check(PMPI_Reduce(mine, all, WHOSE_COUNT, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, ours.world), "MPI_Reduce"));
    if (ours.rank != 0)
        return STATUS_OK;
    for (int w = OURS + 1; w < WHOSE_COUNT; w++)
        theirs += all[w];
    text_addf(&line, "chorale: MPI_Allreduce on %d workers, calls of all: %llu by ", ours.size, all[OURS]);
    spec_canonical(&ours.spec, &line);
    text_addf(&line, " over %s, %llu by MPI itself", ours.comm != NULL ? comm_transport(ours.comm) : "nothing", theirs);
    const char *between = " (";
    for (int w = OURS + 1; w < WHOSE_COUNT; w++) {
        if (all[w] == 0)
            continue;
        text_addf(&line, "%s%llu: %s", between, all[w], reasons[w]);
        between = ", ";
    }
    text_add(&line, theirs > 0 ? ")\n" : "\n");
    enum status status = text_check(&line);
    if (status >= 0)
        fputs(text_string(&line), stderr);
    text_release(&line);
    return status;
}

static enum status close_all(void)
{
    TRY(say_counts());
    TRY(job_barrier(ours.job)); /* everyone has all its bytes before anyone's endpoint goes */
    while (ours.groups != NULL)
        group_destroy(ours.groups);
    ours.open = false;
    comm_close(ours.comm);
    job_destroy(ours.job);
    spec_release(&ours.spec);
    TRY(check(PMPI_Comm_free_keyval(&ours.keyval), "MPI_Comm_free_keyval"));
    return check(PMPI_Comm_free(&ours.world), "MPI_Comm_free");
}

/* ---- what the program calls ---- */

HOOK int MPI_Init(int *argc, char ***argv)
{
    fabric_set_environment(); /* MPI may be the first that calls libfabric */
    const int code = PMPI_Init(argc, argv);
    if (code == MPI_SUCCESS)
        must(open_all(false));
    return code;
}

HOOK int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    fabric_set_environment();
    const int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS)
        must(open_all(required == MPI_THREAD_MULTIPLE && *provided == MPI_THREAD_MULTIPLE));
    return code;
}

HOOK int MPI_Finalize(void)
{
    if (ours.open)
        must(close_all());
    return PMPI_Finalize();
}

HOOK int MPI_Comm_free(MPI_Comm *comm)
{
    part(*comm);
    return PMPI_Comm_free(comm);
}

HOOK int MPI_Comm_disconnect(MPI_Comm *comm)
{
    part(*comm);
    return PMPI_Comm_disconnect(comm);
}

/* What is plainly wrong MPI shall say itself. */
static bool can_be_taken(long long count, MPI_Comm comm)
{
    return ours.open && count >= 0 && comm != MPI_COMM_NULL;
}

HOOK int MPI_Allreduce(const void *input, void *output, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (can_be_taken(count, comm) && take(input, output, (size_t)count, type, op, comm))
        return MPI_SUCCESS;
    return PMPI_Allreduce(input, output, count, type, op, comm);
}

#if MPI_VERSION >= 4
HOOK int MPI_Allreduce_c(const void *input, void *output, MPI_Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    if (can_be_taken(count, comm) && take(input, output, (size_t)count, type, op, comm))
        return MPI_SUCCESS;
    return PMPI_Allreduce_c(input, output, count, type, op, comm);
}
#endif
