/* inject.c - impairments: their spelling, and the transport that holds messages back.
 *
 * A message that is held stands in the queue of its peer: its own struct transfer is the place, which the provider does not
 * use before the message is handed over.
 */
#include "comm/inject.h"

#include <assert.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "comm/transport.h"

#define NOMINAL_DELAY 10e-6   /* seconds: of a straggler's links */
#define NOMINAL_BANDWIDTH 1e9 /* bytes per second               */
#define LONGEST_S 3600.0
#define SHORT_WAIT_NS 1000
#define LARGEST_FACTOR 1000.0
#define RANK_MOST 65535

/* ---- the text ---- */

static const char *const kind_name[] = {"delay", "jitter", "bandwidth"};
static const char *const death_name[] = {"kill", "stop", "exit0"};
enum { KINDS = 3, DEATHS = 3 };

static enum status wrong(const char *entry, const char *wanted)
{
    return fail(STATUS_USAGE, "--inject: %.80s: %s", entry, wanted);
}

static bool parse_count(const char *text, long long most, long long *value)
{
    return parse_int(text, value) == STATUS_OK && *value >= 0 && *value <= most;
}

/* "VALUE@0-1": the link is cut off. */
static enum status parse_link(const char *entry, char *value, struct inject_rule *rule)
{
    long long from = 0, to = 0;
    char *at = strchr(value, '@');
    rule->from = rule->to = INJECT_EVERY;
    if (at == NULL)
        return STATUS_OK;
    *at = '\0';
    char *dash = strchr(at + 1, '-');
    if (dash == NULL)
        return wrong(entry, "a link is @FROM-TO, as in delay=50us@0-1");
    *dash = '\0';
    if (!parse_count(at + 1, RANK_MOST, &from) || !parse_count(dash + 1, RANK_MOST, &to) || from == to)
        return wrong(entry, "a link is @FROM-TO, as in delay=50us@0-1");
    rule->from = (int)from;
    rule->to = (int)to;
    return STATUS_OK;
}

static bool parse_time(const char *text, double *seconds)
{
    double number = 0;
    if (parse_real(text, &number) == STATUS_OK)
        *seconds = number * 1e-6;
    else if (parse_quantity(text, "s", seconds) != STATUS_OK)
        return false;
    return *seconds >= 0 && *seconds <= LONGEST_S;
}

static enum status parse_rule(const char *entry, enum inject_kind kind, char *value, struct inject *inject)
{
    struct inject_rule rule = {.kind = kind};
    if (inject->rules == INJECT_RULES_MOST)
        return fail(STATUS_USAGE, "--inject: more than %d entries", (int)INJECT_RULES_MOST);
    TRY(parse_link(entry, value, &rule));
    if (kind != INJECT_BANDWIDTH && !parse_time(value, &rule.value))
        return wrong(entry, "microseconds, or a time up to an hour with its unit, as in 50us or 2ms");
    if (kind == INJECT_BANDWIDTH &&
        (parse_quantity(value, "B/s", &rule.value) != STATUS_OK || !isfinite(rule.value) || rule.value < 1))
        return wrong(entry, "a rate with its unit, as in 100MB/s or 1Gbit/s");
    inject->rule[inject->rules++] = rule;
    return STATUS_OK;
}

static enum status parse_straggler(const char *entry, char *value, struct inject *inject)
{
    long long rank = 0;
    char *colon = strchr(value, ':');
    if (inject->straggles)
        return wrong(entry, "there is one straggler already: leave one of them out");
    if (colon != NULL)
        *colon = '\0';
    if (colon == NULL || !parse_count(value, RANK_MOST, &rank) || parse_real(colon + 1, &inject->factor) != STATUS_OK ||
        !(inject->factor >= 1) || inject->factor > LARGEST_FACTOR)
        return wrong(entry, "RANK:FACTOR with a factor from 1 to 1000, as in straggler=2:1.5");
    inject->straggles = true;
    inject->straggler = (int)rank;
    return STATUS_OK;
}

