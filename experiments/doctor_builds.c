/* doctor_builds.c - versions of what the program was built with, its modules, and cards. */
#define _GNU_SOURCE /* dlopen's flags */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <stdio.h>
#include <string.h>

#include "base/module.h"
#include "comm/bootstrap/exchange.h"
#include "comm/device.h"
#include "comm/external.h"
#include "comm/topology.h"
#include "experiments/doctor.h"
#include "nn/backend.h"

static void check_versions(const struct check *check, struct report *report)
{
    struct text text = {0};
    const uint32_t fabric = fi_version();
    (void)check;
    report_add(report, DOCTOR_OK, "chorale", NULL, "%s, %s", CHORALE_VERSION, CHORALE_COMMIT);
    report_add(report, DOCTOR_OK, "libfabric", NULL, "%u.%u", FI_MAJOR(fabric), FI_MINOR(fabric));
    backend_cpu.describe(NULL, &text);
    report_add(report, DOCTOR_OK, "oneDNN", NULL, "%s", text_string(&text));
    text_release(&text);
    if (topology_library() != NULL)
        report_add(report, DOCTOR_OK, "hwloc", NULL, "%s", topology_library());
    else
        report_add(report, DOCTOR_NOTE, "hwloc", "install libhwloc-dev and configure again",
                   "built without it: every CPU counts as a core, and all as one socket");
}

/* ---- modules ---- */

typedef const char *text_fn(void);
typedef int mpi_version_fn(char *text, int *length);
typedef int number_fn(int *number);

/* A function of a library that is loaded already; NULL: it is not. */
static void *function_of(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return handle != NULL ? dlsym(handle, name) : NULL;
}

static void pmix_version(char *version, size_t size)
{
    void *symbol = function_of("libpmix.so.2", "PMIx_Get_version");
    text_fn *get = NULL;
    memcpy(&get, &symbol, sizeof get);
    if (get != NULL)
        (void)snprintf(version, size, ": %s", get());
}

