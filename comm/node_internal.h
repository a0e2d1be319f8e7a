/* node_internal.h - the layout of a worker's shared block; node.c has its rings, arena.c its arenas. Private to comm/.
 */
#ifndef CHORALE_COMM_NODE_INTERNAL_H
#define CHORALE_COMM_NODE_INTERNAL_H

#include <stdatomic.h>

#include "comm/device.h"
#include "comm/node.h"

#define LINE 64
#define NODE_CELLS 128  /* of one ring */
#define NODE_ARENAS 256 /* of one worker */
#define NODE_WORDS 16   /* of 64 doorbells: 1024 neighbours */

/* `lap` counts the rounds of the ring from 1: a cell is full when it shows the lap in which it is awaited. The sender
 * writes it last, so that one line carries word and message. */
struct cell {
    _Alignas(LINE) _Atomic uint32_t lap;
    uint32_t bytes; /* of payload                                             */
    unsigned char header[NODE_HEADER_BYTES];
    union {
        unsigned char inlined[24]; /* payload that fits                                      */
        struct {
            uint64_t begin, end; /* else where it lies: positions of the payload ring      */
        } far;
    };
};

/* What the consumer has taken, counted from the start; read by the producer only when it finds no room. */
struct taken {
    _Alignas(LINE) _Atomic uint64_t cells;
    _Atomic uint64_t payload;
};

struct ring {
    struct taken taken;
    struct cell cell[NODE_CELLS];
    _Alignas(LINE) unsigned char payload[];
};

/* An arena as its owner shows it: serial 0 = none. What `serial` says to be there stood there before it. */
struct shown_arena {
    _Atomic uint32_t serial;
    _Atomic uint32_t kind; /* enum arena_kind */
    _Atomic int32_t fd;
    _Atomic uint32_t imports; /* of a device's memory: neighbours that have it imported */
    _Atomic uint64_t bytes;
    _Atomic uint64_t address; /* likewise: for workers of the same process              */
    struct device_export card;
};

/* The first pages of a block; the rings of the senders follow, each `stride` bytes. */
struct block {
    uint64_t magic, stride, payload_bytes;
    _Alignas(LINE) _Atomic uint32_t asleep;            /* 1: somebody of the owner sleeps on this word   */
    _Alignas(LINE) _Atomic uint64_t bells[NODE_WORDS]; /* senders that have sent, when there are many  */
    _Alignas(LINE) _Atomic uint64_t arena_bytes;       /* in all arenas of the owner                     */
    struct shown_arena arena[NODE_ARENAS];
};

struct arena {
    unsigned char *memory;
    size_t bytes;
    uint32_t serial;
    int fd;
    enum arena_kind kind;
};

/* A neighbour's arena, mapped. */
struct foreign_arena {
    unsigned char *memory;
    size_t bytes;
    uint32_t serial;
    bool mapped, imported; /* neither: memory of our own process */
    bool registered;       /* with our device                    */
};

struct neighbour {
    struct block *block;
    size_t block_bytes;
    int64_t pid;
    int rank;
    struct ring *out;            /* of its block: what we send                                        */
    uint64_t sent, sent_payload; /* positions of the next cell and payload                            */
    uint64_t room, room_payload; /* what it had taken when we last looked                             */
    struct ring *in;             /* of our block: what it sends                                       */
    uint64_t polled, polled_payload;
    uint64_t released;
    bool kick;                   /* sent to since the last kick                                       */
    struct foreign_arena *arena; /* NODE_ARENAS, or NULL: none referred to yet                        */
};

#define NOT_HERE (-1)

struct node {
    int self, count; /* this worker's place among its neighbours, itself included, and how many they are    */
    int size;        /* workers of the job                                                                 */
    int *place;      /* of each of them among the neighbours; NOT_HERE: none of them                        */
    bool crowded, reads, bells;
    int fd;
    struct block *block;
    size_t block_bytes;
    uint64_t magic;              /* what `probe` points to */
    struct neighbour *neighbour; /* by place                                                           */
    int cursor;                  /* where polling goes on                                              */
    int *dirty, dirties;         /* places to be kicked                                                */
    int *held, helds;            /* places with polled and not yet released messages                   */
    struct arena arena[NODE_ARENAS];
    uint32_t serials;
    struct device *device; /* NULL: none */
};

static inline struct neighbour *neighbour_of(const struct node *node, int peer)
{
    return &node->neighbour[node->place[peer]];
}

/* A neighbour's memory file, to be mapped and closed. STATUS_UNAVAILABLE: not to be had, or not as large as said. */
enum status node_open_fd(int64_t pid, int64_t fd, size_t bytes, int *out) MUST_CHECK;
void arenas_close(struct node *node);

#endif
