#include "optim/adamw_8bit_optimizer.h"

#include "ops/adamw/adamw.h"
#include "ops/adamw_8bit/adamw_8bit.h"
#include "optim/elementwise_optimizer.h"
#include "optim/tensor_runs.h"

namespace hawser::optim {

namespace {

constexpr std::int64_t kSmallTensor = 4096;  // elements; bitsandbytes' min_8bit_size

class AdamWOf8Bits : public Optimizer {
 public:
  explicit AdamWOf8Bits(const AdamW8bitSettings& settings)
      : settings_(settings),
        elementwise_(make_elementwise({.beta1 = settings.beta1,
                                       .beta2 = settings.beta2,
                                       .epsilon = settings.epsilon,
                                       .groups = settings.groups})) {}

  std::string name() const override { return "adamw_8bit"; }
  std::vector<StateSlot> slots(const nn::Flat& flat) const override {
    if (flat.spec().elementwise) return elementwise_->slots(flat);
    const nn::Granularity block{.kind = nn::Granularity::Kind::block, .block = ops::kStateBlock};
    return {{"exp_avg", DType::u8},
            {"exp_avg_absmax", DType::f32, block},
            {"exp_avg_sq", DType::u8},
            {"exp_avg_sq_absmax", DType::f32, block}};
  }
  std::int64_t scalars() const override { return elementwise_->scalars(); }
  void prepare(Stream& stream, const Prepare& p) const override { elementwise_->prepare(stream, p); }

  void update(Stream& stream, const FlatUpdate& u) const override {
    if (u.flat.spec().elementwise) return elementwise_->update(stream, u);
    const TensorView hyper = u.scalars.rows(settings_.groups.of(u.flat) * ops::kAdamHyperFields, ops::kAdamHyperFields);
    for (const TensorRun& run : tensor_runs(u, settings_.groups.decay_of(u.flat))) {
      const auto part = [&](const TensorView& view) {
        return view.empty() ? TensorView() : view.rows(run.begin, run.count);
      };
      // A tensor begins at a multiple of the grain, and so does a shard.
      const auto blocks = [&](const TensorView& view) {
        return view.rows(run.begin / ops::kStateBlock, ceil_div(run.count, ops::kStateBlock));
      };
      HAWSER_CHECK(run.begin % ops::kStateBlock == 0, u.flat.name(), ": a run from element ", run.begin);
      ops::adamw_8bit(stream, {.weight = part(u.weights),
                               .gradient = part(u.gradient),
                               .exp_avg = part(u.slots[0]),
                               .exp_avg_absmax = blocks(u.slots[1]),
                               .exp_avg_sq = part(u.slots[2]),
                               .exp_avg_sq_absmax = blocks(u.slots[3]),
                               .compute_weight = part(u.compute),
                               .hyper = hyper,
                               .coefficient = u.coefficient,
                               .skip = u.skip,
                               .rounding = run.rounding,
                               .beta1 = settings_.beta1,
                               .beta2 = settings_.beta2,
                               .epsilon = settings_.epsilon,
                               .weight_decay = run.weight_decay});
    }
  }

 private:
  AdamW8bitSettings settings_;
  std::shared_ptr<const Optimizer> elementwise_;
};

std::int64_t smallest_tensor(const nn::Param& param) {
  if (param.smallest > 0) return param.smallest;
  std::int64_t smallest = kSmallTensor;
  for (const nn::Segment& segment : param.segments) smallest = std::min(smallest, segment.global.elements());
  return smallest;
}

}  // namespace

std::shared_ptr<const Optimizer> make_adamw_8bit(const AdamW8bitSettings& settings) {
  return std::make_shared<AdamWOf8Bits>(settings);
}

nn::FlatSpecOf eight_bit_specs(nn::FlatSpecOf spec_of) {
  return [of = std::move(spec_of)](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    if (!spec.trainable) return spec;
    spec.elementwise = place.kind == nn::UnitId::Kind::embedding || smallest_tensor(param) < kSmallTensor;
    if (!spec.elementwise) spec.grain = std::max(spec.grain, ops::kStateBlock);
    return spec;
  };
}

}  // namespace hawser::optim
