#include "ops/loss/softcap.h"

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/loss/softcap_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

void softcap(const Softcap& args) {
  const auto cap = static_cast<float>(args.softcap);
  auto* const y = args.y.data<float>();
  parallel_runs({args.y}, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
    float* const run = y + row * args.y.stride(0) + column;
    const float* const no_bias = nullptr;
    HAWSER_DISPATCH(capped_row, run, no_bias, cap, run, count);
  });
}

}  // namespace hawser::ops::cpu
