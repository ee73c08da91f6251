#include "ops/loss/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "ops/loss/linear_cross_entropy_cpu.h"
#include "ops/loss/linear_cross_entropy_cuda.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::ops {

namespace {

std::int64_t rows_within(std::int64_t bytes, std::int64_t tokens, std::int64_t vocabulary) {
  const std::int64_t max = std::max<std::int64_t>(32, bytes / (4 * std::max<std::int64_t>(vocabulary, 1)));
  const std::int64_t chunks = std::max<std::int64_t>(1, ceil_div(tokens, max));
  return std::max<std::int64_t>(1, ceil_div(tokens, chunks));
}

bool is_rounded(const TensorView& gradient) {
  return !gradient.empty() && by_float(gradient.dtype(), false, true);
}

LossChunks chunks_of_weight(const LinearCrossEntropy& call, DeviceKind target) {
  const std::int64_t tokens = call.x.size(0), vocabulary = call.weight.size(0);
  const bool rounded = is_rounded(call.dweight);
  if (call.chunk_rows > 0) return {std::min(call.chunk_rows, tokens), rounded && call.chunk_rows < tokens};
  const std::int64_t bytes = target == DeviceKind::cuda ? std::int64_t{2} << 30 : std::int64_t{256} << 20;
  const std::int64_t rows = rows_within(bytes, tokens, vocabulary);
  if (!rounded || rows >= tokens) return {rows, false};
  // The float32 sum of a large vocabulary takes GiBs itself.
  return {target == DeviceKind::cuda ? rows_within(bytes / 2, tokens, vocabulary) : rows, true};
}

}  // namespace

LossChunks loss_chunks(const LinearCrossEntropy& call, DeviceKind target) {
  LossChunks chunks = chunks_of_weight(call, target);
  chunks.sums_dbias = is_rounded(call.dbias) && chunks.rows < call.x.size(0);
  return chunks;
}

std::int64_t linear_cross_entropy_workspace(const LinearCrossEntropy& call, DeviceKind target) {
  if (target == DeviceKind::cuda) return cuda::LossLayout(call).bytes();
  return cpu::loss_layout(call).bytes();
}

void linear_cross_entropy(Stream& stream, const LinearCrossEntropy& args) {
  constexpr auto kOp = "linear_cross_entropy";
  HAWSER_CHECK(args.x.rank() == 2 && args.weight.rank() == 2, kOp, ": x and weight must be matrices");
  const std::int64_t tokens = args.x.size(0), channels = args.x.size(1), vocabulary = args.weight.size(0);
  const DType act = args.x.dtype();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape());
  expect(kOp, "weight", args.weight, {act}, {vocabulary, channels});
  if (!args.bias.empty()) expect(kOp, "bias", args.bias, {act}, {vocabulary});
  expect(kOp, "labels", args.labels, {DType::i32}, {tokens});
  expect(kOp, "loss_sum", args.loss_sum, {DType::f32}, {2});
  const bool gradients = has_gradients(args);
  if (gradients) expect(kOp, "scale", args.scale, {DType::f32}, {1});
  if (!args.dx.empty()) {
    expect(kOp, "dx", args.dx, {DType::f32, act}, {tokens, channels});
    expect_apart_or_same(kOp, args.dx, args.x);
    for (const TensorView& view : {args.weight, args.bias, args.dweight, args.dbias, args.labels, args.loss_sum}) {
      expect_apart(kOp, args.dx, view);
    }
  }
  if (!args.dweight.empty()) {
    expect(kOp, "dweight", args.dweight, {DType::f32, act}, {vocabulary, channels});
    for (const TensorView& view : {args.x, args.weight, args.bias, args.dbias, args.labels, args.loss_sum}) {
      expect_apart(kOp, args.dweight, view);
    }
  }
  if (!args.dbias.empty()) {
    HAWSER_CHECK(!args.bias.empty(), kOp, ": dbias without a bias");
    expect(kOp, "dbias", args.dbias, {DType::f32, act}, {vocabulary});
    for (const TensorView& view : {args.x, args.weight, args.bias, args.labels, args.loss_sum}) {
      expect_apart(kOp, args.dbias, view);
    }
  }
  HAWSER_CHECK(args.softcap >= 0 && std::isfinite(args.softcap), kOp, ": softcap is ", args.softcap);
  HAWSER_CHECK(args.chunk_rows >= 0, kOp, ": chunk_rows is ", args.chunk_rows);
  expect_workspace(kOp, args.workspace, linear_cross_entropy_workspace(args, stream.target()));
  const int gemms = 1 + (args.dx.empty() ? 0 : 1) + (args.dweight.empty() ? 0 : 1);
  const TensorView none;
  run(stream, {kOp, OpKind::loss},
      {args.x, args.weight, args.bias, args.labels, gradients ? args.scale : none, args.loss_sum,
       args.accumulate_weight ? args.dweight : none, args.accumulate_bias ? args.dbias : none},
      {args.loss_sum, args.dx, args.dweight, args.dbias, args.workspace},
      2.0 * gemms * static_cast<double>(tokens) * static_cast<double>(channels) * static_cast<double>(vocabulary), args,
      HAWSER_BACKENDS(linear_cross_entropy));
}

void linear_cross_entropy_prepare([[maybe_unused]] Stream& stream, [[maybe_unused]] const LinearCrossEntropy& args) {
#ifdef HAWSER_CUDA
  if (stream.kind() == DeviceKind::cuda) cuda::prepare(*stream.native(), args);
#endif
}

}  // namespace hawser::ops
