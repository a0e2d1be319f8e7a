/* executor.c - runs a schedule on the network: turns what progression says may start into transfers and kernels.
 *
 * Small segments go out at once (eager) and wait, where they come too early, in a list. Larger ones wait for the grant
 * that their receiver sends when the receive is posted: no provider then ever holds payload that nobody awaits, and
 * data land where they belong. Reductions and copies are done where their turn comes, in whoever drives progress.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/internal.h"
#include "comm/kernels.h"

#define DISPUTE_NS UINT64_C(2000000000) /* how long a mismatch waits for the other side's words */
#define DEFAULT_LOOKAHEAD 64

struct collective {
    struct team *team;
    const struct shape *shape;
    char *name;
    size_t count, size;
    enum dtype dtype;
    enum reduce_op op;
    struct progression *progression[2]; /* [0] out of place, [1] in place; made when first needed */
    struct progression *running;        /* NULL: not under way                                    */
    const unsigned char *input;
    unsigned char *output, *scratch;
    uint32_t epoch;
    uint64_t hash;
    struct task_list expecting, ungranted, landed;
    struct early *early;
    bool *greets, *awaits; /* of each team rank: exchanges no element, so a hello goes out, or is awaited */
    size_t outgoing;       /* small messages not yet out: the call lasts until they are                    */
    int hellos;            /* awaited and not yet come                                                     */
    struct collective_traffic traffic;
    struct collective *next, *previous; /* under way in the team                                          */
};

/* ------------------------------------------------------------------------------------------------------- who says
 * hello */

struct peers {
    struct sink sink; /* first */
    const struct collective *collective;
    size_t *sent, *received;
};

static enum status count_peer(struct sink *sink, const struct op *op)
{
    struct peers *peers = (struct peers *)sink;
    const struct collective *c = peers->collective;
    const struct range *range = op->kind == OP_SEND ? &op->src : &op->dst;
    if (op->kind != OP_SEND && op->kind != OP_RECV && op->kind != OP_RECV_REDUCE)
        return STATUS_OK;
    if (op->peer < 0 || op->peer >= c->shape->workers)
        return fail(STATUS_FORMAT, "bad-op: peer %d of %d workers", (int)op->peer, c->shape->workers);
    const uint32_t leaf = range->chunk % c->shape->chunks;
    const size_t elements = partition_offset(c->count, c->shape->chunks, leaf + range->chunks) -
                            partition_offset(c->count, c->shape->chunks, leaf);
    bool *marks = op->kind == OP_SEND ? c->greets : c->awaits;
    size_t *total = op->kind == OP_SEND ? peers->sent : peers->received;
    marks[op->peer] = true;
    total[op->peer] += elements;
    return STATUS_OK;
}

/* A pair that exchanges no element still compares its calls: mark whom we greet and whose hello we await. */
static enum status find_greetings(struct collective *c)
{
    enum status status = STATUS_OK;
    const size_t n = (size_t)c->shape->workers;
    void *sent = NULL, *received = NULL, *greets = NULL, *awaits = NULL;
    TRY_TO(done, memory_zeroed(&greets, n, sizeof(bool)));
    c->greets = greets;
    TRY_TO(done, memory_zeroed(&awaits, n, sizeof(bool)));
    c->awaits = awaits;
    TRY_TO(done, memory_zeroed(&sent, n, sizeof(size_t)));
    TRY_TO(done, memory_zeroed(&received, n, sizeof(size_t)));
    struct peers peers = {.sink = {.op = count_peer}, .collective = c, .sent = sent, .received = received};
    for (uint32_t round = 0; round < c->shape->rounds; round++) {
        peers.sink.round = round;
        peers.sink.lane = 0;
        TRY_TO(done, c->shape->algorithm->emit(c->shape, c->team->rank, round, &peers.sink));
    }
    for (size_t r = 0; r < n; r++) {
        c->greets[r] = c->greets[r] && peers.sent[r] == 0;
        c->awaits[r] = c->awaits[r] && peers.received[r] == 0;
    }
done:
    free(sent);
    free(received);
    return status;
}

/* -------------------------------------------------------------------------------------------------------- create,
 * destroy */

