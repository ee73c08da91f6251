#include "ops/adamw/adamw.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/quantize/quantize_rows_cpu.h"

#define HAWSER_KERNELS "ops/adamw/adamw_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

AdamStep step_of(const AdamW& args) {
  const float* h = args.hyper.data<float>();
  const double learning_rate = h[0], correction1 = h[1], correction2 = h[2];
  return {.beta1 = static_cast<float>(args.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .keep = static_cast<float>(1.0 - learning_rate * args.weight_decay),
          .step_size = static_cast<float>(learning_rate / correction1),
          .inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(correction2)),
          .epsilon = static_cast<float>(args.epsilon),
          .coefficient = args.coefficient.empty() ? 1.0f : *args.coefficient.data<float>()};
}

}  // namespace

void adam_hyper(const AdamHyperOfStep& args) {
  const std::int64_t step = std::max(1, *args.step.data<std::int32_t>());
  const AdamHyper hyper = ops::adam_hyper(*args.learning_rate.data<float>(), args.beta1, args.beta2, step);
  std::memcpy(args.hyper.raw(), &hyper, sizeof(hyper));
}

void adamw(const AdamW& args) {
  const bool skips = !args.skip.empty() && *args.skip.data<std::int32_t>() != 0;
  if (skips && args.amax.empty()) return;
  const AdamStep step = step_of(args);
  float* const weight = args.weight.data<float>();
  float* const exp_avg = args.exp_avg.data<float>();
  float* const exp_avg_sq = args.exp_avg_sq.data<float>();
  Bf16* const compute = args.compute_weight.empty() ? nullptr : args.compute_weight.data<Bf16>();
  dispatch_float(args.gradient.dtype(), [&](auto tag) {
    const auto* gradient = args.gradient.data<decltype(tag)>();
    parallel_pieces(args.weight.size(0), 4096, [&](std::int64_t begin, std::int64_t end) {
      // Pieces small enough to stay in the cache until the compute copy is written and the amaxes are taken.
      for (std::int64_t at = begin; at < end; at += 4096) {
        const std::int64_t count = std::min<std::int64_t>(4096, end - at);
        if (!skips) HAWSER_DISPATCH(adamw_run, step, gradient + at, weight + at, exp_avg + at, exp_avg_sq + at, count);
        if (!skips && compute != nullptr) HAWSER_DISPATCH(narrow_run, weight + at, compute + at, count);
        each_matrix(args.matrices, at, at + count, [&](std::int64_t matrix, std::int64_t from, std::int64_t to) {
          take_maximum(args.amax.data<float>()[matrix], largest_bits(weight + from, to - from));
        });
      }
    });
  });
}

}  // namespace hawser::ops::cpu
