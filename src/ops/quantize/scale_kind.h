// `ScaleKind`: which elements of an FP8 matrix share a scale, and how the scales are stored.
//
// A matrix q [R, C] as it is stored, dense in C; its values are s(r, c) q[r, c]:
//   one       scales [1]                                    s(r, c) = scales[0]
//   vec128    scales [ceil(C/128), R rounded up to 4]       s(r, c) = scales[c / 128, r]
//   block128  scales [ceil(R/128), ceil(C/128) rounded up to 4]
//                                                           s(r, c) = scales[r / 128, c / 128]
// float32, dense. The last blocks of rows and columns may be smaller. Scales that belong to no element are zero.
// vec128 has consecutive rows together, and rows of scales start at multiples of 16 bytes: cuBLASLt reads both kinds as
// they are (CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, BLK128x128_32F), with C the dimension that a GEMM sums over.
#pragma once

#include "base/units.h"
#include "tensor/tensor.h"

namespace hawser::ops {

enum class ScaleKind { one, vec128, block128 };

constexpr std::int64_t kScaleBlock = 128;  // elements of a row, or rows and columns
constexpr std::int64_t kScaleRow = 4;      // the last dim of vec128 and block128 is a multiple of it

constexpr const char* to_string(ScaleKind kind) {
  return kind == ScaleKind::one ? "one scale" : kind == ScaleKind::vec128 ? "1x128 scales" : "128x128 scales";
}

// Of a matrix [rows, columns].
inline Shape scale_shape(ScaleKind kind, std::int64_t rows, std::int64_t columns) {
  const std::int64_t across = ceil_div(columns, kScaleBlock);
  switch (kind) {
    case ScaleKind::one:
      break;
    case ScaleKind::vec128:
      return {across, round_up(rows, kScaleRow)};
    case ScaleKind::block128:
      return {ceil_div(rows, kScaleBlock), round_up(across, kScaleRow)};
  }
  return {1};
}

// Where the scale of q[row, column] is among the scales of a matrix with that many rows and columns.
constexpr std::int64_t scale_index(ScaleKind kind, std::int64_t rows, std::int64_t columns, std::int64_t row,
                                   std::int64_t column) {
  if (kind == ScaleKind::vec128) return column / kScaleBlock * round_up(rows, kScaleRow) + row;
  if (kind == ScaleKind::one) return 0;
  return row / kScaleBlock * round_up(ceil_div(columns, kScaleBlock), kScaleRow) + column / kScaleBlock;
}

}  // namespace hawser::ops
