#include "plan/make_optimizer.h"

#include "config/config.h"
#include "nn/granularity.h"
#include "optim/adafactor_optimizer.h"
#include "optim/adamw_8bit_optimizer.h"
#include "optim/adamw_optimizer.h"
#include "optim/elementwise_optimizer.h"
#include "optim/ema_optimizer.h"
#include "optim/muon_optimizer.h"

namespace hawser::plan {

namespace {

DType dtype_of(StateDType dtype) {
  return dtype == StateDType::bf16 ? DType::bf16 : DType::f32;
}

optim::Groups groups_of(const OptimizerRecipe& recipe) {
  const double decay = recipe.weight_decay_or_default();
  optim::Groups groups{.weight_decay = decay, .decays = {decay}};
  for (const ParamGroupRecipe& group : recipe.groups) groups.decays.push_back(group.weight_decay.value_or(decay));
  groups.count = static_cast<int>(groups.decays.size());
  return groups;
}

std::shared_ptr<const optim::Optimizer> make_kind(const OptimizerRecipe& recipe) {
  const optim::Groups groups = groups_of(recipe);
  const bool wide = recipe.state_dtype == StateDType::f32 && recipe.master_dtype == StateDType::f32;
  optim::ElementwiseSettings settings{.state = dtype_of(recipe.state_dtype),
                                      .beta1 = recipe.beta1,
                                      .beta2 = recipe.beta2_or_default(),
                                      .epsilon = recipe.epsilon,
                                      .groups = groups};
  switch (recipe.kind) {
    case OptimizerKind::adamw_8bit:
      return optim::make_adamw_8bit(
          {.beta1 = settings.beta1, .beta2 = settings.beta2, .epsilon = settings.epsilon, .groups = groups});
    case OptimizerKind::adafactor:
      return optim::make_adafactor(
          {.scale_parameter = recipe.scale_parameter, .relative_step = recipe.relative_step, .groups = groups});
    case OptimizerKind::adamw:
      if (wide) {
        return optim::make_adamw({.beta1 = settings.beta1,
                                  .beta2 = settings.beta2,
                                  .epsilon = settings.epsilon,
                                  .weight_decay = groups.weight_decay,
                                  .groups = groups.count,
                                  .group_decays = groups.decays});
      }
      settings.rule = ops::UpdateRule::adamw;
      break;
    case OptimizerKind::muon:
      return optim::make_muon({.momentum = recipe.momentum_or_default(),
                               .nesterov = recipe.nesterov_or_default(),
                               .beta1 = settings.beta1,
                               .beta2 = settings.beta2,
                               .epsilon = settings.epsilon,
                               .groups = groups});
    case OptimizerKind::lion:
      settings.rule = ops::UpdateRule::lion;
      break;
    case OptimizerKind::sgd:
      settings.rule = ops::UpdateRule::sgd;
      settings.momentum = recipe.momentum_or_default();
      settings.nesterov = recipe.nesterov_or_default();
      break;
  }
  return optim::make_elementwise(settings);
}

}  // namespace

std::shared_ptr<const optim::Optimizer> make_optimizer(const OptimizerRecipe& recipe) {
  std::shared_ptr<const optim::Optimizer> optimizer = make_kind(recipe);
  return recipe.ema > 0 ? optim::with_ema(std::move(optimizer), recipe.ema) : optimizer;
}

nn::FlatSpecOf with_optimizer(nn::FlatSpecOf spec_of, const OptimizerRecipe& recipe) {
  if (recipe.kind == OptimizerKind::adamw_8bit) spec_of = optim::eight_bit_specs(std::move(spec_of));
  if (recipe.kind == OptimizerKind::adafactor) spec_of = optim::adafactor_specs(std::move(spec_of));
  if (recipe.kind == OptimizerKind::muon) spec_of = optim::muon_specs(std::move(spec_of));
  if (recipe.master_dtype == StateDType::f32) return spec_of;
  return [of = std::move(spec_of)](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    if (spec.trainable) spec.stored = DType::bf16;
    return spec;
  };
}

void check_state_blocks(const Recipe& recipe, const models::Model& model, const optim::Optimizer& optimizer) {
  for (const nn::Flat& flat : model.flats()) {
    if (!flat.spec().trainable) continue;
    for (const optim::StateSlot& slot : optimizer.slots(flat)) {
      const std::string cut = nn::cut_block(flat, slot.granularity);
      if (cut.empty()) continue;
      Problem problem = problem_at(recipe, "optimizer.kind");
      problem.what = cat("the state of the optimizer is of blocks of ", slot.granularity.block,
                         " elements, which no parameter or slice may cut");
      problem.got = cut;
      problem.hint = model.share().tensor.count > 1
                         ? "optimizer.kind: adamw, or a smaller parallel.tensor_parallel_degree"
                         : "optimizer.kind: adamw";
      throw UserError(problem);  // the other blocks of the model have the same sizes
    }
  }
}

bool has_state_dtype(const OptimizerRecipe& recipe) {
  switch (recipe.kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::lion:
      return true;
    case OptimizerKind::sgd:
      return recipe.momentum_or_default() > 0;
    case OptimizerKind::adamw_8bit:
    case OptimizerKind::adafactor:
    case OptimizerKind::muon:
      return false;
  }
  return false;
}

const char* kind_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return "adamw";
    case OptimizerKind::adamw_8bit:
      return "adamw_8bit";
    case OptimizerKind::adafactor:
      return "adafactor";
    case OptimizerKind::lion:
      return "lion";
    case OptimizerKind::sgd:
      return "sgd";
    case OptimizerKind::muon:
      return "muon";
  }
  return "";
}

const char* dtype_name(StateDType dtype) {
  return dtype == StateDType::bf16 ? "bf16" : "float32";
}

std::string optimizer_text(const OptimizerRecipe& recipe) {
  const std::string state = recipe.state_dtype == StateDType::bf16 ? ", state in bf16" : "";
  const std::string master = recipe.master_dtype == StateDType::bf16 ? ", weights in bf16" : "";
  const std::string average = recipe.ema > 0 ? ", average of the weights" : "";
  if (recipe.kind == OptimizerKind::adamw && state.empty() && master.empty() && average.empty()) return "";
  return kind_name(recipe.kind) + state + master + average;
}

}  // namespace hawser::plan