static uint64_t call_hash(const struct collective *c)
{
    const struct shape *shape = c->shape; /* differs where the workers' nodes or steps do, if not always */
    const uint64_t numbers[] = {c->epoch,
                                c->count,
                                (uint64_t)c->dtype,
                                (uint64_t)c->op,
                                c->team->comm->segment,
                                (uint64_t)shape->workers,
                                shape->chunks,
                                shape->rounds,
                                shape->lanes};
    return wire_hash(wire_hash(WIRE_HASH_START, c->name, strlen(c->name)), numbers, sizeof numbers);
}

static enum status check_request(const struct collective_request *request)
{
    const struct shape *shape = request->shape;
    if (shape->workers != request->team->size)
        return fail(STATUS_USAGE, "%s: a schedule for %d workers on a team of %d", request->name, shape->workers,
                    request->team->size);
    const bool mixing = (shape->algorithm->traits & TRAIT_MIXING) != 0;
    if (mixing && (request->op != REDUCE_SUM || (request->dtype != DTYPE_F32 && request->dtype != DTYPE_F64)))
        return fail(STATUS_USAGE, "%s: mixing is for sums of f32 or f64", request->name);
    size_t bytes = 0;
    if (!checked_multiply(request->count, dtype_size(request->dtype), &bytes) || bytes > SIZE_MAX / 2)
        return fail(STATUS_USAGE, "%s: %zu elements of %s are more than can be addressed", request->name,
                    request->count, dtype_name(request->dtype));
    return STATUS_OK;
}

enum status collective_create(const struct collective_request *request, struct collective **out)
{
    enum status status = STATUS_OK;
    void *memory = NULL;
    size_t planes = 0;
    TRY(check_request(request));
    TRY(memory_zeroed(&memory, 1, sizeof(struct collective)));
    struct collective *c = memory;
    *c = (struct collective){.team = request->team,
                             .shape = request->shape,
                             .count = request->count,
                             .size = dtype_size(request->dtype),
                             .dtype = request->dtype,
                             .op = request->op};
    TRY_TO(done, memory_string(&c->name, request->name));
    TRY_TO(done, find_greetings(c));
    if (!checked_multiply(request->count * c->size, request->shape->scratch, &planes))
        TRY_TO(done, fail(STATUS_NO_MEMORY, "%s: scratch too large", c->name));
    if (planes > 0) {
        TRY_TO(done, memory_zeroed(&memory, planes, 1));
        c->scratch = memory;
    }
    *out = c;
done:
    if (status < 0)
        collective_destroy(c);
    return status;
}

static void unlink_collective(struct collective *c)
{
    struct team *team = c->team;
    if (c->previous == NULL)
        team->first = c->next;
    else
        c->previous->next = c->next;
    if (c->next == NULL)
        team->last = c->previous;
    else
        c->next->previous = c->previous;
    c->next = c->previous = NULL;
    c->running = NULL;
    team->comm->active--;
}

static void drop_tasks(struct comm *comm, struct task_list *list)
{
    while (list->first != NULL) {
        struct task *task = list->first;
        task_remove(list, task);
        task_give(comm, task);
    }
}

/* After a failure tasks of a dead collective may still be with the transport: they stay there, belonging to nobody.
 * Receives are called off as far as that is possible; whoever else may touch the scratch planes keeps them. */
static void orphan(struct task_list *list, struct collective *c)
{
    struct comm *comm = c->team->comm;
    for (struct task *task = list->first; task != NULL; task = task->next) {
        if (task->collective != c)
            continue;
        task->collective = NULL;
        if (task->flying && task->kind == TASK_RECEIVE)
            comm->transport->ops->cancel(comm->transport, &task->transfer);
        if (task->buffer == NULL) {
            task->buffer = c->scratch;
            c->scratch = NULL;
        }
    }
}

/* The comm must not go on with buffers that the caller takes back. This thread's message is left alone: it tells why. */
static void give_up(struct collective *c)
{
    struct comm *comm = c->team->comm;
    if (comm->status == STATUS_OK) {
        comm->status = STATUS_INTERRUPTED;
        snprintf(comm->message, sizeof comm->message, "%s: destroyed while it was under way", c->name);
    }
    unlink_collective(c);
}

