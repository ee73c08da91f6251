#include "optim/elementwise_optimizer.h"

#include "ops/adamw/adamw.h"
#include "optim/decay.h"
#include "optim/tensor_runs.h"

namespace hawser::optim {

namespace {

class Elementwise : public Optimizer {
 public:
  explicit Elementwise(const ElementwiseSettings& settings) : settings_(settings) { check_groups(settings.groups); }

  std::string name() const override {
    switch (settings_.rule) {
      case ops::UpdateRule::adamw:
        return "adamw";
      case ops::UpdateRule::lion:
        return "lion";
      case ops::UpdateRule::sgd:
        break;
    }
    return settings_.momentum > 0 ? "sgd with momentum" : "sgd";
  }
  std::vector<StateSlot> slots(const nn::Flat&) const override {
    switch (settings_.rule) {
      case ops::UpdateRule::adamw:
        return {{"exp_avg", settings_.state}, {"exp_avg_sq", settings_.state}};
      case ops::UpdateRule::lion:
        return {{"exp_avg", settings_.state}};
      case ops::UpdateRule::sgd:
        break;
    }
    if (settings_.momentum == 0) return {};
    return {{"momentum_buffer", settings_.state}};
  }
  std::int64_t scalars() const override { return settings_.groups.count * ops::kAdamHyperFields; }

  void prepare(Stream& stream, const Prepare& p) const override {
    const bool corrects = settings_.rule == ops::UpdateRule::adamw;
    for (int group = 0; group < settings_.groups.count; ++group) {
      ops::adam_hyper(stream, {.learning_rate = p.learning_rate.rows(group, 1),
                               .step = p.step,
                               .hyper = hyper_of(p.scalars, group),
                               .beta1 = corrects ? settings_.beta1 : 0.0,
                               .beta2 = corrects ? settings_.beta2 : 0.0});
    }
  }

  void update(Stream& stream, const FlatUpdate& u) const override {
    const double decay = settings_.groups.decay_of(u.flat);
    if (u.weights.dtype() == DType::bf16 || settings_.state == DType::bf16) {
      for (const TensorRun& run : tensor_runs(u, decay)) {
        update_range(stream, u, {run.begin, run.count, run.weight_decay}, run.rounding);
      }
    } else {
      for (const UpdateRun& run : update_runs(u.flat, u.begin, u.count, decay)) update_range(stream, u, run, {});
    }
  }

 private:
  static TensorView hyper_of(const TensorView& scalars, int group) {
    return scalars.rows(group * ops::kAdamHyperFields, ops::kAdamHyperFields);
  }

  void update_range(Stream& stream, const FlatUpdate& u, const UpdateRun& run,
                    const ops::StochasticRounding& rounding) const {
    const auto part = [&](const TensorView& view) {
      return view.empty() ? TensorView() : view.rows(run.begin, run.count);
    };
    const auto slot = [&](std::size_t i) { return i < u.slots.size() ? part(u.slots[i]) : TensorView(); };
    ops::update(stream, {.rule = settings_.rule,
                         .weight = part(u.weights),
                         .gradient = part(u.gradient),
                         .first = slot(0),
                         .second = slot(1),
                         .compute_weight = part(u.compute),
                         .hyper = hyper_of(u.scalars, settings_.groups.of(u.flat)),
                         .coefficient = u.coefficient,
                         .skip = u.skip,
                         .rounding = rounding,
                         .beta1 = settings_.beta1,
                         .beta2 = settings_.beta2,
                         .epsilon = settings_.epsilon,
                         .momentum = settings_.momentum,
                         .nesterov = settings_.nesterov,
                         .weight_decay = run.weight_decay});
  }

  ElementwiseSettings settings_;
};

}  // namespace

std::shared_ptr<const Optimizer> make_elementwise(const ElementwiseSettings& settings) {
  return std::make_shared<Elementwise>(settings);
}

}  // namespace hawser::optim