static enum status parse_death(const char *entry, char *value, struct inject *inject)
{
    long long rank = 0, step = 0;
    char *at = strchr(value, '@'), *colon = strchr(value, ':');
    if (inject->dies)
        return wrong(entry, "one worker dies already: leave one of them out");
    inject->how = INJECT_KILL;
    if (colon != NULL)
        *colon = '\0';
    for (int i = 0; colon != NULL && i <= DEATHS; i++) {
        if (i == DEATHS)
            return wrong(entry, "how: kill, stop or exit0");
        inject->how = (enum inject_death)i;
        if (strcmp(colon + 1, death_name[i]) == 0)
            break;
    }
    if (at != NULL)
        *at = '\0';
    if (at == NULL || !parse_count(value, RANK_MOST, &rank) || !parse_count(at + 1, 1LL << 53, &step))
        return wrong(entry, "RANK@STEP[:kill|stop|exit0], as in die=1@100:stop");
    inject->dies = true;
    inject->victim = (int)rank;
    inject->step = (uint64_t)step;
    return STATUS_OK;
}

static enum status parse_entry(const char *entry, char *copy, struct inject *inject)
{
    char *value = strchr(copy, '=');
    if (value == NULL)
        return wrong(entry, "an entry is KEY=VALUE: delay, jitter, bandwidth, straggler, die");
    *value++ = '\0';
    for (int i = 0; i < KINDS; i++)
        if (strcmp(copy, kind_name[i]) == 0)
            return parse_rule(entry, (enum inject_kind)i, value, inject);
    if (strcmp(copy, "straggler") == 0)
        return parse_straggler(entry, value, inject);
    if (strcmp(copy, "die") == 0)
        return parse_death(entry, value, inject);
    if (strcmp(copy, "drop") == 0)
        return fail(STATUS_REFUSED,
                    "--inject: %.80s: every schedule, gossip's too, awaits each of its messages, so that a "
                    "lost one is a deadlock: take delay= or die=",
                    entry);
    return wrong(entry, "unknown: delay, jitter, bandwidth, straggler, die");
}

enum status inject_parse(const char *text, struct inject *inject)
{
    enum status status = STATUS_OK;
    char *list = NULL, *rest = NULL;
    *inject = (struct inject){.rules = 0};
    TRY(memory_string(&list, text));
    for (char *entry = strtok_r(list, ",", &rest); entry != NULL && status >= 0; entry = strtok_r(NULL, ",", &rest)) {
        char *copy = NULL;
        status = memory_string(&copy, entry);
        if (status == STATUS_OK)
            status = parse_entry(entry, copy, inject);
        free(copy);
    }
    free(list);
    return status;
}

static enum status check_rank(const char *what, int rank, int workers)
{
    return rank < workers ? STATUS_OK
                          : fail(STATUS_USAGE, "--inject: %s: rank %d of a job of %d workers", what, rank, workers);
}

enum status inject_check(const struct inject *inject, int workers)
{
    for (int i = 0; i < inject->rules; i++) {
        TRY(check_rank(kind_name[inject->rule[i].kind], inject->rule[i].from, workers));
        TRY(check_rank(kind_name[inject->rule[i].kind], inject->rule[i].to, workers));
    }
    TRY(check_rank("straggler", inject->straggles ? inject->straggler : 0, workers));
    if (inject->dies && inject->how == INJECT_STOP && workers == 1)
        return fail(STATUS_USAGE, "--inject: die=%d@%llu:stop: the only worker would wait for ever: take -n 2 or more",
                    inject->victim, (unsigned long long)inject->step);
    return check_rank("die", inject->dies ? inject->victim : 0, workers);
}

