#include "ops/adafactor/adafactor.h"
#include "ops/update/store_weight.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kSumBlocks = 1024;  // partial sums of a range, which one block then adds in order

__device__ __forceinline__ float square_of(float gradient, const float* coefficient) {
  const float g = gradient * (coefficient != nullptr ? *coefficient : 1.0f);
  return g * g + kAdafactorSquare;
}

__global__ void adafactor_hyper_kernel(const float* rate, const std::int32_t* step, float* hyper, bool relative) {
  const double n = max(1, *step);
  hyper[0] = relative ? min(*rate, static_cast<float>(1.0 / sqrt(n))) : *rate;
  hyper[1] = static_cast<float>(1.0 - pow(n, -0.8));
}

struct Sums {
  const float *gradient, *coefficient;
  std::int64_t n, first, columns, row0, rows;
};

// A block adds the elements of a row that are in the range.
__global__ void __launch_bounds__(kThreads) row_sums_kernel(Sums s, float* row_sums) {
  __shared__ float shared[32];
  const std::int64_t r = blockIdx.x, zero = (s.row0 + r) * s.columns - s.first;  // of column 0
  const std::int64_t begin = max(std::int64_t{0}, zero), end = min(s.n, zero + s.columns);
  float sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum += square_of(s.gradient[i], s.coefficient);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) row_sums[r] += sum;
}

// A thread adds the elements of a column that are in one of gridDim.y parts of the rows.
__global__ void __launch_bounds__(kThreads) column_parts_kernel(Sums s, float* parts) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= s.columns) return;
  const std::int64_t from = s.rows * blockIdx.y / gridDim.y, to = s.rows * (blockIdx.y + 1) / gridDim.y;
  float sum = 0;
  for (std::int64_t r = from; r < to; ++r) {
    const std::int64_t i = (s.row0 + r) * s.columns - s.first + c;
    if (i >= 0 && i < s.n) sum += square_of(s.gradient[i], s.coefficient);
  }
  parts[blockIdx.y * s.columns + c] = sum;
}
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(const float* parts, int count, std::int64_t columns, float* column_sums) {
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (int part = 0; part < count; ++part) sum += parts[part * columns + c];
  column_sums[c] += sum;
}

struct Moments {
  float *row, *column, *mean;
  const float *row_sums, *column_sums, *all_row_sums, *hyper;
  const std::int32_t* skip;
  std::int64_t own_rows, own_columns, rows, columns;
};
__global__ void __launch_bounds__(kThreads) moments_kernel(Moments m) {
  if (m.skip != nullptr && *m.skip != 0) return;
  const float beta = m.hyper[1], rest = 1.0f - beta;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < m.own_rows) m.row[i] = beta * m.row[i] + rest * (m.row_sums[i] / static_cast<float>(m.columns));
  if (i < m.own_columns) m.column[i] = beta * m.column[i] + rest * (m.column_sums[i] / static_cast<float>(m.rows));
  if (blockIdx.x > 0) return;
  __shared__ double shared[32];
  double sum = 0;
  for (std::int64_t r = threadIdx.x; r < m.rows; r += kThreads) sum += m.all_row_sums[r];
  sum = block_sum(sum, shared);
  if (threadIdx.x > 0) return;
  *m.mean =
      beta * *m.mean + rest * static_cast<float>(sum / static_cast<double>(m.rows) / static_cast<double>(m.columns));
}

struct Direction {
  float* gradient;
  const float *coefficient, *row, *column, *mean, *hyper;
  float* second;
  const std::int32_t* skip;
  std::int64_t n, first, columns, row0;
  double *updates, *weights;  // by block; weights null: not asked for
};

// Memory traffic bounds it: it reads the gradient and writes it, and with float32 `second` that, too.
template <class Weight>
__global__ void __launch_bounds__(kThreads) direction_kernel(Direction d, const Weight* weight) {
  __shared__ double shared[2][32];
  double updates = 0, weights = 0;
  if (d.skip == nullptr || *d.skip == 0) {
    const float beta = d.hyper[1], coefficient = d.coefficient != nullptr ? *d.coefficient : 1.0f;
    const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < d.n; i += stride) {
      const float g = d.gradient[i] * coefficient;
      float u = 0;
      if (d.second != nullptr) {
        const float second = beta * d.second[i] + (1.0f - beta) * (g * g + kAdafactorSquare);
        d.second[i] = second;
        u = g / sqrtf(second);
      } else {
        const std::int64_t e = d.first + i;
        u = g / sqrtf(d.row[e / d.columns - d.row0] / *d.mean) / sqrtf(d.column[e % d.columns]);
      }
      d.gradient[i] = u;
      updates += double{u} * u;
      if (d.weights != nullptr) {
        const double w = to_float(weight[i]);
        weights += w * w;
      }
    }
  }
  updates = block_sum(updates, shared[0]);
  weights = block_sum(weights, shared[1]);
  if (threadIdx.x > 0) return;
  d.updates[blockIdx.x] = updates;
  if (d.weights != nullptr) d.weights[blockIdx.x] = weights;
}
__global__ void __launch_bounds__(kThreads) add_terms_kernel(const double* terms, unsigned count, float* sum) {
  __shared__ double shared[32];
  double own = 0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) own += terms[i];
  own = block_sum(own, shared);
  if (threadIdx.x == 0) *sum += static_cast<float>(own);
}

template <class Weight, class Compute>
struct Apply {
  StoreWeight<Weight, Compute> to;
  const float* direction;
  const float *update_sum, *weight_sum, *hyper;
  const std::int32_t* skip;
  float elements, decay;

