/* test_dtype.c - names and sizes of element types and reductions. */
#include "base/dtype.h"
#include "tests/base/expect.h"

Test(dtype, names_come_back)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype dtype = (enum dtype)i, parsed = DTYPE_COUNT;
        EXPECT_OK(dtype_parse(dtype_name(dtype), &parsed));
        cr_expect_eq(parsed, dtype);
        parsed = DTYPE_COUNT;
        EXPECT_OK(dtype_parse(dtype_long_name(dtype), &parsed));
        cr_expect_eq(parsed, dtype);
    }
}

Test(dtype, sizes)
{
    cr_expect_eq(dtype_size(DTYPE_F32), 4);
    cr_expect_eq(dtype_size(DTYPE_F64), 8);
    cr_expect_eq(dtype_size(DTYPE_I32), 4);
    cr_expect_eq(dtype_size(DTYPE_I64), 8);
    cr_expect_eq(dtype_size(DTYPE_F16), 2);
    cr_expect_eq(dtype_size(DTYPE_BF16), 2);
    cr_expect_str_eq(dtype_long_name(DTYPE_F32), "float");
    cr_expect_str_eq(dtype_long_name(DTYPE_BF16), "bfloat16");
}

Test(dtype, unknown_names_are_refused_with_the_nearest)
{
    enum dtype dtype = DTYPE_I32;
    enum reduce_op op = REDUCE_MAX;
    EXPECT_FAIL(STATUS_USAGE, "did you mean float?", dtype_parse("flaot", &dtype));
    EXPECT_FAIL(STATUS_USAGE, "give one of f32", dtype_parse("quaternion", &dtype));
    EXPECT_FAIL(STATUS_USAGE, "did you mean sum?", reduce_op_parse("sums", &op));
    EXPECT_FAIL(STATUS_USAGE, "sum, min, max, avg", reduce_op_parse("product", &op));
    cr_expect_eq(dtype, DTYPE_I32);
    cr_expect_eq(op, REDUCE_MAX);
}

Test(dtype, reductions_come_back)
{
    for (int i = 0; i < REDUCE_OP_COUNT; i++) {
        enum reduce_op op = REDUCE_OP_COUNT;
        EXPECT_OK(reduce_op_parse(reduce_op_name((enum reduce_op)i), &op));
        cr_expect_eq(op, (enum reduce_op)i);
    }
}

Test(dtype, no_type_has_a_name_that_can_be_printed)
{
    cr_expect_str_eq(dtype_name(DTYPE_COUNT), "?");
    cr_expect_str_eq(reduce_op_name(REDUCE_OP_COUNT), "?");
    cr_expect_eq(dtype_size(DTYPE_COUNT), 0);
}
