/* test_profile.c - profiles: what is taken, what is refused and how the message says what to do. */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "base/lines.h"
#include "base/profile.h"
#include "tests/base/expect.h"

#define MODEL "model resnet50 parameters=300 classes=10 image_size=32 batch=4\n"
#define DEVICE "device P100 in a DGX-1\n"
#define STEP "step fixed=36ms per_image=4.0ms backward=0.75\n"
#define LAYERS                                                                                                         \
    "layer conv1 parameters=100 forward=1ms backward=2ms\nlayer fc parameters=200 forward=500us backward=1.5ms\n"

static void expect_time(double wanted, double seconds)
{
    cr_expect(fabs(seconds - wanted) <= 1e-12, "%.17g s instead of %.17g s", seconds, wanted);
}

static void expect_refused(const char *fragment, const char *text)
{
    struct profile profile;
    EXPECT_FAIL(STATUS_FORMAT, fragment, profile_parse(text, "p.txt", &profile));
    cr_expect(strstr(status_message(), "p.txt") != NULL, "\"%s\" does not name the file", status_message());
    cr_expect_null(profile.layer);
}

Test(profile, affine)
{
    struct profile profile;
    double forward_s;
    double backward_s;
    bool scaled = true;
    EXPECT_OK(profile_parse("# TensorFlow's figures\n\n" MODEL "  " DEVICE STEP "# end", "p.txt", &profile));
    cr_expect_str_eq(profile.model, "resnet50");
    cr_expect_str_eq(profile.device, "P100 in a DGX-1");
    cr_expect_eq(profile.parameters, (size_t)300);
    cr_expect_eq(profile.classes, 10);
    cr_expect_eq(profile.image_size, 32);
    cr_expect_eq(profile.batch, 4);
    cr_expect(profile.affine);
    profile_times(&profile, 32, &forward_s, &backward_s, &scaled);
    expect_time(0.041, forward_s);
    expect_time(0.123, backward_s);
    cr_expect(!scaled, "an affine profile holds for every batch");
    profile_release(&profile);
}

Test(profile, layers)
{
    struct profile profile;
    double forward_s;
    double backward_s;
    bool scaled = true;
    EXPECT_OK(profile_parse(MODEL DEVICE LAYERS, "p.txt", &profile));
    cr_assert(profile.layer != NULL && profile.layers == 2);
    cr_expect_str_eq(profile.layer[1].name, "fc");
    cr_expect_eq(profile.layer[1].parameters, (size_t)200);
    profile_times(&profile, 4, &forward_s, &backward_s, &scaled);
    expect_time(0.0015, forward_s);
    expect_time(0.0035, backward_s);
    cr_expect(!scaled);
    profile_times(&profile, 8, &forward_s, &backward_s, &scaled);
    expect_time(0.003, forward_s);
    cr_expect(scaled);
    profile_release(&profile);
}

Test(profile, gradients_are_complete_from_the_end_on)
{
    struct profile profile;
    EXPECT_OK(profile_parse(MODEL DEVICE LAYERS, "p.txt", &profile));
    expect_time(0, profile_backward_until(&profile, 4, 300));
    expect_time(1.5e-3, profile_backward_until(&profile, 4, 299));
    expect_time(1.5e-3, profile_backward_until(&profile, 4, 100));
    expect_time(3.5e-3, profile_backward_until(&profile, 4, 99));
    expect_time(3.5e-3, profile_backward_until(&profile, 4, 0));
    expect_time(7e-3, profile_backward_until(&profile, 8, 0));
    profile_release(&profile);
    EXPECT_OK(profile_parse(MODEL DEVICE STEP, "p.txt", &profile)); /* backward: 0.75 (36 + 4 * 4) ms */
    expect_time(0, profile_backward_until(&profile, 4, 300));
    expect_time(13e-3, profile_backward_until(&profile, 4, 200));
    expect_time(39e-3, profile_backward_until(&profile, 4, 0));
    profile_release(&profile);
}

Test(profile, optional_fields_are_zero)
{
    struct profile profile;
    EXPECT_OK(profile_parse("model cnn parameters=5\n" DEVICE STEP, "p.txt", &profile));
    cr_expect_eq(profile.classes, 0);
    cr_expect_eq(profile.image_size, 0);
    cr_expect_eq(profile.batch, 0);
    profile_release(&profile);
}

static void expect_round_trip(const char *text)
{
    struct profile first;
    struct profile second;
    struct text written = {0};
    EXPECT_OK(profile_parse(text, "first", &first));
    profile_text(&first, &written);
    EXPECT_OK(profile_parse(text_string(&written), "second", &second));
    cr_expect_str_eq(second.model, first.model);
    cr_expect_str_eq(second.device, first.device);
    cr_expect_eq(second.parameters, first.parameters);
    cr_expect_eq(second.batch, first.batch);
    cr_expect_eq(second.affine, first.affine);
    cr_expect(fabs(second.per_image_s - first.per_image_s) <= DBL_EPSILON);
    cr_expect_eq(second.layers, first.layers);
    for (size_t i = 0; i < first.layers; i++) {
        cr_expect_str_eq(second.layer[i].name, first.layer[i].name);
        expect_time(first.layer[i].backward_s, second.layer[i].backward_s);
    }
    text_release(&written);
    profile_release(&first);
    profile_release(&second);
}