void collective_destroy(struct collective *c)
{
    if (c == NULL)
        return;
    struct comm *comm = c->team->comm;
    comm_enter(comm);
    if (c->running != NULL)
        give_up(c);
    drop_tasks(comm, &c->expecting);
    drop_tasks(comm, &c->ungranted);
    drop_tasks(comm, &c->landed);
    orphan(&comm->flying, c);
    for (int which = 0; which < PENDING_LISTS; which++)
        orphan(&comm->pending[which], c);
    comm_leave(comm);
    while (c->early != NULL) {
        struct early *early = c->early;
        c->early = early->next;
        free(early);
    }
    progression_destroy(c->progression[0]);
    progression_destroy(c->progression[1]);
    free(c->greets);
    free(c->awaits);
    free(c->scratch);
    free(c->name);
    free(c);
}

/* ---- mismatches ---- */

static void describe_call(const struct collective *c, char *text, size_t size)
{
    snprintf(text, size, "rank %d called %s %s %s of %zu elements in segments of %zu bytes (call %u of its team)",
             c->team->ranks[c->team->rank], c->name, reduce_op_name(c->op), dtype_name(c->dtype), c->count,
             c->team->comm->segment, (unsigned)c->epoch);
}

/* Tell the peer what we called, and give it a moment to tell us. */
static enum status dispute(struct comm *comm, const struct collective *c, int peer)
{
    char call[400];
    if (comm->dispute_until != 0)
        return STATUS_OK;
    describe_call(c, call, sizeof call);
    snprintf(comm->dispute, sizeof comm->dispute, "%s, rank %d something else", call, peer);
    comm->dispute_until = clock_ns() + DISPUTE_NS;
    struct wire_header header = {.class = WIRE_CALL, .team = c->team->id, .epoch = c->epoch};
    size_t bytes = strlen(call);
    if (bytes > comm->small_bytes - WIRE_HEADER_BYTES)
        bytes = comm->small_bytes - WIRE_HEADER_BYTES;
    return comm_send_small(comm, NULL, peer, &header, call, bytes);
}

static enum status call_arrived(struct comm *comm, const struct collective *c, const struct wire_header *header,
                                const void *payload)
{
    char mine[400] = "this worker has left that collective";
    if (c != NULL) {
        describe_call(c, mine, sizeof mine);
        TRY(dispute(comm, c, header->source)); /* our own words, before we fail */
    }
    return fail(STATUS_MISMATCH, "the workers called different collectives: %.*s, but %s: call the same everywhere",
                (int)header->bytes, (const char *)payload, mine);
}

/* --------------------------------------------------------------------------------------------------------- small
 * messages */

static struct team *team_find(struct comm *comm, uint8_t id)
{
    for (struct team *team = comm->teams; team != NULL; team = team->next)
        if (team->id == id)
            return team;
    return NULL;
}

static struct collective *collective_find(const struct team *team, uint32_t epoch)
{
    for (struct collective *c = team->first; c != NULL; c = c->next)
        if (c->epoch == epoch)
            return c;
    return NULL;
}

static struct task *task_find(const struct task_list *list, int peer, uint16_t lane, uint64_t sequence)
{
    for (struct task *task = list->first; task != NULL; task = task->next)
        if (task->peer == peer && task->action.op.lane == lane && task->action.sequence == sequence)
            return task;
    return NULL;
}

static unsigned char *place(const struct collective *c, const struct span *span)
{
    unsigned char *base = span->place == PLACE_SCRATCH ? c->scratch : c->output;
    return base + span->offset * c->size;
}

static const unsigned char *place_read(const struct collective *c, const struct span *span)
{
    return span->place == PLACE_INPUT ? c->input + span->offset * c->size : place(c, span);
}

/* An eager segment is here, and expected. */
static enum status deliver(struct collective *c, struct task *task, const struct wire_header *header,
                           const void *payload)
{
    struct comm *comm = c->team->comm;
    const size_t bytes = task->action.dst.count * c->size;
    if (header->bytes != bytes)
        return fail(STATUS_FORMAT, "%s: a segment of %u bytes from rank %d where %zu were due", c->name,
                    (unsigned)header->bytes, task->peer, bytes);
    task_remove(&c->expecting, task);
    progression_complete(c->running, &task->action);
    if (task->action.op.kind == OP_RECV) {
        memcpy(place(c, &task->action.dst), payload, bytes);
        task_give(comm, task);
        return STATUS_OK;
    }
    if (landing_take(comm, &task->buffer) < 0) {
        task_give(comm, task);
        return STATUS_NO_MEMORY;
    }
    memcpy(task->buffer, payload, bytes);
    task_append(&c->landed, task);
    return STATUS_OK;
}