static void mpi_version(const char *library, char *version, size_t size)
{
    char text[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING, of whichever MPI */
    int length = 0;
    void *symbol = function_of(library, "MPI_Get_library_version");
    mpi_version_fn *get = NULL;
    memcpy(&get, &symbol, sizeof get);
    if (get == NULL || get(text, &length) != 0)
        return;
    text[strcspn(text, "\n,")] = '\0';
    (void)snprintf(version, size, ": %.80s", text);
}

/* 12040 is 12.4, 22304 is 2.23.4. */
static void number_version(const char *library, const char *name, bool nccl, char *version, size_t size)
{
    int number = 0;
    void *symbol = function_of(library, name);
    number_fn *get = NULL;
    memcpy(&get, &symbol, sizeof get);
    if (get == NULL || get(&number) != 0)
        return;
    if (nccl)
        (void)snprintf(version, size, ": NCCL %d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    else
        (void)snprintf(version, size, ": CUDA runtime %d.%d", number / 1000, number % 1000 / 10);
}

static const struct kind {
    const char *name, *file, *symbol, *cure;
    unsigned version;
} kinds[] = {
    {"PMIx", "chorale-bootstrap-pmix", EXCHANGE_SYMBOL,
     "for workers of Open MPI's mpirun and srun --mpi=pmix: install libpmix-dev and build", EXCHANGE_VERSION},
    {"Open MPI", "chorale-external-openmpi", EXTERNAL_SYMBOL,
     "for --allreduce=mpi beside ours: install libopenmpi-dev and build", EXTERNAL_VERSION},
    {"MPICH", "chorale-external-mpich", EXTERNAL_SYMBOL,
     "for --allreduce=mpi beside ours: install libmpich-dev and build", EXTERNAL_VERSION},
    {"NCCL", "chorale-external-nccl", EXTERNAL_SYMBOL,
     "for --allreduce=nccl beside ours: install NCCL and CUDA and build", EXTERNAL_VERSION},
    {"CUDA", "chorale-device-cuda", DEVICE_MODULE_SYMBOL,
     "for --device=cuda: install the CUDA toolkit and cuDNN 9 and build", DEVICE_MODULE_VERSION},
};

static const struct kind *kind_named(const char *name)
{
    const struct kind *kind = kinds;
    while (strcmp(kind->name, name) != 0)
        kind++;
    return kind;
}

static void check_module(const struct check *check, struct report *report)
{
    const struct kind *kind = kind_named(check->argument);
    const struct module_request request = {
        .what = "module", .file = kind->file, .symbol = kind->symbol, .version = kind->version, .cure = "not built"};
    const void *table = NULL;
    char version[128] = "";
    if (module_load(&request, &table) != STATUS_OK) {
        report_add(report, DOCTOR_NOTE, kind->name, kind->cure, "%s", status_message());
        return;
    }
    pmix_version(version, strcmp(kind->name, "PMIx") == 0 ? sizeof version : 0);
    if (strcmp(kind->name, "Open MPI") == 0)
        mpi_version("libmpi.so.40", version, sizeof version);
    else if (strcmp(kind->name, "MPICH") == 0)
        mpi_version("libmpich.so.12", version, sizeof version);
    else if (strcmp(kind->name, "NCCL") == 0)
        number_version("libnccl.so.2", "ncclGetVersion", true, version, sizeof version);
    else if (strcmp(kind->name, "CUDA") == 0) {
        number_version("libcudart.so.12", "cudaRuntimeGetVersion", false, version, sizeof version);
        if (version[0] == '\0')
            number_version("libcudart.so.13", "cudaRuntimeGetVersion", false, version, sizeof version);
    }
    report_add(report, DOCTOR_OK, kind->name, NULL, "its module loads%s", version);
}

/* ---- cards ---- */

typedef int init_fn(unsigned flags);
typedef int name_fn(char *name, int size, int card);

static void name_cards(void *driver, int cards, struct report *report)
{
    void *symbol = dlsym(driver, "cuDeviceGetName");
    name_fn *get = NULL;
    memcpy(&get, &symbol, sizeof get);
    for (int card = 0; card < cards && get != NULL; card++) {
        char title[24], name[128] = "";
        (void)snprintf(title, sizeof title, "card %d", card);
        if (get(name, sizeof name, card) == 0)
            report_add(report, DOCTOR_OK, title, NULL, "%s", name);
    }
}

static void check_cards(const struct check *check, struct report *report)
{
    static const char without[] = "none is needed without --device=cuda";
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int version = 0, cards = 0;
    if (driver == NULL) {
        report_add(report, DOCTOR_OK, check->name, NULL, "no driver (libcuda.so.1): %s", without);
        return;
    }
    void *symbols[3] = {dlsym(driver, "cuInit"), dlsym(driver, "cuDriverGetVersion"),
                        dlsym(driver, "cuDeviceGetCount")};
    init_fn *init = NULL;
    number_fn *get_version = NULL, *get_count = NULL;
    memcpy(&init, &symbols[0], sizeof init);
    memcpy(&get_version, &symbols[1], sizeof get_version);
    memcpy(&get_count, &symbols[2], sizeof get_count);
    if (init == NULL || get_version == NULL || get_count == NULL || get_version(&version) != 0) {
        report_add(report, DOCTOR_NOTE, check->name, "install the driver anew", "libcuda.so.1 does not answer");
        return;
    }
    const int failed = init(0);
    if (failed != 0 || get_count(&cards) != 0 || cards == 0) {
        report_add(report, DOCTOR_NOTE, check->name, without, "driver for CUDA %d.%d, but no card (code %d)",
                   version / 1000, version % 1000 / 10, failed);
        return;
    }
    report_add(report, DOCTOR_OK, check->name, NULL, "%d card%s, driver for CUDA %d.%d", cards, cards > 1 ? "s" : "",
               version / 1000, version % 1000 / 10);
    name_cards(driver, cards, report);
}

const struct check doctor_builds[] = {
    {"build", "versions", 10, check_versions, NULL},      {"module", "PMIx", 10, check_module, "PMIx"},
    {"module", "Open MPI", 10, check_module, "Open MPI"}, {"module", "MPICH", 10, check_module, "MPICH"},
    {"module", "NCCL", 20, check_module, "NCCL"},         {"module", "CUDA", 20, check_module, "CUDA"},
    {"cards", "driver", 20, check_cards, NULL},           {.name = NULL},
};