Test(profile, what_is_written_reads_back)
{
    expect_round_trip(MODEL DEVICE STEP);
    expect_round_trip(MODEL DEVICE LAYERS);
    expect_round_trip("model cnn parameters=5\ndevice a  b\nstep fixed=1us per_image=123.456789us backward=0.667\n");
}

Test(profile, refuses_unknown_words_and_fields)
{
    expect_refused("p.txt:2: unknown word \"devise\"", MODEL "devise P100\n" STEP);
    expect_refused("p.txt:1: unknown field \"parameter\" of \"model\": did you mean parameters=?",
                   "model a parameter=5\n" DEVICE STEP);
    expect_refused("it takes parameters= forward= backward=", MODEL DEVICE "layer a parameters=1 zzzzzzzzz=2\n");
    expect_refused("p.txt:3: \"fast\" is no key=value", MODEL DEVICE "step fast\n");
}

Test(profile, refuses_bad_values)
{
    expect_refused("p.txt:3: fixed: \"36\" is not a number with its unit",
                   MODEL DEVICE "step fixed=36 per_image=4ms backward=0.7\n");
    expect_refused("backward=1.5 is out of bounds: give 0 to 1",
                   MODEL DEVICE "step fixed=36ms per_image=4ms backward=1.5\n");
    expect_refused("per_image=-4ms is out of bounds", MODEL DEVICE "step fixed=36ms per_image=-4ms backward=0.5\n");
    expect_refused("per_image=infs is out of bounds", MODEL DEVICE "step fixed=36ms per_image=infs backward=0.5\n");
    expect_refused("parameters=1.5: give a whole number", "model a parameters=1.5\n" DEVICE STEP);
    expect_refused("parameters=0 is out of bounds", "model a parameters=0\n" DEVICE STEP);
    expect_refused("takes no time", MODEL DEVICE "step fixed=0ms per_image=0ms backward=0.5\n");
}

Test(profile, refuses_what_is_missing_or_doubled)
{
    expect_refused("no model line", DEVICE STEP);
    expect_refused("no device line", MODEL STEP);
    expect_refused("no times", MODEL DEVICE);
    expect_refused("no model line", "");
    expect_refused("p.txt:1: \"model\" lacks its name", "model\n");
    expect_refused("p.txt:2: \"device\" lacks its name", MODEL "device\n" STEP);
    expect_refused("p.txt:3: \"step\" lacks backward=", MODEL DEVICE "step fixed=36ms per_image=4ms\n");
    expect_refused("p.txt:2: \"model\" stands twice: the first is in line 1", MODEL MODEL DEVICE STEP);
    expect_refused("fixed= stands twice: keep one",
                   MODEL DEVICE "step fixed=1ms fixed=2ms per_image=4ms backward=0.5\n");
}

Test(profile, refuses_both_forms)
{
    expect_refused("p.txt:4: a profile has one step line or layer lines, not both (the other kind is in line 3)",
                   MODEL DEVICE STEP LAYERS);
    expect_refused("p.txt:5: a profile has one step line or layer lines, not both (the other kind is in line 3)",
                   MODEL DEVICE LAYERS STEP);
}

Test(profile, layers_agree_with_the_model)
{
    expect_refused("the layers have 300 parameters, the model line says 301",
                   "model a parameters=301 batch=1\n" DEVICE LAYERS);
    expect_refused("add batch= to the model line", "model a parameters=300\n" DEVICE LAYERS);
}

Test(profile, refuses_what_does_not_fit)
{
    char text[2 * LINE_BYTES + 64];
    (void)memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    expect_refused("p.txt:1: a line of", text);
    text[100] = '\0';
    (void)memcpy(text, "model ", 6);
    expect_refused("is longer than 31 bytes", text);
    expect_refused("more than 16 words", "model a b c d e f g h i j k l m n o p q\n");
}

Test(profile, a_file_that_is_not_there)
{
    struct profile profile;
    EXPECT_FAIL(STATUS_IO, "/nonexistent/p.txt", profile_read("/nonexistent/p.txt", &profile));
    profile_release(&profile);
}

Test(profile, the_files_that_come_along)
{
    static const char *const names[] = {"p100-fp32.txt", "v100-fp32.txt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[512];
        struct profile profile;
        double forward_s;
        double backward_s;
        (void)snprintf(path, sizeof path, CHORALE_SOURCE_DIR "/experiments/profiles/%s", names[i]);
        EXPECT_OK(profile_read(path, &profile));
        cr_expect_eq(profile.parameters, (size_t)25557032);
        profile_times(&profile, 32, &forward_s, &backward_s, NULL);
        cr_expect(forward_s > 0.01 && backward_s > forward_s && backward_s < 0.2, "%s: %g s and %g s", names[i],
                  forward_s, backward_s);
        profile_release(&profile);
    }
}