static enum status granted(struct collective *c, struct task *task)
{
    task_remove(&c->ungranted, task);
    return task_submit(c->team->comm, task);
}

/* A small message for a collective under way: to whoever waits for it, else it waits itself. */
static enum status dispatch(struct collective *c, const struct wire_header *header, const void *payload)
{
    struct comm *comm = c->team->comm;
    if (header->hash != c->hash)
        return dispute(comm, c, header->source);
    if (header->class == WIRE_HELLO) {
        c->hellos--;
        return STATUS_OK;
    }
    struct task_list *list = header->class == WIRE_GRANT ? &c->ungranted : &c->expecting;
    struct task *task = task_find(list, header->source, header->lane, header->sequence);
    if (task == NULL)
        return early_add(&c->early, header, payload);
    return header->class == WIRE_GRANT ? granted(c, task) : deliver(c, task, header, payload);
}

enum status executor_arrived(struct comm *comm, const struct wire_header *header, const void *payload)
{
    struct team *team = team_find(comm, header->team);
    struct collective *c = team != NULL ? collective_find(team, header->epoch) : NULL;
    if (header->class == WIRE_CALL)
        return call_arrived(comm, c, header, payload);
    if (team == NULL)
        return early_add(&comm->early, header, payload);
    if (c != NULL)
        return dispatch(c, header, payload);
    if ((int32_t)(header->epoch - team->next_epoch) >= 0)
        return early_add(&team->early, header, payload);
    return fail(STATUS_MISMATCH,
                "rank %d still sends in call %u of its team, which is complete here: the workers called "
                "different collectives, or the schedule is wrong: chorale verify tells",
                (int)header->source, (unsigned)header->epoch);
}

/* The early message that `task` waits for, taken out of the list. */
static struct early *take_early(struct collective *c, enum wire_class class, const struct task *task)
{
    for (struct early **at = &c->early; *at != NULL; at = &(*at)->next) {
        struct early *early = *at;
        if (early->header.class == class && early->header.source == task->peer &&
            early->header.lane == task->action.op.lane && early->header.sequence == task->action.sequence) {
            *at = early->next;
            return early;
        }
    }
    return NULL;
}

/* ---- starting ---- */

/* Small enough to travel without a grant. With segments that are all so small, only grants bound what is under way. */
static bool is_eager(const struct collective *c, size_t bytes)
{
    const struct comm *comm = c->team->comm;
    const size_t limit = comm->small_bytes - WIRE_HEADER_BYTES;
    return bytes <= limit && comm->segment > limit;
}

static struct wire_header header_for(const struct collective *c, enum wire_class class, const struct action *action)
{
    return (struct wire_header){.class = (uint8_t) class,
                                .team = c->team->id,
                                .lane = action->op.lane,
                                .epoch = c->epoch,
                                .sequence = action->sequence,
                                .hash = c->hash};
}

/* A collective's small message: the call is not over before it is out, or its sender might leave with it unsent. */
static enum status send_small(struct collective *c, int peer, enum wire_class class, const struct action *action,
                              const void *payload, size_t bytes)
{
    struct wire_header header = header_for(c, class, action);
    c->outgoing++;
    return comm_send_small(c->team->comm, c, peer, &header, payload, bytes);
}

void executor_small_done(struct collective *collective)
{
    collective->outgoing--;
}

static enum status new_task(struct collective *c, enum task_kind kind, const struct action *action, struct task **task)
{
    TRY(task_take(c->team->comm, kind, task));
    (*task)->collective = c;
    (*task)->action = *action;
    (*task)->peer = c->team->ranks[action->op.peer];
    (*task)->tag = wire_payload_tag(c->team->id, c->epoch, action->op.lane, action->sequence);
    return STATUS_OK;
}

