/* support_tar.h - the header of an entry of a tar file. */
#ifndef CHORALE_TESTS_NN_SUPPORT_TAR_H
#define CHORALE_TESTS_NN_SUPPORT_TAR_H

#include <stddef.h>

enum { TAR_BLOCK = 512 };

/* POSIX ustar, of this type ('0' a file, '5' a folder) and length, with its checksum; of a name the first 100 bytes. */
void tar_header(unsigned char header[TAR_BLOCK], char type, const char *name, size_t length);

#endif
