#include "ops/norm/rms_norm.h"
#include "ops/norm/rms_norm_cuda.cuh"
#include "ops/quantize/quantize_tiles.cuh"

namespace hawser::ops::cuda {

namespace {

// The normed rows, rounded to Act as the kernels that write y round them.
template <class Act, class Weight, bool kUnitOffset>
struct NormedRows {
  Rows2<const Act> x;
  const Weight* weight;
  const float* rstd;
  bool wide;
  template <bool kFull>
  __device__ __forceinline__ auto of_columns(std::int64_t column) const {
    return part_of_row<kFull>(weight, column, x.columns);
  }
  template <bool kFull>
  __device__ __forceinline__ auto load(std::int64_t row, std::int64_t column) const {
    return part_of_row<kFull>(x.row(row), column, x.columns);
  }
  __device__ __forceinline__ Vec<float, kThreadColumns> values(std::int64_t row,
                                                               const Vec<Weight, kThreadColumns>& weights,
                                                               const Vec<Act, kThreadColumns>& loaded) const {
    Vec<float, kThreadColumns> v = widen(loaded);
    const Vec<float, kThreadColumns> w = widen(weights);
    const float r = rstd[row];
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) v.v[c] = v.v[c] * r * (kUnitOffset ? 1.0f + w.v[c] : w.v[c]);
    round_to<Act>(v);
    return v;
  }
};

}  // namespace

void rms_norm_fp8(const CudaNative& native, const RmsNormForward& args) {
  dispatch_norm(args, [&](auto act, auto weight, auto unit_offset) {
    using Act = decltype(act);
    using Weight = decltype(weight);
    const auto x = rows2<Act>(args.x);
    const auto* const factors = reinterpret_cast<const Weight*>(args.weight.raw());
    const bool wide = aligned<kThreadColumns>({args.x}) && reinterpret_cast<std::uintptr_t>(factors) % 16 == 0;
    const NormedRows<Act, Weight, decltype(unit_offset)::value> rows{
        {x.data, x.count, x.columns, x.stride}, factors, args.rstd.data<float>(), wide};
    quantize_tiles(native, rows, x.count, x.columns, args.fp8);
  });
}

}  // namespace hawser::ops::cuda
