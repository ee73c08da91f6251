#include "engine/run_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/fp8_blocks.h"
#include "engine/model_changes.h"
#include "io/json.h"
#include "models/param_names.h"

namespace hawser::engine {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::vector<Fp8Fallback>& fallbacks) {
  Json out = Json::array();
  for (const Fp8Fallback& fallback : fallbacks) out.push_back({{"step", fallback.step}, {"modules", fallback.modules}});
  return out;
}

Json json_of(const std::vector<SaturatedStep>& steps) {
  Json out = Json::array();
  for (const SaturatedStep& s : steps) {
    out.push_back({{"step", s.step}, {"layer", s.layer}, {"site", nn::to_string(s.site)}});
  }
  return out;
}

std::vector<Fp8Fallback> fallbacks_of(const Json& json) {
  std::vector<Fp8Fallback> out;
  for (const Json& fallback : json) out.push_back({fallback.at("step"), fallback.at("modules")});
  return out;
}

std::vector<SaturatedStep> saturated_steps_of(const Json& json) {
  std::vector<SaturatedStep> out;
  for (const Json& step : json) {
    for (int site = 0; site < nn::kSites; ++site) {
      if (step.at("site") != nn::to_string(static_cast<nn::Site>(site))) continue;
      out.push_back({step.at("step"), step.at("layer"), static_cast<nn::Site>(site)});
    }
  }
  return out;
}

}  // namespace

std::string to_json(const RunState& state) {
  nlohmann::ordered_json json;
  json["step"] = state.step;
  json["sequences"] = state.sequences;
  if (state.micro_batches > 0) json["micro_batches"] = state.micro_batches;
  if (state.skipped > 0) json["skipped"] = state.skipped;
  if (state.good_steps > 0) json["good_steps"] = state.good_steps;
  if (state.loss_scale != 1) json["loss_scale"] = state.loss_scale;
  if (state.kept != decltype(state.kept){}) json["optimizer_scalars"] = state.kept;
  if (state.replay_step >= 0) json["replay_step"] = state.replay_step;
  if (state.replays > 0) json["replays"] = state.replays;
  if (!state.fp8_fallbacks.empty()) json["fp8_fallbacks"] = json_of(state.fp8_fallbacks);
  if (!state.saturated_steps.empty()) json["saturated_steps"] = json_of(state.saturated_steps);
  if (!state.kept_in_fp8.empty()) json["kept_in_fp8"] = json_of(state.kept_in_fp8);
  json["recipe"] = io::parse_own_json<io::OrderedJson>(state.recipe);
  json["config"] = state.config;
  json["tokenizer"] = state.tokenizer;
  if (!state.data.empty()) json["data"] = io::parse_own_json<io::OrderedJson>(state.data);
  if (!state.compute.empty()) json["compute"] = state.compute;
  json["optimizer"] = state.optimizer;
  if (!state.base.empty()) json["base"] = state.base;
  if (!state.base_model.empty()) json["base_model"] = state.base_model;
  const auto add_losses = [&](const std::optional<ValidationLosses>& losses, const char* all, const char* sets) {
    if (!losses) return;
    json[all] = losses->all;
    if (!losses->sets.empty()) json[sets] = losses->sets;
  };
  add_losses(state.validation_loss, "validation_loss", "validation_losses");
  add_losses(state.initial_validation_loss, "initial_validation_loss", "initial_validation_losses");
  if (!state.unfinished_evaluation.empty()) json["unfinished_evaluation"] = state.unfinished_evaluation;
  if (!state.validation.empty()) json["validation"] = io::parse_own_json<io::OrderedJson>(state.validation);
  if (state.conversations) json["conversations"] = *state.conversations;
  for (const batches::Mixture::Shares& shares : state.mixture) {
    json["mixture"].push_back({{"from", shares.from}, {"shares", shares.of_sets}});
  }
  if (!state.gemm_algorithms.empty()) json["gemm_algorithms"] = state.gemm_algorithms;
  return json.dump();
}

namespace {

std::vector<batches::Mixture::Shares> mixture_of(const nlohmann::json& json) {
  std::vector<batches::Mixture::Shares> mixture;
  for (const auto& one : json.value("mixture", nlohmann::json::array())) {
    mixture.push_back({one.at("from").get<std::int64_t>(), one.at("shares").get<std::vector<double>>()});
  }
  return mixture;
}

}  // namespace