static void describe_rule(const struct inject_rule *rule, struct text *text)
{
    text_addf(text, "%s%s=", text->length > 0 ? "," : "", kind_name[rule->kind]);
    text_add_real(text, rule->kind == INJECT_BANDWIDTH ? rule->value * 1e-9 : rule->value * 1e6, 9);
    text_add(text, rule->kind == INJECT_BANDWIDTH ? "GB/s" : "us");
    if (rule->from != INJECT_EVERY)
        text_addf(text, "@%d-%d", rule->from, rule->to);
}

void inject_describe(const struct inject *inject, struct text *text)
{
    struct text all = {.length = 0};
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < inject->rules; i++)
            if (inject->rule[i].kind == (enum inject_kind)kind)
                describe_rule(&inject->rule[i], &all);
    if (inject->straggles) {
        text_addf(&all, "%sstraggler=%d:", all.length > 0 ? "," : "", inject->straggler);
        text_add_real(&all, inject->factor, 9);
    }
    if (inject->dies)
        text_addf(&all, "%sdie=%d@%llu:%s", all.length > 0 ? "," : "", inject->victim, (unsigned long long)inject->step,
                  death_name[inject->how]);
    text_add(text, text_string(&all));
    text_release(&all);
}

/* ---- what it means for a message ---- */

/* Of messages from `from` to `to`; 0: nothing is said. */
static double rule_of(const struct inject *inject, enum inject_kind kind, int from, int to)
{
    double value = 0;
    for (int i = 0; i < inject->rules; i++) {
        const struct inject_rule *rule = &inject->rule[i];
        if (rule->kind == kind && (rule->from == INJECT_EVERY || (rule->from == from && rule->to == to)))
            value = rule->value;
    }
    return value;
}

static double slowdown(const struct inject *inject, int from)
{
    return inject->straggles && inject->straggler == from ? inject->factor : 1;
}

static double seconds_per_byte(const struct inject *inject, int from, int to)
{
    const double bandwidth = rule_of(inject, INJECT_BANDWIDTH, from, to), factor = slowdown(inject, from);
    if (bandwidth > 0)
        return factor / bandwidth;
    return (factor - 1) / NOMINAL_BANDWIDTH;
}

double inject_lateness(const struct inject *inject, uint64_t seed, int from, int to, uint64_t number)
{
    const double delay = rule_of(inject, INJECT_DELAY, from, to), jitter = rule_of(inject, INJECT_JITTER, from, to);
    const double factor = slowdown(inject, from);
    double late = delay > 0 ? delay * factor : NOMINAL_DELAY * (factor - 1);
    if (jitter > 0)
        late += jitter * rng_uniform(rng_key(seed, "inject", (uint64_t)from, (uint64_t)to), number);
    return late;
}

/* ---- steps ---- */

void inject_step(const struct inject *inject, int rank, uint64_t step)
{
    if (!inject->dies || inject->victim != rank || inject->step != step)
        return;
    if (inject->how == INJECT_EXIT)
        _exit(0);
    (void)raise(inject->how == INJECT_STOP ? SIGSTOP : SIGKILL);
}

void inject_compute(const struct inject *inject, int rank, double seconds)
{
    if (inject->straggles && inject->straggler == rank && seconds > 0)
        clock_sleep_ns((uint64_t)(seconds * (inject->factor - 1) * 1e9));
}

/* ---- the transport ---- */

/* A message that is held, in its transfer's `provider`. */
struct held {
    struct transfer *next;
    const void *data;
    size_t bytes;
    uint64_t tag, due;
    int peer;
};
static_assert(sizeof(struct held) <= sizeof((struct transfer *)0)->provider, "a transfer holds what is held of it");

/* To one peer. */
struct link {
    double seconds_per_byte;
    uint64_t messages;
    uint64_t free_ns; /* when the bytes of all messages so far are out */
    uint64_t last_due;
    struct transfer *first, *last;
};

struct impaired {
    struct transport transport; /* must be first */
    struct transport *inner;
    struct inject inject;
    uint64_t seed;
    struct link *links;
    size_t holds;               /* messages held            */
    uint64_t next_due;          /* of all that are held     */
    struct transfer *cancelled; /* to be reported, linked   */
};

