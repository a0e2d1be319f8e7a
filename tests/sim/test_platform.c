/* test_platform.c - platform files: what is taken, what is refused and how the message says what to do. */
#include <math.h>
#include <stdio.h>

#include "sim/platform.h"
#include "tests/base/expect.h"

#define NAME "platform fdr-4gpu\n"
#define NODE "node workers=4\n"
#define INTRA "link intra latency=5us bandwidth=10GB/s\n"
#define INTER "link inter latency=2us bandwidth=6GB/s\n"
#define REDUCE "reduce cost=0.02ns/B\n"
#define OVERHEAD "overhead send=0.5us receive=250ns\n"
#define ALL NAME NODE INTRA INTER REDUCE

static void expect_near(double wanted, double value)
{
    cr_expect(fabs(value - wanted) <= 1e-14 * fabs(wanted), "%.17g instead of %.17g", value, wanted);
}

static void expect_refused(const char *fragment, const char *text)
{
    struct platform platform;
    EXPECT_FAIL(STATUS_FORMAT, fragment, platform_parse(text, "m.txt", &platform));
    cr_expect(strstr(status_message(), "m.txt") != NULL, "\"%s\" does not name the file", status_message());
}

Test(platform, every_line)
{
    struct platform platform;
    EXPECT_OK(platform_parse("# measured in 2017\n" OVERHEAD ALL, "m.txt", &platform));
    cr_expect_str_eq(platform.name, "fdr-4gpu");
    cr_expect_eq(platform.node_workers, 4);
    expect_near(5e-6, platform.intra.latency_s);
    expect_near(1e-10, platform.intra.seconds_per_byte);
    expect_near(2e-6, platform.inter.latency_s);
    expect_near(1 / 6e9, platform.inter.seconds_per_byte);
    expect_near(2e-11, platform.reduce_s_per_byte);
    expect_near(5e-7, platform.send_overhead_s);
    expect_near(2.5e-7, platform.receive_overhead_s);
}

Test(platform, overhead_is_optional_and_bandwidth_may_be_infinite)
{
    struct platform platform;
    EXPECT_OK(platform_parse(NAME NODE INTRA REDUCE "link inter latency=0s bandwidth=infGB/s\n", "m.txt", &platform));
    cr_expect(platform.send_overhead_s <= 0 && platform.receive_overhead_s <= 0);
    cr_expect(platform.inter.seconds_per_byte <= 0 && platform.inter.latency_s <= 0);
}

Test(platform, refuses_what_is_missing_or_doubled)
{
    expect_refused("\"platform NAME\"", NODE INTRA INTER REDUCE);
    expect_refused("\"node workers=4\"", NAME INTRA INTER REDUCE);
    expect_refused("\"link intra latency=5us bandwidth=10GB/s\"", NAME NODE INTER REDUCE);
    expect_refused("\"link inter latency=2us bandwidth=6GB/s\"", NAME NODE INTRA REDUCE);
    expect_refused("\"reduce cost=0.02ns/B\"", NAME NODE INTRA INTER);
    expect_refused("m.txt:6: \"link intra\" stands twice: the first is in line 3", ALL INTRA);
    expect_refused("m.txt:6: \"node\" stands twice: the first is in line 2", ALL NODE);
}

Test(platform, refuses_bad_values)
{
    expect_refused("m.txt:2: workers=0 is out of bounds", NAME "node workers=0\n" INTRA INTER REDUCE);
    expect_refused("m.txt:1: latency: \"5\" is not a number with its unit", "link intra latency=5 bandwidth=10GB/s\n");
    expect_refused("bandwidth: \"10Gbps\"", "link intra latency=5us bandwidth=10Gbps\n");
    expect_refused("bandwidth=0GB/s is out of bounds", "link intra latency=5us bandwidth=0GB/s\n");
    expect_refused("latency=-1us is out of bounds", "link intra latency=-1us bandwidth=1GB/s\n");
    expect_refused("\"link\" lacks bandwidth=", "link intra latency=5us\n");
    expect_refused("unknown link \"local\": give intra", "link local latency=5us bandwidth=1GB/s\n");
    expect_refused("did you mean latency=?", "link intra latncy=5us bandwidth=1GB/s\n");
    expect_refused("unknown word \"switch\"", ALL "switch radix=32\n");
    expect_refused("a name is one word", "platform my machine\n");
}

Test(platform, what_is_written_reads_back)
{
    struct platform first;
    struct platform second;
    struct text written = {0};
    EXPECT_OK(platform_parse(ALL OVERHEAD, "first", &first));
    platform_text(&first, &written);
    EXPECT_OK(platform_parse(text_string(&written), "second", &second));
    cr_expect_str_eq(second.name, first.name);
    cr_expect_eq(second.node_workers, first.node_workers);
    cr_expect(fabs(second.inter.seconds_per_byte / first.inter.seconds_per_byte - 1) < 1e-11);
    cr_expect(fabs(second.intra.latency_s / first.intra.latency_s - 1) < 1e-11);
    cr_expect(fabs(second.reduce_s_per_byte / first.reduce_s_per_byte - 1) < 1e-11);
    cr_expect(fabs(second.receive_overhead_s / first.receive_overhead_s - 1) < 1e-11);
    text_release(&written);
}

Test(platform, layout_and_cost_model)
{
    struct platform platform;
    struct layout layout;
    struct cost_model model;
    EXPECT_OK(platform_parse(ALL, "m.txt", &platform));
    EXPECT_OK(platform_layout(&platform, 6, &layout));
    cr_expect_eq(layout.workers, 6);
    cr_expect_eq(layout.nodes, 2);
    layout_release(&layout);
    platform_cost_model(&platform, 4, &model);
    expect_near(5e-6, model.latency_s);
    platform_cost_model(&platform, 5, &model);
    expect_near(2e-6, model.latency_s);
    expect_near(1 / 6e9, model.seconds_per_byte);
    expect_near(2e-11, model.reduce_s_per_byte);
}

Test(platform, the_files_that_come_along)
{
    static const char *const names[] = {"fdr-4gpu", "ethernet-10g", "ideal"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        struct platform platform;
        (void)snprintf(path, sizeof path, CHORALE_SOURCE_DIR "/experiments/platforms/%s.txt", names[i]);
        EXPECT_OK(platform_read(path, &platform));
        cr_expect_str_eq(platform.name, names[i]);
    }
}

Test(platform, a_file_that_is_not_there)
{
    struct platform platform;
    EXPECT_FAIL(STATUS_IO, "/nonexistent/m.txt", platform_read("/nonexistent/m.txt", &platform));
}