static enum status start_send(struct collective *c, const struct action *action)
{
    struct task *task = NULL;
    const unsigned char *data = place_read(c, &action->src);
    const size_t bytes = action->src.count * c->size;
    c->traffic.bytes_sent += bytes;
    c->traffic.messages_sent += action->first;
    if (is_eager(c, bytes)) {
        TRY(send_small(c, c->team->ranks[action->op.peer], WIRE_EAGER, action, data, bytes));
        progression_complete(c->running, action); /* the payload was copied */
        return STATUS_OK;
    }
    TRY(new_task(c, TASK_SEND, action, &task));
    task->data = (void *)(uintptr_t)data; /* transports only read it */
    task->bytes = bytes;
    task_append(&c->ungranted, task);
    struct early *early = take_early(c, WIRE_GRANT, task);
    free(early);
    return early != NULL ? granted(c, task) : STATUS_OK;
}

static enum status start_expecting(struct collective *c, struct task *task)
{
    task_append(&c->expecting, task);
    struct early *early = take_early(c, WIRE_EAGER, task);
    if (early == NULL)
        return STATUS_OK;
    const enum status status = deliver(c, task, &early->header, early->payload);
    free(early);
    return status;
}

static enum status start_post(struct collective *c, const struct action *action)
{
    struct task *task = NULL;
    const size_t bytes = action->dst.count * c->size;
    TRY(new_task(c, is_eager(c, bytes) ? TASK_EXPECT : TASK_RECEIVE, action, &task));
    if (task->kind == TASK_EXPECT)
        return start_expecting(c, task);
    task->bytes = bytes;
    if (action->op.kind == OP_RECV)
        task->data = place(c, &action->dst);
    else if (landing_take(c->team->comm, &task->buffer) == STATUS_OK)
        task->data = task->buffer;
    if (task->data == NULL) {
        task_give(c->team->comm, task);
        return STATUS_NO_MEMORY;
    }
    return task_submit(c->team->comm, task);
}

enum status executor_grant(const struct task *task)
{
    if (task->collective == NULL)
        return STATUS_OK;
    task->collective->traffic.control_messages++;
    return send_small(task->collective, task->peer, WIRE_GRANT, &task->action, NULL, 0);
}

/* ---- computing ---- */

/* Rule 6: the sum of halves would overflow, so their inputs are made smaller first, by a power of two. */
static bool scales_inputs(const struct collective *c)
{
    return c->op == REDUCE_AVG && dtype_is_half(c->dtype) && c->shape->workers > 1 && c->shape->rounds > 0;
}

static double divisor_of(const struct collective *c, const struct op *op)
{
    if (c->op != REDUCE_AVG || !(op->flags & OP_FINAL))
        return 1;
    return scales_inputs(c) ? mean_divisor(c->shape->workers) : c->shape->workers;
}

static void combine(const struct collective *c, const struct action *action, const void *incoming)
{
    void *out = place(c, &action->dst);
    const void *operand = place_read(c, &action->operand);
    if (c->shape->algorithm->traits & TRAIT_MIXING)
        kernel_axpy(c->dtype, out, operand, incoming, action->op.weight, action->dst.count);
    else
        kernel_reduce(c->dtype, c->op, out, operand, incoming, action->dst.count, divisor_of(c, &action->op));
}

static enum status do_reduce(struct collective *c, const struct action *action)
{
    struct task *task = c->landed.first;
    while (task != NULL && (task->action.slot != action->slot || task->action.segment != action->segment))
        task = task->next;
    if (task == NULL)
        return fail(STATUS_INTERNAL, "%s: a reduction without its data", c->name);
    combine(c, action, task->buffer);
    task_remove(&c->landed, task);
    task_give(c->team->comm, task);
    progression_complete(c->running, action);
    return STATUS_OK;
}

static enum status do_local(struct collective *c, const struct action *action)
{
    const bool weighted = (c->shape->algorithm->traits & TRAIT_MIXING) != 0;
    switch (action->op.kind) {
    case OP_REDUCE:
        combine(c, action, place_read(c, &action->src));
        break;
    case OP_COPY:
        memmove(place(c, &action->dst), place_read(c, &action->src), action->dst.count * c->size);
        break;
    default:
        if (!weighted)
            return fail(STATUS_FORMAT, "%s: SCALE in a schedule that does not mix", c->name);
        kernel_scale(c->dtype, place(c, &action->dst), place_read(c, &action->operand), action->op.weight,
                     action->dst.count);
    }
    progression_complete(c->running, action);
    return STATUS_OK;
}

