/* test_origin.c - who has started this process; and PMI-1 with a process manager that is played. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap/exchange.h"
#include "comm/bootstrap/join.h"
#include "comm/bootstrap/origin.h"
#include "comm/bootstrap/pmi.h"

TestSuite(origin, .timeout = 60);
TestSuite(pmi, .timeout = 60);

static const char *const all[] = {"CHORALE_CONTROL",
                                  "CHORALE_TOKEN",
                                  "CHORALE_PORT",
                                  "CHORALE_JOB_TOKEN",
                                  "RANK",
                                  "WORLD_SIZE",
                                  "LOCAL_RANK",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "LOCAL_WORLD_SIZE",
                                  "PMIX_NAMESPACE",
                                  "PMIX_RANK",
                                  "PMI_FD",
                                  "PMI_RANK",
                                  "PMI_SIZE",
                                  "SLURM_STEP_ID",
                                  "SLURM_PROCID",
                                  "SLURM_JOB_ID",
                                  "SLURM_NTASKS",
                                  "SLURM_STEP_NUM_TASKS",
                                  "SLURM_STEP_NODELIST",
                                  "SLURM_LOCALID",
                                  "SLURM_STEP_NUM_NODES",
                                  "TORCHELASTIC_RUN_ID",
                                  "OMPI_COMM_WORLD_RANK",
                                  "TORCHELASTIC_USE_AGENT_STORE"};

/* "NAME=VALUE NAME=VALUE", and nothing else that matters. */
static void set_only(const char *variables)
{
    char text[1024], *rest = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cr_assert_eq(unsetenv(all[i]), 0);
    (void)snprintf(text, sizeof text, "%s", variables);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        cr_assert_eq(setenv(word, equals + 1, 1), 0);
    }
}

#define SLURM                                                                                                          \
    "SLURM_STEP_ID=3 SLURM_JOB_ID=17 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 "                    \
    "SLURM_STEP_NODELIST=n[07-08] "
#define VARIABLES "RANK=2 WORLD_SIZE=5 MASTER_ADDR=here MASTER_PORT=1000 "

static struct origin found(const char *variables)
{
    struct origin origin;
    set_only(variables);
    cr_assert_eq(origin_find(&origin), STATUS_OK, "%s: %s", variables, status_message());
    cr_expect_eq(origin_is_launched(), origin.kind != ORIGIN_NONE);
    return origin;
}

Test(origin, the_order)
{
    cr_expect_eq(found("").kind, ORIGIN_NONE);
    cr_expect_eq(found("MASTER_ADDR=here MASTER_PORT=3 LOCAL_RANK=1").kind, ORIGIN_NONE);
    cr_expect_eq(found("CHORALE_CONTROL=a CHORALE_TOKEN=b PMI_FD=3 " SLURM VARIABLES).kind, ORIGIN_CHORALE);
    cr_expect_str_eq(found("TORCHELASTIC_RUN_ID=x PMIX_NAMESPACE=a PMIX_RANK=0 PMI_FD=3 " SLURM VARIABLES).name,
                     "torchrun");
    cr_expect_eq(found("PMIX_NAMESPACE=a PMIX_RANK=0 PMI_FD=3 " SLURM VARIABLES).kind, ORIGIN_PMIX);
    cr_expect_eq(found("PMI_FD=3 PMI_RANK=0 PMI_SIZE=2 " SLURM VARIABLES).kind, ORIGIN_PMI);
    cr_expect_str_eq(found(SLURM "RANK=0 WORLD_SIZE=4").name, "Slurm");
    cr_expect_str_eq(found(VARIABLES).name, "RANK and WORLD_SIZE");
    cr_expect_eq(found("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1").kind,
                 ORIGIN_NONE); /* an interactive shell */
}

Test(origin, variables_say_where)
{
    struct origin origin = found(VARIABLES "LOCAL_RANK=1");
    cr_expect(origin.rank == 2 && origin.size == 5 && origin.local_rank == 1 && !origin.one_host && !origin.secret);
    cr_expect_str_eq(origin.host, "here");
    cr_expect_eq(origin.port, 1000);
    cr_expect(found(VARIABLES "LOCAL_WORLD_SIZE=5").one_host);
    cr_expect_eq(found(VARIABLES "CHORALE_PORT=77").port, 77);
    cr_expect_eq(found(VARIABLES "TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=True").port, 1001);
    cr_expect_eq(found(VARIABLES "TORCHELASTIC_RUN_ID=x TORCHELASTIC_USE_AGENT_STORE=False").port, 1000);
    cr_expect_eq(found("RANK=0 WORLD_SIZE=1").size, 1);
}

