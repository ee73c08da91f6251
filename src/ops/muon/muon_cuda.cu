#include "ops/gemm/gemm_cuda.h"
#include "ops/muon/muon.h"
#include "ops/update/store_weight.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kMuonThreads = 256, kMuonBlocks = 1024;

unsigned muon_blocks(std::int64_t count) {
  return static_cast<unsigned>(std::min<std::int64_t>(kMuonBlocks, ceil_div(count, kMuonThreads)));
}

struct Momentum {
  float* buffer;
  const float *gradient, *coefficient;
  const std::int32_t* skip;
  Bf* sent;
  float momentum, rest;
  bool nesterov;

  __device__ void operator()(std::int64_t, std::int64_t i) const {
    const float g = gradient[i] * (coefficient != nullptr ? *coefficient : 1.0f);
    float b = buffer[i];
    if (skip == nullptr || *skip == 0) buffer[i] = b = momentum * b + rest * g;
    sent[i] = from_float<Bf>(nesterov ? momentum * b + rest * g : b);
  }
};

// The matrix as X [n, k]: with more rows than columns it is transposed.
struct Orientation {
  ExchangedFlat flat;
  ExchangedMatrix matrix;
  bool turn;
  std::int64_t k, count;

  __device__ std::int64_t place(std::int64_t i) const {
    return turn ? matrix.place(flat, i % k, i / k) : matrix.place(flat, i / k, i % k);
  }
};

__global__ void __launch_bounds__(kMuonThreads)
    load_matrix_kernel(Orientation o, const Bf* from, Bf* x, double* squares) {
  __shared__ double shared[32];
  double sum = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kMuonThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < o.count; i += stride) {
    x[i] = from[o.place(i)];
    const double value = to_float(x[i]);
    sum += value * value;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}
// The norm, rounded to bf16, of the blocks' sums.
__global__ void __launch_bounds__(kMuonThreads) norm_kernel(const double* squares, unsigned blocks, float* norm) {
  __shared__ double shared[32];
  double sum = 0;
  for (unsigned i = threadIdx.x; i < blocks; i += kMuonThreads) sum += squares[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) *norm = max(to_float(from_float<Bf>(static_cast<float>(sqrt(sum)))), kMuonEpsilon);
}
__global__ void __launch_bounds__(kMuonThreads) divide_kernel(Bf* x, std::int64_t count, const float* norm) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kMuonThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < count; i += stride) {
    x[i] = from_float<Bf>(to_float(x[i]) / *norm);
  }
}
// x = bf16(a * x + b * y)
__global__ void __launch_bounds__(kMuonThreads)
    mix_kernel(Bf* x, const float* y, std::int64_t count, float a, float b) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kMuonThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < count; i += stride) {
    x[i] = from_float<Bf>(a * to_float(x[i]) + b * y[i]);
  }
}
__global__ void __launch_bounds__(kMuonThreads) store_matrix_kernel(Orientation o, const Bf* x, Bf* to) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kMuonThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kMuonThreads + threadIdx.x; i < o.count; i += stride) {
    to[o.place(i)] = x[i];
  }
}

// C [m, n] = A B.
void muon_product(const CudaNative& native, const Bf* a, const Bf* b, void* c, DType out, std::int64_t m,
                  std::int64_t n, std::int64_t k, bool transpose_b) {
  multiply(native, {.m = m,
                    .n = n,
                    .k = k,
                    .a = a,
                    .b = b,
                    .c = c,
                    .lda = k,
                    .ldb = transpose_b ? k : n,
                    .ldc = n,
                    .in_a = DType::bf16,
                    .in_b = DType::bf16,
                    .out = out,
                    .transpose_b = transpose_b});
}

template <class Weight, class Compute>
struct MuonApplied {
  StoreWeight<Weight, Compute> to;
  const Bf* direction;
  const float* rate;
  const std::int32_t* skip;
  double scale, decay;

  __device__ void operator()(std::int64_t, std::int64_t at) const {
    if (skip != nullptr && *skip != 0) return;
    const float keep = static_cast<float>(1.0 - double{*rate} * decay),
                step = static_cast<float>(double{*rate} * scale);
    to.store(at, keep * to.load(at) - step * to_float(direction[at]));
  }
};

}  // namespace

void muon_momentum(const CudaNative& native, const MuonMomentum& args) {
  map<1>(native, 1, args.buffer.elements(),
         Momentum{.buffer = args.buffer.data<float>(),
                  .gradient = args.gradient.data<float>(),
                  .coefficient = data_or_null<const float>(args.coefficient),
                  .skip = data_or_null<const std::int32_t>(args.skip),
                  .sent = data_or_null<Bf>(args.sent),
                  .momentum = static_cast<float>(args.momentum),
                  .rest = static_cast<float>(1.0 - args.momentum),
                  .nesterov = args.nesterov});
}

// GEMMs take the time: 5 * (4 n^2 k + 2 n^3) FLOPs of a matrix with sides n <= k.
void muon_orthogonalize(const CudaNative& native, const MuonOrthogonalize& args) {
  Bf *const x = data_or_null<Bf>(args.x), *const a = data_or_null<Bf>(args.a);
  float *const y = data_or_null<float>(args.y), *const t = data_or_null<float>(args.t);
  const cudaStream_t stream = stream_of(native);
  for (const ExchangedMatrix& m : args.matrices) {
    const std::int64_t n = std::min(m.rows, m.columns), k = std::max(m.rows, m.columns);
    const Orientation o{.flat = args.flat, .matrix = m, .turn = m.rows > m.columns, .k = k, .count = n * k};
    const unsigned wide = muon_blocks(n * k), square = muon_blocks(n * n);
    Scratch scratch(native);
    auto* const squares = scratch.take<double>(wide);
    auto* const norm = scratch.take<float>(1);
    load_matrix_kernel<<<wide, kMuonThreads, 0, stream>>>(o, data_or_null<const Bf>(args.from), x, squares);
    norm_kernel<<<1, kMuonThreads, 0, stream>>>(squares, wide, norm);
    divide_kernel<<<wide, kMuonThreads, 0, stream>>>(x, n * k, norm);
    for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
      muon_product(native, x, x, a, DType::bf16, n, n, k, /*transpose_b=*/true);
      muon_product(native, a, a, t, DType::f32, n, n, n, /*transpose_b=*/false);
      mix_kernel<<<square, kMuonThreads, 0, stream>>>(a, t, n * n, kMuonB, kMuonC);
      muon_product(native, a, x, y, DType::f32, n, k, n, /*transpose_b=*/false);
      mix_kernel<<<wide, kMuonThreads, 0, stream>>>(x, y, n * k, kMuonA, 1);
    }
    store_matrix_kernel<<<wide, kMuonThreads, 0, stream>>>(o, x, data_or_null<Bf>(args.to));
  }
}

void muon_apply(const CudaNative& native, const MuonApply& args) {
  with_stored_weight(args, [&]<class Weight, class Compute>(const StoreWeight<Weight, Compute>& to) {
    map<1>(native, 1, args.weight.size(0),
           MuonApplied<Weight, Compute>{.to = to,
                                        .direction = data_or_null<const Bf>(args.direction),
                                        .rate = args.rate.data<float>(),
                                        .skip = data_or_null<const std::int32_t>(args.skip),
                                        .scale = args.scale,
                                        .decay = args.weight_decay});
  });
}

}  // namespace hawser::ops::cuda