static enum status start_action(struct collective *c, const struct action *action)
{
    switch (action->kind) {
    case ACTION_SEND:
        return start_send(c, action);
    case ACTION_POST:
        return start_post(c, action);
    case ACTION_REDUCE:
        return do_reduce(c, action);
    default:
        return do_local(c, action);
    }
}

static enum status advance(struct collective *c, bool *moved)
{
    struct action action;
    enum status status = progression_next(c->running, &action);
    while (status == STATUS_OK) {
        *moved = true;
        TRY(start_action(c, &action));
        status = progression_next(c->running, &action);
    }
    return status < 0 ? fail_context(status, "%s", c->name) : STATUS_OK;
}

enum status executor_advance(struct comm *comm, bool *moved)
{
    for (struct team *team = comm->teams; team != NULL; team = team->next) {
        for (struct collective *c = team->first; c != NULL;) {
            struct collective *next = c->next;
            TRY(advance(c, moved));
            if (progression_finished(c->running) && c->hellos <= 0 && c->outgoing == 0) {
                c->traffic.finished_ns = clock_ns();
                unlink_collective(c);
                *moved = true;
            }
            c = next;
        }
    }
    return STATUS_OK;
}

bool executor_is_oldest(const struct collective *collective)
{
    return collective != NULL && collective->team->first == collective;
}

/* A granted transfer is done. */
enum status executor_task_done(struct comm *comm, struct task *task)
{
    struct collective *c = task->collective;
    if (c == NULL || c->running == NULL) {
        free(task->buffer); /* no landing slot, perhaps */
        task->buffer = NULL;
        task_give(comm, task);
        return STATUS_OK;
    }
    if (task->transfer.bytes != task->bytes) {
        const enum status status = fail(STATUS_FORMAT, "%s: %zu bytes moved with rank %d where %zu were due", c->name,
                                        task->transfer.bytes, task->peer, task->bytes);
        task_give(comm, task);
        return status;
    }
    progression_complete(c->running, &task->action);
    if (task->kind == TASK_RECEIVE && task->action.op.kind == OP_RECV_REDUCE)
        task_append(&c->landed, task);
    else
        task_give(comm, task);
    return STATUS_OK;
}

void executor_describe(struct comm *comm, struct text *text)
{
    bool any = false;
    for (const struct team *team = comm->teams; team != NULL; team = team->next) {
        for (const struct collective *c = team->first; c != NULL; c = c->next) {
            text_addf(text, "%s%s of %zu bytes: ", any ? "; " : "", c->name, c->count * c->size);
            progression_describe(c->running, 4, text);
            if (c->outgoing > 0)
                text_addf(text, "%zu small messages not yet out", c->outgoing);
            if (c->hellos > 0)
                text_addf(text, "%d workers have not said what they call", c->hellos);
            any = true;
        }
    }
    if (!any)
        text_add(text, "waiting for the members of a team");
}

/* -------------------------------------------------------------------------------------------------------- start and
 * wait */

static enum status check_buffers(const struct collective *c, const void *input, const void *output)
{
    const uintptr_t in = (uintptr_t)input, out = (uintptr_t)output, bytes = c->count * c->size;
    if (c->running != NULL)
        return fail(STATUS_USAGE, "%s: started again before it was done", c->name);
    if (c->count == 0)
        return STATUS_OK;
    if (input == NULL || output == NULL || in % c->size != 0 || out % c->size != 0)
        return fail(STATUS_USAGE, "%s: a buffer is missing or not aligned to its elements of %zu bytes", c->name,
                    c->size);
    if (in != out && in < out + bytes && out < in + bytes)
        return fail(STATUS_USAGE, "%s: input and output overlap without being equal", c->name);
    return STATUS_OK;
}

