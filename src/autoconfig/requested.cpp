#include "autoconfig/requested.h"

#include <algorithm>

#include "base/error.h"
#include "config/config.h"
#include "device/device.h"
#include "engine/model_changes.h"
#include "plan/run_plan.h"

namespace hawser::autoconfig {

int usable_gpus(const Recipe& recipe) {
  return recipe.run.device == DeviceChoice::cpu ? 0 : cuda_info().devices;
}

plan::Target choose_target(const Recipe& recipe, const std::string& name, int gpus) {
  if (!name.empty()) return plan::load_target(name);
  const bool cuda = recipe.run.device == DeviceChoice::cuda || gpus > 0;
  return plan::load_target(plan::target_of(cuda ? DeviceKind::cuda : DeviceKind::cpu));
}

int choose_ranks(const Recipe& recipe, const plan::Target& target, int gpus) {
  if (recipe.run.ranks > 0) return recipe.run.ranks;
  return target.cuda ? std::max(1, gpus) : default_ranks(recipe, DeviceChoice::cpu);
}

namespace {

void check_requested_layout(const Recipe& recipe, const std::string& named, Problems& problems) {
  try {
    const int gpus = usable_gpus(recipe);
    const int world = choose_ranks(recipe, choose_target(recipe, named, gpus), gpus);
    const auto check = recipe.places.contains("train.global_batch_size") ? check_layout : check_mesh;
    check(recipe, world, problems);
  } catch (const UserError& error) {  // of the target
    problems.add_lines(error.what());
  }
}

}  // namespace

engine::OpenModel open_requested(const Recipe& recipe, const std::string& target, Problems& problems) {
  engine::OpenModel open;
  Problems of_model;  // shown after those of the layout
  if (accepted(recipe, {"model.path", "model.config"})) {
    open = engine::open_model(plan::model_of(recipe), recipe.model.path.empty(), of_model, engine::changes_of(recipe));
  }
  if (!problems.empty() || !of_model.empty()) check_requested_layout(recipe, target, problems);
  problems.add(of_model);
  return open;
}

}  // namespace hawser::autoconfig
