/* origin.c - reading the environment that launchers leave. */
#include "comm/bootstrap/origin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "comm/bootstrap/control.h"

enum {
    SECRET_LEAST = 16,        /* characters */
    SLURM_PORT_FIRST = 20000, /* below the ports that systems give to clients (32768) */
    SLURM_PORTS = 12000,
    PORT_MOST = 65535
};

const char *origin_variable(const char *name)
{
    const char *value = getenv(name); /* NOLINT(concurrency-mt-unsafe): nobody sets the environment while joining */
    return value != NULL && value[0] != '\0' ? value : NULL;
}

enum status origin_number(const char *name, const char *by, int low, int high, int *out)
{
    const char *text = origin_variable(name);
    long long value = 0;
    if (text == NULL)
        return fail(STATUS_USAGE, "environment: %s is not set although %s is: let the launcher set both", name, by);
    if (parse_int(text, &value) != STATUS_OK || value < low || value > high)
        return fail(STATUS_USAGE, "environment: %s=%.40s: a whole number from %d to %d is wanted", name, text, low,
                    high);
    *out = (int)value;
    return STATUS_OK;
}

enum status origin_first_host(const char *list, char *host)
{
    const size_t stem = strcspn(list, "[,]");
    const bool ranges = list[stem] == '[';
    const char *digits = ranges ? list + stem + 1 : "";
    const size_t number = strspn(digits, "0123456789");
    const char *close = ranges ? strchr(digits, ']') : NULL;
    const char *rest = close != NULL ? close + 1 : "";
    const size_t tail = strcspn(rest, "[,]"), length = stem + number + tail;
    const bool torn = ranges && (close == NULL || number == 0 || strchr("-,]", digits[number]) == NULL);
    if (torn || list[stem] == ']' || rest[tail] == '[' || rest[tail] == ']' || length == 0 ||
        length >= ADDRESS_HOST_BYTES)
        return fail(STATUS_FORMAT, "%.80s: not a list of hosts as Slurm writes it", list);
    (void)snprintf(host, ADDRESS_HOST_BYTES, "%.*s%.*s%.*s", (int)stem, list, (int)number, digits, (int)tail, rest);
    return STATUS_OK;
}

/* ---- where rank 0 is known ---- */

/* CHORALE_PORT, else `otherwise`. */
static enum status choose_port(int otherwise, int *port)
{
    *port = otherwise;
    return origin_variable("CHORALE_PORT") != NULL ? origin_number("CHORALE_PORT", "", 1, PORT_MOST, port) : STATUS_OK;
}

/* What keeps this job apart from others, or the secret. */
static enum status choose_token(struct origin *origin, const char *job)
{
    const char *secret = origin_variable("CHORALE_JOB_TOKEN");
    struct text text = {.length = 0};
    origin->secret = secret != NULL;
    if (secret != NULL && strlen(secret) < SECRET_LEAST)
        return fail(
            STATUS_USAGE,
            "environment: CHORALE_JOB_TOKEN has %zu characters, at least %d are wanted: openssl rand -hex 16 makes "
            "one",
            strlen(secret), SECRET_LEAST);
    if (secret == NULL)
        text_addf(&text, "%s %s %s:%d %d", origin->name, job, origin->host, origin->port, origin->size);
    proof_token(secret != NULL ? secret : text_string(&text), origin->token);
    const enum status status = text_check(&text);
    text_release(&text);
    return status;
}

/* Also "[::1]", as addresses with a port are written. */
static enum status copy_host(struct origin *origin, const char *host)
{
    size_t length = strlen(host);
    if (length > 2 && host[0] == '[' && host[length - 1] == ']') {
        host++;
        length -= 2;
    }
    if (length >= sizeof origin->host)
        return fail(STATUS_USAGE, "environment: the host name %.60s... is too long", host);
    memcpy(origin->host, host, length);
    origin->host[length] = '\0';
    return STATUS_OK;
}