RunState run_state_of(const std::string& text) {
  const auto rejected = [](std::string why) {
    return UserError(Problem{.what = "the checkpoint was not written by `hawser fit`", .got = std::move(why)});
  };
  const auto [json, error] = io::read_json<io::OrderedJson>(text);
  if (error) throw rejected(error->kind == io::JsonError::Kind::depth ? "JSON nested too deeply" : "broken JSON");
  try {
    // Accepts integers in the range of a count; rejects numbers such as 1e300.
    const auto count = [&](const char* key) {
      const auto& value = json.at(key);
      if (value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{1} << 60)
        return value.get<std::int64_t>();
      throw rejected(cat(key, " ", value.dump()));
    };
    const auto losses = [&](const char* all, const char* sets) -> std::optional<ValidationLosses> {
      if (!json.contains(all)) return std::nullopt;
      return ValidationLosses(json.at(all).get<double>(), json.value(sets, std::map<std::string, double>()));
    };
    return {.step = count("step"),
            .sequences = count("sequences"),
            .micro_batches = json.contains("micro_batches") ? count("micro_batches") : 0,
            .skipped = json.contains("skipped") ? count("skipped") : 0,
            .good_steps = json.contains("good_steps") ? count("good_steps") : 0,
            .loss_scale = json.value("loss_scale", 1.0f),
            .kept = json.value("optimizer_scalars", decltype(RunState::kept){}),
            .replay_step = json.contains("replay_step") ? count("replay_step") : -1,
            .replays = json.contains("replays") ? count("replays") : 0,
            .fp8_fallbacks = fallbacks_of(json.value("fp8_fallbacks", Json::array())),
            .saturated_steps = saturated_steps_of(json.value("saturated_steps", Json::array())),
            .kept_in_fp8 = saturated_steps_of(json.value("kept_in_fp8", Json::array())),
            .recipe = json.at("recipe").dump(),
            .config = json.at("config"),
            .tokenizer = json.at("tokenizer"),
            .data = json.contains("data") ? json.at("data").dump() : "",
            .compute = json.value("compute", ""),
            .optimizer = json.value("optimizer", "adamw"),
            .base = json.value("base", ""),
            .base_model = json.value("base_model", ""),
            .validation_loss = losses("validation_loss", "validation_losses"),
            .initial_validation_loss = losses("initial_validation_loss", "initial_validation_losses"),
            .unfinished_evaluation = json.value("unfinished_evaluation", ""),
            .validation = json.contains("validation") ? json.at("validation").dump() : "",
            .conversations =
                json.contains("conversations") ? std::optional(json.at("conversations").get<bool>()) : std::nullopt,
            .mixture = mixture_of(json),
            // "products" in checkpoints of version 0.1
            .gemm_algorithms = json.value("gemm_algorithms", json.value("products", ""))};
  } catch (const nlohmann::json::exception& wrong) {
    throw rejected(wrong.what());
  }
}

bool same_validation(const std::string& a, const std::string& b) {
  const auto one = io::json_or_null(a), other = io::json_or_null(b);
  return one.is_object() && one == other;
}

namespace {

// A recipe sets the coefficients of these losses, like a learning rate (router_changes).
models::ModelDescription without_router_losses(models::ModelDescription description) {
  for (models::BlockDescription& block : description.blocks) {
    if (block.moe) block.moe->auxiliary_loss = block.moe->router_z_loss = 0;
  }
  return description;
}

bool computes_in_fp8(const std::string& recipe_json) {
  const auto recipe = io::json_or_null(recipe_json);
  return recipe.is_object() && recipe.value("/precision/compute"_json_pointer, nlohmann::json()) == "fp8";
}

// Two values of precision.fp8.layers name the same blocks of a model: ["all"] and ["0-3"] of four.
bool same_blocks(const nlohmann::json& a, const nlohmann::json& b, int blocks) {
  if (!a.is_array() || !b.is_array()) return a == b;
  const auto of = [](const nlohmann::json& layers) {
    Recipe recipe;
    recipe.precision.fp8.layers = layers.get<std::vector<std::string>>();
    return Fp8Blocks(recipe);
  };
  const Fp8Blocks one = of(a), other = of(b);
  for (int block = 0; block < blocks; ++block) {
    if (one.contains(block) != other.contains(block)) return false;
  }
  return true;
}

}  // namespace

Problems description_changes(const RunState& state, const models::ModelDescription& description, const std::string& key,
                             const std::string& file) {
  Problems out;
  Problems unreadable;
  const models::ModelDescription before = models::describe_config(state.config, file, unreadable);
  out.add(unreadable);
  const std::string changes = unreadable.empty() ? models::description_changes(without_router_losses(before),
                                                                               without_router_losses(description))
                                                 : "";
  if (!changes.empty()) {
    out.add({.file = file,
             .what = "the model has changed: " + changes,
             .at = key,
             .hint = cat("the ", key == "model.config" ? "config.json" : "model",
                         " that the run was started with, or --set output=... for a new run")});
  }
  return out;
}

