/* exchange.h - the key-value store of a foreign launcher, through which the workers learn where rank 0's control server is.
 *
 * Two kinds: PMI-1 (pmi.c), a line protocol that needs no library, and PMIx (modules/pmix.c), a module (base/module.h), so
 * that the program itself does not need that library. Everyone opens, puts and gets, with a fence between, and closes: the
 * store is not used any longer than that, and what the launcher notices afterwards is the end of processes.
 *
 * Functions return 0, or 1 with one line in `message` (EXCHANGE_MESSAGE_BYTES); no wait takes longer than `seconds`.
 */
#ifndef CHORALE_COMM_BOOTSTRAP_EXCHANGE_H
#define CHORALE_COMM_BOOTSTRAP_EXCHANGE_H

#include <stddef.h>

#define EXCHANGE_VERSION 1u
#define EXCHANGE_SYMBOL "chorale_exchange"

enum {
    EXCHANGE_MESSAGE_BYTES = 256,
    EXCHANGE_VALUE_BYTES = 1000 /* with the NUL; letters and digits only: PMI-1 takes 1023 characters without spaces */
};

struct exchange_module {
    unsigned version; /* EXCHANGE_VERSION */
    int (*open)(double seconds, void **state, int *rank, int *size, char *message);
    int (*put)(void *state, const char *key, const char *value, char *message);
    int (*fence)(void *state, double seconds, char *message); /* what was put before it can be got after it */
    int (*get)(void *state, int rank, const char *key, char *value, size_t bytes,
               char *message); /* what `rank` has put */
    void (*close)(void *state);
};

extern const struct exchange_module exchange_pmi;

#endif
