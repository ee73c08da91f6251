#include "ops/copy/sum_parts.h"
#include "ops/cpu/parallel.h"

namespace hawser::ops::cpu {

void sum_parts(const SumParts& args) {
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t elements = args.y.elements(), parts = args.parts.elements() / elements;
    const T *from = args.parts.data<T>(), *residual = args.residual.empty() ? nullptr : args.residual.data<T>();
    T* const y = args.y.data<T>();
    constexpr std::int64_t kRun = 4096;
    parallel_pieces(elements, kRun, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        float sum = static_cast<float>(from[i]);
        for (std::int64_t p = 1; p < parts; ++p) sum += static_cast<float>(from[p * elements + i]);
        T rounded(sum);
        if (residual != nullptr) rounded = T(static_cast<float>(residual[i]) + static_cast<float>(rounded));
        y[i] = rounded;
      }
    });
  });
}

}  // namespace hawser::ops::cpu
