/* folder.h - a fresh folder under /tmp, which a test works in; it goes with all that is in it. For .init and .fini of
 * Criterion suites.
 */
#ifndef CHORALE_TESTS_BASE_FOLDER_H
#define CHORALE_TESTS_BASE_FOLDER_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char test_folder[32];

static inline void enter_folder(void)
{
    (void)snprintf(test_folder, sizeof test_folder, "/tmp/chorale-test-XXXXXX");
    cr_assert_not_null(mkdtemp(test_folder));
    cr_assert_eq(chdir(test_folder), 0);
}

static inline void leave_folder(void)
{
    char command[64];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", test_folder);
    cr_expect_eq(chdir("/"), 0);
    cr_expect_eq(system(command), 0);
}

#endif
