/* support_device.h - a device in plain C, for tests: its memory can't be touched by the processor, its queues run late and
 * in a random legal order, and what is used wrongly is a fault.
 *
 * Device memory is an address range that nobody may read or write; the mock works on a second mapping of it. What is
 * allocated holds NaNs. Work runs when somebody asks after an event, some of it at other calls; which queue goes on is
 * drawn, and for most seeds one kind of queue is slow. Faults are remembered, the first with its words.
 *
 * All devices of a card share its memory, as the workers of one process do. One thread at a time.
 */
#ifndef CHORALE_TESTS_COMM_SUPPORT_DEVICE_H
#define CHORALE_TESTS_COMM_SUPPORT_DEVICE_H

#include <stdint.h>

#include "comm/device.h"

/* Queues of a comm in the order in which it makes them, and the device's own. */
enum mock_role { MOCK_IN, MOCK_WORK, MOCK_OUT, MOCK_COMPUTE, MOCK_ROLES };

struct mock_card;

struct mock_card *mock_card_create(uint64_t seed);
void mock_card_destroy(struct mock_card *card);
struct device *mock_device_open(struct mock_card *card, int number); /* closed with the card */

/* Without: export_memory() says STATUS_UNAVAILABLE. */
void mock_card_exports(struct mock_card *card, bool exports);
/* The compute queue stands still. */
void mock_card_hold(struct mock_card *card, bool hold);
/* Planted faults: queues `to` don't wait for events of queues `from`; events of queues `of` have happened at once. */
void mock_card_ignore_order(struct mock_card *card, enum mock_role from, enum mock_role to);
void mock_card_hasty(struct mock_card *card, enum mock_role of);
/* How often that made a difference. */
size_t mock_card_planted(const struct mock_card *card);

const char *mock_card_fault(const struct mock_card *card); /* NULL: none */
size_t mock_card_live(const struct mock_card *card);   /* what is not freed: memory, queues, events, registrations */
size_t mock_card_pinned(const struct mock_card *card); /* bytes of host memory */

/* The content of device memory as it is now, whatever stands in queues. */
void mock_read(struct mock_card *card, void *to, const void *memory, size_t bytes);

#endif
