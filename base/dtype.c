/* dtype.c - the tables of element types and reduction operators. */
#include "base/dtype.h"

#include <stdint.h>
#include <string.h>

#include "base/text.h"

static const struct dtype_row {
    const char *name, *long_name;
    size_t size;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", "float", sizeof(float)},   [DTYPE_F64] = {"f64", "double", sizeof(double)},
    [DTYPE_I32] = {"i32", "int32", sizeof(int32_t)}, [DTYPE_I64] = {"i64", "int64", sizeof(int64_t)},
    [DTYPE_F16] = {"f16", "half", sizeof(uint16_t)}, [DTYPE_BF16] = {"bf16", "bfloat16", sizeof(uint16_t)},
};

static const char *const reduce_ops[REDUCE_OP_COUNT] = {
    [REDUCE_SUM] = "sum",
    [REDUCE_MIN] = "min",
    [REDUCE_MAX] = "max",
    [REDUCE_AVG] = "avg",
};

size_t dtype_size(enum dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *dtype_name(enum dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?";
}

const char *dtype_long_name(enum dtype dtype)
{
    return (size_t)dtype < DTYPE_COUNT ? dtypes[dtype].long_name : "?";
}

bool dtype_is_half(enum dtype dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

const char *reduce_op_name(enum reduce_op op)
{
    return (size_t)op < REDUCE_OP_COUNT ? reduce_ops[op] : "?";
}

static enum status fail_name(const char *what, const char *name, const char *const *taken, size_t count)
{
    struct text list = {0};
    for (size_t i = 0; i < count; i++)
        text_addf(&list, "%s%s", i != 0 ? ", " : "", taken[i]);
    const char *nearest = nearest_spelling(name, taken, count);
    enum status status = STATUS_USAGE;
    if (nearest != NULL)
        (void)fail(status, "unknown %s %s: did you mean %s? (%s)", what, name, nearest, text_string(&list));
    else
        (void)fail(status, "unknown %s %s: give one of %s", what, name, text_string(&list));
    text_release(&list);
    return status;
}

enum status dtype_parse(const char *name, enum dtype *dtype)
{
    const char *taken[2 * DTYPE_COUNT];
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        taken[i] = dtypes[i].name;
        taken[DTYPE_COUNT + i] = dtypes[i].long_name;
    }
    for (size_t i = 0; i < 2 * DTYPE_COUNT; i++) {
        if (strcmp(taken[i], name) == 0) {
            *dtype = (enum dtype)(i % DTYPE_COUNT);
            return STATUS_OK;
        }
    }
    return fail_name("element type", name, taken, 2 * DTYPE_COUNT);
}

enum status reduce_op_parse(const char *name, enum reduce_op *op)
{
    for (size_t i = 0; i < REDUCE_OP_COUNT; i++) {
        if (strcmp(reduce_ops[i], name) == 0) {
            *op = (enum reduce_op)i;
            return STATUS_OK;
        }
    }
    return fail_name("reduction", name, reduce_ops, REDUCE_OP_COUNT);
}
