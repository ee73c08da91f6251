#include "engine/model_changes.h"

#include "io/json.h"

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

namespace {

// The keys of a recipe's text; what it does not have is as without them.
MoeRecipe moe_of(const std::string& recipe_json) {
  MoeRecipe moe;
  const auto recipe = io::json_or_null(recipe_json);
  const auto found = recipe.is_object() ? recipe.find("moe") : recipe.end();
  if (found == recipe.end() || !found->is_object()) return moe;
  const nlohmann::json balancing = found->value("balancing", nlohmann::json());
  if (balancing == "aux_loss") moe.balancing = ExpertBalancing::aux_loss;
  if (balancing == "none") moe.balancing = ExpertBalancing::none;
  const auto number = [&](const char* key) {
    const nlohmann::json value = found->value(key, nlohmann::json());
    return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
  };
  moe.aux_loss_coefficient = number("aux_loss_coefficient");
  moe.z_loss_coefficient = number("z_loss_coefficient");
  return moe;
}

// Of all layers with experts: auxiliary_loss and router_z_loss.
std::pair<double, double> router_losses(const models::ModelDescription& description) {
  for (const models::BlockDescription& block : description.blocks) {
    if (block.moe) return {block.moe->auxiliary_loss, block.moe->router_z_loss};
  }
  return {};
}

}  // namespace

std::string router_changes(const RunState& state, const models::ModelDescription& now, std::int64_t micro_batches) {
  Problems ignored;  // reported by computation_changes
  models::ModelDescription before = models::describe_config(state.config, "", ignored);
  if (!ignored.empty()) return "";
  change_routers(moe_of(state.recipe), "", before, ignored);
  const auto [auxiliary, z] = router_losses(before);
  const auto [auxiliary_now, z_now] = router_losses(now);
  std::string out;
  const auto add = [&](const char* key, double was, double is) {
    if (was != is) out += cat(out.empty() ? "" : ", ", key, " was ", was, " and is ", is);
  };
  add("moe.aux_loss_coefficient", auxiliary, auxiliary_now);
  add("moe.z_loss_coefficient", z, z_now);
  const bool adds = auxiliary_now != 0 || z_now != 0;
  if (adds && state.micro_batches != 0 && state.micro_batches != micro_batches) {
    out +=
        cat(out.empty() ? "" : ", ", "micro-batches of a step were ", state.micro_batches, " and are ", micro_batches);
  }
  return out;
}

std::optional<models::LoraConfig> lora_of(const AdapterRecipe& adapter) {
  if (adapter.kind == AdapterKind::none) return std::nullopt;
  return models::LoraConfig{.rank = adapter.rank,
                            .alpha = adapter.alpha,
                            .dropout = adapter.dropout,
                            .rslora = adapter.rslora,
                            .dora = adapter.dora,
                            .targets = adapter.targets,
                            .modules_to_save = adapter.modules_to_save};
}

std::optional<models::LoraConfig> lora_of(const std::string& recipe_json) {
  const auto recipe = io::json_or_null(recipe_json);
  const auto found = recipe.is_object() ? recipe.find("adapter") : recipe.end();
  if (found == recipe.end()) return std::nullopt;
  try {
    const nlohmann::json& keys = *found;
    AdapterRecipe adapter;
    if (keys.value("kind", "none") != "lora") return std::nullopt;
    adapter.kind = AdapterKind::lora;
    adapter.rank = keys.value("rank", adapter.rank);
    adapter.alpha = keys.value("alpha", adapter.alpha);
    adapter.dropout = keys.value("dropout", adapter.dropout);
    adapter.rslora = keys.value("rslora", adapter.rslora);
    adapter.dora = keys.value("dora", adapter.dora);
    adapter.targets = keys.value("targets", adapter.targets);
    adapter.modules_to_save = keys.value("modules_to_save", adapter.modules_to_save);
    return lora_of(adapter);
  } catch (const nlohmann::json::exception& wrong) {
    throw UserError(Problem{.what = "the checkpoint's recipe cannot be read", .got = wrong.what(), .at = "adapter"});
  }
}

ModelChanges changes_of(const Recipe& recipe) {
  ModelChanges changes;
  const std::optional<models::LoraConfig> lora = lora_of(recipe.adapter);
  changes.describe = [moe = recipe.moe, lora, file = recipe.file](models::ModelDescription& description,
                                                                  Problems& problems) {
    change_routers(moe, file, description, problems);
    if (!lora) return;
    models::add_lora(description, *lora, {file, "adapter.targets", "adapter.modules_to_save"}, problems);
  };
  if (lora) changes.spec_of = models::train_lora(lora->modules_to_save);
  return changes;
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
