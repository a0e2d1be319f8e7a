/* inject.h - impairments for research: slow links, stragglers, deaths. `--inject=delay=50us,jitter=20us,straggler=2:1.5`.
 *
 * Messages of a transport are held back before they leave, by a transport around it, so that every algorithm runs
 * unchanged on worse links. Order is kept for each pair of workers. Memory that the workers of a node share is switched off,
 * since nothing could be held back there: all bytes go through the impaired transport, which its description says.
 *
 *   delay=TIME[@FROM-TO]        each message leaves so much later (microseconds, or with a unit: 2ms)
 *   jitter=TIME[@FROM-TO]       and up to so much more, drawn uniformly
 *   bandwidth=RATE[@FROM-TO]    messages of a link leave one after the other at this rate (100MB/s, 1Gbit/s)
 *   straggler=RANK:FACTOR       this worker's steps compute FACTOR times as long, and so do its messages: on links of 10 us
 *                               and 1 GB/s where delay and bandwidth say nothing else
 *   die=RANK@STEP[:kill|stop|exit0]  this worker kills itself (the default), stops, or ends as if all were well, when it
 *                               begins a training step, or call of a bench, of this number (from 0)
 *
 * FROM-TO: only messages of worker FROM to worker TO; where several entries say something of a link, the last one stands.
 * What is drawn depends on seed, link and the number of the message on it, and on nothing else.
 *
 * Losing messages (drop=) is refused: every schedule awaits each of its messages, so a lost one is a deadlock.
 */
#ifndef CHORALE_COMM_INJECT_H
#define CHORALE_COMM_INJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/text.h"

struct transport;

enum { INJECT_RULES_MOST = 32, INJECT_EVERY = -1 };

enum inject_kind { INJECT_DELAY, INJECT_JITTER, INJECT_BANDWIDTH };
enum inject_death { INJECT_KILL, INJECT_STOP, INJECT_EXIT };

struct inject_rule {
    enum inject_kind kind;
    double value; /* seconds, or bytes per second  */
    int from, to; /* workers; or both INJECT_EVERY */
};

/* What is asked for; all zero: nothing. */
struct inject {
    struct inject_rule rule[INJECT_RULES_MOST];
    int rules;
    bool straggles;
    int straggler;
    double factor;
    bool dies;
    int victim;
    uint64_t step;
    enum inject_death how;
    uint64_t calls; /* for whoever counts steps with it */
};

/* STATUS_USAGE, naming the entry and what is taken (there is one straggler and one death at most); STATUS_REFUSED for drop=. */
enum status inject_parse(const char *text, struct inject *inject) MUST_CHECK;
/* STATUS_USAGE when it names a worker that a job of `workers` has not, or stops the only one. */
enum status inject_check(const struct inject *inject, int workers) MUST_CHECK;
/* The canonical spelling, "" for nothing: what results store. */
void inject_describe(const struct inject *inject, struct text *text);

/* Seconds by which message `number` (from 0) of worker `from` to worker `to` leaves later, besides its bandwidth. Pure. */
double inject_lateness(const struct inject *inject, uint64_t seed, int from, int to, uint64_t number);

/* A transport around `inner`, which it takes over, also when this fails. */
enum status inject_open(const struct inject *inject, uint64_t seed, struct transport *inner,
                        struct transport **transport) MUST_CHECK;

/* Worker `rank` begins step `step`: does not return when that is its death. */
void inject_step(const struct inject *inject, int rank, uint64_t step);
/* Worker `rank` has computed for so long: a straggler sleeps for what it should have taken longer. */
void inject_compute(const struct inject *inject, int rank, double seconds);

#endif
