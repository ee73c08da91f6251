// Rows by index: brings gathered chunks of K and V into sequence order, and their gradients back; keeps K and V.
//
// gather_rows:   y[n, :] = x[index[n], :]                       x [R, C], index [N], y [N, C]
// scatter_rows:  y[index[n], :] = x[n, :], or +=; other rows of y stay    x [N, C], index [N], y [R, C]; or both with
//                                                                         [.., heads, D] for C, heads side by side
//   x, y float32 or bf16, one dtype; scatter may widen bf16 to float32. index int32, in [0, R); scatter needs
//   unique indices, but for kNoRow: that row of x goes nowhere. Rows of x and y may be padded. x and y apart. An index
//   outside the table throws on the stream.
#pragma once

#include "ops/common.h"

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

}  // namespace hawser::ops
