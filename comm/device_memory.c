/* device_memory.c - vectors of a comm in its device's memory (device_link.h), and what neighbours may read of them.
 *
 * A neighbour imports memory when it is first referred to, and gives it back when it sees that it is no longer shown: when
 * it allocates or frees itself, at the latest when it closes its comm. Until then its owner keeps it.
 *
 * libfabric could take such memory as well (FI_HMEM); Debian's 1.17 is built without CUDA, and fi_getinfo() finds no
 * provider that has it. So what leaves the node passes through pinned host memory.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/device_link.h"
#include "comm/job.h"
#include "comm/node_internal.h"

#define PROBE_BYTES 4096
/* What is shown has whole blocks of its own: CUDA puts smaller allocations into common blocks, shows all of such a block,
 * and may refuse to import a second part of it (CUDA C++ Programming Guide, Interprocess Communication). */
#define SHOWN_UNIT ((size_t)2 << 20)
#define IMPORTS_NS UINT64_C(2000000000) /* how long neighbours' imports are awaited when the comm is closed */

struct device_memory {
    unsigned char *memory;
    size_t bytes;
    bool shown;
    int place; /* retired: for node_imports() */
    struct device_memory *next;
};

/* ---- vectors ---- */

static void memory_drop(struct device_link *link, struct device_memory *memory)
{
    link->device->ops->free(link->device, memory->memory);
    free(memory);
}

/* Whatever nobody has imported any more goes. */
static void sweep(struct device_link *link)
{
    if (!link->shares)
        return;
    node_release_imports(link->comm->node, false);
    for (struct device_memory **at = &link->retired; *at != NULL;) {
        struct device_memory *memory = *at;
        if (node_imports(link->comm->node, memory->place) > 0) {
            at = &memory->next;
            continue;
        }
        *at = memory->next;
        memory_drop(link, memory);
    }
}

static enum status show(struct device_link *link, struct device_memory *memory, bool buffers)
{
    struct device_export card;
    TRY(link->device->ops->export_memory(link->device, memory->memory, &card));
    const enum status status = node_show(link->comm->node, memory->memory, memory->bytes, &card, buffers);
    memory->shown = status == STATUS_OK;
    return status; /* STATUS_AGAIN: the table is full; what is not shown is copied to what is */
}

static size_t whole_blocks(const struct device_link *link, size_t bytes)
{
    const size_t rest = bytes % SHOWN_UNIT;
    if (!link->shares || rest == 0 || bytes > SIZE_MAX - SHOWN_UNIT)
        return bytes;
    return bytes + SHOWN_UNIT - rest;
}

enum status device_memory_alloc(struct device_link *link, size_t bytes, bool buffers, void **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    sweep(link);
    TRY(memory_zeroed(&memory, 1, sizeof(struct device_memory)));
    struct device_memory *made = memory;
    made->bytes = bytes > 0 ? bytes : 1;
    TRY_TO(done, link->device->ops->alloc(link->device, whole_blocks(link, made->bytes), &memory));
    made->memory = memory;
    if (link->shares)
        TRY_TO(done, show(link, made, buffers));
    made->next = link->vectors;
    link->vectors = made;
    *out = made->memory;
    return STATUS_OK;
done:
    memory_drop(link, made);
    return status;
}

void device_memory_free(struct device_link *link, void *memory)
{
    for (struct device_memory **at = &link->vectors; *at != NULL; at = &(*at)->next) {
        struct device_memory *found = *at;
        if (found->memory != memory)
            continue;
        *at = found->next;
        if (found->shown && node_hide(link->comm->node, memory, &found->place)) {
            found->next = link->retired;
            link->retired = found;
        } else {
            memory_drop(link, found);
        }
        break;
    }
    sweep(link);
}

bool device_memory_owns(const struct device_link *link, const void *memory)
{
    const unsigned char *at = memory;
    for (const struct device_memory *m = link->vectors; m != NULL; m = m->next)
        if (at >= m->memory && at < m->memory + m->bytes)
            return true;
    return false;
}

