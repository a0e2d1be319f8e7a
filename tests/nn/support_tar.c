#include "support_tar.h"

#include <stdio.h>
#include <string.h>

void tar_header(unsigned char header[TAR_BLOCK], char type, const char *name, size_t length)
{
    static const char MAGIC[8] = {'u', 's', 't', 'a', 'r', '\0', '0', '0'};
    char *const text = (char *)header;
    unsigned sum = 0;
    memset(header, 0, TAR_BLOCK);
    memcpy(text, name, strnlen(name, 100));
    (void)snprintf(text + 100, 8, "%07o", 0644);
    (void)snprintf(text + 124, 12, "%011zo", length);
    header[156] = (unsigned char)type;
    memcpy(text + 257, MAGIC, sizeof MAGIC);
    if (type == 'S')
        header[482] = 1;        /* the map of a sparse file goes on in the next block */
    memset(text + 148, ' ', 8); /* what counts as the checksum while it is made */
    for (int i = 0; i < TAR_BLOCK; i++)
        sum += header[i];
    (void)snprintf(text + 148, 8, "%06o", sum);
}
