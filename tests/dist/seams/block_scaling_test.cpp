// Linears of two ranks whose operands have a scale for each block, with sequence parallelism: pieces of rows, and W in
// two parameters as with copies of key-value heads. All numbers are small integers times powers of two, which E4M3 has
// with the scale of any block, and all sums are exact: the results have the bits of one rank in float32, and a scale
// that belongs to other rows or columns would be seen.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/blocks/linear.h"
#include "nn/precision/fp8_block_scaling.h"
#include "nn/testing/quantized_context.h"
#include "parallel/tensor/sequence_parallel.h"
#include "seams.h"

namespace hawser::testing {
namespace block_scaling_test {

using nn::testing::get;
using nn::testing::normals;
using nn::testing::QuantizedContext;
using nn::testing::TestSink;
using Vector = std::vector<double>;

// Neither a rank's rows nor its slices of W are multiples of a block.
constexpr std::size_t kIn = 272, kRows = 300, kOwn = kRows / 2, kPart = 100, kCopy = 44;

std::size_t rank() {
  return static_cast<std::size_t>(pair().index());
}

// Integers up to 3, times 2^0 to 2^2 by groups of rows and blocks of columns.
Vector numbers(const std::string& name, std::size_t rows, std::size_t columns) {
  Vector out = normals(name, static_cast<std::int64_t>(rows * columns));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t factor = (i / columns / 9 + i % columns / 128) % 3;
    out[i] = std::clamp(std::round(out[i]), -3.0, 3.0) * std::exp2(static_cast<double>(factor));
  }
  return out;
}

// One of the two dy of copies of a column: each is a part of the sum.
Vector part_of_copies(const Vector& dy, std::size_t part) {
  Vector out = dy;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if ((i / kCopy + i) % 2 != part) out[i] = 0;
  }
  return out;
}

// [rows, columns of a and of b]
Vector beside(const Vector& a, const Vector& b, std::size_t rows) {
  const std::size_t of_a = a.size() / rows, of_b = b.size() / rows;
  Vector out;
  for (std::size_t row = 0; row < rows; ++row) {
    out.insert(out.end(), a.begin() + static_cast<std::ptrdiff_t>(row * of_a),
               a.begin() + static_cast<std::ptrdiff_t>((row + 1) * of_a));
    out.insert(out.end(), b.begin() + static_cast<std::ptrdiff_t>(row * of_b),
               b.begin() + static_cast<std::ptrdiff_t>((row + 1) * of_b));
  }
  return out;
}

class Context {
 public:
  explicit Context(bool parts)
      : device_(make_cpu_device({.threads = 1, .random_delay_s = 2e-4})),
        ctx_(*device_, parts ? &quantizer_ : nullptr, LinearFormat::fp8_block) {
    ctx_.rows_ = {kRows, kRows};
    if (!parts) return;
    ctx_.rows_ = {kOwn, kRows, static_cast<std::int64_t>(rank() * kOwn)};
    ctx_.seams_.redistribute = std::make_shared<parallel::SequenceParallel>(pair());
  }
  QuantizedContext& ctx() { return ctx_; }
  TensorView matrix(const Vector& values, std::size_t columns) {
    return ctx_.make(DType::f32, shape(values.size() / columns, columns), values);
  }
  TensorView empty(std::size_t rows, std::size_t columns) { return ctx_.make(DType::f32, shape(rows, columns)); }

 private:
  static Shape shape(std::size_t rows, std::size_t columns) {
    return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)};
  }

  nn::Fp8BlockScaling quantizer_{{}};
  std::unique_ptr<Device> device_;
  QuantizedContext ctx_;
};

struct Result {
  Vector y, dx;
  std::vector<Vector> dw;
};

// weights: of W, one or two parameters, one after another.
std::vector<nn::Param> params_of(const std::vector<Vector>& weights, std::size_t inputs) {
  std::vector<nn::Param> params;
  for (const Vector& w : weights) {
    const Shape shape{static_cast<std::int64_t>(w.size() / inputs), static_cast<std::int64_t>(inputs)};
    params.push_back(nn::full_param(cat("w", params.size()), shape, {}, true));
  }
  return params;
}

Result column(bool parts, bool delayed, const Vector& x, const Vector& dy, const std::vector<Vector>& weights) {
  Context context(parts);
  QuantizedContext& ctx = context.ctx();
  const std::vector<nn::Param> params = params_of(weights, kIn);
  for (const Vector& w : weights) ctx.weights_.push_back(context.matrix(w, kIn));
  const nn::ColumnParallelLinear linear(
      {.site = nn::Site::qkv_projection, .weight = 0, .more_weight = weights.size() > 1 ? 1 : -1});
  TestSink sink(ctx, params);
  const std::size_t outputs = dy.size() / kRows;
  const TensorView input = context.matrix(x, kIn), gradient = context.matrix(dy, outputs),
                   y = context.empty(kRows, outputs), dx = context.empty(x.size() / kIn, kIn);
  linear.forward(ctx, input, y);
  if (delayed) {
    linear.input_gradient(ctx, gradient, dx, {});
    linear.weight_gradient(ctx, gradient, input, sink);
  } else {
    linear.backward(ctx, gradient, input, dx, sink, {});
  }
  ctx.finish();
  Result out{get(y), get(dx), {}};
  for (const TensorView& view : sink.views()) out.dw.push_back(get(view));
  return out;
}

