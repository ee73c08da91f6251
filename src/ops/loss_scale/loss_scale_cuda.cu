#include "ops/cuda/kernel.cuh"
#include "ops/loss_scale/loss_scale.h"

namespace hawser::ops::cuda {

namespace {

__global__ void scale_kernel(const float* factor, const float* loss_scale, float* out) {
  *out = *factor * *loss_scale;
}

// `replay_step` may be null.
__global__ void refuse_kernel(const float* refusal, std::int32_t* skip, std::int32_t value, const std::int32_t* step,
                              std::int32_t* replay_step, std::int32_t waits) {
  if (replay_step != nullptr && *replay_step >= 0 && *replay_step != *step) {
    *skip = waits;
  } else if (*refusal > 0) {
    *skip = value;
    if (replay_step != nullptr) *replay_step = *step;
  }
}

__global__ void count_kernel(std::int32_t* step, std::int32_t* good, float* scale, const std::int32_t* skip,
                             std::int32_t overflow, LossScaling scaling) {
  if (*skip == 0) {
    ++*step;
    ++*good;
    if (scaling.growth_interval == 0 || *good < scaling.growth_interval) return;
    *scale = static_cast<float>(*scale * scaling.growth_factor);
    *good = 0;
  } else if (*skip == overflow) {
    if (scaling.growth_interval > 0) {
      const auto minimum = static_cast<float>(scaling.minimum);
      *scale = fmaxf(static_cast<float>(*scale * scaling.backoff_factor), fminf(*scale, minimum));
    }
    *good = 0;
  }
}

}  // namespace

void scale_loss(const CudaNative& native, const ScaleLoss& args) {
  scale_kernel<<<1, 1, 0, stream_of(native)>>>(args.factor.data<float>(), args.loss_scale.data<float>(),
                                               args.out.data<float>());
}

void refuse_step(const CudaNative& native, const RefuseStep& args) {
  const bool again = !args.replay_step.empty();
  refuse_kernel<<<1, 1, 0, stream_of(native)>>>(args.refusal.data<float>(), args.skip.data<std::int32_t>(), args.value,
                                                again ? args.step.data<std::int32_t>() : nullptr,
                                                again ? args.replay_step.data<std::int32_t>() : nullptr, args.waits);
}

void count_step(const CudaNative& native, const CountStep& args) {
  count_kernel<<<1, 1, 0, stream_of(native)>>>(args.step.data<std::int32_t>(), args.good_steps.data<std::int32_t>(),
                                               args.loss_scale.data<float>(), args.skip.data<std::int32_t>(),
                                               args.overflow, args.scaling);
}

}  // namespace hawser::ops::cuda
