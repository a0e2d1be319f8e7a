/* origin.h - who has started this process, as its environment says. In this order:
 *
 *   chorale      CHORALE_CONTROL, CHORALE_TOKEN, RANK, WORLD_SIZE: the local launcher (launch.h)
 *   torchrun     TORCHELASTIC_RUN_ID and the variables below: before the next three, inside which it may have been started
 *   PMIx         PMIX_NAMESPACE, PMIX_RANK: mpirun of Open MPI, srun --mpi=pmix
 *   PMI          PMI_FD: mpiexec of MPICH, srun --mpi=pmi2
 *   Slurm        SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST: srun, where there is more than one task
 *   variables    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: scripts, Kubernetes
 *
 * CHORALE_PORT, where it is set, is the port of rank 0's control server under the last two and torchrun; CHORALE_JOB_TOKEN the
 * secret that the workers share there. Only the environment is read here, nothing is opened.
 *
 * Rank 0 hosts the control channel, over which all find each other, meet, and learn of deaths. Its address travels through the
 * launcher's store (PMIx, PMI), or is MASTER_ADDR and MASTER_PORT (torchrun's agent holds that port: then the next one), or the
 * first host of SLURM_STEP_NODELIST and a port made of the job's number. MASTER_ADDR and MASTER_PORT without RANK and
 * WORLD_SIZE say nothing of workers: they are left alone.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_ORIGIN_H
#define CHORALE_COMM_BOOTSTRAP_ORIGIN_H

#include <stdbool.h>

#include "base/status.h"
#include "comm/bootstrap/address.h"
#include "comm/bootstrap/proof.h"

enum origin_kind { ORIGIN_NONE, ORIGIN_CHORALE, ORIGIN_PMIX, ORIGIN_PMI, ORIGIN_ADDRESS };

struct origin {
    enum origin_kind kind;
    const char *name; /* "torchrun", "Slurm", ...: for messages */
    /* ORIGIN_ADDRESS: everyone knows where rank 0 is. */
    int rank, size;
    int local_rank; /* -1: not said */
    bool one_host;  /* said to be; false: not known */
    char host[ADDRESS_HOST_BYTES];
    int port;
    bool
        secret; /* token comes from CHORALE_JOB_TOKEN; else from names and numbers, which keep jobs apart, not people */
    unsigned char token[PROOF_TOKEN_BYTES];
};

/* STATUS_USAGE: the environment of a launcher is torn or malformed; the text names the variable. */
enum status origin_find(struct origin *origin) MUST_CHECK;
/* That a launcher has started this process, also one whose environment is torn. */
bool origin_is_launched(void);
/* Of a process that nobody has started as one of many: STATUS_USAGE when a launcher of several tasks is around it (a batch
 * script's own shell), so that working alone is hardly meant. */
enum status origin_check_alone(void) MUST_CHECK;

/* The value of an environment variable, NULL when it is not set or empty. */
const char *origin_variable(const char *name);
/* A whole number in [low, high]; `by` in messages is who should have set it. */
enum status origin_number(const char *name, const char *by, int low, int high, int *out) MUST_CHECK;
/* The first host of a Slurm list: "n[01-03,7],m" is n01. STATUS_FORMAT. `host` holds ADDRESS_HOST_BYTES. */
enum status origin_first_host(const char *list, char *host) MUST_CHECK;

#endif
