/* team.c - teams: some of the workers, in an order, under an id that all of them have agreed on. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/internal.h"

int team_rank(const struct team *team)
{
    return team->rank;
}

int team_size(const struct team *team)
{
    return team->size;
}

struct team *team_find(struct comm *comm, uint8_t id)
{
    for (struct team *team = comm->teams; team != NULL; team = team->next)
        if (team->id == id)
            return team;
    return NULL;
}

static enum status check_ranks(const struct comm *comm, const int *ranks, int count, int *mine)
{
    *mine = -1;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->transport->size)
            return fail(STATUS_USAGE, "team: rank %d is not in 0..%d", ranks[i], comm->transport->size - 1);
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return fail(STATUS_USAGE, "team: rank %d stands twice", ranks[i]);
        if (ranks[i] == comm->transport->rank)
            *mine = i;
    }
    return *mine >= 0 ? STATUS_OK
                      : fail(STATUS_USAGE, "team: this worker, rank %d, is not in it", comm->transport->rank);
}

static void team_answer(struct comm *comm, const struct wire_header *header, const unsigned char *used)
{
    for (uint32_t i = 0; i < header->bytes && i < TEAM_ID_BYTES; i++)
        comm->team_talk.used[i] |= used[i];
    comm->team_talk.value = header->sequence;
    comm->team_talk.answers++;
}

bool team_answered(struct comm *comm, const struct wire_header *header, const unsigned char *used)
{
    if (!comm->team_talk.waiting || header->hash != comm->team_talk.hash)
        return false;
    team_answer(comm, header, used);
    return true;
}

static enum status team_send(struct comm *comm, int peer, uint64_t value, const unsigned char *used, size_t bytes)
{
    struct wire_header header = {.class = WIRE_TEAM, .hash = comm->team_talk.hash, .sequence = value};
    return comm_send_small(comm, NULL, peer, &header, used, bytes);
}

/* Until so many answers are there, and what was said is out: nobody else drives it once the caller does other things. */
static enum status progress_until(struct comm *comm, int answers)
{
    unsigned idle = 0;
    TRY(comm_flush(comm));
    while (comm->team_talk.answers < answers || comm->outgoing > 0) {
        bool moved = false;
        TRY(comm_progress(comm, &moved));
        idle = moved ? 0 : idle + 1;
        if (!moved)
            TRY(comm_idle(comm, idle));
    }
    return STATUS_OK;
}

static enum status team_await(struct comm *comm, int answers)
{
    for (struct early **at = &comm->early; *at != NULL;) {
        struct early *early = *at;
        if (early->header.class != WIRE_TEAM || early->header.hash != comm->team_talk.hash ||
            comm->team_talk.answers == answers) {
            at = &early->next;
            continue;
        }
        team_answer(comm, &early->header, early->payload);
        *at = early->next;
        free(early);
    }
    return progress_until(comm, answers);
}

static uint64_t lowest_free(const unsigned char used[TEAM_ID_BYTES])
{
    uint64_t id = 0;
    while (id < TEAM_IDS && (used[id / 8] >> (id % 8)) & 1)
        id++;
    return id;
}

/* All members agree on an id that none of them has in use: each tells member 0 which it has, and it takes the lowest. */
static enum status agree_on_id(struct comm *comm, const int *ranks, int count, int mine, uint64_t *id)
{
    enum status status = STATUS_OK;
    unsigned char *used = comm->team_talk.used;
    memset(used, 0, TEAM_ID_BYTES);
    for (const struct team *team = comm->teams; team != NULL; team = team->next)
        used[team->id / 8] = (unsigned char)(used[team->id / 8] | 1U << (team->id % 8));
    comm->team_talk.waiting = true;
    comm->team_talk.hash = wire_hash(WIRE_HASH_START, ranks, (size_t)count * sizeof *ranks);
    comm->team_talk.answers = 0;
    comm->moved = true; /* the time before was not spent waiting */
    if (mine == 0) {
        TRY_TO(done, team_await(comm, count - 1));
        comm->team_talk.value = lowest_free(used);
        for (int i = 1; i < count; i++)
            TRY_TO(done, team_send(comm, ranks[i], comm->team_talk.value, NULL, 0));
        TRY_TO(done, progress_until(comm, count - 1));
    } else {
        TRY_TO(done, team_send(comm, ranks[0], 0, used, TEAM_ID_BYTES));
        TRY_TO(done, team_await(comm, 1));
    }
    *id = comm->team_talk.value;
    if (*id >= TEAM_IDS)
        status = fail(STATUS_REFUSED, "team: more than %d teams at once: destroy some first", TEAM_IDS - 1);
done:
    comm->team_talk.waiting = false;
    return status;
}

static void earlies_free(struct team *team)
{
    for (size_t k = 0; k < EARLY_LISTS; k++)
        early_free(&team->early[k]);
}

/* Small messages for the new team that came before it. */
static enum status adopt_early(struct comm *comm, struct team *team)
{
    for (struct early **at = &comm->early; *at != NULL;) {
        struct early *early = *at;
        if (early->header.class == WIRE_TEAM || early->header.team != team->id) {
            at = &early->next;
            continue;
        }
        TRY(early_add(&team->early[early->header.epoch % EARLY_LISTS], &early->header, early->payload));
        *at = early->next;
        free(early);
    }
    return STATUS_OK;
}

enum status team_create(struct comm *comm, const int *ranks, int count, struct team **out)
{
    enum status status = STATUS_OK;
    int mine = -1;
    uint64_t id = 0;
    void *memory = NULL;
    struct team *team = NULL;
    if (count < 1)
        return fail(STATUS_USAGE, "team: at least one worker is needed");
    TRY(check_ranks(comm, ranks, count, &mine));
    TRY(memory_zeroed(&memory, 1, sizeof(struct team)));
    team = memory;
    comm_enter(comm);
    comm->waiters++;
    TRY_TO(done, comm_failed(comm));
    TRY_TO(done, memory_zeroed(&memory, (size_t)count, sizeof(int)));
    team->ranks = memory;
    memcpy(team->ranks, ranks, (size_t)count * sizeof(int));
    TRY_TO(done, agree_on_id(comm, ranks, count, mine, &id));
    team->comm = comm;
    team->id = (uint8_t)id;
    team->rank = mine;
    team->size = count;
    TRY_TO(done, adopt_early(comm, team));
    team->next = comm->teams;
    comm->teams = team;
    *out = team;
done:
    comm->waiters--;
    comm_leave(comm);
    if (status < 0) {
        earlies_free(team);
        free(team->ranks);
        free(team);
    }
    return status;
}

void team_destroy(struct team *team)
{
    if (team == NULL || team == &team->comm->world)
        return;
    struct comm *comm = team->comm;
    comm_enter(comm);
    for (struct team **at = &comm->teams; *at != NULL; at = &(*at)->next) {
        if (*at == team) {
            *at = team->next;
            break;
        }
    }
    comm_leave(comm);
    earlies_free(team);
    free(team->ranks);
    free(team);
}
