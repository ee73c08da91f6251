#include "engine/model_changes.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "config/config.h"
#include "engine/fp8_blocks.h"
#include "engine/fp8_exclusions.h"
#include "io/json.h"
#include "models/frozen_params.h"
#include "models/param_groups.h"
#include "plan/context_form.h"
#include "plan/layout.h"
#include "plan/make_optimizer.h"
#include "plan/pipeline_form.h"

namespace hawser::engine {

namespace {

void change_routers(const Recipe& recipe, models::ModelDescription& description, Problems& problems) {
  const MoeRecipe& moe = recipe.moe;
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
    Problem problem = problem_at(recipe, key);
    problem.what = "the model has no experts";
    if (set) problems.add(problem);
  };
  reject(moe.balancing != ExpertBalancing::model, "moe.balancing");
  reject(moe.aux_loss_coefficient.has_value(), "moe.aux_loss_coefficient");
  reject(moe.z_loss_coefficient.has_value(), "moe.z_loss_coefficient");
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
  Problems ignored;  // reported by description_changes
  models::ModelDescription before = models::describe_config(state.config, "", ignored);
  if (!ignored.empty()) return "";
  change_routers(stored_section(state.recipe, "moe"), before, ignored);
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
  return lora_of(stored_section(recipe_json, "adapter").adapter);
}

std::vector<std::string> frozen_of(const std::string& recipe_json) {
  const auto recipe = io::json_or_null(recipe_json);
  std::vector<std::string> out;
  if (!recipe.is_object()) return out;
  for (const auto& entry : recipe.value("/train/freeze"_json_pointer, nlohmann::json::array())) {
    if (entry.is_string()) out.push_back(entry);
  }
  return out;
}

ModelChanges with_adapters(const ModelChanges& changes, const std::vector<models::LoraConfig>& adapters,
                           const models::LoraPlace& place) {
  if (adapters.empty()) return changes;
  std::vector<std::string> saved;
  for (const models::LoraConfig& lora : adapters) {
    saved.insert(saved.end(), lora.modules_to_save.begin(), lora.modules_to_save.end());
  }
  ModelChanges out = changes;
  out.describe = [changes, adapters, place](models::ModelDescription& description, Problems& problems) {
    if (changes.describe) changes.describe(description, problems);
    for (const models::LoraConfig& lora : adapters) models::add_lora(description, lora, place, problems);
  };
  out.spec_of = models::train_lora(changes.spec_of, std::move(saved));
  return out;
}

ModelChanges with_nf4_base(const ModelChanges& changes, const AdapterRecipe& adapter, const Problem& place) {
  if (!adapter.in_nf4()) return changes;
  const DType form = adapter.double_quantization ? DType::nf4_double : DType::nf4;
  ModelChanges out = changes;
  out.spec_of = nn::with_nf4_weights(
      changes.spec_of, [](int) { return true; }, form);
  out.describe = [changes, packed = out.spec_of, place](models::ModelDescription& description, Problems& problems) {
    const std::size_t before = problems.size();
    if (changes.describe) changes.describe(description, problems);
    if (problems.size() != before) return;
    std::set<std::int64_t> lengths;  // one problem for all blocks
    const auto check = [&](const nn::Param& param, const nn::UnitId& unit) {
      const nn::Segment& first = param.segments.front();
      const std::int64_t length = first.global[first.global.rank() - 1];
      if (packed(param, unit).packed() && length % kNf4Block != 0 && lengths.insert(length).second) {
        problems.add({.file = place.file,
                      .what = cat("NF4 has blocks of ", kNf4Block, " weights of a row"),
                      .expected = cat("rows of a multiple of ", kNf4Block),
                      .got = cat(length, " in ", first.name),
                      .at = place.at,
                      .hint = place.hint.empty() ? "adapter.kind: lora with adapter.base: auto" : place.hint});
      }
      return changes.spec_of(param, unit);
    };
    const models::Model checked(description, check);
  };
  return out;
}

Problem place_of_base(const Recipe& recipe) {
  return problem_at(recipe, recipe.places.contains("adapter.base") ? "adapter.base" : "adapter.kind");
}

ModelChanges with_stored_base(const ModelChanges& changes, const std::string& stored, bool adapted) {
  if (!changes.base) return changes;
  const Recipe& recipe = *changes.base;
  if (recipe.places.contains("adapter.base")) {
    Problem place = place_of_base(recipe);
    place.hint = "adapter.base: bf16";
    if (adapted || !recipe.adapter.in_nf4()) return with_nf4_base(changes, recipe.adapter, place);
    ModelChanges frozen = changes;
    frozen.spec_of = [of = changes.spec_of](const nn::Param& param, const nn::UnitId& unit) {
      nn::FlatSpec spec = of(param, unit);
      if (param.of_linear) spec.trainable = false;
      return spec;
    };
    return with_nf4_base(frozen, recipe.adapter, place);
  }
  AdapterRecipe adapter = stored_section(stored, "adapter").adapter;
  if (recipe.places.contains("adapter.double_quantization")) {
    adapter.double_quantization = recipe.adapter.double_quantization;
  }
  return with_nf4_base(changes, adapter, problem_at(recipe, "adapter.base"));
}

ModelChanges with_frozen(const ModelChanges& changes, const std::vector<std::string>& entries, const Problem& place) {
  if (entries.empty()) return changes;
  ModelChanges out = changes;
  out.describe = [changes, entries, place](models::ModelDescription& description, Problems& problems) {
    if (changes.describe) changes.describe(description, problems);
    models::check_frozen(description, entries, place, problems);
  };
  out.spec_of = models::freeze(changes.spec_of, models::ParamNames(entries));
  return out;
}

namespace {

ModelChanges in_groups(const ModelChanges& changes, const Recipe& recipe) {
  std::vector<models::ParamGroup> groups;
  for (const ParamGroupRecipe& group : recipe.optimizer.groups) {
    groups.push_back({.match = group.match, .decays = group.weight_decay.value_or(0.0) > 0});
  }
  ModelChanges out = changes;
  out.describe = [changes, groups, place = problem_at(recipe, "optimizer.groups")](
                     models::ModelDescription& description, Problems& problems) {
    const std::size_t before = problems.size();
    changes.describe(description, problems);
    if (problems.size() == before) {
      models::check_groups(models::Model(description, changes.spec_of), groups, place, problems);
    }
  };
  out.spec_of = models::with_groups(changes.spec_of, groups);
  return out;
}

// Linears in FP8, those that adapters leave frozen included.
ModelChanges with_fp8(const ModelChanges& changes, const Recipe& recipe, const std::vector<std::string>& fallbacks) {
  Problems wrong;
  const Fp8Blocks blocks(recipe);
  const Fp8Exclusions exclusions(recipe, fallbacks, wrong);
  const bool dora = recipe.adapter.kind != AdapterKind::none && recipe.adapter.dora;
  ModelChanges out = changes;
  const Problem place = problem_at(recipe, "adapter.dora");
  out.describe = [=](models::ModelDescription& description, Problems& problems) {
    if (changes.describe) changes.describe(description, problems);
    problems.add(wrong);
    blocks.check(static_cast<int>(description.blocks.size()), problems);
    exclusions.check(description, problems);
    if (dora) {
      problems.add({.file = place.file,
                    .what = "FP8 with DoRA is not supported",
                    .at = place.at,
                    .hint = "adapter.dora: false, or precision.compute: bf16"});
    }
  };
  if (dora) return out;
  const auto in_fp8 = [blocks](int block) { return blocks.contains(block); };
  const nn::FlatSpecOf fp8 = recipe.precision.fp8.scaling == Fp8Scaling::block
                                 ? nn::with_weights_quantized_on_use(changes.spec_of, in_fp8)
                                 : nn::with_fp8_weights(changes.spec_of, in_fp8);
  out.spec_of = [plain = changes.spec_of, fp8, exclusions](const nn::Param& param, const nn::UnitId& unit) {
    return exclusions.contains(param) ? plain(param, unit) : fp8(param, unit);
  };
  return out;
}

}  // namespace

ModelChanges on_rank(ModelChanges changes, const Recipe& recipe, int rank) {
  if (!accepted(recipe, {"parallel.tensor_parallel_degree", "parallel.tensor_parallel_modules"})) return changes;
  if (accepted(recipe,
               {"parallel.context_parallel_degree", "parallel.context_comm", "parallel.context_all_to_all_degree"})) {
    changes.describe = [before = changes.describe, recipe](models::ModelDescription& description, Problems& problems) {
      if (before) before(description, problems);
      plan::check_context_form(recipe, description, problems);
    };
  }
  if (accepted(recipe, {"parallel.pipeline_parallel_degree", "parallel.pipeline_schedule",
                        "parallel.pipeline_virtual_stages", "parallel.pipeline_partition"})) {
    changes.describe = [before = changes.describe, recipe](models::ModelDescription& description, Problems& problems) {
      if (before) before(description, problems);
      plan::check_pipeline(recipe, static_cast<int>(description.blocks.size()), problems);
    };
  }
  changes.share = plan::share_of(recipe.parallel, rank);
  changes.share_place = problem_at(recipe, "parallel.tensor_parallel_degree");
  changes.share_place.hint = "parallel.tensor_parallel_degree: ";
  return changes;
}

ModelChanges changes_of(const Recipe& recipe, int rank, const std::vector<std::string>& fallbacks) {
  ModelChanges changes{.describe = [recipe](models::ModelDescription& description, Problems& problems) {
    check_blocks(recipe, static_cast<std::int64_t>(description.blocks.size()), problems);
    change_routers(recipe, description, problems);
  }};
  if (const std::optional<models::LoraConfig> lora = lora_of(recipe.adapter)) {
    changes = with_adapters(changes, {*lora},
                            {.targets = problem_at(recipe, "adapter.targets"),
                             .modules_to_save = problem_at(recipe, "adapter.modules_to_save")});
  }
  changes = with_nf4_base(changes, recipe.adapter, place_of_base(recipe));
  if (accepted(recipe, {"train.freeze"})) {
    changes = with_frozen(changes, recipe.train.freeze, problem_at(recipe, "train.freeze"));
  }
  if (!recipe.optimizer.groups.empty()) changes = in_groups(changes, recipe);
  if (recipe.precision.compute == ComputePrecision::fp8) changes = with_fp8(changes, recipe, fallbacks);
  if (accepted(recipe, {"optimizer.kind", "optimizer.master_dtype"})) {
    changes.spec_of = plan::with_optimizer(changes.spec_of, recipe.optimizer);
  }
  return on_rank(std::move(changes), recipe, rank);
}

std::string experts_without_adapter(const Recipe& recipe, const models::Model& model) {
  if (recipe.adapter.kind == AdapterKind::none) return "";
  const auto& blocks = model.description().blocks;
  const auto with_experts = std::ranges::count_if(blocks, [](const auto& block) { return block.moe.has_value(); });
  if (with_experts == 0) return "";
  return cat("adapters are on Linears outside of experts: the experts of ", with_experts, " of ", blocks.size(),
             " blocks keep their weights");
}

std::string useless_fp8(const Recipe& recipe, const models::Model& model) {
  if (recipe.precision.compute != ComputePrecision::fp8) {
    const std::string keys = unused_fp8_keys(recipe);
    return keys.empty() ? "" : cat("no effect without precision.compute: fp8: ", keys);
  }
  const bool any = std::ranges::any_of(model.flats(), [](const nn::Flat& flat) { return flat.spec().fp8(); });
  if (!any) return "no Linear is in FP8: precision.fp8.layers and exclude leave none";
  Problems ignored;  // reported by changes_of
  const std::string entries = Fp8Exclusions(recipe, {}, ignored).without_effect(model, Fp8Blocks(recipe));
  if (entries.empty()) return "";
  return cat("no effect of precision.fp8.exclude, as no block of precision.fp8.layers has such a Linear: ", entries);
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