/* torchrun's agent holds MASTER_PORT itself unless it says that it does not. */
static enum status variables_port(struct origin *origin)
{
    const char *agent = origin_variable("TORCHELASTIC_USE_AGENT_STORE");
    int master = 0;
    if (origin_variable("CHORALE_PORT") != NULL)
        return choose_port(0, &origin->port);
    TRY(origin_number("MASTER_PORT", "MASTER_ADDR", 1, PORT_MOST, &master));
    origin->port = master + (agent != NULL && strcmp(agent, "True") == 0 ? 1 : 0);
    if (origin->port > PORT_MOST)
        return fail(STATUS_USAGE,
                    "environment: MASTER_PORT=%d is torchrun's own, and there is no port after it: set "
                    "CHORALE_PORT",
                    master);
    return STATUS_OK;
}

static enum status find_variables(struct origin *origin)
{
    const char *run = origin_variable("TORCHELASTIC_RUN_ID"), *address = origin_variable("MASTER_ADDR");
    const char *restart = origin_variable("TORCHELASTIC_RESTART_COUNT");
    int on_host = 0;
    char job[256];
    *origin = (struct origin){
        .kind = ORIGIN_ADDRESS, .name = run != NULL ? "torchrun" : "RANK and WORLD_SIZE", .local_rank = -1};
    TRY(origin_number("WORLD_SIZE", "RANK", 1, CONTROL_WORKERS, &origin->size));
    TRY(origin_number("RANK", "WORLD_SIZE", 0, origin->size - 1, &origin->rank));
    if (origin_variable("LOCAL_RANK") != NULL)
        TRY(origin_number("LOCAL_RANK", "", 0, origin->size - 1, &origin->local_rank));
    if (origin_variable("LOCAL_WORLD_SIZE") != NULL)
        TRY(origin_number("LOCAL_WORLD_SIZE", "", 1, origin->size, &on_host));
    origin->one_host = on_host == origin->size;
    if (origin->size == 1)
        return STATUS_OK;
    if (address == NULL)
        return fail(
            STATUS_USAGE,
            "environment: RANK=%d and WORLD_SIZE=%d are set, MASTER_ADDR is not: set MASTER_ADDR (the host of rank "
            "0) and MASTER_PORT alike for all workers",
            origin->rank, origin->size);
    TRY(copy_host(origin, address));
    TRY(variables_port(origin));
    (void)snprintf(job, sizeof job, "%.100s %.20s", run != NULL ? run : "", restart != NULL ? restart : "");
    return choose_token(origin, job);
}

/* ---- Slurm without a key-value store ---- */

static bool is_step_of_several(void)
{
    const char *tasks = origin_variable("SLURM_STEP_NUM_TASKS");
    return origin_variable("SLURM_STEP_ID") != NULL && origin_variable("SLURM_PROCID") != NULL && tasks != NULL &&
           strcmp(tasks, "1") != 0;
}

static enum status find_slurm(struct origin *origin)
{
    const char *address = origin_variable("MASTER_ADDR"), *hosts = origin_variable("SLURM_STEP_NODELIST");
    int nodes = 0, job = 0, step = 0;
    char words[64];
    *origin = (struct origin){.kind = ORIGIN_ADDRESS, .name = "Slurm", .local_rank = -1};
    TRY(origin_number("SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", 1, CONTROL_WORKERS, &origin->size));
    TRY(origin_number("SLURM_PROCID", "SLURM_STEP_ID", 0, origin->size - 1, &origin->rank));
    TRY(origin_number("SLURM_JOB_ID", "SLURM_STEP_ID", 0, 0x7fffffff, &job));
    TRY(origin_number("SLURM_STEP_ID", "SLURM_PROCID", 0, 0x7fffffff, &step));
    TRY(origin_number("SLURM_STEP_NUM_NODES", "SLURM_STEP_ID", 1, CONTROL_WORKERS, &nodes));
    if (origin_variable("SLURM_LOCALID") != NULL)
        TRY(origin_number("SLURM_LOCALID", "", 0, origin->size - 1, &origin->local_rank));
    origin->one_host = nodes == 1;
    if (hosts == NULL)
        return fail(STATUS_USAGE,
                    "environment: SLURM_STEP_NODELIST is not set although SLURM_STEP_ID is: let srun set both");
    if (address != NULL)
        TRY(copy_host(origin, address));
    else
        TRY(origin_first_host(hosts, origin->host));
    const unsigned mixed = ((unsigned)job * 2654435761u + (unsigned)step * 40503u) >> 7;
    TRY(choose_port(SLURM_PORT_FIRST + (int)(mixed % SLURM_PORTS), &origin->port));
    (void)snprintf(words, sizeof words, "%d.%d", job, step);
    return choose_token(origin, words);
}

