/* test_fabric.c - the libfabric transport: worker_fabric runs the checks, two to four workers at a time; what needs one
 * worker only is checked here. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/host.h"
#include "comm/job.h"
#include "comm/launch.h"
#include "comm/transport.h"
#include "tests/base/expect.h"
#include "tests/base/shared_memory.h"

#define WORKER CHORALE_WORKERS "/comm_worker_fabric"

static void check(const char *transport, const char *what, int workers)
{
    char *argv[] = {(char *)(size_t)WORKER, (char *)(size_t)transport, (char *)(size_t)what, NULL};
    struct launch_request request = {.workers = workers, .argv = argv, .label = true, .must_join = true};
    struct launch_result result = {.exit_code = -1};
    if (strcmp(transport, "shm") == 0)
        need_shared_memory(workers);
    EXPECT_OK(launch_local(&request, &result));
    cr_expect(result.exit_code == 0, "%s over %s with %d workers: exit %d: %s", what, transport, workers,
              result.exit_code, result.message);
}

static void check_both(const char *what, int workers)
{
    check("tcp", what, workers);
    check("shm", what, workers);
}

static struct job *alone(void)
{
    struct job *job = NULL;
    cr_assert_eq(job_join(NULL, &job), STATUS_OK, "%s", status_message());
    return job;
}

static void expect_described(const char *name, const char *provider, const char *interface, const char *wanted)
{
    struct job *job = alone();
    struct fabric_request request = {.job = job, .name = name, .provider = provider, .interface = interface};
    struct transport *transport = NULL;
    struct text text = {0};
    cr_assert_eq(fabric_open(&request, &transport), STATUS_OK, "%s: %s", name, status_message());
    transport->ops->describe(transport, &text);
    cr_expect(strstr(text_string(&text), wanted) != NULL, "\"%s\" does not say \"%s\"", text_string(&text), wanted);
    cr_expect(strstr(text_string(&text), "libfabric 1.") != NULL, "%s", text_string(&text));
    cr_expect_gt(transport->eager_limit, 1024);
    text_release(&text);
    transport->ops->close(transport);
    job_destroy(job);
}

Test(fabric, carries_messages_of_every_size)
{
    check_both("sizes", 2);
    check_both("sizes", 3);
    check("auto", "sizes", 4);
}

Test(fabric, has_hundreds_under_way)
{
    check_both("outstanding", 2);
    check_both("outstanding", 4);
}

Test(fabric, keeps_the_order_of_a_tag)
{
    check_both("order", 2);
}

Test(fabric, keeps_small_messages_that_come_early)
{
    check_both("unexpected", 2);
}

Test(fabric, receives_from_anyone_under_a_mask)
{
    check_both("wildcards", 4);
    check_both("matching", 2);
}

Test(fabric, cancels_receives)
{
    check_both("cancel", 2);
}

Test(fabric, sends_to_itself)
{
    check_both("self", 1);
    check_both("self", 2);
}

/* Hidden by a variable of libfabric itself. */
Test(fabric, goes_over_layers_where_net_is_missing)
{
    cr_assert_eq(setenv("FI_PROVIDER", "^net", 1), 0);
    check("tcp", "sizes", 3);
    check("tcp", "outstanding", 2);
    check("tcp", "unexpected", 2);
    check("tcp", "wildcards", 4);
    check("tcp", "idle", 2);
    expect_described("tcp", NULL, "lo", "tcp;ofi_rxm");
}

Test(fabric, waits_without_burning_the_processor)
{
    check_both("idle", 2);
    check_both("idle", 4);
}

/* --- one worker, in this process ---------------------------------------------------------------------------------- */

Test(fabric, describes_itself)
{
    expect_described("shm", NULL, NULL, "shm, ");
    expect_described("shm", NULL, NULL, "CMA ");
    expect_described("tcp", NULL, NULL, "127.0.0.1");
    expect_described("tcp", NULL, "lo", "net");
    expect_described("auto", "tcp;ofi_rxm", NULL, "127.0.0.1");
}

/* libfabric would ignore them, each with another provider, and names that are none. */
Test(fabric, takes_the_interface_that_its_variables_name)
{
    struct transport *transport = NULL;
    struct fabric_request request = {.job = alone(), .name = "tcp"};
    expect_described("tcp", NULL, "lo", "127.0.0.1 on lo");
    cr_assert_eq(setenv("FI_TCP_IFACE", "nosuch0", 1), 0);
    EXPECT_FAIL(STATUS_USAGE, "FI_TCP_IFACE: interface nosuch0", fabric_open(&request, &transport));
    cr_assert_eq(setenv("FI_NET_IFACE", "lo", 1), 0);
    EXPECT_OK(fabric_open(&request, &transport));
    if (transport != NULL)
        transport->ops->close(transport);
    job_destroy(request.job);
}

