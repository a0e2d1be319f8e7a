/* worker_fabric.c - one worker of test_fabric: opens the transport argv[1] and runs the check argv[2]. Exit 0: all is
 * well; else a line on stderr says what is not. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "comm/job.h"
#include "comm/transport.h"

#define PATIENCE 60.0 /* seconds */
#define BATCH 16
#define LARGEST (((size_t)1 << 20) + 1)
#define MANY 200

struct worker {
    struct job *job;
    struct transport *transport;
    int next, previous; /* neighbours on a ring; with one worker, this one */
};

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return fail(STATUS_INTERNAL, "worker_fabric.c:%d: %s", __LINE__, #condition);                              \
    } while (0)

/* A transfer whose context counts down what is outstanding, so that whoever polls may report it. */
struct tracked {
    struct transfer transfer;
    bool done;
};

static enum status poll_once(struct worker *worker, unsigned *idle)
{
    struct transfer *done[BATCH];
    size_t count = 0;
    TRY(worker->transport->ops->progress(worker->transport, done, BATCH, &count));
    for (size_t i = 0; i < count; i++) {
        struct tracked *tracked = (struct tracked *)done[i];
        REQUIRE(!tracked->done);
        tracked->done = true;
    }
    *idle = count > 0 ? 0 : *idle + 1;
    if (count == 0)
        worker->transport->ops->wait(worker->transport, 1000000, *idle);
    return job_check(worker->job);
}

static enum status wait_for(struct worker *worker, struct tracked *tracked, size_t count)
{
    uint64_t deadline = deadline_after(PATIENCE);
    unsigned idle = 0;
    for (size_t i = 0; i < count; i++)
        while (!tracked[i].done) {
            TRY(poll_once(worker, &idle));
            if (deadline_passed(deadline))
                return fail(STATUS_TIMEOUT, "transfer %zu of %zu is not done", i, count);
        }
    return STATUS_OK;
}

static enum status post(struct worker *worker, bool sending, int peer, uint64_t tag, uint64_t ignore, void *data,
                        size_t bytes, struct tracked *tracked)
{
    struct transport *transport = worker->transport;
    uint64_t deadline = deadline_after(PATIENCE);
    unsigned idle = 0;
    memset(tracked, 0, sizeof *tracked);
    for (;;) {
        enum status status =
            sending ? transport->ops->send(transport, peer, tag, data, bytes, &tracked->transfer)
                    : transport->ops->receive(transport, peer, tag, ignore, data, bytes, &tracked->transfer);
        if (status != STATUS_AGAIN)
            return status;
        TRY(poll_once(worker, &idle));
        if (deadline_passed(deadline))
            return fail(STATUS_TIMEOUT, "the transport takes nothing any more");
    }
}

static enum status send_to(struct worker *worker, int peer, uint64_t tag, void *data, size_t bytes,
                           struct tracked *tracked)
{
    return post(worker, true, peer, tag, 0, data, bytes, tracked);
}

static enum status receive_from(struct worker *worker, int peer, uint64_t tag, uint64_t ignore, void *data,
                                size_t bytes, struct tracked *tracked)
{
    return post(worker, false, peer, tag, ignore, data, bytes, tracked);
}

static unsigned char content(int from, size_t size, size_t index)
{
    return (unsigned char)((size_t)from * 31 + size * 7 + index + index / 251);
}

static unsigned char out_bytes[LARGEST], in_bytes[LARGEST + 1];

static enum status exchange(struct worker *worker, size_t bytes)
{
    struct tracked transfers[2];
    for (size_t i = 0; i < bytes; i++)
        out_bytes[i] = content(worker->transport->rank, bytes, i);
    memset(in_bytes, 0xA5, sizeof in_bytes);
    TRY(receive_from(worker, worker->previous, bytes, 0, in_bytes, LARGEST, &transfers[0]));
    TRY(send_to(worker, worker->next, bytes, out_bytes, bytes, &transfers[1]));
    TRY(wait_for(worker, transfers, 2));
    REQUIRE(transfers[0].transfer.status == STATUS_OK);
    REQUIRE(transfers[1].transfer.status == STATUS_OK);
    REQUIRE(transfers[0].transfer.bytes == bytes);
    REQUIRE(transfers[1].transfer.bytes == bytes);
    for (size_t i = 0; i < bytes; i++)
        REQUIRE(in_bytes[i] == content(worker->previous, bytes, i));
    REQUIRE(in_bytes[bytes] == 0xA5);
    return STATUS_OK;
}

