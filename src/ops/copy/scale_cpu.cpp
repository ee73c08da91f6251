#include "ops/copy/scale.h"
#include "ops/cpu/parallel.h"

namespace hawser::ops::cpu {

void scale(const Scale& args) {
  const auto factor = static_cast<float>(args.factor);
  dispatch_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    auto* const x = args.x.data<Act>();
    parallel_pieces(args.x.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) x[i] = static_cast<Act>(static_cast<float>(x[i]) * factor);
    });
  });
}

}  // namespace hawser::ops::cpu
