/* arena.c - memory of a worker that its neighbours read in place, and reading what is no such memory (node.h). */
#define _GNU_SOURCE /* memfd_create, process_vm_readv, fallocate, seals */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/host.h"
#include "comm/node_internal.h"

#define PAGE ((size_t)4096)
#define KEPT 16 /* places that vectors leave to buffers, which neighbours must be able to read */

/* ---- our own ---- */

/* What this worker asks for, and what its neighbours will if they take as much in all. */
static uint64_t needed(const struct node *node, size_t bytes)
{
    const uint64_t mine = atomic_load(&node->block->arena_bytes) + bytes;
    uint64_t sum = bytes;
    for (int place = 0; place < node->count; place++) {
        if (place == node->self || node->neighbour[place].block == NULL)
            continue;
        const uint64_t theirs = atomic_load(&node->neighbour[place].block->arena_bytes);
        sum += theirs < mine ? mine - theirs : 0;
    }
    return sum;
}

static enum status arena_make(struct node *node, struct arena *arena, size_t bytes)
{
    const uint64_t wanted = needed(node, bytes), available = host_memory_available();
    if (available != 0 && wanted > available)
        return fail(STATUS_NO_MEMORY,
                    "out of memory: %llu MiB needed by the workers of this host for buffers of %llu MiB, %llu MiB are "
                    "available: take smaller vectors or fewer workers",
                    (unsigned long long)(wanted >> 20), (unsigned long long)(bytes >> 20),
                    (unsigned long long)(available >> 20));
    arena->bytes = bytes;
    arena->fd = memfd_create("chorale-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0 || fallocate(arena->fd, 0, 0, (off_t)bytes) != 0 ||
        fcntl(arena->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return fail(STATUS_NO_MEMORY, "out of memory: %zu bytes of shared memory: %s", bytes, strerror(errno));
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, arena->fd, 0);
    if (memory == MAP_FAILED)
        return fail(STATUS_NO_MEMORY, "out of memory: map %zu bytes: %s", bytes, strerror(errno));
    arena->memory = memory;
    return STATUS_OK;
}

/* Neighbours may still have it mapped: their view keeps its pages only until the hole is made. */
static void arena_drop(struct arena *arena)
{
    if (arena->memory != NULL)
        (void)munmap(arena->memory, arena->bytes);
    if (arena->fd >= 0) {
        (void)fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)arena->bytes);
        (void)close(arena->fd);
    }
    *arena = (struct arena){.fd = -1};
}

/* A place of the table; NODE_ARENAS: all are taken. */
static int free_place(const struct node *node, bool buffers)
{
    const int end = buffers ? NODE_ARENAS : NODE_ARENAS - KEPT;
    int k = 0;
    while (k < end && (node->arena[k].memory != NULL || node_imports(node, k) > 0))
        k++;
    return k < end ? k : NODE_ARENAS;
}

static void show(struct node *node, int k)
{
    struct arena *arena = &node->arena[k];
    struct shown_arena *shown = &node->block->arena[k];
    arena->serial = ++node->serials;
    atomic_store(&shown->fd, arena->fd);
    atomic_store(&shown->kind, arena->kind);
    atomic_store(&shown->bytes, arena->bytes);
    atomic_store(&shown->address, (uintptr_t)arena->memory);
    atomic_store(&shown->serial, arena->serial);
}

static enum status alloc_arena(struct node *node, size_t bytes, enum arena_kind kind, void **memory)
{
    const int k = free_place(node, kind == ARENA_STAGING);
    size_t whole = 0;
    if (k == NODE_ARENAS)
        return STATUS_AGAIN;
    if (!checked_add(bytes > 0 ? bytes : 1, PAGE - 1, &whole) || whole > SIZE_MAX / 4)
        return fail(STATUS_NO_MEMORY, "out of memory: %zu bytes do not fit an address space", bytes);
    whole = whole / PAGE * PAGE;
    struct arena *arena = &node->arena[k];
    *arena = (struct arena){.fd = -1, .kind = kind};
    const enum status status = arena_make(node, arena, whole);
    if (status < 0) {
        arena_drop(arena);
        return status;
    }
    show(node, k);
    atomic_fetch_add(&node->block->arena_bytes, whole);
    *memory = arena->memory;
    return STATUS_OK;
}

enum status node_alloc(struct node *node, size_t bytes, void **memory)
{
    return alloc_arena(node, bytes, ARENA_HOST, memory);
}

enum status node_alloc_staging(struct node *node, size_t bytes, void **memory)
{
    return alloc_arena(node, bytes, ARENA_STAGING, memory);
}

static void hide(struct node *node, int k)
{
    atomic_store(&node->block->arena[k].serial, 0);
    atomic_fetch_sub(&node->block->arena_bytes, node->arena[k].bytes);
    arena_drop(&node->arena[k]);
}

