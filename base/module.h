/* module.h - shared libraries of ours that are loaded on demand, so that the program itself needs none of what they need.
 *
 * A module is FILE.so in the folder that CHORALE_MODULES names, else in the folder of the program. It exports one table,
 * which begins with a version number.
 */
#ifndef CHORALE_BASE_MODULE_H
#define CHORALE_BASE_MODULE_H

#include <stdbool.h>

#include "base/status.h"

struct module_request {
    const char *what;   /* in messages: "device cuda"                                      */
    const char *file;   /* without .so: "chorale-device-cuda"                              */
    const char *symbol; /* of its table                                                     */
    unsigned version;   /* that the table must begin with                                  */
    const char *cure;   /* when there is no such file: what it is built with               */
    bool global;        /* its symbols are seen by libraries loaded later (RTLD_GLOBAL)   */
};

/* It stays loaded: *table is valid from then on. STATUS_UNAVAILABLE with the reason. */
enum status module_load(const struct module_request *request, const void **table) MUST_CHECK;

#endif
