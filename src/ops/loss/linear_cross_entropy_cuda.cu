#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/cuda/kernel.cuh"
#include "ops/gemm/gemm_cuda.h"
#include "ops/loss/linear_cross_entropy_cuda.h"
#include "ops/loss/softmax_cuda.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads) total_kernel(const double* losses, std::int64_t count, float* loss_sum) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < count; t += kThreads) sum += losses[t];
  sum = block_sum(sum, shared);
  if (threadIdx.x > 0) return;
  sum += static_cast<double>(loss_sum[0]) + static_cast<double>(loss_sum[1]);
  loss_sum[0] = static_cast<float>(sum);
  loss_sum[1] = static_cast<float>(sum - static_cast<double>(loss_sum[0]));
}

struct LossGemms {
  GemmProblem logits, dweight, dx;
};

// The chunks of a call, and the GEMMs of each.
struct Chunks {
  const LinearCrossEntropy& args;
  LossLayout layout;

  explicit Chunks(const LinearCrossEntropy& call) : args(call), layout(call) {}

  double* losses() const { return reinterpret_cast<double*>(args.workspace.raw() + layout.logits_bytes()); }
  // What the GEMMs of all chunks add up: the float32 sum, or dweight itself.
  TensorView summed() const {
    if (!layout.chunks.sums_dweight) return args.dweight;
    return {args.workspace.raw() + layout.sum(), DType::f32, args.dweight.shape(), args.dweight.device()};
  }
  TensorView summed_bias() const {
    if (!layout.chunks.sums_dbias) return args.dbias;
    return {args.workspace.raw() + layout.bias_sum(), DType::f32, args.dbias.shape(), args.dbias.device()};
  }

  // dbias (+)= the column sums of a chunk's gradients
  void add_bias_gradient(const CudaNative& native, std::int64_t begin, std::int64_t rows) const {
    const bool accumulate = begin > 0 || (args.accumulate_bias && !layout.chunks.sums_dbias);
    const TensorView db = summed_bias();
    if (rows == 0) {
      if (!accumulate) fill(native, {.y = db});
      return;
    }
    const bool bf16 = by_float(args.x.dtype(), false, true);
    const std::int64_t stride = bf16 ? 2 * layout.stride : layout.stride;
    const TensorView all(args.workspace.raw(), args.x.dtype(), {rows, stride}, args.workspace.device());
    bias_gradient(
        native, {.dy = all.columns(bf16 ? layout.stride : 0, args.weight.size(0)), .db = db, .accumulate = accumulate});
  }

  LossGemms gemms(std::int64_t begin, std::int64_t rows) const {
    const std::int64_t channels = args.x.size(1), vocabulary = args.weight.size(0);
    const DType act = args.x.dtype();
    auto* const logits = reinterpret_cast<float*>(args.workspace.raw());
    const bool bf16 = by_float(act, false, true);
    const void* const gradient = logits + (bf16 ? layout.stride / 2 : 0);
    const std::int64_t gradient_stride = bf16 ? 2 * layout.stride : layout.stride;
    const std::byte* const x = args.x.raw() + begin * channels * size_of(act);
    return {.logits = {.m = rows,
                       .n = vocabulary,
                       .k = channels,
                       .a = x,
                       .b = args.weight.raw(),
                       .c = logits,
                       .lda = channels,
                       .ldb = channels,
                       .ldc = layout.stride,
                       .in_a = act,
                       .in_b = act,
                       .out = DType::f32,
                       .transpose_b = true},
            .dweight = {.m = vocabulary,
                        .n = channels,
                        .k = rows,
                        .a = gradient,
                        .b = x,
                        .c = summed().raw(),
                        .lda = gradient_stride,
                        .ldb = channels,
                        .ldc = channels,
                        .in_a = act,
                        .in_b = act,
                        .out = summed().dtype(),
                        .transpose_a = true,
                        .accumulate = begin > 0 || (args.accumulate_weight && !layout.chunks.sums_dweight)},
            .dx = {.m = rows,
                   .n = channels,
                   .k = vocabulary,
                   .a = gradient,
                   .b = args.weight.raw(),
                   .c = args.dx.raw() + (args.dx.empty() ? 0 : begin * channels * size_of(args.dx.dtype())),
                   .lda = gradient_stride,
                   .ldb = channels,
                   .ldc = channels,
                   .in_a = act,
                   .in_b = act,
                   .out = args.dx.dtype()}};
  }
};

// to (+)= sum, rounded
void write_sum(const CudaNative& native, const TensorView& sum, const TensorView& to, bool accumulate) {
  if (accumulate) return add(native, {.a = to, .b = sum, .y = to});
  cast(native, {.x = sum, .y = to});
}

}  // namespace

void linear_cross_entropy(const CudaNative& native, const LinearCrossEntropy& args) {
  const std::int64_t tokens = args.x.size(0), vocabulary = args.weight.size(0);
  const Chunks chunks(args);
  double* const losses = chunks.losses();
  const float* const scale = has_gradients(args) ? args.scale.data<float>() : nullptr;
  // An empty batch still writes dweight: one chunk without rows.
  for (std::int64_t begin = 0; begin == 0 || begin < tokens; begin += chunks.layout.chunks.rows) {
    const std::int64_t rows = std::min(chunks.layout.chunks.rows, tokens - begin);
    const LossGemms p = chunks.gemms(begin, rows);
    multiply(native, p.logits);
    softmax_rows(native, {.act = args.x.dtype(),
                          .logits = static_cast<float*>(p.logits.c),
                          .rows = rows,
                          .stride = chunks.layout.stride,
                          .vocabulary = vocabulary,
                          .labels = args.labels.data<std::int32_t>() + begin,
                          .first_token = begin,
                          .bias = args.bias.raw(),
                          .softcap = args.softcap,
                          .scale = scale,
                          .losses = losses + begin});
    if (!args.dweight.empty()) multiply(native, p.dweight);
    if (!args.dbias.empty()) chunks.add_bias_gradient(native, begin, rows);
    if (!args.dx.empty()) multiply(native, p.dx);
    if (chunks.layout.chunks.rows == 0) break;
  }
  if (chunks.layout.chunks.sums_dweight) write_sum(native, chunks.summed(), args.dweight, args.accumulate_weight);
  if (chunks.layout.chunks.sums_dbias) write_sum(native, chunks.summed_bias(), args.dbias, args.accumulate_bias);
  add_losses(native, losses, tokens, args.loss_sum.data<float>());
}

void add_losses(const CudaNative& native, const double* losses, std::int64_t count, float* loss_sum) {
  if (count > 0) total_kernel<<<1, kThreads, 0, stream_of(native)>>>(losses, count, loss_sum);
}

void prepare(const CudaNative& native, const LinearCrossEntropy& args) {
  const std::int64_t tokens = args.x.size(0);
  const Chunks chunks(args);
  for (std::int64_t begin = 0; begin < tokens; begin += chunks.layout.chunks.rows) {
    const LossGemms p = chunks.gemms(begin, std::min(chunks.layout.chunks.rows, tokens - begin));
    prepare(native, p.logits);
    if (!args.dweight.empty()) prepare(native, p.dweight);
    if (!args.dx.empty()) prepare(native, p.dx);
  }
}

}  // namespace hawser::ops::cuda
