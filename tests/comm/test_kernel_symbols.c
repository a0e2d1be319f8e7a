/* test_kernel_symbols.c - the kernel's symbols can't be read while they are hidden, unless adapters are here; nothing else
 * changes.
 */
#include "comm/kernel_symbols.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/base/expect.h"

static bool can_be_read(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file != NULL)
        (void)fclose(file);
    else
        cr_expect_eq(errno, ENOENT);
    return file != NULL;
}

Test(kernel_symbols, are_hidden_only_where_they_are_of_no_use)
{
    const bool adapters = access("/sys/class/infiniband", F_OK) == 0;
    if (!can_be_read("/proc/kallsyms"))
        cr_skip_test("no /proc/kallsyms");
    kernel_symbols_hide(true);
    cr_expect_eq(can_be_read("/proc/kallsyms"), adapters);
    cr_expect(can_be_read("/proc/self/status"));
    cr_expect_not(can_be_read("/proc/absent"));
    kernel_symbols_hide(false);
    cr_expect(can_be_read("/proc/kallsyms"));
}