Problems computation_changes(const RunState& state, DType compute, const std::string& optimizer,
                             const std::string& recipe, const std::string& file) {
  Problems out;
  // Checkpoints of version 0.1 have the recipe's choice only; "auto" there may be either.
  std::string was = state.compute;
  if (was.empty()) {
    const auto stored = io::json_or_null(state.recipe);
    const auto choice = stored.is_object() ? stored.value("/precision/compute"_json_pointer, "auto") : "auto";
    if (choice != "auto") was = choice == "bf16" ? to_string(DType::bf16) : choice;
  }
  const bool was_fp8 = computes_in_fp8(state.recipe);
  if (!was.empty() && was != to_string(compute) && was_fp8 == computes_in_fp8(recipe)) {  // else fp8_changes() says it
    out.add({.file = file,
             .what = "the compute dtype has changed",
             .expected = was,
             .got = to_string(compute),
             .at = "precision.compute",
             .hint = was_fp8 ? "the kind of device that the run was started on, or --set output=... for a new run"
                             : cat("--set precision.compute=", was == to_string(DType::bf16) ? "bf16" : was)});
  }
  if (state.optimizer != optimizer) {
    out.add({.file = file,
             .what = "the optimizer has changed",
             .expected = state.optimizer,
             .got = optimizer,
             .at = "optimizer.kind",
             .hint = cat("the run's own optimizer, ", state.optimizer, ", or --set output=... for a new run")});
  }
  return out;
}

Problems base_changes(const std::string& before, const std::string& base, const std::string& file, bool resumes) {
  Problems out;
  if (before.empty() || base.empty() || before == base) return out;
  out.add({.file = file,
           .what = "the frozen weights have changed",
           .expected = before,
           .got = base,
           .at = resumes ? "model.path" : "",
           .hint = cat("the base model that the run was started with",
                       resumes ? ", or --set output=... for a new run" : "")});
  return out;
}

Problems adapter_changes(const RunState& state, const std::string& recipe, const std::string& file) {
  const nlohmann::json::json_pointer section("/adapter");
  const auto of = [&](const nlohmann::json& json) {
    nlohmann::json adapter =
        json.is_object() ? json.value(section, nlohmann::json::object()) : nlohmann::json::object();
    if (adapter.value("kind", "none") == "none") return nlohmann::json{{"kind", "none"}};
    adapter.erase("dropout");
    // kind: qlora is lora with a base in NF4. Other bases follow from the precision, which is compared elsewhere.
    const bool quantizes = adapter.value("kind", "") == "qlora" || adapter.value("base", "") == "nf4";
    adapter["kind"] = "lora";
    adapter["base"] = quantizes ? "nf4" : "auto";
    if (!quantizes) adapter.erase("double_quantization");
    return adapter;
  };
  const nlohmann::json saved = of(io::json_or_null(state.recipe)), now = of(io::parse_own_json(recipe));
  Problems out;
  for (const auto& [key, value] : now.items()) {
    const nlohmann::json before = saved.value(key, nlohmann::json());
    if (before == value || (before.is_null() && key != "kind")) continue;
    out.add({.file = file,
             .what = "the adapter has changed",
             .expected = before.dump(),
             .got = value.dump(),
             .at = "adapter." + key,
             .hint = "the setting that the run was started with, or --set output=... for a new run"});
  }
  return out;
}

Problems frozen_changes(const RunState& state, const std::string& recipe, const models::Model& model,
                        const std::string& file) {
  Problems out;
  const std::vector<std::string> before = frozen_of(state.recipe), now = frozen_of(recipe);
  const models::ParamNames was(before), is(now);
  const std::vector<models::NamedParam> params = models::named_params(model);
  const bool same = std::ranges::all_of(params, [&](const models::NamedParam& named) {
    return was.find(named.tensor).has_value() == is.find(named.tensor).has_value();
  });
  if (same) return out;
  out.add({.file = file,
           .what = "the frozen parameters have changed",
           .expected = nlohmann::json(before).dump(),
           .got = nlohmann::json(now).dump(),
           .at = "train.freeze",
           .hint = "the setting that the run was started with, or --set output=... for a new run"});
  return out;
}

