/* pmi.c - PMI-1 on the descriptor that PMI_FD names: lines of key=value words, one answer for each request.
 *
 * MPICH's process manager Hydra speaks it, and Slurm's plug-in pmi2 where a client asks for version 1. As in MPICH's
 * src/pmi: init, get_my_kvsname, put, barrier_in, get, finalize.
 */
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/bootstrap/control.h"
#include "comm/bootstrap/exchange.h"
#include "comm/bootstrap/origin.h"
#include "comm/bootstrap/pmi.h"

enum { LINE_BYTES = 4096, NAME_BYTES = 257 };

struct pmi {
    int fd, rank;
    double seconds;        /* that an answer may take */
    char name[NAME_BYTES]; /* of the key-value space */
    char line[LINE_BYTES]; /* the latest answer, then what came after it */
    size_t have;
};

bool pmi_value(const char *line, const char *key, char *value, size_t bytes)
{
    const size_t length = strlen(key);
    for (const char *word = line; *word != '\0';) {
        const size_t end = strcspn(word, " ");
        if (end > length && word[length] == '=' && strncmp(word, key, length) == 0) {
            if (end - length > bytes)
                return false;
            memcpy(value, word + length + 1, end - length - 1);
            value[end - length - 1] = '\0';
            return true;
        }
        word += end + strspn(word + end, " ");
    }
    return false;
}

static int failed(char *message, const char *what, const char *why)
{
    (void)snprintf(message, EXCHANGE_MESSAGE_BYTES, "%.40s: %.200s", what, why);
    return 1;
}

static int write_line(struct pmi *pmi, const char *line, char *message)
{
    for (size_t sent = 0, length = strlen(line); sent < length;) {
        const ssize_t count = send(pmi->fd, line + sent, length - sent, MSG_NOSIGNAL);
        if (count < 0 && errno != EINTR)
            return failed(message, "PMI_FD", strerror(errno));
        sent += count > 0 ? (size_t)count : 0;
    }
    return 0;
}

static int read_more(struct pmi *pmi, uint64_t deadline, char *message)
{
    struct pollfd ready = {.fd = pmi->fd, .events = POLLIN};
    if (pmi->have == LINE_BYTES)
        return failed(message, "PMI_FD", "the process manager's answer is too long");
    for (int count = 0; count == 0;) {
        const uint64_t left = deadline_left_ns(deadline) / 1000000u;
        if (deadline_passed(deadline))
            return failed(message, "PMI",
                          "no answer from the process manager within the deadline: not all workers came");
        count = poll(&ready, 1, left < 1000 ? (int)left + 1 : 1000);
        if (count < 0 && errno == EINTR)
            count = 0;
        else if (count < 0)
            return failed(message, "PMI_FD", strerror(errno));
    }
    const ssize_t count = read(pmi->fd, pmi->line + pmi->have, LINE_BYTES - pmi->have);
    if (count == 0)
        return failed(message, "PMI_FD", "the process manager has closed the connection");
    if (count < 0 && errno != EINTR && errno != EAGAIN)
        return failed(message, "PMI_FD", strerror(errno));
    pmi->have += count > 0 ? (size_t)count : 0;
    return 0;
}

/* One line into `answer` (LINE_BYTES). */
static int read_line(struct pmi *pmi, double seconds, char *answer, char *message)
{
    const uint64_t deadline = deadline_after(seconds);
    char *end;
    while ((end = memchr(pmi->line, '\n', pmi->have)) == NULL)
        if (read_more(pmi, deadline, message) != 0)
            return 1;
    const size_t length = (size_t)(end - pmi->line);
    control_line_get(answer, (const unsigned char *)pmi->line, length);
    pmi->have -= length + 1;
    memmove(pmi->line, end + 1, pmi->have);
    return 0;
}

/* Ask, and check that what comes is the answer to it and no failure. */
static int ask(struct pmi *pmi, double seconds, const char *question, const char *expected, char *answer, char *message)
{
    char word[64] = "", code[16] = "0";
    if (write_line(pmi, question, message) != 0 || read_line(pmi, seconds, answer, message) != 0)
        return 1;
    if (!pmi_value(answer, "cmd", word, sizeof word) || strcmp(word, expected) != 0)
        return failed(message, "PMI: an answer out of place", answer);
    if (pmi_value(answer, "rc", code, sizeof code) && strcmp(code, "0") != 0)
        return failed(message, "PMI: refused", answer);
    return 0;
}

static int greet(struct pmi *pmi, char *message)
{
    char answer[LINE_BYTES];
    if (ask(pmi, pmi->seconds, "cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init", answer, message) != 0 ||
        ask(pmi, pmi->seconds, "cmd=get_my_kvsname\n", "my_kvsname", answer, message) != 0)
        return 1;
    if (!pmi_value(answer, "kvsname", pmi->name, sizeof pmi->name))
        return failed(message, "PMI: no kvsname", answer);
    return 0;
}

static int find_place(int *fd, int *rank, int *size, char *message)
{
    if (origin_number("PMI_FD", "PMI_RANK", 0, 1 << 20, fd) != STATUS_OK ||
        origin_number("PMI_SIZE", "PMI_FD", 1, CONTROL_WORKERS, size) != STATUS_OK ||
        origin_number("PMI_RANK", "PMI_FD", 0, *size - 1, rank) != STATUS_OK)
        return failed(message, "PMI", status_message());
    return 0;
}

static int pmi_open(double seconds, void **state, int *rank, int *size, char *message)
{
    int fd = -1;
    if (find_place(&fd, rank, size, message) != 0)
        return 1;
    struct pmi *pmi = calloc(1, sizeof *pmi);
    if (pmi == NULL)
        return failed(message, "PMI", "out of memory");
    pmi->fd = fd;
    pmi->rank = *rank;
    pmi->seconds = seconds;
    if (greet(pmi, message) != 0) {
        free(pmi);
        return 1;
    }
    *state = pmi;
    return 0;
}

/* Keys belong to nobody: the rank is made part of them. */
static int pmi_put(void *state, const char *key, const char *value, char *message)
{
    struct pmi *pmi = state;
    char line[LINE_BYTES], answer[LINE_BYTES];
    (void)snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s-%d value=%s\n", pmi->name, key, pmi->rank, value);
    return ask(pmi, pmi->seconds, line, "put_result", answer, message);
}

static int pmi_fence(void *state, double seconds, char *message)
{
    char answer[LINE_BYTES];
    return ask(state, seconds, "cmd=barrier_in\n", "barrier_out", answer, message);
}

static int pmi_get(void *state, int rank, const char *key, char *value, size_t bytes, char *message)
{
    struct pmi *pmi = state;
    char line[LINE_BYTES], answer[LINE_BYTES];
    (void)snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s-%d\n", pmi->name, key, rank);
    if (ask(pmi, pmi->seconds, line, "get_result", answer, message) != 0)
        return 1;
    return pmi_value(answer, "value", value, bytes) ? 0 : failed(message, "PMI: no value", answer);
}

/* The descriptor stays open: its end would be this process's to the process manager. */
static void pmi_close(void *state)
{
    struct pmi *pmi = state;
    char answer[LINE_BYTES], message[EXCHANGE_MESSAGE_BYTES];
    (void)ask(pmi, pmi->seconds, "cmd=finalize\n", "finalize_ack", answer, message);
    free(pmi);
}

const struct exchange_module exchange_pmi = {.version = EXCHANGE_VERSION,
                                             .open = pmi_open,
                                             .put = pmi_put,
                                             .fence = pmi_fence,
                                             .get = pmi_get,
                                             .close = pmi_close};
