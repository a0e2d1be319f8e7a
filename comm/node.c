/* node.c - the block that a worker shares with its neighbours: setting it up, rings of small messages, sleeping. */
#define _GNU_SOURCE /* memfd_create, process_vm_readv, seals */
#include "comm/node.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/node_internal.h"

#define PAGE ((size_t)4096)
#define FEW 16                            /* workers whose rings are looked at one by one, without doorbells */
#define PAYLOAD_OF_FEW ((size_t)64 << 10) /* bytes of a payload ring                                         */
#define PAYLOAD_OF_MANY ((size_t)32 << 10)

/* Empty polls: so many only pause (a microsecond or two: the peer may share our core), then as many yield, then it
 * sleeps. */
#define SPINS 40
#define YIELDS 1000
#define YIELDS_CROWDED 300

static_assert(sizeof(struct cell) == LINE, "a message is one line");
static_assert(PAYLOAD_OF_MANY >= 2 * (size_t)NODE_PAYLOAD_BYTES_MOST, "the longest payload always finds room");

/* ---- set-up ---- */

static size_t rounded(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static enum status block_make(struct node *node)
{
    const size_t payload = node->count <= FEW ? PAYLOAD_OF_FEW : PAYLOAD_OF_MANY;
    const size_t stride =
        sizeof(struct ring) + payload; /* no whole pages: neighbours' first cells share no cache set */
    node->block_bytes = rounded(rounded(sizeof(struct block), LINE) + (size_t)node->count * stride, PAGE);
    node->fd = memfd_create("chorale-node", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (node->fd < 0 || ftruncate(node->fd, (off_t)node->block_bytes) != 0 ||
        fcntl(node->fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return fail(STATUS_UNAVAILABLE, "node memory: memfd of %zu bytes: %s", node->block_bytes, strerror(errno));
    void *memory = mmap(NULL, node->block_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, node->fd, 0);
    if (memory == MAP_FAILED)
        return fail(STATUS_UNAVAILABLE, "node memory: map %zu bytes: %s", node->block_bytes, strerror(errno));
    node->block = memory;
    if (getrandom(&node->magic, sizeof node->magic, 0) != (ssize_t)sizeof node->magic)
        return fail(STATUS_UNAVAILABLE, "node memory: no random numbers: %s", strerror(errno));
    node->magic |= 1;
    node->block->magic = node->magic;
    node->block->stride = stride;
    node->block->payload_bytes = payload;
    return STATUS_OK;
}

/* Neighbours stand in the order of their ranks, which is the same for all of them. */
static enum status places_make(struct node *node, int rank, const int *place)
{
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)node->size, sizeof(int)));
    node->place = memory;
    for (int r = 0; r < node->size; r++) {
        const bool here = place == NULL || place[r] == place[rank];
        node->place[r] = here ? node->count++ : NOT_HERE;
    }
    if (node->count > NODE_WORDS * 64)
        return fail(STATUS_UNAVAILABLE, "node memory: %d workers", node->count);
    node->self = node->place[rank];
    node->bells = node->count > FEW;
    TRY(memory_zeroed(&memory, (size_t)node->count, sizeof(struct neighbour)));
    node->neighbour = memory;
    for (int r = 0; r < node->size; r++)
        if (node->place[r] != NOT_HERE)
            neighbour_of(node, r)->rank = r;
    TRY(memory_zeroed(&memory, (size_t)node->count, sizeof(int)));
    node->dirty = memory;
    TRY(memory_zeroed(&memory, (size_t)node->count, sizeof(int)));
    node->held = memory;
    return STATUS_OK;
}

enum status node_create(int rank, int size, const int *place, bool crowded, struct node **out, struct node_card *card)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    *card = (struct node_card){.magic = 0};
    TRY(memory_zeroed(&memory, 1, sizeof(struct node)));
    struct node *node = memory;
    *node = (struct node){.size = size, .crowded = crowded, .fd = -1};
    TRY_TO(done, places_make(node, rank, place));
    TRY_TO(done, block_make(node));
    *card = (struct node_card){.magic = node->magic,
                               .pid = getpid(),
                               .fd = node->fd,
                               .bytes = node->block_bytes,
                               .probe = (uintptr_t)&node->magic};
    *out = node;
done:
    if (status < 0)
        node_close(node);
    return status;
}

enum status node_open_fd(int64_t pid, int64_t fd, size_t bytes, int *out)
{
    char path[64];
    struct stat facts;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)pid, (long long)fd);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return fail(STATUS_UNAVAILABLE, "node memory: %s: %s", path, strerror(errno));
    const int seals = fcntl(file, F_GET_SEALS);
    if (fstat(file, &facts) != 0 || (uint64_t)facts.st_size < bytes || seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        (void)close(file);
        return fail(STATUS_UNAVAILABLE, "node memory: %s is not what its owner said", path);
    }
    *out = file;
    return STATUS_OK;
}

static struct ring *ring_of(struct block *block, int sender)
{
    unsigned char *first = (unsigned char *)block + rounded(sizeof(struct block), LINE);
    return (struct ring *)(void *)(first + (size_t)sender * block->stride);
}

