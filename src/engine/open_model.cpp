#include "engine/open_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/hub_name.h"
#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "engine/find_checkpoint.h"
#include "engine/model_changes.h"
#include "engine/run_state.h"
#include "io/files.h"
#include "io/json.h"
#include "models/peft.h"
#include "models/peft_config.h"
#include "models/weights.h"
#include "optim/ema_optimizer.h"
#include "text/chat/chat_template.h"

namespace hawser::engine {

namespace {

// Null if the description has problems. If the changes have some, the model is the one without them, for more checks.
std::unique_ptr<models::Model> make_model(models::ModelDescription description, const ModelChanges& changes,
                                          std::size_t before, Problems& problems) {
  if (problems.size() != before) return nullptr;
  models::ModelDescription changed = description;
  if (changes.describe) changes.describe(changed, problems);
  models::check_share(changed, changes.share, changes.share_place, problems);
  if (problems.size() != before) return std::make_unique<models::Model>(std::move(description));
  return std::make_unique<models::Model>(std::move(changed), changes.spec_of, changes.share);
}

constexpr const char* kFolderWithWeights = "a folder with weights";

// A file in place of a model with weights. Its folder is the hint if that has weights.
Problem not_a_folder(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto has = [&](const char* name) { return io::exists((folder / name).string()); };
  std::string hint;
  if (has("model.safetensors") || has("model.safetensors.index.json")) hint = folder.empty() ? "." : folder.string();
  return {.file = path, .what = "a file, not a model folder", .expected = kFolderWithWeights, .hint = hint};
}

}  // namespace

OpenModel open_model(const std::string& path, bool random_weights, Problems& problems, const ModelChanges& changes) {
  OpenModel open;
  if (!random_weights && io::exists(path) && !io::is_folder(path)) {
    problems.add(not_a_folder(path));
    return open;
  }
  if (models::is_adapter_folder(path)) {
    problems.add(
        {.file = path,
         .what = "an adapter, not a model",
         .expected = "the folder of its base model",
         .hint = cat("--model BASE --adapter ", path, "; to train it further, `hawser export --model BASE --adapter ",
                     path, " --merge FOLDER` and train FOLDER")});
    return open;
  }
  Problems of_weights;  // shown after those of the config
  std::optional<models::TensorNames> names;
  if (!random_weights && io::exists(path)) {
    open.weights = checkpoint::SafetensorsFolder::open(path, of_weights);
    if (open.weights) names.emplace(open.weights->names());
  }
  const std::size_t before = problems.size();
  models::ModelDescription description = models::read_description(path, problems, names ? &*names : nullptr);
  open.model = make_model(std::move(description), changes, before, problems);
  problems.add(of_weights);
  if (open.weights && open.model) models::check_weights(*open.model, *open.weights, problems);
  return open;
}

std::vector<OpenAdapter> open_adapters(const std::vector<std::string>& folders, Problems& problems) {
  std::vector<OpenAdapter> out;
  for (const std::string& folder : folders) {
    auto lora = models::read_lora_config(folder, problems);
    if (!lora) continue;
    const std::string file = (std::filesystem::path(folder) / models::kAdapterWeightsFile).string();
    if (!io::exists(file)) {
      problems.add({.file = folder, .what = "no weights of the adapter here", .expected = models::kAdapterWeightsFile});
      continue;
    }
    auto weights = checkpoint::SafetensorsFolder::open(file, problems);
    if (!weights) continue;
    if (folders.size() > 1) lora->name = cat(out.size());
    out.push_back({folder, std::move(*lora), std::move(*weights)});
  }
  return out;
}

models::WeightSources sources_of(OpenModel& open) {
  models::WeightSources sources(*open.weights);
  for (OpenAdapter& adapter : open.adapters) sources.add_adapter(adapter.weights, adapter.lora.name);
  return sources;
}

std::string frozen_identity(const OpenModel& open) {
  if (!open.model || !open.weights) return "";
  const bool frozen =
      std::ranges::any_of(open.model->flats(), [](const nn::Flat& flat) { return !flat.spec().trainable; });
  if (!frozen) return "";
  return checkpoint::checksum_text(open.weights->identity());
}

models::ModelDescription describe_checkpoint(const checkpoint::Checkpoint& checkpoint, const std::string& config,
                                             Problems& problems, const checkpoint::SafetensorsFolder* base) {
  std::vector<std::string> names;
  if (base != nullptr) names = base->names();
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    names.push_back(tensor.name);
    // Adapters alone show the model's prefix, which readers look for at the embedding.
    if (base != nullptr || !tensor.name.starts_with("layers.")) continue;
    for (const char* table : {"embed_tokens.weight", "embed_in.weight"}) names.emplace_back(table);
  }
  const models::TensorNames of(std::move(names));
  return models::describe_config(config, checkpoint.folder(), problems, &of);
}