static struct impaired *impaired_of(struct transport *transport)
{
    return (struct impaired *)transport;
}

static struct held held_of(const struct transfer *transfer)
{
    struct held held;
    memcpy(&held, transfer->provider, sizeof held);
    return held;
}

static void held_put(struct transfer *transfer, const struct held *held)
{
    memcpy(transfer->provider, held, sizeof *held);
}

/* When a message of so many bytes leaves that is sent now. */
static uint64_t due_of(struct impaired *impaired, int peer, size_t bytes)
{
    struct link *link = &impaired->links[peer];
    const uint64_t now = clock_ns(), begin = link->free_ns > now ? link->free_ns : now;
    const double late =
        inject_lateness(&impaired->inject, impaired->seed, impaired->transport.rank, peer, link->messages++);
    link->free_ns = begin + (uint64_t)((double)bytes * link->seconds_per_byte * 1e9);
    const uint64_t due = link->free_ns + (uint64_t)(late * 1e9);
    link->last_due = due > link->last_due ? due : link->last_due;
    return link->last_due;
}

static enum status impaired_send(struct transport *transport, int peer, uint64_t tag, const void *data, size_t bytes,
                                 struct transfer *transfer)
{
    struct impaired *impaired = impaired_of(transport);
    if (peer < 0 || peer >= transport->size) /* it says what is wrong */
        return impaired->inner->ops->send(impaired->inner, peer, tag, data, bytes, transfer);
    struct link *link = &impaired->links[peer];
    const struct held held = {
        .data = data, .bytes = bytes, .tag = tag, .due = due_of(impaired, peer, bytes), .peer = peer};
    held_put(transfer, &held);
    if (link->first == NULL) {
        link->first = transfer;
        if (impaired->holds == 0 || held.due < impaired->next_due)
            impaired->next_due = held.due;
    } else {
        struct held before = held_of(link->last);
        before.next = transfer;
        held_put(link->last, &before);
    }
    link->last = transfer;
    impaired->holds++;
    return STATUS_OK;
}

static enum status impaired_receive(struct transport *transport, int peer, uint64_t tag, uint64_t ignore, void *data,
                                    size_t bytes, struct transfer *transfer)
{
    struct transport *inner = impaired_of(transport)->inner;
    return inner->ops->receive(inner, peer, tag, ignore, data, bytes, transfer);
}

/* What is due leaves, as far as there is room. */
static enum status release_link(struct impaired *impaired, struct link *link, uint64_t now)
{
    while (link->first != NULL) {
        struct transfer *transfer = link->first;
        const struct held held = held_of(transfer);
        if (held.due > now)
            return STATUS_OK;
        const enum status status =
            impaired->inner->ops->send(impaired->inner, held.peer, held.tag, held.data, held.bytes, transfer);
        if (status != STATUS_OK)
            held_put(transfer, &held); /* whatever the provider has begun to write there */
        if (status != STATUS_OK)
            return status < 0 ? status : STATUS_OK;
        link->first = held.next;
        impaired->holds--;
    }
    return STATUS_OK;
}

static enum status release_due(struct impaired *impaired)
{
    const uint64_t now = clock_ns();
    if (impaired->holds == 0 || now < impaired->next_due)
        return STATUS_OK;
    for (int peer = 0; peer < impaired->transport.size; peer++)
        TRY(release_link(impaired, &impaired->links[peer], now));
    impaired->next_due = UINT64_MAX;
    for (int peer = 0; peer < impaired->transport.size; peer++) {
        const struct transfer *first = impaired->links[peer].first;
        if (first != NULL && held_of(first).due < impaired->next_due)
            impaired->next_due = held_of(first).due;
    }
    return STATUS_OK;
}

