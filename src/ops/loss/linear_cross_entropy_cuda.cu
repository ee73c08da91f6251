#include "ops/cuda/kernel.cuh"
#include "ops/gemm/gemm_cuda.h"
#include "ops/loss/linear_cross_entropy_cuda.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kVector = 4;  // float32 logits in 16 bytes
constexpr int kEach = 8;    // elements a thread takes of a tile: 16 bytes of bf16
constexpr std::int64_t kTile = kThreads * kEach;

// float32 keeps the accurate exponential; under bf16 the fast one's error is lost.
template <class Act>
__device__ __forceinline__ float exponential(float x) {
  if constexpr (std::is_same_v<Act, Bf>) {
    return __expf(x);
  } else {
    return expf(x);
  }
}

// A running maximum and the sum of exp(x - most).
struct Running {
  float most = -INFINITY, sum = 0;
};

template <class Act>
__device__ __forceinline__ Running join(Running a, Running b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {};
  return {most, a.sum * exponential<Act>(a.most - most) + b.sum * exponential<Act>(b.most - most)};
}

template <class Act>
__device__ __forceinline__ void take(Running& r, const Vec<float, kVector>& x) {
  const float high = fmaxf(fmaxf(x.v[0], x.v[1]), fmaxf(x.v[2], x.v[3]));
  if (high > r.most) {
    r.sum *= exponential<Act>(r.most - high);
    r.most = high;
  }
  if (r.most == -INFINITY) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i) r.sum += exponential<Act>(x.v[i] - r.most);
}

__device__ __forceinline__ Vec<float, kVector> load_masked(const float* row, std::int64_t at, std::int64_t count) {
  Vec<float, kVector> x = load<kVector>(row + at);
  if (at + kVector > count) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (at + i >= count) x.v[i] = -INFINITY;
    }
  }
  return x;
}

template <class Act>
__device__ Running block_join(Running r, Running* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Running other{__shfl_xor_sync(0xffffffffu, r.most, offset), __shfl_xor_sync(0xffffffffu, r.sum, offset)};
    // The lower lane's part is the first argument in both, so that both get the same bits.
    r = (threadIdx.x & offset) == 0 ? join<Act>(r, other) : join<Act>(other, r);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = r;
  __syncthreads();
  r = shared[threadIdx.x % 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Running other{__shfl_xor_sync(0xffffffffu, r.most, offset), __shfl_xor_sync(0xffffffffu, r.sum, offset)};
    r = (threadIdx.x & offset) == 0 ? join<Act>(r, other) : join<Act>(other, r);
  }
  return r;
}

// One block a row: log-sum-exp minus the label's logit; with Gradients the row becomes scale * (softmax - one-hot), in
// place for float32, and for bf16 in the second half of the row's bytes. The second pass goes backwards: what was read
// last is still in the cache, and an element of bf16 is written behind all float32 that is still to be read.
template <class Act, bool Gradients>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(float* logits, std::int64_t stride, std::int64_t count, const std::int32_t* labels,
                   const float* scale, double* losses, std::int64_t first_token, CudaFault* fault) {
  __shared__ Running shared[32];
  float* const row = logits + static_cast<std::int64_t>(blockIdx.x) * stride;
  Act* const out = reinterpret_cast<Act*>(row) + (std::is_same_v<Act, Bf> ? stride : 0);
  const std::int64_t token = first_token + blockIdx.x;
  const std::int32_t label = labels[token];
  const bool counts = label >= 0 && in_range(fault, CudaFault::cross_entropy, label, token, count);
  if (!counts) {
    if (threadIdx.x == 0) losses[token] = 0;
    if (Gradients) {
      for (std::int64_t i = threadIdx.x * kEach; i < stride; i += kTile)
        store_float<kEach>(out + i, Vec<float, kEach>{});
    }
    return;
  }
  const float target = row[label];
  Running r;
  constexpr int kAhead = 4;
  constexpr std::int64_t kStep = kThreads * kVector;
  std::int64_t at = threadIdx.x * kVector;
  for (; at + (kAhead - 1) * kStep + kVector <= count; at += kAhead * kStep) {
    Vec<float, kVector> x[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) x[a] = load<kVector>(row + at + a * kStep);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) take<Act>(r, x[a]);
  }
  for (; at < count; at += kStep) take<Act>(r, load_masked(row, at, count));
  r = block_join<Act>(r, shared);
  if (threadIdx.x == 0) {
    losses[token] = static_cast<double>(r.most) - static_cast<double>(target) + log(static_cast<double>(r.sum));
  }
  if (!Gradients) return;
  const float by = *scale / r.sum;
  for (std::int64_t tile = (count - 1) / kTile * kTile; tile >= 0; tile -= kTile) {
    const std::int64_t i = tile + threadIdx.x * kEach;
    Vec<float, kEach> x;
    const bool mine = i < stride;  // a row ends at a multiple of kEach
    if (mine) {
      x = load<kEach>(row + i);
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        x.v[e] = exponential<Act>(x.v[e] - r.most) * by;
        if (i + e == label) x.v[e] -= *scale;
      }
    }
    __syncthreads();
    if (mine) store_float<kEach>(out + i, x);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) total_kernel(const double* losses, std::int64_t count, float* loss_sum) {
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < count; t += kThreads) sum += losses[t];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *loss_sum = static_cast<float>(static_cast<double>(*loss_sum) + sum);
}

