#include "ops/cuda/kernel.cuh"
#include "ops/loss/linear_cross_entropy_cuda.h"
#include "ops/loss/sliced_logits.h"
#include "ops/loss/softcap_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;

// Calls body with the form of z.
template <class Args, class Body>
void dispatch_form(const Args& args, const Body& body) {
  if (args.bias.empty() && args.softcap == 0) return body(PlainLogits());
  dispatch_device_float(args.bias.empty() ? DType::f32 : args.bias.dtype(),
                        [&](auto tag) { body(CappedLogits<decltype(tag)>(args.bias.raw(), args.softcap)); });
}

// Of rows of logits whose columns from `counted` on are padding.
struct Slice {
  const float* logits;
  const std::int32_t* labels;
  std::int64_t rows, columns, counted, first_column;

  template <class Args>
  explicit Slice(const Args& args)
      : logits(args.logits.template data<float>()),
        labels(args.labels.template data<std::int32_t>()),
        rows(args.logits.size(0)),
        columns(args.logits.size(1)),
        counted(std::min(columns, args.total_columns - args.first_column)),
        first_column(args.first_column) {}
};

// The maximum over the block, in every thread. There is a barrier before the reads of `shared` and none after them.
__device__ __forceinline__ float block_maximum(float value, float* shared) {
  const auto over_warp = [&] {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  };
  over_warp();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : -INFINITY;
  over_warp();
  return value;
}

// The maximum of some logits, and the sum of exp(logit - maximum); of none, or of -inf alone, the sum of exp(logit). A
// NaN among them makes the sum NaN.
struct RunningSum {
  float maximum = -INFINITY, sum = 0;

  static __device__ float base(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }
  __device__ void raise(float to) {
    if (to == maximum) return;
    sum *= expf(maximum - base(to));
    maximum = to;
  }
  template <int N>
  __device__ void add(const float (&z)[N]) {
    float most = maximum;
#pragma unroll
    for (int i = 0; i < N; ++i) most = fmaxf(most, z[i]);
    raise(most);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += expf(z[i] - base(maximum));
  }
};

// A block has a row, which it reads once, N logits at a time.
template <int N, class Form>
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(Slice slice, Form form, std::int64_t total_columns, float* statistics, CudaFault* fault) {
  __shared__ float maxima[32], sums[32];
  const std::int64_t t = blockIdx.x;
  const float* const row = slice.logits + t * slice.columns;
  RunningSum running;
  const std::int64_t vectors = slice.counted / N;
  for (std::int64_t at = threadIdx.x; at < vectors; at += kThreads) {
    const Vec<float, N> loaded = load_float<N>(row + at * N);
    float z[N];
#pragma unroll
    for (int i = 0; i < N; ++i) z[i] = form(loaded.v[i], at * N + i);
    running.add(z);
  }
  for (std::int64_t v = vectors * N + threadIdx.x; v < slice.counted; v += kThreads) {
    const float z[1] = {form(row[v], v)};
    running.add(z);
  }
  const float maximum = block_maximum(running.maximum, maxima);
  running.raise(maximum);
  const float sum = block_sum(running.sum, sums);
  if (threadIdx.x > 0) return;
  const std::int32_t label = slice.labels[t];
  const std::int64_t own = label - slice.first_column;
  const bool counts = label >= 0 && in_range(fault, CudaFault::cross_entropy, label, t, total_columns);
  statistics[t] = maximum;
  statistics[slice.rows + t] = sum;
  statistics[2 * slice.rows + t] = counts && own >= 0 && own < slice.counted ? form(row[own], own) : 0.0f;
}

struct Combine {
  const float* parts;
  float* statistics;
  std::int64_t ranks, rows;

