// `Scaled`: a matrix with its scales.
#pragma once

#include <optional>

#include "base/index_range.h"
#include "ops/quantize/quantize_nf4.h"
#include "ops/quantize/scale_kind.h"
#include "tensor/tensor.h"

namespace hawser::nn {

// What a matrix in NF4 has besides its blocks.
struct Nf4Matrix {
  ops::Nf4Scales scales = {};              // of DType::nf4_double
  std::optional<IndexRange> columns = {};  // Param::read_columns
};

// A matrix as a Linear reads it: its values are scale * view. The view of a parameter is in FlatSpec::gathered; in
// DType::nf4 and nf4_double it has a block's weights and their scale in one element [rows, columns / kNf4Block], and no
// other scale.
struct Scaled {
  TensorView view;        // empty where only `transposed` is read, such as a weight in backward
  TensorView scale = {};  // float32, of `kind` for the view's shape. Empty means 1.
  // The view with rows and columns exchanged, for GEMMs that can read only one of both. It is empty if there is none,
  // and rounded separately if it has its own scales.
  TensorView transposed = {};
  // The scales of `transposed`, of `kind` for its shape. If it is empty, they are `scale`, which then is one float32.
  TensorView transposed_scale = {};
  ops::ScaleKind kind = ops::ScaleKind::one;
  Nf4Matrix nf4 = {};

  // It has scales: a matrix that is quantized.
  bool scaled() const { return !scale.empty() || !transposed_scale.empty(); }

  Scaled() = default;
  Scaled(const TensorView& v, const TensorView& s = {}, const TensorView& t = {},  // NOLINT: a view is a Scaled
         const TensorView& ts = {})
      : view(v), scale(s), transposed(t), transposed_scale(ts) {}
  Scaled(const Storage& storage) : view(storage) {}  // NOLINT
};

}  // namespace hawser::nn
