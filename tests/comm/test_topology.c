/* test_topology.c - cores as hwloc tells them, on machines that it makes up, and how workers share them. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "comm/topology.h"
#include "tests/base/expect.h"

TestSuite(topology, .timeout = 60);

static struct host_cpus first_cpus(int count)
{
    struct host_cpus cpus = {{0}};
    for (int i = 0; i < count; i++)
        cpus.word[i / 64] |= UINT64_C(1) << (i % 64);
    return cpus;
}

/* Without hwloc every CPU would be a core. */
static bool read_machine(const char *description, struct host_cpus allowed, struct topology *topology)
{
    cr_assert_eq(setenv("HWLOC_SYNTHETIC", description, 1), 0);
    cr_assert_eq(topology_read(&allowed, topology), STATUS_OK);
    cr_expect_null(getenv("HWLOC_PLUGINS_PATH"));
    if (topology_library() == NULL)
        topology_release(topology);
    return topology_library() != NULL;
}

Test(topology, cores_sockets_and_nodes)
{
    struct topology topology;
    if (!read_machine("pack:2 numa:2 core:4 pu:2", first_cpus(32), &topology))
        return;
    cr_expect_eq(topology.cores, 16);
    cr_expect_eq(topology.sockets, 2);
    cr_expect_eq(topology.numas, 4);
    cr_expect_eq(topology.core[15].socket, 1);
    cr_expect_eq(topology.core[15].numa, 3);
    cr_expect_eq(topology.core[3].cpus.word[0], 0xC0);
    topology_release(&topology);
}

Test(topology, within_the_mask_that_was_inherited)
{
    struct topology topology;
    struct host_cpus some = {{0xF0F8}}; /* one thread of core 1, core 2 and 3, and the same of the second socket's 4 */
    if (!read_machine("pack:2 numa:1 core:4 pu:2", some, &topology))
        return;
    cr_expect_eq(topology.cores, 5);
    cr_expect_eq(topology.core[0].cpus.word[0], 0x8);
    cr_expect_eq(topology.sockets, 2);
    topology_release(&topology);
    some.word[0] = 0x3F00; /* the second socket alone, numbered from 0 */
    cr_expect(read_machine("pack:2 numa:1 core:4 pu:2", some, &topology));
    cr_expect_eq(topology.sockets, 1);
    cr_expect_eq(topology.core[2].socket, 0);
    topology_release(&topology);
}

/* CPUs that hwloc does not know are cores; so are all without it. */
Test(topology, counts_what_nobody_tells_of)
{
    struct topology topology;
    const struct host_cpus allowed = first_cpus(20);
    cr_assert_eq(setenv("HWLOC_SYNTHETIC", "pack:1 core:4 pu:4", 1), 0);
    cr_assert_eq(topology_read(&allowed, &topology), STATUS_OK);
    cr_expect_eq(topology.cores, topology_library() != NULL ? 8 : 20);
    cr_expect_eq(topology.core[topology.cores - 1].cpus.word[0], 1 << 19);
    cr_expect_eq(topology.sockets, 1);
    topology_release(&topology);
}

Test(topology, of_this_machine)
{
    struct host_cpus allowed, together = {{0}};
    struct topology topology;
    host_cpus_allowed(&allowed);
    cr_assert_eq(topology_read(&allowed, &topology), STATUS_OK);
    for (int i = 0; i < topology.cores; i++)
        host_cpus_join(&together, &topology.core[i].cpus);
    cr_expect(host_cpus_equal(&together, &allowed));
    topology_release(&topology);
}

/* ---- sharing ---- */

/* `cores` of two threads each, in `sockets` sockets; the threads of core i are CPUs i and cores + i, as Linux numbers them. */
static struct topology made_up(int cores, int sockets, struct topology_core *core)
{
    for (int i = 0; i < cores; i++) {
        core[i] = (struct topology_core){.socket = i * sockets / cores, .numa = i * sockets / cores};
        core[i].cpus.word[0] = UINT64_C(1) << i | UINT64_C(1) << (cores + i);
    }
    return (struct topology){.cores = cores, .sockets = sockets, .numas = sockets, .core = core};
}

static uint64_t planned(const struct topology *topology, struct bind_request request, int rank, const char **why)
{
    struct host_cpus cpus;
    request.rank = rank;
    cr_assert_eq(bind_plan(&request, topology, &cpus, why), STATUS_OK, "%s", status_message());
    return cpus.word[0];
}

