/* wire.h - what travels besides payload: the header of small messages, and the tags of granted payload.
 *
 * Every small message (eager payload, grants, hellos) begins with a header and lands in a pool of pre-posted buffers; several
 * may travel as one, each with its header. In a node they go through rings (node.h) instead.
 * Payload above the eager limit travels bare, under a tag of its own, into the buffer that its receiver has posted and
 * granted.
 */
#ifndef CHORALE_COMM_WIRE_H
#define CHORALE_COMM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

enum wire_class {
    WIRE_EAGER = 1, /* payload follows                                                            */
    WIRE_GRANT,     /* the receive of segment `sequence` is posted: send                          */
    WIRE_HELLO,     /* first and only message of a pair that exchanges no element                 */
    WIRE_CALL,      /* text of what the sender called: after a mismatch                           */
    WIRE_OFFER,     /* a segment may be read where it lies: a struct node_place follows             */
    WIRE_READ,      /* segment `sequence` has been read: its memory may change                     */
    WIRE_TEAM,      /* team_create: to member 0 the set of ids in use, from it the one chosen in `sequence` */
    WIRE_CLASSES
};

struct wire_header {
    uint8_t class;
    uint8_t team;
    uint16_t lane;
    uint16_t source;   /* rank in the comm                                              */
    uint32_t bytes;    /* after the header                                              */
    uint32_t epoch;    /* number of the collective in its team                          */
    uint64_t sequence; /* segment on (peer, lane, direction)                            */
    uint64_t hash;     /* of everything that all workers must agree on in this call     */
};
#define WIRE_HEADER_BYTES 32

void wire_encode(const struct wire_header *header, unsigned char bytes[WIRE_HEADER_BYTES]);
/* STATUS_FORMAT when the class is unknown or the message is longer than `total`; more may follow it. */
enum status wire_decode(const unsigned char *bytes, size_t total, struct wire_header *header) MUST_CHECK;

/* 60 bits: class 2 | team 8 | epoch 12 | slice 10 | lane 8 | sequence 20. */
#define WIRE_EPOCHS 4096 /* collectives that tags tell apart */
#define WIRE_TAG_SMALL ((uint64_t)0)
#define WIRE_TAG_IGNORE ((((uint64_t)1) << 58) - 1) /* of the pool's receives: any small message */
#define WIRE_SLICE_SHIFT 40                         /* `sequence` holds the slice's number from this bit on */
uint64_t wire_payload_tag(uint8_t team, uint32_t epoch, uint16_t lane, uint64_t sequence);

uint64_t wire_hash(uint64_t hash, const void *data, size_t bytes); /* FNV-1a, 64 bits; start with WIRE_HASH_START */
#define WIRE_HASH_START HASH_START

#endif
