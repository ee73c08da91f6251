#include "ops/cpu/parallel.h"
#include "ops/dropout/dropout.h"

namespace hawser::ops::cpu {

void dropout(const Dropout& args) {
  const auto step = static_cast<std::uint32_t>(*args.random.step.data<std::int32_t>());
  const auto* const ids = args.random.rows.data<std::int32_t>();
  const auto factor = static_cast<float>(1.0 / (1.0 - args.probability));
  // u < p exactly if word < p * 2^32.
  const auto below = static_cast<std::uint64_t>(std::ceil(args.probability * 0x1p32));
  dispatch_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(x.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const auto sequence = static_cast<std::uint32_t>(ids[2 * t]), row = static_cast<std::uint32_t>(ids[2 * t + 1]);
        PhiloxWords words{};
        for (std::int64_t c = 0; c < x.columns; ++c) {
          const auto column = static_cast<std::uint64_t>(args.first_column + c);
          if (c == 0 || column % 4 == 0) {
            words = philox({static_cast<std::uint32_t>(column / 4), row, sequence, step}, args.random.key);
          }
          const float kept = words[column % 4] < below ? 0.0f : static_cast<float>(x.row(t)[c]) * factor;
          y.row(t)[c] = static_cast<Act>(args.accumulate ? static_cast<float>(y.row(t)[c]) + kept : kept);
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