Test(origin, slurm_says_where)
{
    struct origin origin = found(SLURM "SLURM_LOCALID=0");
    cr_expect(origin.rank == 1 && origin.size == 4 && origin.local_rank == 0 && !origin.one_host);
    cr_expect_str_eq(origin.host, "n07");
    cr_expect(origin.port >= 1024 && origin.port < 32768);
    cr_expect_neq(origin.port, found(SLURM "SLURM_STEP_ID=4").port);
}

Test(origin, tokens_keep_jobs_apart_and_secrets_stand_above)
{
    struct origin one = found(VARIABLES), two = found(VARIABLES "MASTER_PORT=1001");
    cr_expect_neq(memcmp(one.token, two.token, sizeof one.token), 0);
    one = found(VARIABLES "CHORALE_JOB_TOKEN=0123456789abcdef");
    two = found(VARIABLES "MASTER_PORT=1001 CHORALE_JOB_TOKEN=0123456789abcdef");
    cr_expect(one.secret && memcmp(one.token, two.token, sizeof one.token) == 0);
}

Test(origin, first_hosts_of_lists)
{
    static const char *const lists[][2] = {{"a", "a"},
                                           {"a,b", "a"},
                                           {"n[3]", "n3"},
                                           {"n[01-03,7],m", "n01"},
                                           {"n[7,9]x,m", "n7x"},
                                           {"a.b-c,d", "a.b-c"},
                                           {"rack1-n[10-12]", "rack1-n10"}};
    static const char *const torn[] = {"", ",a", "n[", "n[]", "n[1", "n[a]", "n[1][2]", "a]", "n[1]]", "n[1x]"};
    char host[ADDRESS_HOST_BYTES], longest[600];
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        cr_assert_eq(origin_first_host(lists[i][0], host), STATUS_OK, "%s", lists[i][0]);
        cr_expect_str_eq(host, lists[i][1]);
    }
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++)
        cr_expect_eq(origin_first_host(torn[i], host), STATUS_FORMAT, "%s", torn[i]);
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    cr_expect_eq(origin_first_host(longest, host), STATUS_FORMAT);
}

Test(origin, addresses)
{
    static const char *const torn[] = {"", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "[]:1", "a:1x"};
    char host[ADDRESS_HOST_BYTES], address[ADDRESS_BYTES];
    int port = 0;
    cr_assert_eq(address_split("A", "[::1]:4711", host, &port), STATUS_OK);
    cr_expect_str_eq(host, "::1");
    cr_expect_eq(port, 4711);
    cr_assert_eq(address_print("::1", 4711, address), STATUS_OK);
    cr_expect_str_eq(address, "[::1]:4711");
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++)
        cr_expect_eq(address_split("A", torn[i], host, &port), STATUS_USAGE, "%s", torn[i]);
}

Test(origin, cards_survive)
{
    const unsigned char token[PROOF_TOKEN_BYTES] = "a token of ours";
    unsigned char read_back[PROOF_TOKEN_BYTES];
    char text[EXCHANGE_VALUE_BYTES], address[ADDRESS_BYTES], why[2000];
    join_card_put("[::1]:4711", token, text);
    cr_assert_eq(join_card_get(text, address, read_back), STATUS_OK);
    cr_expect_str_eq(address, "[::1]:4711");
    cr_expect_arr_eq(token, read_back, sizeof token);
    memset(why, 'x', sizeof why - 1);
    why[sizeof why - 1] = '\0';
    join_card_put_failure(why, text);
    cr_expect_lt(strlen(text), sizeof text);
    cr_expect_eq(join_card_get(text, address, read_back), STATUS_UNAVAILABLE);
    cr_expect_eq(join_card_get("", address, read_back), STATUS_FORMAT);
    cr_expect_eq(join_card_get("4", address, read_back), STATUS_FORMAT);
    cr_expect_eq(join_card_get("41xy", address, read_back), STATUS_FORMAT);
}

/* ---- PMI-1 ---- */

static int far;

