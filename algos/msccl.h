/* msccl.h - reads MSCCL's XML, in which Microsoft's msccl-tools and RCCL keep schedules written for GPUs.
 *
 *   <algo name="x" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1">
 *     <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0">
 *       <tb id="0" send="1" recv="1" chan="0">
 *         <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
 *
 * A gpu is a worker. A tb (thread block) runs its steps one after the other; it sends to one peer and receives from one
 * peer on its channel, and at most one tb of a gpu sends to a peer on a channel, so that messages match in order for
 * each (source, destination, channel). Buffers are i(nput), o(utput), s(cratch), counted in chunks of which
 * nchunksperloop make the vector; with inplace="1" i and o are the same memory. Types:
 *
 *   s    send src                        cpy  dst = src
 *   r    dst = received                  re   dst = dst + src
 *   rcs  dst = received, send it         nop  nothing: carries a dependency for the steps after it
 *   rrs  send received + src             rrc  dst = received + src
 *   rrcs dst = received + src, send it
 *
 * depid and deps name the tb and the step of the same gpu that must be complete before; that step says hasdep="1".
 * `s` counts every step, so dependencies are resolved by it. What belongs to the other end of a message (dst of s and
 * rrs, src of r and rcs) is not looked at, as in RCCL's kernel. Accepted though not needed here: proto, outofplace,
 * minBytes, maxBytes, maxcount, nthreadblocks, and an XML declaration and comments before or between elements.
 *
 * Refused with file and line: what is not well-formed, unknown or doubled elements and attributes, numbers out of
 * bounds, ids that are not 0, 1, 2, ... in order (gpus: in any order, each once), peers, offsets or dependencies that
 * do not exist, a tb that sends without a peer, and two tbs on one channel with the same peer. Whether the steps make
 * an allreduce is for algos/msccl_plan.h and the verifier.
 *
 * Sources: msccl-tools (msccl/language/ir.py), RCCL (src/misc/msccl).
 */
#ifndef CHORALE_ALGOS_MSCCL_H
#define CHORALE_ALGOS_MSCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MSCCL_MOST_BYTES ((size_t)64 << 20) /* of a file */
#define MSCCL_MOST_WORKERS 1024
#define MSCCL_MOST_CHUNKS 32767 /* of a buffer: RCCL keeps offsets in 16 bits */
#define MSCCL_MOST_CHANNELS 256 /* a channel becomes a lane                   */

enum msccl_type {
    MSCCL_S,
    MSCCL_R,
    MSCCL_RCS,
    MSCCL_RRS,
    MSCCL_RRC,
    MSCCL_RRCS,
    MSCCL_CPY,
    MSCCL_RE,
    MSCCL_NOP,
    MSCCL_TYPES
};

enum msccl_buffer { MSCCL_INPUT, MSCCL_OUTPUT, MSCCL_SCRATCH, MSCCL_BUFFERS };

/* Chunks [offset, offset + step.count) of a buffer. */
struct msccl_place {
    uint8_t buffer;
    uint32_t offset;
};

struct msccl_step {
    int line;
    uint8_t type;
    bool awaited;                /* hasdep                                    */
    struct msccl_place src, dst; /* what the type uses of them                */
    uint32_t count;              /* chunks; 0: nop                            */
    int32_t depends_block;       /* within the gpu; -1: none                  */
    uint32_t depends_step;       /* within that block                         */
};

struct msccl_block {
    int line;
    int32_t send, recv; /* peers; -1: none */
    uint16_t channel;
    size_t step, steps; /* msccl.step[step .. step+steps-1] */
};

struct msccl_gpu {
    int line;
    uint32_t chunks[MSCCL_BUFFERS];
    size_t block, blocks; /* msccl.block[block .. block+blocks-1] */
};

struct msccl {
    const char *file; /* for messages; the caller's   */
    char name[64];    /* cut, without blanks, for people */
    bool in_place;
    int workers;
    uint32_t chunks; /* nchunksperloop               */
    uint16_t channels;
    struct msccl_gpu *gpu; /* [workers]; the arrays are owned */
    struct msccl_block *block;
    struct msccl_step *step;
    size_t blocks, steps;
    size_t block_capacity, step_capacity;
};

/* Does a step of this type receive, send, reduce; read src, write dst. */
bool msccl_receives(enum msccl_type type);
bool msccl_sends(enum msccl_type type);
bool msccl_reduces(enum msccl_type type);
bool msccl_reads_src(enum msccl_type type);
bool msccl_writes_dst(enum msccl_type type);

/* `text` of `length` bytes from `file` (kept as a pointer, for messages). STATUS_FORMAT "file:line: what is wrong" for
 * all of the above, STATUS_REFUSED for a collective other than allreduce. Release with msccl_release(); on failure
 * there is nothing to release. */
enum status msccl_parse(const char *text, size_t length, const char *file, struct msccl *msccl) MUST_CHECK;
void msccl_release(struct msccl *msccl);

#endif
