/* status.c - the thread's failure text and the words for each status. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_SIZE 1024

static char *own_buffer(void)
{
    static _Thread_local char message[MESSAGE_SIZE];
    return message;
}

static status_buffer_fn *buffer_of_thread = own_buffer; /* changed once, by whoever loads this copy as a module */

status_buffer_fn *status_buffer(void)
{
    return buffer_of_thread;
}

void status_share(status_buffer_fn *buffer)
{
    buffer_of_thread = buffer;
}

static void message_store(const char *text)
{
    char *message = buffer_of_thread();
    size_t length = strlen(text);
    if (length >= MESSAGE_SIZE)
        length = MESSAGE_SIZE - 1;
    memmove(message, text, length);
    message[length] = '\0';
    for (size_t i = 0; i < length; i++)
        if (message[i] == '\n' || message[i] == '\r')
            message[i] = ' ';
}

enum status fail(enum status status, const char *format, ...)
{
    /* Formatted apart from `message`, because an argument may be status_message() itself. */
    char text[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    message_store(written < 0 ? format : text);
    return status;
}

enum status fail_context(enum status status, const char *format, ...)
{
    char prefix[MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    if (written < 0)
        return status;
    char text[2 * MESSAGE_SIZE + 2];
    if (snprintf(text, sizeof text, "%s: %s", prefix, buffer_of_thread()) >= 0)
        message_store(text);
    return status;
}

const char *status_message(void)
{
    return buffer_of_thread();
}

void status_clear(void)
{
    buffer_of_thread()[0] = '\0';
}

const char *status_name(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return "ok";
    case STATUS_AGAIN:
        return "again";
    case STATUS_USAGE:
        return "usage";
    case STATUS_REFUSED:
        return "refused";
    case STATUS_NO_MEMORY:
        return "no-memory";
    case STATUS_IO:
        return "io";
    case STATUS_FORMAT:
        return "format";
    case STATUS_TIMEOUT:
        return "timeout";
    case STATUS_PEER_LOST:
        return "peer-lost";
    case STATUS_MISMATCH:
        return "mismatch";
    case STATUS_UNAVAILABLE:
        return "unavailable";
    case STATUS_INTERNAL:
        return "internal";
    case STATUS_INTERRUPTED:
        return "interrupted";
    }
    return "unknown";
}

int status_exit_code(enum status status)
{
    if (status == STATUS_OK)
        return 0;
    return status == STATUS_USAGE || status == STATUS_REFUSED ? 2 : 1;
}
