/* clock.c - monotonic time, deadlines and the text of the present moment. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_SECOND 1000000000U

uint64_t clock_ns(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

double clock_seconds(void)
{
    return (double)clock_ns() / (double)NS_PER_SECOND;
}

void clock_sleep_ns(uint64_t ns)
{
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

uint64_t deadline_after(double seconds)
{
    /* Three hundred years on, the sum would leave 64 bits: as good as never. Catches nan and inf, too. */
    const double longest = 9e9;
    if (!(seconds > 0 && seconds < longest))
        return UINT64_MAX;
    return clock_ns() + (uint64_t)(seconds * (double)NS_PER_SECOND);
}

bool deadline_passed(uint64_t deadline)
{
    return deadline != UINT64_MAX && clock_ns() >= deadline;
}

uint64_t deadline_left_ns(uint64_t deadline)
{
    if (deadline == UINT64_MAX)
        return UINT64_MAX;
    uint64_t now = clock_ns();
    return now >= deadline ? 0 : deadline - now;
}

void clock_wall_text(char *text, size_t size)
{
    if (size == 0)
        return;
    text[0] = '\0';
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts) == NULL || strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0)
        text[0] = '\0';
}
