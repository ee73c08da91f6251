#include "ops/cuda/kernel.cuh"
#include "ops/dropout/dropout.h"

namespace hawser::ops::cuda {

namespace {

// Four columns share a counter: with N = 4 a thread has all of them.
template <class Act, int N>
struct Drop {
  Rows2<const Act> x;
  Rows2<Act> y;
  PhiloxKey key;
  const std::int32_t *step, *rows;
  std::int64_t first_column;
  std::uint64_t below;  // u < p exactly if word < p * 2^32
  float factor;
  bool accumulate;

  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    const auto column = static_cast<std::uint64_t>(first_column + at);
    const PhiloxWords words =
        philox({static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(rows[2 * row + 1]),
                static_cast<std::uint32_t>(rows[2 * row]), static_cast<std::uint32_t>(*step)},
               key);
    const Vec<float, N> values = load_float<N>(x.row(row) + at);
    Vec<float, N> out{};
    if (accumulate) out = load_float<N>(y.row(row) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      // N = 4: the counter begins at this column, so that the index is a constant.
      std::uint32_t word = words[static_cast<std::size_t>(i)];
      if constexpr (N == 1) word = words[column % 4];
      out.v[i] += word < below ? 0.0f : values.v[i] * factor;
    }
    store_float<N>(y.row(row) + at, out);
  }
};

}  // namespace

void dropout(const CudaNative& native, const Dropout& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows2<const Act>(args.x);
    const auto y = rows2<Act>(args.y);
    const auto launch = [&]<int N>(std::integral_constant<int, N>) {
      map<N>(native, x.count, x.columns,
             Drop<Act, N>{.x = x,
                          .y = y,
                          .key = args.random.key,
                          .step = args.random.step.data<std::int32_t>(),
                          .rows = args.random.rows.data<std::int32_t>(),
                          .first_column = args.first_column,
                          .below = static_cast<std::uint64_t>(std::ceil(args.probability * 0x1p32)),
                          .factor = static_cast<float>(1.0 / (1.0 - args.probability)),
                          .accumulate = args.accumulate});
    };
    if (args.first_column % 4 == 0 && aligned<4>({args.x, args.y})) {
      launch(std::integral_constant<int, 4>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
}

}  // namespace hawser::ops::cuda
