// `gather_rows`, `scatter_rows`: copy rows by index. Used to bring gathered chunks of K and V into sequence order, to
// return their gradients, and to write the KV cache.
//
//   gather_rows:   y[n,:] = x[index[n],:]         x [R, C], index [N], y [N, C]
//   scatter_rows:  y[index[n],:] (+)= x[n,:]      x [N, C], index [N], y [R, C]; other rows of y do not change
//
// scatter_rows: x and y may also have the shape [.., heads, D] instead of [.., C], with heads side by side.
// x, y float32 or bf16, one dtype; scatter_rows may widen bf16 to float32. Rows of x and y may be padded. x and y are
// disjoint. index int32, in [0, R). scatter_rows needs unique indices, except kNoRow: that row of x is skipped.
// An index out of range throws on the stream.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

constexpr std::int32_t kNoRow = -1;

struct GatherRows {
  TensorView x, index, y;
};
void gather_rows(Stream& stream, const GatherRows& args);

struct ScatterRows {
  TensorView x, index, y;
  bool accumulate = false;
};
void scatter_rows(Stream& stream, const ScatterRows& args);

HAWSER_BACKENDS_OF(gather_rows, GatherRows);
HAWSER_BACKENDS_OF(scatter_rows, ScatterRows);

}  // namespace hawser::ops
