/* library.c - finding the library of an external. */
#include "experiments/library.h"

#include <string.h>

bool library_is_mpi(const struct external *external)
{
    return strcmp(external->stem, "mpi") == 0;
}

static enum status no_mpi(const struct external *external)
{
    return fail(STATUS_REFUSED,
                "%s: an external, and no MPI has started this job: mpiexec -n 2 chorale ... --allreduce=%s",
                external->name, external->name);
}

enum status library_possible(const struct external *external, const char *device)
{
    if (library_is_mpi(external) && device != NULL)
        return fail(STATUS_REFUSED, "%s: its library is not known to read device memory: leave out --device=%s",
                    external->name, device);
    if (library_is_mpi(external) && external_manager() == NULL)
        return no_mpi(external);
    if (!library_is_mpi(external) && device == NULL)
        return fail(STATUS_REFUSED, "%s: an external that reduces in the memory of cards: give --device=cuda",
                    external->name);
    return STATUS_OK;
}

enum status library_find(const struct external *external, const struct worker *worker, struct library *library)
{
    if (worker->inject != NULL)
        return fail(STATUS_REFUSED, "%s: an external, whose messages --inject can't reach: leave one of them out",
                    external->name);
    if (library->external != NULL)
        return STATUS_OK;
    if (!library_is_mpi(external)) {
        TRY(external_join(external->stem, worker->job, worker->device, &library->external));
        library->joined = true;
        return STATUS_OK;
    }
    library->external = worker->library;
    return library->external != NULL ? STATUS_OK : no_mpi(external);
}

void library_release(struct library *library, bool well)
{
    if (library->joined && well)
        external_close(library->external);
    *library = (struct library){.external = NULL};
}
