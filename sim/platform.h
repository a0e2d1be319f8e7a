/* platform.h - a simulated machine: nodes of workers, two classes of links, and the cost of reducing.
 *
 * A star: each worker has a full-duplex port for messages within its node; each node has one full-duplex network
 * interface, shared by its workers, for messages between nodes. A message of n bytes occupies the sender's port (or its
 * node's interface) for n * seconds_per_byte, travels `latency`, and occupies the receiver's likewise, cut-through: it
 * is there latency + n * seconds_per_byte after it began to leave, if nothing else is in the way. Line-based text,
 * units in every value:
 *
 *   # comment: where the figures are from
 *   platform fdr-4gpu
 *   node workers=4
 *   link intra latency=5us bandwidth=10GB/s
 *   link inter latency=2us bandwidth=6GB/s
 *   reduce cost=0.02ns/B
 *   overhead send=0.5us receive=0.5us       (optional: processor time of a message, LogGP's o)
 *
 * Every line but `overhead` is required. bandwidth=infGB/s: bytes cost nothing.
 */
#ifndef CHORALE_SIM_PLATFORM_H
#define CHORALE_SIM_PLATFORM_H

#include "algos/layout.h"
#include "algos/schedule.h"
#include "base/status.h"
#include "base/text.h"

struct link {
    double latency_s, seconds_per_byte;
};

struct platform {
    char name[64];
    int node_workers; /* workers of a node; the last node may have fewer */
    struct link intra, inter;
    double reduce_s_per_byte;
    double send_overhead_s, receive_overhead_s;
};

enum status platform_read(const char *path, struct platform *platform) MUST_CHECK;
enum status platform_parse(const char *text, const char *name_for_messages, struct platform *platform) MUST_CHECK;
/* The layout that `workers` workers have on it. */
enum status platform_layout(const struct platform *platform, int workers, struct layout *layout) MUST_CHECK;
/* The lines of a platform, without comments; platform_parse() reads them back. Appended. */
void platform_text(const struct platform *platform, struct text *text);
/* For closed forms: the intra link when one node holds all workers, else the inter link. */
void platform_cost_model(const struct platform *platform, int workers, struct cost_model *model);

#endif