void device_memory_close(struct device_link *link)
{
    while (link->vectors != NULL) {
        struct device_memory *memory = link->vectors;
        link->vectors = memory->next;
        memory_drop(link, memory);
    }
    while (link->retired != NULL) {
        struct device_memory *memory = link->retired;
        link->retired = memory->next;
        memory_drop(link, memory);
    }
}

/* ---- who can read whose ---- */

struct probe {
    int64_t pid;
    uint64_t exported;
    struct device_export card;
};

static bool can_import(const struct device_link *link, const struct probe *probe)
{
    void *memory = NULL;
    if (probe->exported == 0)
        return false;
    if (probe->pid == getpid())
        return true; /* by its address */
    if (link->device->ops->import_memory(link->device, &probe->card, &memory) < 0)
        return false;
    link->device->ops->import_release(link->device, memory);
    return true;
}

/* Everyone tries its neighbours', and everyone hears what came of it. */
static enum status ask_all(struct device_link *link, const struct probe *mine)
{
    enum status status = STATUS_OK;
    void *memory = NULL, *answers = NULL;
    struct job *job = link->comm->job;
    const size_t workers = (size_t)job_size(job);
    unsigned char reads = 1;
    TRY_TO(done, memory_zeroed(&memory, workers, sizeof *mine));
    TRY_TO(done, memory_zeroed(&answers, workers, 1));
    TRY_TO(done, job_allgather(job, mine, sizeof *mine, memory));
    for (size_t r = 0; r < workers; r++)
        reads = reads && (!is_near(link->comm, (int)r) || can_import(link, (const struct probe *)memory + r));
    TRY_TO(done, job_allgather(job, &reads, sizeof reads, answers));
    link->shares = link->comm->node != NULL;
    for (size_t r = 0; r < workers; r++)
        link->shares = link->shares && ((const unsigned char *)answers)[r] != 0;
done:
    free(memory);
    free(answers);
    return status;
}

enum status device_share(struct device_link *link)
{
    const struct comm *comm = link->comm;
    const struct device_ops *ops = link->device->ops;
    struct probe probe = {.pid = getpid()};
    void *memory = NULL;
    if (comm->node == NULL && !comm->mixed)
        return STATUS_OK;
    if (comm->node != NULL)
        node_use_device(comm->node, link->device);
    TRY(ops->alloc(link->device, PROBE_BYTES, &memory));
    probe.exported = ops->export_memory(link->device, memory, &probe.card) == STATUS_OK;
    enum status status = STATUS_OK;
    if (comm->job != NULL)
        status = ask_all(link, &probe);
    else
        link->shares = comm->node != NULL && probe.exported != 0; /* loopback: all are in this process */
    ops->free(link->device, memory);
    return status;
}

static bool is_imported(const struct device_link *link)
{
    const struct node *node = link->comm->node;
    for (const struct device_memory *m = link->retired; m != NULL; m = m->next)
        if (node_imports(node, m->place) > 0)
            return true;
    return false;
}

/* Neighbours that have died have nothing imported, whatever their counts say: hence the moment, and none after a failure. */
void device_unshare(struct device_link *link)
{
    struct node *node = link->comm->node;
    const uint64_t until = clock_ns() + IMPORTS_NS;
    if (node == NULL)
        return;
    node_release_imports(node, true);
    for (struct device_memory *m = link->vectors, *next; m != NULL; m = next) {
        next = m->next;
        if (!m->shown || !node_hide(node, m->memory, &m->place))
            continue;
        struct device_memory **at = &link->vectors;
        while (*at != m)
            at = &(*at)->next;
        *at = next;
        m->next = link->retired;
        link->retired = m;
    }
    while (link->comm->status == STATUS_OK && is_imported(link) && clock_ns() < until)
        clock_sleep_ns(1000000);
}
