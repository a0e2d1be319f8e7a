/* plain_loader.c - loaders of several threads give what one without threads gives, and may end at any time: for
 * ThreadSanitizer. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/data.h"
#include "nn/data/loader.h"

enum { RECORD = 3074, RECORDS = 60, SIZE = 24, BATCH = 7, BATCHES = 20, ELEMENTS = BATCH * 3 * SIZE * SIZE };

static char folder[] = "/tmp/chorale-plain-XXXXXX";

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "plain_loader.c:%d: %s: %s\n", __LINE__, #condition, status_message());                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A small CIFAR-100. */
static void put(const char *name)
{
    static unsigned char bytes[RECORDS * RECORD];
    char path[64];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i % RECORD < 2 ? i / RECORD : i * 7 + i / 999);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wbe");
    CHECK(file != NULL && fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes && fclose(file) == 0);
}

static struct loader *open_loader(const struct data *data, const struct data_order *order, int threads)
{
    struct loader *loader = NULL;
    const struct loader_request request = {.data = data,
                                           .batch = BATCH,
                                           .batches = BATCHES,
                                           .order = order,
                                           .rank = 1,
                                           .threads = threads,
                                           .ahead = 2,
                                           .held = 2};
    CHECK(loader_open(&request, &loader) >= 0);
    return loader;
}

static void expect_equal(const struct data *data, const struct data_order *order, int threads)
{
    static float wanted[ELEMENTS];
    int32_t labels[BATCH];
    struct loader *loader = open_loader(data, order, threads);
    for (uint64_t step = 0; step < BATCHES; step++) {
        const struct batch *batch = NULL;
        CHECK(data_train_batch(data, order, step, 1, wanted, labels) >= 0);
        CHECK(loader_next(loader, &batch) >= 0 && batch->count == BATCH);
        for (int i = 0; i < ELEMENTS; i++)
            CHECK(batch->canonical[i] == wanted[i]);
        for (int i = 0; i < BATCH; i++)
            CHECK(batch->labels[i] == labels[i]);
        if (step > 0)
            loader_done(loader); /* the one before */
    }
    loader_close(loader);
}

int main(void)
{
    struct data *data = NULL;
    const struct data_order order = {.seed = 5, .samples = RECORDS, .workers = 2, .batch = BATCH};
    CHECK(mkdtemp(folder) != NULL);
    put("train.bin");
    put("test.bin");
    CHECK(data_open(&(struct data_request){.path = folder, .image_size = SIZE, .seed = 5}, &data) >= 0);
    for (int threads = 0; threads <= 4; threads++)
        expect_equal(data, &order, threads);
    for (int taken = 0; taken < 4; taken++) {
        struct loader *loader = open_loader(data, &order, 3);
        const struct batch *batch = NULL;
        for (int b = 0; b < taken; b++) {
            CHECK(loader_next(loader, &batch) >= 0);
            loader_done(loader);
        }
        loader_close(loader);
    }
    data_close(data);
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    CHECK(system(command) == 0);
    printf("plain_loader: all well\n");
    return 0;
}
