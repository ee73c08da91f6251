#include <array>
#include <bit>
#include <cmath>

#include "ops/adamw_8bit/adamw_8bit.h"
#include "ops/adamw_8bit/code_book.h"
#include "ops/cpu/parallel.h"
#include "ops/update/store_weight_cpu.h"
#include "ops/update/update_math.h"

namespace hawser::ops::cpu {

namespace {

using Block = std::array<float, kStateBlock>;

// Writes the codes of `count` values and their maximum.
void quantize(const DynamicMap& book, const Block& values, std::int64_t count, std::uint8_t* codes, float& absmax) {
  // As integers, magnitudes are in the order of floats, and NaN is above them.
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    bits = std::max(bits, std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]) & 0x7fffffffu);
  }
  const float largest = absmax = std::bit_cast<float>(bits);
  for (std::int64_t i = 0; i < count; ++i) {
    codes[i] = nearest_code(book.data(), largest == 0 ? 0.0f : values[static_cast<std::size_t>(i)] / largest);
  }
}

template <class Weight>
void update_block(const AdamW8bit& args, const UpdateStep& step, std::int64_t block) {
  const std::int64_t begin = block * kStateBlock, count = std::min(kStateBlock, args.weight.size(0) - begin);
  auto* const weight = args.weight.data<Weight>() + begin;
  const float* const gradient = args.gradient.data<float>() + begin;
  std::uint8_t* const first = args.exp_avg.data<std::uint8_t>() + begin;
  std::uint8_t* const second = args.exp_avg_sq.data<std::uint8_t>() + begin;
  float& first_absmax = args.exp_avg_absmax.data<float>()[block];
  float& second_absmax = args.exp_avg_sq_absmax.data<float>()[block];
  const StochasticRounding& rounding = args.rounding;
  const bool random = !std::is_same_v<Weight, float> && !rounding.step.empty();
  const std::int32_t number = random ? *rounding.step.data<std::int32_t>() : 0;
  Block m, v;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    m[at] = kSignedDynamicMap[first[i]] * first_absmax;
    v[at] = kUnsignedDynamicMap[second[i]] * second_absmax;
    auto w = static_cast<float>(weight[i]);
    advance<UpdateRule::adamw, false>(step, gradient[i], w, m[at], v[at], [](float x) { return __builtin_sqrtf(x); });
    weight[i] = rounded_to<Weight>(w, rounding, random ? rounding.noise.words(begin + i, number)[0] : 0);
  }
  quantize(kSignedDynamicMap, m, count, first, first_absmax);
  quantize(kUnsignedDynamicMap, v, count, second, second_absmax);
  copy_to_compute(args.weight.data<Weight>(), args.compute_weight, begin, begin + count);
}

}  // namespace

void adamw_8bit(const AdamW8bit& args) {
  if (!args.skip.empty() && *args.skip.data<std::int32_t>() != 0) return;
  const float* h = args.hyper.data<float>();
  const UpdateStep step = update_step(
      {.beta1 = args.beta1, .beta2 = args.beta2, .epsilon = args.epsilon, .weight_decay = args.weight_decay}, h[0],
      h[1], std::sqrt(static_cast<double>(h[2])), args.coefficient.empty() ? 1.0f : *args.coefficient.data<float>());
  dispatch_float(args.weight.dtype(), [&](auto tag) {
    parallel_pieces(args.exp_avg_absmax.size(0), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) update_block<decltype(tag)>(args, step, block);
    });
  });
}

}  // namespace hawser::ops::cpu