bool node_free(struct node *node, void *memory)
{
    for (int k = 0; memory != NULL && k < NODE_ARENAS; k++) {
        if (node->arena[k].memory == memory && node->arena[k].kind != ARENA_DEVICE) {
            hide(node, k);
            return true;
        }
    }
    return false;
}

bool node_locate(const struct node *node, const void *data, size_t bytes, struct node_place *place)
{
    const unsigned char *at = data;
    for (uint32_t k = 0; k < NODE_ARENAS; k++) {
        const struct arena *arena = &node->arena[k];
        if (arena->memory == NULL || at < arena->memory || at >= arena->memory + arena->bytes)
            continue;
        if (bytes > (size_t)(arena->memory + arena->bytes - at))
            return false;
        *place = (struct node_place){.arena = k + 1, .serial = arena->serial, .offset = (uint64_t)(at - arena->memory)};
        return true;
    }
    *place = (struct node_place){.arena = 0, .offset = (uintptr_t)data};
    return node->reads;
}

/* ---- memory of a device ---- */

void node_use_device(struct node *node, struct device *device)
{
    node->device = device;
}

enum status node_show(struct node *node, void *memory, size_t bytes, const struct device_export *card, bool buffers)
{
    const int k = free_place(node, buffers);
    if (k == NODE_ARENAS)
        return STATUS_AGAIN;
    node->arena[k] = (struct arena){.memory = memory, .bytes = bytes, .fd = -1, .kind = ARENA_DEVICE};
    node->block->arena[k].card = *card;
    show(node, k);
    return STATUS_OK;
}

bool node_hide(struct node *node, void *memory, int *place)
{
    for (int k = 0; k < NODE_ARENAS; k++) {
        if (node->arena[k].memory != memory || node->arena[k].kind != ARENA_DEVICE)
            continue;
        atomic_store(&node->block->arena[k].serial, 0);
        node->arena[k] = (struct arena){.fd = -1};
        *place = k;
        return node_imports(node, k) > 0;
    }
    return false;
}

unsigned node_imports(const struct node *node, int place)
{
    return atomic_load(&node->block->arena[place].imports);
}

/* ---- the neighbours' ---- */

static void unmap(struct node *node, struct neighbour *n, int k)
{
    struct foreign_arena *arena = &n->arena[k];
    if (arena->registered)
        node->device->ops->host_unregister(node->device, arena->memory);
    if (arena->imported) {
        node->device->ops->import_release(node->device, arena->memory);
        atomic_fetch_sub(&n->block->arena[k].imports, 1);
    }
    if (arena->mapped)
        (void)munmap(arena->memory, arena->bytes);
    *arena = (struct foreign_arena){.memory = NULL};
}

void node_release_imports(struct node *node, bool all)
{
    for (int place = 0; place < node->count; place++) {
        struct neighbour *n = &node->neighbour[place];
        for (int k = 0; n->arena != NULL && k < NODE_ARENAS; k++)
            if (n->arena[k].imported && (all || atomic_load(&n->block->arena[k].serial) != n->arena[k].serial))
                unmap(node, n, k);
    }
}

/* Said before looking whether it is still shown: its owner hides it before looking who has it. */
static enum status import(struct node *node, struct neighbour *n, int k, uint32_t serial)
{
    struct foreign_arena *arena = &n->arena[k];
    struct shown_arena *shown = &n->block->arena[k];
    void *memory = NULL;
    atomic_fetch_add(&shown->imports, 1);
    enum status status = STATUS_OK;
    if (atomic_load(&shown->serial) != serial)
        status = fail(STATUS_PEER_LOST, "what it sends lies in memory that it has given back");
    else if (node->device == NULL)
        status = fail(STATUS_FORMAT, "what it sends lies on a device");
    else
        status = node->device->ops->import_memory(node->device, &shown->card, &memory);
    if (status < 0) {
        atomic_fetch_sub(&shown->imports, 1);
        return status;
    }
    *arena = (struct foreign_arena){.memory = memory, .imported = true};
    return STATUS_OK;
}

/* Memory of a device. In one process an address serves. */
static enum status foreign_import(struct node *node, int peer, const struct node_place *place)
{
    struct neighbour *n = neighbour_of(node, peer);
    const int k = (int)place->arena - 1;
    const struct shown_arena *shown = &n->block->arena[k];
    if (n->pid == getpid())
        n->arena[k].memory = (void *)(uintptr_t)atomic_load(&shown->address);
    else {
        const enum status status = import(node, n, k, place->serial);
        if (status < 0)
            return fail_context(status == STATUS_UNAVAILABLE ? status : STATUS_PEER_LOST, "node memory: worker %d",
                                peer);
    }
    n->arena[k].bytes = atomic_load(&shown->bytes);
    n->arena[k].serial = place->serial;
    return STATUS_OK;
}