static enum status prepare_progression(struct collective *c, bool aliased)
{
    struct progression **progression = &c->progression[aliased];
    if (*progression != NULL) {
        progression_restart(*progression);
        c->running = *progression;
        return STATUS_OK;
    }
    const struct comm *comm = c->team->comm;
    const struct progression_params params = {.count = c->count,
                                              .segment = comm->segment / c->size > 0 ? comm->segment / c->size : 1,
                                              .window = comm->window,
                                              .lookahead = DEFAULT_LOOKAHEAD,
                                              .aliased = aliased};
    TRY(progression_create(c->shape, c->team->rank, &params, progression));
    c->running = *progression;
    return STATUS_OK;
}

static enum status send_hellos(struct collective *c)
{
    const struct action none = {0};
    c->hellos = 0;
    c->outgoing = 0;
    for (int r = 0; r < c->shape->workers; r++) {
        c->hellos += c->awaits[r];
        if (!c->greets[r])
            continue;
        c->traffic.control_messages++;
        TRY(send_small(c, c->team->ranks[r], WIRE_HELLO, &none, NULL, 0));
    }
    return STATUS_OK;
}

/* Small messages for this call that came before it was started here. */
static enum status adopt_early(struct collective *c)
{
    for (struct early **at = &c->team->early; *at != NULL;) {
        struct early *early = *at;
        if (early->header.epoch != c->epoch) {
            at = &early->next;
            continue;
        }
        *at = early->next;
        const enum status status = dispatch(c, &early->header, early->payload);
        free(early);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status start_locked(struct collective *c, const void *input, void *output)
{
    struct team *team = c->team;
    struct comm *comm = team->comm;
    TRY(comm_failed(comm));
    TRY(check_buffers(c, input, output));
    if (team->first != NULL && team->next_epoch - team->first->epoch >= WIRE_EPOCHS)
        return fail(STATUS_USAGE, "%s: %d collectives are under way already: wait for the oldest first", c->name,
                    WIRE_EPOCHS);
    if (scales_inputs(c)) {
        kernel_scale(c->dtype, output, input, mean_scale(c->shape->workers), c->count);
        input = output;
    }
    TRY(prepare_progression(c, input == output));
    c->input = input;
    c->output = output;
    c->epoch = team->next_epoch++;
    c->hash = call_hash(c);
    c->traffic = (struct collective_traffic){.started_ns = clock_ns()};
    c->previous = team->last;
    c->next = NULL;
    if (team->last == NULL)
        team->first = c;
    else
        team->last->next = c;
    team->last = c;
    if (comm->active++ == 0)
        comm->progressed_ns = c->traffic.started_ns;
    bool moved = false;
    enum status status = send_hellos(c);
    if (status >= 0)
        status = adopt_early(c);
    if (status >= 0)
        status = advance(c, &moved);
    return status < 0 ? comm_fail(comm, status) : STATUS_OK;
}

enum status collective_start(struct collective *c, const void *input, void *output)
{
    struct comm *comm = c->team->comm;
    comm_enter(comm);
    const enum status status = start_locked(c, input, output);
    pthread_cond_broadcast(&comm->work);
    comm_leave(comm);
    return status;
}

enum status collective_test(struct collective *c)
{
    struct comm *comm = c->team->comm;
    bool moved = false;
    comm_enter(comm);
    enum status status = comm_failed(comm);
    if (status >= 0 && c->running != NULL)
        status = comm_progress(comm, &moved);
    if (status >= 0)
        status = c->running == NULL ? STATUS_OK : STATUS_AGAIN;
    comm_leave(comm);
    return status;
}

enum status collective_wait(struct collective *c)
{
    struct comm *comm = c->team->comm;
    unsigned idle = 0;
    comm_enter(comm);
    comm->waiters++;
    comm->progressed_ns = clock_ns(); /* the time before was not spent waiting */
    enum status status = comm_failed(comm);
    while (status >= 0 && c->running != NULL) {
        bool moved = false;
        status = comm_progress(comm, &moved);
        idle = moved ? 0 : idle + 1;
        if (status >= 0 && !moved)
            status = comm_idle(comm, idle);
    }
    comm->waiters--;
    if (comm->active > 0)
        pthread_cond_broadcast(&comm->work);
    comm_leave(comm);
    return status;
}

void collective_traffic(const struct collective *c, struct collective_traffic *traffic)
{
    *traffic = c->traffic;
}