/* The environment of rank 1 of 3, and a manager that has answered already. */
static void play(const char *answers)
{
    int ends[2];
    char text[16];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    far = ends[1];
    set_only("PMI_RANK=1 PMI_SIZE=3");
    (void)snprintf(text, sizeof text, "%d", ends[0]);
    cr_assert_eq(setenv("PMI_FD", text, 1), 0);
    cr_assert_eq(send(far, answers, strlen(answers), 0), (ssize_t)strlen(answers));
}

#define GREETING "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\ncmd=my_kvsname kvsname=kvs_1\n"

Test(pmi, a_whole_session)
{
    void *state = NULL;
    int rank = -1, size = -1;
    char message[EXCHANGE_MESSAGE_BYTES] = "", value[64], asked[1024];
    play(GREETING "cmd=put_result rc=0 msg=success\ncmd=barrier_out rc=0\ncmd=get_result rc=0 msg=success value=card\n"
                  "cmd=finalize_ack\n");
    cr_assert_eq(exchange_pmi.open(5, &state, &rank, &size, message), 0, "%s", message);
    cr_expect(rank == 1 && size == 3);
    cr_expect_eq(exchange_pmi.put(state, "key", "mine", message), 0, "%s", message);
    cr_expect_eq(exchange_pmi.fence(state, 5, message), 0, "%s", message);
    cr_expect_eq(exchange_pmi.get(state, 2, "key", value, sizeof value, message), 0, "%s", message);
    cr_expect_str_eq(value, "card");
    exchange_pmi.close(state);
    const ssize_t bytes = recv(far, asked, sizeof asked - 1, 0);
    cr_assert_gt(bytes, 0);
    asked[bytes] = '\0';
    cr_expect_str_eq(
        asked,
        "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_my_kvsname\ncmd=put kvsname=kvs_1 key=key-1 value=mine\n"
        "cmd=barrier_in\ncmd=get kvsname=kvs_1 key=key-2\ncmd=finalize\n");
}

static void expect_bad_start(const char *answers, bool closes, const char *what)
{
    void *state = NULL;
    int rank = -1, size = -1;
    char message[EXCHANGE_MESSAGE_BYTES] = "";
    play(answers);
    if (closes)
        close(far);
    cr_expect_eq(exchange_pmi.open(0.1, &state, &rank, &size, message), 1, "%s", answers);
    cr_expect_not_null(strstr(message, what), "\"%s\" is not in \"%s\"", what, message);
}

Test(pmi, what_a_manager_may_do_wrong)
{
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    expect_bad_start("", false, "within the deadline");
    expect_bad_start("cmd=response_to_init rc=0\n", true, "PMI_FD: ");
    expect_bad_start("cmd=response_to_init rc=1 msg=no\n", false, "refused");
    expect_bad_start("cmd=barrier_out\n", false, "out of place");
    expect_bad_start("\n", false, "out of place");
    expect_bad_start("cmd=response_to_init rc=0\ncmd=my_kvsname\n", false, "no kvsname");
    expect_bad_start(longest, false, "too long");
}

Test(pmi, environments_that_are_torn)
{
    static const char *const torn[][2] = {{"PMI_FD=3 PMI_RANK=0", "PMI_SIZE"},
                                          {"PMI_FD=3 PMI_RANK=2 PMI_SIZE=2", "PMI_RANK=2"},
                                          {"PMI_FD=x PMI_RANK=0 PMI_SIZE=2", "PMI_FD=x"}};
    for (int i = 0; i < 3; i++) {
        void *state = NULL;
        int rank = -1, size = -1;
        char message[EXCHANGE_MESSAGE_BYTES] = "";
        set_only(torn[i][0]);
        cr_expect_eq(exchange_pmi.open(1, &state, &rank, &size, message), 1);
        cr_expect_not_null(strstr(message, torn[i][1]), "%s", message);
    }
}

Test(pmi, values_of_words)
{
    char value[8];
    cr_expect(pmi_value("cmd=a rc=0 value=b=c", "value", value, sizeof value) && strcmp(value, "b=c") == 0);
    cr_expect(pmi_value("cmd=a rc=", "rc", value, sizeof value) && value[0] == '\0');
    cr_expect_not(pmi_value("cmd=a xrc=0", "rc", value, sizeof value));
    cr_expect_not(pmi_value("value=12345678", "value", value, sizeof value));
    cr_expect(pmi_value("value=1234567", "value", value, sizeof value));
}