static void expect_refused(enum status wanted, const char *words, struct fabric_request request)
{
    struct transport *transport = NULL;
    request.job = alone();
    EXPECT_FAIL(wanted, words, fabric_open(&request, &transport));
    cr_expect_null(transport);
    job_destroy(request.job);
}

Test(fabric, refuses_what_is_not_here)
{
    expect_refused(STATUS_USAGE, "did you mean tcp", (struct fabric_request){.name = "tpc"});
    expect_refused(STATUS_USAGE, "interface nosuch0", (struct fabric_request){.name = "tcp", .interface = "nosuch0"});
    expect_refused(STATUS_USAGE, " lo", (struct fabric_request){.name = "tcp", .interface = "nosuch0"});
    expect_refused(STATUS_UNAVAILABLE, "nosuch", (struct fabric_request){.name = "auto", .provider = "nosuch"});
}

Test(fabric, refuses_wrong_words)
{
    struct job *job = alone();
    struct fabric_request request = {.job = job, .name = "shm"};
    struct transport *transport = NULL;
    struct transfer transfer;
    char byte = 0;
    cr_assert_eq(fabric_open(&request, &transport), STATUS_OK, "%s", status_message());
    EXPECT_FAIL(STATUS_USAGE, "peer 1", transport->ops->send(transport, 1, 1, "x", 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "peer -2", transport->ops->receive(transport, -2, 1, 0, &byte, 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "one peer", transport->ops->send(transport, TRANSPORT_ANY, 1, "x", 1, &transfer));
    EXPECT_FAIL(STATUS_USAGE, "60 bits", transport->ops->send(transport, 0, UINT64_C(1) << 60, "x", 1, &transfer));
    transport->ops->close(NULL);
    transport->ops->close(transport);
    job_destroy(job);
}

Test(host, is_the_same_for_the_same_process)
{
    struct host_identity one, two;
    host_identify(&one);
    host_identify(&two);
    cr_expect(one.memory == two.memory && one.network == two.network);
    cr_expect(one.memory != one.network && one.machine == two.machine);
    cr_expect_geq(host_cores(), 1);
    cr_expect_leq(host_cores(), sysconf(_SC_NPROCESSORS_CONF));
}

/* What the job says of a node keeps its workers apart, but not from the machine's cores. */
Test(host, that_the_job_names_is_one_of_its_own)
{
    struct host_identity one, two, three;
    host_identify(&one);
    cr_assert_eq(setenv("CHORALE_NODE", "a", 1), 0);
    host_identify(&two);
    cr_assert_eq(setenv("CHORALE_NODE", "b", 1), 0);
    host_identify(&three);
    cr_expect(one.memory != two.memory && two.memory != three.memory && one.memory != three.memory);
    cr_expect(one.network != two.network && two.network != three.network);
    cr_expect(one.machine == two.machine && two.machine == three.machine);
}

static void expect_cpus(const char *wanted, struct host_cpus cpus, int count)
{
    struct text text = {0};
    host_cpus_describe(&cpus, &text);
    cr_expect_str_eq(text_string(&text), wanted);
    cr_expect_eq(host_cpus_count(&cpus), count, "%s", wanted);
    text_release(&text);
}

Test(host, tells_sets_of_cpus)
{
    struct host_cpus cpus = {{0}}, all = {{0}};
    expect_cpus("", cpus, 0);
    cpus.word[0] = 0x10F;
    expect_cpus("0-3,8", cpus, 5);
    cpus.word[0] |= UINT64_C(1) << 63;
    cpus.word[1] = 3;
    expect_cpus("0-3,8,63-65", cpus, 8);
    memset(&all, 0xFF, sizeof all);
    expect_cpus("0-1023", all, 1024);
    cr_expect_not(host_cpus_equal(&cpus, &all));
    host_cpus_join(&cpus, &all);
    cr_expect(host_cpus_equal(&cpus, &all));
    host_cpus_allowed(&cpus);
    cr_expect_geq(host_cpus_count(&cpus), host_cores());
}

Test(host, knows_addresses)
{
    char address[HOST_ADDRESS_BYTES] = "", interface[HOST_INTERFACE_BYTES];
    cr_expect(host_address_interface("127.0.0.1", interface));
    cr_expect_str_eq(interface, "lo");
    cr_expect_not(host_address_interface("192.0.2.200", interface));
    cr_expect_str_empty(interface);
    EXPECT_OK(host_interface_address("lo", address));
    cr_expect_str_eq(address, "127.0.0.1");
}