  __device__ void operator()(std::int64_t, std::int64_t at) const {
    if (skip != nullptr && *skip != 0) return;
    const AdafactorRates rates = adafactor_rates(hyper[0], *update_sum, weight_sum != nullptr ? *weight_sum : -1.0f,
                                                 elements, decay, [](float x) { return sqrtf(x); });
    to.store(at, rates.keep * to.load(at) - rates.update * direction[at]);
  }
};

}  // namespace

void adafactor_hyper(const CudaNative& native, const AdafactorHyper& args) {
  adafactor_hyper_kernel<<<1, 1, 0, stream_of(native)>>>(
      args.learning_rate.data<float>(), args.step.data<std::int32_t>(), args.hyper.data<float>(), args.relative_step);
}

void adafactor_sums(const CudaNative& native, const AdafactorSums& args) {
  const Sums sums{.gradient = data_or_null<const float>(args.gradient),
                  .coefficient = data_or_null<const float>(args.coefficient),
                  .n = args.gradient.elements(),
                  .first = args.first,
                  .columns = args.columns,
                  .row0 = args.first / args.columns,
                  .rows = args.row_sums.elements()};
  if (sums.n == 0) return;
  row_sums_kernel<<<static_cast<unsigned>(sums.rows), kThreads, 0, stream_of(native)>>>(sums,
                                                                                        args.row_sums.data<float>());
  const std::int64_t fit = std::max<std::int64_t>(1, kCudaScratchBytes / 2 / (4 * sums.columns));
  const auto parts =
      static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(sums.rows, 32), 1, std::min<std::int64_t>(fit, 64)));
  const auto blocks = static_cast<unsigned>(ceil_div(sums.columns, kThreads));
  auto* const partial = Scratch(native).take<float>(parts * sums.columns);
  column_parts_kernel<<<dim3(blocks, parts), kThreads, 0, stream_of(native)>>>(sums, partial);
  column_sums_kernel<<<blocks, kThreads, 0, stream_of(native)>>>(partial, static_cast<int>(parts), sums.columns,
                                                                 args.column_sums.data<float>());
}

void adafactor_moments(const CudaNative& native, const AdafactorMoments& args) {
  const Moments moments{.row = args.row.data<float>(),
                        .column = args.column.data<float>(),
                        .mean = args.mean.data<float>(),
                        .row_sums = args.row_sums.data<float>(),
                        .column_sums = args.column_sums.data<float>(),
                        .all_row_sums = args.all_row_sums.data<float>(),
                        .hyper = args.hyper.data<float>(),
                        .skip = data_or_null<const std::int32_t>(args.skip),
                        .own_rows = args.row.elements(),
                        .own_columns = args.column.elements(),
                        .rows = args.all_row_sums.elements(),
                        .columns = args.columns};
  const auto blocks = static_cast<unsigned>(
      std::max<std::int64_t>(1, ceil_div(std::max(moments.own_rows, moments.own_columns), kThreads)));
  moments_kernel<<<blocks, kThreads, 0, stream_of(native)>>>(moments);
}

void adafactor_direction(const CudaNative& native, const AdafactorDirection& args) {
  const std::int64_t n = args.gradient.elements();
  if (n == 0) return;
  Scratch scratch(native);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(kSumBlocks, ceil_div(n, kThreads)));
  const Direction direction{.gradient = args.gradient.data<float>(),
                            .coefficient = data_or_null<const float>(args.coefficient),
                            .row = data_or_null<const float>(args.row),
                            .column = data_or_null<const float>(args.column),
                            .mean = data_or_null<const float>(args.mean),
                            .hyper = args.hyper.data<float>(),
                            .second = data_or_null<float>(args.second),
                            .skip = data_or_null<const std::int32_t>(args.skip),
                            .n = n,
                            .first = args.first,
                            .columns = args.columns,
                            .row0 = args.first / args.columns,
                            .updates = scratch.take<double>(blocks),
                            .weights = args.weight_sum.empty() ? nullptr : scratch.take<double>(blocks)};
  dispatch_device_float(args.weight_sum.empty() ? DType::f32 : args.weight.dtype(), [&](auto tag) {
    direction_kernel<<<blocks, kThreads, 0, stream_of(native)>>>(direction,
                                                                 data_or_null<const decltype(tag)>(args.weight));
  });
  add_terms_kernel<<<1, kThreads, 0, stream_of(native)>>>(direction.updates, blocks, args.update_sum.data<float>());
  if (direction.weights == nullptr) return;
  add_terms_kernel<<<1, kThreads, 0, stream_of(native)>>>(direction.weights, blocks, args.weight_sum.data<float>());
}

void adafactor_apply(const CudaNative& native, const AdafactorApply& args) {
  with_stored_weight(args, [&]<class Weight, class Compute>(const StoreWeight<Weight, Compute>& to) {
    map<1>(native, 1, args.weight.size(0),
           Apply<Weight, Compute>{.to = to,
                                  .direction = args.direction.data<float>(),
                                  .update_sum = args.update_sum.data<float>(),
                                  .weight_sum = data_or_null<const float>(args.weight_sum),
                                  .hyper = args.hyper.data<float>(),
                                  .skip = data_or_null<const std::int32_t>(args.skip),
                                  .elements = static_cast<float>(args.elements),
                                  .decay = static_cast<float>(args.weight_decay)});
  });
}

}  // namespace hawser::ops::cuda