static enum status neighbour_attach(struct node *node, int place, const struct node_card *card)
{
    struct neighbour *n = &node->neighbour[place];
    const int peer = n->rank;
    int file = -1;
    if (card->magic == 0 || card->bytes != node->block_bytes)
        return fail(STATUS_UNAVAILABLE, "node memory: worker %d has none", peer);
    TRY(node_open_fd(card->pid, card->fd, card->bytes, &file));
    void *memory = mmap(NULL, card->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (memory == MAP_FAILED)
        return fail(STATUS_UNAVAILABLE, "node memory: map that of worker %d: %s", peer, strerror(errno));
    n->block = memory;
    n->block_bytes = card->bytes;
    n->pid = card->pid;
    if (n->block->magic != card->magic || n->block->stride != node->block->stride)
        return fail(STATUS_UNAVAILABLE, "node memory: that of worker %d is another's", peer);
    n->out = ring_of(n->block, node->self);
    n->in = ring_of(node->block, place);
    return STATUS_OK;
}

/* The user's word against it counts here as for libfabric. */
static bool can_read(const struct node_card *card)
{
    uint64_t magic = 0;
    struct iovec here = {.iov_base = &magic, .iov_len = sizeof magic};
    struct iovec there = {.iov_base = (void *)(uintptr_t)card->probe, .iov_len = sizeof magic};
    const char *disabled = getenv("FI_SHM_DISABLE_CMA");
    if (disabled != NULL && strcmp(disabled, "0") != 0)
        return false;
    return process_vm_readv((pid_t)card->pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof magic && magic == card->magic;
}

enum status node_attach(struct node *node, const struct node_card *cards, bool *reads)
{
    *reads = true;
    for (int place = 0; place < node->count; place++) {
        const struct node_card *card = &cards[node->neighbour[place].rank];
        if (place == node->self)
            continue;
        TRY(neighbour_attach(node, place, card));
        *reads = *reads && can_read(card);
    }
    return STATUS_OK;
}

void node_permit_reads(struct node *node, bool reads)
{
    node->reads = reads;
}

bool node_reads(const struct node *node)
{
    return node->reads;
}

bool node_has(const struct node *node, int peer)
{
    return node->place[peer] != NOT_HERE;
}

int node_workers(const struct node *node)
{
    return node->count;
}

void node_close(struct node *node)
{
    if (node == NULL)
        return;
    arenas_close(node);
    for (int k = 0; node->neighbour != NULL && k < node->count; k++)
        if (node->neighbour[k].block != NULL)
            (void)munmap(node->neighbour[k].block, node->neighbour[k].block_bytes);
    if (node->block != NULL)
        (void)munmap(node->block, node->block_bytes);
    if (node->fd >= 0)
        (void)close(node->fd);
    free(node->place);
    free(node->neighbour);
    free(node->dirty);
    free(node->held);
    free(node);
}

/* ---- sending ---- */

static bool cell_free(struct neighbour *n)
{
    if (n->sent - n->room < NODE_CELLS)
        return true;
    n->room = atomic_load_explicit(&n->out->taken.cells, memory_order_acquire);
    return n->sent - n->room < NODE_CELLS;
}

/* Payload lies in one piece: what is left before the ring's end may be skipped. */
static bool payload_free(struct neighbour *n, size_t ring_bytes, size_t bytes, uint64_t *begin)
{
    const size_t need = rounded(bytes, LINE), left = ring_bytes - n->sent_payload % ring_bytes;
    *begin = n->sent_payload + (need > left ? left : 0);
    if (*begin + need - n->room_payload <= ring_bytes)
        return true;
    n->room_payload = atomic_load_explicit(&n->out->taken.payload, memory_order_acquire);
    return *begin + need - n->room_payload <= ring_bytes;
}

enum status node_send(struct node *node, int peer, const unsigned char header[NODE_HEADER_BYTES], const void *payload,
                      size_t bytes)
{
    const int place = node->place[peer];
    struct neighbour *n = &node->neighbour[place];
    const size_t ring_bytes = node->block->payload_bytes;
    uint64_t begin = 0;
    if (!cell_free(n))
        return STATUS_AGAIN;
    struct cell *cell = &n->out->cell[n->sent % NODE_CELLS];
    if (bytes > sizeof cell->inlined) {
        if (!payload_free(n, ring_bytes, bytes, &begin))
            return STATUS_AGAIN;
        memcpy(n->out->payload + begin % ring_bytes, payload, bytes);
        n->sent_payload = begin + rounded(bytes, LINE);
        cell->far.begin = begin;
        cell->far.end = n->sent_payload;
    } else if (bytes > 0) {
        memcpy(cell->inlined, payload, bytes);
    }
    memcpy(cell->header, header, NODE_HEADER_BYTES);
    cell->bytes = (uint32_t)bytes;
    atomic_store_explicit(&cell->lap, (uint32_t)(n->sent / NODE_CELLS + 1), memory_order_release);
    n->sent++;
    if (!n->kick) {
        n->kick = true;
        node->dirty[node->dirties++] = place;
    }
    return STATUS_OK;
}

static void futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* The fence stands between our message and our look at the sleeper, who first says that he sleeps and then looks. */
void node_kick(struct node *node)
{
    if (node->dirties == 0)
        return;
    for (int i = 0; i < node->dirties && node->bells; i++) {
        struct block *block = node->neighbour[node->dirty[i]].block;
        atomic_fetch_or(&block->bells[node->self / 64], (uint64_t)1 << (node->self % 64));
    }
    atomic_thread_fence(memory_order_seq_cst);
    for (int i = 0; i < node->dirties; i++) {
        struct neighbour *n = &node->neighbour[node->dirty[i]];
        n->kick = false;
        if (atomic_load_explicit(&n->block->asleep, memory_order_relaxed) == 0)
            continue;
        atomic_store(&n->block->asleep, 0);
        futex_wake(&n->block->asleep);
    }
    node->dirties = 0;
}

/* ---- receiving ---- */

static bool has_come(const struct neighbour *n)
{
    return n->in != NULL && atomic_load_explicit(&n->in->cell[n->polled % NODE_CELLS].lap, memory_order_acquire) ==
                                (uint32_t)(n->polled / NODE_CELLS + 1);
}

static void look(const struct node *node, int place, struct node_message *message)
{
    const struct neighbour *n = &node->neighbour[place];
    const struct cell *cell = &n->in->cell[n->polled % NODE_CELLS];
    const bool far = cell->bytes > sizeof cell->inlined;
    *message = (struct node_message){.source = n->rank,
                                     .bytes = cell->bytes,
                                     .header = cell->header,
                                     .payload = far ? n->in->payload + cell->far.begin % node->block->payload_bytes
                                                    : cell->inlined};
}

/* With many workers only rings whose bell has rung are looked at. A bell is silenced before its ring is looked at, and
 * rung again while that has more. */
static bool peek_bells(struct node *node, struct node_message *message)
{
    for (int w = 0; w * 64 < node->count; w++) {
        _Atomic uint64_t *word = &node->block->bells[w];
        for (uint64_t rung = atomic_load(word); rung != 0; rung = atomic_load(word)) {
            const int bit = __builtin_ctzll(rung), place = w * 64 + bit;
            const uint64_t mask = (uint64_t)1 << bit;
            atomic_fetch_and(word, ~mask);
            if (place >= node->count || !has_come(&node->neighbour[place]))
                continue;
            atomic_fetch_or(word, mask);
            look(node, place, message);
            return true;
        }
    }
    return false;
}

bool node_peek(struct node *node, struct node_message *message)
{
    if (node->bells)
        return peek_bells(node, message);
    for (int i = 0; i < node->count; i++) {
        const int place = node->cursor;
        node->cursor = place + 1 == node->count ? 0 : place + 1;
        if (has_come(&node->neighbour[place])) {
            look(node, place, message);
            return true;
        }
    }
    return false;
}

void node_take(struct node *node, const struct node_message *message)
{
    const int place = node->place[message->source];
    struct neighbour *n = &node->neighbour[place];
    const struct cell *cell = &n->in->cell[n->polled % NODE_CELLS];
    if (n->polled == n->released)
        node->held[node->helds++] = place;
    n->polled++;
    if (cell->bytes > sizeof cell->inlined)
        n->polled_payload = cell->far.end;
}

void node_release(struct node *node)
{
    for (int i = 0; i < node->helds; i++) {
        struct neighbour *n = &node->neighbour[node->held[i]];
        n->released = n->polled;
        atomic_store_explicit(&n->in->taken.payload, n->polled_payload, memory_order_release);
        atomic_store_explicit(&n->in->taken.cells, n->polled, memory_order_release);
    }
    node->helds = 0;
}

/* ---- waiting ---- */

static bool anything(const struct node *node)
{
    for (int place = 0; place < node->count; place++)
        if (has_come(&node->neighbour[place]))
            return true;
    return false;
}

bool node_drowse(struct node *node)
{
    atomic_store(&node->block->asleep, 1);
    atomic_thread_fence(memory_order_seq_cst);
    if (!anything(node))
        return true;
    atomic_store(&node->block->asleep, 0);
    return false;
}

void node_sleep(struct node *node, uint64_t ns)
{
    const struct timespec most = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)syscall(SYS_futex, &node->block->asleep, FUTEX_WAIT, 1, &most, NULL, 0);
    atomic_store(&node->block->asleep, 0);
}

static void pause_a_moment(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

void node_wait(struct node *node, uint64_t ns, unsigned idle)
{
    const unsigned spins = node->crowded ? 0 : SPINS, yields = node->crowded ? YIELDS_CROWDED : YIELDS;
    if (idle < spins)
        pause_a_moment();
    else if (idle < spins + yields)
        (void)sched_yield();
    else if (node_drowse(node))
        node_sleep(node, ns);
}
