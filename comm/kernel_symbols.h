/* kernel_symbols.h - keeps libfabric from reading through the kernel's symbols where that is of no use. Private to comm/.
 *
 * Whatever provider is asked for, libfabric sets up all of them, and that of verbs reads the whole of /proc/kallsyms for
 * it (1.17), twice, to know whether adapters reach the memory of cards. The kernel makes that text anew for each reader:
 * 120 ms of every worker's start, three quarters of what it costs. No setting of libfabric's turns it off.
 */
#ifndef CHORALE_COMM_KERNEL_SYMBOLS_H
#define CHORALE_COMM_KERNEL_SYMBOLS_H

#include <stdbool.h>

/* While true, and on a host without an adapter, fopen() finds no such file: the program has one of its own, which every
 * library takes before the C library's. A shared library with this in it changes nothing for others. Any thread. */
void kernel_symbols_hide(bool hide);

#endif