namespace {

// The tokenizer in a folder, or the path itself if it is a file; "" if there is none.
std::string tokenizer_file(const std::string& path) {
  if (path.empty()) return "";
  if (io::is_folder(path)) return text::tokenizer_in(path);
  return io::exists(path) ? path : "";
}

// The tokenizer and its settings are read from the checkpoint by path: checks that the files are unchanged.
void check_attached(const checkpoint::Checkpoint& checkpoint, Problems& problems) {
  Problems corrupt;
  checkpoint.verify_attached(corrupt);
  if (corrupt.empty()) return;
  const std::string before = checkpoint::complete_before(checkpoint.folder());
  for (Problem problem : corrupt.all()) {
    problem.hint = before;
    problems.add(std::move(problem));
  }
}

// Two adapters that have the same module in full would replace each other's, whatever their files call it.
void check_modules(const std::vector<OpenAdapter>& adapters, Problems& problems) {
  struct Seen {
    const OpenAdapter* adapter;
    std::string name;
  };
  std::map<std::string, Seen> seen;  // by the model's name
  for (const OpenAdapter& adapter : adapters) {
    for (const std::string& name : adapter.weights.names()) {
      if (models::is_lora_tensor(name)) continue;
      const std::string own = models::name_of_peft(name, adapter.lora.name).value_or(name);
      const auto [first, is_new] = seen.emplace(own, Seen{&adapter, name});
      if (is_new || first->second.adapter == &adapter) continue;
      problems.add({.file = adapter.folder,
                    .what = "two adapters have the same module in full",
                    .got = name == first->second.name ? name : cat(first->second.name, " and ", name)});
      return;
    }
  }
}

// What the model has of adapters must be in their files: a missing tensor would have its initial values.
void check_complete(const models::Model& model, const std::vector<OpenAdapter>& adapters, Problems& problems) {
  std::set<std::string> have;
  for (const OpenAdapter& adapter : adapters) {
    for (const std::string& name : adapter.weights.names()) {
      if (auto own = models::name_of_peft(name, adapter.lora.name)) have.insert(std::move(*own));
    }
  }
  std::int64_t missing = 0, all = 0;
  std::string first;
  for (const models::HfTensor& tensor : models::hf_tensors(model)) {
    if (!model.flat(tensor.flat).spec().trainable) continue;
    ++all;
    if (!have.contains(tensor.name) && missing++ == 0) first = tensor.name;
  }
  if (missing == 0) return;
  problems.add({.file = adapters.front().folder,
                .what = "tensors of the adapter are missing",
                .expected = cat(all),
                .got = cat(all - missing),
                .at = first});
}

// Whether a folder has a chat template. One that cannot be used counts: its error is reported where it is opened.
bool has_template(const std::string& folder) {
  Problems unusable;
  return text::chat::open_chat_template("", folder, "", "", unusable) != nullptr || !unusable.empty();
}

// What comes with the model beside its weights: from the last adapter that has it, otherwise from the model's folder.
void find_files_beside(const std::string& path, OpenModel& open, Problems& problems) {
  if (io::is_folder(path)) open.tokenizer = tokenizer_file(path);
  std::string templates;
  for (const OpenAdapter& adapter : open.adapters) {
    if (std::string own = tokenizer_file(adapter.folder); !own.empty()) open.tokenizer = std::move(own);
    if (has_template(adapter.folder)) templates = adapter.folder;
  }
  if (!open.adapters.empty()) {
    if (templates.empty() && io::is_folder(path) && has_template(path)) templates = path;
    if (templates != std::filesystem::path(open.tokenizer).parent_path().string()) open.templates = templates;
  }
  if (!open.model) return;
  open.special = models::read_special_tokens(path, problems);
  for (const OpenAdapter& adapter : open.adapters) {
    models::read_special_tokens_of_adapter(adapter.folder, open.special, problems);
  }
}

OpenModel open_folder(const std::string& path, Problems& problems, const ModelChanges& changes,
                      const std::vector<std::string>& adapters) {
  const std::size_t before = problems.size();
  std::vector<OpenAdapter> opened = open_adapters(adapters, problems);
  check_modules(opened, problems);
  std::vector<models::LoraConfig> configs;
  for (const OpenAdapter& adapter : opened) configs.push_back(adapter.lora);
  const std::string config = opened.size() == 1
                                 ? (std::filesystem::path(opened.front().folder) / models::kAdapterConfigFile).string()
                                 : std::string();
  if (!io::exists(path) && !hub_name_of(path)) {
    problems.add({.file = path, .what = "no such model", .expected = kFolderWithWeights});
    return {};
  }
  const models::LoraPlace place{.targets = {.file = config, .at = "target_modules"},
                                .modules_to_save = {.file = config, .at = "modules_to_save"}};
  OpenModel open =
      open_model(path, false, problems, with_stored_base(with_adapters(changes, configs, place), "", !configs.empty()));
  open.adapters = std::move(opened);
  if (problems.size() == before && !open.adapters.empty()) {
    models::check_weights(*open.model, sources_of(open), problems);
    check_complete(*open.model, open.adapters, problems);
  }
  find_files_beside(path, open, problems);
  return open;
}

// The frozen weights of a checkpoint, which has only what its run trains.
void open_base(const CheckpointMetadata& metadata, OpenModel& open, Problems& problems) {
  const std::string& path = metadata.base_model;
  if (path.empty() || !io::exists(path)) {
    problems.add({.file = open.checkpoint->folder(),
                  .what = open.lora ? "the base model of the adapter is missing"
                                    : "the model with the frozen weights is missing",
                  .expected = path.empty() ? "base_model in the checkpoint" : path,
                  .hint = open.lora ? "`hawser export` of the run, and --model BASE --adapter FOLDER"
                                    : "the folder where it was"});
    return;
  }
  open.weights = checkpoint::SafetensorsFolder::open(path, problems);
}

Problem no_averages(const std::string& path, const char* got) {
  return {.file = path,
          .what = "no average of the weights",
          .expected = "a checkpoint of a run with optimizer.ema",
          .got = got,
          .at = "--ema"};
}

}  // namespace

