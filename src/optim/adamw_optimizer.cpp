#include "optim/adamw_optimizer.h"

#include "ops/adamw/adamw.h"
#include "optim/decay.h"
#include "optim/groups.h"

namespace hawser::optim {

namespace {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWSettings& settings)
      : settings_(settings), groups_{settings.groups, settings.weight_decay, settings.group_decays} {
    check_groups(groups_);
  }
  std::string name() const override { return "adamw"; }
  std::vector<StateSlot> slots(const nn::Flat&) const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  bool records_amaxes(const nn::Flat&) const override { return true; }
  std::int64_t scalars() const override { return settings_.groups * ops::kAdamHyperFields; }

  void prepare(Stream& stream, const Prepare& p) const override {
    for (int group = 0; group < settings_.groups; ++group) {
      ops::adam_hyper(stream, {.learning_rate = p.learning_rate.rows(group, 1),
                               .step = p.step,
                               .hyper = hyper_of(p.scalars, group),
                               .beta1 = settings_.beta1,
                               .beta2 = settings_.beta2});
    }
  }

  void update(Stream& stream, const FlatUpdate& u) const override {
    const std::vector<ops::EqualMatrices> matrices(u.measured.begin(), u.measured.end());
    const int group = groups_.of(u.flat);
    for (const UpdateRun& run : update_runs(u.flat, u.begin, u.count, groups_.decay_of(u.flat))) {
      const auto matrix = [&](const TensorView& view) {
        return view.empty() ? TensorView() : view.rows(run.begin, run.count);
      };
      ops::adamw(stream, {.weight = matrix(u.weights),
                          .gradient = matrix(u.gradient),
                          .exp_avg = matrix(u.slots[0]),
                          .exp_avg_sq = matrix(u.slots[1]),
                          .compute_weight = matrix(u.compute),
                          .hyper = hyper_of(u.scalars, group),
                          .coefficient = u.coefficient,
                          .skip = u.skip,
                          .amax = u.amax,
                          .matrices = ops::matrices_from(matrices, run.begin),
                          .beta1 = settings_.beta1,
                          .beta2 = settings_.beta2,
                          .epsilon = settings_.epsilon,
                          .weight_decay = run.weight_decay});
    }
  }

 private:
  static TensorView hyper_of(const TensorView& scalars, int group) {
    return scalars.rows(group * ops::kAdamHyperFields, ops::kAdamHyperFields);
  }

  AdamWSettings settings_;
  Groups groups_;
};

}  // namespace

std::shared_ptr<const Optimizer> make_adamw(const AdamWSettings& settings) {
  return std::make_shared<AdamW>(settings);
}

}  // namespace hawser::optim
