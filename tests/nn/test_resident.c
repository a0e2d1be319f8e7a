/* test_resident.c - many epochs over images of all sizes, huge ones among them, need no more memory than a few do: what
 * a loader has is its batches and one image's rows for each thread, whatever lies in the data set.
 */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/file.h"
#include "nn/data.h"
#include "nn/data/loader.h"
#include "tests/base/expect.h"
#include "tests/nn/support_images.h"

enum { IMAGES = 60, SIZE = 32, BATCH = 10, FEW = 2, MANY = 8 };
#define MIB ((long)1 << 20)
#define GROWTH_MOST (4 * MIB) /* of MANY epochs, more than of FEW: below one large image's file and rows */
#define ALL_MOST (128 * MIB)  /* above what there was: files of the largest images for each thread, not their pixels */

static char folder[] = "/tmp/chorale-resident-XXXXXX";

static void put(int number, const struct picture *picture)
{
    char path[100];
    size_t length = 0;
    uint8_t *jpeg = picture_jpeg(picture, &length);
    if (jpeg == NULL)
        cr_skip_test("built without libjpeg-turbo");
    (void)snprintf(path, sizeof path, "%s/train/c%d", folder, number % 2);
    EXPECT_OK(folder_create(path));
    (void)snprintf(path, sizeof path, "%s/train/c%d/%d.jpg", folder, number % 2, number);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(jpeg, 1, length, file), length);
    cr_assert_eq(fclose(file), 0);
    free(jpeg);
}

/* Sides from 1 to some hundreds, the widest and the highest that JPEG has, a progressive one, and one of 8000 x 8000. */
static void put_images(void)
{
    static const struct picture large[] = {{.width = 65500, .height = 1},
                                           {.width = 1, .height = 65500},
                                           {.width = 1500, .height = 1000, .progressive = true},
                                           {.width = 8000, .height = 8000, .grey = true},
                                           {.width = 8000, .height = 700, .quality = 100}};
    const int larges = sizeof large / sizeof large[0];
    for (int i = 0; i < larges; i++)
        put(i, &large[i]);
    for (int i = larges; i < IMAGES; i++)
        put(i,
            &(struct picture){
                .width = 1 + i * 37 % 400, .height = 1 + i * 91 % 300, .grey = i % 7 == 0, .progressive = i % 5 == 0});
}

/* Of "NAME:  N kB" in /proc/self/FILE; -1: there is none. */
static long memory_of(const char *name, const char *where)
{
    char line[200], path[100];
    long value = -1;
    (void)snprintf(path, sizeof path, "/proc/self/%s", where);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name) + 1, NULL, 10) * 1024;
    if (file != NULL)
        (void)fclose(file);
    return value;
}

/* Counted page by page: "status" leaves out what each CPU has not yet added to the sum, megabytes on a large machine. */
static long resident(void)
{
    const long counted = memory_of("Rss", "smaps_rollup");
    if (counted < 0)
        cr_skip_test("this kernel has no /proc/self/smaps_rollup");
    return counted;
}

/* What was resident at most since this is called; false: the kernel doesn't tell. */
static bool peak_restart(void)
{
    const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0)
        (void)close(fd);
    return done && memory_of("VmHWM", "status") >= 0;
}

/* What is resident after so many epochs, with the loader still open: all batches are done, so no thread is in the middle
 * of an image. */
static long resident_after(struct data *data, int threads, int epochs)
{
    const struct data_order order = {.seed = 1, .samples = IMAGES, .workers = 1, .batch = BATCH};
    const struct loader_request request = {.data = data,
                                           .batch = BATCH,
                                           .batches = (size_t)epochs * IMAGES / BATCH,
                                           .order = &order,
                                           .stored = true,
                                           .threads = threads,
                                           .ahead = 2,
                                           .held = 1};
    struct loader *loader = NULL;
    EXPECT_OK(loader_open(&request, &loader));
    for (size_t b = 0; b < request.batches; b++) {
        const struct batch *batch = NULL;
        EXPECT_OK(loader_next(loader, &batch));
        cr_assert_not_null(batch);
        cr_assert_eq(batch->count, BATCH);
        loader_done(loader);
    }
    const long bytes = resident();
    loader_close(loader);
    return bytes;
}

Test(resident, memory_does_not_grow_with_images_and_epochs)
{
    struct data *data = NULL;
    char command[100];
    cr_assert_not_null(mkdtemp(folder));
    put_images();
    EXPECT_OK(data_open(&(struct data_request){.path = folder, .image_size = SIZE, .seed = 2}, &data));
    cr_assert_not_null(data);
    cr_assert_eq(data_train_count(data), IMAGES);
    /* A large block goes back to the system when it is freed; else the C library keeps up to 64 MiB of them for later. */
    (void)mallopt(M_MMAP_THRESHOLD, 128 * 1024);
    /* Nor does the kernel make 2 MiB of a page that was touched. */
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    const bool peaks = peak_restart(); /* making the images had its own */
    const long before = resident();
    /* Of several threads, each keeps a place for the largest file that came to it, sooner or later. */
    const long few = resident_after(data, 1, FEW), many = resident_after(data, 1, MANY);
    cr_expect_leq(many - few, GROWTH_MOST, "%ld KiB after %d epochs, %ld KiB after %d", few / 1024, FEW, many / 1024,
                  MANY);
    (void)resident_after(data, 2, MANY);
    const long peak = memory_of("VmHWM", "status");
    if (peaks)
        cr_expect_leq(peak - before, ALL_MOST, "%ld KiB above %ld KiB", (peak - before) / 1024, before / 1024);
    struct data_facts facts;
    data_facts(data, &facts);
    cr_expect_eq(facts.skipped, 0);
    data_close(data);
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    cr_expect_eq(system(command), 0);
}
