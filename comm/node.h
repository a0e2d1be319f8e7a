/* node.h - memory that the workers of one node share: small messages through rings, and buffers that neighbours read in
 * place.
 *
 * Each worker owns one block (a memfd, which nobody else can name and which goes with its last user, however that ends)
 * and maps those of its neighbours through /proc/PID/fd/N. In it stand, for each sender, a ring of cells of one cache
 * line and a ring of payload, the sleeper's word, and the table of its arenas. A ring has one producer and one consumer:
 * a message costs each of them one line while payload fits the cell. Memory of rings that nobody uses is not touched.
 * The job may have workers elsewhere: a node knows its own alone.
 *
 * Arenas are the memory that neighbours read in place; they are mapped when first referred to. Other memory is copied
 * by process_vm_readv where the system permits it.
 *
 * Threads: one at a time, except for node_sleep().
 */
#ifndef CHORALE_COMM_NODE_H
#define CHORALE_COMM_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct device;
struct device_export;
struct node;

#define NODE_HEADER_BYTES 32         /* of a message, besides its payload                           */
#define NODE_PAYLOAD_BYTES_MOST 8192 /* a message's payload is not longer                           */

/* What a worker tells its neighbours of its block; they exchange these between node_create() and node_attach(). */
struct node_card {
    uint64_t magic; /* of the block, drawn at random; 0: this worker has none                      */
    int64_t pid;
    int64_t fd;
    uint64_t bytes;
    uint64_t probe; /* address of a copy of `magic`, for the probe of process_vm_readv             */
};

/* The block of worker `rank` of `size`. place[size] tells where each of them is: those that are where `rank` is are its
 * neighbours; NULL: all are. STATUS_UNAVAILABLE with the reason (then *card says so: nobody can attach). `crowded`: more
 * workers than cores, so that waiting never spins. Free with node_close(). */
enum status node_create(int rank, int size, const int *place, bool crowded, struct node **node,
                        struct node_card *card) MUST_CHECK;
/* Map the neighbours' blocks: cards[size], by rank, of which only theirs are looked at. *reads: process_vm_readv reaches
 * all of them. STATUS_UNAVAILABLE: one of the blocks can't be had. */
enum status node_attach(struct node *node, const struct node_card *cards, bool *reads) MUST_CHECK;
void node_permit_reads(struct node *node, bool reads); /* what all have found */
bool node_reads(const struct node *node);
/* A worker's number (its rank in the job, as everywhere here) is a neighbour's, or our own. */
bool node_has(const struct node *node, int peer);
int node_workers(const struct node *node); /* the neighbours and this one */
void node_close(struct node *node);        /* accepts NULL; frees the arenas, too */

/* --- small messages --- */

struct node_message {
    int source;
    size_t bytes; /* of payload */
    const unsigned char *header;
    const void *payload;
};

/* STATUS_AGAIN: no room until the neighbour has taken some. Messages between two workers arrive in order. The receiver
 * is woken by node_kick(), to be called after one or several sends. */
enum status node_send(struct node *node, int peer, const unsigned char header[NODE_HEADER_BYTES], const void *payload,
                      size_t bytes) MUST_CHECK;
void node_kick(struct node *node);
/* The next message that has come, which node_take() takes; without that the next look finds it again, perhaps after
 * others. It stays in place until node_release(), which lets go of all that were taken. */
bool node_peek(struct node *node, struct node_message *message);
void node_take(struct node *node, const struct node_message *message);
void node_release(struct node *node);

/* Nothing came in `idle` polls: wait until something may have, `ns` at most. With cores for all it spins a moment, then
 * yields, then sleeps until woken; when crowded it yields at once. */
void node_wait(struct node *node, uint64_t ns, unsigned idle);
/* The same in two steps, of which the second may run beside anything else: true when nothing has come and the next
 * message will wake whoever sleeps; then sleep, `ns` at most. */
bool node_drowse(struct node *node);
void node_sleep(struct node *node, uint64_t ns);

/* --- arenas --- */

/* Where data of a worker lies, as its neighbours can understand it. */
struct node_place {
    uint32_t arena;  /* 1 + its number; 0: `offset` is an address to be read by process_vm_readv     */
    uint32_t serial; /* of the arena in this place of the table                                     */
    uint64_t offset;
};

enum arena_kind {
    ARENA_HOST,
    ARENA_STAGING, /* host memory that devices copy from and to: registered with them where it is mapped */
    ARENA_DEVICE   /* a device's memory, which neighbours import                                         */
};

/* `bytes` at a page's boundary, zeroed. STATUS_AGAIN: there are as many arenas as the table holds. STATUS_NO_MEMORY: the
 * memory is not there; says what is needed, by the neighbours as well if they take as much, and what is available. Free
 * with node_free(): false when it is no arena. */
enum status node_alloc(struct node *node, size_t bytes, void **memory) MUST_CHECK;
bool node_free(struct node *node, void *memory);
enum status node_alloc_staging(struct node *node, size_t bytes, void **memory) MUST_CHECK; /* ARENA_STAGING */

/* --- memory of a device --- */

void node_use_device(struct node *node, struct device *device); /* before all that follows */
/* Neighbours may import `memory`: `bytes` that the device's alloc() gave, as `card` says. STATUS_AGAIN as above;
 * `buffers`, like staging, may take the table's last places, too: who can't be shown its vectors is shown copies there. */
enum status node_show(struct node *node, void *memory, size_t bytes, const struct device_export *card,
                      bool buffers) MUST_CHECK;
/* They no longer may. True: some still have it imported, so that it can't be freed yet: `*place` is for node_imports(). */
bool node_hide(struct node *node, void *memory, int *place);
/* How many neighbours have what was last shown at that place. A place that is not empty is not used again. */
unsigned node_imports(const struct node *node, int place);
/* Give back what is imported and no longer shown; `all`: everything. */
void node_release_imports(struct node *node, bool all);

/* False: it lies in no arena and may not be read otherwise: it must be copied to where it can. */
bool node_locate(const struct node *node, const void *data, size_t bytes, struct node_place *place);
/* A neighbour's arena memory as it lies here. STATUS_FORMAT: not in its arena; STATUS_PEER_LOST: it has gone;
 * STATUS_UNAVAILABLE: a device's, which can't be imported here. */
enum status node_map(struct node *node, int peer, const struct node_place *place, size_t bytes,
                     const void **data) MUST_CHECK;
/* Whether that is a device's memory. Of a place that node_map() takes. */
bool node_is_device(const struct node *node, int peer, const struct node_place *place);
/* Copy from a neighbour's memory that lies in no arena. */
enum status node_read(const struct node *node, int peer, const struct node_place *place, void *to,
                      size_t bytes) MUST_CHECK;

#endif
