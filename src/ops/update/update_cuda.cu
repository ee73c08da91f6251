#include "ops/update/store_weight.cuh"

namespace hawser::ops::cuda {

namespace {

// Memory traffic bounds it, and with stochastic rounding the ten rounds of Philox of each element, which the other
// words of a counter do not share: an element has one for its weight and both states.
template <UpdateRule rule, bool nesterov, class Weight, class State, class Compute, int N>
struct Advance {
  Weight* weight;
  const float* gradient;
  State *first, *second;  // null: none
  Compute* compute;       // null: none
  const UpdateStep* step;
  const std::int32_t* skip;    // null: never
  const std::int32_t* number;  // null: rounds to the nearest
  RoundingNoise noise;

  template <class T>
  __device__ static void put(T* to, const Vec<float, N>& value, bool random, const PhiloxWords* words, int word) {
    if constexpr (std::is_same_v<T, Bf>) {
      if (random) {
        Vec<float, N> rounded;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          rounded.v[i] = rounded_to_bf16(value.v[i], words[i][static_cast<std::size_t>(word)]);
        }
        return store_float<N>(to, rounded);  // exact
      }
    }
    store_float<N>(to, value);
  }

  __device__ void operator()(std::int64_t, std::int64_t at) const {
    if (skip != nullptr && *skip != 0) return;
    const UpdateStep s = *step;
    const bool random = number != nullptr;
    PhiloxWords words[N];
    if constexpr (std::is_same_v<Weight, Bf> || std::is_same_v<State, Bf>) {
      if (random) {
#pragma unroll
        for (int i = 0; i < N; ++i) words[i] = noise.words(at + i, *number);
      }
    }
    Vec<float, N> w = load_float<N>(weight + at), m{}, v{};
    const Vec<float, N> g = load_float<N>(gradient + at);
    if (first != nullptr) m = load_float<N>(first + at);
    if (second != nullptr) v = load_float<N>(second + at);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      advance<rule, nesterov>(s, g.v[i], w.v[i], m.v[i], v.v[i], [](float x) { return sqrtf(x); });
    }
    put(weight + at, w, random, words, 0);
    if (first != nullptr) put(first + at, m, random, words, 1);
    if (second != nullptr) put(second + at, v, random, words, 2);
    if (compute != nullptr) store_float<N>(compute + at, load_float<N>(weight + at));
  }
};

template <UpdateRule rule, bool nesterov>
void update_with(const CudaNative& native, const Update& args, const UpdateStep* step) {
  const DType state = args.first.empty() ? DType::f32 : args.first.dtype();
  const DType compute = args.compute_weight.empty() ? DType::bf16 : args.compute_weight.dtype();
  dispatch_device_float(args.weight.dtype(), [&](auto weight) {
    dispatch_device_float(state, [&](auto tag) {
      dispatch_device_float(compute, [&](auto computed) {
        using Weight = decltype(weight);
        using State = decltype(tag);
        using Compute = decltype(computed);
        const StochasticRounding& r = args.rounding;
        const auto launch = [&]<int N>(std::integral_constant<int, N>) {
          map<N>(
              native, 1, args.weight.size(0),
              Advance<rule, nesterov, Weight, State, Compute, N>{.weight = data_or_null<Weight>(args.weight),
                                                                 .gradient = data_or_null<const float>(args.gradient),
                                                                 .first = data_or_null<State>(args.first),
                                                                 .second = data_or_null<State>(args.second),
                                                                 .compute = data_or_null<Compute>(args.compute_weight),
                                                                 .step = step,
                                                                 .skip = data_or_null<const std::int32_t>(args.skip),
                                                                 .number = data_or_null<const std::int32_t>(r.step),
                                                                 .noise = r.noise});
        };
        bool wide = args.weight.size(0) % 4 == 0;
        for (const TensorView& view : {args.weight, args.gradient, args.first, args.second, args.compute_weight}) {
          wide = wide && reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0;
        }
        if (wide) {
          launch(std::integral_constant<int, 4>());
        } else {
          launch(std::integral_constant<int, 1>());
        }
      });
    });
  });
}

}  // namespace

void update(const CudaNative& native, const Update& args) {
  if (args.weight.size(0) == 0) return;
  auto* const step = Scratch(native).take<UpdateStep>(1);
  update_step_kernel<<<1, 1, 0, stream_of(native)>>>(
      data_or_null<const float>(args.hyper), data_or_null<const float>(args.coefficient), step, constants_of(args));
  switch (args.rule) {
    case UpdateRule::adamw:
      return update_with<UpdateRule::adamw, false>(native, args, step);
    case UpdateRule::lion:
      return update_with<UpdateRule::lion, false>(native, args, step);
    case UpdateRule::sgd:
      if (args.nesterov) return update_with<UpdateRule::sgd, true>(native, args, step);
      return update_with<UpdateRule::sgd, false>(native, args, step);
  }
}

}  // namespace hawser::ops::cuda