void read_averages(checkpoint::Checkpoint& checkpoint, Problems& problems) {
  const std::string prefix = cat(optim::kStatePrefix, optim::kEmaSlot);
  const bool has_some = std::ranges::any_of(checkpoint.tensors(), [&](const checkpoint::SavedTensor& tensor) {
    return tensor.name.starts_with(prefix + "/");
  });
  if (!has_some) problems.add(no_averages(checkpoint.folder(), "a run without it"));
  checkpoint.prefer(prefix);
}

OpenModel open_trained_model(const std::string& path, Problems& problems, const ModelChanges& changes,
                             const std::vector<std::string>& adapters) {
  const bool is_model = io::exists((std::filesystem::path(path) / "config.json").string());
  if (!looks_like_checkpoint(path) && (is_model || !checkpoints_below(path))) {
    if (const auto other = is_model ? std::nullopt : other_folder(path)) {
      problems.add(*other);
      return {};
    }
    if (changes.averages) problems.add(no_averages(path, "a model's folder"));
    return open_folder(path, problems, changes, adapters);
  }
  if (!adapters.empty()) {
    problems.add({.file = path,
                  .what = "adapters need a model's folder",
                  .got = "a run or a checkpoint",
                  .at = "--adapter",
                  .hint = cat("hawser export ", path, " OUT_DIR, and --model OUT_DIR")});
    return {};
  }
  OpenModel open;
  try {
    open.checkpoint = open_checkpoint(path, open.skipped);
    check_attached(*open.checkpoint, problems);
    if (changes.averages) read_averages(*open.checkpoint, problems);
    const CheckpointMetadata metadata = read_metadata(*open.checkpoint);
    open.recipe = metadata.recipe;
    open.tokenizer = tokenizer_file(metadata.tokenizer);
    open.lora = lora_of(open.recipe);
    const std::size_t before = problems.size();
    open.frozen = frozen_of(open.recipe);
    if (open.lora || !open.frozen.empty()) open_base(metadata, open, problems);
    models::ModelDescription description =
        describe_checkpoint(*open.checkpoint, metadata.config, problems, open.weights ? &*open.weights : nullptr);
    const std::vector<models::LoraConfig> configs =
        open.lora ? std::vector{*open.lora} : std::vector<models::LoraConfig>();
    ModelChanges trained = with_adapters(changes, configs, models::stored_place(path));
    if (!open.lora) trained = with_frozen(trained, open.frozen, {.file = path, .at = "train.freeze"});
    trained = with_stored_base(trained, open.recipe, open.lora || !open.frozen.empty());
    open.model = make_model(std::move(description), trained, before, problems);
    open.special = models::describe_special_tokens(metadata.config, open.checkpoint->folder(), problems);
    if (open.weights && open.model && problems.size() == before) {
      models::check_weights(*open.model, *open.weights, problems);
      problems.add(base_changes(metadata.base, frozen_identity(open), open.checkpoint->folder(), false));
    }
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return open;
}

std::unique_ptr<text::Tokenizer> tokenizer_of_model(const std::string& model_folder) {
  const std::string path = tokenizer_file(model_folder);
  return path.empty() ? nullptr : text::load_tokenizer(path);
}

std::string stored_chat_template(const std::string& recipe) {
  const auto stored = io::json_or_null(recipe);
  if (!stored.is_object()) return "";
  const auto name = stored.value(nlohmann::json::json_pointer("/data/chat_template"), nlohmann::json());
  return name.is_string() && text::chat::is_named(name.get<std::string>()) ? name.get<std::string>() : "";
}

std::string chat_template_of(const OpenModel& open) {
  std::string stored = stored_chat_template(open.recipe);
  return stored.empty() ? open.templates : stored;
}

}  // namespace hawser::engine
