/* pmi.h - reading lines of PMI-1. */
#ifndef CHORALE_COMM_BOOTSTRAP_PMI_H
#define CHORALE_COMM_BOOTSTRAP_PMI_H

#include <stdbool.h>
#include <stddef.h>

/* The value of the word KEY=VALUE of a line; false: there is none, or it needs more than `bytes` with its NUL. */
bool pmi_value(const char *line, const char *key, char *value, size_t bytes);

#endif