TEST(BlockScaling, ColumnParallelLinearsInPiecesHaveTheBitsOfOneRank) {
  const Vector x = numbers("x", kRows, kIn), w = numbers("w", 2 * kPart, kIn), dy = numbers("dy", kRows, 2 * kPart);
  const Vector copy = numbers("copy", kCopy, kIn), dy_copy = numbers("dy_copy", kRows, kCopy);
  const auto own = range(rank() * kPart, (rank() + 1) * kPart), own_rows = range(rank() * kOwn, (rank() + 1) * kOwn);
  const Vector own_dy = columns_of(dy, 2 * kPart, rank() * kPart, kPart), own_w = rows_of(w, kIn, own);
  for (const bool copies : {false, true}) {
    const Result one =
        copies ? column(false, false, x, beside(dy, dy_copy, kRows), {w, copy}) : column(false, false, x, dy, {w});
    const std::size_t outputs = one.y.size() / kRows;
    Vector y = columns_of(one.y, outputs, rank() * kPart, kPart);
    if (copies) y = beside(y, columns_of(one.y, outputs, 2 * kPart, kCopy), kRows);
    for (const bool delayed : {false, true}) {
      const Result got = copies ? column(true, delayed, rows_of(x, kIn, own_rows),
                                         beside(own_dy, part_of_copies(dy_copy, rank()), kRows), {own_w, copy})
                                : column(true, delayed, rows_of(x, kIn, own_rows), own_dy, {own_w});
      EXPECT_EQ(got.y, y) << copies;
      EXPECT_EQ(got.dx, rows_of(one.dx, kIn, own_rows)) << copies;
      EXPECT_EQ(got.dw[0], rows_of(one.dw[0], kIn, own)) << copies;
      if (!copies) continue;
      // The other rank has the rest of the sum.
      const Vector rest =
          column(false, false, x, beside(dy, part_of_copies(dy_copy, 1 - rank()), kRows), {w, copy}).dw[1];
      for (std::size_t i = 0; i < rest.size(); ++i) ASSERT_EQ(got.dw[1][i] + rest[i], one.dw[1][i]);
    }
  }
}

// The input may come with scales: its pieces have those of their rows.
TEST(BlockScaling, RowParallelLinearsInPiecesHaveTheBitsOfOneRank) {
  const Vector x = numbers("x", kRows, 2 * kPart), w = numbers("w", kIn, 2 * kPart), dy = numbers("dy", kRows, kIn);
  const auto run = [](bool parts, bool scaled, const Vector& input, const Vector& gradient, const Vector& weight) {
    Context context(parts);
    QuantizedContext& ctx = context.ctx();
    const std::size_t inputs = input.size() / kRows;
    ctx.weights_ = {context.matrix(weight, inputs)};
    const nn::RowParallelLinear linear({.site = nn::Site::down_projection, .weight = 0});
    TestSink sink(ctx, params_of({weight}, inputs));
    const TensorView x = context.matrix(input, inputs), dy = context.matrix(gradient, kIn),
                     y = context.empty(gradient.size() / kIn, kIn), dx = context.empty(kRows, inputs);
    const nn::Scaled rounded =
        scaled ? linear.linear().quantized(ctx, nn::Operand::x, x, nn::Linear::ReadBy::product) : nn::Scaled(x);
    linear.forward(ctx, rounded, {}, y);
    const auto of_dy = linear.input_gradient(ctx, dy, dx, false);
    linear.linear().weight_gradient(ctx, of_dy.dy, x, sink, {}, of_dy.rounded);
    ctx.finish();
    return Result{get(y), get(dx), {get(sink.views()[0])}};
  };
  const Result one = run(false, false, x, dy, w);
  const auto own_rows = range(rank() * kOwn, (rank() + 1) * kOwn);
  for (const bool scaled : {false, true}) {
    const Result got = run(true, scaled, columns_of(x, 2 * kPart, rank() * kPart, kPart), rows_of(dy, kIn, own_rows),
                           columns_of(w, 2 * kPart, rank() * kPart, kPart));
    EXPECT_EQ(got.y, rows_of(one.y, kIn, own_rows)) << scaled;
    EXPECT_EQ(got.dx, columns_of(one.dx, 2 * kPart, rank() * kPart, kPart)) << scaled;
    EXPECT_EQ(got.dw[0], columns_of(one.dw[0], 2 * kPart, rank() * kPart, kPart)) << scaled;
  }
}

}  // namespace block_scaling_test
}  // namespace hawser::testing
