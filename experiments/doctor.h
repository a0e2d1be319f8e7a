/* doctor.h - what `chorale doctor` looks at: checks of this host and of this build, each in a process of its own, under a
 * deadline, so that one that crashes or hangs costs only its own line.
 */
#ifndef CHORALE_EXPERIMENTS_DOCTOR_H
#define CHORALE_EXPERIMENTS_DOCTOR_H

#include "base/text.h"

enum verdict {
    DOCTOR_OK,
    DOCTOR_NOTE, /* something is missing or slower than need be: the cure says what to do */
    DOCTOR_BAD   /* makes running impossible                                              */
};

enum { FINDINGS = 16 }; /* of one check; more are dropped */

struct finding {
    enum verdict verdict;
    char name[32];
    char value[400];
    char cure[300]; /* "": none is needed */
};

struct report {
    int count;
    struct finding finding[FINDINGS];
};

/* Adds to the report; too long texts are cut. cure NULL: none. */
__attribute__((format(printf, 5, 6))) void report_add(struct report *report, enum verdict verdict, const char *name,
                                                      const char *cure, const char *format, ...);

struct check {
    const char *group, *name; /* the name of a finding when the check itself does not end well */
    double seconds;           /* that it may take                                              */
    void (*run)(const struct check *check, struct report *report);
    const char *argument;
};

/* Each list ends with a check without a name. */
extern const struct check doctor_builds[];     /* versions, modules, cards                                            */
extern const struct check doctor_host[];       /* CPUs, limits, memory                                                */
extern const struct check doctor_networks[];   /* host name, interfaces, launcher                                     */
extern const struct check doctor_transports[]; /* shm, tcp and others: without the first two nothing runs */

#endif
