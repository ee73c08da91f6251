#include "ops/cpu/parallel.h"
#include "ops/ema/ema.h"

namespace hawser::ops::cpu {

void ema(const Ema& args) {
  if (!args.skip.empty() && *args.skip.data<std::int32_t>() != 0) return;
  const bool first = *args.updates.data<std::int32_t>() <= 1;
  const auto share = first ? 1.0f : static_cast<float>(1.0 - args.decay);
  float* const average = args.average.data<float>();
  dispatch_float(args.weight.dtype(), [&](auto tag) {
    const auto* const weight = args.weight.data<decltype(tag)>();
    parallel_pieces(args.weight.size(0), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto w = static_cast<float>(weight[i]);
        average[i] = first ? w : average[i] + share * (w - average[i]);
      }
    });
  });
}

}  // namespace hawser::ops::cpu
