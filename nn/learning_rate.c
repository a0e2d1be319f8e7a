/* learning_rate.c - see learning_rate.h. */
#include "nn/learning_rate.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "nn/data/order.h"

#define PI 3.14159265358979323846

const char *rate_schedule_name(enum rate_schedule schedule)
{
    static const char *const names[] = {
        [RATE_CONSTANT] = "constant", [RATE_STEP] = "step", [RATE_COSINE] = "cosine", [RATE_POLYNOMIAL] = "polynomial"};
    return schedule < sizeof names / sizeof names[0] ? names[schedule] : NULL;
}

double learning_rate_scaled(const struct learning_rate *rate)
{
    return rate->images > 0 ? rate->rate * (double)rate->global_batch / (double)rate->images : rate->rate;
}

/* Steps after the warm-up as a share of all that follow it; 1 from the end of the run on. */
static double progress(const struct learning_rate *rate, uint64_t step)
{
    const double begin = rate->began + (double)rate->warmup, at = (double)step;
    if (at <= begin)
        return 0;
    return step >= rate->steps ? 1 : (at - begin) / ((double)rate->steps - begin);
}

static double decayed(const struct learning_rate *rate, uint64_t step)
{
    double scaled = learning_rate_scaled(rate), left = scaled - rate->end;
    switch (rate->schedule) {
    case RATE_CONSTANT:
        break;
    case RATE_STEP:
        for (int k = 0; k < rate->milestones; k++)
            scaled *= step >= rate->milestone[k] ? rate->factor : 1;
        break;
    case RATE_COSINE:
        return rate->end + left * (1 + cos(PI * progress(rate, step))) / 2;
    case RATE_POLYNOMIAL:
        return rate->end + left * pow(1 - progress(rate, step), rate->power);
    }
    return scaled;
}

double learning_rate_at(const struct learning_rate *rate, uint64_t step)
{
    const double value = decayed(rate, step), done = (double)step - rate->warmup_began;
    if (done >= (double)rate->warmup)
        return value;
    return rate->warmup_from + (value - rate->warmup_from) * ((done + 1) / (double)rate->warmup);
}

static enum status bad_milestones(const char *epochs)
{
    return fail(STATUS_USAGE, "decay epochs %s: at most %d rising positive numbers, like 30,60,80, or nothing", epochs,
                MILESTONES_MOST);
}

enum status learning_rate_milestones(struct learning_rate *rate, const char *epochs, double steps_per_epoch)
{
    rate->milestones = 0;
    double last = 0;
    for (const char *next = epochs; *next != '\0';) {
        char number[32];
        size_t length = strcspn(next, ",");
        double epoch = 0;
        if (length >= sizeof number || rate->milestones == MILESTONES_MOST)
            return bad_milestones(epochs);
        memcpy(number, next, length);
        number[length] = '\0';
        next += length;
        bool more = *next == ',';
        if (parse_real(number, &epoch) < 0 || !(epoch > last) || epoch > 1e9 || (more && next[1] == '\0'))
            return bad_milestones(epochs);
        next += more;
        last = epoch;
        rate->milestone[rate->milestones++] = data_order_steps(epoch, steps_per_epoch);
    }
    return STATUS_OK;
}

void learning_rate_usual_milestones(struct learning_rate *rate, uint64_t steps)
{
    static const double epochs[] = {30, 60, 80};
    rate->milestones = sizeof epochs / sizeof epochs[0];
    for (int k = 0; k < rate->milestones; k++)
        rate->milestone[k] = data_order_steps(epochs[k] / 90, (double)steps); /* of one step: none */
}

void learning_rate_shift(struct learning_rate *rate, double steps)
{
    for (int k = 0; k < rate->milestones; k++) {
        const double milestone = (double)rate->milestone[k] + steps;
        rate->milestone[k] = milestone > 0 ? (uint64_t)milestone : 0;
    }
}
