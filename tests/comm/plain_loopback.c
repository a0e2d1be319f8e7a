/* plain_loopback.c - every endpoint on a thread of its own, each sending to all and receiving from all; for
 * ThreadSanitizer. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport.h"

#define WORKERS 4
#define ROUNDS 40
#define LARGEST 1500

struct worker {
    struct transport *transport;
    unsigned char out[WORKERS][LARGEST], in[WORKERS][LARGEST];
    struct transfer sends[WORKERS], receives[WORKERS];
    const char *failure;
};

static size_t round_bytes(int round)
{
    return (size_t)round * 37 % LARGEST + 1;
}

static unsigned char content(int from, int to, int round, size_t index)
{
    return (unsigned char)((size_t)(from * 64 + to * 16 + round) + index);
}

/* Post until accepted, taking what is done meanwhile: a transport may need that to make room. */
static size_t post(struct worker *worker, int peer, int round, bool sending)
{
    struct transport *transport = worker->transport;
    struct transfer *done[2 * WORKERS];
    size_t have = 0;
    for (;;) {
        size_t count = 0;
        enum status status = sending ? transport->ops->send(transport, peer, (uint64_t)round, worker->out[peer],
                                                            round_bytes(round), &worker->sends[peer])
                                     : transport->ops->receive(transport, peer, (uint64_t)round, 0, worker->in[peer],
                                                               LARGEST, &worker->receives[peer]);
        if (status != STATUS_AGAIN)
            return status == STATUS_OK ? have : (worker->failure = "post", have);
        if (transport->ops->progress(transport, done, 2 * WORKERS, &count) != STATUS_OK)
            worker->failure = "progress";
        have += count;
    }
}

static void exchange(struct worker *worker, int round, uint64_t deadline)
{
    struct transport *transport = worker->transport;
    struct transfer *done[2 * WORKERS];
    size_t have = 0, count = 0;
    for (int peer = 0; peer < WORKERS; peer++) {
        for (size_t i = 0; i < round_bytes(round); i++)
            worker->out[peer][i] = content(transport->rank, peer, round, i);
        memset(worker->in[peer], 0, LARGEST);
        have += post(worker, peer, round, round % 2 == 0);
    }
    for (int peer = 0; peer < WORKERS; peer++)
        have += post(worker, peer, round, round % 2 != 0);
    for (unsigned idle = 0; have < 2 * (size_t)WORKERS && worker->failure == NULL; have += count) {
        if (transport->ops->progress(transport, done, 2 * WORKERS, &count) != STATUS_OK)
            worker->failure = "progress";
        idle = count > 0 ? 0 : idle + 1;
        if (count == 0)
            transport->ops->wait(transport, 100000, idle);
        if (deadline_passed(deadline))
            worker->failure = "deadline";
    }
}

static void check(struct worker *worker, int round)
{
    for (int peer = 0; peer < WORKERS; peer++) {
        if (worker->receives[peer].status != STATUS_OK || worker->receives[peer].bytes != round_bytes(round))
            worker->failure = "status";
        for (size_t i = 0; i < round_bytes(round); i++)
            if (worker->in[peer][i] != content(peer, worker->transport->rank, round, i))
                worker->failure = "content";
    }
}

static void *work(void *context)
{
    struct worker *worker = context;
    uint64_t deadline = deadline_after(120);
    for (int round = 0; round < ROUNDS && worker->failure == NULL; round++) {
        exchange(worker, round, deadline);
        if (worker->failure == NULL)
            check(worker, round);
    }
    worker->transport->ops->close(worker->transport);
    return NULL;
}

static struct worker workers[WORKERS];

static bool run(enum loopback_mode mode)
{
    struct transport *transports[WORKERS];
    pthread_t threads[WORKERS];
    bool good = true;
    if (loopback_open(WORKERS, mode, 1, transports) != STATUS_OK)
        return false;
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < WORKERS; i++) {
        workers[i].transport = transports[i];
        if (pthread_create(&threads[i], NULL, work, &workers[i]) != 0)
            return false;
    }
    for (int i = 0; i < WORKERS; i++) {
        (void)pthread_join(threads[i], NULL);
        if (workers[i].failure != NULL) {
            (void)fprintf(stderr, "mode %d, worker %d: %s\n", (int)mode, i, workers[i].failure);
            good = false;
        }
    }
    return good;
}

int main(void)
{
    bool good = run(LOOPBACK_IN_ORDER);
    good = run(LOOPBACK_SHUFFLED) && good;
    good = run(LOOPBACK_DELAYED) && good;
    return good ? 0 : 1;
}
