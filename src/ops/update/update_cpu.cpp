#include <cmath>

#include "ops/cpu/parallel.h"
#include "ops/update/store_weight_cpu.h"
#include "ops/update/update_math.h"

namespace hawser::ops::cpu {

namespace {

template <UpdateRule rule, bool nesterov, class Weight, class State>
void update_range(const Update& args, const UpdateStep& step, std::int64_t begin, std::int64_t end) {
  constexpr bool kRounds = !std::is_same_v<Weight, float> || !std::is_same_v<State, float>;
  const StochasticRounding& rounding = args.rounding;
  const bool random = kRounds && !rounding.step.empty();
  const std::int32_t number = random ? *rounding.step.data<std::int32_t>() : 0;
  auto* const weight = args.weight.data<Weight>();
  const float* const gradient = args.gradient.data<float>();
  State* const first = args.first.empty() ? nullptr : args.first.data<State>();
  State* const second = args.second.empty() ? nullptr : args.second.data<State>();
  for (std::int64_t i = begin; i < end; ++i) {
    const PhiloxWords words = random ? rounding.noise.words(i, number) : PhiloxWords{};
    auto w = static_cast<float>(weight[i]);
    float m = first != nullptr ? static_cast<float>(first[i]) : 0.0f;
    float v = second != nullptr ? static_cast<float>(second[i]) : 0.0f;
    advance<rule, nesterov>(step, gradient[i], w, m, v, [](float x) { return __builtin_sqrtf(x); });
    weight[i] = rounded_to<Weight>(w, rounding, words[0]);
    if (first != nullptr) first[i] = rounded_to<State>(m, rounding, words[1]);
    if (second != nullptr) second[i] = rounded_to<State>(v, rounding, words[2]);
  }
  copy_to_compute(weight, args.compute_weight, begin, end);
}

template <UpdateRule rule, bool nesterov>
void update_with(const Update& args, const UpdateStep& step) {
  const DType state = args.first.empty() ? DType::f32 : args.first.dtype();
  dispatch_float(args.weight.dtype(), [&](auto weight) {
    dispatch_float(state, [&](auto tag) {
      parallel_pieces(args.weight.size(0), 4096, [&](std::int64_t begin, std::int64_t end) {
        update_range<rule, nesterov, decltype(weight), decltype(tag)>(args, step, begin, end);
      });
    });
  });
}

}  // namespace

void update(const Update& args) {
  if (!args.skip.empty() && *args.skip.data<std::int32_t>() != 0) return;
  const float* h = args.hyper.data<float>();
  const UpdateStep step = update_step(constants_of(args), h[0], h[1], std::sqrt(static_cast<double>(h[2])),
                                      args.coefficient.empty() ? 1.0f : *args.coefficient.data<float>());
  switch (args.rule) {
    case UpdateRule::adamw:
      return update_with<UpdateRule::adamw, false>(args, step);
    case UpdateRule::lion:
      return update_with<UpdateRule::lion, false>(args, step);
    case UpdateRule::sgd:
      return args.nesterov ? update_with<UpdateRule::sgd, true>(args, step)
                           : update_with<UpdateRule::sgd, false>(args, step);
  }
}

}  // namespace hawser::ops::cpu
