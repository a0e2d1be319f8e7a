/* wire.c - encoding of headers and tags, little-endian whatever the machine. */
#include "comm/wire.h"

static void put(unsigned char *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *from, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

void wire_encode(const struct wire_header *header, unsigned char bytes[WIRE_HEADER_BYTES])
{
    put(bytes, header->class, 1);
    put(bytes + 1, header->team, 1);
    put(bytes + 2, header->lane, 2);
    put(bytes + 4, header->bytes, 4);
    put(bytes + 8, header->epoch, 4);
    put(bytes + 12, header->source, 2);
    put(bytes + 14, 0, 2);
    put(bytes + 16, header->sequence, 8);
    put(bytes + 24, header->hash, 8);
}

enum status wire_decode(const unsigned char *bytes, size_t total, struct wire_header *header)
{
    if (total < WIRE_HEADER_BYTES)
        return fail(STATUS_FORMAT, "wire: a message of %zu bytes is shorter than its header", total);
    *header = (struct wire_header){.class = (uint8_t)get(bytes, 1),
                                   .team = (uint8_t)get(bytes + 1, 1),
                                   .lane = (uint16_t)get(bytes + 2, 2),
                                   .bytes = (uint32_t)get(bytes + 4, 4),
                                   .epoch = (uint32_t)get(bytes + 8, 4),
                                   .source = (uint16_t)get(bytes + 12, 2),
                                   .sequence = get(bytes + 16, 8),
                                   .hash = get(bytes + 24, 8)};
    if (header->class < WIRE_EAGER || header->class >= WIRE_CLASSES)
        return fail(STATUS_FORMAT, "wire: a message of unknown class %d", (int)header->class);
    if (header->bytes > total - WIRE_HEADER_BYTES)
        return fail(STATUS_FORMAT, "wire: a message says %u bytes of payload and has %zu", (unsigned)header->bytes,
                    total - WIRE_HEADER_BYTES);
    return STATUS_OK;
}

uint64_t wire_payload_tag(uint8_t team, uint32_t epoch, uint16_t lane, uint64_t sequence)
{
    const uint64_t slice = sequence >> WIRE_SLICE_SHIFT & 0x3ff;
    return (uint64_t)1 << 58 | (uint64_t)team << 50 | (uint64_t)(epoch % WIRE_EPOCHS) << 38 | slice << 28 |
           (uint64_t)(lane & 0xff) << 20 | (sequence & 0xfffff);
}

uint64_t wire_hash(uint64_t hash, const void *data, size_t bytes)
{
    return hash_bytes(hash, data, bytes);
}
