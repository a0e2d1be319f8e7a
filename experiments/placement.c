/* placement.c - binding a worker, and telling where all of them run. */
#include "experiments/placement.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "comm/topology.h"

enum { THREADS_MOST = 4096, TOLD_MOST = 16 };

static const char *variable(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment */
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* A list of numbers by nesting level; 0: not set, or nothing that we could follow. */
static int openmp_threads(void)
{
    const char *text = variable("OMP_NUM_THREADS");
    const long value = text != NULL ? strtol(text, NULL, 10) : 0;
    return value >= 1 && value <= THREADS_MOST ? (int)value : 0;
}

static bool openmp_places(void)
{
    const char *bind = variable("OMP_PROC_BIND");
    return variable("OMP_PLACES") != NULL || variable("GOMP_CPU_AFFINITY") != NULL ||
           (bind != NULL && strcasecmp(bind, "false") != 0);
}

static enum bind bind_of(const struct option_values *options)
{
    static const char *const names[] = {"auto", "none", "core", "socket"};
    int k = 0;
    while (strcmp(names[k], option_text(options, "bind")) != 0)
        k++;
    return (enum bind)k;
}

static void reckon_threads(const struct option_values *options, const struct job *job, const struct topology *topology,
                           double quota, struct placement *placement)
{
    const int told = openmp_threads();
    const int cores = bind_threads(topology, job_share_size(job), quota * job_share_size(job) / job_local_size(job));
    placement->told = told > 0;
    placement->threads = told > 0 ? told : cores;
    if (option_given(options, "threads")) {
        placement->threads = (int)option_int(options, "threads");
        placement->told = false;
        placement->ignored = told != placement->threads ? told : 0;
    }
    placement->spare = placement->threads < cores;
}

static enum status bind_worker(const struct bind_request *request, const struct topology *topology,
                               struct placement *placement)
{
    struct host_cpus cpus;
    TRY(bind_plan(request, topology, &cpus, &placement->why));
    if (host_cpus_count(&cpus) == 0)
        return STATUS_OK;
    const enum status status = host_bind(&cpus);
    placement->bound = status == STATUS_OK;
    placement->why = "the system forbids it";
    return request->bind == BIND_AUTO ? STATUS_OK : status;
}

static enum status place(const struct option_values *options, struct job *job, bool computes,
                         struct placement *placement)
{
    struct topology topology;
    struct host_cpus allowed;
    const double quota = host_cpu_quota();
    placement->threads = 1;
    placement->why = job_share_size(job) == 1 ? "alone" : "as --bind=none says";
    if (!computes && (bind_of(options) == BIND_NONE || job_share_size(job) == 1))
        return STATUS_OK; /* reading takes hundredths of a second */
    host_cpus_allowed(&allowed);
    TRY(topology_read(&allowed, &topology));
    if (computes)
        reckon_threads(options, job, &topology, quota, placement);
    const struct bind_request request = {.bind = bind_of(options),
                                         .rank = job_share_rank(job),
                                         .size = job_share_size(job),
                                         .threads = placement->threads,
                                         .quota = quota,
                                         .bound = job_share_size(job) < job_local_size(job),
                                         .by_openmp = openmp_places()};
    const enum status status = bind_worker(&request, &topology, placement);
    topology_release(&topology);
    return status;
}

enum status placement_make(const struct option_values *options, struct job *job, bool computes,
                           struct placement *placement)
{
    void *memory = NULL;
    struct host_cpus mine;
    *placement = (struct placement){.workers = job_size(job)};
    TRY(memory_zeroed(&memory, (size_t)job_size(job), sizeof(struct host_cpus)));
    placement->cpus = memory;
    TRY(place(options, job, computes, placement));
    host_cpus_allowed(&mine);
    return job_allgather(job, &mine, sizeof mine, placement->cpus);
}

void placement_release(struct placement *placement)
{
    free(placement->cpus);
    *placement = (struct placement){.cpus = NULL};
}

/* ---- telling ---- */

static bool all_alike(const struct placement *placement)
{
    for (int i = 1; i < placement->workers; i++)
        if (!host_cpus_equal(&placement->cpus[i], &placement->cpus[0]))
            return false;
    return true;
}

static void describe_cpus(const struct placement *placement, struct text *text)
{
    const int told = all_alike(placement) ? 1 : placement->workers;
    text_add(text, ", CPUs ");
    for (int i = 0; i < told && i < TOLD_MOST; i++) {
        text_add(text, i > 0 ? " | " : "");
        host_cpus_describe(&placement->cpus[i], text);
    }
    text_add(text, told > TOLD_MOST ? " | ..." : "");
    if (placement->bound)
        text_add(text, " (bound)");
    else
        text_addf(text, " (not bound: %s)", placement->why);
}

void placement_describe(const struct placement *placement, const struct job *job, struct text *text)
{
    text_add(text, "nodes ");
    layout_describe(job_layout(job), text);
    describe_cpus(placement, text);
    text_addf(text, ", %d thread%s each", placement->threads, placement->threads > 1 ? "s" : "");
    if (placement->told)
        text_add(text, " (OMP_NUM_THREADS)");
    if (placement->ignored > 0)
        text_addf(text, " (not OMP_NUM_THREADS=%d)", placement->ignored);
    if (topology_library() != NULL)
        text_addf(text, ", hwloc %s", topology_library());
    else
        text_add(text, ", without hwloc");
}

static json_t *cpus_json(const struct placement *placement)
{
    json_t *array = json_array();
    for (int i = 0; i < placement->workers; i++) {
        struct text text = {0};
        host_cpus_describe(&placement->cpus[i], &text);
        (void)json_array_append_new(array, json_string(text_string(&text)));
        text_release(&text);
    }
    return array;
}

json_t *placement_json(const struct placement *placement, const struct job *job)
{
    struct text nodes = {0};
    layout_describe(job_layout(job), &nodes);
    json_t *object = json_pack("{ss so sb ss? si ss?}", "nodes", text_string(&nodes), "cpus", cpus_json(placement),
                               "bound", placement->bound, "why", placement->bound ? NULL : placement->why, "threads",
                               placement->threads, "hwloc", topology_library());
    text_release(&nodes);
    return object;
}