static enum status impaired_progress(struct transport *transport, struct transfer **done, size_t limit, size_t *count)
{
    struct impaired *impaired = impaired_of(transport);
    size_t cancelled = 0;
    *count = 0;
    TRY(release_due(impaired));
    for (; impaired->cancelled != NULL && cancelled < limit; cancelled++) {
        done[cancelled] = impaired->cancelled;
        impaired->cancelled = held_of(done[cancelled]).next;
        done[cancelled]->bytes = 0;
        done[cancelled]->status = STATUS_INTERRUPTED;
    }
    const enum status status =
        impaired->inner->ops->progress(impaired->inner, done + cancelled, limit - cancelled, count);
    *count += cancelled;
    return status;
}

static void impaired_wait(struct transport *transport, uint64_t ns, unsigned idle)
{
    struct impaired *impaired = impaired_of(transport);
    const uint64_t now = clock_ns();
    if (impaired->holds > 0 && impaired->next_due < now + ns) /* passed: there was no room */
        ns = impaired->next_due > now ? impaired->next_due - now : SHORT_WAIT_NS;
    impaired->inner->ops->wait(impaired->inner, ns, idle);
}

/* One that is still held leaves its queue. */
static void impaired_cancel(struct transport *transport, struct transfer *transfer)
{
    struct impaired *impaired = impaired_of(transport);
    for (int peer = 0; peer < transport->size; peer++) {
        struct link *link = &impaired->links[peer];
        struct transfer *before = NULL;
        for (struct transfer *at = link->first; at != NULL; before = at, at = held_of(at).next) {
            if (at != transfer)
                continue;
            struct held held = held_of(at), previous;
            if (before == NULL) {
                link->first = held.next;
            } else {
                previous = held_of(before);
                previous.next = held.next;
                held_put(before, &previous);
            }
            if (link->last == at)
                link->last = before;
            held.next = impaired->cancelled;
            held_put(at, &held);
            impaired->cancelled = at;
            impaired->holds--;
            return;
        }
    }
    impaired->inner->ops->cancel(impaired->inner, transfer);
}

static void impaired_describe(const struct transport *transport, struct text *text)
{
    const struct impaired *impaired = (const struct impaired *)transport;
    impaired->inner->ops->describe(impaired->inner, text);
    text_add(text, ", impaired by ");
    inject_describe(&impaired->inject, text);
    if (impaired->inner->node != NULL || impaired->inner->mixed)
        text_add(text, ", which switches node memory off");
}

static void impaired_close(struct transport *transport)
{
    if (transport == NULL)
        return;
    struct impaired *impaired = impaired_of(transport);
    impaired->inner->ops->close(impaired->inner);
    free(impaired->links);
    free(impaired);
}

static const struct transport_ops impaired_ops = {.close = impaired_close,
                                                  .send = impaired_send,
                                                  .receive = impaired_receive,
                                                  .progress = impaired_progress,
                                                  .wait = impaired_wait,
                                                  .cancel = impaired_cancel,
                                                  .describe = impaired_describe};

enum status inject_open(const struct inject *inject, uint64_t seed, struct transport *inner, struct transport **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL, *links = NULL;
    TRY_TO(done, inject_check(inject, inner->size));
    TRY_TO(done, memory_zeroed(&links, (size_t)inner->size, sizeof(struct link)));
    TRY_TO(done, memory_zeroed(&memory, 1, sizeof(struct impaired)));
    struct impaired *impaired = memory;
    impaired->transport = *inner;
    impaired->transport.ops = &impaired_ops;
    impaired->transport.node = NULL; /* what is read in place could not be held back */
    impaired->transport.mixed = false;
    if (inner->network != NULL)
        impaired->transport.name = inner->network;
    impaired->inner = inner;
    impaired->inject = *inject;
    impaired->seed = seed;
    impaired->links = links;
    for (int peer = 0; peer < inner->size; peer++)
        impaired->links[peer].seconds_per_byte = seconds_per_byte(inject, inner->rank, peer);
    *out = &impaired->transport;
done:
    if (status < 0) {
        free(links);
        inner->ops->close(inner);
    }
    return status;
}
