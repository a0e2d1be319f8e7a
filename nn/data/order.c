/* order.c - permutations and shares. */
#include "nn/data/order.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/rng.h"

static size_t global_batch(const struct data_order *order)
{
    return (size_t)order->workers * (size_t)order->batch;
}

/* Worker `rank`'s share of the fixed orders: positions begin .. begin + count - 1. */
struct share {
    size_t begin, count;
};

static struct share share_of(const struct data_order *order, int rank)
{
    size_t workers = (size_t)order->workers, r = (size_t)rank;
    size_t each = order->samples / workers, left = order->samples % workers;
    return (struct share){.begin = r * each + (r < left ? r : left), .count = each + (r < left)};
}

/* ---- batches ---- */

/* Of the samples from `position` on. */
static size_t batches_from(const struct data_order *order, size_t position)
{
    const size_t left = order->samples > position ? order->samples - position : 0;
    if (!order->keep_last)
        return left / global_batch(order); /* the smallest share holds as many batches */
    const size_t batch = order->shard == SHARD_GLOBAL ? global_batch(order) : (size_t)order->batch;
    const size_t most = order->shard == SHARD_GLOBAL ? left : share_of(order, 0).count;
    return (most + batch - 1) / batch;
}

size_t data_order_batches(const struct data_order *order)
{
    return batches_from(order, 0);
}

/* Where this order begins in `epoch`. */
static size_t begin_of(const struct data_order *order, uint64_t epoch)
{
    return epoch == order->origin.epoch ? order->origin.position : 0;
}

static size_t position_of(const struct data_order *order, uint64_t epoch, size_t batch)
{
    const size_t position = begin_of(order, epoch) + batch * global_batch(order);
    return position < order->samples ? position : order->samples;
}

struct data_place data_order_place(const struct data_order *order, uint64_t step)
{
    const struct data_origin *origin = &order->origin;
    const size_t first = batches_from(order, origin->position), each = data_order_batches(order);
    const uint64_t since = step - origin->step;
    struct data_place place = {.epoch = origin->epoch, .batch = (size_t)since};
    if (since >= first && each > 0) {
        place.epoch = origin->epoch + 1 + (since - first) / each;
        place.batch = (size_t)((since - first) % each);
    }
    place.position = position_of(order, place.epoch, place.batch);
    return place;
}

double data_order_epochs(const struct data_order *order, uint64_t step)
{
    const struct data_place place = data_order_place(order, step);
    const double batches = (double)place.position / (double)global_batch(order);
    return (double)place.epoch + batches / (double)data_order_batches(order);
}

/* Worker `rank`'s part of a global batch of the global order. */
static struct share part_of(const struct data_order *order, uint64_t epoch, size_t batch, int rank)
{
    const size_t begin = position_of(order, epoch, batch), left = order->samples - begin;
    const size_t r = (size_t)rank, workers = (size_t)order->workers;
    if (left >= global_batch(order))
        return (struct share){.begin = begin + r * (size_t)order->batch, .count = (size_t)order->batch};
    const size_t each = left / workers, more = left % workers;
    return (struct share){.begin = begin + r * each + (r < more ? r : more), .count = each + (r < more)};
}

int data_order_images(const struct data_order *order, uint64_t epoch, size_t batch, int rank)
{
    if (!order->keep_last)
        return order->batch;
    if (order->shard == SHARD_GLOBAL)
        return (int)part_of(order, epoch, batch, rank).count;
    const size_t before = batch * (size_t)order->batch, count = share_of(order, rank).count;
    const size_t left = count > before ? count - before : 0;
    return left < (size_t)order->batch ? (int)left : order->batch;
}

size_t data_order_all_images(const struct data_order *order, uint64_t epoch, size_t batch)
{
    size_t images = 0;
    for (int rank = 0; rank < order->workers; rank++)
        images += (size_t)data_order_images(order, epoch, batch, rank);
    return images;
}

size_t data_order_rest(const struct data_order *order)
{
    const size_t batches = data_order_batches(order);
    if (!order->keep_last)
        return order->samples - batches * global_batch(order);
    const size_t last = data_order_all_images(order, order->origin.epoch + 1, batches - 1);
    return last < global_batch(order) ? last : 0;
}

uint64_t data_order_steps(double epochs, double batches)
{
    const double steps = epochs * batches, nearest = nearbyint(steps);
    return (uint64_t)(fabs(steps - nearest) <= 1e-9 * fmax(nearest, 1) ? nearest : ceil(steps));
}

uint64_t data_order_end(const struct data_order *order, double epochs)
{
    const struct data_origin *origin = &order->origin;
    const uint64_t each = data_order_batches(order), first = batches_from(order, origin->position);
    const double left = epochs - (double)origin->epoch;
    /* The first epoch may be shorter: what it lacks counts as done. */
    const uint64_t steps = left > 0 ? data_order_steps(left, (double)each) : 0, done = each - first;
    return origin->step + (steps > done ? steps - done : 0);
}

/* ---- samples ---- */

/* The sample at `position` of the order that shares are cut from. */
static size_t fixed_sample(const struct data_order *order, size_t position)
{
    if (order->shard == SHARD_LABEL)
        return order->by_label[position];
    return (size_t)rng_permute(rng_key(order->seed, "share", 0, 0), order->samples, position);
}

size_t data_order_sample(const struct data_order *order, uint64_t epoch, size_t batch, int rank, int i)
{
    if (order->shard == SHARD_GLOBAL) {
        size_t position = part_of(order, epoch, batch, rank).begin + (size_t)i;
        return (size_t)rng_permute(rng_key(order->seed, "shuffle", epoch, 0), order->samples, position);
    }
    struct share share = share_of(order, rank);
    uint64_t key = rng_key(order->seed, "shuffle share", epoch, (uint64_t)rank);
    uint64_t position = rng_permute(key, share.count, batch * (size_t)order->batch + (size_t)i);
    return fixed_sample(order, share.begin + (size_t)position);
}

size_t data_order_substitute(const struct data_order *order, uint64_t epoch, int rank, size_t sample, int attempt)
{
    uint64_t key = rng_key(order->seed, "substitute", epoch, sample), counter = (uint64_t)attempt;
    if (order->shard == SHARD_GLOBAL)
        return (size_t)rng_below(key, counter, order->samples);
    struct share share = share_of(order, rank);
    return fixed_sample(order, share.begin + (size_t)rng_below(key, counter, share.count));
}

enum status data_sort_by_label(const int32_t *labels, size_t count, int classes, uint32_t **sorted)
{
    void *places = NULL, *order = NULL;
    *sorted = NULL;
    if (count > UINT32_MAX)
        return fail(STATUS_REFUSED, "%zu samples: sharding by label takes at most 2^32-1", count);
    TRY(memory_zeroed(&places, (size_t)classes + 1, sizeof(size_t)));
    enum status status = memory_zeroed(&order, count, sizeof(uint32_t));
    size_t *place = places; /* of label c: where its next sample goes */
    uint32_t *to = order;
    for (size_t i = 0; status >= 0 && i < count; i++)
        place[labels[i] + 1]++;
    for (int c = 0; status >= 0 && c < classes; c++)
        place[c + 1] += place[c];
    for (size_t i = 0; status >= 0 && i < count; i++)
        to[place[labels[i]]++] = (uint32_t)i;
    free(places);
    *sorted = to;
    return status;
}

const char *data_shard_name(enum data_shard shard)
{
    static const char *const names[] = {[SHARD_GLOBAL] = "global", [SHARD_FIXED] = "fixed", [SHARD_LABEL] = "label"};
    return names[shard];
}
