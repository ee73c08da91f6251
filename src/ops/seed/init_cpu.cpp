#include "ops/seed/init.h"

#include "base/philox.h"
#include "ops/cpu/parallel.h"

namespace hawser::ops::cpu {

void random_normal(const RandomNormal& args) {
  const RandomStream random(args.seed, args.name);
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using T = decltype(tag);
    T* const y = reinterpret_cast<T*>(args.y.raw());
    const std::int64_t columns = args.row_stride > 0 ? args.y.size(1) : std::max<std::int64_t>(1, args.y.elements());
    parallel_pieces(args.y.elements(), 1024, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t element = i / columns * args.row_stride + i % columns;
        const double z = random.normal(static_cast<std::uint64_t>(args.first_element + element));
        y[i] = static_cast<T>(static_cast<float>(args.mean + args.std * z));
      }
    });
  });
}

}  // namespace hawser::ops::cpu