Problems fp8_changes(const RunState& state, const std::string& recipe, int blocks, const std::string& file) {
  const auto of = [](const nlohmann::json& json, const char* key) {
    return json.is_object() ? json.value(nlohmann::json::json_pointer(key), nlohmann::json()) : nlohmann::json();
  };
  const nlohmann::json saved = io::json_or_null(state.recipe), now = io::parse_own_json(recipe);
  const bool was = computes_in_fp8(state.recipe), is = computes_in_fp8(recipe);
  Problems out;
  const auto add = [&](const std::string& key, const nlohmann::json& before, const nlohmann::json& after) {
    out.add({.file = file,
             .what = "the precision has changed",
             .expected = before.dump(),
             .got = after.dump(),
             .at = key,
             .hint = "the setting that the run was started with, or --set output=... for a new run"});
  };
  if (was != is) add("precision.compute", of(saved, "/precision/compute"), of(now, "/precision/compute"));
  if (!was || !is) return out;
  // recipe_json() writes the keys of a group by their dotted names.
  const bool delayed = of(now, "/precision/fp8.scaling") == "delayed";
  for (const char* key : {"scaling", "amax_history", "layers"}) {
    if (key == std::string_view("amax_history") && !delayed) continue;  // there is none
    const std::string place = cat("/precision/fp8.", key);
    const nlohmann::json before = of(saved, place.c_str()), after = of(now, place.c_str());
    const bool same = key == std::string_view("layers") ? same_blocks(before, after, blocks) : before == after;
    if (!same) add(cat("precision.fp8.", key), before, after);
  }
  // A new exclusion only drops scales; a removed one would have no history.
  const nlohmann::json before = of(saved, "/precision/fp8.exclude"), after = of(now, "/precision/fp8.exclude");
  const bool kept = std::ranges::all_of(
      before, [&](const nlohmann::json& name) { return std::ranges::find(after, name) != after.end(); });
  if (!kept) add("precision.fp8.exclude", before, after);
  return out;
}

namespace {

// Of two recipe_json: "train.seed was 7 and is 8, ..." for those of the keys that differ. A key that the earlier one
// lacks, as it is of an earlier version, does not differ.
std::string differences(const nlohmann::json& then, const nlohmann::json& now, const std::vector<std::string>& keys) {
  const auto text = [](const nlohmann::json& value) { return value.is_null() ? "not set" : value.dump(); };
  std::string out;
  for (const std::string& key : keys) {
    // A section's key may have a dot of its own: "early_stopping.patience" of train.
    const std::size_t dot = key.find('.');
    const nlohmann::json::json_pointer place("/" + key.substr(0, dot) + "/" + key.substr(dot + 1));
    if (!then.contains(place) || !now.contains(place) || then.at(place) == now.at(place)) continue;
    out += cat(out.empty() ? "" : ", ", key, " was ", text(then.at(place)), " and is ", text(now.at(place)));
  }
  return out;
}

}  // namespace

std::string data_order_changes(const RunState& state, const std::string& recipe) {
  return differences(io::parse_own_json(state.recipe), io::parse_own_json(recipe),
                     {"train.seed", "data.sequence_length", "data.pack", "data.max_documents", "data.long_documents"});
}

std::string training_changes(const RunState& state, const std::string& recipe) {
  const auto then = io::json_or_null(state.recipe), now = io::parse_own_json(recipe);
  if (!then.is_object()) return "";
  std::vector<std::string> keys = {"train.steps", "train.epochs", "train.early_stopping.patience",
                                   "train.early_stopping.metric", "adapter.dropout"};
  for (const char* section : {"optimizer", "moe"}) {
    for (const auto& [key, value] : now.at(section).items()) {
      keys.push_back(cat(section, ".", key));
    }
  }
  return differences(then, now, keys);
}

std::string data_changes(const RunState& state, const std::string& data) {
  const auto saved = io::json_or_null(state.data), now = io::json_or_null(data);
  if (!saved.is_object() || !now.is_object() || saved == now) return "";
  const auto size = [](const nlohmann::json& of) {
    const auto count = [&](const char* key) {
      const auto found = of.find(key);
      return found != of.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
    };
    return cat(count("tokens"), " tokens in ", count("documents"), " documents");
  };
  const std::string then = size(saved), today = size(now);
  return "the training data have changed: " +
         (then == today ? cat(today, " with different content") : cat(then, " before, ", today, " now"));
}

std::string tokenizer_changes(const checkpoint::Checkpoint& checkpoint, std::vector<checkpoint::Attachment> now,
                              const std::function<bool(const std::string&)>& is_other) {
  std::vector<std::string> then = checkpoint.attached();
  std::erase_if(then, is_other);
  std::erase_if(now, [&](const checkpoint::Attachment& file) { return is_other(file.name); });
  if (then.empty() || now.empty()) return "";  // a checkpoint of an earlier version, or data that contain ids
  std::string out;
  const auto add = [&](const std::string& name, const char* what) { out += cat(out.empty() ? "" : ", ", name, what); };
  for (const checkpoint::Attachment& file : now) {
    const auto saved = std::find(then.begin(), then.end(), file.name);
    if (saved == then.end()) {
      add(file.name, " is new");
      continue;
    }
    if (checkpoint.read_attached(file.name) != file.text) add(file.name, " has changed");
    then.erase(saved);
  }
  for (const std::string& name : then) add(name, " is missing");
  return out;
}

}  // namespace hawser::engine
