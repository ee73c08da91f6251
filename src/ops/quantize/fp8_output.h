// `Fp8Output`: where an op writes a matrix y [T, C] in FP8 in place of y, with the bits of ops::quantize of the y that
// it would write, in y's dtype. Members, shapes and errors are those of ops::Quantize, without x.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Fp8Output {
  TensorView scale, q, transposed;
  TensorView used, mask, amax, saturated;
  TensorView row_count = {};

  bool empty() const { return q.empty() && transposed.empty(); }
  DType dtype() const { return (q.empty() ? transposed : q).dtype(); }
};

// Throws InternalError unless the views are those of a matrix [rows, columns] in one of the dtypes.
void expect_fp8_output(const char* op, const Fp8Output& to, std::initializer_list<DType> dtypes, std::int64_t rows,
                       std::int64_t columns);
// Throws InternalError if `view`, which the op reads, shares a byte with what it writes.
void expect_apart(const char* op, const Fp8Output& to, const TensorView& view);

}  // namespace hawser::ops
