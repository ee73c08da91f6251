#include "engine/model_changes.h"

namespace hawser::engine {

namespace {

void change_routers(const MoeRecipe& moe, const std::string& file, models::ModelDescription& description,
                    Problems& problems) {
  bool experts = false;
  for (models::BlockDescription& block : description.blocks) {
    if (!block.moe) continue;
    experts = true;
    if (moe.aux_loss_coefficient) block.moe->auxiliary_loss = *moe.aux_loss_coefficient;
    if (moe.z_loss_coefficient) block.moe->router_z_loss = *moe.z_loss_coefficient;
    const bool as_model = moe.balancing == ExpertBalancing::model && !moe.aux_loss_coefficient;
    if (moe.balancing == ExpertBalancing::none || (as_model && !block.moe->reported)) block.moe->auxiliary_loss = 0;
  }
  if (experts) return;
  const auto reject = [&](bool set, const char* key) {
    if (set) problems.add({.file = file, .what = "the model has no experts", .at = key});
  };
  reject(moe.balancing != ExpertBalancing::model, "moe.balancing");
  reject(moe.aux_loss_coefficient.has_value(), "moe.aux_loss_coefficient");
  reject(moe.z_loss_coefficient.has_value(), "moe.z_loss_coefficient");
}

}  // namespace

ModelChanges changes_of(const Recipe& recipe) {
  return {
      .describe = [moe = recipe.moe, file = recipe.file](models::ModelDescription& description, Problems& problems) {
        change_routers(moe, file, description, problems);
      }};
}

ModelChanges changes_for_evaluation() {
  return {.describe = [](models::ModelDescription& description, Problems&) {
    for (models::BlockDescription& block : description.blocks) {
      if (!block.moe) continue;
      block.moe->router_z_loss = 0;
      if (!block.moe->reported) block.moe->auxiliary_loss = 0;
    }
  }};
}

}  // namespace hawser::engine
