// Gathers of x and dy in FP8 by two ranks with sequence parallelism: what a rank rounds of its own rows before the
// gather has the bits of what it rounds of all rows after it, and the largest amax of the ranks is the same. Rows of
// padding, which only one rank has, are beyond all others.
#include <gtest/gtest.h>

#include "nn/blocks/linear.h"
#include "nn/precision/fp8_scaling.h"
#include "nn/testing/quantized_context.h"
#include "parallel/tensor/sequence_parallel.h"
#include "seams.h"

namespace hawser::testing {
namespace quantized_gather_test {

using nn::testing::get;
using nn::testing::normals;
using Vector = std::vector<double>;

constexpr std::int64_t kRows = 10, kOwn = kRows / 2, kIn = 12, kOut = 7, kPadding = 8;  // kPadding: rank 1's

// With delayed scales of x and dy, and their amaxes.
class DelayedContext : public nn::testing::TestContext {
 public:
  explicit DelayedContext(Device& device) : TestContext(device, DType::f32) {
    for (int i = 0; i < nn::kOperands; ++i) {
      scales_.push_back(make(DType::f32, {1}, {i == 0 ? 0.01 : 0.0003}));
      amaxes_.push_back(make(DType::f32, {1}, {0.0}));
    }
  }
  nn::Quantization quantization(nn::Site, nn::Operand operand) const override {
    const auto i = static_cast<std::size_t>(operand);
    return {.format = LinearFormat::fp8_delayed,
            .quantizer = &quantizer_,
            .operand = operand,
            .scale = scales_[i],
            .amax = amaxes_[i]};
  }
  const TensorView& amax(nn::Operand operand) const { return amaxes_[static_cast<std::size_t>(operand)]; }

 private:
  nn::Fp8Scaling quantizer_{{}};
  std::vector<TensorView> scales_, amaxes_;
};

class QuantizedGathers : public parallel::SequenceParallel {
 public:
  explicit QuantizedGathers(bool quantized) : SequenceParallel(pair(), quantized) {}
  std::unique_ptr<Gather> gather(nn::LayerContext& ctx, const nn::Scaled& x, Rows needed) override {
    gathered.push_back(x.view.dtype());
    return SequenceParallel::gather(ctx, x, needed);
  }

  std::vector<DType> gathered;
};

struct Result {
  std::vector<DType> gathered;
  std::vector<Vector> values;  // y, dx, dW of both Linears, and the largest amaxes
};

// This rank's rows of a matrix, with its row of padding.
Vector own_rows(const char* name, std::int64_t columns) {
  Vector all = normals(name, kRows * columns);
  for (std::int64_t c = 0; c < columns; ++c) all[static_cast<std::size_t>(kPadding * columns + c)] = 1e4;
  const auto first = static_cast<std::size_t>(pair().index()) * kOwn;
  return rows_of(all, static_cast<std::size_t>(columns), range(first, first + kOwn));
}

// A column-parallel Linear and the backward of a row-parallel one, or of one with a bias.
Result run(bool quantized, bool bias) {
  const auto device = make_cpu_device({.threads = 1, .random_delay_s = 2e-4});
  DelayedContext ctx(*device);
  const auto seam = std::make_shared<QuantizedGathers>(quantized);
  ctx.seams_.redistribute = seam;
  ctx.rows_ = {kOwn, kRows, pair().index() * kOwn};
  Vector mask(kRows, 1);
  mask[kPadding] = 0;
  ctx.batch_.token_mask = ctx.make(DType::i32, {kRows}, mask);
  const std::string own = cat("weight of rank ", pair().index());
  ctx.weights_ = {ctx.make(DType::f32, {kOut, kIn}, normals(own, kOut * kIn)),
                  ctx.make(DType::f32, {kIn, kOut}, normals(own + " of the second", kOut * kIn)),
                  ctx.make(DType::f32, {kIn}, normals("bias", kIn))};
  const std::vector<nn::Param> params = {nn::full_param("up", {kOut, kIn}, {}, true),
                                         nn::full_param("down", {kIn, kOut}, {}, true),
                                         nn::full_param("bias", {kIn}, {}, true)};
  nn::testing::TestSink sink(ctx, params);
  const nn::ColumnParallelLinear up({.site = nn::Site::up_projection, .weight = 0});
  const nn::RowParallelLinear down({.site = nn::Site::down_projection, .weight = 1, .bias = bias ? 2 : -1});
  const TensorView x = ctx.make(DType::f32, {kOwn, kIn}, own_rows("x", kIn)),
                   dy = ctx.make(DType::f32, {kOwn, kIn}, own_rows("dy", kIn)), y = ctx.make(DType::f32, {kRows, kOut}),
                   dinner = ctx.make(DType::f32, {kRows, kOut}), dx = ctx.make(DType::f32, {kOwn, kIn});
  up.forward(ctx, x, y);
  const auto of_dy = down.input_gradient(ctx, dy, dinner, false);
  down.linear().weight_gradient(ctx, of_dy.dy, y, sink, {}, of_dy.rounded);
  ctx.finish();
  const TensorView amaxes =
      ctx.make(DType::f32, {nn::kOperands}, {get(ctx.amax(nn::Operand::x))[0], get(ctx.amax(nn::Operand::dy))[0]});
  up.backward(ctx, dinner, x, dx, sink, {});
  const std::int64_t bytes = comm::all_reduce_workspace(amaxes.elements(), DType::f32, pair().size(), DeviceKind::cpu);
  pair().all_reduce(ctx.compute(), amaxes, comm::Reduction::max, ctx.workspace(bytes));
  ctx.finish();
  Result out{seam->gathered, {get(y), get(dinner), get(dx), get(amaxes)}};
  for (const TensorView& view : sink.views()) out.values.push_back(get(view));
  if (!bias) out.values.pop_back();
  return out;
}

TEST(QuantizedGather, HasTheBitsOfRowsRoundedAfterIt) {
  for (const bool bias : {false, true}) {
    const Result before = run(true, bias), after = run(false, bias);
    EXPECT_EQ(before.values, after.values) << bias;
    EXPECT_LT(before.values[3][0], 100) << "the amax of padding";
    EXPECT_LT(before.values[3][1], 100) << "the amax of padding";
    // x, dy, and x again.
    EXPECT_EQ(before.gathered, (std::vector{DType::f8e4m3, bias ? DType::f32 : DType::f8e5m2, DType::f8e4m3}));
    EXPECT_EQ(after.gathered, (std::vector{DType::f32, DType::f32, DType::f32}));
  }
}

}  // namespace quantized_gather_test
}  // namespace hawser::testing
