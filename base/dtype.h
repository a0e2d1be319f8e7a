/* dtype.h - element types and reduction operators, by the names that users type. */
#ifndef CHORALE_BASE_DTYPE_H
#define CHORALE_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum dtype { DTYPE_F32, DTYPE_F64, DTYPE_I32, DTYPE_I64, DTYPE_F16, DTYPE_BF16, DTYPE_COUNT };
enum reduce_op { REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_AVG, REDUCE_OP_COUNT };

size_t dtype_size(enum dtype dtype);      /* bytes */
const char *dtype_name(enum dtype dtype); /* "f32", "f64", "i32", "i64", "f16", "bf16" */
const char *
dtype_long_name(enum dtype dtype);    /* nccl-tests' words: "float", "double", "int32", "int64", "half", "bfloat16" */
bool dtype_is_half(enum dtype dtype); /* f16, bf16: computed in f32, then rounded (half.h) */
enum status dtype_parse(const char *name, enum dtype *dtype) MUST_CHECK; /* both spellings */
const char *reduce_op_name(enum reduce_op op);                           /* "sum", "min", "max", "avg" */
enum status reduce_op_parse(const char *name, enum reduce_op *op) MUST_CHECK;

#endif
