#include "ops/cuda/kernel.cuh"
#include "ops/quantize/saturation.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;

struct Verdict {
  const std::int32_t* step;
  float* worst;
  std::int32_t *worst_site, *replay_step, *replays, *skip;
  float limit;
  std::int32_t max_replays, saturates, waits, refused;
};

// One block. Shares are not negative, so that they compare as their bits do; of equal ones the first site counts.
__global__ void __launch_bounds__(kThreads)
    judge_kernel(const float* saturated, const float* elements, std::int64_t count, Verdict verdict) {
  __shared__ unsigned long long found;
  if (threadIdx.x == 0) found = 0xffffffffull;  // a share of 0 at site 0
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    const float share = elements[i] > 0 ? saturated[i] / elements[i] : 0.0f;
    if (share > 0) {
      atomicMax(&found, (static_cast<unsigned long long>(__float_as_uint(share)) << 32) |
                            (0xffffffffu - static_cast<std::uint32_t>(i)));
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const float worst = __uint_as_float(static_cast<std::uint32_t>(found >> 32));
  *verdict.worst = worst;
  *verdict.worst_site = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(found));
  if (*verdict.replay_step >= 0 && *verdict.replay_step != *verdict.step) {
    *verdict.skip = verdict.waits;
  } else if (*verdict.skip == verdict.refused) {
    return;
  } else if (*verdict.skip == 0 && worst > verdict.limit && *verdict.replays < verdict.max_replays) {
    *verdict.skip = verdict.saturates;
    *verdict.replay_step = *verdict.step;
    ++*verdict.replays;
  } else {
    *verdict.replay_step = -1;
    *verdict.replays = 0;
  }
}

}  // namespace

void judge_saturation(const CudaNative& native, const JudgeSaturation& args) {
  judge_kernel<<<1, kThreads, 0, stream_of(native)>>>(
      args.saturated.data<float>(), args.elements.data<float>(), args.saturated.elements(),
      {args.step.data<std::int32_t>(), args.worst.data<float>(), args.worst_site.data<std::int32_t>(),
       args.replay_step.data<std::int32_t>(), args.replays.data<std::int32_t>(), args.skip.data<std::int32_t>(),
       args.limit, args.max_replays, args.saturates, args.waits, args.refused});
}

}  // namespace hawser::ops::cuda
