/* export.h - schedules in the forms of other programs.
 *
 *   msccl    MSCCL XML (algos/msccl.h): for RCCL's and Azure's MSCCL, and for msccl:file=X.xml here. In place. A lane is a
 *            channel; a (lane, peer, direction) is a tb, and so are the local ops of a lane; what an op follows in other
 *            tbs is a dependency. One file. At most EXPORT_MSCCL_WORKERS workers; RCCL itself takes 64 steps in a tb.
 *   goal     GOAL text of LogGOPSim and ATLAHS (txt2bin reads it): send, recv, calc for what is reduced or copied, at the
 *            platform's price; tag = lane; `requires` where an op follows another, `irequires` keeps messages of a (peer,
 *            lane) in order. One file.
 *   simgrid  SimGrid's time-independent trace as SMPI of 3.32 (Debian 12) replays it: init, isend, irecv, wait, compute,
 *            finalize; a byte is MPI_BYTE, a reduction or copy of n elements is n flops. Every message has a tag of its
 *            own. One file with the lines of all workers; smpirun -replay takes a list of such files, one a line.
 *   chakra   MLCommons Chakra execution traces (protobuf, schema of 2025), which ASTRA-sim loads as a custom collective:
 *            COMM_SEND, COMM_RECV and COMP nodes with data dependencies. One file for each worker.
 *
 * Sizes in goal, simgrid and chakra are those of the vector given; messages without elements are not in them.
 */
#ifndef CHORALE_ALGOS_EXPORT_H
#define CHORALE_ALGOS_EXPORT_H

#include "algos/trace.h"
#include "base/text.h"

#define EXPORT_MSCCL_WORKERS 64

enum export_format { EXPORT_MSCCL, EXPORT_GOAL, EXPORT_SIMGRID, EXPORT_CHAKRA, EXPORT_FORMATS };

struct export_request {
    const struct shape *shape;
    const char *name; /* of the schedule: its canonical spec       */
    size_t count, element_bytes;
    double reduce_s_per_byte; /* what a calc or COMP of a byte takes       */
};

/* A schedule on its way into files. */
struct exporter {
    struct export_request request; /* its pointers stay the caller's */
    enum export_format format;
    struct trace trace;
};

/* STATUS_REFUSED with the reason: what the format can't express (a schedule that is no allreduce, weights, numbers beyond
 * its own), or too large (trace.h). Release with export_end(); on failure there is nothing to release. */
enum status export_begin(const struct export_request *request, enum export_format format,
                         struct exporter *exporter) MUST_CHECK;
/* How many files: 1, or one for each worker. */
int export_files(const struct exporter *exporter);
/* File `index`, appended to *text. */
enum status export_file(const struct exporter *exporter, int index, struct text *text) MUST_CHECK;
void export_end(struct exporter *exporter);

#endif
