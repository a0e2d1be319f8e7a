/* test_status.c - failure texts, their limits and their threads. */
#include <pthread.h>
#include <stdio.h>

#include "tests/base/expect.h"

Test(status, fail_returns_its_status_and_keeps_the_text)
{
    cr_expect_str_eq(status_message(), "");
    cr_expect_eq(fail(STATUS_IO, "open %s: %d", "x", 7), STATUS_IO);
    cr_expect_str_eq(status_message(), "open x: 7");
    status_clear();
    cr_expect_str_eq(status_message(), "");
}

Test(status, context_is_put_before)
{
    (void)fail(STATUS_FORMAT, "line 3: no number");
    cr_expect_eq(fail_context(STATUS_FORMAT, "read %s", "a.platform"), STATUS_FORMAT);
    cr_expect_str_eq(status_message(), "read a.platform: line 3: no number");
}

Test(status, a_message_may_quote_the_message_before)
{
    (void)fail(STATUS_IO, "inner");
    (void)fail(STATUS_INTERNAL, "outer: %s", status_message());
    cr_expect_str_eq(status_message(), "outer: inner");
}

Test(status, messages_are_one_line_of_at_most_1023_bytes)
{
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    text[5] = '\n';
    (void)fail(STATUS_IO, "%s", text);
    cr_expect_eq(strlen(status_message()), 1023);
    cr_expect_eq(status_message()[5], ' ');
    (void)fail_context(STATUS_IO, "%s", "before");
    cr_expect_eq(strlen(status_message()), 1023);
    cr_expect(strncmp(status_message(), "before: xxxxx xxx", 17) == 0);
}

static void *fail_elsewhere(void *seen_empty)
{
    *(int *)seen_empty = status_message()[0] == '\0';
    (void)fail(STATUS_TIMEOUT, "of another thread");
    return NULL;
}

Test(status, each_thread_has_its_own)
{
    pthread_t thread;
    int seen_empty = 0;
    (void)fail(STATUS_IO, "mine");
    cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, &seen_empty), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_expect(seen_empty);
    cr_expect_str_eq(status_message(), "mine");
}

Test(status, every_status_has_a_word_of_its_own)
{
    for (int i = STATUS_INTERRUPTED; i <= STATUS_AGAIN; i++)
        for (int j = STATUS_INTERRUPTED; j < i; j++)
            cr_expect_str_neq(status_name((enum status)i), status_name((enum status)j));
    cr_expect_str_eq(status_name(STATUS_TIMEOUT), "timeout");
    cr_expect_str_eq(status_name(STATUS_PEER_LOST), "peer-lost");
    cr_expect_str_eq(status_name((enum status)99), "unknown");
}

Test(status, exit_codes)
{
    cr_expect_eq(status_exit_code(STATUS_OK), 0);
    cr_expect_eq(status_exit_code(STATUS_USAGE), 2);
    cr_expect_eq(status_exit_code(STATUS_REFUSED), 2);
    cr_expect_eq(status_exit_code(STATUS_IO), 1);
    cr_expect_eq(status_exit_code(STATUS_INTERRUPTED), 1);
}

static enum status tried(enum status inner, int *reached)
{
    TRY(inner);
    *reached += 1;
    return STATUS_OK;
}

static enum status tried_to(enum status inner, int *reached, int *released)
{
    enum status status = STATUS_OK;
    TRY_TO(done, inner);
    *reached += 1;
done:
    *released += 1;
    return status;
}

Test(status, try_forwards_failures_only)
{
    int reached = 0, released = 0;
    cr_expect_eq(tried(STATUS_IO, &reached), STATUS_IO);
    cr_expect_eq(tried_to(STATUS_IO, &reached, &released), STATUS_IO);
    cr_expect_eq(reached, 0);
    cr_expect_eq(tried(STATUS_AGAIN, &reached), STATUS_OK);
    cr_expect_eq(tried_to(STATUS_OK, &reached, &released), STATUS_OK);
    cr_expect_eq(reached, 2);
    cr_expect_eq(released, 2);
}