  __device__ float part(std::int64_t rank, int which, std::int64_t t) const {
    return parts[(3 * rank + which) * rows + t];
  }
  __device__ void operator()(std::int64_t, std::int64_t t) const {
    float maximum = part(0, 0, t), sum = 0, target = 0;
    for (std::int64_t r = 1; r < ranks; ++r) maximum = fmaxf(maximum, part(r, 0, t));
    for (std::int64_t r = 0; r < ranks; ++r) {
      const float of_rank = part(r, 0, t);  // two maxima may be -inf
      sum += of_rank == maximum ? part(r, 1, t) : part(r, 1, t) * expf(of_rank - maximum);
      target += part(r, 2, t);
    }
    statistics[t] = maximum;
    statistics[rows + t] = sum;
    statistics[2 * rows + t] = target;
  }
};

struct RowLosses {
  const std::int32_t* labels;
  const float* statistics;
  double* losses;
  std::int64_t rows;

  __device__ void operator()(std::int64_t, std::int64_t t) const {
    const double maximum = statistics[t], sum = statistics[rows + t], target = statistics[2 * rows + t];
    losses[t] = labels[t] < 0 ? 0.0 : maximum - target + log(sum);
  }
};

template <class Out, class Form, int N>
struct Gradients {
  Slice slice;
  Form form;
  const float *statistics, *scale;
  Out* out;

  __device__ void operator()(std::int64_t t, std::int64_t first) const {
    const std::int32_t label = slice.labels[t];
    Vec<float, N> gradient{};
    if (label >= 0) {
      const float by = *scale / statistics[slice.rows + t], maximum = statistics[t];
      const Vec<float, N> loaded = load_float<N>(slice.logits + t * slice.columns + first);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const std::int64_t v = first + i;
        if (v >= slice.counted) break;
        const float z = form(loaded.v[i], v);
        gradient.v[i] = expf(z - maximum) * by;
        if (v == label - slice.first_column) gradient.v[i] -= *scale;
        gradient.v[i] *= form.factor(z);
      }
    }
    store_float<N>(out + t * slice.columns + first, gradient);
  }
};

}  // namespace

void logit_statistics(const CudaNative& native, const LogitStatistics& args) {
  const Slice slice(args);
  if (slice.rows == 0) return;
  dispatch_form(args, [&](const auto& form) {
    const auto launch = [&](auto kernel) {
      kernel<<<static_cast<unsigned>(slice.rows), kThreads, 0, stream_of(native)>>>(
          slice, form, args.total_columns, args.statistics.data<float>(), native.fault);
    };
    using Form = std::remove_cvref_t<decltype(form)>;
    if (aligned<4>({args.logits})) {
      launch(statistics_kernel<4, Form>);
    } else {
      launch(statistics_kernel<1, Form>);
    }
  });
}

void combine_statistics(const CudaNative& native, const CombineStatistics& args) {
  map<1>(native, 1, args.parts.size(1),
         Combine{args.parts.data<float>(), args.statistics.data<float>(), args.parts.size(0) / 3, args.parts.size(1)});
}

void logit_gradients(const CudaNative& native, const LogitGradients& args) {
  const Slice slice(args);
  if (slice.rows == 0) return;
  Scratch scratch(native);
  auto* const losses = scratch.take<double>(slice.rows);
  map<1>(native, 1, slice.rows, RowLosses{slice.labels, args.statistics.data<float>(), losses, slice.rows});
  add_losses(native, losses, slice.rows, args.loss_sum.data<float>());
  if (args.gradients.empty()) return;
  dispatch_device_float(args.gradients.dtype(), [&](auto tag) {
    using Out = decltype(tag);
    dispatch_form(args, [&]<class Form>(const Form& form) {
      const auto launch = [&]<int N>(std::integral_constant<int, N>) {
        map<N>(native, slice.rows, slice.columns,
               Gradients<Out, Form, N>{slice, form, args.statistics.data<float>(), args.scale.data<float>(),
                                       reinterpret_cast<Out*>(args.gradients.raw())});
      };
      if (aligned<4>({args.logits, args.gradients})) {
        launch(std::integral_constant<int, 4>());
      } else {
        launch(std::integral_constant<int, 1>());
      }
    });
  });
}

}  // namespace hawser::ops::cuda