struct Products {
  Product logits, dweight, dx;
};

// The chunks of a call, and the products of each.
struct Chunks {
  const LinearCrossEntropy& args;
  LossLayout layout;

  explicit Chunks(const LinearCrossEntropy& call)
      : args(call),
        layout(call.x.size(0), call.weight.size(0),
               call.chunk_rows > 0 ? std::min(call.chunk_rows, call.x.size(0))
                                   : loss_chunk_rows(call.x.size(0), call.weight.size(0), DeviceKind::cuda)) {}

  Products products(std::int64_t begin, std::int64_t rows) const {
    const std::int64_t channels = args.x.size(1), vocabulary = args.weight.size(0);
    const DType act = args.x.dtype();
    auto* const logits = reinterpret_cast<float*>(args.workspace.raw());
    const bool bf16 = act == DType::bf16;
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
                       .in = act,
                       .out = DType::f32,
                       .transpose_b = true},
            .dweight = {.m = vocabulary,
                        .n = channels,
                        .k = rows,
                        .a = gradient,
                        .b = x,
                        .c = args.dweight.raw(),
                        .lda = gradient_stride,
                        .ldb = channels,
                        .ldc = channels,
                        .in = act,
                        .out = args.dweight.dtype(),
                        .transpose_a = true,
                        .accumulate = args.accumulate_weight || begin > 0},
            .dx = {.m = rows,
                   .n = channels,
                   .k = vocabulary,
                   .a = gradient,
                   .b = args.weight.raw(),
                   .c = args.dx.raw() + (args.dx.empty() ? 0 : begin * channels * size_of(args.dx.dtype())),
                   .lda = gradient_stride,
                   .ldb = channels,
                   .ldc = channels,
                   .in = act,
                   .out = args.dx.dtype()}};
  }
};

}  // namespace

void linear_cross_entropy(const CudaNative& native, const LinearCrossEntropy& args) {
  const std::int64_t tokens = args.x.size(0), vocabulary = args.weight.size(0);
  const Chunks chunks(args);
  auto* const losses = reinterpret_cast<double*>(args.workspace.raw() + chunks.layout.logits_bytes());
  const bool gradients = !args.dx.empty() || !args.dweight.empty();
  const float* const scale = gradients ? args.scale.data<float>() : nullptr;
  // An empty batch still writes its weight gradient: one chunk of no rows.
  for (std::int64_t begin = 0; begin == 0 || begin < tokens; begin += chunks.layout.rows) {
    const std::int64_t rows = std::min(chunks.layout.rows, tokens - begin);
    const Products p = chunks.products(begin, rows);
    multiply(native, p.logits);
    if (rows > 0) {
      with_float(args.x.dtype(), [&](auto tag) {
        const auto launch = [&](auto kernel) {
          kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream_of(native)>>>(
              static_cast<float*>(p.logits.c), chunks.layout.stride, vocabulary, args.labels.data<std::int32_t>(),
              scale, losses, begin, native.fault);
        };
        if (gradients) {
          launch(softmax_kernel<decltype(tag), true>);
        } else {
          launch(softmax_kernel<decltype(tag), false>);
        }
      });
    }
    if (!args.dweight.empty()) multiply(native, p.dweight);
    if (!args.dx.empty()) multiply(native, p.dx);
    if (chunks.layout.rows == 0) break;
  }
  if (tokens > 0) total_kernel<<<1, kThreads, 0, stream_of(native)>>>(losses, tokens, args.loss_sum.data<float>());
}

void prepare(const CudaNative& native, const LinearCrossEntropy& args) {
  const std::int64_t tokens = args.x.size(0);
  const Chunks chunks(args);
  for (std::int64_t begin = 0; begin < tokens; begin += chunks.layout.rows) {
    const Products p = chunks.products(begin, std::min(chunks.layout.rows, tokens - begin));
    prepare(native, p.logits);
    if (!args.dweight.empty()) prepare(native, p.dweight);
    if (!args.dx.empty()) prepare(native, p.dx);
  }
}

}  // namespace hawser::ops::cuda
