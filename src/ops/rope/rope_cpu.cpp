#include "ops/rope/rope.h"

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/rope/rope_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

void rope(const Rope& args) {
  const std::int64_t heads = args.x.size(1), half = args.frequencies.size(0), dim = args.x.size(2);
  const auto* positions = args.positions.data<std::int32_t>();
  const float* frequencies = args.frequencies.data<float>();
  const auto scale = static_cast<float>(args.scale);
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto x = rows_of<decltype(tag)>(args.x);
    parallel_pieces(x.count, 4, [&](std::int64_t begin, std::int64_t end) {
      float cosines[kRopeMaxHeadDim / 2], sines[kRopeMaxHeadDim / 2];
      for (std::int64_t t = begin; t < end; ++t) {
        HAWSER_DISPATCH(angles, positions[t], frequencies, scale, cosines, sines, half);
        if (args.inverse) {
          for (std::int64_t i = 0; i < half; ++i) sines[i] = -sines[i];
        }
        if (args.interleaved) {
          HAWSER_DISPATCH(rotate_interleaved, x.row(t), heads, dim, cosines, sines, half);
        } else {
          HAWSER_DISPATCH(rotate_token, x.row(t), heads, dim, cosines, sines, half);
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