/* Around the limits of every protocol inside the providers. */
static enum status check_sizes(struct worker *worker)
{
    static const size_t sizes[] = {0,
                                   1,
                                   64,
                                   65,
                                   192,
                                   193,
                                   4095,
                                   4096,
                                   4097,
                                   8192,
                                   16383,
                                   16384,
                                   16385,
                                   65536,
                                   131072,
                                   131073,
                                   (size_t)1 << 20,
                                   LARGEST};
    for (int repeat = 0; repeat < 3; repeat++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            TRY(exchange(worker, sizes[i]));
    return STATUS_OK;
}

static unsigned char many_out[MANY][5000], many_in[MANY][5000];
static struct tracked many[2 * MANY];

/* Two hundred each way at once, small and large mixed, the receives posted in another order than the sends. */
static enum status check_outstanding(struct worker *worker)
{
    for (size_t i = 0; i < MANY; i++) {
        size_t tag = i * 77 % MANY;
        memset(many_out[i], (int)(i + (size_t)worker->transport->rank), sizeof many_out[i]);
        TRY(receive_from(worker, worker->previous, tag, 0, many_in[tag], sizeof many_in[tag], &many[tag]));
    }
    TRY(job_barrier(worker->job));
    for (size_t i = 0; i < MANY; i++)
        TRY(send_to(worker, worker->next, i, many_out[i], i % 2 == 0 ? 40 : 5000, &many[MANY + i]));
    TRY(wait_for(worker, many, (size_t)2 * MANY));
    for (size_t i = 0; i < MANY; i++) {
        REQUIRE(many[i].transfer.status == STATUS_OK && many[MANY + i].transfer.status == STATUS_OK);
        REQUIRE(many[i].transfer.bytes == (i % 2 == 0 ? 40 : 5000));
        REQUIRE(many_in[i][0] == (unsigned char)(i + (size_t)worker->previous));
        REQUIRE(many_in[i][many[i].transfer.bytes - 1] == many_in[i][0]);
    }
    return STATUS_OK;
}

/* Messages of one tag arrive in the order sent, whatever their size. */
static enum status check_order(struct worker *worker)
{
    for (size_t i = 0; i < MANY; i++)
        TRY(receive_from(worker, worker->previous, 5, 0, many_in[i], sizeof many_in[i], &many[i]));
    TRY(job_barrier(worker->job));
    for (size_t i = 0; i < MANY; i++) {
        memset(many_out[i], (int)i, sizeof many_out[i]);
        TRY(send_to(worker, worker->next, 5, many_out[i], 1 + i * 1777 % 5000, &many[MANY + i]));
    }
    TRY(wait_for(worker, many, (size_t)2 * MANY));
    for (size_t i = 0; i < MANY; i++) {
        REQUIRE(many[i].transfer.bytes == 1 + i * 1777 % 5000);
        REQUIRE(many_in[i][0] == (unsigned char)i);
    }
    return STATUS_OK;
}

/* Small messages that come before their receives are kept. */
static enum status check_unexpected(struct worker *worker)
{
    for (size_t i = 0; i < 32; i++) {
        memset(many_out[i], (int)i, 100);
        TRY(send_to(worker, worker->next, i, many_out[i], 100, &many[MANY + i]));
    }
    TRY(wait_for(worker, many + MANY, 32));
    TRY(job_barrier(worker->job));
    for (size_t i = 32; i-- > 0;)
        TRY(receive_from(worker, worker->previous, i, 0, many_in[i], 100, &many[i]));
    TRY(wait_for(worker, many, 32));
    for (size_t i = 0; i < 32; i++)
        REQUIRE(many_in[i][99] == i);
    return STATUS_OK;
}

/* Receives from anyone, under a mask: as many messages as there are workers, each says who sent it. */
static enum status check_wildcards(struct worker *worker)
{
    int size = worker->transport->size, rank = worker->transport->rank;
    bool seen[16] = {false};
    REQUIRE(size <= 16);
    for (int i = 0; i < size; i++)
        TRY(receive_from(worker, TRANSPORT_ANY, (uint64_t)0xAB << 52, ((uint64_t)1 << 52) - 1, many_in[i],
                         sizeof many_in[i], &many[i]));
    TRY(job_barrier(worker->job));
    for (int i = 0; i < size; i++) {
        memset(many_out[i], rank, sizeof many_out[i]);
        TRY(send_to(worker, i, (uint64_t)0xAB << 52 | (uint64_t)(rank * 1000 + i), many_out[i], 4500, &many[MANY + i]));
    }
    TRY(wait_for(worker, many, (size_t)size));
    TRY(wait_for(worker, many + MANY, (size_t)size));
    for (int i = 0; i < size; i++) {
        REQUIRE(many[i].transfer.bytes == 4500);
        REQUIRE(many_in[i][0] < size && !seen[many_in[i][0]]);
        seen[many_in[i][0]] = true;
    }
    return STATUS_OK;
}

/* A tag that does not match exactly waits on, and so does one from another peer. */
static enum status check_matching(struct worker *worker)
{
    int next = worker->next, previous = worker->previous;
    TRY(receive_from(worker, previous, 7, 0, many_in[0], 8, &many[0]));
    TRY(receive_from(worker, previous, 8, 0, many_in[1], 8, &many[1]));
    TRY(job_barrier(worker->job));
    memcpy(many_out[0], "eight", 6);
    memcpy(many_out[1], "seven", 6);
    TRY(send_to(worker, next, 8, many_out[0], 6, &many[2]));
    TRY(wait_for(worker, &many[1], 2));
    REQUIRE(!many[0].done);
    TRY(job_barrier(worker->job)); /* everyone has looked */
    TRY(send_to(worker, next, 7, many_out[1], 6, &many[3]));
    TRY(wait_for(worker, many, 4));
    REQUIRE(strcmp((char *)many_in[0], "seven") == 0 && strcmp((char *)many_in[1], "eight") == 0);
    return STATUS_OK;
}

static enum status check_cancel(struct worker *worker)
{
    TRY(receive_from(worker, worker->previous, 1, 0, many_in[0], 100, &many[0]));
    TRY(receive_from(worker, TRANSPORT_ANY, 2, 0, many_in[1], 100, &many[1]));
    worker->transport->ops->cancel(worker->transport, &many[0].transfer);
    worker->transport->ops->cancel(worker->transport, &many[1].transfer);
    TRY(wait_for(worker, many, 2));
    REQUIRE(many[0].transfer.status == STATUS_INTERRUPTED);
    REQUIRE(many[1].transfer.status == STATUS_INTERRUPTED);
    TRY(job_barrier(worker->job));
    return exchange(worker, 5000);
}

static enum status check_self(struct worker *worker)
{
    int rank = worker->transport->rank;
    for (size_t i = 0; i < 4; i++) {
        static const size_t sizes[] = {0, 8, 5000, LARGEST};
        memset(out_bytes, (int)i + 1, sizes[i]);
        memset(in_bytes, 0, sizeof in_bytes);
        TRY(receive_from(worker, rank, i, 0, in_bytes, LARGEST, &many[0]));
        TRY(send_to(worker, rank, i, out_bytes, sizes[i], &many[1]));
        TRY(wait_for(worker, many, 2));
        REQUIRE(many[0].transfer.bytes == sizes[i] && memcmp(in_bytes, out_bytes, sizes[i]) == 0);
    }
    return STATUS_OK;
}

/* Once nothing comes, waiting takes next to no processor time. The message that ends it is taken. */
static enum status check_idle(struct worker *worker)
{
    TRY(receive_from(worker, worker->previous, 1, 0, many_in[0], 100, &many[0]));
    TRY(job_barrier(worker->job));
    if (worker->transport->rank == 0) {
        clock_sleep_ns(1000000000);
        TRY(send_to(worker, worker->next, 1, many_out[0], 100, &many[1]));
        TRY(wait_for(worker, many, 2));
    } else {
        const double began = clock_seconds();
        const clock_t before = clock();
        TRY(wait_for(worker, many, 1));
        const double used = (double)(clock() - before) / CLOCKS_PER_SEC, took = clock_seconds() - began;
        if (used > 0.4 * took) /* on a crowded machine it is more than a second */
            return fail(STATUS_INTERNAL, "%.2f s of waiting took %.2f s of processor time", took, used);
        TRY(send_to(worker, worker->next, 1, many_out[0], 100, &many[1]));
        TRY(wait_for(worker, &many[1], 1));
    }
    return STATUS_OK;
}

static const struct {
    const char *name;
    enum status (*run)(struct worker *worker);
} checks[] = {
    {"sizes", check_sizes},         {"outstanding", check_outstanding},
    {"order", check_order},         {"unexpected", check_unexpected},
    {"wildcards", check_wildcards}, {"matching", check_matching},
    {"cancel", check_cancel},       {"self", check_self},
    {"idle", check_idle},
};

static enum status run_check(struct worker *worker, const char *name)
{
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        if (strcmp(checks[i].name, name) == 0) {
            TRY(checks[i].run(worker));
            return job_barrier(worker->job); /* nobody closes while another still waits */
        }
    return fail(STATUS_USAGE, "no check %s", name);
}

static enum status open_and_run(struct worker *worker, const char *transport, const char *check)
{
    struct fabric_request request = {.job = worker->job, .name = transport};
    TRY(fabric_open(&request, &worker->transport));
    int rank = worker->transport->rank, size = worker->transport->size;
    worker->next = (rank + 1) % size;
    worker->previous = (rank + size - 1) % size;
    enum status status = run_check(worker, check);
    worker->transport->ops->close(worker->transport);
    return status;
}

int main(int argc, char **argv)
{
    struct worker worker = {.job = NULL};
    enum status status = argc == 3 ? job_join(NULL, &worker.job) : fail(STATUS_USAGE, "TRANSPORT CHECK");
    if (status == STATUS_OK)
        status = open_and_run(&worker, argv[1], argv[2]);
    if (status == STATUS_OK)
        status = job_leave(worker.job);
    if (status != STATUS_OK)
        (void)fprintf(stderr, "worker_fabric: %s\n", status_message());
    job_destroy(worker.job);
    return status == STATUS_OK ? 0 : 1;
}