/* ---- the order ---- */

/* A launcher's variables without those that a process needs to join it. */
static enum status check_torn(void)
{
    static const struct {
        const char *set, *missing, *cure;
    } torn[] = {
        {"PMIX_RANK", "PMIX_NAMESPACE", "let mpirun or srun --mpi=pmix set both"},
        {"PMIX_NAMESPACE", "PMIX_RANK", "let mpirun or srun --mpi=pmix set both"},
        {"PMI_RANK", "PMI_FD",
         "this launcher offers neither PMIx nor PMI-1: start with chorale -n, or set RANK, WORLD_SIZE, "
         "MASTER_ADDR and MASTER_PORT"},
        {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "let Open MPI's mpirun set both"},
        {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "let srun set both"},
        {"RANK", "WORLD_SIZE", "set both, and MASTER_ADDR and MASTER_PORT, or neither"},
        {"WORLD_SIZE", "RANK", "set both, and MASTER_ADDR and MASTER_PORT, or neither"},
    };
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++)
        if (origin_variable(torn[i].set) != NULL && origin_variable(torn[i].missing) == NULL)
            return fail(STATUS_USAGE,
                        "environment: %s is set, %s is not, so that nobody knows which worker this is: %s", torn[i].set,
                        torn[i].missing, torn[i].cure);
    return STATUS_OK;
}

enum status origin_find(struct origin *origin)
{
    const bool control = origin_variable("CHORALE_CONTROL") != NULL, token = origin_variable("CHORALE_TOKEN") != NULL;
    const bool variables = origin_variable("RANK") != NULL && origin_variable("WORLD_SIZE") != NULL;
    *origin = (struct origin){.kind = ORIGIN_NONE, .name = "nobody", .local_rank = -1};
    if (control != token)
        return fail(STATUS_USAGE, "environment: %s is not set although %s is: let the launcher set both",
                    control ? "CHORALE_TOKEN" : "CHORALE_CONTROL", control ? "CHORALE_CONTROL" : "CHORALE_TOKEN");
    if (control) {
        *origin = (struct origin){.kind = ORIGIN_CHORALE, .name = "chorale"};
        return STATUS_OK;
    }
    if (variables && origin_variable("TORCHELASTIC_RUN_ID") != NULL)
        return find_variables(origin);
    if (origin_variable("PMIX_NAMESPACE") != NULL && origin_variable("PMIX_RANK") != NULL) {
        *origin = (struct origin){.kind = ORIGIN_PMIX, .name = "PMIx", .local_rank = -1};
        return STATUS_OK;
    }
    if (origin_variable("PMI_FD") != NULL) {
        *origin = (struct origin){.kind = ORIGIN_PMI, .name = "PMI", .local_rank = -1};
        return STATUS_OK;
    }
    if (is_step_of_several())
        return find_slurm(origin);
    return variables ? find_variables(origin) : check_torn();
}

bool origin_is_launched(void)
{
    struct origin origin;
    return origin_find(&origin) != STATUS_OK || origin.kind != ORIGIN_NONE;
}

enum status origin_check_alone(void)
{
    const char *tasks = origin_variable("SLURM_NTASKS");
    if (tasks == NULL || strcmp(tasks, "1") == 0 || origin_variable("SLURM_JOB_ID") == NULL)
        return STATUS_OK;
    return fail(STATUS_USAGE,
                "environment: SLURM_NTASKS=%.20s is set, but this process is none of these tasks: start it with "
                "srun, or say -n 1 to work alone",
                tasks);
}