/* All cores are given to somebody, none to two, and whoever has a thread of a core has the other one, too. */
Test(topology, cores_are_shared_out_whole_and_once)
{
    struct topology_core core[24];
    const char *why;
    for (int cores = 1; cores <= 24; cores++) {
        const struct topology topology = made_up(cores, cores % 2 == 0 ? 2 : 1, core);
        for (int workers = 1; workers <= cores; workers++) {
            uint64_t given = 0;
            for (int rank = 0; rank < workers; rank++) {
                const uint64_t mine = planned(
                    &topology, (struct bind_request){.bind = BIND_CORE, .size = workers, .threads = 1}, rank, &why);
                cr_expect_neq(mine, 0);
                cr_expect_eq(mine & given, 0, "%d cores, worker %d of %d", cores, rank, workers);
                cr_expect_eq(mine >> cores, mine & ((UINT64_C(1) << cores) - 1));
                cr_expect_geq(__builtin_popcountll(mine) / 2, cores / workers);
                given |= mine;
            }
            cr_expect_eq(given, (UINT64_C(1) << 2 * cores) - 1, "%d cores, %d workers", cores, workers);
        }
    }
}

Test(topology, automatic_binding_fills_the_machine_or_stays_away)
{
    struct topology_core core[8];
    const struct topology topology = made_up(8, 2, core);
    struct bind_request request = {.bind = BIND_AUTO, .size = 4, .threads = 1};
    const char *why = NULL;
    cr_expect_eq(planned(&topology, request, 1, &why), 0);
    cr_expect_str_eq(why, "half of the cores or more are free");
    request.size = 5;
    cr_expect_neq(planned(&topology, request, 1, &why), 0);
    cr_expect_null(why);
    request.threads = 2;
    cr_expect_eq(planned(&topology, request, 1, &why), 0);
    cr_expect_str_eq(why, "fewer cores than threads");
    request.size = 4;
    cr_expect_eq(planned(&topology, request, 1, &why), 0x0C0C);
    request.quota = 7.5;
    cr_expect_eq(planned(&topology, request, 1, &why), 0);
    cr_expect_str_eq(why, "the container has less time than that");
    request.quota = 8;
    cr_expect_eq(planned(&topology, request, 1, &why), 0x0C0C);
    request.bound = true;
    cr_expect_eq(planned(&topology, request, 1, &why), 0);
    cr_expect_str_eq(why, "bound by the launcher");
    request = (struct bind_request){.bind = BIND_AUTO, .size = 8, .threads = 1, .by_openmp = true};
    cr_expect_eq(planned(&topology, request, 1, &why), 0);
    cr_expect_str_eq(why, "OpenMP's variables place threads");
    request = (struct bind_request){.bind = BIND_AUTO, .size = 1, .threads = 8};
    cr_expect_eq(planned(&topology, request, 0, &why), 0);
    cr_expect_str_eq(why, "alone");
}

Test(topology, what_is_asked_for_is_done_or_refused)
{
    struct topology_core core[8];
    struct host_cpus cpus;
    const struct topology topology = made_up(8, 2, core), nothing = {.core = NULL};
    struct bind_request request = {.bind = BIND_SOCKET, .size = 4, .threads = 1};
    const char *why = NULL;
    cr_expect_eq(planned(&topology, request, 1, &why), 0x0F0F);
    cr_expect_eq(planned(&topology, request, 2, &why), 0xF0F0);
    request.size = 30;
    cr_expect_eq(planned(&topology, request, 29, &why), 0xF0F0);
    request.bind = BIND_NONE;
    cr_expect_eq(planned(&topology, request, 2, &why), 0);
    request = (struct bind_request){.bind = BIND_CORE, .size = 2, .threads = 1, .bound = true, .by_openmp = true};
    cr_expect_eq(planned(&topology, request, 1, &why), 0xF0F0);
    cr_expect_eq(planned(&nothing, request, 1, &why), 0);
    cr_expect_str_eq(why, "the machine has too many CPUs");
    request.size = 9;
    EXPECT_FAIL(STATUS_REFUSED, "9 workers share 8 cores", bind_plan(&request, &topology, &cpus, &why));
}

Test(topology, threads_are_the_cores_divided_by_the_workers)
{
    struct topology_core core[8];
    const struct topology topology = made_up(8, 2, core), nothing = {.core = NULL};
    cr_expect_eq(bind_threads(&topology, 1, 0), 8);
    cr_expect_eq(bind_threads(&topology, 3, 0), 2);
    cr_expect_eq(bind_threads(&topology, 9, 0), 1);
    cr_expect_eq(bind_threads(&topology, 1, 2.5), 2);
    cr_expect_eq(bind_threads(&topology, 2, 0.5), 1);
    cr_expect_eq(bind_threads(&topology, 1, 100), 8);
    cr_expect_eq(bind_threads(&nothing, 1, 0), host_cores());
}