/* Staging is written by nobody but its owner; devices register only what could be. */
static void register_staging(struct node *node, struct foreign_arena *arena)
{
    arena->registered = node->device != NULL &&
                        node->device->ops->host_register(node->device, arena->memory, arena->bytes) == STATUS_OK;
}

static enum status foreign_map(struct node *node, int peer, const struct node_place *place)
{
    struct neighbour *n = neighbour_of(node, peer);
    struct foreign_arena *arena = &n->arena[place->arena - 1];
    const struct shown_arena *shown = &n->block->arena[place->arena - 1];
    int file = -1;
    unmap(node, n, (int)place->arena - 1);
    if (atomic_load(&shown->serial) != place->serial)
        return fail(STATUS_PEER_LOST, "node memory: what worker %d sends lies in memory that it has given back", peer);
    const enum arena_kind kind = atomic_load(&shown->kind);
    if (kind == ARENA_DEVICE)
        return foreign_import(node, peer, place);
    const int access = kind == ARENA_STAGING ? PROT_READ | PROT_WRITE : PROT_READ;
    const size_t bytes = atomic_load(&shown->bytes);
    if (node_open_fd(n->pid, atomic_load(&shown->fd), bytes, &file) < 0)
        return fail_context(STATUS_PEER_LOST, "worker %d", peer);
    void *memory = mmap(NULL, bytes, access, MAP_SHARED | MAP_POPULATE, file, 0);
    const int error = errno;
    (void)close(file);
    if (memory == MAP_FAILED)
        return fail(STATUS_NO_MEMORY, "node memory: map %zu bytes of worker %d: %s", bytes, peer, strerror(error));
    *arena = (struct foreign_arena){.memory = memory, .bytes = bytes, .serial = place->serial, .mapped = true};
    if (kind == ARENA_STAGING)
        register_staging(node, arena);
    return STATUS_OK;
}

enum status node_map(struct node *node, int peer, const struct node_place *place, size_t bytes, const void **data)
{
    struct neighbour *n = neighbour_of(node, peer);
    if (place->arena == 0 || place->arena > NODE_ARENAS || place->serial == 0)
        return fail(STATUS_FORMAT, "node memory: worker %d names an arena %u", peer, (unsigned)place->arena);
    if (n->arena == NULL) {
        void *memory = NULL;
        TRY(memory_zeroed(&memory, NODE_ARENAS, sizeof(struct foreign_arena)));
        n->arena = memory;
    }
    struct foreign_arena *arena = &n->arena[place->arena - 1];
    if (arena->memory == NULL || arena->serial != place->serial)
        TRY(foreign_map(node, peer, place));
    if (place->offset > arena->bytes || bytes > arena->bytes - place->offset)
        return fail(STATUS_FORMAT, "node memory: worker %d names %zu bytes at %llu of an arena of %zu", peer, bytes,
                    (unsigned long long)place->offset, arena->bytes);
    *data = arena->memory + place->offset;
    return STATUS_OK;
}

bool node_is_device(const struct node *node, int peer, const struct node_place *place)
{
    return atomic_load(&neighbour_of(node, peer)->block->arena[place->arena - 1].kind) == ARENA_DEVICE;
}

enum status node_read(const struct node *node, int peer, const struct node_place *place, void *to, size_t bytes)
{
    unsigned char *here = to;
    for (size_t done = 0; done < bytes;) {
        struct iovec local = {.iov_base = here + done, .iov_len = bytes - done};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)(place->offset + done), .iov_len = bytes - done};
        const ssize_t n = process_vm_readv((pid_t)neighbour_of(node, peer)->pid, &local, 1, &remote, 1, 0);
        if (n <= 0)
            return fail(STATUS_PEER_LOST, "node memory: read %zu bytes of worker %d: %s", bytes, peer,
                        n < 0 ? strerror(errno) : "nothing there");
        done += (size_t)n;
    }
    return STATUS_OK;
}

void arenas_close(struct node *node)
{
    int place;
    for (int k = 0; k < NODE_ARENAS; k++) {
        if (node->arena[k].memory == NULL)
            continue;
        if (node->arena[k].kind == ARENA_DEVICE) /* whoever has shown it frees it */
            (void)node_hide(node, node->arena[k].memory, &place);
        else
            hide(node, k);
    }
    for (int p = 0; node->neighbour != NULL && p < node->count; p++) {
        struct neighbour *n = &node->neighbour[p];
        for (int k = 0; n->arena != NULL && k < NODE_ARENAS; k++)
            unmap(node, n, k);
        free(n->arena);
    }
}
